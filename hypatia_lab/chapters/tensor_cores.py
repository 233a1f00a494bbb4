"""float32's digits and bfloat16's speed on tensor cores: findings and tables of their chapter.

"cuBLAS's own error" is that of eager in IEEE float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from hypatia_lab import formats, intervals, results
from hypatia_lab.figures.probe_rows import Configuration
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, silent, span_text, unsaid
from hypatia_lab.pages.phrases import kernels, labelled, probed, spoken, times
from hypatia_lab.results import Row
from hypatia_lab.variants import find, label, names

PAGE = "14_tensor_cores"
EXPERIMENT = "tensor_cores"
TERMS = ("tf32x3", "fp16x3")
"""What float32 operands are split into."""
SPLITS, ONCE = (*TERMS, "fp16x3_cuda"), ("fp16x3_once", "fp16x3_cuda_once")
"""Variants of split operands: those that split all they multiply in every call, and those that have split W before."""
GOALS = {"1024x784x2048": 2.0, "8192x4096x4096": 2.5}
"""Size → the multiple of eager's speed in IEEE float32 that float32's digits are wanted at."""
FUSED_GOAL = 1.25
"""The multiple of eager's speed that a fused bfloat16 kernel is to reach at the sizes below the large one."""
LARGE = "8192x4096x4096"
HOPED = (1.05, 1.20)
"""What S004 expects of a true epilogue fusion for large models, × (in another place 1.05 to 1.10)."""
OWN = ("triton", "cuda")
"""Our own kernels that fuse what they multiply as it is."""
FUSED = ("epilogue", *OWN)
PEERS = ("eager", "epilogue", "compile", "compile_max_autotune", "nvmath")
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
    goal, gain, fine = GOALS[shape], best.speed, exact(best, eager)
    met = reached(gain, goal)
    text = f"Against cuBLAS's own float32, by {labelled(best)} at {best.at}, with "
    text += f"{formats.spoken(best.error / eager.error)} times its error. The goal is {goal:g}×"
    text += " with no larger error" if not fine else ", which is open" if met is None else ""
    for word, where in _not_ahead(lab, machine, best.variant).items():
        text += f". At {listing(where)} that form is {'slower than' if word == 'slower' else 'as fast as'} cuBLAS"
    return Finding(
        spoken(gain),
        "Faster than float32, but not as exact"
        if not fine and gain.above(1)
        else f"float32's digits at tensor-core speed, at {best.at}"
        if met
        else "float32's digits come faster, but short of the goal"
        if gain.above(1) and met is False
        else "float32's digits come faster, about as much as wanted"
        if gain.above(1)
        else "Splitting operands gains nothing here",
        f"{text}.",
        PAGE,
    )


def _not_ahead(lab: Evidence, machine: str, variant: str) -> dict[str, list[str]]:
    """``slower`` or ``equal`` → the sizes at which split operands read so against eager."""
    read: dict[str, list[str]] = {}
    for found in _cells(lab, machine, "float32").values():
        for row in _timed(found, [variant]):
            if row.reading in ("slower", "equal"):
                read.setdefault(row.reading, []).append(row.at)
    return read


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
    gains = [own.speed for own, _ in pairs if not own.speed.doubt]
    if all(factor.doubt for factor in every) or not gains:
        return unsaid(lab, machine, "Whether a fused kernel is behind its peers", PAGE, every)
    slower = [factor for factor in every if factor.below(1)]
    wanted = [reached(own.speed, FUSED_GOAL) for own, _ in pairs if own.shape != LARGE]
    name = label("linear_relu", variant)
    text = f"Against eager PyTorch in bfloat16, over {len(pairs)} size{'' if len(pairs) == 1 else 's'}. "
    text += silent(every)
    if wanted:
        text += f"Below the large size the goal is {FUSED_GOAL:g}×, reached at {wanted.count(True)} of {len(wanted)}"
        text += f" and open at {wanted.count(None)}" if None in wanted else ""
        text += "."
    behind = (
        "nowhere seen behind its peers"
        if not slower
        else f"behind its best peer at {len(slower)} of {len(pairs)} sizes"
        if len(pairs) > 1
        else "behind its best peer"
    )
    if slower and all(map(intervals.equal, slower)):  # the table reads these as equal
        behind += f", within {intervals.EQUIVALENCE:.0%} of it"
    faster = all(gain.above(1) for gain in gains)
    title = f"faster than eager PyTorch, {'but' if slower else 'and'} {behind}" if faster else behind
    return Finding(span_text(gains), f"{name[0].upper()}{name[1:]} is {title}", text, PAGE)


