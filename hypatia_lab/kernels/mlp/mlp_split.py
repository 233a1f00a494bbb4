"""Two or three equal-width Linear layers of float32, with float32's digits from float16 products, in Triton.

A first kernel writes every weight as two float16 terms. A second does all layers: as in :mod:`.mlp_triton`, a program
holds the weights, here both terms of each, and walks over tiles of rows. It splits every layer's input on the way to
the matrix units: three products of terms make one of float32. Source of the method: Ootomo and Yokota, Recovering
single precision accuracy from Tensor Cores (2022), who also found that matrix units cut off what float32 rounds.
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

from hypatia_lab.kernels.linear_relu.linear_relu_split import BOUND, LEAST, magnitude
from hypatia_lab.kernels.linear_relu.linear_relu_triton import described, early, tiles_of, wait_turn
from hypatia_lab.kernels.mlp.mlp_triton import block_of, multiprocessors, vector_at

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """How the kernels are cut, for tuning: ``rows`` of x at a time, ``warps`` of a program, and so many ``programs``
    that share one multiprocessor. Choices differ in speed and in how sums are rounded.

    The matrix units add up ``chunk`` products (a power of two, 16 or more), the program what they return. Tensor
    ``descriptors`` fetch x and store the output, if its rows are whole 16 bytes; else every thread does. ``registers``:
    most of a thread, None for the compiler's choice.
    """

    rows: int
    warps: int
    programs: int = 1
    chunk: int = 64
    descriptors: bool = True
    registers: int | None = None


CUT_OFF = 0.25
"""What matrix units cut off a sum, in 2^-24 of it, for every 16 products that are added to others. On a GPU weights are
raised by as much, in their small terms. Source: least errors of the products of 16, 32 and 64 numbers on an H200."""


@triton.jit
def _power(exponent):
    """2^exponent as float32, -127 < exponent < 128."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _half(exponent, OTHER: tl.constexpr):
    """2 to one half of ``exponent``, or to the ``OTHER``: their product may be out of float32's range, they are not."""
    return _power((exponent + OTHER) >> 1)


@triton.jit
def _float16(values, DEVICE: tl.constexpr):
    """``values`` rounded to float16, on a ``DEVICE`` in pairs, which the compiler does not always see."""
    if DEVICE:
        rounded = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [values], dtype=tl.float16, is_pure=True, pack=2
        )
    else:
        rounded = values.to(tl.float16)
    return rounded


@triton.jit
def _exponent(magnitudes):
    """2 to this takes back what scales every row: its largest then is at least 2^BOUND and less than twice that.

    Rows below 2^-113 have no digits beyond those that fit at its scale. Beside an infinity or a NaN no output is
    finite, whatever the scale.
    """
    return tl.minimum(tl.maximum((magnitude(tl.max(magnitudes, 1)) >> 23) - (BOUND + 127), -127), 113)


# [mlp_split]
@triton.jit
def _terms(values, exponent, RAISED: tl.constexpr, DEVICE: tl.constexpr):
    """Large and small terms of ``values`` (float32) / 2^``exponent``."""
    scaled = values * _power(-exponent)
    # A number lost beside its row's largest keeps its sign, which counts where it meets an infinity.
    lost = (tl.abs(scaled) < LEAST) & (values != 0)
    large = _float16(tl.where(lost, tl.where(values < 0, -LEAST, LEAST), scaled), DEVICE)
    rest = scaled - large.to(tl.float32)
    return large, _float16(rest + scaled * RAISED if RAISED != 0 else rest, DEVICE)
    # [/mlp_split]


