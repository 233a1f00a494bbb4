import torch
from torch import nn


class Model(nn.Module):
    """Mean and standard deviation of each column: two outputs."""

    def forward(self, x):
        return x.mean(0), x.std(0, correction=0)


def get_inputs():
    return [2 + torch.randn(257, 31)]


def get_init_inputs():
    return []
