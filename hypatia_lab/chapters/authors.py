"""The authors' own programs of Linear+ReLU beside the lab's rewrites of them and eager PyTorch.

By a clock that times the call, a rewrite is timed with the lab's launch path
(:func:`hypatia_lab.results.launch_path`); there the author's own program alone speaks for its document. Every figure is
taken from the record when a page is made, and a machine without one is named as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hypatia_lab import claims, formats, intervals
from hypatia_lab.claims import Claim
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.pages.phrases import times
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
    def ratio(self) -> Interval | None:
        """Time of the rewrite over that of the author's program, paired by process; None unless both were timed."""
        return _over(self.rewrite, self.author)

    @property
    def equal(self) -> str:
        """Whether both take equally long within ±2%: yes, no, undecided or why nothing is said; empty without a ratio.

        A difference is one only where the whole interval lies beyond the 2%.
        """
        found = self.ratio
        if found is None:
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


def _time(row: Row | None, write: Callable[[Interval], str] = formats.time) -> str:
    """The time of a row, or why it has none."""
    if row is None:
        return formats.MISSING
    return f"{row.status}: {row.reason}".removesuffix(": ") if not row.timed else write(row.time)


def _over(slow: Row | None, quick: Row | None) -> Interval | None:
    """Time of one row over that of another, paired by process; None unless both were timed."""
    found = slow.over(quick) if slow and quick else intervals.NOTHING
    return found if found.n else None


def _ratio(found: Interval | None) -> str:
    return formats.MISSING if found is None else f"{times(found)}, n = {found.n}"


def table(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Author's program, rewrite and eager side by side: a line a size, clock and program; empty without a record."""
    lines = []
    for pair in pairs(lab, machine):
        row = pair.author
        lines.append(
            {
                "size": row.at,
                "clock": row.clock,
                "program": NAMES.get(row.variant, row.variant),
                "the author's": _time(row),
                "the lab's rewrite": _time(pair.rewrite),
                "eager": _time(pair.eager),
                "author's, × eager": _ratio(_over(pair.eager, row)),
                "rewrite, × eager": _ratio(_over(pair.eager, pair.rewrite)),
                "rewrite's time / author's": _ratio(pair.ratio),
                "equal within ±2%": pair.equal or formats.MISSING,
            }
        )
    return lines


def _count(found: Sequence[Pair]) -> str:
    return f"{sum(pair.equal == 'yes' for pair in found)} of {len(found)}"


def finding(lab: Evidence, machine: str) -> Finding | None:
    """Whether the lab's rewrites take as long as the authors' programs, clock by clock; None without a record."""
    known = [pair for pair in pairs(lab, machine) if pair.equal]
    by_clock = {clock: [pair for pair in known if pair.author.clock == clock] for clock in CLOCKS}
    by_clock = {clock: found for clock, found in by_clock.items() if found}
    if not by_clock:
        return None
    said = [f"in {_count(found)} cases by the {clock} clock" for clock, found in by_clock.items()]
    text = f"The lab's rewrites and the authors' programs take equally long, within ±2%, {listing(said)}. "
    first, last = next(iter(by_clock)), list(by_clock)[-1]
    apart = [pair for pair in by_clock[last] if pair.equal == "no" and last != first]
    if apart:
        text += f"{_widest(apart)} "
    text += "Where the way in counts, only the authors' own rows speak for the documents."
    inside = {pair.equal for pair in by_clock[first]}
    place = " inside a CUDA graph" if first == "graph" else ""
    return Finding(
        _count(by_clock[first]),
        f"The lab's rewrites are as fast as the authors' programs{place}, but not as a caller waits"
        if inside == {"yes"} and apart
        else f"The lab's rewrites are as fast as the authors' programs{place}"
        if inside == {"yes"}
        else f"The lab's rewrites are not as fast as the authors' programs{place}"
        if inside == {"no"}
        else f"The lab's rewrites are as fast as the authors' programs{place} in some cases"
        if "yes" in inside
        else f"Whether the lab's rewrites are as fast as the authors' programs{place} is undecided",
        text,
        PAGE,
    )


def _widest(apart: Iterable[Pair]) -> str:
    """The pair of ``apart`` whose times differ most, in a sentence."""

    def distance(pair: Pair) -> float:
        found = pair.ratio
        return 0.0 if found is None else max(found.value, 1 / found.value)

    pair = max(apart, key=distance)
    row = pair.author
    own, rewrite, eager = (_time(one, formats.lasts) for one in (row, pair.rewrite, pair.eager))
    text = f"They differ most in {NAMES.get(row.variant, row.variant)} at {row.at}: by the {row.clock} clock "
    return text + f"the author's takes {own}, the rewrite {rewrite} and eager {eager}."


def absent_on(lab: Evidence, machines: Sequence[str]) -> str:
    """Those of ``machines`` that have no record of the authors' programs, in a line; empty where all have."""
    lacking = [f"`{name}`" for name in machines if not pairs(lab, name)]
    return f"No record of the authors' programs is there on {listing(lacking)}." if lacking else ""


# ---------------------------------------------------------------- claims

SHOWN = {NAIVE: ("naive_vs_cublas", EXPERIMENT), PAGE: ("aten_fusion", EXPERIMENT)}
"""Page → experiments whose claims it shows."""
SCRIPTS = ("", "kernel_only_v1", "kernel_only_v2", "kernel_only_planc", "memory")
"""The author's scripts on one call of Linear+ReLU, as cases; the others belong to other chapters."""


def chapter_claims(page: str) -> list[Claim]:
    """The claims on one call of Linear+ReLU whose verdicts ``page`` shows, in the order of the ledger.

    The one on the naive kernel (:data:`NAIVE`) shows those that name it, :data:`PAGE` the others. What is counted in
    memory, is about a training step or follows from arithmetic alone is left to other chapters.
    """
    found = []
    for claim in claims.ledger(seeds=["S001", "S002", "S004"]):
        own = claim.rewritten()
        elsewhere = any(figure.topic == "counters" or figure.case not in SCRIPTS for figure in own.figures)
        elsewhere = elsewhere or any(not workload.endswith("/forward") for workload in claim.workloads)
        about = own.programs.isdisjoint(("naive", "author_v1")) == (page == PAGE)
        if claim.workloads and claim.experiment in SHOWN[page] and about and not elsewhere:
            found.append(claim)
    return found
