"""Four faults of the reference C program, each beside the right image: shown here, imitated nowhere.

The program is nanoBragg (https://github.com/bl831/nanoBragg, as its PyTorch port tests against it). Every faulty image
is our own physics plus the one fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hypatia_lab.diffraction import physics
from hypatia_lab.diffraction.operations import TRICLINIC
from hypatia_lab.diffraction.physics import Layout
from hypatia_lab.diffraction.scene import Beam, Detector, Scene, Spindle

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Fault:
    """``summary``: what goes wrong. ``images``: computes the right image and the faulty one, float64 (slow, fast)."""

    summary: str
    images: Callable[[], tuple[Tensor, Tensor]]


def oblique_cell() -> Tensor:
    """The direct vectors (3, 3, rows a, b, c in Å, before misset) that the program makes of :data:`TRICLINIC`'s cell.

    c*_z is taken as c*·V / (abc·sin γ*), which wants a factor 1 / (sin α · sin β · c · c*); the lengths are put right
    afterwards, so the angles take it all: 75, 85, 95 degrees become 75.04, 85.01, 95.01.
    """
    cell, still = torch.tensor(TRICLINIC.cell, dtype=torch.float64), _still()
    star = torch.linalg.inv(still).T
    volume, sin_gamma_star = torch.linalg.det(still), star[1, 1] / star[1].norm()
    star[2, 2] = star[2].norm() * volume / (cell[:3].prod() * sin_gamma_star)
    direct = torch.linalg.inv(star).T
    return direct * (cell[:3] / direct.norm(dim=1))[:, None]


def _still() -> Tensor:
    return physics.cell_vectors(torch.tensor(TRICLINIC.cell, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))


def _oblique_cell() -> tuple[Tensor, Tensor]:
    inputs, layout = _scene(Detector(256, 256))
    crystals = (oblique_cell() @ torch.linalg.solve(_still(), inputs["crystals"][0]))[None]
    return physics.reference(inputs, layout), physics.reference(inputs | {"crystals": crystals}, layout)


def _zero_phi() -> tuple[Tensor, Tensor]:
    inputs, layout = _scene(Detector(256, 256), Beam(1.0, dispersion=2.0, dispersion_steps=3), Spindle(0.0, 1.0, 3))
    crystals = inputs["crystals"].clone()
    crystals[0] = crystals[-1]
    return physics.reference(inputs, layout), physics.reference(inputs | {"crystals": crystals}, layout)


def _first_point() -> tuple[Tensor, Tensor]:
    inputs, layout = _scene(Detector(128, 128, pixel=1.0, oversample=3))
    points = list(_points(inputs, layout))
    _, first_omega, first_polarization = points[0]
    mean = sum((bare for bare, _, _ in points), torch.zeros(())) / len(points)
    return physics.reference(inputs, layout), first_omega * first_polarization * mean


def _every_step() -> tuple[Tensor, Tensor]:
    inputs, layout = _scene(Detector(256, 256, oversample=2))
    total = torch.zeros(())
    for bare, omega, polarization in _points(inputs, layout):
        total = (total + bare) * omega * polarization
    return physics.reference(inputs, layout), total / layout.oversample**2


def _scene(
    detector: Detector, beam: Beam | None = None, spindle: Spindle | None = None
) -> tuple[dict[str, Tensor], Layout]:
    scene = Scene(TRICLINIC, beam or Beam(1.0), spindle or Spindle(), detector)
    return physics.vectors(scene), Layout.of(scene)


def _points(inputs: dict[str, Tensor], layout: Layout) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of every point of the pixels: intensity without solid angle and polarization, solid angle, polarization."""
    single = dataclasses.replace(layout, oversample=1)
    rows = torch.arange(layout.slow, dtype=torch.float64)[:, None] + 0.5
    columns = torch.arange(layout.fast, dtype=torch.float64)[None, :] + 0.5
    incident = inputs["sources"][0, :3]
    for slow, fast in physics.subpixels(layout.oversample):
        detector = inputs["detector"].clone()
        corner, along, down, distance = detector[0:3], detector[3:6], detector[6:9], detector[9]
        corner += (fast - 0.5) * along + (slow - 0.5) * down
        x, y, z = (corner[axis] + columns * along[axis] + rows * down[axis] for axis in range(3))
        radius = (x * x + y * y + z * z).sqrt()
        omega = along.norm() * down.norm() * distance / radius**3
        direction = (x / radius, y / radius, z / radius)
        polarization = physics.polarization_factor(direction, incident, inputs["polarization"])
        image = physics.reference(inputs | {"detector": detector}, single)
        yield image / (omega * polarization), omega, polarization


FAULTS: dict[str, Fault] = {
    "oblique cell": Fault(
        "a cell without right angles gets a wrong c*: 75, 85, 95 degrees become 75.04, 85.01, 95.01", _oblique_cell
    ),
    "first point": Fault(
        "with -oversample, solid angle and polarization of a pixel's first point serve the whole pixel "
        "(shown with pixels of 1 mm at 100 mm, 3 × 3 points)",
        _first_point,
    ),
    "every step": Fault(
        "with -oversample_omega and -oversample_polar, the sum so far is multiplied again at every point, "
        "and only the last point is left of it",
        _every_step,
    ),
    "zero phi": Fault(
        "a spindle angle of exactly 0 is not applied: the crystal keeps the last angle of the pixel before", _zero_phi
    ),
}
