"""What a variant can do it does right, and of everything else it says why not: over the whole registry."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator

import pytest

import hypatia_lab.experiments  # noqa: F401  (registers every operation)
from hypatia_lab import check
from hypatia_lab.kernels import loader
from hypatia_lab.variants import Variant, variants
from hypatia_lab.workloads import DIRECTIONS, DTYPES, SPLIT, Workload, operations

pytestmark = pytest.mark.slow  # every variant at every arithmetic takes minutes

SMALL = {1: (37,), 2: (9, 16), 3: (5, 9, 7), 4: (2, 8, 9, 10), 5: (5, 7, 9, 2, 6)}
EVEN = {1: (64,), 2: (64, 64), 3: (64, 64, 64), 4: (2, 16, 32, 32), 5: (64, 64, 64, 2, 64)}
"""Number of extents → a shape."""


def workloads(name: str, shapes: dict[int, tuple[int, ...]], *directions: str) -> Iterator[Workload]:
    """Operation ``name`` in every dtype, math and direction that it has."""
    spec = operations()[name]
    for dtype, direction in itertools.product(DTYPES, directions or DIRECTIONS):
        if direction == "forward" or spec.backward:
            for math in spec.maths(dtype):
                yield Workload(name, shapes[len(spec.dims)], dtype, math, direction)


INEXACT = ("eager_direct",)
"""Forms that float32 is not enough for, which is what they are there to show."""


def slow(variant: Variant) -> bool:
    """Whether it takes seconds to build: something is compiled, or the costs of rewriting are measured."""
    return variant.compiles or variant.name == "one_by_one" or "egraph" in variant.name


def wrong(work: Workload, candidates: list[Variant]) -> list[str]:
    """Those of ``candidates`` that this CPU's answer to ``work`` shows to be wrong, and how."""
    found = []
    with work.precision(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is deprecated and still measured
        problem = check.Problem(work, "cpu") if candidates else None
        for one in candidates:
            if one.name in INEXACT and work.dtype == "float32":
                continue
            assert problem is not None
            judged = check.check(one.factory(work, problem.inputs), problem)
            if not judged.ok:
                found.append(f"{one.name} in {work.dtype} {work.math} {work.direction}: {judged.reason}")
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sweep] * (name == "diffraction_table")) for name in operations()]
)
def test_what_a_variant_does_not_refuse_it_computes_right_in_that_arithmetic(name):
    for work in workloads(name, SMALL, "forward"):
        able = [one for one in variants(name).values() if not slow(one) and not one.needs(work, "cpu")]
        assert not wrong(work, able)


@pytest.mark.sweep
@pytest.mark.parametrize("name", operations())
def test_so_it_does_backward_and_compiled(name):
    for work in workloads(name, EVEN):
        able = [one for one in variants(name).values() if not one.needs(work, "cpu")]
        assert not wrong(work, [one for one in able if not slow(one) or work.dtype == "float32"])


@pytest.mark.parametrize("name", operations())
def test_split_operands_are_refused_by_whoever_has_no_such_arithmetic(name):
    for work in workloads(name, SMALL, "forward"):
        for one in variants(name).values():
            if work.math not in one.maths:
                assert one.needs(work, "cpu") == one.needs(work, "cuda") != ""
            assert work.math not in SPLIT or one.origin == "own" or one.needs(work, "cpu")


@pytest.mark.parametrize("name", operations())
def test_what_cannot_run_on_a_cpu_at_all_has_one_reason(name):
    for one in variants(name).values():
        own = [w for w in workloads(name, SMALL, *one.directions) if w.math in one.maths]
        reasons = {one.needs(work, "cpu") for work in own}
        assert "" in reasons or len(reasons) == 1, (one.name, reasons)


@pytest.mark.parametrize(
    ("hidden", "some", "wanted"),
    [("triton", "linear_relu/triton", "triton"), ("egglog", "mlp/egraph", "'hypatia-lab[egraph]'")],
)
def test_a_module_that_is_not_installed_is_told_with_what_would_install_it(monkeypatch, hidden, some, wanted):
    operation, name = some.split("/")
    one, work = variants(operation)[name], next(workloads(operation, SMALL, "forward"))
    monkeypatch.setattr(loader, "cuda_missing", lambda device="cuda": "")
    assert hidden not in one.needs(work, "cuda")
    monkeypatch.setitem(sys.modules, hidden, None)
    assert one.needs(work, "cuda") == f"{hidden} is not installed (pip install {wanted})"


def test_a_tool_that_was_tried_in_vain_counts_as_missing(monkeypatch):
    work = Workload("linear_relu", (2, 3, 4))
    assert variants("linear_relu")["naive"].needs(work, "cpu") == ""
    monkeypatch.setitem(loader.BROKEN, "cpp", "it makes no libraries")
    for name in ("naive", "threaded", "compile"):
        assert variants("linear_relu")[name].needs(work, "cpu") == "it makes no libraries"
