"""Figures of results rows that set one number against another: error, size, step or width against time or speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import formats, intervals, tables
from hypatia_lab.figures import marks
from hypatia_lab.figures.axes import extent, log_axis, rate_axis, time_axis
from hypatia_lab.figures.comparisons import LIMIT, SAID, forest
from hypatia_lab.figures.drawn_rows import measured, ordered, singles
from hypatia_lab.figures.language import LINE, PRECISIONS, FigureError, style
from hypatia_lab.figures.mark_rows import Block, Cell, draw
from hypatia_lab.figures.plots import plotted, points_trace, rule_trace
from hypatia_lab.figures.wording import launch_note, named, several, split_fields, where
from hypatia_lab.formats import absent, significant
from hypatia_lab.results import Row

PANEL = 340
"""Height of a panel of lines, px, with its axes."""


def precision(rows: Sequence[Row], title: str) -> tuple[Any, Any]:
    """Time of a call and its error, side by side on log axes: a row a variant, under headings of dtype/math.

    Where each heading would have a single row, the rows bear the headings' names. The error is ``max_error / peak``
    where every row has a ``peak``, else ``error`` (‖out − ref‖/‖ref‖); an error of exactly 0 is said in words. Rows of
    :func:`hypatia_lab.results.rows`; the fields that they share are under the title. Raises :class:`FigureError` when
    no row has both a time and an error.
    """
    kept = ordered(measured(singles(rows), "precision", "median_us", "a time"))
    over_peak = not any(absent(row.peak) or absent(row.max_error) for row in kept)
    errors = [row.max_error / row.peak if over_peak else row.error for row in kept]
    if all(map(absent, errors)):
        raise FigureError(f"precision: none of {len(kept)} rows has an error")
    pairs = [(row, e) for row, e in zip(kept, errors, strict=True) if not absent(e)]
    pairs.sort(key=lambda pair: [*PRECISIONS, kind := f"{pair[0].dtype}/{pair[0].math}"].index(kind))
    kept = [row for row, _ in pairs]
    fields, common = split_fields(kept)
    what = "error over the peak" if over_peak else "error, ‖out − ref‖/‖ref‖"
    positive = [e for _, e in pairs if e > 0] or [1e-16]
    axes = {"time": time_axis(extent(row.time.triple for row in kept))}
    axes["error"] = log_axis(positive, what, lambda v: f"{v:.0e}".replace("e-0", "e-"), pad=3)
    heads = [f for f in fields if f != "clock"]  # that one is for the pointer and the table
    kinds = [several(row, heads) for row in kept]
    single = len(set(kinds)) == len(kinds)
    alike = len({named(row) for row in kept}) == 1
    groups: dict[str, list[Cell]] = {}
    for (row, e), kind in zip(pairs, kinds, strict=True):
        hover = "<br>".join([named(row), several(row, fields)])
        look = style(row.variant, row.origin)
        name = (kind if alike else f"{kind}, {named(row)}") if single else named(row)
        error = e or math.nan, math.nan, math.nan
        groups.setdefault("" if single else kind, []).extend(
            [
                Cell(name, "time", look, row.time.triple, hover, row.took, row.variant),
                Cell(name, "error", look, error, hover, formats.number(float(e)), row.variant, _exact(row)),
            ]
        )
    blocks = [Block(heading, cells, lambda own: axes[own[0].panel]) for heading, cells in groups.items()]
    table = tables.results_table(kept)
    table.insert(7, column := what if over_peak else "relative error", [formats.number(float(e)) for _, e in pairs])
    under = [*common, launch_note(kept), "left is faster, and more exact"]
    return draw(blocks, title, under, table, [*SAID, "time", column]), table


def _exact(row: Row) -> str:
    """What is said of an error of exactly 0: the baseline in float64 is what errors are measured against."""
    return "0 (the reference)" if row.dtype == "float64" and row.variant == row.baseline else "exact"


def over_sizes(
    rows: Sequence[Row], title: str, *, limit: bool = True, names: Mapping[str, str] | None = None
) -> tuple[Any, Any]:
    """Time of a call over the size of the workload, on log axes: a line a variant, and the machine's own limit in grey.

    The legend names the lines as they end, the slowest first. ``names``: variant → what it is called here.
    Rows of :func:`hypatia_lab.results.rows` of one operation.
    Raises :class:`FigureError` for rows of several operations, and when no row has a time.
    """
    kept = measured(ordered(singles(rows)), "over_sizes", "median_us", "a time")
    if len(operations := list(dict.fromkeys(r.operation for r in kept))) > 1:
        raise FigureError(f"over_sizes: one operation at a time, the rows hold {', '.join(operations)}")
    fields, common = split_fields(kept, always=["shape"])
    heads = [f for f in fields if f != "shape"]
    lines: dict[str, list[Row]] = {}
    limits: dict[str, dict[int, float]] = {}
    for r in kept:
        name = ", ".join(filter(None, ((names or {}).get(r.variant) or named(r), several(r, heads))))
        lines.setdefault(name, []).append(r)
        if limit and not absent(r.limit_us):
            limits.setdefault(several(r, heads), {})[_size(r)] = significant(r.limit_us)
    data, key = [], []
    for name, own in sorted(lines.items(), key=lambda line: (_size(line[1][-1]), line[1][-1].median_us), reverse=True):
        look = style(own[0].variant, own[0].origin)
        hover = [f"{name}<br>{where(r, 'shape')}<br>{r.took}" for r in own]
        drawn = {"name": name, "mode": "lines+markers", "line": {"color": look.colour, "width": 1.5}}
        triples, sizes = [r.time.triple for r in own], [_size(r) for r in own]
        data.append(points_trace(look, triples, sizes, hover, along="y", size=9, said=formats.duration, **drawn))
        key.append((look.swatch, name))
    for kind, own in limits.items():
        name = ", ".join(filter(None, ("limit", kind)))
        data.append(rule_trace(list(own), list(own.values()), "solid", name, name=name))
        key.append((marks.swatch(LINE, "-"), name))
    shapes = {_size(r): where(r, "shape") for r in kept}
    few = any(len(own) < len(shapes) for own in lines.values())
    under = [*common, launch_note(kept), "no marker: no time measured" if few else "", LIMIT if limits else ""]
    seen = [*extent(r.time.triple for r in kept), *(us for own in limits.values() for us in own.values())]
    across = log_axis([*shapes], "size", pad=1.5).plotly()
    across |= {"tickvals": [*shapes], "ticktext": [*shapes.values()]}
    layout = {"height": PANEL, "xaxis": across, "yaxis": time_axis(seen).plotly()}
    table = tables.results_table(kept)
    return plotted(data, layout, title, under, table, [*SAID, "time"], key), table


def _size(row: Row) -> int:
    """How large a workload is, on an axis: of an image, its pixels."""
    return math.prod(map(int, row.shape.split("x")))


def rungs(rows: Sequence[Row], order: Mapping[str, str], title: str) -> tuple[Any, Any]:
    """Rate of a product from step to step: a row a variant of ``order``, a panel a shape, FLOP/s on a log axis.

    Rows are gathered under a heading for each dtype/math, in the order of ``rows``; the grey line in each panel is the
    rate that the measured ceilings allow. ``order``: variant → what it is called here; others are left out. A row in
    which nothing was timed shows its status. Rows of :func:`hypatia_lab.results.rows` of one machine, operation and
    clock; :class:`FigureError` for others, and when no row has a time.
    """
    rows = [row for row in singles(rows) if row.variant in order]
    kept = measured(rows, "rungs", "median_us", "a time")
    if len(places := {f"{r.machine} {r.operation} by {r.clock}": r for r in kept}) > 1:
        raise FigureError(f"rungs: one machine, operation and clock at a time, the rows hold {', '.join(places)}")
    kinds = list(dict.fromkeys(where(r, "math") for r in kept))
    rows = [r for r in rows if where(r, "math") in kinds]
    lanes = list(order)
    rows.sort(key=lambda r: (kinds.index(where(r, "math")), r.flops, lanes.index(r.variant)))
    limits = [significant(r.flops * 1e6 / r.limit_us) for r in rows]
    drawn = [limit for limit in limits if not absent(limit)]
    axis = rate_axis([*extent(r.rate().triple for r in kept), *drawn], "FLOP/s")
    said = [f"{tables.rate_text(r)}, {r.took}" for r in rows]
    texts = [(limit, formats.scaled(limit, "FLOP/s")) for limit in limits]
    blocks = forest(rows, [r.rate() for r in rows], said, names=order, limits=texts, axis=axis)
    table = tables.results_table(rows)
    table.insert(6, "rate", [tables.rate_text(r) for r in rows])
    under = [*split_fields(kept)[1], launch_note(kept), LIMIT if drawn else ""]
    return draw(blocks, title, under, table, [*SAID, "rate"]), table


SLOWER, EQUAL, FASTER = "#E8935A", "#E6E6E6", "#4DB89A"
"""Grounds of a map's cells: light enough for dark text in either mode of the page."""


