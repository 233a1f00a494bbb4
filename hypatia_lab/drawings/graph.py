"""Drawings of graphs: operations top to bottom, and e-graphs, whose boxes hold every known way to the same value.

What is new has a thick edge and a bold word, not a colour alone. The layout is a list: what reads comes below what it
reads, and edges that skip a box pass to its right. Parameters are left out.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from hypatia_lab.drawings.canvas import GREEN, INK, Canvas, Point

WIDE, TALL, GAP, STEP = 118, 26, 14, 44
"""Size of a node, space between nodes of one box, and between boxes, px."""
SIZE = 12
"""Of words."""
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
    """One drawing: a ``caption``, and for every box its nodes, boxes in order, none reading a later one first.

    With ``classes`` the boxes are drawn around their nodes.
    """

    caption: str
    boxes: tuple[tuple[Node, ...], ...]
    classes: bool = False

    @property
    def columns(self) -> int:
        """Nodes side by side in the widest box."""
        return max((len(nodes) for nodes in self.boxes), default=1)

    def between(self, child: int, number: int) -> int:
        """Nodes of the widest box that lies between two."""
        return max((len(self.boxes[n]) for n in range(child + 1, number)), default=0)

    @property
    def lanes(self) -> list[int]:
        """Boxes with edges that must pass on the right of all others, each on a lane of its own."""
        return sorted(
            {
                child
                for number, nodes in enumerate(self.boxes)
                for column, node in enumerate(nodes)
                for child in node.reads
                if self.between(child, number) > column
            },
            reverse=True,
        )

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, px."""
        width = self.columns * (WIDE + GAP) - GAP + 2 * EDGE + LANE * len(self.lanes)
        return width, HEAD + len(self.boxes) * (TALL + STEP) - STEP + EDGE


def drawn(panels: Sequence[Panel], title: str, description: str, name: str) -> Canvas:
    """The panels side by side, row by row; ``name`` is unique on the page.

    ``title`` says what is to be seen, ``description`` tells it to those who do not see it.
    """
    places, width, height = _places(panels)
    # Narrower than that its words would be too small to read.
    draw = Canvas(name, title, description, height, width, width, round(0.85 * width))
    for place, panel in zip(places, panels, strict=True):
        _panel(draw, panel, *place)
    return draw


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


def _panel(draw: Canvas, panel: Panel, left: int, top: int) -> None:
    def x(column: int) -> int:
        return left + EDGE + column * (WIDE + GAP)

    def y(number: int) -> int:
        return top + HEAD + number * (TALL + STEP)

    margin = 6 if panel.classes else 0

    def arrow(child: int, number: int, column: int) -> list[Point]:
        """From the bottom of box ``child`` to the top of a node; past what lies between on the right of it."""
        middle, end = x(column) + WIDE // 2, y(number) - 1
        own, between = len(panel.boxes[child]), panel.between(child, number)
        beside = (x(own - 1) + WIDE + margin, y(child) + TALL // 2)
        if column < own and between <= column:
            return [(middle, y(child) + TALL + margin), (middle, end)]
        if between <= column:  # the child's box is too narrow to stand above: leave it by its side
            return [beside, (middle, beside[1]), (middle, end)]
        lane = x(panel.columns - 1) + WIDE + margin + LANE * (1 + panel.lanes.index(child))
        turn = y(number) - STEP // 2 + margin
        return [beside, (lane, beside[1]), (lane, turn), (middle, turn), (middle, end)]

    draw.label(left + EDGE, top + 14, panel.caption, size=SIZE, bold=True)
    for number, nodes in enumerate(panel.boxes):
        if panel.classes:
            width = len(nodes) * (WIDE + GAP) - GAP + 12
            draw.rectangle(x(0) - 6, y(number) - 6, width, TALL + 12, dashed=True, stroke=1, corner=8)
        for column, node in enumerate(nodes):
            colour, look = (GREEN, "soft") if node.chosen else (INK, "none")
            how = {"size": SIZE, "stroke": 2.5 if node.new else 1}
            draw.rectangle(x(column), y(number), WIDE, TALL, node.label, colour=colour, look=look, bold=node.new, **how)
            for child in node.reads:
                draw.arrow(*arrow(child, number, column), stroke=1)


def show(panels: Sequence[Panel], title: str, description: str, name: str) -> None:
    """Display the drawing in a notebook under its title, with the description as plain text beside it."""
    from IPython.display import display

    page = (
        '<figure class="lab-graph" style="margin:1em 0">'
        f"<figcaption><strong>{html.escape(title)}</strong></figcaption>\n"
        f'<div class="lab-scroll" tabindex="0" style="overflow-x:auto">'
        f"{drawn(panels, title, description, name).svg()}</div>\n"
        f"<details><summary>In words</summary><p>{html.escape(description)}</p></details></figure>"
    )
    display({"text/html": page, "text/plain": f"{title}. {description}"}, raw=True)
