"""Kernels written in CUDA: a plan gives them what Python gives them."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from driver import driver, launches

from hypatia_lab.kernels import loader, plans, recording
from hypatia_lab.kernels.conv_block import conv_block_whole
from hypatia_lab.kernels.linear_relu import linear_relu_cuda, split_products
from hypatia_lab.kernels.mlp import mlp_cuda
from hypatia_lab.operations.linear_relu import ladder
from hypatia_lab.operations.operators import operator

loader.cubin = lambda name, instance: (instance.encode(), b"machine code")
loader.cuda_kernel = lambda name, instance: SimpleNamespace(handle=driver.a_kernel())
loader.driver = lambda: driver
loader.multiprocessors = lambda device: 132
torch.cuda.current_stream = lambda: SimpleNamespace(cuda_stream=0)


@operator("whole", planned=True)
def whole(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    counters: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    return conv_block_whole.conv_block_whole(x, weight, bias, gamma, beta, eps=eps, counters=counters)[0]


@operator("layers", planned=True)
def layers(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> torch.Tensor:
    return mlp_cuda.forward(x, weights, biases)


@operator("step", planned=True)
def step(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(len(x), len(weight))
    ladder.STEPS["step_multicast"].launch(x, weight, bias, y, (len(x), x.shape[1], len(weight)))
    return y


@operator("tiles", planned=True)
def tiles(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(len(x), len(weight))
    linear_relu_cuda.linear_relu(x, weight, bias, y)
    return y


@operator("split", planned=True)
def split(x: list[torch.Tensor], weight: list[torch.Tensor], bias: torch.Tensor) -> torch.Tensor:
    y = bias.new_empty(len(x[0]), len(weight[0]))
    split_products.linear_relu(split_products.Terms(*x), split_products.Terms(*weight), bias, y)
    return y


@operator("both", planned=True)
def both(x: list[torch.Tensor], weight: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = split_products.Terms(*x), split_products.Terms(*weight)
    out = torch.empty(len(x[0]), len(weight[0])), torch.empty(len(weight[0]), len(x[0]))
    split_products.multiply([(left, right, out[0]), (right, left, out[1])])
    return out


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def terms(rows: int, depth: int) -> list[torch.Tensor]:
    wide = zeros(2, rows, -(-depth // 8) * 8, dtype=torch.float16)
    return [*wide[:, :, :depth], zeros(rows, dtype=torch.int32)]


last = torch.channels_last
x, weight = zeros(20, 64, 64, 64).contiguous(memory_format=last), zeros(64, 64, 3, 3).contiguous(memory_format=last)
vectors, counters = [zeros(64) for _ in range(3)], zeros(20, 2, dtype=torch.int32)
rows, square, bias = zeros(1001, 64), [zeros(64, 64) for _ in range(3)], [zeros(64) for _ in range(3)]
left, right, shift = terms(300, 77), terms(200, 77), zeros(200, dtype=torch.float32)
single = [zeros(*shape, dtype=torch.float32) for shape in ((1001, 64), (65, 64), (65,))]
INPUTS = [x, weight, *vectors, counters, rows, *square, *bias, *left, *right, shift, *single]
CALLS: tuple[tuple[Any, Sequence[Any], int], ...] = (
    (split, (left, right, shift), 12),
    (both, (left, right), 21),
    (whole, (x, weight, *vectors, counters, 1e-5), 17),
    (layers, (rows, square, bias), 9),
    (step, (rows, square[0], bias[0]), 8),
    (tiles, (rows, square[0], bias[0]), 9),
    (tiles, single, 9),
)
"""Operator, arguments, and how many parameters its kernel has."""


def number(word: str) -> int:
    """Of a launch's grid and attributes: 0."""
    return 0 if ":" in word or "," in word else int(word, 16)


def known(lines: list[list[str]]) -> list[list[str]]:
    """Addresses of the caller's are the same either way; of all others only that they are some."""
    own = {tensor.data_ptr() for tensor in INPUTS}
    # Some interpreters' heaps begin where numbers are as large.
    ends = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    memory = [range(int(begin, 16), int(end, 16)) for begin, end in ends]

    def told(word: str) -> str:
        address = number(word)
        some = address >= 2**32 or any(address in one for one in memory)
        return "memory" if some and address not in own else word

    return [[told(word) for word in line] for line in lines]


def check_a_plan_gives_what_python_gives() -> None:
    for operation, given, parameters in CALLS:
        by_python = known(launches(operation.function, *given, watched=parameters))
        operation(*given)
        by_plan = known(launches(operation, *given, watched=parameters))
        assert by_python
        assert by_plan == by_python
        assert any(word != "memory" and number(word) > 2**32 for line in by_plan for word in line)


def check_the_copy_engine_is_told_to_round_float32() -> None:
    described = loader.tensor_map(single[0], 64, 32, tf32=True).described
    assert described[0] == 11
    assert loader.tensor_map(single[0], 64, 32).described[0] == 7
    numbers = plans.record(tiles.function, single).numbers
    of_x = list(recording.map_of(*described))
    assert any(numbers[at : at + len(of_x)] == of_x for at in range(len(numbers)))
