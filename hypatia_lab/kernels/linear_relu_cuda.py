"""Linear+ReLU in CUDA for Hopper (``cuda/linear_relu.cu``), at any shape: its kernels' plans and launches.

Of bfloat16 and float16, and of float32, which the copy engine rounds to the nearest TF32 number on its way. Rows that
the copy engine cannot fetch are copied first, both operands' in one launch. Few rows of x are multiplied without tensor
cores, float32 then by its own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader

if TYPE_CHECKING:
    from torch import Tensor

ROW_BYTES, PACK_BYTES = 128, 16
"""Bytes of a box along k, as ``hopper.cuh`` has them, and those at whose multiples rows must begin for the copy engine.
"""

PRECISIONS = {"bfloat16": ("ieee",), "float16": ("ieee",), "float32": ("tf32",)}
"""dtype → how its operands can be multiplied."""

FEW = 8
"""So many rows of x, or fewer, are multiplied without tensor cores."""

COPYING = 256
"""Threads of a block that copies."""


@dataclass(frozen=True)
class Plan:
    """How the kernel is cut, for tuning; every choice computes the same.

    A tile is what ``consumers`` warpgroups of 64 rows each compute, ``width`` columns (64, 128 or 256). ``share``
    blocks have one between them, each its part of k. ``stages`` of 128 bytes along k are in shared memory. ``group``
    rows of tiles are worked on column by column.
    """

    consumers: int
    width: int
    stages: int = 4
    group: int = 16
    share: int = 1

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
        """Of an output."""
        return -(-batch // self.height) * -(-outer // self.width)


SMALL, LOW, MEDIUM, LARGE = Plan(1, 64, stages=6), Plan(1, 128), Plan(2, 128), Plan(2, 256)
SHARES = (8, 4, 2)
"""How many blocks may share a small tile, the most first."""
LONG, MOST_BLOCKS = 9, 132
"""Small tiles are shared where sums are of so many boxes along k or more, and blocks no more than so many."""


def default_plan(batch: int, inner: int, outer: int, size: int) -> Plan:
    """The plan for an output (``batch``, ``outer``) of sums of ``inner`` products of numbers of ``size`` bytes.

    The larger its tiles, the fewer bytes a product takes; the smaller, the more multiprocessors have work. Where one
    takes the place of the other was measured at the shapes of experiment ``untuned``.
    """
    boxes, tiles = -(-inner * size // ROW_BYTES), MEDIUM.tiles(batch, outer)
    if tiles >= (48 if boxes >= 12 else 96):
        # Of medium tiles one each for half the multiprocessors: low ones are for all.
        return LARGE if tiles > 528 else MEDIUM if 2 * tiles > MOST_BLOCKS else LOW
    small = SMALL.tiles(batch, outer)
    able = (share for share in SHARES if boxes >= LONG and share * small <= MOST_BLOCKS)
    return replace(SMALL, share=next(able, 1))


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
    """Memory of ``like``'s kind for a matrix that the copy engine can fetch, (``rows``, ``columns``)."""
    pack = PACK_BYTES // like.element_size()
    return like.new_empty(rows, -(-columns // pack) * pack)[:, :columns]


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
        scalar = loader.SCALARS[str(one.dtype).removeprefix("torch.")][0]
        launch = loader.cuda_launcher("linear_relu", f"pack_rows<{scalar}>", dependent=True)
        launch((blocks,), (COPYING,), *given, one.shape[1])
    return found


@cache
def _launcher(dtype: str, plan: Plan) -> Callable[..., None]:
    cut = f"{plan.consumers}, {plan.width}, {plan.stages}, {plan.share}"
    return loader.cuda_launcher(
        "linear_relu",
        f"linear_relu_tiles<{loader.SCALARS[dtype][0]}, {cut}>",
        shared=plan.shared(),
        cluster=plan.share,
        dependent=True,
    )


def linear_relu(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, plan: Plan | None = None, relu: bool = True
) -> None:
    """Write max(0, x·Wᵀ + b) to ``out`` (batch, out) of x (batch, in), W (out, in) and b (out) or None.

    All of bfloat16, of float16, or of float32, multiplied as TF32, on one GPU of compute capability 9.0, by
    programmatic dependent launch; no extent zero; neighbouring columns of ``out`` next to each other, and it begins at
    a multiple of 16 bytes; b is contiguous. At most :data:`FEW` rows are multiplied by float32's own arithmetic, unless
    there is a ``plan``, which stands in place of the default one. Without ``relu`` negative sums stay. Raises
    ``RuntimeError`` for a plan that the driver refuses.
    """
    if plan is None and len(x) <= FEW:
        _few_rows(x, weight, bias, out, relu)
        return
    x, weight = fetched(x, weight)
    (batch, inner), outer, size = x.shape, len(weight), x.element_size()
    plan = plan or default_plan(batch, inner, outer, size)
    box, tf32 = ROW_BYTES // size, size == 4
    x_map = loader.tensor_map(x, plan.height, box, tf32=tf32)
    w_map = loader.tensor_map(weight, plan.width, box, tf32=tf32)
    # What stands in its place is never read.
    y_map = loader.tensor_map(out, 64, box) if out.stride(0) * size % PACK_BYTES == 0 else x_map
    launch = _launcher(str(x.dtype).removeprefix("torch."), plan)
    grid = (plan.share * plan.tiles(batch, outer),)
    sizes = (batch, inner, outer, out.stride(0), plan.group, int(relu))
    launch(grid, (plan.threads,), x_map, w_map, y_map, bias, out, *sizes)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """max(0, x·Wᵀ + b), (..., out), of x (..., in), W (out, in) and b (out) or None; of no rows, too.

    Else as :func:`linear_relu`.
    """
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    if out.numel():
        rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
        with torch.cuda.device_of(x):
            linear_relu(rows, weight, None if bias is None else bias.contiguous(), out.view(-1, weight.shape[0]))
    return out


def _few_rows(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, relu: bool) -> None:
    x, weight = (one if one.stride(1) == 1 else one.contiguous() for one in (x, weight))
    (batch, inner), outer, size = x.shape, len(weight), x.element_size()
    pack = PACK_BYTES // size if fetchable(x) and fetchable(weight) and inner * size % PACK_BYTES == 0 else 1
    # A lane has at least four packs of a row, or all of it.
    share = next((share for share in (4, 2) if inner >= share * 128 * pack), 1)
    scalar = loader.SCALARS[str(x.dtype).removeprefix("torch.")][0]
    launch = loader.cuda_launcher(
        "linear_relu", f"linear_relu_rows<{scalar}, {batch}, {pack}, {share}>", dependent=True
    )
    strides = (x.stride(0), weight.stride(0), out.stride(0), int(relu))
    launch((-(-outer * share // 4),), (128,), x, weight, bias, out, inner, outer, *strides)
