"""What the tests of the optimizer of modules share."""

from __future__ import annotations

import torch
from torch import nn

from hypatia_lab.egraph import Optimized, optimize


def mlp(layers: int, width: int = 16) -> nn.Sequential:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def targets(module: torch.fx.GraphModule) -> list[str]:
    return [node.target.__name__.split(".")[0] for node in module.graph.nodes if node.op == "call_function"]


def optimized(module: nn.Module, *args, mode: str = "strict", **options) -> Optimized:
    result = optimize(module, args, mode=mode, **options)
    assert isinstance(result, Optimized)
    return result
