"""A figure of shares: how many of so many cases end in which way, as one bar a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import formats, intervals, tables
from hypatia_lab.figures import marks
from hypatia_lab.figures.language import BLUE, GREEN, GREY, ORANGE, RED, SKY, FigureError, Style
from hypatia_lab.figures.mark_rows import NOTHING, Cell, Segment, bars, draw, stacked

AHEAD, LEVEL, BEHIND, NONE = "ahead", "level", "behind", "no own form"
LOOKS = {
    AHEAD: (GREEN, ""),
    LEVEL: (SKY, "."),
    BEHIND: (RED, "/"),
    intervals.TOO_NOISY: (GREY, "x"),
    intervals.TOO_FEW: (ORANGE, "-"),
    NONE: (BLUE, "\\"),
}
"""Word → colour and pattern of its part of a bar, in the order of the bar."""


def shares(rows: Mapping[str, Sequence[str]], title: str, under: Sequence[str]) -> tuple[Any, Any]:
    """A bar a row of ``rows``, whose words (of :data:`LOOKS`) are counted: the share of each, the counts beneath.

    Raises :class:`FigureError` where no row has a word, or for a word that has no look.
    """
    kept = {name: words for name, words in rows.items() if words}
    if not kept:
        raise FigureError("shares: there is nothing to count")
    if strange := {word for words in kept.values() for word in words} - LOOKS.keys():
        raise FigureError(f"shares: no look for {formats.listing(sorted(strange))}")
    cells, table = [], []
    for name, words in kept.items():
        counts = {word: words.count(word) for word in LOOKS}
        table.append({"case": name} | {word: str(n) for word, n in counts.items()} | {"of": str(len(words))})
        parts = [
            Segment(0, 100 * n / len(words), LOOKS[word], f"{word}: {n} of {len(words)}") for word, n in counts.items()
        ]
        text = f"{', '.join(f'{n} {word}' for word, n in counts.items() if n)}; of {len(words)}"
        cells.append(Cell(name, "", Style(GREY, "", 0), NOTHING, name, text, name, segments=stacked(parts)))
    seen = [word for word in LOOKS if any(word in words for words in kept.values())]
    key = [(marks.swatch(*LOOKS[word]), word) for word in seen]
    found = tables.frame(table)
    blocks = bars({"": cells}, "share of the shapes", lambda share: f"{share:.0f}%")
    return draw(blocks, title, under, found, ["case", *seen, "of"], key), found
