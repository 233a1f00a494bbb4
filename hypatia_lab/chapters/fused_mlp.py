"""Multilayer perceptrons in one kernel and layer by layer: findings, tables and claims of their chapter.

Every figure is taken from the records when a page is made; what a machine has not measured is left out: such a function
returns None or an empty list. "Layer by layer" is eager PyTorch or the library's epilogue, whichever is quicker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import claims, formats, intervals, results
from hypatia_lab.claims import Claim
from hypatia_lab.figures.language import spanning
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, silent, span_text, unsaid, way_in
from hypatia_lab.pages.phrases import times
from hypatia_lab.results import Row

PAGE = "16_fused_mlp"
FUSED, MODELS = "fused_mlp", "mlp_models"
"""The chapter's experiments."""
SCRIPTS = ("mlp_fusion", "multiconfig", "safety")
"""The author's scripts on models of several layers, as cases of what his programs print."""
OPERATIONS = ("mlp2", "mlp3")
LAYERWISE = ("eager", "epilogue")
ONE_KERNEL = ("fused", "fused_cuda")
"""Our own kernels of several layers: in Triton, and in CUDA C++ for Hopper."""
ROWS, GOAL_SHAPES = 65536, ("65536x64", "65536x128")
FASTER, SHARE = 5.0, 50
"""The goal of three layers in one kernel: times eager's speed, and share (%) of memory's bandwidth."""
SAFETY_MODEL = "32x784x256x2x10"
"""The model of the documents' safety test, which is measured beside the nine of their benchmark."""
HOPED = (1.10, 1.20)
"""What S004 expects of several layers in one kernel, ×."""


# ---------------------------------------------------------------- reading


def timed(lab: Evidence, machine: str, experiment: str, **wanted: Any) -> list[Row]:
    """Rows of ``experiment`` with a time at the primary clock, smallest first, without the A/A control."""
    return [row for row in lab.timed(machine, experiment=experiment, **wanted) if not row.is_twin]


def in_one_kernel(rows: Sequence[Row]) -> list[Row]:
    """Of each workload among ``rows`` the quicker one of our own kernels, in the order of ``rows``."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.variant in ONE_KERNEL:
            best[row.workload] = min(best.get(row.workload, row), row, key=lambda own: own.median_us)
    return list(best.values())


def goal_rows(lab: Evidence, machine: str) -> list[Row]:
    """Everything asked at the sizes of the goal; where those were not measured, of equal-width layers at all."""
    rows = lab.leading(machine, experiment=FUSED, operation=OPERATIONS)
    return [row for row in rows if row.shape in GOAL_SHAPES] or rows


def swept(lab: Evidence, machine: str) -> list[Row]:
    """Three layers in bfloat16 over widths and rows, in one kernel and layer by layer; empty where no kernel ran."""
    found = lab.leading(
        machine, experiment=FUSED, operation="mlp3", dtype="bfloat16", variant=(*ONE_KERNEL, *LAYERWISE)
    )
    timed_once = any(row.variant in ONE_KERNEL and row.timed for row in found)
    return found if timed_once else []


def untimed(lab: Evidence, machine: str) -> str:
    """Why no kernel of several layers has a time on ``machine``."""
    rows = lab.select(machine=machine, experiment=FUSED, variant=ONE_KERNEL)
    if rows:
        return rows[0].reason or rows[0].status
    return "it needs a GPU" if lab.primary(machine) != "graph" else "it was not asked for"


def model_rows(lab: Evidence, machine: str) -> list[Row]:
    """Rows of the documents' benchmark by every clock, without the A/A control."""
    rows = lab.select(machine=machine, experiment=MODELS)
    return [row for row in rows if row.shape != SAFETY_MODEL and not row.is_twin]


def _place(row: Row) -> tuple[int, int]:
    rows, width = row.shape.split("x")
    return int(rows), int(width)


