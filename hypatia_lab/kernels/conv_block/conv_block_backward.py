"""Gradients of Conv2d 3×3 → InstanceNorm2d → GELU, channels last, in Triton kernels.

A first kernel sums what each plane's statistics pass back; a second writes the gradient of the convolution's output.
That of x is the adjoint convolution of it; that of the weight is a matrix product over all pixels, which programs share
between them. No atomics: every sum is the same in every run.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.conv_block.conv_block_triton import Saved, operands
from hypatia_lab.kernels.conv_block.convolution import (
    Patch,
    convolve,
    described,
    load_patch,
    patch_of,
    pixels_first,
    product,
)
from hypatia_lab.kernels.conv_block.scaled_terms import Terms, scaled_terms
from hypatia_lab.kernels.conv_block.weight_gradient_split import row_terms, row_tile, shares_of
from hypatia_lab.kernels.gelu_triton import normal_integral, tanh_sigmoid
from hypatia_lab.kernels.linear_relu.linear_relu_triton import early, tiles_of, wait_turn

if TYPE_CHECKING:
    from torch import Tensor

# ---------------------------------------------------------------- kernels


@triton.jit
def _slope(u, TANH: tl.constexpr, SHORT: tl.constexpr):
    """Derivative of GELU in float32."""
    if TANH:
        s = tanh_sigmoid(u)
        slope = s + u * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * u * u)
    else:
        # Written as Φ's short form writes it, so that one exponential does for both.
        z = tl.abs(u) * 0.7071067811865476
        slope = normal_integral(u, SHORT) + u * 0.3989422804014327 * tl.exp(-z * z)
    return slope


@triton.jit
def _plane(statistics, gamma, beta, image, channel, channels):
    """Mean, 1/√(variance + eps), γ and β of an image's channels."""
    known = channel < channels
    at = statistics + image * 2 * channels + channel
    mean, scale = tl.load(at, mask=known, other=0.0), tl.load(at + channels, mask=known, other=0.0)
    if gamma is not None:
        factor = tl.load(gamma + channel, mask=known, other=0.0).to(tl.float32)
        shift = tl.load(beta + channel, mask=known, other=0.0).to(tl.float32)
    else:
        factor, shift = tl.full(channel.shape, 1.0, tl.float32), tl.zeros(channel.shape, tl.float32)
    return mean, scale, factor, shift


