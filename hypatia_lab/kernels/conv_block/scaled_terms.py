"""float32 numbers as two float16 terms each, every row scaled by a power of two, in one Triton kernel.

As Linear+ReLU splits its operands (:mod:`hypatia_lab.kernels.linear_relu.linear_relu_split`), for rows that are many
and short: a pixel's channels. Source of the method: Ootomo and Yokota, Recovering single precision accuracy from Tensor
Cores (2022).
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.linear_relu.linear_relu_split import BOUND, magnitude, two_terms
from hypatia_lab.kernels.linear_relu.linear_relu_triton import early, wait_turn

if TYPE_CHECKING:
    from torch import Tensor


# [scaled_terms]
@triton.jit
def _scaled_terms(
    source, large, small, scales, rows, inner, ROWS: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr
):
    """``ROWS`` rows a program: what takes each one's largest finite magnitude from 2^BOUND to where it was, then its
    large and small terms; an infinity's or a NaN's small term is NaN."""
    wait_turn(DEPENDENT)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at, known = row.to(tl.int64)[:, None] * inner, (row < rows)[:, None]
    largest = tl.zeros((ROWS,), tl.int32)
    for start in range(0, inner, CHUNK):
        k = start + tl.arange(0, CHUNK)[None, :]
        bits = magnitude(tl.load(source + at + k, mask=known & (k < inner), other=0.0))
        largest = tl.maximum(largest, tl.max(tl.where(bits < 0x7F800000, bits, 0), 1))  # (1)
    # Subnormal rows count as those of the least exponent: they have no more digits than fit.
    exponent = tl.maximum(largest >> 23, 1)
    # Of the least rows it is subnormal, as powers of two can be without loss.
    scale = (exponent << 23).to(tl.float32, bitcast=True) * (1.0 / 2**BOUND)
    tl.store(scales + row, scale, mask=row < rows)
    for start in range(0, inner, CHUNK):
        k = start + tl.arange(0, CHUNK)[None, :]
        inside = known & (k < inner)
        values = tl.load(source + at + k, mask=inside, other=0.0)
        nearest, rest = two_terms(values, exponent[:, None], False)  # (2)
        tl.store(large + at + k, nearest, mask=inside)
        tl.store(small + at + k, rest, mask=inside)
    # [/scaled_terms]


class Terms(NamedTuple):
    """A float32 tensor of rows as ``large`` and ``small`` terms in float16, of its shape, and the ``scales`` (rows).

    A row's scale is a power of two: a number is (large + small)·scale, off by at most 2⁻²³ of itself, or by 2⁻³⁹ of its
    row's largest.
    """

    large: Tensor
    small: Tensor
    scales: Tensor


TILE, LONGEST = 2048, 1024
"""Elements that a program holds at once, and those of one row: longer rows are read piece by piece."""


def scaled_terms(tensor: Tensor, rows: int, dependent: bool) -> Terms:
    """Terms of a contiguous float32 ``tensor`` of ``rows`` rows; ``dependent``: programmatic dependent launch."""
    inner = tensor.numel() // rows
    large = torch.empty_like(tensor, dtype=torch.float16)
    small = torch.empty_like(large)
    scales = torch.empty(rows, dtype=torch.float32, device=tensor.device)
    chunk = min(triton.next_power_of_2(inner), LONGEST)
    together = TILE // chunk
    with torch.cuda.device_of(tensor):
        _scaled_terms[(triton.cdiv(rows, together),)](
            tensor,
            large,
            small,
            scales,
            rows,
            inner,
            ROWS=together,
            CHUNK=chunk,
            **early(dependent, tensor),
        )
    return Terms(large, small, scales)