def factors(lab: Evidence, machine: str) -> dict[tuple[int, int], Interval]:
    """(rows, width) → speed of three layers in one kernel over the quicker of the two forms layer by layer."""
    rows = [row for row in swept(lab, machine) if row.timed]
    found = {}
    for own in in_one_kernel(rows):
        peers = [row for row in rows if row.shape == own.shape and row.variant in LAYERWISE]
        if peers:
            found[_place(own)] = min(peers, key=lambda row: row.median_us).over(own)
    return found


def bandwidth_share(lab: Evidence, row: Row, clock: str) -> Interval:
    """Share (%) of the best copy rate by ``clock`` at which a call moves its bytes; NaN without a ceiling."""
    rate = results.ceilings(lab.of(row.machine)).get(("copy", "", clock), math.nan)
    return row.time.inverse().times(100 * row.traffic * 1e6 / rate)


def _percent(share: Interval) -> str:
    if absent(share.value):
        return formats.MISSING
    return formats.UNTOLD if share.width > intervals.UNTOLD else f"{formats.number(share.value)}%"


# ---------------------------------------------------------------- findings


def goal(lab: Evidence, machine: str) -> Finding | None:
    """Three layers in one kernel at the sizes of the goal: against eager, and against memory's bandwidth."""
    rows = [row for row in timed(lab, machine, FUSED, operation="mlp3") if row.shape in GOAL_SHAPES]
    rows = in_one_kernel(rows)
    if not rows:
        return None
    found = [(row, row.speed, bandwidth_share(lab, row, "cold")) for row in rows]
    clear = [case for case in found if not case[1].doubt]
    if not clear:
        question = "Whether three layers in one kernel reach the goal"
        return unsaid(lab, machine, question, PAGE, [factor for _, factor, _ in found])
    said, met, missed, reached = [], 0, [], 0
    for row, factor, share in clear:
        own = f"{row.takes} at {row.at} ({row.variant}), with {times(factor)} eager's speed"
        said.append(own if share.doubt else f"{own} and {_percent(share)} of memory's bandwidth")
        short = [f"{formats.number(factor.value)}× instead of {FASTER:g}×"] if factor.below(FASTER) else []
        short += [f"{_percent(share)} instead of {SHARE}% of the bandwidth"] if share.below(SHARE) else []
        missed += [f"{text} at {row.at}" for text in short]
        met += factor.above(FASTER) and share.above(SHARE)
        reached += not short
    text = f"Three layers in one kernel take {listing(said)}. {silent([factor for _, factor, _ in found])}"
    text += "The bandwidth is the best rate of a copy with cold caches. "
    text += f"The goal was {FASTER:g}× eager and {SHARE}% of the bandwidth"
    text += f"; missed: {listing(missed)}." if missed else "."
    return Finding(
        span_text([factor for _, factor, _ in clear]),
        "Three layers in one kernel reach the goal"
        if met == len(rows)
        else "Three layers in one kernel miss the goal"
        if not reached
        else "Three layers in one kernel reach the goal at one width only"
        if met and missed
        else "Whether three layers in one kernel reach the goal is undecided",
        text,
        PAGE,
    )


def crossover(lab: Evidence, machine: str) -> Finding | None:
    """Up to which width one kernel is faster than layer by layer."""
    found = factors(lab, machine)
    if not found:
        return None
    quick = {place for place, factor in found.items() if intervals.reading(factor) == "faster"}
    widths = sorted({width for _, width in found})
    always = [width for width in widths if all(place in quick for place in found if place[1] == width)]
    never = [width for width in widths if not any(place in quick for place in found if place[1] == width)]
    decided = [place for place, factor in found.items() if intervals.decided(factor)]
    if not decided:
        return unsaid(lab, machine, "Whether one kernel pays", PAGE, list(found.values()))
    best = max(decided, key=lambda place: found[place].value)
    text = (
        f"One kernel is surely faster than layer by layer in {len(quick)} of {len(found)} cases that it can compute, "
    )
    text += f"most at {best[0]} rows of width {best[1]}: {times(found[best])}. {silent(list(found.values()))}"
    text += f"It is faster at every number of rows at width{_plural(always)}. " if always else ""
    text += f"It is never surely faster at width{_plural(never)}. " if never else ""
    refused = [row.reason for row in swept(lab, machine) if row.variant == ONE_KERNEL[0] and row.reason]
    if refused:
        text += f"Beyond that there is no such kernel: {refused[0]}."
    stop = max((width for _, width in quick), default=0)
    slow = all(intervals.reading(factor) == "slower" for factor in found.values())
    return Finding(
        f"up to width {stop}" if stop else "nowhere",
        "One kernel pays while the layers are narrow"
        if stop
        else "One kernel never pays"
        if slow
        else "Whether one kernel pays is undecided",
        text.strip(),
        PAGE,
    )


