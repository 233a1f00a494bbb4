"""Calls of our own operators without Python, on a GPU: right, usable wherever PyTorch's are, and no dearer than eager.

What is recorded and carried out is tried without a GPU in ``test_plans.py``. An operator that was once planned stays so
in its process, so these tests come last (``conftest.py``).
"""

from __future__ import annotations

import gc
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")
from hypatia_lab import check
from hypatia_lab.experiments import graph_optimizer
from hypatia_lab.kernels import loader, plans
from hypatia_lab.machine import choose_device
from hypatia_lab.operations import conv_block, mlp
from hypatia_lab.operations.conv_block import own as blocks
from hypatia_lab.operations.linear_relu import own_backward as backward
from hypatia_lab.operations.linear_relu import tensor_cores as tensor
from hypatia_lab.operations.mlp.layers import mlp_layers
from hypatia_lab.operations.operators import Operator
from hypatia_lab.variants import load, variants
from hypatia_lab.workloads import Workload

DEVICE = choose_device("auto")
BOTH = "forward_backward"
Tensors = tuple[torch.Tensor, ...]
Form = Callable[..., torch.Tensor]

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU"),
    pytest.mark.usefixtures("planned"),
]
load()


@pytest.fixture(scope="module")
def planned() -> Iterator[None]:
    """Calls are planned, whatever the environment says."""
    if missing := loader.cpp_missing():
        pytest.skip(missing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "DEVICES", {DEVICE})
        assert plans.available(), loader.BROKEN
        yield


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


@pytest.fixture(autouse=True)
def drawn_alike() -> None:
    torch.manual_seed(0)


