import torch
from torch import nn


class ModelNew(nn.Module):
    """Works in its input's memory."""

    def __init__(self, features, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features))
        self.eps = eps

    def forward(self, x):
        return x.mul_(self.weight * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))
