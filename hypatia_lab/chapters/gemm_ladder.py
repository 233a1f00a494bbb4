"""The ladder of Linear+ReLU kernels: what each step buys, and how far the last one gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hypatia_lab import formats, intervals
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, silent, span_text, unsaid, way_in
from hypatia_lab.pages.phrases import spoken, times
from hypatia_lab.results import Row
from hypatia_lab.variants import label, names

PAGE = "04_gemm_ladder"
EXPERIMENT = "gemm_ladder"
GOAL, GOAL_SHAPE = 0.8, "8192x4096x4096"
"""The share of cuBLAS's speed that the ladder is to reach in bfloat16, and where: the book's own goal."""

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
SHOWS: dict[str, tuple[int, ...]] = {
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
}
"""Step → those of S001's reasons that it shows, together where there are several; of other steps S001 says nothing."""
LIBRARY = ("epilogue", "eager")
LADDERS = ("ladder_vector", "ladder_tensor", "ladder_cpu")
DTYPES = ("float32", "bfloat16")
TOP, TRITON = "the library", "triton"


@dataclass(frozen=True)
class Rung:
    """One step of a way: what people call it, S001's reasons behind it, its row, and its speed over the step before.

    ``share`` is of the library's speed. The first step has no ``factor``.
    """

    label: str
    reasons: tuple[int, ...]
    row: Row
    factor: Interval | None
    share: Interval


def ladder() -> tuple[str, ...]:
    """The steps, easiest first: all variants that are registered as one, for vector units, tensor cores or a CPU."""
    return tuple(dict.fromkeys(name for tag in LADDERS for name in names("linear_relu", tag)))


def order() -> tuple[str, ...]:
    """Lanes of the figure, easiest first; the library is last."""
    return (*ladder(), TRITON, *LIBRARY)


# ---------------------------------------------------------------- reading


def _sizes(lab: Evidence, machine: str) -> dict[str, dict[tuple[str, str], Row]]:
    """Shape → (dtype, variant) → row with a time, smallest shape first."""
    found: dict[str, dict[tuple[str, str], Row]] = {}
    rows = lab.leading(machine, experiment=EXPERIMENT, operation="linear_relu", status="ok")
    for row in sorted((row for row in rows if row.timed), key=lambda row: row.flops):
        found.setdefault(row.shape, {})[row.dtype, row.variant] = row
    return found


def _steps(rows: Mapping[tuple[str, str], Row], dtype: str) -> list[Row]:
    return [rows[dtype, name] for name in ladder() if (dtype, name) in rows]


def _library(rows: Mapping[tuple[str, str], Row], dtype: str) -> Row | None:
    """The library at its best: bias and ReLU in its epilogue, or behind the product."""
    found = [rows[dtype, name] for name in LIBRARY if (dtype, name) in rows]
    return min(found, key=lambda row: row.median_us, default=None)


def climbs(lab: Evidence, machine: str) -> dict[str, dict[str, list[Rung]]]:
    """Shape → dtype → the way to the library, which is last; smallest shape first.

    In float32 a way begins with the naive kernel; without one of those a shape is left out. In bfloat16 it begins with
    the last step before the tensor cores.
    """
    found: dict[str, dict[str, list[Rung]]] = {}
    for shape, rows in _sizes(lab, machine).items():
        for dtype in DTYPES:
            path, end = _steps(rows, dtype), _library(rows, dtype)
            if dtype == DTYPES[0] and (not path or path[0].variant != "naive"):
                break
            if len(path) > 1 and end is not None:
                way = [_rung(row, before, end) for row, before in zip([*path, end], [None, *path], strict=True)]
                found.setdefault(shape, {})[dtype] = way
    return found


def _rung(row: Row, before: Row | None, end: Row) -> Rung:
    name = TOP if row is end else label("linear_relu", row.variant)
    shown = SHOWS.get(row.variant, ()) if before else ()  # a way that begins further up shows nothing of where it does
    return Rung(name, shown, row, before and before.over(row), end.over(row))


