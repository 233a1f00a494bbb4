"""Two or three Linear layers of one width in one CUDA kernel for Hopper (``kernels/mlp/mlp.cu``): how it is launched.

Weights come to shared memory once a block, tiles of x and y go through TMA, activations stay in registers. Where a
block cannot hold the weights, :mod:`~hypatia_lab.kernels.mlp.mlp_streamed` has the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.mlp import mlp_streamed
from hypatia_lab.kernels.mlp.mlp_streamed import PANEL, TILE_ROWS

if TYPE_CHECKING:
    from torch import Tensor

STORED_ROWS = 16
"""Rows of y that each warp stores of those that its warpgroup works on."""

WIDEST_BIAS_PRODUCT = 64
"""The widest layers whose biases lie in shared memory as an operand, as ``mlp.cu`` has it."""

RESIDENT = (16, 32, 64, 128)
"""Widths whose weights stay in a block's shared memory."""

WIDTHS = (*RESIDENT, mlp_streamed.WIDTH)


@dataclass(frozen=True)
class Plan:
    """How the kernel is cut, for tuning; every choice computes the same.

    ``groups`` of 128 threads a block, each with ``ahead`` tiles of 64 rows in shared memory (at least 2). ``programs``
    blocks a multiprocessor share the tiles out; its registers have ``room`` for so many, and with more room than
    programs the next launch can move in early. ``cluster``: blocks that fetch the weights together (1, 2, and from
    width 32 on 4). ``dependent``: programmatic dependent launch, see :func:`~hypatia_lab.kernels.loader.cuda_launcher`.
    """

    groups: int
    ahead: int = 2
    programs: int = 1
    room: int = 1
    cluster: int = 1
    dependent: bool = True

    @property
    def threads(self) -> int:
        """A block's."""
        return 128 * self.groups

    def blocks(self, rows: int, multiprocessors: int) -> int:
        """Blocks for so many rows, before they are made whole clusters."""
        return min(-(-rows // TILE_ROWS), self.programs * multiprocessors)

    def shared(self, width: int, layers: int) -> int:
        """Bytes of dynamic shared memory a block: biases, barriers, alignment, weights, tiles."""
        panels, stages = -(-width // PANEL), self.groups * self.ahead
        boxes = layers * width + (width if width <= WIDEST_BIAS_PRODUCT else 0) + stages * TILE_ROWS
        return 4 * layers * width + 8 * (layers + stages) + 1023 + panels * hopper.ROW_BYTES * boxes


def default_plan(rows: int, width: int) -> Plan:
    """The plan for ``rows`` rows and layers of ``width``."""
    if width < 64:
        return Plan(3, 3, room=2)
    if width == 64 and rows > 2**15:
        # Of several small blocks one can leave, and the next launch's move in, while others still work.
        return Plan(1, programs=4, room=4)
    # Less in flight starts earlier; more lasts longer.
    return Plan(2) if width == 128 and rows <= 2**17 else Plan(4)


def missing(width: int, dtype: str, device: str = "cuda") -> str:
    """Why the kernel cannot compute layers of this kind on this machine's ``device``; empty when it can."""
    if reason := hopper.missing(dtype, device):
        return reason
    return "" if width in WIDTHS else f"fused_cuda takes widths {', '.join(map(str, WIDTHS))}, not {width}"


def _launcher(scalar: str, width: int, layers: int, plan: Plan) -> loader.Launch:
    template = (scalar, width, layers, plan.groups, plan.ahead, plan.room, plan.cluster)
    how = {"shared": plan.shared(width, layers), "cluster": plan.cluster, "dependent": plan.dependent}
    return loader.cuda_launcher("mlp/mlp", "mlp", *template, **how)


def forward(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    plan: Plan | mlp_streamed.Plan | None = None,
) -> Tensor:
    """Linear, ReLU, Linear (two layers) or Linear, ReLU, Linear, ReLU, Linear (three) of ``x`` (rows, width).

    ``weights`` (width, width), as (out, in), and ``biases`` (width); all bfloat16 or all float16, on one GPU of compute
    capability 9.0; 1 to 2³⁰ rows; width one of :data:`WIDTHS`. Strided and unaligned tensors are copied first.
    Returns (rows, width), contiguous. ``plan``, of the kernel for that width, replaces the default one. Raises
    ``RuntimeError`` for a plan that the driver refuses.
    """
    rows, width = x.shape
    x, weights, biases = hopper.packed(x), [*map(hopper.packed, weights)], [*map(hopper.packed, biases)]
    out, scalar, layers = torch.empty_like(x), loader.scalar(x.dtype), len(weights)
    if width == mlp_streamed.WIDTH:
        plan = plan or mlp_streamed.default_plan(rows)
        assert isinstance(plan, mlp_streamed.Plan)
        launch, sizes = mlp_streamed.launcher(scalar, plan), (rows, layers)
    else:
        plan = plan or default_plan(rows, width)
        assert isinstance(plan, Plan)
        launch, sizes = _launcher(scalar, width, layers, plan), (rows,)
    maps = [loader.tensor_map(x, TILE_ROWS, PANEL), loader.tensor_map(out, STORED_ROWS, PANEL)]
    maps += [loader.tensor_map(weight, width // plan.cluster, PANEL) for weight in weights]
    # Two layers have no third one; what stands in its place is never read.
    three = (*maps, maps[-1])[:5], (*biases, biases[-1])[:3]
    blocks = plan.blocks(rows, loader.multiprocessors(x.device.index))
    grid = (-(-blocks // plan.cluster) * plan.cluster,)
    launch(grid, (plan.threads,), *three[0], *three[1], *sizes)
    return out
