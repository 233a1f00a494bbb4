"""Forward and backward: answers of several tensors judged part by part, autograd formulas, and the fused backward."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_tensors import DEVICE, accepted, error, matrices, normal, on_hopper
from measuring import tiny
from synthetic import ceilings, run_line
from test_linear_relu import operation
from torch.utils._python_dispatch import TorchDispatchMode

from hypatia_lab import records, results
from hypatia_lab.bench import composer
from hypatia_lab.check import Problem, check, judge
from hypatia_lab.experiments import Group
from hypatia_lab.operations.linear_relu import own_backward as linear_relu_backward
from hypatia_lab.planted import BOTH, both_passes, gradients
from hypatia_lab.workloads import MATH, Workload, WorkloadError

PARTS = ("y", "grad_x", "grad_weight", "grad_bias")
SQUARE = Workload("linear_relu", (96, 128, 128), direction=BOTH)
"""Square weight, so that a transposed one fits."""


# ---------------------------------------------------------------- the direction


@pytest.mark.parametrize(("operation", "shape"), [("linear", (2, 3, 4)), ("relu", (2, 3)), ("copy", (5,))])
def test_an_operation_without_a_backward_refuses_the_direction(operation: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(WorkloadError, match=f"'forward_backward' does not go with {operation}: it has no backward"):
        Workload(operation, shape, direction=BOTH)
    with pytest.raises(WorkloadError, match="unknown direction 'backward'; known: forward, forward_backward"):
        Workload(operation, shape, direction="backward")


def test_a_workload_of_both_passes_counts_both() -> None:
    forward, both = (Workload("linear_relu", (6, 4, 10), "bfloat16", direction=d) for d in ("forward", BOTH))
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
        answer = both_passes(problem.inputs)
        kept.append(answer[number])
        return *answer[:number], kept[0], *answer[number + 1 :]

    assert check(run, problem).reason.startswith(f"{PARTS[number]}: stale output")


@pytest.mark.parametrize("dtype", MATH)
def test_the_error_is_the_worst_parts(dtype: str) -> None:
    problem = Problem(Workload("linear_relu", (96, 128, 128), dtype, direction=BOTH), "cpu")
    answer, references = both_passes(problem.inputs), problem.references()
    found = judge(answer, problem)
    pairs = [*zip(answer, references, strict=True)]
    assert accepted(found) == pytest.approx(max(error(*pair) for pair in pairs))
    assert found.max_error == pytest.approx(max(float((a.double() - r).abs().max()) for a, r in pairs))


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
        accepted(judge((own, *gradients(i, torch.where(own > 0, i["grad"], 0))), problem))
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


# ---------------------------------------------------------------- the autograd formulas

OWN = ["naive", "cublas_relu", "aten", "epilogue", "fused_backward"]
TWICE = OWN[:-1]
"""Differentiable more than once."""


def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(x, weight, bias))


def tensors(*batch: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """x (..., 5), weight (4, 5) and bias (4) that require gradients; nothing is near the ReLU's kink."""
    return [one.requires_grad_() for one in matrices(*batch, inner=5, outer=4, dtype=dtype, device=DEVICE, seed=3)]


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
        expected = torch.autograd.grad(plain(x, weight, bias), (x, weight, bias), upstream)
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
    expected = torch.autograd.grad(plain(x, weight, bias).sum(), bias)
    torch.testing.assert_close(torch.autograd.grad(operation(name)(x, weight, bias).sum(), bias), expected)


class Counter(TorchDispatchMode):
    """Counts the matrix products that reach the device."""

    products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("needed", "products"), [("x", 1), ("w", 1), ("b", 0), ("xw", 2), ("xwb", 2)])
@pytest.mark.parametrize("name", OWN[:-1])
def test_only_what_is_needed_is_computed(name: str, needed: str, products: int) -> None:
    given = [tensor.requires_grad_(letter in needed) for letter, tensor in zip("xwb", tensors(3), strict=True)]
    y = operation(name)(*given)
    wanted = [tensor for tensor in given if tensor.requires_grad]
    with Counter() as counter:
        found = torch.autograd.grad(y.sum(), wanted)
    assert counter.products == products
    assert [f.shape for f in found] == [w.shape for w in wanted]


@pytest.mark.parametrize("needed", ["x", "w", "b", "xw", "xb"])
def test_the_fused_backward_computes_only_what_is_needed(needed: str) -> None:
    x, weight, _ = given = tensors(2, 3)
    y = operation("fused_backward")(*given).detach()
    found = linear_relu_backward.linear_relu_gradients(torch.ones_like(y), x, weight, y, "x" in needed, "w" in needed)
    assert [bool(f.numel()) for f in found] == ["x" in needed, "w" in needed, True]
    wanted = [one for letter, one in zip("xwb", given, strict=True) if letter in needed]
    expected, own = (torch.autograd.grad(form(*given).sum(), wanted) for form in (plain, operation("fused_backward")))
    torch.testing.assert_close(own, expected)


def test_a_misfit_of_the_fused_gradients_is_refused_by_name() -> None:
    x, weight, _ = (tensor.detach() for tensor in tensors(3))
    y = torch.ones(3, 4, dtype=x.dtype, device=DEVICE)
    for grad, other, named in ((y, y[:, :3], r"y \[3, 3\] is not of x \[3, 5\]"), (y.float(), y, "not like y")):
        with pytest.raises(ValueError, match=named):
            linear_relu_backward.linear_relu_gradients(grad, x, weight, other)
    with pytest.raises(ValueError, match="do not fit"):
        operation("epilogue")(x[:, :-1], weight, None)


