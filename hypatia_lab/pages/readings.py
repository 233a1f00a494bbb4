"""How a chapter reads its evidence: rows, intervals between them, and what probes saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals, records, variants
from hypatia_lab.figures import probe_rows
from hypatia_lab.figures.probe_rows import Configuration
from hypatia_lab.formats import listing
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


def filled(lines: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """``lines`` of a table, each with every column that one of them has."""
    columns = dict.fromkeys((name for line in lines for name in line), formats.MISSING)
    return [columns | line for line in lines]


COUNTS = {"profiler": "kernel launches", "graph nodes": "kernel launches, counted again", "ncu": "kernels"}
"""Way of counting the kernels of a call → what a probe calls the count."""


def kernels(way: Configuration) -> dict[str, float]:
    """Kernels of one call, by each way of counting that there was."""
    found = {label: way.triple(name, logarithms=False)[0] for label, name in COUNTS.items()}
    return {label: value for label, value in found.items() if not formats.absent(value)}


def fastest(rows: Sequence[Row], variants: Sequence[str]) -> Row | None:
    """The row of the quickest of ``variants``; None when none of them was timed."""
    timed = (row for row in rows if row.variant in variants and row.timed)
    return min(timed, key=lambda row: row.median_us, default=None)


def say(found: Interval, unit: str = "×") -> str:
    """A ratio, or what ``unit`` says, in a sentence: with its interval, or in words where it says nothing."""
    if found.doubt:
        return f"a figure {formats.DOUBTS[found.doubt]}"
    return formats.told(found) if unit == "×" else formats.figure(found, unit)


def spoken(found: Interval, unit: str = "×") -> str:
    """An estimate as one says it, without its interval, which stands in the figure: ``27×``; in words where it says
    nothing. A time in µs (``unit`` "µs") takes the unit that suits it: ``1.5 ms``."""
    if found.doubt:
        return f"a figure {formats.DOUBTS[found.doubt]}"
    if unit == "µs":
        scale, unit = next(((s, u) for s, u in ((1e6, "s"), (1e3, "ms"), (1, "µs")) if found.value >= s), (1e-3, "ns"))
        return f"{formats.spoken(found.value / scale)} {unit}"
    return formats.with_unit(formats.spoken(found.value), unit)


def times(found: Interval) -> str:
    """An interval of ratios as text, for a table."""
    return formats.told(found)


def probed(data: Evidence, machine: str, topic: str, **wanted: Any) -> list[Configuration]:
    """The ways that probes of ``topic`` saw on ``machine``, smallest workload first."""
    lines = data.details(machine=machine, topic=topic, **wanted)
    return probe_rows.read(lines, "findings", topic)[0] if lines else []


def only(found: Sequence[Configuration], variant: str, case: str = "") -> Configuration | None:
    """The way of ``variant`` in ``case``; None when there is none that went well."""
    return next((way for way in found if (way.variant, way.case) == (variant, case) and not way.fault), None)


def spent(way: Configuration, *names: str) -> str:
    """Time of the lines called ``names`` over the processes, as :func:`durations` writes it."""
    return durations([us for us in way.per_process(*names) if us])


def lasted(way: Configuration, *names: str) -> str:
    """The same for a sentence: where it says nothing each of a few processes' times, of many in words."""
    found = way.estimate(*names)
    if found.doubt and 0 < found.n < intervals.FEW:
        return each([us for us in way.per_process(*names) if us])
    return formats.lasts(found) if found.doubt == intervals.TOO_NOISY else spent(way, *names)


def durations(values: Sequence[float]) -> str:
    """Times in µs as their mean with its interval; each of a few is written, for their interval says nothing."""
    if not values:
        return formats.MISSING
    return formats.time(intervals.estimate(values)) if len(values) >= intervals.FEW else each(values)


def each(values: Sequence[float]) -> str:
    """Every one of some times in µs, shortest first."""
    texts = [formats.duration(us) for us in sorted(values)]
    if len({text.split(" ")[1] for text in texts}) == 1:
        texts = [text.split(" ")[0] for text in texts[:-1]] + texts[-1:]
    return listing(texts)


def quotients(above: Sequence[float | None], below: Sequence[float | None]) -> list[float]:
    """A quotient within each process that has both."""
    return [a / b for a, b in zip(above, below, strict=False) if a and b]


def quotient(above: Sequence[float | None], below: Sequence[float | None]) -> Interval | None:
    """Geometric mean of a quotient within each process; None when no process has both."""
    values = quotients(above, below)
    return intervals.geometric(values) if values else None


def behind(data: Evidence, machine: str, *experiments: str) -> list[records.Record]:
    """The records of ``machine`` that a figure is drawn from."""
    return [record for record in data.of(machine) if record.experiment in experiments]


def compared(rows: Sequence[Row]) -> bool:
    """Whether any of ``rows`` was timed beside its baseline, so that a figure of speeds can be drawn."""
    return any(not formats.absent(row.ratio) and row.variant != row.baseline and not row.is_twin for row in rows)
