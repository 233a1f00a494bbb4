"""The convolution block as S000 built it: three hand-written kernels with their results in memory in between.

A convolution with one thread an output, statistics with one block a plane, and the rest with one thread an element
(``kernels/conv_block/conv_block.cu``; on a CPU the same loops, ``kernels/conv_block/conv_block.cpp``). The memory in
between comes from torch's allocator, or (``naive_malloc``) from the driver in every call, as S000's first form had it.
Forward only. x is ``(N, C_in, H, W)``, W ``(C_out, C_in, 3, 3)``, b (or None), γ and β ``(C_out)``, y ``(N, C_out, H,
W)``; all of one floating dtype on one device.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.operands import ensure_no_gradient
from hypatia_lab.messages import unknown
from hypatia_lab.operations.conv_block import OPERATIONS, PARAMETERS, checked
from hypatia_lab.operations.operators import operator
from hypatia_lab.operations.torch_forms import bind
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

WAYS = {
    "naive": "three kernels",
    "naive_malloc": "three kernels, cudaMalloc each call",
    "threaded": "three loops on all cores",
}
"""Variant → its label. ``naive`` runs on either kind of device; what lies between its kernels comes from torch's
allocator, and of ``naive_malloc`` from the driver in every call."""

SOURCE = "conv_block/conv_block"

THREADS = 256
"""Of a block; the statistics kernel is written for so many."""

WORDS = 2**32
"""Dropout compares random numbers below this with p times this."""


@contextlib.contextmanager
def _between(way: str, y: torch.Tensor) -> Iterator[tuple[torch.Tensor | int, torch.Tensor | int]]:
    """Memory for what lies between the kernels: the convolution, of y's kind, and two sums a plane.

    Tensors; of ``naive_malloc`` addresses, given back to the driver in the end. Sums are float64 for float64, else
    float32.
    """
    sums, count = torch.float64 if y.dtype == torch.float64 else torch.float32, 2 * math.prod(y.shape[:2])
    if way == "naive_malloc":
        with loader.device_memory(y.nbytes) as z, loader.device_memory(count * sums.itemsize) as statistics:
            yield z, statistics
    else:
        yield torch.empty_like(y), y.new_empty(count, dtype=sums)


def _launch(
    tensors: tuple[torch.Tensor | None, ...],
    z: torch.Tensor | int,
    statistics: torch.Tensor | int,
    y: torch.Tensor,
    sizes: tuple[int, ...],
    tanh: bool,
    dropout: tuple[int, int],
) -> None:
    """The three kernels on torch's current stream; ``z`` and ``statistics`` are tensors or addresses."""
    x, weight, bias, gamma, beta = tensors
    batch, _, channels, height, width = sizes
    planes, pixels = batch * channels, height * width
    scalars = loader.SCALARS[loader.dtype_name(y.dtype)]

    def kernel(name: str, *more: bool) -> loader.Launch:
        return loader.cuda_launcher(SOURCE, f"conv_block_{name}", *scalars, *more)

    grid, block = (-(-planes * pixels // THREADS),), (THREADS,)
    kernel("convolve")(grid, block, x, weight, bias, z, *sizes)
    kernel("statistics")((planes,), block, z, statistics, planes, pixels)
    finish = kernel("finish", tanh)
    finish(grid, block, z, statistics, gamma, beta, y, planes, channels, pixels, *dropout)


def unable(way: str, device: str) -> str:
    """Why ``way`` does not run on a ``device``; empty: it does."""
    if way == "naive_malloc" and device != "cuda":
        return loader.NO_GPU
    if way == "threaded" and device != "cpu":
        return "needs a CPU"
    return loader.cuda_missing() if device == "cuda" else loader.cpp_missing()


@operator("conv_block_pipeline")
def conv_block_pipeline(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    approximate: str,
    p: float,
    seed: int,
    way: str,
) -> torch.Tensor:
    """The block by ``way`` of :data:`WAYS`, forward only, y contiguous; strided inputs are copied first.

    ``approximate`` is GELU's ("none" or "tanh"). Each element is dropped with probability ``p``, the others divided by
    1 − p; the random number follows from ``seed`` and the place in y alone, so it is the same on every device.
    Raises ``ValueError`` on a misfit.
    """
    if way not in WAYS:
        raise ValueError(unknown("way", way, WAYS))
    checked(x, weight, bias, gamma, beta, approximate, p)
    if missing := unable(way, x.device.type):
        raise ValueError(f"{way} on x: {missing}")
    y = x.new_empty(x.shape[0], weight.shape[0], *x.shape[2:])
    if y.numel() == 0:
        return y
    tensors = tuple(None if tensor is None else tensor.contiguous() for tensor in (x, weight, bias, gamma, beta))
    sizes = (x.shape[0], x.shape[1], *y.shape[1:])
    tanh, dropout = approximate == "tanh", (round(p * WORDS), seed)
    with _between(way, y) as (z, statistics):
        if way == "naive_malloc" or x.is_cuda:
            _launch(tensors, z, statistics, y, sizes, tanh, dropout)
        else:
            function = f"conv_block_{loader.dtype_name(x.dtype)}"
            last = (int(tanh), *dropout, int(way == "threaded"))
            loader.call_cpp(SOURCE, function, *tensors, z, statistics, y, *sizes, *last)
    return y


conv_block_pipeline.register_fake(lambda x, weight, *others: x.new_empty(x.shape[0], weight.shape[0], *x.shape[2:]))


def pipeline(
    way: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    *,
    approximate: str = "none",
    p: float = 0.0,
    seed: int = 0,
) -> torch.Tensor:
    """y = dropout(GELU(InstanceNorm2d(Conv2d(x)))), (N, C_out, H, W), by ``way`` of :data:`WAYS`.

    ``approximate``, ``p`` and ``seed`` are those of :func:`conv_block_pipeline`.
    Raises ``ValueError`` as :func:`conv_block_pipeline` does, and for a tensor that requires a gradient.
    """
    ensure_no_gradient(dict(zip(PARAMETERS, (x, weight, bias, gamma, beta), strict=True)), way)
    return torch.ops.hypatia.conv_block_pipeline(x, weight, bias, gamma, beta, approximate, p, seed, way)


# ---------------------------------------------------------------- the variants


def _needs(way: str, workload: Workload, device: str) -> str:
    return unable(way, device)


def _run(way: str, workload: Workload, inputs: Inputs) -> Run:
    return bind(partial(pipeline, way, approximate=OPERATIONS[workload.operation]), inputs, PARAMETERS)


for _operation in OPERATIONS:
    for _way in WAYS:
        _origin = "own" if _way == "threaded" else "rebuilt"
        # With PyTorch as installed these kernels compute as ever: its switches reach its own calls alone.
        _loops = partial(variant, _operation, origin=_origin, maths=("ieee", "default"), tags=("document",))
        _loops(_way, needs=partial(_needs, _way), label=WAYS[_way])(partial(_run, _way))
