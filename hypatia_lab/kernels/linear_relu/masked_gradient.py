"""The gradient behind a ReLU and its sum over the batch, in one pass: z = grad where y > 0, else 0, and Σ z.

What is left of Linear+ReLU's backward are two matrix products, which read z. A program sums what it masks: either whole
columns, and the sums are final, or a tile, and its share of the sums is yet to be added to others'. The tiles are read
faster. Neither way needs atomics: the sums are the same in every run.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.linear_relu.linear_relu_triton import early, wait_turn

# ---------------------------------------------------------------- kernel


# [masked_gradient]
@triton.jit
def _masked_gradient(
    grad,
    y,
    z,
    sums,
    rows,
    columns,
    grad_stride,
    times,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUMBER: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_turn(DEPENDENT)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(1) * times * ROWS
    # Summed element by element first: one reduction a program, and fewer additions in a row.
    total = tl.zeros((ROWS, COLUMNS), NUMBER)
    # Of one time, which Triton compiles in, there is no loop.
    for time in range(times):
        row = begin + time * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        row = row.to(tl.int64)
        at = row[:, None] * columns + column[None, :]
        upstream = tl.load(grad + row[:, None] * grad_stride + column[None, :], mask=inside, other=0.0).to(NUMBER)
        # Not y > 0: as in torch, a NaN lets the gradient through.
        masked = tl.where(tl.load(y + at, mask=inside, other=0.0).to(NUMBER) <= 0, 0.0, upstream)  # (1)
        tl.store(z + at, masked.to(z.dtype.element_ty), mask=inside)  # (2)
        total += masked  # (3)
    at = tl.program_id(1) * columns + column
    tl.store(sums + at, tl.sum(total, 0).to(sums.dtype.element_ty), mask=column < columns)  # (4)
    # [/masked_gradient]


_masked_gradient.kept_apart = True  # see triton_launches

# ---------------------------------------------------------------- which tiles

SPLIT_ROWS = 4096
"""Rows that one program takes at most where there are too few columns to keep the device busy."""


@dataclass(frozen=True)
class Tile:
    """``rows`` and ``columns``, powers of two, that a program of ``warps`` takes at a time.

    ``times``: tiles that it takes, one below the other. A program has one share of the sums to write.
    """

    rows: int
    columns: int
    warps: int
    times: int = 1

    def programs(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Programs across and down (rows, columns)."""
        return -(-shape[1] // self.columns), -(-shape[0] // (self.rows * self.times))


_TILES = (
    Tile(64, 64, 4),
    Tile(64, 128, 8),
    Tile(32, 128, 4),
    Tile(32, 256, 8),
    Tile(128, 64, 8),
    Tile(256, 32, 8),
    Tile(256, 16, 8),
)
"""Those worth trying for shares of 16-bit numbers, the one in use first."""


def share_tile(shape: tuple[int, ...]) -> Tile:
    """The tile in use where shares will do: of (rows, columns) half as high a one where they leave few programs."""
    chosen = _TILES[0]
    return chosen if math.prod(chosen.programs(shape)) >= 64 else replace(chosen, rows=chosen.rows // 2)


def column_tile(shape: tuple[int, ...], dtype: torch.dtype) -> Tile:
    """The tile in use where sums are wanted: a program owns whole columns, unless they are few and long.

    As many columns as leave some 100 programs: wide rows are read in longer pieces.
    """
    rows, columns = shape
    wide = next((n for n in (64, 32) if triton.cdiv(columns, n) >= 100), 16)
    high = (8192 if dtype.itemsize < 4 else 4096) // wide
    own = rows if triton.cdiv(columns, wide) >= 64 else min(rows, SPLIT_ROWS)
    return Tile(high, wide, 8, times=max(triton.cdiv(own, high), 1))


def candidates(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tile]:
    """Tiles worth trying for shares of (rows, columns), the one in use first, the one that owns columns last."""
    chosen = share_tile(shape)
    return [chosen, *(tile for tile in _TILES if tile != chosen), column_tile(shape, dtype)]


# ---------------------------------------------------------------- launch


def _check(grad: torch.Tensor, y: torch.Tensor) -> None:
    if y.ndim != 2 or not y.is_floating_point():
        raise ValueError(f"y must be a floating (rows, columns), it is {y.dtype} {list(y.shape)}")
    if grad.shape != y.shape or grad.dtype != y.dtype or grad.device != y.device:
        raise ValueError(
            f"grad is {grad.dtype} {list(grad.shape)} on {grad.device}, y {y.dtype} {list(y.shape)} on {y.device}; "
            "they must be alike"
        )


def _launch(
    grad: torch.Tensor, y: torch.Tensor, tile: Tile, dependent: bool, final: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """z and the shares (parts, columns) of its sums, not rounded; but of y's dtype, where ``final``, one alone."""
    y, (rows, columns) = y.contiguous(), y.shape
    if columns > 1 and grad.stride(1) != 1:
        grad = grad.contiguous()
    across, parts = tile.programs(y.shape)
    number = torch.promote_types(y.dtype, torch.float32)
    z = torch.empty_like(y)
    shares = torch.empty(parts, columns, dtype=y.dtype if final and parts == 1 else number, device=y.device)
    if y.numel() == 0:
        return z, shares
    with torch.cuda.device_of(y):
        _masked_gradient[across, parts](
            grad,
            y,
            z,
            shares,
            rows,
            columns,
            grad.stride(0),
            tile.times,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            NUMBER=tl.float64 if number == torch.float64 else tl.float32,
            num_warps=tile.warps,
            **early(dependent, y),
        )
    return z, shares


def masked_gradient(
    grad: torch.Tensor, y: torch.Tensor, *, tile: Tile | None = None, dependent: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """z (rows, columns) = ``grad`` where ``y`` > 0, else 0, and its sum over the rows (columns), as new tensors.

    ``grad`` and ``y`` (rows, columns) have one floating dtype, which is the results' too; sums are accumulated in
    float32, of float64 in float64. Strided tensors are copied, unless only the rows of ``grad`` lie apart.
    ``tile``: in place of :func:`column_tile`. ``dependent``: programmatic dependent launch where the GPU has it, so
    that setting up overlaps the end of the kernel before. Raises ``ValueError`` naming the tensor of a wrong shape,
    dtype or device.
    """
    _check(grad, y)
    z, shares = _launch(grad, y, tile or column_tile(y.shape, y.dtype), dependent, final=True)
    # Of one part the sums are final; of several they are added up by one more, small, kernel.
    return z, shares[0] if len(shares) == 1 else shares.sum(0).to(y.dtype)


def masked_gradient_shares(
    grad: torch.Tensor, y: torch.Tensor, *, tile: Tile | None = None, dependent: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """z as of :func:`masked_gradient`, and the shares (parts, columns) that add up to its sum over the rows.

    Shares are float32, of float64 float64; of no rows there are none. ``tile``: in place of :func:`share_tile`, and a
    part is its rows. All else is as of :func:`masked_gradient`.
    """
    _check(grad, y)
    return _launch(grad, y, tile or share_tile(y.shape), dependent, final=False)
