"""What a verdict is made of: a :class:`Judgement` on a claim or a part of one, with a :class:`Case` a workload."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hypatia_lab import intervals
from hypatia_lab.intervals import Interval

VERDICTS = {
    "confirmed": "✓",
    "exceeded": "»",
    "conditional": "◐",
    "refuted": "✗",
    "inconsistent": "≠",
    "undecided": "?",
    "not_reproduced": "◇",
    "not_testable": "○",
    "invalid": "!",
}
"""Every verdict there is, in the order of tables, and the sign beside its word."""
UNJUDGED = ("not_testable", "not_reproduced", "invalid")
"""Verdicts that say nothing of the claim on a machine."""
ANY = "any"
"""Machine of a judgement that holds on every machine: arithmetic, and claims that no lab can test."""
COLUMNS = (
    *("id", "seed", "section", "claim", "claimed", "unit", "workload", "machine"),
    *("measured", "low", "high", "n", "sense", "program", "band_set", "bound", "verdict", "reason"),
)
"""The fields of a :class:`Judgement` that ``hypatia-lab claims --json`` prints."""


@dataclass(frozen=True)
class Case:
    """A claim at one workload on one machine: the ``estimate`` with its interval, and the ``bound`` physics sets it."""

    workload: str
    verdict: str
    reason: str = ""
    estimate: Interval = intervals.NOTHING
    bound: float = math.nan
    throttled: bool = False


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a claim, or on a part of one, on a ``machine`` (or :data:`ANY`). Numbers there are not are NaN.

    ``claimed`` is a number, or [low, high] where the claim gives a range. ``measured`` is NaN where several workloads
    were judged (``cases``); ``low`` and ``high`` then span those whose interval is fit for a table, and ``n`` is the
    fewest processes behind one of them. ``program`` is what was measured: the author's, a rewrite, a library's, one of
    the lab's own, or arithmetic. ``bound`` is the largest figure (time: the smallest) that the machine's own ceilings,
    or a ReLU that costs nothing, would allow. ``reason`` is one sentence, ``details`` are those beneath it, among them
    ``why``, that of the claim; ``settles`` says what would decide what is undecided,
    ``caution`` what ails the machine. ``lead`` is the id of the claim
    of which this is a part; ``parts`` are those of a whole claim.
    """

    id: str
    seed: str
    section: str
    claim: str
    claimed: float | list[float]
    unit: str
    workload: str
    machine: str
    measured: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    sense: str
    program: str
    band_set: str
    bound: float = math.nan
    verdict: str
    reason: str
    lead: str
    quantity: str
    band: tuple[float, float]
    why: str
    details: tuple[str, ...]
    settles: str = ""
    caution: str = ""
    cases: tuple[Case, ...] = ()
    parts: tuple[Judgement, ...] = ()

    def row(self) -> dict[str, Any]:
        """Its :data:`COLUMNS`."""
        return {name: getattr(self, name) for name in COLUMNS}
