"""How far off is right, over random shapes: PyTorch's own arithmetic always is, nothing that is visibly off ever.

What a GPU's matrix units do is emulated, so that it is tried on a CPU, too: operands rounded to TF32 or cut off to it,
sums cut off after every eight products, and partial sums of 16 bits. The lab's own baseline runs on these products.
"""

from __future__ import annotations

import contextlib
import math
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import random_workloads
import torch
import torch.nn.functional as functional
from kernel_tensors import DEVICE, accepted

from hypatia_lab import check
from hypatia_lab.operations import mlp
from hypatia_lab.pages import checks
from hypatia_lab.variants import variants
from hypatia_lab.workloads import DTYPES, SPLIT, STEP, UNIT, Workload, tail

BOTH = "forward_backward"
Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A product of matrices (m, k) and (k, n)."""
LIBRARY: Multiply = torch.matmul


# ---------------------------------------------------------------- arithmetic that this machine may not have


def nearest(t: torch.Tensor) -> torch.Tensor:
    return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def cut_off(t: torch.Tensor) -> torch.Tensor:
    return (t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def towards_zero(sums: torch.Tensor) -> torch.Tensor:
    """float64 ``sums`` cut off to float32's 24 bits."""
    rounded = sums.float()
    up = rounded.double().abs() > sums.abs()
    return torch.where(up, torch.nextafter(rounded, torch.zeros_like(rounded)), rounded).double()


def cut_sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    sums = a.new_zeros(len(a), b.shape[1], dtype=torch.float64)
    for left, right in zip(a.double().split(STEP, 1), b.double().split(STEP), strict=True):
        sums = towards_zero(sums + left @ right)
    return sums.float()


