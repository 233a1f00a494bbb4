from torch import nn


class ModelNew(nn.Module):
    """In one pass over sums and sums of squares, each moved by the row's first number."""

    def forward(self, x):
        n, first = x.shape[1], x[:, :1]
        moved = x - first
        total, squares = moved.sum(1), moved.square().sum(1)
        spread = ((squares - total.square() / n) / (n - 1)).sqrt()
        return (first[:, 0] + total / n) * x.max(1).values + spread