def where_faster(
    rows: Sequence[Row], variants: Sequence[str], against: Sequence[str], title: str, sides: tuple[str, str]
) -> tuple[Any, Any]:
    """Where the quickest of ``variants`` beats that of ``against``: a map over rows and width, the factor in each cell.

    Rows of :func:`hypatia_lab.results.rows` of an operation whose shape is rows × width. A factor above 1 is faster; a
    question mark says that its 95% interval holds 1, alone that it says nothing; a dash that none of ``variants`` has a
    time (the table says why). ``sides``: what the first and the second are called.
    Raises :class:`FigureError` when there is no factor, and for rows of several machines, operations, dtypes or clocks.
    """
    rows = [row for row in singles(rows) if row.variant in (*variants, *against)]
    measured(rows, "where_faster", "median_us", "a time")
    fields, common = split_fields(rows, always=["shape"])
    if len(fields) > 1:
        raise FigureError(f"where_faster: the rows differ in {', '.join(f for f in fields if f != 'shape')}")
    cells, (one, other) = _cells(rows, variants), sides
    found = {place: factor for place, (_, factor) in cells.items() if factor is not None}
    if not found:
        raise FigureError(f"where_faster: {' or '.join(variants)} was timed nowhere beside {' or '.join(against)}")
    across, down = sorted({width for _, width in cells}), sorted({count for count, _ in cells})
    clear = {place for place, factor in found.items() if not factor.doubt}
    texts = {place: f"{f.value:.{2 if f.value < 9.995 else 1}f}" for place, f in found.items()}
    texts |= {place: texts[place] + "?" for place, f in found.items() if f.low <= 1 <= f.high}
    texts |= {place: "?" for place, f in found.items() if f.doubt}

    def said(place: tuple[int, int]) -> str:
        if place not in cells:
            return ""
        line, _ = cells[place]
        rest = f"{line['factor']} against {line['quickest other']}" if place in found else line["status"]
        return f"{line['rows']} rows, width {line['width']}<br>{rest}"

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
        "texttemplate": "%{text}",
        "textfont": {"color": "#111111", "size": 12},
        "hovertext": grid(said),
        "hoverinfo": "text",
    }
    empty = [place for place in cells if place not in found]
    data["text"] = grid(lambda place: formats.MISSING if place in empty else texts.get(place, ""))
    under = [*common, f"factor: speed of {one} over that of {other}"]
    under += ["?: its 95% interval holds 1, or says nothing"] if any("?" in text for text in texts.values()) else []
    under.append(f"{formats.MISSING}: no time of {one}" if empty else "")
    under.append(tables.counted([intervals.reading(factor) for factor in found.values()]))
    key = [(marks.swatch(FASTER), f"{one} is faster"), (marks.swatch(SLOWER), f"{other} is")]
    layout = {"height": 34 * len(down) + 90, "xaxis": _names(across, "width"), "yaxis": _names(down, "rows")}
    table = tables.frame([cells[place][0] for place in sorted(cells)])
    return plotted([data], layout, title, under, table, ["rows", "width", "factor"], key), table


