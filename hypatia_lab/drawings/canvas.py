"""The shapes that drawings are made of, and the SVG that they become.

Lines and text take the page's own colour. Widths are in units of a drawing 440 wide, which a telephone shows at about
eight tenths; :data:`WIDEST` keeps it from growing past the text around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

from hypatia_lab.figures.language import BLUE, GREEN, LINE, RED, WINE

WIDTH, WIDEST = 440, 560
"""Units a drawing is wide, and most pixels that it takes."""
TEXT = 14
"""Size of a label."""
INK = "currentColor"
OPACITY = {"soft": 0.2, "strong": 0.55}
"""How much of its colour fills a shape; ``hatch`` fills it with stripes, ``none`` not at all."""

__all__ = ["BLUE", "GREEN", "INK", "LINE", "RED", "TEXT", "WIDTH", "WINE", "Canvas"]

Point = tuple[float, float]


def _n(value: float) -> str:
    """Two decimals at most, so that the text is the same on every machine."""
    return f"{round(value, 2) + 0.0:g}"


def _path(points: Sequence[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


@dataclass
class Canvas:
    """A drawing ``height`` units high: ``name`` (unique), ``title`` (its message), ``description`` (for who sees none).

    It takes at most ``widest`` px, and at ``least`` so many: where there are fewer, its box has to scroll.
    Shapes are drawn in the order of the calls. ``look`` of a shape is "none", "soft", "strong" or "hatch".
    """

    name: str
    title: str
    description: str
    height: float
    width: float = WIDTH
    widest: float = WIDEST
    least: float = 0
    parts: list[str] = field(default_factory=list)
    stripes: dict[str, str] = field(default_factory=dict)

    def _fill(self, colour: str, look: str) -> str:
        if look == "hatch":
            where = self.stripes.setdefault(colour, f"{self.name}-stripes-{len(self.stripes)}")
            return f'fill="url(#{where})"'
        return 'fill="none"' if look == "none" else f'fill="{colour}" fill-opacity="{OPACITY[look]}"'

    def _add(
        self, tag: str, colour: str, look: str = "none", stroke: float = 0, dashed: bool = False, **where: float | str
    ) -> None:
        """One element: ``where`` it lies, how it is filled, and its edge if it has one."""
        place = " ".join(f'{name}="{one if isinstance(one, str) else _n(one)}"' for name, one in where.items())
        edge = f' stroke="{colour}" stroke-width="{_n(stroke)}"' if stroke else ""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f"<{tag} {place} {self._fill(colour, look)}{edge}{dash}/>")

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        text: str = "",
        *,
        colour: str = INK,
        look: str = "none",
        dashed: bool = False,
        stroke: float = 1.5,
        size: float = TEXT,
        bold: bool = False,
        corner: float = 3,
    ) -> None:
        """A rectangle with ``text`` in its middle, lines of it parted by newlines."""
        self._add("rect", colour, look, stroke, dashed, x=x, y=y, width=width, height=height, rx=corner)
        lines = text.count("\n")
        middle = y + height / 2 + 0.36 * size - lines * 0.625 * size
        if text:
            self.label(x + width / 2, middle, text, anchor="middle", size=size, bold=bold)

    def cells(
        self,
        x: float,
        y: float,
        rows: int,
        columns: int,
        size: Point,
        filled: Callable[[int, int], tuple[str, str] | None] = lambda row, column: None,
    ) -> None:
        """A grid of cells of ``size`` (wide, high); ``filled(row, column)`` is a cell's colour and look, or None."""
        wide, high = size
        for row in range(rows):
            for column in range(columns):
                if inside := filled(row, column):
                    self._add("rect", *inside, x=x + column * wide, y=y + row * high, width=wide, height=high)
        across = "".join(f"M{_n(x)} {_n(y + r * high)}h{_n(columns * wide)}" for r in range(rows + 1))
        down = "".join(f"M{_n(x + c * wide)} {_n(y)}v{_n(rows * high)}" for c in range(columns + 1))
        self._add("path", INK, stroke=0.75, d=across + down)

    def line(self, points: Sequence[Point], *, colour: str = INK, dashed: bool = False, stroke: float = 1.5) -> None:
        """A line through ``points``."""
        self._add("polyline", colour, "none", stroke, dashed, points=_path(points))

    def arrow(self, *points: Point, colour: str = INK, dashed: bool = False, stroke: float = 1.5) -> None:
        """A line through ``points`` with its head at the last."""
        (x0, y0), (x1, y1) = points[-2:]
        length, reach = math.hypot(x1 - x0, y1 - y0), 5 + 2 * stroke
        along, across = ((x1 - x0) / length, (y1 - y0) / length), 0.45
        x, y = x1 - reach * along[0], y1 - reach * along[1]
        side = (-along[1] * reach * across, along[0] * reach * across)
        head = [(x1, y1), (x + side[0], y + side[1]), (x - side[0], y - side[1])]
        self.line([*points[:-1], (x, y)], colour=colour, dashed=dashed, stroke=stroke)
        self.parts.append(f'<polygon points="{_path(head)}" fill="{colour}"/>')

    def circle(self, x: float, y: float, radius: float, *, colour: str = INK, look: str = "none") -> None:
        """A circle round (x, y)."""
        self._add("circle", colour, look, 1.5, cx=x, cy=y, r=radius)

    def label(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: float = TEXT, bold: bool = False
    ) -> None:
        """Text on the line ``y``, further lines below it; ``anchor`` is "start", "middle" or "end"."""
        weight = ' font-weight="bold"' if bold else ""
        for number, line in enumerate(text.split("\n")):
            if line:
                self.parts.append(
                    f'<text x="{_n(x)}" y="{_n(y + 1.25 * size * number)}" font-size="{_n(size)}" '
                    f'text-anchor="{anchor}" fill="{INK}"{weight}>{escape(line)}</text>'
                )

    def group(
        self, x: float, y: float, width: float, height: float, title: str, *, dashed: bool = False, below: bool = False
    ) -> None:
        """A frame around what is drawn in it, with its title inside at the top, or at the bottom (``below``)."""
        self.rectangle(x, y, width, height, dashed=dashed, corner=8)
        self.label(x + 10, y + (height - 9 if below else 19), title)

    def svg(self) -> str:
        """The drawing as an SVG element that any page can hold."""
        stripes = "".join(
            f'<pattern id="{where}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<path d="M0 0v6" stroke="{colour}" stroke-width="3" stroke-opacity="{OPACITY["strong"]}"/></pattern>'
            for colour, where in self.stripes.items()
        )
        least = f"min-width:{_n(self.least)}px;" if self.least else ""
        ids = f"{self.name}-title", f"{self.name}-description"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(self.width)} {_n(self.height)}" role="img" '
            f'aria-labelledby="{ids[0]} {ids[1]}" font-family="system-ui, sans-serif" '
            f'style="width:100%;{least}max-width:{_n(self.widest)}px;height:auto">'
            f'<title id="{ids[0]}">{escape(self.title)}</title><desc id="{ids[1]}">{escape(self.description)}</desc>'
            + (f"<defs>{stripes}</defs>" if stripes else "")
            + "".join(self.parts)
            + "</svg>"
        )
