"""The seven questions of the page of decisions: each with its rule, and with what every machine measured."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any, NamedTuple

from hypatia_lab import formats
from hypatia_lab.figures.break_even import calls_text
from hypatia_lab.formats import MISSING
from hypatia_lab.pages import by_machine, compile_points, decisions, readings
from hypatia_lab.pages.beside import error
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.tables import frame, html_column

READ = (*compile_points.MATHS.values(), "compile_time")
"""Experiments behind the last question, beside those of :data:`decisions.READ`."""
WIDTHS = (64, 128, 256)


def launching(data: Evidence, machine: str) -> str:
    """How many eager calls take more than twice the time of their kernels; empty where none was timed both ways."""
    factors = [factor for _, factor in decisions.launched(data, machine)]
    return f"{sum(one.above(2) for one in factors)} of {len(factors)}" if factors else ""


def binding(data: Evidence, machine: str) -> str:
    """The border between memory and arithmetic, in operations per byte, for each arithmetic that was measured."""
    border = {name.removesuffix("/ieee"): value for name, value in decisions.balance(data, machine).items()}
    names = ("float32", "float32/tf32", "bfloat16")
    return ", ".join(f"{name} {formats.spoken(border[name])}" for name in names if name in border)


def fusing(data: Evidence, machine: str) -> str:
    """The median gain of the quickest fused form, left and right of the border."""
    return "; ".join(f"{line['where']}: {line['median']}" for line in decisions.side_lines(data, machine))


def layers(data: Evidence, machine: str) -> str:
    """The gain of three layers in one kernel, by width."""
    found = []
    for width in WIDTHS:
        rows = data.timed(machine, experiment="fused_mlp", operation="mlp3", shape=f"65536x{width}", dtype="bfloat16")
        own = readings.quickest(row for row in rows if row.origin == "own")
        if own and own.speed.n and not own.speed.doubt:
            found.append(f"width {width}: {formats.spoken(own.ratio)}×")
    return ", ".join(found)


def library(data: Evidence, machine: str) -> str:
    """How often the quickest kernel of our own is ahead of its best peer, by kind of contest."""
    lines = decisions.standing(data, machine)
    return "; ".join(f"{line['where']}: {line['faster']} of {line['workloads']}" for line in lines)


def digits(data: Evidence, machine: str) -> str:
    """Speed and error of the quickest product of split numbers at the largest size, over those of float32."""
    rows = data.timed(machine, experiment="tensor_cores", operation="linear_relu", direction="forward", math="ieee")
    rows = [row for row in rows if row.dtype == "float32" and decisions.splits(row) and row.speed.n]
    if not rows:
        return ""
    best = max(rows, key=lambda row: (row.flops, row.ratio))
    times = formats.number(error(data, best, variant="eager"))
    return f"{formats.spoken(best.ratio)}× the speed, {times}× the error, {best.at}"


def compiling(data: Evidence, machine: str) -> str:
    """After how many calls a compiled U-Net has paid for its compiling, with nothing stored."""
    for first in compile_points.leading(data, machine, readings.waited(data, machine)):
        for curve in compile_points.curves(data, first):
            if compile_points.named(first) == "U-Net" and curve.name == "compile":
                return calls_text(curve.calls)
    return ""


class Question(NamedTuple):
    """What to ask, where it is answered, the rule, what a machine's figures are of, and how they are found."""

    ask: str
    link: str
    rule: str
    shown: str
    found: Callable[[Evidence, str], str]


QUESTIONS = (
    Question(
        "Does the device wait for the host?",
        "#is-it-the-kernel-at-all",
        "Replay the call as a CUDA graph. If that is much quicker, launch less before you write a kernel.",
        "eager calls that take significantly more than twice their kernels' time",
        launching,
    ),
    Question(
        "What binds the call: bytes or operations?",
        "#where-does-fusing-pay",
        "Divide its operations by the bytes of its inputs and outputs. Below the machine's border memory binds: move "
        "fewer bytes. Above it arithmetic binds: compute with fewer digits.",
        "the border, operations per byte",
        binding,
    ),
    Question(
        "Does fusing pay?",
        "#where-does-fusing-pay",
        "Yes where memory binds, and mostly up to ten times above the border. Farther above it mostly a few per cent.",
        "median gain over eager",
        fusing,
    ),
    Question(
        "How much fits into one kernel?",
        "16_fused_mlp.html",
        "As many layers as keep their weights on the chip.",
        "three layers in one kernel, gain over eager",
        layers,
    ),
    Question(
        "Is there a library call that is as fast?",
        "#where-is-the-library-unbeaten",
        "Look for its fused call first, and time it beside your kernel, also at shapes that yours was not tuned for.",
        "workloads at which our kernel is ahead of its best peer",
        library,
    ),
    Question(
        "How many digits are needed?",
        "14_tensor_cores.html",
        "Where arithmetic binds, fewer digits gain most. Split products give float32's digits on tensor cores at tuned "
        "shapes; compare their errors.",
        "split products against float32 products, at the largest tuned size",
        digits,
    ),
    Question(
        "Does compiling pay for itself?",
        "06_torch_compile.html",
        "Divide what compiling takes by what it saves a call: that is how many calls it takes.",
        "calls of a U-Net until torch.compile has paid for itself, its caches empty",
        compiling,
    ),
)


def table(data: Evidence) -> Any:
    """A line a question (pandas): the question with its rule, what the figures are of, and a column a machine."""
    lines = []
    for one in QUESTIONS:
        line = {"figures": one.shown}
        for name, called in by_machine.called(data).items():
            line[called] = one.found(data, name) or MISSING
        lines.append(line)
    made = frame(lines)
    asked = (
        f'<a href="{one.link}">{html.escape(one.ask)}</a><span class="lab-rule">{html.escape(one.rule)}</span>'
        for one in QUESTIONS
    )
    made.insert(0, "question and rule", html_column(asked))
    return made
