"""Chapters 02 and 03: one thread per output against the library, and what fusing Linear and ReLU gives."""

from __future__ import annotations

import math
from itertools import pairwise

from hypatia_lab import formats, intervals
from hypatia_lab.chapters import method
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, silent, span_text, unsaid, way_in
from hypatia_lab.results import Row


def _sizes(lab: Evidence, machine: str, experiment: str, variant: str, dtype: str, mode: str) -> list[Row]:
    """Rows of one variant with a ratio, smallest size first."""
    rows = lab.select(
        machine=machine,
        experiment=experiment,
        operation="linear_relu",
        variant=variant,
        dtype=dtype,
        math=mode,
        clock=lab.primary(machine),
        status="ok",
    )
    return sorted((row for row in rows if not math.isnan(row.ratio_low)), key=lambda row: row.flops)


ORIGINALS = {"naive": "author_v1", "cublas_relu": "author_v2", "aten": "author_planc"}
"""Rewrite → the author's program that it stands in for."""


def original(lab: Evidence, machine: str, rewrite: str) -> list[Row]:
    """Rows of the author's program behind ``rewrite`` that have a ratio, smallest size first; empty if unrecorded."""
    return _sizes(lab, machine, "author_hypatia", ORIGINALS[rewrite], "float32", "ieee")


def naive(lab: Evidence, machine: str) -> Finding | None:
    """How much slower one thread per output is than the library, size by size, against the claimed 7.67×."""
    own = original(lab, machine, "naive")
    rows = own or _sizes(lab, machine, "naive_vs_cublas", "naive", "float32", "ieee")
    if not rows:
        return None
    aside, whose = way_in(rows), "the author's kernel" if own else "it"
    ids = () if aside else ("S001-01", "S002-53", "S004-01")
    found = [(row, row.speed.inverse()) for row in rows]
    clear = [(row, factor) for row, factor in found if not factor.doubt]
    factors = [factor for _, factor in clear]
    if not clear:
        every = [factor for _, factor in found]
        return unsaid(lab, machine, "How much slower one thread per output is", "02_naive_vs_cublas", every, ids)
    hits = [row.at for row, factor in clear if factor.low <= 7.67 <= factor.high]
    claimed = "S004 says 7.67× of every size, S001 and S002 of the medium one: that "
    claimed += f"is within reach at {listing(hits)}" if hits else "is met at no size"
    slower = sum(factor.above(1) for factor in factors)
    where = listing([f"{formats.told(factor)} at {row.at}" for row, factor in clear])
    return Finding(
        span_text(factors),
        "One thread per output is slower by a factor that grows with the size"
        if len(factors) > 1 and all(larger.above(smaller.high) for smaller, larger in pairwise(factors))
        else "One thread per output is far slower than the library"
        if all(factor.above(2) for factor in factors)
        else f"One thread per output is slower than the library in {slower} of {len(rows)} cases",
        f"Against the library in float32 {whose} takes {where}. "
        + silent([factor for _, factor in found])
        + (aside or f"{claimed}."),
        "02_naive_vs_cublas",
        claims=ids,
    )


def epilogue(lab: Evidence, machine: str) -> Finding | None:
    """What the library's fused epilogue gains over eager, and whether it makes the ReLU free."""
    chosen: list[Row] = []
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")):
        chosen += _sizes(lab, machine, "aten_fusion", "epilogue", dtype, mode)
    found = [(row, row.speed) for row in chosen]
    decided = [(row, gain) for row, gain in found if intervals.decided(gain)]
    if not decided:
        every = [gain for _, gain in found]
        question = "Whether the library's fused call gains"
        return unsaid(lab, machine, question, "03_aten_fusion", every) if every else None
    row, best = max(decided, key=lambda pair: pair[1].value)
    gains = sum(gain.above(1) for _, gain in decided)
    kind = "TF32" if row.math == "tf32" else row.dtype
    text = f"It {'gains most' if best.above(1) else 'does best'} at {row.at} in {kind}: {formats.told(best)} against "
    text += "eager. "
    free = sum(_free(lab, row) for row in chosen)
    if free:
        text += f"In {free} of {len(chosen)} cases it takes at most 2% longer than the product alone: "
        text += "the ReLU is free. "
    else:
        text += f"It is surely faster than eager in {gains} of {len(chosen)} cases. "
    return Finding(
        f"{formats.number(best.value)}×",
        "The library's own epilogue is the fusion worth having"
        if 2 * gains > len(chosen)
        else "The library's fused call gains at some sizes only"
        if gains
        else "The library's fused call gains nothing that shows here",
        f"{text}{silent([gain for _, gain in found])}It is one call that exists: torch._addmm_activation.",
        "03_aten_fusion",
    )


