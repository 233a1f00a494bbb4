"""What a rebuilt graph calls: the fused operations, each by the best way that its tensors' device and dtype have.

Plain functions, which choose, and call operators of torch's or of the lab's. Each returns a new tensor and can be
differentiated, if need be by the operations that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as functional

import hypatia_lab.operations.mlp as fused
from hypatia_lab import dispatch
from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.linear_relu.epilogue import activated
from hypatia_lab.operations.linear_gelu import (
    linear_activation_cuda,
    linear_activation_split,
    linear_activation_triton,
)
from hypatia_lab.operations.linear_relu import tensor_cores
from hypatia_lab.operations.operators import operator

aten = torch.ops.aten


def _differentiated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    wanted = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    return wanted and torch.is_grad_enabled()


def linear_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """max(0, x·Wᵀ + b), x (..., in), W (out, in), b (out) or None → (..., out): cuBLASLt's epilogue, for inference.

    Where gradients are wanted, what the dispatcher chooses; on a CPU and without a bias a product and a ReLU in its
    place. Raises torch's errors.
    """
    if _differentiated(x, weight, bias):
        return dispatch.linear_relu(x, weight, bias)
    if not x.is_cuda or bias is None:
        return functional.linear(x, weight, bias).relu_()
    fuse = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]
    if x.dim() == 2:
        return fuse(bias, x, weight.t())
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return fuse(bias, rows, weight.t()).view(*x.shape[:-1], weight.shape[0])


def apart_missing(device: str, dtype: str) -> str:
    """Why no bias stands apart from its product there; empty when one does."""
    if device != "cuda" or dtype != "float32":
        return "a bias apart from its product is for float32 on a GPU: 16-bit sums would be rounded once more"
    return loader.triton_missing(device)


@cache
def _there(missing: Callable[[str, str], str], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether ``missing`` says nothing of them: asked once, for asking takes a third as long as a call."""
    return not missing(device.type, str(dtype).removeprefix("torch."))


@operator("linear_apart", planned=True)
def _linear_apart(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x·Wᵀ + b: the library's product, then its sum in its place."""
    return torch.matmul(x, weight.t()).add_(bias)


def linear_apart(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x·Wᵀ, then + b in its place: a product without an epilogue has more of the library's kernels to choose from.

    Shapes as of :func:`linear_relu`. Where gradients are wanted, torch's linear.
    """
    if _differentiated(x, weight, bias):
        return functional.linear(x, weight, bias)
    return _linear_apart(x, weight, bias)


@operator("linear_relu_apart", planned=True)
def _apart(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """max(0, x·Wᵀ + b), float32 on a GPU: the library's product, then one Triton kernel in its place."""
    from hypatia_lab.kernels.linear_relu.bias_relu import bias_relu

    y = torch.matmul(x, weight.t()).contiguous()
    bias_relu(y.view(-1, weight.shape[0]), bias.contiguous())
    return y


for _own in (_linear_apart, _apart):
    _own.register_fake(lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]))


