"""What no machine can have measured: rates, times, clocks, counts, and a control that fails."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.contributed.faults import Report
from hypatia_lab.contributed.rates import Rates
from hypatia_lab.records import Record
from hypatia_lab.results import Row

APART = 4.0
"""The shortest median of a cell and the shortest of its raw samples lie no further apart: both are of the same calls.
In the committed records they lie within a factor of 1.4."""
MOST_MHZ, MOST_W = 5000.0, 5000.0
"""Of an SM clock and of a power that no GPU has, where the record does not tell its own limits."""
OVER = {"sm_mhz": 1.05, "power_w": 1.5}
"""Readings may lie so far above those limits: power is a mean over a moment, and a cap acts late."""
MOST_PERCENT = 110.0
"""Shares of kernels' time may add up to a little over all of it, where kernels overlap."""
LARGEST_EXTENT = 2**20
"""Of shapes with more than one extent: an operation's count may take a step for each."""
_LONGEST = {"s": 1e6, "ms": 1e9, "us": 1e12, "%": MOST_PERCENT}
"""Highest value of a detail in its unit: eleven days."""


def rates(records: Sequence[Record], possible: Rates, source: str, report: Report) -> None:
    """Add to ``report`` the cells that are faster than is ``possible``, by ``source``, or than their own machine's
    ceilings allow."""
    own = {key: results.TOLERANCE * rate for key, rate in results.ceilings(records).items()}
    report.notes.append(f"rates are held against {source}")
    if not own:
        report.notes.append("no ceilings were measured: rates are held against nothing of the machine's own")
    bounds = ((possible, "the machine can"), (own, "the machine's own ceilings and a tenth allow"))
    for record in records:
        for number, cell in enumerate(record.cells, 2):
            times = [us for us in cell["medians_us"] if us is not None]
            if not times or cell["status"] != "ok" or cell["clock"] == "none":
                continue
            told = [said for most, what in bounds if (said := _beyond(cell, min(times), most, what))]
            if told:
                report.fault(record.path.name, "rate", told[0], number)


def _beyond(cell: dict[str, Any], us: float, most: Rates, what: str) -> str:
    limit = results.least_us(cell, most)
    if math.isnan(limit) or us >= limit:
        return ""
    work, unit = ("flops", "FLOP/s") if cell["flops"] and cell["operation"] != "copy" else ("traffic", "B/s")
    reached = formats.scaled(cell[work] / (us * 1e-6), unit)
    return f"{cell['variant']}: {formats.duration(us)}, {reached}, {formats.number(limit / us)} times as fast as {what}"


def lines(record: Record, report: Report) -> None:
    """Add to ``report`` every line of ``record`` whose times, clocks, powers, shares or counts cannot be."""
    facts = record.run["facts"]
    limits = {
        "sm_mhz": OVER["sm_mhz"] * facts.get("sm_mhz_max", MOST_MHZ),
        "power_w": OVER["power_w"] * facts.get("power_limit_w", MOST_W),
    }
    for number, cell in enumerate(record.cells, 2):
        for said in _times(cell, limits):
            report.fault(record.path.name, "time", f"{cell['variant']}: {said}", number)
        if told := _work(cell):
            report.fault(record.path.name, "work", told, number)
    for number, detail in enumerate(record.details, 2 + len(record.cells)):
        values = [value for value in detail["values"] if value is not None]
        most = _LONGEST.get(detail["unit"], math.inf)
        if any(not 0 <= value <= most for value in values):
            worst = max(values, key=lambda value: max(-value, value - most))
            said = f"{detail['variant']}: {detail['name']} is {worst:g} {detail['unit']}"
            report.fault(record.path.name, "time", said, number)


def _times(cell: dict[str, Any], limits: Mapping[str, float]) -> Iterator[str]:
    medians = [us for us in cell["medians_us"] if us is not None]
    if medians and cell["samples_us"]:
        factor = min(medians) / min(cell["samples_us"])
        if not 1 / APART <= factor <= APART:
            yield f"its medians are {formats.number(factor)} times its raw samples"
    out = cell["outliers"]
    if out["mild"] + out["severe"] > out["of"]:
        yield "more outliers than samples"
    for name, most in limits.items():
        if any(not 0 <= value <= most for value in cell[name]):
            yield f"{name} beyond 0 to {most:g}"


def _work(cell: dict[str, Any]) -> str:
    """Why no call does the operations and moves the bytes of ``cell``, by the lab's own count; empty where one does."""
    found = _counted(cell["operation"], tuple(cell["shape"]), cell["dtype"], cell["math"], cell["direction"])
    if found is None or isinstance(found, str):
        return found or ""
    if found == (cell["flops"], cell["traffic"], cell.get("fewest_flops", found[2])):
        return ""
    counted = f"{cell['flops']} FLOP and {cell['traffic']} B a call"
    return f"{cell['operation']}: {counted}, where the lab counts {found[0]} and {found[1]}"


@cache
def _counted(
    operation: str, shape: tuple[int, ...], dtype: str, math: str, direction: str
) -> tuple[int, int, int] | str | None:
    """The lab's count of operations and bytes of one call, and of operations by the cheapest method; why there can be
    no such call; or None where the lab knows no such operation."""
    # Imported for what they register.
    from hypatia_lab import diffraction, operations, workloads  # noqa: F401

    if operation not in workloads.operations():
        return None
    if len(shape) > 1 and max(shape) > LARGEST_EXTENT:
        return f"an extent of {operation} of more than {LARGEST_EXTENT:,}"
    try:
        work = workloads.Workload(operation, shape, dtype, math, direction)
        return work.flops, work.traffic, work.fewest_flops
    except workloads.WorkloadError as cause:
        return str(cause)


def intervals_hold(rows: Sequence[Row], report: Report) -> None:
    """Add to ``report`` the ``rows`` whose interval does not hold its value, or is none."""
    for row in rows:
        for what, found in (("ratio", row.speed), ("time", row.time)):
            known = not math.isnan(found.value) and not math.isnan(found.low)
            if known and not (found.low <= found.value <= found.high < math.inf):
                said = f"{row.variant}, {row.workload}, {row.clock}: the interval of its {what} does not hold it"
                report.fault(f"{row.experiment}.jsonl", "time", said)


def control(found: Sequence[dict[str, Any]], report: Report) -> None:
    """Add to ``report`` that identical code seemed different too often, or a note on how often it did.

    ``found`` is what :func:`hypatia_lab.results.agreement` has of the records.

    Too often: more often than one in twenty, and by the lab's binomial test with a p below
    :data:`hypatia_lab.results.SURELY`.
    """
    if not found:
        report.notes.append("no A/A pair: nothing is known of how often identical code seems different")
    for row in found:
        said = f"{row['differences']} of {row['pairs']} A/A pairs differ (p = {row['p']:.2g} against 5%)"
        if row["rate"] > 1 - intervals.CONFIDENCE and row["p"] < results.SURELY:
            report.fault(".", "control", said)
        else:
            report.notes.append(said)
