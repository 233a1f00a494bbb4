"""Values printed beside the marks of a plot, where they are few enough to be read and have room."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

FEW = 20
"""A plot, or a tile of one, prints its values if it has fewer marks than this."""
PLOT, TILE = (600.0, 250.0), (300.0, 150.0)
"""Width and height that a plot and a tile have at least on a page beside which there is room, px."""
LETTER, LINE, MARK = 6.5, 13.0, 6.0
"""Width of a letter, height of a line and half the width of a mark, px."""
SIDES = {"top": (0, 1), "bottom": (0, -1), "right": (1, 0), "left": (-1, 0)}
PLACES = ("top right", "bottom right", "top left", "bottom left", "middle right", "middle left")
PLACES += ("top center", "bottom center")
"""Where plotly may put a text, in the order in which places are tried."""

Box = tuple[float, float, float, float]
"""Left, right, lower and upper end, px."""


def place(data: Sequence[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Give each text of the traces a place where it hides no mark, line or other text; one that finds none is left out.

    Texts of a plot or tile with :data:`FEW` marks or more are left out altogether. Traces are changed.
    """
    size = TILE if layout.get("meta", {}).get("tiles") else PLOT
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
    middle, height = x + right * (MARK + wide / 2 + 1), y + up * (MARK + LINE / 2 + 1)
    return middle - wide / 2, middle + wide / 2, height - LINE / 2, height + LINE / 2


def _inside(box: Box, size: tuple[float, float]) -> bool:
    return box[0] >= 0 and box[1] <= size[0] and box[2] >= 0 and box[3] <= size[1] + LINE / 3


def _own(box: Box, point: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Whether no mark lies nearer to a text than its own, so that nobody takes it for another's."""
    left, right, low, high = box
    end = min(max(point[0], left), right), (low + high) / 2
    return all(math.dist(end, other) > math.dist(end, point) for other in others)


def _hit(box: Box, taken: Sequence[Box]) -> bool:
    return any(box[0] < r and left < box[1] and box[2] < u and low < box[3] for left, r, low, u in taken)
