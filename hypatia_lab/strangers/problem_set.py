"""A set of problems in the format of KernelBench, and of candidates: who belongs to whom, and how many are fast.

A file goes by its name below the set's folder, such as ``level1/19_ReLU.py``. A candidate is for the problem of its
level that has its name or its number: ``19_ReLU.py``, ``19.py``, ``19_mine.py``, and ``level_1_problem_19_…``, as
KernelBench calls what it generates, which says its level itself. Where a level is not said, any will do, as long as one
problem alone fits. What was judged of a pair is kept in a file beside its records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from hypatia_lab.intervals import Interval
from hypatia_lab.records import write_text

LEVEL = re.compile(r"level[_-]?0*(\d+)")
GENERATED = re.compile(r"level_?0*(\d+)_problem_?0*(\d+)(?![0-9])")
NUMBERED = re.compile(r"0*(\d+)(?![^_])")
THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
"""The speeds *p* of ``fast_p``, as multiples of that of PyTorch. Source: KernelBench."""


def listed(folder: Path) -> dict[str, Path]:
    """The Python files in ``folder`` and in the folders in it, by name, in natural order.

    A ``folder`` that is called like a level is that level. Files whose name, or folder, begins with ``.`` or ``_`` are
    none of the set.
    """
    own = f"{folder.resolve().name}/" if LEVEL.fullmatch(folder.resolve().name) else ""
    files = (path for depth in ("*.py", "*/*.py") for path in folder.glob(depth) if path.is_file())
    below = {path.relative_to(folder).as_posix(): path for path in files}
    found = {own + name: path for name, path in below.items() if not re.search(r"(^|/)[._]", name)}
    return {name: found[name] for name in sorted(found, key=natural)}


def natural(name: str) -> list[str | int]:
    """A key by which 9 comes before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


@cache
def _told(name: str) -> tuple[str, str, int | None]:
    """Level (empty where it is not said), stem and number of a file."""
    path = PurePosixPath(name)
    if generated := GENERATED.match(path.stem):
        return f"level{generated[1]}", path.stem, int(generated[2])
    folder = "" if path.parent == PurePosixPath() else path.parent.as_posix()
    number = NUMBERED.match(path.stem)
    level = LEVEL.fullmatch(folder)
    return f"level{level[1]}" if level else folder, path.stem, int(number[1]) if number else None


def level(name: str) -> str:
    """The level of the problem ``name``, or the folder that it lies in; empty in a flat set."""
    return _told(name)[0]


def matched(problems: Sequence[str], candidates: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Problem → its candidate, of the names of each; and why every other candidate is not judged.

    Of several for one problem the one that has its very name is judged, else the first, which of numbered samples is
    that of the lowest number.
    """
    takers: dict[str, list[str]] = {}
    left: dict[str, str] = {}
    for candidate in candidates:
        fitting = [problem for problem in problems if _fits(_told(problem), _told(candidate))]
        same = [problem for problem in fitting if _told(problem)[1] == _told(candidate)[1]]
        fitting = same or fitting
        if len(fitting) == 1:
            takers.setdefault(fitting[0], []).append(candidate)
        elif fitting:
            left[candidate] = f"it may be for {fitting[0]} or for {fitting[1]}"
        else:
            left[candidate] = "no problem has its name or its number"
    chosen: dict[str, str] = {}
    for problem in filter(takers.__contains__, problems):
        first, *others = sorted(
            takers[problem], key=lambda name: (_told(name)[1] != _told(problem)[1], natural(name.removesuffix(".py")))
        )
        chosen[problem] = first
        left |= dict.fromkeys(others, f"{first} is judged for {problem}")
    return chosen, left


def _fits(problem: tuple[str, str, int | None], candidate: tuple[str, str, int | None]) -> bool:
    if problem[0] != candidate[0] and problem[0] and candidate[0]:
        return False
    return problem[1] == candidate[1] or (problem[2] is not None and problem[2] == candidate[2])


# ---------------------------------------------------------------- what was judged


@dataclass(frozen=True)
class Verdict:
    """What was judged of a pair: the ``entry`` that ``judge --json`` prints of it, and the ``seconds`` that it took.

    ``speeds`` holds the candidate's speed as a multiple of that of ``eager`` and of ``compile``, as far as measured.
    """

    entry: dict[str, Any]
    speeds: dict[str, Interval]
    seconds: float

    @property
    def word(self) -> str:
        """The candidate's status, or who was refused, or that nothing was judged."""
        if self.entry["outcome"] != "refused":
            return self.entry.get("status", self.entry["outcome"])
        return {"problem": "problem refused", "machine": "too large here"}.get(self.entry["fault"], "candidate refused")

    @property
    def why(self) -> str:
        """What is said of a candidate that is not right, or of what was refused; empty where all is well."""
        return self.entry.get("reason", self.entry["message"])


def keep(path: Path, key: Sequence[str], verdict: Verdict) -> None:
    """Write what was judged to the file ``path``; ``key`` says of what. Raises :class:`records.RecordError`."""
    write_text(path, json.dumps({"key": list(key)} | asdict(verdict), indent=1) + "\n")


def kept(path: Path, key: Sequence[str]) -> Verdict | None:
    """What is kept in ``path``, unless that is of something else, or nothing."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["key"] == list(key):
            speeds = {name: Interval(**one) for name, one in found["speeds"].items()}
            return Verdict(found["entry"], speeds, found["seconds"])
    return None


def fast(speeds: Iterable[Interval], p: float) -> tuple[int, int]:
    """How many of ``speeds``, each of a candidate that is right, are surely above ``p``, and how many may be.

    The whole interval decides. What is right is faster than nothing, even where its speed says nothing.
    """
    found = list(speeds)
    sure = sum(p <= 0 or one.above(p) for one in found)
    return sure, sure + sum(p > 0 and (bool(one.flaw) or one.low <= p < one.high) for one in found)