def partial_sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Up to three sums, each rounded to the operands' 16 bits before they are added, as cuBLAS may."""
    length = max(64, -(-a.shape[1] // 3))
    pairs = zip(a.float().split(length, 1), b.float().split(length), strict=True)
    return torch.stack([(left @ right).to(a.dtype).float() for left, right in pairs]).sum(0).to(a.dtype)


def short_sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A running sum that is rounded to 16 bits after every eight products, as cuBLAS keeps it at few rows."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(0, a.shape[1], 8):
        total = (total.float() + a[:, k : k + 8].float() @ b[k : k + 8].float()).to(a.dtype)
    return total


def of(rounding: Callable[[torch.Tensor], torch.Tensor], multiply: Multiply = torch.matmul) -> Multiply:
    return lambda a, b: multiply(rounding(a), rounding(b))


def split(rounding: Callable[[torch.Tensor], torch.Tensor], multiply: Multiply = torch.matmul) -> Multiply:
    """Three products of a large and a small term each."""

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        large_a, large_b = rounding(a), rounding(b)
        small_a, small_b = rounding(a - large_a), rounding(b - large_b)
        return multiply(large_a, large_b) + (large_a @ small_b + small_a @ large_b)

    return run


def bfloat16(t: torch.Tensor) -> torch.Tensor:
    return t.bfloat16().float()


class Linear(torch.autograd.Function):
    """x · Wᵀ and its gradients, all by one kind of product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, multiply: Multiply) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.multiply = multiply
        return multiply(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return ctx.multiply(grads[0], weight), ctx.multiply(grads[0].t(), x), None


@contextlib.contextmanager
def multiplying(multiply: Multiply | None) -> Iterator[None]:
    """While the body runs, torch's linear layers and convolutions multiply so, but for the references' float64.

    None: on a CPU by other kernels than it would choose, which are those of processors without short instructions;
    ``LIBRARY``: as ever.
    """
    if multiply is LIBRARY:
        yield
        return
    if multiply is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.13 warns of its own flags' default
            with torch.backends.mkldnn.flags(enabled=False):
                yield
        return
    plain_linear, plain_convolution = functional.linear, functional.conv2d

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.dtype == torch.float64:
            return plain_linear(x, weight, bias)
        y = Linear.apply(x, weight, multiply)
        return y if bias is None else y + bias

    def convolution(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, padding: int = 0
    ) -> torch.Tensor:
        if x.dtype == torch.float64 or not padding:
            return plain_convolution(x, weight, bias, padding=padding)
        batch, _, height, width = x.shape
        rows = functional.unfold(x, 3, padding=1).mT.flatten(0, 1)
        y = Linear.apply(rows, weight.flatten(1), multiply).unflatten(0, (batch, -1)).mT.unflatten(2, (height, width))
        return y if bias is None else y + bias.view(1, -1, 1, 1)

    functional.linear, functional.conv2d = linear, convolution
    try:
        yield
    finally:
        functional.linear, functional.conv2d = plain_linear, plain_convolution


WAYS: dict[tuple[str, str], dict[str, Multiply | None]] = {
    ("float64", "ieee"): {"other kernels": None},
    ("float32", "ieee"): {"other kernels": None},
    ("float32", "tf32"): {
        "nearest": of(nearest),
        "cut off": of(cut_off),
        "nearest, sums cut": of(nearest, cut_sums),
        "cut off, sums cut": of(cut_off, cut_sums),
    },
    ("float32", "tf32x3"): {"split": split(nearest), "sums cut": split(nearest, cut_sums)},
    ("float32", "bf16x3"): {"split": split(bfloat16)},
    ("bfloat16", "ieee"): {"other kernels": None, "partial sums": partial_sums},
    ("float16", "ieee"): {"other kernels": None, "partial sums": partial_sums},
}
"""dtype and math → other ways to compute in it than this machine's own; None as :func:`multiplying` has it."""


# ---------------------------------------------------------------- at random


def drawn(number: int) -> tuple[Workload, Multiply | None]:
    """The workload of a ``number`` and a way to compute it (torch's own product for the library's)."""
    draw = random.Random(number)
    workload = random_workloads.workload(draw, list(WAYS), number)
    mode = workload.math
    ways = [of for of in WAYS[workload.dtype, mode].values() if of or DEVICE == "cpu"]
    own = [] if mode in SPLIT or (mode, DEVICE) == ("tf32", "cpu") else [LIBRARY]
    return workload, draw.choice(ways + own)


def answer(problem: check.Problem, multiply: Multiply | None, variant: str = "eager") -> Any:
    """The answer of the library's form whose products are computed so."""
    workload = problem.workload
    run = variants(workload.operation)[variant].factory(workload, problem.inputs)
    with workload.precision(), multiplying(multiply):
        return run()


def error(problem: check.Problem, multiply: Multiply | None, variant: str = "eager") -> float:
    """How far off it is, which is right."""
    return accepted(check.judge(answer(problem, multiply, variant), problem))


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which mistake a wrong answer looks like takes long to tell."""
    monkeypatch.setattr(check._Part, "faults", lambda part: {})


@pytest.mark.usefixtures("unnamed")
@pytest.mark.parametrize(
    "numbers", [range(12), *(pytest.param(range(n, n + 50), marks=pytest.mark.sweep) for n in range(12, 612, 50))]
)
def test_the_baseline_is_right_in_its_arithmetic_and_what_is_visibly_off_is_not(numbers: range) -> None:
    for number in numbers:
        workload, way = drawn(number)
        problem = check.Problem(workload, DEVICE)
        found = check.judge(answer(problem, way), problem)
        assert found.ok, (workload, way, found.reason)
        kinds = [random_workloads.mistaken] + [random_workloads.planted_kernels] * (DEVICE == "cpu")
        missed = [one for kind in kinds for one in random_workloads.unseen(kind(problem), workload)]
        assert not missed, (workload, missed)


def test_a_third_of_what_is_right_would_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = check.Problem(Workload("linear_relu", (64, 575, 58), "float32", "tf32"), "cpu")
    out, whole = answer(problem, of(cut_off)), problem.workload.tolerance()
    assert check.judge(out, problem).ok
    monkeypatch.setattr(Workload, "tolerance", lambda workload, part="y": whole / 3)
    assert not check.judge(out, problem).ok


# ---------------------------------------------------------------- what was once called wrong


@pytest.mark.usefixtures("unnamed")
@pytest.mark.parametrize(
    "way", ["nearest", *(pytest.param(way, marks=pytest.mark.sweep) for way in ("cut off", "cut off, sums cut"))]
)
def test_masks_that_rounding_decides_are_right_through_all_layers(way: str) -> None:
    problem = check.Problem(Workload("mlp", (1500, 700, 96, 5, 33), "float32", "tf32", BOTH), DEVICE)
    # Masks did flip: TF32 without them is off by less than 1e-2.
    assert error(problem, WAYS["float32", "tf32"][way]) > 2e-2
    for name, found in random_workloads.mistaken(problem):
        assert not found.ok or (found.error or 0.0) < 1e-6, name  # behind the last layer no mask is missing


def test_a_processor_without_bfloat16_is_right_in_it() -> None:
    workload = Workload("conv_block_tanh", (33, 4, 9, 10), "bfloat16", direction=BOTH)
    error(check.Problem(workload, "cpu"), None, "eager_channels_last")


def test_three_products_of_bfloat16_are_right_in_the_block_under_their_own_name_alone() -> None:
    shape = (2, 64, 12, 16)
    ieee, split_up = (check.Problem(Workload("conv_block", shape, math=math), "cpu") for math in ("ieee", "bf16x3"))
    out = answer(ieee, split(bfloat16))
    assert error(ieee, LIBRARY) < ieee.workload.tolerance() < accepted(check.judge(out, split_up))
    assert not check.judge(out, ieee).ok


def long_sums_cut(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return cut_sums(a, b) if a.shape[1] > 4096 else a @ b


@pytest.mark.parametrize(
    ("shape", "mode", "multiply"),
    [
        ((20, 8, 32, 32), "tf32", of(nearest, cut_sums)),
        pytest.param((20, 64, 128, 128), "tf32", of(nearest, long_sums_cut), marks=pytest.mark.sweep),
        pytest.param((20, 64, 128, 128), "tf32", of(cut_off), marks=pytest.mark.sweep),
        pytest.param((20, 64, 128, 128), "bf16x3", split(bfloat16), marks=pytest.mark.sweep),
    ],
)
def test_sums_over_all_pixels_of_a_batch_are_right(shape: tuple[int, ...], mode: str, multiply: Multiply) -> None:
    error(check.Problem(Workload("conv_block", shape, "float32", mode, BOTH), "cpu"), multiply)


@pytest.mark.parametrize("depth", [1024, 4096, 16384])
def test_sums_that_a_matrix_unit_cuts_off_grow_with_their_depth_and_so_does_what_is_right(depth: int) -> None:
    problem = check.Problem(Workload("matmul", (32, depth, 32), "float32", "tf32x3"), "cpu")
    found = accepted(check.judge(split(nearest, cut_sums)(problem.inputs["a"], problem.inputs["b"]), problem))
    assert found > 3e-9 * depth  # a random walk to nearest is at a tenth of it, and grows as the root
    assert found > problem.workload.tolerance() / 5


@pytest.mark.parametrize("direction", ["forward", BOTH])
def test_sums_in_16_bits_are_right_where_they_are_the_librarys_own(direction: str) -> None:
    work = Workload("linear_relu", (7, 2718, 57), "bfloat16", direction=direction)
    problem = check.Problem(work, "cpu")
    run = variants("linear_relu")["eager"].factory(work, problem.inputs)
    with multiplying(short_sums):
        out = run()
        # On an H100 cuBLAS is off by 2.3e-2 at this shape, without the ReLU.
        assert accepted(check.judge(out, problem)) > work.tolerance()
        # The bias, or the last term of each sum, is 2% of this answer, and so are the sums' own errors.
        missed = {name: found.error for name, found in random_workloads.mistaken(problem) if found.ok}
        assert all(error is not None and error <= work.tolerance() for error in missed.values()), missed
        x, weight, bias = (problem.inputs[name] for name in ("x", "weight", "bias"))
        for wrong in (short_sums(x, weight.t()), short_sums(x[:, :-1], weight[:, :-1].t()) + bias):
            assert check._judge(wrong.relu(), check._Part(problem, 0, problem.reference()), "").reason
    problem = check.Problem(work, "cpu")
    assert check.judge(out, problem).reason.removeprefix("y: ").startswith("wrong values")


def test_a_library_that_is_wrong_excuses_nothing() -> None:
    problem = check.Problem(Workload("linear_relu", (8, 512, 57), "bfloat16"), "cpu")
    run = variants("linear_relu")["eager"].factory(problem.workload, problem.inputs)
    for factor in (0.5, 0.0):
        with multiplying(lambda a, b, factor=factor: factor * (a @ b)):
            assert not check.judge(run(), problem).ok
            problem.forget()


def test_a_library_that_forgets_the_bias_excuses_nobody_however_far_off_its_short_sums_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = check.Problem(Workload("linear_relu", (7, 2718, 57), "bfloat16"), "cpu")
    run = variants("linear_relu")["eager"].factory(problem.workload, problem.inputs)
    with multiplying(short_sums), monkeypatch.context() as patch:
        whole = functional.linear
        patch.setattr(functional, "linear", lambda x, w, b=None: whole(x, w, b if x.dtype == torch.float64 else None))
        found = check.judge(run(), problem)
    assert found.reason.startswith("wrong values")
    assert found.error is not None
    assert found.error < problem.workload.tolerance(short_sums=True) / 2  # so much its sums alone could explain


# ---------------------------------------------------------------- its parts


def test_the_unit_roundoff_is_half_of_what_torch_calls_eps() -> None:
    assert {dtype: torch.finfo(getattr(torch, dtype)).eps / 2 for dtype in DTYPES} == UNIT


def test_the_page_tells_what_is_right_at_typical_sizes() -> None:
    table = checks.bounds()
    assert (table["float32"].astype(float) < table["TF32"].astype(float)).all()
    assert (table["float16"].astype(float) < table["bfloat16"].astype(float)).all()
    first = table.iloc[0]
    assert float(first["float32"]) == pytest.approx(2 * 2**-24 * (1 + 784**0.5), rel=1e-2)


def test_the_largest_of_many_normal_errors_keeps_within_the_tail() -> None:
    errors = torch.randn(2000, 1000, generator=torch.Generator().manual_seed(0)).abs()
    assert 2.5 < float(errors.amax(1).min()) < float(errors.amax(1).max()) < tail(1000) < 7
    assert 2 * math.exp(-(tail(1) ** 2) / 2) == pytest.approx(1e-6)
    assert tail(10**8) ** 2 - tail(1) ** 2 == pytest.approx(2 * math.log(10**8))


def test_a_mask_jumps_by_what_it_lets_through() -> None:
    inputs = Workload("mlp", (3, 4, 5, 1, 2), "float64", direction=BOTH).inputs("cpu")
    inputs["bias1"][2] -= functional.linear(inputs["x"], inputs["weight1"], inputs["bias1"])[0, 2]
    step = torch.eye(5, dtype=torch.float64)[2] * 1e-9
    sides = [mlp.gradient_reference(inputs | {"bias1": inputs["bias1"] + bias}) for bias in (step, -step)]
    jumps = mlp.jumps(inputs, 1e-6)
    names = ["y", *(f"grad_{name}" for name in inputs if name != "grad")]
    assert set(jumps) == set(names[1:])
    for name, one, other in zip(names, *sides, strict=True):
        if name != "y":
            torch.testing.assert_close((one - other).abs(), jumps[name], rtol=1e-6, atol=1e-7)
    assert bool(jumps["grad_weight1"][2].all())
    assert not jumps["grad_weight1"][1].any()


def test_in_ieee_arithmetic_no_mask_is_near_enough_to_jump() -> None:
    for dtype in DTYPES:
        problem = check.Problem(Workload("mlp", (64, 30, 40, 3, 10), dtype, direction=BOTH), "cpu")
        for number in (0, 1):
            problem.draw(number)
            assert not problem.jumps()
