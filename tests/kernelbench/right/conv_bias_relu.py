import torch
from torch import nn
from torch.nn import functional


class ModelNew(nn.Module):
    """By a product of matrices."""

    def __init__(self, inside, outside, size):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, size, padding=1, bias=False)
        self.bias = nn.Parameter(torch.empty(outside, 1, 1))

    def forward(self, x):
        windows = functional.unfold(x, self.conv.kernel_size, padding=1)
        product = self.conv.weight.flatten(1) @ windows
        return torch.clamp(product.unflatten(2, x.shape[2:]) + self.bias, min=0)
