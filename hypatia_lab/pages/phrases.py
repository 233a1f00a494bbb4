"""How a chapter reads its evidence: rows, intervals between them, and what probes saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals, records, results, tables
from hypatia_lab.figures import probe_rows
from hypatia_lab.figures.language import listing
from hypatia_lab.figures.probe_rows import Way
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence

Row = dict[str, Any]

FLOAT32 = {"default": "default float32", "ieee": "IEEE float32"}
"""Arithmetic of PyTorch's float32 → what it is called in a sentence; the one that leads a page comes first."""


def waited(lab: Evidence, machine: str) -> str:
    """The clock that a caller waits by: ``wall`` on a GPU, ``hot`` on a CPU."""
    return "wall" if lab.primary(machine) == "graph" else "hot"


def fastest(rows: Sequence[Row], variants: Sequence[str]) -> Row | None:
    """The row of the quickest of ``variants``; None when none of them was timed."""
    return min((row for row in rows if row["variant"] in variants), key=lambda row: row["median_us"], default=None)


def took(row: Row) -> str:
    """The time of a row with its interval, in the unit that suits it, for a table."""
    return formats.time(results.time(row))


def takes(row: Row) -> str:
    """The same for a sentence: in words where it says nothing."""
    return lasts(results.time(row))


def attained(row: Row) -> str:
    """The share of its limit that a row reaches, in a sentence; empty where no limit is known, or no time."""
    unknown = formats.absent(row["limit_us"]) or results.time(row).doubt
    return "" if unknown else f"{formats.number(100 * row['limit_us'] / row['median_us'])}%"


def lasts(found: Interval) -> str:
    """A time (µs) in a sentence: with its interval, or in words where it says nothing."""
    return f"a time {DOUBTS[found.doubt]}" if found.doubt else formats.time(found)


def say(found: Interval, unit: str = "×") -> str:
    """A ratio, or what ``unit`` says, in a sentence: with its interval, or in words where it says nothing."""
    if found.doubt:
        return f"a figure {DOUBTS[found.doubt]}"
    return formats.told(found) if unit == "×" else formats.figure(found, unit)


DOUBTS = {
    intervals.TOO_NOISY: "too noisy to say",
    intervals.TOO_FEW: "of too few processes to tell",
    intervals.VETOED: "whose A/A control failed",
}
"""Why an estimate says nothing → the same behind a noun."""


def named(row: Row) -> str:
    """The variant of a row, marked where its time includes the lab's launch path."""
    return f"{row['variant']} ({tables.LAUNCH})" if results.launch_path(row) else row["variant"]


def times(found: Interval) -> str:
    """An interval of ratios as text, for a table."""
    return formats.told(found)


def probed(lab: Evidence, machine: str, topic: str, **wanted: Any) -> list[Way]:
    """The ways that probes of ``topic`` saw on ``machine``, smallest workload first."""
    lines = lab.details(machine=machine, topic=topic, **wanted)
    return probe_rows.read(lines, "findings", topic)[0] if lines else []


def only(found: Sequence[Way], variant: str, case: str = "") -> Way | None:
    """The way of ``variant`` in ``case``; None when there is none that went well."""
    return next((way for way in found if (way.variant, way.case) == (variant, case) and not way.fault), None)


def spent(way: Way, *names: str) -> str:
    """Time of the lines called ``names`` over the processes, as :func:`durations` writes it."""
    return durations([us for us in way.per_process(*names) if us])


def lasted(way: Way, *names: str) -> str:
    """The same for a sentence: where it says nothing each of a few processes' times, of many in words."""
    found = way.measured(*names)
    if found.doubt and 0 < found.n < intervals.FEW:
        return each([us for us in way.per_process(*names) if us])
    return lasts(found) if found.doubt == intervals.TOO_NOISY else spent(way, *names)


def durations(values: Sequence[float]) -> str:
    """Times in µs as their mean with its interval; each of a few is written, for their interval says nothing."""
    if not values:
        return formats.MISSING
    return formats.time(probe_rows.rare(values)) if len(values) >= intervals.FEW_RARE else each(values)


def each(values: Sequence[float]) -> str:
    """Every one of some times in µs, shortest first."""
    texts = [formats.duration(us) for us in sorted(values)]
    if len({text.split(" ")[1] for text in texts}) == 1:
        texts = [text.split(" ")[0] for text in texts[:-1]] + texts[-1:]
    return listing(texts)


def multiple(values: Sequence[float]) -> str:
    """A quotient over the processes with its interval, or of a few processes each."""
    if len(values) >= intervals.FEW_RARE:
        return times(probe_rows.rare(values))
    return listing([f"{formats.number(value)}×" for value in sorted(values)])


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
