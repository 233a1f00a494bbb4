"""The registry: what a variant can do it does right, at odd shapes and both ways; else it says why not."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tabled import tabled

from hypatia_lab import check, dispatch
from hypatia_lab.experiments import EXPERIMENTS, PRESETS
from hypatia_lab.kernels import loader
from hypatia_lab.kernels.mlp import mlp_cuda
from hypatia_lab.machine import choose_device
from hypatia_lab.operations import mlp
from hypatia_lab.variants import Variant, find, load, variants
from hypatia_lab.workloads import DIRECTIONS, DTYPES, SPLIT, Workload, operations, parse_shape

DEVICE = choose_device("auto")
BOTH = "forward_backward"
Card = Callable[[tuple[int, int]], None]
load()

# ---------------------------------------------------------------- against float64


def plain(one: Variant) -> bool:
    """What takes no seconds to build, and is no loop over a batch."""
    return not (one.compiles or one.measures or one.name == "one_by_one")


def measures(one: Variant) -> bool:
    return one.measures and not one.compiles


def compiled(one: Variant) -> bool:
    return one.compiles


def of_the_lab(one: Variant) -> bool:
    """What GPUs are programmed for here; other libraries' forms need no large sizes."""
    return one.origin in ("own", "rebuilt") and plain(one)


@dataclass(frozen=True)
class Rows:
    """Who of an operation's variants is held against float64, and of what: every combination that the operation has."""

    operation: str
    shapes: Sequence[tuple[int, ...]]
    dtypes: Sequence[str] = tuple(DTYPES)
    maths: Sequence[str] = ("ieee",)
    directions: Sequence[str] = ("forward",)
    who: Callable[[Variant], bool] = plain
    marks: Sequence[pytest.MarkDecorator] = ()

    def workloads(self) -> Iterator[Workload]:
        spec = operations()[self.operation]
        for shape, dtype, direction in itertools.product(self.shapes, self.dtypes, self.directions):
            if direction == "forward" or spec.backward:
                for math in [math for math in spec.maths(dtype) if math in self.maths]:
                    yield Workload(self.operation, shape, dtype, math, direction)


