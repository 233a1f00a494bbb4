"""Triton's Conv2d, InstanceNorm2d and GELU, forward and backward."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import itertools
from unittest import mock

import torch
from refusals import refused
from torch.nn import functional

from hypatia_lab.kernels.conv_block import conv_block_backward as back
from hypatia_lab.kernels.conv_block import conv_block_triton
from hypatia_lab.kernels.conv_block.conv_block_triton import Config, conv_block_forward
from hypatia_lab.kernels.conv_block.convolution import PRECISIONS, Patch, terms
from hypatia_lab.operations import conv_block as peers
from hypatia_lab.operations.conv_block.own import conv_block_fused, fused_conv_block

# The largest error of outputs of variance one. The interpreter cuts float32 off where a GPU rounds it to bfloat16.
TOLERANCES = {"ieee": 1e-5, "tf32": 2e-3, "bf16x3": 2e-4, "fp16x3": 1e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}


def conv_block(*given, **how):
    return conv_block_forward(*given, **how)[0]


def drawn(n, inner, outer, height, width, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(n, inner, height, width, generator=g), torch.randn(outer, inner, 3, 3, generator=g)
    bias, gamma, beta = torch.randn(3, outer, generator=g)
    given = (x, weight * (9 * inner) ** -0.5, bias + 3, 1 + gamma / 10, beta / 10)
    return [tensor.to(dtype) for tensor in given]


def expected(x, weight, bias, gamma, beta, approximate="none"):
    x, weight, bias, gamma, beta = (None if t is None else t.double() for t in (x, weight, bias, gamma, beta))
    normal = functional.instance_norm(functional.conv2d(x, weight, bias, padding=1), weight=gamma, bias=beta, eps=1e-5)
    return functional.gelu(normal, approximate=approximate)


def agrees(given, tolerance, approximate="none", **how):
    out = conv_block(*given, approximate=approximate, **how)
    reference = expected(*given, approximate)
    assert out.shape == reference.shape
    assert out.dtype == given[0].dtype
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert float((out.double() - reference).abs().max()) <= tolerance, (reference.shape, how)


def check_float64_at_odd_shapes_and_any_cut():
    for shape in ((1, 3, 16, 9, 13), (3, 16, 20, 9, 13)):
        for precision in PRECISIONS:
            agrees(drawn(*shape), TOLERANCES[precision], precision=precision)
        agrees(drawn(*shape), TOLERANCES["ieee"], "tanh")
        for dtype in (torch.float16, torch.bfloat16):
            agrees(drawn(*shape, dtype), TOLERANCES[dtype])
    for shape in ((1, 96, 3, 5, 4), (2, 1, 1, 1, 2), (1, 20, 130, 2, 1)):
        agrees(drawn(*shape), 1e-5)
    # More patches than the second kernel adds up at once.
    agrees(drawn(1, 4, 4, 67, 17), 1e-5, tiles=Config(Patch(1, 64, 16, 16), times=3))
    # Statistics by a kernel of their own: of many patches, and of many numbers whose channels are no whole vectors.
    for name, shape in (("MANY_PATCHES", (2, 16, 16, 41, 17)), ("LARGE", (2, 9, 11, 9, 13))):
        with mock.patch.object(conv_block_triton, name, 1):
            agrees(drawn(*shape), 1e-5, "tanh")
            agrees(drawn(*shape), TOLERANCES["fp16x3"], precision="fp16x3")
    # Several steps of channels, patches of several shapes, plain pointers, one run of pixels or many.
    given = drawn(2, 40, 36, 9, 13)
    for patch in (Patch(4, 16, 16, 16), Patch(16, 4, 64, 32), Patch(8, 8, 32, 64, load=False, store=False)):
        for pixels, times in ((16, 1), (16, 3), (128, 1)):
            agrees(given, 1e-5, tiles=Config(patch, pixels, times))
    # A mean far larger than the deviations.
    given = drawn(1, 16, 16, 9, 13)
    given[2] += 1000
    agrees(given, 2e-3)


def check_any_memory_format_no_parameters_no_images_and_nan_in_its_image():
    x, weight, bias, gamma, beta = drawn(2, 16, 16, 7, 6)
    last = torch.channels_last
    agrees((x.to(memory_format=last), weight.to(memory_format=last), bias, gamma, beta), 1e-5)
    agrees((x[..., ::2], weight, torch.stack([bias, bias], 1)[:, 0], gamma, beta), 1e-5)
    for parameters in ((None, gamma, beta), (bias, None, None), (None, None, None)):
        agrees((x, weight, *parameters), 1e-5)
    assert conv_block(x[:0], weight).shape == (0, 16, 7, 6)
    assert conv_block(x, weight[:0]).shape == (2, 0, 7, 6)
    x[1, 3, 2, 2] = float("nan")
    for precision in PRECISIONS:
        out = conv_block(x, weight, bias, gamma, beta, precision=precision)
        assert out[1].isnan().all()
        assert not out[0].isnan().any()
    large, small = terms(torch.tensor([1.0, -2.5, 1e-20, 3e38, float("inf"), 3.4e38]), "bf16x3", False)
    assert not small.isnan().any()
    assert small.isfinite().all()


def check_float64s_gradients():
    both, erf = ("none", "tanh"), ("none",)
    for shape, approximations in (((1, 3, 16, 9, 13), both), ((3, 16, 20, 9, 13), erf), ((2, 40, 3, 5, 7), erf)):
        for dtype, approximate in itertools.product((torch.float16, torch.float32, torch.bfloat16), approximations):
            given = drawn(*shape, dtype)
            y, saved = conv_block_forward(*given, approximate=approximate)
            grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            got = back.conv_block_backward(grad, *given[:2], *given[3:], saved, approximate=approximate)
            leaves = [tensor.double().requires_grad_() for tensor in given]
            normal = functional.instance_norm(
                functional.conv2d(*leaves[:3], padding=1), weight=leaves[3], bias=leaves[4], eps=1e-5
            )
            functional.gelu(normal, approximate=approximate).backward(grad.double())
            tolerance = {torch.float32: 2e-6, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
            for name, out, leaf in zip(back.Gradients._fields, got, leaves, strict=True):
                assert (out.shape, out.dtype) == (leaf.shape, dtype), name
                if name == "bias":
                    assert not out.any()
                    continue
                assert float((out.double() - leaf.grad).norm()) <= tolerance * float(leaf.grad.norm()), (
                    name,
                    shape,
                    dtype,
                )
    # However it is cut.
    given = drawn(2, 16, 32, 9, 13, torch.float16)
    y, saved = conv_block_forward(*given)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).half()
    first = back.conv_block_backward(grad, *given[:2], *given[3:], saved)
    patch, cut = Patch(4, 16, 16, 16), back.Slice(2, 16, 16, 16, 3)
    for plan in (
        back.Plan(patch, cut, pixels=16, runs=2),
        back.Plan(Patch(8, 8, 16, 32, load=False), back.Slice(1, 16, 32, 16, 1, load=False), pixels=128, runs=1),
    ):
        for one, other in zip(
            first, back.conv_block_backward(grad, *given[:2], *given[3:], saved, plan=plan), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)
    _, empty = conv_block_forward(given[0][:0], *given[1:])
    none = back.conv_block_backward(grad[:0], given[0][:0], given[1], *given[3:], empty)
    assert none.x.shape == (0, 16, 9, 13)
    assert not none.weight.any()
    assert none.weight.shape == (32, 16, 3, 3)
    y, saved = conv_block_forward(*given[:3])
    unscaled = back.conv_block_backward(grad, *given[:2], None, None, saved)
    scaled = back.conv_block_backward(grad, *given[:2], torch.ones(32).half(), torch.zeros(32).half(), saved)
    assert all(torch.equal(*pair) for pair in zip(unscaled, scaled, strict=True))


def check_an_operation_of_torch():
    def leaves(*given):
        return [tensor.detach().requires_grad_() for tensor in given]

    x, weight, bias, gamma, beta = drawn(2, 3, 16, 5, 6)
    op, gradients = torch.ops.hypatia.conv_block_fused.default, torch.ops.hypatia.conv_block_gradients.default
    for given in (
        (x, weight, bias, gamma, beta, "none"),
        (*leaves(x, weight, bias, gamma, beta), "tanh"),
        (x, weight, None, gamma, beta, "none"),
    ):
        torch.library.opcheck(op, (*given, "ieee", "triton", True, None))
    torch.library.opcheck(op, (x, weight, bias, gamma, beta, "none", "ieee", "triton", False, None))
    y, *saved = conv_block_fused(x, weight, bias, gamma, beta, "none", "ieee", "triton", True, None)
    torch.library.opcheck(gradients, (y, x, weight, gamma, beta, *saved, "none", "ieee", None))
    # Training: autograd's gradients are those of torch's own operations.
    for approximate in ("none", "tanh"):
        own, usual = leaves(x, weight, bias, gamma, beta), leaves(x, weight, bias, gamma, beta)
        y = fused_conv_block(*own, approximate=approximate)
        expected_y = peers.conv_block(*usual, approximate)
        torch.testing.assert_close(y, expected_y, rtol=1e-5, atol=1e-5)
        got = torch.autograd.grad(y, own, x[:, :1].expand_as(y), create_graph=True)
        for one, other in zip(got, torch.autograd.grad(expected_y, usual, x[:, :1].expand_as(y)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    # In a compiled graph it stays one operation.
    whole_graph = torch.compile(lambda *given: 2 * fused_conv_block(*given), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(whole_graph(*own), 2 * fused_conv_block(*own))
    # Only what needs a gradient gets one; without any nothing is kept, and a second derivative is refused.
    frozen = fused_conv_block(x, weight.clone().requires_grad_(), bias, gamma, beta)
    assert frozen.requires_grad
    assert not fused_conv_block(x, weight, bias, gamma, beta).requires_grad

    def unkept():
        return conv_block_fused(*own, "none", "ieee", "triton", False, None)

    for wrong, error, message in (
        (lambda: torch.autograd.grad(got[0].sum(), own), NotImplementedError, "first derivative only"),
        (lambda: unkept()[0].sum().backward(), RuntimeError, "keep=False"),
        (
            lambda: fused_conv_block(x[..., :1, :1], weight, bias, gamma, beta),
            ValueError,
            "more than 1 spatial element",
        ),
        (lambda: fused_conv_block(x.double(), weight, bias, gamma, beta), ValueError, "should be the same"),
        (lambda: fused_conv_block(*(t.double() for t in (x, weight, bias, gamma, beta))), ValueError, "torch.float64"),
        (lambda: fused_conv_block(x, weight, bias, gamma, beta, p=2.0), ValueError, "between 0 and 1"),
        (lambda: fused_conv_block(x, weight, bias, gamma, beta, approximate="erf"), ValueError, "not 'erf'"),
        (lambda: fused_conv_block(x, weight, bias, gamma, beta, precision="int8"), ValueError, "int8"),
        (lambda: fused_conv_block(x, weight, bias, gamma, beta, form="three"), ValueError, "unknown form 'three'"),
        (lambda: fused_conv_block(x, weight, bias, gamma, beta, form="whole"), ValueError, "needs a CUDA GPU"),
    ):
        refused(wrong, message, error)
    # Dropout is torch's own.
    assert not fused_conv_block(x, weight, bias, gamma, beta, p=1.0).any()
    torch.manual_seed(3)
    half = fused_conv_block(x, weight, bias, gamma, beta, p=0.5)
    kept, whole_y = half != 0, fused_conv_block(x, weight, bias, gamma, beta)
    assert 0.4 < float(kept.double().mean()) < 0.6
    torch.testing.assert_close(half[kept], 2 * whole_y[kept])


def check_refusals():
    x, weight, bias, gamma, beta = drawn(2, 16, 20, 5, 6)
    y, saved = conv_block_forward(x, weight, bias, gamma, beta)
    misfits = [
        ((x[0], weight, bias, gamma, beta), "do not fit"),
        ((x[:, :-1], weight, bias, gamma, beta), "do not fit"),
        ((x[:, :0], weight[:, :0], bias, gamma, beta), "C_in at least 1"),
        ((x, weight[..., :2], bias, gamma, beta), "do not fit"),
        ((x[..., :1, :1], weight, bias, gamma, beta), "less than two pixels"),
        ((x, weight, bias[:-1], gamma, beta), "bias"),
        ((x, weight, bias, gamma[0], beta), "gamma"),
        ((x, weight, bias, gamma, None), "together"),
        ((x.half(), weight, bias, gamma, beta), "weight is torch.float32"),
        ((x.double(), weight.double(), None, None, None), "x is torch.float64"),
        ((x, weight.to("meta"), bias, gamma, beta), "weight is on meta"),
        ((x, weight, bias, gamma, beta.clone().requires_grad_()), "beta requires a gradient"),
    ]
    for given, message in misfits:
        refused(lambda given=given: conv_block(*given), message)
    refused(lambda: conv_block(x, weight, precision="int8"), "int8")
    refused(lambda: conv_block(x, weight, approximate="relu"), "relu")
    rest = x, weight, gamma, beta, saved
    refused(lambda: back.conv_block_backward(y[:1], *rest), "grad")
    refused(lambda: back.conv_block_backward(y.half(), *rest), "grad")
    refused(lambda: back.conv_block_backward(y, *rest, approximate="relu"), "relu")
