"""S000's strategy of five points: the rows that are each of them, held against eager in float32, and their starts.

Everything is held against eager PyTorch in float32, of the same shape and direction, even where the variant belongs to
another operation (autocast) or dtype. Its arithmetic is PyTorch's default where a machine has that recorded, else
IEEE's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypatia_lab import intervals
from hypatia_lab.figures.break_even import NEVER, Curve
from hypatia_lab.formats import absent
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.readings import probed, waited
from hypatia_lab.results import Row

FORWARD, STEP = "forward", "forward_backward"
MODELS = {"conv_block": "block", "unet": "U-Net"}
"""Operation → what it is called."""
MATHS = {"default": "library_defaults", "ieee": "torch_compile"}
"""Arithmetic of float32 that all else is held against → the experiment that has it; the leading one first."""


@dataclass(frozen=True)
class Point:
    """One way of S000's strategy: its number there, what it does, and the rows that are it.

    ``suffix`` follows the model's name in the operation's; ``mode`` is its math, "" for that of what it is held against
    (of 16 bits, ieee); ``drawn``: the figure of the points has it.
    """

    number: str
    what: str
    variant: str
    suffix: str = ""
    dtype: str = "float32"
    mode: str = ""
    drawn: bool = False


EAGER = Point("–", "eager", "eager")
COMPILED = Point("1", "torch.compile", "compile", drawn=True)
AUTOCAST = Point("2", "bfloat16 by autocast", "eager", "_autocast", "bfloat16", drawn=True)
TOGETHER = Point("all", "together, bfloat16", "compile_together", "_autocast", "bfloat16", drawn=True)
POINTS = (
    COMPILED,
    Point("1", "torch.compile, channels last", "compile_channels_last"),
    Point("1", "torch.compile, reduce-overhead", "compile_reduce_overhead"),
    Point("1", "torch.compile, max-autotune", "compile_max_autotune"),
    Point("–", "eager in IEEE float32", "eager", mode="ieee"),
    Point("1", "torch.compile, IEEE float32", "compile", mode="ieee"),
    Point("2", "TF32", "eager", mode="tf32"),
    Point("1, 2", "torch.compile, TF32", "compile", mode="tf32"),
    AUTOCAST,
    Point("2", "float16 by autocast", "eager", "_autocast", "float16"),
    Point("2", "all cast to bfloat16", "eager", "", "bfloat16"),
    Point("2", "all cast to float16", "eager", "", "float16"),
    Point("3", "channels last", "eager_channels_last", drawn=True),
    Point("3", "group_norm, a channel a group", "group_norm"),
    Point("3", "the same, channels last", "group_norm_channels_last"),
    Point("4", "preallocated outputs", "preallocated", drawn=True),
    Point("5", "torch.jit.script", "script", drawn=True),
    Point("all", "together, float32", "compile_together"),
    TOGETHER,
    Point("all", "together, all cast to bfloat16", "compile_together", "", "bfloat16"),
)


def firsts(data: Evidence, machine: str, clock: str = "") -> list[Row]:
    """Eager in float32, by ``clock`` (the primary one): a row an arithmetic and model's pass that has a time.

    In order of the page, the leading arithmetic first. On a CPU both are IEEE: it has one.
    """
    found = []
    for mode in list(MATHS)[data.primary(machine) != "graph" :]:
        for direction, model in itertools.product((FORWARD, STEP), MODELS):
            wanted = {"operation": model, "direction": direction, "math": mode, "dtype": "float32"}
            wanted |= {"machine": machine, "experiment": MATHS[mode], "clock": clock or data.primary(machine)}
            rows = [row for row in data.select(**wanted, variant="eager") if row.timed]
            # Of the sizes of the batching table the plan's own is the one that has all the points.
            known = Counter(row.shape for row in data.select(**wanted))
            found += sorted(rows, key=lambda row, known=known: -known[row.shape])[:1]
    return found


def leading(data: Evidence, machine: str, clock: str = "") -> list[Row]:
    """Those of :func:`firsts` in the leading arithmetic."""
    found = firsts(data, machine, clock)
    return [row for row in found if row.math == found[0].math]


def named(first: Row) -> str:
    """What a figure calls a model's pass: ``U-Net``, ``U-Net, training``."""
    return f"{MODELS[first.operation]}{', training' * (first.direction == STEP)}"


