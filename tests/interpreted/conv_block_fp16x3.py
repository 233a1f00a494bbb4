"""Triton's convolution block with float32's digits by three products of scaled float16 terms."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import torch
from refusals import refused
from torch.nn import functional
from torch.nn import grad as grad_of

from hypatia_lab import check
from hypatia_lab.kernels.conv_block import conv_block_backward as back
from hypatia_lab.kernels.conv_block import conv_block_triton
from hypatia_lab.kernels.conv_block.conv_block_triton import Config, conv_block_forward
from hypatia_lab.kernels.conv_block.convolution import Patch, convolve, pixels_first
from hypatia_lab.kernels.conv_block.scaled_terms import scaled_terms
from hypatia_lab.kernels.conv_block.weight_gradient_split import row_terms, shares_of
from hypatia_lab.operations import conv_block as peers
from hypatia_lab.operations.conv_block.own import fused_conv_block
from hypatia_lab.workloads import UNIT, Workload

# Who leaves an element unwritten, or reads one before it is written, shows it: new memory is full of NaN.
torch.use_deterministic_algorithms(True)

SMALL = Config(Patch(4, 16, 16, 16), pixels=16, times=2)
"""Several steps of channels, and patches that reach beyond the image."""

SQUARE = Patch(8, 8, 32, 32)


def conv_block(x, weight, bias, gamma, beta, approximate="none", **how):
    return conv_block_forward(x, weight, bias, gamma, beta, approximate=approximate, precision="fp16x3", **how)[0]


def problem_of(*shape, operation="conv_block"):
    return check.Problem(Workload(operation, shape), "cpu")


def off(out, right):
    """Errors of the norm and of the largest element."""
    difference = out.double() - right
    return float(difference.norm() / right.norm()), float(difference.abs().max())


def tensors(problem):
    return [problem.inputs[name] for name in peers.PARAMETERS]


def drawn(n, inner, outer, height, width):
    """x, and W that keeps its variance."""
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(n, inner, height, width, generator=g), torch.randn(outer, inner, 3, 3, generator=g)
    return x, weight * (9 * inner) ** -0.5


def convolved(x, weight, patch=SQUARE):
    pixels = pixels_first(x)
    taps = pixels_first(weight).view(len(weight), 9, x.shape[1])
    return convolve(pixels, taps, None, patch, precision="fp16x3").permute(0, 3, 1, 2)


def check_it_is_as_near_float64_as_eager():
    for shape, (operation, approximate) in zip(((1, 66, 9, 13), (2, 130, 5, 7)), peers.OPERATIONS.items(), strict=True):
        problem = problem_of(*shape, operation=operation)
        given, right = tensors(problem), problem.references()[0]
        usual = off(peers.conv_block(*given, approximate), right)
        found = off(conv_block(*given, approximate), right)
        assert all(own <= 1.25 * eager for own, eager in zip(found, usual, strict=True)), (shape, found, usual)


def check_float32s_own_bound_holds_at_odd_shapes_and_any_cut():
    pointers = Config(Patch(8, 8, 32, 64, load=False, store=False), pixels=128, times=1)
    for shape, tiles in (
        ((2, 5, 9, 13), None),
        ((1, 1, 9, 5), None),
        ((1, 3, 1, 37), SMALL),
        ((1, 40, 7, 5), SMALL),
        ((2, 21, 7, 10), pointers),
        ((1, 16, 2, 1), pointers),
    ):
        problem = problem_of(*shape)
        off_by = off(conv_block(*tensors(problem), tiles=tiles), problem.references()[0])[0]
        assert off_by <= problem.workload.tolerance(), (shape, tiles)
    # Other channels out than in.
    for inner, outer in ((3, 20), (20, 3), (17, 130)):
        x, weight = drawn(2, inner, outer, 6, 9)
        exact = functional.conv2d(x.double(), weight.double(), padding=1)
        assert off(convolved(x, weight), exact)[0] <= 2e-7
    # Matrix units sum no more products than that before they are added with rounding to nearest.
    assert all(config.patch.inner <= 64 for config in conv_block_triton._CONFIGS["fp16x3"])


def check_two_terms_hold_22_bits_of_every_magnitude():
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(9, 37, generator=g) * torch.logspace(-44, 37, 9)[:, None]
    rows[:, 5:] *= torch.logspace(0, -6, 32)
    rows[3] = 0
    large, small, scales = scaled_terms(rows, dependent=False)[0]
    held = (large.double() + small.double()) * scales.double()[:, None]
    most = rows.double().abs().amax(1, keepdim=True)
    wrong = (held - rows.double()).abs() - torch.maximum(2.0**-22 * rows.double().abs(), 2.0**-38 * most)
    assert float(wrong.max()) <= 2.0**-149
    assert bool((large.abs() <= 2.0**15).all())
    # Pieces of a row come out as a row in one piece.
    long = torch.randn(3, 2500, generator=g)
    (large, small, scales), shortened = (
        scaled_terms(long, dependent=False)[0],
        scaled_terms(long[:, :1000].contiguous(), dependent=False)[0],
    )
    assert float(((large.double() + small) * scales[:, None] - long).abs().max()) <= 2.0**-22 * float(long.abs().max())
    assert bool((shortened[2] <= scales).all())


def check_every_magnitude_and_sums_that_cancel():
    """Elements are off by what float32's own products may be off: of the sum of all products' magnitudes."""
    x, weight = drawn(2, 24, 20, 6, 9)
    ranges = torch.linspace(-100, 100, 6).round(), torch.linspace(-100, 20, 20).round()
    spread = torch.ldexp(x.double(), ranges[0][:, None]).float(), torch.ldexp(weight, ranges[1][:, None, None, None])
    opposite = x.clone(), weight.clone()
    opposite[0][:, 12:] = x[:, :12] * (1 + 2.0**-14)
    opposite[1][:, 12:] = -weight[:, :12]
    quiet = x * torch.logspace(0, -8, 24).view(1, -1, 1, 1), weight
    pairs = [spread, opposite, quiet]
    pairs += [(x * scale, weight / scale) for scale in (1e-36, 1e-30, 1e-15, 1e15, 1e30, 1e37)]
    pairs += [(x * scale, weight) for scale in (1e-40, 1e-30, 1e30)]
    for number, given in enumerate(pairs):
        wide = [tensor.double() for tensor in given]
        exact = functional.conv2d(*wide, padding=1)
        size = functional.conv2d(*(tensor.abs() for tensor in wide), padding=1)
        wrong = (convolved(*given).double() - exact).abs()
        assert bool((wrong <= 1e-6 * size + 2.0**-110 * (size > 0)).all()), number
    # The largest numbers there are, which cancel.
    x, weight = torch.full((1, 34, 3, 3), torch.finfo(torch.float32).max), torch.full((1, 34, 3, 3), 0.5)
    weight[:, ::2] = -0.5
    assert not convolved(x, weight, Patch(8, 8, 16, 64)).any()


def check_the_block_at_every_scale():
    problem = problem_of(1, 64, 8, 13)
    x, weight, bias, *others = tensors(problem)
    usual = off(peers.conv_block(x, weight, bias, *others), problem.references()[0])
    for scale in (1e-30, 1e-10, 1e10, 1e30):
        found = off(conv_block(x * scale, weight / scale, bias, *others), problem.references()[0])
        # x and W are rounded anew, and what is right with them.
        assert found[0] <= 1.25 * usual[0] + UNIT["float32"], (scale, found)
    # Constant planes: what is left is beta.
    for given in ((x * 0, weight), (x, weight * 0), (x * 1e-30, weight * 1e-10)):
        out = conv_block(*given, None, *others)
        expected = functional.gelu(others[1]).view(1, -1, 1, 1).expand_as(out)
        torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)


def check_infinities_and_nan_are_nan_in_their_planes_as_eagers():
    for place, value in ((0, float("nan")), (0, float("inf")), (1, float("-inf")), (1, float("nan"))):
        problem = problem_of(2, 9, 7, 6)
        given = tensors(problem)
        given[place][1, 3, 2, 1] = value
        found, usual = conv_block(*given), peers.conv_block(*given)
        assert bool((found.isnan() == usual.isnan()).all()), (place, value)
        assert bool(usual.isnan().any())
        assert not bool(usual.isnan().all())
        torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-5, equal_nan=True)
    given[2][0] = float("nan")
    assert bool(conv_block(*given)[:, 0].isnan().all())


def check_gradients_and_refusals():
    problem = check.Problem(Workload("conv_block", (2, 16, 9, 7), direction="forward_backward"), "cpu")
    leaves = [tensor.detach().requires_grad_() for tensor in tensors(problem)]
    y = fused_conv_block(*leaves, form="triton", precision="fp16x3")
    parts = (y.detach(), *torch.autograd.grad(y, leaves, problem.inputs["grad"]))
    found = check.judge(parts, problem)
    assert found.ok, found.reason
    x, weight = drawn(1, 16, 16, 5, 6)
    pixels, taps = pixels_first(x), pixels_first(weight).view(16, 9, 16)
    refused(lambda: convolve(pixels, taps, None, SMALL.patch, precision="fp16x3", adjoint=True), "no adjoint")
    # What has 16 bits is not split.
    halves = [tensor.half() for tensor in tensors(problem)]
    assert torch.equal(conv_block(*halves), conv_block_forward(*halves)[0])


def gradients(problem, form):
    """Of x, weight, gamma and beta; a plane's mean takes the bias's away."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors(problem)]
    of_x, of_weight, _, *others = torch.autograd.grad(form(*leaves), leaves, problem.inputs["grad"])
    return of_x, of_weight, *others


