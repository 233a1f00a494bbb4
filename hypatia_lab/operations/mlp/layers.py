"""A multilayer perceptron of any widths: one CUDA kernel for Hopper a layer
(``kernels/linear_relu/linear_relu_cuda.py``).

What goes from layer to layer lies in rows that begin at multiples of 16 bytes, so that the copy engine can fetch it; x
and weights that do not are copied before the first layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import hopper
from hypatia_lab.kernels.linear_relu import linear_relu_cuda as tiles
from hypatia_lab.kernels.linear_relu.epilogue import NOTHING
from hypatia_lab.kernels.operands import ensure_layer
from hypatia_lab.operations import mlp
from hypatia_lab.operations.linear_relu.needs import hopper_missing
from hypatia_lab.operations.operators import operator
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


def _output(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], precision: str
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weights[-1].shape[0])


@operator("mlp_layers", planned=True, autocast=True)
def mlp_layers(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], precision: str
) -> torch.Tensor:
    """Linear layers, a ReLU after each but the last, one kernel for Hopper a layer; not differentiable.

    ``x`` (..., in), weight n (out, in) and bias n (out) of every layer, one at least; bfloat16 or float16 with
    ``precision`` "ieee", or float32 with "tf32". Returns (..., out of the last), contiguous. Raises ``ValueError``
    naming the layer on a misfit, another dtype or precision, or an unfit device, ``NotImplementedError`` when it is
    differentiated.
    """
    if not weights or len(biases) != len(weights):
        raise ValueError(f"{len(weights)} weights and {len(biases)} biases: as many of each are needed, one at least")
    batch, dtype = x.shape[:-1].numel(), str(x.dtype).removeprefix("torch.")
    # What a layer is given is, but for its rows, like the bias of the one before.
    for number, (given, weight, bias) in enumerate(zip((x, *biases[:-1]), weights, biases, strict=True), 1):
        try:
            ensure_layer(given, weight, bias)
        except ValueError as cause:
            raise ValueError(f"layer {number}: {cause}") from None
        if reason := tiles.unfit(dtype, batch, weight.shape[1], precision):
            raise ValueError(f"layer {number}: {reason}")
    hopper.ensure(x)
    out = _output(x, weights, biases, precision)
    if not out.numel():
        return out
    with torch.cuda.device_of(x):
        rows, operands = x.reshape(batch, x.shape[-1]), list(weights)
        if batch > tiles.FEW:
            rows, *operands = tiles.fetched(rows, *weights)
        for weight, bias in zip(operands[:-1], biases, strict=False):
            hidden = tiles.packed(batch, len(weight), x)
            tiles.linear_relu(rows, weight, bias.contiguous(), hidden)
            rows = hidden
        tiles.linear_relu(rows, operands[-1], biases[-1].contiguous(), out.view(batch, -1), epilogue=NOTHING)
    return out


mlp_layers.register_fake(_output)
mlp_layers.not_differentiable("hypatia::mlp_layers has no derivative; hypatia::linear_relu_cuda has, layer by layer")


def _missing(workload: Workload, device: str) -> str:
    if missing := hopper_missing(device):
        return missing
    sizes = mlp.widths(workload)
    reasons = (tiles.unfit(workload.dtype, workload.shape[0], inner, workload.math) for inner in sizes[:-1])
    return next(filter(None, reasons), "")


def layers_cuda(workload: Workload, inputs: Inputs) -> Run:
    """One CUDA kernel a layer, for Hopper, at any width: bias and ReLU before anything is stored."""
    x, *parameters = inputs.values()
    weights, biases = parameters[::2], parameters[1::2]
    return lambda: mlp_layers(x, weights, biases, workload.math)


for _operation in ("mlp", *mlp.FUSED):
    variant(
        _operation,
        "layers_cuda",
        origin="own",
        needs=_missing,
        maths=("ieee", "tf32"),
        label="one CUDA kernel a layer",
        tags=("layers",),
    )(layers_cuda)
