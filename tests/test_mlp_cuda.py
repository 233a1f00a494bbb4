"""The fused MLP's CUDA kernel: on a GPU, in the emulator of one, and compiled to machine code by nvcc."""

from __future__ import annotations

import re
from typing import Any

import cuda_sources
import pytest
import torch

from hypatia_lab.fused_ops import ladder, mlp, mlp_cuda
from hypatia_lab.fused_ops.mlp_cuda import Plan
from hypatia_lab.kernels import loader
from hypatia_lab.machine import choose_device
from hypatia_lab.workloads import Workload

DEVICE = choose_device("auto")
MISSING = mlp_cuda.missing(64, "bfloat16", "ieee") if DEVICE == "cuda" else "there is no GPU"
on_hopper = pytest.mark.skipif(bool(MISSING), reason=MISSING)
needs_compiler = pytest.mark.skipif(bool(loader.cpp_missing()), reason=loader.cpp_missing())


def tensors(
    rows: int, width: int, layers: int, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """x, weights and biases."""
    generator = torch.Generator(device).manual_seed(rows)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, device=device, generator=generator) * scale).to(dtype)

    weights = [normal(width, width, scale=(2 / width) ** 0.5) for _ in range(layers)]
    return normal(rows, width), weights, [normal(width) for _ in range(layers)]


def agrees(found: torch.Tensor, x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> None:
    """With the float64 answer, as far as every layer's rounding allows."""
    pairs = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    expected = mlp.reference(x, *pairs)
    assert found.shape == expected.shape
    assert found.dtype == x.dtype
    allowed = len(weights) ** 0.5 * Workload(f"mlp{len(weights)}", (*x.shape,), "bfloat16").tolerance()
    difference = found.double() - expected
    assert float(difference.norm() / expected.norm()) < allowed
    assert float(difference.abs().max()) < 8 * allowed * float(expected.square().mean().sqrt())


# ---------------------------------------------------------------- emulated

EMULATED = (
    *((64, layers, Plan(3, 3)) for layers in (2, 3)),
    *((128, layers, Plan(4, cluster=2)) for layers in (2, 3)),
    (64, 3, Plan(1, 2)),
    (128, 3, Plan(2, 3)),
    (32, 3, Plan(2, 2, cluster=2)),
    (16, 2, Plan(2, 2)),
)
ENTRY = """
extern "C" const char* {symbol}(unsigned grid, unsigned threads, const TensorMap* x, const TensorMap* y,
                                const TensorMap* w1, const TensorMap* w2, const TensorMap* w3, const {scalar}* b1,
                                const {scalar}* b2, const {scalar}* b3, long long rows) {{
    return launch(grid, {cluster}, {{threads, 1, 1}},
                  [=] {{ {instance}(*x, *y, *w1, *w2, *w3, b1, b2, b3, rows); }});
}}
"""


def instance(scalar: str, width: int, layers: int, plan: Plan) -> str:
    return f"mlp<{scalar}, {width}, {layers}, {plan.groups}, {plan.ahead}, {plan.room}, {plan.cluster}>"


def entry(name: str) -> str:
    scalar, *_, cluster = re.split(r"[<>,]\s*", name)[1:-1]
    return ENTRY.format(symbol=cuda_sources.symbol(name), scalar=scalar, instance=name, cluster=cluster)


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches go to the emulator, of a GPU of three multiprocessors."""
    names = [instance("__nv_bfloat16", *case) for case in EMULATED]
    library = cuda_sources.emulator("mlp", tuple(map(entry, names)))

    def launcher(name: str, instance: str, *, shared: int, cluster: int, dependent: bool) -> Any:
        assert shared <= 227 * 1024
        return lambda grid, block, *arguments: cuda_sources.launch(library, instance, (*grid, *block), arguments)

    monkeypatch.setattr(loader, "cuda_launcher", launcher)
    monkeypatch.setattr(loader, "tensor_map", lambda *given: cuda_sources.tensor_map(library, *given))
    monkeypatch.setattr(ladder, "_multiprocessors", lambda device: 3)
    mlp_cuda._launcher.cache_clear()
    yield
    mlp_cuda._launcher.cache_clear()


@needs_compiler
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 129, 1000])
@pytest.mark.parametrize(("width", "layers", "plan"), EMULATED)
def test_the_emulated_kernel_agrees_with_float64(
    width: int, layers: int, plan: Plan, rows: int, emulation: None
) -> None:
    given = tensors(rows, width, layers)
    agrees(mlp_cuda.forward(*given, plan=plan), *given)
