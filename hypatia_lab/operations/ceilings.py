"""Operations that show what the machine can do at best: a matrix product and a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.operations.linear_relu import terms
from hypatia_lab.variants import variant
from hypatia_lab.workloads import SPLIT, Operation, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


def _matmul_inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    m, k, n = workload.shape
    dtype = getattr(torch, workload.dtype)
    a = torch.randn(m, k, device=device, generator=generator).to(dtype)
    b = torch.randn(k, n, device=device, generator=generator).to(dtype)
    if device == "cpu" and dtype.itemsize == 2:
        # In columns, as a layer keeps its weight: a processor without instructions for halves multiplies them 7 to 20
        # times as slowly row by row, and a ceiling is what the machine can do at best.
        b = b.t().contiguous().t()
    return {"a": a, "b": b}


register(
    Operation(
        name="matmul",
        dims=("m", "k", "n"),
        summary="C = A·B on random numbers, through the library",
        make_inputs=_matmul_inputs,
        reference=lambda inputs: inputs["a"].double() @ inputs["b"].double(),
        flops=lambda shape: 2 * shape[0] * shape[1] * shape[2],
        traffic=lambda shape, size: size * (shape[0] * shape[1] + shape[1] * shape[2] + shape[0] * shape[2]),
        depth=lambda shape: shape[1],
        scale=lambda inputs: {"y": terms(inputs["a"], inputs["b"]) ** 0.5 / 2},
    )
)

register(
    Operation(
        name="copy",
        dims=("elements",),
        summary="device-to-device copy of float32 numbers, read plus written bytes",
        make_inputs=lambda workload, device, generator: {
            "source": torch.randn(workload.shape[0], device=device, generator=generator).to(
                getattr(torch, workload.dtype)
            )
        },
        reference=lambda inputs: inputs["source"].double(),
        flops=lambda shape: 0,
        traffic=lambda shape, size: 2 * size * shape[0],
    )
)


@variant("matmul", "eager", origin="peer", baseline=True)
def matmul(workload: Workload, inputs: Inputs) -> Run:
    """torch.mm into a tensor that is already there."""
    a, b = inputs["a"], inputs["b"]
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    return lambda: torch.mm(a, b, out=out)


def _matrix_units(workload: Workload, device: str) -> str:
    return "" if device == "cuda" else loader.NO_GPU


def _terms(x: torch.Tensor, math: str) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` (float32) as a large and a small term: bfloat16, or float32 whose digits TF32 keeps."""
    if math == "bf16x3":
        large = x.bfloat16()
        return large, (x - large).bfloat16()
    # TF32 drops the last 13 bits; rounding to nearest by hand, so that the rest is exact.
    large = ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return large, x - large


@variant("matmul", "split", origin="own", needs=_matrix_units, maths=SPLIT, label="split product", tags=("split",))
def split(workload: Workload, inputs: Inputs) -> Run:
    """Three matrix products of split operands, added in float32: large·large + large·small + small·large."""
    a, b, math = inputs["a"], inputs["b"], workload.math

    def run() -> torch.Tensor:
        (a_large, a_small), (b_large, b_small) = _terms(a, math), _terms(b, math)
        # One product over three times the inner length, small terms first: the sum rounds once.
        left = torch.cat([a_small, a_large, a_large], 1)
        right = torch.cat([b_large, b_small, b_large], 0)
        return torch.mm(left, right) if math == "tf32x3" else torch.mm(left, right, out_dtype=torch.float32)

    return run


@variant("copy", "eager", origin="peer", baseline=True)
def copy(workload: Workload, inputs: Inputs) -> Run:
    """Tensor.copy_ into a tensor that is already there: on a GPU cudaMemcpyAsync, in a CUDA graph a memcpy node."""
    source = inputs["source"]
    out = torch.empty_like(source)
    return lambda: out.copy_(source)


@variant("copy", "copy_kernel", origin="peer", label="copy by a kernel", tags=("copy",))
def copy_kernel(workload: Workload, inputs: Inputs) -> Run:
    """The same by a kernel: PyTorch's product of a tensor and a number, which is 1 and changes no bit."""
    source = inputs["source"]
    out = torch.empty_like(source)
    return lambda: torch.mul(source, 1, out=out)
