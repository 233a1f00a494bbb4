"""Tensors that tests of kernels share, what is right of them, how far off an answer is, and where a test runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hypatia_lab.check import Check
from hypatia_lab.kernels import loader
from hypatia_lab.machine import choose_device

DEVICE = choose_device("auto")


def only_where(missing: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test that needs a GPU, and says why it is skipped where something is ``missing``."""
    return lambda test: pytest.mark.cuda(pytest.mark.skipif(bool(missing), reason=missing)(test))


on_gpu = only_where("there is no GPU" if DEVICE == "cpu" else "")
on_hopper = only_where(
    "needs compute capability 9.0" if DEVICE == "cpu" or torch.cuda.get_device_capability() != (9, 0) else ""
)
needs_compiler = pytest.mark.skipif(bool(loader.cpp_missing()), reason=loader.cpp_missing())


def normal(
    *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> list[torch.Tensor]:
    """Standard normal tensors of these shapes, drawn one after the other and then rounded to ``dtype``."""
    generator = torch.Generator(device).manual_seed(seed)
    return [torch.randn(*shape, device=device, generator=generator).to(dtype) for shape in shapes]


def matrices(*batch: int, inner: int, outer: int, **how: Any) -> list[torch.Tensor]:
    """x (..., inner), weight (outer, inner) and bias (outer), as :func:`normal` draws them."""
    return normal((*batch, inner), (outer, inner), (outer,), **how)


Layers = tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]


def layers(*batch: int, width: int, count: int, dtype: torch.dtype = torch.float64, device: str = DEVICE) -> Layers:
    """x (..., width), and so many weights, scaled to keep its variance behind a ReLU, and biases."""
    x, *drawn = normal((*batch, width), *count * [(width, width)], *count * [(width,)], device=device, seed=1)
    weights = [((2 / width) ** 0.5 * one).to(dtype) for one in drawn[:count]]
    return x.to(dtype), weights, [one.to(dtype) for one in drawn[count:]]


def packed(rows: torch.Tensor) -> torch.Tensor:
    """With rows at multiples of 16 bytes; what lies between them is never read."""
    pack = 16 // rows.element_size()
    wide = rows.new_full((rows.shape[0], -(-rows.shape[1] // pack) * pack), float("nan"))
    wide[:, : rows.shape[1]] = rows
    return wide[:, : rows.shape[1]]


def exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, relu: bool = True) -> torch.Tensor:
    """ReLU(x·Wᵀ + b) in float64."""
    y = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    return y.relu() if relu else y


def accepted(found: Check) -> float:
    """The error of an answer that the check calls right."""
    assert found.ok, found.reason
    assert found.error is not None
    return found.error


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the norm."""
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-300))
