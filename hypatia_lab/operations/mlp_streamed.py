"""Two or three Linear layers of width 256 in one CUDA kernel for Hopper (``kernels/cuda/mlp_streamed.cu``): how it is
launched.

Weights stream through shared memory once for every 128 rows of x; activations stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hypatia_lab.kernels import loader
from hypatia_lab.operations import ladder

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, MOST_LAYERS = 256, 3

TILE_ROWS, STORED_ROWS, PANEL = 64, 16, 64
"""Rows of x that a warpgroup works on at a time, rows of y that each of its warps stores, columns of a box."""

CONSUMERS, BUFFERS = 2, 3
"""Warpgroups that multiply, and tiles of x or y in shared memory, as ``mlp_streamed.cu`` has them."""


@dataclass(frozen=True)
class Plan:
    """How the kernel is cut, for tuning; every choice computes the same.

    ``slices`` of 64 numbers along k of a weight are in shared memory (at most 4). ``cluster``: blocks that fetch them
    together (1 or 2). ``dependent``: programmatic dependent launch, see
    :func:`~hypatia_lab.kernels.loader.cuda_launcher`.
    """

    slices: int = 4
    cluster: int = 1
    dependent: bool = True

    def shared(self) -> int:
        """Bytes of dynamic shared memory a block: biases, barriers, alignment, slices, tiles."""
        rows = self.slices * WIDTH + BUFFERS * TILE_ROWS * WIDTH // PANEL
        return 2 * MOST_LAYERS * WIDTH + 2 * 8 * (self.slices + BUFFERS) + 1023 + ladder.ROW_BYTES * rows


def default_plan(rows: int) -> Plan:
    """The plan for ``rows`` rows."""
    # Blocks that share wait for each other; only many rows make up for it.
    return Plan(cluster=1 if rows <= 2**17 else 2)


@cache
def _launcher(dtype: str, plan: Plan) -> Callable[..., None]:
    return loader.cuda_launcher(
        "mlp_streamed",
        f"mlp_streamed<{loader.SCALARS[dtype][0]}, {plan.slices}, {plan.cluster}>",
        shared=plan.shared(),
        cluster=plan.cluster,
        dependent=plan.dependent,
    )


def launch(
    x: Tensor, out: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], plan: Plan | None = None
) -> None:
    """Write the layers of ``x`` to ``out``, both (rows, 256): 2 or 3 ``weights`` (256, 256), as (out, in), ``biases``
    (256).

    All bfloat16 or all float16, contiguous, aligned to 16 bytes and on one GPU of compute capability 9.0; 1 to 2³⁰
    rows. ``plan`` replaces :func:`default_plan`. Raises ``RuntimeError`` for a plan that the driver refuses.
    """
    plan = plan or default_plan(len(x))
    maps = [loader.tensor_map(x, TILE_ROWS, PANEL), loader.tensor_map(out, STORED_ROWS, PANEL)]
    maps += [loader.tensor_map(weight, WIDTH // plan.cluster, PANEL) for weight in weights]
    # Two layers have no third one; what stands in its place is never read.
    three = (*maps, maps[-1])[:5], (*biases, biases[-1])[:3]
    blocks = min(-(-len(x) // (CONSUMERS * TILE_ROWS)), ladder._multiprocessors(x.device.index))
    grid = (-(-blocks // plan.cluster) * plan.cluster,)
    _launcher(ladder._name(x), plan)(grid, (128 * (CONSUMERS + 1),), *three[0], *three[1], len(x), len(weights))
