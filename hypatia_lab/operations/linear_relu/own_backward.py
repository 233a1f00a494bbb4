"""Linear+ReLU forward and backward in as few passes as the library's products leave room for.

Forward is cuBLASLt's epilogue, or where that is quicker one kernel of our own. Backward is one kernel of our own that
masks the upstream gradient and sums it over the batch (grad_bias), then the two products, side by side: at the seeds'
sizes neither alone fills a large GPU. Of 16-bit numbers both products are one kernel of our own, too, which also adds
up what the first summed tile by tile; of others, and of large sizes, they are the library's on two streams.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.linear_relu import linear_relu_cuda
from hypatia_lab.kernels.operands import ensure_layer
from hypatia_lab.operations.linear_relu import OPERANDS, fused_epilogue, masked, output
from hypatia_lab.operations.operators import Operator, operator
from hypatia_lab.operations.torch_forms import bind
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Gradients of x, weight and bias, or what they are made of."""

TRITON = importlib.util.find_spec("triton") is not None
"""Whether the kernels can be built; without them a GPU takes the CPU's way, torch's own kernels."""

OWN_PRODUCTS = {"small", "medium"}
"""Sizes (as of ``product_size``) that our own products take, and on Hopper our own forward, in CUDA.

Large ones keep the GPU full in the library's, too.
"""

OWN_FORWARD = {"small"}
"""Sizes of which the forward is our own kernel on other GPUs, too, in Triton: by programmatic dependent launch it saves
more than it costs."""


