"""The physics: golden images of the reference C program and its faults, closed forms, cells, what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
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


def directions(scene: Scene) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unit vectors from the crystal to the pixels' centres, worked out from the scene alone."""
    detector = scene.detector
    slow, fast = detector.centre
    y = slow - detector.pixel * (torch.arange(detector.slow, dtype=torch.float64)[:, None] + 0.5)
    z = -fast + detector.pixel * (torch.arange(detector.fast, dtype=torch.float64)[None, :] + 0.5)
    radius = (detector.distance**2 + y * y + z * z).sqrt()
    return detector.distance / radius, y / radius, z / radius


def unpolarized(scene: Scene) -> torch.Tensor:
    """½(1 + cos²2θ), which even an unpolarized beam is weakened by."""
    return 0.5 * (1 + directions(scene)[0] ** 2)


def test_a_single_cell_spreads_f_squared_over_the_solid_angle() -> None:
    scene = Scene(Crystal(cells=(1, 1, 1)), Beam(6.2), Spindle(), Detector(1024, 1024, beam_centre=(51.2, 51.2)))
    half, distance = 51.2, 100.0
    detector = 4 * math.atan(half**2 / (distance * math.sqrt(2 * half**2 + distance**2)))
    assert detector == pytest.approx(0.836882, abs=5e-7)
    # Pixels taken as points: the sum is good to (pixel / distance)².
    assert float((image(scene) / unpolarized(scene)).sum()) == pytest.approx(100**2 * detector, rel=1e-6)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_the_squared_lattice_factor_integrates_to_the_number_of_cells(count: int) -> None:
    # A trigonometric polynomial of degree count − 1: the mean over more points than that is its integral.
    delta = torch.arange(64, dtype=torch.float64) / 64 - 0.5
    assert float((physics.interference(delta, count) ** 2).mean()) == pytest.approx(count, rel=1e-12)
    assert physics.interference(double([0.0]), count).item() == count


def test_a_reflection_integrates_to_darwins_formula() -> None:
    """∬F_latt² dΩ dφ = N³λ³ / (V·sin2θ), summed over the whole reciprocal cell of reflection (0, 60, 0)."""
    edge, count, order = 100.0, 10, 60
    theta = math.asin(order / (2 * edge))
    size, steps, half = 128, 192, 0.013  # pixels, spindle angles, half the rotation in radians
    height, width = 100 * math.tan(2 * theta), 2.0
    step = 2 * half / steps
    scene = Scene(
        # Only this reflection scatters, so the other cells that the window touches add nothing.
        Crystal(cells=(count, count, count), default_f=0.0, structure={(0, order, 0): 1.0}),
        Beam(1.0),
        Spindle(math.degrees(theta - half + step / 2), math.degrees(2 * half), steps),
        Detector(size, size, pixel=width / size, beam_centre=(height + width / 2, width / 2)),
    )
    found = float((image(scene) / unpolarized(scene)).sum()) * 2 * half
    assert found == pytest.approx(count**3 / (edge**3 * math.sin(2 * theta)), rel=1e-4)


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


def test_oversampling_is_the_mean_of_shifted_images() -> None:
    scene = Scene(TRICLINIC, Beam(1.0), Spindle(), Detector(20, 30, pixel=1.0, oversample=3))
    single = dataclasses.replace(Layout.of(scene), oversample=1)
    inputs = physics.vectors(scene)
    shifted = []
    for slow in (-1, 0, 1):
        for fast in (-1, 0, 1):
            detector = inputs["detector"].clone()
            detector[:3] += fast / 3 * detector[3:6] + slow / 3 * detector[6:9]
            shifted.append(physics.reference(inputs | {"detector": detector}, single))
    torch.testing.assert_close(image(scene), torch.stack(shifted).mean(0), rtol=1e-12, atol=0)


def test_solid_angle_and_polarization_belong_to_each_point_of_a_pixel() -> None:
    """One huge pixel and one cell: the value is the mean of Ω·P over the points, and differs from the first's."""
    crystal, detector = Crystal(cells=(1, 1, 1), default_f=1.0), Detector(1, 1, pixel=90.0, oversample=2)
    scene = Scene(crystal, Beam(6.2), Spindle(), detector)
    fine = Scene(crystal, Beam(6.2), Spindle(), Detector(2, 2, pixel=45.0, beam_centre=detector.centre))
    x, _, _ = directions(fine)
    points = 0.9**2 * x**3 * 0.5 * (1 + x**2)
    assert image(scene).item() == pytest.approx(float(points.mean()), rel=1e-12)
    assert abs(float(points[0, 0] / points.mean()) - 1) > 0.1