def against_linear(lab: Evidence, row: Row) -> Interval | None:
    """Time of ``row`` over that of Linear alone (same workload, clock and processes); None if it was not measured."""
    alone = lab.select(
        machine=row.machine,
        experiment=row.experiment,
        operation="linear",
        shape=row.shape,
        dtype=row.dtype,
        math=row.math,
        clock=row.clock,
        status="ok",
    )
    return row.over(alone[0]) if alone else None


def _free(lab: Evidence, row: Row) -> bool:
    """Whether a fused call surely takes at most 2% longer than Linear alone."""
    found = against_linear(lab, row)
    return found is not None and found.within(0, 1 + intervals.EQUIVALENCE)


def cost_of_relu(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What the ReLU adds to the product, in eager and in the epilogue: one row of text a workload, smallest first."""
    out = []
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")):
        for row in _sizes(lab, machine, "aten_fusion", "epilogue", dtype, mode):
            eager = lab.leading(machine, experiment="aten_fusion", workload=row.workload, variant="eager")[0]
            plain, fused = against_linear(lab, eager), against_linear(lab, row)
            if plain is None or fused is None:
                continue
            out.append(
                {
                    "workload": f"{row.at} {dtype}/{mode}",
                    "eager": formats.told(plain),
                    "epilogue": formats.told(fused),
                    "the ReLU is": "free"
                    if _free(lab, row)
                    else "not free"
                    if fused.above(1 + intervals.EQUIVALENCE)
                    else fused.doubt or "unclear",
                }
            )
    return out


EXPECTED = {
    "aten": ("S004 expects that of every size.", ("S004-07a", "S004-07b", "S004-07c")),
    "cublas_relu": (
        "S001 expects that of the small size, 1.05× of the medium one and 1.18× of the large one.",
        ("S001-47", "S001-20", "S001-26"),
    ),
}
"""Variant → what its document expects of it beside eager, and the claims that say so."""


def equivalents(lab: Evidence, machine: str, variant: str, name: str) -> Finding | None:
    """Whether a variant that launches what eager launches takes the same time, by equivalence within ±2%.

    ``variant`` is one of :data:`EXPECTED`, ``name`` what its document calls it. Where the author's program is recorded
    it is that one's figures.
    """
    rows = original(lab, machine, variant)
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")) if not rows else ():
        rows += _sizes(lab, machine, "aten_fusion", variant, dtype, mode)
    if not rows:
        return None
    aside, (expected, ids) = way_in(rows), EXPECTED[variant]
    ids = () if aside else ids
    name = f"Called through the lab, {name}" if aside else name
    found = [(row, row.speed) for row in rows]
    clear = [(row, gain) for row, gain in found if not gain.doubt]
    if not clear:
        question = f"Whether {name[0].lower() + name[1:] if aside else name} is as fast as eager"
        return unsaid(lab, machine, question, "03_aten_fusion", [gain for _, gain in found], ids)
    same = sum(intervals.equal(gain) for _, gain in clear)
    apart = sum(gain.outside(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE) for _, gain in clear)
    (least, worst), (most, best) = (pick(clear, key=lambda pair: pair[1].value) for pick in (min, max))
    text = f"{name} is equal to eager within ±2% in {same} of {len(rows)} cases"
    text += f", different in {apart}, and too close to call in {len(clear) - same - apart}. "
    text += f"It ranges from {formats.told(worst)} at {least.at} in {least.dtype} "
    text += f"to {formats.told(best)} at {most.at} in {most.dtype}. "
    return Finding(
        f"{same} of {len(rows)}",
        f"{name} is as fast as eager" + _where(same, apart, len(rows)),
        f"{text}{silent([gain for _, gain in found])}{aside or expected}",
        "03_aten_fusion",
        claims=ids,
    )


def _where(same: int, apart: int, of: int) -> str:
    if same == of:
        return ""
    if apart:
        return " at some sizes only" if same else " at no size" if apart == of else " at no size that can be told"
    return ", as far as it can be told"


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say, most important first; what was not measured there is left out."""
    candidates = (
        naive(lab, machine),
        epilogue(lab, machine),
        equivalents(lab, machine, "aten", "Plan C"),
        equivalents(lab, machine, "cublas_relu", "v2"),
        method.false_alarms(lab, machine),
    )
    return [finding for finding in candidates if finding is not None]
