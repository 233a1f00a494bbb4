"""A row beside another of the same place: the eager call, the product alone, the fastest peer."""

from __future__ import annotations

import math
from typing import Any

from hypatia_lab import intervals
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.readings import quickest
from hypatia_lab.results import Row

_PLACE = ("machine", "experiment", "clock", "operation", "shape", "dtype", "math", "direction", "variant")


def beside(data: Evidence, row: Row, **changes: Any) -> Row | None:
    """The row that differs from ``row`` in ``changes`` alone, such as ``variant="eager"``; None where there is none."""
    return next(iter(data.select(**{name: getattr(row, name) for name in _PLACE} | changes)), None)


def over(data: Evidence, row: Row | None, **changes: Any) -> Interval:
    """The time of ``row`` over that of the row :func:`beside` it; nothing where either was not timed."""
    other = beside(data, row, **changes) if row and row.timed else None
    return row.over(other) if row and other and other.timed else intervals.NOTHING


def error(data: Evidence, row: Row, **changes: Any) -> float:
    """The error of ``row`` against float64 over that of the row :func:`beside` it; NaN where either is not known."""
    other = beside(data, row, **changes)
    return row.error / other.error if other and other.error else math.nan


def rival(data: Evidence, row: Row) -> Row | None:
    """The fastest peer of ``row``, at its own place; None where none was timed."""
    place = {name: getattr(row, name) for name in _PLACE[:-1]}
    return quickest(peer for peer in data.select(**place, origin="peer") if peer.variant != row.variant)
