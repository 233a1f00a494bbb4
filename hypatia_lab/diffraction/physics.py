"""The diffraction formulae in torch, once: from a scene to vectors, from vectors to an image, differentiable.

A pixel at position p (mm), seen along d = p/|p| from the crystal, takes the intensity

    I = Ω · Σ P · F(hkl)² · Π [sin(πNδ) / sin(πδ)]² / steps,     h, k, l = a, b, c · (d − i)/λ,   δ = h − round(h)

with the solid angle Ω = pixel² · distance / |p|³ and Kahn's polarization P, summed over sources, phi steps, mosaic
domains and points of a pixel. Classical electron radius and default fluence are chosen so that their product is 1.
Sources: nanoBragg (https://github.com/bl831/nanoBragg); Kahn et al., J. Appl. Cryst. 15, 330 (1982).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hypatia_lab.diffraction.scene import Scene

if TYPE_CHECKING:
    from torch import Tensor

    from hypatia_lab.workloads import Inputs

NAMES = ("crystals", "sources", "detector", "polarization", "structure")
"""The tensors behind an image (:func:`vectors`), in the order in which every form takes them."""

ROOM = 2**22
"""Pixels that the reference works on at a time: a dozen temporaries of float64 stay below half a gigabyte."""


@dataclass(frozen=True)
class Layout:
    """What of a scene is fixed when a kernel is built: whole numbers only.

    ``miller_low``: index of the first entry of the F² table along h, k, l.
    """

    slow: int
    fast: int
    oversample: int
    cells: tuple[int, int, int]
    miller_low: tuple[int, int, int]

    @classmethod
    def of(cls, scene: Scene) -> Layout:
        """The layout of ``scene``."""
        low, _ = scene.crystal.miller_box()
        border = (low[0] - 1, low[1] - 1, low[2] - 1) if scene.crystal.structure else (0, 0, 0)
        detector = scene.detector
        return cls(detector.slow, detector.fast, detector.oversample, scene.crystal.cells, border)

    def sizes(self, inputs: Inputs) -> tuple[int, ...]:
        """What the C programs are told before the numbers: extents of ``inputs``, then the layout's 9 whole numbers."""
        extents = (inputs["crystals"].shape[-3], len(inputs["sources"]), *inputs["structure"].shape)
        return (*extents, *self.miller_low, self.slow, self.fast, self.oversample, *self.cells)

    def tensor(self) -> Tensor:
        """The layout as nine whole numbers (int64, CPU), to travel with the inputs."""
        return torch.tensor([self.slow, self.fast, self.oversample, *self.cells, *self.miller_low])

    @classmethod
    def from_tensor(cls, numbers: Tensor) -> Layout:
        """The inverse of :meth:`tensor`."""
        slow, fast, oversample, *rest = numbers.tolist()
        return cls(slow, fast, oversample, tuple(rest[:3]), tuple(rest[3:]))


# ---------------------------------------------------------------- from a scene to vectors


def _turns(axis: Tensor, angle: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) about unit ``axis`` (..., 3) by ``angle`` (...) in radians (Rodrigues)."""
    x, y, z = axis.unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    sine, cosine = torch.sin(angle)[..., None, None], torch.cos(angle)[..., None, None]
    return torch.eye(3, dtype=axis.dtype) + sine * cross + (1 - cosine) * (cross @ cross)


def cell_vectors(cell: Tensor, misset: Tensor) -> Tensor:
    """Direct vectors a, b, c (rows, Å, float64) of a ``cell`` (Å, degrees) in MOSFLM's orientation, then misset.

    a* lies along x, b* in the xy plane; ``misset`` turns by degrees about x, then y, then z. Differentiable.
    """
    a, b, c = cell[:3].unbind()
    alpha, beta, gamma = torch.deg2rad(cell[3:]).unbind()
    ca, cb, cg = alpha.cos(), beta.cos(), gamma.cos()
    volume = a * b * c * (1 - ca * ca - cb * cb - cg * cg + 2 * ca * cb * cg).sqrt()
    star = torch.stack([b * c * alpha.sin(), a * c * beta.sin(), a * b * gamma.sin()]) / volume
    cos_beta_star = (cg * ca - cb) / (gamma.sin() * alpha.sin())
    cos_gamma_star = (ca * cb - cg) / (alpha.sin() * beta.sin())
    sin_beta_star, sin_gamma_star = (1 - cos_beta_star**2).sqrt(), (1 - cos_gamma_star**2).sqrt()
    zero = torch.zeros_like(a)
    reciprocal = torch.stack(
        [
            torch.stack([star[0], zero, zero]),
            star[1] * torch.stack([cos_gamma_star, sin_gamma_star, zero]),
            torch.stack([star[2] * cos_beta_star, -star[2] * sin_beta_star * ca, 1 / c]),
        ]
    )
    for axis, angle in zip(torch.eye(3, dtype=cell.dtype), torch.deg2rad(misset), strict=True):
        reciprocal = reciprocal @ _turns(axis, angle).T
    # The direct vectors are dual to the reciprocal ones: rows of the inverse's transpose (cross products over V*).
    return torch.linalg.inv(reciprocal).T


def mosaic_turns(spread: float, domains: int, seed: int) -> Tensor:
    """Rotations (domains, 3, 3) about random axes by spread · (1 − r²)^⅓ degrees; the first domain is not turned."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.randn(domains, 3, dtype=torch.float64, generator=generator)
    r = 2 * torch.rand(domains, dtype=torch.float64, generator=generator) - 1
    angles = math.radians(spread) * (1 - r * r) ** (1 / 3)
    angles[0] = 0.0
    return _turns(axes / axes.norm(dim=1, keepdim=True), angles)


