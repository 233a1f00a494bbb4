from masked_attention import Model
from torch.nn import functional


class ModelNew(Model):
    def forward(self, x, mask):
        split = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
