"""How a chapter reads its evidence: rows, intervals between them, and what probes saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals, records, results, tables, ways
from hypatia_lab.intervals import Interval
from hypatia_lab.notebook import Evidence
from hypatia_lab.ways import Way, timed

Row = dict[str, Any]

FLOAT32 = {"default": "default float32", "ieee": "IEEE float32"}
"""Arithmetic of PyTorch's float32 → what it is called in a sentence; the one that leads a page comes first."""


def waited(lab: Evidence, machine: str) -> str:
    """The clock that a caller waits by: ``wall`` on a GPU, ``hot`` on a CPU."""
    return "wall" if lab.primary(machine) == "graph" else "hot"


def fastest(rows: Sequence[Row], variants: Sequence[str]) -> Row | None:
    """The row of the quickest of ``variants``; None when none of them was timed."""
    return min((row for row in rows if row["variant"] in variants), key=lambda row: row["median_us"], default=None)


def over(slow: Row, quick: Row) -> Interval:
    """Time of one row over that of another, paired by process."""
    return intervals.ratio(slow["medians_us"], quick["medians_us"])


def took(row: Row) -> str:
    """The time of a row with its interval, in the unit that suits it."""
    return timed(tables.time_of(row))


def named(row: Row) -> str:
    """The variant of a row, marked where its time includes the lab's launch path."""
    return f"{row['variant']} ({tables.LAUNCH})" if results.launch_path(row) else row["variant"]


def times(found: Interval) -> str:
    """An interval of ratios as text."""
    return formats.interval(found.value, found.low, found.high)


def probed(lab: Evidence, machine: str, topic: str, **wanted: Any) -> list[Way]:
    """The ways that probes of ``topic`` saw on ``machine``, smallest workload first."""
    lines = lab.details(machine=machine, topic=topic, **wanted)
    return ways.read(lines, "findings", topic)[0] if lines else []


def only(found: Sequence[Way], variant: str, case: str = "") -> Way | None:
    """The way of ``variant`` in ``case``; None when there is none that went well."""
    return next((way for way in found if (way.variant, way.case) == (variant, case) and not way.fault), None)


def spent(way: Way, *names: str) -> str:
    """Time of the lines called ``names`` over the processes, as :func:`durations` writes it."""
    return durations([us for us in way.per_process(*names) if us])


def durations(values: Sequence[float]) -> str:
    """Times in µs as their mean with its interval; two are both written, for the interval of two says nothing."""
    if not values:
        return formats.MISSING
    if len(values) != 2:
        found = intervals.geometric(values)
        return timed((found.value, found.low, found.high))
    one, other = (formats.duration(us) for us in sorted(values))
    return f"{one.split(' ')[0]} and {other}" if one.split(" ")[1] == other.split(" ")[1] else f"{one} and {other}"


def multiple(values: Sequence[float]) -> str:
    """A quotient over the processes with its interval, or of two processes both."""
    if len(values) == 2:
        return " and ".join(f"{formats.number(value)}×" for value in sorted(values))
    return times(intervals.geometric(values))


def quotients(above: Sequence[float | None], below: Sequence[float | None]) -> list[float]:
    """A quotient within each process that has both."""
    return [a / b for a, b in zip(above, below, strict=False) if a and b]


def quotient(above: Sequence[float | None], below: Sequence[float | None]) -> Interval | None:
    """Geometric mean of a quotient within each process; None when no process has both."""
    values = quotients(above, below)
    return intervals.geometric(values) if values else None


def at(row: Row) -> str:
    """The shape of a row for a reader."""
    return tables.shape_text(row["shape"])


def error(row: Row) -> float:
    """Largest error over the peak; NaN where the check did not get that far."""
    return row["max_error"] / row["peak"] if row["peak"] else math.nan


def largest(row: Row) -> str:
    """The largest error of a row against float64 as text: absolute, and as a share of the reference's peak."""
    share = "" if formats.absent(error(row)) else f" ({formats.number(error(row))} of the peak)"
    return formats.number(row["max_error"]) + share


def behind(lab: Evidence, machine: str, *experiments: str) -> list[records.Record]:
    """The records of ``machine`` that a figure is drawn from."""
    return [record for record in lab.of(machine) if record.experiment in experiments]
