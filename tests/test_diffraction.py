"""The physics: golden images of the reference C program and its faults, closed forms, cells, what is refused."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from hypatia_lab.diffraction import Beam, Crystal, Detector, Scene, SceneError, Spindle, physics, seed_scene
from hypatia_lab.diffraction.faults import FAULTS, oblique_cell
from hypatia_lab.diffraction.operations import TRICLINIC
from hypatia_lab.diffraction.physics import Layout

GOLDEN = Path(__file__).parent / "golden"
SQUARE = Detector(256, 256)
GOLDEN_SCENES = {
    "cubic256": seed_scene(256),
    "triclinic256": Scene(TRICLINIC, Beam(1.0), Spindle(), SQUARE),
    "sources256": Scene(TRICLINIC, Beam(1.0, dispersion=2.0, dispersion_steps=3), Spindle(0.5, 1.0, 3), SQUARE),
}


def double(*values: Any) -> torch.Tensor:
    return torch.tensor(*values, dtype=torch.float64)


def image(scene: Scene, **changes: torch.Tensor) -> torch.Tensor:
    """The float64 image of ``scene``, with some of its vectors replaced."""
    return physics.reference(physics.vectors(scene) | changes, Layout.of(scene))


def golden(name: str) -> torch.Tensor:
    return torch.from_numpy(numpy.fromfile(GOLDEN / f"{name}.f32", dtype="<f4").astype(float)).reshape(256, 256)


def off(out: torch.Tensor, right: torch.Tensor) -> float:
    """Largest error as a share of the peak."""
    return float((out.double() - right).abs().max() / right.max())


# ---------------------------------------------------------------- the reference program, and closed forms


@pytest.mark.parametrize("name", GOLDEN_SCENES)
def test_the_golden_images_of_the_reference_program_are_met(name: str) -> None:
    assert off(image(GOLDEN_SCENES[name]), golden(name)) < 1e-6


def test_the_forward_peak_has_its_closed_form() -> None:
    scene = seed_scene(256)
    assert scene.forward_peak == pytest.approx(156.25, rel=1e-12)
    out = image(scene)
    assert out.max() == pytest.approx(154.65247, abs=1e-5)
    # The beam lands on a corner one pixel beyond the middle, which four pixels share.
    assert out[128:130, 128:130].flatten().tolist() == pytest.approx(4 * [float(out.max())])


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_the_squared_lattice_factor_integrates_to_the_number_of_cells(count: int) -> None:
    # A trigonometric polynomial of degree count − 1: the mean over more points than that is its integral.
    delta = torch.arange(64, dtype=torch.float64) / 64 - 0.5
    assert float((physics.interference(delta, count) ** 2).mean()) == pytest.approx(count, rel=1e-12)
    assert physics.interference(double([0.0]), count).item() == count
    assert physics.nearest(double([0.5, -0.5, 1.5, 0.6])).tolist() == [0, -1, 1, 1]  # ties downwards


def turned(axis: int, degrees: float) -> numpy.ndarray:
    """The matrix that turns a column about x, y or z."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    first, second = [(1, 2), (2, 0), (0, 1)][axis]
    matrix = numpy.eye(3)
    matrix[first, first] = matrix[second, second] = cosine
    matrix[second, first], matrix[first, second] = sine, -sine
    return matrix


def expected_vectors(cell: tuple[float, ...], misset: tuple[float, ...]) -> numpy.ndarray:
    """Rows a, b, c by another way: with a* along x and b* in the xy plane, the reciprocal vectors are the Cholesky
    factor of the reciprocal metric."""
    ca, cb, cg = (math.cos(math.radians(angle)) for angle in cell[3:])
    cosines = numpy.array([[1.0, cg, cb], [cg, 1.0, ca], [cb, ca, 1.0]])
    metric = cosines * numpy.outer(cell[:3], cell[:3])
    reciprocal = numpy.linalg.cholesky(numpy.linalg.inv(metric))
    rotation = turned(2, misset[2]) @ turned(1, misset[1]) @ turned(0, misset[0])
    return numpy.linalg.inv(reciprocal @ rotation.T).T


