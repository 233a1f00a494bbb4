"""How each job of a fleet stands, from what it said last, whether its process lives, and what Slurm says."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypatia_lab import records
from hypatia_lab.fleet import scheduler
from hypatia_lab.fleet.job import ENDED
from hypatia_lab.fleet.layout import Asked, FleetError, Layout, Submission, Told

STATES = ("waiting", "running", "done", "twice", "failed", "preempted")
"""``twice``: another job has measured its chip, or does. ``preempted``: it had to make room, and waits to go on."""
SILENT = "it ended without a word"


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
    names = {number: job.name for number, job in seen.items() if job.place == "slurm"}
    queue = scheduler.queue() if names else {}
    out = [_line(layout, number, job, queue) for number, job in seen.items()]
    taken = {line.machine for line in out if line.state != "twice"}
    # Its chip was begun by another job, which was put back into the queue and then got a different chip.
    left = {"state": "waiting", "reason": "whoever was measuring this chip has left it", "idle": True}
    out = [replace(line, **left) if line.state == "twice" and line.machine not in taken else line for line in out]
    silent = {line.number: names[line.number] for line in out if line.reason == SILENT and names.get(line.number)}
    ended = scheduler.accounts(silent.values())
    said = {number: f"{SILENT}; Slurm says {ended[name]}" for number, name in silent.items() if name in ended}
    return [replace(line, reason=said.get(line.number, line.reason)) for line in out]


@dataclass(frozen=True)
class _Seen:
    """What is known of a job: how it was ``sent``, what it ``told`` and whether a process has it ``held``."""

    sent: Submission | None
    told: Told | None
    held: bool

    @property
    def place(self) -> str:
        return self.sent.place if self.sent else ""

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
    if job.place == "slurm" and queue and name in queue and queue[name] not in scheduler.RUNNING:
        return begun, "", False  # a job that Slurm itself puts back is told to end first, and may say that it failed
    if told and told.state == "failed":
        return "failed", told.reason, True
    if job.place == "box":
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
