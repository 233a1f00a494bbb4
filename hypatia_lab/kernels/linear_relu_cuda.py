"""Linear+ReLU on tensor cores in one CUDA kernel for Hopper (``cuda/linear_relu.cu``): its plans and its launch.

Of bfloat16 and float16, and of float32, which the copy engine rounds to the nearest TF32 number on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Plan:
    """How the kernel is cut, for tuning; every choice computes the same.

    A tile, a block's, is what ``consumers`` warpgroups of 64 rows each compute, ``width`` columns (64, 128 or 256).
    ``stages`` of 128 bytes along k are in shared memory. ``group`` rows of tiles are worked on column by column.
    """

    consumers: int
    width: int
    stages: int = 4
    group: int = 16

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


SMALL, MEDIUM, LARGE = Plan(1, 64, stages=6), Plan(2, 128), Plan(2, 256)


def default_plan(batch: int, outer: int) -> Plan:
    """The plan for an output (``batch``, ``outer``): the larger its tiles, the fewer bytes a product takes, and the
    smaller, the more multiprocessors have work.
    """
    tiles = MEDIUM.tiles(batch, outer)
    return LARGE if tiles > 264 else MEDIUM if tiles >= 64 else SMALL


def unfit(dtype: str, inner: int, precision: str) -> str:
    """Why x (..., ``inner``) of ``dtype`` cannot be multiplied as ``precision`` says; empty when it can."""
    if dtype not in PRECISIONS:
        return f"x is torch.{dtype}; all must be one of {', '.join(PRECISIONS)}"
    if precision not in PRECISIONS[dtype]:
        return f"the CUDA kernel multiplies {dtype} as {' or '.join(PRECISIONS[dtype])}, not as {precision}"
    pack = PACK_BYTES // (4 if dtype == "float32" else 2)
    if inner % pack or not inner:
        return f"the copy engine takes rows of whole {PACK_BYTES} bytes: in must be a multiple of {pack}, not {inner}"
    return ""


def fetchable(matrix: Tensor) -> Tensor:
    """``matrix`` as the copy engine can fetch it, itself where its rows begin at multiples of 16 bytes, else a copy.

    The copy does only where rows are of whole 16 bytes.
    """
    pitch = matrix.stride(0) * matrix.element_size()
    apart = matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1]
    ready = apart and pitch % PACK_BYTES == 0 and matrix.data_ptr() % PACK_BYTES == 0
    return matrix if ready else matrix.clone(memory_format=torch.contiguous_format)


@cache
def _launcher(dtype: str, plan: Plan) -> Callable[..., None]:
    return loader.cuda_launcher(
        "linear_relu",
        f"linear_relu_tiles<{loader.SCALARS[dtype][0]}, {plan.consumers}, {plan.width}, {plan.stages}>",
        shared=plan.shared(),
        dependent=True,
    )


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, plan: Plan | None = None) -> None:
    """Write max(0, x·Wᵀ + b) to ``out`` (batch, out), contiguous, of x (batch, in), W (out, in) and b (out) or None.

    All of bfloat16, of float16, or of float32, multiplied as TF32, on one GPU of compute capability 9.0, by
    programmatic dependent launch; no extent zero; rows of x and W, and ``out``, begin at multiples of 16 bytes, b is
    contiguous. ``plan``: in place of the default one. Raises ``RuntimeError`` for a plan that the driver refuses.
    """
    (batch, inner), outer, size = x.shape, len(weight), x.element_size()
    plan = plan or default_plan(batch, outer)
    box, tf32 = ROW_BYTES // size, size == 4
    x_map = loader.tensor_map(x, plan.height, box, tf32=tf32)
    w_map = loader.tensor_map(weight, plan.width, box, tf32=tf32)
    boxed = outer * size % PACK_BYTES == 0
    y_map = loader.tensor_map(out, 64, box) if boxed else x_map  # what stands in its place is never read
    launch = _launcher(str(x.dtype).removeprefix("torch."), plan)
    sizes = (batch, inner, outer, plan.group)
    launch((plan.tiles(batch, outer),), (plan.threads,), x_map, w_map, y_map, bias, out, *sizes)
