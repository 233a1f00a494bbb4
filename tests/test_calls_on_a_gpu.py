"""Calls of our own operators without Python, on a GPU: right, and usable wherever PyTorch's are.

What is recorded and carried out is tried without a GPU in ``test_plans.py``. An operator that was once planned stays so
in its process, so these tests come last (``conftest.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from kernel_tensors import accepted
from planned_calls import (
    CALLS,
    DEVICE,
    LINEAR,
    Call,
    Form,
    Tensors,
    block,
    eager,
    error,
    float32,
    leaves,
    matrices,
    normal,
    on_a_gpu,
)

from hypatia_lab import check
from hypatia_lab.kernels import plans
from hypatia_lab.operations import linear_gelu, mlp
from hypatia_lab.operations.linear_relu import own_backward as backward
from hypatia_lab.variants import load, variants
from hypatia_lab.workloads import Workload

BOTH = "forward_backward"
pytestmark = on_a_gpu
load()


def poison() -> None:
    """Whatever is handed out next holds NaN."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    sizes = (2**26, 2**24, 2**22, 2**20, *(2**17,) * 16, *(2**12,) * 64, *(300,) * 64)
    held = [torch.full((size,), float("nan"), device=DEVICE) for size in sizes]
    del held


def same(found: Tensors, wanted: Tensors) -> bool:
    """Whether each is bit for bit the other."""
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def of(names: Iterable[str]) -> pytest.MarkDecorator:
    """Runs a test for each of these calls."""
    return pytest.mark.parametrize("call", [pytest.param(CALLS[name], id=name) for name in names])


each_call, each_linear = of(CALLS), of(LINEAR)
STEPS = [(name, step) for name, call in CALLS.items() for step in (False, True)[: 1 + call.differentiable]]
each_step = pytest.mark.parametrize(
    ("call", "step"), [pytest.param(CALLS[name], step, id=f"{name}-{step}") for name, step in STEPS]
)
"""Calls, and all gradients of those that have some."""


def stepping(form: Form, given: Tensors, step: bool) -> Callable[[], Tensors]:
    """Calls ``form`` and, in a ``step``, gives the gradients of what it returns."""
    if not step:
        return lambda: (form(*given),)
    grad = torch.randn_like(form(*given))
    return lambda: torch.autograd.grad(form(*given), given, grad)


