"""One job: finds out which GPU it got, makes sure that no other job of the fleet measures it, and measures it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypatia_lab import records
from hypatia_lab.fleet import progress_line
from hypatia_lab.fleet.layout import Asked, FleetError, Layout, Told

ENDED = ("done", "twice")
"""States of a job that is not to be started again."""
LET_GO_S = 60.0
"""So long what an earlier attempt left behind may take to end."""
LOOKED_S = 1.0
"""So long others may hold a job's folder, who only look whether somebody does."""
LONGEST = 200
"""Characters of a reason."""
_LINUX = sys.platform == "linux"
_LIBC = ctypes.CDLL(None, use_errno=True) if _LINUX else None
_PARENT_DEATH_SIGNAL = 1


@dataclass(frozen=True)
class Programs:
    """Command lines that a job starts: one prints the machine folder of its GPU, one measures it."""

    chip: tuple[str, ...] = (sys.executable, "-m", "hypatia_lab.fleet.chip")
    run: tuple[str, ...] = (sys.executable, "-m", "hypatia_lab", "run")


OWN = Programs()
"""The lab's own."""


@dataclass(frozen=True)
class Work:
    """Attempt ``attempt`` at job ``number`` of the fleet in ``folder``, which submitit keeps and calls.

    ``visible`` is the GPU that it is to use, as ``CUDA_VISIBLE_DEVICES`` names it; None: whatever the scheduler gives.
    """

    folder: str
    number: int
    round: int
    attempt: int
    visible: str | None = None
    programs: Programs = OWN

    def __call__(self) -> str:
        """Measure; returns the state. Raises :class:`FleetError` with the reason when that fails."""
        layout = Layout(Path(self.folder))
        environment = _tidied()
        asked = layout.asked()
        last = layout.submission(self.number, asked) if asked else None
        if not asked or not last or (last.round, last.attempt) != (self.round, self.attempt):
            return "submitted anew"  # this is not the attempt any more that is to answer it
        with records.held(layout.job(self.number), LOOKED_S):
            before = layout.told(self.number, asked)
            if before and before.state in ENDED:  # killed before submitit could note that
                return before.state
            log = str(environment.paths.stderr)
            told = Told(self.round, self.attempt, "running", name=environment.job_id, log=log)
            layout.tell(self.number, told)
            try:
                return self._on_its_chip(layout, asked, told)
            except (FleetError, records.RecordError) as cause:
                now = layout.told(self.number, asked) or told
                layout.tell(self.number, replace(now, state="failed", reason=_short(str(cause))))
                raise

    def checkpoint(self) -> Any:
        """Called by submitit when the job is to make room: it is started again, and the run goes on by itself."""
        from submitit.helpers import DelayedSubmission

        layout = Layout(Path(self.folder))
        asked = layout.asked()
        if asked and (told := layout.told(self.number, asked)):
            with contextlib.suppress(records.RecordError):  # that the job goes on counts for more than to say so
                layout.tell(self.number, replace(told, state="preempted"))
        return DelayedSubmission(self)

    def _environment(self) -> dict[str, str]:
        return os.environ | ({} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible})

    def _on_its_chip(self, layout: Layout, asked: Asked, told: Told) -> str:
        command = [*self.programs.chip, asked.device, str(self.number)]
        named = subprocess.run(command, env=self._environment(), capture_output=True, text=True)
        if named.returncode:
            raise FleetError(_ending(named.returncode, named.stderr.splitlines(), ()))
        told = replace(told, machine=records.machine_name(named.stdout.strip()))
        with contextlib.ExitStack() as stack:
            records.ensure_writable(layout.chip(told.machine))
            try:
                stack.enter_context(records.held(layout.chip(told.machine)))
            except records.RecordError:
                return self._twice(layout, told, "another job of this fleet is measuring this chip")
            for other in layout.numbers():
                there = layout.told(other, asked)
                if other != self.number and there and (there.state, there.machine) == ("done", told.machine):
                    return self._twice(layout, told, f"job {other} has measured this chip")
            layout.tell(self.number, told)
            told = self._measure(layout, asked, told)
            layout.tell(self.number, replace(told, state="done", notebook="", reason=""))
            return "done"

    def _twice(self, layout: Layout, told: Told, why: str) -> str:
        layout.tell(self.number, replace(told, state="twice", reason=why))
        print(f"{told.machine}: {why}", file=sys.stderr)
        return "twice"

    def _measure(self, layout: Layout, asked: Asked, told: Told) -> Told:
        """Let the lab's run measure all that is asked, and tell at each notebook that it is there."""
        folder = layout.records / told.machine
        due = time.monotonic() + LET_GO_S
        while records.is_held(folder) and time.monotonic() < due:  # by a run that a killed attempt has left behind
            time.sleep(0.5)
        given = {"preset": asked.preset, "device": asked.device, "machine": told.machine}
        given |= {"records": str(layout.records), "output": str(layout.notebooks(told.machine))}
        command = [*self.programs.run, *asked.notebooks, *(word for k, v in given.items() for word in (f"--{k}", v))]
        said: list[str] = []
        seen: list[str] = []
        with _started([*command, *(["--overwrite"] if asked.overwrite else [])], self._environment()) as process:
            assert process.stderr is not None
            for line in process.stderr:
                print(line, end="", file=sys.stderr, flush=True)
                said.append(line.rstrip())
                if step := progress_line.read(line):
                    seen.append(step.notebook)
                    told = replace(told, notebook=step.notebook, number=step.number, of=step.of)
                    layout.tell(self.number, told)
        if process.returncode:
            raise FleetError(_ending(process.returncode, said, seen))
        return told


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _ending(code: int, said: list[str], notebooks: tuple[str, ...] | list[str]) -> str:
    """Why a process that ended with ``code`` did so: what it said of each notebook that failed, else its last line."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}" + (f" at {notebooks[-1]}" if notebooks else "")
    causes = [line for line in said if any(line.startswith(f"{name}: ") for name in notebooks)]
    last = next((line for line in reversed(said) if line.strip()), f"exit status {code}")
    more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
    return _short(causes[0] if causes else last.removeprefix("hypatia-lab: ")) + more


def _tidied() -> Any:
    """The job as submitit has it, without what a killed attempt of it was writing: submitit takes such a file for
    another process at work."""
    import submitit

    environment = submitit.JobEnvironment()
    for path in (environment.paths.submitted_pickle, environment.paths.result_pickle):
        path.with_suffix(f"{path.suffix}.save_tmp").unlink(missing_ok=True)
    return environment


@contextlib.contextmanager
def _started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process whose errors are read, in a group of its own; interrupted when this one is, or dies."""

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell lets its background processes ignore it
        if _LIBC is not None:
            _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGINT, 0, 0, 0)

    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=begin
    ) as process:
        try:
            yield process
        except BaseException:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(LET_GO_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            raise
