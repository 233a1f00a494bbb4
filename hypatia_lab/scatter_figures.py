"""Figures of results rows that set one number against another: error against time, time against size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, tables
from hypatia_lab.drawing import (
    FigureError,
    assemble,
    heading,
    legend_names,
    log_axis,
    measured,
    origins_key,
    plain,
    points_trace,
    rule_trace,
    several,
    singles,
    spanning,
    split_fields,
    style,
    time_axis,
    where,
    with_legend,
)
from hypatia_lab.formats import absent, significant
from hypatia_lab.ways import DASHES, SMALL, hollowed, legend_lines, thinned, timed


def precision(rows: Sequence[dict[str, Any]], title: str) -> tuple[Any, Any]:
    """Error against time of a call, both on log axes: one point a row, variants by marker, dtype/math by label.

    The error is ``max_error / peak`` where every row has a ``peak``, else ``error`` (‖out − ref‖/‖ref‖); an error of
    exactly 0 is drawn at the lower edge. Rows of :func:`hypatia_lab.results.rows`; the fields that they share are
    under the title. Raises :class:`FigureError` when no row has both a time and an error.
    """
    kept = measured(singles(rows), "precision", "median_us", "a time")
    over_peak = not any(absent(row.get("peak")) or absent(row["max_error"]) for row in kept)
    errors = [row["max_error"] / row["peak"] if over_peak else row["error"] for row in kept]
    if all(map(absent, errors)):
        raise FigureError(f"precision: none of {len(kept)} rows has an error")
    pairs = [(row, e) for row, e in zip(kept, errors, strict=True) if not absent(e)]
    kept = [row for row, _ in pairs]
    fields, common = split_fields(kept)
    said = [f for f in fields if f != "clock"]  # that one is for the pointer and the table
    positive = [e for _, e in pairs if e > 0] or [1e-16]
    lowest = min(positive) / 10
    x = thinned(time_axis([v for row in kept for v in tables.time_of(row) if not absent(v)]), 5)
    what = "largest error / peak" if over_peak else "error, ‖out − ref‖/‖ref‖"
    drawn = [max(e, lowest) for _, e in pairs]
    y = log_axis(drawn, what, lambda v: f"{v:.0e}".replace("e-0", "e-"), pad=3)
    looks = legend_names(kept)
    y["range"][0] = round(y["range"][0] - 0.12 * (y["range"][1] - y["range"][0]), 3)  # room for the corner's words
    labels = [_short(row, said) + ("" if e else ", exact") for row, e in pairs]
    sides = _sides([(row["median_us"], e) for row, e in zip(kept, drawn, strict=True)], labels, x["range"], y["range"])
    data = []
    for variant, name in looks.items():
        own = [n for n, row in enumerate(kept) if row["variant"] == variant]
        hover = [
            f"{name}<br>{several(kept[n], fields)}<br>{timed(tables.time_of(kept[n]))}<br>"
            + (f"error {formats.number(pairs[n][1])}" if pairs[n][1] else "error exactly 0")
            for n in own
        ]
        triples = [tables.time_of(kept[n]) for n in own]
        at = [significant(drawn[n]) for n in own]
        text = {"text": [labels[n] if sides[n] else "" for n in own], "textfont": {"size": 11}}
        text |= {"textposition": [sides[n] or "top center" for n in own], "mode": "markers+text", "cliponaxis": False}
        data.append(points_trace(style(variant, kept[own[0]]["origin"]), triples, at, hover, name=name, **text))
    corner = SMALL | {"text": "<i>↙ faster and more exact</i>", "xref": "paper", "yref": "paper", "x": 0.01, "y": 0.01}
    layout = heading(title, [*common, origins_key(kept), "bars: 95% intervals"]) | {
        "height": 310,
        "xaxis": x,
        "yaxis": y,
        "annotations": [corner | {"xanchor": "left", "yanchor": "bottom"}],
    }
    layout["margin"]["l"] = 64
    best, swift = min(pairs, key=lambda p: p[1]), min(pairs, key=lambda p: p[0]["median_us"])
    alt = f"{what[0].upper()}{what[1:]} against time of a call, log axes, {len(pairs)} points ({', '.join(common)}). "
    alt += "; ".join(
        f"{word}: {' '.join([row['variant'], several(row, fields)]).strip()} with error {formats.number(float(e))} "
        f"in {formats.duration(row['median_us'])}"
        for word, (row, e) in (("Most exact", best), ("Fastest", swift))
    )
    table = tables.results_table(kept)
    table.insert(
        7, "largest error / peak" if over_peak else "relative error", [formats.number(float(e)) for _, e in pairs]
    )
    return assemble(data, with_legend(layout, list(looks.values())), f"{alt}."), table


def _short(row: dict[str, Any], fields: Sequence[str]) -> str:
    """As :func:`several`, with the dtype alone where it computes in its own arithmetic, else the math alone."""
    kind = row["dtype"] if row["math"] == "ieee" else row["math"]
    return ", ".join(kind if f == "math" else where(row, f) for f in fields)


def _sides(
    points: Sequence[tuple[float, float]], labels: Sequence[str], x: Sequence[float], y: Sequence[float]
) -> list[str]:
    """Where each label stands beside its point so that none hides another on a narrow figure; "" where none fits."""
    wide, tall = 260.0, 260.0
    pixels = [
        ((math.log10(a) - x[0]) / (x[1] - x[0]) * wide, (math.log10(b) - y[0]) / (y[1] - y[0]) * tall)
        for a, b in points
    ]
    taken = [(a - 7, b - 7, a + 7, b + 7) for a, b in pixels]
    sides = []
    for (a, b), label in zip(pixels, labels, strict=True):
        w = 6.0 * len(label)
        boxes = {
            "top center": (a - w / 2, b + 7, a + w / 2, b + 21),
            "bottom center": (a - w / 2, b - 21, a + w / 2, b - 7),
            "middle right": (a + 9, b - 7, a + 9 + w, b + 7),
            "middle left": (a - 9 - w, b - 7, a - 9, b + 7),
        }
        side = next((s for s, box in boxes.items() if label and _free(box, taken, wide, tall)), "")
        if side:
            taken.append(boxes[side])
        sides.append(side)
    return sides


def _free(box: tuple[float, ...], taken: Sequence[tuple[float, ...]], wide: float, tall: float) -> bool:
    left, low, right, high = box
    inside = left >= 0 and right <= wide and low >= 0 and high <= tall
    return inside and all(left >= t[2] or t[0] >= right or low >= t[3] or t[1] >= high for t in taken)


def over_sizes(rows: Sequence[dict[str, Any]], title: str, *, limit: bool = True) -> tuple[Any, Any]:
    """Time of a call over pixels, both on log axes: one line a variant, and the machine's own limit in grey.

    Rows of :func:`hypatia_lab.results.rows` of one operation; a size is the product of a shape. Where dtype/math, clock
    or machine differ they have lines of their own. Raises :class:`FigureError` when no row has a time or when the rows
    hold several operations.
    """
    kept = measured(singles(rows), "over_sizes", "median_us", "a time")
    if len(operations := dict.fromkeys(r["operation"] for r in kept)) > 1:
        raise FigureError(f"over_sizes: one operation at a time, the rows hold {', '.join(operations)}")
    kept.sort(key=_pixels)
    fields, common = split_fields(kept)
    fields = [f for f in fields if f != "shape"]
    clocks = [r["clock"] for r in kept]
    usual = max(dict.fromkeys(clocks), key=clocks.count)
    if "clock" in fields:
        common.append(f"{usual} clock unless said")
    data: list[dict[str, Any]] = []
    limits = _limits(kept) if limit else []
    for points in limits:
        label = f"limit by measured ceilings: {spanning([t for _, t in points], formats.duration)}"
        sizes, times = [n for n, _ in points], [t for _, t in points]
        data.append(rule_trace(sizes, times, "solid", label, showlegend=False))
    told: list[str] = []
    for variant, named in legend_names(kept).items():
        lines: dict[str, list[dict[str, Any]]] = {}
        for r in kept:
            if r["variant"] == variant:
                apart = [f for f in fields if f != "clock" or r["clock"] != usual]
                lines.setdefault(several(r, apart), []).append(r)
        for number, (apart, own) in enumerate(lines.items()):
            name = ", ".join(filter(None, (named, apart)))
            look = hollowed(style(variant, own[0]["origin"]), number % 2 == 1)
            triples = [tables.time_of(r) for r in own]
            hover = [f"{name}<br>{where(r, 'shape')}: {timed(t)}" for r, t in zip(own, triples, strict=True)]
            line = {"color": look.colour, "dash": DASHES[number % len(DASHES)], "width": 2}
            more = {"along": "y", "size": 8, "mode": "lines+markers", "line": line, "name": name}
            data.append(points_trace(look, triples, [_pixels(r) for r in own], hover, **more))
            told.append(f"{name}: {spanning([t[0] for t in triples], formats.duration)}")
    seen = [x for r in kept for x in tables.time_of(r)] + [t for points in limits for _, t in points]
    grey = "grey line: limit by measured ceilings" if limits else ""
    layout = heading(title, [*common, origins_key(kept), "bars: 95% intervals", grey]) | {
        "height": 310,
        "xaxis": _size_axis(kept),
        "yaxis": time_axis([x for x in seen if not absent(x)]),
    }
    ends = " to ".join(dict.fromkeys([where(kept[0], "shape"), where(kept[-1], "shape")]))
    alt = f"Time of a call over size, log axes, {ends} ({', '.join(common)}). {'; '.join(told)}."
    names = legend_lines([trace for trace in data if "name" in trace])
    return assemble(data, with_legend(layout, names), alt), tables.results_table(kept)


def _pixels(row: dict[str, Any]) -> int:
    return math.prod(map(int, row["shape"].split("x")))


def _limits(rows: Sequence[dict[str, Any]]) -> list[list[tuple[int, float]]]:
    """(pixels, limit in µs) of each different limit: by machine, dtype/math, and whether the cache is cold."""
    found: dict[tuple[str, str, bool], dict[int, float]] = {}
    for r in rows:
        if not absent(r["limit_us"]):
            place = (r["machine"], where(r, "math"), r["clock"] == "cold")
            found.setdefault(place, {})[_pixels(r)] = significant(r["limit_us"])
    return [list(points) for points in dict.fromkeys(tuple(sorted(f.items())) for f in found.values())]


def _size_axis(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A log axis with a tick at each measured size, named as a shape is: ``1024²``."""
    texts: dict[int, str] = {}
    for r in rows:
        extents = r["shape"].split("x")
        square = len(extents) > 1 and extents[-1] == extents[-2]
        texts.setdefault(
            _pixels(r), "×".join([*extents[:-2], f"{extents[-1]}²"]) if square else tables.shape_text(r["shape"])
        )
    stride = math.ceil(len(texts) / 6)
    shown = list(texts)[::-1][::stride][::-1]  # the largest size is always named
    axis = log_axis(list(texts), "pixels", plain, pad=1.6)
    return axis | {"tickvals": shown, "ticktext": [texts[n] for n in shown]}
