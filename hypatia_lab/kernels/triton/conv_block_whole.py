"""Conv2d 3×3 → InstanceNorm2d → GELU in one kernel for Hopper: the convolution's sums never leave the registers.

y = GELU(γ·(z − mean)/√(var + eps) + β), z = x∗W + b, channels last in memory. A program computes a strip, a few whole
rows of one image: it holds all weights in shared memory and asks for every row of x three times, once a column of taps,
where a matrix product by taps asks nine times. The programs of an image wait for each other's sums before they
normalise what they hold; so all of them must run at once, one a multiprocessor.

Written in Gluon, Triton's language for explicit shared memory and asynchronous copies, which no interpreter runs.
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false, reportReturnType=false

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hypatia_lab.kernels.triton.conv_block import Saved, gelu, operands
from hypatia_lab.kernels.triton.convolution import launch_options, terms
from hypatia_lab.kernels.triton.linear_relu import hopper

if TYPE_CHECKING:
    from torch import Tensor

# Another name of the same since Triton 3.7.
meet = getattr(gl, "thread_barrier", None) or gl.barrier

# ---------------------------------------------------------------- kernel


@gluon.jit
def _ask_weights(
    source, barriers, held, part: gl.constexpr, CHUNKS: gl.constexpr, WIDTH: gl.constexpr, ADJOINT: gl.constexpr
):
    """Ask for the three taps of row ``part``, ``WIDTH`` numbers each in a row of memory; one barrier for the three."""
    mbarrier.expect(barriers.index(part), 3 * CHUNKS * held.index(0).numel * held.dtype.primitive_bitwidth // 8)
    for number in gl.static_range(3 * CHUNKS):
        tap = 3 * part + number // CHUNKS
        depth = number % CHUNKS * (WIDTH // CHUNKS if not ADJOINT else held.shape[1])
        at = [depth, (8 - tap) * WIDTH] if ADJOINT else [0, tap * WIDTH + depth]
        tma.async_copy_global_to_shared(source, at, barriers.index(part), held.index(3 * CHUNKS * part + number))


@gluon.jit
def _ask_row(
    source,
    source_small,
    barriers,
    held,
    image,
    first,
    number: gl.constexpr,
    SLOTS: gl.constexpr,
    CHUNKS: gl.constexpr,
    SPLIT: gl.constexpr,
):
    """Ask for what step ``number`` reads: a row of the strip's input as one column of taps sees it, some channels.

    Beyond the image there are zeros, and they count as bytes that arrive.
    """
    slot: gl.constexpr = number % SLOTS
    bar, into = barriers.index(slot), held.index((1 + SPLIT) * slot)
    across: gl.constexpr = number // CHUNKS % 3
    at = [image, first + number // (3 * CHUNKS) - 1, across - 1, number % CHUNKS * held.shape[4]]
    mbarrier.expect(bar, (1 + SPLIT) * into.numel * held.dtype.primitive_bitwidth // 8)
    tma.async_copy_global_to_shared(source, at, bar, into)
    if SPLIT:
        tma.async_copy_global_to_shared(source_small, at, bar, held.index(2 * slot + 1))


@gluon.jit
def _tap(held, number: gl.constexpr, ADJOINT: gl.constexpr):
    """One tap's weights of some channels as the right operand, (channels in, channels out)."""
    return held.index(number) if ADJOINT else held.index(number).permute((1, 0))


