"""Both matrix products of Linear+ReLU's backward in one Triton kernel: grad_x = z·W and grad_weight = zᵀ·x.

z is the masked gradient (batch, out), W (out, in), x (batch, in). At the seeds' sizes neither product has enough tiles
for a large GPU; as one grid they share it without a second stream, and without waiting for one another. A few more
programs can add up the third gradient, grad_bias, from the shares that whoever made z summed over parts of the batch.
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
from triton.tools.tensor_descriptor import TensorDescriptor

from hypatia_lab.kernels.linear_relu.linear_relu_triton import (
    Config,
    corner,
    described,
    operand,
    options,
    rows_of,
    size_of,
    store_tile,
    tiles_of,
    wait_turn,
)
from hypatia_lab.kernels.operands import ensure_alike

if TYPE_CHECKING:
    from torch import Tensor

# ---------------------------------------------------------------- kernel


# [gradient_products]
@triton.jit
def _tile(
    number,
    a,
    b,
    out,
    height,
    depth,
    width,
    a_stride,
    b_stride,
    out_stride,
    ACROSS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
):
    """Compute and store tile ``number`` of a·b (height, width); ``ACROSS``: ``a`` lies in memory as (depth, height)."""
    row, column = corner(number, height, width, ROWS, COLUMNS, GROUP)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    # At least one step, and the compiler knows: a way around the loop would make it wait for every single product.
    for step in tl.range(tl.maximum(tl.cdiv(depth, INNER), 1), num_stages=STAGES):
        k = step * INNER
        if ACROSS:
            left = operand(a, k, row, depth, height, a_stride, INNER, ROWS, LOAD)  # (1)
        else:
            left = operand(a, row, k, height, depth, a_stride, ROWS, INNER, LOAD)
        # One load right behind the other: they then share a barrier.
        right = operand(b, k, column, depth, width, b_stride, INNER, COLUMNS, LOAD)
        # 16-bit operands are multiplied from shared memory whichever way they lie there: nothing is moved.
        total = tl.dot(left.T if ACROSS else left, right, total)  # (2)
    if ACROSS:
        # The compiler merges what both products have alike behind their loops, and with it the operands' buffers would
        # live as long: twice the shared memory. One barrier makes them differ.
        tl.debug_barrier()
    store_tile(total, out, row, column, height, width, out_stride, STORE)
    # [/gradient_products]


# [gradient_products]
@triton.jit
def add_shares(number, shares, out, parts, columns, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum columns ``number`` · ``COLUMNS`` on of ``shares`` (parts, columns) over the parts, in one order always."""
    column = number * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((PARTS, COLUMNS), tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & (column < columns)[None, :]
        total += tl.load(shares + part.to(tl.int64)[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < columns)
    # [/gradient_products]


# [gradient_products]
@triton.jit
def _gradient_products(
    z_rows,
    z_columns,
    x,
    weight,
    shares,
    grad_x,
    grad_weight,
    grad_bias,
    batch,
    inner,
    outer,
    parts,
    z_stride,
    x_stride,
    weight_stride,
    begin,
    end,
    tiles,
    X_LONGER: tl.constexpr,
    X_ROWS: tl.constexpr,
    X_COLUMNS: tl.constexpr,
    X_INNER: tl.constexpr,
    X_GROUP: tl.constexpr,
    X_STAGES: tl.constexpr,
    X_LOAD: tl.constexpr,
    X_STORE: tl.constexpr,
    WEIGHT_ROWS: tl.constexpr,
    WEIGHT_COLUMNS: tl.constexpr,
    WEIGHT_INNER: tl.constexpr,
    WEIGHT_GROUP: tl.constexpr,
    WEIGHT_STAGES: tl.constexpr,
    WEIGHT_LOAD: tl.constexpr,
    WEIGHT_STORE: tl.constexpr,
    SHARE_PARTS: tl.constexpr,
    SHARE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_turn(DEPENDENT)
    number = tl.program_id(0)
    if number < tiles:
        longer = (number >= begin) & (number < end)
        # A product's own tiles count from 0.
        own = number - tl.where(longer, begin, tl.where(number >= end, end - begin, 0))
        if longer if X_LONGER else not longer:  # (3)
            if grad_x is not None:
                _tile(
                    own,
                    z_rows, weight, grad_x, batch, outer, inner, z_stride, weight_stride, inner, False,
                    X_ROWS, X_COLUMNS, X_INNER, X_GROUP, X_STAGES, X_LOAD, X_STORE,
                )  # fmt: skip
        else:
            if grad_weight is not None:
                _tile(
                    own,
                    z_columns, x, grad_weight, outer, batch, inner, z_stride, x_stride, inner, True,
                    WEIGHT_ROWS, WEIGHT_COLUMNS, WEIGHT_INNER, WEIGHT_GROUP, WEIGHT_STAGES, WEIGHT_LOAD, WEIGHT_STORE,
                )  # fmt: skip
    else:
        # The last to start, and the shortest: they go where a tile is done.
        if shares is not None:
            add_shares(number - tiles, shares, grad_bias, parts, outer, SHARE_PARTS, SHARE_COLUMNS)  # (4)
    # [/gradient_products]


# ---------------------------------------------------------------- which tiles

DTYPES = (torch.bfloat16, torch.float16)
"""Those whose operands Hopper multiplies as they lie in memory; others would have to be transposed first."""

SHARE_TILE = (16, 128)
"""Parts that a program adds up at a time, and the columns that it owns; powers of two."""


@dataclass(frozen=True)
class Plan:
    """How both products are cut up, and in which order their tiles start.

    ``grad_x`` and ``grad_weight``: as of :class:`Config`, of which ``resident``, ``halves`` and ``apart`` do not count;
    of both ``warps`` and ``dependent`` are the same. ``ahead``: tiles of the shorter sum that start before those of the
    longer one, which else are first so that the short ones fill up the end. Where two programs share a multiprocessor
    and the tiles exceed the multiprocessors by n, the last n tiles join the first n: n ahead spares the longer ones.
    """

    grad_x: Config
    grad_weight: Config
    ahead: int = 0

    def __post_init__(self) -> None:
        alike = ("warps", "dependent")
        if any(getattr(self.grad_x, name) != getattr(self.grad_weight, name) for name in alike):
            raise ValueError(f"grad_x {self.grad_x} and grad_weight {self.grad_weight} differ in warps or dependent")


def by_dependent_launch(plan: Plan, dependent: bool = True) -> Plan:
    """``plan`` by programmatic dependent launch, or, not ``dependent``, without."""
    return replace(
        plan,
        grad_x=replace(plan.grad_x, dependent=dependent),
        grad_weight=replace(plan.grad_weight, dependent=dependent),
    )


def alike(*configs: Config) -> list[Plan]:
    return [Plan(config, config) for config in configs]


_PLANS: dict[str, list[Plan]] = {
    "small": alike(
        Config(64, 64, 64, 4, 4),
        Config(64, 64, 128, 4, 2),
        Config(64, 32, 128, 4, 3),
        Config(64, 32, 64, 4, 4),
        Config(64, 64, 64, 4, 4, load=False, store=False),
    ),
    "medium": [
        # 1024×784×2048 is then 112 tiles of equal work, a multiprocessor each, and fewer bytes than by squares.
        Plan(Config(128, 128, 64, 8, 4), Config(256, 128, 64, 8, 4)),
        Plan(Config(128, 128, 64, 8, 4), Config(256, 128, 64, 8, 3)),
        Plan(Config(128, 128, 128, 8, 3), Config(256, 128, 64, 8, 4)),
        *alike(
            Config(128, 128, 64, 4, 4),
            Config(128, 128, 64, 8, 4),
            Config(128, 128, 64, 8, 3),
            Config(128, 128, 64, 4, 3),
            Config(64, 128, 64, 4, 4),
            Config(64, 128, 64, 4, 3),
            Config(128, 64, 64, 4, 4),
            Config(64, 256, 64, 4, 4),
            Config(128, 128, 128, 8, 3),
            Config(128, 128, 64, 8, 6),
            Config(128, 128, 64, 8, 3, load=False, store=False),
        ),
        # 1024×784×2048 has 36 tiles more than an H200 has multiprocessors.
        Plan(Config(128, 128, 64, 8, 3), Config(128, 128, 64, 8, 3), ahead=36),
        Plan(Config(128, 128, 64, 4, 3), Config(128, 128, 64, 4, 3), ahead=36),
        Plan(Config(128, 64, 64, 8, 6), Config(128, 128, 64, 8, 4)),
        Plan(Config(64, 128, 64, 4, 4), Config(128, 128, 64, 4, 3)),
    ],
    "large": alike(
        Config(128, 256, 64, 8, 3),
        Config(128, 256, 64, 8, 4),
        Config(256, 128, 64, 8, 3),
        Config(128, 128, 64, 8, 3),
    ),
}
"""Size → candidates, the one in use first."""


def product_size(shape: tuple[int, int, int]) -> str:
    """ "small", "medium" or "large": the tiles of both products of (batch, in, out), as one grid has them."""
    batch, inner, outer = shape
    return size_of((batch + outer, 0, inner))


def candidates(shape: tuple[int, int, int], dtype: torch.dtype) -> list[Plan]:
    """Plans worth trying for (batch, in, out), the one in use first; then each by programmatic dependent launch.

    Raises ``ValueError`` for a ``dtype`` other than bfloat16 and float16.
    """
    if dtype not in DTYPES:
        raise ValueError(f"{dtype} is none of {', '.join(map(str, DTYPES))}")
    plans = _PLANS[product_size(shape)]
    return plans + [by_dependent_launch(plan) for plan in plans]


def config(shape: tuple[int, int, int], dtype: torch.dtype, *, dependent: bool = False) -> Plan:
    """The plan in use for (batch, in, out), by programmatic ``dependent`` launch or not; else as :func:`candidates`."""
    return by_dependent_launch(candidates(shape, dtype)[0], dependent)


# ---------------------------------------------------------------- launch


def _check(z: Tensor, x: Tensor, weight: Tensor, shares: Tensor | None) -> None:
    if z.ndim != 2 or x.ndim != 2 or weight.ndim != 2:
        raise ValueError(f"z {list(z.shape)}, x {list(x.shape)} and weight {list(weight.shape)} must be matrices")
    if x.shape[0] != z.shape[0]:
        raise ValueError(f"x {list(x.shape)} does not fit z {list(z.shape)}: x is (batch, in), z (batch, out)")
    if weight.shape != (z.shape[1], x.shape[1]):
        raise ValueError(
            f"weight {list(weight.shape)} does not fit z {list(z.shape)} and x {list(x.shape)}: weight is (out, in)"
        )
    ensure_alike({"z": z, "x": x, "weight": weight}, DTYPES)
    if shares is None:
        return
    if shares.ndim != 2 or shares.shape[1] != z.shape[1] or shares.dtype != torch.float32:
        raise ValueError(f"shares must be a float32 (parts, {z.shape[1]}), it is {shares.dtype} {list(shares.shape)}")
    if shares.device != z.device:
        raise ValueError(f"shares is on {shares.device}, z on {z.device}; all must be on one device")


def stored(out: Tensor, chosen: Config, needed: bool) -> tuple[Tensor | TensorDescriptor | None, bool, int]:
    """A product's result as the kernel takes it, whether by tensor descriptor, and its tiles; none where not needed."""
    if not needed:
        return None, False, 0
    store = chosen.store and described(out)
    tiles = int(triton.cdiv(out.shape[0], chosen.rows) * triton.cdiv(out.shape[1], chosen.columns))
    return tiles_of(out, [chosen.rows, chosen.columns], store), store, tiles


def gradient_products(
    z: Tensor,
    x: Tensor,
    weight: Tensor,
    needs: tuple[bool, bool] = (True, True),
    *,
    shares: Tensor | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """z·W (batch, in) and zᵀ·x (out, in) of z (batch, out), x (batch, in) and W (out, in), in one kernel.

    With ``shares`` (parts, out), float32, that add up to z's sum over the batch, this sum (out), too: grad_bias.
    All bfloat16 or all float16, on a CUDA device (in Triton's interpreter on any); sums are float32, rounded once at
    the end, and the same in every run. Of what is not in ``needs`` (grad_x, grad_weight), and of grad_bias without
    ``shares``, an empty tensor. Where rows are not contiguous the matrix is copied. ``plan`` replaces :func:`config`.

    Raises ValueError naming the tensor for a wrong rank, mismatched sizes, mixed or other dtypes, or mixed devices.
    """
    _check(z, x, weight, shares)
    (batch, outer), inner = z.shape, x.shape[1]
    grad_x = x.new_empty((batch, inner) if needs[0] else 0)
    grad_weight = weight.new_empty((outer, inner) if needs[1] else 0)
    if min(batch, inner, outer) == 0 or not any(needs):
        return grad_x.zero_(), grad_weight.zero_(), z.new_empty(0) if shares is None else shares.sum(0).to(z.dtype)
    grad_bias = z.new_empty(0 if shares is None else outer)
    z, x, weight = rows_of(z), rows_of(x), rows_of(weight)
    plan = plan or config((batch, inner, outer), z.dtype)
    for_x, for_weight = plan.grad_x, plan.grad_weight
    x_out, x_store, x_tiles = stored(grad_x, for_x, needs[0])
    weight_out, weight_store, weight_tiles = stored(grad_weight, for_weight, needs[1])
    x_longer = outer >= batch
    longer, shorter = (x_tiles, weight_tiles) if x_longer else (weight_tiles, x_tiles)
    begin = min(plan.ahead, shorter)
    tiles = x_tiles + weight_tiles
    sums = 0 if shares is None else triton.cdiv(outer, SHARE_TILE[1])
    x_load = for_x.load and described(z) and described(weight)
    weight_load = for_weight.load and described(z) and described(x)
    with torch.cuda.device_of(z):
        _gradient_products[(tiles + sums,)](
            tiles_of(z, [for_x.rows, for_x.inner], x_load),
            tiles_of(z, [for_weight.inner, for_weight.rows], weight_load),
            tiles_of(x, [for_weight.inner, for_weight.columns], weight_load),
            tiles_of(weight, [for_x.inner, for_x.columns], x_load),
            None if shares is None else shares.contiguous(),
            x_out,
            weight_out,
            grad_bias,
            batch,
            inner,
            outer,
            0 if shares is None else len(shares),
            *(one.stride(0) for one in (z, x, weight)),
            begin,
            begin + longer,
            tiles,
            X_LONGER=x_longer,
            **for_x.tile("X_"),
            X_STAGES=for_x.stages,
            X_LOAD=x_load,
            X_STORE=x_store,
            **for_weight.tile("WEIGHT_"),
            WEIGHT_STAGES=for_weight.stages,
            WEIGHT_LOAD=weight_load,
            WEIGHT_STORE=weight_store,
            SHARE_PARTS=SHARE_TILE[0],
            SHARE_COLUMNS=SHARE_TILE[1],
            **options(for_x, z),
        )
    return grad_x, grad_weight, grad_bias
