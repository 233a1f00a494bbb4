"""What a verdict is made of: a :class:`Judgement` on a claim or a part of one, with a :class:`Case` a workload."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hypatia_lab import intervals
from hypatia_lab.claims.words import GROUPS
from hypatia_lab.intervals import Interval

ANY = "any"
"""Machine of a judgement that holds on every machine: arithmetic, and claims that no lab can test."""
COLUMNS = (
    *("id", "seed", "section", "claim", "claimed", "unit", "workload", "machine"),
    *("measured", "low", "high", "n", "sense", "program", "band_set", "bound", "verdict", "reason"),
)
"""The keys of what ``hypatia-lab claims --json`` prints: fields of a :class:`Judgement`, ``seed`` its document."""


@dataclass(frozen=True)
class Case:
    """A claim at one workload on one machine.

    ``reading`` is one of :data:`hypatia_lab.claims.words.READINGS`, ``reason`` says why it is missing. ``estimate`` has
    the interval that another visit is expected to agree with; ``visit`` is that of the one visit alone, which is
    what more processes narrow. ``lies`` says in words how it lies to the band, ``bound`` is what physics allows.
    ``failed``: a measurement did not pass its check. ``experiments`` are those of the machine that it was read from.
    """

    workload: str
    reading: str
    reason: str = ""
    estimate: Interval = intervals.NOTHING
    visit: Interval = intervals.NOTHING
    lies: str = ""
    bound: float = math.nan
    throttled: bool = False
    failed: bool = False
    experiments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a claim, or on a part of one, on a ``machine`` (or :data:`ANY`). Numbers there are not are NaN.

    ``claimed`` is a number, or [low, high] where the claim gives a range. ``measured`` is NaN where several workloads
    were judged (``cases``); ``low`` and ``high`` then span those whose interval is fit for a table, and ``n`` is the
    fewest processes behind one of them. ``held`` of ``total`` cases (of a claim of several parts: parts) hold.
    ``program`` is whose was measured: the author's, a rewrite's, one that a record shows ``equal``, a library's, the
    lab's own, or arithmetic. ``sums`` is the mark beside the word of a claim some parts of which are sums: whether
    they add up. ``bound`` is the largest figure (time: the smallest) that the machine's own ceilings,
    or a ReLU that costs nothing, would allow. ``reason`` is one sentence, ``details`` are those beneath it, among them
    ``why``, that of the claim, and ``subject``, the sentence that names what was measured, where, and how it lies;
    ``settles`` says what would decide what is undecided,
    ``caution`` what ails the machine. ``lead`` is the id of the claim
    of which this is a part; ``parts`` are those of a whole claim.
    """

    id: str
    document: str
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
    held: int = 0
    total: int = 0
    sums: str = ""
    subject: str = ""
    settles: str = ""
    caution: str = ""
    cases: tuple[Case, ...] = ()
    parts: tuple[Judgement, ...] = ()

    @property
    def group(self) -> str:
        """Which of :data:`hypatia_lab.claims.words.GROUPS` it counts with."""
        return next(group for group, words in GROUPS.items() if self.verdict in words)

    @property
    def experiments(self) -> list[str]:
        """Those of its machine whose records it rests on; where it is decided, without parts that are not testable."""
        said = [row for row in self.parts or (self,) if row.verdict == self.verdict or row.verdict != "not_testable"]
        return sorted({name for row in said for case in row.cases for name in case.experiments})

    def row(self) -> dict[str, Any]:
        """Its :data:`COLUMNS`."""
        return {name: getattr(self, "document" if name == "seed" else name) for name in COLUMNS}
