"""The figures. Each function takes tidy rows and returns ``(figure, table)``.

Rows come from :func:`hypatia_lab.results.rows`, filtered by the caller. The figure is a plotly Figure whose
``layout.meta["alt"]`` says in words what is to be seen; the table is a DataFrame of the numbers behind it. Every
measured point carries its 95% interval, a physical limit is a solid grey line, a seed's claim a dashed one, and a
log axis says so in its title. Rows without what a figure needs raise :class:`FigureError`. Equal rows give equal
JSON: numbers are rounded, and nothing is drawn by lot or by date.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, results, tables
from hypatia_lab.figures.language import (
    CLOCKS,
    FIELDS,
    GREY,
    RED,
    FigureError,
    Style,
    assemble,
    bases,
    contenders,
    equivalence_band,
    extent,
    heading,
    launch_note,
    log_axis,
    measured,
    named,
    near_one,
    ordered,
    plain,
    points_trace,
    ratio_axis,
    rule_trace,
    several,
    singles,
    spanning,
    split_fields,
    style,
    time_axis,
    times_text,
    where,
    with_legend,
)
from hypatia_lab.figures.panels import Block, Cell, draw, split
from hypatia_lab.formats import absent, listing, significant
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record
from hypatia_lab.results import Row


def forest(
    rows: Sequence[Row],
    intervals: Sequence[Interval],
    said: Sequence[str],
    *,
    limits: Sequence[tuple[float, str]] = (),
    **block: Any,
) -> list[Block]:
    """A row a variant, a panel a shape (or the first field that tells ``rows`` apart), a block for all other fields.

    Where most have nothing beside them, the row names what is computed too, and there is one panel.
    ``limits``: of each row the place of its physical limit, and its text; ``block`` is what :class:`Block` takes.
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
        name, key, heading = named(r), f"{r.variant} ({r.origin})", several(r, heads)
        hover = "<br>".join(filter(None, (name, key, several(r, fields), text)))
        if alone:
            kind = r.dtype if r.math == "ieee" else where(r, "math")
            own = ", ".join(kind if f == "math" else where(r, f) for f in fields if f not in heads)
            name, heading = (f"{own}: {name}", heading) if len(variants) > 1 else (own, heading or name)
        look, panel = style(r.variant, r.origin), several(r, column)
        cell = Cell(name, panel, look, found.triple, hover, key, r.status, limit, f"limit: {limited}")
        groups.setdefault(heading, []).append(cell)
    return [one for heading, cells in groups.items() for one in split(heading, cells, **block)]


def _told(rows: Sequence[Row], texts: Sequence[str]) -> str:
    """What alt text says of ``rows`` that have a ratio."""
    fields, _ = split_fields(rows, always=["shape"])
    pairs = zip(rows, texts, strict=True)
    return "; ".join(f"{named(r)} at {several(r, fields)}: {text}" for r, text in pairs if not absent(r.ratio))


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
    _, common = split_fields(rows)
    base = bases(kept)
    goal = [] if claimed is None else [significant(claimed)]
    claim = [f"claimed: {times_text(one)}" for one in goal]
    blocks = forest(
        rows,
        slower,
        [f"{s} the time of {r.baseline}" for r, s in zip(rows, said, strict=True)],
        axis=log_axis([*extent(found.triple for found in slower), 1.0, *goal], f"time / time of {base}, ×", plain),
        lines=[(1.0, "solid", ""), *((one, "dash", claim[0]) for one in goal)],
    )
    under = [*common, launch_note(rows), "bars: 95% intervals", *(f"dashed: {one}" for one in claim)]
    alt = f"Time against {base} on a log axis ({', '.join(common)}). {_told(rows, said)}."
    alt += f" A dashed line marks what is {claim[0].replace(':', '')}." if claim else ""
    table = tables.results_table(rows)
    table.insert(6, f"time / {listing([r.baseline for r in kept])}", said)
    return draw(blocks, heading(title or f"Time against {base}", under), alt), table


