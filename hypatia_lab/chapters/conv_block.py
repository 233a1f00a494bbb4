"""The convolution block: findings and tables of its chapter.

S000 gave up a pipeline of three kernels that was 80 times slower than PyTorch. The chapter measures it again, part by
part, and holds kernels of our own against the target that S000 gave up.

S000 names no arithmetic. So PyTorch in float32 is met in its default one first, where a machine has that recorded, and
in IEEE's beside it; S000's loops multiply as IEEE asks in either case. Kernels of our own are held to a named one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, intervals, results, variants
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, unsaid
from hypatia_lab.pages.phrases import FLOAT32, fastest, spoken, times, waited
from hypatia_lab.results import Row
from hypatia_lab.workloads import DTYPES

PAGE = "05_conv_block"
EXPERIMENT, DEFAULTS = "conv_block", "library_defaults"
EXPERIMENTS = {"default": DEFAULTS, "ieee": EXPERIMENT}
"""Arithmetic of PyTorch's float32 → the experiment that holds S000's loops against it; the leading one first."""
SHAPE = "5x64x128x128"
BLOCKS = {"conv_block": "erf", "conv_block_tanh": "tanh"}
"""The operation with either GELU."""
CLAIMED_SLOWDOWN = 78.0, 80.0
CLAIMED_ERROR = 1.36e-3
TENTH = 0.1
"""How far a single claimed figure may be off, as in the ledger."""
SPLIT = ("triton_bf16x3", "whole_bf16x3")
OWN = ("triton", "whole", *SPLIT)
LOOPS = ("naive", "naive_malloc", "threaded")
LIBRARY = ("eager", "compile", "compile_channels_last")
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


def loops(lab: Evidence, machine: str, clock: str = "") -> list[Row]:
    """The seeds' loops and what they are held against, in float32, at every size and in each arithmetic."""
    asked = {"dtype": "float32", "clock": clock or lab.primary(machine), "variant": ("eager", *LOOPS)}
    return [
        row
        for mode in maths(lab, machine)
        for row in _rows(lab, machine, math=mode, experiment=EXPERIMENTS[mode], **asked)
        if row.timed
    ]


def called(lab: Evidence, machine: str) -> list[Row]:
    """The same by the clock that a caller waits by, where it is another; in the leading arithmetic that was timed."""
    clock = waited(lab, machine)
    rows = [] if clock == lab.primary(machine) else loops(lab, machine, clock)
    return [row for row in rows if row.math == rows[0].math]


def _one_size(rows: Sequence[Row], *needed: str) -> dict[str, Row]:
    """The rows by variant of the first arithmetic in which all of ``needed`` were timed at one size; {} without one.

    The size is the seeds', or the largest.
    """
    sizes: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        if row.timed:
            sizes.setdefault(row.math, {}).setdefault(row.shape, {})[row.variant] = row
    for own in sizes.values():
        whole = {shape: found for shape, found in own.items() if {*needed} <= set(found)}
        if whole:
            return whole.get(SHAPE) or list(whole.values())[-1]
    return {}


def _kind(row: Row) -> str:
    return f"{row.dtype}/{row.math}"


def drawn(lab: Evidence, machine: str, direction: str = "forward", clock: str = "") -> list[Row]:
    """The library and our own at the seeds' size (or the largest) in the kinds of number that the goals name."""
    kinds = dict.fromkeys((goal.dtype, goal.math) for goal in GOALS)
    out = []
    for dtype, mode in kinds:
        own = {"dtype": dtype, "math": mode, "direction": direction, "clock": clock or lab.primary(machine)}
        rows = _rows(lab, machine, **own)
        if eager := _one_size(rows, "eager"):
            out += [row for row in rows if row.shape == eager["eager"].shape and row.variant in (*LIBRARY, *OWN)]
    return out


def waiting(lab: Evidence, machine: str) -> list[Row]:
    """The same by the clock that a caller waits by, where it is another than the primary one."""
    clock = waited(lab, machine)
    return [] if clock == lab.primary(machine) else drawn(lab, machine, clock=clock)


