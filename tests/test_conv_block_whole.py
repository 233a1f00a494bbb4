"""The one-kernel convolution block: on a GPU, in the emulator of one, and compiled to machine code by nvcc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_sources
import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")
from hypatia_lab.fused_ops import conv_block_whole as whole
from hypatia_lab.fused_ops import ladder
from hypatia_lab.kernels import loader
from hypatia_lab.machine import choose_device

DEVICE = choose_device("auto")
MISSING = ladder.STEPS["step_wgmma"].missing("bfloat16", "cuda") if DEVICE == "cuda" else "there is no GPU"
on_hopper = pytest.mark.skipif(bool(MISSING), reason=MISSING)
needs_compiler = pytest.mark.skipif(bool(loader.cpp_missing()), reason=loader.cpp_missing())

ENTRY = """
extern "C" const char* {symbol}(unsigned grid, unsigned threads, const TensorMap* x, const TensorMap* weight,
                                const {scalar}* bias, const {scalar}* gamma, const {scalar}* beta, {scalar}* z,
                                {scalar}* y, float* moments, float* statistics, unsigned* counters, long long height,
                                long long width, long long rows, long long strips, float eps) {{
    return launch(grid, grid, {{threads, 1, 1}}, [=] {{
        {instance}(*x, *weight, bias, gamma, beta, z, y, moments, statistics, counters, height, width, rows,
                   strips, eps);
    }});
}}
"""
KINDS = [
    ("__nv_bfloat16", "false", "false"),
    ("__half", "true", "false"),
    ("__half", "false", "true"),
    ("float", "false", "false"),
]
INSTANCES = [f"conv_block_whole<{', '.join(kind)}>" for kind in KINDS]
GRADIENT_ENTRY = """
extern "C" const char* {symbol}(unsigned grid, unsigned threads, const {scalar}* grad, const {scalar}* z,
                                const float* statistics, const {scalar}* gamma, const {scalar}* beta, {scalar}* out,
                                float* sums, unsigned* counters, long long area, long long share, long long blocks) {{
    return launch(grid, grid, {{threads, 1, 1}}, [=] {{
        {instance}(grad, z, statistics, gamma, beta, out, sums, counters, area, share, blocks);
    }});
}}
"""
GRADIENT_KINDS = [("__nv_bfloat16", "false"), ("__half", "true")]
GRADIENT_INSTANCES = [f"conv_block_gradient<{', '.join(kind)}>" for kind in GRADIENT_KINDS]
SOURCES = {
    "conv_block_whole": (ENTRY, KINDS, INSTANCES),
    "conv_block_gradient": (GRADIENT_ENTRY, GRADIENT_KINDS, GRADIENT_INSTANCES),
}


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches go to the emulator, of a GPU of six multiprocessors."""

    def library(name: str) -> Any:
        entry, kinds, instances = SOURCES[name]
        entries = (
            entry.format(symbol=cuda_sources.symbol(instance), scalar=kind[0], instance=instance)
            for kind, instance in zip(kinds, instances, strict=True)
        )
        return cuda_sources.emulator(name, tuple(entries))

    def launcher(name: str, instance: str, *, shared: int, dependent: bool) -> Any:
        assert shared <= 227 * 1024
        return lambda grid, block, *arguments: cuda_sources.launch(library(name), instance, (*grid, *block), arguments)

    def tensor_map(*given: Any) -> torch.Tensor:
        return cuda_sources.tensor_map(library("conv_block_whole"), *given)

    monkeypatch.setattr(loader, "cuda_launcher", launcher)
    monkeypatch.setattr(loader, "tensor_map", tensor_map)
    monkeypatch.setattr(ladder, "_multiprocessors", lambda device: 6)
    whole._launcher.cache_clear()
    yield
    whole._launcher.cache_clear()