@gluon.jit
def _step(
    sums,
    rows,
    row_bars,
    weights,
    weight_bars,
    weights_small,
    small_bars,
    step: gl.constexpr,
    ROWS: gl.constexpr,
    WIDE: gl.constexpr,
    DEEP: gl.constexpr,
    SLOTS: gl.constexpr,
    CHUNKS: gl.constexpr,
    ADJOINT: gl.constexpr,
    SPLIT: gl.constexpr,
):
    """Products of a row of the input, as one column of taps sees it, ``DEEP`` channels; those of the step before end.

    Steps: row by row, of a row column by column of taps, of a column all channels.
    """
    down: gl.constexpr = step // (3 * CHUNKS)
    within: gl.constexpr = step % (3 * CHUNKS)
    slot: gl.constexpr = step % SLOTS
    if down < 3 and within == 0:
        mbarrier.wait(weight_bars.index(down), 0)
        if SPLIT:
            mbarrier.wait(small_bars.index(down), 0)
    mbarrier.wait(row_bars.index(slot), step // SLOTS % 2)
    a = rows.index((1 + SPLIT) * slot).reshape([WIDE, DEEP])
    held = ()
    for o in gl.static_range(ROWS):
        total = sums[o]
        # Row ``down`` of the input is row ``down`` - o of what output row o sees.
        if down >= o and down - o < 3:
            b = _tap(weights, 3 * CHUNKS * (down - o) + within, ADJOINT)
            if SPLIT:
                a_small = rows.index(2 * slot + 1).reshape([WIDE, DEEP])
                b_small = _tap(weights_small, 3 * CHUNKS * (down - o) + within, ADJOINT)
                total = warpgroup_mma(a_small, b, total, is_async=True)
                total = warpgroup_mma(a, b_small, total, is_async=True)
            total = warpgroup_mma(a, b, total, is_async=True)
        held = held + (total,)
    # Products of this step may go on while the rows of the step before make room.
    last: gl.constexpr = ROWS - 1 if down > ROWS - 1 else down
    UNDER_WAY: gl.constexpr = (1 + 2 * SPLIT) * (last - (down - 2 if down > 2 else 0) + 1)
    waited = warpgroup_mma_wait(UNDER_WAY if step < 3 * CHUNKS * (ROWS + 2) - 1 else 0, deps=held)
    # Of one row it is not a tuple.
    return (waited,) if ROWS == 1 else waited


@gluon.jit
def _put(value, out, held, image, row, column, height, width, channel, THROUGH: gl.constexpr):
    """Store one row (pixels, channels): ``THROUGH`` shared memory, or at once."""
    if THROUGH:
        # Of the copy before, the shared memory must have been read.
        tma.store_wait(0)
        meet()
        held.reshape(value.shape).store(value.to(held.dtype))
        fence_async_shared()
        meet()
        tma.async_copy_shared_to_global(out, [image, row, 0, 0], held)
    else:
        at = ((image.to(gl.int64) * height + row) * width + column) * channel.shape[0]
        inside = (column < width) & (row < height)
        gl.store(out + at[:, None] + channel[None, :], value, mask=inside[:, None])


@gluon.jit
def _whole(
    x,
    x_small,
    weight,
    weight_small,
    bias,
    gamma,
    beta,
    z,
    y,
    moments,
    statistics,
    counters,
    height,
    width,
    strips,
    eps,
    ROWS: gl.constexpr,
    WIDE: gl.constexpr,
    INNER: gl.constexpr,
    DEEP: gl.constexpr,
    COLUMNS: gl.constexpr,
    SLOTS: gl.constexpr,
    BLOCK: gl.constexpr,
    TANH: gl.constexpr,
    ADJOINT: gl.constexpr,
    THROUGH: gl.constexpr,
    DEPENDENT: gl.constexpr,
    num_warps: gl.constexpr,
):
    """``ROWS`` rows of one image. ``z`` and ``y``, where wanted, are the convolution and the whole operation."""
    SPLIT: gl.constexpr = 0 if x_small is None else 1
    number = gl.program_id(0)
    image, strip = number // strips, number % strips
    first = strip * ROWS

    # ------------------------------------------------ weights and rows come in
    TAP: gl.constexpr = weight.block_type.shape
    CHUNKS: gl.constexpr = INNER // DEEP
    # Numbers of one tap in a row of the weight as it lies in memory.
    WIDTH: gl.constexpr = COLUMNS if ADJOINT else INNER
    weights = gl.allocate_shared_memory(weight.dtype, [9 * CHUNKS, TAP[0], TAP[1]], weight.layout)
    weights_small = weights
    if SPLIT:
        weights_small = gl.allocate_shared_memory(weight.dtype, [9 * CHUNKS, TAP[0], TAP[1]], weight.layout)
    rows = gl.allocate_shared_memory(x.dtype, [(1 + SPLIT) * SLOTS, 1, 1, WIDE, DEEP], x.layout)
    row_bars = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    weight_bars = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    small_bars = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(row_bars.index(slot), count=1)
    for part in gl.static_range(3):
        mbarrier.init(weight_bars.index(part), count=1)
        mbarrier.init(small_bars.index(part), count=1)
    fence_async_shared()
    meet()
    if DEPENDENT:
        # The next kernel may be set up from here on; this one touches no memory before those before it are done.
        gdc_launch_dependents()
        gdc_wait()
    for part in gl.static_range(3):
        if part == 0:
            _ask_row(x, x_small, row_bars, rows, image, first, 0, SLOTS, CHUNKS, SPLIT)
        _ask_weights(weight, weight_bars, weights, part, CHUNKS, WIDTH, ADJOINT)
        if SPLIT:
            _ask_weights(weight_small, small_bars, weights_small, part, CHUNKS, WIDTH, ADJOINT)
        if part == 0:
            for ahead in gl.static_range(1, SLOTS):
                _ask_row(x, x_small, row_bars, rows, image, first, ahead, SLOTS, CHUNKS, SPLIT)

    # ------------------------------------------------ products
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, COLUMNS, 256 // x.dtype.primitive_bitwidth]
    )
    sums = ()
    for _ in gl.static_range(ROWS):
        sums = sums + (gl.zeros((WIDE, COLUMNS), gl.float32, SUMS),)
    for step in gl.static_range(3 * CHUNKS * (ROWS + 2)):
        sums = _step(
            sums, rows, row_bars, weights, weight_bars, weights_small, small_bars,
            step, ROWS, WIDE, DEEP, SLOTS, CHUNKS, ADJOINT, SPLIT,
        )  # fmt: skip
        if step > 0 and step - 1 + SLOTS < 3 * CHUNKS * (ROWS + 2):
            _ask_row(x, x_small, row_bars, rows, image, first, step - 1 + SLOTS, SLOTS, CHUNKS, SPLIT)

    # ------------------------------------------------ the convolution, and its moments
    column = gl.arange(0, WIDE, gl.SliceLayout(1, SUMS))
    channel = gl.arange(0, COLUMNS, gl.SliceLayout(0, SUMS))
    if bias is not None:
        shift = gl.load(bias + channel).to(gl.float32)
        moved = ()
        for o in gl.static_range(ROWS):
            moved = moved + (sums[o] + shift[None, :],)
        sums = moved
    held = rows
    if THROUGH:
        LAYOUT: gl.constexpr = z.layout if y is None else y.layout
        held = gl.allocate_shared_memory(x.dtype, [1, 1, WIDE, COLUMNS], LAYOUT)
    if y is not None:
        # Pixels of this strip, and the mean of what it holds: sums of squares about zero would cancel.
        count = gl.minimum(height - first, ROWS) * width
        part = gl.zeros((WIDE, COLUMNS), gl.float32, SUMS)
        for o in gl.static_range(ROWS):
            part += gl.where(((column < width) & (first + o < height))[:, None], sums[o], 0.0)
        mean = gl.sum(part, 0) / count.to(gl.float32)
        part = gl.zeros((WIDE, COLUMNS), gl.float32, SUMS)
        for o in gl.static_range(ROWS):
            off = sums[o] - mean[None, :]
            part += gl.where(((column < width) & (first + o < height))[:, None], off * off, 0.0)
        at = moments + number * 2 * COLUMNS + channel
        gl.store(at, mean)
        gl.store(at + COLUMNS, gl.sum(part, 0))
        # All threads have stored before one says so to the other programs.
        meet()
        gl.atomic_add(counters + 2 * image, 1, sem="release")
    if z is not None:
        for o in gl.static_range(ROWS):
            _put(sums[o], z, held, image, first + o, column, height, width, channel, THROUGH)
    if y is not None:
        # ------------------------------------------------ the other strips' moments
        arrived = gl.atomic_add(counters + 2 * image, 0, sem="acquire")
        while arrived < strips:
            arrived = gl.atomic_add(counters + 2 * image, 0, sem="acquire")
        meet()
        # The last to have seen all leaves the counters as it found them.
        if gl.atomic_add(counters + 2 * image + 1, 1, sem="relaxed") == strips - 1:
            gl.atomic_xchg(counters + 2 * image, 0, sem="relaxed")
            gl.atomic_xchg(counters + 2 * image + 1, 0, sem="relaxed")
        # A layout of its own spreads them over all threads, whose registers are full of sums.
        SPREAD: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [num_warps, 1], [1, 0])
        other = gl.arange(0, BLOCK, gl.SliceLayout(1, SPREAD))
        each = gl.arange(0, COLUMNS, gl.SliceLayout(0, SPREAD))
        counts = gl.where(other < strips, gl.minimum(height - other * ROWS, ROWS) * width, 0).to(gl.float32)
        pixels = (height * width).to(gl.float32)
        at = moments + (image * strips + other[:, None]) * 2 * COLUMNS + each[None, :]
        known = (other < strips)[:, None] & (each < COLUMNS)[None, :]
        # Not through the first-level cache, which does not see what others store.
        means = gl.load(at, mask=known, other=0.0, cache_modifier=".cg")
        squares = gl.load(at + COLUMNS, mask=known, other=0.0, cache_modifier=".cg")
        mean = gl.sum(means * (counts / pixels)[:, None], 0)
        off = means - mean[None, :]
        variance = gl.sum(squares + off * off * counts[:, None], 0) / pixels
        scale = 1.0 / gl.sqrt_rn(variance + eps)
        if statistics is not None and strip == 0:
            gl.store(statistics + image * 2 * COLUMNS + each, mean)
            gl.store(statistics + image * 2 * COLUMNS + COLUMNS + each, scale)
        # Folded into one factor and one summand, which fewer registers hold; no less exact than z itself was rounded.
        shift = -mean * scale
        if gamma is not None:
            factor = gl.load(gamma + each).to(gl.float32)
            scale, shift = scale * factor, shift * factor + gl.load(beta + each).to(gl.float32)
        scale = gl.convert_layout(scale, gl.SliceLayout(0, SUMS))
        shift = gl.convert_layout(shift, gl.SliceLayout(0, SUMS))

        # ------------------------------------------------ normalised
        for o in gl.static_range(ROWS):
            u = sums[o] * scale[None, :] + shift[None, :]
            value = gelu(u, TANH, THROUGH)
            _put(value, y, held, image, first + o, column, height, width, channel, THROUGH)
    tma.store_wait(0)


