"""A figure of shares: how many of so many cases end in which way, as one bar a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.figures.language import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    FigureError,
    assemble,
    heading,
    with_legend,
)
from hypatia_lab.figures.panels import above_rows
from hypatia_lab.figures.probe_rows import bar_trace, frame, lanes

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
    """A bar a row of ``rows``, whose words (of :data:`LOOKS`) are counted: the share of each, with its count in it.

    Behind a row's name stands how many words it has. Raises :class:`FigureError` where no row has a word, or for a word
    that has no look.
    """
    kept = {name: words for name, words in rows.items() if words}
    if not kept:
        raise FigureError("shares: there is nothing to count")
    if strange := {word for words in kept.values() for word in words} - LOOKS.keys():
        raise FigureError(f"shares: no look for {formats.listing(sorted(strange))}")
    data, table, names = [], [], [f"{name} ({len(words)})" for name, words in kept.items()]
    for name, words in kept.items():
        counts = {word: f"{words.count(word)}" for word in LOOKS}
        table.append({"case": name} | counts | {"of": str(len(words))})
    for word, (colour, pattern) in LOOKS.items():
        base, length, at, text, said = [], [], [], [], []
        for n, (name, words) in enumerate(kept.items()):
            if count := words.count(word):
                before = sum(words.count(one) for one in list(LOOKS)[: list(LOOKS).index(word)])
                base.append(100 * before / len(words))
                length.append(100 * count / len(words))
                at.append(n)
                text.append(str(count))
                said.append(f"{name}<br>{word}: {count} of {len(words)}")
        if at:
            shown = {"text": text, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
            bars = bar_trace(colour, pattern, base, length, at, hovertext=said, name=word, width=0.6, **shown)
            data.append(bars | {"showlegend": True})
    head = heading(title, [*under, "a number: how many shapes, in brackets: of how many"])
    axis = {"range": [0, 100], "title": {"text": "share of the shapes, %"}}
    layout = lanes(head, names) | {"barmode": "overlay", "xaxis": axis}
    layout = above_rows(with_legend(layout, [trace["name"] for trace in data]), names)
    told = "; ".join(
        f"{line['case']}: {', '.join(f'{line[word]} {word}' for word in LOOKS if line[word] != '0')} of {line['of']}"
        for line in table
    )
    return assemble(data, layout, f"{title}. {told}."), frame(table)