def reached(lab: Evidence, machine: str, dtype: str) -> list[tuple[Row, Row, Interval]]:
    """The quickest step of the ladder, the library, and the first's speed over the second's, at every size."""
    found = []
    for rows in _sizes(lab, machine).values():
        own = min(_steps(rows, dtype), key=lambda row: row.median_us, default=None)
        end = _library(rows, dtype)
        if own is not None and end is not None:
            found.append((own, end, end.over(own)))
    return found


def _percent(share: Interval) -> str:
    return spoken(share.times(100), "%")


def _percents(shares: Sequence[Interval]) -> str:
    """``33–79%``: the least and the greatest of several shares that say something."""
    low, high = (_percent(end(shares, key=lambda share: share.value)) for end in (min, max))
    return low if low == high else f"{low.removesuffix('%')}–{high}"


# ---------------------------------------------------------------- findings


def reasons(lab: Evidence, machine: str) -> Finding | None:
    """The step that buys most on the way from the naive kernel to the library, and those that buy nothing."""
    found = climbs(lab, machine)
    if not found:
        return None
    shape, ways = list(found.items())[-1]
    whole = ways[DTYPES[0]][0].row.over(ways[DTYPES[0]][-1].row)
    aside = way_in([ways[DTYPES[0]][0].row])
    judged = () if aside else REASONED
    rungs = [rung for way in ways.values() for rung in way]
    clear = [(rung.factor, rung) for rung in rungs if rung.reasons and rung.factor and not rung.factor.doubt]
    if whole.doubt or not clear:
        silent_ones = [one for one in (whole, *(rung.factor for rung in rungs)) if one and one.doubt]
        return unsaid(lab, machine, "Which step makes the library fast", PAGE, silent_ones or [whole], judged)
    factor, best = max(clear, key=lambda pair: pair[0].value)
    before = next(one for way in ways.values() for one, rung in pairwise(way) if rung is best)
    text = f"Over the step before, {before.label}, in {best.row.dtype} at {formats.shape(shape)}. "
    text += f"In {DTYPES[0]} the library is {spoken(whole, '')} times as fast as the naive kernel there. "
    every: dict[str, list[Interval]] = {}
    for rung in (rung for one in found.values() for way in one.values() for rung in way if rung.reasons):
        every.setdefault(rung.label, []).extend([rung.factor] if rung.factor else [])
    idle = [name for name, own in every.items() if own and all(f.below(1 + intervals.EQUIVALENCE) for f in own)]
    text += f"In these kernels there is at no size a gain from {listing(idle)}. " if idle else ""
    return Finding(
        spoken(factor),
        f"The largest step to the library: {best.label}" if factor.above(1) else "No step to the library gains",
        (text + aside).strip(),
        PAGE,
        claims=judged,
    )


def goal(lab: Evidence, machine: str) -> Finding | None:
    """How much of cuBLAS's speed the quickest step on tensor cores reaches, against the goal."""
    pairs = reached(lab, machine, "bfloat16")
    if not pairs:
        return None
    asked = [pair for pair in pairs if pair[0].shape == GOAL_SHAPE]
    own, _, share = (asked or pairs)[-1]
    if share.doubt:
        return unsaid(lab, machine, "How much of cuBLAS's speed the ladder reaches", PAGE, [share])
    title = (
        f"The ladder reaches {_percent(share)} of cuBLAS"
        if not asked
        else f"The ladder reaches the goal of {GOAL:.0%} of cuBLAS"
        if share.above(GOAL)
        else f"The ladder misses the goal of {GOAL:.0%} of cuBLAS"
        if share.below(GOAL)
        else f"Whether the ladder reaches {GOAL:.0%} of cuBLAS is undecided"
    )
    text = f"In bfloat16 at {own.at}, with {label('linear_relu', own.variant)}. "
    text += "The goal is this book's own, and set at this size. " if asked else ""
    rest = [other for row, _, other in pairs if row is not own and not other.doubt]
    if not asked:
        text += f"This book's goal of {GOAL:.0%} is set at {formats.shape(GOAL_SHAPE)}, which was not measured here."
    elif rest:
        text += f"Smaller products reach {_percents(rest)}."
    return Finding(_percent(share), title, text.strip(), PAGE)