def vectors(
    scene: Scene,
    *,
    cell: Tensor | None = None,
    misset: Tensor | None = None,
    distance: Tensor | None = None,
    wavelength: Tensor | None = None,
) -> Inputs:
    """The numbers behind an image, float64 on the CPU; any of the four tensors replaces the scene's own value.

    ``crystals`` (phi · mosaic, 3, 3) Å: rows a, b, c. ``sources`` (directions · wavelengths, 4): unit direction and
    wavelength in Å. ``detector`` (10): corner of the first pixel (3), step of one pixel along fast (3) and slow (3),
    distance; all mm. ``polarization`` (4): Kahn factor, unit axis. ``structure`` (h, k, l): F², one layer of
    default F² around the table. Gradients flow from the four tensors to the image.
    """
    crystal, beam, spindle, detector = scene.crystal, scene.beam, scene.spindle, scene.detector

    def given(value: Tensor | None, own: object) -> Tensor:
        return torch.tensor(own, dtype=torch.float64) if value is None else value.double()

    still = cell_vectors(given(cell, crystal.cell), given(misset, crystal.misset))
    axis = given(None, spindle.axis)
    angles = torch.deg2rad(given(None, spindle.angles))
    turned = still @ _turns((axis / axis.norm()).expand(len(spindle.angles), 3), angles).mT
    domains = mosaic_turns(crystal.mosaic_spread, crystal.mosaic_domains, crystal.mosaic_seed)
    crystals = (turned[:, None] @ domains.mT).flatten(0, 1)
    centre_wavelength = given(wavelength, beam.wavelength)
    waves = centre_wavelength * given(None, beam.wavelengths) / beam.wavelength
    directions = given(None, beam.directions)
    directions = directions / directions.norm(dim=1, keepdim=True)
    sources = torch.cat(
        [
            directions.repeat_interleave(len(beam.wavelengths), 0),
            waves.repeat(len(directions))[:, None],
        ],
        1,
    )
    far = given(distance, detector.distance)
    slow_centre, fast_centre = detector.centre
    corner = torch.stack([far, given(None, slow_centre), given(None, -fast_centre)])
    step = given(None, [0.0, 0.0, detector.pixel, 0.0, -detector.pixel, 0.0])
    pole = given(None, beam.polarization_axis)
    return {
        "crystals": crystals,
        "sources": sources,
        "detector": torch.cat([corner, step, far[None]]),
        "polarization": torch.cat([given(None, [beam.polarization]), pole / pole.norm()]),
        "structure": _table(scene),
    }


def _table(scene: Scene) -> Tensor:
    crystal = scene.crystal
    if not crystal.structure:
        return torch.full((1, 1, 1), crystal.default_f**2, dtype=torch.float64)
    low, high = crystal.miller_box()
    table = torch.full([b - a + 3 for a, b in zip(low, high, strict=True)], crystal.default_f**2, dtype=torch.float64)
    where = torch.tensor(list(crystal.structure)) - torch.tensor(low) + 1
    table[tuple(where.T)] = torch.tensor(list(crystal.structure.values()), dtype=torch.float64) ** 2
    return table


# ---------------------------------------------------------------- from vectors to an image


# [interference]
def interference(delta: Tensor, count: int) -> Tensor:
    """sin(π·count·δ) / sin(π·δ), ``count`` at δ = 0, in the dtype of ``delta``."""
    at_zero = delta == 0
    safe = torch.where(at_zero, 0.25, delta)
    ratio = torch.sin(torch.pi * count * safe) / torch.sin(torch.pi * safe)  # (1)
    return torch.where(at_zero, float(count), ratio)
    # [/interference]