def _plural(widths: Sequence[int]) -> str:
    return ("s " if len(widths) > 1 else " ") + listing([str(width) for width in widths])


def hoped(lab: Evidence, machine: str) -> Finding | None:
    """Two and three layers in one kernel against eager at the goal's number of rows, beside what S004 expects."""
    rows = in_one_kernel(timed(lab, machine, FUSED, operation=OPERATIONS))
    rows = [row for row in rows if _place(row)[0] == ROWS and not absent(row.ratio_low)]
    if not rows:
        return None
    every, judged = [row.speed for row in rows], ("S004-49",)
    inside = sum(gain.within(*HOPED) for gain in every)
    more, less = sum(gain.above(HOPED[1]) for gain in every), sum(gain.below(HOPED[0]) for gain in every)
    clear = [row for row in rows if not row.speed.doubt]
    if not clear:
        return unsaid(lab, machine, "What several layers in one kernel gain", PAGE, every, judged)
    worst, best = (pick(clear, key=lambda row: row.ratio) for pick in (min, max))
    where = [f"{times(row.speed)} ({row.operation} at {row.at})" for row in (worst, best)]
    return Finding(
        span_text([row.speed for row in clear]),
        "Several layers in one kernel gain more than was hoped" + (", but not everywhere" if more < len(rows) else "")
        if more
        else "Several layers in one kernel gain less than was hoped"
        if less
        else "Several layers in one kernel gain what was hoped"
        if inside
        else "What several layers in one kernel gain is undecided",
        f"Against eager in {rows[0].dtype} at {ROWS} rows it is {' to '.join(dict.fromkeys(where))}. S004 expects "
        f"{HOPED[0]:.2f} to {HOPED[1]:.2f}×: of {len(rows)} cases {inside} lie inside, {more} above and {less} below.",
        PAGE,
        claims=judged,
    )


