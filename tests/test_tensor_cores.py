"""Digits of split operands, and of those that are rounded to TF32."""

from __future__ import annotations

import pytest
import torch
from kernel_tensors import DEVICE, error, exact, matrices, normal, on_gpu

from hypatia_lab.operations.linear_relu.tensor_cores import two_terms


def towards_zero(exact: torch.Tensor) -> torch.Tensor:
    """float64 cut off to float32, as matrix units do with their sums."""
    near = exact.float()
    return torch.where(near.double().abs() > exact.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def split_product(x: torch.Tensor, weight: torch.Tensor, kind: str, inner: int) -> torch.Tensor:
    """x·Wᵀ by three products of terms: cut-off sums over ``inner`` elements, rounded sums of these."""
    (a, a_small, up), (b, b_small, across) = two_terms(x, kind), two_terms(weight, kind)
    at_once = 16 if kind == "fp16x3" else 8
    total = torch.zeros(len(x), len(weight))
    for start in range(0, x.shape[1], inner):
        part = torch.zeros_like(total)
        for left, right in ((a_small, b), (a, b_small), (a, b)):
            for k in range(start, min(start + inner, x.shape[1]), at_once):
                end = min(k + at_once, start + inner)
                part = towards_zero(part.double() + left[:, k:end] @ right[:, k:end].T)
        total = total + part
    return torch.ldexp(total.double(), -(up + across.T)).float()


def test_a_convolutions_taps_keep_the_accuracy_of_float32() -> None:
    """Every pixel's channels are scaled by themselves; the sums of a tap leave the matrix units."""
    x, weight = normal((24, 9, 64), (24, 9, 64))
    x = torch.ldexp(x, torch.arange(9)[:, None] - 4)
    reference = x.flatten(1).double() @ weight.flatten(1).double().T
    total, chain = torch.zeros(24, 24), torch.zeros(24, 24)
    for tap in range(9):
        total = total + split_product(x[:, tap], weight[:, tap], "fp16x3", 64)
        for k in range(64):
            chain = (chain.double() + x[:, tap, k : k + 1].double() * weight[:, tap, k].double()).float()
    assert error(total, reference) < min(3e-7, error(chain, reference))


KINDS = [("fp16x3", 64), ("tf32x3", 32)]


@pytest.mark.parametrize("magnitude", [1e-18, 1.0, 1e18])
@pytest.mark.parametrize(("kind", "inner"), KINDS)
def test_split_operands_keep_the_accuracy_of_float32(kind: str, inner: int, magnitude: float) -> None:
    x, weight = normal((24, 784), (24, 784))
    x = magnitude * x
    reference = x.double() @ weight.double().T
    # cuBLAS in IEEE float32 reached 3.6e-7 at this length on an H200; a chain of 784 fused multiply-adds gives 5e-7.
    chain = torch.zeros(24, 24)
    for k in range(784):
        chain = (chain.double() + x[:, k : k + 1].double() * weight[:, k].double()).float()
    assert error(split_product(x, weight, kind, inner), reference) < 3e-7 < error(chain, reference)


@pytest.mark.parametrize(("kind", "inner"), KINDS)
def test_long_sums_must_leave_the_matrix_units(kind: str, inner: int) -> None:
    x, weight = normal((16, 1024), (16, 1024))
    reference = x.double() @ weight.double().T
    within = error(split_product(x, weight, kind, 1024), reference)
    assert within > 3 * error(split_product(x, weight, kind, inner), reference)


@pytest.mark.parametrize("kind", ["fp16x3", "tf32x3"])
def test_two_terms_hold_22_bits_and_float16_ends_far_below_the_largest(kind: str) -> None:
    (drawn,) = normal((4000,))
    row = torch.cat([torch.ones(1), drawn * torch.logspace(0, -5, 4000)])[None] * 1e25
    large, small, up = two_terms(row, kind)
    off = (torch.ldexp(large + small, -up) - row.double()).abs()
    held = row.abs() >= 2.0**-16 * row.abs().max()
    assert bool((off <= 2.0**-22 * row.abs())[held].all())
    assert bool((off <= torch.maximum(2.0**-22 * row.abs(), 2.0**-39 * row.abs().max())).all())


@pytest.mark.slow
@on_gpu
@pytest.mark.parametrize("shape", [(129, 64, 512), (256, 256, 512), (1024, 784, 2048)])
def test_every_tile_rounds_to_the_nearest_tf32(shape: tuple[int, int, int]) -> None:
    pytest.importorskip("triton")
    from hypatia_lab.kernels.linear_relu import linear_relu_triton as whole

    x, weight, bias = matrices(shape[0], inner=shape[1], outer=shape[2], device=DEVICE)
    right = exact(x, weight, bias)
    for tiles in whole.candidates(shape, torch.float32, "tf32"):
        # Of operands cut off it would be 6e-4.
        found = error(whole.linear_activation(x, weight, bias, precision="tf32", tiles=tiles), right)
        assert found < 3.5e-4, tiles
