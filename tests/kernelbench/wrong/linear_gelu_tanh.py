from torch import nn
from torch.nn import functional


class ModelNew(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x):
        return functional.gelu(self.linear(x), approximate="tanh")
