import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    """Mean cross entropy of logits and the classes that are right."""

    def forward(self, logits, target):
        return functional.cross_entropy(logits, target)


def get_inputs():
    return [torch.randn(64, 50), torch.randint(0, 50, (64,))]


def get_init_inputs():
    return []
