"""When a rewrite may stand in for an author's program: where a record shows both equal by the same clock.

The author's program and the rewrite were then measured in one record, interleaved in the same processes, and the ratio
of their times is surely within ±2%. One machine's record serves for all, so that whoever reruns the lab without the
author's sources gets the same verdicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from hypatia_lab import formats, intervals
from hypatia_lab.claims.claim import Claim, Figure
from hypatia_lab.intervals import Interval
from hypatia_lab.results import Measured, Row

Pair = tuple[str, str, str]
"""(author's variant, rewrite, clock)."""
Place = tuple[str, str, str, str]
"""(operation, dtype, math, direction) of a workload."""
Equalities = dict[tuple[Pair, Place], dict[str, list[tuple[str, Interval]]]]
"""Times of rewrites relative to the authors' programs, as records have them: by pair and place, shape by shape."""


def _place(workload: str) -> tuple[Place, str]:
    operation, shape, dtype, math_mode, direction = workload.split("/")
    return (operation, dtype, math_mode, direction), shape


def shown(found: Equalities, claim: Claim, clock: str) -> tuple[bool, str]:
    """Whether the rewrites of ``claim`` may stand in for the author's programs, and a sentence on why or why not.

    Each that the claim names must be equal by the clock that it is judged by: at its own size where that was
    compared, else at every size that was. What a probe saw, such as a count of kernels, and errors no comparison
    of times shows to be equal.
    """
    figures = claim.figures
    if claim.quantity == "max_error" or any(figure.topic for figure in figures):
        return False, "No record shows that the rewrite and the author's program are alike in this."
    told = []
    for own, rewrite in claim.rewrites:
        for workload, word in _timed(claim, figures, own, clock):
            place, shape = _place(workload)
            if claim.made_of:
                place = (claim.made_of, *place[1:])
            known = found.get(((own, rewrite, word), place), {})
            pairs = known.get(shape) or [pair for pairs in known.values() for pair in pairs]
            if not pairs:
                return False, f"No record compares {rewrite} with {own} by the {word} clock."
            for machine, ratio in pairs:
                where = f"by the {word} clock on {machine}"
                if ratio.doubt:
                    return False, f"Whether {rewrite} is as fast as {own} {where}: {ratio.doubt}."
                if not intervals.equal(ratio):
                    return False, f"{rewrite} runs at {formats.told(ratio)} of {own}'s speed {where}."
                told.append(f"{rewrite} stands in for {own}: {formats.told(ratio)} of its speed {where}.")
    return True, told[-1] if told else ""


def _timed(claim: Claim, figures: Sequence[Figure], own: str, clock: str) -> list[tuple[str, str]]:
    """(workload, clock) of every time of ``own`` that ``claim`` rests on."""
    if not figures:
        return [(workload, clock) for workload in claim.workloads]
    mine = [figure for figure in figures if figure.variant == own]
    return [
        (place, figure.clock or clock)
        for figure in mine
        for place in ([figure.workload] if figure.workload else claim.workloads)
    ]


def equalities(machines: Iterable[Measured]) -> Equalities:
    """Every author's variant beside every rewrite, as far as an experiment of ``machines`` has both in one group."""
    found: Equalities = {}
    every = ((machine, record) for machine in machines for record in machine.records)
    for machine, record in every:
        if not any(cell["origin"] == "author" for cell in record.cells):
            continue
        groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
        for row in machine.rows_of(record):
            if row.status == "ok" and row.medians_us:
                groups.setdefault((row.workload, row.clock), {}).setdefault(row.origin, []).append(row)
        for (workload, clock), rows in groups.items():
            place, shape = _place(workload)
            for own, row in itertools.product(rows.get("author", ()), rows.get("rebuilt", ())):
                known = found.setdefault(((own.variant, row.variant, clock), place), {})
                known.setdefault(shape, []).append((machine.machine, own.over(row)))
    return found
