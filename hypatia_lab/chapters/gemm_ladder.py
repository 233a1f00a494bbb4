"""The ladder of Linear+ReLU kernels: what each step buys, how far the last one gets, and the chapter's claims.

Every figure is taken from the records when a page is made; what a machine has not measured is left out: such a function
returns None or an empty list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypatia_lab import claims, formats, intervals
from hypatia_lab.claims import Claim
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, silent, unsaid, way_in
from hypatia_lab.pages.phrases import times
from hypatia_lab.results import Row

PAGE = "04_gemm_ladder"
EXPERIMENT = "gemm_ladder"
GOAL, GOAL_SHAPE = 0.8, "8192x4096x4096"
"""The share of cuBLAS's speed that the ladder is to reach in bfloat16, and where."""

REASONS = {
    1: "memory tiling",
    2: "register blocking",
    3: "memory coalescing",
    4: "tensor cores",
    5: "warp-level cooperation",
    6: "bank-conflict avoidance",
    7: "double buffering",
    8: "occupancy",
}
"""S001's eight reasons why cuBLAS is fast, in its numbering."""
REASONED = ("S001-94",)
"""The claim that gives them, with a part for each."""
STEPS: dict[str, tuple[int, ...]] = {
    "step_coalesced": (3, 5),
    "step_shared": (1,),
    "step_registers_1d": (2,),
    "step_registers_2d": (2, 8),
    "step_vectorized": (3,),
    "step_conflict_free": (6,),
    "step_async": (7,),
    "step_mma": (4,),
    "step_wgmma": (4, 5),
    "step_multicast": (1,),
    "blocked": (1, 2),
    "threaded": (),
}
"""Step → those of S001's reasons that it shows, together where there are several."""
LADDER = ("naive", *STEPS)
LIBRARY = ("epilogue", "eager")
ORDER = (*LADDER, "triton", *LIBRARY)
"""Lanes of the figure, easiest first; the library is last."""
SHORTER = "bfloat16 for float32"
LEFT = "what is left to the library"


@dataclass(frozen=True)
class Rung:
    """One step of a way: its name, S001's reasons behind it, its speed over the step before, and its share of the way.

    Shares are of the logarithm, so that those of one way add up to 1; a step that loses speed has a negative one.
    """

    name: str
    reasons: tuple[int, ...]
    factor: Interval
    share: float


@dataclass(frozen=True)
class Climb:
    """The way from the naive kernel to the library at one size: its ends, the factor between them, its rungs."""

    first: Row
    last: Row
    whole: Interval
    rungs: tuple[Rung, ...]


# ---------------------------------------------------------------- reading


def _sizes(lab: Evidence, machine: str) -> dict[str, dict[tuple[str, str], Row]]:
    """Shape → (dtype, variant) → timed row, smallest shape first."""
    found: dict[str, dict[tuple[str, str], Row]] = {}
    for row in lab.timed(machine, experiment=EXPERIMENT, operation="linear_relu"):
        found.setdefault(row.shape, {})[row.dtype, row.variant] = row
    return found


def _steps(rows: Mapping[tuple[str, str], Row], dtype: str) -> list[Row]:
    return [rows[dtype, name] for name in LADDER if (dtype, name) in rows]


def _library(rows: Mapping[tuple[str, str], Row], dtype: str) -> Row | None:
    """The library at its best: bias and ReLU in its epilogue, or behind the product."""
    found = [rows[dtype, name] for name in LIBRARY if (dtype, name) in rows]
    return min(found, key=lambda row: row.median_us, default=None)


def climbs(lab: Evidence, machine: str) -> dict[str, Climb]:
    """Shape → the way from the naive kernel in float32 to the library, smallest shape first.

    Where the last step in float32 was also timed in bfloat16, the way goes on in bfloat16 and ends at its library.
    """
    found = {}
    for shape, rows in _sizes(lab, machine).items():
        path, halves, dtype = _steps(rows, "float32"), _steps(rows, "bfloat16"), "float32"
        if len(path) < 2 or path[0].variant != "naive":
            continue
        if halves and halves[0].variant == path[-1].variant:
            path, dtype = path + halves, "bfloat16"
        if (end := _library(rows, dtype)) is not None:
            found[shape] = _climb([*path, end])
    return found


def _climb(path: Sequence[Row]) -> Climb:
    whole = path[0].over(path[-1])
    rungs = []
    for before, row in zip(path, path[1:], strict=False):
        factor, name = before.over(row), row.variant
        share = math.log(factor.value) / math.log(whole.value) if whole.value != 1 else math.nan
        name = LEFT if row is path[-1] else SHORTER if name == before.variant else name
        rungs.append(Rung(name, STEPS.get(name, ()), factor, share))
    return Climb(path[0], path[-1], whole, tuple(rungs))


def reached(lab: Evidence, machine: str, dtype: str) -> list[tuple[Row, Row, Interval]]:
    """The quickest step of the ladder, the library, and the first's speed over the second's, at every size."""
    found = []
    for rows in _sizes(lab, machine).values():
        own = min(_steps(rows, dtype), key=lambda row: row.median_us, default=None)
        end = _library(rows, dtype)
        if own is not None and end is not None:
            found.append((own, end, end.over(own)))
    return found


