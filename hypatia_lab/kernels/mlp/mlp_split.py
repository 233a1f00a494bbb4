"""Two or three equal-width Linear layers of float32, with float32's digits from float16 products, in Triton.

A first kernel writes every weight as two float16 terms. A second does all layers: as in :mod:`.mlp_triton`, a program
holds the weights, here both terms of each, and walks over tiles of rows. It splits every layer's input on the way to
the matrix units: three products of terms make one of float32. Source of the method: Ootomo and Yokota, Recovering
single precision accuracy from Tensor Cores (2022).
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.linear_relu.linear_relu_split import BOUND, magnitude, two_terms
from hypatia_lab.kernels.linear_relu.linear_relu_triton import described, early, tiles_of, wait_turn
from hypatia_lab.kernels.mlp.mlp_triton import block_of, multiprocessors, rows_at, store_rows, vector_at

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """How the second kernel is cut, for tuning: ``rows`` of x at a time, ``warps`` of a program, and so many
    ``programs`` that share one multiprocessor. Every choice computes the same."""

    rows: int
    warps: int
    programs: int = 1


# [mlp_split]
@triton.jit
def _terms(values):
    """Large and small terms of every row of ``values`` (float32), and the exponent of what takes them back."""
    bits = magnitude(values)
    largest = tl.max(tl.where(bits < 0x7F800000, bits, 0), 1)
    # Subnormal rows count as those of the least exponent: they have no more digits than fit.
    exponent = tl.maximum(largest >> 23, 1)
    large, small = two_terms(values, exponent[:, None], False)
    return large, small, exponent - (BOUND + 127)
    # [/mlp_split]


@triton.jit
def _half(exponent, OTHER: tl.constexpr):
    """2 to one half of ``exponent``, or to the ``OTHER``: their product may be out of float32's range, they are not."""
    half = (exponent + OTHER) >> 1
    return ((half + 127) << 23).to(tl.float32, bitcast=True)


# [mlp_split]
@triton.jit
def _split_weights(
    weight1, weight2, weight3, large, small, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``ROWS`` rows of one layer's weight, (out, in) as it lies in memory, padded with zeros to ``BLOCK``²."""
    wait_turn(DEPENDENT)
    o, i = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)[None, :]
    at, inside, layer = o[:, None] * WIDTH + i, (o[:, None] < WIDTH) & (i < WIDTH), tl.program_id(1)
    if layer == 0:
        values = tl.load(weight1 + at, mask=inside, other=0.0)
    elif layer == 1:
        values = tl.load(weight2 + at, mask=inside, other=0.0)
    else:
        values = tl.load(weight3 + at, mask=inside, other=0.0)
    nearest, rest, exponent = _terms(values)
    tl.store(large + (layer * BLOCK + o[:, None]) * BLOCK + i, nearest)
    tl.store(small + (layer * BLOCK + o[:, None]) * BLOCK + i, rest)
    tl.store(scales + layer * BLOCK + o, _half(exponent, 0) * _half(exponent, 1))
    # [/mlp_split]


@triton.jit
def _weight(terms, LAYER: tl.constexpr, BLOCK: tl.constexpr):
    """One kind of ``terms`` of a layer's weight."""
    o, i = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    return tl.load(terms + LAYER * BLOCK * BLOCK + o * BLOCK + i)


# [mlp_split]
@triton.jit
def _linear(h, large, small, scales, bias, LAYER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """h·Wᵀ + b in float32, by the terms of W and what its rows are scaled by."""
    h_large, h_small, exponent = _terms(h)
    y = tl.dot(h_small, tl.trans(large))  # (1)
    y = tl.dot(h_large, tl.trans(small), y)
    # Beside an infinity or a NaN the small terms are NaN: large ones alone give what IEEE arithmetic gives.
    y = tl.dot(h_large, tl.trans(large), tl.where(y == y, y, 0.0))  # (2)
    y *= _half(exponent, 0)[:, None]
    y *= tl.load(scales + LAYER * BLOCK + tl.arange(0, BLOCK))[None, :]  # (3)
    y *= _half(exponent, 1)[:, None]
    return y + vector_at(bias, WIDTH, BLOCK)[None, :]
    # [/mlp_split]


# [mlp_split]
@triton.jit
def _forward(
    x,
    large,
    small,
    scales,
    bias1,
    bias2,
    bias3,
    out,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LAYERS: tl.constexpr,
    ROWS: tl.constexpr,
    TMA: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program: every ``num_programs``-th tile of ``ROWS`` rows."""
    wait_turn(DEPENDENT)
    large1, small1 = _weight(large, 0, BLOCK), _weight(small, 0, BLOCK)
    large2, small2 = _weight(large, 1, BLOCK), _weight(small, 1, BLOCK)
    if LAYERS == 3:
        large3, small3 = _weight(large, 2, BLOCK), _weight(small, 2, BLOCK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=1):
        first = tile * ROWS
        h = x.load([first, 0]) if TMA else rows_at(x, first, rows, WIDTH, BLOCK, ROWS)
        y = _linear(h, large1, small1, scales, bias1, 0, WIDTH, BLOCK)
        y = _linear(tl.where(y < 0, 0.0, y), large2, small2, scales, bias2, 1, WIDTH, BLOCK)  # (4)
        if LAYERS == 3:
            y = _linear(tl.where(y < 0, 0.0, y), large3, small3, scales, bias3, 2, WIDTH, BLOCK)
        if TMA:
            out.store([first, 0], y)
        else:
            store_rows(out, y, first, rows, WIDTH, BLOCK, ROWS)
    # [/mlp_split]


def default_tile(width: int) -> Tile:
    """The tile for rows of ``width`` numbers: at 128 the weights' terms leave room for 64 rows' and no more."""
    return Tile(64, 4) if block_of(width) == 128 else Tile(128, 8, 2)


def forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, tile: Tile | None = None) -> Tensor:
    """Linear, ReLU, Linear (two layers) or Linear, ReLU, Linear, ReLU, Linear (three) of ``x`` (rows, width).

    ``weights`` (width, width), as (out, in), and ``biases`` (width); all contiguous, float32, on one device; 1 to 2³⁰
    rows, width at most 128. Returns (rows, width). ``tile`` replaces :func:`default_tile`.

    A product is off by at most 2⁻²¹ of itself, except by terms of elements below 2⁻¹⁶ of their row's largest: these are
    off by up to 2⁻³⁹ of that. Infinities and NaN give what IEEE arithmetic gives.
    """
    rows, width = x.shape
    tile = tile or default_tile(width)
    layers, block, out = len(weights), block_of(width), torch.empty_like(x)
    large = torch.empty(layers, block, block, dtype=torch.float16, device=x.device)
    small = torch.empty_like(large)
    scales = torch.empty(layers, block, device=x.device)
    first, second, third = [*weights, weights[0]][:3]
    programs = min(triton.cdiv(rows, tile.rows), tile.programs * multiprocessors(x))
    with torch.cuda.device_of(x):
        _split_weights[(block // 16, layers)](
            first, second, third, large, small, scales, WIDTH=width, BLOCK=block, ROWS=16, **early(True, x)
        )
        _forward[(programs,)](
            tiles_of(x, [tile.rows, block], described(x)),
            large,
            small,
            scales,
            *[*biases, biases[0]][:3],
            tiles_of(out, [tile.rows, block], described(x)),
            rows,
            WIDTH=width,
            BLOCK=block,
            LAYERS=layers,
            ROWS=tile.rows,
            TMA=described(x),
            num_warps=tile.warps,
            **early(True, x),
        )
    return out
