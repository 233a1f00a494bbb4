"""The ReLU behind a product, which the interpreter takes with NaN however it is written."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
from target import made

from hypatia_lab.kernels.linear_relu.linear_relu_split import linear_relu_split
from hypatia_lab.kernels.linear_relu.linear_relu_triton import linear_activation

for dtype, product in (
    (torch.bfloat16, linear_activation),
    (torch.float32, linear_activation),
    (torch.float32, linear_relu_split),
):
    product(torch.empty(64, 64, dtype=dtype), torch.empty(64, 64, dtype=dtype))
    text = made[-1].asm["ptx"]
    # max.f32 without NaN would give the other operand, 0.
    assert "max.NaN.f32" in text, made[-1].metadata.name
    assert "max.f32" not in text, made[-1].metadata.name
