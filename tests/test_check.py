"""The checker against planted wrong variants: every one must be rejected with a reason that names its fault."""

from __future__ import annotations

import contextlib

import pytest
import torch
from kernel_tensors import accepted

import hypatia_lab.experiments  # noqa: F401  (registers the operations)
from hypatia_lab import check as checks
from hypatia_lab import planted, variants
from hypatia_lab.check import Check, Problem, _judge, _Part, check, judge, poisoned
from hypatia_lab.workloads import MATH, Workload, operations

SQUARE = planted.LINEAR_RELU


def name_of(kernel: planted.Kernel) -> str:
    return "-".join((kernel.workload.operation, kernel.workload.direction, kernel.mistake))


@pytest.mark.parametrize("kernel", planted.KERNELS, ids=name_of)
def test_a_planted_fault_is_rejected_by_its_name(kernel: planted.Kernel) -> None:
    problem = Problem(kernel.workload, "cpu")
    found = check(kernel.build(problem.inputs), problem)
    assert not found.ok
    assert found.reason.startswith(kernel.fault)


def test_wrong_kernels_of_every_operation_are_planted_and_all_are_told() -> None:
    known = {kernel.workload.operation for kernel in planted.KERNELS}
    # One operation of several forms, or part of another, is planted once.
    same = {"linear", "relu", "mlp2", "mlp3", "unet_group", "unet_autocast", "diffraction_triclinic"}
    assert {name for name in operations() if not name.startswith("conv_block_")} - same == known - same
    names = [name_of(kernel) for kernel in planted.KERNELS]
    assert len(set(names)) == len(names) >= 30
    rows = list(planted.tried())
    assert len(rows) == len(names) + len(planted.RULES)
    assert all(row["planted"] and row["named"] for row in rows)


def test_a_right_kernel_in_place_of_a_wrong_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = planted.Kernel(SQUARE, "none", "ReLU missing", lambda i: lambda: planted.linear_relu(i))
    monkeypatch.setattr(planted, "KERNELS", [kernel])
    monkeypatch.setattr(planted, "RULES", {"none": ("(Relu (Relu x))", "(Relu x)")})
    assert [row["named"] for row in planted.tried()] == ["", ""]


SHAPES = ((1, 1, 1), (1, 7, 127), (129, 1000, 77), (64, 64, 64))


@pytest.mark.parametrize(
    ("workload", "right"),
    [
        *((Workload("linear_relu", shape, dtype), planted.linear_relu) for shape in SHAPES for dtype in MATH),
        (Workload("linear_relu", SQUARE.shape, direction=planted.BOTH), planted.both_passes),
        (planted.BLOCK, planted.block("none")),
        (Workload("mlp", (24, 40, 32, 2, 20)), planted.layers),
        (Workload("mlp", (24, 40, 32, 2, 20), direction=planted.BOTH), planted.training_step),
    ],
)
def test_the_right_answer_passes(workload: Workload, right: planted.Call) -> None:
    problem = Problem(workload, "cpu")
    error = accepted(check(lambda: right(problem.inputs), problem))
    assert error <= max(map(workload.tolerance, workload.parts))