# ---------------------------------------------------------------- which strips


@dataclass(frozen=True)
class Strip:
    """How the kernel is cut up: ``rows`` of an image a program; of x, ``inner`` channels of a row a step, ``slots``
    steps' under way or in use at once (3·(rows + 2) steps at least).

    ``warps``: one for every 16 pixels of a row, rounded up to a power of two. ``cooperative``: the driver refuses a
    launch whose programs do not all run at once, instead of their waiting for ever. ``dependent``: programmatic
    dependent launch instead, so that setting up overlaps the end of the kernel before. ``round_x``: under TF32, round x
    to nearest by a kernel of its own. The matrix units cut it off, which makes every sum smaller by one factor, and the
    normalisation takes that out: what is left is as large an error.
    """

    rows: int
    inner: int
    slots: int
    warps: int = 8
    cooperative: bool = True
    dependent: bool = False
    round_x: bool = False


SHARED = 227 * 1024
"""Bytes of shared memory that a program may have on Hopper."""


def shared_bytes(strip: Strip, inner: int, outer: int, width: int, dtype: torch.dtype, precision: str) -> int:
    """Bytes of shared memory that a program takes: all weights, rows of x, a row of 16 bits on its way out."""
    split = dtype == torch.float32 and precision == "bf16x3"
    size = 4 if split else dtype.itemsize
    wide = max(64, triton.next_power_of_2(width))
    leaving = 2 * outer * wide if dtype.itemsize == 2 else 0
    return size * (9 * inner * outer + strip.slots * strip.inner * wide) + leaving + 1024


