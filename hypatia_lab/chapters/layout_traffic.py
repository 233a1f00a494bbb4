"""What the records say about memory layout and memory traffic: findings and tables of their chapter.

"Moved" is what kernels read from memory plus what they write at all, also where the L2 cache keeps it (if that was not
counted: what reaches memory).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hypatia_lab import formats, intervals, variants
from hypatia_lab.figures.probe_rows import Configuration
from hypatia_lab.formats import absent, listing
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, silent, span_text, unsaid
from hypatia_lab.pages.phrases import COUNTS, kernels, probed, spoken
from hypatia_lab.results import Row
from hypatia_lab.workloads import DTYPES

if TYPE_CHECKING:
    from hypatia_lab.operations.layout import Handling

PAGE = "17_layout_traffic"
EXPERIMENTS = ("layout", "traffic")
COUNTED = "traffic"
"""Where the chapter's counters come from: the authors' programs count eager's bytes, too, and it would stand twice."""
OPERATION = "linear_relu_layout"
SEED_SHAPE = "1024x784x2048"
"""The size that S001's tables speak of."""
HOPED = (1.05, 1.15)
"""What S004 expects of column-major operands and packed weights, ×."""
STORED = ("x_column_major", "weight_packed")
COPYING = {"x_strided_batch": "x_batch_view", "copy_first": "x_column_major", "pack_each_call": "weight_packed"}
"""Variant that copies → the same without the copy."""
CALLED = ("eager", "naive", "cublas_relu", "aten", "epilogue")
SEED_NAMES = {"naive": "v1", "cublas_relu": "v2"}


# ---------------------------------------------------------------- reading


def copies(lab: Evidence, machine: str) -> list[Row]:
    """Each variant that copies, against the same without the copy."""
    rows = {(row.workload, row.variant): row for row in lab.timed(machine, experiment="layout", operation=OPERATION)}
    found = [(row, rows.get((workload, COPYING.get(name, "")))) for (workload, name), row in rows.items()]
    return [row.against(plain) for row, plain in found if plain is not None]


def at_one_size(lab: Evidence, machine: str) -> list[Row]:
    """What copies nothing, in every dtype at S001's size or the largest: row-major operands and other layouts."""
    rows = [row for row in lab.leading(machine, experiment="layout") if row.variant not in COPYING]
    largest = max(rows, key=lambda row: (row.shape == SEED_SHAPE, row.flops), default=None)
    return [row for row in rows if largest and row.shape == largest.shape]


def _counters(lab: Evidence, machine: str, case: str | None = None) -> list[Configuration]:
    """What hardware counters saw of Linear+ReLU (in one ``case``), smallest workload first."""
    found = probed(lab, machine, "counters", experiment=COUNTED, operation="linear_relu", variant=CALLED)
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


def seed_ways(lab: Evidence, machine: str) -> dict[str, Configuration]:
    """Variant → its counters in S001's size and float32, every kernel with empty caches where that was counted."""
    found: dict[str, Configuration] = {}
    for case in ("", "each kernel"):
        for way in _counters(lab, machine, case):
            where = (way.shape.replace("×", "x"), way.math)
            if not way.fault and where == (SEED_SHAPE, "float32/ieee"):
                found[way.variant] = way
    return found


# ---------------------------------------------------------------- findings


def storage(lab: Evidence, machine: str) -> Finding | None:
    """Whether column-major or packed operands are faster than row-major ones, as S004 expects."""
    rows = lab.timed(machine, experiment="layout", operation=OPERATION, variant=STORED)
    rows = [row for row in rows if not absent(row.ratio_low)]
    if not rows:
        return None
    every, clear = [row.speed for row in rows], [row.speed for row in rows if not row.speed.doubt]
    judged = ("S004-51",)
    if not clear:
        return unsaid(lab, machine, "Whether another order of the operands is faster", PAGE, every, judged)
    same, met = sum(map(intervals.equal, every)), sum(gain.within(*HOPED) for gain in every)
    more = 1 + intervals.EQUIVALENCE
    surely = "" if all(gain.below(more) for gain in every) else "surely "
    return Finding(
        span_text(clear),
        "The library takes operands in either order as they come"
        if same == len(rows)
        else f"Another order of the operands is faster by more than {intervals.EQUIVALENCE:.0%} in some cases"
        if any(gain.above(more) for gain in every)
        else f"No other order of the operands is {surely}faster by more than {intervals.EQUIVALENCE:.0%}",
        f"{same} of {len(rows)} cases are equal to row-major operands within ±2%: x column by column or W packed "
        f"before, at each size and precision. {silent(every)}"
        f"S004 expects {HOPED[0]:g} to {HOPED[1]:g}×, which {met} of {len(rows)} reach.",
        PAGE,
        claims=judged,
    )


