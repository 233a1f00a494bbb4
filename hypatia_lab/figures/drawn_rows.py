"""Which rows a figure draws, and in which order."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from hypatia_lab.figures.language import FigureError, style
from hypatia_lab.formats import absent
from hypatia_lab.results import Row


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


def contenders(rows: Sequence[Row]) -> list[Row]:
    """Rows that can say something against a baseline: not the baseline itself, not an A/A control."""
    return [r for r in singles(rows) if r.variant != r.baseline]


def singles(rows: Sequence[Row]) -> list[Row]:
    """Rows without those of the A/A control."""
    return [r for r in rows if not r.is_twin]
