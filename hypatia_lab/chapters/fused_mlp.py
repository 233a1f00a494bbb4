"""Multilayer perceptrons in one kernel and layer by layer: findings and tables of their chapter.

"Layer by layer" is eager PyTorch or the library's epilogue, whichever is quicker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hypatia_lab import formats, intervals, results, variants
from hypatia_lab.figures.language import spanning
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.operations import mlp_cuda
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, silent, span_text, unsaid, way_in
from hypatia_lab.pages.phrases import filled, say, spoken, times
from hypatia_lab.results import Row

PAGE = "16_fused_mlp"
FUSED, MODELS = "fused_mlp", "mlp_models"
"""The chapter's experiments."""
COUNTS = {"mlp2": "two", "mlp3": "three"}
"""Operation → how many layers it has."""
OPERATIONS = tuple(COUNTS)
LAYERWISE = ("eager", "epilogue")
ONE_KERNEL = ("fused", "fused_cuda")
"""Our own kernels of several layers: in Triton, and in CUDA C++ for Hopper."""
SIDES = ("one kernel", "the quicker of eager and the library's epilogue")
"""What the map calls :data:`ONE_KERNEL` and :data:`LAYERWISE`."""
ROWS, GOAL_SHAPES = 65536, ("65536x64", "65536x128")
FASTER, SHARE = 5.0, 50
"""The goal of three layers in one kernel: times eager's speed, and share (%) of memory's bandwidth."""
SAFETY_MODEL = "32x784x256x2x10"
"""The model of the documents' safety test, which is measured beside the nine of their benchmark."""
HOPED = (1.10, 1.20)
"""What S004 expects of several layers in one kernel, ×."""


# ---------------------------------------------------------------- reading


def in_one_kernel(rows: Sequence[Row]) -> list[Row]:
    """Of each workload among ``rows`` the quicker one of our own kernels, in the order of ``rows``."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.variant in ONE_KERNEL:
            best[row.workload] = min(best.get(row.workload, row), row, key=lambda own: own.median_us)
    return list(best.values())


def goal_rows(lab: Evidence, machine: str) -> list[Row]:
    """Three layers at the sizes of the goal; where those were not measured, all layers of equal width."""
    rows = lab.leading(machine, experiment=FUSED, operation=OPERATIONS)
    return [row for row in rows if row.shape in GOAL_SHAPES and row.operation == "mlp3"] or rows


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


def lacking(lab: Evidence, machine: str) -> str:
    """A sentence on widths whose CUDA kernel the record of ``machine`` does not have; empty where it has all."""
    rows = swept(lab, machine)
    asked = {_place(row)[1] for row in rows if row.variant == "fused_cuda"}
    missing = [width for width in mlp_cuda.WIDTHS if width in {_place(row)[1] for row in rows} - asked]
    if not asked or not missing:
        return ""
    widths = listing([str(width) for width in missing])
    return f"At width {widths} one kernel is Triton's: the CUDA kernel was not measured on this machine."


# ---------------------------------------------------------------- findings


def goal(lab: Evidence, machine: str) -> Finding | None:
    """Three layers in one kernel at the sizes of the goal: against eager, and against memory's bandwidth."""
    rows = in_one_kernel(
        [row for row in lab.timed(machine, experiment=FUSED, operation="mlp3") if row.shape in GOAL_SHAPES]
    )
    if not rows:
        return None
    every, clear = [row.speed for row in rows], [row for row in rows if not row.speed.doubt]
    if not clear:
        return unsaid(lab, machine, "Whether three layers in one kernel reach the goal", PAGE, every)
    shares = [bandwidth_share(lab, row, "cold") for row in clear]
    both = [(row.speed, share) for row, share in zip(clear, shares, strict=True)]
    met = sum(speed.above(FASTER) and share.above(SHARE) for speed, share in both)
    missed = sum(speed.below(FASTER) or share.below(SHARE) for speed, share in both)
    told = [share.value for share in shares if not share.doubt]
    text = f"They are {span_text([row.speed for row in clear])} as fast as eager PyTorch; the lab's goals were "
    text += f"{FASTER:g}× and {SHARE}% of memory's bandwidth. {silent(every)}"
    if told:
        text += f"They use {formats.spoken(min(told))}% of it or more. "
    text += " ".join(filter(None, (_undecided(row, share) for row, share in zip(clear, shares, strict=True))))
    return Finding(
        span_text([row.speed for row in clear]),
        "Three layers in one kernel reach the lab's goals"
        if met == len(rows)
        else "Three layers in one kernel miss the lab's goals"
        if missed == len(clear)
        else "Three layers in one kernel reach the lab's goals at one width only"
        if met and missed
        else "Three layers in one kernel outrun eager PyTorch"
        if all(row.speed.above(1) for row in clear)
        else "Whether three layers in one kernel reach the lab's goals is undecided",
        text.strip(),
        PAGE,
    )


