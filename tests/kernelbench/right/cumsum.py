from torch import nn
from torch.nn import functional


class ModelNew(nn.Module):
    """In blocks of a hundred."""

    def forward(self, x):
        inside = x.unflatten(1, (-1, 100)).cumsum(2)
        before = functional.pad(inside[:, :-1, -1].cumsum(1), (1, 0))
        return (inside + before[:, :, None]).flatten(1)
