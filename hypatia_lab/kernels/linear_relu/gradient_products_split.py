"""Linear+ReLU's gradients with float32's accuracy from matrix units that take 11 bits, in three Triton kernels.

grad_x = z·W, grad_weight = zᵀ·x and grad_bias = Σ z over the batch, where z is the upstream gradient behind the ReLU's
mask, (batch, out); x is (batch, in), W (out, in); all float32. Each product is three of float16 terms, as in
:mod:`hypatia_lab.kernels.linear_relu.linear_relu_split`. An operand is scaled along what it is summed over: z by its
rows for grad_x and by its columns for grad_weight, x and W by their columns. So a first kernel finds the largest
magnitude of every such row and column, a second writes the terms, and a third, or one in CUDA, has both products. The
first two apply the mask: z itself is never stored.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from hypatia_lab.kernels.linear_relu import split_products
from hypatia_lab.kernels.linear_relu.gradient_products import SHARE_TILE, Plan, add_shares, alike, product_size, stored
from hypatia_lab.kernels.linear_relu.linear_relu_split import NOT_FINITE, magnitude, split_tile, two_terms
from hypatia_lab.kernels.linear_relu.linear_relu_triton import (
    Config,
    corner,
    described,
    early,
    operand,
    options,
    rows_of,
    store_tile,
    tiles_of,
    wait_turn,
)

if TYPE_CHECKING:
    from torch import Tensor

# ---------------------------------------------------------------- kernels


# [gradients_split]
@triton.jit
def _masked(grad, y, row, column, batch, outer, grad_stride, y_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of z: ``grad`` where the ReLU let y through."""
    upstream = operand(grad, row, column, batch, outer, grad_stride, ROWS, COLUMNS, False)
    # Not y > 0: as in torch, a NaN lets the gradient through.
    output = operand(y, row, column, batch, outer, y_stride, ROWS, COLUMNS, False)
    return tl.where(output <= 0, 0.0, upstream)  # (1)
    # [/gradients_split]


# [gradients_split]
@triton.jit
def _raise(exponents, at, count, bits, AXIS: tl.constexpr):
    """Raise ``exponents`` ``at`` to those of the largest of magnitudes ``bits`` along ``AXIS``, in whatever order."""
    peak = tl.max(bits, AXIS)
    # Subnormal numbers count as those of the least exponent. Beside an infinity or a NaN only signs count, so there the
    # largest exponent will do: nothing overflows.
    exponent = tl.minimum(tl.maximum(peak >> 23, 1), 254) + tl.where(peak < 0x7F800000, 0, NOT_FINITE)
    tl.atomic_max(exponents + at, exponent, mask=at < count, sem="relaxed")  # (2)
    # [/gradients_split]


