"""Chapters 02 and 03: one thread per output against the library, and what fusing Linear and ReLU gives."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.chapters import authors, method
from hypatia_lab.formats import MISSING
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, silent, span_text, unsaid, way_in
from hypatia_lab.results import Row

ORIGINALS = {rewrite: program for program, rewrite in authors.REWRITES.items()}
"""Rewrite → the author's program that it stands in for."""
CLAIMED = {
    "naive": ("S001-01", "S002-53", "S004-01"),
    "aten": ("S004-07a", "S004-07b", "S004-07c"),
    "cublas_relu": ("S001-47", "S001-20", "S001-26"),
}
"""Rewrite → what the documents claim of its speed."""
FLOAT32 = {"dtype": "float32", "math": "ieee"}
SEED_SHAPE = "1024x784x2048"
"""The size that the documents speak of most."""


def _rows(lab: Evidence, machine: str, experiment: str, variant: str, **wanted: Any) -> list[Row]:
    """Rows of one variant with a ratio: float32 first, then smallest size first."""
    found = lab.leading(machine, experiment=experiment, variant=variant, operation="linear_relu", status="ok", **wanted)
    found = [row for row in found if not math.isnan(row.ratio_low)]
    return sorted(found, key=lambda row: (row.dtype != "float32", row.math, row.flops))


def original(lab: Evidence, machine: str, rewrite: str) -> list[Row]:
    """Rows of the author's program behind ``rewrite`` that have a ratio, smallest size first; empty if unrecorded."""
    return _rows(lab, machine, authors.EXPERIMENT, ORIGINALS[rewrite], **FLOAT32)


def _timed(rows: list[Row]) -> str:
    """Whose program ``rows`` time, in which arithmetic where it is one, and by which clock: a sentence."""
    whose = "the author's own program" if rows[0].origin == "author" else "the lab's rewrite of the author's program"
    kinds = {_kind(row) for row in rows}
    return f"Timed is {whose}{f', in {kinds.pop()}' if len(kinds) == 1 else ''}, by the {rows[0].clock} clock."


def naive(lab: Evidence, machine: str) -> Finding | None:
    """How much slower one thread per output is than the library, size by size."""
    rows = original(lab, machine, "naive") or _rows(lab, machine, "naive_vs_cublas", "naive", **FLOAT32)
    if not rows:
        return None
    aside = way_in(rows)
    ids = () if aside else CLAIMED["naive"]
    factors = [row.speed.inverse() for row in rows]
    clear = [factor for factor in factors if not factor.doubt]
    if not clear:
        return unsaid(lab, machine, "How much slower one thread per output is", authors.NAIVE, factors, ids)
    most = max(clear, key=lambda factor: factor.value)
    slower = sum(factor.above(1) for factor in clear)
    pairs = zip(rows, factors, strict=True)
    seed = [own for row, own in pairs if row.shape == SEED_SHAPE and own is not most and not own.doubt]
    there = f"At {formats.shape(SEED_SHAPE)} it takes {formats.spoken(seed[0].value)} times as long. " if seed else ""
    return Finding(
        span_text(clear),
        "One thread per output falls behind as the product grows"
        if len(clear) > 1 and all(larger.above(smaller.high) for smaller, larger in pairwise(clear))
        else "One thread per output is far slower than the library"
        if all(factor.above(2) for factor in clear)
        else f"One thread per output is slower than the library in {slower} of {len(rows)} cases",
        f"At {rows[factors.index(most)].at} it takes {formats.spoken(most.value)} times as long as the library. "
        f"{there}{silent(factors)}{_timed(rows)} {aside}".strip(),
        authors.NAIVE,
        claims=ids,
    )


def epilogue(lab: Evidence, machine: str) -> Finding | None:
    """What the library's fused epilogue gains over eager, and whether it makes the ReLU free."""
    rows = _rows(lab, machine, "aten_fusion", "epilogue")
    decided = [row for row in rows if intervals.decided(row.speed)]
    if not decided:
        question, every = "Whether the library's fused call gains", [row.speed for row in rows]
        return unsaid(lab, machine, question, authors.PAGE, every) if every else None
    best = max(decided, key=lambda row: row.ratio)
    gains = sum(row.speed.above(1) for row in decided)
    free = sum(_cost(_against_linear(lab, row)) == FREE for row in rows)
    return Finding(
        f"{formats.spoken(best.ratio)}×",
        "The library's own epilogue is the fusion worth having"
        if 2 * gains > len(rows)
        else "The library's fused call gains at some sizes only"
        if gains
        else "The library's fused call gains nothing that shows here",
        f"It {'gains most' if best.speed.above(1) else 'does best'} at {best.at} in {_kind(best)}, "
        f"by the {best.clock} clock. "
        + (
            f"In {free} of {len(rows)} cases the ReLU is free: the product alone takes as long."
            if free
            else f"It is surely faster than eager in {gains} of {len(rows)} cases."
        )
        + _called(lab, machine),
        authors.PAGE,
    )


def _called(lab: Evidence, machine: str) -> str:
    """How the epilogue does when it is called from Python, a space and a sentence; empty where one clock times both."""
    if lab.primary(machine) != "graph":
        return ""
    wanted = {"experiment": "aten_fusion", "operation": "linear_relu", "variant": "epilogue", "status": "ok"}
    rows = lab.select(machine=machine, clock="wall", **wanted)
    clear = [row.speed for row in rows if not row.speed.doubt]
    return f" Called from Python it runs at {span_text(clear)} of eager's speed." if clear else ""


