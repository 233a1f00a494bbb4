"""The one visual language of every figure: looks of variants, axes, traces, headings.

A variant keeps its colour, marker and place everywhere; author, seed, peer and own differ in the marker's shape, so
they are told apart without colour too. Grounds are transparent and text has no colour: the page's mode decides.
"""

from __future__ import annotations

import functools
import math
import textwrap
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.formats import absent, listing, significant
from hypatia_lab.intervals import Interval, Triple
from hypatia_lab.results import Row
from hypatia_lab.variants import AGAIN, label, load, registered, variants

ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#999999"
PALETTE = (ORANGE, SKY, GREEN, BLUE, RED, PURPLE)
"""Okabe and Ito's colours that show on white and on black (https://jfly.uni-koeln.de/color/)."""
OLIVE, WINE = "#999933", "#AA4499"
"""Two of Paul Tol's, for named variants beyond the palette (https://personal.sron.nl/~pault/)."""
SHAPES = {
    "author": ("cross", "x", "bowtie", "hourglass", "star-square", "star-diamond"),
    "seed": ("square", "diamond", "square-x", "diamond-x", "square-cross", "diamond-cross"),
    "peer": ("circle", "circle-x", "circle-cross", "hexagon", "hexagon2", "octagon"),
    "own": (
        "triangle-up",
        "star",
        "triangle-down",
        "hexagram",
        "triangle-left",
        "triangle-right",
        "star-triangle-up",
        "star-triangle-down",
    ),
}
"""Marker symbols by origin: crossed, angular, round, pointed."""
KEY = {"author": "✚ author", "seed": "■ seed", "peer": "● peer", "own": "▲ own"}
"""Origin → the first marker of its kind, and its name."""
LINE = "#808080"
"""Limits, references and axes: a grey that shows on white and on black."""
FAINT = "rgba(128,128,128,0.25)"
SMALL = {"showarrow": False, "font": {"size": 12}}
"""Words in a panel."""
PRECISIONS = ("float64/ieee", "float32/ieee", "float32/tf32", "bfloat16/ieee", "float16/ieee")
"""dtype/math of products, in the order of figures."""
CLOCKS = ("wall", "hot", "graph", "cold", "profiler")
"""Rungs of the method ladder, from what a caller waits for down to what the kernel takes."""
AXIS = {"gridcolor": FAINT, "linecolor": LINE, "zeroline": False, "tickfont": {"size": 12}}
AXIS |= {"title": {"font": {"size": 12}, "standoff": 6}}
TEMPLATE = {
    "layout": {
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "dragmode": False,
        "legend": {"bgcolor": "rgba(0,0,0,0)"},
        "xaxis": AXIS | {"showline": True, "ticks": "outside", "tickcolor": LINE, "tickangle": 0},
        "yaxis": AXIS,
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


FIXED = {
    "eager": (GREY, "circle"),
    "naive": (RED, "square"),
    "cublas_relu": (ORANGE, "diamond"),
    "aten": (PURPLE, "square-x"),
    "epilogue": (GREEN, "circle-x"),
    "compile": (SKY, "hexagon"),
    "compile_max_autotune": (BLUE, "circle-cross"),
    "compile_reduce_overhead": (OLIVE, "octagon"),
    "compile_anchored": (WINE, "triangle-down"),
    "eager_direct": (RED, "diamond"),
    "c_openmp": (PURPLE, "square"),
    "triton": (ORANGE, "star"),
    "cuda": (GREEN, "triangle-up"),
    "author_v1": (RED, "cross"),  # in the colour of what was rebuilt from it
    "author_v2": (ORANGE, "x"),
    "author_planc": (PURPLE, "bowtie"),
}
"""Variant → colour and symbol, of the few that most pages show. All others draw theirs from their names."""
COLOURS = (*PALETTE, OLIVE, WINE)


def style(variant: str, origin: str) -> Style:
    """The look of ``variant``, the same in every figure; an A/A name looks like the variant it repeats, hollow.

    It follows from the name alone, unless somebody who registered before draws the same: then it is the next one that
    is free. An origin has as many looks as it has shapes times colours; when all are taken they are given again. Places
    are by origin, and within one in order of registration. Raises ``KeyError`` for an unknown origin.
    """
    name, again = variant.removesuffix(AGAIN), variant.endswith(AGAIN)
    looks = [(colour, symbol) for symbol in SHAPES[origin] for colour in COLOURS]
    taken = _registered(origin)
    if name in taken:
        number, place = taken[name], list(taken).index(name)
    else:
        number, place = _free(name, looks, taken.values()), len(taken) + zlib.crc32(name.encode()) % 1000
    colour, symbol = FIXED.get(name) or looks[number]
    ranked = 0 if name == "eager" else 1 + PLACES[origin] + place
    return Style(colour, symbol + "-open" if again else symbol, ranked)


PLACES = {"seed": 0, "peer": 10_000, "own": 20_000, "author": 30_000}
"""Where the variants of an origin begin, from left to right behind eager."""


@functools.cache
def _registered(origin: str) -> dict[str, int]:
    """Names that the lab's variants of ``origin`` have → number of the look, in order of registration."""
    load()
    looks = [(colour, symbol) for symbol in SHAPES[origin] for colour in COLOURS]
    found: dict[str, int] = {}
    for operation in registered():
        for one in variants(operation).values():
            # A reader's own are registered in some processes only, and must move nobody's look there.
            ours = one.factory.__module__.startswith("hypatia_lab.")
            if ours and one.origin == origin and one.name not in found:
                found[one.name] = _free(one.name, looks, found.values())
    return found


def _free(name: str, looks: Sequence[tuple[str, str]], taken: Collection[int]) -> int:
    """The look that ``name`` draws, or the next neither ``taken`` nor fixed; the one it draws if there is none."""
    if FIXED.get(name) in looks:
        return looks.index(FIXED[name])
    drawn, gone = zlib.crc32(name.encode()) % len(looks), {*taken}
    gone |= {looks.index(fixed) for fixed in FIXED.values() if fixed in looks}
    after = (number % len(looks) for number in range(drawn, drawn + len(looks)))
    return next((number for number in after if number not in gone), drawn)


def measured(rows: Sequence[Row], figure: str, key: str, what: str) -> list[Row]:
    """The rows that have ``key``, smallest workload first. Raises :class:`FigureError` when none has."""
    if not rows:
        raise FigureError(
            f"{figure}: no rows to draw; the records hold none of what was asked for, or only baselines and A/A pairs"
        )
    kept = [row for row in rows if not absent(getattr(row, key))]
    if not kept:
        seen = "; ".join(dict.fromkeys(f"{r.variant} by {r.clock}: {r.status} {r.reason}".strip() for r in rows))
        raise FigureError(f"{figure}: none of {len(rows)} rows has {what} ({textwrap.shorten(seen, 400)})")
    return kept


def ordered(rows: Sequence[Row]) -> list[Row]:
    """``rows`` by operation, then smallest work and size first; variants in their places."""

    def place(r: Row) -> tuple[Any, ...]:
        extents = [int(extent) for extent in r.shape.split("x")]
        here = (r.workload, r.machine, r.clock)
        return r.operation, r.flops, extents, *here, style(r.variant, r.origin).place

    return sorted(rows, key=place)


def where(row: Row, field: str) -> str:
    return {
        "shape": formats.model(row.shape) if row.operation == "mlp" else formats.shape(row.shape),
        # Only float32 has a default of its own, and a telephone no room to say so.
        "math": row.math if row.math == "default" else f"{row.dtype}/{row.math}",
        "clock": f"{row.clock} clock",
        "direction": formats.direction(row.direction),
    }.get(field, str(getattr(row, field)))


FIELDS = ("operation", "shape", "math", "direction", "clock", "machine")


def split_fields(rows: Sequence[Row], always: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The fields that tell rows apart (and those in ``always``), and what they all have in common, as text.

    That everything is forward goes without saying.
    """
    apart = [f for f in FIELDS if f in always or len({where(r, f) for r in rows}) > 1]
    common = [where(rows[0], f) for f in FIELDS if f not in apart]
    return apart, [text for text in common if text != formats.direction("forward")]


def several(row: Row, fields: Sequence[str]) -> str:
    return ", ".join(where(row, f) for f in fields)


def spanning(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def heading(title: str, under: Sequence[str]) -> dict[str, Any]:
    """Layout of a title and the line under it, broken so that both fit 360 px; plotly breaks no lines itself.

    ``meta`` keeps both unbroken: on the book's pages ``figures.js`` breaks them where the window ends.
    """
    lines = textwrap.wrap(title, 38)
    small = _joined([u for u in under if u], 61)
    text = "<br>".join(
        [f"<b>{line}</b>" for line in lines] + [f'<span style="font-size:11px">{s}</span>' for s in small]
    )
    # The right margin holds half a tick label: plotly hides a label that would leave the figure.
    place = {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
    return {
        "title": {"text": text, "font": {"size": 14}, "pad": {"l": 8, "t": 20}} | place,
        "margin": {"t": 26 + 18 * (len(lines) + len(small)), "r": 26, "b": 50, "l": 60},
        "meta": {"title": title, "under": [u for u in under if u]},
    }


def _joined(items: Sequence[str], room: int) -> list[str]:
    """``items`` with a dot between two on the same line, on lines of ``room`` characters; none ends in a dot."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 3 + len(item) <= room:
            lines[-1] += f" · {item}"
        else:
            lines += textwrap.wrap(item, room)
    return lines


def assemble(data: Sequence[dict[str, Any]], layout: dict[str, Any], alt: str) -> Any:
    """The figure of ``data``; interval bars that reach beyond their axis end there, in a triangle that says so."""
    from plotly.graph_objects import Figure

    fixed = {"template": TEMPLATE, "autosize": True, "showlegend": False}
    marks = [mark for trace in data for along in "xy" for mark in _cut(trace, along, layout)]
    alt += " A triangle ends a bar that goes on beyond the axis." if marks else ""
    return Figure(data=[*data, *marks], layout=fixed | layout | {"meta": layout.get("meta", {}) | {"alt": alt}})


def extent(triples: Iterable[Triple]) -> list[float]:
    """What an axis has to hold of ``triples``: the values, and of their intervals what a table would tell.

    What reaches further is cut where the axis ends (:func:`assemble`): else one noisy point would hide all others.
    """
    reach = math.sqrt(intervals.UNTOLD)
    ends = [(v, max(low, v / reach), min(high, v * reach)) for v, low, high in triples if v > 0]
    return [end for three in ends for end in three if not absent(end)]


def _cut(trace: dict[str, Any], along: str, layout: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut the interval bars of ``trace`` at the ends of its axis; returns a marker for each end that was cut."""
    bars, place = trace.get(f"error_{along}"), trace.get(f"{along}axis", along)
    axis = layout.get(place.replace(along, f"{along}axis", 1), {})
    if not bars or "range" not in axis:
        return []
    ends = [10**end if axis.get("type") == "log" else end for end in axis["range"]]
    across, marks = "y" if along == "x" else "x", []
    sides = (("array", max(ends), 1, "right" if along == "x" else "up"),)
    sides += (("arrayminus", min(ends), -1, "left" if along == "x" else "down"),)
    for key, edge, sign, pointing in sides:
        for n, (value, length) in enumerate(zip(trace[along], bars[key], strict=True)):
            if not sign * (value + sign * length - edge) > 1e-3 * abs(edge):  # ranges are rounded
                continue
            bars[key][n] = max(0.0, significant(abs(edge - value)))
            marker = {"symbol": f"triangle-{pointing}", "size": 8, "color": bars["color"]}
            mark = {"type": "scatter", "mode": "markers", "marker": marker, "showlegend": False, "cliponaxis": False}
            # Just inside: what a rounded edge puts beyond the axis is not drawn at all.
            mark |= {
                along: [significant(edge - sign * 2e-3 * abs(edge))],
                across: [trace[across][n]],
                "hoverinfo": "text",
            }
            mark |= {name: trace[name] for name in ("xaxis", "yaxis") if name in trace}
            marks.append(mark | {"hovertext": "the interval goes on"})
    return marks


def with_legend(layout: dict[str, Any], entries: Sequence[str]) -> dict[str, Any]:
    """``layout`` (whose height is that of the panels) with a legend below them, with room for it at 360 px of width."""
    columns = max(1, int(300 / (40 + 7.5 * max(map(len, entries)))))  # plotly gives every entry the widest one's width
    room = 19 * math.ceil(len(entries) / columns) + 8
    margin = layout["margin"] | {"b": layout["margin"]["b"] + room}
    height = layout["height"] + margin["t"] + margin["b"]
    place = {"x": 0, "xref": "container", "xanchor": "left", "y": round(room / height, 4), "yref": "container"}
    legend = {"orientation": "h", "yanchor": "top", "font": {"size": 12}, "itemclick": False, "itemdoubleclick": False}
    return layout | {"margin": margin, "height": height, "showlegend": True, "legend": legend | place}


def error_bars(triples: Sequence[Triple], colour: str) -> dict[str, Any]:
    """Interval bars; a point without an interval has none, and its hover text and table row say so."""
    ends = [(v, v if absent(low) else low, v if absent(high) else high) for v, low, high in triples]
    up = [max(0.0, significant(significant(high) - significant(v))) for v, _, high in ends]
    down = [max(0.0, significant(significant(v) - significant(low))) for v, low, _ in ends]
    return {
        "type": "data",
        "visible": any(up) or any(down),  # a bar without length would still have its caps
        "symmetric": False,
        "array": up,
        "arrayminus": down,
        "color": colour,
        "thickness": 2,
        "width": 4,
    }


def intervals_key(data: Sequence[dict[str, Any]]) -> str:
    """What the bars of ``data`` mean; nothing where no trace has one."""
    bars = [trace[key] for trace in data for key in ("error_x", "error_y") if key in trace]
    return "bars: 95% intervals" if any(bar["visible"] for bar in bars) else ""


def log_axis(values: Sequence[float], title: str, text: Callable[[float], str], pad: float = 1.15) -> dict[str, Any]:
    """A log axis over ``values`` whose title says so, with a handful of labelled ticks."""
    low, high = min(values) / pad, max(values) * pad
    if high / low < 4:  # room for at least two ticks
        middle = math.sqrt(low * high)
        low, high = middle / 2, middle * 2
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks: list[float] = []
    for steps, stride in (((1, 2, 3, 4, 6, 8), 1), ((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        ticks = [s * 10.0**e for e in range(first, last + 1, stride) for s in steps if low <= s * 10.0**e <= high]
        if len(ticks) <= (6 if len(steps) < 6 else 4) and _apart(ticks, text, math.log10(high / low)):
            break
    return {
        "type": "log",
        "range": [round(math.log10(low), 3), round(math.log10(high), 3)],
        "tickvals": [significant(t) for t in ticks],
        "ticktext": [text(t) for t in ticks],
        "title": {"text": f"{title} (log scale)"},
    }


def both_axes(up: str, along: str) -> str:
    """The title of an axis along the bottom that says what both are: beside narrow panels there is no room."""
    return f"↑ {up}\N{EM SPACE}→ {along} (log scale)"


def thinned(axis: dict[str, Any], most: int) -> dict[str, Any]:
    """A log axis with at most so many ticks, powers of ten first, where a panel is too narrow for all."""
    ticks = list(zip(axis["tickvals"], axis["ticktext"], strict=True))
    powers = [tick for tick in ticks if abs(math.log10(tick[0]) - round(math.log10(tick[0]))) < 1e-6]
    if len(ticks) > most:
        ticks = powers if len(powers) > 1 else ticks
        ticks = ticks[:: math.ceil(len(ticks) / most)]
    return axis | {"tickvals": [value for value, _ in ticks], "ticktext": [text for _, text in ticks]}


def _apart(ticks: Sequence[float], text: Callable[[float], str], decades: float) -> bool:
    """Whether the labels of ``ticks`` have room beside each other on a telephone, whose panel is 250 px wide."""
    halves = [3.2 * len(text(tick)) + 2 for tick in ticks]
    gaps = [250 / decades * math.log10(b / a) for a, b in pairwise(ticks)]
    return all(one + other <= gap for one, other, gap in zip(halves, halves[1:], gaps, strict=False))


def plain(value: float) -> str:
    return f"{value:g}"


def times_text(value: float) -> str:
    return f"{formats.number(value)}×"


def short(text: str) -> str:
    """A round value of an axis without the digits that only measured values need: ``10.0 µs`` → ``10 µs``."""
    value, unit = text.split(" ")
    return f"{float(value):g} {unit}"


def time_axis(values: Sequence[float]) -> dict[str, Any]:
    return log_axis(values, "time per call", lambda us: short(formats.duration(us)), pad=1.4)


def rate_axis(values: Sequence[float], unit: str) -> dict[str, Any]:
    """A log axis of rates (``unit`` per second, without prefix) labelled in the prefix that suits the largest."""
    prefix = formats.scaled(max(values), unit).split(" ")[1]
    one = {"T": 1e12, "G": 1e9, "M": 1e6}.get(prefix.removesuffix(unit), 1.0)
    return log_axis(values, prefix, lambda v: f"{v / one:g}", pad=1.5)


def bytes_text(value: float) -> str:
    return short(formats.scaled(value, "B"))


def near_one(value: float) -> str:
    return formats.number(value, 3)


def points_trace(
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
        f"error_{along}": error_bars(triples, look.colour),
        # The dark rim carries pale colours on white; on black the colour needs none.
        "marker": {"color": look.colour, "symbol": look.symbol, "size": size, "line": {"color": "#333333", "width": 1}},
        "hovertext": list(hover),
        "hoverinfo": "text",
    } | more


def rule_trace(
    x: Sequence[float | None], y: Sequence[float | None], dash: str, label: str, **more: Any
) -> dict[str, Any]:
    """A grey line: solid for a physical limit or a reference, dashed for a seed's claim."""
    line = {"color": LINE, "dash": dash, "width": 3 if label.startswith("limit") else 1.5}
    hover = {"hovertext": label, "hoverinfo": "text"} if label else {"hoverinfo": "skip"}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": line} | hover | more


def origins_key(drawn: Sequence[Any]) -> str:
    """Which marker shapes stand for which ``origin`` among what is drawn, as far as they occur."""
    return "  ".join(KEY[o] for o in KEY if any(one.origin == o for one in drawn))


def launch_note(rows: Sequence[Row]) -> str:
    """Which of ``rows`` are timed with the lab's launch path, for the line under a title; empty where none is."""
    own = [r for r in rows if r.launch_path]
    if not own:
        return ""
    others = any(r.origin == "seed" and not r.launch_path for r in rows)
    clocks = listing([c for c in CLOCKS if any(r.clock == c for r in own)])
    return f"rewrites{f' by {clocks}' if others else ''}: with the lab's launch path"


def contenders(rows: Sequence[Row]) -> list[Row]:
    """Rows that can say something against a baseline: not the baseline itself, not an A/A control."""
    return [r for r in singles(rows) if r.variant != r.baseline]


def singles(rows: Sequence[Row]) -> list[Row]:
    """Rows without those of the A/A control."""
    return [r for r in rows if not r.is_twin]


def named(row: Row) -> str:
    """What a person calls the row's variant."""
    return label(row.operation, row.variant)


def bases(rows: Sequence[Row]) -> str:
    """What a person calls that which ``rows`` are held against."""
    called = list(dict.fromkeys(label(r.operation, r.baseline) for r in rows))
    return called[0] if len(called) == 1 else "the baseline"


def legend_names(rows: Sequence[Row]) -> dict[str, str]:
    """Variant → what a person calls it, in the order of :func:`style`'s places."""
    ranked = sorted(rows, key=lambda r: style(r.variant, r.origin).place)
    return {r.variant: named(r) for r in ranked}


def equivalence_band(axis: str = "x", yref: str = "paper", span: Sequence[float] = (0, 1)) -> dict[str, Any]:
    """The shaded ±2% within which two times are called equal, over ``span`` of the other axis."""
    return {
        "type": "rect",
        "xref": axis,
        "yref": yref,
        "x0": 1 - intervals.EQUIVALENCE,
        "x1": 1 + intervals.EQUIVALENCE,
        "y0": span[0],
        "y1": span[1],
        "fillcolor": FAINT,
        "line": {"width": 0},
        "layer": "below",
    }


def ratio_axis(rows: Sequence[Row], title: str) -> dict[str, Any]:
    """:func:`ratios_axis` over the rows' ratio intervals."""
    return ratios_axis(extent(r.speed.triple for r in rows), title)


def ratios_axis(ends: Sequence[float], title: str) -> dict[str, Any]:
    """An axis over ratios that holds 1 and the ±2% band: linear, or log where they span over 4×."""
    low, high = min([*ends, 1 - 1.5 * intervals.EQUIVALENCE]), max([*ends, 1 + 1.5 * intervals.EQUIVALENCE])
    if high > 4 * low:
        return log_axis([low, high], title, plain)
    pad = 0.05 * (high - low)
    return {"range": [round(low - pad, 4), round(high + pad, 4)], "nticks": 6, "title": {"text": title}}


def axis_place(axis: dict[str, Any], value: float) -> float:
    """Where an annotation has to say that it stands: on a log axis plotly wants the logarithm there."""
    return round(math.log10(value), 4) if axis.get("type") == "log" else significant(value)


def unclear(found: Iterable[Interval]) -> str:
    """Why none of ``found`` says anything, as a title has it."""
    return next(iter(dict.fromkeys(one.doubt for one in found if one.doubt)), "")
