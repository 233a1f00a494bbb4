"""What the records say about memory layout and memory traffic: findings, tables and claims of their chapter.

As in :mod:`hypatia_lab.pages.findings` every measured figure is taken from the records when a page is made, and what a
machine has not measured is left out: such a function returns None or an empty list. "Moved" is what kernels read from
memory plus what they write at all, also where the L2 cache keeps it (if that was not counted: what reaches memory).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from hypatia_lab import claims, formats, intervals
from hypatia_lab.claims import Claim
from hypatia_lab.figures.probe_rows import Way
from hypatia_lab.figures.probes import short_kernel
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, silent, span_text, unsaid
from hypatia_lab.pages.phrases import probed, times
from hypatia_lab.results import Row
from hypatia_lab.workloads import DTYPES

PAGE = "17_layout_traffic"
EXPERIMENTS = ("layout", "traffic")
OPERATION = "linear_relu_layout"
SEED_SHAPE = "1024x784x2048"
"""The size that S001's tables speak of."""
HOPED = (1.05, 1.15)
"""What S004 expects of column-major operands and packed weights, ×."""
STORED = {"x_column_major": "column-major x", "weight_packed": "packed W"}
COPYING = {
    "x_strided_batch": ("x_batch_view", "x", "a transposed batch, by reshape"),
    "copy_first": ("x_column_major", "x", "a column-major x, by contiguous"),
    "pack_each_call": ("weight_packed", "W", "W, packed in every call"),
}
"""Variant that copies → the same without the copy, what is copied, and the same in words."""
CALLED = ("eager", "naive", "cublas_relu", "aten", "epilogue")
SEED_NAMES = {"naive": "v1", "cublas_relu": "v2"}


class Tried(Protocol):
    """One call tried on one layout, as :func:`hypatia_lab.operations.layout.handlings` gives it."""

    @property
    def layout(self) -> str: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def call(self) -> str: ...
    @property
    def copied(self) -> int | None: ...


# ---------------------------------------------------------------- reading


def _copied_bytes(row: Row, what: str) -> int:
    batch, in_features, out_features = map(int, row.shape.split("x"))
    return DTYPES[row.dtype] * in_features * (batch if what == "x" else out_features)


def copy_pairs(lab: Evidence, machine: str) -> list[tuple[Row, Row, Interval]]:
    """Each variant that copies, the same without the copy, and the time of the first over that of the second."""
    rows = {(row.workload, row.variant): row for row in lab.timed(machine, experiment="layout", operation=OPERATION)}
    found = []
    for (workload, name), row in rows.items():
        plain = rows.get((workload, COPYING[name][0])) if name in COPYING else None
        if plain is not None:
            found.append((row, plain, row.over(plain)))
    return found


def _counters(lab: Evidence, machine: str, case: str | None = None) -> list[Way]:
    """What hardware counters saw of Linear+ReLU (in one ``case``), smallest workload first."""
    found = probed(lab, machine, "counters", operation="linear_relu", variant=CALLED)
    return [way for way in found if case is None or way.case == case]


def _value(way: Way, name: str) -> float:
    return way.triple(name, logarithms=False)[0]


def written(way: Way) -> float:
    """Bytes that the kernels of a call write, NaN where nothing was counted."""
    found = _value(way, "L2 written")
    return _value(way, "bytes written") if absent(found) else found


def moved(way: Way) -> float:
    """Bytes that a call moves: read from memory and written."""
    return _value(way, "bytes read") + written(way)


def seed_ways(lab: Evidence, machine: str) -> dict[str, Way]:
    """Variant → its counters in S001's size and float32, every kernel with empty caches where that was counted."""
    found: dict[str, Way] = {}
    for case in ("", "each kernel"):
        for way in _counters(lab, machine, case):
            where = (way.where["shape"].replace("×", "x"), way.where["math"])
            if not way.fault and where == (SEED_SHAPE, "float32/ieee"):
                found[way.variant] = way
    return found


# ---------------------------------------------------------------- findings


