"""The fused MLP's CUDA kernels: on a GPU, in the emulator of one, and compiled to machine code by nvcc."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import cuda_sources
import pytest
import torch
from kernel_tensors import DEVICE, Layers, error, layers, only_where

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.mlp import mlp_cuda, mlp_streamed
from hypatia_lab.kernels.mlp.mlp_cuda import Plan
from hypatia_lab.operations import mlp
from hypatia_lab.workloads import Workload

MISSING = mlp_cuda.missing(64, "bfloat16") if DEVICE == "cuda" else "there is no GPU"
on_hopper = only_where(MISSING)


def tensors(rows: int, width: int, count: int, device: str = "cpu") -> Layers:
    return layers(rows, width=width, count=count, dtype=torch.bfloat16, device=device)


def agrees(found: torch.Tensor, x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> None:
    """With the float64 answer, as far as every layer's rounding allows."""
    pairs = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    expected = mlp.reference(x, *pairs)
    assert found.shape == expected.shape
    assert found.dtype == x.dtype
    allowed = len(weights) ** 0.5 * Workload(f"mlp{len(weights)}", (*x.shape,), "bfloat16").tolerance()
    assert error(found, expected) < allowed
    assert float((found.double() - expected).abs().max()) < 8 * allowed * float(expected.square().mean().sqrt())


# ---------------------------------------------------------------- emulated

EMULATED = (
    *((64, layers, Plan(3, 3)) for layers in (2, 3)),
    *((128, layers, Plan(4, cluster=2)) for layers in (2, 3)),
    (64, 3, Plan(1, 2)),
    (128, 3, Plan(2, 3)),
    (32, 3, Plan(2, 2, cluster=2)),
    (64, 2, Plan(1, 2, cluster=4)),
    (16, 2, Plan(2, 2)),
)
STREAMED = tuple(mlp_streamed.Plan(slices, cluster) for slices, cluster in ((4, 1), (4, 2), (2, 1), (3, 2)))
BF16, HALF = "__nv_bfloat16", "__half"


def instance(scalar: str, width: int, layers: int, plan: Plan) -> str:
    return f"mlp<{scalar}, {width}, {layers}, {plan.groups}, {plan.ahead}, {plan.room}, {plan.cluster}>"


def streamed_instance(scalar: str, plan: mlp_streamed.Plan) -> str:
    return f"mlp_streamed<{scalar}, {plan.slices}, {plan.cluster}>"


RESIDENT = [instance(BF16, *case) for case in EMULATED]
STREAMING = [streamed_instance(BF16, plan) for plan in STREAMED[:2]]
emulation = cuda_sources.emulation({"mlp/mlp": RESIDENT, "mlp/mlp_streamed": STREAMING}, processors=3)

WIDE = mlp_streamed.WIDTH
CASES = [(*case, rows) for case in EMULATED for rows in (1, 65)]
# One tile, and three a warpgroup, for which it needs a buffer again.
CASES += [(WIDE, 2, STREAMED[0], 1), (WIDE, 3, STREAMED[0], 1100), (WIDE, 3, STREAMED[1], 1100)]
MORE_CASES = [(*case, rows) for case in EMULATED for rows in (63, 64, 129, 1000)]
MORE_CASES += [(WIDE, layers, plan, n) for plan in STREAMED for layers in (2, 3) for n in (63, 64, 129, 257, 2000)]


@pytest.mark.parametrize(
    ("width", "layers", "plan", "rows"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.sweep) for case in MORE_CASES)],
)
def test_the_emulated_kernel_agrees_with_float64(
    width: int, layers: int, plan: Plan | mlp_streamed.Plan, rows: int, emulation: None
) -> None:
    given = tensors(rows, width, layers)
    agrees(mlp_cuda.forward(*given, plan=plan), *given)


def test_nan_stays_nan_in_the_emulated_kernel(emulation: None) -> None:
    x, weights, biases = tensors(70, 64, 3)
    x[3, 5], x[66, 0] = float("nan"), float("nan")
    found = mlp_cuda.forward(x, weights, biases, plan=EMULATED[1][2])
    assert found.isnan().all(1).nonzero().flatten().tolist() == [3, 66]
    assert found.isnan().any(1).sum() == 2


def test_strided_and_unaligned_tensors_are_taken(emulation: None) -> None:
    x, weights, biases = tensors(70, 64, 3)
    expected = mlp_cuda.forward(x, weights, biases, plan=EMULATED[1][2])
    unaligned = x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    across = [w.t().contiguous().t() for w in weights]
    strided = torch.stack([x, -x], -1)[..., 0]
    for given in ((unaligned, across, biases), (strided, weights, [torch.stack([b, b], -1)[:, 0] for b in biases])):
        assert torch.equal(mlp_cuda.forward(*given, plan=EMULATED[1][2]), expected)


# ---------------------------------------------------------------- machine code

DEFAULTS = [(width, mlp_cuda.default_plan(rows, width)) for width in mlp_cuda.RESIDENT for rows in (1, 2**16, 2**18)]
PLANS = (Plan(6), Plan(2, 2, room=3), Plan(2, 4, cluster=2))
"""Beside the defaults."""

MACHINE_CODE = {
    "largest": ("mlp/mlp", [instance(BF16, width, 3, plan) for width, plan in DEFAULTS[-1:]]),
    "defaults": ("mlp/mlp", [instance(BF16, width, layers, plan) for width, plan in DEFAULTS for layers in (2, 3)]),
    "streamed": (
        "mlp/mlp_streamed",
        [streamed_instance(kind, mlp_streamed.default_plan(rows)) for rows in (1, 2**18) for kind in (BF16, HALF)],
    ),
    "others": (
        "mlp/mlp",
        [instance(HALF, width, 3, plan) for width, plan in DEFAULTS] + [instance(BF16, 64, 3, plan) for plan in PLANS],
    ),
}


