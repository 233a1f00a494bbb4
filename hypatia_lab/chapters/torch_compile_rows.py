"""S000's strategy: its points, the rows of the records that are each of them, and the rows of the chapter's figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypatia_lab.formats import absent
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.phrases import clocks, waited
from hypatia_lab.results import Row

EXPERIMENT, TIMES, DEFAULTS = "torch_compile", "compile_time", "library_defaults"
FORWARD, STEP = "forward", "forward_backward"
EXPERIMENTS = (DEFAULTS, EXPERIMENT, TIMES)

MODELS = {"conv_block": "block", "unet": "U-Net"}
"""Operation → what it is called."""

MATHS = {"default": DEFAULTS, "ieee": EXPERIMENT}
"""Arithmetic of float32 that all else is held against → the experiment that has it; the leading one first."""


@dataclass(frozen=True)
class Point:
    """One way of S000's strategy: its number there, what it does, and the rows that are it.

    ``suffix`` follows the model's name in the operation's; ``mode`` is its math, "" for that of what it is held against
    (of 16 bits, ieee); ``by_wall``: only the wall clock shows what it does; ``drawn``: the figure of the points has it.
    """

    number: str
    what: str
    variant: str
    suffix: str = ""
    dtype: str = "float32"
    mode: str = ""
    by_wall: bool = False
    drawn: bool = False


COMPILED = Point("1", "torch.compile", "compile", drawn=True)
AUTOCAST = Point("2", "bfloat16 by autocast", "eager", "_autocast", "bfloat16", drawn=True)
LAST = Point("3", "channels last", "eager_channels_last", drawn=True)
TOGETHER = Point("all", "together, bfloat16", "compile_together", "_autocast", "bfloat16", drawn=True)
POINTS = (
    COMPILED,
    Point("1", "torch.compile, channels last", "compile_channels_last"),
    Point("1", "torch.compile, reduce-overhead", "compile_reduce_overhead", by_wall=True),
    Point("1", "torch.compile, max-autotune", "compile_max_autotune"),
    Point("–", "eager in IEEE float32", "eager", mode="ieee"),
    Point("1", "torch.compile, IEEE float32", "compile", mode="ieee"),
    Point("2", "TF32", "eager", mode="tf32"),
    Point("1, 2", "torch.compile, TF32", "compile", mode="tf32"),
    AUTOCAST,
    Point("2", "float16 by autocast", "eager", "_autocast", "float16"),
    Point("2", "all cast to bfloat16", "eager", "", "bfloat16"),
    Point("2", "all cast to float16", "eager", "", "float16"),
    LAST,
    Point("3", "group_norm, a channel a group", "group_norm"),
    Point("3", "the same, channels last", "group_norm_channels_last"),
    Point("3", "eight groups (another function)", "eager", "_group"),
    Point("3", "GELU by tanh (another function)", "eager", "_tanh"),
    Point("4", "preallocated outputs", "preallocated", drawn=True),
    Point("5", "torch.jit.script", "script", drawn=True),
    Point("all", "together, float32", "compile_together"),
    TOGETHER,
    Point("all", "together, all cast to bfloat16", "compile_together", "", "bfloat16"),
)


def maths(lab: Evidence, machine: str) -> list[str]:
    """The arithmetics of float32 that ``machine`` has recorded, the leading one first.

    On a CPU both are IEEE: it has one, under the name that has all the points.
    """
    eager = {"machine": machine, "variant": "eager", "dtype": "float32"}
    found = [mode for mode, name in MATHS.items() if lab.select(**eager, experiment=name, math=mode)]
    return found if lab.primary(machine) == "graph" else found[-1:]


def views(lab: Evidence, machine: str) -> list[tuple[str, str, str]]:
    """Model, direction and arithmetic of all that is held against eager, in order of the page."""
    own = maths(lab, machine)
    return [(model, direction, mode) for mode in own for direction in (FORWARD, STEP) for model in MODELS]


def named(model: str, direction: str) -> str:
    """What a figure calls a model's pass: ``U-Net``, ``U-Net, training``."""
    return MODELS[model] + ("" if direction == FORWARD else ", training")


def base(lab: Evidence, machine: str, model: str, direction: str, mode: str, clock: str = "") -> Row | None:
    """Eager in float32 by arithmetic ``mode`` and ``clock`` (the primary one), at the first size of the plan.

    None where it has no time.
    """
    wanted: dict[str, Any] = {"operation": model, "direction": direction, "math": mode, "dtype": "float32"}
    wanted |= {"machine": machine, "experiment": MATHS[mode], "clock": clock or lab.primary(machine)}
    found = [row for row in lab.select(variant="eager", **wanted) if row.timed]
    # Of the sizes of the batching table the plan's own is the one that has all the points.
    return max(found, key=lambda row: len(lab.select(shape=row.shape, **wanted)), default=None)


def row_of(lab: Evidence, first: Row, point: Point) -> Row | None:
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
        clock=first.clock,
        variant=point.variant,
    )
    return found[0] if found else None


def beside(lab: Evidence, first: Row) -> list[tuple[Point, Row]]:
    """Every point that was asked for beside eager's ``first``, with its row."""
    return [(point, row) for point in POINTS if (row := row_of(lab, first, point)) is not None]


# ---------------------------------------------------------------- figures


def _line(first: Row, row: Row, heading: str, name: str) -> Row:
    """``row`` held against ``first``, as a figure is to call it: ``name``, under ``heading``."""
    same = {"dtype": first.dtype, "math": first.math, "direction": FORWARD, "baseline": "eager"}
    return replace(row.against(first), operation=heading, variant=name, **same)


def _shown(rows: list[Row]) -> list[Row]:
    """``rows`` for a figure, which needs one that has a ratio; else none."""
    return rows if any(not absent(row.ratio) for row in rows) else []


def promised(lab: Evidence, machine: str) -> list[Row]:
    """torch.compile against eager in the leading arithmetic: a row a model, by each clock."""
    firsts = [
        base(lab, machine, *view, clock)
        for clock in clocks(lab, machine)
        for view in views(lab, machine)
        if view[-1] == maths(lab, machine)[0]
    ]
    pairs = [(first, row) for first in firsts if first and (row := row_of(lab, first, COMPILED))]
    return _shown([_line(first, row, COMPILED.what, named(first.operation, first.direction)) for first, row in pairs])


def strategy(lab: Evidence, machine: str) -> list[Row]:
    """The points of S000 against eager in the leading arithmetic, by the primary clock, under each model."""
    firsts = [base(lab, machine, *view) for view in views(lab, machine) if view[-1] == maths(lab, machine)[0]]
    return _shown(
        [
            _line(first, row, named(first.operation, first.direction), point.what)
            for first in firsts
            if first
            for point, row in beside(lab, first)
            if point.drawn
        ]
    )


def modes(lab: Evidence, machine: str) -> list[Row]:
    """The compiler's modes on the block as a caller waits for it, under each arithmetic of float32."""
    firsts = [base(lab, machine, "conv_block", FORWARD, mode, waited(lab, machine)) for mode in maths(lab, machine)]
    return _shown(
        [
            _line(first, row, named(first.operation, first.direction), point.what.removeprefix("torch.compile, "))
            for first in firsts
            if first
            for point, row in beside(lab, first)
            if point.number == "1" and not point.mode
        ]
    )
