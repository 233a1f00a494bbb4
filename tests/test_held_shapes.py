"""Shapes that nobody chose: every variant is right at them, and no mistake passes.

Where variants are checked one by one, shapes are those that their kernels were written for. Here they are drawn, half
of them such as our own kernels take. On a GPU ``HYPATIA_EXAMPLES`` says how many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest
import random_workloads
import torch
from random_workloads import size

from hypatia_lab import check
from hypatia_lab.machine import choose_device
from hypatia_lab.variants import Variant, load, variants
from hypatia_lab.workloads import DIRECTIONS, DTYPES, Workload, operations

DEVICE = choose_device("auto")
MOST_FLOPS = {"cpu": 2e8, "cuda": 3e11}[DEVICE]
"""Of a workload. A CPU is here for what the tests say, not for what a kernel does."""
MOST_NAIVE_FLOPS = 5e9
"""Of what one thread sums up alone."""
EXAMPLES = int(os.environ.get("HYPATIA_EXAMPLES", {"cpu": "24", "cuda": "60"}[DEVICE]))
IN_SWEEP, AT_ONCE = 300, 4
A_FAMILY = int(os.environ.get("HYPATIA_SHAPES", "1000"))
A_PART = max(1, A_FAMILY // 20)
"""Shapes of each family of kernels, and how many of them a test takes."""
KINDS = [(dtype, math) for dtype in DTYPES for math in ("ieee", *(("tf32",) if dtype == "float32" else ()))]
WIDTHS = (16, 32, 64, 128, 256)

load()


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which mistake a wrong answer looks like takes long to tell; whether it is wrong is told as ever."""

    def told(out: torch.Tensor, part: check._Part, error: float, bad: torch.Tensor) -> str:
        return f"wrong values: error {error:.1e}, at most {part.share:.1e} is right"

    monkeypatch.setattr(check, "_diagnose", told)


FAMILIES = {
    f"{operation} {direction}": (operation, direction)
    for operation in ("linear_relu", "conv_block", "matmul", "mlp", "mlp2", "mlp3", "diffraction", "linear_relu_layout")
    for direction in (DIRECTIONS if operation in ("linear_relu", "conv_block") else ("forward",))
}
"""By name, what kernels of the lab's compute."""


def of_family(draw: random.Random, family: str, seed: int) -> Workload:
    """A workload of ``family``, of a size that its kernels may or may not take, in any dtype and math."""
    operation, direction = FAMILIES[family]
    batch, small = draw.choice(random_workloads.BATCHES), draw.choice((1, 16, 64))

    def near(least: int, most: int) -> int:
        return least * round(size(draw, least, most) / least)

    shapes: dict[str, Callable[[], tuple[int, ...]]] = {
        "linear_relu": lambda: (size(draw, 1, 2000), near(draw.choice((1, 8, 64)), 2000), near(small, 2000)),
        "matmul": lambda: (size(draw, 1, 2000), near(draw.choice((1, 8, 64)), 2000), near(small, 2000)),
        "linear_relu_layout": lambda: (size(draw, 8, 600), size(draw, 8, 600), size(draw, 8, 600)),
        "conv_block": lambda: (batch, draw.choice((64, size(draw, 3, 128))), size(draw, 6, 140), size(draw, 6, 140)),
        "mlp": lambda: (size(draw, 1, 2000), near(8, 300), near(16, 512), draw.randint(1, 5), near(8, 128)),
        "mlp2": lambda: (size(draw, 1, 5000), draw.choice((*WIDTHS, near(16, 512), size(draw, 16, 512)))),
        "mlp3": lambda: (size(draw, 1, 5000), draw.choice((*WIDTHS, near(16, 512), size(draw, 16, 512)))),
        "diffraction": lambda: (size(draw, 8, 1200), size(draw, 8, 1200)),
    }
    dtype, math = draw.choice([(dtype, math) for dtype in DTYPES for math in operations()[operation].maths(dtype)])
    return Workload(operation, shapes[operation](), dtype, math, direction, seed=seed)


