"""What the records say about memory layout and memory traffic: rows, counters and tables.

"Moved" is what kernels read from memory plus what they write at all, also where the L2 cache keeps it (if that was not
counted: what reaches memory).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import claims, formats, variants
from hypatia_lab.figures.probes import Configuration
from hypatia_lab.formats import absent
from hypatia_lab.operations.linear_relu.layout import Handling
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.readings import COUNTS, kernels, probed
from hypatia_lab.results import Row
from hypatia_lab.workloads import DTYPES

COUNTED = "traffic"
"""Where the chapter's counters come from: the authors' programs count eager's bytes, too, and it would stand twice."""
OPERATION = "linear_relu_layout"
SEED_SHAPE = "1024x784x2048"
"""The size that S001's tables speak of."""
COPYING = {"x_strided_batch": "x_batch_view", "copy_first": "x_column_major", "pack_each_call": "weight_packed"}
"""Variant that copies → the same without the copy."""
CALLED = ("eager", "naive", "cublas_relu", "aten", "epilogue")
SEED_NAMES = {"naive": "v1", "cublas_relu": "v2"}


# ---------------------------------------------------------------- reading


def copies(data: Evidence, machine: str) -> list[Row]:
    """Each variant that copies, against the same without the copy."""
    rows = {(row.workload, row.variant): row for row in data.timed(machine, experiment="layout", operation=OPERATION)}
    found = [(row, rows.get((workload, COPYING.get(name, "")))) for (workload, name), row in rows.items()]
    return [row.against(plain) for row, plain in found if plain is not None]


def at_one_size(data: Evidence, machine: str) -> list[Row]:
    """What copies nothing, in every dtype at S001's size or the largest: row-major operands and other layouts."""
    rows = [row for row in data.leading(machine, experiment="layout") if row.variant not in COPYING]
    largest = max(rows, key=lambda row: (row.shape == SEED_SHAPE, row.flops), default=None)
    return [row for row in rows if largest and row.shape == largest.shape]


def _counters(data: Evidence, machine: str, case: str | None = None) -> list[Configuration]:
    """What hardware counters saw of Linear+ReLU (in one ``case``), smallest workload first."""
    found = probed(data, machine, "counters", experiment=COUNTED, operation="linear_relu", variant=CALLED)
    return [way for way in found if case is None or way.case == case]


def _value(way: Configuration, name: str) -> float:
    return way.triple(name, logarithms=False)[0]


def written(way: Configuration) -> float:
    """Bytes that the kernels of a call write, NaN where nothing was counted."""
    found = _value(way, "L2 written")
    return _value(way, "bytes written") if absent(found) else found


def moved(way: Configuration) -> float:
    """Bytes that a call moves: read from memory and written."""
    return _value(way, "bytes read") + written(way)


def seed_ways(data: Evidence, machine: str) -> dict[str, Configuration]:
    """Variant → its counters in S001's size and float32, every kernel with empty caches where that was counted."""
    found: dict[str, Configuration] = {}
    for case in ("", "each kernel"):
        for way in _counters(data, machine, case):
            where = (way.shape.replace("×", "x"), way.math)
            if not way.fault and where == (SEED_SHAPE, "float32/ieee"):
                found[way.variant] = way
    return found


def _counted(data: Evidence, machine: str) -> dict[tuple[str, str, str], dict[str, float]]:
    """(shape, dtype/math, variant) → kernels of one call, by each way of counting."""
    if data.primary(machine) != "graph":  # a CPU has operators, no kernels
        return {}
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    traced = probed(data, machine, "trace", operation="linear_relu", variant=CALLED)
    for way in [*traced, *_counters(data, machine, "")]:
        if launches := kernels(way):
            found.setdefault((way.shape, way.math, way.variant), {}).update(launches)
    return found


def _mb(nbytes: float) -> str:
    return formats.MISSING if absent(nbytes) else f"{formats.number(nbytes / 1e6)} MB"


def figure_lines(data: Evidence, machine: str) -> list[dict[str, Any]]:
    """The counted lines of one workload, S001's or else the largest, caches emptied once a call; [] without one."""
    topics = ("counters", "dram_read", "dram_written", "l2_written")
    linear = {"operation": "linear_relu", "variant": CALLED}
    lines = data.details(machine=machine, experiment=COUNTED, topic=topics, case="", **linear)

    def place(line: dict[str, Any]) -> tuple[bool, int, int, str]:
        seeds = "x".join(map(str, line["shape"])) == SEED_SHAPE
        return seeds, math.prod(line["shape"]), DTYPES[line["dtype"]], line["math"]

    chosen = max((place(line) for line in lines if line["values"]), default=None)
    return [line for line in lines if place(line) == chosen]


