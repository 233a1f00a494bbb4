"""Two or three equal-width Linear layers in one Triton kernel: activations never leave the registers.

A program loads the weights once, into shared memory, and walks over tiles of rows: only the rows of x come in, only the
rows of the output go out. Backward computes the activations of a tile again from x instead of storing them. Widths that
are no power of two are padded with zeros, in the kernel. Source of the idea: tiny-cuda-nn's FullyFusedMLP.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from hypatia_lab.kernels.linear_relu.linear_relu_triton import wait_turn

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """How the forward kernel is cut, for tuning; every choice computes the same.

    ``rows`` of x at a time and ``warps`` of a program; ``programs`` that share one multiprocessor, each walking over
    tiles (0: one program a tile). ``fetch``: the next tile of x waits in "registers", in a "pipeline" of ``stages``
    copies to shared memory, or in the same filled through a TMA "descriptor" (which stores the output, too; widths of
    whole 16 bytes only). ``keep``: 2 holds weights and biases throughout, 1 the weights, 0 reads each when its turn
    comes (widths whose weights do not fit). ``early``: may start before the kernel ahead of it on the stream has ended
    (programmatic dependent launch), and waits for that end before it touches memory. ``registers``: most registers of a
    thread, None for the compiler's choice; ``programs`` fit a multiprocessor together only if its registers (65,536 on
    Hopper) and its shared memory hold them all.
    """

    rows: int
    warps: int
    programs: int = 1
    fetch: str = "registers"
    stages: int = 1
    keep: int = 2
    early: bool = False
    registers: int | None = None


@triton.jit
def _operand(x, PRECISION: tl.constexpr):
    """``x`` as the matrix units take it. They cut float32 off to TF32; rounded to nearest first, the errors average."""
    if x.dtype.is_fp32() and PRECISION == "tf32":
        rounded = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        # The hardware's own NaN has all bits set: adding to it would leave a zero.
        return tl.where(x == x, rounded, x)
    return x


@triton.jit
def _matrix(at, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """A weight, (out, in) as it lies in memory; beyond ``WIDTH`` zeros."""
    o, i = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    if WIDTH == BLOCK:
        weight = tl.load(at + o * WIDTH + i)
    else:
        weight = tl.load(at + o * WIDTH + i, mask=(o < WIDTH) & (i < WIDTH), other=0.0)
    return _operand(weight, PRECISION)


@triton.jit
def vector_at(at, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A bias in float32; beyond ``WIDTH`` zeros."""
    o = tl.arange(0, BLOCK)
    return tl.load(at + o, mask=o < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def rows_at(at, first, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """``ROWS`` rows of a contiguous matrix from row ``first`` on; beyond ``rows`` and ``WIDTH`` zeros."""
    r, i = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = r < rows - first
    if WIDTH != BLOCK:
        inside = inside & (i < WIDTH)
    return tl.load(at + first.to(tl.int64) * WIDTH + (r * WIDTH + i), mask=inside, other=0.0)


@triton.jit
def store_rows(at, value, first, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    r, i = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = r < rows - first
    if WIDTH != BLOCK:
        inside = inside & (i < WIDTH)
    tl.store(at + first.to(tl.int64) * WIDTH + (r * WIDTH + i), value, mask=inside)


@triton.jit
def _linear(x, weight, bias, PRECISION: tl.constexpr):
    """x·Wᵀ + b in float32."""
    return tl.dot(x, tl.trans(weight), input_precision=PRECISION) + bias[None, :]


@triton.jit
def _relu(y, NUMBER: tl.constexpr, PRECISION: tl.constexpr, DEVICE: tl.constexpr):
    """max(0, y), y float32, as the next product's operand of type ``NUMBER``; NaN stays NaN, as in torch.

    ``DEVICE``: round and clamp two numbers in one instruction, which the interpreter does not have.
    """
    if DEVICE and tl.bfloat16 == NUMBER:
        return tl.inline_asm_elementwise(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,f,f", [y], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    if DEVICE and tl.float16 == NUMBER:
        return tl.inline_asm_elementwise(
            "cvt.rn.relu.f16x2.f32 $0, $2, $1;", "=r,f,f", [y], dtype=tl.float16, is_pure=True, pack=2
        )
    return _operand(tl.where(y < 0, 0.0, y).to(NUMBER), PRECISION)


# [forward]
@triton.jit
def _forward(
    x,
    weight1,
    bias1,
    weight2,
    bias2,
    weight3,
    bias3,
    out,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LAYERS: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    FETCH: tl.constexpr,
    KEEP: tl.constexpr,
    EARLY: tl.constexpr,
    DEVICE: tl.constexpr,
):
    """One program: every ``num_programs``-th tile of ``ROWS`` rows; the other choices are those of :class:`Tile`."""
    NUMBER: tl.constexpr = weight1.dtype.element_ty
    wait_turn(EARLY)
    start, step = tl.program_id(0), tl.num_programs(0)
    if FETCH == "registers":
        # Asked for before the weights, so that one wait on memory does for both.
        ahead = rows_at(x, start * ROWS, rows, WIDTH, BLOCK, ROWS)
    if KEEP >= 1:
        w1 = _matrix(weight1, WIDTH, BLOCK, PRECISION)  # (1)
        w2 = _matrix(weight2, WIDTH, BLOCK, PRECISION)
        if LAYERS == 3:
            w3 = _matrix(weight3, WIDTH, BLOCK, PRECISION)
    if KEEP == 2:
        b1, b2 = vector_at(bias1, WIDTH, BLOCK), vector_at(bias2, WIDTH, BLOCK)
        if LAYERS == 3:
            b3 = vector_at(bias3, WIDTH, BLOCK)
    for tile in tl.range(start, tl.cdiv(rows, ROWS), step, num_stages=STAGES):  # (2)
        first = tile * ROWS
        if FETCH == "registers":
            h = ahead
            ahead = rows_at(x, first + step * ROWS, rows, WIDTH, BLOCK, ROWS)  # (3)
        elif FETCH == "descriptor":
            h = x.load([first, 0])
        else:
            h = rows_at(x, first, rows, WIDTH, BLOCK, ROWS)
        if KEEP < 2:
            b1, b2 = vector_at(bias1, WIDTH, BLOCK), vector_at(bias2, WIDTH, BLOCK)
            if LAYERS == 3:
                b3 = vector_at(bias3, WIDTH, BLOCK)
        if KEEP == 0:
            w1 = _matrix(weight1, WIDTH, BLOCK, PRECISION)
        h = _relu(_linear(_operand(h, PRECISION), w1, b1, PRECISION), NUMBER, PRECISION, DEVICE)  # (4)
        if KEEP == 0:
            w2 = _matrix(weight2, WIDTH, BLOCK, PRECISION)
        y = _linear(h, w2, b2, PRECISION)
        if LAYERS == 3:
            if KEEP == 0:
                w3 = _matrix(weight3, WIDTH, BLOCK, PRECISION)
            y = _linear(_relu(y, NUMBER, PRECISION, DEVICE), w3, b3, PRECISION)
        if FETCH == "descriptor":
            out.store([first, 0], y.to(NUMBER))
        else:
            store_rows(out, y.to(NUMBER), first, rows, WIDTH, BLOCK, ROWS)  # (5)
    # [/forward]


# [backward]
@triton.jit
def _add(total, bias_total, grad, h, PRECISION: tl.constexpr):
    """One tile's share of a layer's gradients: dW = gᵀ·h, db = Σ g."""
    total = tl.dot(tl.trans(grad), h, total, input_precision=PRECISION)  # (1)
    return total, bias_total + tl.sum(grad.to(tl.float32), 0)
    # [/backward]


# [backward]
@triton.jit
def _before(grad, weight, h, NUMBER: tl.constexpr, PRECISION: tl.constexpr):
    """The gradient of one layer's pre-activation from the next one's: g·W where ReLU let ``h`` through."""
    grad = tl.dot(grad, weight, input_precision=PRECISION)
    return _operand(tl.where(h <= 0, 0.0, grad).to(NUMBER), PRECISION)  # (2)
    # [/backward]


@triton.jit
def _keep(at, layer: tl.constexpr, total, bias_total, LAYERS: tl.constexpr, BLOCK: tl.constexpr):
    """Store this program's share of a layer's gradients, the bias's as one more row."""
    at += (tl.program_id(0) * LAYERS + layer - 1) * (BLOCK + 1) * BLOCK
    o, i = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)
    tl.store(at + o * BLOCK + i[None, :], total)
    tl.store(at + BLOCK * BLOCK + i, bias_total)


# [backward]
@triton.jit
def _backward(
    x,
    weight1,
    bias1,
    weight2,
    bias2,
    weight3,
    grad,
    grad_x,
    shares,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LAYERS: tl.constexpr,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    DEVICE: tl.constexpr,
):
    """Gradients of the parameters of layers ``LOWEST`` to ``HIGHEST``, and of x if the first is among them.

    One program: every ``num_programs``-th tile of ``ROWS`` rows; ``shares`` (programs, layers, block + 1, block) holds
    what each adds up in float32, so that the sum does not depend on who comes first.
    """
    NUMBER: tl.constexpr = weight1.dtype.element_ty
    w1, w2 = _matrix(weight1, WIDTH, BLOCK, PRECISION), _matrix(weight2, WIDTH, BLOCK, PRECISION)
    if LAYERS == 3:
        w3 = _matrix(weight3, WIDTH, BLOCK, PRECISION)
    if LOWEST == 1:
        dw1, db1 = tl.zeros((BLOCK, BLOCK), tl.float32), tl.zeros((BLOCK,), tl.float32)
    if LOWEST <= 2 and HIGHEST >= 2:
        dw2, db2 = tl.zeros((BLOCK, BLOCK), tl.float32), tl.zeros((BLOCK,), tl.float32)
    if HIGHEST == 3:
        dw3, db3 = tl.zeros((BLOCK, BLOCK), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=1):
        first = tile * ROWS
        g = _operand(rows_at(grad, first, rows, WIDTH, BLOCK, ROWS), PRECISION)
        h0 = _operand(rows_at(x, first, rows, WIDTH, BLOCK, ROWS), PRECISION)
        h1 = _relu(_linear(h0, w1, vector_at(bias1, WIDTH, BLOCK), PRECISION), NUMBER, PRECISION, DEVICE)  # (3)
        if LAYERS == 3:
            b2 = vector_at(bias2, WIDTH, BLOCK)
            h2 = _relu(_linear(h1, w2, b2, PRECISION), NUMBER, PRECISION, DEVICE)
            if HIGHEST == 3:
                dw3, db3 = _add(dw3, db3, g, h2, PRECISION)
            if LOWEST <= 2:
                g = _before(g, w3, h2, NUMBER, PRECISION)
        if LOWEST <= 2 and HIGHEST >= 2:
            dw2, db2 = _add(dw2, db2, g, h1, PRECISION)
        if LOWEST == 1:
            g = _before(g, w2, h1, NUMBER, PRECISION)
            dw1, db1 = _add(dw1, db1, g, h0, PRECISION)
            before = tl.dot(g, w1, input_precision=PRECISION)
            store_rows(grad_x, before.to(NUMBER), first, rows, WIDTH, BLOCK, ROWS)
    if LOWEST == 1:
        _keep(shares, 1, dw1, db1, LAYERS, BLOCK)  # (4)
    if LOWEST <= 2 and HIGHEST >= 2:
        _keep(shares, 2, dw2, db2, LAYERS, BLOCK)
    if HIGHEST == 3:
        _keep(shares, 3, dw3, db3, LAYERS, BLOCK)
    # [/backward]


# [backward]
@triton.jit
def _sum(shares, weights, biases, programs, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """One program: one row of one layer's weight gradient, or its bias gradient, added up over ``programs`` shares."""
    row, layer, layers = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    # Rows that only pad the weight are left out: the bias's follows the last real one.
    source = tl.where(row == WIDTH, BLOCK, row)
    p, i = tl.arange(0, CHUNK)[:, None], tl.arange(0, BLOCK)
    total = tl.zeros((CHUNK, BLOCK), tl.float32)
    for begin in range(0, programs, CHUNK):
        at = (((begin + p) * layers + layer) * (BLOCK + 1) + source) * BLOCK + i[None, :]
        total += tl.load(shares + at, mask=begin + p < programs, other=0.0)  # (5)
    out = tl.where(row == WIDTH, biases + layer * WIDTH, weights + (layer * WIDTH + row) * WIDTH)
    tl.store(out + i, tl.sum(total, 0), mask=i < WIDTH)
    # [/backward]


def block_of(width: int) -> int:
    return max(16, int(triton.next_power_of_2(width)))


def multiprocessors(x: Tensor) -> int:
    # The interpreter has none; with two programs, one still walks over several tiles.
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2


def default_tile(rows: int, width: int, dtype: torch.dtype, multiprocessors: int) -> Tile:
    """The tile for ``rows`` rows of ``width`` numbers on a GPU of so many multiprocessors."""
    block = block_of(width)
    if block > 128:
        return Tile(64, 8, 1, "pipeline", keep=0, early=True)
    if dtype == torch.float32:
        return Tile(64, 8, 1, "pipeline", keep=0) if block == 128 else Tile(64, 4, 1, "pipeline", keep=1)
    if rows <= 32 * multiprocessors:
        return Tile(32 if rows > 16 * multiprocessors else 16, 4, keep=1, early=True)
    return Tile(64, 4, 2, early=True) if block == 128 else Tile(64, 4, 4, early=True, registers=128)


def _three(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Tensor]:
    """weight1, bias1, … of three layers. Two have no third one; what stands in its place is never read."""
    layers = [*zip(weights, biases, strict=True)]
    return [one for layer in [*layers, layers[0]][:3] for one in layer]


def forward(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, precision: str = "ieee", tile: Tile | None = None
) -> Tensor:
    """Linear, ReLU, Linear (two layers) or Linear, ReLU, Linear, ReLU, Linear (three) of ``x`` (rows, width).

    ``weights`` (width, width), as (out, in), and ``biases`` (width); all contiguous, of one dtype, on one device; 1 to
    2³⁰ rows. bfloat16 and float16 with ``precision`` "ieee", width at most 256, or float32 with "tf32" or "tf32x3",
    width at most 128: more does not fit the registers. Returns (rows, width). ``tile`` replaces :func:`default_tile`.
    Raises ValueError for a tile that does not fit.
    """
    rows, width = x.shape
    tile = tile or default_tile(rows, width, x.dtype, multiprocessors(x))
    block, out, source = block_of(width), torch.empty_like(x), x
    programs = triton.cdiv(rows, tile.rows)
    if tile.programs:
        programs = min(programs, tile.programs * multiprocessors(x))
    target = out
    if tile.fetch == "descriptor":
        if width * x.itemsize % 16 or x.data_ptr() % 16:
            raise ValueError(f"a descriptor needs rows of whole 16 bytes: x is {rows}x{width} {x.dtype}")
        source, target = (TensorDescriptor.from_tensor(tensor, [tile.rows, block]) for tensor in (x, out))
    elif tile.fetch not in ("registers", "pipeline"):
        raise ValueError(f"fetch {tile.fetch!r} is none of registers, pipeline, descriptor")
    with torch.cuda.device_of(x):
        _forward[(programs,)](
            source,
            *_three(weights, biases),
            target,
            rows,
            WIDTH=width,
            BLOCK=block,
            LAYERS=len(weights),
            PRECISION=precision,
            ROWS=tile.rows,
            STAGES=tile.stages,
            FETCH=tile.fetch,
            KEEP=tile.keep,
            EARLY=tile.early and x.is_cuda,
            DEVICE=x.is_cuda,
            num_warps=tile.warps,
            maxnreg=tile.registers,
            **({"launch_pdl": True} if tile.early and x.is_cuda else {}),
        )
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    precision: str = "ieee",
    rows_of_tile: int | None = None,
    warps: int = 8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`forward`: of x (rows, width), the weights (layers, width, width), the biases (layers, width).

    ``grad`` is that of the output; all as in :func:`forward`, but bfloat16 or float16 only and width at most 128. The
    same input gives the same bits: no sum depends on the order in which programs end.
    """
    rows, width = x.shape
    layers, block = len(weights), block_of(width)
    # float32 accumulators of one layer at width 128 fill half the registers: there every layer has a launch of its own.
    spans = [(n, n) for n in range(1, layers + 1)] if block == 128 else [(1, layers)]
    tile = rows_of_tile or (64 if rows <= 64 * multiprocessors(x) else 128)
    programs = min(triton.cdiv(rows, tile), multiprocessors(x))
    shares = torch.empty(programs, layers, block + 1, block, dtype=torch.float32, device=x.device)
    grad_x = torch.empty_like(x)
    grad_weights = x.new_empty(layers, width, width)
    grad_biases = x.new_empty(layers, width)
    parameters = _three(weights, biases)[:5]
    with torch.cuda.device_of(x):
        for lowest, highest in spans:
            _backward[(programs,)](
                x,
                *parameters,
                grad,
                grad_x,
                shares,
                rows,
                WIDTH=width,
                BLOCK=block,
                LAYERS=layers,
                LOWEST=lowest,
                HIGHEST=highest,
                PRECISION=precision,
                ROWS=tile,
                DEVICE=x.is_cuda,
                num_warps=warps,
                num_stages=1,
            )
        _sum[(width + 1, layers)](
            shares, grad_weights, grad_biases, programs, WIDTH=width, BLOCK=block, CHUNK=max(1, 2048 // block)
        )
    return grad_x, grad_weights, grad_biases