def under_roof(lab: Evidence, machine: str) -> list[Row]:
    """Timed forward passes of one size, in every arithmetic of which the machine has a measured ceiling.

    The size is the one that eager was timed at in most of them: of several, the seeds'.
    """
    best, clock = results.ceilings(lab.of(machine)), lab.primary(machine)
    if ("copy", "", clock) not in best:
        return []
    rows = _rows(lab, machine, variant=(*LIBRARY, "naive", *OWN))
    rows = [row for row in rows if row.timed and _kind(row) in KINDS and ("matmul", _kind(row), clock) in best]
    sizes = [row.shape for row in rows if row.variant == "eager"]
    size = max(sizes, key=lambda shape: (sizes.count(shape), shape == SHAPE), default="")
    return sorted((row for row in rows if row.shape == size), key=lambda row: KINDS.index(_kind(row)))


# ---------------------------------------------------------------- the breakdown


def _stage(variant: str, kernel: str) -> str:
    """Which part of the block ``kernel`` computes; of a library the rest is the convolution and its bias."""
    name = kernel.lower()
    if variant.startswith("naive"):
        return "convolution" if "convolve" in name else "statistics" if "statistics" in name else "normalise and GELU"
    # cuDNN's batch normalisation, which also normalises planes, and the copies that repeat γ and β for every image.
    normalises = any(part in name for part in ("norm", "bn_fw", "direct_copy"))
    return "GELU" if "gelu" in name else "normalisation" if normalises else "convolution"


def traced(lab: Evidence, machine: str) -> list[dict[str, Any]]:
    """What calls in float32 launch, as the tracer listed it, in the leading arithmetic that was looked at."""
    for mode in maths(lab, machine):
        own = {"experiment": EXPERIMENTS[mode], "topic": "kernels", "dtype": "float32", "math": mode}
        lines = lab.details(machine=machine, operation="conv_block", **own)
        if any(line["values"] for line in lines):
            return lines
    return []


def _stages(lab: Evidence, machine: str, variant: str) -> dict[str, float]:
    """µs of each stage of one call, as the tracer saw it; {} where nobody looked, or where it is one operator.

    Means over processes are arithmetic, so that stages add up to the call.
    """
    lines = [line for line in traced(lab, machine) if (line["variant"], line["status"]) == (variant, "ok")]
    if variant == "naive" and not any("convolve" in line["name"] for line in lines):
        return {}
    found: dict[str, float] = {}
    for line in lines:
        if values := [value for value in line["values"] if value is not None]:
            stage = _stage(variant, line["name"])
            found[stage] = found.get(stage, 0.0) + sum(values) / len(values)
    return found


def _least_us(lab: Evidence, machine: str, stage: str, variant: str) -> float:
    """The least time that the machine's ceilings allow a traced stage whose results go through memory.

    PyTorch multiplies in the arithmetic that was traced, S000's loops as IEEE asks.
    """
    line = traced(lab, machine)[0]
    batch, channels, height, width = line["shape"]
    plane = DTYPES["float32"] * batch * channels * height * width
    flops, nbytes = 0, plane if stage == "statistics" else 2 * plane
    if stage == "convolution":
        flops = 2 * 9 * channels * batch * channels * height * width
        nbytes += DTYPES["float32"] * 9 * channels * channels
    cell = {"operation": "conv_block", "dtype": "float32", "splits": None, "clock": lab.primary(machine)}
    cell |= {"math": "ieee" if variant in LOOPS else line["math"], "flops": flops, "traffic": nbytes}
    return results.limit_us(cell, results.ceilings(lab.of(machine)))


