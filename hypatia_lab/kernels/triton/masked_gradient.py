"""The gradient behind a ReLU and its sum over the batch, in one pass: z = grad where y > 0, else 0, and Σ z.

What is left of Linear+ReLU's backward are two matrix products, which read z. A program owns whole columns, so that
their sums need neither atomics nor a second kernel, and are the same in every run.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hypatia_lab.kernels.triton.linear_relu import hopper

SPLIT_ROWS = 4096
"""Rows that one program takes at most where there are too few columns to keep the device busy."""


@triton.jit
def _masked_gradient(
    grad,
    y,
    z,
    sums,
    rows,
    columns,
    grad_stride,
    rows_each,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUMBER: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        # The next kernel may be set up from here on; this one touches no memory before those before it are done.
        gdc_launch_dependents()
        gdc_wait()
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(1) * rows_each
    end = tl.minimum(begin + rows_each, rows)
    # Summed element by element first: one reduction a program, and fewer additions in a row.
    total = tl.zeros((ROWS, COLUMNS), NUMBER)
    for first in range(begin, end, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & (column < columns)[None, :]
        row = row.to(tl.int64)
        at = row[:, None] * columns + column[None, :]
        upstream = tl.load(grad + row[:, None] * grad_stride + column[None, :], mask=inside, other=0.0).to(NUMBER)
        # Not y > 0: as in torch, a NaN lets the gradient through.
        masked = tl.where(tl.load(y + at, mask=inside, other=0.0).to(NUMBER) <= 0, 0.0, upstream)
        tl.store(z + at, masked.to(z.dtype.element_ty), mask=inside)
        total += masked
    at = tl.program_id(1) * columns + column
    tl.store(sums + at, tl.sum(total, 0).to(sums.dtype.element_ty), mask=column < columns)


def default_tile(columns: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Rows and columns that a program takes at a time, and its warps.

    As many columns as leave some 100 programs: wide rows are read in longer pieces.
    """
    wide = next((n for n in (64, 32) if triton.cdiv(columns, n) >= 100), 16)
    return (8192 if dtype.itemsize < 4 else 4096) // wide, wide, 8


def masked_gradient(
    grad: torch.Tensor, y: torch.Tensor, *, tile: tuple[int, int, int] | None = None, dependent: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """z (rows, columns) = ``grad`` where ``y`` > 0, else 0, and its sum over the rows (columns), as new tensors.

    ``grad`` and ``y`` (rows, columns) have one floating dtype, which is the results' too; sums are accumulated in
    float32, of float64 in float64. Strided tensors are copied, unless only the rows of ``grad`` lie apart.
    ``tile``: in place of :func:`default_tile`, rows and columns being powers of two. ``dependent``: programmatic
    dependent launch where the GPU has it, so that setting up overlaps the end of the kernel before. Raises
    ``ValueError`` naming the tensor of a wrong shape, dtype or device.
    """
    if y.ndim != 2 or not y.is_floating_point():
        raise ValueError(f"y must be a floating (rows, columns), it is {y.dtype} {list(y.shape)}")
    if grad.shape != y.shape or grad.dtype != y.dtype or grad.device != y.device:
        raise ValueError(
            f"grad is {grad.dtype} {list(grad.shape)} on {grad.device}, y {y.dtype} {list(y.shape)} on {y.device}; "
            "they must be alike"
        )
    y, (rows, columns) = y.contiguous(), y.shape
    if columns > 1 and grad.stride(1) != 1:
        grad = grad.contiguous()
    z = torch.empty_like(y)
    if y.numel() == 0:
        return z, y.new_zeros(columns)
    height, width, warps = tile or default_tile(columns, y.dtype)
    across = triton.cdiv(columns, width)
    splits = triton.cdiv(rows, SPLIT_ROWS) if across < 64 else 1
    dependent = dependent and hopper(y)
    number = torch.promote_types(y.dtype, torch.float32)
    # Of one split the sums are final; of several they are added up by one more, small, kernel.
    sums = torch.empty(splits, columns, dtype=y.dtype if splits == 1 else number, device=y.device)
    with torch.cuda.device_of(y):
        _masked_gradient[across, splits](
            grad,
            y,
            z,
            sums,
            rows,
            columns,
            grad.stride(0),
            rows if splits == 1 else SPLIT_ROWS,
            ROWS=height,
            COLUMNS=width,
            NUMBER=tl.float64 if number == torch.float64 else tl.float32,
            DEPENDENT=dependent,
            num_warps=warps,
            **({"launch_pdl": True} if dependent else {}),
        )
    return z, sums[0] if splits == 1 else sums.sum(0).to(y.dtype)
