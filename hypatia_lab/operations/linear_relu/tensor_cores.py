"""Linear+ReLU on tensor cores by our own kernels: a fused epilogue, and float32's accuracy by split operands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab.kernels.linear_relu import linear_relu_cuda as tiles
from hypatia_lab.operations.linear_relu import OPERANDS, needs, output
from hypatia_lab.operations.linear_relu.own_backward import gradients_operator, linear_relu_gradients
from hypatia_lab.operations.operators import Operator, operator
from hypatia_lab.operations.torch_forms import bind
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS

if TYPE_CHECKING:
    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs, Workload


@operator("linear_relu_triton", planned=True, autocast=True)
def linear_relu_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, precision: str
) -> torch.Tensor:
    """max(0, x·Wᵀ + b) in one Triton kernel; once differentiable.

    What it takes and raises: :func:`hypatia_lab.kernels.linear_relu.linear_relu_triton.linear_activation`.
    """
    from hypatia_lab.kernels.linear_relu.linear_relu_triton import linear_activation

    return linear_activation(x, weight, bias, precision=precision)


@operator("linear_relu_cuda", planned=True, autocast=True)
def linear_relu_cuda(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, precision: str) -> torch.Tensor:
    """max(0, x·Wᵀ + b) in CUDA for Hopper: x (..., in), W (out, in), b (out) or None; once differentiable.

    bfloat16 or float16 with ``precision`` "ieee", or float32 with "tf32", rounded to the nearest, or of at most
    :data:`~hypatia_lab.kernels.linear_relu.linear_relu_cuda.FEW` rows with "ieee". One kernel, and before it one that
    copies what the copy engine cannot fetch: rows that do not begin at multiples of 16 bytes. Raises ``ValueError`` on
    a misfit, another dtype or precision, or an unfit device.
    """
    return tiles.checked(x, weight, bias, precision)


@operator("linear_relu_split", planned=True)
def linear_relu_split(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, terms: str) -> torch.Tensor:
    """max(0, x·Wᵀ + b) with float32's accuracy, by three products of two ``terms`` of each number; once differentiable.

    What it takes and raises: :func:`hypatia_lab.kernels.linear_relu.linear_relu_split.linear_relu_split`.
    """
    from hypatia_lab.kernels.linear_relu.linear_relu_split import linear_relu_split as split

    return split(x, weight, bias, terms=terms)


for _one in (linear_relu_triton, linear_relu_cuda, linear_relu_split):
    _one.register_fake(lambda x, weight, bias, how: output(x, weight, bias))
    _one.differentiated_by(linear_relu_gradients)


@operator("linear_relu_split_once", planned=True)
def linear_relu_split_once(
    x: torch.Tensor,
    weight: torch.Tensor,
    values: torch.Tensor,
    exponents: torch.Tensor,
    bias: torch.Tensor | None,
    terms: str,
    cuda: bool = False,
) -> torch.Tensor:
    """:func:`linear_relu_split` of a W whose terms (``values``, ``exponents``) :func:`split_once` made; they must still
    be those of W. ``cuda``: by the CUDA kernel. Not differentiable.
    """
    from hypatia_lab.kernels.linear_relu.linear_relu_split import Split, _version
    from hypatia_lab.kernels.linear_relu.linear_relu_split import linear_relu_split as split

    return split(x, Split(weight, terms, values, exponents, _version(weight)), bias, terms=terms, cuda=cuda)


linear_relu_split_once.register_fake(
    lambda x, weight, values, exponents, bias, terms, cuda=False: output(x, weight, bias)
)
linear_relu_split_once.not_differentiable("weights that were split before are for inference; split x and W instead")


_own = partial(variant, "linear_relu", origin="own")
_halves = partial(_own, needs=needs.split, maths=("ieee",), splits=("float16/ieee", 3))
_MATHS = ("ieee", "tf32", "tf32x3", "bf16x3")


@_own("triton", needs=needs.triton, maths=_MATHS, label="one Triton kernel", tags=("tensor_cores",))
def triton(workload: Workload, inputs: Inputs) -> Run:
    """One Triton kernel: products of tiles on tensor cores, bias and ReLU before anything is stored."""
    return bind(lambda x, weight, bias: linear_relu_triton(x, weight, bias, workload.math), inputs, OPERANDS)


@_own("cuda", needs=needs.cuda, maths=_MATHS[:2], label="one CUDA kernel", tags=("tensor_cores",))
def cuda(workload: Workload, inputs: Inputs) -> Run:
    """One CUDA kernel for Hopper: a tile a block, bias and ReLU before anything is stored; rows copied first if odd."""
    return bind(lambda x, weight, bias: linear_relu_cuda(x, weight, bias, workload.math), inputs, OPERANDS)


def _in_triton(terms: str) -> Factory:
    """float32 as two terms each, rows scaled by powers of two, three products: two Triton kernels, both timed."""
    return lambda workload, inputs: bind(
        lambda x, weight, bias: linear_relu_split(x, weight, bias, terms), inputs, OPERANDS
    )


for _terms, _name, _kind in (("fp16x3", "float16", "float16/ieee"), ("tf32x3", "TF32", "float32/tf32")):
    _label = f"float32 as three {_name} products"
    _halves(_terms, label=_label, tags=("split",), splits=(_kind, 3))(_in_triton(_terms))

_in_cuda = partial(_halves, needs=needs.split_cuda)


@_in_cuda("fp16x3_cuda_once", label="three float16 products in CUDA, weights split once", tags=("split",))
def fp16x3_cuda_once(workload: Workload, inputs: Inputs) -> Run:
    """fp16x3_cuda where W is split when it changes and not in every call, as in inference: of that x alone is timed."""
    from hypatia_lab.kernels.linear_relu.linear_relu_split import split_once

    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    held = [split_once(weight)]

    def run() -> torch.Tensor:
        if not held[0].current:
            held[0] = split_once(weight)
        return linear_relu_split_once(x, weight, held[0].values, held[0].exponents, bias, "fp16x3", True)

    return run


def _with_gradients(name: str, *, cuda: bool) -> tuple[Operator[..., Any], Operator[..., Any]]:
    """Linear+ReLU with float32's digits by three float16 products, once differentiable, and its gradients.

    Operators ``name`` and ``name_gradients``, by Triton, or with ``cuda`` all products by the CUDA kernel for Hopper.
    Both raise ``ValueError`` on a misfit, other dtypes than float32, or an unfit device, and ``NotImplementedError``
    when the gradients are differentiated.
    """

    def products(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        from hypatia_lab.kernels.linear_relu.gradient_products_split import gradient_products_split

        return gradient_products_split(*given, cuda=cuda)

    @operator(name, planned=True)
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        from hypatia_lab.kernels.linear_relu.linear_relu_split import linear_relu_split as split

        return split(x, weight, bias, cuda=cuda)

    gradients = gradients_operator(f"{name}_gradients", products)
    forward.register_fake(output)
    forward.differentiated_by(gradients)
    return forward, gradients


linear_relu_fp16x3, linear_relu_fp16x3_gradients = _with_gradients("linear_relu_fp16x3", cuda=False)
linear_relu_fp16x3_cuda, _ = _with_gradients("linear_relu_fp16x3_cuda", cuda=True)


_label = "three float16 products, forward and backward"


@_halves("fp16x3_backward", directions=DIRECTIONS[1:], label=_label, tags=("backward",))
def fp16x3_backward(workload: Workload, inputs: Inputs) -> Run:
    """fp16x3 with a backward of its kind: the mask as operands are split, both products in one Triton kernel."""
    return bind(linear_relu_fp16x3, inputs, OPERANDS)


@_in_cuda("fp16x3_cuda", directions=DIRECTIONS, label="three float16 products in CUDA", tags=("split", "backward"))
def fp16x3_cuda(workload: Workload, inputs: Inputs) -> Run:
    """fp16x3, forward and backward, split by Triton or CUDA and multiplied by a CUDA kernel; all of it timed."""
    return bind(linear_relu_fp16x3_cuda, inputs, OPERANDS)


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
