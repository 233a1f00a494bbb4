"""Rows by panels: names at the left, and for each size (or whatever else differs) a narrow panel on the same rows.

On a telephone a name stands above its row, and two or three panels beside each other: ``meta["narrow"]`` holds what
changes in the layout, and the page's ``figures.js`` puts it in place.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypatia_lab.figures.language import (
    FAINT,
    SMALL,
    FigureError,
    Style,
    assemble,
    axis_place,
    equivalence_band,
    points_trace,
    rule_trace,
    thinned,
    with_legend,
)
from hypatia_lab.figures.probe_rows import bar_trace
from hypatia_lab.formats import absent, significant
from hypatia_lab.intervals import Triple

Axis = dict[str, Any]
LETTER = 7.4
"""Width of a letter of :data:`SMALL` words in a wide typeface, px."""
NAME, LONG, ABOVE = 34, 52, 46
"""Characters of a name on one line at the left, beside a single panel, and above its row on a telephone."""
PAGE, PHONE = 780, 350
"""Width of a figure on a page and on a telephone, px."""
ROW_NAME = "row"
"""``name`` of an annotation that lines may cross: ``figures.js`` lays it on a veil of the page's colour."""


@dataclass(frozen=True)
class Cell:
    """One value: the ``name`` of its row, the ``panel`` that it lies in, what the pointer is told (``said``).

    Without a value its ``status`` stands in its place. ``limit`` is drawn as a line through its row; ``key`` names it
    in the figure's data.
    """

    name: str
    panel: str
    look: Style
    triple: Triple
    said: str
    key: str = ""
    status: str = ""
    limit: float = math.nan
    limit_said: str = ""


@dataclass(frozen=True)
class Block:
    """Panels on the same rows under a ``heading``, on one ``axis`` or, where it is a function, each on its own.

    ``lines``: (x, dash, label) across all rows. ``band``: the ±2% about 1 is shaded. ``joined``: a line leads from row
    to row. ``bars``: bars from 0 in place of points, with the value written at their ends. ``legend``: below the figure
    it is said which marker each ``key`` has.
    """

    heading: str
    cells: Sequence[Cell]
    axis: Axis | Callable[[Sequence[Cell]], Axis]
    lines: Sequence[tuple[float, str, str]] = ()
    band: bool = False
    joined: bool = False
    bars: bool = False
    legend: bool = False

    @property
    def names(self) -> list[str]:
        """The rows from top to bottom: as in the panel that has most of them, then the others."""
        panels = [[cell.name for cell in own] for own in self.panels.values()]
        return list(dict.fromkeys(itertools.chain(*sorted(panels, key=len, reverse=True))))

    @property
    def panels(self) -> dict[str, list[Cell]]:
        """Panel → its cells, in order."""
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.panel, []).append(cell)
        return found


def split(heading: str, cells: Sequence[Cell], **more: Any) -> list[Block]:
    """``cells`` as one block; as one a panel where panels have few rows in common, which would lie there empty."""
    whole = Block(heading, cells, **more)
    if 2 * len(cells) > len(whole.names) * len(whole.panels):
        return [whole]
    headings = {panel: ", ".join(filter(None, (panel, heading))) for panel in whole.panels}
    return [
        Block(headings[panel], [replace(cell, panel="") for cell in own], **more) for panel, own in whole.panels.items()
    ]


@dataclass(frozen=True)
class _Panel:
    """One panel of the drawing: its ``number`` from 1, its place in its line, and whether it is the line's first."""

    number: int
    name: str
    cells: Sequence[Cell]
    axis: Axis

    @property
    def on(self) -> dict[str, str]:
        """What a trace says to lie here."""
        return tile(self.number - 1)

    @property
    def suffix(self) -> str:
        return "" if self.number == 1 else str(self.number)

    def place(self, x: float) -> float:
        """Where ``x`` lies between the ends of the axis, 0 to 1."""
        low, high = self.axis["range"]
        return (axis_place(self.axis, x) - low) / (high - low)


