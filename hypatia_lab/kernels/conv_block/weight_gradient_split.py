"""The gradient of a 3×3 convolution's weight with float32's digits, by three products of scaled float16 terms.

dW = Σ g·x over all pixels, and each pixel of g and of x has a scale of its own (:mod:`.scaled_terms`). On their way to
the matrix units g's terms are made smaller by what the product of their pixel's scales is below the largest of the
patch. The sums of a patch are scaled back before they are added.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.conv_block.convolution import described, load_patch, patch_of, patch_scales, product
from hypatia_lab.kernels.linear_relu.linear_relu_triton import early, tiles_of, wait_turn

if TYPE_CHECKING:
    from torch import Tensor

    from hypatia_lab.kernels.conv_block.conv_block_backward import Slice
    from hypatia_lab.kernels.conv_block.scaled_terms import Terms


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
    DEVICE: tl.constexpr,
):
    """``total`` and a patch's Σ g·x, x from a corner on; g's pixels have the scales ``g_share``·``g_peak``."""
    scales = patch_scales(x_scales, image, row, column, height, width, TALL, WIDE)
    peak = tl.max(scales, 0)
    peak = tl.where(peak > 0, peak, 1.0)
    # Of g's largest pixel and x's largest each may lie beside a small one of the other.
    both = g_share * (scales / peak)
    most = tl.max(both, 0)
    most = tl.where(most > 0, most, 1.0)
    # A product below 2^-24 of the patch's largest is nothing beside it.
    share = (both / most).to(tl.float16)  # (1)
    a, a_small = g.T * share[None, :], g_small.T * share[None, :]  # (2)
    b = load_patch(x, image, row, column, channel, height, width, inner, TALL, WIDE, COLUMNS, LOAD)
    b_small = load_patch(x_small, image, row, column, channel, height, width, inner, TALL, WIDE, COLUMNS, LOAD)
    part = product(a_small, b, tl.zeros_like(total), "ieee", DEVICE)  # (3)
    part = product(a, b_small, part, "ieee", DEVICE)
    part = product(a, b, part, "ieee", DEVICE)  # (4)
    return total + part * most * g_peak * peak  # (5)
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
    DEPENDENT: tl.constexpr,
    DEVICE: tl.constexpr,
):
    """Three taps' share of Σ grad·x over every ``num_programs(0)``-th patch, to ``shares`` (programs, C_out, 9, C_in).

    Program: which share, which row of taps, which block of channels.
    """
    wait_turn(DEPENDENT)
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
        scales = patch_scales(grad_scales, image, r, q, height, width, TALL, WIDE)
        peak = tl.max(scales, 0)
        g_share, r = scales / peak, r + down - 1
        left = _tap(
            left, g, g_small, g_share, peak, x, x_small, x_scales,
            image, r, q - 1, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD, DEVICE,
        )  # fmt: skip
        middle = _tap(
            middle, g, g_small, g_share, peak, x, x_small, x_scales,
            image, r, q, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD, DEVICE,
        )  # fmt: skip
        right = _tap(
            right, g, g_small, g_share, peak, x, x_small, x_scales,
            image, r, q + 1, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD, DEVICE,
        )  # fmt: skip
    row, column = o + tl.arange(0, ROWS)[:, None], i + tl.arange(0, COLUMNS)[None, :]
    inside = (row < outer) & (column < inner)
    at = shares + ((share.to(tl.int64) * outer + row) * 9 + 3 * down) * inner + column
    tl.store(at, left, mask=inside)
    tl.store(at + inner, middle, mask=inside)
    tl.store(at + 2 * inner, right, mask=inside)
    # [/split]


def shares_of(grad: Terms, x: Terms, cut: Slice, *, dependent: bool = False) -> Tensor:
    """Shares of the gradient of a 3×3 convolution's weight, (shares, C_out, 9, C_in) in float32, to be added up.

    ``grad`` (N, H, W, C_out) is that of the convolution's output, x (N, H, W, C_in) its input, both as
    :func:`~hypatia_lab.kernels.conv_block.scaled_terms.scaled_terms` of their pixels. ``dependent``: programmatic
    dependent launch.
    """
    (images, height, width, inner), outer = x.large.shape, grad.large.shape[3]
    shares = torch.empty(cut.shares, outer, 9, inner, dtype=torch.float32, device=x.large.device)
    load = cut.load and described(x.large) and described(grad.large)
    box = [1, cut.tall, cut.wide]
    blocks = triton.cdiv(outer, cut.rows) * triton.cdiv(inner, cut.columns)
    with torch.cuda.device_of(shares):
        _weight_gradient_split[(cut.shares, 3, blocks)](
            *(tiles_of(terms, [*box, cut.rows], load) for terms in grad[:2]),
            grad.scales,
            *(tiles_of(terms, [*box, cut.columns], load) for terms in x[:2]),
            x.scales,
            shares,
            images * triton.cdiv(height, cut.tall) * triton.cdiv(width, cut.wide),
            height,
            width,
            inner,
            outer,
            TALL=cut.tall,
            WIDE=cut.wide,
            ROWS=cut.rows,
            COLUMNS=cut.columns,
            LOAD=load,
            DEVICE=shares.is_cuda,
            num_warps=cut.warps,
            num_stages=cut.stages,
            **early(dependent, shares),
        )
    return shares
