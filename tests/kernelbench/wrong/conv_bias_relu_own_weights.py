import torch
from torch import nn


class ModelNew(nn.Module):
    """Draws weights of its own, in another order."""

    def __init__(self, inside, outside, size):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(outside, 1, 1))
        self.conv = nn.Conv2d(inside, outside, size, padding=1, bias=False)

    def forward(self, x):
        return torch.relu(self.conv(x) + self.shift)
