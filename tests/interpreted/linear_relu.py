"""Triton's Linear+ReLU, of whole and of split operands."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import itertools

import torch
from refusals import refused

from hypatia_lab.kernels.linear_relu import linear_relu_split as split
from hypatia_lab.kernels.linear_relu import linear_relu_triton as module
from hypatia_lab.kernels.linear_relu.linear_relu_split import SPLITS, linear_relu_split, split_once
from hypatia_lab.kernels.linear_relu.linear_relu_triton import Config, linear_activation
from hypatia_lab.kernels.linear_relu.split_products import Plan


def drawn(batch, inner, outer, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=g).to(dtype) for shape in ((batch, inner), (outer, inner), (outer,)))


def agrees(out, x, weight, bias, tolerance):
    expected = (x.double() @ weight.double().T + (0 if bias is None else bias.double())).relu()
    assert out.shape == expected.shape
    assert out.dtype == x.dtype
    assert float((out.double() - expected).norm()) <= tolerance * float(expected.norm()), out.shape


def ways(x, weight, bias, **how):
    yield linear_activation(x, weight, bias, **how)
    for terms in SPLITS:
        out = linear_relu_split(x, weight, bias, terms=terms, **how)
        # Split before or with x, the weights' terms are the same.
        once = linear_relu_split(x, split_once(weight, terms), bias, terms=terms, **how)
        torch.testing.assert_close(once, out, rtol=0, atol=0, equal_nan=True)
        yield out


def check_float64_at_odd_shapes_and_any_cut():
    tiles = Config(16, 16, 32)
    for shape in ((1, 1, 1), (2, 69, 7), (17, 40, 20)):
        x, weight, bias = drawn(*shape)
        for out in ways(x, weight, bias, tiles=tiles):
            agrees(out, x, weight, bias, 4e-7)
        x, weight, bias = drawn(*shape, torch.float16)
        agrees(linear_activation(x, weight, bias, tiles=tiles), x, weight, bias, 1e-3)
    x, weight, bias = drawn(7, 129, 127)
    agrees(linear_activation(x, weight, bias), x, weight, bias, 4e-7)
    # Several tiles a program, halves of tiles, plain pointers, a ragged group of tiles.
    x, weight, bias = drawn(34, 40, 20)
    for how in ({"resident": 1}, {"halves": True}, {"load": False, "store": False}, {"group": 2}):
        agrees(linear_activation(x, weight, bias, tiles=Config(16, 16, 32, **how)), x, weight, bias, 4e-7)
    x = x[:17]
    agrees(linear_relu_split(x, weight, bias, tiles=Config(16, 16, 32, apart=True)), x, weight, bias, 4e-7)


def check_rounding_to_the_nearest_tf32():
    def nearest(values):
        bits = values.view(torch.int32)
        return torch.where(values.isfinite(), ((bits + 0x1000) & ~0x1FFF).view(torch.float32), values).double()

    x, weight, bias = drawn(17, 70, 20)
    x[3, 5], x[4, 6], weight[2, 1] = float("inf"), float("nan"), 1 + 2.0**-11  # a tie
    pointers = Config(16, 16, 32, load=False)
    found = linear_activation(x, weight, bias, precision="tf32", tiles=pointers)
    expected = torch.relu(nearest(x) @ nearest(weight).T + bias.double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not torch.equal(found, linear_activation(x, weight, bias, tiles=pointers))
    halves = x[:3].half(), weight.half(), bias.half()
    assert torch.equal(
        linear_activation(*halves, precision="tf32", tiles=pointers), linear_activation(*halves, tiles=pointers)
    )

    # Descriptors round where they are asked to.
    for rounded in (False, True):
        assert (
            getattr(module.operand_tiles(torch.ones(16, 16), [16, 16], rounded), "round_f32_to_tf32", False) == rounded
        )


def check_any_rank_of_batch_strided_inputs_and_no_bias():
    x, weight, bias = drawn(3, 24, 4)
    spread = torch.stack([bias, bias], 1)[:, 0]
    strided, across, wide = torch.stack([x, -x], -1)[..., 0], weight.t().contiguous().t(), torch.cat([x, x], 1)[:, :24]
    for given in ((strided, weight, bias), (wide, across, spread), (x, weight, None)):
        for out in ways(*given):
            agrees(out, *given, 4e-7)
    for batch in ((), (2, 3), (0,), (3, 0)):
        many = torch.randn(*batch, 24)
        for out in ways(many, weight, bias):
            assert out.shape == (*batch, 4)
            torch.testing.assert_close(out, torch.relu(many @ weight.T + bias), rtol=1e-4, atol=1e-5)
    for given in ((torch.ones(3, 0), torch.ones(4, 0), bias), (torch.ones(3, 0), torch.ones(4, 0), None)):
        for out in ways(*given):
            torch.testing.assert_close(out, torch.relu(torch.nn.functional.linear(*given)))
    # Rows longer than a program holds come out as those that fit, bit for bit.
    x, weight, bias = drawn(2, 77, 3)
    x[0, 76], weight[1, 40] = 1e4, -1e5
    whole = [linear_relu_split(x, weight, bias, terms=terms) for terms in SPLITS]
    split.LONGEST = 32
    for terms, expected in zip(SPLITS, whole, strict=True):
        assert torch.equal(linear_relu_split(x, weight, bias, terms=terms), expected)
    x[0, 76], weight[1, 40] = 10, -10
    for terms in SPLITS:
        agrees(linear_relu_split(x, weight, bias, terms=terms), x, weight, bias, 4e-7)


def check_infinities_nan_and_every_magnitude():
    inf, nan, same = float("inf"), float("nan"), torch.testing.assert_close
    x, weight, bias = drawn(8, 40, 19)
    x[0, 3], x[1, 5], x[2, 0], x[2, 7], x[3], x[4, 39] = nan, inf, inf, -inf, inf, inf  # the last one in the last tile
    weight[0, 5], weight[1, 9], weight[2, 4], weight[3] = 0, inf, nan, -inf
    # A number lost beside its row's largest keeps the sign of its product with an infinity; an exact one has no rest.
    weight[4, 5], weight[4, 0], weight[5, 5] = -1e-30, 1e10, 1.0
    x[5, 9], x[6, 9], x[7, 9], bias[7] = 1.0, -1e-38, 1.5, inf
    expected = torch.relu(torch.nn.functional.linear(x.double(), weight.double(), bias.double())).float()
    assert 50 < int(expected.isnan().sum()) < 200
    assert int(expected.isinf().sum()) > 20
    for out in ways(x, weight, bias, tiles=Config(16, 16, 16)):
        same(out, expected, equal_nan=True, rtol=1e-5, atol=1e-5)
    # Every row of its own magnitude, from subnormal to the largest, in one product.
    x, weight, _ = drawn(10, 40, 12)
    rows, columns = torch.linspace(-140, 124, 10), torch.linspace(-124, 100, 12)
    x = torch.ldexp(x.double(), rows.round()[:, None]).float()
    weight = torch.ldexp(weight.double(), columns.round()[:, None]).float()
    exact = (x.double() @ weight.double().T).relu()
    scale = (x.double().abs() @ weight.double().abs().T).float().double()
    for terms in SPLITS:
        out = linear_relu_split(x, weight, None, terms=terms).double()
        normal = exact.abs() < 3e38
        assert int((exact > 0).sum()) > 40
        assert int((~normal).sum()) > 5
        assert bool(((out - exact).abs() <= 1e-6 * scale + 2.0**-149)[normal].all())
        assert bool(out[~normal].isinf().all())
    # The largest numbers there are: their terms do not overflow, nor do sums on the way.
    top = torch.finfo(torch.float32).max
    x, weight = torch.full((2, 34), top), torch.full((3, 34), 0.5)
    weight[:, 17:] = -0.5
    weight[1, :2] = 0.75
    for terms in SPLITS:
        out = linear_relu_split(x, weight, None, terms=terms)
        same(out, torch.tensor([0.0, 0.5 * top, 0.0]).expand(2, 3), rtol=1e-6, atol=0.0)
    # Zeros.
    for out in ways(torch.zeros(3, 8), torch.zeros(4, 8), None):
        assert not out.any()


def check_refusals():
    x, weight, bias = drawn(6, 24, 9)
    misfits = [
        ((x[:, :-1], weight, bias), "do not fit"),
        ((x, weight[0], bias), "do not fit"),
        ((x[0, 0], weight, bias), "do not fit"),
        ((x, weight, bias[:-1]), "bias"),
        ((x, weight, bias[0]), "bias"),
        ((x.half(), weight, bias), "is torch.float"),
        ((x.int(), weight.int(), bias.int()), "x is torch.int32"),
        ((x, weight.to("meta"), bias), "weight is on meta"),
        ((x, weight.clone().requires_grad_(), bias), "weight requires a gradient"),
    ]
    for (given, message), function in itertools.product(misfits, (linear_activation, linear_relu_split)):
        refused(lambda given=given, function=function: function(*given), message)
    with torch.no_grad():
        linear_relu_split(x, weight.clone().requires_grad_(), bias)
    refused(lambda: linear_activation(x, weight, precision="int8"), "int8")
    refused(lambda: linear_relu_split(x, weight, terms="int8"), "int8")
    # What was split before is refused once its numbers are others.
    once = split_once(weight)
    agrees(linear_relu_split(x, once, bias), x, weight, bias, 4e-7)
    weight.mul_(2)
    refused(lambda: linear_relu_split(x, once, bias), "has changed since")
    refused(lambda: linear_relu_split(x, split_once(weight), bias, terms="tf32x3"), "it is fp16x3, not tf32x3")
    refused(lambda: split_once(weight, "int8"), "int8")
    refused(lambda: linear_relu_split(x, weight, bias, tiles=Plan()), "x is on cpu; the CUDA kernel needs")
    refused(lambda: linear_relu_split(x, weight, bias, cuda=True), "x is on cpu; the CUDA kernel needs")
    refused(lambda: linear_relu_split(x, weight, bias, terms="tf32x3", tiles=Plan()), "not tf32x3")
    refused(lambda: split_once(weight.half()), "must be a float32 matrix")
    agrees(linear_relu_split(x, split_once(weight), bias), x, weight, bias, 4e-7)