def structure_at(structure: Tensor, low: tuple[int, int, int], h: Tensor, k: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """F² of the reflections (h, k, l), whole numbers in any dtype; default F² outside the table."""
    if structure.numel() == 1:
        return structure.reshape(())
    where = [
        (index - first).clamp(0, size - 1).long()
        for index, first, size in zip((h, k, l), low, structure.shape, strict=True)
    ]
    return structure[where[0], where[1], where[2]]


def nearest(h: Tensor) -> Tensor:
    """The nearest whole number, ties downwards: ceil(h − ½). Its derivative is 0."""
    return torch.ceil(h.detach() - 0.5)


Point = tuple["Tensor", "Tensor", "Tensor"]
"""The components x, y, z of a field of vectors, kept apart: stacked ones would be written out and read back."""


def along(point: Point, vector: Tensor) -> Tensor:
    """The scalar product of every vector of ``point`` with ``vector`` (3)."""
    return point[0] * vector[0] + point[1] * vector[1] + point[2] * vector[2]


def polarization_factor(direction: Point, incident: Tensor, polarization: Tensor) -> Tensor:
    """Kahn's P = ½(1 + cos²2θ − K·cos2ψ·sin²2θ) for unit vectors ``direction`` and ``incident`` (3)."""
    cosine = along(direction, incident)
    across = torch.linalg.cross(polarization[1:], incident)
    across = across / across.norm().clamp_min(1e-12)
    # cos2ψ·sin²2θ is the difference of the squared components across the beam: no angle is needed.
    up, side = along(direction, torch.linalg.cross(incident, across)), along(direction, across)
    return 0.5 * (1 + cosine * cosine - polarization[0] * (up * up - side * side))


def subpixels(oversample: int) -> Iterator[tuple[float, float]]:
    """Offsets (slow, fast) of a pixel's points from its corner, in pixels."""
    for slow in range(oversample):
        for fast in range(oversample):
            yield (slow + 0.5) / oversample, (fast + 0.5) / oversample


# [plain]
def plain(inputs: Inputs, layout: Layout, first: int, last: int, dtype: torch.dtype, *, reduce: bool = True) -> Tensor:
    """Rows ``first`` to ``last`` of the image, shape (last − first, fast), by the formulae as they stand.

    All arithmetic from the pixel's position on is done in ``dtype``. ``reduce`` removes the integer part of
    h, k, l before multiplying by π; without it sin(πNh)/sin(πh) loses its digits in float32.
    """
    names = ("crystals", "sources", "detector", "polarization", "structure")
    crystals, sources, detector, pole, structure = (inputs[name].to(dtype) for name in names)
    device = detector.device
    slow = torch.arange(first, last, device=device, dtype=dtype)[:, None]
    fast = torch.arange(layout.fast, device=device, dtype=dtype)[None, :]
    corner, step_fast, step_slow, distance = detector[0:3], detector[3:6], detector[6:9], detector[9]
    area = step_fast.norm() * step_slow.norm()
    total = torch.zeros((), device=device, dtype=dtype)
    for ds, df in subpixels(layout.oversample):
        x, y, z = (
            start + (fast + df) * across + (slow + ds) * below
            for start, across, below in zip(corner, step_fast, step_slow, strict=True)
        )
        radius = torch.sqrt(x * x + y * y + z * z)  # (1)
        x, y, z = x / radius, y / radius, z / radius
        omega = area * distance / (radius * radius * radius)  # (2)
        point = torch.zeros((), device=device, dtype=dtype)
        for source in sources:
            wavelength = source[3]
            scattering = ((x - source[0]) / wavelength, (y - source[1]) / wavelength, (z - source[2]) / wavelength)
            polarization = polarization_factor((x, y, z), source[:3], pole)
            for crystal in crystals:
                lattice, whole = polarization, []
                for edge, count in zip(crystal, layout.cells, strict=True):
                    index = along(scattering, edge)  # (3)
                    whole.append(nearest(index))
                    lattice = lattice * interference(index - whole[-1] if reduce else index, count) ** 2  # (4)
                point = point + structure_at(structure, layout.miller_low, whole[0], whole[1], whole[2]) * lattice
        total = total + omega * point  # (5)
    return total / (len(sources) * len(crystals) * layout.oversample**2)
    # [/plain]


def reference(inputs: Inputs, layout: Layout) -> Tensor:
    """float64 image, shape (slow, fast), on the inputs' device; computed in strips of rows."""
    rows = max(1, ROOM // layout.fast)
    strips = [
        plain(inputs, layout, first, min(first + rows, layout.slow), torch.float64)
        for first in range(0, layout.slow, rows)
    ]
    return torch.cat(strips)
