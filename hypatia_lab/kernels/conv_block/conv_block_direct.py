"""The 3×3 convolution of few channels in float32 itself, on vector units, in a CUDA kernel (``conv_block_direct.cu``).

Matrix units would multiply mostly zeros there, and to split operands takes longer than to multiply them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader

if TYPE_CHECKING:
    from torch import Tensor

MOST = 26
"""Channels, in and out, up to which it is quicker than three float16 products. Source: trials on an H200."""
THREADS, CHANNELS = 64, 8
"""Those that share a patch's pixels, and the most output channels that one of them sums."""


def fits(x: Tensor, outer: int, precision: str) -> bool:
    """Whether this kernel is what computes ``outer`` channels of x (N, C_in, H, W) with float32's digits ("fp16x3")."""
    few = precision == "fp16x3" and x.dtype == torch.float32 and max(x.shape[1], outer) <= MOST
    return few and x.is_cuda and not _missing(x.device.index)


@cache
def _missing(device: int) -> str:
    return loader.capability_missing((8, 0))


def covering(pixels: int, most: int, height: int, width: int) -> int:
    """Width, a power of two from 8 to ``most``, of the patches of so many ``pixels`` of which fewest cover an image; of
    equals the widest."""
    wides = [2**power for power in range(3, most.bit_length())]
    return min(wides, key=lambda wide: (-(-width // wide) * -(-height // (pixels // wide)), -wide))


def patch(images: int, height: int, width: int) -> tuple[int, int]:
    """Rows and pixels of a row of each patch: 256 in all where blocks are left for all multiprocessors, else 128 or 64,
    in the shape that fewest patches cover an image with."""
    area = images * height * width
    pixels = 256 if area >= 264 * 256 else 128 if area >= 132 * 128 else 64
    wide = covering(pixels, 64, height, width)
    return pixels // wide, wide


def convolve_direct(x: Tensor, weight: Tensor, bias: Tensor | None, moments: Tensor, tall: int, wide: int) -> Tensor:
    """x∗W + b: x (N, C_in, H, W), contiguous or channels last, contiguous weight (C_out, 9, C_in) → contiguous
    (N, H, W, C_out), all float32. ``moments`` (N, patches, 2, C_out) gets the mean and the sum of squared deviations of
    each patch of ``tall`` rows and ``wide`` pixels, both powers of two.

    A channel's nine products are summed by themselves, so that sums of many lose less.
    """
    images, inner, height, width = x.shape
    outer, pixels = weight.shape[0], tall * wide
    z = torch.empty(images, height, width, outer, device=x.device)
    if not z.numel():
        return z
    if not x.is_contiguous():
        x = x.contiguous(memory_format=torch.channels_last)
    groups = -(-outer // CHANNELS)
    padded = (-(-outer // groups) + 3) // 4 * 4
    shared = 4 * (inner * 9 * groups * padded + max(inner * (tall + 2) * (wide + 4), pixels * (outer | 1)))
    template = (inner, outer, pixels // THREADS)
    strides = inner * height * width, *((height * width, 1) if x.is_contiguous() else (1, inner))
    grid = images * -(-height // tall) * -(-width // wide)
    extents = (height, width, tall, wide.bit_length() - 1)
    with torch.cuda.device_of(x):
        # Not a dependent launch: blocks that start before others have ended crowd on the multiprocessors that are free.
        launch = loader.cuda_launcher("conv_block/conv_block_direct", "conv_block_direct", *template, shared=shared)
        launch((grid,), (THREADS * groups,), x, weight, bias, z, moments, *extents, *strides)
    return z