def own(approximate):
    return lambda *given: fused_conv_block(*given, approximate=approximate, form="triton", precision="fp16x3")


def usual(approximate):
    return lambda *given: peers.conv_block(*given, approximate)


def check_gradients_are_as_near_float64_as_eagers():
    for shape, operation in (
        ((1, 66, 9, 5), "conv_block"),
        ((2, 16, 9, 70), "conv_block_tanh"),
        ((3, 5, 6, 4), "conv_block"),
    ):
        problem = check.Problem(Workload(operation, shape, direction="forward_backward"), "cpu")
        approximate = peers.OPERATIONS[operation]
        _, of_x, of_weight, _, *others = problem.references()
        eager = gradients(problem, usual(approximate))
        for part, found, peer, right in zip(
            range(4), gradients(problem, own(approximate)), eager, (of_x, of_weight, *others), strict=True
        ):
            assert off(found, right)[0] <= 1.25 * off(peer, right)[0] + 1e-7, (shape, part, off(found, right))


def check_the_weights_gradient_at_every_magnitude():
    """Pixels whose sizes differ, and both factors of any size: off by what float32's own products may be off."""
    g = torch.Generator().manual_seed(0)
    grad, x = torch.randn(2, 6, 9, 20, generator=g), torch.randn(2, 6, 9, 17, generator=g)
    spread, little = (torch.logspace(0, least, 9).view(1, 1, 9, 1) for least in (-12, -3))
    cut = back.candidates((2, 17, 20, 6, 9), split=True)[0].slice
    for first, second, uneven in (
        (grad, x, 0),
        (grad * little, x * little.flip(2), 0),
        (grad * spread, x, 12),
        (grad * spread, x * spread.flip(2), 24),
        (grad * 1e-30, x * 1e30, 12),
        (grad * 1e30, x * 1e-36, 12),
        (grad * 1e-20, x * 1e-10, 12),
        (grad * 0, x, 0),
    ):
        by_pixel = [scaled_terms(tensor, dependent=False)[0] for tensor in (first, second)]
        flags = torch.full((2, 2, 6), -1, dtype=torch.int32)
        by_row = [row_terms(tensor, flags[number]) for number, tensor in enumerate((first, second))]
        assert int(flags.sum()) == uneven

        def exactly(first, second):
            planes, channels = second.double().permute(0, 3, 1, 2), first.double().permute(0, 3, 1, 2)
            return grad_of.conv2d_weight(planes, (20, 17, 3, 3), channels, padding=1)

        exact, size = exactly(first, second), exactly(first.abs(), second.abs())
        for found in (shares_of(*by_pixel, cut), shares_of(*by_row, cut, flags)):
            of_weight = found.sum(0).view(20, 3, 3, 17).permute(0, 3, 1, 2)
            assert bool(((of_weight.double() - exact).abs() <= 1e-6 * size).all())
