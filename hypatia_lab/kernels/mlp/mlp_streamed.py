"""Two or three Linear layers of width 256 in one CUDA kernel for Hopper (``kernels/mlp/mlp_streamed.cu``): its plans.

Weights stream through shared memory once for every 128 rows of x; activations stay in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.hopper import ROW_BYTES

WIDTH, MOST_LAYERS = 256, 3

TILE_ROWS, PANEL = 64, 64
"""Rows of x that a warpgroup works on at a time, columns of a box."""

CONSUMERS, BUFFERS = 2, 3
"""Warpgroups that multiply, and tiles of x or y in shared memory, as ``mlp_streamed.cu`` has them."""


@dataclass(frozen=True)
class Plan:
    """How the kernel is cut, for tuning; every choice computes the same.

    ``slices`` of 64 numbers along k of a weight are in shared memory (2 to 4). ``cluster``: blocks that fetch them
    together (1 or 2). ``dependent``: programmatic dependent launch, see
    :func:`~hypatia_lab.kernels.loader.cuda_launcher`.
    """

    slices: int = 4
    cluster: int = 1
    dependent: bool = True

    threads = 128 * (CONSUMERS + 1)
    """A block's."""

    def blocks(self, rows: int, multiprocessors: int) -> int:
        """Blocks for so many rows, before they are made whole clusters."""
        return min(-(-rows // (CONSUMERS * TILE_ROWS)), multiprocessors)

    def shared(self) -> int:
        """Bytes of dynamic shared memory a block: biases, barriers, alignment, slices, tiles."""
        rows = self.slices * WIDTH + BUFFERS * TILE_ROWS * WIDTH // PANEL
        return 2 * MOST_LAYERS * WIDTH + 2 * 8 * (self.slices + BUFFERS) + 1023 + ROW_BYTES * rows


def default_plan(rows: int) -> Plan:
    """The plan for ``rows`` rows."""
    # Blocks that share wait for each other; only many rows make up for it.
    return Plan(cluster=1 if rows <= 2**17 else 2)


def launcher(scalar: str, plan: Plan) -> loader.Launch:
    """What :func:`~hypatia_lab.kernels.loader.cuda_launcher` makes of the kernel for ``scalar``, a 16-bit type."""
    how = {"shared": plan.shared(), "cluster": plan.cluster, "dependent": plan.dependent}
    return loader.cuda_launcher("mlp/mlp_streamed", "mlp_streamed", scalar, plan.slices, plan.cluster, **how)
