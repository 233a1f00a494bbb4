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
    found = {number: (layout.submission(number, asked), layout.told(number, asked)) for number in layout.numbers()}
    slurm = any(sent and sent.place == "slurm" for sent, _ in found.values())
    queue = scheduler.queue() if slurm else {}
    out = [_line(layout, number, sent, told, queue) for number, (sent, told) in found.items()]
    taken = {line.machine for line in out if line.state != "twice"}
    out = [_left(line) if line.state == "twice" and line.machine not in taken else line for line in out]
    silent = [line.number for line in out if line.reason == SILENT]
    names = {number: name for number in silent if (name := _name(*found[number]))}
    ended = scheduler.accounts(names.values()) if slurm else {}
    return [_with_account(line, ended.get(names.get(line.number, ""), "")) for line in out]


def _left(line: Line) -> Line:
    """A job whose chip another one began and, put back into the queue, left for a different chip."""
    return replace(line, state="waiting", reason="whoever was measuring this chip has left it", idle=True)


def _name(sent: Submission | None, told: Told | None) -> str:
    return (sent.name if sent else "") or (told.name if told else "")


def _with_account(line: Line, state: str) -> Line:
    return replace(line, reason=f"{line.reason}; Slurm says {state}") if state else line


def _line(
    layout: Layout, number: int, sent: Submission | None, told: Told | None, queue: dict[str, str] | None
) -> Line:
    state, reason, idle = _state(layout, number, sent, told, queue)
    if told is None:
        return Line(number, state, reason=reason, idle=idle)
    step = f"{told.number}/{told.of}" if told.of else ""
    return Line(number, state, told.machine, told.notebook, step, reason, told.log, idle)


def _state(
    layout: Layout, number: int, sent: Submission | None, told: Told | None, queue: dict[str, str] | None
) -> tuple[str, str, bool]:
    """State, reason, and whether nothing works on it."""
    if sent is None:
        return "waiting", "not submitted yet", True
    if told and told.state in ENDED:
        return told.state, told.reason, True
    if records.is_held(layout.job(number)):
        return (told.state if told else "running"), "", False
    begun = "preempted" if told else "waiting"
    name = _name(sent, told)
    if sent.place == "slurm" and queue and name in queue and queue[name] not in scheduler.RUNNING:
        return begun, "", False  # a job that Slurm itself puts back is told to end first, and may say that it failed
    if told and told.state == "failed":
        return "failed", told.reason, True
    if sent.place == "box":
        if told and told.state == "running":
            return "failed", SILENT, True
        # It is about to start, or between two attempts, for as long as somebody sees to it.
        busy = records.is_held(layout.folder)
        return begun, "" if busy else "not started", not busy
    if queue is None:
        return begun, "Slurm does not answer here (squeue)", False
    if name in queue:
        return "running", "", False
    if not name:
        return "waiting", "not known to be submitted", True
    return "failed", SILENT, True