@triton.jit
def _tile_of(number, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """First row and column of tile ``number`` of a matrix ``width`` wide, and the number of its row of tiles."""
    across = tl.cdiv(width, COLUMNS)
    return number // across * ROWS, number % across * COLUMNS, number // across


# [gradients_split]
@triton.jit
def _find_exponents(
    grad,
    y,
    x,
    weight,
    z_rows,
    z_columns,
    x_columns,
    weight_columns,
    shares,
    batch,
    inner,
    outer,
    grad_stride,
    y_stride,
    x_stride,
    weight_stride,
    z_tiles,
    x_tiles,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One tile of z, x or W a program: exponents of what it will be scaled by, and its share of z's column sums."""
    wait_turn(DEPENDENT)
    number = tl.program_id(0)
    if number < z_tiles:
        row, column, part = _tile_of(number, outer, ROWS, COLUMNS)
        values = _masked(grad, y, row, column, batch, outer, grad_stride, y_stride, ROWS, COLUMNS)
        bits, columns = magnitude(values), column + tl.arange(0, COLUMNS)
        _raise(z_rows, row + tl.arange(0, ROWS), batch, bits, 1)
        _raise(z_columns, columns, outer, bits, 0)
        tl.store(shares + part.to(tl.int64) * outer + columns, tl.sum(values, 0), mask=columns < outer)
    elif number < z_tiles + x_tiles:
        row, column, _ = _tile_of(number - z_tiles, inner, ROWS, COLUMNS)
        bits = magnitude(operand(x, row, column, batch, inner, x_stride, ROWS, COLUMNS, False))
        _raise(x_columns, column + tl.arange(0, COLUMNS), inner, bits, 0)
    else:
        row, column, _ = _tile_of(number - z_tiles - x_tiles, inner, ROWS, COLUMNS)
        bits = magnitude(operand(weight, row, column, outer, inner, weight_stride, ROWS, COLUMNS, False))
        _raise(weight_columns, column + tl.arange(0, COLUMNS), inner, bits, 0)
    # [/gradients_split]


# [gradients_split]
@triton.jit
def _write(values, exponents, terms, row, column, height, width, stride, ACROSS: tl.constexpr, TURNED: tl.constexpr):
    """Store the large terms of a tile, and the small ones behind them; ``ACROSS``: scaled by columns, else by rows;
    ``TURNED``: the terms lie as (width, height)."""
    if ACROSS:
        at = column + tl.arange(0, values.shape[1])
        exponent = (tl.load(exponents + at, mask=at < width, other=1) % NOT_FINITE)[None, :]
    else:
        at = row + tl.arange(0, values.shape[0])
        exponent = (tl.load(exponents + at, mask=at < height, other=1) % NOT_FINITE)[:, None]
    large, small = two_terms(values, exponent, False)  # (3)
    if TURNED:
        store_tile(large.T, terms, column, row, width, height, stride, False)
        store_tile(small.T, terms + stride.to(tl.int64) * width, column, row, width, height, stride, False)
    else:
        store_tile(large, terms, row, column, height, width, stride, False)
        store_tile(small, terms + stride.to(tl.int64) * height, row, column, height, width, stride, False)
    # [/gradients_split]


# [gradients_split]
@triton.jit
def _split_all(
    grad,
    y,
    x,
    weight,
    z_rows,
    z_columns,
    x_columns,
    weight_columns,
    z_by_rows,
    z_by_columns,
    x_terms,
    weight_terms,
    batch,
    inner,
    outer,
    grad_stride,
    y_stride,
    x_stride,
    weight_stride,
    z_rows_stride,
    z_columns_stride,
    x_stride_out,
    weight_stride_out,
    shares,
    grad_bias,
    parts,
    z_tiles,
    x_tiles,
    tiles,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TURNED: tl.constexpr,
    SHARE_PARTS: tl.constexpr,
    SHARE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One tile of z, x or W a program: their terms; of z both those scaled by its rows and by its columns. Then the
    columns of grad_bias. ``TURNED``: what is scaled by columns lies across."""
    wait_turn(DEPENDENT)
    number = tl.program_id(0)
    if number < z_tiles:
        row, column, _ = _tile_of(number, outer, ROWS, COLUMNS)
        values = _masked(grad, y, row, column, batch, outer, grad_stride, y_stride, ROWS, COLUMNS)
        if z_by_rows is not None:
            _write(values, z_rows, z_by_rows, row, column, batch, outer, z_rows_stride, False, False)
        if z_by_columns is not None:
            _write(values, z_columns, z_by_columns, row, column, batch, outer, z_columns_stride, True, TURNED)
    elif number < z_tiles + x_tiles:
        if x_terms is not None:
            row, column, _ = _tile_of(number - z_tiles, inner, ROWS, COLUMNS)
            values = operand(x, row, column, batch, inner, x_stride, ROWS, COLUMNS, False)
            _write(values, x_columns, x_terms, row, column, batch, inner, x_stride_out, True, TURNED)
    elif number < tiles:
        if weight_terms is not None:
            row, column, _ = _tile_of(number - z_tiles - x_tiles, inner, ROWS, COLUMNS)
            values = operand(weight, row, column, outer, inner, weight_stride, ROWS, COLUMNS, False)
            _write(values, weight_columns, weight_terms, row, column, outer, inner, weight_stride_out, True, TURNED)
    else:
        add_shares(number - tiles, shares, grad_bias, parts, outer, SHARE_PARTS, SHARE_COLUMNS)  # (4)
    # [/gradients_split]


_find_exponents.kept_apart = _split_all.kept_apart = True  # see triton_launches


# [gradients_split]
@triton.jit
def _product(
    number,
    a_large,
    a_small,
    b_large,
    b_small,
    a_exponents,
    b_exponents,
    out,
    height,
    depth,
    width,
    ACROSS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    STORE: tl.constexpr,
):
    """Tile ``number`` of a·b (height, width), b (depth, width); ``ACROSS``: a lies in memory as (depth, height)."""
    row, column = corner(number, height, width, ROWS, COLUMNS, GROUP)
    total = split_tile(
        a_large, a_small, b_large, b_small, a_exponents, b_exponents,
        row, column, height, depth, width, ACROSS, True, ROWS, COLUMNS, INNER, False,
    )  # fmt: skip
    if ACROSS:
        # As in gradient_products: else the operands' buffers of both products would live side by side.
        tl.debug_barrier()
    store_tile(total, out, row, column, height, width, width, STORE)
    # [/gradients_split]


# [gradients_split]
@triton.jit
def _multiply(
    z_large,
    z_small,
    weight_large,
    weight_small,
    z_across_large,
    z_across_small,
    x_large,
    x_small,
    z_rows,
    z_columns,
    x_columns,
    weight_columns,
    grad_x,
    grad_weight,
    batch,
    inner,
    outer,
    first_tiles,
    X_FIRST: tl.constexpr,
    X_ROWS: tl.constexpr,
    X_COLUMNS: tl.constexpr,
    X_INNER: tl.constexpr,
    X_GROUP: tl.constexpr,
    X_STORE: tl.constexpr,
    WEIGHT_ROWS: tl.constexpr,
    WEIGHT_COLUMNS: tl.constexpr,
    WEIGHT_INNER: tl.constexpr,
    WEIGHT_GROUP: tl.constexpr,
    WEIGHT_STORE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A tile of grad_x or of grad_weight a program, those of the longer sum first."""
    wait_turn(DEPENDENT)
    number = tl.program_id(0)
    first = number < first_tiles
    own = number - tl.where(first, 0, first_tiles)
    if first if X_FIRST else not first:  # (5)
        if grad_x is not None:
            _product(
                own,
                z_large, z_small, weight_large, weight_small, z_rows, weight_columns, grad_x, batch, outer, inner,
                False, X_ROWS, X_COLUMNS, X_INNER, X_GROUP, X_STORE,
            )  # fmt: skip
    else:
        if grad_weight is not None:
            _product(
                own,
                z_across_large, z_across_small, x_large, x_small, z_columns, x_columns, grad_weight,
                outer, batch, inner,
                True, WEIGHT_ROWS, WEIGHT_COLUMNS, WEIGHT_INNER, WEIGHT_GROUP, WEIGHT_STORE,
            )  # fmt: skip
    # [/gradients_split]


# ---------------------------------------------------------------- which tiles

WARPS = 4
"""Of a program of the first and of the second kernel."""
FIND_TILE, SPLIT_TILE = (64, 128), (64, 64)
"""Rows and columns that a program of the first and of the second kernel takes; powers of two."""

_PLANS = {
    "small": alike(
        Config(64, 32, 64, 4, 3),
        Config(64, 32, 128, 4, 2),
        Config(64, 64, 64, 4, 3),
    ),
    "medium": [
        *alike(
            Config(64, 128, 32, 4, 4),
            Config(64, 128, 32, 4, 3),
            Config(64, 128, 64, 4, 2),
            Config(128, 64, 32, 4, 4),
            Config(128, 64, 64, 4, 2),
            Config(128, 128, 64, 8, 3),
            Config(128, 128, 32, 8, 4),
        ),
        # The longer sums in tiles half as large.
        Plan(Config(64, 64, 32, 4, 4), Config(64, 128, 32, 4, 4)),
    ],
    "large": alike(
        Config(64, 128, 32, 4, 3, group=16),
        Config(64, 128, 32, 4, 4, group=16),
        Config(64, 128, 32, 4, 3),
        Config(64, 128, 64, 4, 2, group=16),
        Config(128, 64, 32, 4, 3, group=16),
        Config(128, 128, 64, 8, 3),
    ),
}
"""Size → candidates, the one in use first."""


def candidates(shape: tuple[int, int, int]) -> list[Plan]:
    """Plans worth trying for (batch, in, out), the one in use first; all by programmatic dependent launch."""
    return _PLANS[product_size(shape)]


# ---------------------------------------------------------------- launches


def _check(grad: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> None:
    given = {"grad": grad, "x": x, "weight": weight, "y": y}
    for name, tensor in given.items():
        if tensor.ndim != 2 or tensor.dtype != torch.float32:
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; all must be float32 matrices")
        if tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, x on {x.device}; all must be on one device")
    if weight.shape[1] != x.shape[1]:
        raise ValueError(f"weight {list(weight.shape)} does not fit x {list(x.shape)}: weight is (out, in)")
    for name in ("grad", "y"):
        if given[name].shape != (x.shape[0], weight.shape[0]):
            raise ValueError(
                f"{name} {list(given[name].shape)} is not of x {list(x.shape)}, weight {list(weight.shape)}"
            )


def _tiles(tile: tuple[int, int], height: int, width: int) -> int:
    return -(-height // tile[0]) * -(-width // tile[1])


def gradient_products_split(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    needs: tuple[bool, bool] = (True, True),
    *,
    cuda: bool = False,
    plan: Plan | split_products.Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (batch, in), W (out, in) and the bias (out) from ``grad`` and y (batch, out), as new tensors.

    All float32, on a CUDA device of Hopper's kind or later (in Triton's interpreter on any); where rows are not
    contiguous the matrix is copied. Of what is not in ``needs`` (grad_x, grad_weight) an empty tensor. Results are the
    same in every run. Meanwhile the terms take 8 bytes an element of z, 4 of x and of W. With ``cuda`` the products are
    by the CUDA kernel of :mod:`~hypatia_lab.kernels.linear_relu.split_products`, on Hopper. ``plan``: in place of the
    first of :func:`candidates`; its ``ahead`` does not count, and ``stages`` are grad_x's.

    Digits, infinities, NaN and subnormals are as of
    :func:`~hypatia_lab.kernels.linear_relu.linear_relu_split.linear_relu_split`, rows and columns being those of the
    sums' operands; the mask is torch's: z is ``grad`` unless y ≤ 0. Raises ValueError naming the tensor for a wrong
    rank, size, dtype or device, or for an unfit device.
    """
    _check(grad, x, weight, y)
    if cuda or isinstance(plan, split_products.Plan):
        split_products.ensure_able(x)
    (batch, inner), outer = x.shape, weight.shape[0]
    grad_x = x.new_empty((batch, inner) if needs[0] else 0)
    grad_weight = weight.new_empty((outer, inner) if needs[1] else 0)
    grad_bias = x.new_empty(outer)
    if min(batch, inner, outer) == 0:
        return grad_x.zero_(), grad_weight.zero_(), torch.where(y <= 0, 0.0, grad).sum(0)
    grad, y, x, weight = rows_of(grad), rows_of(y), rows_of(x), rows_of(weight)
    sizes = batch, inner, outer
    if plan is None:
        plan = split_products.default_plan((batch, inner), (outer, inner)) if cuda else candidates(sizes)[0]
    turned = isinstance(plan, split_products.Plan)

    # What is scaled by columns may lie across: rows are then as long as sums are.
    shapes = [(batch, outer), (batch, outer), (batch, inner), (outer, inner)]
    if turned:
        shapes[1:] = [(width, height) for height, width in shapes[1:]]
    # Rows of whole 16 bytes, whatever their length, suit tensor descriptors.
    strides = [triton.cdiv(width, 8) * 8 for _, width in shapes]
    terms = [
        torch.empty(2, height, stride, dtype=torch.float16, device=x.device) if needed else None
        for (height, _), stride, needed in zip(shapes, strides, (needs[0], needs[1], needs[1], needs[0]), strict=True)
    ]
    if not all(described(one[0]) for one in terms if one is not None):
        raise ValueError(f"x is on {x.device}, which has no tensor descriptors (compute capability 9.0)")
    exponents = torch.zeros(batch + outer + 2 * inner, dtype=torch.int32, device=x.device)
    z_rows, z_columns, x_columns, weight_columns = scales = exponents.split([batch, outer, inner, inner])
    parts = triton.cdiv(batch, FIND_TILE[0])
    shares = torch.empty(parts, outer, device=x.device)
    given = grad.stride(0), y.stride(0), x.stride(0), weight.stride(0)

    def tiles(tile: tuple[int, int]) -> tuple[int, int, int]:
        """Those of z, x and W."""
        of_x, of_weight = _tiles(tile, batch, inner), _tiles(tile, outer, inner)
        return _tiles(tile, batch, outer), of_x if needs[1] else 0, of_weight if needs[0] else 0

    find, split = tiles(FIND_TILE), tiles(SPLIT_TILE)
    how = early(True, x)
    with torch.cuda.device_of(x):
        _find_exponents[(sum(find),)](
            grad, y, x, weight, *scales, shares, batch, inner, outer, *given, *find[:2],
            ROWS=FIND_TILE[0], COLUMNS=FIND_TILE[1], num_warps=WARPS, **how,
        )  # fmt: skip
        _split_all[(sum(split) + triton.cdiv(outer, SHARE_TILE[1]),)](
            grad, y, x, weight, *scales, *terms, batch, inner, outer, *given, *strides, shares, grad_bias, parts,
            *split[:2], sum(split), ROWS=SPLIT_TILE[0], COLUMNS=SPLIT_TILE[1], TURNED=turned,
            SHARE_PARTS=SHARE_TILE[0], SHARE_COLUMNS=SHARE_TILE[1], num_warps=WARPS, **how,
        )  # fmt: skip
        if not any(needs):
            return grad_x, grad_weight, grad_bias
        if isinstance(plan, split_products.Plan):

            def matrix(number: int, scale: Tensor) -> split_products.Terms:
                held = terms[number]
                assert held is not None
                large, small = held[:, :, : shapes[number][1]]
                return split_products.Terms(large, small, scale)

            products = [(0, z_rows, 3, weight_columns, grad_x), (1, z_columns, 2, x_columns, grad_weight)]
            split_products.multiply(
                [
                    (matrix(a, a_scale), matrix(b, b_scale), out)
                    for (a, a_scale, b, b_scale, out), needed in zip(products, needs, strict=True)
                    if needed
                ],
                plan=plan,
            )
        else:
            _by_triton(terms, scales, (grad_x, grad_weight), needs, sizes, plan, how)
    return grad_x, grad_weight, grad_bias


def _by_triton(
    terms: Sequence[Tensor | None],
    scales: Sequence[Tensor],
    out: tuple[Tensor, Tensor],
    needs: tuple[bool, bool],
    sizes: tuple[int, int, int],
    plan: Plan,
    how: dict[str, bool],
) -> None:
    """Both products by the third Triton kernel, of terms that lie as their matrices do."""
    (batch, inner, outer), for_x, for_weight = sizes, plan.grad_x, plan.grad_weight

    def described_terms(number: int, width: int, *block: int) -> list[Tensor | TensorDescriptor | None]:
        """Tiles of the large and of the small terms."""
        held = terms[number]
        return [None, None] if held is None else [tiles_of(term[:, :width], list(block)) for term in held]

    x_out, x_store, x_tiles = stored(out[0], for_x, needs[0])
    weight_out, weight_store, weight_tiles = stored(out[1], for_weight, needs[1])
    x_first = outer >= batch
    _multiply[(x_tiles + weight_tiles,)](
        *described_terms(0, outer, for_x.rows, for_x.inner),
        *described_terms(3, inner, for_x.inner, for_x.columns),
        *described_terms(1, outer, for_weight.inner, for_weight.rows),
        *described_terms(2, inner, for_weight.inner, for_weight.columns),
        *scales,
        x_out,
        weight_out,
        *sizes,
        x_tiles if x_first else weight_tiles,
        X_FIRST=x_first,
        **for_x.tile("X_"),
        X_STORE=x_store,
        **for_weight.tile("WEIGHT_"),
        WEIGHT_STORE=weight_store,
        **(options(for_x, out[0]) | how),
    )
