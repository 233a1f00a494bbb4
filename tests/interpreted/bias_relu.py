"""Triton's addition of a bias with a ReLU behind it, in place."""

from __future__ import annotations

import torch
from refusals import refused

from hypatia_lab.kernels.linear_relu.bias_relu import bias_relu

nan, inf = float("nan"), float("inf")


def check_bias_and_relu_in_one_kernel_agree_with_torch() -> None:
    for rows, columns in ((1, 1), (3, 7), (4, 256), (5, 257), (130, 33), (0, 4), (4, 0)):
        y, bias = torch.randn(rows, columns), torch.randn(columns)
        expected = torch.relu(y + bias)
        bias_relu(y, bias)
        assert torch.equal(y, expected), (rows, columns)
    y = torch.tensor([[nan, inf, -inf, -1.0]])
    bias_relu(y, torch.zeros(4))
    torch.testing.assert_close(y, torch.tensor([[nan, inf, 0.0, 0.0]]), equal_nan=True)


def check_refusals() -> None:
    y, bias = torch.ones(4, 6), torch.zeros(4)
    for *wrong, message in (
        (y[:, ::2], bias[:3], "[4, 3], [3]"),
        (y, bias, "[4, 6], [4]"),
        (y[0], bias, "[6], [4]"),
        (y.double(), torch.ones(6), "torch.float64"),
        (y.t(), bias, "[6, 4], [4]"),
    ):
        refused(lambda wrong=wrong: bias_relu(*wrong), message)
