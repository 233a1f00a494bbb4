"""Operators of Triton's kernels: schema and gradients."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import torch

from hypatia_lab.kernels.linear_relu.linear_relu_split import split_once
from hypatia_lab.operations.linear_relu.tensor_cores import (
    linear_relu_split,
    linear_relu_split_once,
    linear_relu_triton,
)


def check_operators_of_triton_kernels_have_gradients() -> None:
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=g) for shape in ((3, 24), (8, 24), (8,)))
    for own, how in ((linear_relu_triton, "ieee"), (linear_relu_split, "fp16x3")):
        for given in ((x, weight, bias), (x, weight, None)):
            leaves, usual = ([None if t is None else t.clone().requires_grad_() for t in given] for _ in range(2))
            torch.library.opcheck(own.call, (*(given if given[2] is None else leaves), how))
            y, expected = own(*leaves, how), torch.relu(torch.nn.functional.linear(*usual))
            torch.testing.assert_close(y, expected)
            for loss in (y, expected):
                loss.square().sum().backward()
            for one, other in zip(leaves, usual, strict=True):
                assert one is None or torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-5)
    once = split_once(weight)
    found = linear_relu_split_once(x, weight, once.values, once.exponents, bias, "fp16x3")
    assert torch.equal(found, linear_relu_split(x, weight, bias, "fp16x3"))