def drawn(number: int) -> Workload:
    """The workload of a ``number``: the first that is small enough."""
    draw = random.Random(f"held {number}")
    while True:
        small = draw.random() < 0.5
        family = draw.choice(list(FAMILIES))
        found = random_workloads.workload(draw, KINDS, number) if small else of_family(draw, family, number)
        if found.flops <= MOST_FLOPS:
            return found


def able(workload: Workload) -> Iterator[tuple[str, Variant]]:
    """The variants that compute ``workload`` here without torch.compile."""
    for name, variant in variants(workload.operation).items():
        if variant.compiles or variant.needs(workload, DEVICE):
            continue
        if name == "eager_direct":
            continue  # a document's ill-conditioned formula, wrong in float32 and meant to be found so
        if name == "eager_channels_last" and workload.backward and workload.shape[0] == 1:
            continue  # PyTorch 2.13 reads the gradient of one image as if it did not lie channels last
        if name.startswith("naive") and workload.flops > MOST_NAIVE_FLOPS:
            continue
        yield name, variant


# ---------------------------------------------------------------- at random


def right(problem: check.Problem, those: Iterator[tuple[str, Variant]]) -> None:
    """Fails unless the check calls ``those`` variants right."""
    for name, variant in those:
        run = variant.factory(problem.workload, problem.inputs)
        found = check.check(run, problem, place="cpu" if variant.host else "")
        assert found.ok, (problem.workload, name, found.reason)


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(range(n, n + AT_ONCE), marks=() if n < EXAMPLES else pytest.mark.sweep, id=f"{n}")
        for n in range(0, max(EXAMPLES, IN_SWEEP), AT_ONCE)
    ],
)
def test_all_are_right_at_shapes_that_nobody_chose_and_no_mistake_is(numbers: range) -> None:
    for number in numbers:
        workload = drawn(number)
        with workload.precision():
            problem = check.Problem(workload, DEVICE)
            right(problem, able(workload))
            if workload.operation in random_workloads.OPERATIONS:
                mistakes = random_workloads.mistaken(problem), random_workloads.planted_kernels(problem)
                missed = [one for found in mistakes for one in random_workloads.unseen(found, workload)]
                assert not missed, (number, workload, missed)


@pytest.mark.cuda
@pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU")
@pytest.mark.parametrize(
    ("operation", "shape"),
    [("linear_relu", (8, 7349, 10)), ("linear_relu_layout", (11, 546, 155)), ("linear_relu_layout", (7, 3270, 30))],
)
def test_sums_that_the_library_keeps_in_16_bits_are_right(operation: str, shape: tuple[int, ...]) -> None:
    problem = check.Problem(Workload(operation, shape, "bfloat16"), DEVICE)
    right(problem, able(problem.workload))


def ours(workload: Workload) -> Iterator[tuple[str, Variant]]:
    """What the lab wrote of :func:`able`; a choice of the dispatcher's is one of them, an e-graph is made of them."""
    for name, variant in able(workload):
        if variant.origin != "peer" and "dispatched" not in variant.tags and not name.startswith("egraph"):
            yield name, variant


def taken(family: str, number: int) -> Workload:
    """The first of that number that is small enough and that something of :func:`ours` computes."""
    draw = random.Random(f"{family} {number}")
    while True:
        workload = of_family(draw, family, number)
        if workload.flops <= MOST_FLOPS and any(ours(workload)):
            return workload


@pytest.mark.cuda
@pytest.mark.sweep
@pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU")
@pytest.mark.parametrize("first", range(0, A_FAMILY, A_PART))
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_right_at_a_thousand_shapes(family: str, first: int) -> None:
    for number in range(first, min(first + A_PART, A_FAMILY)):
        workload = taken(family, number)
        with workload.precision():
            right(check.Problem(workload, DEVICE), ours(workload))
