"""The one visual language of every figure: looks of variants, and the words for what tells rows apart.

A variant keeps its colour, marker and place everywhere; author, seed, peer and own differ in the marker's shape, so
they are told apart without colour too.
"""

from __future__ import annotations

import functools
import textwrap
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats
from hypatia_lab.figures import marks
from hypatia_lab.formats import absent, listing
from hypatia_lab.results import Row
from hypatia_lab.variants import AGAIN, label, load, registered, variants

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
CLOCKS = ("wall", "hot", "graph", "cold", "profiler")
"""Rungs of the method ladder, from what a caller waits for down to what the kernel takes."""


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
            ours = one.factory.__module__.startswith("hypatia_lab.")
            if ours and one.origin == origin and one.name not in found:
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


def measured(rows: Sequence[Row], figure: str, key: str, what: str) -> list[Row]:
    """The rows that have ``key``, smallest workload first. Raises :class:`FigureError` when none has."""
    if not rows:
        raise FigureError(
            f"{figure}: no rows to draw; the records hold none of what was asked for, or only baselines and A/A pairs"
        )
    kept = [row for row in rows if not absent(getattr(row, key))]
    if not kept:
        seen = "; ".join(dict.fromkeys(f"{r.variant} by {r.clock}: {r.status} {r.reason}".strip() for r in rows))
        raise FigureError(f"{figure}: none of {len(rows)} rows has {what} ({textwrap.shorten(seen, 400)})")
    return kept


def ordered(rows: Sequence[Row]) -> list[Row]:
    """``rows`` by operation, then smallest work and size first; variants in their places."""

    def place(r: Row) -> tuple[Any, ...]:
        extents = [int(extent) for extent in r.shape.split("x")]
        here = (r.workload, r.machine, r.clock)
        return r.operation, r.flops, extents, *here, style(r.variant, r.origin).place

    return sorted(rows, key=place)


def where(row: Row, field: str) -> str:
    return {
        "shape": formats.model(row.shape) if row.operation == "mlp" else formats.shape(row.shape),
        # Only float32 has a default of its own, and a telephone no room to say so.
        "math": row.math if row.math == "default" else f"{row.dtype}/{row.math}",
        "clock": f"{row.clock} clock",
        "direction": formats.direction(row.direction),
    }.get(field, str(getattr(row, field)))


FIELDS = ("operation", "shape", "math", "direction", "clock", "machine")


def split_fields(rows: Sequence[Row], always: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The fields that tell rows apart (and those in ``always``), and what they all have in common, as text.

    That everything is forward goes without saying.
    """
    apart = [f for f in FIELDS if f in always or len({where(r, f) for r in rows}) > 1]
    common = [where(rows[0], f) for f in FIELDS if f not in apart]
    return apart, [text for text in common if text != formats.direction("forward")]


def several(row: Row, fields: Sequence[str]) -> str:
    return ", ".join(where(row, f) for f in fields)


def launch_note(rows: Sequence[Row]) -> str:
    """Which of ``rows`` are timed with the lab's launch path, for the line under a title; empty where none is."""
    own = [r for r in rows if r.launch_path]
    if not own:
        return ""
    others = any(r.origin == "rebuilt" and not r.launch_path for r in rows)
    clocks = listing([c for c in CLOCKS if any(r.clock == c for r in own)])
    return f"rewrites{f' by {clocks}' if others else ''}: with the lab's launch path"


def contenders(rows: Sequence[Row]) -> list[Row]:
    """Rows that can say something against a baseline: not the baseline itself, not an A/A control."""
    return [r for r in singles(rows) if r.variant != r.baseline]


def singles(rows: Sequence[Row]) -> list[Row]:
    """Rows without those of the A/A control."""
    return [r for r in rows if not r.is_twin]


def named(row: Row) -> str:
    """What a person calls the row's variant."""
    return label(row.operation, row.variant)


def bases(rows: Sequence[Row]) -> str:
    """What a person calls that which ``rows`` are held against."""
    called = list(dict.fromkeys(label(r.operation, r.baseline) for r in rows))
    return called[0] if len(called) == 1 else "the baseline"
