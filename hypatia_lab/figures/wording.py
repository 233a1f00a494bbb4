"""The words for what tells rows apart, and for what they have in common."""

from __future__ import annotations

from collections.abc import Sequence

from hypatia_lab import formats
from hypatia_lab.formats import listing
from hypatia_lab.results import Row
from hypatia_lab.variants import label

CLOCKS = ("wall", "hot", "graph", "cold", "profiler")
"""Rungs of the method ladder, from what a caller waits for down to what the kernel takes."""


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


def named(row: Row) -> str:
    """What a person calls the row's variant."""
    return label(row.operation, row.variant)


def bases(rows: Sequence[Row]) -> str:
    """What a person calls that which ``rows`` are held against."""
    called = list(dict.fromkeys(label(r.operation, r.baseline) for r in rows))
    return called[0] if len(called) == 1 else "the baseline"