def one_pixel(scene: Scene, slow: int, fast: int) -> float:
    """The reference program's loops for one pixel, in plain Python (no mosaic domains)."""
    crystal, beam, detector = scene.crystal, scene.beam, scene.detector
    still, points, total = expected_vectors(crystal.cell, crystal.misset), detector.oversample, 0.0
    assert scene.spindle.axis == (0.0, 0.0, 1.0)
    axis = numpy.array(beam.polarization_axis) / numpy.linalg.norm(beam.polarization_axis)
    for point in range(points**2):
        y = detector.centre[0] - detector.pixel * (slow + (point // points + 0.5) / points)
        z = -detector.centre[1] + detector.pixel * (fast + (point % points + 0.5) / points)
        position = numpy.array([detector.distance, y, z])
        radius = float(numpy.linalg.norm(position))
        omega = detector.pixel**2 * detector.distance / radius**3
        for direction in beam.directions:
            incident = numpy.array(direction) / numpy.linalg.norm(direction)
            sideways = numpy.cross(axis, incident) / numpy.linalg.norm(numpy.cross(axis, incident))
            upwards = numpy.cross(incident, sideways)
            psi = math.atan2(position @ sideways, position @ upwards)
            cosine = float(position @ incident) / radius
            kahn = beam.polarization * math.cos(2 * psi) * (1 - cosine**2)
            for wavelength in beam.wavelengths:
                for angle in scene.spindle.angles:
                    hkl = (still @ turned(2, angle).T) @ ((position / radius - incident) / wavelength)
                    nearby = numpy.ceil(hkl - 0.5)
                    lattice = math.prod(
                        math.sin(math.pi * n * d) / math.sin(math.pi * d)
                        for n, d in zip(crystal.cells, hkl - nearby, strict=True)
                    )
                    h, k, m = map(int, nearby)
                    factor = crystal.structure.get((h, k, m), crystal.default_f)
                    total += omega * 0.5 * (1 + cosine**2 - kahn) * factor**2 * lattice**2
    return total / scene.steps


FULL = Scene(
    Crystal(
        (40.0, 50.0, 60.0, 75.0, 85.0, 95.0),
        (10.0, -20.0, 30.0),
        (3, 4, 5),
        default_f=7.0,
        structure={
            (h, k, m): 20.0 + h - 2 * k + 3 * m for h in range(-3, 2) for k in range(-1, 3) for m in range(-2, 3)
        },
    ),
    Beam(3.0, 4.0, 2, ((1.0, 0.0, 0.0), (2.0, 0.1, -0.06)), polarization=0.8, polarization_axis=(0.1, 0.2, 1.0)),
    Spindle(1.0, -3.0, 2),
    Detector(7, 9, distance=50.0, pixel=3.0, oversample=2, beam_centre=(8.0, 11.0)),
)
"""Every feature at once but mosaic domains."""


def test_every_pixel_is_what_the_plain_loops_give() -> None:
    expected = double([[one_pixel(FULL, slow, fast) for fast in range(9)] for slow in range(7)])
    assert off(image(FULL), expected) < 1e-10


def test_the_table_ends_where_it_should() -> None:
    low, structure = Layout.of(FULL).miller_low, physics.vectors(FULL)["structure"]
    indices = torch.randint(-9, 10, (500, 3), generator=torch.Generator().manual_seed(0))
    found = physics.structure_at(structure, low, *indices.unbind(1))
    expected = [FULL.crystal.structure.get((h, k, m), 7.0) ** 2 for h, k, m in indices.tolist()]
    assert found.tolist() == expected
    assert len(set(expected)) > 5
    same = dataclasses.replace(FULL.crystal, structure={(0, 0, 0): 7.0, (3, -2, 1): 7.0})
    without = dataclasses.replace(FULL.crystal, structure={})
    first, second = (image(dataclasses.replace(FULL, crystal=crystal)) for crystal in (same, without))
    torch.testing.assert_close(first, second, rtol=1e-12, atol=0)


# ---------------------------------------------------------------- cells, rotations, steps

edges, angles = st.floats(10, 400), st.floats(40, 130)
turns = st.tuples(*3 * [st.floats(-360, 360)])


def crystal_or_none(cell: tuple[float, ...], misset: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Crystal | None:
    try:
        return Crystal(cell=cell, misset=misset)  # type: ignore[arg-type]
    except SceneError:
        return None


@settings(max_examples=60, deadline=None)
@given(cell=st.tuples(edges, edges, edges, angles, angles, angles), misset=turns)
def test_a_cell_comes_back_from_its_vectors_and_misset_only_turns_it(
    cell: tuple[float, ...], misset: tuple[float, ...]
) -> None:
    crystal = crystal_or_none(cell, misset)
    assume(crystal is not None and crystal.volume_factor() > 1e-2)
    found = physics.cell_vectors(double(cell), double(misset)).numpy()
    numpy.testing.assert_allclose(found, expected_vectors(cell, misset), atol=1e-9 * max(cell))
    lengths = numpy.linalg.norm(found, axis=1)
    cosines = [found[i] @ found[j] / lengths[i] / lengths[j] for i, j in ((1, 2), (0, 2), (0, 1))]
    numpy.testing.assert_allclose([*lengths, *numpy.degrees(numpy.arccos(cosines))], cell, rtol=1e-9)
    assert numpy.linalg.det(found) > 0


def test_the_vectors_are_those_that_the_reference_program_read() -> None:
    # λ times the reciprocal vectors of the second and third golden image, columns a*, b*, c*.
    given_to_it = [
        [0.0144344138491262, 0.00148517955750965, -0.00132015960667525],
        [0.0, 0.012940952255126, -0.0029772132492347],
        [0.0, 0.0, 0.0111111111111111],
    ]
    still = physics.cell_vectors(double(TRICLINIC.cell), double([0.0, 0.0, 0.0]))
    torch.testing.assert_close(torch.linalg.inv(still), double(given_to_it), rtol=0, atol=1e-15)


def test_mosaic_domains_are_rotations_within_the_spread() -> None:
    spread, domains = 3.0, 4000
    matrices = physics.mosaic_turns(spread, domains, seed=5)
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3, dtype=torch.float64).expand(domains, 3, 3))
    assert torch.linalg.det(matrices).tolist() == pytest.approx(domains * [1.0])
    assert torch.equal(matrices[0], torch.eye(3, dtype=torch.float64))
    skew = torch.stack([matrices[:, i, j] - matrices[:, j, i] for i, j in ((2, 1), (0, 2), (1, 0))], 1)[1:] / 2
    angles = torch.rad2deg(torch.asin(skew.norm(dim=1)))
    assert angles.max() <= spread
    # angle / spread = (1 − r²)^⅓ with r uniform on (−1, 1).
    share = stats.kstest((angles / spread).numpy(), lambda t: 1 - numpy.sqrt(1 - numpy.clip(t, 0, 1) ** 3))
    assert share.pvalue > 0.01
    axes = skew / skew.norm(dim=1, keepdim=True)
    assert axes.mean(0).abs().max() < 0.05
    torch.testing.assert_close(axes.T @ axes / len(axes), torch.eye(3, dtype=torch.float64) / 3, rtol=0, atol=0.05)
    assert torch.equal(matrices, physics.mosaic_turns(spread, domains, seed=5))
    assert not torch.equal(matrices, physics.mosaic_turns(spread, domains, seed=6))


def test_mosaic_domains_are_averaged() -> None:
    scene = Scene(Crystal(mosaic_spread=2.0, mosaic_domains=3), Beam(6.2), Spindle(), Detector(16, 16, pixel=3.0))
    crystals = physics.vectors(scene)["crystals"]
    each = [image(scene, crystals=one[None]) for one in crystals]
    torch.testing.assert_close(image(scene), torch.stack(each).mean(0))
    assert off(each[1], each[0]) > 1e-3


def test_wavelengths_and_spindle_angles_are_stepped_as_stated() -> None:
    assert Beam(2.0, dispersion=3.0, dispersion_steps=4).wavelengths == pytest.approx((1.97, 1.99, 2.01, 2.03))
    assert Beam(2.0, dispersion=3.0).wavelengths == (2.0,)
    assert Spindle(0.5, 1.0, 3).angles == pytest.approx((0.5, 0.5 + 1 / 3, 0.5 + 2 / 3))
    sources = physics.vectors(FULL)["sources"]
    assert sources[:, 3].tolist() == pytest.approx([2.94, 3.06, 2.94, 3.06])
    assert sources[:, :3].norm(dim=1).tolist() == pytest.approx(4 * [1.0])
    assert FULL.steps == 2 * 2 * 2 * 4
    spindles = Spindle(), Spindle(30.0, axis=(0.0, 0.0, 5.0))
    still, moved = (physics.vectors(dataclasses.replace(FULL, spindle=one))["crystals"][0] for one in spindles)
    numpy.testing.assert_allclose(moved, still.numpy() @ turned(2, 30.0).T, atol=1e-12)


@given(
    size=st.tuples(*2 * [st.integers(1, 9999)]),
    oversample=st.integers(1, 64),
    cells=st.tuples(*3 * [st.integers(1, 99)]),
    low=st.tuples(*3 * [st.integers(-99, 99)]),
)
def test_a_layout_travels_as_whole_numbers(size, oversample, cells, low) -> None:
    layout = Layout(size[0], size[1], oversample, cells, low)
    assert Layout.from_tensor(layout.tensor()) == layout


# ---------------------------------------------------------------- what is refused

NAN = float("nan")
INF = math.inf
RIGHT = (90.0, 90.0, 90.0)
REFUSED: dict[Any, dict[str, list[Any]]] = {
    Detector: {
        "distance": [-100.0, NAN, True, "100", INF],
        "slow": [0, True, 10**6],
        "fast": [-5, 10.0],
        "pixel": [0.0],
        "oversample": [0],
        "beam_centre": [(1.0,), (1.0, NAN)],
    },
    Crystal: {
        "cell": [
            *((100.0, 100.0, 0.0, *RIGHT), (100.0, NAN, 100.0, *RIGHT), (100.0,) * 3, None),
            *((100.0, 100.0, 100.0, *angles) for angles in ((90.0, 90.0, 180.0), (30.0, 40.0, 80.0), (120.0,) * 3)),
        ],
        "misset": [(0.0, NAN, 0.0), (0.0, 0.0)],
        "cells": [(5, 0, 5), (5, 5, 2.5)],
        "default_f": [-1.0],
        "structure": [
            *({index: 3.0} for index in ((1, 2), (1, 2, 0.5), (10_001, 0, 0))),
            *({(1, 2, 3): NAN}, {(-9_999, 0, 0): 1.0, (9_999, 9_999, 9_999): 1.0}, [1.0]),
        ],
        "mosaic_spread": [-0.1],
        "mosaic_domains": [0],
        "mosaic_seed": [-1],
    },
    Beam: {
        "wavelength": [0.0, -1.0],
        "dispersion": [101.0],
        "dispersion_steps": [0],
        "directions": [(), ((0.0, 0.0, 0.0),), ((1.0, 0.0, 0.0), (1.0, NAN, 0.0))],
        "polarization": [1.5],
        "polarization_axis": [(0.0, 0.0, 0.0)],
    },
    partial(Beam, polarization=0.5): {"polarization_axis": [(2.0, 0.0, 0.0)]},
    Spindle: {"phi": [INF], "steps": [0], "axis": [(0.0, 0.0, 0.0)]},
    Scene: {"crystal": [TRICLINIC.cell], "detector": [None]},
}
"""What makes a part of a scene → its argument, which the refusal names, and what it may not be."""


@pytest.mark.parametrize(("make", "name"), [(make, name) for make, own in REFUSED.items() for name in own])
def test_a_scene_that_cannot_be_is_refused_by_name(make: Any, name: str) -> None:
    for bad in REFUSED[make][name]:
        with pytest.raises(SceneError, match=name.removesuffix("s")):
            make(**{name: bad})


@given(cell=st.tuples(*6 * [st.floats(allow_nan=True, allow_infinity=True, width=32)]))
def test_whatever_the_cell_it_is_refused_or_has_vectors(cell: tuple[float, ...]) -> None:
    crystal = crystal_or_none(cell)
    if crystal is not None:
        assert physics.cell_vectors(double(crystal.cell), double(crystal.misset)).isfinite().all()


# ---------------------------------------------------------------- the reference program's faults

SIZES = {"oblique cell": (0.04, 0.06), "first point": (5e-3, 2e-2), "every step": (0.6, 0.9), "zero phi": (0.15, 0.19)}
"""Fault of the reference program → its largest error as a share of the peak, between these."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_reference_program_shows_at_its_size(name: str) -> None:
    fault = FAULTS[name]
    right, faulty = fault.images()
    low, high = SIZES[name]
    assert low < off(faulty, right) < high
    assert right.dtype == faulty.dtype == torch.float64
    assert fault.summary


def test_the_faulty_cell_is_the_reference_programs() -> None:
    wrong = oblique_cell()
    lengths = wrong.norm(dim=1)
    assert lengths.tolist() == pytest.approx(TRICLINIC.cell[:3])
    units = wrong / lengths[:, None]
    angles = [math.degrees(math.acos(float(units[i] @ units[j]))) for i, j in ((1, 2), (0, 2), (0, 1))]
    assert angles == pytest.approx([75.04, 85.01, 95.01], abs=0.005)
