"""The checker against planted wrong variants: every one must be rejected with a reason that names its fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import hypatia_lab.fused_ops  # noqa: F401  (registers the operations)
from hypatia_lab.check import Problem, check, judge
from hypatia_lab.workloads import Workload

Inputs = dict[str, torch.Tensor]
Wrong = Callable[[Inputs], Callable[[], object]]
WRONG: dict[str, tuple[str, Wrong]] = {}
SQUARE = Workload("linear_relu", (96, 128, 128))
"""Square weight, so that a transposed one fits."""


def planted(reason: str) -> Callable[[Wrong], Wrong]:
    def add(factory: Wrong) -> Wrong:
        WRONG[factory.__name__] = (reason, factory)
        return factory

    return add


def right(i: Inputs) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(i["x"], i["weight"], i["bias"]))


@planted("ReLU missing")
def relu_missing(i: Inputs):
    return lambda: torch.nn.functional.linear(i["x"], i["weight"], i["bias"])


@planted("bias missing")
def bias_missing(i: Inputs):
    return lambda: torch.relu(i["x"] @ i["weight"].T)


@planted("bias added after the ReLU")
def bias_after_relu(i: Inputs):
    return lambda: torch.relu(i["x"] @ i["weight"].T) + i["bias"]


@planted("weight transposed")
def weight_transposed(i: Inputs):
    return lambda: torch.relu(torch.addmm(i["bias"], i["x"], i["weight"]))


@planted("unwritten")
def last_tile_unwritten(i: Inputs):
    def run() -> torch.Tensor:
        out = torch.empty(i["x"].shape[0], i["weight"].shape[0])
        out[:80] = right(i)[:80]
        return out

    return run


@planted("unwritten")
def last_column_unwritten(i: Inputs):
    def run() -> torch.Tensor:
        out = torch.empty(i["x"].shape[0], i["weight"].shape[0])
        out[:, :-1] = right(i)[:, :-1]
        return out

    return run


@planted("zero")
def last_tile_zeroed(i: Inputs):
    def run() -> torch.Tensor:
        out = right(i)
        out[80:] = 0
        return out

    return run


@planted("stale")
def output_of_the_call_before(i: Inputs):
    kept: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        if not kept:
            kept.append(right(i))
        return kept[0]

    return run


@planted("low precision")
def bfloat16_passed_off_as_float32(i: Inputs):
    return lambda: torch.relu(
        torch.nn.functional.linear(i["x"].bfloat16(), i["weight"].bfloat16(), i["bias"].bfloat16())
    ).float()


@planted("low precision")
def tf32_passed_off_as_float32(i: Inputs):
    def tf32(t: torch.Tensor) -> torch.Tensor:
        # TF32 keeps 10 mantissa bits: round to nearest, then clear the other 13.
        return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    return lambda: torch.relu(torch.nn.functional.linear(tf32(i["x"]), tf32(i["weight"]), i["bias"]))


@planted("NaN")
def one_nan(i: Inputs):
    def run() -> torch.Tensor:
        out = right(i)
        out[3, 5] = float("nan")
        return out

    return run


@planted("NaN: all")
def nan_everywhere(i: Inputs):
    return lambda: right(i) * float("nan")


@planted("wrong dtype: float64")
def wrong_dtype(i: Inputs):
    return lambda: right(i).double()


@planted("wrong shape: [128, 96]")
def wrong_shape(i: Inputs):
    return lambda: right(i).T


@planted("wrong shape")
def one_row_short(i: Inputs):
    return lambda: right(i)[:-1]


@planted("wrong type: tuple")
def wrong_type(i: Inputs):
    return lambda: (right(i),)


@planted("writes past a row")
def writes_past_a_row(i: Inputs):
    """One column too many a row: each row's overrun lands on the first element of the next."""

    def run() -> torch.Tensor:
        answer = right(i)
        rows, columns = answer.shape
        flat = torch.empty(rows * columns + 1)
        for row in range(rows):
            flat[row * columns : (row + 1) * columns] = answer[row]
        for row in range(rows):
            flat[(row + 1) * columns] = 1e3  # what a column of weights past the last one would give
        return flat[:-1].view(rows, columns)

    return run


@planted("input changed: the call wrote into 'x'")
def writes_into_its_input(i: Inputs):
    def run() -> torch.Tensor:
        out = right(i)
        i["x"].relu_()
        return out

    return run


@planted("wrong values")
def one_element_off(i: Inputs):
    def run() -> torch.Tensor:
        out = right(i)
        out[7, 9] += 0.5
        return out

    return run


@planted("wrong values")
def drops_the_last_term(i: Inputs):
    return lambda: torch.relu(torch.nn.functional.linear(i["x"][:, :-1], i["weight"][:, :-1], i["bias"]))


@planted("wrong values")
def rows_swapped(i: Inputs):
    return lambda: right(i).flip(0)


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_rejected_by_its_name(name: str) -> None:
    expected, factory = WRONG[name]
    problem = Problem(SQUARE, "cpu")
    found = check(factory(problem.inputs), problem)  # type: ignore[arg-type]
    assert not found.ok
    assert expected in found.reason


def test_there_are_at_least_ten_planted_faults() -> None:
    assert len(WRONG) >= 10


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 127), (129, 1000, 77), (64, 64, 64)])
def test_the_right_answer_passes(dtype: str, shape: tuple[int, ...]) -> None:
    problem = Problem(Workload("linear_relu", shape, dtype), "cpu")
    found = check(lambda: right(problem.inputs), problem)
    assert found.ok, found.reason
    assert found.error is not None
    assert found.error <= problem.workload.tolerance()


def test_a_fault_that_shows_only_after_timing_is_caught() -> None:
    problem = Problem(SQUARE, "cpu")
    assert check(lambda: right(problem.inputs), problem).ok
    problem.draw(0)
    out = right(problem.inputs)
    problem.draw(1)
    assert "stale" in judge(out, problem).reason


def test_poison_reaches_fresh_memory() -> None:
    from hypatia_lab.check import poisoned

    for count in (7, 1000, 100_000):
        with poisoned("cpu", 4 * count):
            fresh = torch.empty(count)
        assert bool(fresh.isnan().all())
    assert not bool(torch.zeros(1000).isnan().any())


def test_an_exception_of_the_variant_passes_through() -> None:
    problem = Problem(SQUARE, "cpu")

    def broken() -> torch.Tensor:
        raise RuntimeError("no kernel image")

    with pytest.raises(RuntimeError, match="no kernel image"):
        check(broken, problem)


def test_an_error_of_the_norm_alone_is_told_from_one_of_elements() -> None:
    problem = Problem(SQUARE, "cpu")
    noise = torch.randn(96, 128, generator=torch.Generator().manual_seed(5))
    reference = problem.reference()
    out = reference + noise.double().clamp(-1, 1) * 2 * SQUARE.tolerance() * reference.norm() / reference.numel() ** 0.5
    found = judge(out.float(), problem)
    assert found.reason.endswith("0 of 12288 elements alone are off"), found.reason
