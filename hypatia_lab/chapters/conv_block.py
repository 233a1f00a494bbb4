"""The convolution block: findings, tables and claims of its chapter.

S000 gave up a pipeline of three kernels that was 80 times slower than PyTorch. The chapter measures it again, part by
part, and holds kernels of our own against the target that S000 gave up. What a machine has not measured is left out.

S000 names no arithmetic. So PyTorch in float32 is met in its default one first, where a machine has that recorded, and
in IEEE's beside it; S000's loops multiply as IEEE asks in either case. Kernels of our own are held to a named one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import claims, formats, intervals, results
from hypatia_lab.claims import Claim
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import FLOAT32, fastest, say, times, waited
from hypatia_lab.results import Row
from hypatia_lab.workloads import DTYPES

PAGE = "05_conv_block"
EXPERIMENT, DEFAULTS = "conv_block", "library_defaults"
EXPERIMENTS = {"default": DEFAULTS, "ieee": EXPERIMENT}
"""Arithmetic of PyTorch's float32 → the experiment that holds S000's loops against it; the leading one first."""
SHAPE = "5x64x128x128"
BLOCKS = ("conv_block", "conv_block_tanh")
"""The operation with either GELU."""
CLAIMED_SLOWDOWN = 78.0, 80.0
CLAIMED_ERROR = 1.36e-3
TENTH = 0.1
"""How far a single claimed figure may be off, as in the ledger."""
SPLIT = ("triton_bf16x3", "whole_bf16x3")
OWN = ("triton", "whole", *SPLIT)
LOOPS = ("naive", "naive_malloc", "threaded")
GELUS = {"conv_block": "erf", "conv_block_tanh": "tanh"}
KINDS = ("float32/ieee", "float32/default", "float32/tf32", "bfloat16/ieee", "float16/ieee", "float64/ieee")


@dataclass(frozen=True)
class Goal:
    """What kernels of our own are to reach at the seeds' size: ``factor`` times the speed of the fastest of ``peers``.

    ``most`` is the largest absolute error allowed, where the goal names one.
    """

    name: str
    dtype: str
    math: str
    direction: str
    peers: tuple[str, ...]
    factor: float
    most: float = float("inf")


COMPILED = ("compile", "compile_channels_last")
GOALS = (
    Goal("float32's accuracy, against eager in IEEE float32", "float32", "ieee", "forward", ("eager",), 4.0, 1e-4),
    Goal("TF32's accuracy, against eager in TF32", "float32", "tf32", "forward", ("eager",), 3.0, 2e-3),
    Goal("bfloat16, against eager", "bfloat16", "ieee", "forward", ("eager",), 5.0),
    Goal("bfloat16, against torch.compile", "bfloat16", "ieee", "forward", COMPILED, 2.0),
    Goal(
        "bfloat16, forward and backward, against the better of eager and torch.compile",
        "bfloat16",
        "ieee",
        "forward_backward",
        ("eager", "eager_channels_last", *COMPILED),
        2.0,
    ),
)


# ---------------------------------------------------------------- reading


def _rows(lab: Evidence, machine: str, **wanted: Any) -> list[Row]:
    """Rows of the block by ``machine``'s primary clock unless told otherwise, smallest first."""
    wanted = {"operation": "conv_block", "direction": "forward", "clock": lab.primary(machine)} | wanted
    rows = lab.select(machine=machine, **{"experiment": EXPERIMENT} | wanted)
    return sorted(rows, key=lambda row: row.flops)


def maths(lab: Evidence, machine: str) -> list[str]:
    """The arithmetics of PyTorch's float32 that ``machine`` may have recorded, the leading one first; a CPU has one."""
    return list(EXPERIMENTS) if lab.primary(machine) == "graph" else ["ieee"]


def _single(lab: Evidence, machine: str, mode: str, clock: str = "", operation: str = "conv_block") -> list[Row]:
    """Timed rows in float32 of the arithmetic ``mode``."""
    own = {"experiment": EXPERIMENTS[mode], "operation": operation, "clock": clock or lab.primary(machine)}
    return [row for row in _rows(lab, machine, dtype="float32", math=mode, **own) if row.timed]


def _one_size(rows: Sequence[Row], *needed: str) -> dict[str, Row]:
    """The rows by variant at the seeds' size, or at the largest where all of ``needed`` were timed; {} without one."""
    sizes: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.timed:
            sizes.setdefault(row.shape, {})[row.variant] = row
    whole = {shape: found for shape, found in sizes.items() if {*needed} <= set(found)}
    return whole.get(SHAPE) or (list(whole.values())[-1] if whole else {})