def full_precision(lab: Evidence, machine: str) -> Finding | None:
    """How much of the library's speed the quickest step in float32 reaches, over the sizes."""
    every, judged = [share for _, _, share in reached(lab, machine, "float32")], ("S001-104",)
    if not every:
        return None
    if not (clear := [share for share in every if not share.doubt]):
        return unsaid(lab, machine, "Whether a product of one's own keeps up in float32", PAGE, every, judged)
    behind = sum(share.below(1 - intervals.EQUIVALENCE) for share in every)
    level = sum(share.above(1 - intervals.EQUIVALENCE) for share in every)
    where = f"at {level} of {len(every)} sizes" if level < len(every) else ""
    return Finding(
        _percents(clear),
        "On vector units a float32 product of one's own stays behind the library"
        if behind == len(every)
        else f"On vector units a float32 product of one's own keeps up {where}".strip()
        if level
        else "Whether a product of one's own keeps up is undecided",
        f"The quickest float32 step, as a share of the library's speed over {len(every)} sizes. {silent(every)}"
        "S001 says never to write a product of one's own.",
        PAGE,
        claims=judged,
    )


def in_triton(lab: Evidence, machine: str) -> Finding | None:
    """How much of the library's speed our Triton kernel reaches on tensor cores, over the sizes."""
    pairs = []
    for rows in _sizes(lab, machine).values():
        own, end = rows.get(("bfloat16", TRITON)), _library(rows, "bfloat16")
        if own is not None and end is not None:
            pairs.append((own, end.over(own)))
    every = [share for _, share in pairs]
    if not every:
        return None
    if not (clear := [(own, share) for own, share in pairs if not share.doubt]):
        return unsaid(lab, machine, "Whether a Triton kernel keeps up in bfloat16", PAGE, every)
    low, high = 1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE
    ahead, level = sum(share.above(high) for share in every), sum(share.above(low) for share in every)
    what, where = "In bfloat16 our Triton kernel", f" at {ahead} of {len(every)} sizes"
    title = (
        f"{what} is ahead of the library{where if ahead < len(every) else ''}"
        if ahead
        else f"{what} keeps up with the library"
        if level == len(every)
        else f"{what} stays behind the library"
        if all(share.below(low) for share in every)
        else f"Whether our Triton kernel keeps up in bfloat16 is undecided{' at some sizes' if level else ''}"
    )
    read: dict[str, list[str]] = {word: [] for word in BESIDE}
    for own, share in clear:
        read[_beside(share)].append(own.at)
    told = " ".join(f"{word} at {listing(sizes)}." for word, sizes in read.items() if sizes)
    text = f"Its speed over the library's. {told} {silent(every)}"
    return Finding(span_text([share for _, share in clear]), title, text.strip(), PAGE)


BESIDE = AHEAD, EQUAL, BEHIND, OPEN = "It is ahead", "It is equal within 2%", "It is behind", "Which is faster is open"
"""How a kernel may stand beside the library, as a sentence on sizes begins."""


def _beside(share: Interval) -> str:
    """How a kernel stands beside the library by its ``share`` of the library's speed: one of :data:`BESIDE`."""
    low, high = 1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE
    if share.within(low, high):
        return EQUAL
    return AHEAD if share.above(high) else BEHIND if share.below(low) else OPEN


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    return answered(lab, machine, reasons, goal, in_triton, full_precision)


# ---------------------------------------------------------------- tables


def largest(lab: Evidence, machine: str) -> str:
    """The largest size that has a way from the naive kernel to the library, as a reader sees it; empty without one."""
    return formats.shape(next(reversed(climbs(lab, machine)), ""))


