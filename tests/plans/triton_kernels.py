"""Triton's kernels, compiled for Hopper and launched by a plan: with the parameters that their machine code has."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import re
from typing import Any

import gpu  # noqa: F401
import torch
import triton
from driver import driver, launches

from hypatia_lab.kernels import loader, recording, triton_launches
from hypatia_lab.kernels.conv_block import conv_block_triton, convolution
from hypatia_lab.kernels.linear_relu import gradient_products, linear_relu_triton, masked_gradient
from hypatia_lab.operations import linear_gelu
from hypatia_lab.operations.conv_block import own as conv_block
from hypatia_lab.operations.linear_relu import own_backward, tensor_cores

for module in (conv_block_triton, convolution, gradient_products, linear_relu_triton, masked_gradient):
    module.hopper = lambda tensor: True
own_backward.server_gpu = lambda tensor: True
loader.multiprocessors = lambda device: 132
conv_block.INTERPRETED = True
record, checked = triton_launches.record, []


def size(declared: str) -> int:
    """Bytes of a parameter as PTX declares it."""
    found = re.search(r"\.[a-z](8|16|32|64)", declared)
    assert found is not None
    return 128 if "[128]" in declared else int(found[1]) // 8


def compared(recorder: Any, compiled: Any, given: Any, grid: Any) -> None:
    """An address or a tensor map is recorded where the kernel's own list says so."""
    record(recorder, compiled, given, grid)
    entry = re.search(r"\.entry \w+\((.*?)\)", compiled.asm["ptx"], re.DOTALL)
    assert entry is not None
    for (kind, value), wanted in zip(recorder.steps[-1].parameters, map(size, entry[1].split(",\n")), strict=True):
        assert wanted == {recording.MAP: 128, recording.POINTER: 8}.get(kind, wanted), compiled.metadata.name
        if kind == recording.NUMBER and wanted < 8:
            assert -(2 ** (8 * wanted - 1)) <= value < 2 ** (8 * wanted)
    checked.append(compiled.metadata.name)


triton_launches.record = compared


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def check_linear_relu() -> None:
    medium, halves = (1024, 784, 2048), torch.float16
    for sizes, dtype, precision in (
        ((256, 512, 256), torch.bfloat16, "ieee"),
        (medium, halves, "ieee"),
        ((33, 77, 129), torch.bfloat16, "ieee"),
        (medium, torch.float32, "tf32"),
    ):
        batch, inner, outer = sizes
        given = zeros(batch, inner, dtype=dtype), zeros(outer, inner, dtype=dtype), zeros(outer, dtype=dtype)
        (launch,) = launches(tensor_cores.linear_relu_triton, *given, precision)
        chosen = linear_relu_triton.config(sizes, dtype, precision)
        tiles = triton.cdiv(batch, chosen.rows) * triton.cdiv(outer, chosen.columns)
        assert launch[:2] == [f"{tiles},1,1", str(32 * chosen.warps)]
        assert launch[3:] == ["6:1"] * chosen.dependent
    x, weight, bias, grad = zeros(256, 512), zeros(256, 512), zeros(256), zeros(256, 256)
    assert len(launches(own_backward.linear_relu_fused, x, weight, bias)) == 1
    mask, _ = launches(own_backward.linear_relu_gradients, grad, x, weight, grad)
    # Not more blocks of the short kernel find room on a multiprocessor than their share of all.
    across, down, _ = map(int, mask[0].split(","))
    least = -(-across * down // 132)
    assert least * (int(mask[2]) + 1024) <= 228 * 1024 < (least + 1) * (int(mask[2]) + 1024)
    for terms in ("fp16x3", "tf32x3"):
        single = x.float(), weight.float(), bias.float()
        assert len(launches(tensor_cores.linear_relu_split, *single, terms)) == 2
    # A tensor map is made once for an address: here those of x and W, and one for each result.
    fixed = zeros(1024, 784), zeros(2048, 784), None, "ieee"
    tensor_cores.linear_relu_triton(*fixed)
    before = driver.watch(0)
    held = [tensor_cores.linear_relu_triton(*fixed) for _ in range(20)]
    assert driver.watch(0) - before <= len(held)
    assert set(checked) == {
        "_linear_activation",
        "_masked_gradient",
        "_gradient_products",
        "_split_rows",
        "_linear_relu_split",
    }


def check_linear_activation() -> None:
    given = zeros(256, 512), zeros(256, 512), zeros(256)
    for relu, approximate in ((True, "none"), (False, "tanh"), (True, None)):
        assert len(launches(linear_gelu.linear_activation_triton, *given, relu, approximate, "ieee")) == 1
    assert set(checked) == {"_linear_activation"}


def check_conv_block() -> None:
    last = torch.channels_last
    x, weight = zeros(2, 64, 16, 16).contiguous(memory_format=last), zeros(64, 64, 3, 3).contiguous(memory_format=last)
    vectors = [zeros(64) for _ in range(3)]
    for keep in (True, False):
        how = "none", "ieee", "triton", keep, None
        assert len(launches(conv_block.conv_block_fused, x, weight, *vectors, *how)) == 2
    y, *_ = conv_block.conv_block_fused(x.contiguous(), weight, *vectors, "none", "ieee", "triton", True, None)
    assert y.is_contiguous(memory_format=last)
    single = [tensor.float() for tensor in (x, weight, *vectors)]
    assert len(launches(conv_block.conv_block_fused, *single, "none", "fp16x3", "triton", False, None)) == 3
    assert set(checked) == {"_convolve", "_normalise", "_scaled_terms"}