def speedups(rows: Sequence[Row], *, title: str = "", together: bool = False) -> tuple[Any, Any]:
    """Baseline time / variant time with 95% intervals against the ±2% band of equivalence, a panel a shape.

    ``together``: one panel in place of many, a row a shape and a marker a variant. The axis is linear, or logarithmic
    where the ratios span more than 4×. Baselines and A/A controls are left out.
    Raises :class:`FigureError` when no row has a ratio.
    """
    rows = ordered(contenders(rows))
    kept = measured(rows, "speedups", "ratio", "a ratio against its baseline")
    said = [f"{formats.told(r.speed)}, {r.reading}" for r in rows]
    _, common = split_fields(rows)
    base, counts = bases(kept), tables.counted([r.reading for r in kept])
    axis = ratio_axis(kept, f"speed against {base}, ×")
    drawn: dict[str, Any] = {"axis": axis, "lines": [(1.0, "solid", "")], "band": True}
    blocks = [_marked(rows, said, **drawn)] if together else forest(rows, [r.speed for r in rows], said, **drawn)
    bare = "no marker: no time measured" if together and len(kept) < len(rows) else ""
    under = [
        *common,
        launch_note(rows),
        "bars: 95% intervals",
        "right is faster",
        "grey: equal within ±2%",
        bare,
        counts,
    ]
    table = tables.results_table(rows)
    table.insert(8, "reads", [r.reading for r in rows])
    alt = f"Speed against {base} ({', '.join(common)}), with the ±2% band shaded: {counts}. {_told(rows, said)}."
    return draw(blocks, heading(title or f"Speed against {base}", under), alt), table


def _marked(rows: Sequence[Row], said: Sequence[str], **block: Any) -> Block:
    """One panel of the speeds of ``rows``: a row for all fields that tell them apart, a marker a variant."""
    fields, _ = split_fields(rows, always=["shape"])
    cells = [
        Cell(
            place := several(r, fields), "", style(r.variant, r.origin), r.speed.triple, f"{place}<br>{text}", named(r)
        )
        for r, text in zip(rows, said, strict=True)
        if not absent(r.ratio)
    ]
    return Block("", cells, legend=True, **block)


def times_against_limit(rows: Sequence[Row], *, title: str = "") -> tuple[Any, Any]:
    """Time of a call, a panel a shape on a log axis of its own, with the machine's own limit as a grey line.

    All panels span the same factor, so that a distance means the same in each. The limit is the rows' ``limit_us``
    (what the measured ceilings allow); where no ceiling was measured there is no line. A/A controls are left out.
    Raises :class:`FigureError` when no row has a time.
    """
    rows = ordered(singles(rows))
    kept = measured(rows, "times_against_limit", "median_us", "a time")
    fields, common = split_fields(rows, always=["shape"])
    quickest: dict[str, Row] = {}
    limited = [r for r in kept if not absent(r.limit_us)]
    for r in limited:
        group = several(r, fields)
        if not r.time.doubt and (group not in quickest or r.median_us < quickest[group].median_us):
            quickest[group] = r
    alt = f"Time of a call on a log axis ({', '.join(common)}). "
    clear = [r.median_us for r in kept if not r.time.doubt]
    alt += "; ".join(
        f"{group}: the fastest is {named(r)} with {formats.duration(r.median_us)}, "
        f"the limit {formats.duration(r.limit_us)}"
        for group, r in quickest.items()
    )
    if limited and not quickest:
        alt += "How near it comes to the limit is too noisy to say"
    elif not limited:
        alt += f"It takes {spanning(clear, formats.duration)}; " if clear else ""
        alt += "no ceiling was measured"
    return _timed(rows, title or "Time of a call", alt + ".", limit=bool(limited)), tables.results_table(rows)


def _limits(rows: Sequence[Row]) -> list[tuple[float, str]]:
    return [(r.limit_us, formats.duration(r.limit_us)) for r in rows]


