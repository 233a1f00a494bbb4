"""A worked example: torchvision's MLP, unchanged but for one call, is trained by the quickest forms there are here."""

import copy
import statistics
import time

import torch
from torchvision.ops import MLP

import hypatia_lab as lab

device, rows = ("cuda", 1024) if torch.cuda.is_available() else ("cpu", 16)
torch.manual_seed(0)
labels = torch.randint(10, (rows,), device=device)
noise = torch.randn(rows, 784, device=device)
images = torch.randn(10, 784, device=device)[labels] + noise


def train(name, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    took, losses = [], []
    for _ in range(100):
        begun = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the GPU
        took.append((time.perf_counter() - begun) * 1e3)
    step, first, last = statistics.median(took[50:]), losses[0], losses[-1]
    print(f"{name}: {step:.3f} ms a step, loss {first:.4f}, then {last:.4f}")


model = MLP(784, [2048, 2048, 10]).to(device)
train("as written", copy.deepcopy(model))
print("replaced:", lab.nn.convert(model))  # the one call: layers with a ReLU
train("converted", model)
