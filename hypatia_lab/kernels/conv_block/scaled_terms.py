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
from hypatia_lab.kernels.linear_relu.linear_relu_triton import early, hopper, wait_turn

if TYPE_CHECKING:
    from torch import Tensor


# [scaled_terms]
@triton.jit
def _split(program, source, large, small, scales, rows, inner, pitch, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """``ROWS`` rows: what takes each one's largest finite magnitude from 2^BOUND to where it was, then its large and
    small terms, ``pitch`` a row; an infinity's or a NaN's small term is NaN."""
    row = program * ROWS + tl.arange(0, ROWS)
    long, known = row.to(tl.int64)[:, None], (row < rows)[:, None]
    largest = tl.zeros((ROWS,), tl.int32)
    for start in range(0, inner, CHUNK):
        k = start + tl.arange(0, CHUNK)[None, :]
        bits = magnitude(tl.load(source + long * inner + k, mask=known & (k < inner), other=0.0))
        largest = tl.maximum(largest, tl.max(tl.where(bits < 0x7F800000, bits, 0), 1))  # (1)
    # Subnormal rows count as those of the least exponent: they have no more digits than fit.
    exponent = tl.maximum(largest >> 23, 1)
    # Of the least rows it is subnormal, as powers of two can be without loss.
    scale = (exponent << 23).to(tl.float32, bitcast=True) * (1.0 / 2**BOUND)
    tl.store(scales + row, scale, mask=row < rows)
    for start in range(0, inner, CHUNK):
        k = start + tl.arange(0, CHUNK)[None, :]
        inside = known & (k < inner)
        values = tl.load(source + long * inner + k, mask=inside, other=0.0)
        nearest, rest = two_terms(values, exponent[:, None], False)  # (2)
        tl.store(large + long * pitch + k, nearest, mask=inside)
        tl.store(small + long * pitch + k, rest, mask=inside)


@triton.jit
def _scaled_terms(
    x, x_large, x_small, x_scales, x_rows, w, w_large, w_small, w_scales, w_rows, inner, pitch,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Terms of the rows of x, and then of those of w, unless there are none."""
    wait_turn(DEPENDENT)
    program, first = tl.program_id(0), tl.cdiv(x_rows, ROWS)
    if program < first:
        _split(program, x, x_large, x_small, x_scales, x_rows, inner, pitch, ROWS, CHUNK)
    elif w is not None:
        _split(program - first, w, w_large, w_small, w_scales, w_rows, inner, pitch, ROWS, CHUNK)
    # [/scaled_terms]


class Terms(NamedTuple):
    """A float32 tensor as ``large`` and ``small`` terms in float16, of its shape, and the ``scales`` of its rows, which
    are along its last dimension.

    A row's scale is a power of two: a number is (large + small)·scale, off by at most 2⁻²³ of itself, or by 2⁻³⁹ of its
    row's largest. Terms lie as :func:`pitched` lays them.
    """

    large: Tensor
    small: Tensor
    scales: Tensor


TILE, LONGEST = 2048, 1024
"""Elements that a program holds at once, and those of one row: longer rows are read piece by piece."""


def pitched(tensor: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """Room for numbers of a ``tensor``'s shape. Where tensor descriptors can hold them, rows are as far apart as those
    ask, whole packs of 16 bytes."""
    *outer, inner = tensor.shape
    pack = 1 if tensor.is_cuda and not hopper(tensor) else 16 // dtype.itemsize
    return torch.empty(*outer, -(-inner // pack) * pack, dtype=dtype, device=tensor.device)[..., :inner]


def scaled_terms(*tensors: Tensor, dependent: bool) -> list[Terms]:
    """Terms of one contiguous float32 tensor, or of two with rows of one length; ``dependent``: programmatic dependent
    launch."""
    inner, given, found = tensors[0].shape[-1], [], []
    chunk = min(triton.next_power_of_2(inner), LONGEST)
    programs = 0
    for tensor in tensors:
        rows = tensor.numel() // inner
        found.append(Terms(pitched(tensor), pitched(tensor), tensor.new_empty(rows)))
        given += [tensor, *found[-1], rows]
        programs += triton.cdiv(rows, TILE // chunk)
    given += [None, None, None, None, 0] * (2 - len(tensors))
    with torch.cuda.device_of(tensors[0]):
        _scaled_terms[(programs,)](
            *given,
            inner,
            found[0].large.stride(-2),
            ROWS=TILE // chunk,
            CHUNK=chunk,
            **early(dependent, tensors[0]),
        )
    return found
