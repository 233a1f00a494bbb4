"""How each job of a fleet stands, from what it said last, whether its process lives, and what Slurm says."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from dataclasses import dataclass, replace

from hypatia_lab import records
from hypatia_lab.fleet.job import ENDED
from hypatia_lab.fleet.layout import Asked, FleetError, Layout, Submission, Told

STATES = ("waiting", "running", "done", "twice", "failed", "preempted")
"""``twice``: another job has measured its chip, or does. ``preempted``: it had to make room, and waits to go on."""
SILENT = "it ended without a word"
RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
"""States of a job in the queue that has its GPU; any other one in the queue waits."""


@dataclass(frozen=True)
class Line:
    """How job ``number`` stands, in the words of :data:`STATES`; the other fields are those of :class:`Told`.

    ``idle``: nothing works on it, nor will without another ``fleet run``.
    """

    number: int
    state: str
    machine: str = ""
    notebook: str = ""
    step: str = ""
    reason: str = ""
    log: str = ""
    idle: bool = False


def wanted(layout: Layout) -> Asked:
    """What is asked of the fleet. Raises :class:`FleetError` where there is none."""
    asked = layout.asked()
    if asked is None:
        raise FleetError(f"no fleet in {layout.folder}; hypatia-lab fleet run starts one, --folder names another")
    return asked


def lines(layout: Layout) -> list[Line]:
    """A line a job. Raises :class:`FleetError` where there is no fleet."""
    asked = wanted(layout)
    seen = {number: _seen(layout, number, asked) for number in layout.numbers()}
    names = {number: job.name for number, job in seen.items() if job.sent and job.sent.place == "slurm"}
    queue = slurm_queue() if names else {}
    out = [_line(layout, number, job, queue) for number, job in seen.items()]
    taken = {line.machine for line in out if line.state != "twice"}
    # Its chip was begun by another job, which was put back into the queue and then got a different chip.
    left = {"state": "waiting", "reason": "whoever was measuring this chip has left it", "idle": True}
    out = [replace(line, **left) if line.state == "twice" and line.machine not in taken else line for line in out]
    silent = {line.number: names[line.number] for line in out if line.reason == SILENT and names.get(line.number)}
    ended = slurm_accounts(silent.values())
    said = {number: f"{SILENT}; Slurm says {ended[name]}" for number, name in silent.items() if name in ended}
    return [replace(line, reason=said.get(line.number, line.reason)) for line in out]


@dataclass(frozen=True)
class _Seen:
    """What is known of a job: how it was ``sent``, what it ``told`` and whether a process has it ``held``."""

    sent: Submission | None
    told: Told | None
    held: bool

    @property
    def name(self) -> str:
        return (self.sent.name if self.sent else "") or (self.told.name if self.told else "")


def _seen(layout: Layout, number: int, asked: Asked) -> _Seen:
    """What is known of a job: seen between two readings that tell the same."""
    while True:
        sent, told = layout.submission(number, asked), layout.told(number, asked)
        held = records.is_held(layout.job(number))
        if told == layout.told(number, asked):
            return _Seen(sent, told, held)


def _line(layout: Layout, number: int, job: _Seen, queue: dict[str, str] | None) -> Line:
    state, reason, idle = _state(layout, job, queue)
    told = job.told or Told(0, 0, state)
    step = f"{told.number}/{told.of}" if told.of else ""
    return Line(number, state, told.machine, told.notebook, step, reason, told.log, idle)


def _state(layout: Layout, job: _Seen, queue: dict[str, str] | None) -> tuple[str, str, bool]:
    """State, reason, and whether nothing works on it."""
    told, name = job.told, job.name
    if job.sent is None:
        return "waiting", "not submitted yet", True
    if told and told.state in ENDED:
        return told.state, told.reason, True
    if job.held:
        return (told.state if told else "running"), "", False
    begun = "preempted" if told else "waiting"
    if job.sent.place == "slurm" and queue and name in queue and queue[name] not in RUNNING:
        return begun, "", False  # a job that Slurm itself puts back is told to end first, and may say that it failed
    if told and told.state == "failed":
        return "failed", told.reason, True
    if job.sent.place == "box":
        if told and told.state == "running":
            return "failed", SILENT, True
        # It is about to start, or between two attempts, for as long as somebody sees to it.
        busy = records.is_held(layout.folder)
        return begun, "" if busy else "not started", not busy
    if queue is None:
        return begun, "Slurm does not answer here (squeue)", False
    if name in queue:
        return "running", "", False
    return ("failed", SILENT, True) if name else ("waiting", "not known to be submitted", True)


# ---------------------------------------------------------------- what Slurm says


def slurm_queue() -> dict[str, str] | None:
    """Name, such as ``1234_0`` → state of each own job in Slurm's queue; None where Slurm does not answer."""
    told = _asked("squeue", "--me", "--noheader", "--array", "--format=%i|%T")
    return None if told is None else _pairs(told)


def slurm_accounts(names: Collection[str]) -> dict[str, str]:
    """Name → state of jobs that have ended, such as OUT_OF_MEMORY; empty where Slurm keeps no accounts."""
    if not names:
        return {}
    told = _asked("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", f"-j{','.join(names)}")
    return {name: state.split()[0] for name, state in _pairs(told or "").items() if state}


def _pairs(text: str) -> dict[str, str]:
    return dict(line.strip().split("|", 1) for line in text.splitlines() if "|" in line)


def _asked(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