def drawn(lab: Evidence, machine: str, dtype: str, math_mode: str = "ieee", direction: str = "forward") -> list[Row]:
    """The rows at the size that the page speaks of, without the seeds' loops, which would squeeze all others."""
    rows = _rows(lab, machine, dtype=dtype, math=math_mode, direction=direction)
    found = _one_size(rows, "eager")
    shape = found["eager"].shape if found else ""
    return [row for row in rows if row.shape == shape and row.variant not in ("naive", "naive_malloc", "threaded")]


def waiting(lab: Evidence, machine: str, dtype: str) -> list[Row]:
    """Rows by the clock that a caller waits by, where it is another than the primary one."""
    clock = waited(lab, machine)
    return [] if clock == lab.primary(machine) else _rows(lab, machine, dtype=dtype, clock=clock)


def loops(lab: Evidence, machine: str) -> list[Row]:
    """The seeds' loops and what they are held against, in float32, at every size and in each arithmetic."""
    rows = [row for mode in maths(lab, machine) for row in _single(lab, machine, mode)]
    return [row for row in rows if row.variant in ("eager", *LOOPS)]


def called(lab: Evidence, machine: str) -> list[Row]:
    """The same by the clock that a caller waits by, where it is another than the primary one."""
    clock = waited(lab, machine)
    own = [] if clock == lab.primary(machine) else maths(lab, machine)
    rows = [row for mode in own for row in _single(lab, machine, mode, clock)]
    return [row for row in rows if row.variant in ("eager", *LOOPS)]


def over_batches(lab: Evidence, machine: str, dtype: str) -> list[Row]:
    """Rows of every number of images of the seeds' size; none where only one number was measured."""
    own = ("triton", "whole") if dtype == "bfloat16" else SPLIT
    rows, image = (
        _rows(lab, machine, dtype=dtype, math="ieee", variant=("eager", "naive", *own)),
        SHAPE.partition("x")[2],
    )
    rows = [row for row in rows if row.timed and row.shape.partition("x")[2] == image]
    return rows if len({row.shape for row in rows}) > 1 else []


def under_roof(lab: Evidence, machine: str) -> list[Row]:
    """Timed forward passes of one size, in every arithmetic of which the machine has a measured ceiling.

    The size is the one that eager was timed at in most of them: of several, the seeds'.
    """
    best, clock = results.ceilings(lab.of(machine)), lab.primary(machine)
    if ("copy", "", clock) not in best:
        return []
    names = ("eager", "naive", "compile", "compile_channels_last", *OWN)
    found: list[Row] = []
    for kind in KINDS:
        if ("matmul", kind, clock) in best:
            dtype, math_mode = kind.split("/")
            rows = _rows(lab, machine, dtype=dtype, math=math_mode, variant=names)
            found += [row for row in rows if row.timed]
    sizes = [row.shape for row in found if row.variant == "eager"]
    size = max(sizes, key=lambda shape: (sizes.count(shape), shape == SHAPE), default="")
    return [row for row in found if row.shape == size]


# ---------------------------------------------------------------- the breakdown


def _stage(variant: str, kernel: str) -> str:
    """Which part of the block ``kernel`` computes; of a library the rest is the convolution and its bias."""
    name = kernel.lower()
    if variant.startswith("naive"):
        return "convolution" if "convolve" in name else "statistics" if "statistics" in name else "normalise and GELU"
    # cuDNN's batch normalisation, which also normalises planes, and the copies that repeat γ and β for every image.
    normalises = any(part in name for part in ("norm", "bn_fw", "direct_copy"))
    return "GELU" if "gelu" in name else "normalisation" if normalises else "convolution"


def traced(lab: Evidence, machine: str) -> list[list[dict[str, Any]]]:
    """What calls in float32 launch, as the tracer listed it: the lines of each arithmetic that was looked at."""
    found = [
        lab.details(machine=machine, experiment=EXPERIMENTS[mode], topic="kernels", dtype="float32", math=mode)
        for mode in maths(lab, machine)
    ]
    return [lines for lines in found if any(line["values"] for line in lines)]


