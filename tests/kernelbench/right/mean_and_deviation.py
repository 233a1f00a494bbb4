from torch import nn


class ModelNew(nn.Module):
    """Returns a list, which will do."""

    def forward(self, x):
        mean = x.sum(0) / x.shape[0]
        return [mean, (x - mean).square().mean(0).sqrt()]
