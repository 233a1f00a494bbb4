"""float32's digits and bfloat16's speed on tensor cores: findings, tables and claims of their chapter.

Every measured figure is taken from the records when a page is made, and what a machine has not measured is left out:
such a function returns None or an empty list. "cuBLAS's own error" is that of eager in IEEE float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypatia_lab import claims, formats, intervals, results
from hypatia_lab.claims import Claim
from hypatia_lab.figures.probe_rows import Way
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, silent, span_text, unsaid
from hypatia_lab.pages.phrases import probed, say, times
from hypatia_lab.results import Row

PAGE = "14_tensor_cores"
EXPERIMENT = "tensor_cores"
SPLITS = ("tf32x3", "fp16x3")
GOALS = {"1024x784x2048": 2.0, "8192x4096x4096": 2.5}
"""Size → the multiple of eager's speed in IEEE float32 that float32's digits are wanted at."""
FUSED_GOAL = 1.25
"""The multiple of eager's speed that a fused bfloat16 kernel is to reach at the sizes below the large one."""
LARGE = "8192x4096x4096"
HOPED = (1.05, 1.20)
"""What S004 expects of a true epilogue fusion for large models, × (in another place 1.05 to 1.10)."""
FUSED = ("epilogue", "triton")
PEERS = ("eager", "epilogue", "compile", "compile_max_autotune")
KINDS = {
    "float32/ieee": "float32, IEEE",
    "float32/tf32": "TF32",
    "float16/ieee": "float16",
    "bfloat16/ieee": "bfloat16",
}
"""Arithmetic of a ceiling → what a page calls it."""


# ---------------------------------------------------------------- reading


def _cells(lab: Evidence, machine: str, dtype: str, mode: str = "ieee") -> dict[str, dict[str, Row]]:
    """Shape → variant → its row, whatever its status, smallest shape first; forward only."""
    rows = lab.leading(
        machine, experiment=EXPERIMENT, operation="linear_relu", dtype=dtype, math=mode, direction="forward"
    )
    found: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: row.flops):
        found.setdefault(row.shape, {})[row.variant] = row
    return found


def _timed(found: dict[str, Row], names: Sequence[str]) -> list[Row]:
    """Those of ``names`` that have a valid time, fastest first."""
    own = [found[name] for name in names if name in found and found[name].timed]
    return sorted(own, key=lambda row: row.median_us)


def exact(row: Row, eager: Row) -> bool:
    """Whether the error of ``row`` against float64 is no larger than eager's."""
    return row.error <= eager.error


def reached(found: Interval, goal: float) -> bool | None:
    """Whether an interval lies at or above ``goal``, below it, or neither (None)."""
    return True if found.above(goal) else False if found.below(goal) else None


def _share(row: Row) -> str:
    """What part of its own limit a row reaches, for a table."""
    return row.attained or formats.MISSING


def has_splits(lab: Evidence, machine: str) -> bool:
    """Whether split operands were timed on ``machine``."""
    return any(_timed(found, SPLITS) for found in _cells(lab, machine, "float32").values())


# ---------------------------------------------------------------- findings


def digits(lab: Evidence, machine: str, shape: str) -> Finding | None:
    """How fast float32's digits are to be had at ``shape``, against the goal and at what error."""
    found = _cells(lab, machine, "float32").get(shape, {})
    (eager,), split = _timed(found, ["eager"]) or [None], _timed(found, SPLITS)
    split = [row for row in split if not absent(row.ratio_low)]
    if eager is None or not split:
        return None
    clear = [row for row in split if not row.speed.doubt]
    if not clear:
        question = f"Whether float32's digits come faster at {formats.shape(shape)}"
        return unsaid(lab, machine, question, PAGE, [row.speed for row in split])
    best = next((row for row in clear if exact(row, eager)), clear[0])
    goal, gain = GOALS[shape], best.speed
    met, fine = reached(gain, goal), exact(best, eager)
    text = f"At {best.at} {best.variant} takes {best.takes}, eager in IEEE float32 {eager.takes}: {times(gain)}. "
    text += f"Its error against float64 is {formats.number(best.error)}, cuBLAS's own "
    text += f"{formats.number(eager.error)}. The goal is {goal:g}× with an error no larger"
    if met and fine:
        text += ", and it is reached. "
    elif met is None and fine:
        text += ", which lies within the interval. "
    else:
        short = []
        if met is False:
            short.append(f"a factor of {times(gain.inverse().times(goal))} in speed")
        if not fine:
            short.append(f"a factor of {formats.number(best.error / eager.error)} in error")
        text += f"; it is missed by {listing(short)}. "
    if reach := best.attained:
        text += f"Three products at the best measured rate would take {formats.duration(best.limit_us)}: "
        text += f"it reaches {reach} of that limit."
    text += _others([row for row in split if row is not best], eager) + _faults(found)
    return Finding(
        f"{formats.number(gain.value)}×",
        "Faster, but not as exact as cuBLAS"
        if not fine and gain.above(1)
        else f"float32's digits at tensor-core speed, at {best.at}"
        if met
        else "float32's digits come faster, but short of the goal"
        if gain.above(1) and met is False
        else "float32's digits come faster, about as much as wanted"
        if gain.above(1)
        else "Splitting operands gains nothing here",
        text,
        PAGE,
    )


