"""Random programs through the e-graph: the values, what is written into, and what shares memory are eager's."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from hypatia_lab.egraph import DEFAULT, Costs, Optimized, optimize


class Program(nn.Module):
    """Up to 14 operations drawn from a seed: layers, pointwise operations, views, writes, random numbers."""

    memory: torch.Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.weights = nn.ParameterList([torch.randn(6, 6) for _ in range(3)])
        self.biases = nn.ParameterList([torch.randn(6) for _ in range(3)])
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("memory", torch.randn(6))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        rng = random.Random(self.seed)
        values = [x, y]
        for _ in range(rng.randint(4, 14)):
            values.append(self.step(rng, values))
        return [rng.choice(values[2:]) for _ in range(rng.randint(1, 4))]

    def step(self, rng: random.Random, values: list[torch.Tensor]) -> torch.Tensor:
        a = rng.choice(values)
        rows = a.reshape(-1, 6)
        same = rng.choice([value for value in values if value.shape == a.shape])
        weight, bias = self.weights[rng.randrange(3)], self.biases[rng.randrange(3)]
        ways = (
            lambda: functional.linear(rows, weight, bias),
            lambda: functional.linear(rows.view(-1, 1, 6), weight, bias),
            lambda: functional.linear(rows, weight),
            lambda: rows @ weight.t(),
            lambda: torch.addmm(bias, rows, weight.t()),
            lambda: torch.relu(a),
            lambda: torch.relu(torch.relu(a)),
            lambda: rows + bias,
            lambda: a + same,
            lambda: a.reshape(6, -1),
            lambda: a.transpose(0, -1),
            lambda: rows.t().t(),
            lambda: functional.gelu(a),
            lambda: self.dropout(a),
            lambda: values[-1].mul_(1.5) if len(values) > 2 else a * 2,
            lambda: functional.relu_(a.clone()),
            lambda: functional.relu_(a),
            lambda: self.memory.add_(0.1) + rows,
        )
        return rng.choice(ways)()


def run(function, module: Program, x: torch.Tensor, y: torch.Tensor):
    """Results, inputs and the buffer after a call with a seed, and which of them start at the same address."""
    x, y, kept = x.clone(), y.clone(), module.memory.clone()
    torch.manual_seed(1)
    with torch.no_grad():
        seen = [*function(x, y), x, y, module.memory]
        values = [value.clone() for value in seen]
        module.memory.copy_(kept)
    return values, [[a.data_ptr() == b.data_ptr() for a in seen] for b in seen]


# All of them take five seconds; make test has no more to spare than for some.
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.sweep) for n in range(8, 40))])
def test_a_random_program_keeps_its_meaning(seed):
    torch.manual_seed(seed)
    module = Program(seed).double().train(seed % 2 == 0)
    x, y = torch.randn(4, 6).double(), torch.randn(2, 2, 6).double()
    costs = Costs("cuda" if seed % 3 else "cpu")
    result = optimize(module, (x, y), rules=(*DEFAULT, "matmul"), costs=costs, mode="strict")
    assert isinstance(result, Optimized)
    (values, shared), (expected, together) = run(result, module, x, y), run(module, module, x, y)
    torch.testing.assert_close(values, expected)
    assert shared == together
