"""Figures of results rows that set one number against another: error, size, step or width against time or speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, intervals, tables
from hypatia_lab.figures.language import (
    LINE,
    FigureError,
    Style,
    assemble,
    extent,
    heading,
    intervals_key,
    launch_note,
    legend_names,
    log_axis,
    measured,
    origins_key,
    plain,
    points_trace,
    rate_axis,
    rule_trace,
    several,
    singles,
    spanning,
    split_fields,
    style,
    time_axis,
    where,
    with_legend,
    wrapped,
)
from hypatia_lab.figures.probe_rows import DASHES, SMALL, frame, hollowed, legend_lines, thinned
from hypatia_lab.formats import absent, listing, significant
from hypatia_lab.intervals import Triple
from hypatia_lab.results import Row


def precision(rows: Sequence[Row], title: str) -> tuple[Any, Any]:
    """Error against time of a call, both on log axes: one point a row, variants by marker, dtype/math by label.

    The error is ``max_error / peak`` where every row has a ``peak``, else ``error`` (‖out − ref‖/‖ref‖); an error of
    exactly 0 stands below all others, at a tick of its own. Rows of :func:`hypatia_lab.results.rows`; the fields that
    they share are under the title. Raises :class:`FigureError` when no row has both a time and an error.
    """
    kept = measured(singles(rows), "precision", "median_us", "a time")
    over_peak = not any(absent(row.peak) or absent(row.max_error) for row in kept)
    errors = [row.max_error / row.peak if over_peak else row.error for row in kept]
    if all(map(absent, errors)):
        raise FigureError(f"precision: none of {len(kept)} rows has an error")
    pairs = [(row, e) for row, e in zip(kept, errors, strict=True) if not absent(e)]
    kept = [row for row, _ in pairs]
    fields, common = split_fields(kept)
    said = [f for f in fields if f != "clock"]  # that one is for the pointer and the table
    positive = [e for _, e in pairs if e > 0] or [1e-16]
    x = thinned(time_axis(extent(row.time.triple for row in kept)), 5)
    what = "largest error / peak" if over_peak else "error, ‖out − ref‖/‖ref‖"
    y = log_axis(positive, what, lambda v: f"{v:.0e}".replace("e-0", "e-"), pad=3)
    looks = legend_names(kept)
    y["range"][0] = round(y["range"][0] - 0.12 * (y["range"][1] - y["range"][0]), 3)  # room for the corner's words
    floor = significant(10 ** y["range"][0])
    if any(not e for _, e in pairs):
        y["range"][0] = round(y["range"][0] - 0.15 * (y["range"][1] - y["range"][0]), 3)  # and for a line of its own
        y |= {"tickvals": [floor, *y["tickvals"]], "ticktext": ["0", *y["ticktext"]]}
    drawn = [e or floor for _, e in pairs]
    labels = [_short(row, said) if e else _exact(row, said) for row, e in pairs]
    times = [row.time.triple for row in kept]
    sides = _sides(list(zip(times, drawn, strict=True)), labels, x["range"], y["range"])
    data = []
    for variant, name in looks.items():
        own = [n for n, row in enumerate(kept) if row.variant == variant]
        hover = [
            f"{name}<br>{several(kept[n], fields)}<br>{kept[n].took}<br>"
            + (f"error {formats.number(pairs[n][1])}" if pairs[n][1] else "error exactly 0")
            for n in own
        ]
        triples = [kept[n].time.triple for n in own]
        at = [significant(drawn[n]) for n in own]
        text = {"text": [labels[n] if sides[n] else "" for n in own], "textfont": {"size": 11}}
        text |= {"textposition": [sides[n] or "top center" for n in own], "mode": "markers+text", "cliponaxis": False}
        data.append(points_trace(style(variant, kept[own[0]].origin), triples, at, hover, name=name, **text))
    corner = SMALL | {"text": "<i>↙ faster and more exact</i>", "xref": "paper", "yref": "paper", "x": 0.01, "y": 0.01}
    layout = heading(title, [*common, origins_key(kept), launch_note(kept), intervals_key(data)]) | {
        "height": 310,
        "xaxis": x,
        "yaxis": y,
        "annotations": [corner | {"xanchor": "left", "yanchor": "bottom"}],
    }
    layout["margin"]["l"] = 64
    clear = [pair for pair in pairs if not pair[0].time.doubt]
    told = [("Most exact", min(pairs, key=lambda p: p[1]))]
    told += [("Fastest", min(clear, key=lambda p: p[0].median_us))] if clear else []
    alt = f"{what[0].upper()}{what[1:]} against time of a call, log axes, {len(pairs)} points ({', '.join(common)}). "
    alt += "; ".join(
        f"{word}: {' '.join([row.variant, several(row, fields)]).strip()} with error {formats.number(float(e))} "
        f"in {row.took}"
        for word, (row, e) in told
    )
    table = tables.results_table(kept)
    table.insert(
        7, "largest error / peak" if over_peak else "relative error", [formats.number(float(e)) for _, e in pairs]
    )
    return assemble(data, with_legend(layout, list(looks.values())), f"{alt}."), table


def _short(row: Row, fields: Sequence[str]) -> str:
    """As :func:`several`, with the dtype alone where it computes in its own arithmetic, else the math alone."""
    kind = row.dtype if row.math == "ieee" else row.math
    return ", ".join(kind if f == "math" else where(row, f) for f in fields)


def _exact(row: Row, fields: Sequence[str]) -> str:
    """What is said of an error of exactly 0: the baseline in float64 is what errors are measured against."""
    if row.dtype == "float64" and row.variant == row.baseline:
        return "0 (the reference)"
    return f"{_short(row, fields)}, exact"


def _sides(
    points: Sequence[tuple[Triple, float]], labels: Sequence[str], x: Sequence[float], y: Sequence[float]
) -> list[str]:
    """Where each label stands beside its point so that it hides no other, no point and no interval bar of a narrow
    figure; "" where it fits nowhere, or where the same stands at a point beside."""
    wide, tall = 260.0, 260.0

    def across(value: float) -> float:
        return (math.log10(value) - x[0]) / (x[1] - x[0]) * wide

    pixels = [(across(t[0]), (math.log10(e) - y[0]) / (y[1] - y[0]) * tall) for t, e in points]
    taken = [(a - 7, b - 7, a + 7, b + 7) for a, b in pixels]
    bars = [(t[1:], b) for (t, _), (_, b) in zip(points, pixels, strict=True) if t[1] > 0 and not absent(t[2])]
    taken += [(across(low), b - 4, across(high), b + 4) for (low, high), b in bars]
    taken.append((0, 0, 150, 18))  # the words in the corner
    sides: list[str] = []
    said: list[tuple[str, float, float]] = []
    for (a, b), label in zip(pixels, labels, strict=True):
        if any(label == other and math.hypot(a - c, b - d) < 24 for other, c, d in said):
            sides.append("")
            continue
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
            said.append((label, a, b))
        sides.append(side)
    return sides


def _free(box: tuple[float, ...], taken: Sequence[tuple[float, ...]], wide: float, tall: float) -> bool:
    left, low, right, high = box
    inside = left >= 0 and right <= wide and low >= 0 and high <= tall + 12  # a little into the heading's margin
    return inside and all(left >= t[2] or t[0] >= right or low >= t[3] or t[1] >= high for t in taken)


def over_sizes(rows: Sequence[Row], title: str, *, limit: bool = True) -> tuple[Any, Any]:
    """Time of a call over pixels, both on log axes: one line a variant, and the machine's own limit in grey.

    Rows of :func:`hypatia_lab.results.rows` of one operation; a size is the product of a shape. Where dtype/math, clock
    or machine differ they have lines of their own. Raises :class:`FigureError` when no row has a time or when the rows
    hold several operations.
    """
    kept = measured(singles(rows), "over_sizes", "median_us", "a time")
    if len(operations := dict.fromkeys(r.operation for r in kept)) > 1:
        raise FigureError(f"over_sizes: one operation at a time, the rows hold {', '.join(operations)}")
    kept.sort(key=_pixels)
    fields, common = split_fields(kept)
    fields = [f for f in fields if f != "shape"]
    clocks = [r.clock for r in kept]
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
        lines: dict[str, list[Row]] = {}
        for r in kept:
            if r.variant == variant:
                apart = [f for f in fields if f != "clock" or r.clock != usual]
                lines.setdefault(several(r, apart), []).append(r)
        for number, (apart, own) in enumerate(lines.items()):
            name = ", ".join(filter(None, (named, apart)))
            look = hollowed(style(variant, own[0].origin), number % 2 == 1)
            triples = [r.time.triple for r in own]
            hover = [f"{name}<br>{where(r, 'shape')}: {r.took}" for r in own]
            line = {"color": look.colour, "dash": DASHES[number % len(DASHES)], "width": 2}
            more = {"along": "y", "size": 8, "mode": "lines+markers", "line": line, "name": name}
            data.append(points_trace(look, triples, [_pixels(r) for r in own], hover, **more))
            clear = [r.median_us for r in own if not r.time.doubt]
            told.append(f"{name}: {spanning(clear, formats.duration) if clear else own[0].time.doubt}")
    seen = [*extent(row.time.triple for row in kept), *(t for points in limits for _, t in points)]
    grey = "grey line: limit by measured ceilings" if limits else ""
    layout = heading(title, [*common, origins_key(kept), launch_note(kept), "bars: 95% intervals", grey]) | {
        "height": 310,
        "xaxis": _size_axis(kept),
        "yaxis": time_axis(seen),
    }
    ends = " to ".join(dict.fromkeys([where(kept[0], "shape"), where(kept[-1], "shape")]))
    alt = f"Time of a call over size, log axes, {ends} ({', '.join(common)}). {'; '.join(told)}."
    names = legend_lines([trace for trace in data if "name" in trace])
    return assemble(data, with_legend(layout, names), alt), tables.results_table(kept)


def _pixels(row: Row) -> int:
    return math.prod(map(int, row.shape.split("x")))


def _limits(rows: Sequence[Row]) -> list[list[tuple[int, float]]]:
    """(pixels, limit in µs) of each different limit: by machine, dtype/math, direction, and cold caches or not."""
    found: dict[tuple[str, str, str, bool], dict[int, float]] = {}
    for r in rows:
        if not absent(r.limit_us):
            place = (r.machine, where(r, "math"), r.direction, r.clock == "cold")
            found.setdefault(place, {})[_pixels(r)] = significant(r.limit_us)
    return [list(points) for points in dict.fromkeys(tuple(sorted(f.items())) for f in found.values())]


def _size_axis(rows: Sequence[Row]) -> dict[str, Any]:
    """A log axis with a tick at each measured size, named as a shape is: ``1024²``; images of one size are counted."""
    texts: dict[int, str] = {}
    images = all(r.shape.count("x") == 3 for r in rows) and len({r.shape.partition("x")[2] for r in rows}) == 1
    for r in rows:
        extents = r.shape.split("x")
        if images:  # of one size: their number is what differs
            texts[_pixels(r)] = extents[0]
            continue
        square = len(extents) > 1 and extents[-1] == extents[-2]
        texts.setdefault(_pixels(r), "×".join([*extents[:-2], f"{extents[-1]}²"]) if square else formats.shape(r.shape))
    stride = math.ceil(len(texts) / 6)
    shown = list(texts)[::-1][::stride][::-1]  # the largest size is always named
    what = "images" if images else "pixels" if all(r.shape.count("x") < 3 for r in rows) else "numbers in x"
    axis = log_axis(list(texts), what, plain, pad=1.6)
    return axis | {"tickvals": shown, "ticktext": [texts[n] for n in shown]}


def rungs(rows: Sequence[Row], order: Sequence[str], title: str) -> tuple[Any, Any]:
    """Rate of a product from step to step: a lane a variant in ``order``, a line a shape, FLOP/s on a log axis.

    Lanes are gathered under a heading for each dtype/math, in the order of ``rows``; the grey line in each group is the
    rate that the measured ceilings allow. Variants that ``order`` does not name are left out, and a lane in which
    nothing was timed shows its status. Rows of :func:`hypatia_lab.results.rows` of one machine, operation and clock;
    :class:`FigureError` for others, and when no row has a time.
    """
    rows = [row for row in singles(rows) if row.variant in order]
    kept = measured(rows, "rungs", "median_us", "a time")
    if len(places := {f"{r.machine} {r.operation} by {r.clock}": r for r in kept}) > 1:
        raise FigureError(f"rungs: one machine, operation and clock at a time, the rows hold {', '.join(places)}")
    kinds = list(dict.fromkeys(where(r, "math") for r in kept))
    rows = [r for r in sorted(rows, key=lambda r: order.index(r.variant)) if where(r, "math") in kinds]
    shapes = list({r.shape: r for r in sorted(kept, key=lambda r: r.flops)})
    left = round(16 + 6.6 * max(len(part) for r in rows for part in wrapped(r.variant).split("<br>")))
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    told: list[str] = []
    lanes: dict[float, str] = {}
    seen: list[float] = []
    y = 0.0
    for kind in kinds:
        own = [r for r in rows if where(r, "math") == kind]
        at = {name: y + n for n, name in enumerate(dict.fromkeys(r.variant for r in own), 1)}
        lanes |= {height: wrapped(name) for name, height in at.items()}
        at_left = SMALL | {"xref": "paper", "xanchor": "left"}
        notes.append(at_left | {"text": f"<b>{kind}</b>", "x": 0, "xshift": 8 - left, "y": y})
        timed_here = [r for r in own if r.timed]
        limited = {r.shape: significant(r.flops * 1e6 / r.limit_us) for r in own if not absent(r.limit_us)}
        for rate in sorted(set(limited.values())):
            ends, said = [y + 0.5, y + len(at) + 0.5], f"limit: {formats.scaled(rate, 'FLOP/s')}, {kind}"
            of = listing([formats.shape(shape) for shape in shapes if limited.get(shape) == rate])
            data.append(rule_trace([rate] * 2, ends, "solid", f"{said}<br>{of}", showlegend=False))
        seen += limited.values()
        for number, shape in enumerate(shapes):
            line = [r for r in timed_here if r.shape == shape]
            if not line:
                continue
            triples = [r.rate().triple for r in line]
            seen += extent(triples)
            data.append(_rung_trace(line, triples, [at[r.variant] for r in line], number, kind))
            name = formats.shape(shape)
            data[-1] |= {"showlegend": not any(trace.get("name") == name for trace in data), "name": name}
            steps = ", ".join(f"{r.variant} {tables.rate_text(r)}" for r in line)
            told.append(f"{formats.shape(shape)} in {kind}: {steps}")
        for name, height in at.items():
            if not any(r.variant == name for r in timed_here):
                status = next(r.status for r in own if r.variant == name).replace("_", " ")
                notes.append(at_left | {"text": f"<i>{status}</i>", "x": 0.01, "y": height})
        y = round(y + len(at) + 1.3, 1)
    _, common = split_fields(kept, always=["shape", "math"])
    grey = "grey line: limit by measured ceilings" if any(not absent(r.limit_us) for r in kept) else ""
    head = heading(title, [*common, origins_key(kept), launch_note(kept), "bars: 95% intervals", grey])
    head["margin"] |= {"l": left}
    ticks = {"tickvals": list(lanes), "ticktext": list(lanes.values())}
    layout = head | {
        "height": round(30 * (y + 0.4)),  # names of two lines fit
        "xaxis": rate_axis(seen, "FLOP/s"),
        "yaxis": {"range": [round(y - 0.7, 1), -0.7], "showgrid": False} | ticks,
        "annotations": notes,
    }
    alt = f"Rate of each step on a log axis ({', '.join(common)}). {'; '.join(told)}."
    rows = sorted(rows, key=lambda r: (kinds.index(where(r, "math")), r.flops))
    table = tables.results_table(rows)
    table.insert(6, "rate", [tables.rate_text(r) for r in rows])
    # Beside a wide left margin the legend has one column.
    return assemble(data, with_legend(layout, [formats.shape(shape).ljust(40) for shape in shapes]), alt), table


def _rung_trace(
    line: Sequence[Row], triples: Sequence[Triple], at: Sequence[float], number: int, kind: str
) -> dict[str, Any]:
    """One shape's way through the lanes: points look as their variants do, dash and size tell the shape."""
    looks = [style(r.variant, r.origin) for r in line]
    hover = [
        f"{r.variant} ({r.origin})<br>{where(r, 'shape')}, {kind}<br>{tables.rate_text(r)}, {r.took}" for r in line
    ]
    marker = {"color": [look.colour for look in looks], "symbol": [look.symbol for look in looks]}
    marker |= {"size": 7 + 2 * number, "line": {"color": "#333333", "width": 1}}
    dash = {"color": LINE, "dash": DASHES[number % len(DASHES)], "width": 1.5}
    return points_trace(Style(LINE, "circle", 0), triples, at, hover, mode="lines+markers", marker=marker, line=dash)


