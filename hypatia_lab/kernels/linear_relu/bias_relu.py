"""What stands behind a product whose library kernel has no epilogue: y ← max(0, y + b) in place, in one pass.

y is (rows, columns) and b (columns), float32.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 4, 256
"""What one program takes: enough bytes in flight for each of its threads, enough programs for a small layer."""


# [bias_relu]
@triton.jit
def _bias_relu(y, bias, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # (1)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = y + row.to(tl.int64)[:, None] * columns + column[None, :]
    summed = tl.load(at, mask=inside, other=0.0) + tl.load(bias + column, mask=column < columns, other=0.0)[None, :]
    # Not a maximum: a NaN stays one, as in torch's.
    tl.store(at, tl.where(summed < 0, 0.0, summed), mask=inside)  # (2)
    # [/bias_relu]


def bias_relu(y: torch.Tensor, bias: torch.Tensor) -> None:
    """y ← max(0, y + b) in place, y (rows, columns), bias (columns), both float32. Raises ``ValueError`` otherwise."""
    if y.dim() != 2 or not y.is_contiguous() or bias.shape != y.shape[1:] or not bias.is_contiguous():
        raise ValueError(f"y must be a contiguous matrix and bias a row of it: {list(y.shape)}, {list(bias.shape)}")
    if {y.dtype, bias.dtype} != {torch.float32}:
        raise ValueError(f"both must be float32, not {y.dtype} and {bias.dtype}")
    if not y.numel():
        return
    rows, columns = y.shape
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS))
    _bias_relu[grid](y, bias, rows, columns, ROWS=ROWS, COLUMNS=COLUMNS)
