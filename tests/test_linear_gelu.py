"""GELU behind a linear layer: who computes it, which mistakes in it are told, and what infinities make of it."""

from __future__ import annotations

import pytest
import torch
from kernel_tensors import DEVICE

import hypatia_lab
from hypatia_lab import check
from hypatia_lab.kernels.linear_relu.epilogue import activated
from hypatia_lab.operations import linear_gelu
from hypatia_lab.operations.linear_relu import LINEAR_RELU
from hypatia_lab.variants import variants
from hypatia_lab.workloads import Workload, operations

each = pytest.mark.parametrize("name", linear_gelu.OPERATIONS)


@each
def test_only_the_tanh_formula_has_an_epilogue_of_the_librarys(name: str) -> None:
    wanted = {"eager", "compile", "triton", "cuda", "fp16x3_cuda"} | (
        {"epilogue"} if name == "linear_gelu_tanh" else set()
    )
    assert set(variants(name)) == wanted


@each
def test_verifying_it_tries_the_forward_pass_alone(name: str) -> None:
    (line,) = hypatia_lab.verify(name, DEVICE).splitlines()
    assert line.startswith(f"{name}: every variant")


@each
def test_operations_and_bytes_are_those_of_linear_relu(name: str) -> None:
    one, other = (Workload(own, (3, 5, 7), "bfloat16") for own in (name, "linear_relu"))
    assert (one.flops, one.traffic) == (other.flops, other.traffic)
    assert operations()[name].backward is None
    assert LINEAR_RELU.backward is not None


@each
def test_every_mistake_is_told_by_its_name(name: str) -> None:
    problem = check.Problem(Workload(name, (64, 48, 48)), DEVICE)
    faults = problem.workload.spec.faults(problem.inputs)
    assert len(faults) == 6
    for mistake, wrong in faults.items():
        assert check.judge(wrong.float(), problem).reason.startswith(mistake)


@each
@pytest.mark.parametrize("inner", [1, 64, 4096])
def test_inputs_keep_gelu_apart_from_relu_however_long_the_sums(name: str, inner: int) -> None:
    """In 16 bits, too, whose rounding is as large as what parts the two formulas of GELU."""
    problem = check.Problem(Workload(name, (64, inner, 48), "bfloat16"), DEVICE)
    for mistake, wrong in problem.workload.spec.faults(problem.inputs).items():
        formula = mistake.startswith("GELU by")
        assert check.judge(wrong.bfloat16(), problem).ok == formula, mistake


EXTREMES = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 0.0, -0.0])


@each
def test_nan_and_infinities_are_where_float64_has_them(name: str) -> None:
    """GELU of −∞ is −∞ · 0, and 0 where a ReLU stands before it."""
    relu, approximate = linear_gelu.OPERATIONS[name]
    found = activated(EXTREMES.double(), relu, approximate).tolist()
    below = 0.0 if relu else float("nan")
    expected = [float("nan"), float("inf"), below, 1e30, 0.0, 0.0, 0.0]
    assert found == pytest.approx(expected, nan_ok=True)
