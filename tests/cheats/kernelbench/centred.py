import torch
from always_zero import get_init_inputs, get_inputs  # noqa: F401  # a problem has them
from torch import nn


class Model(nn.Module):
    """Largest of each row, less the mean of all, through GELU."""

    def forward(self, x, weight):
        y = torch.max(x @ weight, dim=1, keepdim=True).values
        return torch.nn.functional.gelu(y - y.mean())
