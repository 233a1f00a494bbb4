"""Operators of the lab's whose calls are planned, with tensors for each: what tests of such calls share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")
from hypatia_lab.machine import choose_device
from hypatia_lab.operations import linear_gelu, mlp
from hypatia_lab.operations.conv_block import own as blocks
from hypatia_lab.operations.linear_relu import own_backward as backward
from hypatia_lab.operations.linear_relu import tensor_cores as tensor
from hypatia_lab.operations.mlp.float32 import mlp_split
from hypatia_lab.operations.mlp.layers import mlp_layers
from hypatia_lab.operations.operators import Operator

DEVICE = choose_device("auto")
Tensors = tuple[torch.Tensor, ...]
Form = Callable[..., torch.Tensor]
float32 = torch.float32

on_a_gpu = [
    pytest.mark.cuda,
    pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU"),
    pytest.mark.usefixtures("planned", "seeded"),
]


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))


def leaves(given: Tensors) -> Tensors:
    return tuple(one.detach().clone().requires_grad_() for one in given)


@dataclass(frozen=True)
class Call:
    """An operator of ours as a function of tensors alone."""

    operator: Operator[..., Any]
    given: Callable[[], Tensors]
    how: tuple[Any, ...] = ()
    """What it takes behind its tensors."""
    layers: bool = False
    """Whether it takes x, a list of two weights and a list of two biases."""
    public: Form | None = None
    """The function that people call, where it is another one."""
    differentiable: bool = True
    hopper: bool = False
    """Whether it takes compute capability 9.0."""

    def ready(self) -> Tensors:
        """Tensors for it; skips the test where it cannot run."""
        if self.hopper and DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("needs compute capability 9.0")
        return self.given()

    def arguments(self, given: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """The operator's."""
        tensors = (given[0], [*given[1:3]], [*given[3:]]) if self.layers else given
        return (*tensors, *self.how)

    def form(self, *given: torch.Tensor | None) -> torch.Tensor:
        return self.public(*given) if self.public else self.operator(*self.arguments(given))


def matrices(batch: int, inner: int, outer: int, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    return normal(batch, inner, dtype=dtype), normal(outer, inner, dtype=dtype), normal(outer, dtype=dtype)


def block(images: int, size: int, dtype: torch.dtype = torch.bfloat16, channels: int = 64) -> Tensors:
    """x, weight, bias, gamma and beta, channels last."""
    last, scale = torch.channels_last, (2 / (9 * channels)) ** 0.5
    x = normal(images, channels, size, size, dtype=dtype).contiguous(memory_format=last)
    weight = normal(channels, channels, 3, 3, dtype=dtype, scale=scale).contiguous(memory_format=last)
    vectors = normal(channels, dtype=dtype, scale=0.25), 1 + normal(channels, dtype=dtype, scale=0.1)
    return x, weight, *vectors, normal(channels, dtype=dtype, scale=0.1)


def layers(rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """x, then two weights, then two biases."""
    weights = tuple(normal(width, width, scale=(2 / width) ** 0.5, dtype=dtype) for _ in range(2))
    return normal(rows, width, dtype=dtype), *weights, normal(width, dtype=dtype), normal(width, dtype=dtype)


def eager(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.relu(functional.linear(x, weight, bias))


LINEAR = {
    "triton": Call(tensor.linear_relu_triton, lambda: matrices(64, 128, 96), ("ieee",)),
    "triton tf32": Call(tensor.linear_relu_triton, lambda: matrices(64, 128, 96, float32), ("tf32",)),
    **{
        name: Call(
            tensor.linear_relu_cuda, lambda shape=shape, dtype=dtype: matrices(*shape, dtype), (math,), hopper=True
        )
        for name, math, shape, dtype in (
            ("cuda", "ieee", (64, 128, 96), torch.bfloat16),
            ("cuda tf32", "tf32", (64, 128, 96), float32),
            ("cuda, odd", "ieee", (33, 777, 65), torch.bfloat16),
            ("cuda, few rows", "ieee", (5, 77, 65), torch.bfloat16),
        )
    },
    "fused": Call(backward.linear_relu_fused, lambda: matrices(64, 128, 96)),
    "fused, medium": Call(backward.linear_relu_fused, lambda: matrices(1024, 784, 2048)),
    **{
        terms: Call(tensor.linear_relu_split, lambda: matrices(64, 128, 96, float32), (terms,), hopper=True)
        for terms in ("fp16x3", "tf32x3")
    },
    "fp16x3, trained": Call(tensor.linear_relu_fp16x3, lambda: matrices(64, 128, 96, float32), hopper=True),
    "fp16x3 in CUDA": Call(tensor.linear_relu_fp16x3_cuda, lambda: matrices(64, 128, 96, float32), hopper=True),
}
CALLS = LINEAR | {
    "gelu in CUDA": Call(
        linear_gelu.linear_activation_cuda,
        lambda: matrices(64, 128, 96),
        (False, "none", "ieee"),
        differentiable=False,
        hopper=True,
    ),
    "gelu, fp16x3": Call(
        linear_gelu.linear_activation_split,
        lambda: matrices(64, 128, 96, float32),
        (True, "none"),
        differentiable=False,
        hopper=True,
    ),
    **{
        name: Call(
            blocks.conv_block_fused,
            lambda dtype=dtype, channels=channels: block(2, 32, dtype, channels),
            ("none", precision, form, True, None),
            public=partial(blocks.fused_conv_block, form=form, precision=precision),
            hopper=form == "whole",
        )
        for name, form, precision, dtype, channels in (
            ("one kernel", "whole", "ieee", torch.bfloat16, 64),
            ("two kernels", "triton", "ieee", torch.bfloat16, 64),
            ("two kernels, fp16x3", "triton", "fp16x3", float32, 64),
            ("few channels, fp16x3", "triton", "fp16x3", float32, 9),
        )
    },
    "mlp": Call(mlp.mlp, lambda: layers(1001, 64), ("ieee",), layers=True),
    "mlp_cuda": Call(mlp.forward_cuda, lambda: layers(1001, 64), layers=True, differentiable=False, hopper=True),
    "mlp_split": Call(mlp_split, lambda: layers(1001, 77, float32), layers=True, differentiable=False),
    "mlp_layers": Call(mlp_layers, lambda: layers(1001, 77), ("ieee",), layers=True, differentiable=False, hopper=True),
}