def storage(lab: Evidence, machine: str) -> Finding | None:
    """Whether column-major or packed operands are faster than row-major ones, as S004 expects."""
    rows = [
        row
        for row in lab.timed(machine, experiment="layout", operation=OPERATION, variant=tuple(STORED))
        if not absent(row.ratio_low)
    ]
    if not rows:
        return None
    every, clear, judged = [row.speed for row in rows], [row for row in rows if not row.speed.doubt], ("S004-51",)
    if not clear:
        return unsaid(lab, machine, "Whether another order of the operands is faster", PAGE, every, judged)
    met = [gain for gain in every if gain.within(*HOPED)]
    best, worst = (pick(clear, key=lambda row: row.ratio) for pick in (max, min))
    same = sum(map(intervals.equal, every))
    more = 1 + intervals.EQUIVALENCE
    surely = "" if all(gain.below(more) for gain in every) else "surely "
    return Finding(
        span_text([row.speed for row in clear]),
        "The library takes operands in either order as they come"
        if same == len(rows)
        else f"Another order of the operands is faster by more than {intervals.EQUIVALENCE:.0%} in some cases"
        if any(gain.above(more) for gain in every)
        else f"No other order of the operands is {surely}faster by more than {intervals.EQUIVALENCE:.0%}",
        f"Against row-major operands the best case is {STORED[best.variant]} at {best.size} with "
        f"{times(best.speed)}, the worst {STORED[worst.variant]} at {worst.size} with "
        f"{times(worst.speed)}; {same} of {len(rows)} cases are equal within ±2%. {silent(every)}"
        f"S004 expects {HOPED[0]:g} to {HOPED[1]:g}×, which {len(met)} of {len(rows)} reach.",
        PAGE,
        claims=judged,
    )


def copying(lab: Evidence, machine: str) -> Finding | None:
    """What the copy costs that reshape has to make of a batch out of order, and that it makes none of one in order."""
    pairs = [pair for pair in copy_pairs(lab, machine) if pair[0].variant == "x_strided_batch"]
    if not pairs:
        return None
    seed = [pair for pair in pairs if (pair[0].shape, pair[0].dtype) == (SEED_SHAPE, "float32")]
    row, plain, factor = (seed or pairs[-1:])[0]
    size = formats.scaled(float(_copied_bytes(row, "x")), "B")
    if factor.doubt:
        facts = f"reshape copies a batch only when it is out of order: {size} at {row.size}."
        return unsaid(lab, machine, "What a copy costs", PAGE, [factor], ("S001-12",), facts)
    text = (
        f"reshape copies a batch only when it is out of order: {size} at {row.size}, where the call then takes "
        f"{row.takes} instead of {plain.takes}, {times(factor)}. Of a contiguous batch it makes a view, as view does"
    )
    if not plain.speed.doubt:
        text += f", and flattening by view runs at {times(plain.speed)} of the speed without it"
    return Finding(
        f"{formats.number(factor.value)}×",
        "A copy costs time, and reshape makes one only of what is out of order"
        if factor.above(1)
        else "What a copy costs does not show, and reshape makes one only of what is out of order",
        text + ". S001 takes every reshape for a copy.",
        PAGE,
        claims=("S001-12",),
    )


def _launches(way: Way) -> dict[str, float]:
    """Kernels of one call by each way of counting that there was."""
    names = {"profiler": "kernel launches", "graph nodes": "kernel launches, counted again", "ncu": "kernels"}
    found = {label: _value(way, name) for label, name in names.items()}
    return {label: value for label, value in found.items() if not absent(value)}


def _counted(lab: Evidence, machine: str) -> dict[tuple[str, str, str], dict[str, float]]:
    """(shape, dtype/math, variant) → kernels of one call, by each way of counting."""
    if lab.primary(machine) != "graph":  # a CPU has operators, no kernels
        return {}
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    traced = probed(lab, machine, "trace", operation="linear_relu", variant=CALLED)
    for way in [*traced, *_counters(lab, machine, "")]:
        if launches := _launches(way):
            found.setdefault((way.where["shape"], way.where["math"], way.variant), {}).update(launches)
    return found


def one_kernel(lab: Evidence, machine: str) -> Finding | None:
    """Whether the epilogue's Linear+ReLU is a single kernel, by every way of counting, and how many the others are."""
    found = _counted(lab, machine)
    fused = {key: set(own.values()) for key, own in found.items() if key[2] == "epilogue"}
    if not fused:
        return None
    single = [key for key, own in fused.items() if own == {1}]
    others: dict[str, set[float]] = {}
    for (_, _, variant), own in found.items():
        if variant != "epilogue":
            others.setdefault(variant, set()).update(own.values())
    said = listing([f"{name} {_numbers(values)}" for name, values in others.items()]) if others else "nothing else"
    ways = listing(list(dict.fromkeys(label for key in fused for label in found[key])))
    return Finding(
        f"{_numbers(set().union(*fused.values()))} kernel{'' if len(single) == len(fused) else 's'}",
        "The epilogue's Linear+ReLU is one kernel"
        if len(single) == len(fused)
        else "The epilogue is one kernel at some sizes only"
        if single
        else "The epilogue is more than one kernel",
        f"It is a single kernel in {len(single)} of {len(fused)} workloads, counted by {ways}. "
        f"Kernels of the others: {said}.",
        PAGE,
    )


