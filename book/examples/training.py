"""A worked example: a model of another's, unchanged but for one call, is trained by the quickest forms there are here.

python book/examples/training.py
"""

import torch
from torch import nn

import hypatia_lab as lab

torch.manual_seed(0)
block = (nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.GELU())
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 3, padding=1), *block, nn.AdaptiveAvgPool2d(4), nn.Flatten()),
    *(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
)
print("replaced:", lab.nn.convert(model))  # the one call: a convolution block, and two layers with their ReLU

prototypes = torch.randn(10, 1, 12, 12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for _ in range(60):
    labels = torch.randint(10, (32,))
    images = prototypes[labels] + torch.randn(32, 1, 12, 12) / 2
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss: {losses[0]:.2f}, then {losses[-1]:.2f}")