def equivalents(lab: Evidence, machine: str, variant: str) -> Finding | None:
    """Whether ``variant``, which launches what eager launches, takes the same time, within ±2%.

    ``variant`` is one of :data:`CLAIMED`. Where the author's program is recorded it is that one's figures.
    """
    rows = original(lab, machine, variant) or _rows(lab, machine, "aten_fusion", variant)
    if not rows:
        return None
    aside, name = way_in(rows), authors.NAMES[ORIGINALS[variant]]
    ids = () if aside else CLAIMED[variant]
    clear = [row for row in rows if not row.speed.doubt]
    if not clear:
        return unsaid(lab, machine, f"Whether {name} is as fast as eager", authors.PAGE, [r.speed for r in rows], ids)
    same = sum(intervals.equal(row.speed) for row in clear)
    apart = sum(row.speed.outside(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE) for row in clear)
    far = max(clear, key=lambda row: abs(math.log(row.ratio)))
    text = f"It is furthest off at {far.at} in {_kind(far)}: {formats.spoken(far.ratio)} times eager's speed."
    if same == len(rows):
        text = "Its speed is within 2% of eager's in every case. Why: it launches the same two kernels."
    return Finding(
        f"{same} of {len(rows)}",
        f"{name} is as fast as eager" + _where(same, apart, len(rows)),
        f"{text} {_timed(rows)} {aside}".strip(),
        authors.PAGE,
        claims=ids,
    )


def _kind(row: Row) -> str:
    return "TF32" if row.math == "tf32" else row.dtype


def _where(same: int, apart: int, of: int) -> str:
    if same == of:
        return ""
    if apart:
        return " at some sizes only" if same else " at no size" if apart == of else " at no size that can be told"
    return ", as far as it can be told"


def _against_linear(lab: Evidence, row: Row) -> Interval:
    """Time of ``row`` over that of Linear alone (same workload, clock and processes); nothing if it was not timed."""
    alike = {name: getattr(row, name) for name in ("machine", "experiment", "shape", "dtype", "math", "clock")}
    alone = lab.select(operation="linear", status="ok", **alike)
    return row.over(alone[0]) if alone else intervals.NOTHING


FREE = "free"


def _cost(fused: Interval) -> str:
    """Whether a call beyond Linear alone costs anything, by the ratio of their times: free within 2%."""
    if fused.within(0, 1 + intervals.EQUIVALENCE):
        return FREE
    return "not free" if fused.above(1 + intervals.EQUIVALENCE) else fused.doubt or "unclear"


def cost_of_relu(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What the ReLU adds to the product, in eager and in the epilogue: one row of text a workload, smallest first."""
    out = []
    for row in _rows(lab, machine, "aten_fusion", "epilogue"):
        eager = lab.leading(machine, experiment="aten_fusion", workload=row.workload, variant="eager")[0]
        plain, fused = _against_linear(lab, eager), _against_linear(lab, row)
        if plain.n and fused.n:
            place = {"size": row.at, "arithmetic": _kind(row)}
            times = {"eager": formats.told(plain), "epilogue": formats.told(fused)}
            out.append(place | times | {"its ReLU is": _cost(fused)})
    return out


def relu_rates(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Bytes that the ReLU alone reads and writes a second, and its share of a copy's: a row a workload, smallest first.

    PyTorch's was timed alone. v2's was not: it is what v2 takes beyond Linear in the same processes, and nothing where
    the lab's launch path is in that. Empty where no copy was measured.
    """
    copy = results.ceilings(lab.of(machine)).get(("copy", "", lab.primary(machine)))
    if copy is None:
        return []
    out = []
    for row in _rows(lab, machine, "aten_fusion", "cublas_relu", math="ieee"):
        batch, _, columns = row.shape.split("x")
        place = {"machine": machine, "experiment": "aten_fusion", "status": "ok", "clock": row.clock}
        alone = lab.select(**place, operation="relu", dtype=row.dtype, shape=f"{batch}x{columns}")
        if not alone:
            continue
        line = {"y": alone[0].at, "numbers": row.dtype, "PyTorch's ReLU, alone": _rate(alone[0].time, alone[0], copy)}
        if not row.launch_path:
            linear = lab.select(**place, operation="linear", dtype=row.dtype, math=row.math, shape=row.shape)
            line["v2's ReLU, beyond Linear"] = _rate(_beyond(row, linear[0]), alone[0], copy) if linear else MISSING
        out.append(line)
    return out


def _beyond(row: Row, other: Row) -> Interval:
    """Time of ``row`` less that of ``other`` (µs), process by process."""
    pairs = zip(row.medians_us, other.medians_us, strict=False)
    found = [a - b for a, b in pairs if a is not None and b is not None]
    return replace(intervals.mean(found), vetoed=bool(row.veto or other.veto)) if found else intervals.NOTHING


def _rate(time: Interval, relu: Row, copy: float) -> str:
    """``4.55 TB/s, 78% of a copy``: what ``relu`` moves in ``time`` (µs); in words where that says nothing."""
    if time.doubt:
        return time.doubt
    rate = relu.traffic / (time.value * 1e-6)
    return f"{formats.scaled(rate, 'B/s')}, {formats.spoken(100 * rate / copy)}% of a copy"


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say, most important first; what was not measured there is left out."""
    plan_c, second = (partial(equivalents, variant=name) for name in ("aten", "cublas_relu"))
    return answered(lab, machine, naive, epilogue, plan_c, second, method.false_alarms)
