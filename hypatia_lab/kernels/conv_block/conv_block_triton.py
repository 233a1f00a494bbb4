"""Conv2d 3×3 → InstanceNorm2d → GELU in Triton kernels: y = GELU(γ·(z − mean)/√(var + eps) + β), z = x∗W + b.

x is (N, C_in, H, W) and y (N, C_out, H, W), channels last in memory; the convolution pads with one zero and keeps the
size; means and variances are those of a plane, one image's one channel. The first kernel is the convolution as a matrix
product, whose programs also leave each patch's mean and squared deviations; the second adds these up and normalises.
Of many patches one more does the adding. Few channels of float32 are convolved by :mod:`.conv_block_direct`.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.conv_block import conv_block_direct as direct
from hypatia_lab.kernels.conv_block.convolution import LARGE, PRECISIONS, Patch, convolve, pixels_first
from hypatia_lab.kernels.gelu_triton import gelu
from hypatia_lab.kernels.linear_relu.linear_relu_triton import early, wait_turn
from hypatia_lab.kernels.operands import ensure_alike, ensure_no_gradient

if TYPE_CHECKING:
    from torch import Tensor

# ---------------------------------------------------------------- kernels


@triton.jit
def _counts(number, patches, height, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Pixels of patches ``number`` of an image, zero of those beyond the last."""
    across = tl.cdiv(width, WIDE)
    tall = tl.minimum(height - number // across * TALL, TALL)
    wide = tl.minimum(width - number % across * WIDE, WIDE)
    return tl.where(number < patches, tall * wide, 0).to(tl.float32)


# [normalise]
@triton.jit
def _combined(
    moments,
    image,
    patches,
    channel,
    channels,
    height,
    width,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Mean and mean squared deviation of an image's channels: Chan's formula over all its patches at once."""
    number, known = tl.arange(0, BLOCK), channel < channels
    at = moments + (image.to(tl.int64) * patches + number[:, None]) * 2 * channels + channel[None, :]
    pixels = (height * width).to(tl.float32)
    share = tl.zeros((BLOCK, channel.shape[0]), tl.float32)
    for first in range(0, patches, BLOCK):
        inside = (first + number < patches)[:, None] & known[None, :]
        means = tl.load(at + first * 2 * channels, mask=inside, other=0.0)
        share += means * (_counts(first + number, patches, height, width, TALL, WIDE) / pixels)[:, None]
    mean = tl.sum(share, 0)
    share = tl.zeros((BLOCK, channel.shape[0]), tl.float32)
    for first in range(0, patches, BLOCK):
        inside = (first + number < patches)[:, None] & known[None, :]
        off = tl.load(at + first * 2 * channels, mask=inside, other=0.0) - mean[None, :]
        squares = tl.load(at + first * 2 * channels + channels, mask=inside, other=0.0)
        share += squares + off * off * _counts(first + number, patches, height, width, TALL, WIDE)[:, None]  # (1)
    return mean, tl.sum(share, 0) / pixels
    # [/normalise]


# [statistics]
@triton.jit
def _plane_statistics(
    moments,
    statistics,
    patches,
    height,
    width,
    channels,
    eps,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """``statistics`` (N, 2, C) of ``COLUMNS`` channels of an image: mean and 1/√(variance + eps)."""
    wait_turn(DEPENDENT)
    image, channel = tl.program_id(1), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mean, variance = _combined(moments, image, patches, channel, channels, height, width, TALL, WIDE, BLOCK)
    at = statistics + image * 2 * channels + channel
    tl.store(at, mean, mask=channel < channels)
    tl.store(at + channels, 1.0 / tl.sqrt_rn(variance + eps), mask=channel < channels)  # (1)
    # [/statistics]


# [normalise]
@triton.jit
def _normalise(
    z,
    moments,
    gamma,
    beta,
    y,
    statistics,
    patches,
    height,
    width,
    channels,
    eps,
    times,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHORT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """``times`` runs of ``PIXELS`` pixels of one image: y = GELU(γ·(z − mean)/√(var + eps) + β).

    ``statistics`` (N, 2, C) gets the plane's mean and 1/√(var + eps), from its first program. ``SHORT``: see
    :func:`~hypatia_lab.kernels.gelu_triton.normal_integral`.
    """
    wait_turn(DEPENDENT)
    image, channel = tl.program_id(2), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = channel < channels
    mean, variance = _combined(moments, image, patches, channel, channels, height, width, TALL, WIDE, BLOCK)
    scale = 1.0 / tl.sqrt_rn(variance + eps)
    if tl.program_id(0) == 0:
        at = statistics + image * 2 * channels + channel
        tl.store(at, mean, mask=known)
        tl.store(at + channels, scale, mask=known)
    if gamma is not None:
        scale *= tl.load(gamma + channel, mask=known, other=0.0).to(tl.float32)
        shift = tl.load(beta + channel, mask=known, other=0.0).to(tl.float32)
    else:
        shift = tl.zeros((COLUMNS,), tl.float32)
    start = tl.program_id(0) * times * PIXELS
    plane = image.to(tl.int64) * height * width
    for time in range(times):
        pixel = start + time * PIXELS + tl.arange(0, PIXELS)
        inside = (pixel < height * width)[:, None] & known[None, :]
        at = (plane + pixel)[:, None] * channels + channel[None, :]
        u = (tl.load(z + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :] + shift[None, :]
        tl.store(y + at, gelu(u, TANH, SHORT).to(y.dtype.element_ty), mask=inside)  # (2)
    # [/normalise]


# [flat]
@triton.jit
def _normalise_flat(
    z,
    statistics,
    gamma,
    beta,
    y,
    count,
    CHANNELS: tl.constexpr,
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
    SHORT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """``BLOCK`` of the ``count`` numbers of one image as :func:`_normalise` computes them, of known ``statistics``.

    Of channels that are not whole vectors it wastes no lane and loads what lies side by side.
    """
    wait_turn(DEPENDENT)
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel, inside = number % CHANNELS, number < count  # (1)
    at = statistics + tl.program_id(1) * 2 * CHANNELS + channel
    mean, scale = tl.load(at), tl.load(at + CHANNELS)
    if gamma is not None:
        scale *= tl.load(gamma + channel).to(tl.float32)
        shift = tl.load(beta + channel).to(tl.float32)
    else:
        shift = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(1).to(tl.int64) * count
    u = (tl.load(z + first + number, mask=inside, other=0.0).to(tl.float32) - mean) * scale + shift
    tl.store(y + first + number, gelu(u, TANH, SHORT).to(y.dtype.element_ty), mask=inside)
    # [/flat]


# ---------------------------------------------------------------- which tiles


@dataclass(frozen=True)
class Config:
    """How the two kernels are cut up: the convolution by ``patch``; the normalisation takes ``pixels`` at a time,
    ``times`` a program, by ``warps``.
    """

    patch: Patch
    pixels: int = 128
    times: int = 4
    warps: int = 4


_CONFIGS = {
    "16 bits": [
        Config(Patch(1, 128, 64, 64, 4, 4)),
        Config(Patch(2, 128, 64, 64, 8, 4)),
        Config(Patch(2, 64, 64, 64, 4, 4)),
        Config(Patch(8, 16, 64, 64, 4, 4)),
        Config(Patch(2, 128, 64, 64, 8, 3)),
        Config(Patch(2, 128, 64, 64, 4, 3)),
        Config(Patch(4, 64, 64, 64, 8, 4), times=8),
    ],
    "tf32": [
        Config(Patch(2, 128, 64, 32, 8, 4), pixels=64),
        Config(Patch(1, 128, 64, 32, 4, 4), pixels=64),
        Config(Patch(1, 128, 64, 64, 4, 2), pixels=64),
        Config(Patch(1, 128, 64, 32, 8, 4), pixels=64),
    ],
    "bf16x3": [
        Config(Patch(1, 128, 64, 64, 4, 2), pixels=64),
        Config(Patch(2, 128, 64, 32, 8, 3, store=False), pixels=64),
        Config(Patch(1, 128, 64, 32, 4, 4), pixels=64),
        Config(Patch(2, 128, 64, 64, 8, 2, store=False), pixels=64),
    ],
    # Matrix units may sum 64 products of large terms, not more.
    "fp16x3": [
        Config(Patch(1, 128, 64, 64, 4, 2, dependent=False), pixels=64),
        Config(Patch(2, 128, 64, 64, 8, 2, store=False, dependent=False), pixels=64),
        Config(Patch(1, 128, 64, 32, 4, 4, dependent=False), pixels=64),
        Config(Patch(1, 64, 64, 64, 4, 3, dependent=False), pixels=64),
        Config(Patch(2, 128, 64, 32, 8, 3, store=False, dependent=False), pixels=64),
    ],
    "ieee": [Config(Patch(1, 64, 64, 16, 4, 3), pixels=64), Config(Patch(1, 128, 64, 16, 8, 3), pixels=64)],
}
"""Way of multiplying → candidates for the goal's size, the one in use first."""


def candidates(shape: tuple[int, int, int, int, int], dtype: torch.dtype, precision: str = "ieee") -> list[Config]:
    """Configurations worth trying for (N, C_in, C_out, H, W), the one in use first.

    ``precision``, one of :data:`PRECISIONS`, counts for float32 alone.
    """
    images, inner, outer, height, width = shape
    fitted = []
    for chosen in _CONFIGS["16 bits" if dtype.itemsize == 2 else precision]:
        # Programs enough for a device with 132 multiprocessors; of few channels a program takes more pixels.
        pixels, area = chosen.pixels, images * height * width
        while pixels * triton.next_power_of_2(outer) < 64 * chosen.pixels and area >= 528 * pixels:
            pixels *= 2
        times = max(1, min(chosen.times, area // (264 * pixels)))
        patch = chosen.patch.fitted(images, inner, outer, height, width)
        fitted.append(replace(chosen, patch=patch, pixels=pixels, times=times))
    return list(dict.fromkeys(fitted))


def config(shape: tuple[int, int, int, int, int], dtype: torch.dtype, precision: str = "ieee") -> Config:
    """The configuration in use for (N, C_in, C_out, H, W); arguments as of :func:`candidates`."""
    return candidates(shape, dtype, precision)[0]


# ---------------------------------------------------------------- launches

MANY_PATCHES = 128
"""More of an image are combined once, and not by every program that normalises."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check(x: Tensor, weight: Tensor, vectors: dict[str, Tensor | None]) -> None:
    """Refuse what the kernels cannot compute. Raises ``ValueError`` naming the tensor; ``vectors`` are (C_out)."""
    if x.dim() != 4 or weight.dim() != 4 or weight.shape[1:] != (x.shape[1], 3, 3) or not x.shape[1]:
        raise ValueError(
            f"x {list(x.shape)} and weight {list(weight.shape)} do not fit: x is (N, C_in, H, W), "
            "weight (C_out, C_in, 3, 3), C_in at least 1"
        )
    if x.shape[2] * x.shape[3] < 2:
        raise ValueError(f"x {list(x.shape)} has planes of less than two pixels, which cannot be normalised")
    for name, tensor in vectors.items():
        if tensor is not None and tensor.shape != weight.shape[:1]:
            raise ValueError(f"{name} {list(tensor.shape)} does not fit weight {list(weight.shape)}: it is (C_out)")
    ensure_alike({"x": x, "weight": weight, **vectors}, DTYPES)
    ensure_no_gradient({"x": x, "weight": weight, **vectors})
    if ("gamma" in vectors) and (vectors["gamma"] is None) != (vectors["beta"] is None):
        raise ValueError("gamma and beta must be given together or not at all")


def operands(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    approximate: str,
    precision: str = "ieee",
) -> tuple[Tensor, Tensor, tuple[Tensor | None, Tensor | None, Tensor | None]]:
    """What every launch reads, contiguous: x (N, H, W, C_in), weight (C_out, 9, C_in), and bias, γ and β (C_out).
    What :mod:`.conv_block_direct` computes reads x (N, C_in, H, W) as it is.

    Raises ``ValueError`` as :func:`check` does, and for an unknown ``approximate`` or ``precision``.
    """
    check(x, weight, {"bias": bias, "gamma": gamma, "beta": beta})
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate {approximate!r} is neither 'none' nor 'tanh'")
    b, g, s = (None if vector is None else vector.contiguous() for vector in (bias, gamma, beta))
    read = x if direct.fits(x, weight.shape[0], precision) else pixels_first(x)
    return read, pixels_first(weight).view(weight.shape[0], 9, x.shape[1]), (b, g, s)


@dataclass(frozen=True)
class Saved:
    """What backward needs of a forward pass: the convolution, contiguous (N, H, W, C_out) of x's dtype, and
    ``statistics`` (N, 2, C_out) in float32, each plane's mean and 1/√(variance + eps).
    """

    convolved: Tensor
    statistics: Tensor


def conv_block_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    eps: float = 1e-5,
    approximate: str = "none",
    precision: str = "ieee",
    tiles: Config | None = None,
) -> tuple[Tensor, Saved]:
    """GELU(InstanceNorm2d(Conv2d(x))): x (N, C_in, H, W), W (C_out, C_in, 3, 3), b, γ, β (C_out) → (N, C_out, H, W).

    bfloat16, float16, or float32 multiplied as ``precision`` says, on a CUDA device (in Triton's interpreter on any).
    The result is channels last in memory, as x and W are best given: what is not is copied. Sums and statistics are
    float32; the convolution is rounded to x's dtype before it is normalised. ``approximate``: GELU's form, "none" (erf)
    or "tanh". ``tiles`` replaces :func:`config`. Any NaN of an image gives NaN in all its pixels. With it comes what
    its backward needs.

    Raises ValueError naming the tensor for a wrong rank, mismatched sizes, planes of one pixel, mixed or other dtypes,
    mixed devices, or a gradient asked for.
    """
    read, taps, (bias, gamma, beta) = operands(x, weight, bias, gamma, beta, approximate, precision)
    (images, inner, height, width), outer = x.shape, weight.shape[0]
    chosen = tiles or config((images, inner, outer, height, width), x.dtype, precision)
    few = direct.fits(x, outer, precision)
    tall, wide = direct.patch(images, height, width) if few else (chosen.patch.tall, chosen.patch.wide)
    patches = triton.cdiv(height, tall) * triton.cdiv(width, wide)
    moments = torch.empty(images, patches, 2, outer, dtype=torch.float32, device=x.device)
    statistics = torch.empty(images, 2, outer, dtype=torch.float32, device=x.device)
    if few:
        convolved = direct.convolve_direct(read, taps, bias, moments, tall, wide)
    else:
        convolved = convolve(read, taps, bias, chosen.patch, precision=precision, moments=moments)
    y = torch.empty_like(convolved)
    if y.numel():
        planes = (patches, height, width, outer, eps)
        cut, pdl = {"TALL": tall, "WIDE": wide}, early(chosen.patch.dependent, x)
        # Rounding to 16 bits is far coarser, and sums of products of terms are off by as much.
        short = x.element_size() == 2 or (precision == "fp16x3" and not few)
        how = {"TANH": approximate == "tanh", "SHORT": short, **pdl}
        with torch.cuda.device_of(x):
            if patches > MANY_PATCHES or (outer % 16 and y.numel() > LARGE):
                most = min(512, triton.next_power_of_2(patches))
                _plane_statistics[(triton.cdiv(outer, 8), images)](
                    moments, statistics, *planes, BLOCK=most, COLUMNS=8, num_warps=8, **cut, **pdl
                )
                count = height * width * outer
                _normalise_flat[(triton.cdiv(count, 1024), images)](
                    convolved, statistics, gamma, beta, y, count, CHANNELS=outer, BLOCK=1024, num_warps=4, **how
                )
            else:
                columns = min(64, triton.next_power_of_2(outer))
                runs = triton.cdiv(height * width, chosen.pixels * chosen.times)
                _normalise[(runs, triton.cdiv(outer, columns), images)](
                    convolved,
                    moments,
                    gamma,
                    beta,
                    y,
                    statistics,
                    *planes,
                    chosen.times,
                    BLOCK=min(4096 // columns, triton.next_power_of_2(patches)),
                    PIXELS=chosen.pixels,
                    COLUMNS=columns,
                    num_warps=chosen.warps,
                    **cut,
                    **how,
                )
    return y.permute(0, 3, 1, 2), Saved(convolved, statistics)