def drawn(images: int, height: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, weight, bias, gamma and beta, channels last."""
    generator = torch.Generator(DEVICE).manual_seed(images * height * width)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, generator=generator)

    x, weight = normal(images, 64, height, width), normal(64, 64, 3, 3) / 24
    x, weight = (tensor.to(dtype, memory_format=torch.channels_last) for tensor in (x, weight))
    return [x, weight, *(tensor.to(dtype) for tensor in (normal(64) + 3, 1 + normal(64) / 10, normal(64) / 10))]


def agrees(
    given: list[torch.Tensor], precision: str, approximate: str, tolerance: float, counters: torch.Tensor | None = None
) -> None:
    """With the float64 answer, and so does what is kept for the backward pass."""
    x, weight, _, gamma, beta = (tensor.double() for tensor in given)
    convolved = functional.conv2d(x, weight, padding=1)
    normal = functional.instance_norm(convolved, weight=gamma, bias=beta, eps=1e-5)
    expected = functional.gelu(normal, approximate=approximate)
    how: dict[str, Any] = {"precision": precision, "approximate": approximate, "counters": counters}
    alone, nothing = whole.conv_block_whole(*given, **how)
    out, saved = whole.conv_block_whole(*given, **how, keep=True)
    assert nothing is None
    assert saved is not None
    assert torch.equal(alone, out)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert float((out.double() - expected).abs().max()) < tolerance

    def close(one: torch.Tensor, other: torch.Tensor) -> None:
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)

    close(saved.convolved.permute(0, 3, 1, 2), convolved)
    close(saved.statistics[:, 0], convolved.mean((2, 3)))
    deviation = (convolved.var((2, 3), correction=0) + 1e-5).sqrt()
    close(1 / saved.statistics[:, 1], deviation)


WAYS = [
    (torch.bfloat16, "ieee", "none", 5e-2),
    (torch.float16, "ieee", "tanh", 6e-3),
    (torch.float32, "bf16x3", "none", 5e-5),
]


# Odd rows of two images, and even ones of one in several strips; all pairs run by `make sweep`.
EMULATED = [
    pytest.param(shape, *way, marks=() if (shape[0] == 2) == (way[0] != torch.float16) else pytest.mark.sweep)
    for way in WAYS
    for shape in ((2, 7, 13), (1, 13, 96))
]


@needs_compiler
@pytest.mark.skipif(DEVICE == "cuda", reason="the emulator is for machines without a GPU")
@pytest.mark.parametrize(("shape", "dtype", "precision", "approximate", "tolerance"), EMULATED)
def test_the_emulated_kernel_agrees_with_float64(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    precision: str,
    approximate: str,
    tolerance: float,
    emulation: None,
) -> None:
    counters = torch.zeros(shape[0], 2, dtype=torch.int32)
    agrees(drawn(*shape, dtype), precision, approximate, tolerance, counters)
    assert not counters.any()


@needs_compiler
@pytest.mark.skipif(DEVICE == "cuda", reason="the emulator is for machines without a GPU")
def test_nan_stays_in_its_image_in_the_emulated_kernel(emulation: None) -> None:
    x, weight, bias, gamma, beta = drawn(2, 7, 13, torch.bfloat16)
    x[1, 3, 2, 2], bias[5] = float("nan"), float("nan")
    out, _ = whole.conv_block_whole(x, weight, bias, gamma, beta)
    assert out[1].isnan().all()
    assert out[0].isnan().flatten(1).all(1).nonzero().flatten().tolist() == [5]


def gradients_agree(shape: tuple[int, int, int], dtype: torch.dtype, approximate: str, tolerance: float) -> None:
    """What is passed back behind the convolution and to x agrees with float64's."""
    given = drawn(*shape, dtype)
    x, weight, bias, gamma, beta = given
    _, saved = whole.conv_block_whole(*given, approximate=approximate, keep=True)
    assert saved is not None
    grad = torch.randn(saved.convolved.shape, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE).to(dtype)
    behind, sums = whole.behind_convolution(grad, saved, gamma, beta, approximate=approximate)
    # Contiguous: on a CPU torch's own gradient of an instance norm of one image, channels last, is wrong.
    leaves = [tensor.double().contiguous().requires_grad_() for tensor in (x, gamma, beta)]
    convolved = functional.conv2d(leaves[0], weight.double().contiguous(), padding=1)
    normal = functional.instance_norm(convolved, weight=leaves[1], bias=leaves[2], eps=1e-5)
    y = functional.gelu(normal, approximate=approximate)
    expected = torch.autograd.grad(y, [convolved, *leaves], grad.permute(0, 3, 1, 2).double().contiguous())
    back = whole.adjoint(behind, weight.permute(0, 2, 3, 1).reshape(64, 9, 64).contiguous())
    added = sums.double().sum(0)
    for one, other in zip((behind, back), expected[:2], strict=True):
        difference = one.permute(0, 3, 1, 2).double() - other
        assert float(difference.norm() / other.norm()) < tolerance
    assert float((added[1] - expected[2]).norm() / expected[2].norm()) < tolerance
    assert float((added[0] - expected[3]).norm() / expected[3].norm()) < tolerance


@needs_compiler
@pytest.mark.skipif(DEVICE == "cuda", reason="the emulator is for machines without a GPU")
@pytest.mark.parametrize("shape", [pytest.param((2, 7, 13), marks=pytest.mark.sweep), (1, 13, 97)])
@pytest.mark.parametrize(("dtype", "approximate"), [(torch.float16, "tanh")])
def test_the_emulated_gradients_agree_with_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, approximate: str, emulation: None
) -> None:
    gradients_agree(shape, dtype, approximate, 3e-3)


