"""Linear+ReLU: every variant that runs here, at odd shapes and ranks, as a custom operation and compiled."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cuda_sources
import pytest
import torch
from kernel_tensors import DEVICE, error, matrices, needs_compiler, on_gpu

from hypatia_lab.kernels import loader
from hypatia_lab.operations import linear_relu
from hypatia_lab.operations.linear_relu import ladder
from hypatia_lab.variants import variants
from hypatia_lab.workloads import MATH, Workload, unaligned


def tensors(*batch: int, inner: int = 24, outer: int = 40, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return matrices(*batch, inner=inner, outer=outer, dtype=dtype, device=DEVICE, seed=1)


OWN = ["naive", "cublas_relu", "aten"]
FORMS = [*OWN, "epilogue", "fused_backward", *ladder.STEPS]


def operation(name: str, dtype: str = "float32") -> Any:
    """The function behind a variant: of x, weight and bias, which may be None. Skips where it does not run."""
    direction = "forward_backward" if name == "fused_backward" else "forward"
    missing = variants("linear_relu")[name].needs(
        Workload("linear_relu", (1, 1, 1), dtype, direction=direction), DEVICE
    )
    if missing:
        pytest.skip(missing)
    if name in ladder.STEPS:
        return partial(ladder.ladder, name)
    if name == "aten":
        return linear_relu.load_aten()
    short = {"cublas_relu": "cublas", "fused_backward": "fused"}
    return getattr(torch.ops.hypatia, f"linear_relu_{short.get(name, name)}")


def agrees(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """As the checker judges it: relative to the float64 answer, with the dtype's own rounding allowed."""
    name = str(x.dtype).removeprefix("torch.")
    shape = (max(1, x.reshape(-1, x.shape[-1]).shape[0]), x.shape[-1], weight.shape[0])
    allowed = Workload("linear_relu", shape, name).tolerance()
    expected = linear_relu.reference(x, weight, bias)
    assert out.shape == expected.shape
    assert out.dtype == x.dtype
    assert error(out, expected) <= allowed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_any_rank_of_batch_strided_and_unaligned_inputs_and_a_missing_bias_are_taken(name: str, dtype: str) -> None:
    run, (x, weight, bias) = operation(name, dtype), tensors(24, inner=40, outer=136, dtype=getattr(torch, dtype))
    batches = [x.view(2, 3, 4, 40), x.view(2, 12, 40), x[0], x[:0], x.view(2, 12, 40)[:, :0]]
    for case in (*batches, torch.stack([x, -x], -1)[..., 0], unaligned(x)):
        agrees(run(case, weight, bias), case, weight, bias)
    agrees(run(x, weight, None), x, weight, None)
    agrees(run(x, weight.t().contiguous().t(), bias), x, weight, bias)
    if name in ladder.STEPS:
        torch.testing.assert_close(run(x[:, :0], weight[:, :0], bias), bias.relu().expand(24, 136))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_nan_and_infinity_go_through_as_in_torch(name: str, dtype: str) -> None:
    run, (x, weight, bias) = operation(name, dtype), tensors(4, dtype=getattr(torch, dtype))
    x[0, 0], x[1, 0], x[2, 0] = float("nan"), float("inf"), -float("inf")
    expected = torch.relu(torch.nn.functional.linear(x, weight, bias))
    rtol, atol = (1e-4, 1e-4) if dtype == "float32" else (2e-2, 1e-2)
    torch.testing.assert_close(run(x, weight, bias), expected, equal_nan=True, rtol=rtol, atol=atol)


TO_THE_LAST_BYTE = """
import ctypes, mmap
from functools import partial

import torch

from hypatia_lab.operations.linear_relu import ladder


def last(*shape):
    # In memory behind which nothing may be read.
    found = torch.randn(*shape).to(dtype)
    pages = -(-found.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    behind = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + pages
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(behind), mmap.PAGESIZE, 0) == 0
    placed = torch.frombuffer(memory, dtype=dtype, count=found.numel(), offset=pages - found.nbytes)
    return placed.view(shape).copy_(found)


steps = [partial(ladder.ladder, name) for name, step in ladder.STEPS.items() if step.device == "cpu"]
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    given = last(7, 264), last(44, 264), last(44)
    for run in (torch.ops.hypatia.linear_relu_naive, *steps):
        torch.testing.assert_close(run(*given), torch.nn.functional.linear(*given).relu(), rtol=2e-2, atol=2e-2)
print("read", flush=True)
"""


@needs_compiler
def test_nothing_behind_the_operands_is_read() -> None:
    done = subprocess.run([sys.executable, "-c", TO_THE_LAST_BYTE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


@pytest.mark.parametrize("name", ["naive", "cublas_relu", "blocked"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, b: (x[..., :-1], w, b), "do not fit"),
        (lambda x, w, b: (x, w[0], b), "do not fit"),
        (lambda x, w, b: (x, w, b[:-1]), "bias"),
        (lambda x, w, b: (x.double(), w, b), "weight is torch.float32"),
        (lambda x, w, b: (x.int(), w.int(), b.int()), "all must be one of"),
    ],
)
def test_a_misfit_is_refused_by_name(name: str, change: Any, message: str) -> None:
    run = operation(name)
    with pytest.raises((ValueError, RuntimeError), match=message):
        run(*change(*tensors(6)))


@pytest.mark.cuda
@on_gpu
@pytest.mark.parametrize("name", ["naive", "cublas_relu", "step_shared"])
def test_tensors_on_two_devices_are_refused(name: str) -> None:
    x, weight, bias = tensors(6)
    with pytest.raises((ValueError, RuntimeError), match="device"):
        operation(name)(x, weight.cpu(), bias)


def test_opcheck_passes_for_the_in_place_relu() -> None:
    operation("cublas_relu")
    torch.library.opcheck(torch.ops.hypatia.relu_inplace.default, (tensors(6)[0],))


def test_the_in_place_relu_refuses_a_strided_tensor() -> None:
    operation("cublas_relu")
    with pytest.raises((ValueError, RuntimeError), match="contiguous"):
        torch.ops.hypatia.relu_inplace(tensors(6)[0].t())


def test_the_cuda_sources_name_every_dtype() -> None:
    assert set(loader.SCALARS) == set(MATH)


@pytest.mark.parametrize(
    ("source", "kernel"),
    [("linear_relu/naive", "linear_relu_naive"), ("linear_relu/relu_inplace", "relu_inplace")],
)
def test_the_cuda_sources_build_to_machine_code(source: str, kernel: str, tmp_path: Path) -> None:
    instances = [loader.instance_of(kernel, *pair) for pair in loader.SCALARS.values()]
    cuda_sources.compiles_without_spills(tmp_path, source, instances)
