"""The simulator's variants: against float64 and the golden images, digits of float32, gradients, mistakes named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import cuda_sources
import pytest
import torch
from kernel_tensors import DEVICE, accepted, needs_compiler, on_gpu
from synthetic import said
from test_diffraction import GOLDEN_SCENES, double, golden, off

from hypatia_lab.check import Problem, check, judge, poisoned
from hypatia_lab.diffraction import Beam, Crystal, Detector, Scene, Spindle, anchored, physics, simulators
from hypatia_lab.diffraction.operations import BATCH, TRICLINIC
from hypatia_lab.diffraction.physics import Layout
from hypatia_lab.diffraction.simulators import NAMES
from hypatia_lab.variants import variants
from hypatia_lab.workloads import Workload


@needs_compiler
@pytest.mark.parametrize("variant", ["c_openmp", "c_pixelwise"])
@pytest.mark.parametrize("name", GOLDEN_SCENES)
def test_our_c_program_meets_them_too(name: str, variant: str) -> None:
    scene = GOLDEN_SCENES[name]
    inputs = physics.vectors(scene) | {"layout": Layout.of(scene).tensor()}
    for dtype in ("float64", "float32"):
        out = variants("diffraction")[variant].factory(Workload("diffraction", (256, 256), dtype), inputs)()
        assert off(out, golden(name)) < 1e-6


@needs_compiler
@pytest.mark.parametrize("variant", ["c_openmp", "c_pixelwise"])
def test_our_c_program_takes_the_nearest_reflection_of_a_table(variant: str) -> None:
    workload = Workload("diffraction_table", (40, 50), "float64")
    problem = Problem(workload, "cpu")
    assert accepted(check(variants("diffraction_table")[variant].factory(workload, problem.inputs), problem)) < 1e-9


# ---------------------------------------------------------------- variants


LARGE = [
    *(("diffraction", shape) for shape in ((1024, 1024), (2048, 2048), (333, 517))),
    *(("diffraction_triclinic", shape) for shape in ((1024, 1024), (129, 1001))),
    *(("diffraction_sources", (257, 259)), ("diffraction_table", (515, 510)), (BATCH, (5, 130, 131))),
]


@on_gpu
@pytest.mark.parametrize("variant", ["cuda", "triton"])
@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 5e-5), ("float64", 1e-9)])
@pytest.mark.parametrize(("operation", "shape"), LARGE)
def test_the_kernels_agree_with_float64_on_whole_images(
    operation: str, shape: tuple[int, ...], dtype: str, allowed: float, variant: str
) -> None:
    workload = Workload(operation, shape, dtype)
    if missing := variants(operation)[variant].needs(workload, DEVICE):
        pytest.skip(missing)
    problem = Problem(workload, DEVICE)
    found = check(variants(operation)[variant].factory(workload, problem.inputs), problem)
    assert found.ok, found.reason
    assert said(found.max_error) <= allowed * said(found.peak)


KINDS = ("0, 0", "0, 1", "1, 0")
INSTANCES = [f"diffraction<{scalar}, 5, 5, 5, {kind}>" for scalar in ("float", "double") for kind in KINDS]
emulation = cuda_sources.emulation({"diffraction/diffraction": INSTANCES})


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("operation", "shape", "rows"),
    [
        ("diffraction", (37, 70), 4),
        ("diffraction", (9, 200), 64),
        ("diffraction_triclinic", (17, 68), 16),
        ("diffraction_sources", (5, 67), 4),
        ("diffraction_table", (5, 66), 8),
        (BATCH, (2, 5, 68), 2),
    ],
)
def test_the_emulated_cuda_kernel_agrees_with_float64(
    operation: str, shape: tuple[int, ...], rows: int, dtype: str, emulation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulators, "_cuda_rows", lambda layout, images: rows)
    workload = Workload(operation, shape, dtype)
    for draw in range(2):
        problem = Problem(workload, "cpu")
        problem.draw(draw)
        with poisoned("cpu"):
            out = simulators.cuda(workload, problem.inputs)()
        accepted(judge(out, problem))


# ---------------------------------------------------------------- float32


def by_anchors(inputs: dict[str, torch.Tensor], layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    return anchored.pixels(*anchored.anchors(inputs, layout, dtype), inputs, layout)


def anchors_off(scene: Scene) -> float:
    """How far off float32 is by anchors."""
    inputs, layout = physics.vectors(scene), Layout.of(scene)
    return off(by_anchors(inputs, layout, torch.float32), physics.reference(inputs, layout))


def test_anchored_float32_keeps_its_digits_where_direct_float32_does_not() -> None:
    # The outer quarter of a detector of 2048² pixels.
    scene = Scene(Crystal(), Beam(6.2), Spindle(), Detector(512, 512, beam_centre=(102.5, 102.5)))
    inputs, layout = physics.vectors(scene), Layout.of(scene)
    right = physics.reference(inputs, layout)
    assert anchors_off(scene) < 1e-5
    assert off(physics.plain(inputs, layout, 0, 512, torch.float32), right) < 1e-4
    assert off(physics.plain(inputs, layout, 0, 512, torch.float32, reduce=False), right) > 1e-2


CELLS = {
    "small": Crystal(cell=(30.0, 35.0, 40.0, 75.0, 85.0, 95.0), misset=(10.0, 20.0, 30.0)),
    "triclinic": TRICLINIC,
    "300 Å": Crystal(cell=(300.0, 280.0, 310.0, 85.0, 95.0, 100.0), misset=(-10.0, 20.0, 50.0)),
    "monoclinic": Crystal(cell=(60.0, 45.0, 110.0, 90.0, 107.0, 90.0), misset=(80.0, 1.0, 2.0), cells=(8, 9, 7)),
}


@pytest.mark.parametrize(
    ("name", "wavelength", "detector", "allowed"),
    [
        *((name, wavelength, Detector(200, 1000), 5e-5) for name in CELLS for wavelength in (0.7, 1.0, 2.5)),
        *(("300 Å", 1.0, Detector(128, 128, pixel=pixel), allowed) for pixel, allowed in ((0.3, 5e-5), (3.0, 2e-4))),
    ],
)
def test_anchored_float32_keeps_its_digits_but_with_coarse_pixels(
    name: str, wavelength: float, detector: Detector, allowed: float
) -> None:
    assert anchors_off(Scene(CELLS[name], Beam(wavelength), Spindle(), detector)) < allowed


def test_the_seeds_direct_form_is_found_wrong() -> None:
    workload = Workload("diffraction", (300, 1000), "float32")
    problem = Problem(workload, "cpu")
    found = check(variants("diffraction")["eager_direct"].factory(workload, problem.inputs), problem)
    assert not found.ok
    assert "of the peak" in found.reason


# ---------------------------------------------------------------- gradients

TINY = Scene(
    dataclasses.replace(TRICLINIC, cells=(2, 3, 2), default_f=1.0),
    Beam(1.3, dispersion=2.0, dispersion_steps=2, polarization=0.5),
    Spindle(0.5, 1.0, 2),
    Detector(3, 4, pixel=5.0, oversample=2),
)
PARAMETERS = (TRICLINIC.cell, TRICLINIC.misset, 100.0, 1.3)


def parameters() -> tuple[torch.Tensor, ...]:
    """Cell, misset, distance and wavelength, to be refined."""
    return tuple(double(value).requires_grad_() for value in PARAMETERS)


def refined(scene: Scene, given: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return physics.vectors(scene, **dict(zip(("cell", "misset", "distance", "wavelength"), given, strict=True)))


@pytest.mark.parametrize("way", ["plain", "anchored"])
def test_gradients_with_respect_to_cell_misset_distance_and_wavelength(way: str) -> None:
    def form(*given: torch.Tensor) -> torch.Tensor:
        inputs, layout = refined(TINY, given), Layout.of(TINY)
        if way == "plain":
            return physics.plain(inputs, layout, 0, 3, torch.float64)
        return by_anchors(inputs, layout, torch.float64)

    given = parameters()
    most = form(*given).detach().max()
    assert torch.autograd.gradcheck(lambda *own: form(*own) / most, given, eps=1e-6, atol=1e-6, rtol=1e-4)
    # Every one of the four moves the image.
    assert all(bool((gradient != 0).all()) for gradient in torch.autograd.grad(form(*given).sum(), given))


@pytest.mark.slow
# Dynamo asks whether an input has a gradient; torch warns, and hides the warning unless warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_compiled_form_has_the_same_gradients() -> None:
    # One step: code grows with every one, and its backward half takes minutes to compile with sixteen.
    scene = dataclasses.replace(TINY, beam=Beam(1.3), spindle=Spindle(), detector=Detector(3, 4, pixel=5.0))
    layout = Layout.of(scene)

    def form(*tensors: torch.Tensor) -> torch.Tensor:
        return physics.plain(dict(zip(NAMES, tensors, strict=True)), layout, 0, 3, torch.float64)

    def gradients(form: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        given = parameters()
        inputs = refined(scene, given)
        return torch.autograd.grad(form(*(inputs[name] for name in NAMES)).sum(), given)

    for found, expected in zip(gradients(torch.compile(form)), gradients(form), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


# ---------------------------------------------------------------- mistakes are named


@pytest.mark.parametrize("operation", ["diffraction", "diffraction_table", BATCH])
def test_a_planted_mistake_is_named(operation: str) -> None:
    batch = (2,) if operation == BATCH else ()
    problem = Problem(Workload(operation, (*batch, 40, 50), "float64"), "cpu")
    faults = problem.workload.spec.faults
    names = [*faults(problem.inputs)]
    assert len(names) == 3
    for name in names:
        found = check(lambda name=name: faults(problem.inputs)[name], problem)
        assert not found.ok
        assert name in found.reason


def test_the_cuda_kernel_builds_to_machine_code(tmp_path: Path) -> None:
    kinds = ("float, 5, 5, 5, 1, 0", "double, 5, 5, 5, 1, 0", "float, 4, 20, 1, 0, 1")
    cuda_sources.machine_code(tmp_path, "diffraction/diffraction", [f"diffraction<{kind}>" for kind in kinds])
