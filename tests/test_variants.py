"""The registry: what a variant can do it does right, at odd shapes and both ways; else it says why not."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kernel_tensors import DEVICE
from tabled import tabled, tables

from hypatia_lab import check, dispatch
from hypatia_lab.bench import composer
from hypatia_lab.experiments import EXPERIMENTS, PRESETS
from hypatia_lab.kernels import loader
from hypatia_lab.kernels.mlp import mlp_cuda
from hypatia_lab.operations import mlp
from hypatia_lab.variants import Variant, find, load, variants
from hypatia_lab.workloads import DIRECTIONS, DTYPES, SPLIT, Workload, operations, parse_shape

load()

# ---------------------------------------------------------------- against float64


def plain(one: Variant) -> bool:
    """What takes no seconds to build, and is no loop over a batch."""
    return not (one.compiles or one.measures or one.name == "one_by_one")


@dataclass(frozen=True)
class Rows:
    """Who of some operations' variants is held against float64, and of what: every combination that they have."""

    of: Sequence[str]
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str] = tuple(DTYPES)
    maths: Sequence[str] = ("ieee",)
    directions: Sequence[str] = ("forward",)
    who: Callable[[Variant], bool] = plain
    marks: Sequence[pytest.MarkDecorator] = ()

    def workloads(self) -> Iterator[Workload]:
        for name, shape, dtype, direction in itertools.product(self.of, self.shapes, self.dtypes, self.directions):
            spec = operations()[name]
            if direction == "forward" or spec.backward:
                for math in [math for math in spec.maths(dtype) if math in self.maths]:
                    yield Workload(name, tuple(shape), dtype, math, direction)


