import torch
from rms_norm import Model


class ModelNew(Model):
    """Works in its input's memory."""

    def forward(self, x):
        return x.mul_(self.weight * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))
