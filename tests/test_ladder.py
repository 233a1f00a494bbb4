"""The ladder's steps: on a CPU as they are; the CUDA kernels in an emulator, and compiled to machine code by nvcc."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda_sources
import pytest
import torch
from cuda_sources import compiles_without_spills
from kernel_tensors import DEVICE, matrices, needs_compiler
from test_linear_relu import agrees

from hypatia_lab.kernels import loader
from hypatia_lab.operations.linear_relu import ladder, ladder_along_k
from hypatia_lab.operations.linear_relu.ladder import STEPS, TILES, Tile

CORES = {name: step.launch for name, step in STEPS.items() if isinstance(step.launch, ladder.Cores)}
"""Of the steps on CUDA cores: the kernel, and the rows and columns of its tiles."""


def tensors(shape: tuple[int, int, int], dtype: torch.dtype, device: str = "cpu") -> list[torch.Tensor]:
    batch, inner, outer = shape
    return matrices(batch, inner=inner, outer=outer, dtype=dtype, device=device, seed=1)


# ---------------------------------------------------------------- where steps run


def runnable(dtype: str) -> list[str]:
    return [name for name, step in STEPS.items() if not step.missing(dtype, DEVICE)]


def test_a_step_that_there_is_not_or_that_runs_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown step 'step_nope'; "):
        ladder.ladder("step_nope", *tensors((1, 1, 1), torch.float32))
    with pytest.raises(ValueError, match="step_wgmma on x: needs a CUDA GPU"):
        ladder.ladder("step_wgmma", *tensors((1, 1, 1), torch.bfloat16))


@needs_compiler
def test_a_step_that_has_no_backward_refuses_what_requires_a_gradient() -> None:
    x, weight, bias = tensors((6, 8, 4), torch.float32)
    with pytest.raises(ValueError, match="bias requires a gradient and .* has no backward"):
        ladder.ladder("blocked", x, weight, bias.requires_grad_())


@needs_compiler
def test_opcheck_passes() -> None:
    step = runnable("float32")[-1]
    arguments = *tensors((2, 8, 4), torch.float32, DEVICE)[:2], None, step
    torch.library.opcheck(torch.ops.hypatia.linear_relu_step.default, arguments)


# ---------------------------------------------------------------- tiles and arguments


def test_a_tile_fits_shared_memory_and_suits_the_shape() -> None:
    assert max(tile.shared for tile in TILES) <= 227 * 1024
    assert ladder.choose_tile((8192, 4096, 4096), 132) is TILES[0]
    assert ladder.choose_tile((8192, 4096, 4096), 132, 2) is TILES[0]
    assert ladder.choose_tile((1024, 784, 2048), 132) is TILES[1]
    assert ladder.choose_tile((256, 256, 512), 132) is TILES[2]


class Driver:
    """Stands in for the CUDA driver's library and keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        return 0 if arguments[3].value % 16 == 0 else 1

    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = 3
        return 0

    def cuKernelSetAttribute(self, *arguments: Any) -> int:
        self.calls.append(tuple(argument.value for argument in arguments))
        return 0

    def cuLaunchKernelEx(self, configuration: Any, kernel: Any, addresses: Any, extra: Any) -> int:
        assert extra is None
        given = configuration._obj
        values = [ctypes.cast(address, ctypes.POINTER(ctypes.c_int64))[0] for address in addresses]
        attributes = {a.id: list(a.value[:3]) for a in given.attributes[: given.number]}
        self.calls.append((kernel.value, [*given.grid, *given.block, given.shared], given.stream, values, attributes))
        return 0 if given.grid[0] else 1

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_INVALID_VALUE"
        return 0


def test_a_tensor_map_is_asked_for_as_the_driver_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(loader, "driver", lambda: driver)
    loader.encoded.cache_clear()
    matrix = torch.zeros(30, 80, dtype=torch.bfloat16)[:, :72]
    found = loader.tensor_map(matrix, 128, 64)
    loader.tensor_map(matrix, 128, 64)
    (call,) = driver.calls
    assert ctypes.addressof(found) % 128 == 0
    assert ctypes.sizeof(found) == 128
    assert [call[n].value for n in (1, 2, 3)] == [9, 2, matrix.data_ptr()]
    assert [list(call[n]) for n in (4, 5, 6, 7)] == [[72, 30], [160], [64, 128], [1, 1]]
    assert [call[n].value for n in (8, 9, 10, 11)] == [0, 3, 3, 0]
    with pytest.raises(RuntimeError, match="a tensor map of 30 × 8 .* failed: CUDA_ERROR_INVALID_VALUE"):
        loader.tensor_map(matrix[:, 1:9], 128, 64)
    loader.encoded.cache_clear()


def test_a_launch_passes_its_arguments_as_the_driver_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, stream = Driver(), SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(loader, "driver", lambda: driver)
    monkeypatch.setattr(loader, "cuda_kernel", lambda name, instance: SimpleNamespace(handle=12345))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    launch = loader.cuda_launcher.__wrapped__("no", "such<kernel>", shared=100_000)
    x = torch.zeros(3)
    held = loader.TensorMap((ctypes.c_uint64 * 16)(4321))
    launch((7, 2), (32,), x, -5, None, held)
    assert driver.calls == [
        (8, 100_000, 12345, 3),
        (12345, [7, 2, 1, 32, 1, 1, 100_000], 77, [x.data_ptr(), -5, 0, 4321], {}),
    ]
    with pytest.raises(RuntimeError, match=r"launching such<kernel> .* failed: CUDA_ERROR_INVALID_VALUE \(1\)"):
        launch((0,), (32,), x)
    loader.cuda_launcher.__wrapped__("no", "such<kernel>", cluster=2, dependent=True)((8,), (32,))
    cluster_dimension, programmatic_stream_serialization = 4, 6
    attributes = {cluster_dimension: [2, 1, 1], programmatic_stream_serialization: [1, 0, 0]}
    assert driver.calls[-1] == (12345, [8, 1, 1, 32, 1, 1, 0], 77, [], attributes)


