"""Layers of float32 in one Triton kernel, with float32's digits by three products of float16 terms."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch

from hypatia_lab.kernels.mlp.mlp_split import Tile, forward
from hypatia_lab.operations.mlp import plain, reference

# Who leaves an element unwritten, or reads one before it is written, shows it: new memory is full of NaN.
torch.use_deterministic_algorithms(True)

SMALL = Tile(16, 4)


def drawn(layers: int, width: int, rows: int):
    g = torch.Generator().manual_seed(0)
    weights = [torch.randn(width, width, generator=g) * (2 / width) ** 0.5 for _ in range(layers)]
    return torch.randn(rows, width, generator=g), weights, [torch.randn(width, generator=g) for _ in range(layers)]


def pairs(weights, biases):
    return [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]


def check_it_is_as_near_float64_as_eager() -> None:
    for layers, width, rows, tile in (
        (2, 1, 3, SMALL),
        (3, 16, 37, SMALL),
        (3, 20, 50, SMALL),
        (3, 18, 50, SMALL),
        (2, 77, 40, Tile(32, 4)),
        (3, 64, 130, None),
        (3, 128, 129, None),
    ):
        x, weights, biases = drawn(layers, width, rows)
        exact = reference(x, *pairs(weights, biases))
        found = forward(x, weights, biases, tile=tile).double() - exact
        usual = plain(x, *pairs(weights, biases)).double() - exact
        assert float(found.norm()) <= 1.25 * float(usual.norm()) + 2e-7 * float(exact.norm()), (layers, width, rows)
        assert float(found.abs().max()) <= 2e-6 * float(exact.abs().max())


def check_every_magnitude() -> None:
    """Rows of x and of the weights of any size: a product is off by as little of its own size."""
    x, weights, biases = drawn(3, 16, 40)
    for up, down in ((0, 0), (60, -60), (-60, 60), (100, -90), (-100, 90), (-120, 60), (120, -120)):
        scaled = [torch.ldexp(weights[0], torch.tensor(down)), *weights[1:]]
        given = torch.ldexp(x, torch.tensor(up)), scaled, [torch.zeros(16)] * 3
        exact = reference(given[0], *pairs(*given[1:]))
        found = forward(*given, tile=SMALL).double()
        assert float((found - exact).norm()) <= 1e-6 * float(exact.norm()), (up, down)
    # Within a row of x, too, as far as float16's terms reach; and rows of zeros.
    x[:, 8:] *= torch.logspace(0, -6, 8)
    x[3] = 0
    exact = reference(x, *pairs(weights, biases))
    assert float((forward(x, weights, biases, tile=SMALL) - exact).norm()) <= 5e-7 * float(exact.norm())


def check_infinities_and_nan_are_eagers() -> None:
    for value in (float("inf"), float("-inf"), float("nan")):
        for place in ("x", "weight", "bias"):
            x, weights, biases = drawn(3, 16, 20)
            if place == "x":
                x[4, 3] = value
            elif place == "weight":
                weights[1][4, 3] = value
            else:
                biases[0][5] = value
            found, usual = forward(x, weights, biases, tile=SMALL), plain(x, *pairs(weights, biases))
            torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-5, equal_nan=True)
            assert not bool(usual.isfinite().all()) or (place == "bias" and value < 0)  # a ReLU behind it
