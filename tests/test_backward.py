"""Forward and backward: answers of several tensors judged part by part, autograd formulas, and the fused backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import ceilings, run_line
from torch.utils._python_dispatch import TorchDispatchMode

from hypatia_lab import records, results
from hypatia_lab.bench import composer
from hypatia_lab.check import Problem, check, judge
from hypatia_lab.experiments import Experiment, Group
from hypatia_lab.figures import language
from hypatia_lab.machine import choose_device
from hypatia_lab.operations import linear_relu, linear_relu_backward
from hypatia_lab.planted import both_passes, gradients
from hypatia_lab.variants import variants
from hypatia_lab.workloads import MATH, Workload, WorkloadError

DEVICE = choose_device("auto")
BOTH = "forward_backward"
PARTS = ("y", "grad_x", "grad_weight", "grad_bias")
SQUARE = Workload("linear_relu", (96, 128, 128), direction=BOTH)
"""Square weight, so that a transposed one fits."""
Inputs = dict[str, torch.Tensor]


# ---------------------------------------------------------------- the direction


@pytest.mark.parametrize(("operation", "shape"), [("linear", (2, 3, 4)), ("relu", (2, 3)), ("copy", (5,))])
def test_an_operation_without_a_backward_refuses_the_direction(operation: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(WorkloadError, match=f"'forward_backward' does not go with {operation}: it has no backward"):
        Workload(operation, shape, direction=BOTH)
    with pytest.raises(WorkloadError, match="unknown direction 'backward'; known: forward, forward_backward"):
        Workload(operation, shape, direction="backward")


def test_a_workload_of_both_passes_counts_both() -> None:
    forward, both = (
        Workload("linear_relu", (6, 4, 10), "bfloat16"),
        Workload("linear_relu", (6, 4, 10), "bfloat16", direction=BOTH),
    )
    assert (forward.parts, both.parts) == (("y",), PARTS)
    assert both.flops == 3 * forward.flops == 3 * 2 * 6 * 4 * 10
    read = 6 * 4 + 10 * 4 + 10 + 6 * 10  # x, weight, bias, grad; as much is written
    assert both.traffic == 2 * 2 * read
    assert "grad" not in forward.inputs("cpu")
    assert both.inputs("cpu")["grad"].shape == (6, 10)
    for name, tensor in forward.inputs("cpu").items():
        assert torch.equal(tensor, both.inputs("cpu")[name])


def test_each_part_has_the_tolerance_of_its_own_sum() -> None:
    both = Workload("linear_relu", (400, 100, 900), direction=BOTH)
    unit = 2.0**-24
    found = [both.tolerance(part) for part in PARTS]
    assert found == pytest.approx([2 * unit * (1 + depth) for depth in (10, 30, 20, 20)])
    assert both.tolerance() == Workload("linear_relu", (400, 100, 900)).tolerance() == found[0]
    with pytest.raises(KeyError):
        Workload("linear_relu", (400, 100, 900)).tolerance("grad_x")


# ---------------------------------------------------------------- the check, part by part


@pytest.mark.parametrize("number", range(4))
def test_a_part_of_the_call_before_is_stale(number: int) -> None:
    problem = Problem(SQUARE, "cpu")
    kept: list[torch.Tensor] = []

    def run() -> tuple[torch.Tensor, ...]:
        answer = list(both_passes(problem.inputs))
        kept.append(answer[number])
        answer[number] = kept[0]
        return tuple(answer)

    assert check(run, problem).reason.startswith(f"{PARTS[number]}: stale output")


@pytest.mark.parametrize("dtype", MATH)
def test_the_error_is_the_worst_parts(dtype: str) -> None:
    problem = Problem(Workload("linear_relu", (96, 128, 128), dtype, direction=BOTH), "cpu")
    answer, references = both_passes(problem.inputs), problem.references()
    found = judge(answer, problem)
    assert found.ok, found.reason
    errors = [float((a.double() - r).norm() / r.norm()) for a, r in zip(answer, references, strict=True)]
    assert found.error == pytest.approx(max(errors))
    assert found.max_error == pytest.approx(
        max(float((a.double() - r).abs().max()) for a, r in zip(answer, references, strict=True))
    )


def test_a_product_of_one_term_may_have_elements_far_above_its_rms() -> None:
    # One row: an element of grad_weight is one product, and the largest carry roundings of their own.
    for draw in range(5):
        problem = Problem(Workload("linear_relu", (1, 500, 700), "bfloat16", direction=BOTH, seed=draw), "cpu")
        assert check(lambda problem=problem: both_passes(problem.inputs), problem).ok


def on_the_edge(dtype: str, offset: float) -> Problem:
    """A problem in which four columns of x·Wᵀ + b are ``offset`` in float64: near 0, rounding decides their side."""
    problem = Problem(Workload("linear_relu", (64, 32, 48), dtype, direction=BOTH), "cpu")
    problem.inputs["weight"][:4] = 0
    problem.inputs["bias"][:4] = offset
    return problem


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offset", [1e-7, -1e-7])
def test_where_rounding_decides_the_mask_is_that_of_the_variants_own_y(dtype: str, offset: float) -> None:
    problem = on_the_edge(dtype, offset)
    i = problem.inputs
    y = both_passes(i)[0]
    other = y.clone()
    other[:, :4] = 0 if offset > 0 else 1e-7  # rounded to the other side
    assert not torch.equal(y > 0, other > 0)
    for own in (y, other):
        found = judge((own, *gradients(i, torch.where(own > 0, i["grad"], 0))), problem)
        assert found.ok, found.reason
    # But y and its gradients must be on one side.
    torn = judge((y, *gradients(i, torch.where(other > 0, i["grad"], 0))), problem)
    assert torn.reason.startswith("grad_")


def test_a_mask_that_no_rounding_excuses_is_rejected() -> None:
    # Far from the edge, a y of small positive numbers does not let gradients through, however right it is as a y.
    problem = on_the_edge("bfloat16", -100.0)
    i = problem.inputs
    y = both_passes(i)[0]
    y[:, :4] = 1e-6
    assert judge((y, *both_passes(i)[1:]), problem).ok
    assert not judge((y, *gradients(i, torch.where(y > 0, i["grad"], 0))), problem).ok


def test_the_gradient_at_exactly_zero_is_zero() -> None:
    problem = on_the_edge("float32", 0.0)
    assert float(problem.references()[3][:4].abs().max()) == 0
    assert judge(both_passes(problem.inputs), problem).ok


# ---------------------------------------------------------------- the variants


def test_the_seeds_and_their_peers_have_both_directions() -> None:
    both = {name for name, one in variants("linear_relu").items() if BOTH in one.directions}
    assert {"eager", "naive", "cublas_relu", "aten", "epilogue", "fused_backward"} <= both


# ---------------------------------------------------------------- the autograd formulas

OWN = ["naive", "cublas_relu", "aten", "epilogue", "fused_backward"]
TWICE = OWN[:-1]
"""Differentiable more than once."""


def operation(name: str) -> Any:
    missing = variants("linear_relu")[name].needs(SQUARE, DEVICE)
    if missing:
        pytest.skip(missing)
    if name == "aten":
        return linear_relu.load_aten()
    operations = torch.ops.hypatia
    return {
        "naive": operations.linear_relu_naive,
        "cublas_relu": operations.linear_relu_cublas,
        "epilogue": operations.linear_relu_epilogue,
        "fused_backward": operations.linear_relu_fused,
    }[name]


def tensors(*batch: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (..., 5), weight (4, 5) and bias (4) that require gradients; nothing is near the ReLU's kink."""
    generator = torch.Generator(DEVICE).manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, generator=generator, dtype=dtype).requires_grad_()

    return normal(*batch, 5), normal(4, 5), normal(4)


