"""The figure of verdicts: how many claims of each document are confirmed, refuted and so on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypatia_lab.claims import ANY, Judgement
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
    heading,
)
from hypatia_lab.figures.panels import Block, Cell, draw
from hypatia_lab.tables import claims as claim_tables

LOOKS = {
    "confirmed": GREEN,
    "exceeded": BLUE,
    "refuted": RED,
    "conditional": ORANGE,
    "undecided": SKY,
    "not_reproduced": GREY,
    "not_testable": GREY,
    "inconsistent": PURPLE,
    "invalid": WINE,
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