def _kernels(lab: Evidence, machine: str, variant: str, mode: str) -> list[dict[str, Any]]:
    where = {"experiment": EXPERIMENTS[mode], "topic": "kernels", "variant": variant, "dtype": "float32", "math": mode}
    lines = lab.details(machine=machine, operation="conv_block", **where)
    return [line for line in lines if line["status"] == "ok" and any(value is not None for value in line["values"])]


def _stage_us(lab: Evidence, machine: str, variant: str, mode: str) -> dict[str, float]:
    """µs of each stage of one call, as the tracer saw it; {} where nobody looked, or where it is one operator.

    Means over processes are arithmetic, so that stages add up to the call.
    """
    lines = _kernels(lab, machine, variant, mode)
    if variant == "naive" and not any("convolve" in line["name"] for line in lines):
        return {}
    found: dict[str, float] = {}
    for line in lines:
        values = [value for value in line["values"] if value is not None]
        stage = _stage(variant, line["name"])
        found[stage] = found.get(stage, 0.0) + sum(values) / len(values)
    return found


def _least_us(lab: Evidence, machine: str, shape: str, stage: str, variant: str, mode: str) -> float:
    """The least time that the machine's ceilings allow a stage in float32 whose results go through memory.

    PyTorch multiplies in the arithmetic ``mode``, S000's loops as IEEE asks.
    """
    batch, channels, height, width = map(int, shape.split("x"))
    plane = DTYPES["float32"] * batch * channels * height * width
    products = 2 * 9 * channels * batch * channels * height * width
    work = {
        "convolution": (products, 2 * plane + DTYPES["float32"] * 9 * channels * channels),
        "statistics": (0, plane),
        "normalise and GELU": (0, 2 * plane),
        # The library's two take statistics and normalise, and then apply GELU to what they wrote.
        "normalisation": (0, 2 * plane),
        "GELU": (0, 2 * plane),
    }
    flops, nbytes = work[stage]
    cell = {"operation": "conv_block", "dtype": "float32", "variant": variant}
    cell |= {
        "math": "ieee" if variant in LOOPS else mode,
        "clock": lab.primary(machine),
        "flops": flops,
        "traffic": nbytes,
    }
    return results.limit_us(cell, results.ceilings(lab.of(machine)))


def breakdown(lab: Evidence, machine: str, mode: str) -> list[dict[str, str]]:
    """Each part of a call in float32, of the seeds' pipeline and of eager: a line a part, with its share and limit.

    ``mode`` is PyTorch's arithmetic.
    """
    out = []
    for variant in ("naive", "eager"):
        found = _stage_us(lab, machine, variant, mode)
        whole = math.fsum(found.values())
        for stage, us in found.items():
            shape = "x".join(map(str, _kernels(lab, machine, variant, mode)[0]["shape"]))
            least = _least_us(lab, machine, shape, stage, variant, mode)
            out.append(
                {
                    "variant": variant,
                    "part": stage,
                    "time": formats.duration(us),
                    "share of the call": f"{formats.number(100 * us / whole)}%",
                    "least time": formats.duration(least),
                    "of its limit": formats.MISSING if absent(least) else f"{formats.number(100 * least / us)}%",
                }
            )
    return out


def where(lab: Evidence, machine: str, mode: str) -> str:
    """The size and arithmetic that :func:`breakdown` speaks of, as ``in IEEE float32 on h200, 5×64×128×128``."""
    lines = _kernels(lab, machine, "eager", mode)
    return f"in {FLOAT32[mode]} on {machine}, " + "×".join(map(str, lines[0]["shape"])) if lines else ""


# ---------------------------------------------------------------- findings


