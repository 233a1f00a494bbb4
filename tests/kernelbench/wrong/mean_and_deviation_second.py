from torch import nn


class ModelNew(nn.Module):
    """Its second output is the other deviation."""

    def forward(self, x):
        return x.mean(0), x.std(0)