def hoped(lab: Evidence, machine: str) -> Finding | None:
    """What a true epilogue fusion gains at the large size, as S004 expects after weeks of work."""
    rows: list[Row] = []
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")):
        rows += _timed(_cells(lab, machine, dtype, mode).get(LARGE, {}), FUSED)
    every = [row.speed for row in rows if not absent(row.ratio_low)]
    if not every:
        return None
    judged, clear = ("S004-19a", "S004-19b"), [gain for gain in every if not gain.doubt]
    if not clear:
        return unsaid(lab, machine, "What a true fusion of a large product gains", PAGE, every, judged)
    inside = sum(gain.within(*HOPED) for gain in every)
    outside = sum(gain.outside(*HOPED) for gain in every)
    return Finding(
        span_text(clear),
        "What S004 hopes of a true fusion is there"
        if inside == len(every)
        else "A true fusion gains what S004 hopes in some arithmetic only"
        if inside
        else "A true fusion of a large product gains other than S004 hopes"
        if outside
        else "Whether a true fusion gains what S004 hopes is undecided",
        f"S004 hopes for {HOPED[0]:.2f} to {HOPED[1]:.2f}× for large models, after weeks of work. At "
        f"{formats.shape(LARGE)} {inside} of {len(every)} cases lie inside. {silent(every)}".strip(),
        PAGE,
        claims=judged,
    )


ONE = (*FUSED, "step_wgmma")
"""Variants that are to be a single kernel."""


def _traces(lab: Evidence, machine: str) -> list[Configuration]:
    if lab.primary(machine) != "graph":  # a CPU has operators, no kernels
        return []
    return probed(lab, machine, "trace", operation="linear_relu", experiment=EXPERIMENT)


