"""Layers of float32 in one kernel, by matrix instructions of float16: weights are split once, before the loop."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
from target import made

from hypatia_lab.kernels.linear_relu import linear_relu_triton
from hypatia_lab.kernels.mlp import mlp_split as module

module.multiprocessors = lambda x: 132
module.described = lambda x: x.shape[1] % 4 == 0
linear_relu_triton.hopper = lambda tensor: True

for layers, width in ((2, 64), (3, 64), (3, 77), (3, 128)):
    x, weights, biases = (
        torch.empty(65536, width),
        [torch.empty(width, width)] * layers,
        [torch.empty(width)] * layers,
    )
    module.forward(x, weights, biases)
assert len(made) == 8
for code in made[1::2]:
    text = code.asm["ptx"]
    assert "wgmma.mma_async" in text
    assert code.metadata.shared <= 232448, code.metadata.shared
    assert ".local" not in text
