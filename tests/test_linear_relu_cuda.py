"""The CUDA kernel of Linear+ReLU on tensor cores: in the emulator of a GPU, as machine code, on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import cuda_sources
import pytest
import torch
from kernel_tensors import DEVICE, error, exact, matrices, needs_compiler, normal, on_hopper, packed

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.linear_relu import linear_relu_cuda as tiles
from hypatia_lab.kernels.linear_relu.epilogue import NOTHING
from hypatia_lab.kernels.linear_relu.linear_relu_cuda import LARGE, LOW, MEDIUM, SMALL, TALL, WIDE, Plan
from hypatia_lab.operations import mlp
from hypatia_lab.operations.linear_relu.tensor_cores import linear_relu_cuda
from hypatia_lab.operations.mlp.layers import mlp_layers

# ---------------------------------------------------------------- emulated

PLANS = (*tiles.PLANS, Plan(1, 128, stages=2, group=2), replace(SMALL, pair=2))
"""Those that may be chosen, and what none of them has."""
TOLERANCES = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 3.5e-4}
"""dtype → error of the norm. Of float32, which is rounded to TF32; cut off it would be 6e-4."""
ALONE = 4
"""How much larger the error of a few numbers may be, which do not average."""
QUICK = {
    # Tiles of each size, shared by each number of blocks, alone and in pairs; what dtypes differ in, plans do not.
    torch.bfloat16: [
        *(SMALL, replace(SMALL, share=8), replace(LOW, share=2), replace(TALL, share=4)),
        *(MEDIUM, LARGE, *tiles.PLANS[-2:], *PLANS[-2:]),
    ],
    torch.float16: [SMALL],
    torch.float32: [SMALL, replace(TALL, share=2), replace(LARGE, pair=2)],
}
"""dtype → plans; all of them by `make sweep`."""


def told(plan: Plan) -> str:
    return f"{plan.height}x{plan.width}/{plan.share}x{plan.pair}"


each_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
each_plan = pytest.mark.parametrize(
    ("dtype", "plan"),
    [
        pytest.param(dtype, plan, marks=[pytest.mark.sweep] * (plan not in QUICK[dtype]), id=f"{dtype}-{told(plan)}")
        for dtype in TOLERANCES
        for plan in PLANS
    ],
)


def instance(dtype: torch.dtype, plan: Plan) -> str:
    numbers = (plan.consumers, plan.width, plan.stages, plan.share, plan.pair)
    return loader.instance_of("linear_relu_tiles", loader.scalar(dtype), *numbers)


def of_few_rows(dtype: torch.dtype, rows: int, packs: bool, share: int) -> str:
    pack = 16 // dtype.itemsize if packs else 1
    return loader.instance_of("linear_relu_rows", loader.scalar(dtype), rows, pack, share)


FEW_ROWS = {
    (1, 1, 1): [(1, False, 1)],
    (3, 39, 11): [(3, False, 1)],
    (8, 70, 5): [(8, False, 1)],
    (3, 300, 9): [(3, False, 2)],
    (1, 1100, 6): [(1, False, 4)],
    (8, 528, 7): [(8, False, 4), (8, True, 1)],
    (3, 1040, 4): [(3, False, 4), (3, True, 1)],
}
"""Shape → rows, whether packs are read, and the warps that share a sum, of the kernels that it takes."""
emulation = cuda_sources.emulation(
    {
        "linear_relu/linear_relu": [
            *(instance(dtype, plan) for dtype, plans in QUICK.items() for plan in plans),
            *(f"pack_rows<{loader.scalar(dtype)}>" for dtype in TOLERANCES),
            *(of_few_rows(torch.bfloat16, *kind) for kind in (*chain(*FEW_ROWS.values()), (1, True, 1))),
            *(of_few_rows(torch.float32, *kind) for kind in (*chain(*FEW_ROWS.values()), (1, True, 1))),
            *(of_few_rows(torch.float32, rows, True, 2) for rows in (1, 3)),
            *(of_few_rows(torch.float16, *kind) for kind in (*FEW_ROWS[8, 528, 7], (1, False, 1), (3, False, 1))),
        ]
    }
)


def drawn(batch: int, inner: int, outer: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, W and b, the former two with packed rows."""
    x, weight, bias = matrices(batch, inner=inner, outer=outer, dtype=dtype, seed=batch * inner * outer)
    return packed(x), packed(weight), bias


