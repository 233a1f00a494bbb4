import torch
from torch import nn


class ModelNew(nn.Module):
    """Ignores the number."""

    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(columns))

    def forward(self, a, b, scale):
        return torch.addmm(self.bias, a, b)