@pytest.mark.parametrize(
    ("batch", "biased"),
    [((), True), ((3,), True), ((2, 1, 2), True), ((0,), True), ((3, 0), True), ((), False), ((2, 3), False)],
)
@pytest.mark.parametrize("name", OWN)
def test_gradients_are_those_of_numerical_differentiation(name: str, batch: tuple[int, ...], biased: bool) -> None:
    run, (x, weight, bias) = operation(name), tensors(*batch)
    form, given = (run, (x, weight, bias)) if biased else (lambda x, weight: run(x, weight, None), (x, weight))
    assert form(*given).shape == (*batch, 4)
    assert torch.autograd.gradcheck(form, given)
    if name in TWICE:
        assert torch.autograd.gradgradcheck(form, given)


def test_the_fused_backward_refuses_a_second_derivative() -> None:
    x, weight, bias = tensors(3)
    y = operation("fused_backward")(x, weight, bias)
    (grad_x,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivative only; for a second use hypatia::linear_relu_epil"):
        grad_x.sum().backward()


@pytest.mark.parametrize("name", OWN)
def test_half_precision_and_strided_gradients_agree_with_torch(name: str) -> None:
    run = operation(name)
    for dtype in (torch.bfloat16, torch.float32):
        x, weight, bias = tensors(6, dtype=dtype)
        strided = torch.stack([x.detach(), x.detach()], -1)[..., 0].requires_grad_()
        across = weight.detach().t().contiguous().t().requires_grad_()
        upstream = torch.randn(4, 6, device=DEVICE, dtype=dtype).t()
        expected = torch.autograd.grad(
            torch.relu(torch.nn.functional.linear(x, weight, bias)), (x, weight, bias), upstream
        )
        for given in ((x, weight, bias), (strided, across, bias)):
            found = torch.autograd.grad(run(*given), given, upstream)
            for f, e in zip(found, expected, strict=True):
                assert f.dtype == dtype
                torch.testing.assert_close(f, e, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)
        # The gradient of a sum is one number, expanded.
        assert torch.isfinite(torch.autograd.grad(run(x, weight, bias).sum(), x)[0]).all()


@pytest.mark.parametrize("name", ["naive", "aten", "epilogue", "fused_backward"])
def test_nan_lets_the_gradient_through_as_in_torch(name: str) -> None:
    x, weight, bias = tensors(3)
    with torch.no_grad():
        x[0, 0] = float("nan")
    expected = torch.autograd.grad(torch.relu(torch.nn.functional.linear(x, weight, bias)).sum(), bias)
    torch.testing.assert_close(torch.autograd.grad(operation(name)(x, weight, bias).sum(), bias), expected)


class _Counter(TorchDispatchMode):
    """Counts the matrix products that reach the device."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("needed", "products"), [("x", 1), ("w", 1), ("b", 0), ("xw", 2), ("xwb", 2)])
@pytest.mark.parametrize("name", OWN[:-1])
def test_only_what_is_needed_is_computed(name: str, needed: str, products: int) -> None:
    given = [tensor.requires_grad_(letter in needed) for letter, tensor in zip("xwb", tensors(3), strict=True)]
    y = operation(name)(*given)
    wanted = [tensor for tensor in given if tensor.requires_grad]
    with _Counter() as counter:
        found = torch.autograd.grad(y.sum(), wanted)
    assert counter.products == products
    assert [f.shape for f in found] == [w.shape for w in wanted]


@pytest.mark.parametrize("needed", ["x", "w", "b", "xw", "xb"])
def test_the_fused_backward_computes_only_what_is_needed(needed: str) -> None:
    x, weight, bias = tensors(2, 3)
    y, upstream = (
        operation("fused_backward")(x, weight, bias).detach(),
        torch.ones(2, 3, 4, dtype=x.dtype, device=DEVICE),
    )
    found = linear_relu_backward.linear_relu_gradients(upstream, x, weight, y, "x" in needed, "w" in needed)
    assert [bool(f.numel()) for f in found] == ["x" in needed, "w" in needed, True]
    given = [tensor.requires_grad_(letter in needed) for letter, tensor in zip("xwb", tensors(2, 3), strict=True)]
    wanted = [tensor for tensor in given if tensor.requires_grad]
    expected = torch.autograd.grad(torch.relu(torch.nn.functional.linear(*given)).sum(), wanted)
    torch.testing.assert_close(torch.autograd.grad(operation("fused_backward")(*given).sum(), wanted), expected)


def test_a_misfit_of_the_fused_gradients_is_refused_by_name() -> None:
    x, weight, _ = (tensor.detach() for tensor in tensors(3))
    y = torch.ones(3, 4, dtype=x.dtype, device=DEVICE)
    with pytest.raises(ValueError, match=r"y \[3, 3\] is not of x \[3, 5\] and weight \[4, 5\]"):
        linear_relu_backward.linear_relu_gradients(y, x, weight, y[:, :3])
    with pytest.raises(ValueError, match=r"grad torch.float32 \[3, 4\] is not like y torch.float64"):
        linear_relu_backward.linear_relu_gradients(y.float(), x, weight, y)
    with pytest.raises(ValueError, match="do not fit"):
        operation("epilogue")(x[:, :-1], weight, None)


@pytest.mark.parametrize("name", OWN)
def test_opcheck_passes_with_gradients(name: str) -> None:
    run = operation(name)
    torch.library.opcheck(getattr(run, "default", run), tensors(2, 3))
    torch.library.opcheck(getattr(run, "default", run), (*tensors(3)[:2], None))


def test_opcheck_passes_for_the_fused_gradients() -> None:
    x, weight, _ = (tensor.detach() for tensor in tensors(3))
    y = torch.randn(3, 4, dtype=x.dtype, device=DEVICE)
    torch.library.opcheck(torch.ops.hypatia.linear_relu_gradients.default, (y, x, weight, y.relu()))
    torch.library.opcheck(torch.ops.hypatia.linear_relu_gradients.default, (y, x, weight, y.relu(), False, True))


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_custom_operation_compiles_with_its_backward(name: str) -> None:
    run = operation(name)

    def model(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return run(x * 2, weight, bias) + 1

    given = tensors(6, dtype=torch.float32)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(*given), model(*given))
    found = torch.autograd.grad(compiled(*given).square().sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad(model(*given).square().sum(), given))


def test_an_operation_without_a_formula_has_no_backward_to_fall_back_to() -> None:
    # S002 says of v1 that autograd falls back to a slow backward; torch refuses.
    x = tensors(3)[0]
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        UNDIFFERENTIABLE(x).sum().backward()


@torch.library.custom_op("hypatia_tests::no_formula", mutates_args=())
def no_formula(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


UNDIFFERENTIABLE = torch.ops.hypatia_tests.no_formula

FULL = [False, pytest.param(True, marks=pytest.mark.sweep)]
"""Whether a source goes through all its sizes and dtypes, or some."""

TRITON = """
import torch
from hypatia_lab.kernels.triton import masked_gradient as module
from hypatia_lab.kernels.triton.masked_gradient import Tile, candidates, column_tile, share_tile
from hypatia_lab.kernels.triton.masked_gradient import masked_gradient, masked_gradient_shares
torch.manual_seed(0)
def agrees(grad, y, tile=None):
    z, sums = masked_gradient(grad, y, tile=tile)
    expected = torch.ops.aten.threshold_backward(grad, y, 0)
    assert torch.equal(z, expected), (grad.dtype, grad.shape)
    assert sums.dtype == y.dtype and sums.shape == y.shape[1:]
    close = {"rtol": 8e-3 if y.dtype.itemsize == 2 else 1e-5, "atol": 1e-5}
    torch.testing.assert_close(sums.double(), expected.double().sum(0), **close)
    z, shares = masked_gradient_shares(grad, y, tile=tile)
    assert torch.equal(z, expected), (grad.dtype, grad.shape)
    tile = tile or share_tile(y.shape)
    assert shares.dtype == torch.promote_types(y.dtype, torch.float32)
    assert shares.shape == (tile.programs(y.shape)[1], y.shape[1])
    for share, part in zip(shares, expected.double().split(tile.rows * tile.times), strict=False):
        torch.testing.assert_close(share.double(), part.sum(0), rtol=1e-5, atol=1e-5)
    again = masked_gradient_shares(grad, y, tile=tile)
    assert torch.equal(again[0], z) and torch.equal(again[1], shares)
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16) if FULL else (torch.bfloat16,):
    for rows, columns, tile in (
        (1, 1, None), (7, 127, Tile(16, 32, 4)), (129, 3, Tile(32, 16, 4)), (0, 5, None), (5, 0, None),
        (80, 70, Tile(16, 32, 4, times=2)), (70, 100, None), (70, 200, Tile(64, 128, 8)),
    ):
        agrees(torch.randn(rows, columns).to(dtype), torch.randn(rows, columns).to(dtype).relu(), tile)
    if dtype in (torch.float64, torch.bfloat16):  # long columns in several parts, added up in either type of sum
        module.SPLIT_ROWS, usual = 1024, module.SPLIT_ROWS
        assert column_tile((2100, 3), dtype).programs((2100, 3)) == (1, 3)
        agrees(torch.randn(2100, 3).to(dtype), torch.randn(2100, 3).to(dtype).relu())
        module.SPLIT_ROWS = usual
    y = torch.randn(7, 20).to(dtype).relu()
    wide = torch.randn(20, 40).to(dtype)
    for grad in (wide[:7, :20], wide[:7, ::2], wide[:1, :1].expand(7, 20), wide[:, :7].t()):
        agrees(grad, y)
    y[0, 0] = float("nan")
    assert torch.equal(masked_gradient(grad, y)[0], torch.ops.aten.threshold_backward(grad, y, 0))
