"""Whether a kernel that was judged may pass: its speed against another variant's, held against a limit.

The interval decides. Wholly below the limit the kernel fails, wholly at it or above it passes, and around it nothing is
decided. What is not right, was not run or has nothing to be compared with fails, whatever the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.experiments import PROCESSES
from hypatia_lab.experiments.plan import MOST
from hypatia_lab.intervals import Interval
from hypatia_lab.messages import unknown
from hypatia_lab.results import Row
from hypatia_lab.variants import Variant

PASSED, FAILED, UNDECIDED, SKIPPED = OUTCOMES = ("passed", "failed", "undecided", "skipped")
"""A kernel that cannot run here is ``skipped`` where no limit was set; where one was, it has ``failed``."""


class GateError(ValueError):
    """A comparison that cannot be made; the message names what it should be with, and what would do."""


@dataclass(frozen=True)
class Ruling:
    """What became of one of the reader's variants on one workload: an :data:`OUTCOMES` and, in one line, why.

    ``row`` has the variant asked for as its baseline; ``limit`` is None where none was set.
    """

    row: Row
    limit: float | None
    outcome: str
    message: str

    def stops(self, *, let_undecided: bool) -> bool:
        """Whether whoever asked must not go on: it has failed, or is undecided and not let through."""
        return self.outcome == FAILED or (self.outcome == UNDECIDED and not let_undecided)

    def entry(self) -> dict[str, Any]:
        """The same for a program: names of the results table, and ``limit``, ``outcome``, ``message``.

        Where the task's format has a tolerance of its own, ``their_tolerance`` and ``their_numbers`` tell of it.
        """
        row = self.row
        named = ("variant", "workload", "shape", "dtype", "clock", "machine", "status", "reason")
        found: dict[str, Any] = {name: getattr(row, name) for name in named} | {"against": row.baseline}
        found |= {name: getattr(row, name) for name in ("ratio", "ratio_low", "ratio_high", "n")}
        found |= {"limit": self.limit, "outcome": self.outcome, "message": self.message}
        if row.beside:
            found |= {"their_tolerance": self.theirs, "their_numbers": dict(row.beside)}
        return found

    @property
    def theirs(self) -> str:
        """``pass`` or ``fail``: what the tolerance of the task's own format says; empty where it has none."""
        return ("fail" if dict(self.row.beside)["failed"] else "pass") if self.row.beside else ""

    @property
    def beside(self) -> str:
        """The same in a line, with the numbers behind it; empty where it has none."""
        numbers = ", ".join(
            f"{name.replace('_', ' ')} {formats.number(value)}" for name, value in self.row.beside if name != "failed"
        )
        at = f"{self.row.variant} at {self.row.shape} {self.row.dtype}"
        return f"{at}: by the format's own tolerance: {self.theirs} ({numbers})" if self.theirs else ""


def ensure_named(against: str, there: dict[str, Variant], operation: str) -> None:
    """Raise :class:`GateError` unless ``against`` is a variant of ``there`` and leaves one of the reader's to judge."""
    if against not in there:
        raise GateError(unknown("variant", against, there, operation))
    if not any(one.origin == "own" for name, one in there.items() if name != against):
        raise GateError(f"{against} is the only variant of yours and as fast as itself; hold it against another")


def rulings(rows: Sequence[Row], clock: str, against: str, limit: float | None) -> list[Ruling]:
    """A ruling for each variant of the reader's and each workload of ``rows``, one experiment's on one machine.

    ``clock`` is the one that verdicts rest on. One that fails by another clock has failed.
    """
    found = []
    for workload, name in dict.fromkeys((row.workload, row.variant) for row in rows if row.origin == "own"):
        if name == against:
            continue
        own = [row for row in rows if (row.workload, row.variant) == (workload, name)]
        peer = [row for row in rows if (row.workload, row.variant) == (workload, against)]
        found.append(_ruling(own, peer, clock, against, limit))
    return found


def _ruling(own: Sequence[Row], peer: Sequence[Row], clock: str, against: str, limit: float | None) -> Ruling:
    lead, other = (next(row for row in rows if row.clock == clock) for rows in (own, peer))
    worst = next((row for row in own if row.status not in ("ok", "skipped")), lead)
    row = worst.against(other)
    speed = row.speed
    name = f"{row.variant} at {row.shape} {row.dtype}"
    told = f"{name}: {formats.told(speed, '')} of {against}'s speed"
    if row.status != "ok":
        outcome = SKIPPED if row.status == "skipped" and limit is None else FAILED
        return Ruling(row, limit, outcome, f"{name}: {_why(row)}")
    if limit is None:
        return Ruling(row, limit, PASSED, f"{name}: right" if speed.flaw else told)
    if not speed.n:
        why = f"{against} was {_why(other)}" if other.status != "ok" else f"no process timed it beside {against}"
        return Ruling(row, limit, FAILED, f"{name}: no ratio: {why}")
    if speed.flaw:
        return Ruling(row, limit, UNDECIDED, f"{name}: undecided: {_flaw(row)}; {remedy(speed, limit)}")
    if speed.high < limit:
        return Ruling(row, limit, FAILED, f"{told}, below {limit:g}")
    if speed.low >= limit:
        return Ruling(row, limit, PASSED, f"{told}, not below {limit:g}")
    return Ruling(row, limit, UNDECIDED, f"{told}, undecided: {limit:g} lies within; {remedy(speed, limit)}")


def _why(row: Row) -> str:
    """Status and reason of what did not run to its end."""
    return f"{row.status.replace('_', ' ')}: {row.reason}"


def _flaw(row: Row) -> str:
    """Why the interval of ``row``'s speed says nothing."""
    if row.veto:
        return f"identical code was told apart ({row.veto})"
    if row.speed.flaw == intervals.TOO_FEW:
        return f"{row.n} of at least {intervals.FEW} processes timed both"
    return f"the interval is wider than a factor of {intervals.UNTOLD:g}"


def remedy(found: Interval, limit: float) -> str:
    """What would decide whether ``found`` lies below ``limit``: more processes, if its scatter stays what it is, or
    larger work."""
    if found.vetoed:
        return "a machine that does nothing else, or a larger shape, would decide"
    if found.flaw == intervals.TOO_FEW:
        return "more processes would decide (--preset full)"
    most = max(MOST.values())
    needed = most + 1 if found.flaw else intervals.processes_to_clear(found, limit, most)
    if needed > most:
        return f"more than {most} processes, or a larger shape, would decide"
    preset = next((name for name, count in PROCESSES.items() if count >= needed), "full")
    return f"about {needed} processes (--preset {preset}), or a larger shape, would decide"
