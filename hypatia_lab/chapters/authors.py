"""The authors' own programs of Linear+ReLU beside the lab's rewrites of them and eager PyTorch.

By a clock that times the call, a rewrite is timed with the lab's launch path
(:func:`hypatia_lab.results.launch_path`); there the author's own program alone speaks for its document.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypatia_lab import formats, intervals
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.pages.phrases import took
from hypatia_lab.results import Row

PAGE = "03_aten_fusion"
EXPERIMENT = "author_hypatia"
NAIVE = "02_naive_vs_cublas"
"""The page on the naive kernel alone, v1 of the documents."""
REWRITES = {"author_v1": "naive", "author_v2": "cublas_relu", "author_planc": "aten"}
"""Variant of the author's program → the lab's rewrite of it."""
NAMES = {"author_v0": "v0", "author_v1": "v1", "author_v2": "v2", "author_planc": "Plan C"}
"""Variant of the author's program → what the documents call it."""
CLOCKS = ("graph", "hot", "wall")
"""Clocks of the table, from the kernels alone to what a caller waits for."""


@dataclass(frozen=True)
class Pair:
    """One program of the author's at one size and clock: its row, that of its rewrite, and eager's.

    ``rewrite`` and ``eager`` are None where they were not measured.
    """

    author: Row
    rewrite: Row | None
    eager: Row | None

    @property
    def ratio(self) -> Interval:
        """Time of the rewrite over that of the author's program, paired by process; nothing unless both were timed."""
        return self.rewrite.over(self.author) if self.rewrite else intervals.NOTHING

    @property
    def equal(self) -> str:
        """Whether both take equally long within ±2%: yes, no, undecided or why nothing is said; empty without a ratio.

        A difference is one only where the whole interval lies beyond the 2%.
        """
        found = self.ratio
        if not found.n:
            return ""
        if intervals.equal(found):
            return "yes"
        apart = found.outside(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE)
        return "no" if apart else found.doubt or "undecided"


def pairs(lab: Evidence, machine: str) -> list[Pair]:
    """Every program of the authors' that the record of ``machine`` holds: smallest size first, clock by clock."""
    rows = lab.select(
        machine=machine, experiment=EXPERIMENT, operation="linear_relu", direction="forward", clock=CLOCKS
    )
    index = {(row.workload, row.clock, row.variant): row for row in rows}
    programs = [row for row in rows if row.origin == "author"]
    programs.sort(key=lambda row: (row.flops, row.workload, CLOCKS.index(row.clock)))

    def beside(row: Row, variant: str) -> Row | None:
        return index.get((row.workload, row.clock, variant))

    return [Pair(row, beside(row, REWRITES.get(row.variant, "")), beside(row, "eager")) for row in programs]


def table(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Author's program, rewrite and eager side by side: a line a size, clock and program; empty without a record."""
    return [
        {
            "size": pair.author.at,
            "clock": pair.author.clock,
            "program": NAMES.get(pair.author.variant, pair.author.variant),
            "the author's": took(pair.author),
            "the lab's rewrite": took(pair.rewrite),
            "eager": took(pair.eager),
            "rewrite / author's": formats.told(pair.ratio) if pair.ratio.n else formats.MISSING,
            "equal within ±2%": pair.equal or formats.MISSING,
        }
        for pair in pairs(lab, machine)
    ]


def finding(lab: Evidence, machine: str) -> Finding | None:
    """Whether the lab's rewrites take as long as the authors' programs, clock by clock; None without a record."""
    known = [pair for pair in pairs(lab, machine) if pair.equal]
    clocks = [clock for clock in CLOCKS if any(pair.author.clock == clock for pair in known)]
    if not clocks:
        return None
    read = {clock: [pair.equal for pair in known if pair.author.clock == clock] for clock in clocks}
    counts = [f"{words.count('yes')} of {len(words)}" for words in read.values()]
    first, last, match = set(read[clocks[0]]), read[clocks[-1]], "The lab's rewrites match the authors'"
    said = [f"{count} cases by the {clock} clock" for clock, count in zip(clocks, counts, strict=True)]
    return Finding(
        counts[0],
        f"{match} kernels, and not their launches"
        if first == {"yes"} and "no" in last
        else f"{match} programs"
        if first == {"yes"}
        else f"{match} programs in no case"
        if first == {"no"}
        else f"{match} programs in some cases"
        if "yes" in first
        else f"Whether {match[0].lower()}{match[1:]} programs is undecided",
        f"Both take equally long, within ±2%, in {listing(said)}.",
        PAGE,
    )
