"""Marks as SVG: the markers of the figures, intervals, bars.

Places along an axis are in percent, so that a mark fits any width. Lines take the page's own colour: a mark shows on
white and on black, and nothing of it needs a style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

HIGH = 22
"""Height of a mark, px."""
RIM = 'stroke="currentColor" stroke-opacity="0.6"'
Point = tuple[float, float]


def _ring(*radii: float, corners: int, turn: float = 0.0) -> list[Point]:
    """``corners`` at equal angles, the first ``turn`` degrees on from the top, at ``radii`` in turn from the middle."""
    found = []
    for n in range(corners):
        angle, radius = math.radians(turn + 360 * n / corners), radii[n % len(radii)]
        found.append((radius * math.sin(angle), -radius * math.cos(angle)))
    return found


def _turned(points: Sequence[Point], degrees: float) -> list[Point]:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(c * x - s * y, s * x + c * y) for x, y in points]


_ARM = [(-0.4, -1.2), (0.4, -1.2), (0.4, -0.4)]
_CROSS = [corner for quarter in range(4) for corner in _turned(_ARM, 90 * quarter)]
CORNERS: dict[str, list[Point]] = {
    "circle": _ring(1.0, corners=24),
    "square": _ring(1.3, corners=4, turn=45),
    "diamond": _ring(1.3, corners=4),
    "hexagon": _ring(1.15, corners=6),
    "hexagon2": _ring(1.15, corners=6, turn=30),
    "octagon": _ring(1.1, corners=8, turn=22.5),
    "triangle-up": _ring(1.3, corners=3),
    "triangle-down": _ring(1.3, corners=3, turn=180),
    "triangle-left": _ring(1.3, corners=3, turn=270),
    "triangle-right": _ring(1.3, corners=3, turn=90),
    "star": _ring(1.4, 0.55, corners=10),
    "hexagram": _ring(1.35, 0.75, corners=12),
    "star-square": _ring(1.5, 0.65, corners=8, turn=45),
    "star-diamond": _ring(1.5, 0.65, corners=8),
    "star-triangle-up": _ring(1.5, 0.45, corners=6),
    "star-triangle-down": _ring(1.5, 0.45, corners=6, turn=180),
    "cross": _CROSS,
    "x": _turned(_CROSS, 45),
    "bowtie": [(-1, -1), (1, 1), (1, -1), (-1, 1)],
    "hourglass": [(-1, -1), (1, -1), (-1, 1), (1, 1)],
}
"""Plotly's name of a marker → the corners of its shape, about a middle at (0, 0)."""
_INNER = {
    "x": [[(-0.7, -0.7), (0.7, 0.7)], [(-0.7, 0.7), (0.7, -0.7)]],
    "cross": [[(-1, 0), (1, 0)], [(0, -1), (0, 1)]],
}


def marker(symbol: str, colour: str, x: float = 50, y: float = HIGH / 2, size: float = 4.5) -> str:
    """Plotly's ``symbol`` in ``colour`` at ``x`` (%) and ``y`` (px); one that ends in -open is hollow."""
    name = symbol.removesuffix("-open")
    outer, _, inner = (name, "", "") if name in CORNERS else name.rpartition("-")
    shapes = [CORNERS[outer], *_INNER.get(inner, ())]
    path = "".join("M" + "L".join(f"{size * a:.1f} {size * b:.1f}" for a, b in shape) + "Z" for shape in shapes)
    look = f'fill="none" stroke="{colour}" stroke-width="2"' if symbol != name else f'fill="{colour}" {RIM}'
    return f'<svg x="{x:g}%" y="{y:g}" overflow="visible"><path d="{path}" {look}/></svg>'


def interval(low: float, high: float, colour: str, y: float = HIGH / 2) -> str:
    """A line from ``low`` to ``high`` (%) with caps; an end beyond the axis is cut there and is a triangle."""
    left, right = max(0.0, low), min(100.0, high)
    ends = []
    for at, cut, pointing in ((left, low < 0, "triangle-left"), (right, high > 100, "triangle-right")):
        cap = f'<line x1="{at:g}%" x2="{at:g}%" y1="{y - 4:g}" y2="{y + 4:g}" stroke="{colour}" stroke-width="2"/>'
        ends.append(marker(pointing, colour, at, y, 4) if cut else cap)
    along = f'<line x1="{left:g}%" x2="{right:g}%" y1="{y:g}" y2="{y:g}" stroke="{colour}" stroke-width="2"/>'
    return along + "".join(ends)


def rule(x: float, dash: str = "solid", width: float = 1.5, colour: str = "#808080") -> str:
    """A line from top to bottom at ``x`` (%): grey, dashed for a claim, thick for a limit."""
    dashes = ' stroke-dasharray="4 3"' if dash == "dash" else ""
    return f'<line x1="{x:g}%" x2="{x:g}%" y1="0" y2="100%" stroke="{colour}" stroke-width="{width:g}"{dashes}/>'


def band(left: float, right: float) -> str:
    """A shade behind what lies between ``left`` and ``right`` (%)."""
    return f'<rect x="{left:g}%" width="{right - left:g}%" y="0" height="100%" fill="#808080" fill-opacity="0.25"/>'


STRIPES = {
    "/": 'stroke-width="14" stroke-dasharray="2 5"',
    "\\": 'stroke-width="14" stroke-dasharray="1 2"',
    ".": 'stroke-width="4" stroke-dasharray="0 7" stroke-linecap="round"',
    "x": 'stroke-width="14" stroke-dasharray="6 6"',
    "-": 'stroke-width="4"',
}
"""Pattern of a bar → a line along its middle that draws it, without an id that two drawings of a page could share."""


def bar(left: float, right: float, colour: str, pattern: str = "", said: str = "", strength: float = 1.0) -> str:
    """A bar from ``left`` to ``right`` (%); the pointer is told what is ``said``."""
    wide, over = max(0.0, right - left), ""
    if pattern:
        along = f'x1="{left:g}%" x2="{right:g}%" y1="9" y2="9"'
        over = f'<line {along} stroke="#000" stroke-opacity="0.4" {STRIPES[pattern]}/>'
    return (
        f'<g><title>{escape(said)}</title><rect x="{left:g}%" width="{wide:g}%" y="2" height="14" fill="{colour}" '
        f'fill-opacity="{strength:g}"/>{over}</g>'
    )


def drawn(parts: Sequence[str], wide: str = "100%") -> str:
    """The SVG of ``parts``; it says nothing to who cannot see it, as the text beside it does."""
    size = f'width="{wide}" height="{HIGH}" overflow="visible"'
    return f'<svg class="lab-mark" {size} aria-hidden="true">{"".join(parts)}</svg>'


def swatch(colour: str, pattern: str = "", symbol: str = "") -> str:
    """What a key shows: a marker, or a piece of a bar."""
    return drawn([marker(symbol, colour) if symbol else bar(0, 100, colour, pattern)], "18")