def _others(rows: Sequence[Row], eager: Row) -> str:
    said = [
        f"{row.variant} has {say(row.speed)} with an error of {formats.number(row.error)}"
        + ("" if exact(row, eager) else ", which is more than cuBLAS's")
        for row in rows
    ]
    return f" {listing(said)}." if said else ""


def _faults(found: dict[str, Row]) -> str:
    bad = [found[name] for name in SPLITS if name in found and found[name].status not in ("ok", "skipped")]
    return "".join(f" {row.variant} is {row.status.replace('_', ' ')}: {row.reason}." for row in bad)


def rival(found: dict[str, Row], variant: str) -> Row | None:
    """The fastest peer of ``variant`` among the rows of one shape."""
    return next(iter(_timed(found, [name for name in PEERS if name != variant])), None)


def fused(lab: Evidence, machine: str, variant: str = "triton") -> Finding | None:
    """Whether a fused kernel in bfloat16 is nowhere slower than its best peer, and how it does against eager."""
    pairs: list[tuple[Row, Row]] = []
    for found in _cells(lab, machine, "bfloat16").values():
        own, best = _timed(found, [variant]), rival(found, variant)
        if own and best is not None and not absent(own[0].ratio_low):
            pairs.append((own[0], best))
    if not pairs:
        return None
    every = [best.over(own) for own, best in pairs]
    found = [(own, best, factor) for (own, best), factor in zip(pairs, every, strict=True) if not factor.doubt]
    clear = [(own, own.speed) for own, _ in pairs if not own.speed.doubt]
    if not found or not clear:
        return unsaid(lab, machine, f"{variant}: whether a fused kernel is behind its peers", PAGE, every)
    slower = [factor for _, _, factor in found if factor.below(1)]
    against = [f"{times(factor)} of {best.variant} at {own.at}" for own, best, factor in found]
    gains = [f"{times(gain)} at {own.at}" for own, gain in clear]
    text = f"In bfloat16 {variant} runs at {listing(against)}, each time the best of its peers: "
    if slower:
        least = 100 * (1 - min(factor.value for factor in slower))
        text += (
            f"slower beyond the interval in {len(slower)} of {len(pairs)} sizes, by up to {formats.number(least)}%. "
        )
    else:
        text += "nowhere slower beyond the interval. "
    text += silent(every)
    text += f"Against eager it has {listing(gains)}. The goal is to be nowhere slower than the best peer, and to reach "
    text += f"{FUSED_GOAL:g}× of eager below the large size"
    missed = [own for own, gain in clear if own.shape != LARGE and reached(gain, FUSED_GOAL) is False]
    text += f"; the latter is missed at {listing([own.at for own in missed])}." if missed else "."
    return Finding(
        span_text([gain for _, gain in clear]),
        f"{variant}: a fused kernel that is nowhere seen behind its peers"
        if not slower
        else f"{variant}: a fused kernel, behind its best peer at some sizes"
        if len(slower) < len(pairs)
        else f"{variant}: a fused kernel, behind its best peer",
        text,
        PAGE,
    )


def hoped(lab: Evidence, machine: str) -> Finding | None:
    """What a true epilogue fusion gains at the large size, as S004 expects after weeks of work."""
    rows: list[Row] = []
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")):
        rows += _timed(_cells(lab, machine, dtype, mode).get(LARGE, {}), FUSED)
    rows = [row for row in rows if not absent(row.ratio_low)]
    if not rows:
        return None
    every, clear = [row.speed for row in rows], [(row, row.speed) for row in rows if not row.speed.doubt]
    judged = ("S004-19a", "S004-19b")
    if not clear:
        return unsaid(lab, machine, "What a true fusion of a large product gains", PAGE, every, judged)
    inside = [gain for _, gain in clear if gain.within(*HOPED)]
    outside = [gain for _, gain in clear if gain.outside(*HOPED)]
    said = listing([f"{row.variant} {times(gain)} in {KINDS[_kind(row)]}" for row, gain in clear])
    return Finding(
        span_text([gain for _, gain in clear]),
        "What S004 hopes of a true fusion is there"
        if len(inside) == len(rows)
        else "A true fusion gains what S004 hopes in some arithmetic only"
        if inside
        else "A true fusion of a large product gains other than S004 hopes"
        if outside
        else "Whether a true fusion of a large product gains what S004 hopes is undecided",
        f"At {rows[0].at} against eager: {said}. S004 hopes for {HOPED[0]:.2f} to {HOPED[1]:.2f}× for large models, "
        f"after two to three weeks of work. {len(inside)} of {len(rows)} lie inside, {len(outside)} outside. "
        f"{silent(every)}The epilogue is one call that PyTorch has already.",
        PAGE,
        claims=judged,
    )


