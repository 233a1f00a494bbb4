import torch
from torch import nn


class Model(nn.Module):
    """Each row over its root mean square, times a weight."""

    def __init__(self, features, eps):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(features))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def get_inputs():
    return [torch.randn(6, 10, 96)]


def get_init_inputs():
    return [96, 1e-5]
