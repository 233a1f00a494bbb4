"""A worked example: softmax of scaled rows, in one Triton kernel on a GPU and in two calls of PyTorch anywhere.

hypatia-lab judge book/examples/scaled_softmax.py --claims book/examples/scaled_softmax.yaml --output my_book
"""

import importlib.util

import torch

from hypatia_lab import operation, variant

SCALE = 0.125
"""What attention over heads of 64 features multiplies by."""


def draw(shape, dtype, device, generator):
    """Fresh random inputs, by name."""
    rows, columns = shape
    return {"x": torch.randn(rows, columns, device=device, generator=generator).to(dtype)}


def double_scale(inputs):
    """What a well-known mistake would give, so that a wrong answer can be told which it is."""
    return {"scaled twice": torch.softmax(SCALE * SCALE * inputs["x"].double(), -1)}


@operation(
    "scaled_softmax",
    dims=("rows", "columns"),
    shapes=("512x256", "2048x1024"),
    dtypes=("float32",),
    inputs=draw,
    depth=lambda shape: shape[1],  # every output is divided by a sum over its row
    flops=lambda shape: 5 * shape[0] * shape[1],  # scale, subtract the maximum, exponential, sum, divide
    faults=double_scale,
)
def scaled_softmax(x):
    """Softmax of scaled rows: y = softmax(x / 8)"""
    return torch.softmax(SCALE * x, -1)


@variant("scaled_softmax", "in_place", origin="own")
def in_place(workload, inputs):
    """Scales into memory that is already there, then takes the softmax into it."""
    x = inputs["x"]
    out = torch.empty_like(x)

    def run():
        torch.mul(x, SCALE, out=out)
        return torch.softmax(out, -1, out=out)

    return run


def needs_triton(workload, device):
    """Why Triton cannot run here; empty when it can."""
    if device != "cuda":
        return "a Triton kernel needs a CUDA device"
    return "" if importlib.util.find_spec("triton") else "triton is not installed"


if importlib.util.find_spec("triton"):
    import triton
    import triton.language as tl

    @triton.jit
    def softmax_rows(x, out, columns, scale, BLOCK: tl.constexpr):
        """One program a row: read once, written once."""
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        inside = at < columns
        values = tl.load(x + row * columns + at, mask=inside, other=float("-inf")).to(tl.float32) * scale
        raised = tl.exp(values - tl.max(values, 0))
        tl.store(out + row * columns + at, raised / tl.sum(raised, 0), mask=inside)


@variant("scaled_softmax", "triton", origin="own", needs=needs_triton)
def triton_rows(workload, inputs):
    """One Triton kernel, one program a row."""
    x = inputs["x"]
    rows, columns = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(columns)

    def run():
        softmax_rows[(rows,)](x, out, columns, SCALE, BLOCK=block, num_warps=8 if block >= 2048 else 4)
        return out

    return run