def draw(blocks: Sequence[Block], head: dict[str, Any], alt: str) -> Any:
    """The figure of ``blocks``, one below the other. Raises :class:`FigureError` without a cell."""
    if not any(block.cells for block in blocks):
        raise FigureError("panels: there is no row to draw")
    numbers = itertools.count(1)
    panels = [
        [
            _Panel(next(numbers), name, own, block.axis(own) if callable(block.axis) else block.axis)
            for name, own in block.panels.items()
        ]
        for block in blocks
    ]
    data = [trace for block, own in zip(blocks, panels, strict=True) for one in own for trace in _traces(block, one)]
    shapes = [
        equivalence_band(f"x{one.suffix}", f"y{one.suffix} domain")
        for block, own in zip(blocks, panels, strict=True)
        for one in own
        if block.band
    ]
    wide, narrow = (_placed(blocks, panels, head, narrow=narrow) for narrow in (False, True))
    if entries := [cell.key for block in blocks if block.legend for cell in block.cells]:
        wide, narrow = (_legend_below(placed, list(dict.fromkeys(entries))) for placed in (wide, narrow))
    layout = head | wide | {"shapes": shapes}
    layout["meta"] = head["meta"] | {"narrow": narrow}
    return assemble(data, layout, alt)


def _legend_below(placed: dict[str, Any], entries: Sequence[str]) -> dict[str, Any]:
    height = placed["height"] - placed["margin"]["t"] - placed["margin"]["b"]
    return with_legend(placed | {"height": height}, entries)


def _traces(block: Block, panel: _Panel) -> list[dict[str, Any]]:
    at = {name: n for n, name in enumerate(block.names)}
    across = [-0.5, len(at) - 0.5]
    rule = {"showlegend": False} | panel.on
    data = [rule_trace([x, x], across, dash, label, **rule) for x, dash, label in block.lines]
    ordered = sorted(panel.cells, key=lambda cell: at[cell.name])
    for limit, run in itertools.groupby(ordered, key=lambda cell: str(significant(cell.limit))):
        own = list(run)
        if not absent(float(limit)):  # as text, one absent limit equals another
            ends = [at[own[0].name] - 0.5, at[own[-1].name] + 0.5]
            data.append(rule_trace([float(limit)] * 2, ends, "solid", own[0].limit_said, **rule))
    drawn = [cell for cell in ordered if not absent(cell.triple[0])]
    if block.joined and len(drawn) > 1:
        way = [significant(cell.triple[0]) for cell in drawn], [at[cell.name] for cell in drawn]
        data.append(rule_trace(*way, "solid", "", **rule))
    for key in dict.fromkeys(cell.key for cell in drawn):
        own = [cell for cell in drawn if cell.key == key]
        places, said = [at[cell.name] for cell in own], [cell.said for cell in own]
        if block.bars:
            values = [cell.triple[0] for cell in own]
            shown = {
                "text": [f"{value:g}" if value else "" for value in values],
                "textposition": "outside",
                "cliponaxis": False,
            }
            bar = bar_trace(own[0].look.colour, "", None, values, places, hovertext=said, name=key, **shown)
            data.append(bar | {"showlegend": False, "width": 0.5} | panel.on)
            continue
        triples = [cell.triple for cell in own]
        data.append(
            points_trace(own[0].look, triples, places, said, name=key, showlegend=block.legend, size=9) | panel.on
        )
    return data


