"""An operator, planned, that launches the stand-in's one kernel twice, and its gradient."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.operations.operators import operator

loader.cubin = lambda name, instance: (b"scale", b"machine code")
loader.cuda_kernel = lambda name, instance: SimpleNamespace(handle=0)
ran: list[torch.Size] = []
"""Of every call that Python computed, the shape of x."""


def scale(x: torch.Tensor, out: torch.Tensor, factor: float, **how: Any) -> None:
    loader.cuda_launcher("toy", "scale", **how)((2,), (64,), x, out, x.numel(), factor)


@operator("toy_gradient", planned=True)
def toy_gradient(
    grad: torch.Tensor, x: torch.Tensor, needs_x: bool, bias: torch.Tensor | None, factor: float, y: torch.Tensor
) -> torch.Tensor:
    assert y.shape == x.shape
    assert bias is None or bias.shape == x.shape[1:]
    out = torch.empty_like(x)
    scale(grad.contiguous(), out, factor)
    return out


@operator("toy", planned=True)
def toy(
    x: torch.Tensor, more: list[torch.Tensor], bias: torch.Tensor | None, factor: float, word: str
) -> tuple[torch.Tensor, torch.Tensor]:
    ran.append(x.shape)
    if word == "refuse":
        raise ValueError("no such word")
    if not x.numel():
        return x.new_empty(x.shape), x.new_zeros(1)
    middle, y = torch.empty_like(x), x.new_empty(x.shape[::-1]).t()
    scale(x.contiguous(), middle, 1.0)
    scale(middle, y, factor, dependent=True)
    total = (y + more[-1]).sum(0).to(torch.float64) * 2
    return y, total if bias is None else total + bias


toy_gradient.register_fake(lambda grad, x, needs_x, bias, factor, y: torch.empty_like(x))
toy.register_fake(
    lambda x, more, bias, factor, word: (
        x.new_empty(x.shape[::-1]).t(),
        x.new_empty(x.shape[1], dtype=torch.float64),
    )
)
toy.differentiated_by(toy_gradient, ("y", "total"))
toy_gradient.not_differentiable("once only")
square = torch.randn(4, 4)
square = square + square.t()
