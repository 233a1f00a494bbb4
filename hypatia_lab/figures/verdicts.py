"""Figures of a ledger: how many claims are confirmed, refuted and so on, and what was measured over what is claimed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypatia_lab.claims import ANY, VERDICTS, Judgement
from hypatia_lab.figures.language import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    WINE,
    FigureError,
    Style,
    extent,
    heading,
    ratios_axis,
)
from hypatia_lab.figures.panels import Block, Cell, draw
from hypatia_lab.tables import claims as claim_tables

LOOKS = {
    "confirmed": GREEN,
    "confirmed_in_part": GREEN,
    "conditional": ORANGE,
    "refuted": RED,
    "fell_short": RED,
    "understated": BLUE,
    "inconsistent": PURPLE,
    "undecided": SKY,
    "agrees": GREY,
    "differs": WINE,
    "not_testable": GREY,
    "adds_up": GREY,
}
"""Verdict → colour of its bar."""


def verdicts(claim_rows: Sequence[Judgement], machine: str) -> tuple[Any, Any]:
    """How many claims of each document have which verdict on ``machine``: a row a verdict, a panel a document.

    Rows of :func:`hypatia_lab.claims.statements`. Claims that no machine decides count with every machine. Raises
    :class:`FigureError` when there is no claim.
    """
    rows = [row for row in claim_rows if row.machine in (machine, ANY)]
    if not rows:
        raise FigureError(f"verdicts: no claims judged on {machine!r}")
    counts = Counter((row.seed, row.verdict) for row in rows)
    whole = Counter(row.seed for row in rows)
    found = Counter(row.verdict for row in rows)
    cells = [
        Cell(
            claim_tables.verdict_text(verdict),
            seed,
            Style(colour, "", 0),
            (counts[seed, verdict], math.nan, math.nan),
            f"{seed}<br>{claim_tables.verdict_text(verdict)}: {counts[seed, verdict]} of {whole[seed]}",
            verdict,
        )
        for verdict, colour in LOOKS.items()
        if found[verdict]
        for seed in whole
    ]
    axis = {"range": [0, round(1.3 * max(counts.values()), 1)], "title": {"text": "claims"}}
    head = heading("Verdicts on the claims of each document", [machine, f"{len(rows)} claims"])
    told = []
    for seed in whole:
        said = [f"{counts[seed, one]} {one.replace('_', ' ')}" for one in LOOKS if counts[seed, one]]
        told.append(f"{seed}: {', '.join(said)} of {whole[seed]}")
    alt = f"Claims of each document by verdict on {machine}. {'; '.join(told)}."
    return draw([Block("", cells, axis, bars=True)], head, alt), claim_tables.verdicts_by_seed(claim_rows, machine)


def over_claimed(claim_rows: Sequence[Judgement], machine: str) -> tuple[Any, Any]:
    """What was measured on ``machine`` over what is claimed, with its 95% interval: a row a claim.

    Of the rows (:func:`hypatia_lab.claims.statements`) those are drawn that are :func:`comparable`. Raises
    :class:`FigureError` when there is none.
    """
    rows = [row for row in claim_rows if row.machine == machine and comparable(row)]
    if not rows:
        raise FigureError(f"over_claimed: no claim has a figure of {machine!r} beside its own")
    triples = [tuple(value / _figure(row) for value in (row.measured, row.low, row.high)) for row in rows]
    cells = [
        Cell(
            f"{VERDICTS[row.verdict]} {row.claim}",
            "",
            Style(LOOKS[row.verdict], "circle", 0),
            (triple[0], triple[1], triple[2]),
            f"{row.id}<br>{_sides(row)}<br>{claim_tables.verdict_text(row.verdict)}",
            row.id,
        )
        for row, triple in zip(rows, triples, strict=True)
    ]
    axis = ratios_axis(extent(cell.triple for cell in cells), "measured / claimed, ×")
    head = heading("Measured over claimed", [machine, "dashed: as claimed", "bars: 95% intervals, where they show"])
    told = "; ".join(f"{row.id}: {_sides(row)}, {row.verdict.replace('_', ' ')}" for row in rows)
    alt = f"What {machine} measured over what is claimed, a row a claim. {told}."
    return draw([Block("", cells, axis, lines=[(1.0, "dash", "")])], head, alt), claim_tables.claims_table(rows)


def comparable(row: Judgement) -> bool:
    """Whether ``row`` says about what one figure is, and has one measured beside it, both above 0."""
    alone = len(row.parts) < 2 and row.sense == "about" and not isinstance(row.claimed, list)
    return alone and row.measured > 0 and _figure(row) > 0


def _figure(row: Judgement) -> float:
    assert isinstance(row.claimed, int | float)
    return row.claimed


def _sides(row: Judgement) -> str:
    measured, claimed = (claim_tables.quantity_text(value, row.unit) for value in (row.measured, row.claimed))
    return f"measured {measured}, claimed {claimed}"