# Enough programs, as far as the sizes allow; those that own columns, and are enough, have final sums.
for shape, least in (((1024, 2048), 128), ((512, 1024), 64), ((256, 512), 64)):
    chosen, *others = candidates(shape, torch.bfloat16)
    assert chosen == share_tile(shape) and chosen.programs(shape)[0] * chosen.programs(shape)[1] >= least
    assert chosen not in others and others[-1] == column_tile(shape, torch.bfloat16)
    assert others[-1].programs(shape)[1] == 1
whole = y.int()
for grad, y, name in ((y[:-1], y, "grad"), (y.double(), y, "grad"), (y[0], y[0], "y must"), (whole, whole, "y must")):
    for run in (masked_gradient, masked_gradient_shares):
        try:
            run(grad, y)
        except ValueError as refusal:
            assert str(refusal).startswith(name), refusal
        else:
            raise AssertionError(name)
"""


@pytest.mark.parametrize("full", FULL)
def test_the_triton_kernel_agrees_with_torch_in_the_interpreter(interpreted: Callable[..., str], full: bool) -> None:
    interpreted(f"FULL = {full}\n{TRITON}")


PRODUCTS = """
import torch
from hypatia_lab.operations import linear_relu_backward
from hypatia_lab.kernels.triton.gradient_products import Plan, candidates, config, gradient_products
from hypatia_lab.kernels.triton.linear_relu import Config
torch.manual_seed(0)
def drawn(batch, inner, outer):
    return tuple(torch.randn(*shape).half() for shape in ((batch, outer), (batch, inner), (outer, inner)))
