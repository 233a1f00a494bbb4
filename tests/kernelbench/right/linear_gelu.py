import torch
from torch import nn


class ModelNew(nn.Module):
    """Its parameters have names of their own, so that both layers are drawn by the same seed."""

    def __init__(self, inside, outside):
        super().__init__()
        layer = nn.Linear(inside, outside)
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x):
        y = torch.addmm(self.bias, x, self.weight.t())
        return 0.5 * y * (1 + torch.erf(y * 0.5**0.5))
