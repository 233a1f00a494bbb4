"""3×3 convolution as a matrix product in Triton: channels last, padded with one zero, of the size of its input.

z = x∗W + b: x is (N, H, W, C_in), W (C_out, 9, C_in), tap 3·down + across, b (C_out) or None, z (N, H, W, C_out). A
program computes a patch of pixels of one image, nine taps one after the other; tensor descriptors give the zeros of the
padding. It can leave each patch's mean and squared deviations, and take a gradient back to x.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false, reportReturnType=false

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from hypatia_lab.kernels.conv_block.conv_block_direct import covering
from hypatia_lab.kernels.conv_block.scaled_terms import Terms, pitched, scaled_terms
from hypatia_lab.kernels.linear_relu.linear_relu_triton import early, hopper, tiles_of, wait_turn

if TYPE_CHECKING:
    from torch import Tensor

# ---------------------------------------------------------------- kernels


@triton.jit
def rounded_tf32(values):
    """float32 to the nearest TF32: matrix units would cut the last bits off, always towards zero."""
    nearest = ((values.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    # The hardware's own NaN has all bits set: adding to it would leave a zero.
    return tl.where(values == values, nearest, values)


# [convolve]
@triton.jit
def _terms(source, large, small, count, PRECISION: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """float32 as its two largest terms of bfloat16, or rounded to TF32."""
    wait_turn(DEPENDENT)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + at, mask=at < count, other=0.0)
    if PRECISION == "tf32":
        tl.store(large + at, rounded_tf32(values), mask=at < count)
    else:
        nearest = values.to(tl.bfloat16)
        rest = values - nearest.to(tl.float32)  # (1)
        # An infinity has no rest; what rounds to one from below would have an infinite one.
        rest = tl.where(tl.abs(nearest.to(tl.float32)) < float("inf"), rest, 0.0)
        tl.store(large + at, nearest, mask=at < count)
        tl.store(small + at, rest.to(tl.bfloat16), mask=at < count)
    # [/convolve]


@triton.jit
def patch_of(number, height, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Image, first row and first column of patch ``number``, patches of an image one after the other."""
    across = tl.cdiv(width, WIDE)
    patches = tl.cdiv(height, TALL) * across
    within = number % patches
    return number // patches, within // across * TALL, within % across * WIDE


@triton.jit
def load_patch(
    source,
    image,
    row,
    column,
    channel,
    height,
    width,
    channels,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
    TMA: tl.constexpr,
):
    """(``TALL``·``WIDE`` pixels, ``DEEP`` channels) of an image from a corner on; zeros where there is no image."""
    if TMA:
        tile = tl.reshape(source.load([image, row, column, channel]), (TALL * WIDE, DEEP))
    else:
        pixel, c = tl.arange(0, TALL * WIDE), channel + tl.arange(0, DEEP)
        r, q = row + pixel // WIDE, column + pixel % WIDE
        inside = ((r >= 0) & (r < height) & (q >= 0) & (q < width))[:, None] & (c < channels)[None, :]
        at = ((image.to(tl.int64) * height + r) * width + q) * channels
        tile = tl.load(source + at[:, None] + c[None, :], mask=inside, other=0.0)
    return tile


