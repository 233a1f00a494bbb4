"""A linear layer and what stands behind it in one Triton kernel: y = f(x·Wᵀ + b), f a ReLU, a GELU, one after the other
or neither, computed of the sums before anything is stored.

x is (batch, in), W (out, in), b (out) or None, y (batch, out). How tiles are cut, loaded and stored is Linear+ReLU's
(:mod:`hypatia_lab.kernels.linear_relu.linear_relu_triton`). That kernel has its ReLU written into it and stays as it
is: records say which text they measured, and with a change all of them would be about another.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from hypatia_lab.kernels.conv_block.conv_block_triton import gelu
from hypatia_lab.kernels.linear_relu.epilogue import GELUS
from hypatia_lab.kernels.linear_relu.linear_relu_triton import (
    PRECISIONS,
    Config,
    config,
    corner,
    described,
    nearest_tf32,
    operand,
    operand_tiles,
    options,
    processors,
    rows_of,
    store_tile,
    tiles_of,
    wait_turn,
)
from hypatia_lab.kernels.operands import ensure_layer, ensure_no_gradient

if TYPE_CHECKING:
    from torch import Tensor

# ---------------------------------------------------------------- kernel


# [linear_activation]
@triton.jit
def activated(values, RELU: tl.constexpr, GELU: tl.constexpr, SHORT: tl.constexpr):
    """The ReLU of ``values`` (NaN stays NaN, as in torch), then the GELU by ``GELU``, of both what is asked for."""
    if RELU:
        values = tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if GELU is not None:
        values = gelu(values, GELU == "tanh", SHORT)  # (1)
    return values
    # [/linear_activation]


# [linear_activation]
@triton.jit
def _put(
    values,
    bias,
    out,
    row,
    column,
    batch,
    outer,
    stride,
    RELU: tl.constexpr,
    GELU: tl.constexpr,
    SHORT: tl.constexpr,
    TMA: tl.constexpr,
):
    """Add the bias, apply what stands behind it and store a tile of any width."""
    if bias is not None:
        columns = column + tl.arange(0, values.shape[1])
        values += tl.load(bias + columns, mask=columns < outer, other=0.0).to(tl.float32)[None, :]
    store_tile(activated(values, RELU, GELU, SHORT), out, row, column, batch, outer, stride, TMA)  # (2)
    # [/linear_activation]


@triton.jit
def _tile(
    number,
    x,
    weight,
    bias,
    out,
    batch,
    inner,
    outer,
    x_stride,
    weight_stride,
    out_stride,
    RELU: tl.constexpr,
    GELU: tl.constexpr,
    SHORT: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Compute and store tile ``number``."""
    row, column = corner(number, batch, outer, ROWS, COLUMNS, GROUP)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    # At least one step, and the compiler knows: a way around the loop would make it wait for every single product.
    for step in range(tl.maximum(tl.cdiv(inner, INNER), 1)):
        a = operand(x, row, step * INNER, batch, inner, x_stride, ROWS, INNER, LOAD)
        b = operand(weight, column, step * INNER, outer, inner, weight_stride, COLUMNS, INNER, LOAD)
        if ROUND:
            # Matrix units drop an operand's last bits. The copy engine (LOAD) rounds without being told here.
            a, b = nearest_tf32(a), nearest_tf32(b)
        total = tl.dot(a, b.T, total, input_precision=PRECISION)
    if HALVES:
        # Half a tile at a time needs half the shared memory on its way out.
        left, right = tl.split(tl.permute(tl.reshape(total, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))
        _put(left, bias, out, row, column, batch, outer, out_stride, RELU, GELU, SHORT, STORE)
        _put(right, bias, out, row, column + COLUMNS // 2, batch, outer, out_stride, RELU, GELU, SHORT, STORE)
    else:
        _put(total, bias, out, row, column, batch, outer, out_stride, RELU, GELU, SHORT, STORE)


# [linear_activation]
@triton.jit
def _linear_activation(
    x,
    weight,
    bias,
    out,
    batch,
    inner,
    outer,
    x_stride,
    weight_stride,
    out_stride,
    RELU: tl.constexpr,
    GELU: tl.constexpr,
    SHORT: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    PERSISTENT: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    ROUND: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_turn(DEPENDENT)
    first = tl.program_id(0)
    if PERSISTENT:
        tiles = tl.cdiv(batch, ROWS) * tl.cdiv(outer, COLUMNS)
        # Flattened into one loop, the loads of a tile start before the tile before it is stored.
        for number in tl.range(first, tiles, tl.num_programs(0), flatten=True):
            _tile(
                number, x, weight, bias, out, batch, inner, outer, x_stride, weight_stride, out_stride,
                RELU, GELU, SHORT, PRECISION, ROWS, COLUMNS, INNER, GROUP, HALVES, LOAD, STORE, ROUND,
            )  # fmt: skip
    else:
        _tile(
            first, x, weight, bias, out, batch, inner, outer, x_stride, weight_stride, out_stride,
            RELU, GELU, SHORT, PRECISION, ROWS, COLUMNS, INNER, GROUP, HALVES, LOAD, STORE, ROUND,
        )  # fmt: skip
    # [/linear_activation]


# ---------------------------------------------------------------- launch


def linear_activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    approximate: str | None = None,
    precision: str = "ieee",
    tiles: Config | None = None,
) -> Tensor:
    """f(x·Wᵀ + b) in one kernel: x (..., in), W (out, in), b (out) or None → (..., out) of the same dtype.

    f is a ReLU if ``relu``, then a GELU unless ``approximate``, one of
    :data:`~hypatia_lab.kernels.linear_relu.epilogue.GELUS`, is None. bfloat16, float16, or float32 multiplied as
    ``precision`` says, on a CUDA device (in Triton's interpreter on any); sums and f are float32, rounded once at the
    end. Of 16 bits the error function is a short form, off by far less than they are rounded by.
    ``precision`` and ``tiles`` are those of :func:`hypatia_lab.kernels.linear_relu.linear_relu_triton.linear_relu`, and
    NaN and infinities go through as in torch's float64.

    Raises ValueError naming the tensor for a wrong rank, mismatched sizes, mixed or other dtypes, mixed devices, or a
    gradient asked for; and for an unknown ``approximate`` or ``precision``.
    """
    ensure_layer(x, weight, bias, (torch.bfloat16, torch.float16, torch.float32))
    ensure_no_gradient({"x": x, "weight": weight, "bias": bias})
    if approximate not in (None, *GELUS):
        raise ValueError(f"approximate {approximate!r} is none of {', '.join(GELUS)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    out = torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    a, b, y = rows_of(x), rows_of(weight), out.view(-1, weight.shape[0])
    sizes = (a.shape[0], a.shape[1], b.shape[0])
    chosen = tiles or config(sizes, x.dtype, precision)
    load, store = chosen.load and described(a) and described(b), chosen.store and described(y)
    count = triton.cdiv(sizes[0], chosen.rows) * triton.cdiv(sizes[2], chosen.columns)
    programs = min(count, chosen.resident * processors(x)) if chosen.resident else count
    columns = chosen.columns // 2 if chosen.halves else chosen.columns
    rounded = precision == "tf32" and x.dtype == torch.float32
    with torch.cuda.device_of(x):
        _linear_activation[(programs,)](
            operand_tiles(a, [chosen.rows, chosen.inner], rounded) if load else a,
            operand_tiles(b, [chosen.columns, chosen.inner], rounded) if load else b,
            None if bias is None else bias.contiguous(),
            tiles_of(y, [chosen.rows, columns], store),
            *sizes,
            *(one.stride(0) for one in (a, b, y)),
            RELU=relu,
            GELU=approximate,
            SHORT=x.dtype.itemsize == 2,
            PRECISION=precision,
            **chosen.tile(),
            HALVES=chosen.halves,
            PERSISTENT=programs < count,
            LOAD=load,
            STORE=store,
            ROUND=rounded and not load,
            **options(chosen, x),
        )
    return out
