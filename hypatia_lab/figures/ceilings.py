"""Figures of what binds a call: the measured ceilings, calls beneath them, and gains against a crossover."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, results, tables
from hypatia_lab.figures import marks
from hypatia_lab.figures.axes import bytes_text, extent, log_axis, rate_axis
from hypatia_lab.figures.drawn_rows import measured, ordered, singles
from hypatia_lab.figures.language import BLUE, PALETTE, PRECISIONS, SHAPES, FigureError, Style, style
from hypatia_lab.figures.mark_rows import Block, Cell, draw
from hypatia_lab.figures.plots import plotted, points_trace, rule_trace, tile, tiles
from hypatia_lab.figures.wording import launch_note, named, split_fields, where
from hypatia_lab.formats import significant
from hypatia_lab.intervals import Triple
from hypatia_lab.results import Row

_SWEPT: dict[str, tuple[str, str, Callable[[Row], float], Callable[[Row], str]]] = {
    "matmul": ("flops", "FLOP/s", lambda r: r.flops, lambda r: _extents(r.shape)),
    "copy": ("traffic", "B/s", lambda r: r.traffic, lambda r: bytes_text(r.traffic)),
}
"""What is swept: which work of a row counts, its unit a second, the size of a row, and how that is written."""


@dataclass(frozen=True)
class Point:
    """One measured call: the ``kind`` whose tile it lies in, the origin that gives its look, and its place.

    ``across`` has its interval; ``along`` is worked out, not measured, or its interval does not matter.
    """

    kind: str
    origin: str
    name: str
    along: float
    across: Triple


def crossover(
    points: Sequence[Point], title: str, where: Sequence[str], *, along: str, across: str, at: float | None = None
) -> tuple[Any, Any]:
    """``points`` on two log axes, a tile a kind; with a dashed grey line at ``at`` along and a solid one at 1 across.

    ``along`` and ``across`` are the axes' titles; ``across`` is in times (×). Raises :class:`FigureError` without
    points.
    """
    if not points:
        raise FigureError("crossover: no points; the records hold none of what was asked for")
    kinds = list(dict.fromkeys(point.kind for point in points))
    horizontal = log_axis([point.along for point in points] + ([] if at is None else [at]), along, pad=1.4)
    vertical = log_axis([*extent(point.across for point in points), 1.0], across, pad=1.2)
    ends = [significant(end) for axis in (horizontal, vertical) for end in (axis.low, axis.high)]
    data: list[dict[str, Any]] = []
    for number, kind in enumerate(kinds):
        data.append(rule_trace(ends[:2], [1, 1], "solid", "") | tile(number))
        if at is not None:
            data.append(rule_trace([significant(at)] * 2, ends[2:], "dash", "") | tile(number))
        for origin, colour in zip(SHAPES, PALETTE, strict=False):
            own = [point for point in points if (point.kind, point.origin) == (kind, origin)]
            said = [f"{kind}, {point.name}<br>{formats.interval(*point.across)}" for point in own]
            at_x, triples = [significant(point.along) for point in own], [point.across for point in own]
            if own:
                look = Style(colour, SHAPES[origin][0], number)
                shown = points_trace(
                    look, triples, at_x, said, along="y", size=8, said=_times, name=f"{kind} ({origin})"
                )
                data.append(shown | tile(number))
    table = tables.frame(
        [
            {"kind": p.kind, "call": p.name, along: formats.number(p.along), across: formats.interval(*p.across)}
            for p in points
        ]
    )
    origins = {point.origin for point in points}
    shapes = [(marks.swatch("currentColor", symbol=SHAPES[o][0]), o) for o in SHAPES if o in origins]
    key = shapes if len(origins) > 1 else ()
    layout = tiles(kinds, horizontal, vertical)
    return plotted(data, layout, title, where, table, ["kind", "call", across], key), table


def _times(value: float) -> str:
    return f"{formats.spoken(value)}×"


def balances(found: Sequence[tuple[str, str, float]], title: str) -> tuple[Any, Any]:
    """FLOP per byte at which memory and arithmetic take equally long: a row a precision, a panel a machine.

    ``found`` lists machine, dtype/math and balance (FLOP/B). Raises :class:`FigureError` without any.
    """
    if not found:
        raise FigureError("balances: no machine has both ceilings; measure the ceilings first")
    texts = {(machine, lane): f"{formats.number(value)} FLOP/B" for machine, lane, value in found}
    machines, lanes = list(dict.fromkeys(name for name, _, _ in found)), list(dict.fromkeys(one for _, one, _ in found))
    look = Style(BLUE, SHAPES["peer"][0], 0)
    cells = [
        Cell(lane, machine, look, (value, math.nan, math.nan), f"{machine}, {lane}", texts[machine, lane])
        for machine, lane, value in found
    ]
    axis = log_axis([value for _, _, value in found], "FLOP per byte", pad=1.6)
    table = tables.frame(
        [{"precision": lane} | {name: texts.get((name, lane), formats.MISSING) for name in machines} for lane in lanes]
    )
    under = ["left of a marker memory binds", "right of it arithmetic"]
    return draw([Block("", cells, axis)], title, under, table, ["precision", *machines]), table


def roofline(rows: Sequence[Row], ceilings: dict[tuple[str, str, str], float], *, clock: str) -> tuple[Any, Any]:
    """Attained FLOP/s over FLOP per compulsory byte, under one machine's measured ceilings: a tile a variant.

    ``ceilings`` is :func:`hypatia_lab.results.ceilings` of that machine's records, of which those by ``clock`` and of
    the rows' arithmetic are drawn. A/A controls are left out. Raises :class:`FigureError` when no row has a time,
    when rows hold several machines, or when copy bandwidth or every matrix rate is missing.
    """
    rows = ordered([r for r in singles(rows) if r.flops > 0 and r.traffic > 0])
    kept = measured(rows, "roofline", "median_us", "a time")
    if len(machines := list(dict.fromkeys(r.machine for r in kept))) > 1:
        raise FigureError(f"roofline: ceilings belong to one machine, the rows hold {', '.join(machines)}")
    bandwidth = ceilings.get(("copy", "", clock))
    used = dict.fromkeys(results.arithmetic(r.dtype, r.math, ceilings) for r in kept)
    roofs = {p: ceilings["matmul", p, clock] for p in used if ("matmul", p, clock) in ceilings}
    if bandwidth is None or not roofs:
        lacking = "copy bandwidth" if bandwidth is None else f"a matrix rate for {', '.join(used)}"
        raise FigureError(f"roofline: {lacking} by the {clock} clock is missing from the ceilings of {machines[0]}")
    intensity = [r.flops / r.traffic for r in kept]
    ridge = max(roofs.values()) / bandwidth
    left, right = min(*intensity, ridge) / 2.5, max(*intensity, ridge) * 4
    up = rate_axis([2 * max(roofs.values()), *extent(r.rate().triple for r in kept)], "FLOP/s")
    limits = [("copy", formats.scaled(bandwidth, "B/s"), left, ridge, left * bandwidth, ridge * bandwidth)]
    for precision, rate in sorted(roofs.items(), key=lambda roof: roof[1]):
        limits.append((precision, formats.scaled(rate, "FLOP/s"), rate / bandwidth, right, rate, rate))
    data: list[dict[str, Any]] = []
    drawn = sorted(kept, key=lambda r: style(r.variant, r.origin).place)
    names = {r.variant: named(r) for r in drawn}
    for number, (variant, name) in enumerate(names.items()):
        for what, said, *ends in limits:
            x0, x1, y0, y1 = map(significant, ends)
            data.append(rule_trace([x0, x1], [y0, y1], "solid", f"limit: {what} {said}") | tile(number))
        own = [r for r in kept if r.variant == variant]
        across = [significant(r.flops / r.traffic) for r in own]
        hover = [f"{name}<br>{r.text}<br>{tables.rate_text(r)}" for r in own]
        look, rates = style(variant, own[0].origin), [r.rate().triple for r in own]
        shown = points_trace(look, rates, across, hover, along="y", size=8, said=up.text, name=name)
        data.append(shown | tile(number))
    table = tables.results_table(kept)
    table.insert(5, "intensity, FLOP/B", [formats.number(x) for x in intensity])
    table.insert(6, "rate", [tables.rate_text(r) for r in kept])
    lines = ", ".join(f"{what} {said}" for what, said, *_ in limits)
    under = [*split_fields(rows)[1], f"grey lines: measured ceilings, from below {lines}", launch_note(kept)]
    layout = tiles(list(names.values()), log_axis([left, right], "FLOP per byte", pad=1.0), up)
    said = ["workload", "variant", "rate", "of limit"]
    return plotted(data, layout, "Rates under the measured ceilings", under, table, said), table


def sweep(rows: Sequence[Row]) -> tuple[Any, Any]:
    """The sweep behind the ceilings of one machine and clock: matrix rate and copy bandwidth over size, on log axes.

    ``rows`` of the ``ceilings`` experiment; a ceiling is the best process, as in :func:`hypatia_lab.results.ceilings`.
    A row a size, smallest first, a panel a kind of arithmetic. A copy's size is the bytes that it moves.
    Raises :class:`FigureError` when nothing was timed or when rows hold several machines or clocks.
    """
    rows = ordered([r for r in singles(rows) if r.operation in ("matmul", "copy")])
    kept = measured(rows, "sweep", "median_us", "a time of a matmul or copy")
    if len(places := {f"{r.machine} by {r.clock}": r for r in kept}) > 1:
        raise FigureError(f"sweep: one machine and clock at a time, the rows hold {', '.join(places)}")
    # Of several at one size the quickest counts, as in the ceiling.
    quickest = {r.workload: r for r in sorted(kept, key=lambda r: -r.median_us)}
    kept = [r for r in kept if r is quickest[r.workload]]
    blocks = []
    for operation, (work, unit, size, name) in _SWEPT.items():
        own = sorted((r for r in kept if r.operation == operation), key=size)
        cells = []
        for kind in sorted(set(map(_precision, own)), key=lambda k: [*PRECISIONS, k].index(k)):
            curve = [r for r in own if _precision(r) == kind]
            # A ceiling is what the machine reached at its best: here the least time counts, as in results.ceilings.
            top = max(getattr(r, work) * 1e6 / us for r in curve for us in r.medians_us if us is not None)
            panel = f"{kind}, ceiling {formats.scaled(top, unit)}"
            cells += [
                Cell(
                    name(r),
                    panel,
                    Style(BLUE, "circle", 0),
                    r.rate(work).triple,
                    f"{kind}, {where(r, 'shape')}",
                    tables.rate_text(r, work, unit),
                    limit=top,
                )
                for r in curve
            ]
        if cells:
            axis = rate_axis([*extent(cell.triple for cell in cells), *(cell.limit for cell in cells)], unit)
            blocks.append(Block(operation, cells, axis))
    table = tables.results_table(kept).drop(columns=["machine", "clock", "ratio", "of limit"])
    table.insert(4, "rate", [tables.rate_text(r, *_SWEPT[r.operation][:2]) for r in kept])
    under = [kept[0].machine, f"{kept[0].clock} clock", "grey: ceiling, best process"]
    return draw(blocks, "Rate over size", under, table, ["workload", "rate"]), table


def _extents(shape: str) -> str:
    """``8192×4096²``: the extents of a product, equal neighbours once."""
    runs = [(extent, len(list(run))) for extent, run in itertools.groupby(shape.split("x"))]
    return "×".join(extent + ("" if count == 1 else "²" if count == 2 else "³") for extent, count in runs)


def _precision(row: Row) -> str:
    """What a row of the sweep is of: the arithmetic of a product, or a copy."""
    return f"{row.dtype}/{row.math}" if row.operation == "matmul" else row.operation
