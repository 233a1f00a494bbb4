"""Probe ``training``: the losses of 200 steps of training, and how far they are from float64's.

Run as a process by :mod:`hypatia_lab.bench.sessions`. One batch and one random target are learnt by plain gradient
descent, once by the variant and once in float64 by PyTorch's own operations, from the same weights. A variant returns y
and the gradients that an upstream gradient brings. The one of a loss is known only when y is, so a step calls the
variant twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from hypatia_lab.operations.mlp import plain
from hypatia_lab.probes.probe import Emit, Subject, probe

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 200
RATE = 0.4
"""The step's length, of half the mean square of y − target: halved by every doubling of the widest layer's inputs."""


def _descend(y: Tensor, target: Tensor, upstream: Tensor) -> float:
    """The loss; its gradient by ``y`` goes to ``upstream``."""
    off = y - target
    upstream.copy_(off / len(off))
    return float(off.double().square().sum() / (2 * len(off)))


def look(subject: Subject, emit: Emit) -> None:
    """Emit the first and the last loss, and the distance. Raises :class:`Ended` when the variant is wrong."""
    problem = subject.problem()
    run, inputs = subject.checked(problem), problem.inputs
    names = [name for name in inputs if name not in ("x", "grad")]
    exact = {name: tensor.double() for name, tensor in inputs.items()}
    target = torch.randn(exact["grad"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = target.to(subject.device)
    rate = RATE / max(inputs[name].shape[-1] for name in names if name.startswith("weight"))
    losses: list[float] = []
    off: list[float] = []
    for _ in range(STEPS):
        losses.append(_descend(run()[0], target.to(inputs["grad"].dtype), inputs["grad"]))
        _, _, *found = run()
        leaves = [exact[name].requires_grad_() for name in names]
        with torch.enable_grad():
            y = plain(exact["x"], *leaves)
            loss = _descend(y.detach(), target, exact["grad"])
            ours = torch.autograd.grad(y, leaves, exact["grad"])
        off.append((losses[-1] - loss) / loss)
        with torch.no_grad():
            for name, gradient, right in zip(names, found, ours, strict=True):
                inputs[name].sub_(rate * gradient)
                exact[name] = exact[name].detach() - rate * right
    told = {"first loss": losses[0], "last loss": losses[-1], "distance": math.hypot(*off) / math.sqrt(STEPS)}
    for name, value in told.items():
        emit("detail", topic="training", name=name, unit="1", value=value, count=STEPS)


if __name__ == "__main__":
    probe(look)