def _undecided(row: Row, share: Interval) -> str:
    """Why it is open whether ``row`` reaches the goal; empty where it reaches or misses it."""
    if row.speed.below(FASTER) or share.below(SHARE) or (row.speed.above(FASTER) and share.above(SHARE)):
        return ""
    where = f"At width {_place(row)[1]} it is undecided, for"
    if not row.speed.above(FASTER):
        return f"{where} the interval holds {FASTER:g}×: {say(row.speed)}."
    return f"{where} the share of memory's bandwidth is not known well enough."


def crossover(lab: Evidence, machine: str) -> Finding | None:
    """Up to which width one kernel is faster than layer by layer."""
    found = factors(lab, machine)
    if not found:
        return None
    quick = {place for place, factor in found.items() if intervals.reading(factor) == "faster"}
    decided = [factor for factor in found.values() if intervals.decided(factor)]
    if not decided:
        return unsaid(lab, machine, "Whether one kernel pays", PAGE, list(found.values()))
    never = sorted({width for _, width in found} - {width for _, width in quick})
    slower = [width for width in never if _slower(factor for place, factor in found.items() if place[1] == width)]
    best = max(decided, key=lambda factor: factor.value)
    text = f"At best it is {spoken(best)} as fast as layer by layer. {silent(list(found.values()))}"
    refused = [row.reason for row in swept(lab, machine) if row.variant == ONE_KERNEL[0] and row.reason]
    if slower:
        text += f"At width {listing([str(width) for width in slower])} it is slower at every number of rows measured. "
    if rest := [str(width) for width in never if width not in slower]:
        text += f"It is never surely faster at width {listing(rest)}. "
    partly: dict[int, list[int]] = {}
    for (rows, width), factor in sorted(found.items()):
        if intervals.reading(factor) == "slower" and width not in slower:
            partly.setdefault(width, []).append(rows)
    for width, few in partly.items():
        text += f"At width {width} it is slower with {listing([str(rows) for rows in few])} rows. "
    if refused and not never:
        text += f"No one kernel is wider: {refused[0]}. "
    text += lacking(lab, machine)
    stop = max((width for _, width in quick), default=0)
    quicker = [rows for rows, width in quick if width == stop]
    # Slower there with some numbers of rows: the figure alone must not promise the width for all.
    some = "" if stop not in partly else ", with many rows" if max(partly[stop]) < min(quicker) else ", with some rows"
    return Finding(
        f"up to width {stop}{some}" if stop else "nowhere",
        "One kernel pays while the layers are narrow"
        if stop
        else "One kernel never pays"
        if _slower(found.values())
        else "Whether one kernel pays is undecided",
        text.strip(),
        PAGE,
    )


def _slower(factors: Iterable[Interval]) -> bool:
    """Whether all of ``factors`` are surely below 1."""
    return all(intervals.reading(factor) == "slower" for factor in factors)


