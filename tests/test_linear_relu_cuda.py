"""The CUDA kernel of Linear+ReLU on tensor cores: in the emulator of a GPU, as machine code, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_sources
import pytest
import torch

from hypatia_lab.kernels import linear_relu_cuda as tiles
from hypatia_lab.kernels import loader
from hypatia_lab.kernels.linear_relu_cuda import LARGE, MEDIUM, SMALL, Plan
from hypatia_lab.machine import choose_device
from hypatia_lab.operations.tensor_cores import linear_relu_cuda
from hypatia_lab.variants import variants
from hypatia_lab.workloads import Workload

DEVICE = choose_device("auto")
needs_compiler = pytest.mark.skipif(bool(loader.cpp_missing()), reason=loader.cpp_missing())

# ---------------------------------------------------------------- emulated

PLANS = (SMALL, MEDIUM, LARGE, Plan(1, 128, stages=2, group=2))
TOLERANCES = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 3.5e-4}
"""dtype → error of the norm. Of float32, which is rounded to TF32; cut off it would be 6e-4."""
ALONE = 4
"""How much larger the error of a few numbers may be, which do not average."""

each_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.height}x{plan.width}")
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def instance(dtype: torch.dtype, plan: Plan) -> str:
    scalar = loader.SCALARS[str(dtype).removeprefix("torch.")][0]
    return f"linear_relu_tiles<{scalar}, {plan.consumers}, {plan.width}, {plan.stages}>"


def parameters(dtype: torch.dtype) -> list[str]:
    """Types of what an instance takes behind three tensor maps."""
    scalar = loader.SCALARS[str(dtype).removeprefix("torch.")][0]
    return [f"const {scalar}*", f"{scalar}*"] + ["long long"] * 4


def entry(dtype: torch.dtype, plan: Plan) -> str:
    return cuda_sources.entry(instance(dtype, plan), 3, parameters(dtype))


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches go to the emulator."""
    library = cuda_sources.emulator("linear_relu", tuple(entry(dtype, plan) for dtype in TOLERANCES for plan in PLANS))

    def launcher(name: str, instance: str, *, shared: int, dependent: bool) -> Any:
        assert shared <= 227 * 1024
        return lambda grid, block, *given: cuda_sources.launch(library, instance, (*grid, *block), given)

    monkeypatch.setattr(loader, "cuda_launcher", launcher)
    monkeypatch.setattr(loader, "tensor_map", lambda *given, **how: cuda_sources.tensor_map(library, *given, **how))
    tiles._launcher.cache_clear()
    yield
    tiles._launcher.cache_clear()