# ---------------------------------------------------------------- the CUDA kernels, emulated

EMULATED_TILES = (Tile(2, 256, 4, 2, 1.0), Tile(2, 128, 3, 1, 1.0), Tile(1, 64, 2, 2, 1.0))


CORE_STEPS = [*(ladder.source_of(step) for step in ladder.ORDER[:7]), ladder_along_k.SOURCE]
TENSOR_STEPS = [ladder.source_of(step) for step in ladder.ORDER[7:]]


SCALARS = [loader.SCALARS[dtype] for dtype in ("float32", "bfloat16")]
ON_CORES = [loader.instance_of(f"linear_relu_{one.kernel}", *pair) for one in CORES.values() for pair in SCALARS]
ON_TENSOR_CORES = [f"linear_relu_mma<__nv_bfloat16, {aligned}>" for aligned in ("true", "false")]
ON_TENSOR_CORES += [
    f"linear_relu_wgmma<__nv_bfloat16, {one.consumers}, {one.width}, {one.stages}, {cluster}>"
    for one in EMULATED_TILES
    for cluster in (1, 2)
]


def blocks_at_once(instance: str, blocks: int, cluster: int) -> int:
    """Of TMA's kernels the last of an instance's numbers."""
    return int(re.split(r"[, >]", instance)[-2]) if "wgmma" in instance else cluster


emulation = cuda_sources.emulation(
    {" ".join(TENSOR_STEPS): ON_TENSOR_CORES, " ".join(CORE_STEPS): ON_CORES},
    at_once=blocks_at_once,
)


def emulated(step: str, shape: tuple[int, int, int], dtype: str, *, biased: bool = True) -> None:
    x, weight, bias = tensors(shape, getattr(torch, dtype))
    bias = bias if biased else None
    out = torch.full((shape[0], shape[2]), float("nan"), dtype=x.dtype)
    STEPS[step].launch(x, weight, bias, out, shape)
    agrees(out, x, weight, bias)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", pytest.param("float64", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("step", CORES)
def test_an_emulated_kernel_agrees_with_float64(step: str, dtype: str, emulation: None) -> None:
    cores = CORES[step]
    emulated(step, (1, 7, 5), dtype)
    emulated(step, (cores.rows + 1, 72, cores.columns + 8), dtype)  # rows that start at multiples of 16 bytes
    emulated(step, (cores.rows + 2, 45, 9), dtype, biased=False)


@pytest.mark.parametrize("shape", [(1, 7, 5), (130, 77, 129), (129, 264, 136)])
def test_the_emulated_mma_kernel_agrees_with_float64(shape: tuple[int, int, int], emulation: None) -> None:
    emulated("step_mma", shape, "bfloat16")


@pytest.mark.parametrize("tile", EMULATED_TILES)
@pytest.mark.parametrize("step", ["step_wgmma", "step_multicast"])
def test_the_emulated_wgmma_kernel_agrees_with_float64(
    step: str, tile: Tile, emulation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "TILES", (tile,))
    monkeypatch.setattr(loader, "multiprocessors", lambda device: 2)  # so that a block has several tiles
    height, width = tile.height, tile.width
    emulated(step, (3, 8, 5), "bfloat16", biased=False)
    emulated(step, (3 * height - 5, 64 * tile.stages + 72, width + 33), "bfloat16")
    emulated(step, (height, 128, 2 * width), "bfloat16")


def test_what_tma_cannot_fetch_goes_to_the_mma_kernel(emulation: None) -> None:
    emulated("step_wgmma", (3, 77, 5), "bfloat16")
    emulated("step_multicast", (3, 12, 9), "bfloat16", biased=False)


# ---------------------------------------------------------------- machine code


CHECKED = ("conflict_free", "multicast")
"""Steps whose machine code is looked at each time: of most registers, on CUDA cores and on tensor cores."""


@pytest.mark.parametrize(
    ("step", "dtypes"),
    [
        pytest.param(step, dtypes, marks=[pytest.mark.slow] * (step not in CHECKED or len(dtypes) > 1))
        for number, step in enumerate(ladder.ORDER)
        for dtypes in (["float32" if number < 7 else "bfloat16"], ["float64", "bfloat16", "float16"])
    ],
)
def test_a_step_builds_to_machine_code_without_spills(step: str, dtypes: Sequence[str], tmp_path: Path) -> None:
    scalar = loader.SCALARS[dtypes[-1]][0]
    if step in ladder.ORDER[:7]:
        found = [loader.instance_of(f"linear_relu_{step}", *loader.SCALARS[dtype]) for dtype in dtypes]
    elif step == "mma":
        found = [f"linear_relu_mma<{scalar}, {aligned}>" for aligned in ("true", "false")]
    else:
        cuts = [f"{tile.consumers}, {tile.width}, {tile.stages}" for tile in TILES]
        found = [f"linear_relu_wgmma<{scalar}, {cut}, {1 if step == 'wgmma' else 2}>" for cut in cuts]
    compiles_without_spills(tmp_path, ladder.source_of(step), found)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_the_step_between_builds_to_machine_code_without_spills(dtype: str, tmp_path: Path) -> None:
    instance = loader.instance_of("linear_relu_along_k", *loader.SCALARS[dtype])
    compiles_without_spills(tmp_path, ladder_along_k.SOURCE, [instance])