def copying(lab: Evidence, machine: str) -> Finding | None:
    """What the copy costs that reshape has to make of a batch out of order, and that it makes none of one in order."""
    rows = [row for row in copies(lab, machine) if row.variant == "x_strided_batch"]
    if not rows:
        return None
    row = next((row for row in rows if (row.shape, row.dtype) == (SEED_SHAPE, "float32")), rows[-1])
    factor = row.speed.inverse()
    if factor.doubt:
        facts = "reshape copies a batch only when it is out of order."
        return unsaid(lab, machine, "What a copy costs", PAGE, [factor], ("S001-12",), facts)
    return Finding(
        spoken(factor),
        "A copy costs time, and reshape makes one only when it must"
        if factor.above(1)
        else "What a copy costs does not show; reshape makes one only when it must",
        f"A batch out of order is copied, and at {row.at} in {row.dtype} the call takes {spoken(factor)} as long. "
        "S001 takes every reshape for a copy; of a contiguous batch it makes a free view.",
        PAGE,
        claims=("S001-12",),
    )


def _counted(lab: Evidence, machine: str) -> dict[tuple[str, str, str], dict[str, float]]:
    """(shape, dtype/math, variant) → kernels of one call, by each way of counting."""
    if lab.primary(machine) != "graph":  # a CPU has operators, no kernels
        return {}
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    traced = probed(lab, machine, "trace", operation="linear_relu", variant=CALLED)
    for way in [*traced, *_counters(lab, machine, "")]:
        if launches := kernels(way):
            found.setdefault((way.shape, way.math, way.variant), {}).update(launches)
    return found


def one_kernel(lab: Evidence, machine: str) -> Finding | None:
    """Whether the epilogue's Linear+ReLU is a single kernel, by every way of counting, and how many eager's is."""
    found = _counted(lab, machine)
    fused = {key: set(own.values()) for key, own in found.items() if key[2] == "epilogue"}
    if not fused:
        return None
    single = [key for key, own in fused.items() if own == {1}]
    ways = listing(list(dict.fromkeys(label for key in fused for label in found[key])))
    eager = {value for key, own in found.items() if key[2] == "eager" for value in own.values()}
    text = f"It is one in {len(single)} of {len(fused)} workloads, counted by {ways}."
    return Finding(
        f"{_numbers(set().union(*fused.values()))} kernel{'' if len(single) == len(fused) else 's'}",
        "The library's fused Linear+ReLU is one kernel"
        if len(single) == len(fused)
        else "The library's fused Linear+ReLU is one kernel at some sizes only"
        if single
        else "The library's fused Linear+ReLU is more than one kernel",
        text + (f" Eager PyTorch launches {_numbers(eager)}." if eager else ""),
        PAGE,
    )


def _numbers(values: Iterable[float]) -> str:
    return " or ".join(f"{value:g}" for value in sorted(values))


def _mb(nbytes: float) -> str:
    return formats.MISSING if absent(nbytes) else f"{formats.number(nbytes / 1e6)} MB"


