"""Two or three Linear layers of one width in one CUDA kernel for Hopper (``kernels/cuda/mlp.cu``): how it is launched.

Weights come to shared memory once a block, tiles of x and y go through TMA, activations stay in registers. Where a
block cannot hold the weights, :mod:`~hypatia_lab.operations.mlp_streamed` has the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.operations import ladder, mlp_streamed

if TYPE_CHECKING:
    from torch import Tensor

TILE_ROWS, STORED_ROWS = 64, 16
"""Rows of x that a warpgroup works on at a time, and rows of y that each of its warps stores."""

PANEL = 64
"""Columns of a box: 128 bytes."""

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

    def shared(self, width: int, layers: int) -> int:
        """Bytes of dynamic shared memory a block: biases, barriers, alignment, weights, tiles."""
        panels, stages = -(-width // PANEL), self.groups * self.ahead
        boxes = layers * width + (width if width <= WIDEST_BIAS_PRODUCT else 0) + stages * TILE_ROWS
        return 4 * layers * width + 8 * (layers + stages) + 1023 + panels * ladder.ROW_BYTES * boxes


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
    if reason := ladder.STEPS["step_wgmma"].missing(dtype, device):  # the same instructions
        return reason
    return "" if width in WIDTHS else f"fused_cuda takes widths {', '.join(map(str, WIDTHS))}, not {width}"


@cache
def _launcher(dtype: str, width: int, layers: int, plan: Plan) -> Callable[..., None]:
    template = (loader.SCALARS[dtype][0], width, layers, plan.groups, plan.ahead, plan.room, plan.cluster)
    return loader.cuda_launcher(
        "mlp",
        f"mlp<{', '.join(map(str, template))}>",
        shared=plan.shared(width, layers),
        cluster=plan.cluster,
        dependent=plan.dependent,
    )


def forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, plan: Plan | None = None) -> Tensor:
    """Linear, ReLU, Linear (two layers) or Linear, ReLU, Linear, ReLU, Linear (three) of ``x`` (rows, width).

    ``weights`` (width, width), as (out, in), and ``biases`` (width); all bfloat16 or all float16, on one GPU of compute
    capability 9.0; 1 to 2³⁰ rows; width one of :data:`WIDTHS`. Strided and unaligned tensors are copied first.
    Returns (rows, width), contiguous. ``plan`` replaces :func:`default_plan` for the widths :data:`RESIDENT`. Raises
    ``RuntimeError`` for a plan that the driver refuses.
    """
    rows, width = x.shape
    x, weights, biases = ladder._packed(x), [*map(ladder._packed, weights)], [*map(ladder._packed, biases)]
    out = torch.empty_like(x)
    if width == mlp_streamed.WIDTH:
        mlp_streamed.launch(x, out, weights, biases)
        return out
    plan = plan or default_plan(rows, width)
    maps = [loader.tensor_map(x, TILE_ROWS, PANEL), loader.tensor_map(out, STORED_ROWS, PANEL)]
    maps += [loader.tensor_map(weight, width // plan.cluster, PANEL) for weight in weights]
    # Two layers have no third one; what stands in its place is never read.
    three = (*maps, maps[-1])[:5], (*biases, biases[-1])[:3]
    blocks = min(-(-rows // TILE_ROWS), plan.programs * ladder._multiprocessors(x.device.index))
    grid = (-(-blocks // plan.cluster) * plan.cluster,)
    launch = _launcher(ladder._name(x), width, len(weights), plan)
    launch(grid, (128 * plan.groups,), *three[0], *three[1], rows)
    return out