@triton.jit
def _behind_gelu(grad, z, at, inside, mean, scale, factor, shift, TANH: tl.constexpr):
    """Gradient of the normalised and scaled plane, and the normalised plane; zeros outside."""
    SHORT: tl.constexpr = grad.dtype.element_ty.primitive_bitwidth == 16
    normal = (tl.load(z + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    upstream = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    g = upstream * _slope(normal * factor[None, :] + shift[None, :], TANH, SHORT)
    return tl.where(inside, g, 0.0), normal


# [backward]
@triton.jit
def _gradient_sums(
    grad,
    z,
    statistics,
    gamma,
    beta,
    sums,
    area,
    channels,
    times,
    TANH: tl.constexpr,
    PIXELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A run's share of Σ g and Σ g·x̂ of an image's channels, g the gradient behind GELU, to ``sums``."""
    wait_turn(DEPENDENT)
    run, image = tl.program_id(0), tl.program_id(2)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mean, scale, factor, shift = _plane(statistics, gamma, beta, image, channel, channels)
    first_sum = tl.zeros((PIXELS, COLUMNS), tl.float32)
    second_sum = tl.zeros((PIXELS, COLUMNS), tl.float32)
    for time in range(times):
        pixel = (run * times + time) * PIXELS + tl.arange(0, PIXELS)
        inside = (pixel < area)[:, None] & (channel < channels)[None, :]
        at = (image.to(tl.int64) * area + pixel)[:, None] * channels + channel[None, :]
        g, normal = _behind_gelu(grad, z, at, inside, mean, scale, factor, shift, TANH)
        first_sum += g
        second_sum += g * normal
    at = sums + (image * tl.num_programs(0) + run) * 2 * channels + channel
    tl.store(at, tl.sum(first_sum, 0), mask=channel < channels)
    tl.store(at + channels, tl.sum(second_sum, 0), mask=channel < channels)
    # [/backward]


# [backward]
@triton.jit
def _convolution_gradient(
    grad,
    z,
    statistics,
    gamma,
    beta,
    sums,
    out,
    area,
    channels,
    times,
    TANH: tl.constexpr,
    RUNS: tl.constexpr,
    PIXELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The gradient of z: γ/σ·(g − mean of g − x̂·mean of g·x̂)."""
    wait_turn(DEPENDENT)
    run, runs, image = tl.program_id(0), tl.num_programs(0), tl.program_id(2)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = channel < channels
    mean, scale, factor, shift = _plane(statistics, gamma, beta, image, channel, channels)
    other = tl.arange(0, RUNS)
    partial = sums + (image * runs + other)[:, None] * 2 * channels + channel[None, :]
    written = (other < runs)[:, None] & known[None, :]
    mean_g = tl.sum(tl.load(partial, mask=written, other=0.0), 0) / area
    mean_gx = tl.sum(tl.load(partial + channels, mask=written, other=0.0), 0) / area
    for time in range(times):
        pixel = (run * times + time) * PIXELS + tl.arange(0, PIXELS)
        inside = (pixel < area)[:, None] & known[None, :]
        at = (image.to(tl.int64) * area + pixel)[:, None] * channels + channel[None, :]
        g, normal = _behind_gelu(grad, z, at, inside, mean, scale, factor, shift, TANH)
        g = (g - mean_g[None, :] - normal * mean_gx[None, :]) * (factor * scale)[None, :]  # (1)
        tl.store(out + at, g.to(out.dtype.element_ty), mask=inside)
    # [/backward]


# [backward]
@triton.jit
def _weight_gradient(
    grad,
    x,
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
        g = load_patch(grad, image, r, q, o, height, width, outer, TALL, WIDE, ROWS, LOAD).T
        r += down - 1
        before = load_patch(x, image, r, q - 1, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD)
        same = load_patch(x, image, r, q, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD)
        after = load_patch(x, image, r, q + 1, i, height, width, inner, TALL, WIDE, COLUMNS, LOAD)
        left = product(g, before, left, "ieee", DEVICE)
        middle = product(g, same, middle, "ieee", DEVICE)  # (2)
        right = product(g, after, right, "ieee", DEVICE)
    row, column = o + tl.arange(0, ROWS)[:, None], i + tl.arange(0, COLUMNS)[None, :]
    inside = (row < outer) & (column < inner)
    at = shares + ((share.to(tl.int64) * outer + row) * 9 + 3 * down) * inner + column
    tl.store(at, left, mask=inside)
    tl.store(at + inner, middle, mask=inside)
    tl.store(at + 2 * inner, right, mask=inside)
    # [/backward]


# [backward]
@triton.jit
def _column_sums(
    source,
    first,
    second,
    zeros,
    rows,
    columns,
    split,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Sums of float32 columns, the first ``split`` of them to ``first``, the others to ``second``; as many zeros as
    ``first`` has numbers to ``zeros``, unless that is null.
    """
    wait_turn(DEPENDENT)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        total += tl.load(source + at, mask=(row < rows)[:, None] & known[None, :], other=0.0)  # (3)
    found = tl.sum(total, 0)
    tl.store(first + column, found.to(first.dtype.element_ty), mask=column < split)
    tl.store(second + column - split, found.to(second.dtype.element_ty), mask=known & (column >= split))
    if zeros is not None:
        tl.store(zeros + column, tl.zeros((COLUMNS,), zeros.dtype.element_ty), mask=column < split)
    # [/backward]


# ---------------------------------------------------------------- which tiles


@dataclass(frozen=True)
class Slice:
    """How the weight's gradient is cut up: patches of ``tall``·``wide`` pixels a step, ``rows`` output by ``columns``
    input channels of three taps a program, ``shares`` of the pixels; ``warps`` and ``stages`` of a program; ``load`` by
    tensor descriptors where alignment allows. All but ``shares`` and ``stages`` are powers of two.
    """

    tall: int
    wide: int
    rows: int
    columns: int
    shares: int
    warps: int = 4
    stages: int = 3
    load: bool = True


@dataclass(frozen=True)
class Plan:
    """How backward is cut up: the sums and the convolution's gradient by ``pixels`` at a time and at least ``runs``
    programs an image, of ``warps``; the adjoint convolution by ``patch``; the weight's gradient by ``slice``. Whether
    launches are dependent is the patch's.
    """

    patch: Patch
    slice: Slice
    pixels: int = 64
    runs: int = 52
    warps: int = 4


_PLANS = [
    Plan(Patch(1, 128, 64, 64, 4, 3), Slice(1, 128, 64, 64, 44), pixels=128, runs=26, warps=8),
    Plan(Patch(1, 128, 64, 64, 4, 4), Slice(1, 64, 64, 64, 44)),
    Plan(Patch(2, 128, 64, 64, 8, 4), Slice(1, 64, 64, 64, 88)),
    Plan(Patch(2, 64, 64, 64, 4, 4), Slice(1, 128, 64, 64, 44, stages=2)),
    Plan(Patch(1, 128, 64, 64, 4, 4), Slice(1, 128, 64, 64, 44, 8, 3), pixels=32, runs=64),
]


_SPLIT = [
    Plan(Patch(1, 128, 64, 64, 4, 2, dependent=False), Slice(1, 32, 64, 64, 88), pixels=64, runs=52),
    Plan(Patch(1, 128, 64, 32, 4, 4, dependent=False), Slice(1, 64, 64, 64, 44), pixels=64, runs=26, warps=8),
    Plan(Patch(2, 128, 64, 64, 8, 2, store=False, dependent=False), Slice(1, 64, 64, 64, 44, 8, 2), 64, 26, 8),
]
"""Plans for float32 whose products are of two terms each: matrix units may sum 64 of them, not more."""


def candidates(shape: tuple[int, int, int, int, int], *, split: bool = False) -> list[Plan]:
    """Plans worth trying for (N, C_in, C_out, H, W), the one in use first; ``split``: for float32 by "fp16x3"."""
    images, inner, outer, height, width = shape
    fitted = []
    for plan in _SPLIT if split else _PLANS:
        cut = plan.slice
        wide = max(16, min(cut.wide, triton.next_power_of_2(width)))
        tall = max(1, min(cut.tall * cut.wide // wide, triton.next_power_of_2(height)))
        rows = max(16, min(cut.rows, triton.next_power_of_2(outer)))
        columns = max(16, min(cut.columns, triton.next_power_of_2(inner)))
        shares = min(cut.shares, images * triton.cdiv(height, tall) * triton.cdiv(width, wide))
        cut = replace(cut, tall=tall, wide=wide, rows=rows, columns=columns, shares=max(shares, 1))
        fitted.append(replace(plan, patch=plan.patch.fitted(images, outer, inner, height, width), slice=cut))
    return list(dict.fromkeys(fitted))


# ---------------------------------------------------------------- launches


class Gradients(NamedTuple):
    """Gradients of the forward pass's arguments, each of its argument's shape and dtype."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    gamma: Tensor
    beta: Tensor


def column_sums(
    source: Tensor, first: Tensor, second: Tensor, zeros: Tensor | None = None, *, dependent: bool = False
) -> None:
    """Sums of the columns of ``source``, contiguous float32, rows along its first dimension, to ``first``, and those of
    the columns that it has no room for to ``second``, both contiguous. ``zeros``, as large as ``first``, is cleared: a
    kernel of its own would cost more. ``dependent``: programmatic dependent launch.
    """
    rows, columns = source.shape[0], source[0].numel() if len(source) else first.numel() + second.numel()
    tall, block = (32, 32) if columns < 4096 else (16, 128)
    how = {"ROWS": tall, "COLUMNS": block, **early(dependent, source)}
    with torch.cuda.device_of(source):
        _column_sums[(triton.cdiv(columns, block),)](source, first, second, zeros, rows, columns, first.numel(), **how)


def _behind_convolution(
    grad: Tensor, saved: Saved, gamma: Tensor | None, beta: Tensor | None, plan: Plan, tanh: bool
) -> tuple[Tensor, Tensor]:
    """Of contiguous ``grad`` (N, H, W, C_out): the convolution's gradient, and Σ g and Σ g·x̂ by runs of pixels,
    (runs, 2, C_out) in float32, whose sums are the gradients of β and γ.
    """
    images, height, width, channels = grad.shape
    area = height * width
    times = max(1, triton.cdiv(area, plan.pixels * plan.runs))
    runs = triton.cdiv(area, plan.pixels * times)
    columns = min(64, triton.next_power_of_2(channels))
    out = torch.empty_like(grad)
    sums = torch.empty(images * runs, 2, channels, dtype=torch.float32, device=grad.device)
    given = (grad, saved.convolved, saved.statistics, gamma, beta, sums)
    how = {"TANH": tanh, "PIXELS": plan.pixels, "COLUMNS": columns, "num_warps": plan.warps}
    how |= early(plan.patch.dependent, grad)
    grid = (runs, triton.cdiv(channels, columns), images)
    _gradient_sums[grid](*given, area, channels, times, **how)
    block = triton.next_power_of_2(runs)
    _convolution_gradient[grid](*given, out, area, channels, times, RUNS=block, **how)
    return out, sums


def weight_gradient(grad: Tensor, x: Tensor, cut: Slice, *, dependent: bool = False) -> Tensor:
    """Gradient (C_out, C_in, 3, 3) of a 3×3 convolution's weight, of x's dtype; sums are float32.

    ``grad`` (N, H, W, C_out) is that of the convolution's output, x (N, H, W, C_in) its input; both contiguous,
    bfloat16 or float16. ``dependent``: programmatic dependent launch.
    """
    (images, height, width, inner), outer = x.shape, grad.shape[3]
    shares = torch.empty(cut.shares, outer, 9, inner, dtype=torch.float32, device=x.device)
    load = cut.load and described(x) and described(grad)
    box = [1, cut.tall, cut.wide]
    blocks = triton.cdiv(outer, cut.rows) * triton.cdiv(inner, cut.columns)
    with torch.cuda.device_of(x):
        _weight_gradient[(cut.shares, 3, blocks)](
            tiles_of(grad, [*box, cut.rows], load),
            tiles_of(x, [*box, cut.columns], load),
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
            DEVICE=x.is_cuda,
            num_warps=cut.warps,
            num_stages=cut.stages,
            **early(dependent, x),
        )
    return _summed(shares, x.dtype, dependent)


def _summed(shares: Tensor, dtype: torch.dtype, dependent: bool) -> Tensor:
    """``shares`` (programs, C_out, 9, C_in) added up, as (C_out, C_in, 3, 3)."""
    _, outer, _, inner = shares.shape
    out = torch.empty(outer, 3, 3, inner, dtype=dtype, device=shares.device)
    column_sums(shares, out, out[:0], dependent=dependent)
    return out.permute(0, 3, 1, 2)


def weight_gradient_in_terms(grad: Tensor, x: Tensor, cut: Slice, *, dependent: bool = False) -> tuple[Tensor, Terms]:
    """What :func:`weight_gradient` returns, of float32 in its own digits, and the terms of ``grad``."""
    (images, height, width, inner), outer = x.shape, grad.shape[3]
    uneven = None
    if row_tile(width, max(inner, outer)):
        uneven = torch.empty(2, images, height, dtype=torch.int32, device=x.device)
        grad_terms = row_terms(grad, uneven[0], dependent=dependent)
        x_terms = row_terms(x, uneven[1], dependent=dependent)
    else:
        grad_terms, x_terms = (scaled_terms(tensor, dependent=dependent)[0] for tensor in (grad, x))
    shares = shares_of(grad_terms, x_terms, cut, uneven, dependent=dependent)
    return _summed(shares, torch.float32, dependent), grad_terms


def opposite(taps: Tensor) -> Tensor:
    """The weight (C_in, 9, C_out) of the convolution that takes a gradient back, of that (C_out, 9, C_in) of the block.

    Not the adjoint of ``taps``: in terms, weights are scaled by what is summed over.
    """
    return taps.flip(1).permute(2, 1, 0).contiguous()


def checked_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, gamma: Tensor | None, beta: Tensor | None, approximate: str
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """What the gradients are made of, contiguous: ``grad`` (N, H, W, C_out), x (N, H, W, C_in), weight (C_out, 9,
    C_in), γ and β. Raises ``ValueError`` naming the tensor for shapes, dtypes or devices that do not fit.
    """
    pixels, taps, (_, gamma, beta) = operands(x, weight, None, gamma, beta, approximate)
    shape = [x.shape[0], weight.shape[0], *x.shape[2:]]
    if list(grad.shape) != shape or grad.dtype != x.dtype or grad.device != x.device:
        raise ValueError(
            f"grad is {grad.dtype} {list(grad.shape)} on {grad.device}; of x {list(x.shape)} and weight "
            f"{list(weight.shape)} it must be {x.dtype} {shape} on {x.device}"
        )
    return pixels_first(grad), pixels, taps, gamma, beta


def conv_block_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    saved: Saved,
    *,
    approximate: str = "none",
    precision: str = "ieee",
    plan: Plan | None = None,
) -> Gradients:
    """Gradients of the block's arguments from ``grad`` (N, C_out, H, W), that of its result.

    x (N, C_in, H, W), weight (C_out, C_in, 3, 3), γ and β (C_out) as the forward pass had them, ``saved`` as it left
    it; gradients of γ and β are also given where those are None. Sums are float32. bfloat16 and float16 run in these
    kernels alone, and so does float32 with ``precision`` "fp16x3"; with any other its two convolutions are torch's own,
    as exact as torch is told to be. ``plan`` replaces the first of :func:`candidates`. The bias's gradient is zero: a
    plane's mean takes the bias away.

    Raises ``ValueError`` as :func:`checked_gradient` does.
    """
    grad, pixels, taps, gamma, beta = checked_gradient(grad, x, weight, gamma, beta, approximate)
    (images, inner, height, width), outer = x.shape, weight.shape[0]
    split = x.dtype == torch.float32 and precision == "fp16x3" and x.numel() > 0
    plan = plan or candidates((images, inner, outer, height, width), split=split)[0]
    with torch.cuda.device_of(x):
        behind, sums = _behind_convolution(grad, saved, gamma, beta, plan, approximate == "tanh")
    if split:
        by_weight, terms = weight_gradient_in_terms(behind, pixels, plan.slice, dependent=plan.patch.dependent)
        back = convolve(terms, opposite(taps), None, plan.patch).permute(0, 3, 1, 2)
    elif x.dtype == torch.float32:
        back, by_weight, _ = torch.ops.aten.convolution_backward(
            behind.permute(0, 3, 1, 2), x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
    else:
        back = convolve(behind, taps, None, plan.patch, adjoint=True).permute(0, 3, 1, 2)
        by_weight = weight_gradient(behind, pixels, plan.slice, dependent=plan.patch.dependent)
    return gradients(back, by_weight, sums, dependent=plan.patch.dependent)


def gradients(back: Tensor, by_weight: Tensor, sums: Tensor, *, dependent: bool) -> Gradients:
    """Those of x and weight, with the others from Σ g and Σ g·x̂ by runs of pixels, (runs, 2, C_out) in float32."""
    # Of their own memory, each: a custom operation may not return two views of one tensor.
    of_beta, of_gamma, of_bias = (back.new_empty(sums.shape[2]) for _ in range(3))
    column_sums(sums, of_beta, of_gamma, of_bias, dependent=dependent)
    return Gradients(back, by_weight, of_bias, of_gamma, of_beta)
