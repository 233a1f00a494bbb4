"""Two or three equal-width layers of float32 in one kernel, with float32's digits from products of float16 terms
(``kernels/mlp/mlp_split.py``); a float32 multiplication on the matrix units would keep TF32's 11 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.operations import mlp
from hypatia_lab.operations.operators import operator
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

WIDEST = 128
"""Largest width: two terms of three weights fill a multiprocessor's shared memory."""


def _unfit(width: int, dtype: str) -> str:
    if dtype != "float32":
        return f"the terms are float32's, not {dtype}'s"
    return "" if width <= WIDEST else f"terms of weights of width {width} do not fit a multiprocessor, {WIDEST} does"


@operator("mlp_split", planned=True)
def mlp_split(x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> torch.Tensor:
    """Two or three equal-width layers of float32: in one kernel on a GPU, layer by layer on a CPU; not differentiable.

    ``x`` (..., width), ``weights`` (width, width) and ``biases`` (width) of every layer, width at most 128 on a GPU.
    Returns the shape of ``x``, contiguous. Raises ``ValueError`` naming the tensor that does not fit,
    ``NotImplementedError`` when it is differentiated.
    """
    mlp.ensure_fused(x, weights, biases, _unfit)
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    if not x.is_cuda:
        return mlp.plain(x, *(tensor for pair in zip(weights, biases, strict=True) for tensor in pair)).contiguous()
    from hypatia_lab.kernels.mlp.mlp_split import forward

    return forward(mlp.flat(x), [w.contiguous() for w in weights], [b.contiguous() for b in biases]).view(x.shape)


mlp_split.register_fake(lambda x, *others: torch.empty_like(x, memory_format=torch.contiguous_format))
mlp_split.not_differentiable("hypatia::mlp_split has no derivative; take those of torch.nn.functional.linear")


def _missing(workload: Workload, device: str) -> str:
    return loader.triton_missing(device) or _unfit(workload.shape[1], workload.dtype)


def fused_fp16x3(workload: Workload, inputs: Inputs) -> Run:
    """All layers in one Triton kernel; every float32 product is three products of float16 terms."""
    x, *parameters = inputs.values()
    weights, biases = parameters[::2], parameters[1::2]
    return lambda: mlp_split(x, weights, biases)


for _operation in mlp.FUSED:
    variant(
        _operation,
        "fused_fp16x3",
        origin="own",
        needs=_missing,
        maths=("ieee",),
        label="all layers in one Triton kernel, float32 by three float16 products",
        tags=("own kernel",),
        splits=("float16/ieee", 3),
    )(fused_fp16x3)