def _percent(share: float) -> str:
    return f"{formats.number(100 * share)}%"


def _percents(share: Interval) -> str:
    return formats.told(share.times(100), "%")


def _reasons(numbers: Sequence[int]) -> str:
    return " and ".join(f"{REASONS[number]} ({number})" for number in numbers)


def _words(rung: Rung) -> str:
    """A rung by its reasons, or by its name where S001 gives none."""
    return " and ".join(REASONS[number] for number in rung.reasons) or rung.name


def _share(rung: Rung) -> str:
    name = f"{rung.name}, " if rung.reasons else ""
    return f"{_words(rung)} {_percent(rung.share)} ({name}{times(rung.factor)})"


# ---------------------------------------------------------------- findings


def reasons(lab: Evidence, machine: str) -> Finding | None:
    """The factor from the naive kernel to the library, the steps that buy most of it, and those that buy nothing."""
    found = climbs(lab, machine)
    if not found:
        return None
    shape, way = list(found.items())[-1]
    aside = way_in([way.first])
    judged = () if aside else REASONED
    clear = [rung for rung in way.rungs if rung.name != LEFT and not rung.factor.doubt]
    if way.whole.doubt or not clear:
        silent_ones = [factor for factor in (way.whole, *(rung.factor for rung in way.rungs)) if factor.doubt]
        question = "Which step of the ladder makes the library fast"
        return unsaid(lab, machine, question, PAGE, silent_ones, judged)
    best = sorted(clear, key=lambda rung: -rung.share)
    top = [_share(rung) for rung in best[:3]]
    text = f"At {formats.shape(shape)} the library in {way.last.dtype} ({way.last.variant}) is "
    text += f"{times(way.whole)} as fast as the naive kernel in float32. Of that way, on a log scale, "
    text += f"most goes to {listing(top)}. "
    factors: dict[str, list[Interval]] = {}
    for rung in (rung for one in found.values() for rung in one.rungs if rung.reasons):
        factors.setdefault(rung.name, []).append(rung.factor)
    gaining = [name for name, own in factors.items() if all(f.above(1 + intervals.EQUIVALENCE) for f in own)]
    idle = [name for name, own in factors.items() if all(f.below(1 + intervals.EQUIVALENCE) for f in own)]
    text += f"{len(gaining)} of {len(factors)} step{'' if len(factors) == 1 else 's'} that S001 gives a reason for "
    text += f"gain{'s' if len(factors) == 1 else ''} more than 2% at every size"
    text += f"; {listing(idle)} at none." if idle else "."
    divides = way.whole.above(1)
    return Finding(
        f"{formats.number(100 * best[0].share)}%" if divides else f"{formats.number(way.whole.value)}×",
        "The way to the library is too uncertain to divide"
        if not divides
        else f"Most of the way is one step: {_words(best[0])}"
        if best[0].share > 0.5
        else f"No single step makes the library fast; the largest is {_words(best[0])}",
        f"{text} {aside or 'S001 gives eight reasons and no figures.'}",
        PAGE,
        claims=judged,
    )


def goal(lab: Evidence, machine: str) -> Finding | None:
    """How much of cuBLAS's speed the quickest step on tensor cores reaches, against the goal."""
    pairs = reached(lab, machine, "bfloat16")
    if not pairs:
        return None
    asked = [pair for pair in pairs if pair[0].shape == GOAL_SHAPE]
    own, library, share = (asked or pairs)[-1]
    if share.doubt:
        return unsaid(lab, machine, "How much of cuBLAS's speed the ladder reaches", PAGE, [share])
    text = f"At {own.at} in bfloat16 {own.variant} takes {own.takes}, cuBLAS ({library.variant}) "
    text += f"{library.takes}: it reaches {_percents(share)} of the library's speed"
    text += f", and {reach} of the measured ceiling" if (reach := own.attained) else ""
    rest = [(row, found) for row, _, found in pairs if row is not own and not found.doubt]
    places = [f"{_percent(found.value)} at {row.at} ({row.variant})" for row, found in rest]
    text += f". Elsewhere it reaches {listing(places)}. " if places else ". "
    met, missed = share.above(GOAL), share.below(GOAL)
    title = (
        f"The ladder reaches the goal of {GOAL:.0%} of cuBLAS"
        if met
        else f"The ladder misses the goal of {GOAL:.0%} of cuBLAS by {_percent(GOAL - share.value)}"
        if missed
        else f"Whether the ladder reaches the goal of {GOAL:.0%} of cuBLAS is undecided"
    )
    if not asked:
        title = f"The ladder reaches {_percent(share.value)} of cuBLAS"
        text += f"The goal of {GOAL:.0%} is set at {formats.shape(GOAL_SHAPE)}, which was not measured here."
    return Finding(_percent(share.value), title, text.strip(), PAGE)


