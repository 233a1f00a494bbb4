"""The products of a gradient of operands that are split in two terms of float16."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import torch
from refusals import refused

from hypatia_lab.kernels.linear_relu import gradient_products_split as split
from hypatia_lab.kernels.linear_relu.gradient_products import Plan
from hypatia_lab.kernels.linear_relu.linear_relu_triton import Config
from hypatia_lab.operations.linear_relu import tensor_cores  # noqa: F401  (registers the operators)

split.FIND_TILE, split.SPLIT_TILE = (16, 32), (32, 16)
SMALL = Plan(Config(32, 16, 32, group=2), Config(16, 32, 16, group=2, store=False))
nan, inf = float("nan"), float("inf")
torch.manual_seed(0)


def drawn(batch, inner, outer):
    x, weight, y, grad = (torch.randn(*n) for n in ((batch, inner), (outer, inner), (batch, outer), (batch, outer)))
    return grad, x, weight, y.relu()


def exact(grad, x, weight, y):
    z = torch.where(y <= 0, 0.0, grad).double()
    return z @ weight.double(), z.T @ x.double(), z.sum(0)


def agrees(given, plan=None, needs=(True, True)):
    found = split.gradient_products_split(*given, needs, plan=plan)
    for own, right, needed in zip(found, exact(*given), (*needs, True), strict=True):
        assert own.dtype == torch.float32
        assert own.shape == (right.shape if needed else (0,))
        assert not needed or float((own.double() - right).norm()) <= 3e-7 * float(right.norm()), given[1].shape
    return found


def check_float64_at_odd_shapes_and_strides(full: bool) -> None:
    for shape in ((1, 1, 1), (7, 37, 69), (128, 1, 3), (33, 40, 36))[: 4 if full else 2]:
        agrees(drawn(*shape), SMALL)
    agrees(drawn(34, 45, 50))
    given = drawn(40, 36, 33)
    whole = agrees(given, SMALL)
    for needs in ((True, False), (False, True), (False, False)):
        part = agrees(given, SMALL, needs)
        assert all(
            torch.equal(one, other) for one, other, needed in zip(part, whole, (*needs, True), strict=True) if needed
        )
    _, x, weight, y = drawn(17, 20, 18)
    wide = torch.randn(18, 40)
    for grad in (wide[:17, :18], wide[:17, :36:2], wide[:1, :1].expand(17, 18), wide.t()[:17]):
        agrees((grad, x, weight, y), SMALL)
    agrees((wide.t()[:17], wide[:17, 1:21], weight.t().contiguous().t(), y), SMALL)
    for shape in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
        given = drawn(*shape)
        for own, right in zip(split.gradient_products_split(*given), exact(*given), strict=True):
            torch.testing.assert_close(own, right.float())


def check_each_row_and_column_may_have_its_own_magnitude() -> None:
    """From subnormal to the largest: no element is off by more than its terms allow."""
    for rows in (True, False):
        grad, x, weight, y = drawn(20, 12, 16)
        up = torch.linspace(-140, 100, 20 if rows else 16).round()
        grad = torch.ldexp(grad.double(), up[:, None] if rows else up).float()
        x, weight = (torch.ldexp(a.double(), torch.linspace(-60, 20, 12).round()).float() for a in (x, weight))
        z = torch.where(y <= 0, 0.0, grad).double()
        found = split.gradient_products_split(grad, x, weight, y, plan=SMALL)
        for own, a, b in ((found[0], z, weight), (found[1], z.T, x)):
            a, b = a.double(), b.double()
            peaks = a.abs().amax(1, keepdim=True) * b.abs().amax(0) * a.shape[1] * 2.0**-38
            scale = a.abs() @ b.abs()
            held = scale < 3e38
            assert bool(((own.double() - a @ b).abs() <= 1e-6 * scale + peaks + 2.0**-149)[held].all()), rows
            assert int((own[held] != 0).sum()) > 50


def check_infinities_and_nan_where_pytorch_has_them() -> None:
    """Of their sign; a NaN in y lets the gradient through, a mask hides an infinity."""
    grad, x, weight, y = drawn(40, 36, 33)
    grad[0, 3], grad[1, 5], grad[2, 0], grad[2, 7], y[0, 3], y[1, 5], y[2, 0], y[2, 7] = nan, inf, inf, -inf, 1, 1, 1, 1
    grad[3, 4], y[3, 4], grad[5, 6], y[5, 6] = inf, 0, 2.0, nan
    x[4, 5], x[6, 7], weight[8, 9], weight[10, 11], weight[5, 20] = inf, nan, -inf, nan, 0
    y[4, :3], grad[4, 3], y[4, 3], grad[7, 8], y[7, 8] = 0, 1e-38, 1, -1e-38, 1
    expected = [one.float() for one in exact(grad, x, weight, y)]
    assert [int(one.isnan().sum()) for one in expected] != [0, 0, 0]
    assert any(one.isinf().any() for one in expected)
    for own, right in zip(split.gradient_products_split(grad, x, weight, y, plan=SMALL), expected, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-5, atol=1e-5, equal_nan=True)


def check_terms_for_the_cuda_kernel_lie_across_that_are_scaled_by_columns() -> None:
    """Where rows and columns are finite that is all."""

    def by_torch(products, *, plan):
        for *operands, out in products:
            (left, up), (right, across) = (
                (terms.large.double() + terms.small.double(), terms.exponents.double() - 141) for terms in operands
            )
            assert all(terms.large.stride(0) % 8 == 0 for terms in operands)
            out.copy_(torch.ldexp(left @ right.T, up[:, None] + across))

    products = split.split_products
    usual = products.ensure_able, products.multiply
    products.ensure_able, products.multiply = lambda x: None, by_torch
    for needs in ((True, True), (True, False), (False, True), (False, False)):
        agrees(drawn(40, 36, 33), products.Plan(), needs)
    products.ensure_able, products.multiply = usual


def check_an_operation_of_pytorchs() -> None:
    for batch in ((5,), (2, 3), ()):
        x, weight, bias = (torch.randn(*n, requires_grad=True) for n in ((*batch, 12), (3, 12), (3,)))
        upstream = torch.randn(*batch, 3)
        for given, b in (((x, weight, bias), bias), ((x, weight), None), ((bias,), bias)):
            y = torch.ops.hypatia.linear_relu_fp16x3(x, weight, b)
            right = torch.relu(torch.nn.functional.linear(x, weight, b))
            torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-5)
            own, other = (torch.autograd.grad(one, given, upstream) for one in (y, right))
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)


def check_refusals() -> None:
    grad, x, weight, y = drawn(5, 6, 7)
    run = split.gradient_products_split
    for given, message in (
        ((grad.double(), x, weight, y), "grad is torch.float64"),
        ((grad, x[0], weight, y), "x is torch.float32 [6]"),
        ((grad, x, weight[:, 1:], y), "weight [7, 5] does not fit"),
        ((grad[1:], x, weight, y), "grad [4, 7] is not of"),
        ((grad, x, weight, y[:, 1:]), "y [5, 6] is not of"),
        ((grad, x, weight.to("meta"), y), "weight is on meta"),
    ):
        refused(lambda given=given: run(*given), message)
    refused(lambda: run(grad, x, weight, y, cuda=True), "x is on cpu; the CUDA kernel needs compute capability 9.0")
