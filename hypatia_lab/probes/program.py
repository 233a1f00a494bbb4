"""Probe ``program``: a command of a program file, which runs somebody else's program and reads what it prints.

The process is :mod:`hypatia_lab.strangers.programs`, which loads the program file; this is what a command has there to
work with.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypatia_lab.bench import sessions
from hypatia_lab.messages import unknown
from hypatia_lab.probes.probe import Emit, Ended
from hypatia_lab.workloads import DTYPES

if TYPE_CHECKING:
    from hypatia_lab.workloads import Workload

UNITS = {unit: (unit, 1.0) for unit in ("s", "ms", "us", "%", "1", "B", "B/s")} | {"µs": ("us", 1.0)}
UNITS |= {
    f"{prefix}{unit}": (unit, size)
    for unit in ("B", "B/s")
    for prefix, size in {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.items()
}
"""Unit of a figure → the one that it is recorded in, and how many of that it is."""
FENCE = True
"""Whether Landlock is used where there is one."""


def last_line(text: str) -> str:
    """The last line of ``text`` that says something, in quotes and cut."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"it said last {lines[-1][:160]!r}" if lines else "it said nothing"


@dataclass(frozen=True)
class Output:
    """What a program left: the ``text`` it printed (standard output and error), ``seconds`` from start to end, and the
    ``folder`` it ran in, which is there until the command ends."""

    text: str
    seconds: float
    folder: Path

    def number(self, pattern: str, what: str) -> float:
        """The number in group 1 of the first match of ``pattern`` (regular expression, ``^`` and ``$`` at lines).

        ``what`` names it. Commas between digits are dropped. Ends the command (wrong) where there is none.
        """
        found = re.search(pattern, self.text, re.MULTILINE)
        if found is None:
            raise Ended("wrong", f"the program did not print its {what}; {last_line(self.text)}")
        try:
            return float((found[1] or "").replace(",", ""))
        except ValueError:
            raise Ended("wrong", f"the program printed {found[1]!r} as its {what}, which is no number") from None


@dataclass(frozen=True)
class Shell:
    """What a command of a program file has to work with, in the fresh process that runs it.

    ``workload``, ``variant`` and ``device`` (cpu or cuda) are what its figures are of; ``number`` counts the command's
    processes from 0; ``folder`` is shared by them and removed once the record is written.
    """

    workload: Workload
    variant: str
    device: str
    number: int
    folder: Path
    due: float
    """The monotonic clock (s) at which the command's time is over."""
    watched: tuple[str, ...]
    emit: Emit
    switches: Mapping[str, str] = field(default_factory=dict)
    """What the command changes of a library's behaviour, in the environment of all that it runs."""
    keepers: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(
        self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, writes: Sequence[str | Path] = ()
    ) -> Output:
        """Run ``command`` to its end, in an empty folder and within the fence (:mod:`hypatia_lab.bench.fence`).

        ``env`` adds to the environment; ``writes`` are existing files and folders that it may write to besides. Ends
        the command, with everything that it started, when the program cannot be started, does not end in time
        (timeout), fails (crashed) or has written elsewhere (wrong).
        """
        plan = {
            "command": [str(word) for word in command],
            "env": {**self.switches, **(env or {})},
            # CUDA's driver names its threads in files of /proc; nothing can be made there.
            "writes": [*map(str, writes), *(["/proc"] if self.device == "cuda" else [])],
            "limit_s": max(0.0, self.due - time.monotonic()),
            "fence": FENCE,
            "watched": self.watched,
            "spared": [str(self.folder.parent.parent)],  # where the lab keeps what it has measured so far
        }
        keeper = subprocess.Popen(
            sessions.python("hypatia_lab.bench.fence"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.keepers.append(keeper)
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        print(json.dumps(plan), file=keeper.stdin, flush=True)
        report: dict[str, Any] = {"failed": "its keeper died"}
        for line in keeper.stdout:
            if line.strip():
                report = json.loads(line)
                break
            self.emit("alive")
        if "failed" in report:
            raise Ended("crashed", f"the program could not be started: {report['failed']}")
        text = Path(report["output"]).read_text(encoding="utf-8", errors="replace")
        if report["stopped"]:
            status, reason = report["stopped"]
            raise Ended(status, f"{reason}; {last_line(text)}")
        if report["written"]:
            first, *more = report["written"]
            others = f" and {len(more)} more" if more else ""
            raise Ended("wrong", f"while the program ran, a file outside its folder changed: {first}{others}")
        if report["code"]:
            code = report["code"]
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            refused = report["fenced"] and re.search(r"Permission denied|EACCES|PermissionError", text)
            fence = "; it may write in its own folder only" if refused else ""
            raise Ended("crashed", f"the program died ({how}); {last_line(text)}{fence}")
        return Output(text, report["seconds"], Path(report["folder"]))

    def figure(
        self,
        name: str,
        value: float,
        unit: str = "1",
        *,
        variant: str = "",
        operation: str = "",
        shape: Sequence[int] | None = None,
        dtype: str = "",
    ) -> dict[str, Any]:
        """A figure for the command to yield: ``value`` in ``unit`` (one of :data:`UNITS`) of what ``name`` says.

        ``variant``, ``operation``, ``shape`` and ``dtype`` say what it is of where that is not the command's. Raises
        ``ValueError`` for what no record can hold.
        """
        if not isinstance(name, str) or not 0 < len(name) <= 200:
            raise ValueError(f"name {name!r} of a figure must be a text of at most 200 characters")
        if unit not in UNITS:
            raise ValueError(f"unit {unit!r} of {name!r} is none of {', '.join(UNITS)}")
        unit, size = UNITS[unit]
        value *= size
        if not abs(value) <= 1e300:
            raise Ended("wrong", f"{name} is {value}, which no record holds")
        if dtype and dtype not in DTYPES:
            raise ValueError(unknown("dtype", dtype, DTYPES, repr(name)))
        if variant and not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", variant):
            raise ValueError(f"variant {variant!r} of {name!r} must be lower-case letters, digits and _")
        of = {"variant": variant, "operation": operation, "shape": list(shape or ()), "dtype": dtype}
        if operation or shape:  # one that there is
            replace(
                self.workload, operation=operation or self.workload.operation, shape=tuple(shape or self.workload.shape)
            )
        return {"topic": "program", "name": name, "unit": unit, "value": float(value), "count": 1} | {
            key: said for key, said in {**of, "switches": dict(self.switches)}.items() if said
        }

    def close(self) -> None:
        """End the keepers, and with them whatever their programs have left."""
        for keeper in self.keepers:
            with contextlib.suppress(BrokenPipeError):
                keeper.communicate()
