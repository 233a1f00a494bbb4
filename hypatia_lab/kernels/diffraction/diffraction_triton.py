"""The whole diffraction image in one Triton kernel: scattering geometry, interference, solid angle, polarization.

In float32 the index h = a·(d − i)/λ itself is too coarse: it is large, and only its fraction counts. So every program
takes the centre of its pixels as an anchor, finds h there in float64 (once, as scalars), and follows in float32 only
the change of h from the anchor, written as differences that cancel exactly; no series is cut off anywhere.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

SMALL: tl.constexpr = tl.constexpr(8)
"""Largest number of unit cells along an axis whose interference is a polynomial."""


@triton.constexpr_function
def _wave(count):
    """How to compute sin(Nx) / (N sin x), N = ``count``, but for the sign, and without its factor cos x if N is even.

    It is a polynomial in q = sin² x. In g = scale·q + shift it has no second term, its first coefficient is ±1, and the
    others cost one multiplication less. Returns scale, shift and those others from the third on.
    """
    odd, degree = count % 2, (count - 1) // 2
    if degree == 0:
        return (1.0, 0.0)
    inq = [1.0]
    for n in range(degree):
        inq.append(-inq[n] * (count**2 - (2 * n + 2 - odd) ** 2) / ((2 * n + 2) * (2 * n + 3)))
    scale = abs(inq[degree]) ** (1 / degree)
    shift = scale * inq[degree - 1] / (degree * inq[degree])
    sign = math.copysign(1.0, inq[degree])
    ing = [
        sign * sum(inq[j] / scale**j * math.comb(j, k) * (-shift) ** (j - k) for j in range(k, degree + 1))
        for k in range(degree - 1)
    ]
    return (scale, shift, *reversed(ing))


@triton.constexpr_function
def _period(count, unit):
    """The period of an axis's index as :func:`_interfere` takes it: 2π for the hardware's cosine (``unit``), else 1."""
    return 2 * math.pi if unit and 1 < count <= SMALL.value else 1.0


@triton.constexpr_function
def _series(single):
    """Coefficients of sin²(π√y) as a polynomial in y, 0 ≤ y ≤ ¼, from the highest power to the first."""
    if single:
        # Least |error| / (sin² + 0.1): the intensity is where the sine is near 0.
        return (10.753091669985112, -29.53171578848722, 42.66572929831613, -32.46699428984369, 9.86957229696704)
    # Taylor: the first term left out is 1e-16.
    return tuple(-((-1) ** k) * 2 ** (2 * k - 1) * math.pi ** (2 * k) / math.factorial(2 * k) for k in range(13, 0, -1))


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
def _along(u, anchor, fast, slow, NUMBER: tl.constexpr, TIMES: tl.constexpr = 1.0):
    """Components along ``u`` of the anchor's direction and a pixel's step along fast and slow, ``TIMES`` as large."""
    of_anchor, of_fast, of_slow = _scaled((_dot(u, anchor), _dot(u, fast), _dot(u, slow)), TIMES)
    return of_anchor.to(NUMBER), of_fast.to(NUMBER), of_slow.to(NUMBER)


@triton.jit
def _axis(at, per_wavelength, incident, anchor, fast, slow, NUMBER: tl.constexpr, PERIOD: tl.constexpr):
    """Along one cell vector: the nearest whole index at the anchor, the fraction there, and :func:`_along` over λ.

    All but the whole one are times ``PERIOD``, so that no pixel need be.
    """
    vector = _scaled(_vector(at), per_wavelength)
    index = _dot(vector, anchor) - _dot(vector, incident)
    whole = tl.ceil(index - 0.5)
    onward, along_fast, along_slow = _along(vector, anchor, fast, slow, NUMBER, PERIOD)
    return whole, ((index - whole) * PERIOD).to(NUMBER), onward, along_fast, along_slow


@triton.jit
def _nearest(x):
    """The nearest whole number, |x| < 2^22: 1.5 · 2^(bits of the mantissa) leaves no room for a fraction.

    Two additions, where the rounding instruction runs at an eighth of their rate.
    """
    big: tl.constexpr = 12582912.0 if x.dtype.is_fp32() else 6755399441055744.0
    return (x + big) - big


# [image]
@triton.jit
def _change(axis, s, t, x, y):
    """h less the whole index at the anchor, times the axis's period; see :func:`_image`."""
    _, fraction, onward, along_fast, along_slow = axis
    return (fraction + onward * t) + (along_fast * x + along_slow * y) * s  # (1)
    # [/image]