def slower(lab: Evidence, machine: str) -> Finding | None:
    """The pipeline against PyTorch, which S000 puts at 78 to 80 times."""
    sizes = {mode: _one_size(_single(lab, machine, mode), "eager", "naive") for mode in maths(lab, machine)}
    found = {mode: (own["eager"], own["naive"]) for mode, own in sizes.items() if own}
    if not found:
        return None
    mode, (eager, naive) = next(iter(found.items()))
    factor, judged = naive.over(eager), ("S000-01a", "S000-02a")
    if factor.doubt:
        return unsaid(lab, machine, "How much slower one thread an output is", PAGE, [factor], judged)
    text = f"At {naive.at} the three kernels take {naive.takes}, PyTorch in {FLOAT32[mode]} {eager.takes}: "
    text += f"{times(factor)} as long. S000 says {CLAIMED_SLOWDOWN[0]:g} to {CLAIMED_SLOWDOWN[1]:g} times. "
    for other, (library, loops) in list(found.items())[1:]:
        text += f"Against {FLOAT32[other]} it is {say(loops.over(library))}. "
    if own := _one_size(_single(lab, machine, mode, operation="conv_block_tanh"), "eager", "naive"):
        text += "With GELU by its tanh formula, as S000 names an approximation, it is "
        text += f"{say(own['naive'].over(own['eager']))} in {FLOAT32[mode]}. "
    if own := _one_size(_rows(lab, machine, dtype="bfloat16"), "eager", "naive"):
        text += f"In bfloat16 it is {say(own['naive'].over(own['eager']))}. "
    shares = [row.attained for row in found.get("ieee", ())]  # the loops' own arithmetic
    if shares and all(shares):
        text += f"The three reach {shares[1]} of the limit in IEEE float32, PyTorch {shares[0]}."
    if lab.primary(machine) != "graph":
        text = f"{text.strip()} S000 speaks of a GPU, and this is a CPU."
    return Finding(
        f"{formats.number(factor.value)}×",
        "One thread an output is far slower than the library"
        if factor.above(2)
        else "One thread an output is slower than the library"
        if factor.above(1)
        else "One thread an output is not slower than the library here"
        if factor.below(1)
        else "How much slower one thread an output is remains open here",
        text.strip(),
        PAGE,
        claims=judged,
    )


def cause(lab: Evidence, machine: str) -> Finding | None:
    """Which of the three kernels the time of a traced call goes to, and how long the library takes for the same part.

    It tells of the calls that were traced, be it one: there is no interval, and no other call is spoken of.
    """
    seen = {
        mode: (_stage_us(lab, machine, "naive", mode), _stage_us(lab, machine, "eager", mode))
        for mode in maths(lab, machine)
    }
    mode = next((mode for mode, both in seen.items() if all(both)), "")
    if not mode:
        return None
    own, library = seen[mode]
    whole, usual = math.fsum(own.values()), math.fsum(library.values())
    share, convolution = 100 * own["convolution"] / whole, library.get("convolution", math.nan)
    rest = whole - own["convolution"]
    text = (
        f"Of a traced call's {formats.duration(whole)} the convolution takes {formats.duration(own['convolution'])}, "
    )
    text += f"{formats.number(share)}%; the library's, in {FLOAT32[mode]}, takes {formats.duration(convolution)}. "
    parts = {"naive": own["convolution"], "eager": convolution}
    least = {name: _least_us(lab, machine, SHAPE, "convolution", name, mode) for name in parts}
    if not any(map(absent, least.values())):
        at_limit = [formats.number(100 * least[name] / us) for name, us in parts.items()]
        text += f"They reach {at_limit[0]}% and {at_limit[1]}% of what their arithmetic allows. "
    text += f"The other two kernels take {formats.duration(rest)}, where the library's take "
    text += f"{formats.duration(usual - convolution)}: with the library's convolution the pipeline would be "
    text += f"{formats.number((rest + convolution) / usual)}× eager's time, not {formats.number(whole / usual)}×. "
    text += "S000 blames the convolution without a profile."
    return Finding(
        f"{formats.number(share)}%",
        "The convolution takes nearly all of a traced call" if share > 90 else "The convolution is not the only cause",
        text,
        PAGE,
        claims=("S000-15a",),
    )


def allocation(lab: Evidence, machine: str) -> Finding | None:
    """What memory from the driver in every call costs, by the clock that a caller waits by."""
    needed = "eager", "naive", "naive_malloc"
    sizes = {
        mode: _one_size(_single(lab, machine, mode, waited(lab, machine)), *needed) for mode in maths(lab, machine)
    }
    mode = next((mode for mode, own in sizes.items() if own), "")
    if not mode:
        return None
    found = sizes[mode]
    eager, naive, malloc = (found[name] for name in ("eager", "naive", "naive_malloc"))
    factor, left, judged = malloc.over(naive), naive.over(eager), ("S000-12d",)
    if factor.doubt:
        return unsaid(lab, machine, "What allocating in the loop costs", PAGE, [factor], judged)
    text = f"With memory from the driver in every call the pipeline takes {malloc.takes}, from PyTorch's allocator "
    text += f"{naive.takes}: {times(factor)}. Without that overhead it still takes {say(left)} the time of PyTorch "
    text += f"in {FLOAT32[mode]}. S000 went from the one to the other."
    return Finding(
        f"{formats.number(factor.value)}×",
        "Allocating in the loop hardly shows"
        if not factor.above(1.02)
        else "Allocating in the loop costs time, and is not the cause"
        if left.above(2)
        else "Allocating in the loop costs time",
        text,
        PAGE,
        claims=judged,
    )


