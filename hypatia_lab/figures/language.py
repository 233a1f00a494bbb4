"""The one visual language of every figure: the looks of variants.

A variant keeps its colour, marker and place everywhere; author, seed, peer and own differ in the marker's shape, so
they are told apart without colour too.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hypatia_lab.figures import marks
from hypatia_lab.variants import AGAIN, load, registered, variants

ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#999999"
PALETTE = (ORANGE, SKY, GREEN, BLUE, RED, PURPLE)
"""Okabe and Ito's colours that show on white and on black (https://jfly.uni-koeln.de/color/)."""
OLIVE, WINE = "#999933", "#AA4499"
"""Two of Paul Tol's, for named variants beyond the palette (https://personal.sron.nl/~pault/)."""
SHAPES = {
    "author": ("cross", "x", "bowtie", "hourglass", "star-square", "star-diamond"),
    "rebuilt": ("square", "diamond", "square-x", "diamond-x", "square-cross", "diamond-cross"),
    "peer": ("circle", "circle-x", "circle-cross", "hexagon", "hexagon2", "octagon"),
    "own": (
        "triangle-up",
        "star",
        "triangle-down",
        "hexagram",
        "triangle-left",
        "triangle-right",
        "star-triangle-up",
        "star-triangle-down",
    ),
}
"""Marker symbols by origin: crossed, angular, round, pointed."""
LINE = "#808080"
"""Limits, references and axes: a grey that shows on white and on black."""
FAINT = "rgba(128,128,128,0.25)"
PRECISIONS = ("float64/ieee", "float32/ieee", "float32/tf32", "bfloat16/ieee", "float16/ieee")
"""dtype/math of products, in the order of figures."""


class FigureError(ValueError):
    """A figure that cannot be drawn: the message names the figure and what is missing."""


@dataclass(frozen=True)
class Style:
    """How a variant looks: ``colour`` (hex), plotly marker ``symbol``, and its ``place`` among variants."""

    colour: str
    symbol: str
    place: int

    @property
    def swatch(self) -> str:
        """What a key shows of it (SVG)."""
        return marks.swatch(self.colour, symbol=self.symbol)


FIXED = {
    "eager": (GREY, "circle"),
    "naive": (RED, "square"),
    "cublas_relu": (ORANGE, "diamond"),
    "aten": (PURPLE, "square-x"),
    "epilogue": (GREEN, "circle-x"),
    "compile": (SKY, "hexagon"),
    "compile_max_autotune": (BLUE, "circle-cross"),
    "compile_reduce_overhead": (OLIVE, "octagon"),
    "compile_anchored": (WINE, "triangle-down"),
    "eager_direct": (RED, "diamond"),
    "c_openmp": (PURPLE, "square"),
    "triton": (ORANGE, "star"),
    "cuda": (GREEN, "triangle-up"),
    "author_v1": (RED, "cross"),  # in the colour of what was rebuilt from it
    "author_v2": (ORANGE, "x"),
    "author_planc": (PURPLE, "bowtie"),
}
"""Variant → colour and symbol, of the few that most pages show. All others draw theirs from their names."""
COLOURS = (*PALETTE, OLIVE, WINE)


def style(variant: str, origin: str) -> Style:
    """The look of ``variant``, the same in every figure; an A/A name looks like the variant it repeats, hollow.

    It follows from the name alone, unless somebody who registered before draws the same: then it is the next one that
    is free. An origin has as many looks as it has shapes times colours; when all are taken they are given again. Places
    are by origin, and within one in order of registration. Raises ``KeyError`` for an unknown origin.
    """
    name, again = variant.removesuffix(AGAIN), variant.endswith(AGAIN)
    looks = [(colour, symbol) for symbol in SHAPES[origin] for colour in COLOURS]
    taken = _registered(origin)
    if name in taken:
        number, place = taken[name], list(taken).index(name)
    else:
        number, place = _free(name, looks, taken.values()), len(taken) + zlib.crc32(name.encode()) % 1000
    colour, symbol = FIXED.get(name) or looks[number]
    ranked = 0 if name == "eager" else 1 + PLACES[origin] + place
    return Style(colour, symbol + "-open" if again else symbol, ranked)


PLACES = {"rebuilt": 0, "peer": 10_000, "own": 20_000, "author": 30_000}
"""Where the variants of an origin begin, from left to right behind eager."""


@functools.cache
def _registered(origin: str) -> dict[str, int]:
    """Names that the lab's variants of ``origin`` have → number of the look, in order of registration."""
    load()
    looks = [(colour, symbol) for symbol in SHAPES[origin] for colour in COLOURS]
    found: dict[str, int] = {}
    for operation in registered():
        for one in variants(operation).values():
            # A reader's own are registered in some processes only, and must move nobody's look there.
            if one.module.startswith("hypatia_lab.") and one.origin == origin and one.name not in found:
                found[one.name] = _free(one.name, looks, found.values())
    return found


def _free(name: str, looks: Sequence[tuple[str, str]], taken: Collection[int]) -> int:
    """The look that ``name`` draws, or the next neither ``taken`` nor fixed; the one it draws if there is none."""
    if FIXED.get(name) in looks:
        return looks.index(FIXED[name])
    drawn, gone = zlib.crc32(name.encode()) % len(looks), {*taken}
    gone |= {looks.index(fixed) for fixed in FIXED.values() if fixed in looks}
    after = (number % len(looks) for number in range(drawn, drawn + len(looks)))
    return next((number for number in after if number not in gone), drawn)
