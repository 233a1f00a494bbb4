import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    """A linear layer and GELU."""

    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        return functional.gelu(self.linear(x))


def get_inputs():
    return [torch.rand(32, 65)]


def get_init_inputs():
    return [65, 65]
