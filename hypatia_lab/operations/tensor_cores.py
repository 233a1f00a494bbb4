"""Linear+ReLU on tensor cores by our own Triton kernels: a fused epilogue, and float32's accuracy by split operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.operations.forms import bind
from hypatia_lab.operations.linear_relu import OPERANDS, output, save_operands
from hypatia_lab.operations.linear_relu_backward import empty_gradients, matrices, no_second_derivative, once
from hypatia_lab.operators import operator
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


def _triton(workload: Workload, device: str) -> str:
    if missing := loader.triton_missing(device):
        return missing
    return "the Triton kernel has no float64" if workload.dtype == "float64" else ""


def _split(workload: Workload, device: str) -> str:
    if missing := loader.triton_missing(device):
        return missing
    if workload.dtype != "float32":
        return "splitting operands is a way to float32's own accuracy"
    return "" if torch.cuda.get_device_capability() >= (9, 0) else "needs tensor descriptors (compute capability 9.0)"


@variant(
    "linear_relu",
    "triton",
    origin="own",
    needs=_triton,
    maths=("ieee", "tf32", "tf32x3", "bf16x3"),
    label="one Triton kernel",
    tags=("tensor_cores",),
)
def triton(workload: Workload, inputs: Inputs) -> Run:
    """One Triton kernel: products of tiles on tensor cores, bias and ReLU before anything is stored."""
    from hypatia_lab.kernels.triton.linear_relu import linear_relu

    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    return lambda: linear_relu(x, weight, bias, precision=workload.math)


@variant(
    "linear_relu",
    "fp16x3",
    origin="own",
    needs=_split,
    maths=("ieee",),
    label="float32 as three float16 products",
    tags=("split",),
    splits=("float16/ieee", 3),
)
def fp16x3(workload: Workload, inputs: Inputs) -> Run:
    """float32 as two float16 terms, rows scaled by powers of two, three products: two Triton kernels, both timed."""
    return _split_run("fp16x3", inputs)


@variant(
    "linear_relu",
    "tf32x3",
    origin="own",
    needs=_split,
    maths=("ieee",),
    label="float32 as three TF32 products",
    tags=("split",),
    splits=("float32/tf32", 3),
)
def tf32x3(workload: Workload, inputs: Inputs) -> Run:
    """float32 as two TF32 terms, rows scaled by powers of two, three products: two Triton kernels, both timed."""
    return _split_run("tf32x3", inputs)


@variant(
    "linear_relu",
    "fp16x3_once",
    origin="own",
    needs=_split,
    maths=("ieee",),
    label="three float16 products, weights split once",
    tags=("split",),
    splits=("float16/ieee", 3),
)
def fp16x3_once(workload: Workload, inputs: Inputs) -> Run:
    """fp16x3 where W is split when it changes and not in every call, as in inference: of that x alone is timed."""
    from hypatia_lab.kernels.triton.linear_relu_split import linear_relu_split, split_once

    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    held = [split_once(weight)]

    def run() -> torch.Tensor:
        if not held[0].current:
            held[0] = split_once(weight)
        return linear_relu_split(x, held[0], bias)

    return run


def _split_run(terms: str, inputs: Inputs) -> Run:
    from hypatia_lab.kernels.triton.linear_relu_split import linear_relu_split

    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    return lambda: linear_relu_split(x, weight, bias, terms=terms)


@operator("linear_relu_fp16x3_gradients")
def linear_relu_fp16x3_gradients(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    needs_x: bool = True,
    needs_weight: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients as of ``hypatia::linear_relu_gradients``, float32's digits by three float16 products each.

    Raises ``ValueError`` on a misfit, other dtypes than float32, or a device before Hopper.
    """
    from hypatia_lab.kernels.triton.gradient_products_split import gradient_products_split

    grad, rows, y = matrices(grad, x, weight, y)
    grad_x, grad_weight, grad_bias = gradient_products_split(grad, rows, weight, y, (needs_x, needs_weight))
    return grad_x.view(x.shape) if needs_x else grad_x, grad_weight, grad_bias


linear_relu_fp16x3_gradients.register_fake(empty_gradients)
linear_relu_fp16x3_gradients.register_autograd(no_second_derivative)


@operator("linear_relu_fp16x3")
def linear_relu_fp16x3(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Linear+ReLU with float32's digits by three float16 products, as its gradients; once differentiable.

    Raises ``ValueError`` on a misfit, other dtypes than float32, or a device before Hopper, ``NotImplementedError``
    when its gradient is differentiated.
    """
    from hypatia_lab.kernels.triton.linear_relu_split import linear_relu_split

    return linear_relu_split(x, weight, bias)


linear_relu_fp16x3.register_fake(output)
linear_relu_fp16x3.register_autograd(once(linear_relu_fp16x3_gradients), setup_context=save_operands)


@variant(
    "linear_relu",
    "fp16x3_backward",
    origin="own",
    needs=_split,
    directions=("forward_backward",),
    maths=("ieee",),
    label="three float16 products, forward and backward",
    tags=("backward",),
    splits=("float16/ieee", 3),
)
def fp16x3_backward(workload: Workload, inputs: Inputs) -> Run:
    """fp16x3 with a backward of its kind: the mask as operands are split, both products in one Triton kernel."""
    return bind(linear_relu_fp16x3, inputs, OPERANDS)


def _eleven_bits(values: torch.Tensor, terms: str) -> torch.Tensor:
    if terms == "fp16x3":
        return values.half().double()
    return ((values.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()


def two_terms(rows: torch.Tensor, terms: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What ``terms`` (fp16x3, tf32x3) split float32 ``rows`` (m, k), finite and none all zero, into, without a kernel.

    Returns large and small terms (m, k) as float64, scaled by a power of two a row, and its exponents (m, 1).
    """
    up = 15 - torch.frexp(rows.abs().amax(1, keepdim=True))[1]
    scaled = torch.ldexp(rows.double(), up)
    large = _eleven_bits(scaled, terms)
    return large, _eleven_bits(scaled - large, terms), up
