"""The figure of verdicts: how many claims of each document are confirmed, refuted and so on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

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
    assemble,
    heading,
)
from hypatia_lab.figures.probe_rows import bar_trace, lanes, legend_columns
from hypatia_lab.tables import claims as claim_tables

LOOKS = {
    "confirmed": (GREEN, ""),
    "exceeded": (BLUE, "+"),
    "refuted": (RED, "/"),
    "conditional": (ORANGE, "x"),
    "undecided": (SKY, "."),
    "not_reproduced": (GREY, "|"),
    "not_testable": (GREY, ""),
    "inconsistent": (PURPLE, "\\"),
    "invalid": (WINE, "-"),
}
"""Verdict → colour and pattern of its bar."""


def verdicts(claim_rows: Sequence[dict[str, Any]], machine: str) -> tuple[Any, Any]:
    """Claims of each document by verdict on ``machine``, in %: a lane a document; the table has the counts.

    Rows of :func:`hypatia_lab.claims.statements`. Claims that no machine decides count with every machine. Raises
    :class:`FigureError` when there is no claim.
    """
    rows = [row for row in claim_rows if row["machine"] in (machine, claim_tables.ANY)]
    if not rows:
        raise FigureError(f"verdicts: no claims judged on {machine!r}")
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    counts = Counter((row["seed"], row["verdict"]) for row in rows)
    whole = {seed: sum(row["seed"] == seed for row in rows) for seed in seeds}
    starts, data = dict.fromkeys(seeds, 0.0), []
    for verdict in (verdict for verdict in LOOKS if any(row["verdict"] == verdict for row in rows)):
        name = claim_tables.verdict_text(verdict)
        sizes = {seed: 100 * counts[seed, verdict] / whole[seed] for seed in seeds}
        more: dict[str, Any] = {"name": name, "width": 0.6, "textangle": 0, "constraintext": "none"}
        more["hovertext"] = [f"{seed}<br>{name}: {counts[seed, verdict]} of {whole[seed]}" for seed in seeds]
        more |= {"text": [_fits(counts[seed, verdict], sizes[seed]) for seed in seeds]}
        more |= {"textposition": "inside", "insidetextanchor": "middle", "textfont": {"size": 12}}
        bars = bar_trace(*LOOKS[verdict], list(starts.values()), list(sizes.values()), list(range(len(seeds))), **more)
        data.append(bars)
        starts = {seed: starts[seed] + sizes[seed] for seed in seeds}
    found = Counter(row["verdict"] for row in rows)
    hold, fall = found["confirmed"] + found["exceeded"], found["refuted"] + found["inconsistent"]
    title = f"Of {len(rows)} claims {hold} hold and {fall} fall"
    place_legends = legend_columns(data)
    layout = lanes(
        heading(
            title,
            [
                machine,
                "numbers: claims, where there is room",
                "hold: confirmed or exceeded",
                "fall: refuted or inconsistent",
            ],
        ),
        seeds,
    )
    layout |= {"barmode": "overlay", "xaxis": {"range": [0, 100], "nticks": 6, "title": {"text": "share of claims, %"}}}
    told = []
    for seed in seeds:
        said = [f"{counts[seed, one]} {one.replace('_', ' ')}" for one in LOOKS if counts[seed, one]]
        told.append(f"{seed}: {', '.join(said)} of {whole[seed]}")
    alt = f"Claims of each document by verdict on {machine}. {'; '.join(told)}."
    return assemble(data, place_legends(layout), alt), claim_tables.verdicts_by_seed(claim_rows, machine)


def _fits(count: int, size: float) -> str:
    """``count`` where a part of ``size`` % has room for it on a telephone, whose panel is some 290 px wide."""
    text = str(count)
    return text if 2.9 * size >= 7 * len(text) + 2 else ""