def _kind(row: Row) -> str:
    return f"{row.dtype}/{row.math}"


COUNTS = {"profiler": "kernel launches", "graph nodes": "kernel launches, counted again"}
ONE = ("epilogue", "triton", "step_wgmma")
"""Variants that are to be a single kernel."""


def _traces(lab: Evidence, machine: str) -> list[Way]:
    if lab.primary(machine) != "graph":  # a CPU has operators, no kernels
        return []
    return probed(lab, machine, "trace", operation="linear_relu", experiment=EXPERIMENT)


def _launches(way: Way) -> dict[str, float]:
    """Kernels of one call, by each way of counting that there was."""
    found = {label: way.triple(name, logarithms=False)[0] for label, name in COUNTS.items()}
    return {label: value for label, value in found.items() if not absent(value)}


def single(lab: Evidence, machine: str) -> Finding | None:
    """Whether each fused form is a single kernel, by every count, and how many kernels the others are."""
    counted = [(way, _launches(way)) for way in _traces(lab, machine)]
    one = [(way, set(own.values())) for way, own in counted if own and way.variant in ONE]
    if not one:
        return None
    proven = [way for way, values in one if values == {1}]
    rest = [f"{_named(way)} {_numbers(own)}" for way, own in counted if own and way.variant not in ONE]
    failed = [f"{_named(way)} {_numbers(_launches(way))}" for way, values in one if values != {1}]
    labels = listing(list(dict.fromkeys(label for way, _ in one for label in _launches(way))))
    text = f"One call is a single kernel in {len(proven)} of {len(one)} cases, counted by {labels}"
    text += f": {listing([_named(way) for way in proven])}. " if proven else ". "
    text += f"Not so: {listing(failed)} kernels. " if failed else ""
    text += f"For comparison: {listing(rest)} kernels." if rest else ""
    return Finding(
        f"{len(proven)} of {len(one)}",
        "The fusions are true: one kernel each" if not failed else "Some fusions are more than one kernel",
        text.strip(),
        PAGE,
    )


def _named(way: Way) -> str:
    return f"{way.variant} in {KINDS[way.where['math']]}"


def _numbers(own: dict[str, float]) -> str:
    return " or ".join(f"{value:g}" for value in sorted(set(own.values())))


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    candidates = [digits(lab, machine, shape) for shape in GOALS]
    candidates += [fused(lab, machine), hoped(lab, machine), single(lab, machine)]
    return [found for found in candidates if found is not None]


def library(lab: Evidence, machine: str) -> str:
    """A sentence for a machine on which nothing of our own could be timed; empty where it could."""
    if has_splits(lab, machine) or _gains(lab, machine, "triton"):
        return ""
    rows = _gains(lab, machine, "epilogue")
    need = "" if lab.primary(machine) == "graph" else ": they need a CUDA GPU"
    text = f"the kernels of this page were not timed{need}. What is left is the library"
    if not rows:
        return f"On `{machine}` {text}."
    said = listing([f"{say(row.speed)} in {row.dtype} at {row.at}" for row in rows])
    return f"On `{machine}` {text}, whose fused call has {said} against eager."


def _gains(lab: Evidence, machine: str, variant: str) -> list[Row]:
    rows = [
        row
        for dtype in ("float32", "bfloat16")
        for found in _cells(lab, machine, dtype).values()
        for row in _timed(found, [variant])
    ]
    return [row for row in rows if not absent(row.ratio)]


# ---------------------------------------------------------------- tables


