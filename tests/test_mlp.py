"""MLPs: layer by layer and in one kernel, forward and backward, at odd sizes; the seeds' safety and isolation tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_tensors import DEVICE, Layers, error, layers, on_gpu

from hypatia_lab.check import Problem, check
from hypatia_lab.operations import mlp, safety
from hypatia_lab.variants import variants
from hypatia_lab.workloads import Workload

Parameters = list[torch.Tensor]
KIND = torch.float32 if DEVICE == "cpu" else torch.float16
"""What the operation takes here."""


def by_layers(x: torch.Tensor, weights: Parameters, biases: Parameters) -> torch.Tensor:
    """The answer in the tensors' own dtype, by plain PyTorch and with its gradients."""
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = torch.relu(torch.nn.functional.linear(x, weight, bias))
    return torch.nn.functional.linear(x, weights[-1], biases[-1])


def fused(x: torch.Tensor, weights: Parameters, biases: Parameters) -> torch.Tensor:
    return torch.ops.hypatia.mlp(x, weights, biases, "ieee")


# ---------------------------------------------------------------- the variants


@on_gpu
@pytest.mark.parametrize("width", [16, 40, 64, 128])
def test_every_tile_computes_the_same(width: int) -> None:
    from hypatia_lab.kernels.mlp.mlp_triton import Tile, forward

    given = layers(1001, width=width, count=3, dtype=torch.bfloat16)
    tiles = Tile(64, 4, 0), Tile(128, 8, 1, "descriptor", 3), Tile(64, 4, 2, early=True)
    for tile in (*tiles, Tile(64, 4, 1, "pipeline", 3, keep=1), Tile(64, 8, 1, "pipeline", keep=0)):
        torch.testing.assert_close(forward(*given, tile=tile), forward(*given))


def test_a_planted_mistake_is_named() -> None:
    for operation, shape in (("mlp3", (40, 24)), ("mlp2", (40, 24)), ("mlp", (40, 24, 16, 2, 10))):
        problem = Problem(Workload(operation, shape), "cpu")
        faults = problem.workload.spec.faults(problem.inputs)
        assert {"ReLU missing after layer 1", "layer 2 skipped", "bias missing in layer 1"} <= set(faults)
        for name in faults:
            found = check(lambda name=name, p=problem: p.workload.spec.faults(p.inputs)[name].float(), problem)
            assert name in found.reason


def test_the_counts_are_those_of_the_seeds_model() -> None:
    model = Workload("mlp", (32, 784, 256, 2, 10))
    assert mlp.widths(model) == (784, 256, 256, 10)
    assert model.flops == 2 * 32 * (784 * 256 + 256 * 256 + 256 * 10)
    assert model.traffic == 4 * (32 * 794 + 785 * 256 + 257 * 256 + 257 * 10)
    assert Workload("mlp3", (65536, 64), "bfloat16").traffic == 2 * (2 * 65536 * 64 + 3 * 65 * 64)


# ---------------------------------------------------------------- the operation


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("batch", [(), (5,), (2, 3), (0,), (3, 0)])
def test_any_rank_of_batch_is_taken(batch: tuple[int, ...], count: int) -> None:
    x, weights, biases = layers(*batch, width=16, count=count, dtype=KIND)
    tolerance = 1e-4 if DEVICE == "cpu" else 3e-2
    torch.testing.assert_close(fused(x, weights, biases), by_layers(x, weights, biases), rtol=tolerance, atol=tolerance)


def test_strided_inputs_are_taken() -> None:
    x, weights, biases = layers(12, width=16, count=3, dtype=KIND)
    strided, across = torch.stack([x, -x], dim=-1)[..., 0], [w.t().contiguous().t() for w in weights]
    torch.testing.assert_close(fused(strided, across, biases), fused(x, weights, biases))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, b: (x, w[:1], b[:1]), "1 weights and 1 biases"),
        (lambda x, w, b: (x, w[:2], b[:1]), "2 weights and 1 biases"),
        (lambda x, w, b: (x[..., :-1], w, b), "weight1"),
        (lambda x, w, b: (x, [w[0], w[1][0]], b[:2]), "weight2"),
        (lambda x, w, b: (x, w, [*b[:2], b[2][:-1]]), "bias3"),
        (lambda x, w, b: (x, [w[0], w[1].half()], b[:2]), "weight2 is torch.float16"),
        (lambda x, w, b: (x.int(), [one.int() for one in w], [one.int() for one in b]), "x is torch.int32"),
    ],
)
def test_a_misfit_is_refused_by_name(change: Callable[..., tuple[Any, ...]], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        fused(*change(*layers(6, width=16, count=3)))


@on_gpu
def test_what_a_gpu_cannot_do_is_refused() -> None:
    x, (first, *others), biases = layers(6, width=16, count=3, dtype=torch.bfloat16)
    wide = layers(6, width=300, count=3, dtype=torch.bfloat16)
    mixed, double = (x, [first.cpu(), *others], biases), layers(6, width=16, count=3)
    for given, message in ((mixed, "weight1 is on cpu"), (double, "float64"), (wide, "width 300")):
        with pytest.raises((ValueError, RuntimeError), match=message):
            fused(*given)


def test_opcheck_passes() -> None:
    x, weights, biases = layers(2, 3, width=16, count=3, dtype=KIND)
    for tensor in (x, *weights, *biases):
        tensor.requires_grad_()
    torch.library.opcheck(torch.ops.hypatia.mlp.default, (x, weights, biases, "ieee"))


# ---------------------------------------------------------------- gradients


def gradients(form: Any, given: Layers, grad: torch.Tensor) -> Parameters:
    x, weights, biases = given
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, *weights, *biases)]
    out = form(leaves[0], leaves[1 : len(weights) + 1], leaves[len(weights) + 1 :])
    return list(torch.autograd.grad(out, leaves, grad))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("batch", [(1,), (129,), (2, 7), (0,)])
