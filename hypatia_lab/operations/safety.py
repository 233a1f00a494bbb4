"""The seeds' two tests of a fused Linear+ReLU: the dual-mode safety test and the kernel isolation test.

The seeds' "strict" mode compares a checksum of the parameters (names, shapes, dtypes and the first ten values of each)
and never looks at an output it was to keep safe. Here the checksum covers every value, and both modes compare every
layer's output with plain PyTorch. Sources: S004 (MLP 784-256-256-10, batch 32, tolerance 1e-5), S001 (1024×784×2048).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from hypatia_lab.variants import find, variants
from hypatia_lab.workloads import Workload

MODES = ("strict", "off")
TOLERANCE = 1e-5
"""The seeds' largest acceptable difference of one number from plain PyTorch."""


@dataclass(frozen=True)
class Mode:
    """Outcome in one mode: max |difference| from plain PyTorch by layer, the parameters' checksum, and what is wrong.

    ``checksum`` is empty in the mode that takes none; ``reason`` is empty when the mode is passed.
    """

    mode: str
    differences: dict[str, float]
    checksum: str
    reason: str


@dataclass(frozen=True)
class Safety:
    """Outcome of the dual-mode safety test of one variant of Linear+ReLU."""

    variant: str
    tolerance: float
    modes: tuple[Mode, ...]

    @property
    def reason(self) -> str:
        """What is wrong, mode by mode; empty when the test is passed."""
        return "; ".join(f"{mode.mode}: {mode.reason}" for mode in self.modes if mode.reason)

    @property
    def ok(self) -> bool:
        """Whether both modes are passed."""
        return not self.reason


@dataclass(frozen=True)
class Isolation:
    """Outcome of the kernel isolation test: one Linear+ReLU by a variant, by plain PyTorch and in float64.

    ``difference`` is max |variant − eager|, ``error`` and ``eager_error`` are max |· − float64|. The seeds ask for a
    difference below ``tolerance``, which float32 sums of many terms miss whoever computes them: ``eager_error`` says by
    how much plain PyTorch does.
    """

    variant: str
    tolerance: float
    difference: float
    error: float
    eager_error: float

    @property
    def ok(self) -> bool:
        """Whether the seeds' criterion is met."""
        return self.difference <= self.tolerance