cuda = [pytest.mark.cuda, pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU")]
slow, sweep = [pytest.mark.slow], [pytest.mark.sweep]
SINGLE = ("float32",)
ALL = ("ieee", "tf32", *SPLIT, "default")
FEW = {1: (37,), 2: (9, 16), 3: (5, 9, 7), 4: (2, 8, 9, 10), 5: (5, 7, 9, 2, 6)}
MANY = {1: (64,), 2: (64, 64), 3: (64, 64, 64), 4: (2, 16, 32, 32), 5: (64, 64, 64, 2, 64)}
"""Number of extents → a shape, odd and even."""


WHO: dict[str, Callable[[Variant], bool]] = {
    "": plain,
    "measures": lambda one: one.measures and not one.compiles,
    "compiled": lambda one: one.compiles,
    # What GPUs are programmed for here; other libraries' forms need no large sizes.
    "of the lab": lambda one: one.origin in ("own", "rebuilt") and plain(one),
    "eager": lambda one: one.name == "eager",
}
MARKS = {"": (), "cuda": cuda, "slow": slow, "sweep": sweep}


def told_of(row: dict[str, Any]) -> Rows:
    """A row of the table."""
    maths = {"all": ALL, "": ("ieee",)}.get(str(row.get("maths", "")), row.get("maths"))
    return Rows(**row | {"who": WHO[row.get("who", "")], "marks": MARKS[row.get("marks", "")], "maths": maths})


ROWS = [
    *map(told_of, tables("variants")["rows"]),
    *(
        Rows([name], [(rows, width) for rows in (1, 63, 64, 65, 129, 1000, 20000, 65536) for width in mlp_cuda.WIDTHS])
        for name in mlp.FUSED
        if DEVICE == "cuda"
    ),
    *(
        Rows([name], operations()[name].small_shapes[:1], ("float32", "bfloat16"), who=WHO["measures"])
        for name in ("linear_relu", "conv_block", "conv_block_tanh", "mlp2", "mlp3")
    ),
    *(
        Rows([name], [FEW[len(spec.dims)]], maths=ALL, marks=sweep if "table" in name else slow)
        for name, spec in operations().items()
    ),
    *(
        Rows([name], [MANY[len(spec.dims)]], dtypes, maths=ALL, directions=DIRECTIONS, who=who, marks=sweep)
        for name, spec in operations().items()
        for dtypes, who in ((tuple(DTYPES), plain), (SINGLE, lambda one: not plain(one)))
    ),
]


@pytest.mark.filterwarnings("ignore:.*is deprecated")  # and still measured
@pytest.mark.parametrize(
    ("work", "who"),
    [
        pytest.param(work, rows.who, marks=rows.marks, id=f"{'-'.join(map(str, words))}-{number}")
        for number, rows in enumerate(ROWS)
        for work in rows.workloads()
        for words in [(work.operation, work.shape_text, work.dtype, work.math, work.direction)]
    ],
)
def test_every_variant_agrees_with_float64(
    work: Workload, who: Callable[[Variant], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "folder", lambda: tmp_path)
    able = [one for one in variants(work.operation).values() if who(one) and not one.needs(work, DEVICE)]
    # Float32 is not enough for this one, which is what it is there to show.
    able = [one for one in able if (one.name, work.dtype) != ("eager_direct", "float32")]
    if not able:
        pytest.skip("none of them runs here")
    wrong = {}
    with work.precision():
        problem = check.Problem(work, DEVICE)
        for one in able:
            found = check.check(one.factory(work, problem.inputs), problem, place="cpu" if one.host else "")
            wrong |= {} if found.ok else {one.name: found.reason}
    assert not wrong


# ---------------------------------------------------------------- who does not run, and why


def every(name: str, *directions: str) -> Iterator[Workload]:
    """Operation ``name`` in every dtype, math and direction that it has."""
    shapes = [FEW[len(operations()[name].dims)]]
    yield from Rows([name], shapes, maths=ALL, directions=directions or DIRECTIONS).workloads()


@pytest.mark.slow
@pytest.mark.parametrize("name", operations())
def test_split_operands_are_refused_by_whoever_has_no_such_arithmetic(name: str) -> None:
    for work in every(name, "forward"):
        for one in variants(name).values():
            if work.math not in one.maths:
                assert one.needs(work, "cpu") == one.needs(work, "cuda") != ""
            assert work.math not in SPLIT or one.origin == "own" or one.needs(work, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", operations())
def test_what_cannot_run_on_a_cpu_at_all_has_one_reason(name: str) -> None:
    for one in variants(name).values():
        reasons = {one.needs(work, "cpu") for work in every(name, *one.directions) if work.math in one.maths}
        assert "" in reasons or len(reasons) == 1, (one.name, reasons)


@pytest.mark.parametrize(
    ("hidden", "some", "wanted"),
    [
        ("triton", "linear_relu/triton", "triton"),
        ("egglog", "mlp/egraph", "'hypatia-lab[egraph]'"),
        *(
            (library, f"{operation}/{name}", "'hypatia-lab[peers]'")
            for library, start in (("nvmath", "nvmath"), ("jax", "jax"), ("cudnn", "cudnn_graph"))
            for operation in operations()
            for name in variants(operation)
            if name.startswith(start)
        ),
    ],
)
def test_a_module_that_is_not_installed_is_told_with_what_would_install_it(
    hidden: str, some: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation, name = some.split("/")
    one, work = variants(operation)[name], Workload(operation, operations()[operation].small_shapes[-1])
    monkeypatch.setattr(loader, "cuda_missing", lambda device="cuda": "")
    assert importlib.util.find_spec(hidden) is None or hidden not in one.needs(work, "cuda")
    monkeypatch.setitem(sys.modules, hidden, None)
    assert one.needs(work, "cuda") == f"{hidden} is not installed (pip install {wanted})"


def test_a_tool_that_was_tried_in_vain_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Workload("linear_relu", (2, 3, 4))
    assert variants("linear_relu")["naive"].needs(work, "cpu") == ""
    monkeypatch.setitem(loader.BROKEN, "cpp", "it makes no libraries")
    for name in ("naive", "threaded", "compile"):
        assert variants("linear_relu")[name].needs(work, "cpu") == "it makes no libraries"


@pytest.mark.parametrize("operation", sorted(operations()))
def test_who_multiplies_float32_in_terms_says_so(operation: str) -> None:
    """Else its time is held against what float32's own units can do, and not believed."""
    silent = [name for name, one in variants(operation).items() if "x3" in name and not one.splits]
    assert not silent


def told(asked: str, device: str) -> str:
    some, shape, *how = asked.split()
    operation, name = some.split("/")
    dtype, math, direction = (*how, *("float32", "ieee", "forward")[len(how) :])
    return find(operation, name).needs(Workload(operation, parse_shape(shape), dtype, math, direction), device)


@tabled("variants", "on_a_cpu")
def test_a_variant_says_where_it_runs(asked: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "module_missing", lambda name, install: "")
    wanted, found = wanted.format(no_gpu=loader.NO_GPU), told(asked, "cpu")
    assert wanted in found if wanted else not found


@tabled("variants", "on_an_h200")
@pytest.mark.usefixtures("h200")
def test_a_variant_says_what_it_asks_of_a_gpu(asked: str, wanted: str) -> None:
    found = told(asked, "cuda")
    assert wanted in found if wanted else not found


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_kernels_for_hopper_run_nowhere_else(capability: tuple[int, int], card: Callable[..., None]) -> None:
    card(capability)
    for asked in ("linear_relu/step_wgmma 64x64x64", "linear_relu/cuda 64x64x64", "mlp3/fused_cuda 1x64"):
        assert "needs compute capability 9.0" in told(f"{asked} bfloat16", "cuda")


# ---------------------------------------------------------------- who is planned


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_plan_names_each_once_that_there_is_and_that_goes_that_way(device: str, preset: str) -> None:
    for experiment, spec in EXPERIMENTS.items():
        composer.plan(experiment, preset, device, [tuple(range(8, 8 + len(spec.dims)))])  # the operation's extents
        asked = [(probe.workload, probe.variant) for probe in spec.probes(preset, device, ())]
        for group in composer.plan(experiment, preset, device):
            assert len(set(group.variants)) == len(group.variants), experiment
            asked += [(group.workload, name) for name in group.variants]
        for work, name in asked:
            assert work.direction in find(work.operation, name).directions, (experiment, name)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("experiment", ["conv_block", "library_defaults", "torch_compile", "compile_time"])
def test_what_convolves_is_measured_at_the_shape_that_is_asked_for(experiment: str, device: str, preset: str) -> None:
    spec, asked = EXPERIMENTS[experiment], (2, 3, 8, 8)
    for group in spec.plan(preset, device, ()):
        firsts = [name for name in group.variants if find(group.workload.operation, name).baseline]
        assert any(not find(group.workload.operation, name).needs(group.workload, "cpu") for name in firsts)
    assert {group.workload.shape for group in spec.plan(preset, device, [asked]) if group.clocks} <= {asked}