def candidates(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, precision: str = "ieee", processors: int = 132
) -> list[Strip]:
    """Strips that (N, C_in, C_out, H, W) can be cut into on a GPU of so many multiprocessors, the one in use first.

    Empty where the kernel cannot compute it: channels other than 16, 32, 64 or 128; rows of more than 128 pixels; more
    rows than registers hold; float32 multiplied as it is ("ieee").
    """
    images, inner, outer, height, width = shape
    if (
        not images
        or not {inner, outer} <= {16, 32, 64, 128}
        or width > 128
        or (dtype == torch.float32 and precision == "ieee")
    ):
        return []
    wide = max(64, triton.next_power_of_2(width))
    warps = wide // 16
    least = next((rows for rows in range(1, height + 1) if images * triton.cdiv(height, rows) <= processors), None)
    # Sums of a strip in registers, of which a thread has 255 at most.
    if least is None or least * wide * outer > 176 * 32 * warps:
        return []
    whole, half = min(inner, 64), max(16, min(inner, 64) // 2)
    if dtype == torch.float32:
        # Twice as many bytes a number, or two terms of each: whole rows would leave room for two steps alone.
        strips = [Strip(least, half, slots, warps) for slots in (4, 5, 3)] + [Strip(least, whole, 2, warps)]
    else:
        strips = [Strip(least, whole, slots, warps) for slots in (4, 5, 6, 3, 2)] + [Strip(least, half, 8, warps)]
    strips += [replace(strips[0], dependent=True), replace(strips[0], cooperative=False)]
    return [s for s in strips if shared_bytes(s, inner, outer, width, dtype, precision) <= SHARED]


# ---------------------------------------------------------------- launch

_NUMBERS = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32}