# [mlp_split]
@triton.jit
def _split_weights(
    weight1, weight2, weight3, large, small, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    RAISED: tl.constexpr, DEVICE: tl.constexpr, DEPENDENT: tl.constexpr,
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
    exponent = _exponent(tl.abs(values))
    nearest, rest = _terms(values, exponent[:, None], RAISED if DEVICE else 0.0, DEVICE)
    tl.store(large + (layer * BLOCK + o[:, None]) * BLOCK + i, nearest)
    tl.store(small + (layer * BLOCK + o[:, None]) * BLOCK + i, rest)
    tl.store(scales + layer * BLOCK + o, _half(exponent, 0) * _half(exponent, 1))
    # [/mlp_split]


@triton.jit
def _weight(terms, LAYER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """One kind of ``terms`` of a layer's weight, ``CHUNK`` columns at a time."""
    at = terms + (LAYER * BLOCK + tl.arange(0, BLOCK)[:, None]) * BLOCK + tl.arange(0, CHUNK)[None, :]
    chunks = ()
    for column in tl.static_range(0, WIDTH, CHUNK):
        chunks = chunks + (tl.load(at + column),)
    return chunks


@triton.jit
def _columns(values, COUNT: tl.constexpr):
    """``values`` cut into ``COUNT`` (a power of two) chunks of columns; none leaves the thread that holds it."""
    if COUNT == 1:
        chunks = (values,)
    else:
        halves = tl.reshape(values, (values.shape[0], 2, values.shape[1] // 2))
        left, right = tl.split(tl.permute(halves, (0, 2, 1)))
        chunks = _columns(left, COUNT // 2) + _columns(right, COUNT // 2)
    return chunks


# [mlp_split]
@triton.jit
def _linear(
    h, large, small, scales, bias, LAYER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DEVICE: tl.constexpr
):
    """h·Wᵀ + b in float32, by the terms of W and what its rows are scaled by; h and W come in chunks of columns."""
    largest = tl.abs(h[0])
    for chunk in tl.static_range(1, len(large)):
        largest = tl.maximum(largest, tl.abs(h[chunk]))
    exponent = _exponent(largest)
    h_large, y = (), None
    for chunk in tl.static_range(len(large)):
        nearest, rest = _terms(h[chunk], exponent[:, None], 0.0, DEVICE)
        h_large = h_large + (nearest,)
        y = tl.dot(rest, tl.trans(large[chunk]), y)  # (1)
        y = tl.dot(nearest, tl.trans(small[chunk]), y)
    # Beside an infinity or a NaN the small terms are NaN: large ones alone give what IEEE arithmetic gives.
    y = tl.dot(h_large[0], tl.trans(large[0]), tl.where(y == y, y, 0.0))  # (2)
    for chunk in tl.static_range(1, len(large)):
        # Without max_num_imprecise_acc the compiler would let the matrix units add this one, too, and cut it off.
        y += tl.dot(h_large[chunk], tl.trans(large[chunk]), max_num_imprecise_acc=1)
    y *= _half(exponent, 0)[:, None]
    y *= tl.load(scales + LAYER * BLOCK + tl.arange(0, BLOCK))[None, :]  # (3)
    y *= _half(exponent, 1)[:, None]
    return y + vector_at(bias, WIDTH, BLOCK)[None, :]
    # [/mlp_split]


@triton.jit
def _relu(y):
    return tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)


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
    CHUNK: tl.constexpr,
    TMA: tl.constexpr,
    DEVICE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program: every ``num_programs``-th tile of ``ROWS`` rows."""
    wait_turn(DEPENDENT)
    large1, small1 = _weight(large, 0, WIDTH, BLOCK, CHUNK), _weight(small, 0, WIDTH, BLOCK, CHUNK)
    large2, small2 = _weight(large, 1, WIDTH, BLOCK, CHUNK), _weight(small, 1, WIDTH, BLOCK, CHUNK)
    if LAYERS == 3:
        large3, small3 = _weight(large, 2, WIDTH, BLOCK, CHUNK), _weight(small, 2, WIDTH, BLOCK, CHUNK)
    r, i = tl.arange(0, ROWS)[:, None], tl.arange(0, CHUNK)[None, :]
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=1):
        first = tile * ROWS
        at, left = first.to(tl.int64) * WIDTH + (r * WIDTH + i), rows - first
        h = ()
        for column in tl.static_range(0, WIDTH, CHUNK):
            if TMA:
                h = h + (x.load([first, column]),)
            else:
                h = h + (tl.load(x + at + column, mask=(r < left) & (column + i < WIDTH), other=0.0),)
        y = _linear(h, large1, small1, scales, bias1, 0, WIDTH, BLOCK, DEVICE)
        y = _linear(_columns(_relu(y), BLOCK // CHUNK), large2, small2, scales, bias2, 1, WIDTH, BLOCK, DEVICE)  # (4)
        if LAYERS == 3:
            y = _linear(_columns(_relu(y), BLOCK // CHUNK), large3, small3, scales, bias3, 2, WIDTH, BLOCK, DEVICE)
        # Chunk by chunk, the output goes through less shared memory at a time.
        y = _columns(y, BLOCK // CHUNK)
        for column in tl.static_range(0, WIDTH, CHUNK):
            if TMA:
                out.store([first, column], y[column // CHUNK])
            else:
                tl.store(out + at + column, y[column // CHUNK], mask=(r < left) & (column + i < WIDTH))
    # [/mlp_split]


def default_tile(width: int) -> Tile:
    """The tile for rows of ``width`` numbers: at 128 the terms of the weights leave shared memory for little else."""
    if block_of(width) == 128:
        # Chunks of 16 leave out more of what pads the width, those of 64 take fewer additions.
        return Tile(128, 8, chunk=64 if width > 96 else 16, descriptors=False)
    return Tile(128, 8, 2, registers=128)


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
    chunk, by_descriptor = min(tile.chunk, block), tile.descriptors and described(x)
    programs = min(triton.cdiv(rows, tile.rows), tile.programs * multiprocessors(x))
    with torch.cuda.device_of(x):
        _split_weights[(block // 16, layers)](
            first,
            second,
            third,
            large,
            small,
            scales,
            WIDTH=width,
            BLOCK=block,
            ROWS=16,
            RAISED=CUT_OFF * (chunk // 16 + 1) * 2.0**-24,
            DEVICE=x.is_cuda,
            **early(True, x),
        )
        _forward[(programs,)](
            tiles_of(x, [tile.rows, chunk], by_descriptor),
            large,
            small,
            scales,
            *[*biases, biases[0]][:3],
            tiles_of(out, [tile.rows, chunk], by_descriptor),
            rows,
            WIDTH=width,
            BLOCK=block,
            LAYERS=layers,
            ROWS=tile.rows,
            CHUNK=chunk,
            TMA=by_descriptor,
            DEVICE=x.is_cuda,
            num_warps=tile.warps,
            maxnreg=tile.registers,
            **early(True, x),
        )
    return out