def linear_relu_apart(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x·Wᵀ, then max(0, · + b) in its place by one kernel. Shapes as of :func:`linear_relu`.

    Where gradients are wanted, what the dispatcher chooses; where there is no such kernel, torch's operations.
    """
    if _differentiated(x, weight, bias):
        return dispatch.linear_relu(x, weight, bias)
    if not _there(apart_missing, x.device, x.dtype):
        return torch.matmul(x, weight.t()).add_(bias).relu_()
    return _apart(x, weight, bias)


def linear_relu_split(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """:func:`linear_relu` of float32 on a GPU's tensor cores, by two float16 terms of every operand (fp16x3).

    Where gradients are wanted or there is no such kernel, :func:`linear_relu`.
    """
    if _differentiated(x, weight, bias) or not _there(split_missing, x.device, x.dtype):
        return linear_relu(x, weight, bias)
    return tensor_cores.linear_relu_split(x, weight, bias, "fp16x3")


def split_missing(device: str, dtype: str) -> str:
    """Why no product of split operands can be had there; empty when it can."""
    if device != "cuda" or dtype != "float32":
        return "splitting operands is for float32 on a GPU"
    if reason := loader.triton_missing(device):
        return reason
    hopper = torch.cuda.get_device_capability() >= (9, 0)
    return "" if hopper else "needs tensor descriptors (compute capability 9.0)"


def gelu_missing(device: str, dtype: str) -> str:
    """Why no fused kernel puts a GELU behind a product there; empty when one does."""
    if device != "cuda" or dtype not in ("bfloat16", "float16"):
        return "a GELU within a product's kernel is for 16-bit numbers on a GPU"
    return loader.triton_missing(device)


def _hopper_missing(device: str, dtype: str) -> str:
    return hopper.missing(dtype, device)


def linear_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, approximate: str, *, relu: bool = False
) -> torch.Tensor:
    """GELU by ``approximate`` (none or tanh) of x·Wᵀ + b, or of its ReLU, in one kernel. Shapes as of
    :func:`linear_relu`.

    Where gradients are wanted or there is no such kernel, torch's operations.
    """
    if _differentiated(x, weight, bias) or not _there(gelu_missing, x.device, x.dtype):
        return activated(functional.linear(x, weight, bias), relu, approximate)
    on_hopper = x.shape[-1] > 0 and _there(_hopper_missing, x.device, x.dtype)
    form = linear_activation_cuda if on_hopper else linear_activation_triton
    return form(x, weight, bias, relu, approximate, "ieee")


def linear_relu_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, approximate: str
) -> torch.Tensor:
    """:func:`linear_gelu` of the ReLU."""
    return linear_gelu(x, weight, bias, approximate, relu=True)


def gelu_split_missing(device: str, dtype: str) -> str:
    """Why no product of split operands has a GELU behind it there; empty when one has."""
    return split_missing(device, dtype) or hopper.missing("float16", device)


def linear_gelu_split(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, approximate: str
) -> torch.Tensor:
    """:func:`linear_gelu` of float32 on Hopper's tensor cores, by two float16 terms of every operand (fp16x3).

    Where gradients are wanted or there is no such kernel, :func:`linear_gelu`.
    """
    if _differentiated(x, weight, bias) or not _there(gelu_split_missing, x.device, x.dtype):
        return linear_gelu(x, weight, bias, approximate)
    return linear_activation_split(x, weight, bias, False, approximate)


def mlp(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """Two or three equal-width layers, ReLUs between them: x (..., width), then weight (width, width) and bias (width)
    of each. One kernel on a GPU; layer by layer on a CPU and in float64, which no kernel has."""
    weights, biases = list(parameters[::2]), list(parameters[1::2])
    if x.is_cuda and x.dtype != torch.float64:
        return fused.mlp(x, weights, biases, "ieee")
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = linear_relu(x, weight, bias)
    return functional.linear(x, weights[-1], biases[-1])


def _scale(gamma: torch.Tensor | None, variance: torch.Tensor, eps: float) -> torch.Tensor:
    scale = torch.rsqrt(variance + eps)
    return scale if gamma is None else scale * gamma


def folded_weight(weight: torch.Tensor, gamma: torch.Tensor | None, variance: torch.Tensor, eps: float) -> torch.Tensor:
    """W·γ/√(var + ε) by output channel: W (out, ...), the others (out). Computed in every call, so never stale."""
    return weight * _scale(gamma, variance, eps).view(-1, *[1] * (weight.dim() - 1))


def folded_bias(
    bias: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """(b − mean)·γ/√(var + ε) + β, all (channels); an absent b or β is 0, an absent γ 1."""
    shift = (-mean if bias is None else bias - mean) * _scale(gamma, variance, eps)
    return shift if beta is None else shift + beta


def block_missing(device: str, dtype: str, weight: Sequence[int], given: bool, dims: Sequence[int], eps: float) -> str:
    """Why no fused kernel computes :func:`conv_block` there, of a weight of this shape; empty when one does.

    ``given``: γ and β are. float32 has one, but not by IEEE products of its own numbers.
    """
    if device != "cuda" or dtype not in ("bfloat16", "float16"):
        return "the fused block is for 16-bit numbers on a GPU"
    if tuple(weight[2:]) != (3, 3) or tuple(dims) != (1,) * 7 or eps != 1e-5 or not given:
        return "the fused block is a 3×3 convolution, padded by one, with γ, β and ε = 1e-5"
    return loader.triton_missing(device)


def conv_block(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    dims: Any,
    eps: float,
    approximate: str,
) -> torch.Tensor:
    """GELU(instance norm(convolution)), one after the other, or fused where :func:`block_missing` says nothing;
    ``dims``: stride, padding, dilation (two each), groups.
    """
    given = gamma is not None and beta is not None
    if not block_missing(x.device.type, str(x.dtype).removeprefix("torch."), weight.shape, given, dims, eps):
        from hypatia_lab.operations.conv_block.own import fused_conv_block

        assert gamma is not None
        assert beta is not None
        y = fused_conv_block(x, weight, bias, gamma, beta, approximate=approximate)
        # As it lies after torch's own: what follows was timed on that, and is slower on the other.
        return y if x.is_contiguous(memory_format=torch.channels_last) else y.contiguous()
    z = torch.conv2d(x, weight, bias, list(dims[:2]), list(dims[2:4]), list(dims[4:6]), dims[6])
    return functional.gelu(functional.instance_norm(z, weight=gamma, bias=beta, eps=eps), approximate=approximate)


ALIKE = (
    *(aten.relu.default, aten.add.Tensor, aten.mul.Tensor, aten.mm.default, aten.matmul.default, aten.addmm.default),
    *(aten.t.default, aten.transpose.int, aten.reshape.default, aten.cat.default, aten.conv2d.default),
    *(aten.batch_norm.default, aten.instance_norm.default, aten.layer_norm.default, aten.max_pool2d.default),
)
"""ATen operations that torch has under their own names."""

SWIFT: dict[Any, Any] = {
    **{operation: getattr(torch, operation.overloadpacket.__name__) for operation in ALIKE},
    aten.linear.default: functional.linear,
    aten.view.default: torch.reshape,
    aten.gelu.default: functional.gelu,
    aten.avg_pool2d.default: functional.avg_pool2d,
}
"""ATen operation → torch's own binding of it with the same arguments, which takes a third of the time to call."""
