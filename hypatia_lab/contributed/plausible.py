"""What no machine can have measured: rates, times, clocks, counts, and a control that fails."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.contributed.faults import Report
from hypatia_lab.records import Record
from hypatia_lab.results import Row

Rates = dict[tuple[str, str, str], float]
"""(quantity, dtype/math, clock) → rate, as :func:`hypatia_lab.results.ceilings` has it."""

MARGIN = 1.25
"""A chip may beat what is known of its model by a quarter.

The lab allows a tenth over measured ceilings (:data:`hypatia_lab.results.TOLERANCE`), and chips of one model differ by
about 8% (arXiv 2208.11035); the rest is for clocks and caps that a card's maker sets.
"""
_T = 1e12
CACHED = {"cold": 2.0, "graph": 8.0}
"""Caches beat a data sheet's memory by so much at most: what is cold is still written into a cache, and what is warm
lies in one. An H200 copies 1.2 times as fast as its memory, an H100 1.4 times."""

GPU_BOUND = 1e16, 1e14
"""FLOP/s and B/s of no single GPU yet."""
CORE_BOUND = 1e13, 2e12
"""The same of no processor core. Processors are not held against records of their name: what stands in a virtual
machine goes under names that tell neither generation nor clock."""

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


# ---------------------------------------------------------------- what a machine can do at most


@cache
def data_sheets() -> dict[str, dict[str, Any]]:
    """Compute capability → published peaks of its fastest cards (see ``data_sheets.yaml``)."""
    import yaml

    return yaml.safe_load(Path(__file__).with_name("data_sheets.yaml").read_text(encoding="utf-8"))


def possible(contributed: Sequence[Record], known: Iterable[Record]) -> tuple[Rates, str]:
    """The highest rates that are believed of the machine of the ``contributed`` records, one at least, and their source
    in words; ``known`` are records of others."""
    run = contributed[0].run
    if run["device"] == "cpu":
        cores = run["facts"].get("cores", 1)
        most, source = _bound(CORE_BOUND, cores, ("hot", "cold")), "a generous bound a core"
    else:
        most, source = _of_gpu(run["facts"], known)
    # An arithmetic that nothing is known of is no faster than the fastest that is.
    fastest = max(rate for (quantity, _, _), rate in most.items() if quantity == "matmul")
    cells = [cell for record in contributed for cell in record.cells]
    kinds = {results.arithmetic(cell["dtype"], cell["math"], most) for cell in cells}
    kinds |= {f"{cell['dtype']}/{cell['math']}" for cell in cells}
    kinds |= {cell["splits"][0] for cell in cells if cell.get("splits")} | {results.INTO[0]}
    clocks = {clock for quantity, _, clock in most if quantity == "copy"}
    return {("matmul", kind, clock): fastest for kind in kinds for clock in clocks} | most, source


def _of_gpu(facts: dict[str, Any], known: Iterable[Record]) -> tuple[Rates, str]:
    name = facts.get("name", "")
    same = [one for one in known if one.run["device"] == "cuda" and one.run["facts"].get("name") == name]
    same = [one for one in same if one.run["preset"] != "quick"]  # whose sizes are too small to reach what it can
    found = {key: MARGIN * rate for key, rate in results.ceilings(same).items()}  # of the best of these machines
    base, source = _published(facts)
    if found:
        machines = ", ".join(sorted({one.machine for one in same}))
        source = f"{MARGIN} times what the committed records of {name} reach ({machines})"
    return base | found, source


def _published(facts: dict[str, Any]) -> tuple[Rates, str]:
    """What a GPU of which no record tells can do, by its compute capability."""
    told = f"no committed record is of {facts.get('name') or 'this GPU'}"
    sheet = data_sheets().get(facts.get("capability", ""))
    if sheet is None:
        return _bound(GPU_BOUND, 1, CACHED), f"{told}, and its peaks are not listed: a bound of any GPU"
    found: Rates = {}
    for clock, factor in CACHED.items():
        found |= {("matmul", kind, clock): MARGIN * _T * rate for kind, rate in sheet["products"].items()}
        found["copy", "", clock] = MARGIN * factor * _T * sheet["memory"]
    cards = f"compute capability {facts['capability']} ({sheet['cards']})"
    return found, f"{told}: {MARGIN} times published peaks of {cards}"


def _bound(bound: tuple[float, float], units: int, clocks: Iterable[str]) -> Rates:
    """The same ``bound`` (FLOP/s, B/s) by every clock, of so many ``units`` of it."""
    flops, memory = bound
    found: Rates = {("copy", "", clock): units * memory for clock in clocks}
    return found | {("matmul", "float32/ieee", clock): units * flops for clock in clocks}