def poison() -> None:
    """Whatever is handed out next holds NaN."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    sizes = (2**26, 2**24, 2**22, 2**20, *(2**17,) * 16, *(2**12,) * 64, *(300,) * 64)
    held = [torch.full((size,), float("nan"), device=DEVICE) for size in sizes]
    del held


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))


def leaves(given: Tensors) -> Tensors:
    return tuple(one.detach().clone().requires_grad_() for one in given)


# ---------------------------------------------------------------- the calls


@dataclass(frozen=True)
class Call:
    """An operator of ours as a function of tensors alone."""

    operator: Operator[..., Any]
    form: Form
    given: Callable[[], Tensors]
    differentiable: bool = True
    hopper: bool = False
    """Whether it takes compute capability 9.0."""

    def ready(self) -> Tensors:
        """Tensors for it; skips the test where it cannot run."""
        if self.hopper and DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("needs compute capability 9.0")
        return self.given()


def matrices(batch: int, inner: int, outer: int, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    return normal(batch, inner, dtype=dtype), normal(outer, inner, dtype=dtype), normal(outer, dtype=dtype)


def block(images: int, height: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """x, weight, bias, gamma and beta of 64 channels, channels last."""
    last = torch.channels_last
    x = normal(images, 64, height, width, dtype=dtype).contiguous(memory_format=last)
    weight = normal(64, 64, 3, 3, dtype=dtype, scale=(2 / (9 * 64)) ** 0.5).contiguous(memory_format=last)
    vectors = normal(64, dtype=dtype, scale=0.25), 1 + normal(64, dtype=dtype, scale=0.1)
    return x, weight, *vectors, normal(64, dtype=dtype, scale=0.1)


def layers(rows: int, width: int) -> Tensors:
    """x, then two weights, then two biases."""
    weights = tuple(normal(width, width, scale=(2 / width) ** 0.5) for _ in range(2))
    return normal(rows, width), *weights, normal(width), normal(width)


def eager(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.relu(functional.linear(x, weight, bias))


def triton(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return tensor.linear_relu_triton(x, weight, bias, "ieee")


def tf32(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return tensor.linear_relu_triton(x, weight, bias, "tf32")


def cuda(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return tensor.linear_relu_cuda(x, weight, bias, "ieee")


def cuda_tf32(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return tensor.linear_relu_cuda(x, weight, bias, "tf32")


def split(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return tensor.linear_relu_split(x, weight, bias, "fp16x3")


def split_tf32(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return tensor.linear_relu_split(x, weight, bias, "tf32x3")


def whole(*given: torch.Tensor) -> torch.Tensor:
    return blocks.fused_conv_block(*given, form="whole")


def in_two(*given: torch.Tensor) -> torch.Tensor:
    return blocks.fused_conv_block(*given, form="triton")


def by_layers(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    return mlp.mlp(x, [*rest[:2]], [*rest[2:]], "ieee")


def by_layers_cuda(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    return mlp.forward_cuda(x, [*rest[:2]], [*rest[2:]])


def one_a_layer(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    return mlp_layers(x, [*rest[:2]], [*rest[2:]], "ieee")


float32 = torch.float32
CALLS = {
    "triton": Call(tensor.linear_relu_triton, triton, lambda: matrices(64, 128, 96)),
    "triton tf32": Call(tensor.linear_relu_triton, tf32, lambda: matrices(64, 128, 96, float32)),
    "cuda": Call(tensor.linear_relu_cuda, cuda, lambda: matrices(64, 128, 96), hopper=True),
    "cuda tf32": Call(tensor.linear_relu_cuda, cuda_tf32, lambda: matrices(64, 128, 96, float32), hopper=True),
    "cuda, odd": Call(tensor.linear_relu_cuda, cuda, lambda: matrices(33, 777, 65), hopper=True),
    "cuda, few rows": Call(tensor.linear_relu_cuda, cuda, lambda: matrices(5, 77, 65), hopper=True),
    "fused": Call(backward.linear_relu_fused, backward.linear_relu_fused, lambda: matrices(64, 128, 96)),
    "fused, medium": Call(backward.linear_relu_fused, backward.linear_relu_fused, lambda: matrices(1024, 784, 2048)),
    "split": Call(tensor.linear_relu_split, split, lambda: matrices(64, 128, 96, float32), hopper=True),
    "fp16x3": Call(
        tensor.linear_relu_fp16x3, tensor.linear_relu_fp16x3, lambda: matrices(64, 128, 96, float32), hopper=True
    ),
    "fp16x3 in CUDA": Call(
        tensor.linear_relu_fp16x3_cuda,
        tensor.linear_relu_fp16x3_cuda,
        lambda: matrices(64, 128, 96, float32),
        hopper=True,
    ),
    "one kernel": Call(blocks.conv_block_fused, whole, lambda: block(2, 32, 32), hopper=True),
    "two kernels": Call(blocks.conv_block_fused, in_two, lambda: block(2, 32, 32)),
    "mlp": Call(mlp.mlp, by_layers, lambda: layers(1001, 64)),
    "mlp_cuda": Call(mlp.forward_cuda, by_layers_cuda, lambda: layers(1001, 64), differentiable=False, hopper=True),
    "mlp_layers": Call(mlp_layers, one_a_layer, lambda: layers(1001, 77), differentiable=False, hopper=True),
}
LINEAR = [
    "triton",
    "triton tf32",
    "cuda",
    "cuda tf32",
    "cuda, odd",
    "cuda, few rows",
    "fused",
    "split",
    "fp16x3",
    "fp16x3 in CUDA",
]

each_call = pytest.mark.parametrize("name", CALLS)
each_differentiable = pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.differentiable])
each_linear = pytest.mark.parametrize("name", LINEAR)


@each_call
def test_a_later_call_does_without_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = CALLS[name]
    given, unplannable = call.ready(), set(plans._unplannable)
    first = call.form(*given)
    assert call.operator._attached
    assert plans._unplannable == unplannable

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
ROWS = (1, 33, 1001, 65536)

RIGHT: list[tuple[str, str, str, str, str, list[tuple[int, ...]], float]] = [
    # Operation, variant, dtype, math, direction, shapes, largest error.
    ("linear_relu", "triton", "bfloat16", "ieee", "forward", ODD + NAMED, 4e-3),
    ("linear_relu", "triton", "float16", "ieee", "forward", ODD + NAMED[:2], 6e-4),
    ("linear_relu", "triton", "float32", "tf32", "forward", ODD + NAMED, 3.5e-4),  # rounded; cut off it is 7e-4
    ("linear_relu", "cuda", "bfloat16", "ieee", "forward", PACKED + SHARED + ODD + NAMED, 4e-3),
    ("linear_relu", "cuda", "float16", "ieee", "forward", PACKED + SHARED + NAMED[:2], 6e-4),
    ("linear_relu", "cuda", "float32", "tf32", "forward", PACKED + SHARED + ODD + NAMED, 3.5e-4),
    ("linear_relu", "fp16x3", "float32", "ieee", "forward", ODD + NAMED, 5e-7),
    ("linear_relu", "fp16x3_cuda", "float32", "ieee", "forward", ODD + NAMED, 5e-7),
    ("linear_relu", "fp16x3_cuda_once", "float32", "ieee", "forward", ODD + NAMED, 5e-7),
    ("linear_relu", "tf32x3", "float32", "ieee", "forward", ODD + NAMED, 5e-7),
    ("linear_relu", "fused_backward", "bfloat16", "ieee", BOTH, ODD + NAMED, 6e-3),
    ("linear_relu", "fused_backward", "float16", "ieee", BOTH, ODD + NAMED[:2], 1e-3),
    ("linear_relu", "fused_backward", "float32", "ieee", BOTH, ODD + NAMED, 1e-5),
    ("linear_relu", "fp16x3_backward", "float32", "ieee", BOTH, ODD + NAMED, 1e-5),
    ("linear_relu", "fp16x3_cuda", "float32", "ieee", BOTH, ODD + NAMED, 1e-5),
    *(
        ("linear_relu", step, "bfloat16", "ieee", "forward", ODD + NAMED[:2], 4e-3)
        for step in ("step_mma", "step_wgmma", "step_multicast")
    ),
    *(
        (operation, *kind, "forward", BLOCKS[: 6 if kind[1] == "bfloat16" else 3], allowed)
        for operation in ("conv_block", "conv_block_tanh")
        for kind, allowed in (
            (("whole", "bfloat16", "ieee"), 8e-3),
            (("whole", "float32", "tf32"), 1.5e-3),
            (("whole", "float32", "bf16x3"), 1e-4),
            (("triton", "bfloat16", "ieee"), 8e-3),
            (("triton", "float32", "tf32"), 1.5e-3),
            (("triton", "float32", "bf16x3"), 1e-4),
        )
    ),
    *(("conv_block", form, "bfloat16", "ieee", BOTH, BLOCKS[:2], 2e-2) for form in ("whole", "triton")),
    *(
        (operation, name, "bfloat16", "ieee", "forward", [(rows, width) for rows in ROWS for width in widths], 1.2e-2)
        for operation in ("mlp2", "mlp3")
        for name, widths in (
            ("fused", (16, 33, 64, 128, 256)),
            ("fused_cuda", (16, 32, 64, 128, 256)),
            ("layers_cuda", (33, 64, 285)),
        )
    ),
]


@pytest.mark.parametrize(
    ("workload", "name", "allowed"),
    [
        pytest.param(Workload(operation, shape, dtype, mode, way), name, allowed, id="-".join(map(str, words)))
        for operation, name, dtype, mode, way, shapes, allowed in RIGHT
        for shape in shapes
        for words in [(operation, name, dtype, mode, "x".join(map(str, shape)), *([way] if way == BOTH else []))]
    ],
)
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
            found = check.judge(run(), problem)
            assert found.ok, (draw, found.reason)
            assert found.error is not None
            assert found.error <= few * allowed, draw


@each_linear
def test_no_bias_any_rank_and_any_stride_are_taken(name: str) -> None:
    call = CALLS[name]
    x, weight, bias = call.ready()
    dtype, allowed = x.dtype, {torch.bfloat16: 4e-3, float32: 5e-4 if "tf32" in name else 1e-6}[x.dtype]
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


@each_differentiable
def test_gradients_are_the_same_each_time(name: str) -> None:
    call = CALLS[name]
    given = leaves(call.ready())
    grad = torch.randn_like(call.form(*given))
    first, *others = ([*torch.autograd.grad(call.form(*given), given, grad)] for _ in range(3))
    for later in others:
        for one, other in zip(first, later, strict=True):
            assert torch.equal(one, other)


OPCHECKED: dict[str, Callable[[Tensors], tuple[Any, tuple[Any, ...]]]] = {
    "triton": lambda given: (torch.ops.hypatia.linear_relu_triton, (*given, "ieee")),
    "triton tf32": lambda given: (torch.ops.hypatia.linear_relu_triton, (*given, "tf32")),
    "cuda": lambda given: (torch.ops.hypatia.linear_relu_cuda, (*given, "ieee")),
    "cuda tf32": lambda given: (torch.ops.hypatia.linear_relu_cuda, (*given, "tf32")),
    "cuda, odd": lambda given: (torch.ops.hypatia.linear_relu_cuda, (*given, "ieee")),
    "cuda, few rows": lambda given: (torch.ops.hypatia.linear_relu_cuda, (*given, "ieee")),
    "fused": lambda given: (torch.ops.hypatia.linear_relu_fused, given),
    "split": lambda given: (torch.ops.hypatia.linear_relu_split, (*given, "fp16x3")),
    "fp16x3": lambda given: (torch.ops.hypatia.linear_relu_fp16x3, given),
    "fp16x3 in CUDA": lambda given: (torch.ops.hypatia.linear_relu_fp16x3_cuda, given),
    "one kernel": lambda given: (torch.ops.hypatia.conv_block_fused, (*given, "none", "ieee", "whole", True, None)),
    "two kernels": lambda given: (torch.ops.hypatia.conv_block_fused, (*given, "none", "ieee", "triton", True, None)),
    "mlp": lambda given: (torch.ops.hypatia.mlp, (given[0], [*given[1:3]], [*given[3:]], "ieee")),
    "mlp_cuda": lambda given: (torch.ops.hypatia.mlp_cuda, (given[0], [*given[1:3]], [*given[3:]])),
    "mlp_layers": lambda given: (torch.ops.hypatia.mlp_layers, (given[0], [*given[1:3]], [*given[3:]], "ieee")),
}


@pytest.mark.parametrize("name", OPCHECKED)
def test_opcheck_passes(name: str) -> None:
    call = CALLS[name]
    given = call.ready()
    for one in (given, leaves(given)) if call.differentiable else (given,):
        operator, arguments = OPCHECKED[name](one)
        torch.library.opcheck(operator.default, arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, float32])
def test_opcheck_passes_for_gradients(dtype: torch.dtype) -> None:
    x, weight, bias = matrices(64, 128, 96, dtype)
    y = backward.linear_relu_fused(x, weight, bias)
    torch.library.opcheck(torch.ops.hypatia.linear_relu_gradients.default, (y, x, weight, y))
    if dtype == float32:
        CALLS["fp16x3"].ready()
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


@each_call
def test_a_cuda_graph_replays_it(name: str) -> None:
    call = CALLS[name]
    given = call.ready()
    wanted = call.form(*given)
    graph, out = graphed(lambda: call.form(*given))
    for _ in range(2):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, wanted)
    given[0].neg_()  # a graph reads what is there now
    graph.replay()
    assert torch.equal(out, call.form(*given))


@each_differentiable
def test_a_cuda_graph_replays_its_gradients(name: str) -> None:
    call = CALLS[name]
    given = leaves(call.ready())
    grad = torch.randn_like(call.form(*given))

    def step() -> Tensors:
        return torch.autograd.grad(call.form(*given), given, grad)

    wanted = step()
    graph, found = graphed(step)
    for one in found:
        one.fill_(float("nan"))
    graph.replay()
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@each_call
def test_what_is_captured_before_there_is_a_plan_is_computed_by_python(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = CALLS[name]
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


@each_call
def test_torch_compile_takes_it_whole(name: str) -> None:
    call = CALLS[name]
    given = call.ready()
    torch.compiler.reset()
    form = call.form
    compiled = torch.compile(lambda *tensors: form(*tensors) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), form(*given) * 2)


@each_differentiable
def test_torch_compile_trains_it(name: str) -> None:
    call = CALLS[name]
    one = call.ready()
    one, other = leaves(one), leaves(one)
    torch.compiler.reset()
    compiled = torch.compile(call.form, fullgraph=True, backend="aot_eager")
    compiled(*one).float().square().sum().backward()
    call.form(*other).float().square().sum().backward()
    for mine, theirs in zip(one, other, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.slow
def test_inductor_takes_it_whole() -> None:
    x, weight, bias = CALLS["fused"].ready()
    form = backward.linear_relu_fused
    torch.compiler.reset()
    compiled = torch.compile(lambda x, weight, bias: form(x + 1, weight, bias) * 2, fullgraph=True)
    assert error(compiled(x, weight, bias), form(x + 1, weight, bias).double() * 2) < 1e-2


@each_call
def test_it_runs_on_the_callers_stream_and_the_host_does_not_wait(name: str) -> None:
    call = CALLS[name]
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
def test_in_inference_mode_it_gives_an_inference_tensor(name: str) -> None:
    call = CALLS[name]
    given = call.ready()
    wanted = call.form(*given)
    with torch.inference_mode():
        for _ in range(2):
            found = call.form(*given)
            assert found.is_inference()
            assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "name", ["triton", "cuda", "fused", "fused, medium", "one kernel", "two kernels", "mlp", "mlp_cuda"]
)
def test_autocast_casts_its_tensors(name: str) -> None:
    call = CALLS[name]
    given = call.ready()
    wanted = call.form(*given).double()
    with torch.autocast(DEVICE, torch.bfloat16):
        for _ in range(3):
            found = call.form(*(one.float() for one in given))
            assert found.dtype == torch.bfloat16
            assert error(found, wanted) < 1e-2


# ---------------------------------------------------------------- many calls


def host_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_ten_thousand_calls_in_four_threads_and_two_streams_each_are_right_and_keep_no_memory() -> None:
    x, weight, bias = CALLS["fused"].ready()
    single = CALLS["split"].ready()
    right = [backward.linear_relu_fused(x * thread, weight, bias) for thread in range(4)]
    right_single = split(*single)
    owns, streams = [x * thread for thread in range(4)], [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()

    def work(thread: int) -> list[tuple[int, int]]:
        own, wrong = owns[thread], []
        for number in range(2500):
            with torch.cuda.stream(streams[thread] if number % 2 else torch.cuda.default_stream()):
                found = backward.linear_relu_fused(own, weight, bias)
                if number % 50 < 2:
                    beside = split(*single)
                    torch.cuda.current_stream().synchronize()
                    if not torch.equal(found, right[thread]) or not torch.equal(beside, right_single):
                        wrong.append((thread, number))
        return wrong

    def run(pool: ThreadPoolExecutor) -> None:
        assert [one for wrong in pool.map(work, range(4)) for one in wrong] == []
        torch.cuda.synchronize()
        gc.collect()

    with ThreadPoolExecutor(4) as pool:
        run(pool)  # allocators, threads and streams have what they need
        device, host = torch.cuda.memory_allocated(), host_kb()
        run(pool)
    assert torch.cuda.memory_allocated() == device
    assert host_kb() - host < 20_000


def test_thousands_of_addresses_take_no_more_memory_each_time() -> None:
    """A tensor map is made for an address and kept, but not for ever."""
    _, weight, bias = CALLS["triton"].ready()
    count = 3000
    pool = normal(count + 64, 128)

    def run() -> None:
        for number in range(count):
            triton(pool[number : number + 64], weight, bias)
        torch.cuda.synchronize()

    run()
    host = host_kb()
    run()
    assert host_kb() - host < 5_000
    assert error(triton(pool[7:71], weight, bias), eager(pool[7:71].double(), weight.double(), bias.double())) < 4e-3


def test_threads_that_record_at_once_all_get_the_right_answer() -> None:
    _, weight, bias = CALLS["triton"].ready()

    def work(thread: int) -> list[int]:
        wrong = []
        for rows in range(1, 12):
            x = torch.full((rows, 128), float(thread), device=DEVICE, dtype=torch.bfloat16)
            exact = eager(x.double(), weight.double(), bias.double())
            wrong += [rows] if error(triton(x, weight, bias), exact) > 4e-3 else []
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(work, range(4))] == [[]] * 4


# ---------------------------------------------------------------- what is refused, and how

REFUSALS = (IndexError, RuntimeError, ValueError)
"""What PyTorch raises for tensors that do not fit."""


def refused(run: Callable[[], Any], message: str) -> None:
    """Each time it is called, and the device is sound afterwards."""
    for _ in range(2):
        with pytest.raises(REFUSALS, match=message):
            run()
        if DEVICE == "cuda":
            torch.cuda.synchronize()


@each_linear
def test_a_misfit_is_refused_as_pytorch_does(name: str) -> None:
    call = CALLS[name]
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
def test_a_tensor_that_was_freed_is_refused(name: str) -> None:
    call = CALLS[name]
    given = call.ready()
    wanted = call.form(*given)
    freed = given[0].clone()
    freed.untyped_storage().resize_(0)
    refused(lambda: call.form(freed, *given[1:]), "freed|storage|out of bounds")
    assert torch.equal(call.form(*given), wanted)


def test_what_the_kernels_do_not_take_is_refused() -> None:
    x, weight, bias = CALLS["triton"].ready()
    for dtype in (torch.float64, torch.int32):
        for form in (triton, tf32, cuda, cuda_tf32, split, split_tf32):
            wrong = [one.to(dtype) for one in (x, weight, bias)]
            refused(lambda form=form, wrong=wrong: form(*wrong), "all must be one of")
    given = block(2, 32, 32)
    refused(lambda: in_two(x, *given[1:]), "4D")
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
def test_nan_infinities_and_denormals_are_where_pytorch_has_them(name: str) -> None:
    call = CALLS[name]
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


@pytest.mark.parametrize("name", ["fused", "fp16x3"])
def test_gradients_have_nan_and_infinities_where_pytorchs_have(name: str) -> None:
    call = CALLS[name]
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


@pytest.mark.parametrize("name", ["split", "fp16x3"])
def test_denormals_keep_their_digits(name: str) -> None:
    call = CALLS[name]
    x, weight, _ = call.ready()
    tiny, large = (2.0**-135 * x.double()).float(), 2.0**60 * weight
    assert float(tiny.abs().max()) < torch.finfo(float32).smallest_normal
    for _ in range(2):
        assert error(call.form(tiny, large, None), eager(tiny.double(), large.double(), None)) < 1e-6


@pytest.mark.parametrize("name", ["one kernel", "two kernels"])
def test_nan_stays_in_its_image(name: str) -> None:
    call = CALLS[name]
    given = call.ready()
    given[0][1, 3, 2, 2] = float("nan")
    for _ in range(2):
        found = call.form(*given)
        assert found[1].isnan().all()
        assert not found[0].isnan().any()


# ---------------------------------------------------------------- how long a call takes


def walls_us(run: Callable[[], Any], calls: int = 200) -> float:
    """Median µs of a synchronised call."""
    found = []
    for number in range(calls + 20):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if number >= 20:
            found.append(1e6 * (time.perf_counter() - start))
    return statistics.median(found)


def step(form: Form, given: Tensors) -> Callable[[], Any]:
    """y and all gradients, as the lab's variants take them."""
    own = leaves(given)
    grad = torch.randn_like(form(*own))

    def run() -> Tensors:
        y = form(*own)
        return y.detach(), *torch.autograd.grad(y, own, grad)

    return run