def _errors(lab: Evidence, machine: str) -> list[Row]:
    """Checked rows with an error, at the size that most dtypes, maths and GELUs were checked at; one a variant."""
    rows = lab.select(machine=machine, experiment=EXPERIMENT, direction="forward", operation=BLOCKS)
    if "default" in maths(lab, machine):
        own = {"experiment": DEFAULTS, "math": "default", "direction": "forward", "operation": BLOCKS}
        rows += lab.select(machine=machine, **own)
    rows = [row for row in rows if not absent(row.max_error) and row.variant in ("eager", "naive", *OWN)]
    covered: dict[str, set[str]] = {}
    for row in rows:
        covered.setdefault(row.shape, set()).add(f"{row.operation} {row.dtype}/{row.math}")
    if not covered:
        return []
    chosen = max(covered, key=lambda shape: len(covered[shape]))
    return list({(row.workload, row.variant): row for row in rows if row.shape == chosen}.values())


def accuracy(lab: Evidence, machine: str) -> Finding | None:
    """Whether the error that S000 gives is that of the pipeline in some arithmetic."""
    found = {
        (row.variant, f"{row.dtype}/{row.math}"): row.max_error
        for row in _errors(lab, machine)
        if row.operation == "conv_block"
    }
    own = found.get(("naive", "float32/ieee"))
    if not own:
        return None
    said = [
        f"{formats.number(found[variant, kind])} ({variant}, {kind.removesuffix('/ieee')})"
        for variant, kind in (
            *(("naive", "bfloat16/ieee"), ("naive", "float16/ieee")),
            *(("eager", "float32/tf32"), ("eager", "float32/default")),
        )
        if (variant, kind) in found
    ]
    low, high = CLAIMED_ERROR * (1 - TENTH), CLAIMED_ERROR * (1 + TENTH)
    near = [f"{variant} in {kind}" for (variant, kind), error in found.items() if low <= error <= high]
    factor = CLAIMED_ERROR / own
    text = f"In IEEE float32 the pipeline is off by at most {formats.number(own)}; S000's {CLAIMED_ERROR:g} is "
    text += f"{formats.number(factor)}× as much. "
    text += f"Shorter numbers are off by {listing(said)}. " if said else ""
    text += f"Within a tenth of S000's figure: {listing(near)}." if near else "None is within a tenth of S000's figure."
    return Finding(
        f"{formats.number(own)}",
        "An error of 1.36e-3 is not IEEE float32's"
        if own < low
        else "The error in IEEE float32 is as large as S000 says",
        text,
        PAGE,
        claims=("S000-13a", "S000-13b"),
    )


def _met(goal: Goal, factor: Interval, error: float) -> str:
    if error > goal.most:
        return "missed: the error is too large"
    return factor.doubt or (
        "reached" if factor.above(goal.factor) else "missed" if factor.below(goal.factor) else "open"
    )


@dataclass(frozen=True)
class Reached:
    """How far a goal was reached: the fastest of our own and of the peers, and the factor between them."""

    goal: Goal
    own: Row
    peer: Row
    factor: Interval

    @property
    def word(self) -> str:
        """reached, missed, open, or why nothing is said."""
        return _met(self.goal, self.factor, self.own.max_error)


def reached(lab: Evidence, machine: str) -> list[Reached]:
    """The goals that ``machine`` can speak of: both sides timed at the seeds' size."""
    out = []
    for goal in GOALS:
        rows = _rows(lab, machine, dtype=goal.dtype, math=goal.math, direction=goal.direction, shape=SHAPE)
        own, peer = fastest(rows, OWN), fastest(rows, goal.peers)
        if own and peer:
            out.append(Reached(goal, own, peer, peer.over(own)))
    return out