def agrees(z, x, weight, found, needs=(True, True), summed=False):
    # The sum over the batch is a product, too.
    wanted = (z, weight), (z.t(), x), (z.t(), torch.ones(len(z)))
    for part, need, (left, right) in zip(found, (*needs, summed), wanted, strict=True):
        expected = left.double() @ right.double()
        assert part.dtype == z.dtype and part.shape == (expected.shape if need else (0,))
        if need:
            assert float((part.double() - expected).norm()) <= 5e-4 * float(expected.norm()), expected.shape
# Either sum the longer one; tiles of one shape and of two; by descriptors, by masks, and by one of each; in any order.
plans = [
    Plan(Config(32, 32, 16), Config(32, 32, 16)),
    Plan(Config(64, 32, 32, group=2), Config(32, 64, 16, load=False), ahead=2),
    Plan(Config(64, 64, 32), Config(64, 64, 32), ahead=999),
]
for shape in ((7, 69, 75), (1, 1, 1), (65, 127, 130), (96, 80, 104), (104, 80, 72))[:None if FULL else 1]:
    given = drawn(*shape)
    for plan in plans:
        agrees(*given, gradient_products(*given, plan=plan))
    # Shares of one part, of several, and of more than are added up at a time.
    for rows in (shape[0], 40, 4):
        shares = torch.stack([part.float().sum(0) for part in given[0].split(rows)])
        found = gradient_products(*given, shares=shares, plan=plans[2])
        agrees(*given, found, summed=True)
        again = gradient_products(*given, shares=shares, plan=plans[2])
        assert all(torch.equal(*both) for both in zip(found, again, strict=True))
