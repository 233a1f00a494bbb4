"""Operations that show what the machine can do at best: a matrix product and a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hypatia_lab.variants import variant
from hypatia_lab.workloads import Operation, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


def _matmul_inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    m, k, n = workload.shape
    dtype = getattr(torch, workload.dtype)
    return {
        "a": torch.randn(m, k, device=device, generator=generator).to(dtype),
        "b": torch.randn(k, n, device=device, generator=generator).to(dtype),
    }


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


@variant("copy", "eager", origin="peer", baseline=True)
def copy(workload: Workload, inputs: Inputs) -> Run:
    """Tensor.copy_ into a tensor that is already there."""
    source = inputs["source"]
    out = torch.empty_like(source)
    return lambda: out.copy_(source)