def breakdown(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Each part of a traced call, of the seeds' pipeline and of eager: a line a part, with its share and limit."""
    out = []
    for variant in ("naive", "eager"):
        found = _stages(lab, machine, variant)
        whole = math.fsum(found.values())
        for stage, us in found.items():
            least = _least_us(lab, machine, stage, variant)
            out.append(
                {
                    "by": variants.label("conv_block", variant),
                    "part": stage,
                    "time": formats.duration(us),
                    "share of the call": f"{formats.number(100 * us / whole)}%",
                    "least time": formats.duration(least),
                    "share of the limit": formats.MISSING if absent(least) else f"{formats.number(100 * least / us)}%",
                }
            )
    return out


# ---------------------------------------------------------------- findings


def _rewritten(lab: Evidence, machine: str, judged: Sequence[str]) -> str:
    """Why the claims ``judged`` are not reproduced, as a sentence; empty where the ledger says something else of them.

    For what agrees with S000: beside that the word would seem to say that it was not seen here.
    """
    if all(lab.verdicts.get(name, {}).get(machine) != "not_reproduced" for name in judged):
        return ""
    return " S000's own kernels were never published, and a rewrite of them neither confirms nor refutes its claim."


def slower(lab: Evidence, machine: str) -> Finding | None:
    """The pipeline against PyTorch, which S000 puts at 78 to 80 times."""
    found = _one_size(loops(lab, machine), "eager", "naive")
    if not found:
        return None
    factor, judged = found["naive"].over(found["eager"]), ("S000-01a", "S000-02a")
    if factor.doubt:
        return unsaid(lab, machine, "How much slower one thread an output is", PAGE, [factor], judged)
    text = f"S000's loops take {spoken(factor)} the time of PyTorch in {FLOAT32[found['eager'].math]}. "
    own = "" if lab.primary(machine) == "graph" else ", of a GPU, which this is not"
    return Finding(
        spoken(factor),
        "One thread an output is far slower than the library"
        if factor.above(2)
        else "One thread an output is slower than the library"
        if factor.above(1)
        else "One thread an output is not slower than the library here"
        if factor.below(1)
        else "How much slower one thread an output is remains open here",
        text + f"S000 says {CLAIMED_SLOWDOWN[0]:g} to {CLAIMED_SLOWDOWN[1]:g} times{own}.",
        PAGE,
        claims=judged,
    )


def cause(lab: Evidence, machine: str) -> Finding | None:
    """Which of the three kernels the time of a traced call goes to, and how long the library takes for the same part.

    It tells of the calls that were traced, be it one: there is no interval, and no other call is spoken of.
    """
    own, library = (_stages(lab, machine, name) for name in ("naive", "eager"))
    if not own or "convolution" not in library:
        return None
    whole, usual = math.fsum(own.values()), math.fsum(library.values())
    share, convolution = 100 * own["convolution"] / whole, library["convolution"]
    mended = (whole - own["convolution"] + convolution) / usual
    judged = ("S000-15a",)
    return Finding(
        f"{formats.spoken(share)}%",
        "The convolution takes nearly all of a traced call" if share > 90 else "The convolution is not the only cause",
        "The library's convolution, with its bias and all copies around it, takes "
        f"{formats.spoken(100 * convolution / own['convolution'])}% of the time of S000's. "
        f"With the library's in place of its own the pipeline would take {formats.spoken(mended)}× PyTorch's time."
        + _rewritten(lab, machine, judged),
        PAGE,
        claims=judged,
    )


def allocation(lab: Evidence, machine: str) -> Finding | None:
    """What memory from the driver in every call costs, by the clock that a caller waits by."""
    found = _one_size(loops(lab, machine, waited(lab, machine)), "eager", "naive", "naive_malloc")
    if not found:
        return None
    factor, left = found["naive_malloc"].over(found["naive"]), found["naive"].over(found["eager"])
    judged = ("S000-12d",)
    if factor.doubt:
        return unsaid(lab, machine, "What allocating in the loop costs", PAGE, [factor], judged)
    return Finding(
        spoken(factor),
        "Allocating in the loop hardly shows"
        if not factor.above(1.02)
        else "Allocating in the loop costs time, and is not the cause"
        if left.above(2)
        else "Allocating in the loop costs time",
        f"With memory from the driver in every call the pipeline takes {spoken(factor)} as long. "
        f"Without that it still takes {spoken(left)} the time of PyTorch." + _rewritten(lab, machine, judged),
        PAGE,
        claims=judged,
    )


def _errors(lab: Evidence, machine: str) -> list[Row]:
    """Checked rows with an error, at the size that most dtypes, maths and GELUs were checked at; one a variant."""
    asked = {"machine": machine, "direction": "forward", "operation": tuple(BLOCKS)}
    rows = lab.select(**asked, experiment=EXPERIMENT)
    if "default" in maths(lab, machine):
        rows += lab.select(**asked, experiment=DEFAULTS, math="default")
    rows = [row for row in rows if not absent(row.max_error) and row.variant in ("eager", "naive", *OWN)]
    covered: dict[str, set[str]] = {}
    for row in rows:
        covered.setdefault(row.shape, set()).add(f"{row.operation} {_kind(row)}")
    chosen = max(covered, key=lambda shape: len(covered[shape]), default="")
    return list({(row.workload, row.variant): row for row in rows if row.shape == chosen}.values())


def accuracy(lab: Evidence, machine: str) -> Finding | None:
    """Whether the error that S000 gives is that of the pipeline in some arithmetic."""
    found = {(row.variant, _kind(row)): row.max_error for row in _errors(lab, machine) if row.operation == "conv_block"}
    own = found.get(("naive", "float32/ieee"))
    if not own:
        return None
    low, high = CLAIMED_ERROR * (1 - TENTH), CLAIMED_ERROR * (1 + TENTH)
    near = [
        f"{variants.label('conv_block', variant)} in {kind}"
        for (variant, kind), error in found.items()
        if low <= error <= high
    ]
    return Finding(
        formats.number(own),
        "An error of 1.36e-3 is not IEEE float32's"
        if own < low
        else "The error in IEEE float32 is as large as S000 says",
        f"S000's error is {formats.spoken(CLAIMED_ERROR / own)}× that of its loops in IEEE float32. "
        + (f"It lies near that of {listing(near)}." if near else "No arithmetic tried here comes near it."),
        PAGE,
        claims=("S000-13a", "S000-13b"),
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
        if self.own.max_error > self.goal.most:
            return "missed: the error is too large"
        wanted, factor = self.goal.factor, self.factor
        return factor.doubt or ("reached" if factor.above(wanted) else "missed" if factor.below(wanted) else "open")


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
    """A line a goal: what was wanted, what was got, and how near that is to what the machine's ceilings allow."""
    return [
        {
            "goal": found.goal.name,
            "wanted": f"{found.goal.factor:g}×"
            + (f", error ≤ {found.goal.most:g}" if math.isfinite(found.goal.most) else ""),
            "got": times(found.factor),
            "reads": found.word,
            "share of the limit": found.own.attained or formats.MISSING,
            # Of gradients there is no error that means anything without its scale.
            "by": variants.label("conv_block", found.own.variant)
            + (f"; largest absolute error {found.own.largest}" if found.goal.direction == "forward" else ""),
        }
        for found in reached(lab, machine)
    ]


def target(lab: Evidence, machine: str) -> Finding | None:
    """How many goals are reached: was S000 right to give its target up?"""
    found = reached(lab, machine)
    if not found:
        return None
    judged, clear = ("S000-07a", "S000-07b", "S000-07c"), [one for one in found if not one.factor.doubt]
    if not clear:
        question, every = "Whether a kernel of one's own beats the library's block", [one.factor for one in found]
        return unsaid(lab, machine, question, PAGE, every, judged)
    met = [one for one in found if one.word == "reached"]
    best = max(clear, key=lambda one: one.factor.value)
    beaten = any(intervals.reading(one.factor) == "faster" for one in clear)
    alone = ", by the GPU's work alone" if lab.primary(machine) == "graph" else ""
    text = f"That is {best.goal.name}{alone}. Reached are {len(met)} of {len(found)} goals."
    rows = [row for row in waiting(lab, machine) if row.timed and row.dtype == "bfloat16"]
    own, eager = fastest(rows, OWN), fastest(rows, ("eager",))
    if own and eager:
        # Of another arithmetic and clock than the figure of the card.
        text += " As a caller waits, in bfloat16 and without a CUDA graph, the gain over eager is "
        text += f"{spoken(eager.over(own))}."
    title = "A kernel of one's own beats the library" if beaten else "No own kernel surely beats the library"
    return Finding(f"{'up to ' * beaten}{spoken(best.factor)}", title, text, PAGE, claims=judged)


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, by weight."""
    return answered(lab, machine, slower, target, cause, allocation, accuracy)


# ---------------------------------------------------------------- tables


def errors(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Largest error against float64: a line a GELU and variant, a column a dtype and math."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    rows = _errors(lab, machine)
    kinds = [kind for kind in KINDS if any(_kind(row) == kind for row in rows)]
    order = list(BLOCKS), ("eager", "naive", *OWN)
    for row in sorted(rows, key=lambda row: (order[0].index(row.operation), order[1].index(row.variant))):
        who = {"GELU": BLOCKS[row.operation], "by": variants.label(row.operation, row.variant), "shape": row.at}
        line = lines.setdefault((row.operation, row.variant), who | dict.fromkeys(kinds, formats.MISSING))
        line[_kind(row)] = formats.number(row.max_error) + ("" if row.status == "ok" else f", {row.status}")
    return list(lines.values())
