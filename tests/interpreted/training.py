"""The lab's convolution block under autograd, both passes by its Triton kernels."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch

from hypatia_lab import training
from hypatia_lab.operations.conv_block import PARAMETERS, conv_block
from hypatia_lab.workloads import Workload


def drawn(**how):
    inputs = Workload("conv_block", (1, 3, 4, 5)).inputs("cpu")
    return [inputs[name].detach().requires_grad_(how.get(name, True)) for name in PARAMETERS]


def check_a_block_gives_the_gradients_that_are_asked_for():
    own = training._own_block("triton", "none", "ieee")
    for frozen in ((), ("weight", "bias")):
        given: Any = drawn(**dict.fromkeys(frozen, False))
        wanted = [one for one in given if one.requires_grad]
        y, usual = own(*given), conv_block(*given)
        assert y.is_contiguous()
        torch.testing.assert_close(y, usual, rtol=1e-4, atol=1e-5)
        grad = torch.linspace(-1, 1, 5).expand(y.shape)
        found, theirs = (torch.autograd.grad(one, wanted, grad) for one in (y, usual))
        for mine, one in zip(found, theirs, strict=True):
            torch.testing.assert_close(mine, one, rtol=1e-3, atol=1e-4)
    last = [one.to(memory_format=torch.channels_last) if one.dim() == 4 else one for one in drawn()]
    assert own(*last).is_contiguous(memory_format=torch.channels_last)


def check_a_block_is_differentiated_twice_by_pytorchs_own():
    found = []
    for form in (training._own_block("triton", "tanh", "ieee"), partial(conv_block, approximate="tanh")):
        given: Any = drawn()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            (first,) = torch.autograd.grad(form(*given).square().sum(), given[0], create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), [given[0], given[1], given[3]]))
    for mine, one in zip(*found, strict=True):
        torch.testing.assert_close(mine, one, rtol=1e-3, atol=1e-3)
