"""float32's accuracy from matrix units that take 11 bits: Linear+ReLU by split operands, in two Triton kernels.

y = max(0, x·Wᵀ + b): x is (batch, in), W (out, in), b (out) or None, y (batch, out), all float32. A first kernel scales
every row of x and of W by a power of two and writes it as two terms, large and small; a second adds three of their four
products. W may be split once and for all. Source of the method: Ootomo and Yokota, Recovering single precision accuracy
from Tensor Cores (2022).
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.linear_relu import split_products
from hypatia_lab.kernels.linear_relu.epilogue import RELU, Epilogue, activated
from hypatia_lab.kernels.linear_relu.linear_relu_triton import (
    Config,
    corner,
    described,
    early,
    either,
    nearest_tf32,
    options,
    put,
    rows_of,
    size_of,
    tiles_of,
    wait_turn,
)
from hypatia_lab.kernels.operands import ensure_layer, ensure_no_gradient

if TYPE_CHECKING:
    from torch import Tensor

BOUND: tl.constexpr = tl.constexpr(14)
"""A scaled row's largest magnitude is at least 2^BOUND and less than twice that: half of float16's range."""

LEAST: tl.constexpr = tl.constexpr(2.0**-24)
"""float16's least magnitude."""

NOT_FINITE: tl.constexpr = tl.constexpr(1024)
"""Added to the exponent of a row that holds an infinity or a NaN."""


@triton.jit
def _power_of_two(exponent):
    """2^exponent as float32, -126 ≤ exponent ≤ 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def magnitude(values):
    """Bits of |values|: as whole numbers they order as the magnitudes do, infinity and NaN last."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _rounded(values, TF32: tl.constexpr):
    """``values`` (float32) to the nearest number of 11 bits, as float32 (TF32) or float16."""
    return nearest_tf32(values) if TF32 else values.to(tl.float16)


# [split_rows]
@triton.jit
def two_terms(values, exponent, TF32: tl.constexpr):
    """Large and small terms of ``values``, scaled by what ``exponent`` (of float32, 1 to 254) is short of 2^BOUND."""
    up = BOUND + 127 - exponent
    # The factor itself may be out of range, its two halves are not; products are exact or far below what counts.
    scaled = values * _power_of_two(up >> 1) * _power_of_two(up - (up >> 1))  # (1)
    # A number lost beside its row's largest keeps its sign, which counts where it meets an infinity. This is seen to
    # before rounding, so that the compiler may convert numbers in pairs.
    lost = (scaled == 0) if TF32 else (tl.abs(scaled) < LEAST)
    kept = tl.where(lost & (values != 0), tl.where(values < 0, -LEAST, LEAST), scaled)
    nearest = _rounded(kept, TF32)  # (2)
    # Beside an infinity or a NaN the small terms are not used.
    return nearest, _rounded(scaled - nearest.to(tl.float32), TF32)  # (3)
    # [/split_rows]


# [split_rows]
@triton.jit
def _write_terms(values, exponent, large, small, k, inner, TF32: tl.constexpr):
    """Store the large and small terms of ``values`` at ``k``."""
    nearest, rest = two_terms(values, exponent, TF32)
    tl.store(large + k, nearest, mask=k < inner)
    tl.store(small + k, rest, mask=k < inner)
    # [/split_rows]


@triton.jit
def _row(x, weight, row, k, batch, inner, x_stride, weight_stride):
    """Elements ``k`` of row ``row``, the rows of ``weight`` following those of ``x``."""
    if row < batch:
        values = tl.load(x + row.to(tl.int64) * x_stride + k, mask=k < inner, other=0.0)
    else:
        values = tl.load(weight + (row - batch).to(tl.int64) * weight_stride + k, mask=k < inner, other=0.0)
    return values


