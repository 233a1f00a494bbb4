"""Figures: one visual language for the whole book.

A variant keeps its colour, marker and place wherever it is drawn, and its origin shows without colour: a seed
is a square or diamond, a peer is round, an own variant a triangle or star. Every measured point carries its 95%
interval, a physical limit is a solid grey line, a seed's claim a dashed one, and a log axis says so in its title.

Each function takes tidy rows (:func:`hypatia_lab.results.rows`, filtered by the caller) and returns
``(figure, table)``: a plotly Figure whose ``layout.meta["alt"]`` says in words what is to be seen, and a
DataFrame of the numbers behind it. Rows without what the figure needs raise :class:`FigureError`.
Equal rows give equal JSON: numbers are rounded, and nothing in a figure is drawn by lot or by date.

Text has no colour of its own and every background is transparent, so a page may show a figure light or dark.
"""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, intervals, results, tables
from hypatia_lab.formats import absent, significant
from hypatia_lab.records import Record
from hypatia_lab.tables import Triple

ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#999999"
PALETTE = (ORANGE, SKY, GREEN, BLUE, RED, PURPLE)
"""Okabe and Ito's colours that show on white and on black (https://jfly.uni-koeln.de/color/)."""
SHAPES = {
    "seed": ("square", "diamond", "square-x", "diamond-x", "square-cross", "diamond-cross"),
    "peer": ("circle", "circle-x", "circle-cross", "hexagon", "hexagon2", "octagon"),
    "own": ("triangle-up", "star", "triangle-down", "hexagram", "triangle-left", "triangle-right"),
}
"""Marker symbols by origin: angular, round, pointed."""
KEY = {"seed": "■ seed", "peer": "● peer", "own": "▲ own"}
LINE = "#808080"
"""Limits, references and axes: a grey that shows on white and on black."""
FAINT = "rgba(128,128,128,0.25)"
AGAIN = "@again"
"""What marks a variant of the A/A control in a record."""
CLOCKS = ("wall", "hot", "graph", "cold", "profiler")
"""Rungs of the method ladder, from what a caller waits for down to what the kernel takes."""
_AXIS = {"gridcolor": FAINT, "linecolor": LINE, "zeroline": False, "tickfont": {"size": 12}}
_AXIS |= {"title": {"font": {"size": 12}, "standoff": 6}}
TEMPLATE = {
    "layout": {
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "dragmode": False,
        "legend": {"bgcolor": "rgba(0,0,0,0)"},
        "xaxis": _AXIS | {"showline": True, "ticks": "outside", "tickcolor": LINE, "tickangle": 0},
        "yaxis": _AXIS,
    }
}


class FigureError(ValueError):
    """A figure that cannot be drawn: the message names the figure and what is missing."""


@dataclass(frozen=True)
class Style:
    """How a variant looks: ``colour`` (hex), plotly marker ``symbol``, and its ``place`` among variants."""

    colour: str
    symbol: str
    place: int


_KNOWN = {
    "eager": Style(GREY, "circle", 0),
    "naive": Style(RED, "square", 1),
    "cublas_relu": Style(ORANGE, "diamond", 2),
    "aten": Style(PURPLE, "square-x", 3),
    "epilogue": Style(GREEN, "circle-x", 4),
    "compile": Style(SKY, "hexagon", 5),
    "compile_max_autotune": Style(BLUE, "circle-cross", 6),
}