@triton.jit
def patch_scales(scales, image, row, column, height, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    """The scale of each pixel of a patch from a corner on; zeros where there is no image."""
    pixel = tl.arange(0, TALL * WIDE)
    r, q = row + pixel // WIDE, column + pixel % WIDE
    inside = (r >= 0) & (r < height) & (q >= 0) & (q < width)
    return tl.load(scales + (image.to(tl.int64) * height + r) * width + q, mask=inside, other=0.0)


@triton.jit
def store_patch(
    values,
    out,
    image,
    row,
    column,
    channel,
    height,
    width,
    channels,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    TMA: tl.constexpr,
):
    """Round and store what :func:`load_patch` would load."""
    if TMA:
        out.store([image, row, column, channel], tl.reshape(values.to(out.dtype), (1, TALL, WIDE, values.shape[1])))
    else:
        pixel, c = tl.arange(0, TALL * WIDE), channel + tl.arange(0, values.shape[1])
        r, q = row + pixel // WIDE, column + pixel % WIDE
        inside = ((r < height) & (q < width))[:, None] & (c < channels)[None, :]
        at = ((image.to(tl.int64) * height + r) * width + q) * channels
        tl.store(out + at[:, None] + c[None, :], values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weights(
    weight,
    tap,
    k,
    column,
    inner,
    outer,
    DEEP: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADJOINT: tl.constexpr,
    TMA: tl.constexpr,
):
    """One tap's (``DEEP``, ``COLUMNS``) of a weight that lies in memory as (C_out, 9, C_in).

    Of the ``ADJOINT``, the convolution that takes a gradient back: taps in reverse, input and output exchanged.
    """
    if TMA:
        if ADJOINT:
            tile = tl.reshape(weight.load([k, 8 - tap, column]), (DEEP, COLUMNS))
        else:
            tile = tl.reshape(weight.load([column, tap, k]), (COLUMNS, DEEP)).T
    else:
        i, o = k + tl.arange(0, DEEP)[:, None], column + tl.arange(0, COLUMNS)[None, :]
        at = (i * 9 + 8 - tap) * outer + o if ADJOINT else (o * 9 + tap) * inner + i
        tile = tl.load(weight + at, mask=(i < inner) & (o < outer), other=0.0)
    return tile


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr, DEVICE: tl.constexpr):
    """``total`` + a·b in float32. The interpreter multiplies bfloat16 wrongly, so it gets float32."""
    if DEVICE:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return total


# [convolve]
@triton.jit
def _convolve(
    x,
    x_small,
    weight,
    weight_small,
    x_scales,
    weight_scales,
    bias,
    out,
    moments,
    height,
    width,
    inner,
    outer,
    PRECISION: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEEP: tl.constexpr,
    ADJOINT: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    DEPENDENT: tl.constexpr,
    DEVICE: tl.constexpr,
):
    """One patch of z = x∗W + b, stored to ``out``; its mean and squared deviations by channel to ``moments``.

    Patches of an image next to each other share their edges in the L2 cache; a patch never spans two images.
    """
    wait_turn(DEPENDENT)
    number, column = tl.program_id(0), tl.program_id(1) * COLUMNS
    image, row, left = patch_of(number, height, width, TALL, WIDE)
    total = tl.zeros((TALL * WIDE, COLUMNS), tl.float32)
    o = column + tl.arange(0, COLUMNS)
    depths = tl.cdiv(inner, DEEP)
    # At least one step, and the compiler knows: a way around the loop would make it wait for every single product.
    for step in range(tl.maximum(9 * depths, 1)):
        tap, k = step // depths, step % depths * DEEP
        r, q = row + tap // 3 - 1, left + tap % 3 - 1
        a = load_patch(x, image, r, q, k, height, width, inner, TALL, WIDE, DEEP, LOAD)
        b = _weights(weight, tap, k, column, inner, outer, DEEP, COLUMNS, ADJOINT, LOAD)
        part = total
        if x_scales is not None:
            # Matrix units cut off what they add, always towards zero: float32's digits want sums of one step's products
            # alone, which are added with rounding to nearest.
            part = tl.zeros_like(total)
            down = patch_scales(x_scales, image, r, q, height, width, TALL, WIDE)
            across = tl.load(weight_scales + o * 9 + tap, mask=o < outer, other=0.0)
        if x_small is not None:
            a_small = load_patch(x_small, image, r, q, k, height, width, inner, TALL, WIDE, DEEP, LOAD)
            b_small = _weights(weight_small, tap, k, column, inner, outer, DEEP, COLUMNS, ADJOINT, LOAD)
            part = product(a_small, b, part, PRECISION, DEVICE)  # (2)
            part = product(a, b_small, part, PRECISION, DEVICE)
        if PRECISION == "tf32":
            a = rounded_tf32(a)
        part = product(a, b, part, PRECISION, DEVICE)  # (3)
        total = part if x_scales is None else total + part * (down[:, None] * across[None, :])  # (4)
    if bias is not None:
        total += tl.load(bias + o, mask=o < outer, other=0.0).to(tl.float32)[None, :]
    store_patch(total, out, image, row, left, column, height, width, outer, TALL, WIDE, STORE)
    if moments is not None:
        # Deviations from the patch's own mean: sums of squares about zero would cancel where the mean is large.
        pixel = tl.arange(0, TALL * WIDE)
        inside = ((row + pixel // WIDE < height) & (left + pixel % WIDE < width))[:, None]
        count = tl.minimum(height - row, TALL) * tl.minimum(width - left, WIDE)
        mean = tl.sum(tl.where(inside, total, 0.0), 0) / count.to(tl.float32)
        off = tl.where(inside, total - mean[None, :], 0.0)  # (5)
        at = moments + number.to(tl.int64) * 2 * outer + o
        tl.store(at, mean, mask=o < outer)
        tl.store(at + outer, tl.sum(off * off, 0), mask=o < outer)
    # [/convolve]


# ---------------------------------------------------------------- launches


MOST_STAGES = 6
"""More steps' operands under way at once than that gain nothing."""


@dataclass(frozen=True)
class Patch:
    """What a program of the convolution computes: ``tall``·``wide`` pixels by ``columns`` output channels.

    ``inner`` input channels of one tap a step, ``stages`` steps' operands under way at once, ``warps`` of a program;
    ``load``, ``store``: by tensor descriptors (TMA) where alignment allows; ``dependent``: programmatic dependent
    launch, so that setting up overlaps the end of the kernel before. All sizes are powers of two.
    """

    tall: int
    wide: int
    columns: int
    inner: int
    warps: int = 4
    stages: int = 4
    load: bool = True
    store: bool = True
    dependent: bool = True

    def number(self, height: int, width: int) -> int:
        """Patches of an image."""
        return triton.cdiv(height, self.tall) * triton.cdiv(width, self.wide)

    def fitted(self, images: int, inner: int, outer: int, height: int, width: int) -> Patch:
        """No more channels than there are; as many pixels, or more of few channels where programs are left for all
        multiprocessors, or less of both where these are not, in the shape that fewest patches cover an image with;
        stages for as much memory. Dependent launch only where each program finds a multiprocessor of its own: more of
        them, started early, would crowd on those that are free."""
        # Matrix units want 64 rows and a depth of 16 at least.
        columns = max(16, min(self.columns, triton.next_power_of_2(outer)))
        deep = max(16, min(self.inner, triton.next_power_of_2(inner)))
        pixels = self.tall * self.wide
        while pixels * columns < self.tall * self.wide * self.columns and images * height * width >= 528 * pixels:
            pixels *= 2
        smaller = [(pixels, 32), (64, 32), (64, 16)]
        while smaller and 2 * images * triton.cdiv(height * width, pixels) * triton.cdiv(outer, columns) <= 132:
            if columns > smaller[0][1]:
                columns //= 2
            elif pixels > smaller[0][0]:
                pixels //= 2
            else:
                smaller.pop(0)
        wide = covering(pixels, min(self.wide, pixels), height, width)
        tall = max(min(pixels // wide, triton.next_power_of_2(height)), 64 // wide)
        held = (self.tall * self.wide + self.columns) * self.inner * self.stages
        stages = min(max(held // ((tall * wide + columns) * deep), 2), MOST_STAGES)
        fitted = replace(self, tall=tall, wide=wide, columns=columns, inner=deep, stages=stages)
        programs = images * fitted.number(height, width) * triton.cdiv(outer, columns)
        return replace(fitted, dependent=self.dependent and programs <= 132)


LARGE = 2**18
"""Tensors of more numbers are worth a launch that lays them, or what is computed of them, better."""
PRECISIONS = ("ieee", "tf32", "bf16x3", "fp16x3")
"""How float32 is multiplied: as it is, rounded to TF32, or as three products of two terms of bfloat16 or, scaled, of
float16, which have float32's digits."""


def pixels_first(tensor: Tensor) -> Tensor:
    """(N, C, H, W) as a contiguous (N, H, W, C): the tensor's own memory where channels come last, else a copy."""
    return tensor.permute(0, 2, 3, 1).contiguous()


def described(tensor: Tensor) -> bool:
    """Whether a tensor descriptor can hold a ``tensor``: Hopper or later, channels that lie whole 16 bytes apart."""
    if tensor.is_cuda and not hopper(tensor):
        return False
    aligned = tensor.data_ptr() % 16 == 0 and tensor.stride(-2) * tensor.element_size() % 16 == 0
    return aligned and tensor.numel() > 0


def loaded(wanted: bool, *tensors: Tensor) -> bool:
    """Whether tensor descriptors are to load ``tensors``: where they can, if ``wanted``, or if they alone can."""
    return (wanted or not all(one.is_contiguous() for one in tensors)) and all(map(described, tensors))


def terms(tensor: Tensor, precision: str, dependent: bool) -> tuple[Tensor, Tensor | None]:
    """A contiguous float32 ``tensor`` as its two bfloat16 terms ("bf16x3"), or rounded and None ("tf32")."""
    split = precision == "bf16x3"
    large = torch.empty_like(tensor, dtype=torch.bfloat16 if split else tensor.dtype)
    small = torch.empty_like(large) if split else None
    with torch.cuda.device_of(tensor):
        _terms[(triton.cdiv(tensor.numel(), 2048),)](
            tensor,
            large,
            small,
            tensor.numel(),
            PRECISION=precision,
            BLOCK=2048,
            num_warps=8,
            **early(dependent, tensor),
        )
    return large, small


def convolve(
    x: Tensor | Terms,
    weight: Tensor,
    bias: Tensor | None,
    patch: Patch,
    *,
    precision: str = "ieee",
    adjoint: bool = False,
    moments: Tensor | None = None,
) -> Tensor:
    """x∗W + b: contiguous x (N, H, W, C_in) and weight (C_out, 9, C_in) → contiguous (N, H, W, C_out) of x's dtype.

    ``adjoint``: the gradient of x from that of the convolution, (N, H, W, C_out) → (N, H, W, C_in). ``moments``
    (N, patches, 2, C_out) float32 gets each patch's mean and sum of squared deviations. ``precision`` for float32.

    By "fp16x3" every pixel of x and every tap of an output channel of W is scaled (:mod:`.scaled_terms`). A product is
    off by at most 2⁻²¹ of itself, except by elements below 2⁻¹⁶ of the largest of their pixel or tap: these are off by
    up to 2⁻³⁹ of that. An infinity or a NaN makes NaN of all it touches, which is what normalising makes of its plane.
    So it is by terms of x that are there already. Raises ``ValueError`` for the ``adjoint`` by "fp16x3": W is not
    scaled by what that sums over.
    """
    split, x = (x, x.large) if isinstance(x, Terms) else (None, x)
    images, height, width, inner = x.shape
    outer = weight.shape[2] if adjoint else weight.shape[0]
    out = torch.empty(images, height, width, outer, dtype=weight.dtype, device=x.device)
    if out.numel() == 0:
        return out
    precision = "ieee" if weight.dtype != torch.float32 else "fp16x3" if split else precision
    x_small = weight_small = x_scales = weight_scales = None
    if precision == "fp16x3":
        if adjoint:
            raise ValueError("precision 'fp16x3' has no adjoint: weight is scaled by output channels")
        *pixels, taps = scaled_terms(*([] if split else [x]), weight, dependent=patch.dependent)
        (x, x_small, x_scales), (weight, weight_small, weight_scales) = pixels[0] if pixels else split, taps
    if precision == "bf16x3":
        x, x_small = terms(x, precision, patch.dependent)
    if precision in ("tf32", "bf16x3"):
        weight, weight_small = terms(weight, precision, patch.dependent)
    if x_small is None and x.numel() > LARGE and hopper(x) and not described(x):
        # Number by number a patch comes several times slower than the copy engine brings it.
        x, weight = (pitched(tensor, tensor.dtype).copy_(tensor) for tensor in (x, weight))
    load, store = loaded(patch.load, x, weight), patch.store and described(out)
    box = [1, patch.tall, patch.wide]
    taps = [patch.inner, 1, patch.columns] if adjoint else [patch.columns, 1, patch.inner]

    def seen(tensor: Tensor | None, block: list[int]) -> Tensor | TensorDescriptor | None:
        return None if tensor is None else tiles_of(tensor, block, load)

    with torch.cuda.device_of(x):
        _convolve[(images * patch.number(height, width), triton.cdiv(outer, patch.columns))](
            seen(x, [*box, patch.inner]),
            seen(x_small, [*box, patch.inner]),
            seen(weight, taps),
            seen(weight_small, taps),
            x_scales,
            weight_scales,
            bias,
            tiles_of(out, [*box, patch.columns], store),
            moments,
            height,
            width,
            inner,
            outer,
            PRECISION="tf32" if precision == "tf32" else "ieee",
            TALL=patch.tall,
            WIDE=patch.wide,
            COLUMNS=patch.columns,
            DEEP=patch.inner,
            ADJOINT=adjoint,
            LOAD=load,
            STORE=store,
            DEVICE=x.is_cuda,
            num_warps=patch.warps,
            num_stages=patch.stages,
            **early(patch.dependent, x),
        )
    return out
