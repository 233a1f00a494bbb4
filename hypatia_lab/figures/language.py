"""The one visual language of every figure: looks of variants, axes, traces, headings.

A variant keeps its colour, marker and place everywhere; author, seed, peer and own differ in the marker's shape, so
they are told apart without colour too. Grounds are transparent and text has no colour: the page's mode decides.
"""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.formats import absent, listing, significant
from hypatia_lab.intervals import Interval, Triple
from hypatia_lab.results import Row
from hypatia_lab.variants import AGAIN

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
    "own": ("triangle-up", "star", "triangle-down", "hexagram", "triangle-left", "triangle-right"),
}
"""Marker symbols by origin: crossed, angular, round, pointed."""
KEY = {"author": "✚✕ author", "seed": "■◆ seed", "peer": "●⬢ peer", "own": "▲★ own"}
"""Origin → a marker or two of its kind, and its name."""
LINE = "#808080"
"""Limits, references and axes: a grey that shows on white and on black."""
FAINT = "rgba(128,128,128,0.25)"
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


KNOWN = {
    "eager": Style(GREY, "circle", 0),
    "author_v0": Style(OLIVE, "hourglass", 18),
    "author_v1": Style(RED, "cross", 19),  # in the colour of what was rebuilt from it
    "author_v2": Style(ORANGE, "x", 20),
    "author_planc": Style(PURPLE, "bowtie", 21),
    "author_c": Style(PURPLE, "cross", 22),
    "author_torch": Style(RED, "x", 23),
    "author_block": Style(RED, "star-square", 24),
    "eager_direct": Style(RED, "diamond", 1),
    "one_by_one": Style(BLUE, "hexagon2", 2),
    "c_openmp": Style(PURPLE, "square", 3),
    "naive": Style(RED, "square", 4),
    "cublas_relu": Style(ORANGE, "diamond", 5),
    "aten": Style(PURPLE, "square-x", 6),
    "epilogue": Style(GREEN, "circle-x", 7),
    "compile": Style(SKY, "hexagon", 8),
    "compile_reduce_overhead": Style(OLIVE, "octagon", 9),
    "compile_max_autotune": Style(BLUE, "circle-cross", 10),
    "compile_anchored": Style(WINE, "triangle-down", 11),
    "triton": Style(ORANGE, "star", 12),
    "cuda": Style(GREEN, "triangle-up", 13),
    "egraph": Style(PURPLE, "star", 14),
    "egraph_replayed": Style(WINE, "hexagram", 17),
    "egraph_split": Style(ORANGE, "hexagram", 15),
    "egraph_compile": Style(GREEN, "triangle-left", 16),
}


APART = {
    "author_module_planc": (OLIVE, "bowtie"),
    "blocked": (OLIVE, "triangle-up"),
    "fused": (OLIVE, "star"),
    "fused_backward": (OLIVE, "triangle-down"),
    "naive_malloc": (OLIVE, "square"),
    "script": (OLIVE, "circle"),
    "step_shared": (OLIVE, "triangle-left"),
    "tf32x3": (OLIVE, "triangle-right"),
    "threaded": (OLIVE, "hexagram"),
    "whole": (WINE, "triangle-up"),
    "whole_graph": (WINE, "star"),
    "x_batch_view": (WINE, "square"),
    "x_column_major": (OLIVE, "diamond"),
    "x_padded": (WINE, "triangle-right"),
    "x_unaligned": (WINE, "triangle-left"),
}
"""Colour and symbol of variants whose names draw what another variant has: one figure may hold both."""


def style(variant: str, origin: str) -> Style:
    """The look of ``variant``, the same in every figure; an A/A name looks like the variant it repeats, hollow.

    A variant that is not listed draws its look from its own name, so a new one needs no change here and
    never changes another's; only one that draws a look already taken is listed in :data:`APART`.
    Raises ``KeyError`` for an unknown origin.
    """
    name, again = variant.removesuffix(AGAIN), variant.endswith(AGAIN)
    symbols = SHAPES[origin]
    draw = zlib.crc32(name.encode())
    drawn = Style(PALETTE[draw % len(PALETTE)], symbols[draw // len(PALETTE) % len(symbols)], 100 + draw % 900)
    found = Style(*APART[name], drawn.place) if name in APART else KNOWN.get(name, drawn)
    return Style(found.colour, found.symbol + "-open", found.place) if again else found


PRECISIONS = {
    "float64/ieee": (PURPLE, "diamond", "solid"),
    "float32/ieee": (ORANGE, "square", "solid"),
    "float32/tf32": (GREEN, "triangle-up", "dash"),
    "bfloat16/ieee": (SKY, "circle", "solid"),
    "float16/ieee": (BLUE, "star", "dot"),
}
"""dtype/math → colour, symbol and dash of a ceiling."""


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
    for steps, stride in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        ticks = [s * 10.0**e for e in range(first, last + 1, stride) for s in steps if low <= s * 10.0**e <= high]
        if len(ticks) <= 6 and _apart(ticks, text, math.log10(high / low)):
            break
    return {
        "type": "log",
        "range": [round(math.log10(low), 3), round(math.log10(high), 3)],
        "tickvals": [significant(t) for t in ticks],
        "ticktext": [text(t) for t in ticks],
        "title": {"text": f"{title} (log scale)"},
    }


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


def wrapped(name: str) -> str:
    """A long variant name on two lines, broken at an underscore."""
    if len(name) <= 13 or "_" not in name:
        return name
    cut = min((i for i, c in enumerate(name) if c == "_"), key=lambda i: abs(i - len(name) / 2))
    return f"{name[: cut + 1]}<br>{name[cut + 1 :]}"


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
    return f"seed by {clocks}: the lab's launch path" if others else "seed: the lab's launch path"


def contenders(rows: Sequence[Row]) -> list[Row]:
    """Rows that can say something against a baseline: not the baseline itself, not an A/A control."""
    return [r for r in singles(rows) if r.variant != r.baseline]


def singles(rows: Sequence[Row]) -> list[Row]:
    """Rows without those of the A/A control."""
    return [r for r in rows if not r.is_twin]


def legend_names(rows: Sequence[Row]) -> dict[str, str]:
    """Variant → its name with its origin, in the order of :func:`style`'s places."""
    ranked = sorted(rows, key=lambda r: style(r.variant, r.origin).place)
    return {r.variant: f"{r.variant} ({r.origin})" for r in ranked}


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
    """An axis over the rows' ratio intervals that holds 1 and the ±2% band: linear, or log where they span over 4×."""
    ends = extent(r.speed.triple for r in rows)
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
