"""Other libraries' variants: what the lab hands them and takes back, without a GPU and mostly without them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as functional
from test_cells import session_here

import hypatia_lab.experiments  # noqa: F401  (registers every operation)
from hypatia_lab import check, variants
from hypatia_lab.experiments import EXPERIMENTS, Group
from hypatia_lab.kernels import loader
from hypatia_lab.operations import peer_freezing, peer_jax
from hypatia_lab.operations.conv_block import peer_cudnn
from hypatia_lab.operations.linear_relu import peer_nvmath
from hypatia_lab.workloads import Workload, operations

LIBRARIES = ("nvmath", "jax", "cudnn")


def peers() -> list[variants.Variant]:
    return [one for name in operations() for one in variants.variants(name).values() if "peer" in one.tags]


def test_loading_the_registry_imports_none_of_the_libraries() -> None:
    code = f"import sys, hypatia_lab.variants as v; v.load(); print([n for n in {LIBRARIES} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_jax_without_its_plugin_is_none_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "module_missing", lambda name, install: "" if name == "jax" else "no")
    assert "jax[cuda13]" in peer_jax.missing(Workload("linear_relu", (64, 64, 64)), "cuda")
    assert peer_jax.missing(Workload("linear_relu", (64, 64, 64)), "cpu") == ""
    assert variants.find("linear_relu", "jax_bf16x6").needs(Workload("linear_relu", (64, 64, 64)), "cpu")


@pytest.mark.parametrize("shape", [(1, 384, 384), (384, 384, 1)])
def test_xla_is_not_asked_for_several_products_where_it_computes_one(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "module_missing", lambda name, install: "")
    six, named = (variants.find("linear_relu", name).needs for name in ("jax_bf16x6", "jax"))
    kinds = [(six, "ieee"), *((named, math) for math in peer_jax.PRODUCTS)]
    several = [needs(Workload("linear_relu", (384, 384, 384), math=math), "cuda") for needs, math in kinds]
    one = [needs(Workload("linear_relu", shape, math=math), "cuda") for needs, math in kinds]
    assert several == [""] * 5
    assert one == [peer_jax.ROUNDED, "", "", "", peer_jax.ROUNDED]
    assert variants.find("mlp2", "jax").needs(Workload("mlp2", (1, 64), math="bf16x3"), "cuda") == peer_jax.ROUNDED


# ---------------------------------------------------------------- plans and clocks


@pytest.mark.parametrize("experiment", ["tensor_cores", "conv_block", "fused_mlp", "backward"])
def test_they_are_planned_on_a_gpu_beyond_the_quick_preset(experiment: str) -> None:
    names = {one.name for one in peers()}

    def planned(preset: str, device: str) -> list[Group]:
        return [one for one in EXPERIMENTS[experiment].groups(preset, device) if names & {*one.variants}]

    assert planned("seed", "cuda")
    assert planned("full", "cuda")
    assert not [one for preset in ("quick", "seed", "full") for one in planned(preset, "cpu")]
    assert not planned("quick", "cuda")
    for group in planned("full", "cuda"):
        for name in group.variants:
            one = variants.find(group.workload.operation, name)
            assert not [clock for clock in group.clocks if one.untimed(clock, "cuda")]


def test_a_stream_of_its_own_is_timed_by_the_clocks_of_the_whole_device_only() -> None:
    one = variants.find("linear_relu", "jax")
    assert "wall and profiler" in one.untimed("graph", "cuda")
    assert not one.untimed("wall", "cuda")
    assert not one.untimed("hot", "cpu")


def test_what_a_clock_cannot_time_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    session, told = session_here()
    session.rests = False
    why = "launches elsewhere"
    refuses = lambda one, clock, device: why if one.name == "epilogue" and clock == "hot" else ""  # noqa: E731
    monkeypatch.setattr(variants.Variant, "untimed", refuses)
    session.run(0, asdict(Group(Workload("linear_relu", (8, 8, 8)), ("eager", "epilogue"), ("hot", "wall"), 0.01)))
    found = {(row["variant"], row["clock"]): (row["status"], row["reason"]) for row in told if row["event"] == "row"}
    assert found["epilogue", "hot"] == ("skipped", why)
    assert {status for key, (status, _) in found.items() if key != ("epilogue", "hot")} == {"ok"}


# ---------------------------------------------------------------- what is handed over


class Matmul:
    """Stands in for nvmath.linalg.advanced.Matmul: the same shapes and memory orders, by PyTorch."""

    made: list[Matmul] = []

    def __init__(self, a: torch.Tensor, b: torch.Tensor, options: dict[str, Any] | None = None) -> None:
        self.a, self.b, self.options, self.tuned = a, b, options, []
        self.made.append(self)

    def plan(self, *, epilog: str | None, epilog_inputs: dict[str, torch.Tensor] | None, preferences: Any) -> None:
        self.epilog, self.inputs, self.limit = epilog, epilog_inputs or {}, preferences.limit

    def autotune(self, *, iterations: int, prune: int | None = None) -> None:
        self.tuned.append((iterations, prune))

    def execute(self, *, stream: Any) -> Any:
        product = self.a @ self.b
        by_columns = self.epilog is not None or self.a.stride(0) == 1
        if self.epilog == "RELU_BIAS":
            product = (product + self.inputs["bias"][:, None]).relu()
        product = product.t().contiguous().t() if by_columns else product.contiguous()
        return (product, {"bgradb": self.b.sum(0)}) if self.epilog == "BGRADB" else product


@pytest.fixture
def nvmath(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = ModuleType("nvmath.linalg.advanced")
    stand_in.Matmul = Matmul
    stand_in.MatmulEpilog = {name: name for name in ("RELU_BIAS", "BGRADB")}
    stand_in.MatmulPlanPreferences = lambda limit: SimpleNamespace(limit=limit)
    stand_in.MatmulComputeType = SimpleNamespace(COMPUTE_32F_FAST_TF32=77)
    for name in ("nvmath", "nvmath.linalg"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *device: None)
    monkeypatch.setattr(Matmul, "made", [])


@pytest.mark.usefixtures("nvmath")
@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
@pytest.mark.parametrize(("dtype", "math"), [("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")])
def test_nvmath_is_handed_transposes_and_gives_rows_back(direction: str, dtype: str, math: str) -> None:
    work = Workload("linear_relu", (24, 40, 56), dtype, math, direction)
    problem = check.Problem(work, "cpu")
    run = peer_nvmath.nvmath(work, problem.inputs)
    found = check.check(run, problem)
    assert found.ok, found.reason
    out = run()
    assert all(part.is_contiguous() for part in (out if isinstance(out, tuple) else (out,)))
    for one in Matmul.made:
        assert one.options == ({"compute_type": 77} if math == "tf32" else None)
        assert one.tuned == [(peer_nvmath.GLANCES, peer_nvmath.FINALISTS), (peer_nvmath.TRIALS, None)]


class Graph:
    """Stands in for cudnn.pygraph: a convolution and a bias, computed by PyTorch."""

    def tensor(self, *, name: str, dim: list[int], stride: list[int], data_type: str) -> str:
        return name

    def conv_fprop(self, *, image: str, weight: str, padding: Any, stride: Any, dilation: Any) -> str:
        assert (image, weight, padding, stride, dilation) == ("x", "weight", [1, 1], [1, 1], [1, 1])
        return "z"

    def bias(self, *, input: str, bias: str) -> Any:
        assert (input, bias) == ("z", "bias")
        return Mock()

    def execute(self, tensors: dict[Any, torch.Tensor], workspace: torch.Tensor, handle: int) -> None:
        x, weight, bias, out = tensors.values()
        assert all(one.is_contiguous(memory_format=torch.channels_last) for one in (x, weight, out))
        out.copy_(functional.conv2d(x, weight, bias, padding=1))

    def get_workspace_size(self) -> int:
        return 16

    def __getattr__(self, name: str) -> Any:
        steps = ("validate", "build_operation_graph", "create_execution_plans", "deselect_numeric_notes")
        assert name in (*steps, "check_support", "build_plans")
        return lambda *given: None


@pytest.mark.parametrize("operation", ["conv_block", "conv_block_tanh"])
@pytest.mark.parametrize(("dtype", "math"), [("float32", "tf32"), ("bfloat16", "ieee")])
def test_cudnn_is_handed_images_channels_last(
    operation: str, dtype: str, math: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in: Any = ModuleType("cudnn")
    stand_in.pygraph, stand_in.set_stream = lambda **kinds: Graph(), lambda handle, stream: None
    stand_in.data_type = SimpleNamespace(FLOAT="float", BFLOAT16="bfloat16", HALF="half")
    stand_in.heur_mode = SimpleNamespace(A="a", FALLBACK="fallback")
    stand_in.numerical_note = SimpleNamespace(DOWN_CONVERT_INPUTS="down")
    monkeypatch.setitem(sys.modules, "cudnn", stand_in)
    monkeypatch.setattr(peer_cudnn, "handle", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *device: SimpleNamespace(cuda_stream=0))
    work = Workload(operation, (2, 16, 12, 10), dtype, math)
    problem = check.Problem(work, "cpu")
    monkeypatch.setattr(peer_cudnn, "compiled", lambda function: function)
    for factory, *_ in peer_cudnn.FORMS.values():
        found = check.check(factory(work, problem.inputs), problem)
        assert found.ok, found.reason


# ---------------------------------------------------------------- what a CPU can compute


def test_weights_are_compiled_in_once_for_each_of_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def program(form: Any, weights: Any, x: torch.Tensor) -> Any:
        built.append(weights[0]._version)
        copies = [one.clone() for one in weights]
        return lambda x: form(x, *copies)

    monkeypatch.setattr(peer_freezing, "frozen_program", program)
    x, weight = torch.ones(2), torch.ones(2)
    run = peer_freezing.frozen(torch.mul, x, [weight])
    assert run().tolist() == run().tolist() == [1, 1]
    x.fill_(2)
    assert run().tolist() == [2, 2]
    weight.fill_(3)
    assert run().tolist() == [6, 6]
    assert len(built) == 2