@pytest.mark.parametrize(
    "which", [pytest.param(which, marks=[pytest.mark.slow] * (which != "largest")) for which in MACHINE_CODE]
)
def test_the_kernels_build_to_machine_code_without_spills(which: str, tmp_path: Path) -> None:
    source, names = MACHINE_CODE[which]
    cuda_sources.compiles_without_spills(tmp_path, source, [*dict.fromkeys(names)])


# ---------------------------------------------------------------- the launch


@pytest.mark.parametrize(("width", "plan"), DEFAULTS)
def test_a_default_plan_fits_a_multiprocessor(width: int, plan: Plan) -> None:
    # A block's own kilobyte counts, too.
    assert plan.room * (plan.shared(width, 3) + 1024) <= 228 * 1024
    assert plan.room * plan.groups * 128 <= 2048
    assert mlp_streamed.default_plan(1).shared() <= 227 * 1024


def test_a_plan_becomes_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Mock()
    monkeypatch.setattr(loader, "cuda_launcher", launcher)
    monkeypatch.setattr(loader, "tensor_map", lambda matrix, *box: matrix)
    monkeypatch.setattr(loader, "multiprocessors", lambda device: 3)
    plan = Plan(2, 3, programs=1, room=1, cluster=2, dependent=False)
    mlp_cuda.forward(*tensors(1000, 128, 2), plan=plan)
    options = {"shared": plan.shared(128, 2), "cluster": 2, "dependent": False}
    launcher.assert_called_once_with("mlp/mlp", "mlp", BF16, 128, 2, 2, 3, 1, 2, **options)
    assert launcher().call_args.args[:2] == ((4,), (256,))


def test_the_machine_code_kept_depends_on_the_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "some.cu").write_text('#include "own.cuh"\n#include <cuda_fp16.h>\n')
    (tmp_path / "own.cuh").write_text("int first;")
    monkeypatch.setattr(loader, "SOURCES", tmp_path)
    first = loader.sources_of("some")
    assert first[0].startswith("#include")
    (tmp_path / "own.cuh").write_text("int second;")
    assert loader.sources_of("some")[1] != first[1]


# ---------------------------------------------------------------- the operation


def test_a_misfit_is_refused_by_name_and_a_cpu_as_well() -> None:
    x, weights, biases = tensors(6, 64, 3)
    with pytest.raises(ValueError, match="bias3 .* does not fit"):  # as whatever is checked in test_mlp
        mlp.forward_cuda(x, weights, [*biases[:2], biases[2][:-1]])
    with pytest.raises(ValueError, match="x is .* on cpu: needs a CUDA GPU"):
        mlp.forward_cuda(x, weights, biases)


@on_hopper
def test_a_gpu_refuses_what_it_cannot_do_and_takes_any_rank() -> None:
    x, weights, biases = tensors(6, 64, 3, device="cuda")
    with pytest.raises(NotImplementedError, match="no derivative"):
        mlp.forward_cuda(x, weights, [biases[0], biases[1].clone().requires_grad_(), biases[2]]).sum().backward()
    with pytest.raises(ValueError, match="weight1 is on cpu"):
        mlp.forward_cuda(x, [weights[0].cpu(), *weights[1:]], biases)
    with pytest.raises(ValueError, match="not 48"):
        mlp.forward_cuda(*tensors(6, 48, 3, device="cuda"))
    assert mlp.forward_cuda(x[:0], weights, biases).shape == (0, 64)
    found = mlp.forward_cuda(x, weights, biases)
    assert torch.equal(mlp.forward_cuda(x.view(2, 3, 64), weights, biases), found.view(2, 3, 64))
    assert torch.equal(mlp.forward_cuda(x[2], weights, biases), found[2])


# ---------------------------------------------------------------- on a GPU


BOTH = (Plan(1, 2, dependent=False), Plan(2, 2, cluster=2), Plan(3, 2, cluster=2, dependent=False), Plan(4, 2))
GPU_PLANS: dict[int, tuple[Plan | mlp_streamed.Plan, ...]] = {
    64: (*BOTH, Plan(2, 2, programs=2, room=2)),
    128: (*BOTH, Plan(2, 2, programs=1, room=1)),
    WIDE: (*STREAMED, mlp_streamed.Plan(dependent=False)),
}


@on_hopper
@pytest.mark.parametrize("width", GPU_PLANS)
def test_every_plan_computes_the_same(width: int) -> None:
    given = tensors(20001, width, 3, device="cuda")
    expected = mlp_cuda.forward(*given)
    agrees(expected, *given)
    for plan in GPU_PLANS[width]:
        assert torch.equal(mlp_cuda.forward(*given, plan=plan), expected), plan


@on_hopper
@pytest.mark.parametrize("width", [128, WIDE])
def test_nan_stays_nan(width: int) -> None:
    x, weights, biases = tensors(1000, width, 3, device="cuda")
    x[70, 5] = float("nan")
    found = mlp_cuda.forward(x, weights, biases)
    assert found[70].isnan().all()
    assert found.isnan().any(1).sum() == 1


@on_hopper
@pytest.mark.parametrize("width", [64, WIDE])
def test_launches_that_overlap_in_a_graph_wait_for_each_other(width: int) -> None:
    x, weights, biases = tensors(65536, width, 2, device="cuda")
    biases = [torch.zeros_like(bias) for bias in biases]

    def chain() -> torch.Tensor:
        y = x
        for _ in range(20):
            y = mlp_cuda.forward(y, weights, biases)
        return y

    expected = chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain()
    for _ in range(3):
        found.fill_(float("nan"))
        graph.replay()
        assert torch.equal(found, expected)