def _timed(rows: Sequence[Row], title: str, alt: str, *, limit: bool) -> Any:
    """The figure of times: each panel on its own ends of a log axis, all with the same span."""

    def reached(cells: Sequence[Cell]) -> list[float]:
        return [*extent(cell.triple for cell in cells), *(cell.limit for cell in cells if not absent(cell.limit))]

    def axis(cells: Sequence[Cell]) -> dict[str, Any]:
        ends = reached(cells) or everything
        middle = math.sqrt(min(ends) * max(ends))
        return time_axis([middle / math.sqrt(span), middle * math.sqrt(span)])

    said = [formats.told(r.time, "µs") for r in rows]
    blocks = forest(rows, [r.time for r in rows], said, limits=_limits(rows) if limit else (), axis=axis)
    panels = [own for block in blocks for cells in block.panels.values() if (own := reached(cells))]
    everything = [us for own in panels for us in own]
    span = max(max(own) / min(own) for own in panels)
    _, common = split_fields(rows)
    grey = "grey line: limit by measured ceilings" if limit else ""
    return draw(blocks, heading(title, [*common, launch_note(rows), "bars: 95% intervals", grey]), alt)


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
    base = bases(rated)
    seen = extent(r.time.triple for r in kept) + [r.limit_us for r in kept if not absent(r.limit_us)]
    said = [formats.told(r.time, "µs") for r in kept]
    blocks = forest(kept, [r.time for r in kept], said, limits=_limits(kept), axis=time_axis(seen))
    readings = [f"{formats.told(r.speed)}, {r.reading}" for r in rated]
    axis = ratio_axis(rated, f"speed against {base}, ×")
    more: dict[str, Any] = {"lines": [(1.0, "solid", "")], "band": True, "axis": axis}
    blocks += forest(rated, [r.speed for r in rated], readings, **more)
    missing = [c for c in CLOCKS if c not in clocks and any(r.clock == c for r in rows)]
    _, common = split_fields([r for r in rows if r.clock == clocks[0]], always=["clock"])
    limit = ", grey line: limit" if any(not absent(r.limit_us) for r in kept) else ""
    under = [*common, "bars: 95% intervals", f"time: left is faster{limit}", "speed: right is faster, grey: within ±2%"]
    head = heading(
        title or "Time and speed by every clock",
        [*under, launch_note(kept), f"not timed: {', '.join(missing)}" if missing else ""],
    )
    points = "; ".join(
        f"{named(r)} by {r.clock}: {formats.time(r.time)}, {formats.told(r.speed)} ({r.reading})" for r in rated
    )
    table = tables.results_table(rows)
    table.insert(8, "reads", [r.reading for r in rows])
    return draw(blocks, head, f"Time and speed by every clock ({', '.join(common)}). {points}."), table


def agreement(records: Sequence[Record], machine: str, *, title: str = "") -> tuple[Any, Any]:
    """The A/A control of ``machine``: the ratio interval of each pair of identical variants, sorted.

    Pairs whose interval excludes 1 are false differences: they are drawn as crosses, and the title counts them
    (by :func:`hypatia_lab.results.agreement`) against the 5% that a 95% interval leaves.
    Raises :class:`FigureError` when that machine has no pair with an interval.
    """
    summary = next((s for s in results.agreement(records) if s["machine"] == machine), None)
    if summary is None:
        known = ", ".join(dict.fromkeys(r.machine for r in records)) or "none"
        raise FigureError(f"agreement: no A/A pair with an interval for machine {machine!r}; records of: {known}")
    clock = results.primary_clock(next(r.run["device"] for r in records if r.machine == machine))
    again = [r for r in results.rows(records) if r.machine == machine and r.is_twin]
    pairs = [r for r in again if r.clock == clock and not absent(r.ratio_low)]
    pairs.sort(key=lambda r: (r.ratio, r.workload))
    holds = [r.ratio_low <= 1 <= r.ratio_high for r in pairs]
    data = [rule_trace([1, 1], [-1, len(pairs)], "solid", "", showlegend=False)]
    for wanted, look, name in (
        (True, Style(GREY, "circle", 0), "holds 1"),
        (False, Style(RED, "x", 1), "excludes 1: a false difference"),
    ):
        own = [i for i, found in enumerate(holds) if found == wanted]
        ratios = [pairs[i].speed.triple for i in own]
        said = [f"{pairs[i].text}<br>{formats.told(pairs[i].speed)}" for i in own]
        data.append(points_trace(look, ratios, own, said, size=6 if wanted else 7, name=name, showlegend=True))
    rate, p = formats.number(100 * summary["rate"]), formats.number(summary["p"])
    counts = f"{summary['differences']} of {summary['pairs']} A/A pairs differ falsely: {rate}%, expected 5% (p = {p})"
    half, most = (formats.margin(summary[k]) for k in ("detectable", "detectable_90"))
    widths = [f"half of the intervals within {half}", f"nine in ten within {most}"]
    head = heading(
        title or "The same code timed twice",
        [counts, machine, f"{clock} clock", *widths, "bars: 95% intervals", "grey: ±2%"],
    )
    head["margin"] |= {"l": 24}
    layout = head | {
        "height": min(max(160, 8 * len(pairs)), 380),  # hundreds of points make a curve
        "xaxis": ratio_axis(pairs, "time / time of the same code again, ×"),
        "yaxis": {"range": [-1, len(pairs)], "showticklabels": False, "showgrid": False},
        "shapes": [equivalence_band()],
    }
    alt = f"{counts} on {machine}. Ratios run from {spanning([r.ratio for r in pairs], near_one)}; {listing(widths)}."
    table = tables.results_table(pairs).drop(columns=["machine", "origin", "error", "of limit"])
    table.insert(5, "holds 1", ["yes" if found else "no" for found in holds])
    return assemble(data, with_legend(layout, [trace["name"] for trace in data[1:]]), alt), table