def computed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plan: Plan | None) -> torch.Tensor:
    """By the kernel, in memory that held NaN."""
    out = x.new_full((len(x), len(weight)), float("nan"))
    tiles.linear_relu(x, weight, bias, out, plan=plan)
    return out


def agrees(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, plan: Plan | None, allowed: float = 0.0) -> None:
    """With float64's answer, with and without bias."""
    few = ALONE if len(x) * len(weight) < 500 else 1
    for shift in (bias, None):
        found, expected = computed(x, weight, shift, plan), exact(x, weight, shift)
        assert error(found, expected) <= (allowed or few * TOLERANCES[x.dtype]), plan


SHAPES = [(1, 1, 1), (130, 200, 259), (257, 321, 136), (66, 33, 142)]


@each_plan
@pytest.mark.parametrize("shape", SHAPES)
def test_the_emulated_kernel_agrees_with_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, plan: Plan, emulation: None
) -> None:
    agrees(*drawn(*shape, dtype), plan)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param(shape, dtype, marks=pytest.mark.sweep if dtype == torch.float16 and shape[1] != 528 else ())
        for dtype in TOLERANCES
        for shape in FEW_ROWS
    ],
)
def test_few_rows_agree_with_float64_and_are_of_float32s_own_arithmetic(
    shape: tuple[int, int, int], dtype: torch.dtype, emulation: None
) -> None:
    x, weight, bias = drawn(*shape, dtype)
    # As they lie in memory without packs, and with one more number before them.
    behind = torch.cat([weight, weight], 1)[:, shape[1] :]
    for a, w in ((x, weight), (x.contiguous(), weight.contiguous()), (x, behind)):
        agrees(a, w, bias, None, 0.0 if dtype.itemsize == 2 else 1e-6)


@each_dtype
def test_negative_sums_stay_where_there_is_no_relu_and_rows_may_lie_apart(dtype: torch.dtype, emulation: None) -> None:
    for batch, plan in ((70, SMALL), (70, QUICK[dtype][-1]), (3, None)):
        x, weight, bias = drawn(batch, 39, 45, dtype)
        memory = torch.full((batch, 64), float("nan"), dtype=dtype)
        tiles.linear_relu(x, weight, bias, memory[:, :45], plan=plan, epilogue=NOTHING)
        assert error(memory[:, :45], exact(x, weight, bias, relu=False)) <= TOLERANCES[dtype]
        assert bool(memory[:, 45:].isnan().all())


@each_plan
def test_infinities_and_nan_are_where_pytorch_has_them(dtype: torch.dtype, plan: Plan, emulation: None) -> None:
    inf, nan = float("inf"), float("nan")
    x, weight, bias = drawn(140, 72, 136, dtype)
    x[0, 3], x[1, 5], x[2, 0], x[2, 7], x[139, 71] = nan, inf, inf, -inf, inf
    weight[0, 5], weight[1, 9], weight[2, 4], weight[135] = 0, inf, nan, -inf
    bias[3], bias[4], bias[5] = inf, -inf, nan
    expected = exact(x, weight, bias).to(dtype)
    assert 300 < int(expected.isnan().sum()) < 2000
    assert int(expected.isinf().sum()) > 200
    found = computed(x, weight, bias, plan)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-2, atol=2e-2)