@pytest.mark.parametrize("name", [*OWN, "gradients"])
def test_opcheck_passes(name: str) -> None:
    if name == "gradients":
        x, weight, _ = (tensor.detach() for tensor in tensors(3))
        y = torch.randn(3, 4, dtype=x.dtype, device=DEVICE)
        run = torch.ops.hypatia.linear_relu_gradients
        cases = [(y, x, weight, y.relu()), (y, x, weight, y.relu(), False, True)]
    else:
        short = tensors(3, dtype=torch.bfloat16)[:2]
        run, cases = operation(name), [tuple(tensors(2, 3, dtype=torch.float32)), (*short, None)]
    for given in cases:
        torch.library.opcheck(getattr(run, "default", run), given)


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


# ---------------------------------------------------------------- records and pages


@pytest.mark.slow
def test_both_directions_of_one_workload_are_recorded_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, names = {"forward": (), BOTH: ("compile_max_autotune",)}, ("eager", "epilogue")
    groups = [Group(Workload("linear_relu", (8, 8, 8), direction=d), names + own[d], ("hot",), 0.0) for d in own]
    records.write(tmp_path, run_line(experiment="ceilings"), ceilings({"ieee": 1e3}, "hot"))
    monkeypatch.setattr(composer.source_tree, "commit", lambda: ("0" * 40, False))
    record = composer.measure(tiny(*groups), machine_name="box", root=tmp_path, progress=False)
    found = {(cell["direction"], cell["variant"]): cell for cell in record.cells}
    skipped = (BOTH, "compile_max_autotune")
    assert {key: cell["status"] for key, cell in found.items()} == {
        key: "skipped" if key == skipped else "ok" for key in [*product(own, names), skipped]
    }
    assert "forward only" in found[skipped]["reason"]
    assert found[BOTH, "eager"]["flops"] == 3 * found["forward", "eager"]["flops"]
    rows = {(row.direction, row.variant): row for row in results.rows([record])}
    for direction in ("forward", BOTH):
        base, row = rows[direction, "eager"], rows[direction, "epilogue"]
        assert row.workload.endswith(f"/{direction}")
        assert row.ratio == pytest.approx(base.median_us / row.median_us)


@pytest.mark.parametrize("name", ["fp16x3", "fp16x3_cuda"])
def test_the_split_operations_have_shapes_without_a_gpu(name: str) -> None:
    x, weight, y = (torch.empty(*shape, device="meta") for shape in ((2, 3, 5), (4, 5), (2, 3, 4)))
    forward, gradients = (getattr(torch.ops.hypatia, f"linear_relu_{name}{end}") for end in ("", "_gradients"))
    assert forward(x, weight, None).shape == y.shape
    assert [tuple(one.shape) for one in gradients(y, x, weight, y, True, False)] == [(2, 3, 5), (0,), (4,)]


# ---------------------------------------------------------------- gradients of split operands on a GPU


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
    x, weight, bias, grad = normal((batch, inner), (outer, inner), (outer,), (batch, outer), device=DEVICE)
    given = [tensor.requires_grad_() for tensor in (x, weight, bias)]

    def step(form: Any) -> tuple[torch.Tensor, ...]:
        y = form(*given)
        return y.detach(), *torch.autograd.grad(y, given, grad)

    def errors(answer: tuple[torch.Tensor, ...]) -> list[float]:
        with torch.no_grad():
            z = torch.where(answer[0] <= 0, 0.0, grad).double()  # each has its own mask where y is about 0
            y = torch.relu(x.double() @ weight.double().T + bias.double())
            exact = y, z @ weight.double(), z.T @ x.double(), z.sum(0)
            return [error(*pair) for pair in zip(answer, exact, strict=True)]

    own = step(torch.ops.hypatia.linear_relu_fp16x3)
    usual = step(plain)
    for part, mine, theirs in zip(PARTS, errors(own), errors(usual), strict=True):
        assert mine <= max(1.05 * theirs, 2.5e-7), part
    for one, other in zip(own, step(torch.ops.hypatia.linear_relu_fp16x3), strict=True):
        assert torch.equal(one, other)


@on_hopper
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "columns"])
def test_rows_and_columns_may_each_have_their_own_magnitude(rows: bool) -> None:
    from hypatia_lab.kernels.linear_relu.gradient_products_split import gradient_products_split

    x, weight, grad = normal((200, 96), (160, 96), (200, 160), device=DEVICE)
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


@pytest.mark.slow
@on_hopper
@pytest.mark.parametrize("shape", [(200, 96, 160), (1024, 784, 2048)])
def test_every_plan_of_the_split_gradients_is_right(shape: tuple[int, int, int]) -> None:
    from hypatia_lab.kernels.linear_relu.gradient_products_split import candidates, gradient_products_split

    batch, inner, outer = shape
    x, weight, grad, y = normal((batch, inner), (outer, inner), (batch, outer), (batch, outer), device=DEVICE)
    z = torch.where(y <= 0, 0.0, grad).double()
    for plan in candidates(shape):
        found = gradient_products_split(grad, x, weight, y, plan=plan)
        for own, exact in zip(found, (z @ weight.double(), z.T @ x.double(), z.sum(0)), strict=True):
            assert error(own, exact) < 5e-7, plan