def goals(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a goal: what was wanted, what was got, and what the machine's ceilings would allow at most."""
    lines = []
    for found in reached(lab, machine):
        own, peer, limit = found.own, found.peer, found.own.limit_us
        wanted = f"{found.goal.factor:g}×"
        if math.isfinite(found.goal.most):
            wanted += f", error ≤ {found.goal.most:g}"
        lines.append(
            {
                "goal": found.goal.name,
                "wanted": wanted,
                "got": times(found.factor),
                "reads": found.word,
                "ours": f"{own.variant} {own.took}",
                # Of gradients there is none that means anything without its scale.
                "largest absolute error": own.largest if found.goal.direction == "forward" else formats.MISSING,
                "peer": f"{peer.variant} {peer.took}",
                "limit": formats.duration(limit),
                "ours of its limit": own.attained or formats.MISSING,
                "the limit would allow": formats.MISSING
                if not peer.attained
                else f"{formats.number(peer.median_us / limit)}×",
            }
        )
    return lines


def _bound(one: Reached) -> str:
    """The error that the goal allows and what it is, where it names one."""
    most = one.goal.most
    return f"largest absolute error {one.own.largest}, {most:g} allowed, " if math.isfinite(most) else ""


def target(lab: Evidence, machine: str) -> Finding | None:
    """The goals in one sentence each: was S000 right to give its target up?"""
    found = reached(lab, machine)
    if not found:
        return None
    judged = ("S000-07a", "S000-07b", "S000-07c")
    if all(one.factor.doubt for one in found):
        question, every = "Whether a kernel of one's own beats the library's block", [one.factor for one in found]
        return unsaid(lab, machine, question, PAGE, every, judged)
    met = [one for one in found if one.word == "reached"]
    said = "; ".join(
        f"{one.goal.name}: "
        + (one.word if one.factor.doubt else f"{times(one.factor)} of {one.goal.factor:g}×, {_bound(one)}{one.word}")
        for one in found
    )
    said += f". S000 gave its target up. These are times by the {lab.primary(machine)} clock"
    rows = {row.variant: row for row in waiting(lab, machine, "bfloat16") if row.timed}
    called = [name for name in ("whole", "triton") if name in rows and "eager" in rows]
    if called:
        factors = [f"{name} {say(rows['eager'].over(rows[name]))}" for name in called]
        said += f"; called from Python, without a graph, in bfloat16: {listing(factors)} as fast as eager"
    beaten = any(intervals.reading(one.factor) == "faster" for one in found)
    title = "A kernel of one's own beats the library's block" if beaten else "No own kernel surely beats the library"
    return Finding(
        f"{len(met)} of {len(found)}",
        f"{title}; {len(met)} of {len(found)} goals are reached",
        f"{said[0].upper()}{said[1:]}.",
        PAGE,
        claims=judged,
    )


def rejected(lab: Evidence, machine: str, rows: Sequence[Row]) -> str:
    """Which of ``rows`` the check called wrong, so that they have no time, and why; "" where none."""
    wrong = dict.fromkeys(f"`{row.variant}` in {row.dtype} ({row.reason})" for row in rows if row.status == "wrong")
    return f"Not right on `{machine}`, and so without a time: {listing(list(wrong))}." if wrong else ""


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, by weight."""
    asked = (slower, target, cause, allocation, accuracy)
    return [found for found in (ask(lab, machine) for ask in asked) if found is not None]


# ---------------------------------------------------------------- worked out as the page is made


# ---------------------------------------------------------------- tables


def errors(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Largest error against float64: a line a GELU and variant, a column a dtype and math."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    rows = _errors(lab, machine)
    kinds = [kind for kind in KINDS if any(f"{row.dtype}/{row.math}" == kind for row in rows)]
    for row in sorted(rows, key=lambda row: (BLOCKS.index(row.operation), _place(row.variant))):
        line = lines.setdefault(
            (row.operation, row.variant),
            {"GELU": GELUS[row.operation], "variant": row.variant} | dict.fromkeys(kinds, formats.MISSING),
        )
        text = formats.number(row.max_error)
        line[f"{row.dtype}/{row.math}"] = text if row.status == "ok" else f"{text}, {row.status}"
    return list(lines.values())


def _place(variant: str) -> int:
    return ("eager", "naive", *OWN).index(variant)


def errors_at(lab: Evidence, machine: str) -> str:
    """The size that :func:`errors` speaks of."""
    rows = _errors(lab, machine)
    return rows[0].at if rows else ""


# ---------------------------------------------------------------- claims


SECTIONS = ("Performance Results", "What We Tried", "Root Cause", "Lessons Learned")


def chapter_claims() -> list[Claim]:
    """S000's claims about its kernels, in the order of the ledger; those about the compiler have their own chapter."""
    own = claims.ledger(seeds=["S000"])
    return [claim for claim in own if claim.section in SECTIONS]
