"""Linear+ReLU in CUDA for Hopper (``linear_relu.cu``), at any shape: its kernels' plans and launches.

In the ReLU's place there may be a GELU, a ReLU with a GELU behind it, or nothing.

Of bfloat16 and float16, and of float32, which the copy engine rounds to the nearest TF32 number on its way. Rows that
the copy engine cannot fetch are copied first, both operands' in one launch. Few rows of x are multiplied without tensor
cores, float32 then by its own arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.hopper import PACK_BYTES, ROW_BYTES, SECTOR_BYTES
from hypatia_lab.kernels.linear_relu.epilogue import NOTHING, RELU, Epilogue
from hypatia_lab.kernels.operands import ensure_layer

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = "linear_relu/linear_relu"

PRECISIONS = {"bfloat16": ("ieee",), "float16": ("ieee",), "float32": ("tf32",)}
"""dtype → how its operands can be multiplied."""

FEW = 8
"""So many rows of x, or fewer, are multiplied without tensor cores."""

COPYING = 256
"""Threads of a block that copies."""


@dataclass(frozen=True)
class Plan:
    """How the kernel is cut, for tuning; every choice computes the same.

    A tile is what ``consumers`` warpgroups of 64 rows each compute, ``width`` columns (64, 128, 192 or 256). ``share``
    blocks have one between them, each its part of k; or ``pair`` blocks have tiles one below the other, and each
    fetches its part of W for both. ``stages`` of 128 bytes along k are in shared memory. ``group`` rows of tiles are
    worked on column by column.
    """

    consumers: int
    width: int
    stages: int = 4
    group: int = 16
    share: int = 1
    pair: int = 1

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return 64 * self.consumers

    @property
    def threads(self) -> int:
        """A block's."""
        return 128 * self.consumers + 32

    def shared(self) -> int:
        """Bytes of dynamic shared memory a block: alignment, stages, biases, barriers."""
        stage = (self.height + self.width) * ROW_BYTES
        return 1023 + self.stages * (stage + 2 * 8) + 4 * self.width

    def tiles(self, batch: int, outer: int) -> int:
        """Of an output, and those below it that make its last ones pairs."""
        return -(-batch // (self.height * self.pair)) * self.pair * -(-outer // self.width)


SMALL, LOW, TALL = Plan(1, 64, stages=6), Plan(1, 128), Plan(2, 64)
MEDIUM, WIDE, LARGE = Plan(2, 128), Plan(2, 192), Plan(2, 256)
SHARES = (1, 2, 4, 8)
"""How many blocks may have a tile between them; eight only one of 64 rows."""
PLANS = (
    *(
        replace(tile, share=share)
        for tile in (SMALL, LOW, TALL, MEDIUM, WIDE, LARGE)
        for share in SHARES
        if share < 8 or tile.consumers == 1
    ),
    replace(WIDE, pair=2),
    replace(LARGE, pair=2),
)

MULTIPROCESSORS, IN_FOURS, MEMORY = 132, 120, 228 * 1024
"""An H100's and an H200's; about so many of which blocks get that begin four or eight at a time on neighbours; and the
bytes of shared memory of each, 1024 of which every block keeps for itself."""
BEGIN_US, STEP_US, JOIN_US, MEET_US = 0.7, 0.17, 2.0, 2.5
"""A block's way in and out; the least of a step along k, however small its boxes; what blocks that share a tile need to
add up; and what a pair loses to each other's pace."""
PRODUCT_US, STORE_US, FETCH_US, ASTRIDE = 30e-6, 44e-6, 20e-6, 1.5
"""A multiprocessor takes so long for a step's products of one number of y, and to store one of y's bytes. All of them
together fetch a row of a box in so long from the level 2 cache, and so many times as long where rows begin between two
of its sectors."""


def expected_us(plan: Plan, batch: int, inner: int, outer: int, size: int, astride: bool = False) -> float:
    """What ``plan`` is expected to take for an output (``batch``, ``outer``) of sums of ``inner`` products of numbers
    of ``size`` bytes, in µs. ``astride``: rows of x or W begin at odd multiples of 16 bytes.

    Blocks run side by side as far as shared memory lets them, and then the next ones. A step takes as long as its
    slowest part: to begin at all, the products, or the boxes' way from the cache. The constants were fitted to 4,402
    random shapes, each by up to 28 plans, on two H100s: what is chosen by them takes 1.8% longer than the quickest plan
    does, in the geometric mean, and 27% at the 99th percentile.
    """
    together = IN_FOURS if plan.share > 2 else MULTIPROCESSORS
    blocks, numbers = plan.share * plan.tiles(batch, outer), plan.height * plan.width
    steps = -(-inner * size // ROW_BYTES // plan.share)
    begin_us = BEGIN_US + (MEET_US if plan.pair > 1 else 0)
    join_us = JOIN_US if plan.share > 1 else 0
    rows_us = (plan.height + plan.width / plan.pair) * FETCH_US * (ASTRIDE if astride else 1)

    # [expected]
    def wave_us(blocks: int) -> float:
        each = -(-blocks // together)  # of a multiprocessor
        products_us = each * numbers * PRODUCT_US
        fetches_us = blocks * rows_us
        step_us = max(STEP_US, products_us, fetches_us)  # (1)
        stores_us = each * numbers * size * STORE_US
        return begin_us + steps * step_us + stores_us

    side_by_side = together * (MEMORY // (plan.shared() + 1024))  # (2)
    waves, rest = divmod(blocks, side_by_side)
    whole_us = waves * wave_us(side_by_side) if waves else 0.0
    return whole_us + (wave_us(rest) if rest else 0.0) + join_us
    # [/expected]


@lru_cache(4096)
def default_plan(batch: int, inner: int, outer: int, size: int, astride: bool = False) -> Plan:
    """The plan of :data:`PLANS` that :func:`expected_us` has the least of; of equals the one with smaller tiles."""
    return min(PLANS, key=lambda plan: expected_us(plan, batch, inner, outer, size, astride))


def unfit(dtype: str, batch: int, inner: int, precision: str) -> str:
    """Why x (``batch``, ``inner``) of ``dtype`` cannot be multiplied as ``precision`` says; empty when it can."""
    if dtype not in PRECISIONS:
        return f"x is torch.{dtype}; all must be one of {', '.join(PRECISIONS)}"
    if precision not in PRECISIONS[dtype] and not (precision == "ieee" and batch <= FEW):
        few = f", and of at most {FEW} rows as ieee" if dtype == "float32" else ""
        return f"the CUDA kernel multiplies {dtype} as {' or '.join(PRECISIONS[dtype])}{few}, not as {precision}"
    return "" if inner else "x has no columns"


def fetchable(matrix: Tensor) -> bool:
    """Whether the copy engine can fetch ``matrix``: whether its rows lie apart and begin at multiples of 16 bytes."""
    pitch = matrix.stride(0) * matrix.element_size()
    apart = matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1]
    return apart and pitch % PACK_BYTES == 0 and matrix.data_ptr() % PACK_BYTES == 0


def packed(rows: int, columns: int, like: Tensor) -> Tensor:
    """Memory of ``like``'s kind for a matrix (``rows``, ``columns``) quick to fetch: whole rows of boxes apart."""
    box = ROW_BYTES // like.element_size()
    return like.new_empty(rows, -(-columns // box) * box)[:, :columns]


def fetched(*matrices: Tensor) -> list[Tensor]:
    """Each as the copy engine can fetch it: itself where it can be, else a copy; two of as many columns in a launch."""
    found, left = list(matrices), [number for number, one in enumerate(matrices) if not fetchable(one)]
    while left:
        first = left.pop(0)
        like = [number for number in left if matrices[number].shape[1] == matrices[first].shape[1]][:1]
        left = [number for number in left if number not in like]
        given: list[Tensor | int] = []
        rows = 0
        for number in (first, *like):
            one = matrices[number]
            found[number] = packed(one.shape[0], one.shape[1], one)
            given += [one, found[number], len(one), one.stride(0), one.stride(1)]
            rows += len(one)
        given += [] if like else [*given[:2], 0, *given[3:]]  # of no rows
        one = matrices[first]
        packs = -(-one.shape[1] * one.element_size() // PACK_BYTES)
        blocks = -(-packs * rows // COPYING)
        launch = loader.cuda_launcher(SOURCE, "pack_rows", loader.scalar(one.dtype), dependent=True)
        launch((blocks,), (COPYING,), *given, one.shape[1], found[first].stride(0))
    return found


def linear_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    plan: Plan | None = None,
    epilogue: Epilogue = RELU,
) -> None:
    """Write max(0, x·Wᵀ + b) to ``out`` (batch, out) of x (batch, in), W (out, in) and b (out) or None.

    All of bfloat16, of float16, or of float32, multiplied as TF32, on one GPU of compute capability 9.0, by
    programmatic dependent launch; no extent zero; neighbouring columns of ``out`` next to each other, and it begins at
    a multiple of 16 bytes; b is contiguous. At most :data:`FEW` rows are multiplied by float32's own arithmetic, unless
    there is a ``plan``, which stands in place of the default one. ``epilogue`` is what stands in the ReLU's place.
    Raises ``RuntimeError`` for a plan that the driver refuses, ``ValueError`` for an unknown GELU.
    """
    if plan is None and len(x) <= FEW:
        _few_rows(x, weight, bias, out, epilogue)
        return
    x, weight = fetched(x, weight)
    (batch, inner), outer, size = x.shape, len(weight), x.element_size()
    astride = any(one.stride(0) * size % SECTOR_BYTES for one in (x, weight))
    plan = plan or default_plan(batch, inner, outer, size, astride)
    box, tf32 = ROW_BYTES // size, size == 4
    x_map = loader.tensor_map(x, plan.height, box, tf32=tf32)
    w_map = loader.tensor_map(weight, plan.width // plan.pair, box, tf32=tf32)
    # What stands in its place is never read.
    y_map = loader.tensor_map(out, 64, box) if out.stride(0) * size % PACK_BYTES == 0 else x_map
    template = (loader.scalar(x.dtype), plan.consumers, plan.width, plan.stages, plan.share, plan.pair)
    template += _behind(epilogue, x.dtype)
    together = {"cluster": plan.share * plan.pair, "dependent": True}
    launch = loader.cuda_launcher(SOURCE, "linear_relu_tiles", *template, shared=plan.shared(), **together)
    grid = (plan.share * plan.tiles(batch, outer),)
    sizes = (batch, inner, outer, out.stride(0), plan.group, int(epilogue != NOTHING))
    launch(grid, (plan.threads,), x_map, w_map, y_map, bias, out, *sizes)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, epilogue: Epilogue = RELU) -> Tensor:
    """max(0, x·Wᵀ + b), (..., out), of x (..., in), W (out, in) and b (out) or None; of no rows, too.

    Else as :func:`linear_relu`.
    """
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    if out.numel():
        rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
        with torch.cuda.device_of(x):
            bias, y = None if bias is None else bias.contiguous(), out.view(-1, weight.shape[0])
            linear_relu(rows, weight, bias, y, epilogue=epilogue)
    return out


def checked(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str, epilogue: Epilogue = RELU) -> Tensor:
    """:func:`forward`, of what it can multiply as ``precision`` says; else it raises ``ValueError``, naming what is
    wrong: sizes that do not fit, mixed or other dtypes, another precision, an unfit device.
    """
    ensure_layer(x, weight, bias)
    if reason := unfit(loader.dtype_name(x.dtype), x.shape[:-1].numel(), x.shape[-1], precision):
        raise ValueError(reason)
    hopper.ensure(x)
    return forward(x, weight, bias, epilogue)


def _behind(epilogue: Epilogue, dtype: torch.dtype, *, fine: bool = False) -> tuple[str, ...]:
    """Template arguments for ``epilogue``. The ReLU's is the default; its kernel can do without it, too."""
    return () if epilogue.approximate is None else (epilogue.functor(dtype, fine=fine),)


def _few_rows(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, epilogue: Epilogue) -> None:
    x, weight = (one if one.stride(1) == 1 else one.contiguous() for one in (x, weight))
    (batch, inner), outer, size = x.shape, len(weight), x.element_size()
    pack = PACK_BYTES // size if fetchable(x) and fetchable(weight) and inner * size % PACK_BYTES == 0 else 1
    # A lane has at least four packs of a row, or all of it.
    share = next((share for share in (4, 2) if inner >= share * 128 * pack), 1)
    template = (loader.scalar(x.dtype), batch, pack, share)
    template += _behind(epilogue, x.dtype, fine=size == 4)
    launch = loader.cuda_launcher(SOURCE, "linear_relu_rows", *template, dependent=True)
    strides = (x.stride(0), weight.stride(0), out.stride(0), int(epilogue != NOTHING))
    launch((-(-outer * share // 4),), (128,), x, weight, bias, out, inner, outer, *strides)
