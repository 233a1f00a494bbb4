"""JAX: what XLA makes of Linear+ReLU, of the convolution block and of two or three equal layers.

XLA launches on a stream of its own, so a GPU's clocks are those of the whole device. Tensors are handed over by DLPack,
without a copy. A call waits for PyTorch's stream first, on which inputs are refilled and the last output is read, and
then for its own result, as whoever wants it must.

Sources: JAX's manual (jax.dlpack, jax.lax.DotAlgorithmPreset, jax.lax.conv_general_dilated, "GPU memory allocation").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.operations.conv_block import EPS, OPERATIONS, PARAMETERS
from hypatia_lab.operations.linear_relu import OPERANDS
from hypatia_lab.operations.mlp import FUSED
from hypatia_lab.variants import variant
from hypatia_lab.workloads import SPLIT

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

INSTALL = "'hypatia-lab[peers]'"
PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
LABEL = "JAX (XLA)"
UNSPLIT = "XLA splits operands on a GPU only"
ROUNDED = "XLA computes a matrix by a vector in one bfloat16 product, where it was asked for several"

PRODUCTS = {
    "ieee": "F32_F32_F32",
    "tf32": "TF32_TF32_F32",
    "tf32x3": "TF32_TF32_F32_X3",
    "bf16x3": "BF16_BF16_F32_X3",
}
"""math → the arithmetic of float32's matrix products, in JAX's word."""
SIX = "BF16_BF16_F32_X6"


def missing(workload: Workload, device: str) -> str:
    """Why JAX cannot compute ``workload`` on ``device``; empty when it can."""
    if reason := loader.module_missing("jax", INSTALL):
        return reason
    if device == "cuda" and all(loader.module_missing(plugin, "") for plugin in PLUGINS):
        return "JAX has no plugin for CUDA here (pip install 'jax[cuda13]')"
    if workload.dtype == "float64":
        return "JAX has float64 only where a process turns it on for all that it computes"
    if workload.math in SPLIT:
        return UNSPLIT if device == "cpu" else _rounded(workload, PRODUCTS[workload.math])
    return ""


def _rounded(workload: Workload, precision: str) -> str:
    """Seen of JAX 0.11.2 on an H100, at all but one of seven shapes; three products in TF32 are right."""
    return ROUNDED if precision.startswith("BF16") and 1 in (workload.shape[0], workload.shape[-1]) else ""


def _split(workload: Workload, device: str) -> str:
    if device == "cpu":
        return loader.module_missing("jax", INSTALL) or UNSPLIT
    if workload.dtype != "float32":
        return "splitting operands is a way to float32's own accuracy"
    return missing(workload, device) or _rounded(workload, SIX)


@cache
def _jax() -> Any:
    # It would take three quarters of the GPU's memory when it is first used.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return import_module("jax")


def called(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Run:
    """``function`` of JAX arrays, compiled, as a call on the memory of ``tensors``; its result is a tensor."""
    jax, device = _jax(), tensors[0].device
    arrays = [jax.dlpack.from_dlpack(tensor) for tensor in tensors]
    program = jax.jit(function)

    def run() -> torch.Tensor:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return torch.from_dlpack(program(*arrays).block_until_ready())

    return run


def _precision(workload: Workload, inputs: Inputs) -> str | None:
    """The arithmetic of matrix products in JAX's word; a CPU computes TF32 as IEEE, as PyTorch's does."""
    if workload.dtype != "float32":
        return None
    exact = workload.math == "tf32" and not inputs["x"].is_cuda
    return PRODUCTS["ieee" if exact else workload.math]


def _linear(x: Any, weight: Any, bias: Any, precision: str | None) -> Any:
    """x·Wᵀ + b of x (batch, in), W (out, in) and b (out)."""
    return _jax().lax.dot_general(x, weight, (((1,), (1,)), ((), ())), precision=precision) + bias


def _linear_relu(precision: str | None) -> Callable[..., Any]:
    return lambda x, weight, bias: _jax().nn.relu(_linear(x, weight, bias, precision))


def _mlp(precision: str | None) -> Callable[..., Any]:
    def form(x: Any, *parameters: Any) -> Any:
        layers = list(zip(parameters[::2], parameters[1::2], strict=True))
        for weight, bias in layers[:-1]:
            x = _jax().nn.relu(_linear(x, weight, bias, precision))
        return _linear(x, *layers[-1], precision)

    return form


def _conv_block(workload: Workload) -> Callable[..., Any]:
    """The block by XLA's convolution; statistics and what follows them in float32, as PyTorch has them of 16 bits."""
    jax = _jax()
    # On a GPU its default is TF32, as that of PyTorch's convolutions.
    exact = jax.lax.Precision.HIGHEST if workload.math == "ieee" else jax.lax.Precision.DEFAULT

    def form(x: Any, weight: Any, bias: Any, gamma: Any, beta: Any) -> Any:
        beside = (1, -1, 1, 1)
        layout = ("NCHW", "OIHW", "NCHW")
        z = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=layout, precision=exact)
        z = (z + bias.reshape(beside)).astype("float32")
        mean = z.mean((2, 3), keepdims=True)
        variance = ((z - mean) ** 2).mean((2, 3), keepdims=True)
        normal = (z - mean) * jax.lax.rsqrt(variance + EPS)
        wide = gamma.astype("float32").reshape(beside), beta.astype("float32").reshape(beside)
        u = normal * wide[0] + wide[1]
        return jax.nn.gelu(u, approximate=OPERATIONS[workload.operation] == "tanh").astype(x.dtype)

    return form


_peer = partial(variant, origin="peer", tags=("peer",), own_stream=True)
_products = partial(_peer, name="jax", needs=missing, maths=tuple(PRODUCTS), label=LABEL)


@_products("linear_relu")
def jax_linear_relu(workload: Workload, inputs: Inputs) -> Run:
    """jax.nn.relu(x·Wᵀ + b) by jax.jit; TF32, and float32 as three products, where the workload's math says so."""
    return called(_linear_relu(_precision(workload, inputs)), [inputs[name] for name in OPERANDS])


@_peer(
    "linear_relu",
    "jax_bf16x6",
    needs=_split,
    maths=("ieee",),
    label=f"{LABEL}, float32 as six bfloat16 products",
    splits=("bfloat16/ieee", 6),
)
def jax_bf16x6(workload: Workload, inputs: Inputs) -> Run:
    """jax.nn.relu(x·Wᵀ + b) with precision BF16_BF16_F32_X6: three terms of each number, six of their products."""
    return called(_linear_relu(SIX), [inputs[name] for name in OPERANDS])


def jax_mlp(workload: Workload, inputs: Inputs) -> Run:
    """Linear and ReLU layer by layer by jax.jit, the last without ReLU."""
    return called(_mlp(_precision(workload, inputs)), list(inputs.values()))


def jax_conv_block(workload: Workload, inputs: Inputs) -> Run:
    """The block by jax.jit: jax.lax.conv_general_dilated, mean and variance of each plane, jax.nn.gelu."""
    return called(_conv_block(workload), [inputs[name] for name in PARAMETERS])


for _operation in FUSED:
    _products(_operation)(jax_mlp)
for _operation in OPERATIONS:
    _peer(_operation, "jax", needs=missing, label=LABEL)(jax_conv_block)
