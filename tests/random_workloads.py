"""Workloads drawn at random, and which well-known mistakes in one would pass unseen: what tests of the check share."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from hypatia_lab import check, planted
from hypatia_lab.workloads import DIRECTIONS, SPLIT, Workload, operations

BATCHES = (1, 1, 2, 3, 4, 5, 7, 8, 11, 16, 20)

OPERATIONS = [
    *("linear_relu", "mlp", "mlp2", "mlp3", "conv_block", "conv_block_tanh", "conv_block_autocast"),
    *("unet", "unet_group", "unet_autocast", "norm_chain", "matmul"),
]

VISIBLE = {"float64": 1e-9, "float32": 1e-4, "tf32": 3e-2, **dict.fromkeys(SPLIT, 1e-3), "float16": 3e-2}
"""dtype, or arithmetic other than ieee → error that is never passed; of bfloat16, whose roundoff is eight times
float16's."""


def size(draw: random.Random, least: int, most: int) -> int:
    """Every magnitude as likely."""
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))


def workload(draw: random.Random, kinds: Sequence[tuple[str, str]], seed: int) -> Workload:
    """Of odd sizes and small batches, in one of the ``kinds`` (dtype, math)."""
    operation, batch = draw.choice(OPERATIONS), draw.choice(BATCHES)

    def extent(least: int, most: int) -> int:
        return size(draw, least, most)

    shapes: dict[str, Callable[[], tuple[int, ...]]] = {
        "linear_relu": lambda: (batch, extent(1, 900), extent(1, 400)),
        "matmul": lambda: (extent(1, 100), extent(1, 2000), extent(1, 300)),
        "mlp": lambda: (16 * batch, extent(2, 300), extent(16, 100), draw.randint(1, 5), extent(2, 40)),
        "unet": lambda: (batch, extent(4, 9), extent(20, 40), extent(20, 40)),  # fewer pixels are nearly constant
        "conv_block": lambda: (batch, extent(1, 12), extent(6, 40), extent(6, 40)),
        "norm_chain": lambda: (batch, extent(1, 12), extent(6, 40), extent(6, 40)),
    }
    name = next((name for name in shapes if operation == name or operation.startswith(f"{name}_")), "")
    shape = shapes[name]() if name else (4 * batch, extent(8, 128))
    short = [("bfloat16", "ieee"), ("float16", "ieee")]
    dtype, mode = draw.choice(short if operation.endswith("autocast") else list(kinds))
    direction = draw.choice(DIRECTIONS)
    if operations()[operation].backward is None:
        direction = "forward"
    return Workload(operation, shape, dtype, mode, direction, seed=seed)


def mistaken(problem: check.Problem) -> Iterator[tuple[str, check.Check]]:
    """By part and name, what the check says of well-known mistakes, rounded to the dtype and otherwise exact."""
    workload = problem.workload
    mistakes = {"y": workload.spec.faults(problem.inputs)}
    mistakes |= workload.backward.faults(problem.inputs) if workload.backward else {}
    for number, name in enumerate(workload.parts):
        part = check._Part(problem, number, problem.references()[number])
        for mistake, wrong in mistakes.get(name, {}).items():
            out = wrong.to(getattr(torch, workload.part_dtype(name)))
            yield f"{name}: {mistake}", check._judge(out, part, "")


def planted_kernels(problem: check.Problem) -> Iterator[tuple[str, check.Check]]:
    """By name, what the check says of kernels that were written with a mistake."""
    workload = problem.workload
    for kernel in planted.KERNELS:
        if (kernel.workload.operation, kernel.workload.direction) == (workload.operation, workload.direction):
            with contextlib.suppress(RuntimeError):  # torch refuses what does not fit, such as a transposed weight
                yield kernel.mistake, check.check(kernel.build(problem.inputs), problem)


def unseen(found: Iterable[tuple[str, check.Check]], workload: Workload) -> Iterator[tuple[str, float | None]]:
    """Name and error of those mistakes that passed although they are visible."""
    kind = workload.dtype if workload.arithmetic == "ieee" else workload.arithmetic
    visible = VISIBLE.get(kind, 8 * VISIBLE["float16"])
    if kind == "tf32" and workload.operation == "mlp" and workload.backward:
        visible = 1.0  # so much may the masks that rounding decides change
    for name, one in found:
        if one.ok and not (one.error is not None and one.error <= visible):
            yield name, one.error