@each_call
def test_a_later_call_does_without_python(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    given, unplannable = call.ready(), set(plans.unplannable)
    first = call.form(*given)
    assert call.operator.attached
    assert plans.unplannable == unplannable

    def asked(*given: Any) -> bool:
        raise AssertionError("Python was asked again")

    monkeypatch.setattr(plans, "made_ready", asked)
    assert torch.equal(call.form(*given), first)


# ---------------------------------------------------------------- right

ODD = [(33, 77, 129), (1, 5, 3), (257, 130, 65)]
PACKED = [(33, 72, 129), (1, 8, 3), (257, 136, 65), (129, 200, 136)]
SHARED = [(17, 2785, 160), (3, 2465, 191), (56, 1944, 192)]  # tiles by several blocks, few rows by several warps
NAMED = [(256, 256, 512), (1024, 784, 2048), (8192, 4096, 4096)]
BLOCKS = [(5, 64, 128, 128), (3, 64, 33, 29), (20, 64, 128, 128), (1, 64, 17, 40), (2, 64, 9, 11), (1, 64, 128, 128)]
ROWS = (1, 7, 33, 127, 129, 1001, 65536)


Shapes = Sequence[tuple[int, ...]]


def right(
    operations: Sequence[str], names: Sequence[str], shapes: Shapes, allowed: Mapping[str, float], way: str = "forward"
) -> list[Any]:
    """Variants of operations, at each of these shapes, with the largest error of each dtype/math."""
    found = []
    for operation, name, shape, kind in product(operations, names, shapes, allowed):
        dtype, mode = kind.split("/")
        work = Workload(operation, shape, dtype, mode, way)
        found.append(pytest.param(work, name, allowed[kind], id=f"{name}-{work}".replace("/", "-")))
    return found


TILED = {"bfloat16/ieee": 4e-3, "float16/ieee": 6e-4, "float32/tf32": 3.5e-4}  # TF32 rounded; cut off it is 7e-4
BLOCK = {"bfloat16/ieee": 8e-3, "float32/tf32": 1.5e-3, "float32/bf16x3": 1e-4}
LAYERS = {"bfloat16/ieee": 1.2e-2}
CHECKED: dict[str, float] = dict.fromkeys(("float16/ieee", "float32/tf32", "float32/tf32x3"), math.inf)
"""Their largest errors are the check's own."""
MLPS = ("mlp2", "mlp3")
STEP = {"bfloat16/ieee": 6e-3, "float16/ieee": 1e-3, "float32/ieee": 1e-5}
SPLIT = ("fp16x3", "fp16x3_cuda", "fp16x3_cuda_once", "tf32x3")
RIGHT = [
    *right(["linear_relu"], ["triton", "cuda"], PACKED + SHARED + ODD + NAMED, TILED),
    *right([*linear_gelu.OPERATIONS], ["triton", "cuda"], PACKED + ODD + NAMED, TILED),
    *right([*linear_gelu.OPERATIONS], ["fp16x3_cuda"], ODD + NAMED, {"float32/ieee": 5e-7}),
    *right(["linear_relu"], SPLIT, ODD + NAMED, {"float32/ieee": 5e-7}),
    *right(["linear_relu"], ["fused_backward"], ODD + NAMED, STEP, BOTH),
    *right(["linear_relu"], ["fp16x3_backward", "fp16x3_cuda"], ODD + NAMED, {"float32/ieee": 1e-5}, BOTH),
    *right(["linear_relu"], ["step_mma", "step_wgmma", "step_multicast"], ODD + NAMED[:2], {"bfloat16/ieee": 4e-3}),
    *right(["conv_block", "conv_block_tanh"], ["whole", "triton"], BLOCKS, BLOCK),
    # Eager in IEEE float32 is off by 4.9e-7 at the seeds' size on an H200.
    *right(["conv_block", "conv_block_tanh"], ["triton_fp16x3", "whole_fp16x3"], BLOCKS, {"float32/ieee": 5e-7}),
    *right(["conv_block"], ["whole", "triton"], BLOCKS[:2], {"bfloat16/ieee": 2e-2}, BOTH),
    *right(MLPS, ["fused"], [*product(ROWS, (16, 32, 33, 64, 77, 128, 200, 256))], LAYERS),
    *right(MLPS, ["fused_cuda"], [*product(ROWS, (16, 32, 64, 128, 256))], LAYERS),
    *right(MLPS, ["layers_cuda"], [*product(ROWS, (33, 64, 285))], LAYERS),
    *right(MLPS, ["fused"], [*product(ROWS, (64, 77))], CHECKED),
]


@pytest.mark.parametrize(("workload", "name", "allowed"), RIGHT)
def test_a_call_agrees_with_float64_when_it_is_recorded_and_when_it_is_replayed(
    workload: Workload, name: str, allowed: float
) -> None:
    variant = variants(workload.operation)[name]
    if missing := variant.needs(workload, DEVICE):
        pytest.skip(missing)
    few = 4 if math.prod(workload.shape) < 100 else 1  # numbers, whose errors do not average
    with workload.precision():
        problem = check.Problem(workload, DEVICE)
        run = variant.factory(workload, problem.inputs)
        for draw in range(3):  # other numbers in the same memory
            problem.draw(draw)
            problem.forget(draw)
            poison()
            assert accepted(check.judge(run(), problem)) <= few * allowed, draw


@each_linear
def test_no_bias_any_rank_and_any_stride_are_taken(call: Call) -> None:
    x, weight, bias = call.ready()
    dtype, allowed = x.dtype, {torch.bfloat16: 4e-3, float32: 5e-4 if "tf32" in call.how else 1e-6}[x.dtype]
    (batch, inner), outer = x.shape, len(weight)
    rows = normal(batch, inner + 72, dtype=dtype)
    for other in (
        rows[:, 3 : inner + 3],  # rows that lie apart, at another alignment
        rows[:, :inner],
        normal(inner, batch, dtype=dtype).t(),
        normal(1, inner, dtype=dtype).expand(batch, inner),
        normal(4, 8, inner, dtype=dtype),
        normal(inner, dtype=dtype),
        x[:0],
    ):
        for w in (weight, normal(inner, outer, dtype=dtype).t()):
            for b in (bias, None, normal(2 * outer, dtype=dtype)[::2]):
                exact = eager(other.double(), w.double(), None if b is None else b.double())
                for _ in range(2):
                    poison()
                    found = call.form(other, w, b)
                    assert found.shape == exact.shape
                    assert error(found, exact) <= allowed


# ---------------------------------------------------------------- usable wherever PyTorch's are


@each_call
def test_opcheck_passes(call: Call) -> None:
    given = call.ready()
    for one in (given, leaves(given)) if call.differentiable else (given,):
        torch.library.opcheck(call.operator.call, call.arguments(one))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", [torch.bfloat16, float32])
def test_opcheck_passes_for_gradients(dtype: torch.dtype) -> None:
    x, weight, bias = matrices(64, 128, 96, dtype)
    y = backward.linear_relu_fused(x, weight, bias)
    torch.library.opcheck(torch.ops.hypatia.linear_relu_gradients.default, (y, x, weight, y))
    if dtype == float32:
        CALLS["fp16x3, trained"].ready()
        for needs in ((True, True), (True, False), (False, True)):
            torch.library.opcheck(torch.ops.hypatia.linear_relu_fp16x3_gradients.default, (y, x, weight, y, *needs))


def graphed(run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """``run`` captured as PyTorch's manual has it, and what it returned while it was."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


@each_step
def test_it_is_the_same_each_time_and_when_a_cuda_graph_replays_it(call: Call, step: bool) -> None:
    given = leaves(call.ready()) if step else call.ready()
    run = stepping(call.form, given, step)
    wanted = run()
    assert same(run(), wanted)
    graph, found = graphed(run)
    for _ in range(2):
        for one in found:
            one.fill_(float("nan"))
        graph.replay()
        assert same(found, wanted)
    with torch.no_grad():
        given[0].neg_()  # a graph reads what is there now
    graph.replay()
    assert same(found, run())


@each_call
def test_what_is_captured_before_there_is_a_plan_is_computed_by_python(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = (torch.stack([one, one], -1)[..., 0] if one.dim() == 1 else one for one in call.ready())
    given = tuple(apart)  # vectors of which no other test has a plan
    with monkeypatch.context() as patch:
        patch.setattr(plans, "made_ready", lambda *given: False)
        wanted = call.form(*given)  # no kernel can be compiled within a capture
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = call.form(*given)
    graph.replay()
    assert torch.equal(out, wanted)
    assert torch.equal(call.form(*given), wanted)


@each_step
def test_torch_compile_takes_it_whole(call: Call, step: bool) -> None:
    form: Form = call.form
    given = leaves(call.ready()) if step else call.ready()
    torch.compiler.reset()
    compiled = torch.compile(lambda *tensors: form(*tensors) * 2, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)  # both draw one upstream gradient
    found = stepping(compiled, given, step)()
    torch.manual_seed(1)
    assert same(found, stepping(lambda *tensors: form(*tensors) * 2, given, step)())


@pytest.mark.slow
def test_inductor_takes_it_whole() -> None:
    x, weight, bias = CALLS["fused"].ready()
    form = backward.linear_relu_fused
    torch.compiler.reset()
    compiled = torch.compile(lambda x, weight, bias: form(x + 1, weight, bias) * 2, fullgraph=True)
    assert error(compiled(x, weight, bias), form(x + 1, weight, bias).double() * 2) < 1e-2


@each_call
def test_it_runs_on_the_callers_stream_and_the_host_does_not_wait(call: Call) -> None:
    given = call.ready()
    wanted = call.form(given[0].neg(), *given[1:])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # cycles, a tenth of a second
        given[0].neg_()  # whoever runs on another stream reads it too early
        found = call.form(*given)
    assert not side.query()
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(found, wanted)


@each_call
def test_in_inference_mode_it_gives_an_inference_tensor(call: Call) -> None:
    given = call.ready()
    wanted = call.form(*given)
    with torch.inference_mode():
        for _ in range(2):
            found = call.form(*given)
            assert found.is_inference()
            assert torch.equal(found, wanted)


@of(["triton", "cuda", "fused", "fused, medium", "one kernel", "two kernels", "mlp", "mlp_cuda"])
def test_autocast_casts_its_tensors(call: Call) -> None:
    given = call.ready()
    wanted = call.form(*given).double()
    with torch.autocast(DEVICE, torch.bfloat16):
        for _ in range(3):
            found = call.form(*(one.float() for one in given))
            assert found.dtype == torch.bfloat16
            assert error(found, wanted) < 1e-2


# ---------------------------------------------------------------- what is refused, and how

REFUSALS = (IndexError, RuntimeError, ValueError)
"""What PyTorch raises for tensors that do not fit."""


def refused(run: Callable[[], Any], message: str) -> None:
    """Each time it is called, and the device is sound afterwards."""
    for _ in range(2):
        with pytest.raises(REFUSALS, match=message):
            run()
        torch.cuda.synchronize()


@each_linear
def test_a_misfit_is_refused_as_pytorch_does(call: Call) -> None:
    x, weight, bias = call.ready()
    call.form(x, weight, bias)  # there is a plan for what fits
    for wrong, message in (
        ((x, weight.cpu(), bias), "device|is on cpu"),
        ((x.cpu(), weight, bias), "device|is on"),
        ((x, weight, bias.cpu()), "device|is on cpu"),
        ((x, weight.double(), bias), "dtype|is torch|must be"),
        ((x, weight[:, 1:], bias), "do not fit|shape"),
        ((x, weight, bias[1:]), "fit|size|shape"),
        ((x[0, 0], weight, bias), "do not fit|dim|0D"),
    ):
        with pytest.raises(REFUSALS):
            eager(*wrong)
        refused(lambda wrong=wrong: call.form(*wrong), message)
    assert torch.equal(call.form(x, weight, bias), call.form(x, weight, bias))


@each_call
def test_a_tensor_that_was_freed_is_refused(call: Call) -> None:
    given = call.ready()
    wanted = call.form(*given)
    freed = given[0].clone()
    freed.untyped_storage().resize_(0)
    refused(lambda: call.form(freed, *given[1:]), "freed|storage|out of bounds")
    assert torch.equal(call.form(*given), wanted)


@of(["triton", "triton tf32", "cuda", "cuda tf32", "fp16x3", "tf32x3"])
def test_a_dtype_that_the_kernels_do_not_take_is_refused(call: Call) -> None:
    for dtype in (torch.float64, torch.int32):
        wrong = [one.to(dtype) for one in call.ready()]
        refused(lambda wrong=wrong: call.form(*wrong), "all must be one of")


def test_what_the_kernels_do_not_take_is_refused() -> None:
    x, weight, bias = matrices(64, 128, 96)
    refused(lambda: CALLS["two kernels"].form(x, *block(2, 32)[1:]), "4D")
    refused(lambda: mlp.mlp(x, [weight], [bias], "ieee"), ".")
    y = backward.linear_relu_fused(*(given := leaves((x, weight, bias)))).float().sum()
    first = torch.autograd.grad(y, given, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="first derivative"):
        first.float().square().sum().backward()


# ---------------------------------------------------------------- NaN, infinities, denormals


def same_extremes(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.isposinf(), wanted.isposinf())
    assert torch.equal(found.isneginf(), wanted.isneginf())


@each_linear
def test_nan_infinities_and_denormals_are_where_pytorch_has_them(call: Call) -> None:
    x, weight, bias = call.ready()
    nan, inf, smallest = float("nan"), float("inf"), torch.finfo(x.dtype).smallest_normal
    x[0, 3], x[1, 5], x[2, 0], x[2, 7], x[3, 0] = nan, inf, inf, -inf, smallest / 4
    weight[2, 4], weight[5, 6], weight[8, 5], bias[9], bias[10] = -inf, nan, 0, inf, nan
    wanted = eager(x, weight, bias)
    assert wanted.isnan().any()
    assert wanted.isinf().any()
    for _ in range(3):
        found = call.form(x, weight, bias)
        same_extremes(found, wanted)
        there = wanted.isfinite()
        assert error(found[there], wanted[there].double()) < (1e-2 if x.dtype == torch.bfloat16 else 1e-3)


@of(["fused", "fp16x3, trained"])
def test_gradients_have_nan_and_infinities_where_pytorchs_have(call: Call) -> None:
    given = call.ready()
    given[2].add_(100)  # no gradient is masked
    grad, nan, inf = torch.randn_like(call.form(*given)), float("nan"), float("inf")
    grad[0, 3], grad[1, 5], grad[2, 0], grad[2, 7] = nan, inf, inf, -inf
    given[0][4, 5], given[0][6, 7], given[1][8, 9], given[1][10, 11], given[1][5, 20] = inf, nan, -inf, nan, 0
    one, other = leaves(given), leaves(given)
    wanted = torch.autograd.grad(eager(*other), other, grad)
    assert sum(bool(part.isnan().any()) for part in wanted) == 3
    for _ in range(3):
        for found, right in zip(torch.autograd.grad(call.form(*one), one, grad), wanted, strict=True):
            same_extremes(found, right)


@of(["fp16x3", "fp16x3, trained"])
def test_denormals_keep_their_digits(call: Call) -> None:
    x, weight, _ = call.ready()
    tiny, large = (2.0**-135 * x.double()).float(), 2.0**60 * weight
    assert float(tiny.abs().max()) < torch.finfo(float32).smallest_normal
    for _ in range(2):
        assert error(call.form(tiny, large, None), eager(tiny.double(), large.double(), None)) < 1e-6


@of(["one kernel", "two kernels"])
def test_nan_stays_in_its_image(call: Call) -> None:
    given = call.ready()
    given[0][1, 3, 2, 2] = float("nan")
    for _ in range(2):
        found = call.form(*given)
        assert found[1].isnan().all()
        assert not found[0].isnan().any()