def _placed(
    blocks: Sequence[Block], panels: Sequence[Sequence[_Panel]], head: dict[str, Any], *, narrow: bool
) -> dict[str, Any]:
    """Axes, words, margins and height, on a page or ``narrow``."""
    room = NAME if any(len(own) > 1 for own in panels) else LONG
    labels = {name: "<br>".join(textwrap.wrap(name, room)) or name for block in blocks for name in block.names}
    left = 14 if narrow else round(20 + 6.5 * max(len(part) for text in labels.values() for part in text.split("<br>")))
    two = any("<br>" in text for text in labels.values())
    above = {name: textwrap.wrap(name, ABOVE) or [""] for block in blocks for name in block.names}
    more = 15 * (max(map(len, above.values())) - 1)
    pitch, over = (33 + more, 8 + more // 2) if narrow else (29 if two else 21, 0)
    lines: list[tuple[Block, Sequence[_Panel], bool]] = []
    for block, own in zip(blocks, panels, strict=True):
        rows = math.ceil(len(own) / (_beside(own) if narrow else 5))
        columns = math.ceil(len(own) / rows)
        lines += [(block, own[n : n + columns], n == 0) for n in range(0, len(own), columns)]
    layout: dict[str, Any] = {}
    notes: list[dict[str, Any]] = []
    spans, below, y, since = [], [], 0, 0
    for n, (block, own, first) in enumerate(lines):
        y += 22 if first and block.heading else 0
        y += max((15 * len(_wrapped(one.name, own, left, narrow)) + 5 for one in own if one.name), default=0)
        spans.append((y, y + pitch * len(block.names) + over))
        y, since = spans[-1][1], since + pitch * len(block.names)
        last = n + 1 == len(lines)
        following = [] if last else lines[n + 1][1]
        titled = last or following[0].axis["title"] != own[0].axis["title"]
        same = [one.axis for one in own] == [one.axis for one in following]
        ticked = titled or not same or since > 400
        since = 0 if ticked else since
        below.append((ticked, titled))
        y += 0 if last else 22 * ticked + 20 * titled + 8
    for (block, own, first), (top, bottom), (ticked, titled) in zip(lines, spans, below, strict=True):
        gap, wide = _shares(len(own), narrow)
        page = PHONE - 40 if narrow else PAGE - left - 26
        room = page * wide
        for column, one in enumerate(own):
            start = column * (wide + gap)
            axis = {key: value for key, value in one.axis.items() if key != "title"}
            if narrow and gap and "tickvals" in axis:
                axis = _inside(axis, room, page * gap)
            longest = max(map(len, axis.get("ticktext", ["0.00"])), default=4)
            ticks = max(2, int(room / (7 * longest + 18)))
            axis = thinned(axis, ticks) if "tickvals" in axis else axis | {"nticks": min(6, ticks + 1)}
            axis |= {"domain": [round(start, 4), round(start + wide, 4)], "anchor": f"y{one.suffix}"}
            layout[f"xaxis{one.suffix}"] = axis | {"showticklabels": ticked, "ticks": "outside" if ticked else ""}
            layout[f"yaxis{one.suffix}"] = {
                "domain": [round(1 - bottom / y, 5), round(1 - top / y, 5)],
                "anchor": f"x{one.suffix}",
                "range": [len(block.names) - 0.5, -0.5 - round(over / pitch, 2)],
                "tickvals": list(range(len(block.names))),
                "ticktext": [labels[name] for name in block.names],
                "showticklabels": not narrow and column == 0,
                "tickfont": {"size": 11 if two else 12},
                "gridcolor": FAINT,
            }
            if one.name:
                title = {"text": "<br>".join(_wrapped(one.name, own, left, narrow)), "yanchor": "bottom", "y": 1}
                notes.append(
                    SMALL | title | {"xref": f"x{one.suffix} domain", "x": 0.5, "yref": f"y{one.suffix} domain"}
                )
            notes += _statuses(block, one)
        high = top - max((15 * len(_wrapped(one.name, own, left, narrow)) + 5 for one in own if one.name), default=0)
        paper = SMALL | {"xref": "paper", "yref": "paper"}
        if first and block.heading:
            place = {"x": 0, "xanchor": "left", "xshift": 8 - left, "y": round(1 - high / y, 5), "yanchor": "bottom"}
            notes.append(paper | place | {"text": f"<b>{block.heading}</b>"})
        if titled:
            place = {"x": 0.5, "y": round(1 - bottom / y, 5), "yanchor": "top", "yshift": -22}
            notes.append(paper | place | {"text": own[0].axis["title"]["text"]})
        if narrow:
            place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": f"y{own[0].suffix}", "yanchor": "bottom"}
            place |= {"name": ROW_NAME, "yshift": 9 if block.bars else 6, "align": "left"}
            notes += [
                SMALL | place | {"text": "<br>".join(above[name]), "y": row} for row, name in enumerate(block.names)
            ]
    margin = head["margin"] | {"l": left, "r": 14 if narrow else 26}
    return layout | {"margin": margin, "height": y + margin["t"] + margin["b"], "annotations": notes}


def _shares(panels: int, narrow: bool) -> tuple[float, float]:
    """Of a line of so many ``panels``: the share of its width that lies between two, and that of each."""
    gap = (0.06 if narrow else 0.03) if panels > 1 else 0
    return gap, (1 - gap * (panels - 1)) / panels


def _beside(panels: Sequence[_Panel]) -> int:
    """How many of ``panels`` stand beside each other on a telephone: three where names and ticks have room, or two."""
    gap, wide = ((PHONE - 40) * share for share in _shares(3, narrow=True))
    named = all(LETTER * len(word) <= wide for one in panels for word in one.name.split())
    ticks = [_ticks_inside(one.axis, wide, gap) for one in panels if "tickvals" in one.axis]
    return 3 if named and all(ticks) else 2


def _ticks_inside(axis: Axis, room: float, gap: float) -> list[tuple[float, str]]:
    """Ticks of a log ``axis`` of ``room`` px whose labels meet neither each other nor, over the ``gap``, a neighbour's.

    None where fewer than two are left.
    """
    low, high = axis["range"]
    found = []
    for value, text in zip(axis["tickvals"], axis["ticktext"], strict=True):
        at, half = room * (axis_place(axis, value) - low) / (high - low), LETTER * len(text) / 2
        if at - half >= 3 - gap / 2 and at + half <= room + gap / 2 - 3:
            found.append((at, half, (value, text)))
    for stride in range(1, len(found)):
        kept = found[::stride]
        if all(a[0] + a[1] + 6 <= b[0] - b[1] for a, b in itertools.pairwise(kept)):
            return [tick for _, _, tick in kept]
    return []


def _inside(axis: Axis, room: float, gap: float) -> Axis:
    """``axis`` with the ticks of :func:`_ticks_inside`; as it is where there are none."""
    kept = _ticks_inside(axis, room, gap)
    if not kept:
        return axis
    return axis | {"tickvals": [value for value, _ in kept], "ticktext": [text for _, text in kept]}


def _wrapped(name: str, beside: Sequence[_Panel], left: float, narrow: bool) -> list[str]:
    """A panel's name on lines that end before its neighbour's; ``left`` is what the names of rows take of a page."""
    gap, wide = _shares(len(beside), narrow)
    room = (PHONE - 40) * wide if narrow else min(560 / len(beside), (PAGE - left - 26) * (wide + gap / 2))
    return textwrap.wrap(name, max(9, int(room / (LETTER if narrow else 6.8)))) if name else []


def _statuses(block: Block, panel: _Panel) -> list[dict[str, Any]]:
    """Why a row has no value here, beside all lines and not over one."""
    lines = [x for x, _, _ in block.lines] + [cell.limit for cell in panel.cells if not absent(cell.limit)]
    at = sorted([0.0, *(panel.place(x) for x in lines), 1.0])
    low, high = max(itertools.pairwise(at), key=lambda two: two[1] - two[0])
    place = {"xref": f"x{panel.suffix} domain", "x": round((low + high) / 2, 3), "yref": f"y{panel.suffix}"}
    place["name"] = ROW_NAME
    names = block.names
    return [
        SMALL | place | {"text": f"<i>{cell.status.replace('_', ' ')}</i>", "y": names.index(cell.name)}
        for cell in panel.cells
        if absent(cell.triple[0])
    ]


def tile(number: int) -> dict[str, str]:
    """What a trace says to lie in tile ``number``, from 0, of :func:`tiles`."""
    return {"xaxis": f"x{number + 1}", "yaxis": f"y{number + 1}"} if number else {}


def tiles(names: Sequence[str], across: Axis, up: Axis, head: dict[str, Any], tall: int = 110) -> dict[str, Any]:
    """The layout of a tile for each of ``names``, three beside each other, two on a telephone, all on the same axes.

    The title of ``across`` says what both show. A tile is ``tall`` px high.
    """

    def placed(columns: int) -> dict[str, Any]:
        said = textwrap.wrap(across["title"]["text"], 44 if columns < 3 else 110)
        columns = min(columns, len(names))
        rows = math.ceil(len(names) / columns)
        broken = [textwrap.wrap(name, 17 if columns < 3 else 34) for name in names]
        between = 15 * max(map(len, broken)) + 14
        height, wide = rows * (tall + between), (1 - 0.04 * (columns - 1)) / columns
        layout: dict[str, Any] = {}
        notes = [SMALL | {"xref": "paper", "x": 0.5, "yref": "paper", "y": 0, "yanchor": "top", "yshift": -22}]
        notes[0] |= {"text": "<br>".join(said)}
        for n, name in enumerate(broken):
            row, column = divmod(n, columns)
            suffix, left, top = (
                str(n + 1) if n else "",
                column * (wide + 0.04),
                1 - (row + 1) * (tall + between) / height,
            )
            layout[f"xaxis{suffix}"] = {k: v for k, v in across.items() if k != "title"} | {
                "domain": [round(left, 4), round(left + wide, 4)],
                "anchor": f"y{suffix}",
                "showticklabels": n + columns >= len(names),
            }
            layout[f"yaxis{suffix}"] = {k: v for k, v in up.items() if k != "title"} | {
                "domain": [round(max(0, top), 4), round(top + tall / height, 4)],
                "anchor": f"x{suffix}",
                "showticklabels": column == 0,
            }
            above = {"xref": f"x{suffix} domain", "x": 0, "xanchor": "left", "yref": f"y{suffix} domain", "y": 1}
            notes.append(SMALL | above | {"yanchor": "bottom", "text": "<br>".join(name), "align": "left"})
        margin = head["margin"] | {"b": head["margin"]["b"] + 15 * (len(said) - 1)}
        return layout | {"annotations": notes, "height": height + margin["t"] + margin["b"], "margin": margin}

    return head | placed(3) | {"meta": head["meta"] | {"narrow": placed(2)}}


def above_rows(layout: dict[str, Any], names: Sequence[str], tall: int = 44, share: float = 0.5) -> dict[str, Any]:
    """``layout`` of lanes in one panel, with its form on a telephone: names above the lanes in place of the left.

    A lane is ``tall`` px high, and its name stands by this ``share`` of it above the middle.
    """
    pitch = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    height = layout["height"] - pitch + tall * len(names)
    above = SMALL | {"xref": "paper", "x": 0, "xanchor": "left", "yanchor": "middle"}
    notes = [
        above | {"text": textwrap.shorten(name, ABOVE, placeholder="…"), "y": round(n - share, 2)}
        for n, name in enumerate(names)
    ]
    narrow = {
        "height": height,
        "margin": layout["margin"] | {"l": 14},
        "yaxis": layout["yaxis"] | {"showticklabels": False, "range": [len(names) - 0.5, round(-share - 0.18, 2)]},
        "annotations": [*layout.get("annotations", ()), *notes],
    }
    for legend in ("legend", "legend2"):
        if legend in layout:
            place = round(layout[legend]["y"] * layout["height"] / height, 4)
            narrow[legend] = layout[legend] | {"y": place}
    return layout | {"meta": layout["meta"] | {"narrow": narrow}}
