"""Triton's linear layer with a ReLU, a GELU, both or neither behind it.

bfloat16 is left out: the interpreter multiplies it as integers. float16 goes the same way through the kernel.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as functional
from refusals import refused

from hypatia_lab.check import Problem, check
from hypatia_lab.kernels.linear_relu.linear_relu_triton import Config, linear_activation
from hypatia_lab.operations.linear_gelu import OPERATIONS, linear_activation_triton
from hypatia_lab.variants import find
from hypatia_lab.workloads import Workload

HOWS: tuple[dict[str, Any], ...] = tuple(
    {"relu": relu, "approximate": form} for relu, form in itertools.product((False, True), (None, "none", "tanh"))
)


def drawn(batch: int, inner: int, outer: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    shapes = ((batch, inner), (outer, inner), (outer,))
    x, weight, bias = (torch.randn(*shape, generator=g).to(dtype) for shape in shapes)
    return x, weight * inner**-0.5, bias


def exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, how: dict[str, Any]) -> torch.Tensor:
    """By PyTorch in float64, whose float32 GELU of an infinity is NaN on a CPU."""
    y = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    y = y.relu() if how["relu"] else y
    return y if how["approximate"] is None else functional.gelu(y, approximate=how["approximate"])


def agrees(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, how: dict[str, Any], **more: Any) -> None:
    out, expected = linear_activation(x, weight, bias, **how, **more), exact(x, weight, bias, how)
    assert out.dtype == x.dtype
    close = {"rtol": 1e-3, "atol": 1e-3} if x.dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 2e-6}
    torch.testing.assert_close(out.double(), expected, equal_nan=True, **close)


def check_every_epilogue_at_odd_shapes() -> None:
    tiles = Config(16, 16, 32)
    for how in HOWS:
        for shape in ((1, 1, 1), (2, 69, 7), (17, 40, 20)):
            agrees(*drawn(*shape), how, tiles=tiles)
        agrees(*drawn(17, 40, 20, torch.float16), how, tiles=tiles)


def check_the_variants_write_all_of_fresh_memory() -> None:
    """Which holds NaN before, at the shapes that the lab itself checks."""
    for operation, dtype in itertools.product(OPERATIONS, ("float32", "float16")):
        for shape in ((3, 77, 29), (33, 17, 65)):
            problem = Problem(Workload(operation, shape, dtype), "cpu")
            found = check(find(operation, "triton").factory(problem.workload, problem.inputs), problem)
            assert found.ok, (operation, dtype, shape, found.reason)


def check_nan_and_infinities_go_through_as_in_torch() -> None:
    x, weight, bias = drawn(8, 24, 19)
    x[0, 3], x[1, 5], x[2, 0], x[2, 7], x[3] = (float(word) for word in ("nan", "inf", "inf", "-inf", "-inf"))
    x[4], weight[2, 4], bias[7], bias[8] = 1e30, float("nan"), float("inf"), -float("inf")
    for how, dtype in itertools.product(HOWS, (torch.float32, torch.float16)):
        agrees(x.to(dtype), weight.to(dtype), bias.to(dtype), how)


def check_any_rank_of_batch_strided_inputs_and_no_bias() -> None:
    x, weight, bias = drawn(6, 24, 4)
    spread = torch.stack([bias, bias], 1)[:, 0]
    strided, across, wide = torch.stack([x, -x], -1)[..., 0], weight.t().contiguous().t(), torch.cat([x, x], 1)[:, :24]
    batches = [(one, weight, bias) for one in (x.view(2, 3, 24), x[0], x[:0], x.view(2, 3, 24)[:, :0])]
    for given in ((strided, weight, bias), (wide, across, spread), (x, weight, None), *batches):
        agrees(*given, HOWS[-1])
    agrees(torch.ones(3, 0), torch.ones(4, 0), bias, HOWS[1])


def check_the_operator_is_one_and_has_no_gradient() -> None:
    x, weight, bias = drawn(3, 24, 8)
    for b, form in ((bias, "none"), (None, None)):
        torch.library.opcheck(linear_activation_triton.call, (x, weight, b, True, form, "ieee"))
    y = linear_activation_triton(x.requires_grad_(), weight, bias, False, "tanh", "ieee")
    refused(lambda: y.sum().backward(), "a fused GELU is for inference here", NotImplementedError)


def check_another_gelu_is_refused() -> None:
    refused(lambda: linear_activation(*drawn(6, 24, 9), approximate="erf"), "approximate 'erf' is none of none, tanh")
