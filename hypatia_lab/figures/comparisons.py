"""The figures. Each function takes tidy rows and returns ``(figure, table)``.

Rows come from :func:`hypatia_lab.results.rows`, filtered by the caller. The figure is a
:class:`hypatia_lab.figures.Figure`, whose ``alt`` says in words what is to be seen; the table is a DataFrame of
the numbers behind it. Every measured point carries its 95% interval, a physical limit is a solid grey line, a seed's
claim a dashed one, and a log axis says so in its title. Rows without what a figure needs raise :class:`FigureError`.
Equal rows give equal JSON: numbers are rounded, and nothing is drawn by lot or by date.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import formats, results, tables
from hypatia_lab.figures.axes import Axis, extent, log_axis, ratio_axis, time_axis
from hypatia_lab.figures.drawn_rows import contenders, measured, ordered, singles
from hypatia_lab.figures.language import GREY, RED, FigureError, Style, style
from hypatia_lab.figures.mark_rows import Block, Cell, draw, split
from hypatia_lab.figures.plots import equivalence_band, plotted, points_trace, rule_trace
from hypatia_lab.figures.wording import CLOCKS, FIELDS, bases, launch_note, named, several, split_fields, where
from hypatia_lab.formats import absent, listing, significant
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record
from hypatia_lab.results import Row

LIMIT = "grey line: limit by measured ceilings"


def forest(
    rows: Sequence[Row],
    intervals: Sequence[Interval],
    said: Sequence[str],
    *,
    names: Mapping[str, str] | None = None,
    limits: Sequence[tuple[float, str]] = (),
    **block: Any,
) -> list[Block]:
    """A row a variant, a panel a shape (or the first field that tells ``rows`` apart), a block for all other fields.

    Where most have nothing beside them, the row names what is computed too, and there is one panel.
    ``names``: variant → what it is called here, where that is not its label. ``limits``: of each row the place of its
    physical limit, and its text; ``block`` is what :class:`Block` takes.
    """
    fields = [f for f in FIELDS if len({where(r, f) for r in rows}) > 1]
    column = ["shape"] if "shape" in fields else fields[:1]
    heads = [f for f in fields if f not in column]
    variants = list(dict.fromkeys(map(named, rows)))
    if alone := len(rows) < 1.5 * len({several(r, fields) for r in rows}) and len(rows) > 4:
        heads, column = [f for f in fields if f == "operation"], []
    groups: dict[str, list[Cell]] = {}
    bare = [(math.nan, "")] * len(rows)
    for r, found, text, (limit, limited) in zip(rows, intervals, said, limits or bare, strict=True):
        name, key = (names or {}).get(r.variant) or named(r), f"{r.variant} ({r.origin})"
        heading = several(r, heads)
        near = "" if absent(limit) else f"limit: {limited}"
        hover = "<br>".join(filter(None, (name, key, several(r, fields), text, near)))
        if alone:
            kind = r.dtype if r.math == "ieee" else where(r, "math")
            own = ", ".join(kind if f == "math" else where(r, f) for f in fields if f not in heads)
            name, heading = (f"{own}: {name}", heading) if len(variants) > 1 else (own, heading or name)
        look, panel = style(r.variant, r.origin), several(r, column)
        cell = Cell(name, panel, look, found.triple, hover, text, key, r.status, limit)
        groups.setdefault(heading, []).append(cell)
    return [one for heading, cells in groups.items() for one in split(heading, cells, **block)]


def slowdowns(rows: Sequence[Row], *, claimed: float | None = None, title: str = "") -> tuple[Any, Any]:
    """How many times longer than its baseline each variant takes, a panel a shape, on a log axis, with 95% intervals.

    Drawn is variant time / baseline time, the inverse of a row's ``ratio``; ``claimed`` (×) is a seed's figure, drawn
    as a dashed line unless the rows include the lab's launch path, by which no seed is judged. Baselines and A/A
    controls are left out; a cell that was not measured shows its status.
    Raises :class:`FigureError` when no row has a ratio.
    """
    rows = ordered(contenders(rows))
    kept = measured(rows, "slowdowns", "ratio", "a ratio against its baseline")
    claimed = None if any(r.launch_path for r in kept) else claimed
    slower = [r.speed.inverse() for r in rows]
    said = [formats.told(found) for found in slower]
    base, goal = bases(kept), [] if claimed is None else [significant(claimed)]
    blocks = forest(
        rows,
        slower,
        said,
        axis=log_axis([*extent(found.triple for found in slower), 1.0, *goal], f"time / time of {base}, ×"),
        lines=[(1.0, "solid"), *((one, "dash") for one in goal)],
    )
    under = [*split_fields(rows)[1], launch_note(rows), *(f"dashed: claimed: {formats.number(one)}×" for one in goal)]
    table = tables.results_table(rows)
    table.insert(6, column := f"time / {listing([r.baseline for r in kept])}", said)
    return draw(blocks, title or f"Time against {base}", under, table, [*SAID, column]), table


SAID = ("workload", "clock", "variant")
"""Columns of a table of results by which alt text tells its rows apart."""


def speeds(rows: Sequence[Row], against: str) -> dict[str, Any]:
    """What a :class:`Block` of the speeds of ``rows`` takes: their axis, a line at 1 and the ±2% band about it."""
    return {"axis": ratio_axis(rows, f"speed against {against}, ×"), "lines": [(1.0, "solid")], "band": True}


def speedups(rows: Sequence[Row], *, title: str = "", together: bool = False) -> tuple[Any, Any]:
    """Baseline time / variant time with 95% intervals against the ±2% band of equivalence, a panel a shape.

    ``together``: a row a shape and a panel a variant. The axis is linear, or logarithmic where the ratios span more
    than 4×. Baselines and A/A controls are left out. Raises :class:`FigureError` when no row has a ratio.
    """
    rows = ordered(contenders(rows))
    kept = measured(rows, "speedups", "ratio", "a ratio against its baseline")
    said = [f"{formats.told(r.speed)}, {r.reading}" for r in rows]
    base = bases(kept)
    blocks = forest(rows, [r.speed for r in rows], said, **speeds(kept, base))
    if together:
        fields, _ = split_fields(rows, always=["shape"])
        turned = [
            Cell(several(r, fields), named(r), style(r.variant, r.origin), r.speed.triple, r.text, text, r.variant)
            for r, text in zip(rows, said, strict=True)
            if not absent(r.ratio)
        ]
        blocks = [Block("", turned, **speeds(kept, base))]
    under = [*split_fields(rows)[1], launch_note(rows), "right is faster", "grey: equal within ±2%"]
    under.append(tables.counted([r.reading for r in kept]))
    table = tables.results_table(rows)
    table.insert(8, "reads", [r.reading for r in rows])
    return draw(blocks, title or f"Speed against {base}", under, table, [*SAID, "ratio", "reads"]), table


def times_against_limit(rows: Sequence[Row], *, title: str = "") -> tuple[Any, Any]:
    """Time of a call, a panel a shape on a log axis of its own, with the machine's own limit as a grey line.

    All panels span the same factor, so that a distance means the same in each. The limit is the rows' ``limit_us``
    (what the measured ceilings allow); where no ceiling was measured there is no line. A/A controls are left out.
    Raises :class:`FigureError` when no row has a time.
    """
    rows = ordered(singles(rows))
    kept = measured(rows, "times_against_limit", "median_us", "a time")
    limited = any(not absent(r.limit_us) for r in kept)

    def reached(cells: Sequence[Cell]) -> list[float]:
        return [*extent(cell.triple for cell in cells), *(cell.limit for cell in cells if not absent(cell.limit))]

    def axis(cells: Sequence[Cell]) -> Axis:
        ends = reached(cells) or everything
        middle = math.sqrt(min(ends) * max(ends))
        return time_axis([middle / math.sqrt(span), middle * math.sqrt(span)])

    said = [formats.told(r.time, "µs") for r in rows]
    blocks = forest(rows, [r.time for r in rows], said, limits=_limits(rows) if limited else (), axis=axis)
    panels = [own for block in blocks for cells in block.panels.values() if (own := reached(cells))]
    everything = [us for own in panels for us in own]
    span = max(max(own) / min(own) for own in panels)
    table = tables.results_table(rows)
    under = [*split_fields(rows)[1], launch_note(rows), LIMIT if limited else "no ceiling was measured"]
    # Ends are known only now that all panels are: the axes are asked for when the figure is drawn.
    return draw(blocks, title or "Time of a call", under, table, [*SAID, "time", "of limit"]), table


def _limits(rows: Sequence[Row]) -> list[tuple[float, str]]:
    return [(r.limit_us, formats.duration(r.limit_us)) for r in rows]


def ladder(rows: Sequence[Row], *, title: str = "") -> tuple[Any, Any]:
    """One workload by every clock, a panel a clock: time above (log axis), speed against the baseline below.

    Rows of one machine and one workload; clocks without a time are named under the title. The baseline shows in
    the upper panels only, A/A controls in neither. Raises :class:`FigureError` when no variant was timed beside
    its baseline, or when the rows hold several machines or workloads.
    """
    rows = ordered([r for r in singles(rows) if r.clock != "none"])
    kept = measured(rows, "ladder", "median_us", "a time")
    rated = measured(contenders(rows), "ladder", "ratio", "a ratio against its baseline")
    if len(places := {f"{r.machine} {r.workload}": r for r in kept}) > 1:
        raise FigureError(f"ladder: one machine and workload at a time, the rows hold {', '.join(places)}")
    clocks = [c for c in CLOCKS if any(r.clock == c for r in kept)]
    kept, rated = (sorted(own, key=lambda r: clocks.index(r.clock)) for own in (kept, rated))
    seen = extent(r.time.triple for r in kept) + [r.limit_us for r in kept if not absent(r.limit_us)]
    said = [formats.told(r.time, "µs") for r in kept]
    blocks = forest(kept, [r.time for r in kept], said, limits=_limits(kept), axis=time_axis(seen))
    readings = [f"{formats.told(r.speed)}, {r.reading}" for r in rated]
    blocks += forest(rated, [r.speed for r in rated], readings, **speeds(rated, bases(rated)))
    missing = [c for c in CLOCKS if c not in clocks and any(r.clock == c for r in rows)]
    _, common = split_fields([r for r in rows if r.clock == clocks[0]], always=["clock"])
    under = [*common, LIMIT if any(not absent(r.limit_us) for r in kept) else "", "shade: equal within ±2%"]
    under += [launch_note(kept), f"not timed: {', '.join(missing)}" if missing else ""]
    table = tables.results_table(rows)
    table.insert(8, "reads", [r.reading for r in rows])
    return draw(blocks, title or "Time and speed by every clock", under, table, [*SAID, "time", "ratio"]), table


def agreement(records: Sequence[Record], machine: str, *, title: str = "") -> tuple[Any, Any]:
    """The A/A control of ``machine``: the ratio interval of each pair of identical variants, sorted.

    Pairs whose interval excludes 1 are false differences: they are drawn as crosses, and the line under the title
    counts them (by :func:`hypatia_lab.results.control`) against the 5% that a 95% interval leaves.
    Raises :class:`FigureError` when that machine has no pair with an interval.
    """
    own = next((one for one in results.measured(records) if one.machine == machine), None)
    if own is None or (summary := results.control(own)) is None:
        known = ", ".join(dict.fromkeys(r.machine for r in records)) or "none"
        raise FigureError(f"agreement: no A/A pair with an interval for machine {machine!r}; records of: {known}")
    pairs = [r for r in own.rows if r.is_twin and r.clock == own.clock and not absent(r.ratio_low)]
    pairs.sort(key=lambda r: (r.ratio, r.workload))
    holds = [r.ratio_low <= 1 <= r.ratio_high for r in pairs]
    looks = {"holds 1": Style(GREY, "circle", 0), "excludes 1: a false difference": Style(RED, "x", 1)}
    data = [rule_trace([1, 1], [-1, len(pairs)], "solid", "")]
    for wanted, (name, look) in zip((True, False), looks.items(), strict=True):
        these = [i for i, found in enumerate(holds) if found == wanted]
        said = [f"{pairs[i].text}<br>{formats.told(pairs[i].speed)}" for i in these]
        data.append(points_trace(look, [pairs[i].speed.triple for i in these], these, said, size=6, name=name))
    rate, p = formats.number(100 * summary["rate"]), formats.number(summary["p"])
    half, most = (formats.margin(summary[k]) for k in ("detectable", "detectable_90"))
    under = [
        f"{summary['differences']} of {summary['pairs']} A/A pairs differ falsely: {rate}%, expected 5% (p = {p})",
        machine,
        f"{own.clock} clock",
        f"half of the intervals within {half}",
        f"nine in ten within {most}",
        "grey: ±2%",
    ]
    layout = {
        "height": min(max(160, 8 * len(pairs)), 380),  # hundreds of points make a curve
        "xaxis": ratio_axis(pairs, "time / time of the same code again, ×").plotly(),
        "yaxis": {"range": [-1, len(pairs)], "showticklabels": False, "showgrid": False},
        "shapes": [equivalence_band()],
    }
    table = tables.results_table(pairs).drop(columns=["machine", "origin", "error", "of limit"])
    table.insert(5, "holds 1", ["yes" if found else "no" for found in holds])
    said = ["workload", "ratio", "holds 1"]
    title, key = title or "The same code timed twice", [(look.swatch, name) for name, look in looks.items()]
    return plotted(data, layout, title, under, table, said, key), table
