"""Plots of plotly's: the one look of their axes, traces with intervals, honest cutting, tiles of small multiples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from hypatia_lab import intervals
from hypatia_lab.figures import INTERVALS, Figure, Key, described
from hypatia_lab.figures.axes import Axis
from hypatia_lab.figures.language import FAINT, LINE, Style
from hypatia_lab.formats import absent, significant
from hypatia_lab.intervals import Triple

SMALL = {"showarrow": False, "font": {"size": 12}}
"""Words in a plot."""
AXIS = {"gridcolor": FAINT, "linecolor": LINE, "zeroline": False, "tickfont": {"size": 12}, "automargin": True}
AXIS |= {"title": {"font": {"size": 12}, "standoff": 6}, "ticklabelstandoff": 2}
TEMPLATE = {
    "layout": {
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "dragmode": False,
        "margin": {"t": 8, "r": 16, "b": 8, "l": 8},
        "xaxis": AXIS | {"showline": True, "ticks": "outside", "tickcolor": LINE},
        "yaxis": AXIS,
    }
}
"""Grounds are transparent and text has no colour: the page's mode decides."""
TILE = 220
"""Height of a tile, px, with its axes."""


FEW = 20
"""A plot, or a tile of one, prints its values if it has fewer marks than this."""
PLOT_SIZE, TILE_SIZE = (600.0, 250.0), (300.0, 150.0)
"""Width and height that a plot and a tile have at least on a page beside which there is room, px."""
LETTER, ROW, MARK = 6.5, 13.0, 6.0
"""Width of a letter, height of a line and half the width of a mark, px."""
SIDES = {"top": (0, 1), "bottom": (0, -1), "right": (1, 0), "left": (-1, 0)}
PLACES = ("top right", "bottom right", "top left", "bottom left", "middle right", "middle left")
PLACES += ("top center", "bottom center")
"""Where plotly may put a text, in the order in which places are tried."""

Box = tuple[float, float, float, float]
"""Left, right, lower and upper end, px."""


def plotted(
    data: Sequence[dict[str, Any]],
    layout: dict[str, Any],
    title: str,
    under: Sequence[str],
    table: Any,
    columns: Sequence[str],
    key: Key = (),
) -> Figure:
    """The figure of plotly traces, few marks with their values beside them.

    Interval bars that reach beyond their axis end there, in a triangle that says so. The alt text repeats those
    ``columns`` of the ``table`` that tell its rows apart.
    """
    from plotly.graph_objects import Figure as Plot

    place_values(data, layout)
    cut = [mark for trace in data for along in "xy" for mark in _cut(trace, along, layout)]
    shown = [bars for trace in data for along in "xy" if (bars := trace.get(f"error_{along}")) and bars["visible"]]
    said = [INTERVALS if shown else "", "triangles: bars that go on" if cut else ""]
    facts = [part for part in (*under, *layout.get("meta", {}).get("axes", ()), *said) if part]
    alt = described(title, facts, table, columns)
    fixed = {"template": TEMPLATE, "autosize": True, "showlegend": False}
    spec = fixed | layout | {"meta": layout.get("meta", {}) | {"alt": alt}}
    return Figure(title, facts, key, alt, plot=Plot(data=[*data, *cut], layout=spec))