def single(lab: Evidence, machine: str) -> Finding | None:
    """Whether each fused form is a single kernel, by every count."""
    one = [set(kernels(way).values()) for way in _traces(lab, machine) if way.variant in ONE and kernels(way)]
    if not one:
        return None
    proven = sum(values == {1} for values in one)
    return Finding(
        f"{proven} of {len(one)}",
        "The fusions are true: one kernel each" if proven == len(one) else "Some fusions are more than one kernel",
        "Fused calls that launch a single kernel, by every way of counting.",
        PAGE,
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    found = [digits(lab, machine, shape) for shape in GOALS]
    own = [partial(fused, variant=name) for name in OWN]
    return [one for one in found if one is not None] + answered(lab, machine, *own, hoped, single)


def library(lab: Evidence, machine: str) -> str:
    """A sentence for a machine on which nothing of our own could be timed; empty where it could."""
    own = [*SPLITS, *OWN]
    cells = [found for dtype in ("float32", "bfloat16") for found in _cells(lab, machine, dtype).values()]
    if any(_timed(found, own) for found in cells):
        return ""
    need = "" if lab.primary(machine) == "graph" else ": they need a CUDA GPU"
    text = f"On `{machine}` the kernels of this page were not timed{need}. What is left is the library"
    clear = [row.speed for found in cells for row in _timed(found, ["epilogue"]) if intervals.decided(row.speed)]
    return f"{text}, whose fused call has {span_text(clear)} of eager's speed." if clear else f"{text}."


# ---------------------------------------------------------------- tables


def limits(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Best measured rates, a third of them, and what that third is of float32's own: a line an arithmetic."""
    best = results.ceilings(lab.of(machine))
    found = {kind: best.get(("matmul", kind, lab.primary(machine)), math.nan) for kind in KINDS}
    own, first = found["float32/ieee"], {}
    for operation in ("linear_relu", "conv_block"):
        for name in names(operation, "split", "own kernel"):
            if splits := find(operation, name).splits:
                first.setdefault(splits[0], (name.removesuffix("_graph").rpartition("_")[2], splits[1]))
    if absent(own) or all(absent(found[kind]) for kind in first):
        return []
    lines = []
    for kind, (name, products) in first.items():
        if not absent(found[kind]):
            lines.append(
                {
                    "split": name,
                    "its arithmetic": KINDS[kind],
                    "gain at most": f"{formats.number(found[kind] / products / own)}×",
                    "best rate": formats.scaled(found[kind], "FLOP/s"),
                    f"a product by {products}": formats.scaled(found[kind] / products, "FLOP/s"),
                    "float32, IEEE": formats.scaled(own, "FLOP/s"),
                }
            )
    return lines


def splits(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Speed and error of split operands beside cuBLAS's own: a line a size and variant."""
    out = []
    for shape, found in _cells(lab, machine, "float32").items():
        (eager,) = _timed(found, ["eager"]) or [None]
        if eager is None:
            continue
        for row in (found[name] for name in SPLITS + ONCE if name in found):
            line = {"size": row.at, "variant": labelled(row)}
            if row.status == "ok":
                line |= {
                    "against eager": times(row.speed),
                    "goal": _goal(row.speed, GOALS.get(shape)),
                    "error, of cuBLAS's": f"{formats.spoken(row.error / eager.error)}×",
                    "share of the limit": row.attained or formats.MISSING,
                }
                out.append(line)
            elif row.status != "skipped":
                out.append(line | {"against eager": f"{row.status.replace('_', ' ')}: {row.reason}"})
    return out


def slower_once(lab: Evidence, machine: str) -> str:
    """A sentence on where weights split once make a form slower than splitting them in every call; empty if nowhere."""
    found: dict[str, list[str]] = {}
    for own in _cells(lab, machine, "float32").values():
        for once in _timed(own, ONCE):
            every = _timed(own, [once.variant.removesuffix("_once")])
            if every and once.against(every[0]).reading == "slower":
                found.setdefault(labelled(once), []).append(once.at)
    said = [f"*{name}* at {listing(where)}" for name, where in found.items()]
    return f"Slower than with weights split in every call: {listing(said)}." if said else ""


def _goal(gain: Interval, goal: float | None) -> str:
    if goal is None:
        return formats.MISSING
    met = reached(gain, goal)
    return f"{goal:g}×: {gain.doubt or ('undecided' if met is None else 'reached' if met else 'missed')}"


def fusions(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The fused kernels in bfloat16 and TF32 against their best peer: a line a size and variant."""
    out = []
    for dtype, mode in (("bfloat16", "ieee"), ("float32", "tf32")):
        for found in _cells(lab, machine, dtype, mode).values():
            for row in (own for name in FUSED for own in _timed(found, [name])):
                if (best := rival(found, row.variant)) is None:
                    continue
                factor = best.over(row)
                out.append(
                    {
                        "size": f"{row.at} {KINDS[f'{dtype}/{mode}']}",
                        "variant": labelled(row),
                        "best peer": labelled(best),
                    }
                    | {"against it": times(factor), "reads": intervals.reading(factor)}
                    | {"share of the limit": row.attained or formats.MISSING}
                )
    return out


def kernel_counts(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Kernels of one call, counted two ways: a line a variant."""
    out = []
    for way in _traces(lab, machine):
        own = kernels(way)
        line = {
            "workload": f"{way.shape} {KINDS[way.math]}",
            "variant": label("linear_relu", way.variant),
        }
        line |= {kind: f"{own[kind]:g}" if kind in own else formats.MISSING for kind in ("profiler", "graph nodes")}
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
        for name in TERMS:
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
