"""Triton's two products of a gradient in one kernel, and the operation on top."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import torch
from refusals import refused

from hypatia_lab.kernels.linear_relu.gradient_products import Plan, candidates, config, gradient_products
from hypatia_lab.kernels.linear_relu.linear_relu_triton import Config
from hypatia_lab.operations.linear_relu import own_backward as linear_relu_backward

# Either sum the longer one; tiles of one shape and of two; by descriptors, by masks, and by one of each; in any order.
PLANS = [
    Plan(Config(32, 32, 16), Config(32, 32, 16)),
    Plan(Config(64, 32, 32, group=2), Config(32, 64, 16, load=False), ahead=2),
    Plan(Config(64, 64, 32), Config(64, 64, 32), ahead=999),
]


def drawn(batch: int, inner: int, outer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    z, x, weight = (torch.randn(*shape).half() for shape in ((batch, outer), (batch, inner), (outer, inner)))
    return z, x, weight


def agrees(z, x, weight, found, needs=(True, True), summed=False) -> None:
    # The sum over the batch is a product, too.
    wanted = (z, weight), (z.t(), x), (z.t(), torch.ones(len(z)))
    for part, need, (left, right) in zip(found, (*needs, summed), wanted, strict=True):
        expected = left.double() @ right.double()
        assert part.dtype == z.dtype
        assert part.shape == (expected.shape if need else (0,))
        if need:
            assert float((part.double() - expected).norm()) <= 5e-4 * float(expected.norm()), expected.shape


def check_both_products_agree_with_float64(full: bool) -> None:
    torch.manual_seed(0)
    for shape in ((7, 69, 75), (1, 1, 1), (65, 127, 130), (96, 80, 104), (104, 80, 72))[: None if full else 1]:
        given = drawn(*shape)
        for plan in PLANS:
            agrees(*given, gradient_products(*given, plan=plan))
        # Shares of one part, of several, and of more than are added up at a time.
        for rows in (shape[0], 40, 4):
            shares = torch.stack([part.float().sum(0) for part in given[0].split(rows)])
            found, again = (gradient_products(*given, shares=shares, plan=PLANS[2]) for _ in range(2))
            agrees(*given, found, summed=True)
            assert all(torch.equal(*both) for both in zip(found, again, strict=True))
    given = drawn(40, 24, 80)
    agrees(*given, gradient_products(*given))
    for needs in ((True, False), (False, True), (False, False)):
        agrees(*given, gradient_products(*given, needs, plan=PLANS[1]), needs)
        shares = given[0].float().view(2, 20, 80).sum(1).t().contiguous().t()
        agrees(*given, gradient_products(*given, needs, shares=shares, plan=PLANS[1]), needs, summed=True)
    # Strided matrices, and rows that lie apart.
    z, x, weight = given
    strided = z.t().contiguous().t(), torch.cat([x, x], 1)[:, :24], torch.stack([weight, weight], -1)[..., 0]
    agrees(*given, gradient_products(*strided, plan=PLANS[0]))
    # Sums of nothing are zeros.
    for shape in ((0, 5, 3), (3, 5, 0), (3, 0, 5)):
        given = drawn(*shape)
        agrees(*given, gradient_products(*given))
        agrees(*given, gradient_products(*given, shares=given[0].float()), summed=True)
    # An infinity stays in its row and column.
    z[3, 4], x[5, 6] = float("inf"), float("nan")
    found = gradient_products(z, x, weight, shares=z.float(), plan=PLANS[0])
    for part, expected in zip(found, (z @ weight, z.t() @ x, z.sum(0)), strict=True):
        assert torch.equal(part.isfinite(), expected.isfinite())


def check_refusals() -> None:
    z, x, weight = drawn(40, 24, 80)
    meta, single = weight.to("meta"), x.float()
    for (*wrong, shares), message in (
        ((z[0], x, weight, None), "must be matrices"),
        ((z, x[:-1], weight, None), "x [39"),
        ((z, x, weight.t(), None), "weight [24"),
        ((z, x.bfloat16(), weight, None), "x is torch.bfloat16"),
        ((z.float(), single, weight.float(), None), "z is torch.float32"),
        ((z, x, meta, None), "weight is on meta"),
        ((z, x, weight, z), "shares must be a float32 (parts, 80), it is torch.float16"),
        ((z, x, weight, single), "it is torch.float32 [40, 24]"),
        ((z, x, weight, z[0].float()), "torch.float32 [80]"),
        ((z, x, weight, z.float().to("meta")), "shares is on meta"),
    ):
        refused(lambda wrong=wrong, shares=shares: gradient_products(*wrong, shares=shares), message)
    refused(lambda: candidates((1, 1, 1), torch.float32), "torch.float32 is none of")
    refused(lambda: Plan(Config(64, 64, 64), Config(64, 64, 64, 8)), "differ in warps")


def check_the_first_candidate_is_the_usual_plan() -> None:
    for shape in ((1, 1, 1), (1024, 784, 2048), (8192, 4096, 4096)):
        tried = candidates(shape, torch.float16)
        assert tried[0] == config(shape, torch.float16)
        assert config(shape, torch.float16, dependent=True) in tried


def check_the_operation_on_top_as_a_servers_gpu_takes_it() -> None:
    torch.manual_seed(0)
    linear_relu_backward.server_gpu = lambda tensor: True

    def meta(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.float16, device="meta")

    # The large sizes stay the library's.
    size = linear_relu_backward.size_for_own
    assert size(meta(2, 512, 784), meta(2048, 784)) == "medium"
    assert size(meta(8192, 4096), meta(4096, 4096)) not in linear_relu_backward.OWN_PRODUCTS
    assert size(meta(8, 8).float(), meta(8, 8).float()) == ""
    grad, x, weight = drawn(6, 24, 16)
    y = torch.nn.functional.linear(x, weight).relu()
    found = linear_relu_backward.linear_relu_fused(x, weight, None)
    torch.testing.assert_close(found, y, rtol=2e-3, atol=2e-3)
    for batch, needs in (
        (6, (True, True)),
        (6, (True, False)),
        (6, (False, True)),
        (70, (True, True)),
        (0, (True, True)),
    ):
        grad, x, weight = drawn(batch, 24, 16)
        y = torch.nn.functional.linear(x, weight).relu()
        shaped = tuple(tensor.view(2, batch // 2, tensor.shape[1]) for tensor in (grad, x, y))
        grad_x, *others = linear_relu_backward.linear_relu_gradients(shaped[0], shaped[1], weight, shaped[2], *needs)
        assert not needs[0] or grad_x.shape == shaped[1].shape
        z = torch.ops.aten.threshold_backward(grad, y, 0)
        agrees(z, x, weight, (grad_x.view(x.shape) if needs[0] else grad_x, *others), needs, summed=True)