SLOWER, EQUAL, FASTER = "#E8935A", "#E6E6E6", "#4DB89A"
"""Grounds of a map's cells: light enough for dark text in either mode of the page."""


def where_faster(rows: Sequence[Row], variants: Sequence[str], against: Sequence[str], title: str) -> tuple[Any, Any]:
    """Where the quickest of ``variants`` beats that of ``against``: a map over rows and width, the factor in each cell.

    Rows of :func:`hypatia_lab.results.rows` of an operation whose shape is rows × width. A factor above 1 is faster; a
    question mark says that its 95% interval holds 1, alone that it says nothing; a dash that none of ``variants`` has a
    time (the table says why).
    Raises :class:`FigureError` when there is no factor, and for rows of several machines, operations, dtypes or clocks.
    """
    rows = [row for row in singles(rows) if row.variant in (*variants, *against)]
    measured(rows, "where_faster", "median_us", "a time")
    fields, common = split_fields(rows, always=["shape"])
    if len(fields) > 1:
        raise FigureError(f"where_faster: the rows differ in {', '.join(f for f in fields if f != 'shape')}")
    cells, one = _cells(rows, variants), " or ".join(variants)
    found = {place: cell.factor for place, cell in cells.items() if cell.factor is not None}
    if not found:
        raise FigureError(f"where_faster: {one} was timed nowhere beside {' or '.join(against)}")
    across, down = sorted({width for _, width in cells}), sorted({count for count, _ in cells})
    clear = {place for place, factor in found.items() if not factor.doubt}
    texts = {place: f"{f.value:.{2 if f.value < 9.995 else 1}f}" for place, f in found.items()}
    texts |= {place: texts[place] + "?" for place, f in found.items() if f.low <= 1 <= f.high}
    texts |= {place: "?" for place, f in found.items() if f.doubt}

    def grid(value: Any) -> list[list[Any]]:
        return [[value((count, width)) for width in across] for count in down]

    data = {
        "type": "heatmap",
        "x": list(range(len(across))),
        "y": list(range(len(down))),
        "z": grid(lambda place: significant(math.log2(found[place].value)) if place in clear else None),
        "zmin": -2,
        "zmax": 2,
        "colorscale": [[0, SLOWER], [0.5, EQUAL], [1, FASTER]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "text": grid(lambda place: texts.get(place, "")),
        "texttemplate": "%{text}",
        "textfont": {"color": "#111111", "size": 12},
        "hovertext": grid(lambda place: cells[place].text if place in cells else ""),
        "hoverinfo": "text",
    }
    dashes = [
        SMALL | {"text": formats.MISSING, "x": across.index(width), "y": down.index(count)}
        for count, width in cells
        if (count, width) not in found
    ]
    under = [*common, f"factor above 1 (green): {one} is faster", "?: its 95% interval holds 1, or says nothing"]
    head = heading(title, [*under, f"{formats.MISSING}: no time of {one}" if dashes else ""])
    head["margin"] |= {"l": 72}
    layout = head | {
        "height": 34 * len(down) + 30 + head["margin"]["t"] + head["margin"]["b"],
        "xaxis": _names(across, "width"),
        "yaxis": _names(down, "rows"),
        "annotations": dashes,
    }
    words = [intervals.reading(factor) for factor in found.values()]
    span = f", {spanning([found[place].value for place in clear], formats.number)}" if clear else ""
    alt = f"Speed of {one} against the quickest of {' and '.join(against)} ({', '.join(common)}), "
    alt += f"{len(found)} cells{span}: {tables.counted(words)}."
    return assemble([data], layout, alt), frame([cells[place].line for place in sorted(cells)])


def _names(values: Sequence[int], title: str) -> dict[str, Any]:
    """An axis with a place for each of ``values``, one beside the other."""
    named = {"tickvals": list(range(len(values))), "ticktext": [str(value) for value in values]}
    return named | {"range": [-0.5, len(values) - 0.5], "title": {"text": title}, "showgrid": False}


@dataclass(frozen=True)
class _Cell:
    """One cell of a map: the variant's row, the quickest other's, and the second's time over the first's."""

    own: Row
    best: Row | None
    factor: intervals.Interval | None

    @property
    def line(self) -> dict[str, str]:
        count, width = self.own.shape.split("x")
        found, best = self.factor, self.best
        factor = formats.MISSING if found is None else formats.told(found)
        return {
            "rows": count,
            "width": width,
            "variant": self.own.variant,
            "time": self.own.took,
            "quickest other": formats.MISSING if best is None else best.variant,
            "its time": formats.MISSING if best is None else best.took,
            "factor": factor,
            "status": self.own.reason or self.own.status,
        }

    @property
    def text(self) -> str:
        line = self.line
        rest = self.line["status"] if self.factor is None else f"{line['factor']} against {line['quickest other']}"
        return f"{line['rows']} rows, width {line['width']}<br>{rest}"


def _cells(rows: Sequence[Row], variants: Sequence[str]) -> dict[tuple[int, int], _Cell]:
    """(rows, width) → what is known of the quickest of ``variants``, against the quickest of the others in ``rows``."""

    def pace(row: Row) -> float:
        return math.inf if not row.timed else row.median_us

    cells = {}
    for shape in dict.fromkeys(row.shape for row in rows if row.variant in variants):
        there = [row for row in rows if row.shape == shape]
        own = min((row for row in there if row.variant in variants), key=pace)
        peers = [row for row in there if row.variant not in variants and row.timed]
        best = min(peers, key=pace, default=None)
        timed_both = best is not None and own.timed
        factor = best.over(own) if best and timed_both else None
        count, width = map(int, own.shape.split("x"))
        cells[count, width] = _Cell(own, best, factor)
    return cells
