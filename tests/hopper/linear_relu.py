"""Linear+ReLU and its gradients, of whole and of split operands."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
from target import made, multiply_by_matrix_instructions

from hypatia_lab.kernels.linear_relu import gradient_products as both
from hypatia_lab.kernels.linear_relu import gradient_products_split as both_split
from hypatia_lab.kernels.linear_relu import linear_relu_split as split
from hypatia_lab.kernels.linear_relu import linear_relu_triton as whole

whole.processors = lambda tensor: 132


def drawn(batch, inner, outer, dtype):
    return tuple(torch.empty(shape, dtype=dtype) for shape in ((batch, inner), (outer, inner), (outer,)))


for shape in ((1024, 784, 2048), (8192, 4096, 4096)):
    whole.linear_activation(*drawn(*shape, torch.bfloat16))
    split.linear_relu_split(*drawn(*shape, torch.float32))
for shape in ((256, 256, 512), (1024, 784, 2048)):
    whole.linear_activation(*drawn(*shape, torch.float32), precision="tf32")
x, weight, _ = drawn(1024, 784, 2048, torch.bfloat16)
shares = torch.empty(16, 2048)
for plan in both.candidates((1024, 784, 2048), torch.bfloat16)[:3]:
    both.gradient_products(torch.empty(1024, 2048, dtype=torch.bfloat16), x, weight, shares=shares, plan=plan)
for shape in ((256, 256, 512), (1024, 784, 2048), (8192, 4096, 4096)):
    x, weight, _ = drawn(*shape, torch.float32)
    y = torch.empty(shape[0], shape[2])
    both_split.gradient_products_split(y, x, weight, y)
products = [code for code in made if code.metadata.name not in ("_split_rows", "_find_exponents", "_split_all")]
assert len(products) == 12
multiply_by_matrix_instructions(products)