cuda = [pytest.mark.cuda, pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU")]
slow, sweep = [pytest.mark.slow], [pytest.mark.sweep]
SINGLE, EXACT = ("float32",), ("float32", "float64")
ALL = ("ieee", "tf32", *SPLIT, "default")
LINEAR = [(1, 1, 1), (7, 127, 129), (128, 1, 3), (1, 784, 10), (100, 301, 77)]
LADDER = [(1, 7, 5), (127, 129, 127)]
# Many tiles, a ragged last one, rows that start at multiples of 16 bytes and rows that do not.
LARGE = [(127, 784, 7), (129, 64, 512), (1000, 3001, 77), (1024, 784, 2048), (3000, 520, 3001)]
MLP = [(1, 7, 5, 1, 3), (33, 77, 40, 2, 10), (129, 24, 31, 4, 10)]
BLOCK = [(1, 3, 7, 5), (33, 4, 9, 10), (2, 16, 33, 40), (1, 64, 17, 31), (2, 96, 8, 8), (1, 3, 97, 131)]
ODD, EVEN, SMALL = (3, 5, 33, 29), (2, 16, 32, 32), (2, 3, 13, 17)
DIFFRACTION = ("diffraction", "diffraction_triclinic", "diffraction_sources", "diffraction_table")
FEW = {1: (37,), 2: (9, 16), 3: (5, 9, 7), 4: (2, 8, 9, 10), 5: (5, 7, 9, 2, 6)}
MANY = {1: (64,), 2: (64, 64), 3: (64, 64, 64), 4: (2, 16, 32, 32), 5: (64, 64, 64, 2, 64)}
"""Number of extents → a shape, odd and even."""

ROWS = [
    Rows("linear_relu", LINEAR, directions=DIRECTIONS),
    Rows("linear_relu", LADDER),
    Rows("linear_relu", LINEAR + LARGE, maths=ALL, who=of_the_lab, marks=cuda),
    Rows("linear_relu", [(33, 77, 129)], SINGLE, directions=DIRECTIONS, who=compiled, marks=slow),
    Rows("linear_relu_layout", LINEAR),
    Rows("mlp", MLP, ("float32", "float16", "float64")),
    Rows("mlp2", [(1, 16), (129, 77)], ("float32", "float16", "float64")),
    Rows("mlp3", [(7, 128), (1000, 32)], ("float32", "float16", "float64")),
    Rows("mlp", MLP, ("float32", "float16", "float64"), who=measures),
    Rows("mlp", MLP[1:2], SINGLE, who=compiled, marks=slow),
    Rows("mlp2", [(33, 48)], SINGLE, who=compiled, marks=slow),
    *(
        Rows(name, [(rows, width) for rows in (1, 63, 64, 65, 129, 1000, 20000, 65536) for width in mlp_cuda.WIDTHS])
        for name in mlp.FUSED
        if DEVICE == "cuda"
    ),
    Rows("conv_block", [ODD]),
    Rows("conv_block_tanh", [EVEN]),
    Rows("conv_block", [(3, 5, 17, 14)], maths=("default",)),
    Rows("conv_block", BLOCK, SINGLE, marks=sweep),
    Rows("conv_block", BLOCK[:3], marks=sweep),
    Rows("conv_block_tanh", BLOCK[:1], marks=sweep),
    Rows("conv_block", [ODD], directions=[BOTH], marks=sweep),
    Rows("conv_block_tanh", [(33, 4, 9, 10)], directions=[BOTH], marks=sweep),
    Rows("conv_block", [(5, 64, 128, 128)], SINGLE, marks=sweep),
    Rows("conv_block", [ODD], ("float32", "bfloat16"), directions=DIRECTIONS, who=compiled, marks=sweep),
    Rows("conv_block_tanh", [(2, 16, 16, 16)], SINGLE, directions=DIRECTIONS, who=compiled, marks=sweep),
    *(Rows(name, [ODD], SINGLE) for name in ("unet", "unet_group", "norm_chain")),
    *(
        Rows(name, [SMALL], ("float64", "bfloat16", "float16"))
        for name in ("unet", "unet_group", "unet_autocast", "conv_block_autocast", "norm_chain")
    ),
    *(Rows(name, [SMALL], SINGLE, directions=[BOTH]) for name in ("unet", "unet_group", "norm_chain")),
    *(Rows(name, [SMALL], ("bfloat16",), directions=[BOTH]) for name in ("unet_autocast", "conv_block_autocast")),
    *(
        Rows(name, [ODD], ("bfloat16",), directions=[BOTH], who=lambda one: one.name == "eager")
        for name in ("unet", "unet_autocast")
    ),
    Rows("unet", [ODD], SINGLE, who=measures),
    *(Rows("unet", [SMALL], (dtype,), who=measures) for dtype in ("float64", "bfloat16", "float16")),
    Rows("unet", [SMALL], SINGLE, directions=[BOTH], who=measures),
    *(
        Rows(name, operations()[name].small_shapes[:1], ("float32", "bfloat16"), who=measures)
        for name in ("linear_relu", "conv_block", "conv_block_tanh", "mlp2", "mlp3")
    ),
    # A U-Net takes a compiler half a minute.
    *(
        Rows(name, [ODD], (dtype,), directions=DIRECTIONS, who=compiled, marks=marks)
        for name, dtype, marks in (
            ("unet", "float32", sweep),
            ("unet_autocast", "bfloat16", sweep),
            ("conv_block_autocast", "bfloat16", slow),
            ("norm_chain", "float32", slow),
        )
    ),
    # A table takes a second to set up, whatever the image: the smallest sizes are S003's case alone.
    Rows("diffraction", [(1, 1), (3, 200)], EXACT),
    *(Rows(name, [(67, 129)], EXACT) for name in DIFFRACTION),
    Rows("diffraction_batch", [(3, 67, 129)], EXACT),
    *(
        Rows(name, [shape], SINGLE, who=compiled, marks=slow)
        for name, shape in (
            ("diffraction_table", (33, 77)),
            ("diffraction_triclinic", (33, 77)),
            ("diffraction_batch", (2, 33, 77)),
        )
    ),
    *(
        Rows(name, [FEW[len(spec.dims)]], maths=ALL, who=plain, marks=sweep if "table" in name else slow)
        for name, spec in operations().items()
    ),
    *(
        Rows(name, [MANY[len(spec.dims)]], dtypes, maths=ALL, directions=DIRECTIONS, who=who, marks=sweep)
        for name, spec in operations().items()
        for dtypes, who in ((tuple(DTYPES), plain), (SINGLE, lambda one: not plain(one)))
    ),
]


def right_by_chance(one: Variant, work: Workload) -> bool:
    """Forms that float32 is not enough for, which is what they are there to show."""
    return one.name == "eager_direct" and work.dtype == "float32"


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
    able = [one for one in able if not right_by_chance(one, work)]
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
    yield from Rows(
        name, [FEW[len(operations()[name].dims)]], maths=ALL, directions=directions or DIRECTIONS
    ).workloads()


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
@pytest.mark.parametrize(
    "asked", ["linear_relu/step_wgmma 64x64x64", "linear_relu/cuda 64x64x64", "mlp3/fused_cuda 1x64"]
)
def test_kernels_for_hopper_run_nowhere_else(
    asked: str, capability: tuple[int, int], card: Callable[..., None]
) -> None:
    card(capability)
    assert "needs compute capability 9.0" in told(f"{asked} bfloat16", "cuda")


# ---------------------------------------------------------------- who is planned


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_plan_names_each_once_that_there_is_and_that_goes_that_way(experiment: str, device: str, preset: str) -> None:
    spec = EXPERIMENTS[experiment]
    planned = [(group.workload, name) for group in spec.plan(preset, device, ()) for name in group.variants]
    asked = [(probe.workload, probe.variant) for probe in spec.probes(preset, device, ())]
    for work, name in planned + asked:
        assert work.direction in find(work.operation, name).directions
    for group in spec.plan(preset, device, ()):
        assert len(set(group.variants)) == len(group.variants)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("experiment", ["conv_block", "library_defaults", "torch_compile", "compile_time"])
def test_what_convolves_is_measured_at_the_shape_that_is_asked_for(experiment: str, device: str, preset: str) -> None:
    spec, asked = EXPERIMENTS[experiment], (2, 3, 8, 8)
    for group in spec.plan(preset, device, ()):
        firsts = [name for name in group.variants if find(group.workload.operation, name).baseline]
        assert any(not find(group.workload.operation, name).needs(group.workload, "cpu") for name in firsts)
    assert {group.workload.shape for group in spec.plan(preset, device, [asked]) if group.clocks} <= {asked}
