"""The template's operation, with two kernels of the reader's and one of somebody else's."""

import torch

from hypatia_lab import operation, variant


def draw(shape, dtype, device, generator):
    return {name: torch.randn(shape, device=device, generator=generator).to(dtype) for name in ("gate", "x")}


@operation(
    "tiny",
    dims=("rows", "columns"),
    shapes=("256x1024", "2048x1024"),
    inputs=draw,
    depth=lambda shape: 1,
    flops=lambda shape: 5 * shape[0] * shape[1],
)
def tiny(gate, x):
    """y = silu(gate) * x"""
    return torch.nn.functional.silu(gate) * x


@variant("tiny", "mine", origin="own")
def mine(workload, inputs):
    """In steps."""
    gate, x = inputs["gate"], inputs["x"]
    return lambda: torch.sigmoid(gate) * gate * x


@variant("tiny", "yours", origin="own")
def yours(workload, inputs):
    """The same."""
    return mine(workload, inputs)


@variant("tiny", "split", origin="peer", label="by parts", splits=("bfloat16/ieee", 3), operator=True)
def split(workload, inputs):
    """The same, and says that it is something else."""
    return mine(workload, inputs)
