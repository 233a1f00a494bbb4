"""Triton's masked gradient, and its sums over rows or shares of them."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import torch
from refusals import refused

from hypatia_lab.kernels.linear_relu import masked_gradient as module
from hypatia_lab.kernels.linear_relu.masked_gradient import (
    Tile,
    candidates,
    column_tile,
    masked_gradient,
    masked_gradient_shares,
    share_tile,
)


def agrees(grad: torch.Tensor, y: torch.Tensor, tile: Tile | None = None) -> None:
    z, sums = masked_gradient(grad, y, tile=tile)
    expected = torch.ops.aten.threshold_backward(grad, y, 0)
    assert torch.equal(z, expected), (grad.dtype, grad.shape)
    assert sums.dtype == y.dtype
    assert sums.shape == y.shape[1:]
    close = {"rtol": 8e-3 if y.dtype.itemsize == 2 else 1e-5, "atol": 1e-5}
    torch.testing.assert_close(sums.double(), expected.double().sum(0), **close)
    z, shares = masked_gradient_shares(grad, y, tile=tile)
    assert torch.equal(z, expected), (grad.dtype, grad.shape)
    tile = tile or share_tile(y.shape)
    assert shares.dtype == torch.promote_types(y.dtype, torch.float32)
    assert shares.shape == (tile.programs(y.shape)[1], y.shape[1])
    for share, part in zip(shares, expected.double().split(tile.rows * tile.times), strict=False):
        torch.testing.assert_close(share.double(), part.sum(0), rtol=1e-5, atol=1e-5)
    again = masked_gradient_shares(grad, y, tile=tile)
    assert torch.equal(again[0], z)
    assert torch.equal(again[1], shares)


def check_the_triton_kernel_agrees_with_torch(full: bool) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16) if full else (torch.bfloat16,):
        for rows, columns, tile in (
            (1, 1, None),
            (7, 127, Tile(16, 32, 4)),
            (129, 3, Tile(32, 16, 4)),
            (0, 5, None),
            (5, 0, None),
            (80, 70, Tile(16, 32, 4, times=2)),
            (70, 100, None),
            (70, 200, Tile(64, 128, 8)),
        ):
            agrees(torch.randn(rows, columns).to(dtype), torch.randn(rows, columns).to(dtype).relu(), tile)
        if dtype in (torch.float64, torch.bfloat16):  # long columns in several parts, added up in either type of sum
            module.SPLIT_ROWS, usual = 1024, module.SPLIT_ROWS
            assert column_tile((2100, 3), dtype).programs((2100, 3)) == (1, 3)
            agrees(torch.randn(2100, 3).to(dtype), torch.randn(2100, 3).to(dtype).relu())
            module.SPLIT_ROWS = usual
        y = torch.randn(7, 20).to(dtype).relu()
        wide = torch.randn(20, 40).to(dtype)
        for grad in (wide[:7, :20], wide[:7, ::2], wide[:1, :1].expand(7, 20), wide[:, :7].t()):
            agrees(grad, y)
        y[0, 0] = float("nan")
        grad = wide[:, :7].t()
        assert torch.equal(masked_gradient(grad, y)[0], torch.ops.aten.threshold_backward(grad, y, 0))


def check_there_are_enough_programs_as_far_as_the_sizes_allow() -> None:
    """Those that own columns, and are enough, have final sums."""
    for shape, least in (((1024, 2048), 128), ((512, 1024), 64), ((256, 512), 64)):
        chosen, *others = candidates(shape, torch.bfloat16)
        assert chosen == share_tile(shape)
        assert chosen.programs(shape)[0] * chosen.programs(shape)[1] >= least
        assert chosen not in others
        assert others[-1] == column_tile(shape, torch.bfloat16)
        assert others[-1].programs(shape)[1] == 1


def check_refusals() -> None:
    y = torch.randn(7, 20)
    whole = y.int()
    for grad, other, name in (
        (y[:-1], y, "grad"),
        (y.double(), y, "grad"),
        (y[0], y[0], "y must"),
        (whole, whole, "y must"),
    ):
        for run in (masked_gradient, masked_gradient_shares):
            refused(lambda run=run, grad=grad, other=other: run(grad, other), name)