def _seen(tensor: Tensor | None, block: list[int]) -> TensorDescriptor | None:
    if tensor is None:
        return None
    layout = gl.NVMMASharedLayout.get_default_for(block, _NUMBERS[tensor.dtype])
    return TensorDescriptor.from_tensor(tensor, block, layout)


def _launch(
    x: Tensor,
    weight: Tensor,
    vectors: tuple[Tensor | None, Tensor | None, Tensor | None],
    z: Tensor | None,
    y: Tensor | None,
    statistics: Tensor | None,
    counters: Tensor | None,
    strip: Strip,
    *,
    eps: float,
    precision: str,
    tanh: bool,
    adjoint: bool,
) -> None:
    """Contiguous x (N, H, W, C_in) and weight (C_out, 9, C_in) → ``z`` and ``y``, those of them that are given."""
    (images, height, width, inner), outer = x.shape, weight.shape[2 if adjoint else 0]
    x_small = weight_small = None
    if x.dtype == torch.float32:
        if precision == "bf16x3" or strip.round_x:
            x, x_small = terms(x, precision, dependent=True)
        weight, weight_small = terms(weight, precision, dependent=True)
    strips, wide = triton.cdiv(height, strip.rows), strip.warps * 16
    moments = torch.empty(images, strips, 2, outer, dtype=torch.float32, device=x.device)
    if y is not None and counters is None:
        counters = torch.zeros(images, 2, dtype=torch.int32, device=x.device)
    tap = [strip.inner, outer] if adjoint else [outer, strip.inner]
    # 32 bits a number fill whole sectors of memory straight from the registers.
    through = x.dtype != torch.float32 and x_small is None

    def out(tensor: Tensor | None) -> TensorDescriptor | Tensor | None:
        return _seen(tensor, [1, 1, wide, outer]) if through else tensor

    with torch.cuda.device_of(x):
        _whole[(images * strips,)](
            _seen(x, [1, 1, wide, strip.inner]),
            _seen(x_small, [1, 1, wide, strip.inner]),
            _seen(weight.flatten(1), tap),
            None if weight_small is None else _seen(weight_small.flatten(1), tap),
            *vectors,
            out(z),
            out(y),
            moments,
            statistics,
            counters,
            height,
            width,
            strips,
            eps,
            ROWS=strip.rows,
            WIDE=wide,
            INNER=inner,
            DEEP=strip.inner,
            COLUMNS=outer,
            SLOTS=strip.slots,
            BLOCK=triton.next_power_of_2(strips),
            TANH=tanh,
            ADJOINT=adjoint,
            THROUGH=through,
            DEPENDENT=strip.dependent and hopper(x),
            num_warps=strip.warps,
            launch_cooperative_grid=strip.cooperative and not strip.dependent and y is not None,
            **launch_options(strip.dependent, x),
        )


