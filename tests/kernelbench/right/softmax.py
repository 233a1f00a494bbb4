import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        weights = torch.exp(x - x.amax(1, keepdim=True))
        return weights / weights.sum(1, keepdim=True)