def called(form: Form, plain: Form, given: Tensors) -> tuple[Callable[[], Any], Callable[[], Any]]:
    return lambda: form(*given), lambda: plain(*given)


def stepped(form: Form, plain: Form, given: Tensors) -> tuple[Callable[[], Any], Callable[[], Any]]:
    return step(form, given), step(plain, given)


def plain_block(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    weight, bias, gamma, beta = others
    return conv_block.conv_block(x, weight, bias, gamma, beta, "none")


def of_variants(operation: str, name: str, shape: tuple[int, ...], dtype: str) -> tuple[Callable[[], Any], ...]:
    workload = Workload(operation, shape, dtype)
    if missing := variants(operation)[name].needs(workload, DEVICE):
        pytest.skip(missing)
    inputs = workload.inputs(DEVICE)
    return tuple(variants(operation)[each].factory(workload, inputs) for each in (name, "eager"))


def counted() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """With counters that are cleared once, as the variant has it."""
    given, counters = block(5, 128, 128), torch.zeros(5, 2, dtype=torch.int32, device=DEVICE)
    return called(lambda *own: blocks.fused_conv_block(*own, form="whole", counters=counters), plain_block, given)


SMALL, MEDIUM = (256, 256, 512), (1024, 784, 2048)
PRICED: dict[str, Callable[[], tuple[Callable[[], Any], ...]]] = {
    "triton bfloat16 256x256x512": lambda: called(triton, eager, matrices(*SMALL)),
    "triton bfloat16 1024x784x2048": lambda: called(triton, eager, matrices(*MEDIUM)),
    "triton tf32": lambda: called(tf32, eager, matrices(*MEDIUM, float32)),
    "cuda bfloat16 256x256x512": lambda: called(cuda, eager, matrices(*SMALL)),
    "cuda bfloat16 1024x784x2048": lambda: called(cuda, eager, matrices(*MEDIUM)),
    "cuda tf32": lambda: called(cuda_tf32, eager, matrices(*MEDIUM, float32)),
    "cuda, odd": lambda: called(cuda, eager, matrices(913, 713, 715)),
    "cuda, few rows": lambda: called(cuda, eager, matrices(3, 376, 3181)),
    "fp16x3": lambda: called(split, eager, matrices(*MEDIUM, float32)),
    "tf32x3": lambda: called(split_tf32, eager, matrices(*MEDIUM, float32)),
    "fp16x3_once": lambda: of_variants("linear_relu", "fp16x3_once", MEDIUM, "float32"),
    "fused_backward bfloat16 256x256x512": lambda: stepped(backward.linear_relu_fused, eager, matrices(*SMALL)),
    "fused_backward bfloat16 1024x784x2048": lambda: stepped(backward.linear_relu_fused, eager, matrices(*MEDIUM)),
    "fused_backward float32": lambda: stepped(backward.linear_relu_fused, eager, matrices(*MEDIUM, float32)),
    "fp16x3_backward": lambda: stepped(tensor.linear_relu_fp16x3, eager, matrices(*MEDIUM, float32)),
    "fp16x3_cuda": lambda: called(tensor.linear_relu_fp16x3_cuda, eager, matrices(*MEDIUM, float32)),
    "fp16x3_cuda_once": lambda: of_variants("linear_relu", "fp16x3_cuda_once", MEDIUM, "float32"),
    "fp16x3_cuda, a step": lambda: stepped(tensor.linear_relu_fp16x3_cuda, eager, matrices(*MEDIUM, float32)),
    "one kernel": counted,
    "one kernel, a step": lambda: stepped(whole, plain_block, block(5, 128, 128)),
    "two kernels": lambda: called(in_two, plain_block, block(5, 128, 128)),
    "two kernels, a step": lambda: stepped(in_two, plain_block, block(5, 128, 128)),
    "mlp_cuda": lambda: of_variants("mlp3", "fused_cuda", (65536, 64), "bfloat16"),
    "mlp": lambda: of_variants("mlp3", "fused", (65536, 64), "bfloat16"),
    "mlp_layers": lambda: of_variants("mlp3", "layers_cuda", (4227, 293), "bfloat16"),
    "egraph_split_called": lambda: of_variants("mlp", "egraph_split_called", graph_optimizer.MODELS[0], "float32"),
}
"""Row → a call of ours, and eager's."""


@pytest.mark.slow
@pytest.mark.parametrize("row", PRICED)
def test_whoever_waits_for_a_call_waits_no_longer_than_for_eagers(row: str) -> None:
    if DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("tuned for compute capability 9.0")
    own, usual = PRICED[row]()
    ratios = [walls_us(own) / walls_us(usual) for _ in range(3)]
    assert statistics.median(ratios) <= 1.02, ratios


FRESH = """
import sys, time
import torch
from hypatia_lab.kernels import plans
from hypatia_lab.operations.conv_block import own as conv_block_kernels
from hypatia_lab.operations.linear_relu import tensor_cores

plans.DEVICES = {"cuda"}
kind = {"device": "cuda", "dtype": torch.bfloat16}
x, weight, bias = torch.ones(1024, 784, **kind), torch.ones(2048, 784, **kind), torch.ones(2048, **kind)
torch.cuda.synchronize()
start = time.perf_counter()
tensor_cores.linear_relu_triton(x, weight, bias, "ieee")
torch.cuda.synchronize()
print(time.perf_counter() - start, "triton" in sys.modules)
"""


@pytest.mark.slow
def test_a_fresh_process_calls_what_is_planned_without_triton_and_at_once() -> None:
    said = ""
    for _ in range(2):  # the first one records
        done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = done.stdout
    seconds, imported = said.split()
    assert imported == "False"
    assert float(seconds) < 0.01