def beside(data: Evidence, first: Row, points: Sequence[Point] = POINTS) -> list[tuple[Point, Row]]:
    """Each of ``points`` that was asked for beside eager's ``first``, with its row, also one without a time."""
    place = {name: getattr(first, name) for name in ("machine", "experiment", "shape", "direction", "clock")}
    out = []
    for point in points:
        if point.mode != first.math:  # of what it is held against the points without a math speak
            math = point.mode or {first.dtype: first.math}.get(point.dtype, "ieee")
            own = {"operation": first.operation + point.suffix, "dtype": point.dtype, "math": math}
            out += [(point, row) for row in data.select(**place, **own, variant=point.variant)[:1]]
    return out


def drawn(found: Sequence[tuple[Row, Row, str, str]]) -> list[Row]:
    """(eager's row, a point's row, heading, name) … as a figure has them: each held against eager, under its heading.

    Empty where none has a ratio.
    """
    out = []
    for first, row, heading, name in found:
        same = {"dtype": first.dtype, "math": first.math, "direction": FORWARD, "baseline": "eager"}
        out.append(replace(row.against(first), operation=heading, variant=name, **same))
    return out if any(not absent(row.ratio) for row in out) else []


def paid(data: Evidence, row: Row, case: str) -> list[float]:
    """µs that a fresh process spends on building ``row``'s variant and on its first call, one a process.

    Fresh processes were measured in IEEE arithmetic. They speak for the default, too: to compile it is the same work.
    """
    wanted = {"operation": row.operation, "dtype": row.dtype, "math": row.math.replace("default", "ieee")}
    ways = probed(data, row.machine, "start", variant=row.variant, case=case, **wanted)
    step = row.direction == STEP  # which the name of the operation then says
    own = [way for way in ways if not way.fault and way.shape == row.at and ("," in way.operation) == step]
    return [us for way in own for us in way.per_process("build", "call 1") if us is not None]


def until(first: Row, row: Row, once: Interval, before: float) -> Interval:
    """Calls until ``row``'s variant has saved what it cost: ``once`` µs less the ``before`` µs of eager's first call.

    Gain a call is the mean of differences in each process. The ends take both intervals at their worst, so that they
    hold at least nine times in ten; :data:`NEVER` where a call saves nothing.
    """
    pairs = zip(first.medians_us, row.medians_us, strict=False)
    saved = intervals.mean([a - b for a, b in pairs if a and b])

    def calls(cost: float, gained: float) -> float:
        return max(0.0, cost - before) / gained if gained > 0 else NEVER

    most = NEVER if absent(once.high) else once.high
    fewest, least = (once.value if absent(once.low) else once.low), (0.0 if absent(saved.low) else saved.low)
    low = calls(fewest, saved.value if absent(saved.high) else saved.high)
    found = Interval(calls(once.value, saved.value), low, calls(most, least), min(once.n, saved.n))
    return replace(found, vetoed=first.over(row).vetoed)


def curves(data: Evidence, first: Row) -> list[Curve]:
    """What eager (``first``, by the clock that a caller waits by) and its compiled forms cost after so many calls.

    Eager's curve is the first; empty when its fresh start was not measured, or nothing beside it.
    """
    start = paid(data, first, "")
    if not start or first.clock != waited(data, first.machine):
        return []
    before = intervals.estimate(start)
    found = [Curve("eager", "eager", first.origin, before, first.time, intervals.NOTHING)]
    for point, row in beside(data, first):
        if row.timed and row.variant != "eager" and not point.mode and row.dtype == first.dtype:
            for case, caches in (("", ""), ("empty", ""), ("disk", ", stored")):
                if own := paid(data, row, case):
                    once = intervals.estimate(own)
                    calls = until(first, row, once, before.value)
                    found.append(Curve(row.variant + caches, row.variant, row.origin, once, row.time, calls))
    return found if len(found) > 1 else []
