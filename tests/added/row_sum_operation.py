"""Row sums: an operation of its own, with two variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hypatia_lab.variants import variant
from hypatia_lab.workloads import Operation, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    x = torch.rand(*workload.shape, device=device, generator=generator)
    return {"x": x.to(getattr(torch, workload.dtype))}


register(
    Operation(
        name="row_sum",
        dims=("rows", "columns"),
        summary="the sum of each row",
        make_inputs=_inputs,
        reference=lambda inputs: inputs["x"].double().sum(1),
        flops=lambda shape: shape[0] * shape[1],
        traffic=lambda shape, size: size * shape[0] * (shape[1] + 1),
        depth=lambda shape: shape[1],
    )
)


@variant("row_sum", "eager", origin="peer", baseline=True)
def eager(workload: Workload, inputs: Inputs) -> Run:
    """torch.sum over the columns."""
    return lambda: inputs["x"].sum(1)


@variant("row_sum", "product", origin="own", label="a product with ones")
def product(workload: Workload, inputs: Inputs) -> Run:
    """The matrix times a vector of ones."""
    x = inputs["x"]
    ones = x.new_ones(x.shape[1])
    return lambda: x @ ones