@triton.jit
def _reflection(index, axis, at, per_wavelength, incident, anchor, fast, slow, x, y):
    """The whole number nearest to ``index`` of :func:`_change`, ties downwards; near a tie, found in float64."""
    whole = tl.ceil(index - 0.5)
    near = tl.abs(tl.abs(index - whole) - 0.5) < 1e-5
    if tl.max(near.to(tl.int32)) > 0:
        vector = _scaled(_vector(at), per_wavelength)
        # The vectors are float64, and so is what they meet.
        dx = anchor[0] + x.to(tl.float64) * fast[0] + y.to(tl.float64) * slow[0]
        dy = anchor[1] + x.to(tl.float64) * fast[1] + y.to(tl.float64) * slow[1]
        dz = anchor[2] + x.to(tl.float64) * fast[2] + y.to(tl.float64) * slow[2]
        projected = (vector[0] * dx + vector[1] * dy + vector[2] * dz) / tl.sqrt(dx * dx + dy * dy + dz * dz)
        exact = tl.ceil(projected - _dot(vector, incident) - 0.5) - axis[0]
        whole = tl.where(near, exact.to(whole.dtype), whole)
    return whole


@triton.jit
def _entry(axis, whole, low, size):
    """Position along one axis of the table; outside it, the nearest, where the table holds the default."""
    return tl.clamp(whole + (axis[0] - low).to(whole.dtype), 0.0, (size - 1).to(whole.dtype)).to(tl.int32)


@triton.jit
def _sine_squared(delta, scale: tl.constexpr, shift: tl.constexpr):
    """scale · sin²(πδ) + shift for |δ| ≤ ½; in float32 the sine² is off by at most 1e-6."""
    # A polynomial without first term: the library's sine costs several times as much.
    series: tl.constexpr = _series(delta.dtype.is_fp32())
    y = delta * delta
    g = y * (scale * series[0]) + scale * series[1]
    for n in tl.static_range(2, len(series)):
        g = g * y + scale * series[n]
    return g * y + shift


