"""S000's strategy: its points, and the rows of the records that are each of them and what it is held against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.phrases import FLOAT32
from hypatia_lab.results import Row

EXPERIMENT, TIMES, DEFAULTS = "torch_compile", "compile_time", "library_defaults"
FORWARD, STEP = "forward", "forward_backward"
EXPERIMENTS = (DEFAULTS, EXPERIMENT, TIMES)


MODELS = {"conv_block": "the block", "unet": "the U-Net"}
"""Operation → what it is called in a sentence."""


MATHS = {"default": DEFAULTS, "ieee": EXPERIMENT}
"""Arithmetic of float32 that all else is held against → the experiment that has it; the leading one first."""


@dataclass(frozen=True)
class Point:
    """One way of S000's strategy: its number there, what it does, and the rows that are it.

    ``suffix`` follows the model's name in the operation's; ``mode`` is its math, "" for that of what it is held against
    (of 16 bits, ieee); ``by_wall``: only the wall clock shows what it does.
    """

    number: str
    what: str
    variant: str
    suffix: str = ""
    dtype: str = "float32"
    mode: str = ""
    by_wall: bool = False


OTHER = "(another function)"


POINTS = (
    Point("1", "torch.compile", "compile"),
    Point("1", "torch.compile, channels last", "compile_channels_last"),
    Point("1", "torch.compile, reduce-overhead", "compile_reduce_overhead", by_wall=True),
    Point("1", "torch.compile, max-autotune", "compile_max_autotune"),
    Point("–", "eager in IEEE float32", "eager", mode="ieee"),
    Point("1", "torch.compile, IEEE float32", "compile", mode="ieee"),
    Point("2", "TF32", "eager", mode="tf32"),
    Point("1, 2", "torch.compile, TF32", "compile", mode="tf32"),
    Point("2", "bfloat16 by autocast", "eager", "_autocast", "bfloat16"),
    Point("2", "float16 by autocast", "eager", "_autocast", "float16"),
    Point("2", "all cast to bfloat16", "eager", "", "bfloat16"),
    Point("2", "all cast to float16", "eager", "", "float16"),
    Point("3", "channels last", "eager_channels_last"),
    Point("3", "group_norm, a channel a group", "group_norm"),
    Point("3", "the same, channels last", "group_norm_channels_last"),
    Point("3", f"eight groups {OTHER}", "eager", "_group"),
    Point("3", f"GELU by tanh {OTHER}", "eager", "_tanh"),
    Point("4", "preallocated outputs", "preallocated"),
    Point("5", "torch.jit.script", "script"),
    Point("all", "together, float32", "compile_together"),
    Point("all", "together, bfloat16 by autocast", "compile_together", "_autocast", "bfloat16"),
    Point("all", "together, all cast to bfloat16", "compile_together", "", "bfloat16"),
)


def select(lab: Evidence, machine: str, **wanted: Any) -> list[Row]:
    """Rows of the experiment on ``machine`` whose columns equal ``wanted``."""
    return lab.select(machine=machine, experiment=EXPERIMENT, **wanted)


def maths(lab: Evidence, machine: str) -> list[str]:
    """The arithmetics of float32 that ``machine`` has recorded, the leading one first.

    On a CPU both are IEEE: it has one, under the name that has all the points.
    """
    eager = {"machine": machine, "variant": "eager", "dtype": "float32"}
    found = [mode for mode, name in MATHS.items() if lab.select(**eager, experiment=name, math=mode)]
    return found if lab.primary(machine) == "graph" else found[-1:]


def views(lab: Evidence, machine: str) -> list[tuple[str, str, str]]:
    """Model, direction and arithmetic of everything that is drawn or listed once for each, in order of the page."""
    own = maths(lab, machine)
    return [(model, direction, mode) for direction in (FORWARD, STEP) for model in MODELS for mode in own]


def named(model: str, direction: str, mode: str) -> str:
    """One of :func:`views` as a caption calls it."""
    return MODELS[model] + ("" if direction == FORWARD else ", a training step") + f", against {FLOAT32[mode]}"


def base(lab: Evidence, machine: str, model: str, direction: str, mode: str, clock: str = "") -> Row | None:
    """Eager in float32 by arithmetic ``mode`` and ``clock`` (the primary one), at the first size of the plan.

    None where it has no time.
    """
    own = {"experiment": MATHS[mode], "operation": model, "math": mode, "direction": direction}
    found = lab.select(machine=machine, dtype="float32", clock=clock or lab.primary(machine), variant="eager", **own)
    # Of the sizes of the batching table the plan's own is the one that has all the points.
    return max((row for row in found if row.timed), key=lambda row: len(_same_work(lab, row)), default=None)


def _same_work(lab: Evidence, row: Row) -> list[Row]:
    keys = ("machine", "experiment", "operation", "shape", "direction", "clock", "dtype", "math")
    return lab.select(**{key: getattr(row, key) for key in keys})


def row_of(lab: Evidence, first: Row, point: Point, clock: str = "") -> Row | None:
    """The row of ``point`` beside eager's ``first``, also one without a time; None where nobody asked for it."""
    if point.mode == first.math:  # of what it is held against the points without a math speak
        return None
    found = lab.select(
        machine=first.machine,
        experiment=first.experiment,
        operation=first.operation + point.suffix,
        shape=first.shape,
        direction=first.direction,
        dtype=point.dtype,
        math=point.mode or (first.math if point.dtype == first.dtype else "ieee"),
        clock=clock or first.clock,
        variant=point.variant,
    )
    return found[0] if found else None


def gain(first: Row, row: Row) -> Interval:
    """How many times as fast as eager in float32."""
    return first.over(row)


def beside(lab: Evidence, first: Row, clock: str = "") -> list[tuple[Point, Row]]:
    """Every point that was asked for beside eager's ``first``, with its row."""
    pairs = [(point, row_of(lab, first, point, clock)) for point in POINTS]
    return [(point, row) for point, row in pairs if row is not None]


def drawn(
    lab: Evidence, machine: str, model: str, direction: str, mode: str, clock: str = "", *, replacing: bool = False
) -> list[Row]:
    """Rows for a figure, each with its ratio against eager in float32 by arithmetic ``mode`` in place of its own.

    ``replacing``: without those that compute another function.
    """
    first = base(lab, machine, model, direction, mode, clock)
    if first is None:
        return []
    rows = []
    for point, row in beside(lab, first):
        if not row.timed or (replacing and OTHER in point.what):
            continue
        rows.append(replace(row.against(first), baseline=f"eager ({mode})"))
    return rows
