import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        right = logits.gather(1, target[:, None])[:, 0]
        return (torch.logsumexp(logits, 1) - right).mean()