def conv_block_whole(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    eps: float = 1e-5,
    approximate: str = "none",
    precision: str = "ieee",
    strip: Strip | None = None,
    keep: bool = False,
    counters: Tensor | None = None,
) -> tuple[Tensor, Saved | None]:
    """What :func:`conv_block.conv_block` computes, in one kernel, on a GPU of Hopper's kind; the same arguments.

    float32 only as "tf32" or "bf16x3", whose terms are written by a kernel before. The convolution is normalised as it
    was summed, in float32. ``keep``: also return what backward needs, of x's dtype, else None. ``counters``, int32
    (N, 2) of zeros, are left zeros: a caller's own save clearing new ones; two launches at a time must not share them.

    Raises ValueError as :func:`conv_block.conv_block` does, and for sizes that :func:`candidates` does not know.
    """
    pixels, taps, vectors = operands(x, weight, bias, gamma, beta, approximate, precision)
    (images, inner, height, width), outer = x.shape, weight.shape[0]
    shape = (images, inner, outer, height, width)
    chosen = strip or next(iter(candidates(shape, x.dtype, precision, _processors(x))), None)
    if chosen is None:
        raise ValueError(f"x {list(x.shape)} and weight {list(weight.shape)} of {x.dtype} do not fit one kernel")
    y = torch.empty(images, height, width, outer, dtype=x.dtype, device=x.device)
    saved = None
    if keep:
        saved = Saved(torch.empty_like(y), torch.empty(images, 2, outer, dtype=torch.float32, device=x.device))
    _launch(
        pixels,
        taps,
        vectors,
        saved and saved.convolved,
        y,
        saved and saved.statistics,
        counters,
        chosen,
        eps=eps,
        precision=precision,
        tanh=approximate == "tanh",
        adjoint=False,
    )
    return y.permute(0, 3, 1, 2), saved


def adjoint(grad: Tensor, weight: Tensor, strip: Strip) -> Tensor:
    """Gradient of x (N, H, W, C_in) from ``grad`` (N, H, W, C_out), that of the convolution; weight (C_out, 9, C_in).

    All contiguous and of one dtype, bfloat16 or float16; sizes and ``strip`` as of :func:`candidates` of (N, C_out,
    C_in, H, W), but programs need not all run at once.
    """
    out = torch.empty(*grad.shape[:3], weight.shape[2], dtype=grad.dtype, device=grad.device)
    how = {"eps": 0.0, "precision": "ieee", "tanh": False, "adjoint": True}
    _launch(grad, weight, (None, None, None), out, None, None, None, strip, **how)
    return out


def _processors(tensor: Tensor) -> int:
    """Multiprocessors of a GPU with what the kernel needs, else none."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if hopper(tensor) else 0
