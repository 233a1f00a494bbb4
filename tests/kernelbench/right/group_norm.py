import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        grouped = x.unflatten(1, (self.norm.num_groups, -1)).flatten(2)
        spread, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
        normal = ((grouped - mean) * torch.rsqrt(spread + self.norm.eps)).view(x.shape)
        shift = torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
        return 0.75 * (normal * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]) + 0.25 * shift