def _names(values: Sequence[int], title: str) -> dict[str, Any]:
    """An axis with a place for each of ``values``, one beside the other."""
    named = {"tickvals": list(range(len(values))), "ticktext": [str(value) for value in values]}
    return named | {"range": [-0.5, len(values) - 0.5], "title": {"text": title}, "showgrid": False}


def _line(own: Row, best: Row | None, factor: intervals.Interval | None) -> dict[str, str]:
    """A cell of a map as a line of its table: a variant's row, the quickest other's, the second's time over the
    first's."""
    count, width = own.shape.split("x")
    return {
        "rows": count,
        "width": width,
        "variant": own.variant,
        "time": own.took,
        "quickest other": formats.MISSING if best is None else best.variant,
        "its time": formats.MISSING if best is None else best.took,
        "factor": formats.MISSING if factor is None else formats.told(factor),
        "status": own.reason or own.status,
    }


def _cells(
    rows: Sequence[Row], variants: Sequence[str]
) -> dict[tuple[int, int], tuple[dict[str, str], intervals.Interval | None]]:
    """(rows, width) → the :func:`_line` of the quickest of ``variants`` against the quickest of the others in ``rows``,
    and the factor."""

    def pace(row: Row) -> float:
        return math.inf if not row.timed else row.median_us

    cells = {}
    for shape in dict.fromkeys(row.shape for row in rows if row.variant in variants):
        there = [row for row in rows if row.shape == shape]
        own = min((row for row in there if row.variant in variants), key=pace)
        peers = [row for row in there if row.variant not in variants and row.timed]
        best = min(peers, key=pace, default=None)
        factor = best.over(own) if best and own.timed else None
        count, width = map(int, shape.split("x"))
        cells[count, width] = _line(own, best, factor), factor
    return cells
