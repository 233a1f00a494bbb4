import torch
from torch import nn


class Model(nn.Module):
    """Group norm, a quarter of the way to the channel's number."""

    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.register_buffer("shift", torch.arange(float(channels)).view(1, -1, 1, 1), persistent=False)

    def forward(self, x):
        return torch.lerp(self.norm(x), self.get_buffer("shift"), 0.25)  # which wants one dtype of both


def get_inputs():
    return [3 + torch.randn(3, 8, 9, 11)]


def get_init_inputs():
    return [4, 8]
