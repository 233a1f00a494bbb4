"""The whole diffraction image in one Triton kernel: scattering geometry, interference, solid angle, polarization.

In float32 the index h = a·(d − i)/λ itself is too coarse: it is large, and only its fraction counts. So every program
takes the centre of its pixels as an anchor, finds h there in float64 (once, as scalars), and follows in float32 only
the change of h from the anchor, written as differences that cancel exactly; no series is cut off anywhere.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

SMALL = 8
"""Largest number of unit cells along an axis whose interference is a polynomial."""


@triton.constexpr_function
def _coefficient(count, power):
    """Coefficient of q^power, q = sin² x, of sin(count·x) / (count·sin x), for even counts also divided by cos x.

    Both series end: the odd one after q^((count − 1)/2), the even one after q^((count − 2)/2).
    """
    odd, value = count % 2, 1.0
    for n in range(power):
        value *= -(count**2 - (2 * n + 2 - odd) ** 2) / ((2 * n + 2) * (2 * n + 3))
    return value


@triton.jit
def _vector(at):
    return tl.load(at), tl.load(at + 1), tl.load(at + 2)


@triton.jit
def _dot(u, v):
    return u[0] * v[0] + u[1] * v[1] + u[2] * v[2]


@triton.jit
def _cross(u, v):
    return u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]


@triton.jit
def _scaled(u, factor):
    return u[0] * factor, u[1] * factor, u[2] * factor


@triton.jit
def _along(u, anchor, fast, slow, NUMBER: tl.constexpr):
    """Components along ``u`` of the anchor's direction and of a pixel's step along fast and slow, as ``NUMBER``."""
    return _dot(u, anchor).to(NUMBER), _dot(u, fast).to(NUMBER), _dot(u, slow).to(NUMBER)


@triton.jit
def _axis(at, per_wavelength, incident, anchor, fast, slow, NUMBER: tl.constexpr):
    """Along one cell vector: the nearest whole index at the anchor, the fraction there, and :func:`_along` over λ."""
    vector = _scaled(_vector(at), per_wavelength)
    index = _dot(vector, anchor) - _dot(vector, incident)
    whole = tl.ceil(index - 0.5)
    return whole, (index - whole).to(NUMBER), _along(vector, anchor, fast, slow, NUMBER)


@triton.jit
def _change(axis, s, t, x, y):
    """h less the whole index at the anchor, and the whole number nearest to that; see :func:`_image`."""
    _, fraction, (onward, along_fast, along_slow) = axis
    index = (fraction + onward * t) + (along_fast * x + along_slow * y) * s
    # Adding 1.5 · 2^(mantissa bits) leaves no room for a fraction: two additions, where rounding runs at an eighth
    # of their rate.
    big: tl.constexpr = 12582912.0 if index.dtype.is_fp32() else 6755399441055744.0
    whole = (index + big) - big
    return index - whole, whole


@triton.jit
def _sine_squared(delta):
    """sin²(πδ) for |δ| ≤ ½; in float32 to 5e-7 at the ends and 5e-8 near 0, where the intensity is."""
    if delta.dtype.is_fp64():
        sine = tl.sin(math.pi * delta)
        return sine * sine
    # Polynomial through 0 with the least |error| / (sin² + 0.1); the library's sine costs several times as much.
    y = delta * delta
    q = 10.753091669985112 * y - 29.531715788
    q = q * y + 42.66572929831613
    q = q * y - 32.46699428984369
    return (q * y + 9.86957229696704) * y


@triton.jit
def _interfere(amplitude, square, delta, COUNT: tl.constexpr):
    """Multiply ``amplitude``² · ``square`` by [sin(πNδ) / (N sin πδ)]², N = ``COUNT``, with whatever is cheaper."""
    if COUNT == 1:
        return amplitude, square
    q = _sine_squared(delta)
    if COUNT > SMALL:
        inner = COUNT * delta
        big: tl.constexpr = 12582912.0 if delta.dtype.is_fp32() else 6755399441055744.0
        inner -= (inner + big) - big
        # At δ = 0 the two tiny terms make 1; elsewhere they are lost.
        return amplitude, square * ((_sine_squared(inner) + 1e-30) / (COUNT * COUNT * q + 1e-30))
    degree: tl.constexpr = (COUNT - 1) // 2
    ratio = tl.full(q.shape, _coefficient(COUNT, degree), q.dtype)
    for step in tl.static_range(degree):
        ratio = ratio * q + _coefficient(COUNT, degree - 1 - step)
    if COUNT % 2 == 0:
        square *= 1 - q
    return amplitude * ratio, square


@triton.jit(do_not_specialize=["table_h", "table_k", "table_l", "low_h", "low_k", "low_l"])
def _image(
    crystals,
    sources,
    detector,
    polarization,
    structure,
    out,
    crystal_count,
    source_count,
    slow_pixels,
    fast_pixels,
    table_h,
    table_k,
    table_l,
    low_h,
    low_k,
    low_l,
    MANY: tl.constexpr,
    TABLE: tl.constexpr,
    OVERSAMPLE: tl.constexpr,
    N_A: tl.constexpr,
    N_B: tl.constexpr,
    N_C: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """One program: CHUNKS · ROWS × COLUMNS pixels around one anchor, ROWS × COLUMNS at a time.

    With the anchor at P₀, |P₀| = R₀, n = P₀/R₀, and a pixel's point at P₀ + D, |P| = R:

        w = (R² − R₀²)/R₀²,   s = R₀/R = (1 + w)^−½,   t = s − 1,   P/R − n = n·t + (D/R₀)·s

    so that h − h₀ = (a·n/λ)·t + (a·D/(R₀λ))·s. w is a polynomial in the offsets; so is the polarization times (R/R₀)².
    """
    NUMBER: tl.constexpr = out.dtype.element_ty
    image = tl.program_id(2).to(tl.int64)
    first_row = tl.program_id(1) * (CHUNKS * ROWS)
    first_column = tl.program_id(0) * COLUMNS

    corner, fast, slow = _vector(detector), _vector(detector + 3), _vector(detector + 6)
    distance = tl.load(detector + 9)
    middle_fast = (first_column + COLUMNS // 2).to(tl.float64)
    middle_slow = (first_row + CHUNKS * ROWS // 2).to(tl.float64)
    px = corner[0] + middle_fast * fast[0] + middle_slow * slow[0]
    py = corner[1] + middle_fast * fast[1] + middle_slow * slow[1]
    pz = corner[2] + middle_fast * fast[2] + middle_slow * slow[2]
    inverse = tl.rsqrt(px * px + py * py + pz * pz)
    # Everything below is in units of R₀.
    anchor, fast, slow = (px * inverse, py * inverse, pz * inverse), _scaled(fast, inverse), _scaled(slow, inverse)
    _, w_x, w_y = _along(anchor, anchor, fast, slow, NUMBER)
    w_xx, w_yy = _dot(fast, fast).to(NUMBER), _dot(slow, slow).to(NUMBER)
    w_x, w_y = 2 * w_x, 2 * w_y

    # Solid angle at the anchor, interference at its peak (1 further down), and the mean over all terms.
    weight = tl.sqrt(_dot(fast, fast) * _dot(slow, slow)) * distance * inverse
    weight *= (N_A * N_B * N_C) * 1.0
    weight *= (N_A * N_B * N_C) * 1.0
    weight = weight / source_count / crystal_count / (OVERSAMPLE * OVERSAMPLE)
    if not TABLE:
        weight *= tl.load(structure)

    column = tl.arange(0, COLUMNS)[None, :]
    inside_fast = first_column + column < fast_pixels
    corner_of_tile = out + (image * slow_pixels + first_row) * fast_pixels + first_column

    kahn = tl.load(polarization).to(NUMBER)
    pole = _vector(polarization + 1)

    for source in range(source_count):
        incident = _vector(sources + 4 * source)
        per_wavelength = 1 / tl.load(sources + 4 * source + 3)
        # P = ½(1 − K) + ½(1 + K)(i·d)² + K(c·d)² is Kahn's factor, c the unit vector across axis and beam.
        across = _cross(pole, incident)
        i_0, i_x, i_y = _along(incident, anchor, fast, slow, NUMBER)
        c_0, c_x, c_y = _along(across, anchor, fast, slow, NUMBER)
        even = (0.5 * (1 - kahn) * weight).to(NUMBER)
        beam = (0.5 * (1 + kahn) * weight).to(NUMBER)
        side = (kahn * weight / tl.maximum(_dot(across, across), 1e-24)).to(NUMBER)
        p_0 = even + beam * i_0 * i_0 + side * c_0 * c_0
        p_x = even * w_x + 2 * (beam * i_0 * i_x + side * c_0 * c_x)
        p_y = even * w_y + 2 * (beam * i_0 * i_y + side * c_0 * c_y)
        p_xx = even * w_xx + beam * i_x * i_x + side * c_x * c_x
        p_yy = even * w_yy + beam * i_y * i_y + side * c_y * c_y
        p_xy = 2 * (beam * i_x * i_y + side * c_x * c_y)
        for crystal in range(crystal_count):
            cell = crystals + (image * crystal_count + crystal) * 9
            a = _axis(cell, per_wavelength, incident, anchor, fast, slow, NUMBER)
            b = _axis(cell + 3, per_wavelength, incident, anchor, fast, slow, NUMBER)
            c = _axis(cell + 6, per_wavelength, incident, anchor, fast, slow, NUMBER)
            for chunk in range(CHUNKS):
                row = chunk * ROWS + tl.arange(0, ROWS)[:, None]
                where = corner_of_tile + row * fast_pixels + column
                inside = (first_row + row < slow_pixels) & inside_fast
                if MANY:
                    # The image itself holds the sum over the steps: a thread reads what it wrote.
                    total = tl.load(where, mask=inside & (source + crystal > 0), other=0.0)
                else:
                    total = tl.zeros((ROWS, COLUMNS), NUMBER)
                for point in range(OVERSAMPLE * OVERSAMPLE):
                    # Offsets from the anchor in pixels.
                    x = (column - COLUMNS // 2) * OVERSAMPLE + point % OVERSAMPLE
                    y = (row - CHUNKS * ROWS // 2) * OVERSAMPLE + point // OVERSAMPLE
                    x, y = (x.to(NUMBER) + 0.5) * (1.0 / OVERSAMPLE), (y.to(NUMBER) + 0.5) * (1.0 / OVERSAMPLE)
                    w = x * (w_x + w_xx * x) + y * (w_y + w_yy * y)
                    s = tl.rsqrt(1 + w)
                    # t = s − 1 lacks what s was rounded off by, a Newton step gives it back: 1 = s²(1 + w).
                    t = s - 1
                    t -= 0.5 * (w + (1 + w) * (t * s + t))
                    polarized = (p_0 + x * (p_x + p_xx * x)) + y * (p_y + p_yy * y) + (p_xy * x) * y
                    # Solid angle falls as s³, and the polarization here is (R/R₀)² too large.
                    amplitude, square = s * s, polarized * s
                    delta_h, whole_h = _change(a, s, t, x, y)
                    delta_k, whole_k = _change(b, s, t, x, y)
                    delta_l, whole_l = _change(c, s, t, x, y)
                    amplitude, square = _interfere(amplitude, square, delta_h, N_A)
                    amplitude, square = _interfere(amplitude, square, delta_k, N_B)
                    amplitude, square = _interfere(amplitude, square, delta_l, N_C)
                    if TABLE:
                        h = tl.clamp(whole_h + (a[0] - low_h).to(NUMBER), 0.0, (table_h - 1).to(NUMBER)).to(tl.int32)
                        k = tl.clamp(whole_k + (b[0] - low_k).to(NUMBER), 0.0, (table_k - 1).to(NUMBER)).to(tl.int32)
                        l = tl.clamp(whole_l + (c[0] - low_l).to(NUMBER), 0.0, (table_l - 1).to(NUMBER)).to(tl.int32)
                        square *= tl.load(structure + (h * table_k + k) * table_l + l).to(NUMBER)
                    total += amplitude * amplitude * square
                tl.store(where, total, mask=inside)


def default_tile(pixels: int) -> tuple[int, int, int]:
    """Rows, columns and chunks of a program for ``pixels`` in all images together: few pixels, small programs."""
    if pixels >= 2**22:
        return 8, 64, 4
    return (8, 64, 1) if pixels >= 2**19 else (2, 64, 1)


def _check(name: str, tensor: Tensor, out: Tensor, *shapes: tuple[int | None, ...]) -> None:
    fits = any(
        len(shape) == tensor.ndim and all(n in (None, m) for n, m in zip(shape, tensor.shape, strict=True))
        for shape in shapes
    )
    if not fits:
        wanted = " or ".join(str(tuple("any" if n is None else n for n in shape)) for shape in shapes)
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {wanted}")
    if tensor is not out and tensor.dtype != torch.float64:
        raise ValueError(f"{name} is {tensor.dtype}, expected torch.float64")
    if tensor.device != out.device:
        raise ValueError(f"{name} is on {tensor.device}, out on {out.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")


def diffraction(
    crystals: Tensor,
    sources: Tensor,
    detector: Tensor,
    polarization: Tensor,
    structure: Tensor,
    out: Tensor,
    *,
    oversample: int,
    cells: tuple[int, int, int],
    miller_low: tuple[int, int, int],
    tile: tuple[int, int, int] | None = None,
    warps: int = 1,
) -> None:
    """Write the image into ``out`` (slow, fast), or a batch of images into ``out`` (B, slow, fast), in one launch.

    ``out`` is float32 or float64; all else is float64 on its device, contiguous, and read there only: nothing waits
    for the device. ``crystals`` (M, 3, 3), with a batch (B, M, 3, 3), Å: rows a, b, c. ``sources`` (S, 4): unit
    direction, wavelength in Å. ``detector`` (10) mm: corner of the first pixel (3), step of one pixel along fast (3)
    and slow (3), perpendicular to each other, and distance. ``polarization`` (4): Kahn factor, axis. ``structure``
    (h, k, l): F² from index ``miller_low`` on, or one F² for every reflection. ``cells``: unit cells along a, b, c.
    Every pixel is the mean of ``oversample``² points.

    ``tile``: rows and columns (powers of two) that a program computes at a time, and how many times; ``warps``: warps
    of a program. Raises ValueError naming the tensor of a wrong shape, dtype, device or layout.
    """
    if out.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"out is {out.dtype}, expected torch.float32 or torch.float64")
    _check("out", out, out, (None, None), (None, None, None))
    *batch, slow, fast = out.shape
    _check("crystals", crystals, out, (*batch, None, 3, 3))
    _check("sources", sources, out, (None, 4))
    _check("detector", detector, out, (10,))
    _check("polarization", polarization, out, (4,))
    _check("structure", structure, out, (None, None, None))
    rows, columns, chunks = tile or default_tile(out.numel())
    steps = crystals.shape[-3], sources.shape[0]
    grid = triton.cdiv(fast, columns), triton.cdiv(slow, rows * chunks), *(batch or [1])
    with torch.cuda.device_of(out):
        _image[grid](
            crystals,
            sources,
            detector,
            polarization,
            structure,
            out,
            *steps,
            slow,
            fast,
            *structure.shape,
            *miller_low,
            MANY=steps != (1, 1),
            TABLE=structure.numel() > 1,
            OVERSAMPLE=oversample,
            N_A=cells[0],
            N_B=cells[1],
            N_C=cells[2],
            ROWS=rows,
            COLUMNS=columns,
            CHUNKS=chunks,
            num_warps=warps,
        )
