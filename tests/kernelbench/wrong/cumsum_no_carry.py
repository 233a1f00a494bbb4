from torch import nn


class ModelNew(nn.Module):
    """In blocks of a hundred, each of which begins anew."""

    def forward(self, x):
        return x.unflatten(1, (-1, 100)).cumsum(2).flatten(1)
