"""Figures of a ledger: how many claims are confirmed, refuted and so on, and what was measured over what is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypatia_lab.claims import VERDICTS, Judgement
from hypatia_lab.figures.axes import extent, ratios_axis
from hypatia_lab.figures.language import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, WINE, FigureError, Style
from hypatia_lab.figures.mark_rows import NOTHING, Block, Cell, Segment, bars, draw
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
    rows = claim_tables.on(claim_rows, machine)
    if not rows:
        raise FigureError(f"verdicts: no claims judged on {machine!r}")
    counts = Counter((row.document, row.verdict) for row in rows)
    whole = Counter(row.document for row in rows)
    found = Counter(row.verdict for row in rows)
    cells = [
        Cell(
            claim_tables.verdict_text(verdict),
            seed,
            Style(colour, "", 0),
            NOTHING,
            f"{counts[seed, verdict]} of {whole[seed]}",
            str(counts[seed, verdict] or ""),
            verdict,
            segments=[Segment(0, counts[seed, verdict], (colour, ""))],
        )
        for verdict, colour in LOOKS.items()
        if found[verdict]
        for seed in whole
    ]
    table = claim_tables.verdicts_by_seed(claim_rows, machine)
    under = [machine, f"{len(rows)} claims"]
    blocks = bars({"": cells}, "claims", lambda count: f"{count:g}")
    return draw(blocks, "Verdicts on the claims of each document", under, table, [*table.columns]), table


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
            f"{row.id}<br>{claim_tables.verdict_text(row.verdict)}",
            f"measured {claim_tables.quantity_text(row.measured, row.unit)}, "
            f"claimed {claim_tables.quantity_text(row.claimed, row.unit)}",
            row.id,
        )
        for row, triple in zip(rows, triples, strict=True)
    ]
    axis = ratios_axis(extent(cell.triple for cell in cells), "measured / claimed, ×")
    table = claim_tables.claims_table(rows)
    blocks = [Block("", cells, axis, lines=[(1.0, "dash")])]
    return draw(blocks, "Measured over claimed", [machine, "dashed: as claimed"], table, [*table.columns[:4]]), table


def comparable(row: Judgement) -> bool:
    """Whether ``row`` says about what one figure is, and has one measured beside it, both above 0."""
    alone = len(row.parts) < 2 and row.sense == "about" and not isinstance(row.claimed, list)
    return alone and row.measured > 0 and _figure(row) > 0


def _figure(row: Judgement) -> float:
    assert isinstance(row.claimed, int | float)
    return row.claimed
