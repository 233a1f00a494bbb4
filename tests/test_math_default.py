"""Math ``default``: PyTorch as installed, for float32 on operations that convolve; and who measures it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.compiler import config

from hypatia_lab import machine, results
from hypatia_lab import variants as registry
from hypatia_lab.check import Problem, judge
from hypatia_lab.experiments import EXPERIMENTS, PRESETS
from hypatia_lab.machine import choose_device
from hypatia_lab.operations.conv_block import SEED_SHAPE
from hypatia_lab.pages import verify
from hypatia_lab.variants import find, variants
from hypatia_lab.workloads import DTYPES, MATH, Workload, WorkloadError, operations

DEVICE = choose_device("auto")
BOTH = "forward_backward"
CONVOLVING = ("conv_block", "conv_block_tanh", "conv_block_autocast", "unet", "unet_group", "unet_autocast")
SMALL = (2, 8, 24, 20)


def default(operation: str = "conv_block", shape: tuple[int, ...] = SMALL, direction: str = "forward") -> Workload:
    return Workload(operation, shape, "float32", "default", direction)


# ---------------------------------------------------------------- the workload


def test_operations_that_convolve_have_it_in_float32_alone() -> None:
    assert {name for name, spec in operations().items() if spec.convolves} == set(CONVOLVING)
    for spec in operations().values():
        for dtype in DTYPES:
            expected = set(MATH[dtype]) - (set() if spec.convolves else {"default"})
            assert set(spec.maths(dtype)) == expected
    for dtype in set(DTYPES) - {"float32"}:
        with pytest.raises(WorkloadError, match=f"unknown math 'default' of {dtype}; known: ieee"):
            Workload("conv_block", SMALL, dtype, "default")


@pytest.mark.parametrize("name", [name for name in operations() if name not in CONVOLVING])
def test_where_nothing_convolves_it_would_be_a_second_name_and_is_refused(name: str) -> None:
    with pytest.raises(WorkloadError, match=rf"'default' does not go with {name}, which does not convolve.* is ieee"):
        Workload(name, (4,) * len(operations()[name].dims), "float32", "default")


def switches() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("before", [("highest", True), ("high", False), ("medium", False)])
def test_pytorch_is_as_installed_whatever_was_set_and_is_put_back(before: tuple[str, bool]) -> None:
    usual = switches()
    try:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        with default().precision():
            assert switches() == ("highest", True)
        assert switches() == before
        with pytest.raises(RuntimeError), default().precision():
            raise RuntimeError
        assert switches() == before
    finally:
        torch.set_float32_matmul_precision(usual[0])
        torch.backends.cudnn.allow_tf32 = usual[1]


def test_what_the_compiler_has_stored_is_not_taken_for_another_arithmetic() -> None:
    """Inductor's own key has the precision of products, which default and ieee share, and not that of convolutions."""
    tags = {}
    for mode in ("ieee", "default"):
        with Workload("conv_block", SMALL, "float32", mode).precision():
            tags[mode] = torch.get_float32_matmul_precision(), config.cache_key_tag
    assert tags["ieee"][0] == tags["default"][0]
    assert tags["ieee"] != tags["default"]
    assert config.cache_key_tag == tags["ieee"][1]


# ---------------------------------------------------------------- what is right


@pytest.mark.parametrize("direction", ["forward", BOTH])
@pytest.mark.parametrize("name", ["conv_block", "conv_block_tanh", "unet", "unet_group"])
def test_it_is_held_to_what_tf32_is_held_to(name: str, direction: str) -> None:
    known = {mode: Workload(name, SMALL, "float32", mode, direction) for mode in ("default", "tf32", "ieee")}
    for part in known["default"].parts:
        assert known["default"].tolerance(part) == known["tf32"].tolerance(part)
        assert known["default"].tolerance(part) > 10 * known["ieee"].tolerance(part)