def full_precision(lab: Evidence, machine: str) -> Finding | None:
    """How much of the library's speed the quickest step in float32 reaches, size by size."""
    pairs = reached(lab, machine, "float32")
    if not pairs:
        return None
    every, judged = [share for _, _, share in pairs], ("S001-104",)
    clear = [(own, share) for own, _, share in pairs if not share.doubt]
    if not clear:
        return unsaid(lab, machine, "Whether a product of one's own keeps up in float32", PAGE, every, judged)
    behind = sum(share.below(1 - intervals.EQUIVALENCE) for share in every)
    level = sum(share.above(1 - intervals.EQUIVALENCE) for share in every)
    where = listing([f"{_percents(share)} at {own.at} ({own.variant})" for own, share in clear])
    low, high = (_percent(end(share.value for _, share in clear)) for end in (min, max))
    return Finding(
        low if low == high else f"{low.removesuffix('%')}–{high}",
        "In float32 a product of one's own stays behind the library"
        if behind == len(pairs)
        else "In float32 a product of one's own keeps up with the library"
        if level == len(pairs)
        else "In float32 a product of one's own keeps up at some sizes"
        if level
        else "In float32 it is undecided whether a product of one's own keeps up",
        f"Of the library's speed the ladder's quickest step reaches {where}. {silent(every)}"
        "S001 concludes that one should never write a product of one's own.",
        PAGE,
        claims=judged,
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    candidates = (reasons(lab, machine), goal(lab, machine), full_precision(lab, machine))
    return [found for found in candidates if found is not None]


# ---------------------------------------------------------------- tables


def bought(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What each step buys: a line a step, for each size, the largest first, its factor and its share of the way."""
    found = climbs(lab, machine)
    lines: dict[str, dict[str, str]] = {}
    reasons: dict[str, str] = {}
    for way in found.values():
        for rung in way.rungs:
            lines.setdefault(rung.name, {"step": rung.name})
            reasons[rung.name] = _reasons(rung.reasons) or formats.MISSING
    last = lines.pop(LEFT, None)  # behind the steps that only larger sizes have
    lines |= {} if last is None else {LEFT: last}
    found = dict(reversed(found.items()))
    for shape, way in found.items():
        column = formats.shape(shape)
        own = {
            rung.name: times(rung.factor) + ("" if _lost(rung.factor) else f", {_percent(rung.share)}")
            for rung in way.rungs
        }
        for name, line in lines.items():
            line[column] = own.get(name, formats.MISSING)
    out = [line | {"reason of S001": reasons[name]} for name, line in lines.items()]
    if out:
        wholes = {
            formats.shape(shape): times(way.whole) + ("" if _lost(way.whole) else ", 100%")
            for shape, way in found.items()
        }
        out.append({"step": "the whole way"} | wholes | {"reason of S001": formats.MISSING})
    return out


def bought_by(lab: Evidence, machine: str, name: str) -> str:
    """What step ``name`` buys over the step before, in a sentence, at the largest size that has both; else empty."""
    for shape, way in reversed(climbs(lab, machine).items()):
        for rung in way.rungs:
            if rung.name == name:
                return f"At {formats.shape(shape)} {_against_before(rung.factor)}."
    return ""


def _against_before(factor: Interval) -> str:
    faster = factor.value >= 1
    times = max(factor.value, 1 / factor.value)
    said = formats.number(times, 1 if times >= 1.1 else 2)
    if factor.doubt:
        return "the records do not say whether it is faster than the step before"
    if factor.within(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE):
        return "it is as fast as the step before"
    return f"it is {said} times as fast as the step before" if faster else f"it loses: it takes {said} times as long"


def finish(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The quickest step beside the library, and the Triton kernel: a line a size and dtype."""
    sizes, out = _sizes(lab, machine), []
    for dtype in ("float32", "bfloat16"):
        for own, library, share in reached(lab, machine, dtype):
            rows = sizes[own.shape]
            line = {"workload": f"{own.at} {dtype}", "quickest step": f"{own.variant} {own.took}"}
            line |= {f"library, {name}": _time(rows.get((dtype, name))) for name in LIBRARY}
            line |= {
                "share of the library": _percents(share),
                "of limit": own.attained or formats.MISSING,
                "library of limit": library.attained or formats.MISSING,
            }
            triton = rows.get((dtype, "triton"))
            line["Triton, share"] = formats.MISSING if triton is None else _percents(library.over(triton))
            out.append(line)
    kept = [name for name in (out[0] if out else ()) if any(line[name] != formats.MISSING for line in out)]
    return [{name: line[name] for name in kept} for line in out]


def _time(row: Row | None) -> str:
    return formats.MISSING if row is None else row.took


def _lost(factor: Interval) -> bool:
    """Whether a factor is too noisy for a table, and so its share of the way."""
    return factor.width > intervals.UNTOLD


# ---------------------------------------------------------------- claims


def chapter_claims() -> list[Claim]:
    """The claims whose verdicts the chapter shows, in the order of the ledger."""
    return [
        claim
        for claim in claims.ledger()
        if claim.experiment == EXPERIMENT or (claim.seed, claim.section) == ("S001", "Complexity of Optimized GEMM")
    ]
