"""The small kernel that a page shows whole, against float64; and its sweep, with nothing timed."""

from __future__ import annotations

import runpy

import torch
import triton
from refusals import refused

from hypatia_lab import paths

example = runpy.run_path(str(paths.HOME / "book" / "examples" / "fused_rows.py"))
fused, eager = example["bias_softmax"], example["eager"]
nan, inf = float("nan"), float("inf")


def check_rows_agree_with_float64() -> None:
    for shape in ((1, 1), (3, 5), (4, 64), (2, 129), (5, 1000), (0, 3)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x, bias = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
            rtol = torch.finfo(dtype).eps + 1e-5
            torch.testing.assert_close(fused(x, bias).double(), eager(x.double(), bias.double()), rtol=rtol, atol=1e-7)


def check_rows_with_nan_and_infinities() -> None:
    x = torch.tensor([[nan, 1, 2], [inf, 1, 2], [-inf, 1, 2], [-inf, -inf, -inf], [-nan, inf, -inf]])
    bias = torch.zeros(3)
    torch.testing.assert_close(fused(x, bias), eager(x, bias), equal_nan=True)


def check_rows_that_do_not_lie_one_after_another_are_refused() -> None:
    x = torch.ones(4, 6)
    refused(lambda: fused(x.t(), torch.ones(4)), "contiguous")
    refused(lambda: fused(x, torch.ones(12)[::2]), "contiguous")


def check_the_sweep_compares_every_form_and_times_it() -> None:
    called: list[int] = []
    triton.testing.do_bench = lambda run, return_mode: called.append(len(run())) or 1.0
    torch.compile = lambda function, dynamic: function
    example["sweep"](rows=3, device="cpu")
    assert called == [3] * 12
