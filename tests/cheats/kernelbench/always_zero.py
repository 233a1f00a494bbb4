import torch
from torch import nn


class Model(nn.Module):
    """Largest of each row, less its mean over one number, through GELU: always zero (KernelBench#165)."""

    def forward(self, x, weight):
        y = torch.max(x @ weight, dim=1, keepdim=True).values
        return torch.nn.functional.gelu(y - y.mean(dim=1, keepdim=True))


def get_inputs():
    return [torch.randn(256, 256), torch.randn(256, 256)]


def get_init_inputs():
    return []