@pytest.mark.parametrize("kernel", planted.KERNELS[:12], ids=name_of)
def test_an_answer_is_judged_alike_in_pieces(kernel: planted.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that fills a GPU is; the last piece is looked at like the first."""
    problem = Problem(kernel.workload, "cpu")
    right = variants.find(kernel.workload.operation, "eager").factory(kernel.workload, problem.inputs)
    outs = [kernel.build(problem.inputs)(), right()]
    whole = [judge(out, problem) for out in outs]
    for size in (7, 1000):
        monkeypatch.setattr(checks, "PIECE", size)
        for one, other in zip([judge(out, problem) for out in outs], whole, strict=True):
            assert one.reason == other.reason
            assert one.error == pytest.approx(other.error)
            assert (one.max_error, one.peak) == (other.max_error, other.peak)


@pytest.mark.parametrize("kernel", planted.KERNELS[:12], ids=name_of)
def test_of_a_large_answer_it_is_told_how_far_off_it_is(
    kernel: planted.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it looks like would take more memory than a GPU has left."""
    problem = Problem(kernel.workload, "cpu")
    out = kernel.build(problem.inputs)()
    whole = judge(out, problem)
    monkeypatch.setattr(checks, "LARGE", 0)
    found = judge(out, problem)
    assert found.ok == whole.ok
    if not whole.ok and found.error is not None:
        assert found.reason.startswith("wrong values: ")
        assert "elements are off" in found.reason


def test_a_fault_that_shows_only_after_timing_is_caught() -> None:
    problem = Problem(SQUARE, "cpu")
    assert check(lambda: planted.linear_relu(problem.inputs), problem).ok
    problem.draw(0)
    out = planted.linear_relu(problem.inputs)
    problem.draw(1)
    assert "stale" in judge(out, problem).reason


def test_poison_reaches_fresh_memory() -> None:
    for count in (7, 1000, 100_000):
        with poisoned("cpu", 4 * count):
            fresh = torch.empty(count)
        assert bool(fresh.isnan().all())


def test_memory_is_no_longer_poisoned_when_the_call_ends_or_fails() -> None:
    with contextlib.suppress(RuntimeError), poisoned("cpu"):
        raise RuntimeError("a call that fails")
    # So much comes from the system anew, and is zero until somebody writes.
    assert not bool(torch.empty(2**24)[:1000].isnan().any())


def test_an_error_of_the_norm_alone_is_told_from_one_of_elements() -> None:
    problem = Problem(SQUARE, "cpu")
    reference = problem.reference()
    noise = torch.randn(*reference.shape, generator=torch.Generator().manual_seed(5))
    out = reference + noise.double().clamp(-1, 1) * 2 * SQUARE.tolerance() * reference.norm() / reference.numel() ** 0.5
    found = judge(out.float(), problem)
    assert found.reason.endswith("0 of 3072 elements alone are off"), found.reason


def against(reference: list[float] | float, out: list[float] | float) -> Check:
    """The check of a float32 output against a reference made up for it."""
    part = _Part(Problem(Workload("linear", SQUARE.shape), "cpu"), 0, torch.tensor(reference, dtype=torch.float64))
    return _judge(torch.tensor(out), part, "")


def test_a_wrong_scalar_is_told_like_any_other_output() -> None:
    assert against(2.0, 2.0).ok
    assert against(2.0, 2.2).reason.endswith("all 1 elements are off")


def test_the_largest_row_says_how_far_an_element_may_be_off() -> None:
    reference = torch.ones(64, 64, dtype=torch.float64)
    reference[5] = 100.0
    part = _Part(Problem(Workload("linear", SQUARE.shape), "cpu"), 0, reference)
    for times, right in ((5, True), (8, False)):
        out = reference.clone()
        out[5, 3] += times * 100 * part.tolerance
        assert _judge(out.float(), part, "").ok is right


INF, NAN = float("inf"), float("nan")


def test_infinities_and_nan_of_the_reference_can_be_met_and_count_for_nothing_else() -> None:
    found = against([1.0, 2.0, -INF, INF, NAN], [1.0, 2.0 + 1e-6, -INF, INF, NAN])
    assert accepted(found) == pytest.approx(1e-6 / 5**0.5, rel=0.1)
    assert found.max_error == pytest.approx(1e-6, rel=0.1)
    assert against([-INF, NAN], [-INF, NAN]).ok
    assert not against([1.0, 2.0, -INF], [1.0, 2.1, -INF]).ok


@pytest.mark.parametrize(
    ("is_", "became"), [(-INF, -1e30), (-INF, INF), (1.0, INF), (NAN, 1.0), (NAN, INF), (INF, NAN)]
)
def test_an_infinity_or_nan_that_is_missed_is_wrong(is_: float, became: float) -> None:
    found = against([3.0, 4.0, is_], [3.0, 4.0, became])
    assert not found.ok
    assert "1 of 3 elements" in found.reason
    assert found.error in (None, INF)


@pytest.mark.parametrize(("dtype", "columns"), [("bfloat16", True), ("float16", True), ("float32", False)])
def test_halves_lie_in_columns_where_a_processor_multiplies_them(dtype: str, columns: bool) -> None:
    problem = Problem(Workload("matmul", (24, 40, 56), dtype), "cpu")
    run = variants.find("matmul", "eager").factory(problem.workload, problem.inputs)
    assert check(run, problem).ok  # with new numbers in the same tensors
    assert problem.inputs["b"].stride() == ((1, 40) if columns else (56, 1))