def hoped(lab: Evidence, machine: str) -> Finding | None:
    """Two and three layers in one kernel against eager at the goal's number of rows, beside what S004 expects."""
    rows = in_one_kernel(lab.timed(machine, experiment=FUSED, operation=OPERATIONS))
    rows = [row for row in rows if _place(row)[0] == ROWS and not absent(row.ratio_low)]
    if not rows:
        return None
    every, judged = [row.speed for row in rows], ("S004-49",)
    inside, more = sum(gain.within(*HOPED) for gain in every), sum(gain.above(HOPED[1]) for gain in every)
    less, clear = sum(gain.below(HOPED[0]) for gain in every), [gain for gain in every if not gain.doubt]
    if not clear:
        return unsaid(lab, machine, "What several layers in one kernel gain", PAGE, every, judged)
    widths = [_place(row)[1] for row in rows]
    layers = listing([COUNTS[name] for name in sorted({row.operation for row in rows})])
    under = sorted({_place(row)[1] for row in rows if row.speed.below(HOPED[0])})
    short = f" Below is width {listing([str(width) for width in under])}." if under else ""
    return Finding(
        span_text(clear),
        "Several layers in one kernel gain more than was hoped" + (", but not everywhere" if more < len(rows) else "")
        if more
        else "Several layers in one kernel gain less than was hoped"
        if less
        else "Several layers in one kernel gain what was hoped"
        if inside
        else "What several layers in one kernel gain is undecided",
        f"Cases: {layers} layers against eager, {ROWS} rows, width {spanning(widths, str)}. "
        f"S004 expects {HOPED[0]:.2f} to {HOPED[1]:.2f}×. "
        f"Of {len(rows)} cases {more} lie above that, {inside} inside and {less} below.{short}",
        PAGE,
        claims=judged,
    )


def models(lab: Evidence, machine: str) -> Finding | None:
    """Whether Plan C is as fast as eager in the documents' models, as S004 expects."""
    rows = [row for row in model_rows(lab, machine) if row.clock == lab.primary(machine) and row.variant == "aten"]
    rows = [row for row in rows if not absent(row.ratio_low)]
    if not rows:
        return None
    every, aside = [row.speed for row in rows], way_in(rows)
    judged = () if aside else ("S004-46",)
    if all(gain.doubt for gain in every):
        return unsaid(lab, machine, "Whether Plan C is as fast as eager", PAGE, every, judged)
    same = [gain for gain in every if intervals.equal(gain)]
    apart = [gain for gain in every if gain.outside(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE)]
    form = "Called through the lab, Plan C" if aside else "Plan C"
    slower = "slower than" if all(gain.below(1) for gain in apart) else "another speed than"
    text = f"By the {lab.primary(machine)} clock {len(same)} of {len(rows)} models take the same time within ±2%, "
    text += f"{len(apart)} surely another. {silent(every)}{aside or 'S004 expects the same of all nine.'}"
    if not aside and lab.verdicts["S004-46"].get(machine) == "not_reproduced":
        text += " The verdict is not reproduced, for only a rewrite of the lab's was measured, not the author's layers."
    return Finding(
        f"{len(same) or len(apart) % len(rows)} of {len(rows)}",
        f"{form} is as fast as eager in the documents' models"
        if len(same) == len(rows)
        else f"{form} is as fast as eager in some of the documents' models"
        if same
        else f"{form} is not as fast as eager in the documents' models"
        if len(apart) == len(rows)
        else f"{form} is surely {slower} eager in some of the documents' models"
        if apart
        else "Whether Plan C is as fast as eager cannot be told here",
        text,
        PAGE,
        claims=judged,
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    return answered(lab, machine, goal, crossover, hoped, models)


# ---------------------------------------------------------------- tables


def goals(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """One kernel at the sizes of the goal beside its limits: a line a workload."""
    rows = lab.timed(machine, experiment=FUSED, operation=OPERATIONS)
    return [
        {
            "layers": own.operation.removeprefix("mlp"),
            "rows × width": own.at,
            "one kernel": own.took,
            "against eager": times(own.speed),
            "of memory's bandwidth": _percent(bandwidth_share(lab, own, "cold")),
            "of a cached copy's": _percent(bandwidth_share(lab, own, lab.primary(machine))),
            "of the whole limit": own.attained or formats.MISSING,
            "by": variants.label(own.operation, own.variant),
        }
        for own in in_one_kernel([row for row in rows if row.shape in GOAL_SHAPES])
    ]


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
    return filled(list(lines.values()))


def models_title(rows: Sequence[Row]) -> str:
    """In how many of the documents' models each form among ``rows`` is faster than eager."""
    told = []
    for name in dict.fromkeys(row.variant for row in rows):
        words = [row.reading for row in rows if row.variant == name and not absent(row.ratio)]
        told += [f"{NAMES[name]} in {words.count('faster')} of {len(words)} models"] if words else []
    return f"Faster than eager: {', '.join(told)}"


NAMES = {"aten": "Plan C", "epilogue": "epilogue", "compile": "compiled"}
"""Variant → what the table of models calls it."""