def test_what_fits_an_h200_and_what_does_not() -> None:
    goal = (5, 64, 128, 128)
    assert whole.strip_rows(goal, 132) == 5
    assert whole.strip_rows((1, 64, 128, 128), 132) == 1
    assert whole.backward_fits(goal, 64, torch.bfloat16)
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32"), (torch.float32, "bf16x3")):
        assert whole.fits(goal, 64, dtype, precision)
    assert not whole.fits(goal, 64, torch.float32, "ieee")
    assert not whole.fits(goal, 64, torch.float64, "ieee")
    for shape in (
        (5, 3, 128, 128),
        (5, 64, 128, 130),
        (50, 64, 128, 128),
        (1, 64, 8, 7),
        (1, 64, 9, 216),
        (0, 64, 9, 9),
    ):
        assert not whole.fits(shape, 64, torch.bfloat16, "ieee")
    assert not whole.fits(goal, 32, torch.bfloat16, "ieee")
    assert not whole.backward_fits((5, 64, 138, 128), 64, torch.bfloat16)


def test_machine_code_keeps_its_sums_in_registers(tmp_path: Path) -> None:
    for name, instances in (("conv_block_whole", INSTANCES), ("conv_block_gradient", GRADIENT_INSTANCES)):
        taken = [f"const void* taken{i} = (const void*){instance};" for i, instance in enumerate(instances)]
        (tmp_path / name).mkdir()
        cuda_sources.compiles_without_spills(tmp_path / name, name, taken)


SHAPES = [(5, 128, 128), (1, 9, 13), (3, 65, 100), (1, 97, 131), (2, 30, 64), (1, 40, 215), (132, 5, 8)]


@pytest.mark.cuda
@on_hopper
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="x .* do not fit one kernel"):
        whole.conv_block_whole(torch.zeros(1, 16, 8, 8, device=DEVICE), torch.zeros(16, 16, 3, 3, device=DEVICE))


@pytest.mark.cuda
@on_hopper
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "precision", "approximate", "tolerance"), WAYS)
def test_one_kernel_agrees_with_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, precision: str, approximate: str, tolerance: float
) -> None:
    counters = torch.zeros(shape[0], 2, dtype=torch.int32, device=DEVICE)
    for _ in range(3):
        agrees(drawn(*shape, dtype), precision, approximate, tolerance, counters)
        assert not counters.any()


@pytest.mark.cuda
@on_hopper
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] < 132])
@pytest.mark.parametrize(
    ("dtype", "approximate", "tolerance"), [(torch.bfloat16, "none", 2e-2), (torch.float16, "tanh", 3e-3)]
)
def test_gradients_agree_with_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, approximate: str, tolerance: float
) -> None:
    gradients_agree(shape, dtype, approximate, tolerance)
