"""The figures. Each function takes tidy rows and returns ``(figure, table)``.

Rows come from :func:`hypatia_lab.results.rows`, filtered by the caller. The figure is a plotly Figure whose
``layout.meta["alt"]`` says in words what is to be seen; the table is a DataFrame of the numbers behind it. Every
measured point carries its 95% interval, a physical limit is a solid grey line, a seed's claim a dashed one, and a
log axis says so in its title. Rows without what a figure needs raise :class:`FigureError`. Equal rows give equal
JSON: numbers are rounded, and nothing is drawn by lot or by date.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, results, tables
from hypatia_lab.figures.language import (
    CLOCKS,
    GREY,
    LINE,
    RED,
    FigureError,
    Style,
    assemble,
    axis_place,
    contenders,
    equivalence_band,
    extent,
    heading,
    launch_note,
    legend_names,
    log_axis,
    measured,
    near_one,
    ordered,
    origins_key,
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
    unclear,
    with_legend,
    wrapped,
)
from hypatia_lab.formats import absent, listing, significant
from hypatia_lab.intervals import Triple
from hypatia_lab.records import Record
from hypatia_lab.results import Row


def _forest(
    rows: Sequence[Row],
    triples: Sequence[Triple],
    hover: Sequence[str],
    *,
    axis: dict[str, Any],
    head: dict[str, Any],
    fields: Sequence[str],
    alt: str,
    lines: Sequence[tuple[float, str, str]] = (),
    band: bool = False,
    limits: bool = False,
) -> Any:
    """A line a row, named by its variant at the left, gathered under a heading for each value of ``fields``.

    ``lines``: (x, dash, label) drawn across all of them. ``band``: the ±2% about 1, shaded. ``limits``: each row's
    physical limit as a line, one for neighbours that share it. A figure taller than a window has its axis at the top
    too.
    """
    left = 16 + 6.6 * max(len(part) for r in rows for part in wrapped(r.variant).split("<br>"))
    left = round(left)
    small = {"showarrow": False, "font": {"size": 12}}
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(several(row, fields), []).append(index)
    y, places, spans = 0.0, {}, []
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for name, members in groups.items():
        short = name if len(name) <= 40 else name.removesuffix("/ieee")  # a phone is no wider
        heading = {"text": f"<b>{short}</b>", "xref": "paper", "x": 0, "xanchor": "left", "xshift": 8 - left, "y": y}
        notes.append(small | heading)
        above = 1
        for index in members:
            names = len(wrapped(rows[index].variant).split("<br>"))
            y = round(y + (1.3 if above == names == 2 else 1), 1)  # two names of two lines need the room
            places[index], above = y, names
        span = [round(places[members[0]] - 0.5, 1), round(places[members[-1]] + 0.5, 1)]
        spans += [*span, None]
        for limit, run in itertools.groupby(members, key=lambda index: str(significant(rows[index].limit_us))):
            own = list(run)
            ends = [round(places[own[0]] - 0.5, 1), round(places[own[-1]] + 0.5, 1)]
            if limits and not absent(at := float(limit)):  # as text, one absent limit equals another
                data.append(rule_trace([at, at], ends, "solid", f"limit: {formats.duration(at)}<br>{name}"))
        y = round(y + 1.3, 1)
    bottom = round(y - 0.7, 1)
    for x, dash, label in lines:
        data.append(
            rule_trace([None if at is None else x for at in spans], spans, dash, label)
        )  # not across the headings
        if label:
            at, (low, high) = axis_place(axis, x), axis["range"]
            side = "right" if at > low + 0.75 * (high - low) else "center"
            place = {"x": at, "xanchor": side, "y": 1, "yref": "paper", "yanchor": "bottom"}
            notes.append(small | {"text": label} | place)
    for variant, name in legend_names(rows).items():
        own = [i for i, r in enumerate(rows) if r.variant == variant and not absent(triples[i][0])]
        if own:
            look, said = style(variant, rows[own[0]].origin), [f"{name}<br>{hover[i]}" for i in own]
            data.append(points_trace(look, [triples[i] for i in own], [places[i] for i in own], said, name=name))
    for index, row in enumerate(rows):
        if absent(triples[index][0]):  # what could not be measured is said on its line, not left out
            said = {"text": f"<i>{row.status.replace('_', ' ')}</i>", "xref": "paper", "x": 0.01, "xanchor": "left"}
            notes.append(small | said | {"y": places[index]})
    tall = 25 * (bottom + 0.7)
    if twice := tall > 700:
        middle = sum(axis["range"]) / 2
        middle = significant(10**middle if axis.get("type") == "log" else middle)
        # Plotly draws an axis only where there is a trace on it.
        data.append({**rule_trace([middle] * 2, [-0.7, -0.6], "solid", ""), "xaxis": "x2", "opacity": 0})
        notes = [note | {"yshift": 22} if note.get("yref") == "paper" else note for note in notes]
    head["margin"] |= {"l": left, "t": head["margin"]["t"] + (18 if any(label for _, _, label in lines) else 0)}
    head["margin"]["t"] += 22 * twice
    top = {"overlaying": "x", "matches": "x", "side": "top", "title": {"text": ""}}
    layout = head | {
        "height": round(head["margin"]["t"] + head["margin"]["b"] + tall),
        "xaxis": axis,
        **({"xaxis2": axis | top} if twice else {}),
        "yaxis": {
            "range": [bottom, -0.7],
            "tickvals": [places[i] for i in range(len(rows))],
            "ticktext": [wrapped(r.variant) for r in rows],
            "showgrid": False,
        },
        "annotations": notes,
        "shapes": [equivalence_band(yref="y", span=span) for span in zip(spans[::3], spans[1::3], strict=True)]
        if band
        else [],
    }
    return assemble(data, layout, alt)


def slowdowns(rows: Sequence[Row], *, claimed: float | None = None, title: str = "") -> tuple[Any, Any]:
    """How many times longer than its baseline each variant takes, per shape, on a log axis, with 95% intervals.

    Drawn is variant time / baseline time, the inverse of a row's ``ratio``; ``claimed`` (×) is a seed's figure, drawn
    as a dashed line unless the rows include the lab's launch path, by which no seed is judged. Baselines and A/A
    controls are left out; a cell that was not measured shows its status.
    Raises :class:`FigureError` when no row has a ratio.
    """
    rows = ordered(contenders(rows))
    kept = measured(rows, "slowdowns", "ratio", "a ratio against its baseline")
    claimed = None if any(r.launch_path for r in kept) else claimed
    slower = [r.speed.inverse() for r in rows]
    triples = [found.triple for found in slower]
    said = [formats.told(found) for found in slower]
    fields, common = split_fields(rows, always=["shape"])
    base = listing([r.baseline for r in kept])
    against = "" if claimed is None else times_text(claimed)
    seen = [*extent(triples), 1.0] + ([] if claimed is None else [claimed])
    lines = [(1.0, "solid", "")] + ([] if claimed is None else [(significant(claimed), "dash", f"claimed {against}")])
    clear = [found.value for found in slower if not found.doubt]
    spread = f"{spanning(clear, times_text)} the time of {base}" if clear else unclear(slower)
    names = list(dict.fromkeys(r.variant for r in kept))
    claim = f"{listing(names) if len(names) < 4 else 'Variants'}: {spread}" + (against and f"; claimed: {against}")
    points = "; ".join(
        f"{r.variant} at {several(r, fields)}: {s}" for r, s in zip(rows, said, strict=True) if not absent(r.ratio)
    )
    alt = f"Time against {base} on a log axis ({', '.join(common)}). {points}."
    table = tables.results_table(rows)
    table.insert(6, f"time / {base}", said)
    figure = _forest(
        rows,
        triples,
        [f"{several(r, fields)}<br>{s} the time of {r.baseline}" for r, s in zip(rows, said, strict=True)],
        axis=log_axis(seen, f"time / time of {base}, ×", plain),
        head=heading(title or claim, [*common, origins_key(rows), launch_note(rows), "bars: 95% intervals"]),
        fields=fields,
        alt=alt + (against and f" A dashed line marks the claimed {against}."),
        lines=lines,
    )
    return figure, table


def speedups(rows: Sequence[Row], *, title: str = "") -> tuple[Any, Any]:
    """Ratios near 1 (baseline time / variant time) with 95% intervals against the ±2% band of equivalence.

    A linear axis, one group of lines a shape (and dtype/math, clock or machine where they vary). Baselines and
    A/A controls are left out. Raises :class:`FigureError` when no row has a ratio.
    """
    rows = ordered(contenders(rows))
    kept = measured(rows, "speedups", "ratio", "a ratio against its baseline")
    said = [f"{formats.told(r.speed)}, {r.reading}" for r in rows]
    fields, common = split_fields(rows, always=["shape"])
    base = listing([r.baseline for r in kept])
    counts = tables.counted([r.reading for r in kept])
    points = "; ".join(
        f"{r.variant} at {several(r, fields)}: {s}" for r, s in zip(rows, said, strict=True) if not absent(r.ratio)
    )
    table = tables.results_table(rows)
    table.insert(8, "reads", [r.reading for r in rows])
    under = [*common, origins_key(rows), launch_note(rows), "bars: 95% intervals", "right is faster"]
    under.append("grey: equal within ±2%")
    figure = _forest(
        rows,
        [r.speed.triple for r in rows],
        [f"{several(r, fields)}<br>{s}" for r, s in zip(rows, said, strict=True)],
        axis=ratio_axis(kept, f"{'speed ' if len(base) < 12 else ''}against {base}, ×"),  # as wide as a phone
        head=heading(title or f"Against {base}: {counts}", under),
        fields=fields,
        alt=f"Speed against {base} ({', '.join(common)}), with the ±2% band shaded: {counts}. {points}.",
        lines=[(1.0, "solid", "")],
        band=True,
    )
    return figure, table


def times_against_limit(rows: Sequence[Row], *, title: str = "") -> tuple[Any, Any]:
    """Time of a call per variant and shape on a log axis, with the machine's own limit as a grey line.

    The bars are t-intervals over the processes' medians; the title tells no share of what is too noisy. The limit is
    the rows' ``limit_us`` (what the measured ceilings allow); where no ceiling was measured there is no line. A/A
    controls are left out.
    Raises :class:`FigureError` when no row has a time.
    """
    rows = ordered(singles(rows))
    kept = measured(rows, "times_against_limit", "median_us", "a time")
    fields, common = split_fields(rows, always=["shape"])
    triples = [r.time.triple for r in rows]
    fastest: dict[str, Row] = {}
    limited = [r for r in kept if not absent(r.limit_us)]
    for r in limited:
        group = several(r, fields)
        if not r.time.doubt and (group not in fastest or r.median_us < fastest[group].median_us):
            fastest[group] = r
    claim, alt = "Time of a call; no ceiling was measured", f"Time of a call on a log axis ({', '.join(common)}). "
    clear = [r.median_us for r in kept if not r.time.doubt]
    if fastest:
        shares = spanning([100 * r.limit_us / r.median_us for r in fastest.values()], lambda v: f"{formats.number(v)}%")
        claim = f"The fastest variant reaches {shares} of the limit"
        alt += "; ".join(
            f"{group}: the fastest is {r.variant} with {formats.duration(r.median_us)}, "
            f"the limit {formats.duration(r.limit_us)}"
            for group, r in fastest.items()
        )
    elif limited:
        claim = f"Time of a call: {unclear(r.time for r in limited)}"
        alt += "How near it comes to the limit is too noisy to say"
    else:
        alt += f"It takes {spanning(clear, formats.duration)}; " if clear else ""
        alt += "no ceiling was measured"
    seen = [*extent(triples), *(r.limit_us for r in limited)]
    under = [
        *common,
        origins_key(rows),
        launch_note(rows),
        "bars: 95% intervals",
        "grey line: limit by measured ceilings" if limited else "",
    ]
    figure = _forest(
        rows,
        triples,
        [f"{several(r, fields)}<br>{formats.told(r.time, 'µs')}" for r in rows],
        axis=time_axis(seen),
        head=heading(title or claim, under),
        fields=fields,
        alt=alt + ".",
        limits=True,
    )
    return figure, tables.results_table(rows)


def ladder(rows: Sequence[Row], *, title: str = "") -> tuple[Any, Any]:
    """One workload by every clock: time above (log axis), ratio and what it reads as below, a line a clock.

    Rows of one machine and one workload; clocks without a time are named under the title. The baseline shows in
    the upper panel only, A/A controls in neither. Raises :class:`FigureError` when no variant was timed beside
    its baseline, or when the rows hold several machines or workloads.
    """
    rows = ordered([r for r in singles(rows) if r.clock != "none"])
    kept = measured(rows, "ladder", "median_us", "a time")
    rated = measured(contenders(rows), "ladder", "ratio", "a ratio against its baseline")
    if len(places := {f"{r.machine} {r.workload}": r for r in kept}) > 1:
        raise FigureError(f"ladder: one machine and workload at a time, the rows hold {', '.join(places)}")
    clocks = [c for c in CLOCKS if any(r.clock == c for r in kept)]
    looks = legend_names(kept)
    step = 0.8 / len(looks)

    def height(row: Row) -> float:
        order = list(looks).index(row.variant)
        return round(clocks.index(row.clock) + (order - (len(looks) - 1) / 2) * step, 3)

    data: list[dict[str, Any]] = []
    for at, clock in enumerate(clocks):
        limit = significant(next(r.limit_us for r in kept if r.clock == clock))
        if not absent(limit):
            said = f"limit by {clock} clock: {formats.duration(limit)}"
            data.append(rule_trace([limit, limit], [at - 0.45, at + 0.45], "solid", said, showlegend=False))
    for variant, name in looks.items():
        timed = [r for r in kept if r.variant == variant]
        look, times = style(variant, timed[0].origin), [r.time.triple for r in timed]
        said = [f"{name}, {r.clock}<br>{formats.told(r.time, 'µs')}" for r in timed]
        data.append(points_trace(look, times, [height(r) for r in timed], said, name=name))
        if own := [r for r in rated if r.variant == variant]:
            ratios = [r.speed.triple for r in own]
            said = [f"{name}, {r.clock}<br>{formats.told(r.speed)}" for r in own]
            lower = {"xaxis": "x2", "yaxis": "y2", "showlegend": False}
            data.append(points_trace(look, ratios, [height(r) for r in own], said, name=name, **lower))
    base = listing([r.baseline for r in rated])
    below = ratio_axis(rated, f"speed against {base}, ×")
    words = [
        {
            "text": r.reading,
            "xref": "x2",
            "yref": "y2",
            "x": axis_place(below, max(extent([r.speed.triple]))),
            "y": height(r),
            "xanchor": "left",
            "xshift": 8,
            "showarrow": False,
            "font": {"size": 11.5},
        }
        for r in rated
    ]
    # The clock is not all that tells those apart that take the lab's launch path, and nothing tells the noisy ones.
    judged = [r for r in rated if not (r.launch_path or r.speed.doubt)]
    readings = {v: {r.reading for r in judged if r.variant == v} for v in looks}
    torn, compared = (
        [v for v, found in readings.items() if len(found) > 1],
        [v for v, found in readings.items() if found],
    )
    claim = f"Every clock reads the same of {listing(compared)} against {base}" if compared else "Time by every clock"
    if torn:
        claim = f"The clock decides how {listing(torn)} read{'s' if len(torn) == 1 else ''} against {base}"
    missing = [c for c in CLOCKS if c not in clocks and any(r.clock == c for r in rows)]
    _, common = split_fields([r for r in rows if r.clock == clocks[0]], always=["clock"])
    under = [*common, "bars: 95% intervals", "right is faster", "grey: equal within ±2%", "grey line: limit"]
    under.append(launch_note(kept))
    head = heading(title or claim, [*under, f"not timed: {', '.join(missing)}" if missing else ""])
    panel, gap = max(90, len(clocks) * max(24, 16 * len(looks))), 70
    share = round(panel / (2 * panel + gap), 4)
    upright = {"tickvals": list(range(len(clocks))), "ticktext": clocks, "range": [len(clocks) - 0.5, -0.5]}
    below["range"][1] = round(
        below["range"][1] + 0.3 * (below["range"][1] - below["range"][0]), 4
    )  # room for the words
    one = {"type": "line", "xref": "x2", "yref": "y2 domain", "x0": 1, "x1": 1, "y0": 0, "y1": 1}
    seen = extent(r.time.triple for r in kept) + [r.limit_us for r in kept if not absent(r.limit_us)]
    layout = head | {
        "height": 2 * panel + gap,
        "xaxis": time_axis(seen),
        "yaxis": upright | {"domain": [1 - share, 1], "showgrid": False},
        "xaxis2": below | {"anchor": "y2"},
        "yaxis2": upright | {"domain": [0, share], "anchor": "x2", "showgrid": False},
        "shapes": [equivalence_band("x2", "y2 domain"), one | {"line": {"color": LINE, "width": 1.5}}],
        "annotations": words,
    }
    points = "; ".join(
        f"{r.variant} by {r.clock}: {formats.time(r.time)}, {formats.told(r.speed)} ({r.reading})"
        for r in sorted(rated, key=lambda r: (clocks.index(r.clock), r.variant))
    )
    table = tables.results_table(rows)
    table.insert(8, "reads", [r.reading for r in rows])
    layout = with_legend(layout, list(looks.values()))
    return assemble(data, layout, f"{claim} ({', '.join(common)}). {points}."), table


def agreement(records: Sequence[Record], machine: str, *, title: str = "") -> tuple[Any, Any]:
    """The A/A control of ``machine``: the ratio interval of each pair of identical variants, sorted.

    Pairs whose interval excludes 1 are false differences: they are drawn as red crosses, and the title counts them
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
    claim = f"{summary['differences']} of {summary['pairs']} A/A pairs differ falsely: {rate}%, expected 5% (p = {p})"
    half, most = (formats.margin(summary[k]) for k in ("detectable", "detectable_90"))
    widths = [f"half of the intervals within {half}", f"nine in ten within {most}"]
    head = heading(title or claim, [machine, f"{clock} clock", *widths, "bars: 95% intervals", "grey: ±2%"])
    head["margin"] |= {"l": 24}
    layout = head | {
        "height": min(max(200, 8 * len(pairs)), 1000),  # hundreds of points make a curve
        "xaxis": ratio_axis(pairs, "time / time of the same code again, ×"),
        "yaxis": {"range": [-1, len(pairs)], "showticklabels": False, "showgrid": False},
        "shapes": [equivalence_band()],
    }
    alt = f"{claim} on {machine}. Ratios run from {spanning([r.ratio for r in pairs], near_one)}; {listing(widths)}."
    table = tables.results_table(pairs).drop(columns=["machine", "origin", "error", "of limit"])
    table.insert(5, "holds 1", ["yes" if found else "no" for found in holds])
    return assemble(data, with_legend(layout, [trace["name"] for trace in data[1:]]), alt), table
