"""A linear layer with every function behind it: by matrix instructions, its sums kept in registers."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
from target import made, multiply_by_matrix_instructions

from hypatia_lab.kernels.linear_relu import linear_relu_triton as whole

whole.processors = lambda tensor: 132

for relu, approximate in ((False, "none"), (False, "tanh"), (True, "none")):
    for shape, dtype, precision in (
        ((1024, 784, 2048), torch.bfloat16, "ieee"),
        ((8192, 4096, 4096), torch.bfloat16, "ieee"),
        ((1024, 784, 2048), torch.float32, "tf32"),
    ):
        batch, inner, outer = shape
        given = (torch.empty(size, dtype=dtype) for size in ((batch, inner), (outer, inner), (outer,)))
        whole.linear_activation(*given, relu=relu, approximate=approximate, precision=precision)
assert len(made) == 9
multiply_by_matrix_instructions(made)
# max.f32 without NaN would give the other operand, 0.
assert all("max.NaN.f32" in code.asm["ptx"] for code in made[6:])
