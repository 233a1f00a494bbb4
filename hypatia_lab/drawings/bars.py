"""A few measured numbers side by side, small enough to stand beside a sentence. Whoever draws them gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypatia_lab.drawings.canvas import BLUE, LINE, RED, WIDTH, Canvas

LANE, HIGH, LEFT = 52, 20, 8
"""Height of a lane and of its bar, and where bars begin."""
ROOM = 92
"""Width that is left for the number behind the longest bar."""


@dataclass(frozen=True)
class Bar:
    """One number: what it is of, the number with the ends of its interval, how it is written, and how it looks."""

    label: str
    value: float
    low: float
    high: float
    text: str
    strong: bool = False


def bars(name: str, title: str, lanes: Sequence[Bar], *, mark: tuple[float, str] | None = None) -> Canvas:
    """``lanes`` below each other on one linear scale from 0, intervals as lines across the bars' ends.

    ``mark`` is a value to hold them against, such as one that was claimed, with its words: a line in red across each
    bar. ``name`` must be one that no other drawing of the page has. Raises ``ValueError`` without lanes.
    """
    if not lanes:
        raise ValueError("bars: nothing to draw")
    above = 24 if mark else 0
    said = "; ".join(f"{bar.label}: {bar.text}" for bar in lanes) + (f"; {mark[1]}" if mark else "")
    draw = Canvas(name, title, f"{said}. Lines across the ends are 95% intervals.", above + LANE * len(lanes))
    scale = (WIDTH - LEFT - ROOM) / max([*(bar.high for bar in lanes), mark[0] if mark else 0])
    for number, bar in enumerate(lanes):
        top = above + number * LANE
        draw.label(LEFT, top + 16, bar.label)
        look = "strong" if bar.strong else "soft"
        draw.rectangle(LEFT, top + 23, bar.value * scale, HIGH, colour=BLUE if bar.strong else LINE, look=look)
        middle, ends = top + 23 + HIGH / 2, [LEFT + end * scale for end in (bar.low, bar.high)]
        if ends[1] - ends[0] > 3:  # a narrower one lies within the bar's own edge
            draw.line([(ends[0], middle), (ends[1], middle)], stroke=2)
            for end in ends:  # without caps a short one reads as the minus of the number behind it
                draw.line([(end, middle - 5), (end, middle + 5)], stroke=2)
        draw.label(ends[1] + 8, middle + 6, bar.text, size=17, bold=True)
    if mark:
        at = LEFT + mark[0] * scale
        for number in range(len(lanes)):  # not across the words
            top = above + number * LANE + 23
            draw.line([(at, top - 3), (at, top + HIGH + 3)], colour=RED, stroke=3)
        if at < WIDTH / 2:
            draw.label(at, 14, f"| {mark[1]}")
        else:
            draw.label(at + 4, 14, f"{mark[1]} |", anchor="end")
    return draw
