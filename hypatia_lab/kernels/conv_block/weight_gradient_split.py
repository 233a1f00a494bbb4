"""The gradient of a 3×3 convolution's weight with float32's digits, by three products of scaled float16 terms.

dW = Σ g·x over all pixels. Where the pixels of each image row are much of a size, as they are as a rule, a row has one
scale: a patch's products are summed, and the sums scaled back before they are added. If any row is not so, its pixels
have a scale each, and a second launch makes all sums anew: on their way to the matrix units g's terms are made smaller
by what the product of their pixel's scales is below the largest of the patch.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.conv_block.convolution import load_patch, loaded, patch_of, patch_scales, product
from hypatia_lab.kernels.conv_block.scaled_terms import Terms, pitched
from hypatia_lab.kernels.linear_relu.linear_relu_split import BOUND, magnitude, two_terms
from hypatia_lab.kernels.linear_relu.linear_relu_triton import early, tiles_of, wait_turn

if TYPE_CHECKING:
    from torch import Tensor

    from hypatia_lab.kernels.conv_block.conv_block_backward import Slice

APART: tl.constexpr = tl.constexpr(12)
"""The largest numbers of two pixels under one scale differ by less than 2^(APART + 1): what a pixel holds is off by at
most 2^(APART - 39) of its largest."""

FAINT: tl.constexpr = tl.constexpr(67)
"""Exponent, in float32's own counting, below which a row counts as uneven: products of two scales stay normal."""

ROOM = 16384
"""Elements of an image row, sizes rounded up to powers of two, that a program holds."""