def traffic(lab: Evidence, machine: str) -> Finding | None:
    """Whether v2 moves 47% less than v1, as S001's table says."""
    found = seed_ways(lab, machine)
    if not {"naive", "cublas_relu"} <= set(found):
        return None
    first, second = (moved(found[name]) for name in ("naive", "cublas_relu"))
    claimed = [f"{SEED_TABLE[name]['moved']} MB" for name in ("naive", "cublas_relu")]
    alone = all(found[name].case == "each kernel" for name in ("naive", "cublas_relu"))
    begins = "each kernel" if alone else "the call"
    return Finding(
        " and ".join(f"{formats.spoken(nbytes / 1e6)} MB" for nbytes in (first, second)),
        "v2 moves more than v1: its ReLU is a kernel of its own" if first <= second else "v2 moves less than v1",
        f"So much do S001's naive kernel (v1) and its library form (v2) move where {begins} starts with empty caches. "
        f"S001 says {' and '.join(claimed)}.",
        PAGE,
        claims=("S001-81", "S001-91", "S001-93"),
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    return answered(lab, machine, copying, storage, one_kernel, traffic)


def figure_lines(lab: Evidence, machine: str) -> list[dict[str, Any]]:
    """The counted lines of one workload, S001's or else the largest, caches emptied once a call; [] without one."""
    topics = ("counters", "dram_read", "dram_written", "l2_written")
    linear = {"operation": "linear_relu", "variant": CALLED}
    lines = lab.details(machine=machine, experiment=COUNTED, topic=topics, case="", **linear)

    def place(line: dict[str, Any]) -> tuple[bool, int, int, str]:
        seeds = "x".join(map(str, line["shape"])) == SEED_SHAPE
        return seeds, math.prod(line["shape"]), DTYPES[line["dtype"]], line["math"]

    chosen = max((place(line) for line in lines if line["values"]), default=None)
    return [line for line in lines if place(line) == chosen]


def uncounted(lab: Evidence, machine: str) -> str:
    """Why no bytes were counted on ``machine``; empty where they were, or nobody tried."""
    found = _counters(lab, machine)
    return found[0].fault.removeprefix("skipped: ") if found and all(way.fault for way in found) else ""


# ---------------------------------------------------------------- tables


def handled(tried: Sequence[Handling]) -> list[dict[str, str]]:
    """What each call does to each layout: a line a layout, a column a call."""
    out: dict[str, dict[str, str]] = {}
    for one in tried:
        line = out.setdefault(one.layout, {"x is": one.layout, "strides": "×".join(map(str, one.strides))})
        line[one.call] = "raises" if one.copied is None else "free" if one.copied == 0 else f"copies {_mb(one.copied)}"
    return list(out.values())


def kernel_counts(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Kernels of one call, counted up to three ways: a line a workload and variant."""
    return [
        {"workload": f"{shape} {math_mode}", "by": variants.label("linear_relu", variant)}
        | {label: f"{own[label]:g}" if label in own else formats.MISSING for label in COUNTS}
        for (shape, math_mode, variant), own in _counted(lab, machine).items()
    ]


CASES = {"": "once before the call", "each kernel": "before every kernel"}


def totals(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Bytes that one call moves: a line a workload, variant and case."""
    out = []
    for way in _counters(lab, machine):
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


def _by_kernel(lab: Evidence, machine: str, way: Configuration, *topics: str) -> list[float]:
    """Bytes of the first of ``topics`` that was counted, by each kernel of a way, in order of launch."""
    for topic in topics:
        for other in probed(lab, machine, topic, experiment=COUNTED, operation="linear_relu", variant=way.variant):
            if (other.case, other.place) == (way.case, way.place):
                return [_value(other, line["name"]) for line in other.details]
    return []


SEED_TABLE = {
    "naive": {"kernels": 2, "product reads": 9.4, "product writes": 8.4, "ReLU moves": 16.8, "moved": 34, "rate": 50},
    "cublas_relu": {"kernels": 1, "product reads": 9.4, "product writes": 8.4, "ReLU moves": 0, "moved": 18}
    | {"rate": 600},
}
"""S001's own figures, "Memory Traffic Analysis": kernels, MB, and GB/s of effective bandwidth."""


def seed_table(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """S001's table of memory traffic line by line beside what was counted, of both of its forms."""
    lines: dict[str, dict[str, str]] = {name: {"": name} for name in SEED_TABLE["naive"]}
    for variant, way in seed_ways(lab, machine).items():
        if variant not in SEED_TABLE:
            continue
        reads = _by_kernel(lab, machine, way, "dram_read")
        writes = _by_kernel(lab, machine, way, "l2_written", "dram_written")
        counted = {
            "kernels": f"{_value(way, 'kernels'):g}",
            "product reads": _mb(reads[0] if reads else math.nan),
            "product writes": _mb(writes[0] if writes else math.nan),
            "ReLU moves": _mb(sum(reads[1:]) + sum(writes[1:])) if len(reads) > 1 else "no kernel of its own",
            "moved": _mb(moved(way)),
            "rate": formats.scaled(way.estimate("effective bandwidth").value, "B/s"),
        }
        units = {"kernels": "", "rate": " GB/s"}
        for name, figure in SEED_TABLE[variant].items():
            lines[name][f"{SEED_NAMES[variant]}, S001 says"] = f"{figure:g}{units.get(name, ' MB')}"
            lines[name][f"{SEED_NAMES[variant]}, counted"] = counted[name]
    words = {"moved": "all that it moves", "rate": "effective bandwidth"}
    return [line | {"": words.get(name, name)} for name, line in lines.items() if len(line) > 1]
