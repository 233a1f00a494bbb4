"""Rows by panels, as a table of marks: names at the left, and for each size (or whatever else differs) a column.

A cell holds one mark and its numbers. The page lays the table out: on a telephone a name stands above its cells, which
wrap.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from operator import attrgetter
from typing import Any

from hypatia_lab import intervals
from hypatia_lab.figures import INTERVALS, Figure, Key, described, marks
from hypatia_lab.figures.axes import Axis, extent
from hypatia_lab.figures.language import FigureError, Style
from hypatia_lab.formats import absent, significant
from hypatia_lab.intervals import Triple
from hypatia_lab.results import grouped

APART = 25
"""How far apart the ticks of a panel are at least, in percent of its width."""
NOTHING = (math.nan, math.nan, math.nan)
Look = tuple[str, str]
"""Colour and pattern of a bar."""


@dataclass(frozen=True)
class Segment:
    """A piece of a bar from ``start``, ``length`` long; the pointer is told what is ``said``."""

    start: float
    length: float
    look: Look
    said: str = ""
    strength: float = 1.0


@dataclass(frozen=True)
class Cell:
    """One mark: the ``name`` of its row, the ``panel`` it lies in, its value with its interval, and that as ``text``.

    ``said`` is what the pointer is told (lines end in <br>). Without a mark its ``status`` stands in its place.
    ``limit`` is drawn as a line; ``key`` names the mark in the figure's data. ``segments`` make it a bar, with the
    value beneath.
    """

    name: str
    panel: str
    look: Style
    triple: Triple
    said: str
    text: str = ""
    key: str = ""
    status: str = ""
    limit: float = math.nan
    segments: Sequence[Segment] = ()

    @property
    def drawn(self) -> bool:
        return bool(self.segments) or not absent(self.triple[0])


@dataclass(frozen=True)
class Block:
    """Panels on the same rows under a ``heading``, on one ``axis`` or, where it is a function, each on its own.

    ``lines``: (x, dash) across all rows. ``band``: the ±2% about 1 is shaded.
    """

    heading: str
    cells: Sequence[Cell]
    axis: Axis | Callable[[Sequence[Cell]], Axis]
    lines: Sequence[tuple[float, str]] = ()
    band: bool = False

    @property
    def rows(self) -> list[dict[str, Cell]]:
        """The rows from top to bottom, as in the panel that has most of them, then the others: panel → cell.

        A name that a panel has twice makes two rows.
        """
        found: dict[tuple[str, int], dict[str, Cell]] = {}
        for panel, own in sorted(self.panels.items(), key=lambda item: len(item[1]), reverse=True):
            seen: Counter[str] = Counter()
            for cell in own:
                found.setdefault((cell.name, seen[cell.name]), {})[panel] = cell
                seen[cell.name] += 1
        return list(found.values())

    @property
    def panels(self) -> dict[str, list[Cell]]:
        """Panel → its cells, in order."""
        return grouped(self.cells, attrgetter("panel"))

    def axes(self) -> dict[str, Axis]:
        """Panel → its axis."""
        return {panel: self.axis(own) if callable(self.axis) else self.axis for panel, own in self.panels.items()}


def split(heading: str, cells: Sequence[Cell], **more: Any) -> list[Block]:
    """``cells`` as one block; as one a panel where panels have few rows in common, which would lie there empty."""
    whole = Block(heading, cells, **more)
    if 2 * len(cells) > len(whole.rows) * len(whole.panels):
        return [whole]
    headings = {panel: ", ".join(filter(None, (panel, heading))) for panel in whole.panels}
    return [
        Block(headings[panel], [replace(cell, panel="") for cell in own], **more) for panel, own in whole.panels.items()
    ]


def stacked(parts: Sequence[Segment]) -> list[Segment]:
    """``parts`` of a bar, each from where the one before it ends; those without length are left out."""
    ends = itertools.accumulate((part.length for part in parts), initial=0.0)
    return [replace(part, start=at) for part, at in zip(parts, ends, strict=False) if part.length > 0]


def bars(
    lanes: Mapping[str, Sequence[Cell]],
    title: str,
    text: Callable[[float], str],
    lines: Sequence[tuple[float, str]] = (),
) -> list[Block]:
    """Stacked bars from 0 on one axis of what ``title`` says: a block a heading, a lane a cell with its segments."""
    cells = [cell for own in lanes.values() for cell in own]
    ends = [part.start + part.length for cell in cells for part in cell.segments]
    longest = max([*ends, *(x for x, _ in lines), *extent(cell.triple for cell in cells)], default=1.0)
    axis = Axis(0.0, longest, title, text=text)
    return [Block(heading, own, axis, lines) for heading, own in lanes.items()]


def draw(
    blocks: Sequence[Block], title: str, under: Sequence[str], table: Any, columns: Sequence[str], key: Key = ()
) -> Figure:
    """The figure of ``blocks``, one below the other; its alt text repeats ``columns`` of the ``table``.

    Raises :class:`FigureError` without a cell.
    """
    cells = [cell for block in blocks for cell in block.cells]
    if not cells:
        raise FigureError("panels: there is no row to draw")
    ended = any(cell.triple[1] < cell.triple[2] for cell in cells)
    facts = [part for part in (*under, INTERVALS if ended else "") if part]
    body = "".join(map(_table, blocks))
    return Figure(title, facts, key, described(title, facts, table, columns), list(blocks), body)


def _table(block: Block) -> str:
    axes = block.axes()
    titles = dict.fromkeys(axis.named for axis in axes.values())
    caption = " ".join(
        [f"<strong>{escape(block.heading)}</strong>"] * bool(block.heading) + [escape("; ".join(titles))]
    )
    heads = [f'<th scope="col">{escape(panel)}{_ticks(axis)}</th>' for panel, axis in axes.items()]
    lines = [
        f'<tr><th scope="row">{escape(next(iter(row.values())).name)}</th>'
        + "".join(_cell(block, row.get(panel), axis) for panel, axis in axes.items())
        + "</tr>"
        for row in block.rows
    ]
    return (
        f'<div class="lab-scroll" tabindex="0"><table class="lab-marks" style="width:100%"><caption>{caption}</caption>'
        f"<thead><tr><td></td>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _ticks(axis: Axis) -> str:
    """Round values of ``axis`` above their places, as many as a narrow column has room for."""
    found, last = [], -math.inf
    for tick in axis.ticks(most=3):
        at = axis.place(tick)
        if at - last >= APART:
            shift = -100 if at > 100 - APART / 3 else -50 if at > APART / 3 else 0
            look = f"position:absolute;left:{at:g}%;transform:translateX({shift}%);white-space:nowrap"
            found.append(f'<span style="{look}">{escape(axis.text(tick))}</span>')
            last = at
    return f'<small style="display:block;position:relative;height:1.4em">{"".join(found)}</small>'


def _cell(block: Block, cell: Cell | None, axis: Axis) -> str:
    if cell is None:
        return "<td></td>"
    label = f' data-label="{escape(cell.panel)}"' if cell.panel else ""
    if not cell.drawn:
        return f"<td{label}><em>{escape(cell.status.replace('_', ' '))}</em></td>"
    named = zip(("value", "low", "high"), cell.triple, strict=True)
    numbers = "".join(f' data-{name}="{significant(v):g}"' for name, v in named if not absent(v))
    said = escape(cell.said.replace("<br>", "\n"))
    text = re.sub(r"\[[^\]]*\]", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), cell.text)
    own = f'{label} data-key="{escape(cell.key)}"{numbers} title="{said}"'
    return f"<td{own}>{marks.drawn(_marks(block, cell, axis))}<small>{escape(text)}</small></td>"


def _marks(block: Block, cell: Cell, axis: Axis) -> list[str]:
    """What is drawn in a cell, from the ground up."""
    value, low, high = cell.triple
    found = []
    if block.band:
        ends = (axis.place(1 - intervals.EQUIVALENCE), axis.place(1 + intervals.EQUIVALENCE))
        found.append(marks.band(*ends))
    for part in cell.segments:
        ends = axis.place(part.start), axis.place(part.start + part.length)
        found.append(marks.bar(*ends, *part.look, part.said, part.strength))
    if cell.segments:  # a grey line would not show on a bar
        found += [marks.rule(axis.place(x), dash, 2.5, "currentColor") for x, dash in block.lines]
    else:
        found += [marks.rule(axis.place(x), dash) for x, dash in block.lines]
    if not absent(cell.limit):
        found.append(marks.rule(axis.place(cell.limit), width=3))
    middle = 19.0 if cell.segments else marks.HIGH / 2
    if low < high:
        left, right = (axis.place(end) if end > 0 or not axis.log else -1.0 for end in (low, high))
        found.append(marks.interval(left, right, cell.look.colour, middle))
    if not absent(value) and cell.look.symbol:
        found.append(marks.marker(cell.look.symbol, cell.look.colour, axis.place(value), middle))
    return found