def test_a_fully_polarized_beam_scatters_nothing_along_its_field() -> None:
    beam, field = double([1.0, 0.0, 0.0]), double([1.0, 0.0, 0.0, 1.0])

    def factor(x: float, y: float, z: float) -> float:
        return physics.polarization_factor((double([x]), double([y]), double([z])), beam, field).item()

    assert factor(0.0, 0.0, 1.0) == pytest.approx(0.0)
    assert factor(0.0, 1.0, 0.0) == pytest.approx(1.0)
    assert factor(1.0, 0.0, 0.0) == pytest.approx(1.0)


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
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Detector(distance=-100.0), "distance -100.0 must be .* greater than 0 .* mm"),
    (lambda: Detector(distance=NAN), "distance nan"),
    (lambda: Detector(distance=True), "distance True"),
    (lambda: Detector(distance="100"), "distance '100'"),  # type: ignore[arg-type]
    (lambda: Detector(distance=math.inf), "distance inf"),
    (lambda: Detector(slow=0), "pixels along slow 0"),
    (lambda: Detector(fast=-5), "pixels along fast -5"),
    (lambda: Detector(fast=10.0), "pixels along fast 10.0 must be a whole number"),  # type: ignore[arg-type]
    (lambda: Detector(slow=True), "pixels along slow True"),
    (lambda: Detector(slow=10**6), "pixels along slow 1000000"),
    (lambda: Detector(pixel=0.0), "pixel 0.0"),
    (lambda: Detector(oversample=0), "oversample 0"),
    (lambda: Detector(beam_centre=(1.0,)), "beam_centre .* must be 2 numbers"),  # type: ignore[arg-type]
    (lambda: Detector(beam_centre=(1.0, NAN)), "beam_centre along fast nan"),
    (lambda: Crystal(cell=(100.0, 100.0, 0.0, 90.0, 90.0, 90.0)), "cell c 0.0 .* Å"),
    (lambda: Crystal(cell=(100.0, NAN, 100.0, 90.0, 90.0, 90.0)), "cell b nan"),
    (lambda: Crystal(cell=(100.0, 100.0, 100.0, 90.0, 90.0, 180.0)), "cell γ 180.0"),
    (lambda: Crystal(cell=(100.0, 100.0, 100.0, 30.0, 40.0, 80.0)), "30, 40, 80 close no cell"),
    (lambda: Crystal(cell=(100.0, 100.0, 100.0, 120.0, 120.0, 120.0)), "close no cell"),
    (lambda: Crystal(cell=(100.0,) * 3), "cell .* must be 6 numbers"),  # type: ignore[arg-type]
    (lambda: Crystal(cell=None), "cell None must be 6 numbers"),  # type: ignore[arg-type]
    (lambda: Crystal(misset=(0.0, NAN, 0.0)), "misset about y nan"),
    (lambda: Crystal(misset=(0.0, 0.0)), "misset .* must be 3 numbers"),  # type: ignore[arg-type]
    (lambda: Crystal(cells=(5, 0, 5)), "cells along b 0"),
    (lambda: Crystal(cells=(5, 5, 2.5)), "cells along c 2.5"),  # type: ignore[arg-type]
    (lambda: Crystal(default_f=-1.0), "default_f -1.0"),
    (lambda: Crystal(structure={(1, 2): 3.0}), r"structure names \(1, 2\)"),  # type: ignore[dict-item]
    (lambda: Crystal(structure={(1, 2, 0.5): 3.0}), r"structure names \(1, 2, 0.5\)"),  # type: ignore[dict-item]
    (lambda: Crystal(structure={(1, 2, 3): NAN}), r"structure factor of \(1, 2, 3\) nan"),
    (lambda: Crystal(structure={(10_001, 0, 0): 1.0}), "indices go up to 10000"),
    (lambda: Crystal(structure={(-9_999, 0, 0): 1.0, (9_999, 9_999, 9_999): 1.0}), "the table holds at most"),
    (lambda: Crystal(structure=[1.0]), "structure must map .* found list"),  # type: ignore[arg-type]
    (lambda: Crystal(mosaic_spread=-0.1), "mosaic_spread -0.1"),
    (lambda: Crystal(mosaic_domains=0), "mosaic_domains 0"),
    (lambda: Crystal(mosaic_seed=-1), "mosaic_seed -1"),
    (lambda: Beam(wavelength=0.0), "wavelength 0.0"),
    (lambda: Beam(wavelength=-1.0), "wavelength -1.0"),
    (lambda: Beam(dispersion=101.0), "dispersion 101.0"),
    (lambda: Beam(dispersion_steps=0), "dispersion_steps 0"),
    (lambda: Beam(directions=()), "directions must name at least one source"),
    (lambda: Beam(directions=((0.0, 0.0, 0.0),)), "direction of source 0 .* has no length"),
    (lambda: Beam(directions=((1.0, 0.0, 0.0), (1.0, NAN, 0.0))), "direction of source 1 nan"),
    (lambda: Beam(polarization=1.5), "polarization 1.5"),
    (lambda: Beam(polarization_axis=(0.0, 0.0, 0.0)), "polarization_axis .* has no length"),
    (lambda: Beam(polarization=0.5, polarization_axis=(2.0, 0.0, 0.0)), "polarization_axis .* is along the beam"),
    (lambda: Spindle(phi=math.inf), "phi inf"),
    (lambda: Spindle(steps=0), "phi steps 0"),
    (lambda: Spindle(axis=(0.0, 0.0, 0.0)), "spindle axis .* has no length"),
    (lambda: Scene(crystal=TRICLINIC.cell), "crystal must be a Crystal, found tuple"),  # type: ignore[arg-type]
    (lambda: Scene(detector=None), "detector must be a Detector, found NoneType"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_scene_that_cannot_be_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SceneError, match=message):
        make()


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
    assert right.shape == faulty.shape
    assert max(right.shape) <= 256
    assert fault.summary


def test_the_faulty_cell_is_the_reference_programs() -> None:
    wrong = oblique_cell()
    lengths = wrong.norm(dim=1)
    assert lengths.tolist() == pytest.approx(TRICLINIC.cell[:3])
    units = wrong / lengths[:, None]
    angles = [math.degrees(math.acos(float(units[i] @ units[j]))) for i, j in ((1, 2), (0, 2), (0, 1))]
    assert angles == pytest.approx([75.04, 85.01, 95.01], abs=0.005)


def test_the_golden_images_avoid_the_faults() -> None:
    right, faulty = FAULTS["oblique cell"].images()
    assert off(right, golden("triclinic256")) < 1e-6
    assert off(faulty, golden("triclinic256")) > 0.04
