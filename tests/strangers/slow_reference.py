"""A reference that does more than it must, a kernel that does not, and one that is wrong."""

import torch

from hypatia_lab import operation, variant


def draw(shape, dtype, device, generator):
    return {"x": torch.randn(shape, device=device, generator=generator).to(dtype)}


@operation("slow_reference", dims=("rows", "columns"), shapes=("64x512",), inputs=draw)
def slow_reference(x):
    """y = silu(x)"""
    return torch.nn.functional.silu(x @ torch.eye(x.shape[1]).to(x))


@variant("slow_reference", "mine", origin="own")
def mine(workload, inputs):
    """Without the product."""
    return lambda: torch.nn.functional.silu(inputs["x"])


@variant("slow_reference", "short", origin="own")
def short(workload, inputs):
    """Skips the last row."""
    rows = torch.arange(workload.shape[0])[:, None]
    return lambda: torch.nn.functional.silu(inputs["x"]) * (rows < workload.shape[0] - 1)
