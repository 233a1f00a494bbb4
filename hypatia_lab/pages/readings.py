"""How a chapter reads its evidence: rows, intervals between them, and what probes saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypatia_lab import formats, records, results, variants
from hypatia_lab.figures.drawn_rows import contenders
from hypatia_lab.figures.probes import Configuration, read
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.results import Row

FLOAT32 = {"default": "default float32", "ieee": "IEEE float32"}
"""Arithmetic of PyTorch's float32 → what it is called in a sentence; the one that leads a page comes first."""


def waited(data: Evidence, machine: str) -> str:
    """The clock that a caller waits by: ``wall`` on a GPU, ``hot`` on a CPU."""
    return "wall" if data.primary(machine) == "graph" else "hot"


def clocks(data: Evidence, machine: str) -> list[str]:
    """The clock that verdicts rest on, and the one that a caller waits by, where they are two."""
    return list(dict.fromkeys((data.primary(machine), waited(data, machine))))


def labelled(row: Row) -> str:
    """What a person calls the variant of ``row``."""
    return variants.label(row.operation, row.variant)


def took(row: Row | None) -> str:
    """The time of a row for a table, or why it has none."""
    if row is None:
        return formats.MISSING
    return row.took if row.timed else f"{row.status}: {row.reason}".removesuffix(": ")


COUNTS = {"profiler": "kernel launches", "graph nodes": "kernel launches, counted again", "ncu": "kernels"}
"""Way of counting the kernels of a call → what a probe calls the count."""


def kernels(way: Configuration) -> dict[str, float]:
    """Kernels of one call, by each way of counting that there was."""
    found = {label: way.triple(name, logarithms=False)[0] for label, name in COUNTS.items()}
    return {label: value for label, value in found.items() if not formats.absent(value)}


def quickest(rows: Iterable[Row]) -> Row | None:
    """The row of least time; None where none was timed."""
    return min((row for row in rows if row.timed), key=lambda row: row.median_us, default=None)


def fastest(rows: Iterable[Row], variants: Sequence[str]) -> Row | None:
    """The row of the quickest of ``variants``; None when none of them was timed."""
    return quickest(row for row in rows if row.variant in variants)


def probed(data: Evidence, machine: str, topic: str, **wanted: Any) -> list[Configuration]:
    """The ways that probes of ``topic`` saw on ``machine``, smallest workload first."""
    lines = data.details(machine=machine, topic=topic, **wanted)
    return read(lines, "findings", topic)[0] if lines else []


def quotient(above: Sequence[float | None], below: Sequence[float | None]) -> Interval | None:
    """Geometric mean of a quotient within each process; None when no process has both."""
    found = results.quotient(above, below)
    return found if found.n else None


def behind(data: Evidence, machine: str, *experiments: str) -> list[records.Record]:
    """The records of ``machine`` that a figure is drawn from."""
    return [record for record in data.of(machine) if record.experiment in experiments]


def compared(rows: Sequence[Row]) -> bool:
    """Whether any of ``rows`` was timed beside its baseline, so that a figure of speeds can be drawn."""
    return any(not formats.absent(row.ratio) for row in contenders(rows))