def checksum(parameters: Mapping[str, torch.Tensor], *, values: int | None = None) -> str:
    """SHA-256 over name, shape, dtype and values of every parameter, or, as in the seeds, the first ``values`` only."""
    digest = hashlib.sha256()
    for name, tensor in sorted(parameters.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().flatten()[:values].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _parameters(sizes: tuple[int, ...], dtype: str, device: str, seed: int) -> dict[str, torch.Tensor]:
    """Weights and biases as ``torch.nn.Linear`` draws them: uniform within ±1/√in."""
    generator = torch.Generator(device).manual_seed(seed)
    drawn: dict[str, torch.Tensor] = {}
    for number, (inner, outer) in enumerate(zip(sizes, sizes[1:], strict=False), 1):
        for name, shape in ((f"weight{number}", (outer, inner)), (f"bias{number}", (outer,))):
            uniform = torch.rand(shape, generator=generator, device=device) * 2 - 1
            drawn[name] = (uniform / inner**0.5).to(getattr(torch, dtype))
    return drawn


def _output(variant: str, workload: Workload, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    out = find("linear_relu", variant).factory(workload, inputs)()
    assert isinstance(out, torch.Tensor)  # as of every variant in direction forward
    return out


def _layers(
    variant: str, x: torch.Tensor, parameters: Mapping[str, torch.Tensor], workload: Workload
) -> dict[str, torch.Tensor]:
    """Every layer's output: hidden layers by ``variant`` of Linear+ReLU, the last by the library's Linear."""
    outputs: dict[str, torch.Tensor] = {}
    count = len(parameters) // 2
    for number in range(1, count + 1):
        weight, bias = parameters[f"weight{number}"], parameters[f"bias{number}"]
        if number == count:
            outputs["output"] = functional.linear(x, weight, bias)
            break
        layer = Workload("linear_relu", (x.shape[0], *weight.t().shape), workload.dtype, workload.math)
        x = _output(variant, layer, {"x": x, "weight": weight, "bias": bias})
        outputs[f"layer {number}"] = x
    return outputs


def _runnable(variant: str, workload: Workload, device: str) -> None:
    if reason := find("linear_relu", variant).needs(workload, device):
        raise ValueError(f"linear_relu/{variant} cannot run on {device}: {reason}")


def dual_mode(
    variant: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    math: str = "ieee",
    batch: int = 32,
    sizes: tuple[int, ...] = (784, 256, 256, 10),
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Safety:
    """The dual-mode safety test of a variant of ``linear_relu``: an MLP of ``sizes``, strict mode and then off.

    Both modes compare each layer's output with plain PyTorch's; strict also demands that no parameter changed.
    Raises ``KeyError`` for an unknown variant, ``ValueError`` for one that cannot run on ``device``.
    """
    workload = Workload("linear_relu", (batch, *sizes[:2]), dtype, math)
    _runnable(variant, workload, device)
    parameters = _parameters(sizes, dtype, device, seed)
    generator = torch.Generator(device).manual_seed(seed + 1)
    x = torch.randn(batch, sizes[0], generator=generator, device=device).to(getattr(torch, dtype))
    with workload.precision():
        expected = _layers("eager", x, parameters, workload)
        modes = tuple(_mode(mode, variant, x, parameters, expected, workload, tolerance) for mode in MODES)
    return Safety(variant, tolerance, modes)


def _mode(
    mode: str,
    variant: str,
    x: torch.Tensor,
    parameters: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    workload: Workload,
    tolerance: float,
) -> Mode:
    before = checksum(parameters) if mode == "strict" else ""
    found = _layers(variant, x, parameters, workload)
    differences = {name: float((found[name].double() - expected[name].double()).abs().max()) for name in expected}
    # NaN is not within any tolerance.
    wrong = [f"{name} is off by {off:.1e}" for name, off in differences.items() if not off <= tolerance]
    if mode == "strict" and checksum(parameters) != before:
        wrong.insert(0, "the call changed the parameters")
    return Mode(mode, differences, before, ", ".join(wrong))


def isolation(
    variant: str,
    *,
    device: str = "cpu",
    shape: tuple[int, int, int] = (1024, 784, 2048),
    dtype: str = "float32",
    math: str = "ieee",
    tolerance: float = TOLERANCE,
) -> Isolation:
    """The kernel isolation test of a variant of ``linear_relu``, but for its timing, which is the lab's clocks' work.

    Inputs are standard normal, as in the seeds. Raises ``KeyError`` for an unknown variant, ``ValueError`` for one that
    cannot run on ``device``.
    """
    workload = Workload("linear_relu", shape, dtype, math)
    _runnable(variant, workload, device)
    inputs = workload.inputs(device)
    with workload.precision():
        found, expected = (_output(name, workload, inputs).double() for name in (variant, "eager"))
    exact = workload.spec.reference(inputs)
    return Isolation(
        variant,
        tolerance,
        difference=float((found - expected).abs().max()),
        error=float((found - exact).abs().max()),
        eager_error=float((expected - exact).abs().max()),
    )


def comparable(device: str = "cpu") -> list[str]:
    """Variants of ``linear_relu`` that run in float32 on ``device``, without eager, which they are held against.

    Compiled forms are left out: each takes seconds a layer, and computes what eager computes.
    """
    workload = Workload("linear_relu", (32, 784, 256))
    known = variants("linear_relu").items()
    names = [name for name, found in known if not found.baseline and not found.needs(workload, device)]
    return [name for name in names if not name.startswith("compile")]


def passed(device: str = "cpu") -> str:
    """The dual-mode safety test of every :func:`comparable` variant, as one line that is the same on every machine.

    Raises ``AssertionError`` naming each variant that fails and how.
    """
    found = [dual_mode(name, device=device) for name in comparable(device)]
    failed = [f"{one.variant}: {one.reason}" for one in found if not one.ok]
    assert not failed, "; ".join(failed)
    return (
        f"safety test, strict and off: every variant this machine can run gives eager's layers within {TOLERANCE:g} "
        "and leaves the parameters alone"
    )


MARGIN = 10
"""A right float32 sum in another order may have so many times the largest error of eager's."""


def isolated(device: str = "cpu") -> str:
    """The kernel isolation test of every :func:`comparable` variant, as one line that is the same on every machine.

    Each is held against float64, since the seeds' tolerance is finer than what plain PyTorch reaches. Raises
    ``AssertionError`` naming each variant that is further off than :data:`MARGIN` times eager's error, and if eager
    itself is within the seeds' tolerance.
    """
    found = [isolation(name, device=device) for name in comparable(device)]
    failed = [f"{one.variant} is off by {one.error:.1e}" for one in found if not one.error <= MARGIN * one.eager_error]
    failed += [f"eager is within {TOLERANCE:g}" for one in found[:1] if one.eager_error <= TOLERANCE]
    assert not failed, "; ".join(failed)
    return (
        f"isolation test: not even eager is within {TOLERANCE:g} of float64; no variant this machine can run is off by "
        f"more than {MARGIN} times eager's error"
    )