def style(variant: str, origin: str) -> Style:
    """The look of ``variant``, the same in every figure; an A/A name looks like the variant it repeats, hollow.

    A variant that is not listed draws its look from its own name, so a new one needs no change here and
    never changes another's. Raises ``KeyError`` for an unknown origin.
    """
    name, again = variant.removesuffix(AGAIN), variant.endswith(AGAIN)
    symbols = SHAPES[origin]
    draw = zlib.crc32(name.encode())
    drawn = Style(PALETTE[draw % len(PALETTE)], symbols[draw // len(PALETTE) % len(symbols)], 100 + draw % 900)
    found = _KNOWN.get(name, drawn)
    return Style(found.colour, found.symbol + "-open", found.place) if again else found


_PRECISIONS = {
    "float64/ieee": (PURPLE, "diamond", "solid"),
    "float32/ieee": (ORANGE, "square", "solid"),
    "float32/tf32": (GREEN, "triangle-up", "dash"),
    "bfloat16/ieee": (SKY, "circle", "solid"),
    "float16/ieee": (BLUE, "star", "dot"),
}
"""dtype/math → colour, symbol and dash of a ceiling."""


def _measured(rows: Sequence[dict[str, Any]], figure: str, key: str, what: str) -> list[dict[str, Any]]:
    """The rows that have ``key``, smallest workload first. Raises :class:`FigureError` when none has."""
    if not rows:
        raise FigureError(
            f"{figure}: no rows to draw; the records hold none of what was asked for, or only baselines and A/A pairs"
        )
    kept = [row for row in rows if not absent(row[key])]
    if not kept:
        seen = "; ".join(
            dict.fromkeys(f"{r['variant']} by {r['clock']}: {r['status']} {r['reason']}".strip() for r in rows)
        )
        raise FigureError(f"{figure}: none of {len(rows)} rows has {what} ({textwrap.shorten(seen, 400)})")
    return kept


def _ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        rows,
        key=lambda r: (r["flops"], r["workload"], r["machine"], r["clock"], style(r["variant"], r["origin"]).place),
    )


def _where(row: dict[str, Any], field: str) -> str:
    return {
        "shape": tables.shape_text(row["shape"]),
        "math": f"{row['dtype']}/{row['math']}",
        "clock": f"{row['clock']} clock",
    }.get(field, str(row[field]))


_FIELDS = ("operation", "shape", "math", "clock", "machine")


def _split(rows: Sequence[dict[str, Any]], always: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The fields that tell rows apart (and those in ``always``), and what they all have in common, as text."""
    apart = [f for f in _FIELDS if f in always or len({_where(r, f) for r in rows}) > 1]
    return apart, [_where(rows[0], f) for f in _FIELDS if f not in apart]


def _several(row: dict[str, Any], fields: Sequence[str]) -> str:
    return ", ".join(_where(row, f) for f in fields)


def _list(items: Sequence[str]) -> str:
    """``a, b and c``, each once."""
    words = list(dict.fromkeys(items))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _head(title: str, under: Sequence[str]) -> dict[str, Any]:
    """Layout of a title and the line under it, broken so that both fit 360 px; plotly breaks no lines itself."""
    lines = textwrap.wrap(title, 38)
    small = textwrap.wrap("\u00a0· ".join(u.replace(" ", "\u00a0") for u in under if u), 61)
    text = "<br>".join(
        [f"<b>{line}</b>" for line in lines] + [f'<span style="font-size:11px">{s}</span>' for s in small]
    )
    # The right margin holds half a tick label: plotly hides a label that would leave the figure.
    place = {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
    return {
        "title": {"text": text, "font": {"size": 14}, "pad": {"l": 8, "t": 20}} | place,
        "margin": {"t": 26 + 18 * (len(lines) + len(small)), "r": 26, "b": 50, "l": 60},
    }


def _figure(data: Sequence[dict[str, Any]], layout: dict[str, Any], alt: str) -> Any:
    from plotly.graph_objects import Figure

    fixed = {"template": TEMPLATE, "autosize": True, "meta": {"alt": alt}, "showlegend": False}
    return Figure(data=list(data), layout=fixed | layout)


def _with_legend(layout: dict[str, Any], entries: Sequence[str]) -> dict[str, Any]:
    """``layout`` (whose height is that of the panels) with a legend below them, with room for it at 360 px of width."""
    columns = max(1, int(300 / (40 + 7.5 * max(map(len, entries)))))  # plotly gives every entry the widest one's width
    room = 19 * math.ceil(len(entries) / columns) + 8
    margin = layout["margin"] | {"b": layout["margin"]["b"] + room}
    height = layout["height"] + margin["t"] + margin["b"]
    place = {"x": 0, "xref": "container", "xanchor": "left", "y": round(room / height, 4), "yref": "container"}
    legend = {"orientation": "h", "yanchor": "top", "font": {"size": 12}, "itemclick": False, "itemdoubleclick": False}
    return layout | {"margin": margin, "height": height, "showlegend": True, "legend": legend | place}


def _bars(triples: Sequence[Triple], colour: str) -> dict[str, Any]:
    """Interval bars; a point without an interval has none, and its hover text and table row say so."""
    ends = [(v, v if absent(low) else low, v if absent(high) else high) for v, low, high in triples]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, significant(significant(high) - significant(v))) for v, _, high in ends],
        "arrayminus": [max(0.0, significant(significant(v) - significant(low))) for v, low, _ in ends],
        "color": colour,
        "thickness": 2,
        "width": 4,
    }


def _log_axis(values: Sequence[float], title: str, text: Callable[[float], str], pad: float = 1.15) -> dict[str, Any]:
    """A log axis over ``values`` whose title says so, with a handful of labelled ticks."""
    low, high = min(values) / pad, max(values) * pad
    if high / low < 4:  # room for at least two ticks
        middle = math.sqrt(low * high)
        low, high = middle / 2, middle * 2
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks: list[float] = []
    for steps, stride in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        ticks = [s * 10.0**e for e in range(first, last + 1, stride) for s in steps if low <= s * 10.0**e <= high]
        if len(ticks) <= 6:
            break
    return {
        "type": "log",
        "range": [round(math.log10(low), 3), round(math.log10(high), 3)],
        "tickvals": [significant(t) for t in ticks],
        "ticktext": [text(t) for t in ticks],
        "title": {"text": f"{title} (log scale)"},
    }


def _plain(value: float) -> str:
    return f"{value:g}"


def _times(value: float) -> str:
    return f"{formats.number(value)}×"


def _short(text: str) -> str:
    """A round value of an axis without the digits that only measured values need: ``10.0 µs`` → ``10 µs``."""
    value, unit = text.split(" ")
    return f"{float(value):g} {unit}"


def _time_axis(values: Sequence[float]) -> dict[str, Any]:
    return _log_axis(values, "time per call", lambda us: _short(formats.duration(us)), pad=1.4)


def _rate_axis(values: Sequence[float], unit: str) -> dict[str, Any]:
    """A log axis of rates (``unit`` per second, without prefix) labelled in the prefix that suits the largest."""
    prefix = formats.scaled(max(values), unit).split(" ")[1]
    one = {"T": 1e12, "G": 1e9, "M": 1e6}.get(prefix.removesuffix(unit), 1.0)
    return _log_axis(values, prefix, lambda v: f"{v / one:g}", pad=1.5)


def _bytes(value: float) -> str:
    return _short(formats.scaled(value, "B"))


def _near_one(value: float) -> str:
    return formats.number(value, 3)


def _wrapped(name: str) -> str:
    """A long variant name on two lines, broken at an underscore."""
    if len(name) <= 13 or "_" not in name:
        return name
    cut = min((i for i, c in enumerate(name) if c == "_"), key=lambda i: abs(i - len(name) / 2))
    return f"{name[: cut + 1]}<br>{name[cut + 1 :]}"


def _points(
    look: Style,
    triples: Sequence[Triple],
    other: Sequence[float],
    hover: Sequence[str],
    *,
    along: str = "x",
    size: int = 10,
    **more: Any,
) -> dict[str, Any]:
    """A trace of measured points: ``triples`` and their interval bars along one axis, ``other`` along the other."""
    across = "y" if along == "x" else "x"
    return {
        "type": "scatter",
        "mode": "markers",
        along: [significant(v) for v, _, _ in triples],
        across: list(other),
        f"error_{along}": _bars(triples, look.colour),
        # The dark rim carries pale colours on white; on black the colour needs none.
        "marker": {"color": look.colour, "symbol": look.symbol, "size": size, "line": {"color": "#333333", "width": 1}},
        "hovertext": list(hover),
        "hoverinfo": "text",
    } | more


def _rule(x: Sequence[float | None], y: Sequence[float | None], dash: str, label: str, **more: Any) -> dict[str, Any]:
    """A grey line: solid for a physical limit or a reference, dashed for a seed's claim."""
    line = {"color": LINE, "dash": dash, "width": 3 if label.startswith("limit") else 1.5}
    hover = {"hovertext": label, "hoverinfo": "text"} if label else {"hoverinfo": "skip"}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": line} | hover | more


def _origins(rows: Sequence[dict[str, Any]]) -> str:
    return "  ".join(KEY[o] for o in KEY if any(r["origin"] == o for r in rows))


def _contenders(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that can say something against a baseline: not the baseline itself, not an A/A control."""
    return [r for r in _singles(rows) if r["variant"] != r["baseline"]]


def _singles(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without those of the A/A control."""
    return [r for r in rows if not r["variant"].endswith(AGAIN)]


def _looks(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Variant → its name with its origin, in the order of :func:`style`'s places."""
    ranked = sorted(rows, key=lambda r: style(r["variant"], r["origin"]).place)
    return {r["variant"]: f"{r['variant']} ({r['origin']})" for r in ranked}


def _band(axis: str = "x", yref: str = "paper") -> dict[str, Any]:
    """The shaded ±2% within which two times are called equal."""
    return {
        "type": "rect",
        "xref": axis,
        "yref": yref,
        "x0": 1 - intervals.EQUIVALENCE,
        "x1": 1 + intervals.EQUIVALENCE,
        "y0": 0,
        "y1": 1,
        "fillcolor": FAINT,
        "line": {"width": 0},
        "layer": "below",
    }


def _ratio_axis(rows: Sequence[dict[str, Any]], title: str) -> dict[str, Any]:
    """An axis over the rows' ratio intervals that holds 1 and the ±2% band: linear, or log where they span over 4×."""
    ends = [x for r in rows for x in tables.ratio_of(r) if not absent(x)]
    low, high = min([*ends, 1 - 1.5 * intervals.EQUIVALENCE]), max([*ends, 1 + 1.5 * intervals.EQUIVALENCE])
    if high > 4 * low:
        return _log_axis([low, high], title, _plain)
    pad = 0.05 * (high - low)
    return {"range": [round(low - pad, 4), round(high + pad, 4)], "nticks": 6, "title": {"text": title}}


def _place(axis: dict[str, Any], value: float) -> float:
    """Where an annotation has to say that it stands: on a log axis plotly wants the logarithm there."""
    return round(math.log10(value), 4) if axis.get("type") == "log" else significant(value)


def _forest(
    rows: Sequence[dict[str, Any]],
    triples: Sequence[Triple],
    hover: Sequence[str],
    *,
    axis: dict[str, Any],
    head: dict[str, Any],
    fields: Sequence[str],
    alt: str,
    lines: Sequence[tuple[float, str, str]] = (),
    shapes: Sequence[dict[str, Any]] = (),
    limits: bool = False,
) -> Any:
    """A line a row, named by its variant at the left, gathered under a heading for each value of ``fields``.

    ``lines``: (x, dash, label) drawn across all of them. ``limits``: each group's physical limit as a line.
    """
    left = 16 + 6.6 * max(len(part) for r in rows for part in _wrapped(r["variant"]).split("<br>"))
    left = round(left)
    small = {"showarrow": False, "font": {"size": 12}}
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(_several(row, fields), []).append(index)
    y, places, spans = 0.0, {}, []
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for name, members in groups.items():
        heading = {"text": f"<b>{name}</b>", "xref": "paper", "x": 0, "xanchor": "left", "xshift": 8 - left, "y": y}
        notes.append(small | heading)
        for index in members:
            y = round(y + 1, 1)
            places[index] = y
        span = [round(places[members[0]] - 0.5, 1), round(places[members[-1]] + 0.5, 1)]
        spans += [*span, None]
        limit = significant(rows[members[0]]["limit_us"])
        if limits and not absent(limit):
            data.append(_rule([limit, limit], span, "solid", f"limit: {formats.duration(limit)}<br>{name}"))
        y = round(y + 1.3, 1)
    bottom = round(y - 0.7, 1)
    for x, dash, label in lines:
        data.append(_rule([None if at is None else x for at in spans], spans, dash, label))  # not across the headings
        if label:
            at, (low, high) = _place(axis, x), axis["range"]
            side = "right" if at > low + 0.75 * (high - low) else "center"
            place = {"x": at, "xanchor": side, "y": 1, "yref": "paper", "yanchor": "bottom"}
            notes.append(small | {"text": label} | place)
    for variant, name in _looks(rows).items():
        own = [i for i, r in enumerate(rows) if r["variant"] == variant and not absent(triples[i][0])]
        if own:
            look, said = style(variant, rows[own[0]]["origin"]), [f"{name}<br>{hover[i]}" for i in own]
            data.append(_points(look, [triples[i] for i in own], [places[i] for i in own], said, name=name))
    for index, row in enumerate(rows):
        if absent(triples[index][0]):  # what could not be measured is said on its line, not left out
            said = {"text": f"<i>{row['status'].replace('_', ' ')}</i>", "xref": "paper", "x": 0.01, "xanchor": "left"}
            notes.append(small | said | {"y": places[index]})
    head["margin"] |= {"l": left, "t": head["margin"]["t"] + (18 if any(label for _, _, label in lines) else 0)}
    layout = head | {
        "height": round(head["margin"]["t"] + head["margin"]["b"] + 25 * (bottom + 0.7)),
        "xaxis": axis,
        "yaxis": {
            "range": [bottom, -0.7],
            "tickvals": [places[i] for i in range(len(rows))],
            "ticktext": [_wrapped(r["variant"]) for r in rows],
            "showgrid": False,
        },
        "annotations": notes,
        "shapes": list(shapes),
    }
    return _figure(data, layout, alt)


def slowdowns(rows: Sequence[dict[str, Any]], *, claimed: float | None = None, title: str = "") -> tuple[Any, Any]:
    """How many times longer than its baseline each variant takes, per shape, on a log axis, with 95% intervals.

    Drawn is variant time / baseline time, the inverse of a row's ``ratio``; ``claimed`` (×) is a seed's figure,
    drawn as a dashed line. Baselines and A/A controls are left out; a cell that was not measured shows its status.
    Raises :class:`FigureError` when no row has a ratio.
    """
    rows = _ordered(_contenders(rows))
    kept = _measured(rows, "slowdowns", "ratio", "a ratio against its baseline")
    triples = [(1 / r["ratio"], 1 / r["ratio_high"], 1 / r["ratio_low"]) for r in rows]
    said = [formats.interval(*t) for t in triples]
    fields, common = _split(rows, always=["shape"])
    base = _list([r["baseline"] for r in kept])
    against = "" if claimed is None else _times(claimed)
    seen = [x for t in triples for x in t if not absent(x)] + [1.0] + ([] if claimed is None else [claimed])
    lines = [(1.0, "solid", "")] + ([] if claimed is None else [(significant(claimed), "dash", f"claimed {against}")])
    spread = _range([t[0] for t in triples if not absent(t[0])], _times)
    names = list(dict.fromkeys(r["variant"] for r in kept))
    claim = f"{_list(names) if len(names) < 4 else 'Variants'}: {spread} the time of {base}" + (
        against and f"; claimed: {against}"
    )
    points = "; ".join(
        f"{r['variant']} at {_several(r, fields)}: {s}"
        for r, s in zip(rows, said, strict=True)
        if not absent(r["ratio"])
    )
    alt = f"Time against {base} on a log axis ({', '.join(common)}). {points}."
    table = tables.results_table(rows)
    table.insert(6, f"time / {base}", said)
    figure = _forest(
        rows,
        triples,
        [f"{_several(r, fields)}<br>{s} the time of {r['baseline']}" for r, s in zip(rows, said, strict=True)],
        axis=_log_axis(seen, f"time / time of {base}, ×", _plain),
        head=_head(title or claim, [*common, _origins(rows), "bars: 95% intervals"]),
        fields=fields,
        alt=alt + (against and f" A dashed line marks the claimed {against}."),
        lines=lines,
    )
    return figure, table


def speedups(rows: Sequence[dict[str, Any]], *, title: str = "") -> tuple[Any, Any]:
    """Ratios near 1 (baseline time / variant time) with 95% intervals against the ±2% band of equivalence.

    A linear axis, one group of lines a shape (and dtype/math, clock or machine where they vary). Baselines and
    A/A controls are left out. Raises :class:`FigureError` when no row has a ratio.
    """
    rows = _ordered(_contenders(rows))
    kept = _measured(rows, "speedups", "ratio", "a ratio against its baseline")
    said = [f"{formats.interval(*tables.ratio_of(r))}, {tables.reading(r)}" for r in rows]
    fields, common = _split(rows, always=["shape"])
    base = _list([r["baseline"] for r in kept])
    words = [tables.reading(r) for r in kept]
    counts = _list([f"{words.count(w)} {w}" for w in ("faster", "equal", "slower", "undecided") if w in words])
    points = "; ".join(
        f"{r['variant']} at {_several(r, fields)}: {s}"
        for r, s in zip(rows, said, strict=True)
        if not absent(r["ratio"])
    )
    table = tables.results_table(rows)
    table.insert(7, "reads", [tables.reading(r) for r in rows])
    under = [*common, _origins(rows), "bars: 95% intervals", "right is faster", "grey: equal within ±2%"]
    figure = _forest(
        rows,
        [tables.ratio_of(r) for r in rows],
        [f"{_several(r, fields)}<br>{s}" for r, s in zip(rows, said, strict=True)],
        axis=_ratio_axis(kept, f"speed against {base}, ×"),
        head=_head(title or f"Against {base}: {counts}", under),
        fields=fields,
        alt=f"Speed against {base} ({', '.join(common)}), with the ±2% band shaded: {counts}. {points}.",
        lines=[(1.0, "solid", "")],
        shapes=[_band()],
    )
    return figure, table


def times_against_limit(rows: Sequence[dict[str, Any]], *, title: str = "") -> tuple[Any, Any]:
    """Median time of a call per variant and shape on a log axis, with the machine's own limit as a grey line.

    The bars are t-intervals over the processes' medians. The limit is the rows' ``limit_us`` (what the measured
    ceilings allow); where no ceiling was measured there is no line. A/A controls are left out.
    Raises :class:`FigureError` when no row has a time.
    """
    rows = _ordered(_singles(rows))
    kept = _measured(rows, "times_against_limit", "median_us", "a time")
    fields, common = _split(rows, always=["shape"])
    triples = [tables.time_of(r) for r in rows]
    fastest: dict[str, dict[str, Any]] = {}
    for r in kept:
        group = _several(r, fields)
        if not absent(r["limit_us"]) and (group not in fastest or r["median_us"] < fastest[group]["median_us"]):
            fastest[group] = r
    claim, alt = "Time of a call; no ceiling was measured", f"Time of a call on a log axis ({', '.join(common)}). "
    if fastest:
        shares = _range(
            [100 * r["limit_us"] / r["median_us"] for r in fastest.values()], lambda v: f"{formats.number(v)}%"
        )
        claim = f"The fastest variant reaches {shares} of the limit"
        alt += "; ".join(
            f"{group}: the fastest is {r['variant']} with {formats.duration(r['median_us'])}, "
            f"the limit {formats.duration(r['limit_us'])}"
            for group, r in fastest.items()
        )
    else:
        alt += f"It takes {_range([r['median_us'] for r in kept], formats.duration)}; no ceiling was measured"
    seen = [x for r, t in zip(rows, triples, strict=True) for x in (*t, r["limit_us"]) if not absent(x)]
    under = [*common, _origins(rows), "bars: 95% intervals", "grey line: limit by measured ceilings" if fastest else ""]
    figure = _forest(
        rows,
        triples,
        [f"{_several(r, fields)}<br>{formats.interval(*t, 'µs')}" for r, t in zip(rows, triples, strict=True)],
        axis=_time_axis(seen),
        head=_head(title or claim, under),
        fields=fields,
        alt=alt + ".",
        limits=True,
    )
    return figure, tables.results_table(rows)


def ladder(rows: Sequence[dict[str, Any]], *, title: str = "") -> tuple[Any, Any]:
    """One workload by every clock: time above (log axis), ratio and what it reads as below, a line a clock.

    Rows of one machine and one workload; clocks without a time are named under the title. The baseline shows in
    the upper panel only, A/A controls in neither. Raises :class:`FigureError` when no variant was timed beside
    its baseline, or when the rows hold several machines or workloads.
    """
    rows = _ordered([r for r in _singles(rows) if r["clock"] != "none"])
    kept = _measured(rows, "ladder", "median_us", "a time")
    rated = _measured(_contenders(rows), "ladder", "ratio", "a ratio against its baseline")
    if len(places := {f"{r['machine']} {r['workload']}": r for r in kept}) > 1:
        raise FigureError(f"ladder: one machine and workload at a time, the rows hold {', '.join(places)}")
    clocks = [c for c in CLOCKS if any(r["clock"] == c for r in kept)]
    looks = _looks(kept)
    step = 0.8 / len(looks)

    def height(row: dict[str, Any]) -> float:
        order = list(looks).index(row["variant"])
        return round(clocks.index(row["clock"]) + (order - (len(looks) - 1) / 2) * step, 3)

    data: list[dict[str, Any]] = []
    for at, clock in enumerate(clocks):
        limit = significant(next(r["limit_us"] for r in kept if r["clock"] == clock))
        if not absent(limit):
            said = f"limit by {clock} clock: {formats.duration(limit)}"
            data.append(_rule([limit, limit], [at - 0.45, at + 0.45], "solid", said, showlegend=False))
    for variant, name in looks.items():
        timed = [r for r in kept if r["variant"] == variant]
        look, times = style(variant, timed[0]["origin"]), [tables.time_of(r) for r in timed]
        said = [f"{name}, {r['clock']}<br>{formats.interval(*t, 'µs')}" for r, t in zip(timed, times, strict=True)]
        data.append(_points(look, times, [height(r) for r in timed], said, name=name))
        if own := [r for r in rated if r["variant"] == variant]:
            ratios = [tables.ratio_of(r) for r in own]
            said = [f"{name}, {r['clock']}<br>{formats.interval(*t)}" for r, t in zip(own, ratios, strict=True)]
            lower = {"xaxis": "x2", "yaxis": "y2", "showlegend": False}
            data.append(_points(look, ratios, [height(r) for r in own], said, name=name, **lower))
    base = _list([r["baseline"] for r in rated])
    below = _ratio_axis(rated, f"speed against {base}, ×")
    words = [
        {
            "text": tables.reading(r),
            "xref": "x2",
            "yref": "y2",
            "x": _place(below, r["ratio"] if absent(r["ratio_high"]) else r["ratio_high"]),
            "y": height(r),
            "xanchor": "left",
            "xshift": 8,
            "showarrow": False,
            "font": {"size": 11.5},
        }
        for r in rated
    ]
    readings = {v: {tables.reading(r) for r in rated if r["variant"] == v} for v in looks}
    torn, compared = (
        [v for v, found in readings.items() if len(found) > 1],
        [v for v, found in readings.items() if found],
    )
    claim = f"Every clock reads the same of {_list(compared)} against {base}"
    if torn:
        claim = f"The clock decides how {_list(torn)} read{'s' if len(torn) == 1 else ''} against {base}"
    missing = [c for c in CLOCKS if c not in clocks and any(r["clock"] == c for r in rows)]
    _, common = _split([r for r in rows if r["clock"] == clocks[0]], always=["clock"])
    under = [*common, "bars: 95% intervals", "right is faster", "grey: equal within ±2%", "grey line: limit"]
    head = _head(title or claim, [*under, f"not timed: {', '.join(missing)}" if missing else ""])
    panel, gap = max(90, len(clocks) * max(24, 16 * len(looks))), 70
    share = round(panel / (2 * panel + gap), 4)
    upright = {"tickvals": list(range(len(clocks))), "ticktext": clocks, "range": [len(clocks) - 0.5, -0.5]}
    below["range"][1] = round(
        below["range"][1] + 0.3 * (below["range"][1] - below["range"][0]), 4
    )  # room for the words
    one = {"type": "line", "xref": "x2", "yref": "y2 domain", "x0": 1, "x1": 1, "y0": 0, "y1": 1}
    seen = [x for r in kept for x in (*tables.time_of(r), r["limit_us"]) if not absent(x)]
    layout = head | {
        "height": 2 * panel + gap,
        "xaxis": _time_axis(seen),
        "yaxis": upright | {"domain": [1 - share, 1], "showgrid": False},
        "xaxis2": below | {"anchor": "y2"},
        "yaxis2": upright | {"domain": [0, share], "anchor": "x2", "showgrid": False},
        "shapes": [_band("x2", "y2 domain"), one | {"line": {"color": LINE, "width": 1.5}}],
        "annotations": words,
    }
    points = "; ".join(
        f"{r['variant']} by {r['clock']}: {formats.duration(r['median_us'])}, "
        f"{formats.interval(*tables.ratio_of(r))} ({tables.reading(r)})"
        for r in sorted(rated, key=lambda r: (clocks.index(r["clock"]), r["variant"]))
    )
    table = tables.results_table(rows)
    table.insert(7, "reads", [tables.reading(r) for r in rows])
    layout = _with_legend(layout, list(looks.values()))
    return _figure(data, layout, f"{claim} ({', '.join(common)}). {points}."), table


def roofline(
    rows: Sequence[dict[str, Any]], ceilings: dict[tuple[str, str, str], float], *, clock: str, title: str = ""
) -> tuple[Any, Any]:
    """Attained FLOP/s over arithmetic intensity (FLOP per compulsory byte) under one machine's measured ceilings.

    ``ceilings`` is :func:`hypatia_lab.results.ceilings` of that machine's records, of which those by ``clock`` and of
    the rows' dtype/math are drawn. A/A controls are left out. Raises :class:`FigureError` when no row has a time,
    when rows hold several machines, or when copy bandwidth or every matrix rate is missing.
    """
    rows = _ordered([r for r in _singles(rows) if r["flops"] > 0])
    kept = _measured(rows, "roofline", "median_us", "a time")
    if len(machines := list(dict.fromkeys(r["machine"] for r in kept))) > 1:
        raise FigureError(f"roofline: ceilings belong to one machine, the rows hold {', '.join(machines)}")
    bandwidth = ceilings.get(("copy", "", clock))
    used = dict.fromkeys(f"{r['dtype']}/{r['math']}" for r in kept)
    roofs = {p: ceilings["matmul", p, clock] for p in used if ("matmul", p, clock) in ceilings}
    if bandwidth is None or not roofs:
        lacking = "copy bandwidth" if bandwidth is None else f"a matrix rate for {', '.join(used)}"
        raise FigureError(f"roofline: {lacking} by the {clock} clock is missing from the ceilings of {machines[0]}")
    intensity = [r["flops"] / r["traffic"] for r in kept]
    ridge = max(roofs.values()) / bandwidth
    left, right = min(*intensity, ridge) / 2.5, max(*intensity, ridge) * 4
    copied = f"limit: {formats.scaled(bandwidth, 'B/s')} copied"
    slope = [significant(x) for x in (left, ridge)], [significant(x * bandwidth) for x in (left, ridge)]
    data = [_rule(*slope, "solid", copied, showlegend=False)]
    notes: list[dict[str, Any]] = []
    labelled = 0.0
    for precision, rate in sorted(roofs.items(), key=lambda item: item[1]):
        said = f"{precision} {formats.scaled(rate, 'FLOP/s')}"
        ends = [significant(rate / bandwidth), significant(right)]
        data.append(_rule(ends, [significant(rate)] * 2, "solid", f"limit: {said}", showlegend=False))
        if rate < 1.35 * labelled:  # two roofs too close for two labels share one
            notes[-1]["text"] += f", {precision}"
            continue
        labelled = rate
        note = {"text": said, "x": round(math.log10(right), 3), "xanchor": "right", "yanchor": "bottom", "yshift": 2}
        notes.append(note | {"y": round(math.log10(rate), 3), "showarrow": False, "font": {"size": 11}})
    looks = _looks(kept)
    for variant, name in looks.items():
        own = [r for r in kept if r["variant"] == variant]
        rates = [tables.rate_of(r) for r in own]
        said = [
            f"{tables.workload_text(r)}<br>{formats.scaled(t[0], 'FLOP/s')}" for r, t in zip(own, rates, strict=True)
        ]
        across = [significant(r["flops"] / r["traffic"]) for r in own]
        data.append(
            _points(
                style(variant, own[0]["origin"]), rates, across, [f"{name}<br>{s}" for s in said], along="y", name=name
            )
        )
    summit = max(kept, key=lambda r: r["flops"] / r["median_us"])
    share = summit["limit_us"] / summit["median_us"]
    reach = "" if absent(share) else f", {formats.number(100 * share)}% of its limit"
    attained = [tables.rate_of(r)[0] for r in kept]
    claim = f"{summit['variant']} attains {formats.scaled(max(attained), 'FLOP/s')} at {_where(summit, 'shape')}{reach}"
    _, common = _split(rows)
    under = [
        *common,
        "grey lines: measured ceilings",
        f"copy {formats.scaled(bandwidth, 'B/s')}",
        "bars: 95% intervals",
    ]
    head = _head(title or claim, under)
    seen = [*roofs.values(), *(x for r in kept for x in tables.rate_of(r) if not absent(x))]
    layout = head | {
        "height": 280,
        "xaxis": _log_axis([left, right], "intensity, FLOP per byte", _plain, pad=1.0),
        "yaxis": _rate_axis(seen, "FLOP/s"),
        "annotations": notes,
    }
    alt = (
        f"Roofline of {machines[0]} by the {clock} clock, log axes: copy bandwidth {formats.scaled(bandwidth, 'B/s')}, "
    )
    alt += ", ".join(f"{p} {formats.scaled(rate, 'FLOP/s')}" for p, rate in roofs.items())
    alt += f". {len(kept)} points, {_range(attained, lambda v: formats.scaled(v, 'FLOP/s'))}: {claim}."
    table = tables.results_table(kept)
    table.insert(5, "intensity, FLOP/B", [formats.number(x) for x in intensity])
    table.insert(6, "rate", [formats.scaled(x, "FLOP/s") for x in attained])
    return _figure(data, _with_legend(layout, list(looks.values())), alt), table


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
    again = [r for r in results.rows(records) if r["machine"] == machine and r["variant"].endswith(AGAIN)]
    pairs = [r for r in again if r["clock"] == clock and not absent(r["ratio_low"])]
    pairs.sort(key=lambda r: (r["ratio"], r["workload"]))
    holds = [r["ratio_low"] <= 1 <= r["ratio_high"] for r in pairs]
    data = [_rule([1, 1], [-1, len(pairs)], "solid", "", showlegend=False)]
    for wanted, look, name in (
        (True, Style(GREY, "circle", 0), "holds 1"),
        (False, Style(RED, "x", 1), "excludes 1: a false difference"),
    ):
        own = [i for i, found in enumerate(holds) if found == wanted]
        ratios = [tables.ratio_of(pairs[i]) for i in own]
        said = [f"{tables.workload_text(pairs[i])}<br>{formats.interval(*t)}" for i, t in zip(own, ratios, strict=True)]
        data.append(_points(look, ratios, own, said, size=6 if wanted else 7, name=name, showlegend=True))
    rate, p = formats.number(100 * summary["rate"]), formats.number(summary["p"])
    claim = f"{summary['differences']} of {summary['pairs']} A/A pairs differ falsely: {rate}%, expected 5% (p = {p})"
    half, most = (formats.number(100 * summary[k]) for k in ("detectable", "detectable_90"))
    widths = [f"half of the intervals within ±{half}%", f"nine in ten within ±{most}%"]
    head = _head(title or claim, [machine, f"{clock} clock", *widths, "bars: 95% intervals", "grey: ±2%"])
    head["margin"] |= {"l": 24}
    layout = head | {
        "height": max(200, 8 * len(pairs)),
        "xaxis": _ratio_axis(pairs, "time / time of the same code again, ×"),
        "yaxis": {"range": [-1, len(pairs)], "showticklabels": False, "showgrid": False},
        "shapes": [_band()],
    }
    alt = f"{claim} on {machine}. Ratios run from {_range([r['ratio'] for r in pairs], _near_one)}; {_list(widths)}."
    table = tables.results_table(pairs).drop(columns=["machine", "origin", "error", "of limit"])
    table.insert(5, "holds 1", ["yes" if found else "no" for found in holds])
    return _figure(data, _with_legend(layout, [trace["name"] for trace in data[1:]]), alt), table


def sweep(rows: Sequence[dict[str, Any]], *, title: str = "") -> tuple[Any, Any]:
    """The sweep behind the ceilings of one machine and clock: matrix rate and copy bandwidth over size (log axes).

    ``rows`` of the ``ceilings`` experiment; a ceiling is the best process, as in :func:`hypatia_lab.results.ceilings`.
    A product's extent is the cube root of m·k·n, a copy's the bytes it moves.
    Raises :class:`FigureError` when nothing was timed or when rows hold several machines or clocks.
    """
    rows = _ordered([r for r in _singles(rows) if r["operation"] in ("matmul", "copy")])
    kept = _measured(rows, "sweep", "median_us", "a time of a matmul or copy")
    if len(places := {f"{r['machine']} by {r['clock']}": r for r in kept}) > 1:
        raise FigureError(f"sweep: one machine and clock at a time, the rows hold {', '.join(places)}")
    machine, clock = kept[0]["machine"], kept[0]["clock"]
    panels = [p for p in ("matmul", "copy") if any(r["operation"] == p for r in kept)]
    curves: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for panel in panels:
        own = [r for r in kept if r["operation"] == panel]
        found = {f"{r['dtype']}/{r['math']}" for r in own} if panel == "matmul" else {"copy"}
        for name in sorted(found, key=lambda n: (list(_PRECISIONS).index(n) if n in _PRECISIONS else 99, n)):
            curve = [r for r in own if panel == "copy" or f"{r['dtype']}/{r['math']}" == name]
            curves[panel, name] = sorted(curve, key=_SWEPT[panel][2])
    data: list[dict[str, Any]] = []
    best: dict[str, float] = {}
    seen: dict[str, tuple[list[float], list[float]]] = {panel: ([], []) for panel in panels}
    for (panel, name), own in curves.items():
        work, unit, extent = _SWEPT[panel]
        rates = [tables.rate_of(r, work) for r in own]
        best[name] = max(r[work] * 1e6 / us for r in own for us in r["medians_us"] if us is not None)
        seen[panel][0].extend(map(extent, own))
        seen[panel][1].extend(x for t in rates for x in t if not absent(x))
        colour, symbol, dash = _PRECISIONS.get(name, (GREY, "x", "dot"))
        said = [
            f"{name}, {_where(r, 'shape')}<br>{formats.scaled(t[0], unit)}" for r, t in zip(own, rates, strict=True)
        ]
        shown = {
            "along": "y",
            "size": 8,
            "mode": "lines+markers",
            "name": f"{name}, ceiling {formats.scaled(best[name], unit)}",
        }
        shown |= {"line": {"color": colour, "dash": dash, "width": 2}} | ({} if panel == panels[0] else _SECOND)
        sizes = [round(extent(r), 1) for r in own]
        data.append(_points(Style(colour, symbol, 0), rates, sizes, said, **shown))
    peaks = {n: formats.scaled(rate, "B/s" if n == "copy" else "FLOP/s") for n, rate in best.items()}
    fastest = max((n for n in best if n != "copy"), key=lambda n: best[n], default="")
    multiplied = [f"multiplies at up to {peaks[fastest]} ({fastest})"] if fastest else []
    claim = f"{machine} {_list(multiplied + [f'copies at {peaks[n]}' for n in best if n == 'copy'])}"
    points = "; ".join(f"{name} {rate}" for name, rate in peaks.items())
    head = _head(title or claim, [f"{clock} clock", "bars: 95% intervals", "ceiling: best process"])
    tall = 200 * len(panels) + 70 * (len(panels) - 1)
    layout = head | {"height": tall}
    for panel in panels:
        unit, first, alone = _SWEPT[panel][1], panel == panels[0], len(panels) == 1
        titles = {"matmul": "matrix extent (m·k·n)<sup>1/3</sup>", "copy": "bytes moved"}
        number, share = "" if first else "2", round(200 / tall, 4)
        across = _log_axis(seen[panel][0], titles[panel], _plain if panel == "matmul" else _bytes)
        up = _rate_axis(seen[panel][1], unit)
        layout[f"xaxis{number}"] = across | {"anchor": f"y{number}"}
        domain = [0, 1] if alone else [1 - share, 1] if first else [0, share]
        layout[f"yaxis{number}"] = up | {"anchor": f"x{number}", "domain": domain}
    table = tables.results_table(kept).drop(columns=["machine", "clock", "ratio", "of limit"])
    table.insert(
        4,
        "rate",
        [formats.scaled(tables.rate_of(r, _SWEPT[r["operation"]][0])[0], _SWEPT[r["operation"]][1]) for r in kept],
    )
    layout = _with_legend(layout, [trace["name"] for trace in data])
    return _figure(
        data, layout, f"Rate over size, log axes, on {machine} by the {clock} clock. Ceilings (best process): {points}."
    ), table


_SECOND = {"xaxis": "x2", "yaxis": "y2"}
_SWEPT: dict[str, tuple[str, str, Callable[[dict[str, Any]], float]]] = {
    "matmul": ("flops", "FLOP/s", lambda r: math.prod(map(int, r["shape"].split("x"))) ** (1 / 3)),
    "copy": ("traffic", "B/s", lambda r: r["traffic"]),
}
"""What is swept: which work of a row counts, its unit a second, and the size of a row."""


def data_and_source(table: Any, records: Sequence[Record]) -> str:
    """HTML that folds away the numbers behind a figure and links to its records, relative to a page in notebooks/."""
    places = dict.fromkeys(f"{r.machine}/{r.experiment}" for r in records)
    links = ", ".join(f'<a href="../records/{p}.jsonl">{p}</a>' for p in places)
    source = f"<p>Records: {links}</p>\n" if links else ""
    return (
        '<details class="figure-data"><summary>Data and source</summary>\n'
        + tables.html(table)
        + f"\n{source}</details>"
    )


def show(figure: Any, table: Any, records: Sequence[Record]) -> None:
    """Display a figure in a notebook, then its data and source, folded.

    The figure goes out as plotly's own MIME type with its alt text beside it, and as nothing else: plotly's HTML
    renderers need the network or embed 5 MB and random ids. ``records`` are those the figure was made from.
    """
    import json

    from IPython.display import display

    content = json.loads(figure.to_json())
    bundle = content | {"config": {"displayModeBar": False, "responsive": True}}
    display({"application/vnd.plotly.v1+json": bundle, "text/plain": content["layout"]["meta"]["alt"]}, raw=True)
    text = table.to_string(index=False)
    display({"text/html": data_and_source(table, records), "text/plain": text}, raw=True)
