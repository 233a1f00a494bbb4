"""Drawings of graphs: operations top to bottom, and e-graphs, whose boxes hold every known way to the same value.

SVG with the page's own text colour, so that it is readable on white and on black; what is new has a thick edge and a
word, not a colour alone. The layout is a list: what reads comes below what it reads, and edges that skip a box pass to
its right. Parameters are left out.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from hypatia_lab.figures.language import GREEN

WIDE, TALL, GAP, STEP = 118, 26, 14, 44
"""Size of a node, space between nodes of one box, and between boxes, px."""
HEAD, EDGE, LANE = 30, 22, 9
"""Space for a panel's caption, around it, and for an edge that passes outside, px."""

PAGE = 800
"""Width of a row of panels, px: more would be drawn too small to read."""


@dataclass(frozen=True)
class Node:
    """One way to compute a value: its ``label``, the numbers of the boxes that it ``reads``; ``new`` ones stand out,
    and of what was ``chosen`` the node is filled."""

    label: str
    reads: tuple[int, ...] = ()
    new: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class Panel:
    """One drawing: a ``caption``, and for every box its ways, boxes in order, none reading a later one first.

    With ``classes`` the boxes are drawn around their ways.
    """

    caption: str
    boxes: tuple[tuple[Node, ...], ...]
    classes: bool = False

    @property
    def columns(self) -> int:
        """Nodes side by side in the widest box."""
        return max((len(ways) for ways in self.boxes), default=1)

    def between(self, child: int, number: int) -> int:
        """Nodes of the widest box that lies between two."""
        return max((len(self.boxes[n]) for n in range(child + 1, number)), default=0)

    @property
    def lanes(self) -> list[int]:
        """Boxes with edges that must pass on the right of all others, each on a lane of its own."""
        return sorted(
            {
                child
                for number, ways in enumerate(self.boxes)
                for column, way in enumerate(ways)
                for child in way.reads
                if self.between(child, number) > column
            },
            reverse=True,
        )

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, px."""
        width = self.columns * (WIDE + GAP) - GAP + 2 * EDGE + LANE * len(self.lanes)
        return width, HEAD + len(self.boxes) * (TALL + STEP) - STEP + EDGE


def svg(panels: Sequence[Panel], title: str, description: str, key: str) -> str:
    """The panels side by side, row by row, as one SVG element; ``key`` makes its ids unique on the page.

    ``title`` says what is to be seen, ``description`` tells it to those who do not see it.
    """
    places, width, height = _places(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-labelledby="{key}-title {key}-desc" '
        # Narrower than that its words would be too small to read: it scrolls in its box instead.
        f'style="min-width:{round(0.85 * width)}px;max-width:{width}px;width:100%;height:auto;color:inherit" '
        'font-family="system-ui, sans-serif" font-size="12" fill="none" stroke="currentColor">',
        f'<title id="{key}-title">{html.escape(title)}</title>',
        f'<desc id="{key}-desc">{html.escape(description)}</desc>',
        f'<defs><marker id="{key}-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor" stroke="none"/></marker></defs>',
    ]
    for (left, top), panel in zip(places, panels, strict=True):
        parts.append(f'<g transform="translate({left} {top})">{_panel(panel, key)}</g>')
    return "\n".join([*parts, "</svg>"])


def _places(panels: Sequence[Panel]) -> tuple[list[tuple[int, int]], int, int]:
    """Left upper corners of the panels, as many in a row as a page holds, and width and height of the whole."""
    places, left, top, row, width = [], 0, 0, 0, 0
    for panel in panels:
        if left and left + panel.size[0] > PAGE:
            left, top, row = 0, top + row, 0
        places.append((left, top))
        left, row = left + panel.size[0], max(row, panel.size[1])
        width = max(width, left)
    return places, width, top + row


def _x(column: int) -> int:
    return EDGE + column * (WIDE + GAP)


def _y(number: int) -> int:
    return HEAD + number * (TALL + STEP)


def _panel(panel: Panel, key: str) -> str:
    out = [_text(EDGE, 14, panel.caption, anchor="start", weight="600")]
    for number, ways in enumerate(panel.boxes):
        y = _y(number)
        if panel.classes:
            width = len(ways) * (WIDE + GAP) - GAP + 12
            out.append(
                f'<rect x="{EDGE - 6}" y="{y - 6}" width="{width}" height="{TALL + 12}" rx="8" '
                'stroke-dasharray="4 3" stroke-opacity="0.6"/>'
            )
        for column, way in enumerate(ways):
            x = _x(column)
            fill = f'fill="{GREEN}" fill-opacity="0.25"' if way.chosen else ""
            thick = 2.5 if way.new else 1
            out.append(f'<rect x="{x}" y="{y}" width="{WIDE}" height="{TALL}" rx="4" stroke-width="{thick}" {fill}/>')
            out.append(_text(x + WIDE // 2, y + 17, way.label, weight="600" if way.new else "400"))
            out += [_arrow(panel, child, number, column, key) for child in way.reads]
    return "".join(out)


def _arrow(panel: Panel, child: int, number: int, column: int, key: str) -> str:
    """From the bottom of box ``child`` to the top of a node; past what lies between on the right of it."""
    margin = 6 if panel.classes else 0
    x, end = _x(column) + WIDE // 2, _y(number) - 1
    start = _y(child) + TALL + margin
    own, between = len(panel.boxes[child]), panel.between(child, number)
    if column < own and between <= column:
        path = f"M{x} {start}V{end}"
    elif between <= column:
        # The child's box is too narrow to stand above: leave it by its side.
        path = f"M{_x(own - 1) + WIDE + margin} {_y(child) + TALL // 2}H{x}V{end}"
    else:
        lane = _x(panel.columns - 1) + WIDE + margin + LANE * (1 + panel.lanes.index(child))
        turn = _y(number) - STEP // 2 + margin
        path = f"M{_x(own - 1) + WIDE + margin} {_y(child) + TALL // 2}H{lane}V{turn}H{x}V{end}"
    return f'<path d="{path}" stroke-opacity="0.75" marker-end="url(#{key}-tip)"/>'


def _text(x: int, y: int, words: str, *, anchor: str = "middle", weight: str = "400") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="currentColor" stroke="none">'
        f"{html.escape(words)}</text>"
    )


def show(panels: Sequence[Panel], title: str, description: str, key: str) -> None:
    """Display the drawing in a notebook under its title, with the description as plain text beside it."""
    from IPython.display import display

    drawn = svg(panels, title, description, key)
    page = (
        '<figure class="lab-graph" style="margin:1em 0">'
        f"<figcaption><strong>{html.escape(title)}</strong></figcaption>\n"
        f'<div class="lab-scroll" tabindex="0" style="overflow-x:auto">{drawn}</div>\n'
        f"<details><summary>In words</summary><p>{html.escape(description)}</p></details></figure>"
    )
    display({"text/html": page, "text/plain": f"{title}. {description}"}, raw=True)