def limits(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Best measured rates, a third of them, and what that third is of float32's own: a line an arithmetic."""
    best = results.ceilings(lab.of(machine))
    found = {kind: best.get(("matmul", kind, lab.primary(machine)), math.nan) for kind in KINDS}
    own, first = found["float32/ieee"], {}
    for name, (kind, products) in results.SPLITS.items():
        first.setdefault(kind, (name.rpartition("_")[2], products))
    if absent(own) or all(absent(found[kind]) for kind in first):
        return []
    lines = []
    for kind, (name, products) in first.items():
        if not absent(found[kind]):
            lines.append(
                {
                    "split": name,
                    "its arithmetic": KINDS[kind],
                    "best rate": formats.scaled(found[kind], "FLOP/s"),
                    f"a product by {products}": formats.scaled(found[kind] / products, "FLOP/s"),
                    "float32, IEEE": formats.scaled(own, "FLOP/s"),
                    "gain at most": f"{formats.number(found[kind] / products / own)}×",
                }
            )
    return lines


def splits(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Time and error of split operands beside cuBLAS's own: a line a size and variant."""
    out = []
    for shape, found in _cells(lab, machine, "float32").items():
        (eager,) = _timed(found, ["eager"]) or [None]
        if eager is None or not any(name in found for name in SPLITS):
            continue
        for name in ("eager", *SPLITS):
            if (row := found.get(name)) is None or row.status == "skipped":
                continue
            line = {"workload": formats.shape(shape), "variant": name}
            if row.status != "ok":
                out.append(line | {"time": f"{row.status.replace('_', ' ')}: {row.reason}"})
                continue
            goal = "" if name == "eager" or shape not in GOALS else _goal(row.speed, GOALS[shape])
            out.append(
                line
                | {"time": row.took, "against eager": times(row.speed), "error": formats.number(row.error)}
                | {"error / cuBLAS's": f"{formats.number(row.error / eager.error)}×"}
                | {"limit": formats.duration(row.limit_us), "of limit": _share(row)}
                | {"goal": f"{GOALS[shape]:g}×: {goal}" if goal else formats.MISSING}
            )
    return out


def _goal(gain: Interval, goal: float) -> str:
    met = reached(gain, goal)
    return gain.doubt or ("undecided" if met is None else "reached" if met else "missed")


def fusions(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The fused kernels in bfloat16 and TF32 against eager and against their best peer: a line a size and variant."""
    out = []
    for dtype, mode in (("bfloat16", "ieee"), ("float32", "tf32")):
        for shape, found in _cells(lab, machine, dtype, mode).items():
            for name in FUSED:
                own, best = _timed(found, [name]), rival(found, name)
                if not own or best is None:
                    continue
                factor = best.over(own[0])
                out.append(
                    {
                        "workload": f"{formats.shape(shape)} {KINDS[_kind(own[0])]}",
                        "variant": name,
                        "time": own[0].took,
                        "against eager": times(own[0].speed),
                        "best peer": best.variant,
                        "against it": times(factor),
                        "reads": intervals.reading(factor),
                        "of limit": _share(own[0]),
                    }
                )
    return out


def kernel_counts(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Kernels of one call, counted two ways: a line a variant."""
    out = []
    for way in _traces(lab, machine):
        own = _launches(way)
        line = {"workload": f"{way.where['shape']} {KINDS[way.where['math']]}", "variant": way.variant}
        line |= {label: f"{own[label]:g}" if label in own else formats.MISSING for label in COUNTS}
        out.append(line | {"status": way.fault or "ok"})
    return out


PLACES = (0, 8, 16, 20, 24, 28, 32, 36)
"""How far below its row's largest an element lies, as a power of two."""


def held() -> list[dict[str, str]]:
    """How many bits of a float32 its two terms hold, by its size beside its row's largest: worked out here and now.

    A line a size. The least of 4096 mantissas, in rows whose largest is tiny, ordinary and huge.
    """
    import torch

    from hypatia_lab.operations.tensor_cores import two_terms

    spread = 1 + (torch.arange(4096) * 5_184_399 % 2**23) * 2.0**-23  # mantissas without a pattern
    out = []
    for place in PLACES:
        line = {"element / its row's largest": "1" if place == 0 else f"1/2^{place}"}
        for name in SPLITS:
            worst = 0.0
            for magnitude in (-80, 0, 120):
                rows = torch.cat([torch.tensor([1.99]), torch.ldexp(spread, torch.tensor(-place))])
                rows = torch.ldexp(rows[None], torch.tensor(magnitude))
                large, small, up = two_terms(rows, name)
                off = (torch.ldexp(large + small, -up) - rows.double()).abs() / rows.double()
                worst = max(worst, float(off[:, 1:].max()))
            line[name] = f"{max(0, math.floor(-math.log2(worst)))} bits" if worst else "all 24 bits"
        out.append(line)
    return out


# ---------------------------------------------------------------- claims

APART = ("S001-07", "S002-58", "S004-21", "S004-24")
"""Claims of other experiments, or of none, that this chapter speaks of, with all of their parts."""


def chapter_claims() -> list[Claim]:
    """The claims whose verdicts the chapter shows, in the order of the ledger."""
    return [
        claim
        for claim in claims.ledger()
        if claim.lead in APART
        or claim.experiment == EXPERIMENT
        or (claim.seed == "S004" and claim.variant == "epilogue" and "fusion" in claim.claim)
    ]