def bought(lab: Evidence, machine: str) -> dict[str, list[dict[str, str]]]:
    """Dtype → what each step buys in it at the largest size: a line a step, then the library and the Triton kernel."""
    shape, ways = next(reversed(climbs(lab, machine).items()), ("", {}))
    out = {}
    for dtype, way in ways.items():
        end, lines = way[-1].row, list(way)
        if triton := _sizes(lab, machine)[shape].get((dtype, TRITON)):
            lines.append(Rung(label("linear_relu", TRITON), (), triton, None, end.over(triton)))
        out[dtype] = [_line(rung, "TFLOP/s" if end.rate().value >= 1e12 else "GFLOP/s") for rung in lines]
    return out


def _line(rung: Rung, unit: str) -> dict[str, str]:
    rate = rung.row.rate().times(1e-12 if unit == "TFLOP/s" else 1e-9)
    return {
        "step": rung.label,
        unit: rate.doubt or formats.number(rate.value),
        "gain": _cell(rung.factor),
        "of the library": _cell(rung.share.times(100), "%"),
        "S001's reason": " and ".join(REASONS[number] for number in rung.reasons) or formats.MISSING,
    }


def _cell(found: Interval | None, unit: str = "×") -> str:
    return formats.MISSING if found is None or formats.absent(found.value) else found.doubt or spoken(found, unit)


def by_size(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Each step's speed over the step before, with its interval: a line a step, a column a size, the largest first."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for shape, ways in reversed(climbs(lab, machine).items()):
        for rung in (rung for way in ways.values() for rung in way):
            if rung.factor:
                line = lines.setdefault((rung.row.dtype, rung.label), {"numbers": rung.row.dtype, "step": rung.label})
                line[formats.shape(shape)] = times(rung.factor)
    return list(lines.values())


def bought_by(lab: Evidence, machine: str, name: str) -> str:
    """What step ``name`` buys over the step before, in a sentence, at the largest size that has both; else empty.

    Where that is a gain, a second sentence tells of the size at which the step loses most.
    """
    found = [
        (shape, rung.factor)
        for shape, ways in reversed(climbs(lab, machine).items())
        for way in ways.values()
        for rung in way
        if rung.row.variant == name and rung.factor
    ]
    if not found:
        return ""
    lost = [pair for pair in found[1:] if pair[1].below(1 - intervals.EQUIVALENCE)]
    told = [found[0]]
    if lost and found[0][1].above(1 + intervals.EQUIVALENCE):
        told.append(min(lost, key=lambda pair: pair[1].value))
    return " ".join(f"At {formats.shape(shape)} {_against_before(factor)}." for shape, factor in told)


def _against_before(factor: Interval) -> str:
    if factor.doubt:
        return "the records do not say whether it is faster than the step before"
    if factor.within(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE):
        return "it is as fast as the step before"
    if factor.value >= 1:
        return f"it is {spoken(factor, '')} times as fast as the step before"
    return f"it loses: it takes {spoken(factor.inverse(), '')} times as long"


def finish(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The quickest step and the Triton kernel beside the library: a line a size and dtype."""
    sizes, out = _sizes(lab, machine), []
    for dtype in DTYPES:
        for own, library, share in reached(lab, machine, dtype):
            triton = sizes[own.shape].get((dtype, TRITON))
            out.append(
                {
                    "size": f"{own.at} {dtype}",
                    "quickest step": label("linear_relu", own.variant),
                    "share of the library": formats.told(share.times(100), "%"),
                    "share of the limit": own.attained or formats.MISSING,
                    "Triton, share": formats.told(library.over(triton).times(100), "%") if triton else formats.MISSING,
                }
            )
    kept = [name for name in (out[0] if out else ()) if any(line[name] != formats.MISSING for line in out)]
    return [{name: line[name] for name in kept} for line in out]