given = drawn(40, 24, 80)
agrees(*given, gradient_products(*given))
for needs in ((True, False), (False, True), (False, False)):
    agrees(*given, gradient_products(*given, needs, plan=plans[1]), needs)
    shares = given[0].float().view(2, 20, 80).sum(1).t().contiguous().t()
    agrees(*given, gradient_products(*given, needs, shares=shares, plan=plans[1]), needs, summed=True)
# Strided matrices, and rows that lie apart.
z, x, weight = given
strided = z.t().contiguous().t(), torch.cat([x, x], 1)[:, :24], torch.stack([weight, weight], -1)[..., 0]
agrees(*given, gradient_products(*strided, plan=plans[0]))
# Sums of nothing are zeros.
for shape in ((0, 5, 3), (3, 5, 0), (3, 0, 5)):
    given = drawn(*shape)
    agrees(*given, gradient_products(*given))
    agrees(*given, gradient_products(*given, shares=given[0].float()), summed=True)
# An infinity stays in its row and column.
z[3, 4], x[5, 6] = float("inf"), float("nan")
found = gradient_products(z, x, weight, shares=z.float(), plan=plans[0])
for part, expected in zip(found, (z @ weight, z.t() @ x, z.sum(0)), strict=True):
    assert torch.equal(part.isfinite(), expected.isfinite())
meta, single = weight.to("meta"), x.float()
refused = (
    ((z[0], x, weight, None), "must be matrices"), ((z, x[:-1], weight, None), "x [39"),
    ((z, x, weight.t(), None), "weight [24"), ((z, x.bfloat16(), weight, None), "x is torch.bfloat16"),
    ((z.float(), single, weight.float(), None), "z is torch.float32"), ((z, x, meta, None), "weight is on meta"),
    ((z, x, weight, z), "shares must be a float32 (parts, 80), it is torch.float16"),
    ((z, x, weight, single), "it is torch.float32 [40, 24]"), ((z, x, weight, z[0].float()), "torch.float32 [80]"),
    ((z, x, weight, z.float().to("meta")), "shares is on meta"),
)
for (*wrong, shares), message in refused:
    try:
        gradient_products(*wrong, shares=shares)
    except ValueError as refusal:
        assert message in str(refusal), refusal
    else:
        raise AssertionError(message)
for wrong in (lambda: candidates((1, 1, 1), torch.float32), lambda: Plan(Config(64, 64, 64), Config(64, 64, 64, 8))):
    try:
        wrong()
    except ValueError as refusal:
        assert "torch.float32 is none of" in str(refusal) or "differ in warps" in str(refusal)
    else:
        raise AssertionError("not refused")
for shape in ((1, 1, 1), (1024, 784, 2048), (8192, 4096, 4096)):
    tried = candidates(shape, torch.float16)
    assert tried[0] == config(shape, torch.float16) and config(shape, torch.float16, dependent=True) in tried
