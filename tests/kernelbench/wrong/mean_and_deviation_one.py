from torch import nn


class ModelNew(nn.Module):
    """Forgets the second output."""

    def forward(self, x):
        return x.mean(0)