# [split_rows]
@triton.jit
def _split_rows(
    x,
    weight,
    large,
    small,
    exponents,
    batch,
    inner,
    x_stride,
    weight_stride,
    stride,
    CHUNK: tl.constexpr,
    ONCE: tl.constexpr,
    TF32: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One row of x or of W a program: exponent of its largest finite magnitude, then its large and small terms."""
    wait_turn(DEPENDENT)
    row = tl.program_id(0)
    large += row.to(tl.int64) * stride
    small += row.to(tl.int64) * stride
    k = tl.arange(0, CHUNK)
    values = _row(x, weight, row, k, batch, inner, x_stride, weight_stride)
    bits = magnitude(values)
    largest = tl.max(tl.where(bits < 0x7F800000, bits, 0), 0)  # (4)
    peak = tl.max(bits, 0)
    if not ONCE:
        for start in range(CHUNK, inner, CHUNK):
            more = magnitude(_row(x, weight, row, start + k, batch, inner, x_stride, weight_stride))
            largest = tl.maximum(largest, tl.max(tl.where(more < 0x7F800000, more, 0), 0))
            peak = tl.maximum(peak, tl.max(more, 0))
    # Subnormal rows count as those of the least exponent: they have no more digits than fit.
    exponent = tl.maximum(largest >> 23, 1)
    tl.store(exponents + row, exponent + tl.where(peak < 0x7F800000, 0, NOT_FINITE))
    _write_terms(values, exponent, large, small, k, inner, TF32)
    if not ONCE:
        for start in range(CHUNK, inner, CHUNK):
            values = _row(x, weight, row, start + k, batch, inner, x_stride, weight_stride)
            _write_terms(values, exponent, large, small, start + k, inner, TF32)
    # [/split_rows]


# [linear_relu_split]
@triton.jit
def _operand(source, row, k, ACROSS: tl.constexpr):
    """Tile (rows, depth) of an operand from (``row``, ``k``) on; ``ACROSS``: it lies in memory as (depth, rows)."""
    # 16-bit operands are multiplied from shared memory whichever way they lie there: nothing is moved.
    return source.load([k, row]).T if ACROSS else source.load([row, k])
    # [/linear_relu_split]


# [linear_relu_split]
@triton.jit
def split_tile(
    a_large,
    a_small,
    b_large,
    b_small,
    a_exponents,
    b_exponents,
    row,
    column,
    height,
    depth,
    width,
    A_ACROSS: tl.constexpr,
    B_ACROSS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    APART: tl.constexpr,
):
    """Tile of a·bᵀ from (``row``, ``column``) on: a is (height, depth), b (width, depth), both of two terms."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    cross = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(tl.maximum(tl.cdiv(depth, INNER), 1)):
        k = step * INNER
        a, a_rest = _operand(a_large, row, k, A_ACROSS), _operand(a_small, row, k, A_ACROSS)  # (1)
        b, b_rest = _operand(b_large, column, k, B_ACROSS), _operand(b_small, column, k, B_ACROSS)
        # Matrix units cut off what they add, always towards zero: so they sum INNER large products at most, the small
        # ones first, and these sums are added with rounding to nearest.
        if APART:
            cross = tl.dot(a_rest, b.T, cross, input_precision="tf32")
            part = tl.dot(a, b_rest.T, input_precision="tf32")
        else:
            part = tl.dot(a_rest, b.T, input_precision="tf32")  # (2)
            part = tl.dot(a, b_rest.T, part, input_precision="tf32")  # (3)
        part = tl.dot(a, b.T, part, input_precision="tf32")  # (4)
        total += part  # (5)
    total += cross

    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    row_exponents = tl.load(a_exponents + rows, mask=rows < height, other=0)
    column_exponents = tl.load(b_exponents + columns, mask=columns < width, other=0)
    if tl.maximum(tl.max(row_exponents, 0), tl.max(column_exponents, 0)) >= NOT_FINITE:
        # Small terms times infinity are infinities of any sign; large terms alone give what IEEE arithmetic gives.
        plain = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in tl.range(tl.cdiv(depth, INNER), num_stages=1):
            a = _operand(a_large, row, step * INNER, A_ACROSS)
            b = _operand(b_large, column, step * INNER, B_ACROSS)
            plain = tl.dot(a, b.T, plain, input_precision="tf32")
        touched = (row_exponents >= NOT_FINITE)[:, None] | (column_exponents >= NOT_FINITE)[None, :]
        total = tl.where(touched, plain, total)
    down = (row_exponents % NOT_FINITE)[:, None] + (column_exponents % NOT_FINITE)[None, :] - 2 * (BOUND + 127)
    down = tl.minimum(tl.maximum(down, -252), 252)
    return total * _power_of_two(down >> 1) * _power_of_two(down - (down >> 1))
    # [/linear_relu_split]


# [linear_relu_split]
@triton.jit
def _linear_relu_split(
    x_large,
    x_small,
    weight_large,
    weight_small,
    x_exponents,
    weight_exponents,
    bias,
    out,
    batch,
    inner,
    outer,
    out_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    APART: tl.constexpr,
    STORE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_turn(DEPENDENT)
    row, column = corner(tl.program_id(0), batch, outer, ROWS, COLUMNS, GROUP)
    total = split_tile(
        x_large, x_small, weight_large, weight_small, x_exponents, weight_exponents,
        row, column, batch, inner, outer, False, False, ROWS, COLUMNS, INNER, APART,
    )  # fmt: skip
    put(total, bias, out, row, column, batch, outer, out_stride, True, None, False, STORE)
    # [/linear_relu_split]


SPLITS = ("fp16x3", "tf32x3")
"""What :func:`linear_relu_split` splits float32 operands into: two terms of float16 or of TF32, 11 bits each."""


_CONFIGS = {
    "fp16x3": {
        "small": either(
            Config(64, 16, 128, 4, 2), Config(64, 32, 128, 4, 2), Config(64, 32, 64, 4, 3), Config(64, 64, 64, 4, 3)
        ),
        "medium": either(
            Config(64, 128, 32, 4, 4),
            Config(64, 128, 32, 4, 3),
            Config(64, 128, 64, 4, 2, apart=True),
            Config(128, 64, 64, 4, 2),
            Config(128, 128, 64, 8, 3),
        ),
        "large": [
            Config(64, 128, 32, 4, 3, group=16),
            Config(64, 128, 32, 4, 3),
            Config(128, 64, 32, 4, 3),
            Config(128, 128, 64, 8, 3),
            Config(128, 128, 64, 8, 3, apart=True),
        ],
    },
    "tf32x3": {
        "small": either(Config(64, 32, 32, 4, 4), Config(64, 16, 64, 4, 2), Config(64, 64, 32, 4, 3)),
        "medium": [
            Config(64, 128, 16, 4, 3),
            *either(Config(64, 128, 32, 4, 2, apart=True), Config(64, 128, 16, 4, 4), Config(128, 128, 32, 8, 3)),
        ],
        "large": [
            Config(64, 128, 16, 4, 3, group=16),
            Config(64, 128, 16, 4, 3),
            Config(128, 128, 32, 8, 3, group=16),
            Config(128, 128, 32, 8, 3, apart=True),
        ],
    },
}
"""Terms → size → candidates, the one in use first."""

A_WARP = 1024
"""Elements of a row for each warp of a program of the splitting kernel."""
LONGEST = 8192
"""Elements of a row that a program of the splitting kernel holds at once; longer rows are read twice."""


def candidates(shape: tuple[int, int, int], terms: str = "fp16x3") -> list[Config]:
    """Configurations worth trying for (batch, in, out) and ``terms``, one of :data:`SPLITS`, the one in use first."""
    return _CONFIGS[terms][size_of(shape)]


def config(shape: tuple[int, int, int], terms: str = "fp16x3") -> Config:
    """The configuration in use for (batch, in, out); arguments as of :func:`candidates`."""
    return candidates(shape, terms)[0]


@dataclass(frozen=True)
class Split:
    """The rows of ``matrix`` (rows, inner), split into ``terms``: large and small ones, (2, rows, inner or more), and
    the exponents of what they were scaled by, (rows).
    """

    matrix: Tensor
    terms: str
    values: Tensor
    exponents: Tensor
    version: int

    @property
    def current(self) -> bool:
        """Whether the matrix is what it was when it was split, as far as PyTorch knows."""
        return self.version == _version(self.matrix)

    def rows(self, first: int, last: int) -> split_products.Terms:
        """Those from ``first`` up to ``last``."""
        large, small = self.values[:, first:last, : self.matrix.shape[1]]
        return split_products.Terms(large, small, self.exponents[first:last])


def _ensure_known(terms: str) -> None:
    if terms not in SPLITS:
        raise ValueError(f"terms {terms!r} are none of {', '.join(SPLITS)}")


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _split(a: Tensor, b: Tensor | None, terms: str, dependent: bool, cuda: bool = False) -> Split:
    """The rows of ``a``, followed by those of ``b``, of as many elements; ``cuda``: by the CUDA kernel.

    Raises ``ValueError`` for an unfit device.
    """
    (first, inner), more = a.shape, 0 if b is None else len(b)
    # Rows of whole 16 bytes, whatever their length, suit tensor descriptors.
    stride = triton.cdiv(inner, 8) * 8
    kind = torch.float16 if terms == "fp16x3" else torch.float32
    values = torch.empty(2, first + more, stride, dtype=kind, device=a.device)
    exponents = torch.empty(first + more, dtype=torch.int32, device=a.device)
    found = Split(a, terms, values, exponents, _version(a))
    if not values.numel():
        return found
    if not described(values[0]):
        raise ValueError(f"x is on {a.device}, which has no tensor descriptors (compute capability 9.0)")
    if cuda:
        with torch.cuda.device_of(a):
            split_products.split_rows(a, b, values, exponents)
        return found
    chunk = min(triton.next_power_of_2(inner), LONGEST)
    behind = a if b is None else b
    with torch.cuda.device_of(a):
        _split_rows[(first + more,)](
            a,
            behind,
            values[0],
            values[1],
            exponents,
            first,
            inner,
            a.stride(0),
            behind.stride(0),
            stride,
            CHUNK=chunk,
            ONCE=inner <= chunk,
            TF32=terms == "tf32x3",
            num_warps=max(1, min(8, chunk // A_WARP)),
            **early(dependent, a),
        )
    return found


def split_once(weight: Tensor, terms: str = "fp16x3") -> Split:
    """W (out, in), float32, split for as many calls of :func:`linear_relu_split` as there are, until it changes.

    It takes as much memory as W, as TF32 ("tf32x3") twice that. Raises ValueError for another rank or dtype, other
    terms, or an unfit device.
    """
    if weight.dim() != 2 or weight.dtype != torch.float32:
        raise ValueError(f"weight is {weight.dtype} {list(weight.shape)}; it must be a float32 matrix")
    _ensure_known(terms)
    rows = rows_of(weight.detach())
    found = _split(rows, None, terms, dependent=False)
    return Split(weight, terms, found.values, found.exponents, _version(weight))


def linear_relu_split(
    x: Tensor,
    weight: Tensor | Split,
    bias: Tensor | None = None,
    *,
    terms: str = "fp16x3",
    cuda: bool = False,
    tiles: Config | split_products.Plan | None = None,
    epilogue: Epilogue = RELU,
) -> Tensor:
    """max(0, x·Wᵀ + b) with float32's accuracy on matrix units: x (..., in), W (out, in), b (out) or None → (..., out).

    All float32, on a CUDA device of Hopper's kind or later (in Triton's interpreter on any). Two kernels: the first
    scales every row of x and W by a power of two and splits it into two terms, float16 (``terms="fp16x3"``) or TF32
    ("tf32x3"), held in memory of torch's allocator for the time of the call (as much as x and W take, TF32 twice that);
    the second adds the products large·large, large·small and small·large, some elements at a time. With ``cuda`` the
    second is a CUDA kernel of :mod:`~hypatia_lab.kernels.linear_relu.split_products`, for float16 terms on Hopper, and
    so is the first where W was split before or rows are not of whole 16 numbers. ``tiles``: how the second is cut, in
    place of the default; a :class:`~hypatia_lab.kernels.linear_relu.split_products.Plan` asks for CUDA.

    A product is off by at most 2⁻²¹ of itself, except by float16 terms of elements below 2⁻¹⁶ of their row's largest:
    these are off by up to 2⁻³⁹ of that. Sums are scaled, so nothing overflows on the way unless the result does: finite
    inputs give infinity or NaN in fewer cases than in IEEE float32. Infinities and NaN give what IEEE arithmetic gives,
    and subnormals count.

    W may have been split before (:func:`split_once`): then only x is, and W must not have changed since. CUDA's kernel
    takes another ``epilogue``, too, in the ReLU's place.

    Raises ValueError naming the tensor, as :func:`linear_relu` does, and for other terms, an unfit device or a W that
    has changed since it was split; :class:`~hypatia_lab.kernels.loader.BuildError` where CUDA's does not build.
    """
    once = weight if isinstance(weight, Split) else None
    matrix = once.matrix if once else weight
    assert isinstance(matrix, torch.Tensor)
    ensure_layer(x, matrix, bias, (torch.float32,))
    ensure_no_gradient({"x": x, "weight": matrix, "bias": bias})
    _ensure_known(terms)
    if cuda or isinstance(tiles, split_products.Plan):
        split_products.ensure_able(x, terms)
    elif epilogue != RELU:
        raise ValueError("Triton's kernel of split operands has a ReLU and nothing else behind it")
    if once and (once.terms != terms or not once.current):
        why = "it has changed since" if once.terms == terms else f"it is {once.terms}, not {terms}"
        raise ValueError(f"weight was split before: {why}; split it again")
    out = torch.empty(*x.shape[:-1], matrix.shape[0], dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    a, y = rows_of(x), out.view(-1, matrix.shape[0])
    batch, inner, outer = sizes = (a.shape[0], a.shape[1], matrix.shape[0])
    if inner == 0:
        return out.zero_() if bias is None else out.copy_(activated(bias, *epilogue))
    if tiles is None:
        tiles = split_products.default_plan((batch, outer)) if cuda else config(sizes, terms)
    bias = None if bias is None else bias.contiguous()
    dependent = x.is_cuda and (isinstance(tiles, split_products.Plan) or tiles.dependent)
    other_rows = None if once else rows_of(matrix)
    # Of rows of whole 16 numbers, that many, Triton's kernel is a little quicker; of others it reads single numbers.
    aligned = other_rows is not None and all(one % 16 == 0 for one in (inner, a.stride(0), other_rows.stride(0)))
    both = _split(a, other_rows, terms, dependent, isinstance(tiles, split_products.Plan) and not aligned)
    other, first = (once, 0) if once else (both, batch)
    left, right = both.rows(0, batch), other.rows(first, first + outer)
    if isinstance(tiles, split_products.Plan):
        with torch.cuda.device_of(x):
            split_products.linear_relu(left, right, bias, y, plan=tiles, epilogue=epilogue)
        return out
    store = tiles.store and described(y)
    with torch.cuda.device_of(x):
        _linear_relu_split[(triton.cdiv(batch, tiles.rows) * triton.cdiv(outer, tiles.columns),)](
            *(tiles_of(term, [tiles.rows, tiles.inner]) for term in (left.large, left.small)),
            *(tiles_of(term, [tiles.columns, tiles.inner]) for term in (right.large, right.small)),
            left.exponents,
            right.exponents,
            bias,
            tiles_of(y, [tiles.rows, tiles.columns], store),
            *sizes,
            y.stride(0),
            **tiles.tile(),
            APART=tiles.apart,
            STORE=store,
            **options(tiles, x),
        )
    return out