def server_gpu(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is on a server's Hopper or Blackwell: others have too little shared memory for our tiles."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] in (9, 10)


def size_for_own(x: torch.Tensor, weight: torch.Tensor) -> str:
    """The size of the products of x (..., in) and weight (out, in); "" where kernels of our own cannot compute them."""
    if not (TRITON and server_gpu(x) and x.dtype in (torch.bfloat16, torch.float16)):
        return ""
    from hypatia_lab.kernels.linear_relu.gradient_products import product_size

    return product_size(_sizes(x, weight))


def _sizes(x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int, int]:
    """(batch, in, out) of x (..., in) and weight (out, in)."""
    return x.shape[:-1].numel(), x.shape[-1], weight.shape[0]


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """The stream of the product that runs beside the other."""
    return torch.cuda.Stream(device)


def products(
    z: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needs: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    """z·W (batch, in) and zᵀ·x (out, in) of z (batch, out); on a GPU side by side, on two streams.

    Of what is not in ``needs`` an empty tensor. On a GPU the caller's stream waits for both.
    """
    grad_x = x.new_empty(x.shape if needs[0] else 0)
    grad_weight = weight.new_empty(weight.shape if needs[1] else 0)
    if not (z.is_cuda and all(needs)):
        if needs[0]:
            torch.mm(z, weight, out=grad_x)
        if needs[1]:
            torch.mm(z.t(), x, out=grad_weight)
        return grad_x, grad_weight
    # Both results belong to the caller's stream, which waits for the other: nothing is freed too early.
    here, beside = torch.cuda.current_stream(z.device), _beside(z.device)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        torch.mm(z, weight, out=grad_x)
    torch.mm(z.t(), x, out=grad_weight)
    here.wait_stream(beside)
    return grad_x, grad_weight


def _in_two_kernels(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, needs: tuple[bool, bool]
) -> Three:
    """All three gradients of matrices: our own products finish the sums over the batch that the mask began."""
    from hypatia_lab.kernels.linear_relu.gradient_products import config, gradient_products
    from hypatia_lab.kernels.linear_relu.masked_gradient import masked_gradient_shares

    z, shares = masked_gradient_shares(grad, y, dependent=True)
    plan = config(_sizes(x, weight), x.dtype, dependent=True)
    return gradient_products(z, x, weight, needs, shares=shares, plan=plan)


def _masked_and_summed(grad: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if y.is_cuda and TRITON:
        from hypatia_lab.kernels.linear_relu.masked_gradient import masked_gradient

        return masked_gradient(grad, y)
    z = masked(grad, y)
    return z, z.sum(0)


def matrices(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> Three:
    """``grad``, x and y as matrices, each dimension of the batch a row of its own.

    Raises ``ValueError`` when ``grad`` is not like ``y``, or y not what x and weight give.
    """
    if y.shape != (*x.shape[:-1], weight.shape[0]):
        raise ValueError(f"y {list(y.shape)} is not of x {list(x.shape)} and weight {list(weight.shape)}")
    if grad.shape != y.shape or grad.dtype != y.dtype:
        raise ValueError(f"grad {grad.dtype} {list(grad.shape)} is not like y {y.dtype} {list(y.shape)}")
    count, inner, columns = _sizes(x, weight)
    return grad.reshape(count, columns), x.reshape(count, inner), y.reshape(count, columns)


FIRST_ONLY = "this Linear+ReLU has a first derivative only; for a second use hypatia::linear_relu_epilogue"
"""Why its gradients are not differentiated."""


def gradients_operator(name: str, compute: Callable[..., Three]) -> Operator[..., Three]:
    """The gradients of a Linear+ReLU as the operator ``name``, of any dimensions of the batch.

    ``compute(grad, x, weight, y, needs)`` makes them of matrices, empty ones of what is not in ``needs`` (x, weight).
    """

    @operator(name, planned=True)
    def gradients(
        grad: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        y: torch.Tensor,
        needs_x: bool = True,
        needs_weight: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of x (..., in), weight (out, in) and bias (out) from ``grad`` and y (..., out).

        What is not needed is an empty tensor. Not differentiable. Raises ``ValueError`` when ``grad`` is not like
        ``y``, or y not what x and weight give.
        """
        grad, rows, y = matrices(grad, x, weight, y)
        grad_x, grad_weight, grad_bias = compute(grad, rows, weight, y, (needs_x, needs_weight))
        return grad_x.view(x.shape) if needs_x else grad_x, grad_weight, grad_bias

    @gradients.register_fake
    def _(grad: Any, x: Any, weight: Any, y: Any, needs_x: bool = True, needs_weight: bool = True) -> Three:
        grad_x = x.new_empty(x.shape if needs_x else 0)
        return grad_x, weight.new_empty(weight.shape if needs_weight else 0), y.new_empty(y.shape[-1])

    gradients.not_differentiable(FIRST_ONLY)
    return gradients


def _in_few_kernels(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, needs: tuple[bool, bool]
) -> Three:
    """All three gradients of matrices, the mask fused."""
    if size_for_own(x, weight) in OWN_PRODUCTS:
        return _in_two_kernels(grad, x, weight, y, needs)
    z, grad_bias = _masked_and_summed(grad, y)
    return *products(z, x, weight, needs), grad_bias


linear_relu_gradients = gradients_operator("linear_relu_gradients", _in_few_kernels)


@operator("linear_relu_fused", planned=True, autocast=True)
def linear_relu_fused(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Linear+ReLU whose forward is one kernel and whose backward is fused; once differentiable.

    The forward is our own where :data:`OWN_PRODUCTS` or :data:`OWN_FORWARD` says so, else the library's epilogue.
    Raises ``ValueError`` on a misfit, ``NotImplementedError`` when its gradient is differentiated.
    """
    ensure_layer(x, weight, bias)
    size = size_for_own(x, weight)
    if size in OWN_PRODUCTS and x.shape[-1] and not hopper.unfit(x):
        return linear_relu_cuda.forward(x, weight, bias)
    if size in OWN_FORWARD:
        from hypatia_lab.kernels.linear_relu.linear_relu_triton import linear_activation

        return linear_activation(x, weight, bias)
    return fused_epilogue(x, weight, bias)


linear_relu_fused.register_fake(output)
linear_relu_fused.differentiated_by(linear_relu_gradients)


def _missing(workload: Workload, device: str) -> str:
    return "" if device == "cpu" else loader.triton_missing(device)


@variant(
    "linear_relu",
    "fused_backward",
    origin="own",
    needs=_missing,
    directions=("forward_backward",),
    label="mask and bias in one kernel",
    tags=("backward",),
)
def fused_backward(workload: Workload, inputs: Inputs) -> Run:
    """cuBLASLt's epilogue; then mask and grad_bias in one Triton kernel, and both products side by side.

    bfloat16 and float16, unless large: on Hopper the forward in one CUDA kernel; both products in one Triton kernel,
    which adds up grad_bias, too. Else the library's, the products on two streams.
    """
    return bind(linear_relu_fused, inputs, OPERANDS)