# The operation on top, as a server's GPU takes it; the large sizes stay the library's.
linear_relu_backward._server_gpu = lambda tensor: True
meta = lambda *shape: torch.empty(*shape, dtype=torch.float16, device="meta")
assert linear_relu_backward.size_for_own(meta(2, 512, 784), meta(2048, 784)) == "medium"
assert linear_relu_backward.size_for_own(meta(8192, 4096), meta(4096, 4096)) not in linear_relu_backward.OWN_PRODUCTS
assert linear_relu_backward.size_for_own(meta(8, 8).float(), meta(8, 8).float()) == ""
for batch, needs in ((6, (True, True)), (6, (True, False)), (6, (False, True)), (70, (True, True)), (0, (True, True))):
    grad, x, weight = drawn(batch, 24, 16)
    y = torch.nn.functional.linear(x, weight).relu()
    shaped = tuple(tensor.view(2, batch // 2, tensor.shape[1]) for tensor in (grad, x, y))
    grad_x, *others = linear_relu_backward.linear_relu_gradients(shaped[0], shaped[1], weight, shaped[2], *needs)
    assert not needs[0] or grad_x.shape == shaped[1].shape
    z = torch.ops.aten.threshold_backward(grad, y, 0)
    agrees(z, x, weight, (grad_x.view(x.shape) if needs[0] else grad_x, *others), needs, summed=True)
torch.testing.assert_close(linear_relu_backward.linear_relu_fused(x, weight, None), y, rtol=2e-3, atol=2e-3)
"""


@pytest.mark.parametrize("full", FULL)
def test_both_products_of_one_kernel_agree_in_the_interpreter(interpreted: Callable[..., str], full: bool) -> None:
    interpreted(f"FULL = {full}\n{PRODUCTS}")


# ---------------------------------------------------------------- records and pages


@pytest.mark.slow
def test_both_directions_of_one_workload_are_recorded_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("eager", "epilogue", "compile_max_autotune")
    groups = [Group(Workload("linear_relu", (8, 8, 8), direction=d), names, ("hot",), 0.0) for d in ("forward", BOTH)]
    groups[0] = Group(groups[0].workload, names[:2], ("hot",), 0.0)
    measured = {"tiny": Experiment("tiny", "none", "a test", "linear_relu", lambda *asked: groups)}
    records.write(tmp_path, run_line(experiment="ceilings"), ceilings({"ieee": 1e3}, "hot"))
    monkeypatch.setattr(composer, "EXPERIMENTS", measured)
    monkeypatch.setattr(composer, "PROCESSES", {"quick": 1})
    monkeypatch.setattr(composer, "commit", lambda: ("0" * 40, False))
    record = composer.measure("tiny", machine_name="box", root=tmp_path, progress=False)
    found = {(cell["direction"], cell["variant"]): cell for cell in record.cells}
    assert {key: cell["status"] for key, cell in found.items()} == {
        ("forward", "eager"): "ok",
        ("forward", "epilogue"): "ok",
        (BOTH, "eager"): "ok",
        (BOTH, "epilogue"): "ok",
        (BOTH, "compile_max_autotune"): "skipped",
    }
    assert found[BOTH, "compile_max_autotune"]["reason"] == "compile_max_autotune computes forward only"
    assert found[BOTH, "eager"]["flops"] == 3 * found["forward", "eager"]["flops"]
    rows = {(row.direction, row.variant): row for row in results.rows([record])}
    for direction in ("forward", BOTH):
        base, row = rows[direction, "eager"], rows[direction, "epilogue"]
        assert row.workload.endswith(f"/{direction}")
        assert row.ratio == pytest.approx(base.median_us / row.median_us)
    fields, _ = language.split_fields(list(rows.values()))
    assert fields == ["direction"]
    assert language.where(rows[BOTH, "eager"], "direction") == "forward and backward"
    forward, both = rows["forward", "eager"], rows[BOTH, "eager"]
    assert language.split_fields([both])[1] == [
        "linear_relu",
        "8×8×8",
        "float32/ieee",
        "forward and backward",
        "hot clock",
        "box",
    ]
    assert language.split_fields([forward])[1] == ["linear_relu", "8×8×8", "float32/ieee", "hot clock", "box"]
    assert both.text == f"{forward.text} forward and backward"


SPLIT = """
import torch
from hypatia_lab.kernels.triton import gradient_products_split as split
from hypatia_lab.kernels.triton.gradient_products import Plan
from hypatia_lab.kernels.triton.linear_relu import Config
from hypatia_lab.operations import tensor_cores

split.FIND_TILE, split.SPLIT_TILE = (16, 32), (32, 16)
nan, inf = float("nan"), float("inf")
torch.manual_seed(0)

def drawn(batch, inner, outer):
    x, weight, y, grad = (torch.randn(*n) for n in ((batch, inner), (outer, inner), (batch, outer), (batch, outer)))
    return grad, x, weight, y.relu()

def exact(grad, x, weight, y):
    z = torch.where(y <= 0, 0.0, grad).double()
    return z @ weight.double(), z.T @ x.double(), z.sum(0)

def agrees(given, plan=None, needs=(True, True)):
    found = split.gradient_products_split(*given, needs, plan=plan)
    for own, right, needed in zip(found, exact(*given), (*needs, True)):
        assert own.dtype == torch.float32 and own.shape == (right.shape if needed else (0,))
        assert not needed or float((own.double() - right).norm()) <= 3e-7 * float(right.norm()), given[1].shape
    return found

small = Plan(Config(32, 16, 32, group=2), Config(16, 32, 16, group=2, store=False))
for shape in ((1, 1, 1), (7, 37, 69), (128, 1, 3), (33, 40, 36))[:4 if FULL else 2]:
    agrees(drawn(*shape), small)
agrees(drawn(34, 45, 50))
given = drawn(40, 36, 33)
whole = agrees(given, small)
for needs in ((True, False), (False, True), (False, False)):
    part = agrees(given, small, needs)
    assert all(torch.equal(one, other) for one, other, needed in zip(part, whole, (*needs, True)) if needed)
_, x, weight, y = drawn(17, 20, 18)
wide = torch.randn(18, 40)
for grad in (wide[:17, :18], wide[:17, :36:2], wide[:1, :1].expand(17, 18), wide.t()[:17]):
    agrees((grad, x, weight, y), small)
agrees((grad, wide[:17, 1:21], weight.t().contiguous().t(), y), small)
for shape in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
    given = drawn(*shape)
    for own, right in zip(split.gradient_products_split(*given), exact(*given)):
        torch.testing.assert_close(own, right.float())

# Rows and columns of z, columns of x and of W, each of its own magnitude, from subnormal to the largest: no element is
# off by more than its terms allow.
for rows in (True, False):
    grad, x, weight, y = drawn(20, 12, 16)
    up = torch.linspace(-140, 100, 20 if rows else 16).round()
    grad = torch.ldexp(grad.double(), up[:, None] if rows else up).float()
    x, weight = (torch.ldexp(a.double(), torch.linspace(-60, 20, 12).round()).float() for a in (x, weight))
    z = torch.where(y <= 0, 0.0, grad).double()
    found = split.gradient_products_split(grad, x, weight, y, plan=small)
    for own, a, b in ((found[0], z, weight), (found[1], z.T, x)):
        a, b = a.double(), b.double()
        peaks = a.abs().amax(1, keepdim=True) * b.abs().amax(0) * a.shape[1] * 2.0**-38
        scale = a.abs() @ b.abs()
        held = scale < 3e38
        assert bool(((own.double() - a @ b).abs() <= 1e-6 * scale + peaks + 2.0**-149)[held].all()), rows
        assert int((own[held] != 0).sum()) > 50

# Infinities and NaN where PyTorch has them, of their sign; a NaN in y lets the gradient through, a mask hides an
# infinity.
grad, x, weight, y = drawn(40, 36, 33)
grad[0, 3], grad[1, 5], grad[2, 0], grad[2, 7], y[0, 3], y[1, 5], y[2, 0], y[2, 7] = nan, inf, inf, -inf, 1, 1, 1, 1
grad[3, 4], y[3, 4], grad[5, 6], y[5, 6] = inf, 0, 2.0, nan
x[4, 5], x[6, 7], weight[8, 9], weight[10, 11], weight[5, 20] = inf, nan, -inf, nan, 0
y[4, :3], grad[4, 3], y[4, 3], grad[7, 8], y[7, 8] = 0, 1e-38, 1, -1e-38, 1
expected = [one.float() for one in exact(grad, x, weight, y)]
assert [int(one.isnan().sum()) for one in expected] != [0, 0, 0] and any(one.isinf().any() for one in expected)
for own, right in zip(split.gradient_products_split(grad, x, weight, y, plan=small), expected):
    torch.testing.assert_close(own, right, rtol=1e-5, atol=1e-5, equal_nan=True)

# For the CUDA kernel terms lie across that are scaled by columns. Where rows and columns are finite that is all.
def by_torch(products, *, plan):
    for *operands, out in products:
        (left, up), (right, across) = (
            (terms.large.double() + terms.small.double(), terms.exponents.double() - 141) for terms in operands
        )
        assert all(terms.large.stride(0) % 8 == 0 for terms in operands)
        out.copy_(torch.ldexp(left @ right.T, up[:, None] + across))

able, split.split_products.ensure_able = split.split_products.ensure_able, lambda x: None
split.split_products.multiply = by_torch
for needs in ((True, True), (True, False), (False, True), (False, False)):
    agrees(drawn(40, 36, 33), split.split_products.Plan(), needs)
split.split_products.ensure_able = able

# As an operation of PyTorch's.
for batch in ((5,), (2, 3), ()):
    x, weight, bias = (torch.randn(*n, requires_grad=True) for n in ((*batch, 12), (3, 12), (3,)))
    upstream = torch.randn(*batch, 3)
    for given, b in (((x, weight, bias), bias), ((x, weight), None), ((bias,), bias)):
        y = torch.ops.hypatia.linear_relu_fp16x3(x, weight, b)
        right = torch.relu(torch.nn.functional.linear(x, weight, b))
        torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-5)
        for own, other in zip(torch.autograd.grad(y, given, upstream), torch.autograd.grad(right, given, upstream)):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)

