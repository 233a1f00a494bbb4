"""Linear+ReLU: every variant that runs here, at odd shapes and ranks, as a custom operation and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuda_sources
import pytest
import torch

from hypatia_lab.kernels import loader
from hypatia_lab.machine import choose_device
from hypatia_lab.operations import linear_relu
from hypatia_lab.variants import variants
from hypatia_lab.workloads import MATH, Workload

DEVICE = choose_device("auto")


def tensors(
    *batch: int, inner: int = 24, outer: int = 40, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(DEVICE).manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, generator=generator).to(dtype)

    return normal(*batch, inner), normal(outer, inner), normal(outer)


def operation(name: str) -> Any:
    missing = variants("linear_relu")[name].needs(Workload("linear_relu", (1, 1, 1)), DEVICE)
    if missing:
        pytest.skip(missing)
    if name == "aten":
        return linear_relu.load_aten()
    return {"naive": torch.ops.hypatia.linear_relu_naive, "cublas_relu": torch.ops.hypatia.linear_relu_cublas}[name]


OWN = ["naive", "cublas_relu", "aten"]


@pytest.mark.parametrize("batch", [(), (5,), (2, 3), (2, 1, 4, 3), (0,), (3, 0)])
@pytest.mark.parametrize("name", OWN)
def test_any_rank_of_batch_is_taken(name: str, batch: tuple[int, ...]) -> None:
    x, weight, bias = tensors(*batch)
    out = operation(name)(x, weight, bias)
    expected = linear_relu.reference(x, weight, bias)
    assert out.shape == expected.shape
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OWN)
def test_strided_inputs_and_a_missing_bias_are_taken(name: str) -> None:
    x, weight, bias = tensors(12)
    strided = torch.stack([x, -x], dim=-1)[..., 0]
    assert not strided.is_contiguous()
    run = operation(name)
    expected = linear_relu.reference(strided, weight, bias)
    torch.testing.assert_close(run(strided, weight, bias).double(), expected, rtol=1e-4, atol=1e-4)
    across = weight.t().contiguous().t()
    torch.testing.assert_close(run(x, across, bias).double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(run(x, weight, None).double(), linear_relu.reference(x, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OWN)
def test_nan_and_infinity_go_through_as_in_torch(name: str) -> None:
    x, weight, bias = tensors(4)
    x[0, 0], x[1, 0], x[2, 0] = float("nan"), float("inf"), -float("inf")
    expected = torch.relu(torch.nn.functional.linear(x, weight, bias))
    torch.testing.assert_close(operation(name)(x, weight, bias), expected, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["naive", "cublas_relu"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, b: (x[..., :-1], w, b), "do not fit"),
        (lambda x, w, b: (x, w[0], b), "do not fit"),
        (lambda x, w, b: (x, w, b[:-1]), "bias"),
        (lambda x, w, b: (x.double(), w, b), "weight is torch.float32"),
        (lambda x, w, b: (x.int(), w.int(), b.int()), "all must be one of"),
    ],
)
def test_a_misfit_is_refused_by_name(name: str, change, message: str) -> None:
    run = operation(name)
    with pytest.raises((ValueError, RuntimeError), match=message):
        run(*change(*tensors(6)))


@pytest.mark.cuda
@pytest.mark.skipif(DEVICE == "cpu", reason="two devices are needed: there is no GPU")
@pytest.mark.parametrize("name", ["naive", "cublas_relu"])
def test_tensors_on_two_devices_are_refused(name: str) -> None:
    x, weight, bias = tensors(6)
    with pytest.raises((ValueError, RuntimeError), match="device"):
        operation(name)(x, weight.cpu(), bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OWN)
def test_opcheck_passes(name: str, dtype: torch.dtype) -> None:
    run = operation(name)
    overload = getattr(run, "default", run)
    for arguments in (tensors(6, dtype=dtype), (*tensors(2, 3, dtype=dtype)[:2], None)):
        torch.library.opcheck(overload, arguments)


def test_opcheck_passes_for_the_in_place_relu() -> None:
    operation("cublas_relu")
    torch.library.opcheck(torch.ops.hypatia.relu_inplace.default, (tensors(6)[0],))


def test_the_in_place_relu_refuses_a_strided_tensor() -> None:
    operation("cublas_relu")
    with pytest.raises((ValueError, RuntimeError), match="contiguous"):
        torch.ops.hypatia.relu_inplace(tensors(6)[0].t())


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_custom_operation_compiles_without_a_break(name: str) -> None:
    run = operation(name)
    x, weight, bias = tensors(6)

    def model(x: torch.Tensor) -> torch.Tensor:
        return run(x * 2, weight, bias) + 1

    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_the_cuda_sources_name_every_dtype() -> None:
    assert set(loader.SCALARS) == set(MATH)


@pytest.mark.parametrize("source", ["linear_relu_naive", "relu_inplace"])
def test_the_cuda_sources_build_to_machine_code(source: str, tmp_path: Path) -> None:
    instances = [f"{source}<{', '.join(pair)}>" for pair in loader.SCALARS.values()]
    cuda_sources.compiles_without_spills(tmp_path, source, instances)
