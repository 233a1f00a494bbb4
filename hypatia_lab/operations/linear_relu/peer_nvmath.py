"""Linear+ReLU by nvmath-python: cuBLASLt with its epilogues, each product by the algorithm that is fastest when tried.

What torch._addmm_activation asks of the same library, but for the tuning. cuBLASLt adds a bias along the columns of a
matrix that is stored by columns, so yᵀ = W·xᵀ is asked for: stored so, it is y by rows.

Sources: nvmath-python 1.0 (nvmath.linalg.advanced: Matmul, MatmulEpilog, MatmulPlanPreferences); cuBLAS's manual on
cublasLtEpilogue_t.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS, DTYPES

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

CANDIDATES, FINALISTS = 64, 8
"""Algorithms that cuBLASLt is asked for, and those of them that are tried often."""
GLANCES, TRIALS = 2, 10
"""Calls of every candidate, and of every finalist, by which it is chosen; each with the caches flushed."""
ALIGNED = 16
"""Bytes that a row must fill: what every algorithm takes."""


def missing(workload: Workload, device: str) -> str:
    """Why nvmath-python cannot compute ``workload`` on ``device``; empty when it can."""
    if reason := loader.gpu_module_missing("nvmath", "'hypatia-lab[peers]'", device):
        return reason
    if workload.dtype == "float64":
        return "float64 is not asked of it: cuBLASLt's epilogues are for tensor cores' dtypes and float32"
    if any(extent * DTYPES[workload.dtype] % ALIGNED for extent in workload.shape):
        return f"asked only where every row fills {ALIGNED} bytes"
    return ""


def tuned(a: torch.Tensor, b: torch.Tensor, math: str, epilog: str = "", **inputs: torch.Tensor) -> Callable[[], Any]:
    """a·b, and what ``epilog`` does with it, as a call that was planned and tuned for these very tensors.

    ``a`` (m, k), ``b`` (k, n), of one dtype on a GPU; they are read anew in each call, and ``inputs`` are the epilog's.
    Returns (m, n), stored by columns where there is an epilog and else as ``a`` is; with it, where the epilog has a
    result of its own, a dict of those by name. Raises nvmath-python's errors.
    """
    nvmath: Any = import_module("nvmath.linalg.advanced")
    kinds = nvmath.MatmulComputeType
    tf32 = a.dtype == torch.float32 and math == "tf32"
    product = nvmath.Matmul(a, b, options={"compute_type": kinds.COMPUTE_32F_FAST_TF32} if tf32 else None)
    product.plan(
        epilog=nvmath.MatmulEpilog[epilog] if epilog else None,
        epilog_inputs=inputs or None,
        preferences=nvmath.MatmulPlanPreferences(limit=CANDIDATES),
    )
    product.autotune(iterations=GLANCES, prune=FINALISTS)
    product.autotune(iterations=TRIALS)
    return lambda: product.execute(stream=torch.cuda.current_stream())


@variant(
    "linear_relu",
    "nvmath",
    origin="peer",
    needs=missing,
    directions=DIRECTIONS,
    maths=("ieee", "tf32"),
    label="nvmath-python, tuned",
    tags=("peer",),
)
def nvmath(workload: Workload, inputs: Inputs) -> Run:
    """cuBLASLt's tuned product with bias and ReLU in its epilogue; planning and tuning are not timed.

    Backward PyTorch masks the gradient, and the product that is grad_weight adds up grad_bias in its epilogue.
    """
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    forward = tuned(weight, x.t(), workload.math, "RELU_BIAS", bias=bias)
    if not workload.backward:
        return lambda: forward().t()
    grad = inputs["grad"]
    # The plans are for one place in memory.
    z = torch.empty_like(grad)
    to_x = tuned(weight.t(), z.t(), workload.math)
    to_parameters = tuned(x.t(), z, workload.math, "BGRADB")

    def run() -> tuple[torch.Tensor, ...]:
        y = forward().t()
        torch.ops.aten.threshold_backward.grad_input(grad, y, 0, grad_input=z)
        grad_x = to_x().t()
        grad_weight, sums = to_parameters()
        return y, grad_x, grad_weight.t(), sums["bgradb"]

    return run