grad, x, weight, y = drawn(5, 6, 7)
for given, message in (
    ((grad.double(), x, weight, y), "grad is torch.float64"), ((grad, x[0], weight, y), "x is torch.float32 [6]"),
    ((grad, x, weight[:, 1:], y), "weight [7, 5] does not fit"), ((grad[1:], x, weight, y), "grad [4, 7] is not of"),
    ((grad, x, weight, y[:, 1:]), "y [5, 6] is not of"), ((grad, x, weight.to("meta"), y), "weight is on meta"),
    ((grad, x, weight, y, (True, True), "cuda"), "x is on cpu; the CUDA kernel needs compute capability 9.0"),
):
    try:
        split.gradient_products_split(*given[:5], cuda="cuda" in given[5:])
    except ValueError as refusal:
        assert message in str(refusal), refusal
    else:
        raise AssertionError(message)
"""


@pytest.mark.parametrize("full", FULL)
def test_gradients_of_split_operands_agree_with_float64_in_the_interpreter(
    interpreted: Callable[..., str], full: bool
) -> None:
    interpreted(f"FULL = {full}\n{SPLIT}")


@pytest.mark.parametrize("name", ["fp16x3", "fp16x3_cuda"])
def test_the_split_operations_have_shapes_without_a_gpu(name: str) -> None:
    x, weight, y = (torch.empty(*shape, device="meta") for shape in ((2, 3, 5), (4, 5), (2, 3, 4)))
    forward, gradients = (getattr(torch.ops.hypatia, f"linear_relu_{name}{end}") for end in ("", "_gradients"))
    assert forward(x, weight, None).shape == y.shape
    assert [tuple(one.shape) for one in gradients(y, x, weight, y, True, False)] == [(2, 3, 5), (0,), (4,)]


# ---------------------------------------------------------------- gradients of split operands on a GPU

on_hopper = pytest.mark.skipif(
    DEVICE == "cpu" or torch.cuda.get_device_capability() < (9, 0), reason="needs compute capability 9.0"
)


def on_device(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    return [torch.randn(*shape, device=DEVICE, generator=generator) for shape in shapes]


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp_min(1e-300))


@pytest.mark.cuda
@on_hopper
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (7, 127, 129),
        (129, 64, 513),
        (1000, 3001, 77),
        (256, 256, 512),
        (1024, 784, 2048),
        (8192, 4096, 4096),
    ],
)
def test_three_float16_products_are_as_good_as_eager_and_repeat(shape: tuple[int, int, int]) -> None:
    batch, inner, outer = shape
    x, weight, bias, grad = on_device((batch, inner), (outer, inner), (outer,), (batch, outer))
    given = [tensor.requires_grad_() for tensor in (x, weight, bias)]

    def step(form: Any) -> tuple[torch.Tensor, ...]:
        y = form(*given)
        return y.detach(), *torch.autograd.grad(y, given, grad)

    def errors(answer: tuple[torch.Tensor, ...]) -> list[float]:
        with torch.no_grad():
            z = torch.where(answer[0] <= 0, 0.0, grad).double()  # each has its own mask where y is about 0
            y = torch.relu(x.double() @ weight.double().T + bias.double())
            exact = y, z @ weight.double(), z.T @ x.double(), z.sum(0)
            return [off(*pair) for pair in zip(answer, exact, strict=True)]

    own = step(torch.ops.hypatia.linear_relu_fp16x3)
    usual = step(lambda *tensors: torch.relu(torch.nn.functional.linear(*tensors)))
    for part, mine, theirs in zip(PARTS, errors(own), errors(usual), strict=True):
        assert mine <= max(1.05 * theirs, 2.5e-7), part
    for one, other in zip(own, step(torch.ops.hypatia.linear_relu_fp16x3), strict=True):
        assert torch.equal(one, other)


@pytest.mark.cuda
@on_hopper
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "columns"])
def test_rows_and_columns_may_each_have_their_own_magnitude(rows: bool) -> None:
    from hypatia_lab.kernels.triton.gradient_products_split import gradient_products_split

    x, weight, grad = on_device((200, 96), (160, 96), (200, 160))
    up = torch.linspace(-140, 100, 200 if rows else 160, device=DEVICE, dtype=torch.float64).round()
    grad = torch.ldexp(grad.double(), up[:, None] if rows else up).float()
    y = x @ weight.T
    z = torch.where(y <= 0, 0.0, grad).double()
    found = gradient_products_split(grad, x, weight, y)
    for own, a, b in ((found[0], z, weight.double()), (found[1], z.T, x.double())):
        scale = a.abs() @ b.abs()
        peaks = a.abs().amax(1, keepdim=True) * b.abs().amax(0) * a.shape[1] * 2.0**-38
        held = scale < 3e38
        assert bool(((own.double() - a @ b).abs() <= 1e-6 * scale + peaks + 2.0**-149)[held].all())


@pytest.mark.cuda
@pytest.mark.slow
@on_hopper
@pytest.mark.parametrize("shape", [(200, 96, 160), (1024, 784, 2048)])
def test_every_plan_of_the_split_gradients_is_right(shape: tuple[int, int, int]) -> None:
    from hypatia_lab.kernels.triton.gradient_products_split import candidates, gradient_products_split

    batch, inner, outer = shape
    x, weight, grad, y = on_device((batch, inner), (outer, inner), (batch, outer), (batch, outer))
    z = torch.where(y <= 0, 0.0, grad).double()
    for plan in candidates(shape):
        found = gradient_products_split(grad, x, weight, y, plan=plan)
        for own, exact in zip(found, (z @ weight.double(), z.T @ x.double(), z.sum(0)), strict=True):
            assert off(own, exact) < 5e-7, plan