@pytest.mark.parametrize("width", [16, 77])
def test_gradients_are_autograds(width: int, batch: tuple[int, ...], count: int) -> None:
    given = layers(*batch, width=width, count=count, device="cpu")
    grad = torch.randn(*batch, width, dtype=torch.float64)
    # An upstream gradient that is not contiguous, too.
    grad = torch.stack([grad, grad], -1)[..., 0]
    for found, expected in zip(gradients(fused, given, grad), gradients(by_layers, given, grad), strict=True):
        torch.testing.assert_close(found, expected)


@on_gpu
@pytest.mark.parametrize("width", [16, 32, 64, 77, 128, 200])
@pytest.mark.parametrize("count", [2, 3])
def test_the_fused_gradients_are_as_good_as_autograds(count: int, width: int) -> None:
    for dtype in (torch.bfloat16, torch.float16) if width == 64 else (torch.bfloat16,):
        for rows in (1, 7, 127, 129, 1000, 20000):
            given = layers(rows, width=width, count=count, dtype=dtype)
            grad = torch.randn(rows, width, device=DEVICE).to(dtype)
            x, weights, biases = given
            double = x.double(), [w.double() for w in weights], [b.double() for b in biases]
            exact = gradients(by_layers, double, grad.double())
            usual, found = gradients(by_layers, given, grad), gradients(fused, given, grad)
            for own, peer, reference in zip(found, usual, exact, strict=True):
                off, allowed = (error(one, reference) for one in (own, peer))
                # Rounding moves some activations across a ReLU's kink in either way, not always the same ones.
                assert off <= 2 * allowed + 4 * torch.finfo(dtype).eps, (dtype, rows)
            # No sum depends on the order in which programs end.
            for own, again in zip(found, gradients(fused, given, grad), strict=True):
                assert torch.equal(own, again)


def test_a_second_derivative_is_refused() -> None:
    x, weights, biases = layers(3, width=16, count=3, device="cpu")
    out = fused(x.requires_grad_(), weights, biases)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        first.sum().backward()


@pytest.mark.slow
def test_the_operation_compiles_without_a_break() -> None:
    x, weights, biases = layers(6, width=16, count=3, dtype=KIND)

    def model(x: torch.Tensor) -> torch.Tensor:
        return fused(x * 2, weights, biases) + 1

    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x))


# ---------------------------------------------------------------- the seeds' own tests


def runnable(name: str) -> str:
    if missing := variants("linear_relu")[name].needs(Workload("linear_relu", (32, 784, 256)), DEVICE):
        pytest.skip(missing)
    return name


@pytest.mark.parametrize("name", ["eager", "naive", "cublas_relu", "aten", "epilogue"])
def test_a_variant_passes_the_dual_mode_safety_test(name: str) -> None:
    found = safety.dual_mode(runnable(name), device=DEVICE)
    assert found.ok, found.reason
    assert [mode.mode for mode in found.modes] == ["strict", "off"]
    assert set(found.modes[0].differences) == {"layer 1", "layer 2", "output"}


def lying(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Any], Any]) -> safety.Safety:
    """The safety test of an eager form that is changed: ``change`` is given its call and its inputs."""
    honest = variants("linear_relu")["eager"]
    liar = replace(honest, factory=lambda work, inputs: change(honest.factory(work, inputs), inputs))
    monkeypatch.setattr(safety, "find", lambda operation, name: honest if name == "eager" else liar)
    return safety.dual_mode("liar", sizes=(20, 8, 8, 4))


def test_the_safety_test_sees_a_wrong_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lying(monkeypatch, lambda run, inputs: lambda: run() + 2e-5)
    assert not found.ok
    assert "layer 1" in found.modes[0].reason
    assert found.modes[1].reason


def test_the_safety_test_sees_a_changed_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    def meddling(run: Any, inputs: Any) -> Any:
        # A late value, which the seeds' checksum does not cover; too little to show in an output.
        return lambda: (run(), inputs["weight"].view(-1)[11].add_(1e-7))[0]

    found = lying(monkeypatch, meddling)
    assert "parameters" in found.modes[0].reason
    assert not found.modes[1].reason


def test_the_seeds_checksum_is_blind_to_all_but_ten_values() -> None:
    weight = torch.arange(20.0)
    late, early = weight.clone(), weight.clone()
    late[10], early[9] = -1.0, -1.0
    seen = [safety.checksum({"w": tensor}, values=10) for tensor in (weight, late, early)]
    assert seen[0] == seen[1] != seen[2]
    assert len({safety.checksum({"w": tensor}) for tensor in (weight, late, early)}) == 3
    assert safety.checksum({"w": weight}) != safety.checksum({"v": weight})
    assert safety.checksum({"w": weight}) != safety.checksum({"w": weight.reshape(4, 5)})


@pytest.mark.parametrize("name", ["aten", "epilogue"])
def test_the_kernel_isolation_test(name: str) -> None:
    shape = (1024, 784, 2048) if DEVICE == "cuda" else (64, 784, 128)
    found = safety.isolation(runnable(name), device=DEVICE, shape=shape)
    assert found.error < 4 * found.eager_error + 1e-5
