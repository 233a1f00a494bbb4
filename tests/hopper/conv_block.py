"""Conv2d, InstanceNorm2d and GELU, forward and backward."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
from target import made, multiply_by_matrix_instructions

from hypatia_lab.kernels.conv_block import conv_block_backward as back
from hypatia_lab.kernels.conv_block import conv_block_triton as block


def drawn(dtype, *shape):
    n, inner, outer, height, width = shape or (5, 64, 64, 128, 128)
    vectors = [torch.empty(outer, dtype=dtype) for _ in range(3)]
    shapes = ((n, inner, height, width), (outer, inner, 3, 3))
    return [torch.empty(shape, dtype=dtype).to(memory_format=torch.channels_last) for shape in shapes] + vectors


float32 = torch.float32
for dtype, precision in ((torch.bfloat16, "ieee"), (float32, "tf32"), (float32, "bf16x3"), (float32, "fp16x3")):
    given = drawn(dtype)
    y, saved = block.conv_block_forward(*given, precision=precision)
    if dtype == torch.bfloat16:
        for plan in back.candidates((5, 64, 64, 128, 128))[:2]:
            back.conv_block_backward(y, *given[:2], *given[3:], saved, plan=plan)
back.conv_block_backward(y, *given[:2], *given[3:], saved, precision="fp16x3")
multiplied = ("_convolve", "_weight_gradient", "_weight_gradient_split")
products = [code for code in made if code.metadata.name in multiplied]
# Four forward, and for each of two plans, and in float32, the gradients of x and of the weight; the last also as rows
# of several scales have it.
assert len(products) == 4 + 3 * 2 + 1, [code.metadata.name for code in made]
multiply_by_matrix_instructions(products)
# What tensor descriptors cannot hold, and other sizes.
block.conv_block_forward(*drawn(torch.bfloat16, 1, 37, 35, 137, 53))
given = drawn(torch.float16, 1, 3, 20, 9, 13)
y, saved = block.conv_block_forward(*given)
back.conv_block_backward(y, *given[:2], *given[3:], saved)