def uncounted(data: Evidence, machine: str) -> str:
    """Why no bytes were counted on ``machine``; empty where they were, or nobody tried."""
    found = _counters(data, machine)
    return found[0].fault.removeprefix("skipped: ") if found and all(way.fault for way in found) else ""


# ---------------------------------------------------------------- tables


def handled(tried: Sequence[Handling]) -> list[dict[str, str]]:
    """What each call does to each layout: a line a layout, a column a call."""
    out: dict[str, dict[str, str]] = {}
    for one in tried:
        line = out.setdefault(one.layout, {"x is": one.layout, "strides": str(one.strides)})
        line[one.call] = "raises" if one.copied is None else "free" if one.copied == 0 else f"copies {_mb(one.copied)}"
    return list(out.values())


def kernel_counts(data: Evidence, machine: str) -> list[dict[str, str]]:
    """Kernels of one call, counted up to three ways: a line a workload and variant."""
    return [
        {"workload": f"{shape} {math_mode}", "by": variants.label("linear_relu", variant)}
        | {label: f"{own[label]:g}" if label in own else formats.MISSING for label in COUNTS}
        for (shape, math_mode, variant), own in _counted(data, machine).items()
    ]


CASES = {"": "once before the call", "each kernel": "before every kernel"}


def totals(data: Evidence, machine: str) -> list[dict[str, str]]:
    """Bytes that one call moves: a line a workload, variant and case."""
    out = []
    for way in _counters(data, machine):
        label = variants.label("linear_relu", way.variant)
        line = {"workload": f"{way.shape} {way.math}", "by": label}
        line["caches emptied"] = CASES[way.case]
        if way.fault:
            out.append(line | {"kernels": way.fault})
            continue
        read, least = _value(way, "bytes read"), _value(way, "compulsory bytes")
        line |= {"kernels": f"{_value(way, 'kernels'):g}", "read": _mb(read), "written": _mb(written(way))}
        line |= {"written to memory": _mb(_value(way, "bytes written")), "through L2": _mb(_value(way, "L2 bytes"))}
        line |= {"compulsory": _mb(least), "moved / compulsory": f"{formats.number(moved(way) / least)}×"}
        line["effective bandwidth"] = formats.scaled(way.estimate("effective bandwidth").value, "B/s")
        out.append(line)
    return out


def _by_kernel(data: Evidence, machine: str, way: Configuration, *topics: str) -> list[float]:
    """Bytes of the first of ``topics`` that was counted, by each kernel of a way, in order of launch."""
    for topic in topics:
        for other in probed(data, machine, topic, experiment=COUNTED, operation="linear_relu", variant=way.variant):
            if (other.case, other.place) == (way.case, way.place):
                return [_value(other, line["name"]) for line in other.details]
    return []


LINES = {
    "product reads": ("S001-77b", "S001-84a"),
    "product writes": ("S001-77c", "S001-84c"),
    "ReLU moves": ("S001-115a", ""),
    "all that it moves": ("S001-81b", "S001-91c"),
    "effective bandwidth": ("S001-33a", "S001-35a"),
}
"""A line of S001's table → the claims that say it, of v1 and of v2; "" where it says that there is nothing."""


def seed_table(data: Evidence, machine: str) -> list[dict[str, str]]:
    """S001's table of memory traffic line by line beside what was counted, of both of its forms."""
    lines: dict[str, dict[str, str]] = {name: {"": name} for name in LINES}
    for place, (variant, called) in enumerate(SEED_NAMES.items()):
        way = seed_ways(data, machine).get(variant)
        if way is None:
            continue
        reads = _by_kernel(data, machine, way, "dram_read")
        writes = _by_kernel(data, machine, way, "l2_written", "dram_written")
        counted = {
            "product reads": _mb(reads[0] if reads else math.nan),
            "product writes": _mb(writes[0] if writes else math.nan),
            "ReLU moves": _mb(sum(reads[1:]) + sum(writes[1:])),
            "all that it moves": _mb(moved(way)),
            "effective bandwidth": formats.scaled(way.estimate("effective bandwidth").value, "B/s"),
        }
        for name, ids in LINES.items():
            unit = {"effective bandwidth": "GB/s"}.get(name, "MB")
            figure = claims.claimed(ids[place]) if ids[place] else 0
            lines[name][f"{called}, S001 says"] = f"{figure:g} {unit}"
            lines[name][f"{called}, counted"] = counted[name]
    return [line for line in lines.values() if len(line) > 1]