def _numbers(values: Iterable[float]) -> str:
    texts = [f"{value:g}" for value in sorted(values)]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _kernels(way: Way) -> str:
    number = _value(way, "kernels")
    return "one kernel" if number == 1 else f"{number:g} kernels"


def _mb(nbytes: float) -> str:
    return formats.MISSING if absent(nbytes) else f"{formats.number(nbytes / 1e6)} MB"


def traffic(lab: Evidence, machine: str) -> Finding | None:
    """Whether v2 moves 47% less than v1, as S001's table says."""
    found = seed_ways(lab, machine)
    if not {"naive", "cublas_relu"} <= set(found):
        return None
    first, second = found["naive"], found["cublas_relu"]
    less = 1 - moved(second) / moved(first)
    text = f"Caches emptied {CASES[second.case]}, at {formats.shape(SEED_SHAPE)} in float32, v1 reads "
    text += f"{_mb(_value(first, 'bytes read'))} and writes {_mb(written(first))} in {_kernels(first)}, v2 "
    text += f"{_mb(_value(second, 'bytes read'))} and {_mb(written(second))} in {_kernels(second)}. "
    once = [way for way in _counters(lab, machine, "") if not way.fault and way.where == second.where]
    once = [way for way in once if way.variant == second.variant and second.case]
    if once:
        text += f"Emptied once before the call, as in life and in the figure, v2 moves {_mb(moved(once[0]))}: its ReLU "
        text += "finds the product in the cache. "
    return Finding(
        f"{_mb(moved(first))}, {_mb(moved(second))}",
        "v2 moves more than v1, for its ReLU is a kernel of its own" if less <= 0 else "v2 moves less than v1",
        f"{text}The least possible is {_mb(_value(first, 'compulsory bytes'))}. S001 has it the other way round: 34 MB "
        "for v1, 18 MB for v2.",
        PAGE,
        claims=("S001-81", "S001-91", "S001-93"),
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    candidates = (copying(lab, machine), storage(lab, machine), one_kernel(lab, machine), traffic(lab, machine))
    return [found for found in candidates if found is not None]


def figure_lines(lab: Evidence, machine: str) -> list[list[dict[str, Any]]]:
    """The counted lines of each workload, caches emptied once a call, smallest workload first."""
    topics = ("counters", "dram_read", "dram_written", "l2_written")
    lines = lab.details(machine=machine, topic=topics, operation="linear_relu", variant=CALLED, case="")
    places = {(math.prod(line["shape"]), line["dtype"], line["math"]): None for line in lines if line["values"]}
    return [
        [line for line in lines if (math.prod(line["shape"]), line["dtype"], line["math"]) == place]
        for place in sorted(places, key=lambda place: (place[0], -DTYPES[place[1]], place[2]))
    ]


def uncounted(lab: Evidence, machine: str) -> str:
    """Why no bytes were counted on ``machine``; empty where they were, or nobody tried."""
    found = _counters(lab, machine)
    return found[0].fault.removeprefix("skipped: ") if found and all(way.fault for way in found) else ""


# ---------------------------------------------------------------- tables


def handled(tried: Sequence[Tried]) -> list[dict[str, str]]:
    """What each call does to each layout: a line a layout, a column a call."""
    out: dict[str, dict[str, str]] = {}
    for one in tried:
        line = out.setdefault(one.layout, {"x is": one.layout, "strides": "×".join(map(str, one.strides))})
        line[one.call] = "raises" if one.copied is None else "free" if one.copied == 0 else f"copies {_mb(one.copied)}"
    return list(out.values())


def copied(by_variant: Mapping[str, int]) -> list[dict[str, str]]:
    """Bytes that each variant copies before its product: a line a variant."""
    return [
        {"variant": name, "copies before the product": _mb(float(size)) if size else "nothing"}
        for name, size in by_variant.items()
    ]


def copy_cost(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What a copy adds to a call: a line a workload and copy."""
    return [
        {
            "copied": COPYING[row.variant][2],
            "the copy": _reads(factor),
            "factor": times(factor),
            "with the copy": row.took,
            "without": plain.took,
            "copied, MB": formats.number(_copied_bytes(row, COPYING[row.variant][1]) / 1e6),
            "workload": row.size,
        }
        for row, plain, factor in copy_pairs(lab, machine)
    ]


def _reads(factor: Interval) -> str:
    word = intervals.reading(factor)
    return {"equal": "costs less than 2%", "faster": "costs time", "slower": "saves time"}.get(word, word)


def kernel_counts(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Kernels of one call, counted up to three ways: a line a workload and variant."""
    labels = ("profiler", "graph nodes", "ncu")
    return [
        {"workload": f"{shape} {math_mode}", "variant": variant}
        | {label: f"{own[label]:g}" if label in own else formats.MISSING for label in labels}
        for (shape, math_mode, variant), own in _counted(lab, machine).items()
    ]


def layout_kernels(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Kernels of one call by layout, by name: a copy inside the library would be one more."""
    if lab.primary(machine) != "graph":
        return []
    names = {
        way.variant: ", ".join(short_kernel(line["name"]) for line in way.lines)
        for way in probed(lab, machine, "kernels", operation=OPERATION)
    }
    return [
        {
            "variant": way.variant,
            "workload": f"{way.where['shape']} {way.where['math']}",
            "launches": way.fault or f"{_value(way, 'kernel launches'):g}",
            "kernels, longest first": names.get(way.variant, formats.MISSING),
        }
        for way in probed(lab, machine, "trace", operation=OPERATION)
    ]


CASES = {"": "once before the call", "each kernel": "before every kernel"}


def totals(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Bytes that one call moves: a line a workload, variant and case."""
    out = []
    for way in _counters(lab, machine):
        line = {"workload": f"{way.where['shape']} {way.where['math']}", "variant": way.variant}
        line["caches emptied"] = CASES[way.case]
        if way.fault:
            out.append(line | {"kernels": way.fault})
            continue
        read, least = _value(way, "bytes read"), _value(way, "compulsory bytes")
        line |= {"kernels": f"{_value(way, 'kernels'):g}", "read": _mb(read), "written": _mb(written(way))}
        line |= {"written to memory": _mb(_value(way, "bytes written")), "through L2": _mb(_value(way, "L2 bytes"))}
        line |= {"compulsory": _mb(least), "moved / compulsory": f"{formats.number(moved(way) / least)}×"}
        line["effective bandwidth"] = formats.scaled(way.measured("effective bandwidth").value, "B/s")
        out.append(line)
    return out


def _by_kernel(lab: Evidence, machine: str, way: Way) -> tuple[list[float], list[float]]:
    """Bytes read and written by each kernel of a way, in order of launch."""
    columns = []
    for topics in (("dram_read",), ("l2_written", "dram_written")):
        found: list[float] = []
        for topic in topics:
            own = [other for other in probed(lab, machine, topic, operation="linear_relu") if _same(other, way)]
            found = found or [_value(own[0], line["name"]) for line in (own[0].lines if own else [])]
        columns.append(found)
    return columns[0], columns[1]


def _same(one: Way, other: Way) -> bool:
    return (one.variant, one.case, dict(one.where)) == (other.variant, other.case, dict(other.where))


SEED_TABLE = {
    "naive": {"kernels": 2, "product reads": 9.4, "product writes": 8.4, "ReLU moves": 16.8, "moved": 34, "rate": 50},
    "cublas_relu": {"kernels": 1, "product reads": 9.4, "product writes": 8.4, "ReLU moves": 0, "moved": 18}
    | {"rate": 600},
}
"""S001's own figures, "Memory Traffic Analysis": kernels, MB, and GB/s of effective bandwidth."""


def seed_table(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """S001's table of memory traffic line by line beside what was counted."""
    found = seed_ways(lab, machine)
    out: list[dict[str, str]] = []
    for variant, claimed in SEED_TABLE.items():
        if (way := found.get(variant)) is None:
            continue
        reads, writes = _by_kernel(lab, machine, way)
        counted = {
            "kernels": f"{_value(way, 'kernels'):g}",
            "product reads": _mb(reads[0] if reads else math.nan),
            "product writes": _mb(writes[0] if writes else math.nan),
            "ReLU moves": _mb(sum(reads[1:]) + sum(writes[1:])) if len(reads) > 1 else "no kernel of its own",
            "moved": _mb(moved(way)),
            "rate": formats.scaled(way.measured("effective bandwidth").value, "B/s"),
        }
        words = {"kernels": "kernels", "moved": "all that it moves", "rate": "effective bandwidth"}
        units = {"kernels": "", "rate": " GB/s"}
        out += [
            {
                "of": SEED_NAMES[variant],
                "line": words.get(name, name),
                "S001 says": f"{figure:g}{units.get(name, ' MB')}",
                "counted": counted[name],
            }
            for name, figure in claimed.items()
        ]
    return out


# ---------------------------------------------------------------- claims

APART = ("S001-12", "S002-15", "S002-19")
"""Claims of other sections that this chapter has the figures for, with all of their parts."""


def chapter_claims() -> list[Claim]:
    """The claims whose verdicts the chapter shows, in the order of the ledger."""
    return [
        claim
        for claim in claims.ledger()
        if claim.lead in APART
        or claim.experiment in EXPERIMENTS
        or (claim.seed == "S001" and claim.section == "Memory Traffic Analysis")
        or any(workload.startswith(f"{OPERATION}/") for workload in claim.workloads)
        or any(figure.topic == "counters" for figure in claim.figures)
    ]