def test_float32_is_rounded_to_the_nearest_tf32(emulation: None) -> None:
    x, weight, bias = drawn(70, 100, 90, torch.float32)
    near, nearby = (((one.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for one in (x, weight))
    found, expected = computed(x, weight, bias, SMALL), exact(near, nearby, bias)
    assert error(found, expected) <= 1e-6
    assert error(found, exact(x, weight, bias)) > 1e-4


FAULTS = {
    "none": ("", "", 2),
    "a stage is given back before it was read": ("wait_for_products<1>();", "", 1),
    "stores that run ahead of what they store": ("        show_to_copies();\n", "", 1),
    "a stage is given back to oneself": ("arrive_at(empty + stage * 8, lane)", "arrive(empty + stage * 8)", 2),
    "it leaves while the other still tells it": ("    if (PAIR > 1) synchronize_cluster();\n    sync", "    sync", 2),
}
"""What is right, what is wrong, and the blocks of a pair: mistakes of order, which an answer need not tell."""


@pytest.fixture(scope="module")
def with_faults(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Small tiles by the sources as they are and by those of each fault, each in a namespace, built together."""
    kernels, instances = [], []
    for number, (right, wrong, pair) in enumerate(FAULTS.values()):
        folder = tmp_path_factory.mktemp("fault")
        (folder / "linear_relu").mkdir()
        for name in ("linear_relu/linear_relu.cu", "linear_relu/epilogue.cuh", "gelu.cuh", "hopper.cuh"):
            text = (loader.SOURCES / name).read_text()
            assert not right or name.endswith(".cuh") or text.count(right) == 1
            (folder / name).write_text(text.replace(right, wrong))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loader, "SOURCES", folder)
            source = cuda_sources.emulated_source("linear_relu/linear_relu")
        kernels.append(f"namespace fault_{number} {{\n{source}\n}}")
        instances.append(f"fault_{number}::{instance(torch.bfloat16, replace(SMALL, pair=pair))}")
    return cuda_sources.built("\n".join(kernels), instances)


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulator_sees_a_planted_fault_and_none_where_there_is_none(fault: str, with_faults: ctypes.CDLL) -> None:
    pair = FAULTS[fault][2]
    plan = replace(SMALL, pair=pair)
    x, weight, bias = drawn(130, 712, 136, torch.bfloat16)
    x[3, 5] = float("nan")
    out = torch.full((130, 136), float("nan"), dtype=x.dtype)
    boxes = ((x, 64), (weight, 64 // pair), (out, 64))
    maps = [cuda_sources.tensor_map(with_faults, one, rows, 64) for one, rows in boxes]
    given = (*maps, bias, out, 130, 712, 136, 136, 2, 1)
    grid, block = (plan.tiles(130, 136),), (plan.threads,)
    name = f"fault_{list(FAULTS).index(fault)}::{instance(x.dtype, plan)}"
    with_faults.begin_anew()
    with contextlib.nullcontext() if fault == "none" else pytest.raises(AssertionError):
        cuda_sources.launch(with_faults, name, grid, block, given, plan.share * plan.pair)
        torch.testing.assert_close(out, exact(x, weight, bias).to(x.dtype), equal_nan=True, rtol=1e-2, atol=2e-2)


# ---------------------------------------------------------------- the plan and the machine code


@pytest.mark.parametrize(
    ("shape", "plan"),
    [
        ((1, 64, 1, 2), SMALL),
        ((256, 256, 512, 2), SMALL),
        ((1024, 784, 2048, 2), MEDIUM),
        ((8192, 4096, 4096, 2), LARGE),
        ((65536, 64, 64, 2), TALL),
        ((65536, 192, 192, 2), WIDE),
        # Too few tiles to keep the multiprocessors busy, and too many small ones for the cache: larger ones are shared.
        ((201, 2184, 2680, 2), replace(WIDE, share=4)),
        # Rows that lie across what the cache fetches: blocks fetch for each other.
        ((7235, 2136, 4072, 2, True), replace(LARGE, pair=2)),
        ((7235, 2136, 4072, 2), LARGE),
    ],
)
def test_the_larger_the_output_the_larger_its_tiles_and_none_is_half_empty(shape: tuple[int, ...], plan: Plan) -> None:
    assert tiles.default_plan(*shape) == plan


def test_blocks_share_a_tile_where_there_are_few_and_sums_are_long() -> None:
    for size, inner in ((2, 4000), (4, 2000)):
        few = [tiles.default_plan(16, inner, 64 * columns, size).share for columns in (3, 16, 66, 300)]
        assert few[0] == 8
        assert few == sorted(few, reverse=True)
        assert few[-1] == 1
    assert tiles.default_plan(16, 128, 192, 4).share == 1


def test_a_pair_has_as_many_tiles_as_fill_it() -> None:
    assert [replace(SMALL, pair=2).tiles(batch, 65) for batch in (1, 128, 129)] == [4, 4, 8]
    assert SMALL.tiles(129, 65) == 6


def test_a_plan_is_expected_to_take_longer_for_more_work() -> None:
    for plan in tiles.PLANS:
        for size in (2, 4):
            given = [(64 * n, 128 * n, 96 * n) for n in (1, 2, 5, 12, 40)]
            times = [tiles.expected_us(plan, *shape, size) for shape in given]
            assert times == sorted(times)
            assert times[0] > tiles.BEGIN_US
            assert tiles.expected_us(plan, 4096, 4096, 4096, 2) < tiles.expected_us(plan, 4096, 4096, 4096, 4)
            assert tiles.expected_us(plan, *given[0], size, True) >= times[0]


def test_every_plan_fits_a_multiprocessor() -> None:
    assert len(set(tiles.PLANS)) == len(tiles.PLANS)
    assert max(plan.shared() for plan in tiles.PLANS) <= 227 * 1024


# The tiles of most registers; all by `make sweep`.
COMPILED = {
    "largest": [instance(torch.bfloat16, replace(LARGE, share=4)), instance(torch.float32, replace(LARGE, pair=2))],
    **{
        str(dtype): [instance(dtype, plan) for plan in PLANS]
        + [of_few_rows(dtype, tiles.FEW, packs, 4) for packs in (False, True)]
        for dtype in TOLERANCES
    },
}


@pytest.mark.parametrize(
    "which", [pytest.param(which, marks=() if which == "largest" else pytest.mark.sweep) for which in COMPILED]
)
def test_plans_build_to_machine_code_without_spills(which: str, tmp_path: Path) -> None:
    cuda_sources.compiles_without_spills(tmp_path, "linear_relu/linear_relu", COMPILED[which])


# ---------------------------------------------------------------- the operator and the variant


def test_what_it_cannot_compute_is_said() -> None:
    x, weight, bias = torch.ones(3, 24), torch.ones(4, 24), torch.ones(4)
    halves = x.half(), weight.half(), bias.half()
    refused: list[tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], str, str]] = [
        ((x.expand(3, 3, 24), weight, bias), "ieee", "float32 as tf32, and of at most 8 rows as ieee, not as ieee"),
        (halves, "tf32", "float16 as ieee, not as tf32"),
        ((x.double(), weight.double(), None), "ieee", "x is torch.float64; all must be one of"),
        ((x[:, :0], weight[:, :0], None), "tf32", "x has no columns"),
        ((x[:, :-1], weight, bias), "tf32", "do not fit"),
        ((x, weight, bias[:-1]), "tf32", "bias"),
        ((x, weight, bias), "tf32", r"x is on cpu; the CUDA kernel needs compute capability 9\.0"),
    ]
    for given, precision, message in refused:
        with pytest.raises(ValueError, match=message):
            linear_relu_cuda(*given, precision)
    found = linear_relu_cuda(x.expand(2, 3, 24).to("meta"), weight.to("meta"), bias.to("meta"), "tf32")
    assert (found.shape, found.dtype) == ((2, 3, 4), torch.float32)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.bfloat16, "ieee"), (torch.float32, "tf32")])
def test_the_operator_takes_any_rank_and_stride_and_has_gradients(
    dtype: torch.dtype, precision: str, emulation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopper, "ensure", lambda x: None)
    shapes = (20, 40), (9, 24), (9,), (24, 20), (1, 24), (4, 5, 24), (24,), (24, 8), (24, 9), (18,)
    rows, weight, bias, turned, one, many, vector, few, across, wide = normal(*shapes, dtype=dtype)
    batches = (rows[:, 3:27], rows[:, :24], turned.t(), one.expand(20, 24), many)
    for x in (*batches, vector, rows[:3, 3:27], few.t(), rows[:0, :24]):
        for w, b in ((weight, bias), (across.t(), None), (weight, wide[::2])):
            found, expected = linear_relu_cuda(x, w, b, precision), exact(x, w, b)
            assert found.shape == expected.shape
            assert error(found, expected) <= 8e-3
    leaves = [tensor.clone().requires_grad_() for tensor in (many, weight, bias)]
    torch.library.opcheck(torch.ops.hypatia.linear_relu_cuda.default, (*leaves, precision))


@each_dtype
def test_rows_are_copied_only_where_they_cannot_be_fetched(dtype: torch.dtype, emulation: None) -> None:
    (rows,) = normal((6, 200), dtype=dtype)
    ready = rows, rows[:, :128], rows[:, 8:136]
    moved = rows[:, 3:131], rows[:, :24].t()[:, :5], rows[:1].expand(6, 200), rows[:, :77].contiguous()
    for same in ready:
        assert all(found is same for found in tiles.fetched(same, same))
    for other in moved:
        columns = other.shape[1]
        pairs = [(other, rows.new_ones(4, columns)[:, :columns]), (packed(rows.new_ones(3, columns)), other)]
        for given in (*pairs, (other, other), (other, moved[0], other), (other,)):
            for one, found in zip(given, tiles.fetched(*given), strict=True):
                assert torch.equal(found, one)
                assert tiles.fetchable(found)
                assert (found is one) == tiles.fetchable(one)


# ---------------------------------------------------------------- layer by layer


@each_dtype
@pytest.mark.parametrize(
    ("rows", "widths"),
    [((70,), (45, 45, 45, 45)), ((2, 33), (24, 77, 8)), ((3,), (77, 77)), ((0,), (8, 9, 3)), ((), (5, 6))],
)
def test_layers_of_any_widths_agree_with_float64(
    rows: tuple[int, ...], widths: tuple[int, ...], dtype: torch.dtype, emulation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopper, "ensure", lambda x: None)
    shapes = [(outer, inner) for inner, outer in pairwise(widths)]
    weights = normal(*shapes, dtype=dtype)
    biases = [one[::2] for one in normal(*((2 * outer,) for outer in widths[1:]), dtype=dtype, seed=1)]
    (x,) = normal((*rows, widths[0]), dtype=dtype, seed=2)
    precision = tiles.PRECISIONS[loader.dtype_name(dtype)][0]
    found = mlp_layers(x, weights, biases, precision)
    expected = mlp.reference(x, *(one for pair in zip(weights, biases, strict=True) for one in pair))
    assert (found.shape, found.dtype, found.is_contiguous()) == (expected.shape, dtype, True)
    assert error(found, expected) <= 4 * TOLERANCES[dtype]


def test_a_layer_that_does_not_fit_is_named() -> None:
    x, weights, biases = torch.ones(3, 8), [torch.ones(9, 8), torch.ones(5, 9)], [torch.ones(9), torch.ones(5)]
    refused: list[tuple[Any, str]] = [
        ((x, weights, biases[:1], "tf32"), "2 weights and 1 biases"),
        ((x, [], [], "tf32"), "one at least"),
        ((x, weights[::-1], biases[::-1], "tf32"), r"layer 1: x \[3, 8\] and weight \[5, 9\] do not fit"),
        ((x, [weights[0], torch.ones(5, 8)], biases, "tf32"), "layer 2: x .* do not fit"),
        ((x, weights, [biases[0], torch.ones(4)], "tf32"), "layer 2: bias"),
        ((x.expand(3, 3, 8), weights, biases, "ieee"), "layer 1: .* not as ieee"),
        ((x, weights, biases, "tf32"), r"x is on cpu; the CUDA kernel needs compute capability 9\.0"),
    ]
    for given, message in refused:
        with pytest.raises(ValueError, match=message):
            mlp_layers(*given)
    found = mlp_layers(x.to("meta"), [w.to("meta") for w in weights], [b.to("meta") for b in biases], "tf32")
    assert (found.shape, found.dtype) == ((3, 5), torch.float32)


# ---------------------------------------------------------------- on a GPU


@on_hopper
@each_dtype
@pytest.mark.parametrize("shape", [*SHAPES, *FEW_ROWS, (1024, 784, 2048), (1000, 777, 2001), (4096, 1000, 4100)])
def test_every_plan_is_right_on_a_gpu(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x, weight, bias = (one.to(DEVICE) for one in drawn(*shape, dtype))
    for a, w in ((packed(x), packed(weight)), (x.contiguous(), weight.contiguous())):
        for plan in (*PLANS, Plan(2, 256, group=3), Plan(1, 64, stages=2), None):
            agrees(a, w, bias, plan)
