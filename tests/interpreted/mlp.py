"""Triton's MLP of one width, forward and backward. bfloat16 is left out: the interpreter multiplies it as integers."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import math
from typing import Any

import torch

from hypatia_lab.kernels.mlp import mlp_triton as module
from hypatia_lab.kernels.mlp.mlp_triton import Tile, backward, forward
from hypatia_lab.operations.mlp import layerwise_backward, reference

CASES = (
    (2, 16, 37, torch.float32, "tf32", Tile(16, 4)),
    (3, 20, 7, torch.float16, "ieee", Tile(16, 4, 0, keep=0)),
    (3, 16, 50, torch.float16, "ieee", Tile(16, 4, 1, "pipeline", 3, keep=1)),
    (2, 16, 19, torch.float16, "ieee", Tile(16, 4, 1, "descriptor", 2)),
)


def check_the_triton_kernels_agree_with_float64() -> None:
    for layers, width, rows, dtype, precision, tile in CASES:

        def whole(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            # Exact before a ReLU: with others, rounding moves some across its kink, and gradients jump there.
            return torch.randint(-1, 2, shape).to(dtype)

        x, grad = whole(rows, width), whole(rows, width)
        weights, biases = [whole(width, width) for _ in range(layers)], [whole(width) for _ in range(layers)]
        pairs = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
        found = [forward(x, weights, biases, precision=precision, tile=tile)]
        found += backward(grad, x, weights, biases, precision=precision, rows_of_tile=16)
        double = [w.double() for w in weights], [b.double() for b in biases]
        exact = reference(x, *pairs), *layerwise_backward(grad.double(), x.double(), *double)
        for own, expected in zip(found, exact, strict=True):
            assert own.shape == expected.shape
            assert own.dtype == dtype
            error = float((own.double() - expected).norm() / expected.norm())
            assert error < 1e-3, (layers, width, rows, dtype, error)


def check_shares_of_more_programs_than_are_added_at_once() -> None:
    layers, width, programs = 2, 65, 17  # of a width that is padded to 128, where 16 are

    def before_nan(*shape: int, **how: Any) -> torch.Tensor:
        """Memory behind which there is NaN for as much again."""
        count = math.prod(shape)
        return torch.full((2 * count,), float("nan"), **how)[:count].view(shape)

    module.multiprocessors = lambda x: programs
    torch.empty = before_nan

    def whole(*shape: int) -> torch.Tensor:
        return torch.randint(-1, 2, shape).half()

    x, grad = whole(16 * programs, width), whole(16 * programs, width)
    weights, biases = [whole(width, width) for _ in range(layers)], [whole(width) for _ in range(layers)]
    found = module.backward(grad, x, weights, biases, rows_of_tile=16)
    double = [w.double() for w in weights], [b.double() for b in biases]
    for own, expected in zip(found, layerwise_backward(grad.double(), x.double(), *double), strict=True):
        assert float((own.double() - expected).norm() / expected.norm()) < 1e-3