def _cut(trace: dict[str, Any], along: str, layout: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut the interval bars of ``trace`` at the ends of its axis; returns a marker for each end that was cut."""
    bars, place = trace.get(f"error_{along}"), trace.get(f"{along}axis", along)
    axis = layout.get(place.replace(along, f"{along}axis", 1), {})
    if not bars or "range" not in axis:
        return []
    ends = [10**end if axis.get("type") == "log" else end for end in axis["range"]]
    across, found = "y" if along == "x" else "x", []
    sides = (("array", max(ends), 1, "right" if along == "x" else "up"),)
    sides += (("arrayminus", min(ends), -1, "left" if along == "x" else "down"),)
    for key, edge, sign, pointing in sides:
        for n, (value, length) in enumerate(zip(trace[along], bars[key], strict=True)):
            if not sign * (value + sign * length - edge) > 1e-3 * abs(edge):  # ranges are rounded
                continue
            bars[key][n] = max(0.0, significant(abs(edge - value)))
            look = {"symbol": f"triangle-{pointing}", "size": 8, "color": bars["color"]}
            mark = {"type": "scatter", "mode": "markers", "marker": look, "cliponaxis": False, "hoverinfo": "text"}
            # Just inside: what a rounded edge puts beyond the axis is not drawn at all.
            mark |= {along: [significant(edge - sign * 2e-3 * abs(edge))], across: [trace[across][n]]}
            mark |= {name: trace[name] for name in ("xaxis", "yaxis") if name in trace}
            found.append(mark | {"hovertext": "the interval goes on"})
    return found


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


def points_trace(
    look: Style,
    triples: Sequence[Triple],
    other: Sequence[float],
    hover: Sequence[str],
    *,
    along: str = "x",
    size: int = 10,
    said: Callable[[float], str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A trace of measured points: ``triples`` and their interval bars along one axis, ``other`` along the other.

    ``said`` writes the value that stands beside a mark, where :func:`place_values` finds room. One
    whose interval a table would not tell is not written.
    """
    told = [high <= low * intervals.UNTOLD for _, low, high in triples]
    texts = {"text": [said(one[0]) if clear else "" for one, clear in zip(triples, told, strict=True)]} if said else {}
    across = "y" if along == "x" else "x"
    return (
        {
            "type": "scatter",
            "mode": "markers",
            along: [significant(v) for v, _, _ in triples],
            across: list(other),
            f"error_{along}": error_bars(triples, look.colour),
            # The dark rim carries pale colours on white; on black the colour needs none.
            "marker": {
                "color": look.colour,
                "symbol": look.symbol,
                "size": size,
                "line": {"color": "#333333", "width": 1},
            },
            "hovertext": list(hover),
            "hoverinfo": "text",
        }
        | texts
        | more
    )


def rule_trace(x: Sequence[float], y: Sequence[float], dash: str, label: str, **more: Any) -> dict[str, Any]:
    """A grey line: solid for a physical limit or a reference, dashed for a claim."""
    line = {"color": LINE, "dash": dash, "width": 3 if label.startswith("limit") else 1.5}
    hover = {"hovertext": label, "hoverinfo": "text"} if label else {"hoverinfo": "skip"}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": line} | hover | more


def equivalence_band() -> dict[str, Any]:
    """The shaded ±2% within which two times are called equal."""
    ends = {"x0": 1 - intervals.EQUIVALENCE, "x1": 1 + intervals.EQUIVALENCE, "y0": 0, "y1": 1}
    return {"type": "rect", "yref": "paper", "fillcolor": FAINT, "line": {"width": 0}, "layer": "below"} | ends


def tile(number: int) -> dict[str, str]:
    """What a trace says to lie in tile ``number``, from 0, of :func:`tiles`."""
    return {"xaxis": f"x{number + 1}", "yaxis": f"y{number + 1}"} if number else {}


def tiles(names: Sequence[str], across: Axis, up: Axis) -> dict[str, Any]:
    """The layout of a tile for each of ``names``, two beside each other, all on the same axes.

    ``meta["tiles"]`` names them: the book makes a plot of its own of each, and its page places as many side by side as
    have room. ``meta["axes"]`` says once, above all, what the axes are.
    """
    lines = math.ceil(len(names) / 2)
    layout: dict[str, Any] = {
        "grid": {"rows": lines, "columns": min(2, len(names)), "pattern": "independent", "ygap": 0.4},
        "height": TILE * lines,
        "margin": {"t": 28},
        "meta": {"tiles": list(names), "axes": [f"↑ {up.named}", f"→ {across.named}"]},
        "annotations": [],
    }
    for n, name in enumerate(names):
        suffix = str(n + 1) if n else ""
        for letter, axis in (("x", across), ("y", up)):
            layout[f"{letter}axis{suffix}"] = {k: v for k, v in axis.plotly().items() if k != "title"}
        above = {"xref": f"x{suffix} domain", "x": 0, "yref": f"y{suffix} domain", "y": 1, "yanchor": "bottom"}
        layout["annotations"].append(SMALL | above | {"text": name, "xanchor": "left"})
    return layout


def place_values(data: Sequence[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Give each text of the traces a place where it hides no mark, line or other text; one that finds none is left out.

    Texts of a plot or tile with :data:`FEW` marks or more are left out altogether. Traces are changed.
    """
    size = TILE_SIZE if layout.get("meta", {}).get("tiles") else PLOT_SIZE
    for axis in dict.fromkeys(trace.get("xaxis", "x") for trace in data):
        own = [trace for trace in data if trace.get("xaxis", "x") == axis]
        marked = [trace for trace in own if "markers" in trace.get("mode", "")]
        texts = [trace for trace in marked if "text" in trace]
        if not texts or sum(len(trace["x"]) for trace in marked) >= FEW:
            for trace in texts:
                del trace["text"]
            continue
        points = {id(trace): _pixels(trace, layout, size) for trace in own}
        taken = [box for trace in own for box in _drawn(points[id(trace)], "lines" in trace["mode"])]
        taken += [box for trace in marked for box in _bars(trace, layout, size)]
        for trace in texts:
            trace["mode"] += "+text"
            trace["textfont"] = {"size": 12}
            trace["textposition"] = [PLACES[0]] * len(trace["text"])
            for number, (text, point) in enumerate(zip(trace["text"], points[id(trace)], strict=True)):
                boxes = {where: _box(text, point, where) for where in PLACES}
                others = [one for each in marked for one in points[id(each)] if one != point]
                free = [
                    where
                    for where, box in boxes.items()
                    if _inside(box, size) and not _hit(box, taken) and _own(box, point, others)
                ]
                if free:
                    trace["textposition"][number] = free[0]
                    taken.append(boxes[free[0]])
                else:
                    trace["text"][number] = ""


def _bars(trace: dict[str, Any], layout: dict[str, Any], size: tuple[float, float]) -> list[Box]:
    """What the interval bars of ``trace`` cover."""
    found = []
    for letter in "xy":
        if bars := trace.get(f"error_{letter}"):
            up = [value + length for value, length in zip(trace[letter], bars["array"], strict=True)]
            down = [value - length for value, length in zip(trace[letter], bars["arrayminus"], strict=True)]
            ends = (_pixels(trace | {letter: end}, layout, size) for end in (down, up))
            found += [(x, right, y, upper) for (x, y), (right, upper) in zip(*ends, strict=True)]
    return found


def _pixels(trace: dict[str, Any], layout: dict[str, Any], size: tuple[float, float]) -> list[tuple[float, float]]:
    """Where the points of ``trace`` lie, from the lower left corner; what is not on a log axis at all, at its end."""
    along = []
    for letter, length in zip("xy", size, strict=True):
        axis = layout[trace.get(f"{letter}axis", letter).replace(letter, f"{letter}axis", 1)]
        low, high = axis["range"]
        logarithmic = axis.get("type") == "log"
        values = [(math.log10(v) if v > 0 else low) if logarithmic else v for v in trace[letter]]
        along.append([length * (v - low) / (high - low) for v in values])
    return list(zip(*along, strict=True))


def _drawn(points: Sequence[tuple[float, float]], line: bool) -> list[Box]:
    """What the marks at ``points`` cover, and the ``line`` between them."""
    covered = [(x - MARK, x + MARK, y - MARK, y + MARK) for x, y in points]
    for (x, y), (other_x, other_y) in itertools.pairwise(points) if line else ():
        steps = max(1, round(math.dist((x, y), (other_x, other_y)) / LETTER))
        for part in (n / steps for n in range(steps)):
            at, up = x + part * (other_x - x), y + part * (other_y - y)
            covered.append((at, at, up, up))
    return covered


def _box(text: str, point: tuple[float, float], where: str) -> Box:
    """What ``text`` covers at the place ``where`` beside a mark."""
    wide, (x, y) = LETTER * len(text), point
    right, up = (sum(SIDES.get(word, (0, 0))[n] for word in where.split()) for n in (0, 1))
    middle, height = x + right * (MARK + wide / 2 + 1), y + up * (MARK + ROW / 2 + 1)
    return middle - wide / 2, middle + wide / 2, height - ROW / 2, height + ROW / 2


def _inside(box: Box, size: tuple[float, float]) -> bool:
    return box[0] >= 0 and box[1] <= size[0] and box[2] >= 0 and box[3] <= size[1] + ROW / 3


def _own(box: Box, point: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Whether no mark lies nearer to a text than its own, so that nobody takes it for another's."""
    left, right, low, high = box
    end = min(max(point[0], left), right), (low + high) / 2
    return all(math.dist(end, other) > math.dist(end, point) for other in others)


def _hit(box: Box, taken: Sequence[Box]) -> bool:
    return any(box[0] < r and left < box[1] and box[2] < u and low < box[3] for left, r, low, u in taken)