@triton.jit
def _interfere(amplitude, square, index, COUNT: tl.constexpr, UNIT: tl.constexpr):
    """Multiply ``amplitude``² · ``square`` by [sin(πNh) / (N sin πh)]², N = ``COUNT``, with whatever is cheaper.

    ``index`` is h times :func:`_period`. ``UNIT``: take cosines of float32 from the hardware's unit for them, which the
    interpreter does not have.
    """
    if COUNT == 1:
        return amplitude, square
    if COUNT > SMALL:
        delta = index - _nearest(index)
        # At δ = 0 the two tiny terms make 1; elsewhere they are lost.
        tiny: tl.constexpr = 1e-30
        inner = COUNT * delta
        over = _sine_squared(inner - _nearest(inner), 1.0, tiny)
        under = tl.rsqrt(_sine_squared(delta, 1.0 * COUNT * COUNT, tiny))
        return amplitude, square * (over * under * under)
    wave: tl.constexpr = _wave(COUNT)
    if UNIT:
        # sin² = (1 − cos)/2 has the period of h: nothing to remove first.
        cosine = tl.inline_asm_elementwise(
            "cos.approx.ftz.f32 $0, $1;", "=f,f", [index], dtype=tl.float32, is_pure=True, pack=1
        )
        g = cosine * (-0.5 * wave[0]) + (0.5 * wave[0] + wave[1])
    else:
        g = _sine_squared(index - _nearest(index), wave[0], wave[1])
    if COUNT % 2 == 0:
        # cos² x, which must not be rounded below 0.
        square *= tl.maximum((1 + wave[1] / wave[0]) - g * (1 / wave[0]), 0.0)
    if COUNT > 2:
        ratio = g
        for n in tl.static_range(2, (COUNT + 1) // 2):
            ratio = ratio * g + wave[n]
        amplitude *= ratio
    return amplitude, square


# [image]
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
    UNIT: tl.constexpr,
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
    inverse = tl.rsqrt(px * px + py * py + pz * pz)  # (2)
    # Everything below is in units of R₀.
    anchor, fast, slow = (px * inverse, py * inverse, pz * inverse), _scaled(fast, inverse), _scaled(slow, inverse)
    _, w_x, w_y = _along(anchor, anchor, fast, slow, NUMBER)
    w_xx, w_yy = _dot(fast, fast).to(NUMBER), _dot(slow, slow).to(NUMBER)
    w_x, w_y = 2 * w_x, 2 * w_y

    # Solid angle at the anchor, interference at its peak (1 further down), and the mean over all terms.
    weight = tl.sqrt(w_xx) * tl.sqrt(w_yy) * (distance * inverse).to(NUMBER)
    weight *= (N_A * N_B * N_C) * 1.0
    weight *= (N_A * N_B * N_C) * 1.0
    if not TABLE:
        weight *= tl.load(structure).to(NUMBER)
    weight = weight / source_count / crystal_count / (OVERSAMPLE * OVERSAMPLE)

    column = tl.arange(0, COLUMNS)[None, :]
    inside_fast = first_column + column < fast_pixels
    corner_of_tile = out + (image * slow_pixels + first_row) * fast_pixels + first_column

    A: tl.constexpr = _period(N_A, UNIT)
    B: tl.constexpr = _period(N_B, UNIT)
    C: tl.constexpr = _period(N_C, UNIT)
    kahn = tl.load(polarization).to(NUMBER)
    pole = _vector(polarization + 1)

    for source in range(source_count):
        incident = _vector(sources + 4 * source)
        per_wavelength = 1 / tl.load(sources + 4 * source + 3)
        # P = ½(1 − K) + ½(1 + K)(i·d)² + K(c·d)² is Kahn's factor, c the unit vector across axis and beam.
        across = _cross(pole, incident)
        i_0, i_x, i_y = _along(incident, anchor, fast, slow, NUMBER)
        c_0, c_x, c_y = _along(across, anchor, fast, slow, NUMBER)
        even, beam = 0.5 * (1 - kahn) * weight, 0.5 * (1 + kahn) * weight
        side = kahn * weight / tl.maximum(_dot(across, across), 1e-24).to(NUMBER)
        p_0 = even + beam * i_0 * i_0 + side * c_0 * c_0
        p_x = even * w_x + 2 * (beam * i_0 * i_x + side * c_0 * c_x)
        p_y = even * w_y + 2 * (beam * i_0 * i_y + side * c_0 * c_y)
        p_xx = even * w_xx + beam * i_x * i_x + side * c_x * c_x
        p_yy = even * w_yy + beam * i_y * i_y + side * c_y * c_y
        p_xy = 2 * (beam * i_x * i_y + side * c_x * c_y)
        for crystal in range(crystal_count):
            cell = crystals + (image * crystal_count + crystal) * 9
            a = _axis(cell, per_wavelength, incident, anchor, fast, slow, NUMBER, A)  # (3)
            b = _axis(cell + 3, per_wavelength, incident, anchor, fast, slow, NUMBER, B)
            c = _axis(cell + 6, per_wavelength, incident, anchor, fast, slow, NUMBER, C)
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
                    s = tl.rsqrt(1 + w)  # (4)
                    # t = s − 1 lacks what s was rounded off by, a Newton step gives it back: 1 = s²(1 + w).
                    t = s - 1
                    t -= 0.5 * (w + (1 + w) * (t * s + t))
                    polarized = (p_0 + x * (p_x + p_xx * x)) + y * (p_y + p_yy * y) + (p_xy * x) * y
                    # Solid angle falls as s³, and the polarization here is (R/R₀)² too large.
                    amplitude, square = s * s, polarized * s
                    h, k, m = _change(a, s, t, x, y), _change(b, s, t, x, y), _change(c, s, t, x, y)  # (5)
                    amplitude, square = _interfere(amplitude, square, h, N_A, UNIT)
                    amplitude, square = _interfere(amplitude, square, k, N_B, UNIT)
                    amplitude, square = _interfere(amplitude, square, m, N_C, UNIT)
                    if TABLE:
                        h = _reflection(h * (1 / A), a, cell, per_wavelength, incident, anchor, fast, slow, x, y)
                        k = _reflection(k * (1 / B), b, cell + 3, per_wavelength, incident, anchor, fast, slow, x, y)
                        m = _reflection(m * (1 / C), c, cell + 6, per_wavelength, incident, anchor, fast, slow, x, y)
                        entry = _entry(a, h, low_h, table_h)
                        entry = entry * table_k + _entry(b, k, low_k, table_k)
                        entry = entry * table_l + _entry(c, m, low_l, table_l)
                        square *= tl.load(structure + entry).to(NUMBER)
                    total += amplitude * amplitude * square
                tl.store(where, total, mask=inside)
    # [/image]


def default_tile(pixels: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Rows, columns and chunks of a program for ``pixels`` in all images together.

    Many pixels share the work at an anchor; few are better spread over the device; float64 takes twice the registers.
    """
    rows = 8 if dtype == torch.float32 else 4
    if pixels >= 2**24 and dtype == torch.float32:
        # Of 64 registers a thread, with which all of 4096² runs at once on an H200.
        return 2, 128, 16
    if pixels >= 2**22:
        return rows, 64, 32 // rows
    return (rows, 64, 1) if pixels >= 2**19 else (2, 64, 1)


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
    registers: int | None = None,
) -> None:
    """Write the image into ``out`` (slow, fast), or a batch of images into ``out`` (B, slow, fast), in one launch.

    ``out`` is float32 or float64; all else is float64 on its device, contiguous, and read there only: nothing waits
    for the device. ``crystals`` (M, 3, 3), with a batch (B, M, 3, 3), Å: rows a, b, c. ``sources`` (S, 4): unit
    direction, wavelength in Å. ``detector`` (10) mm: corner of the first pixel (3), step of one pixel along fast (3)
    and slow (3), perpendicular to each other, and distance. ``polarization`` (4): Kahn factor, axis. ``structure``
    (h, k, l): F² from index ``miller_low`` on, or one F² for every reflection. ``cells``: unit cells along a, b, c.
    Every pixel is the mean of ``oversample``² points.

    ``tile``: rows and columns (powers of two) that a program computes at a time, and how many times, in place of
    :func:`default_tile`; ``warps``: warps of a program; ``registers``: most registers of a thread, None for the
    compiler's choice. Raises ValueError naming the tensor of a wrong shape, dtype, device or layout.
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
    rows, columns, chunks = tile or default_tile(out.numel(), out.dtype)
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
            UNIT=out.dtype == torch.float32 and out.is_cuda,
            num_warps=warps,
            maxnreg=registers,
        )