def models(lab: Evidence, machine: str) -> Finding | None:
    """Whether Plan C is as fast as eager in the documents' models, as S004 expects."""
    clock = lab.primary(machine)
    measured = [row for row in model_rows(lab, machine) if row.clock == clock and not absent(row.ratio_low)]
    rows = [row for row in measured if row.variant == "aten"]
    if not rows:
        return None
    every, clear = [row.speed for row in rows], [row for row in rows if not row.speed.doubt]
    same = [gain for gain in every if intervals.equal(gain)]
    apart = [gain for gain in every if gain.outside(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE)]
    aside = way_in(rows)
    judged = () if aside else ("S004-46",)
    if not clear:
        return unsaid(lab, machine, "Whether Plan C is as fast as eager", PAGE, every, judged)
    best, worst = (pick(clear, key=lambda row: row.ratio) for pick in (max, min))
    form = "Called through the lab, Plan C" if aside else "Plan C"
    text = f"{form} is equal to eager within ±2% in {len(same)} of {len(rows)} models, different in {len(apart)}, and "
    text += f"too close to call in {len(clear) - len(same) - len(apart)}. {silent(every)}It ranges from "
    text += f"{times(worst.speed)} ({formats.model(worst.shape)}) to {times(best.speed)} "
    text += f"({formats.model(best.shape)}). "
    text += f"{aside or 'S004 expects about 1.0× of all nine.'} "
    walls = [row for row in model_rows(lab, machine) if (row.variant, row.clock) == ("aten", "wall")]
    walls = [row.ratio for row in walls if not row.speed.doubt]
    if walls and clock == "graph":
        span = spanning(walls, lambda ratio: f"{formats.number(ratio)}×")
        text += f"That is inside a CUDA graph; by the wall clock, through the lab's launch path, it runs at {span}, "
        text += "which judges no document. "
    gains = [row for row in measured if row.variant == "epilogue" and row.reading == "faster"]
    if gains:
        most = max(gains, key=lambda row: row.ratio)
        text += f"The library's epilogue is faster than eager in {len(gains)}, most in {formats.model(most.shape)}: "
        text += f"{times(most.speed)}."
    slower = all(gain.below(1) for gain in apart)
    surely = f"surely {'slower than' if slower else 'another speed than'} eager"
    return Finding(
        f"{len(same) or len(apart) % len(rows)} of {len(rows)}",
        f"{form} is as fast as eager in the documents' models"
        if len(same) == len(rows)
        else f"{form} is as fast as eager in some of the documents' models"
        if same
        else f"{form} is not as fast as eager in the documents' models"
        if len(apart) == len(rows)
        else f"{form} is {surely} in {len(apart)} of the documents' models; of the others it cannot be told"
        if apart
        else "Whether Plan C is as fast as eager cannot be told here",
        text.strip(),
        PAGE,
        claims=judged,
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    candidates = (goal(lab, machine), crossover(lab, machine), hoped(lab, machine), models(lab, machine))
    return [found for found in candidates if found is not None]


# ---------------------------------------------------------------- tables


def goals(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """One kernel at the sizes of the goal beside its peers and its limits: a line a workload."""
    rows = timed(lab, machine, FUSED, operation=OPERATIONS)
    out = []
    for own in in_one_kernel([row for row in rows if row.shape in GOAL_SHAPES]):
        peers = {row.variant: row for row in rows if row.workload == own.workload}
        line = {"layers": own.operation.removeprefix("mlp"), "rows × width": own.at, "one kernel": own.took}
        line |= {
            "against eager": times(own.speed),
            "of memory's bandwidth": _percent(bandwidth_share(lab, own, "cold")),
        }
        line["of a cached copy's"] = _percent(bandwidth_share(lab, own, lab.primary(machine)))
        line["of the whole limit"] = own.attained or formats.MISSING
        line["by"] = own.variant
        line |= {
            name: peers[name].took if name in peers else formats.MISSING
            for name in ("eager", "epilogue", "compile", "compile_max_autotune")
        }
        out.append(line)
    return out


def nine(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The documents' models layer by layer, against eager by every clock: a line a model."""
    lines: dict[str, dict[str, str]] = {}
    for row in model_rows(lab, machine):
        line = lines.setdefault(formats.model(row.shape), {"model": formats.model(row.shape)})
        if row.variant == row.baseline:
            line[f"eager, {row.clock}"] = row.took
        elif not absent(row.ratio):
            mark = f" ({results.LAUNCH})" if row.launch_path else ""
            line[f"{NAMES.get(row.variant, row.variant)}, {row.clock}{mark}"] = times(row.speed)
    columns = list(dict.fromkeys(name for line in lines.values() for name in line))
    return [{name: line.get(name, formats.MISSING) for name in columns} for line in lines.values()]


NAMES = {"aten": "Plan C", "epilogue": "epilogue", "compile": "compiled"}
"""Variant → what the table of models calls it."""


# ---------------------------------------------------------------- claims


def chapter_claims() -> list[Claim]:
    """The claims whose verdicts the chapter shows, in the order of the ledger."""
    return [
        claim
        for claim in claims.ledger()
        if claim.experiment in (FUSED, MODELS)
        or any(figure.case in SCRIPTS for figure in claim.figures)
        or (not claim.experiment and any(w.partition("/")[0] in (*OPERATIONS, "mlp") for w in claim.workloads))
    ]