def packed(rows: torch.Tensor) -> torch.Tensor:
    """With rows at multiples of 16 bytes; what lies between them is never read."""
    pack = 16 // rows.element_size()
    wide = torch.full(
        (rows.shape[0], -(-rows.shape[1] // pack) * pack), float("nan"), dtype=rows.dtype, device=rows.device
    )
    wide[:, : rows.shape[1]] = rows
    return wide[:, : rows.shape[1]]


def drawn(batch: int, inner: int, outer: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, W and b, the former two with packed rows."""
    generator = torch.Generator().manual_seed(batch * inner * outer)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((batch, inner), (outer, inner), (outer,)))
    return packed(x.to(dtype)), packed(weight.to(dtype)), bias.to(dtype)


def exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double()))


def computed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plan: Plan | None) -> torch.Tensor:
    """By the kernel, in memory that held NaN."""
    out = torch.full((len(x), len(weight)), float("nan"), dtype=x.dtype, device=x.device)
    tiles.linear_relu(x, weight, bias, out, plan=plan)
    return out


def error(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plan: Plan | None) -> float:
    """Of the norm."""
    expected = exact(x, weight, bias)
    return float((computed(x, weight, bias, plan).double() - expected).norm() / expected.norm().clamp_min(1e-30))


SHAPES = [(1, 1, 1), (130, 200, 259), (257, 321, 136), (66, 33, 142)]


@needs_compiler
@each_plan
@each_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_the_emulated_kernel_agrees_with_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, plan: Plan, emulation: None
) -> None:
    x, weight, bias = drawn(*shape, dtype)
    for shift in (bias, None):
        assert error(x, weight, shift, plan) <= TOLERANCES[dtype] * (ALONE if shape == (1, 1, 1) else 1)


@needs_compiler
@each_plan
@each_dtype
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


@needs_compiler
def test_float32_is_rounded_to_the_nearest_tf32(emulation: None) -> None:
    x, weight, bias = drawn(70, 100, 90, torch.float32)
    near, nearby = (((one.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for one in (x, weight))
    found, expected = computed(x, weight, bias, SMALL), exact(near, nearby, bias)
    assert float((found.double() - expected).norm()) <= 1e-6 * float(expected.norm())
    assert error(x, weight, bias, SMALL) > 1e-4


FAULTS = {
    "the last box along k is left out": ("if (whole < steps) {", "if (false) {"),
    "a stage is given back before it was read": ("wait_for_products<1>();", ""),
    "a NaN becomes 0": ("low < 0 ? 0 : low", "low > 0 ? low : 0"),
    "the bias of the next column": ("column + i]", "column + (i ^ 1)]"),
    "stores that run ahead of what they store": ("            show_to_copies();\n", ""),
    "a group of rows too many": ("tile_at(blockIdx.x, down,", "tile_at(blockIdx.x, down + 1,"),
}


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulator_sees_a_planted_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = FAULTS[fault]
    for name in ("linear_relu.cu", "hopper.cuh"):
        text = (loader.CUDA_SOURCES / name).read_text()
        assert name == "hopper.cuh" or text.count(right) == 1
        (tmp_path / name).write_text(text.replace(right, wrong))
    monkeypatch.setattr(loader, "CUDA_SOURCES", tmp_path)
    library = cuda_sources.emulator.__wrapped__("linear_relu", (entry(torch.bfloat16, SMALL),))
    x, weight, bias = drawn(130, 712, 136, torch.bfloat16)
    x[3, 5] = float("nan")
    out = torch.full((130, 136), float("nan"), dtype=x.dtype)
    maps = [cuda_sources.tensor_map(library, one, 64, 64) for one in (x, weight, out)]
    sizes = (130, 712, 136, 2)
    try:
        cuda_sources.launch(library, instance(x.dtype, SMALL), (9, SMALL.threads), (*maps, bias, out, *sizes))
    except AssertionError:
        return
    expected = exact(x, weight, bias).to(x.dtype)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(out, expected, equal_nan=True, rtol=1e-2, atol=2e-2)


# ---------------------------------------------------------------- the plan and the machine code


@pytest.mark.parametrize(
    ("output", "plan"),
    [((256, 512), SMALL), ((1, 1), SMALL), ((1024, 2048), MEDIUM), ((2048, 2048), MEDIUM), ((8192, 4096), LARGE)],
)
def test_the_larger_the_output_the_larger_its_tiles(output: tuple[int, int], plan: Plan) -> None:
    assert tiles.default_plan(*output) == plan
    assert plan.shared() <= 227 * 1024


def test_every_plan_builds_to_machine_code_without_spills(tmp_path: Path) -> None:
    instantiations = [
        f"template __global__ void {instance(dtype, plan)}"
        f"({', '.join(['const __grid_constant__ TensorMap'] * 3 + parameters(dtype))});"
        for dtype in TOLERANCES
        for plan in (SMALL, MEDIUM, LARGE)
    ]
    cuda_sources.compiles_without_spills(tmp_path, "linear_relu", instantiations)


# ---------------------------------------------------------------- the operator and the variant


def test_what_it_cannot_compute_is_said() -> None:
    x, weight, bias = torch.ones(3, 24), torch.ones(4, 24), torch.ones(4)
    halves = x.half(), weight.half(), bias.half()
    refused: list[tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], str, str]] = [
        ((x, weight, bias), "ieee", "float32 as tf32, not as ieee"),
        (halves, "tf32", "float16 as ieee, not as tf32"),
        ((x.double(), weight.double(), None), "ieee", "x is torch.float64; all must be one of"),
        ((x[:, :22], weight[:, :22], bias), "tf32", "multiple of 4, not 22"),
        ((halves[0][:, :20], halves[1][:, :20], None), "ieee", "multiple of 8, not 20"),
        ((x[:, :0], weight[:, :0], None), "tf32", "not 0"),
        ((x[:, :-1], weight, bias), "tf32", "do not fit"),
        ((x, weight, bias[:-1]), "tf32", "bias"),
        ((x, weight, bias), "tf32", r"x is on cpu; the CUDA kernel needs compute capability 9\.0"),
    ]
    for given, precision, message in refused:
        with pytest.raises(ValueError, match=message):
            linear_relu_cuda(*given, precision)
    found = linear_relu_cuda(x.expand(2, 3, 24).to("meta"), weight.to("meta"), bias.to("meta"), "tf32")
    assert (found.shape, found.dtype) == ((2, 3, 4), torch.float32)


@needs_compiler
@pytest.mark.parametrize(("dtype", "precision"), [(torch.bfloat16, "ieee"), (torch.float32, "tf32")])
def test_the_operator_takes_any_rank_and_stride_and_has_gradients(
    dtype: torch.dtype, precision: str, emulation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "ensure_hopper", lambda x: None)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    rows, weight, bias = normal(20, 40), normal(9, 24), normal(9)
    batches = (rows[:, 3:27], rows[:, :24], normal(24, 20).t(), normal(1, 24).expand(20, 24), normal(4, 5, 24))
    for x in (*batches, normal(24), rows[:0, :24]):
        for w, b in ((weight, bias), (normal(24, 9).t(), None), (weight, normal(18)[::2])):
            found, expected = linear_relu_cuda(x, w, b, precision), exact(x, w, b)
            assert found.shape == expected.shape
            assert float((found.double() - expected).norm()) <= 8e-3 * float(expected.norm())
    leaves = [one.clone().requires_grad_() for one in (batches[-1], weight, bias)]
    torch.library.opcheck(torch.ops.hypatia.linear_relu_cuda.default, (*leaves, precision))


def test_rows_are_copied_only_where_they_cannot_be_fetched() -> None:
    rows = torch.ones(6, 200, dtype=torch.bfloat16)
    for same in (rows, rows[:, :128], rows[:, 8:136]):
        assert tiles.fetchable(same) is same
    for other in (rows[:, 3:131], torch.ones(24, 6).t(), torch.ones(1, 24).expand(6, 24), torch.ones(6, 26)[:, :24]):
        found = tiles.fetchable(other)
        assert torch.equal(found, other)
        assert found.is_contiguous()
        assert found.data_ptr() % 16 == 0


def test_the_variant_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def why(dtype: str, math: str, inner: int, device: str = "cuda") -> str:
        return variants("linear_relu")["cuda"].needs(Workload("linear_relu", (64, inner, 80), dtype, math), device)

    assert why("bfloat16", "ieee", 64, "cpu") == loader.NO_GPU
    assert "not as bf16x3" in why("float32", "bf16x3", 64)
    monkeypatch.setattr(loader, "cuda_missing", lambda *given: "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: (10, 0))
    assert "needs compute capability 9.0" in why("bfloat16", "ieee", 64)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: (9, 0))
    assert not any((why("bfloat16", "ieee", 72), why("float16", "ieee", 8), why("float32", "tf32", 68)))
    assert "not as ieee" in why("float32", "ieee", 64)
    assert "must be one of" in why("float64", "ieee", 64)
    assert "multiple of 8, not 68" in why("bfloat16", "ieee", 68)
    assert "multiple of 4, not 70" in why("float32", "tf32", 70)


# ---------------------------------------------------------------- on a GPU

on_hopper = pytest.mark.skipif(
    DEVICE == "cpu" or torch.cuda.get_device_capability() != (9, 0), reason="needs compute capability 9.0"
)


@on_hopper
@each_dtype
@pytest.mark.parametrize("plan", [*PLANS, Plan(2, 256, group=3), Plan(1, 64, stages=2)])
@pytest.mark.parametrize("shape", [*SHAPES, (1024, 784, 2048), (1000, 777, 2001), (4096, 1000, 4100)])
def test_every_plan_is_right_on_a_gpu(shape: tuple[int, int, int], plan: Plan, dtype: torch.dtype) -> None:
    x, weight, bias = (one.to(DEVICE) for one in drawn(*shape, dtype))
    x, weight = packed(x), packed(weight)
    for shift in (bias, None):
        assert error(x, weight, shift, plan) <= TOLERANCES[dtype] * (ALONE if shape == (1, 1, 1) else 1)