def short(t: torch.Tensor, digits: int) -> torch.Tensor:
    """``t`` rounded to so many binary ``digits`` behind the first: TF32 has 10, bfloat16 7. Its gradient is that of
    ``t``."""
    step, exact = 1 << (23 - digits), t.detach().contiguous()
    rounded = ((exact.view(torch.int32) + step // 2) & -step).view(torch.float32)
    return t + (rounded - exact)


@pytest.mark.parametrize(("digits", "right"), [(10, {"default"}), (7, set())])
@pytest.mark.parametrize("name", ["conv_block", "unet"])
def test_tf32s_rounding_is_right_both_ways_and_a_shorter_one_is_not(
    name: str, digits: int, right: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = torch.nn.functional.conv2d

    def conv2d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        if x.dtype == torch.float64:  # the reference's
            return exact(x, weight, bias, **more)
        z = exact(short(x, digits), short(weight, digits), **more)
        if z.requires_grad:
            z.register_hook(lambda grad: short(grad, digits))
        return z if bias is None else z + bias.view(1, -1, 1, 1)

    bind = find(name, "eager").factory
    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    agreed = set()
    for mode in ("default", "ieee"):
        problem = Problem(Workload(name, (2, 16, 32, 32), "float32", mode, BOTH), "cpu")
        if judge(bind(problem.workload, problem.inputs)(), problem).ok:
            agreed.add(mode)
    assert agreed == right


@pytest.mark.skipif(DEVICE != "cpu", reason="a CPU is meant")
def test_a_cpu_computes_it_as_ieee() -> None:
    found = []
    for mode in ("ieee", "default"):
        workload = Workload("conv_block", SMALL, "float32", mode)
        with workload.precision():
            found.append(find("conv_block", "eager").factory(workload, workload.inputs("cpu"))())
    assert torch.equal(*found)


# ---------------------------------------------------------------- who computes it


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("name", ["conv_block", "conv_block_tanh"])
def test_the_library_and_the_seeds_loops_compute_it_and_our_gpu_kernels_do_not(name: str) -> None:
    here = [one for one in variants(name).values() if "peer" not in one.tags]  # those may not be installed
    refused = {one.name for one in here if one.needs(default(name, SEED_SHAPE), "cuda") and not one.host}
    # What the dispatcher chooses computes as PyTorch's switch for convolutions says, whatever that is called.
    own = {one.name for one in variants(name).values() if one.origin == "own" and "dispatched" not in one.tags}
    assert refused == own  # on a CPU `threaded` is one of them
    for one in own - {"threaded"}:
        assert "ieee" in find(name, one).needs(default(name, SEED_SHAPE), "cuda")


@pytest.mark.parametrize(("operation", "has_it"), [("conv_block", True), ("matmul", False)])
def test_a_gpus_page_of_checks_tries_it_where_it_exists(
    operation: str, has_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: set[tuple[str, str]] = set()

    def needs(workload: Workload, device: str) -> str:
        tried.add((workload.dtype, workload.math))
        return "nothing runs in this test"

    one = SimpleNamespace(needs=needs, directions=("forward",))
    monkeypatch.setattr(registry, "variants", lambda name: {"one": one})
    monkeypatch.setattr(machine, "choose_device", lambda device: "cuda")
    verify.verify(operation, "cuda")
    assert (("float32", "default") in tried) is has_it
    assert tried >= {("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")}


# ---------------------------------------------------------------- limits


def cell(mode: str, **changes: Any) -> dict[str, Any]:
    work = default(shape=SEED_SHAPE)
    own = {"operation": "conv_block", "dtype": "float32", "math": mode, "variant": "eager", "clock": "graph"}
    return own | {"flops": work.flops, "traffic": work.traffic} | changes


GPU = {
    ("copy", "", "graph"): 5e12,
    ("copy", "", "cold"): 4e12,
    ("matmul", "float32/ieee", "graph"): 50e12,
    ("matmul", "float32/tf32", "graph"): 400e12,
}


def test_on_a_gpu_its_ceiling_is_that_of_tf32() -> None:
    assert results.arithmetic("float32", "default", GPU) == "float32/tf32"
    assert results.limit_us(cell("default"), GPU) == results.limit_us(cell("tf32"), GPU)
    assert results.limit_us(cell("ieee"), GPU) / results.limit_us(cell("default"), GPU) == pytest.approx(8)
    # Nothing is known of a rate that was not measured; IEEE's would call the library too fast.
    without = {key: rate for key, rate in GPU.items() if key[1] != "float32/tf32"}
    assert results.limit_us(cell("default"), without) != results.limit_us(cell("default"), without)  # NaN


def test_on_a_cpu_its_ceiling_is_that_of_ieee() -> None:
    best = {("copy", "", "hot"): 1e10, ("matmul", "float32/ieee", "hot"): 1e11}
    assert results.arithmetic("float32", "default", best) == "float32/ieee"
    assert results.limit_us(cell("default", clock="hot"), best) == results.limit_us(cell("ieee", clock="hot"), best) > 0


# ---------------------------------------------------------------- the experiment


SPEC = EXPERIMENTS["library_defaults"]


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("preset", PRESETS)
def test_what_a_gpu_is_asked_for_runs_there_and_is_timed_where_it_is_looked_at(preset: str) -> None:
    timed = [(group.workload, name) for group in SPEC.plan(preset, "cuda", ()) for name in group.variants]
    for workload, name in timed:
        assert find(workload.operation, name).needs(workload, "cuda") == "", (name, workload)
    assert len(set(timed)) == len(timed)
    probes = SPEC.probes(preset, "cuda", ())
    assert {probe.workload.math for probe in probes} <= {"default"}
    assert {(probe.workload, probe.variant) for probe in probes} <= set(timed)


def test_what_the_page_adds_to_the_claims_is_measured() -> None:
    timed = {(group.workload, name) for group in SPEC.plan("seed", "cuda", ()) for name in group.variants}
    for variant, operation, dtype, math, direction in (
        ("eager", "unet", "float32", "default", BOTH),
        ("compile", "unet", "float32", "default", BOTH),
        ("compile_together", "unet_autocast", "bfloat16", "ieee", BOTH),
        ("eager", "conv_block", "float32", "ieee", "forward"),
        ("eager", "conv_block", "bfloat16", "ieee", "forward"),
        ("eager", "unet", "bfloat16", "ieee", "forward"),
        ("compile_together", "conv_block_autocast", "bfloat16", "ieee", "forward"),
    ):
        assert (Workload(operation, SEED_SHAPE, dtype, math, direction), variant) in timed


def test_a_cpus_quick_preset_compiles_nothing_and_looks_at_nothing() -> None:
    groups = SPEC.plan("quick", "cpu", ())
    assert not any("compile" in name for group in groups for name in group.variants)
    assert SPEC.probes("quick", "cpu", ()) == []