# [split]
@triton.jit
def _row_terms(
    source,
    large,
    small,
    scales,
    uneven,
    width,
    channels,
    pitch,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """An image row a program: its terms and scales, and whether its pixels have different ones."""
    wait_turn(DEPENDENT)
    row, pixel, c = tl.program_id(0), tl.arange(0, PIXELS), tl.arange(0, CHANNELS)[None, :]
    at = row.to(tl.int64) * width + pixel
    inside = (pixel < width)[:, None] & (c < channels)
    values = tl.load(source + at[:, None] * channels + c, mask=inside, other=0.0)
    bits = magnitude(values)
    largest = tl.max(tl.where(bits < 0x7F800000, bits, 0), 1)
    most = tl.max(largest, 0)
    least = tl.min(tl.where(largest > 0, largest, most), 0)  # a pixel of zeros goes with any scale
    apart = (most > 0) & (((most >> 23) < FAINT) | ((most >> 23) - (least >> 23) > APART))  # (1)
    exponent = tl.maximum(tl.where(apart, largest, most) >> 23, 1)
    scale = (exponent << 23).to(tl.float32, bitcast=True) * (1.0 / 2**BOUND)
    tl.store(scales + at, scale, mask=pixel < width)
    tl.store(uneven + row, apart.to(tl.int32))
    nearest, rest = two_terms(values, exponent[:, None], False)
    tl.store(large + at[:, None] * pitch + c, nearest, mask=inside)
    tl.store(small + at[:, None] * pitch + c, rest, mask=inside)
    # [/split]


@triton.jit
def _row_scale(scales, image, row, height, width):
    """The scale of a row's first pixel; that of the nearest row where there is none."""
    row = tl.minimum(tl.maximum(row, 0), height - 1)
    return tl.load(scales + (image.to(tl.int64) * height + row) * width)


# [split]
@triton.jit
def _tap(
    total,
    g,
    g_small,
    g_share,
    g_peak,
    x,
    x_small,
    x_scales,
    image,
    row,
    column,
    channel,
    height,
    width,
    inner,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    LOAD: tl.constexpr,
    EVEN: tl.constexpr,
    DEVICE: tl.constexpr,
):
    """``total`` and a patch's Σ g·x, x from a corner on; g's pixels have the scales ``g_share``·``g_peak``."""
    if EVEN:
        a, a_small = g.T, g_small.T
        scale = g_peak * _row_scale(x_scales, image, row, height, width)  # (2)
    else:
        scales = patch_scales(x_scales, image, row, column, height, width, TALL, WIDE)
        peak = tl.max(scales, 0)
        peak = tl.where(peak > 0, peak, 1.0)
        # Of g's largest pixel and x's largest each may lie beside a small one of the other.
        both = g_share * (scales / peak)
        most = tl.max(both, 0)
        most = tl.where(most > 0, most, 1.0)
        # A product below 2^-24 of the patch's largest is nothing beside it.
        share = (both / most).to(tl.float16)  # (3)
        a, a_small = g.T * share[None, :], g_small.T * share[None, :]
        scale = most * g_peak * peak
    b = load_patch(x, image, row, column, channel, height, width, inner, TALL, WIDE, COLUMNS, LOAD)
    b_small = load_patch(x_small, image, row, column, channel, height, width, inner, TALL, WIDE, COLUMNS, LOAD)
    part = product(a_small, b, tl.zeros_like(total), "ieee", DEVICE)  # (4)
    part = product(a, b_small, part, "ieee", DEVICE)
    part = product(a, b, part, "ieee", DEVICE)
    return total + part * scale  # (5)
    # [/split]


# [split]
@triton.jit
def _weight_gradient_split(
    grad,
    grad_small,
    grad_scales,
    x,
    x_small,
    x_scales,
    uneven,
    told,
    shares,
    patches,
    height,
    width,
    inner,
    outer,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LOAD: tl.constexpr,
    EVEN: tl.constexpr,
    DEPENDENT: tl.constexpr,
    DEVICE: tl.constexpr,
):
    """Three taps' share of Σ grad·x over every ``num_programs(0)``-th patch, to ``shares`` (programs, C_out, 9, C_in).

    Program: which share, which row of taps, which block of channels. ``EVEN``: of rows that have one scale each, by
    patches of one row. Where not, and ``uneven``, ``told`` numbers, is not null, nothing is done unless one of them is.
    """
    wait_turn(DEPENDENT)
    wanted = True
    if uneven is not None:
        any_uneven = tl.zeros((1024,), tl.int32)
        for start in range(0, told, 1024):
            at = start + tl.arange(0, 1024)
            any_uneven |= tl.load(uneven + at, mask=at < told, other=0)
        wanted = tl.max(any_uneven, 0) > 0
        patches = tl.where(wanted, patches, 0)
    share, down = tl.program_id(0), tl.program_id(1)
    across = tl.cdiv(inner, COLUMNS)
    o, i = tl.program_id(2) // across * ROWS, tl.program_id(2) % across * COLUMNS
    left = tl.zeros((ROWS, COLUMNS), tl.float32)
    middle = tl.zeros((ROWS, COLUMNS), tl.float32)
    right = tl.zeros((ROWS, COLUMNS), tl.float32)
    for number in range(share, patches, tl.num_programs(0)):
        image, r, q = patch_of(number, height, width, TALL, WIDE)
        g = load_patch(grad, image, r, q, o, height, width, outer, TALL, WIDE, ROWS, LOAD)
        g_small = load_patch(
            grad_small, image, r, q, o, height, width, outer, TALL, WIDE, ROWS, LOAD
        )  # fmt: skip
        if EVEN:
            peak = _row_scale(grad_scales, image, r, height, width)
            g_share = peak
        else:
            scales = patch_scales(grad_scales, image, r, q, height, width, TALL, WIDE)
            peak = tl.max(scales, 0)
            g_share = scales / peak
        r += down - 1
        left = _tap(
            left, g, g_small, g_share, peak, x, x_small, x_scales,
            image, r, q - 1, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD, EVEN, DEVICE,
        )  # fmt: skip
        middle = _tap(
            middle, g, g_small, g_share, peak, x, x_small, x_scales,
            image, r, q, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD, EVEN, DEVICE,
        )  # fmt: skip
        right = _tap(
            right, g, g_small, g_share, peak, x, x_small, x_scales,
            image, r, q + 1, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD, EVEN, DEVICE,
        )  # fmt: skip
    row, column = o + tl.arange(0, ROWS)[:, None], i + tl.arange(0, COLUMNS)[None, :]
    inside = wanted & (row < outer) & (column < inner)
    at = shares + ((share.to(tl.int64) * outer + row) * 9 + 3 * down) * inner + column
    tl.store(at, left, mask=inside)
    tl.store(at + inner, middle, mask=inside)
    tl.store(at + 2 * inner, right, mask=inside)
    # [/split]


def row_tile(width: int, channels: int) -> tuple[int, int] | None:
    """Pixels and channels that hold an image row, or None where a program has no room for so many."""
    pixels, block = int(triton.next_power_of_2(width)), int(triton.next_power_of_2(channels))
    return (pixels, block) if pixels * block <= ROOM else None


def row_terms(tensor: Tensor, uneven: Tensor, *, dependent: bool = False) -> Terms:
    """Terms of the pixels of a contiguous float32 ``tensor`` (N, H, W, C), scales alike along an image row.

    ``uneven`` (N, H) in int32 becomes 1 for rows whose pixels differ too much for that, and for those too faint to be
    multiplied without looking: they have scales by pixels, as :func:`~.scaled_terms.scaled_terms` gives them. For
    others it becomes 0. A row must fit :func:`row_tile`. ``dependent``: programmatic dependent launch.
    """
    images, height, width, channels = tensor.shape
    pixels, block = row_tile(width, channels) or (0, 0)
    terms = Terms(pitched(tensor), pitched(tensor), tensor.new_empty(images * height * width))
    how = {"PIXELS": pixels, "CHANNELS": block, "num_warps": min(max(pixels * block // 512, 1), 16)}
    with torch.cuda.device_of(tensor):
        _row_terms[(images * height,)](
            tensor, *terms, uneven, width, channels, terms.large.stride(-2), **how, **early(dependent, tensor)
        )
    return terms


def shares_of(grad: Terms, x: Terms, cut: Slice, uneven: Tensor | None = None, *, dependent: bool = False) -> Tensor:
    """Shares of the gradient of a 3×3 convolution's weight, (shares, C_out, 9, C_in) in float32, to be added up.

    ``grad`` (N, H, W, C_out) is that of the convolution's output, x (N, H, W, C_in) its input, both as
    :func:`~hypatia_lab.kernels.conv_block.scaled_terms.scaled_terms` of their pixels, or both as :func:`row_terms`
    with what these wrote to ``uneven`` (2, N, H). ``dependent``: programmatic dependent launch.
    """
    (images, height, width, inner), outer = x.large.shape, grad.large.shape[3]
    shares = torch.empty(cut.shares, outer, 9, inner, dtype=torch.float32, device=x.large.device)
    load = loaded(cut.load, x.large, grad.large)
    blocks = triton.cdiv(outer, cut.rows) * triton.cdiv(inner, cut.columns)

    def launch(tall: int, stages: int, flags: Tensor | None, even: bool) -> None:
        box = [1, tall, cut.wide]
        _weight_gradient_split[(cut.shares, 3, blocks)](
            *(tiles_of(terms, [*box, cut.rows], load) for terms in grad[:2]),
            grad.scales,
            *(tiles_of(terms, [*box, cut.columns], load) for terms in x[:2]),
            x.scales,
            flags,
            2 * images * height,
            shares,
            images * triton.cdiv(height, tall) * triton.cdiv(width, cut.wide),
            height,
            width,
            inner,
            outer,
            TALL=tall,
            WIDE=cut.wide,
            ROWS=cut.rows,
            COLUMNS=cut.columns,
            LOAD=load,
            EVEN=even,
            DEVICE=shares.is_cuda,
            num_warps=cut.warps,
            num_stages=stages,
            **early(dependent, shares),
        )

    with torch.cuda.device_of(shares):
        if uneven is not None:
            launch(1, cut.stages, None, True)
        # What as a rule has nothing to do is not to wait for much room.
        launch(cut.tall, min(cut.stages, 2), uneven, False)
    return shares
