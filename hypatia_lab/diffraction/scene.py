"""What is simulated: a crystal, a beam, a spindle and a detector, each with units and each refused by name if absurd.

Plain data without torch, so that a scene can be described, printed and checked anywhere.
Source of the physics: the program nanoBragg (https://github.com/bl831/nanoBragg) and its conventions (MOSFLM).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MILLER_LIMIT = 10_000
"""Largest |h|, |k| or |l| of a structure-factor table."""
TABLE_LIMIT = 2**26
"""Largest number of entries of the box around a structure-factor table."""


class SceneError(ValueError):
    """A scene that cannot exist: the message names the field, its value and what would do."""


def _number(
    name: str, value: object, low: float, high: float, unit: str, *, above: bool = False, below: bool = False
) -> None:
    """Refuse ``value`` unless it is a finite number in [low, high] (``above`` low, ``below`` high: and not the end)."""
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or not low <= value <= high or (above and value == low) or (below and value == high):  # pyright: ignore[reportOperatorIssue]
        bounds = f"{'greater than' if above else 'at least'} {low:g}" + (
            f" and {'less than' if below else 'at most'} {high:g}" if high < math.inf else ""
        )
        raise SceneError(f"{name} {value!r} must be a finite number {bounds}{' ' if unit else ''}{unit}")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise SceneError(f"{name} {value!r} must be a whole number from {low} to {high}")


def _numbers(name: str, value: object, count: int) -> None:
    if not isinstance(value, (tuple, list)) or len(value) != count:
        raise SceneError(f"{name} {value!r} must be {count} numbers")


def _direction(name: str, value: Sequence[float]) -> None:
    """Refuse ``value`` unless it is three finite numbers, not all zero."""
    _numbers(name, value, 3)
    for part in value:
        _number(name, part, -1e6, 1e6, "")
    if not math.hypot(*value) > 1e-9:
        raise SceneError(f"{name} {value!r} has no length")


@dataclass(frozen=True)
class Crystal:
    """A parallelepiped crystal of whole unit cells.

    ``cell``: a, b, c in Å and α, β, γ in degrees. ``misset``: rotations in degrees about x, then y, then z.
    ``cells``: unit cells along a, b and c. ``default_f``: structure factor (electrons) of every reflection that
    ``structure`` does not name; ``structure`` maps (h, k, l) to F. ``mosaic_spread``: degrees;
    ``mosaic_domains``: how many misoriented domains are averaged; ``mosaic_seed`` draws their rotations.
    Raises :class:`SceneError`.
    """

    cell: tuple[float, float, float, float, float, float] = (100.0, 100.0, 100.0, 90.0, 90.0, 90.0)
    misset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cells: tuple[int, int, int] = (5, 5, 5)
    default_f: float = 100.0
    structure: Mapping[tuple[int, int, int], float] = field(default_factory=dict)
    mosaic_spread: float = 0.0
    mosaic_domains: int = 1
    mosaic_seed: int = 0

    def __post_init__(self) -> None:
        _numbers("cell", self.cell, 6)
        for name, value in zip(("cell a", "cell b", "cell c"), self.cell[:3], strict=True):
            _number(name, value, 0.0, 1e5, "Å", above=True)
        for name, value in zip(("cell α", "cell β", "cell γ"), self.cell[3:], strict=True):
            _number(name, value, 0.0, 180.0, "degrees", above=True, below=True)
        if self.volume_factor() <= 1e-6:
            angles = ", ".join(f"{angle:.10g}" for angle in self.cell[3:])
            raise SceneError(
                f"cell angles {angles} close no cell: each must be smaller than the sum of the other two, "
                "and all three together below 360 degrees"
            )
        _numbers("misset", self.misset, 3)
        for axis, value in zip("xyz", self.misset, strict=True):
            _number(f"misset about {axis}", value, -3600.0, 3600.0, "degrees")
        _numbers("cells", self.cells, 3)
        for axis, value in zip("abc", self.cells, strict=True):
            _whole(f"cells along {axis}", value, 1, 10_000)
        _number("default_f", self.default_f, 0.0, 1e6, "electrons")
        _number("mosaic_spread", self.mosaic_spread, 0.0, 90.0, "degrees")
        _whole("mosaic_domains", self.mosaic_domains, 1, 10_000)
        _whole("mosaic_seed", self.mosaic_seed, 0, 2**31)
        self._check_structure()

    def volume_factor(self) -> float:
        """(V / abc)² of the cell; not above 0 when the angles close no cell."""
        ca, cb, cg = (math.cos(math.radians(angle)) for angle in self.cell[3:])
        return 1 - ca * ca - cb * cb - cg * cg + 2 * ca * cb * cg

    def _check_structure(self) -> None:
        if not isinstance(self.structure, Mapping):
            raise SceneError(
                f"structure must map (h, k, l) to a structure factor, found {type(self.structure).__name__}"
            )
        for index, value in self.structure.items():
            if not isinstance(index, tuple) or len(index) != 3 or any(type(n) is not int for n in index):
                raise SceneError(f"structure names {index!r}; a reflection is three whole numbers (h, k, l)")
            if max(map(abs, index)) > MILLER_LIMIT:
                raise SceneError(f"structure names {index!r}; indices go up to {MILLER_LIMIT}")
            _number(f"structure factor of {index}", value, 0.0, 1e6, "electrons")
        if self.structure:
            low, high = self.miller_box()
            entries = math.prod(b - a + 1 for a, b in zip(low, high, strict=True))
            if entries > TABLE_LIMIT:
                raise SceneError(f"structure spans {entries:,} reflections; the table holds at most {TABLE_LIMIT:,}")

    def miller_box(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Lowest and highest h, k, l of the structure table; ((0, 0, 0), (0, 0, 0)) without one."""
        indices = list(self.structure) or [(0, 0, 0)]
        low, high = (tuple(pick(axis) for axis in zip(*indices, strict=True)) for pick in (min, max))
        return low, high  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Beam:
    """The X-ray beam. ``wavelength`` in Å; ``dispersion`` is the full width in per cent of it, sampled in
    ``dispersion_steps`` equal steps; ``directions`` are the sources' directions of travel (made unit length);
    ``polarization`` is the Kahn factor K (0: unpolarized) about ``polarization_axis``. Raises :class:`SceneError`.
    """

    wavelength: float = 1.0
    dispersion: float = 0.0
    dispersion_steps: int = 1
    directions: tuple[tuple[float, float, float], ...] = ((1.0, 0.0, 0.0),)
    polarization: float = 0.0
    polarization_axis: tuple[float, float, float] = (0.0, 0.0, 1.0)

    def __post_init__(self) -> None:
        _number("wavelength", self.wavelength, 0.0, 1e4, "Å", above=True)
        _number("dispersion", self.dispersion, 0.0, 100.0, "per cent")
        _whole("dispersion_steps", self.dispersion_steps, 1, 10_000)
        if not isinstance(self.directions, (tuple, list)) or not self.directions:
            raise SceneError("directions must name at least one source")
        for number, direction in enumerate(self.directions):
            _direction(f"direction of source {number}", direction)
        _direction("polarization_axis", self.polarization_axis)
        _number("polarization", self.polarization, -1.0, 1.0, "")
        if self.polarization:
            for direction in self.directions:
                x, y, z = direction
                p, q, r = self.polarization_axis
                across = math.hypot(y * r - z * q, z * p - x * r, x * q - y * p)
                if across < 1e-6 * math.hypot(x, y, z) * math.hypot(p, q, r):
                    raise SceneError(f"polarization_axis {self.polarization_axis!r} is along the beam {direction!r}")

    @property
    def wavelengths(self) -> tuple[float, ...]:
        """The sampled wavelengths in Å, from λ(1 − p/200) to λ(1 + p/200)."""
        if self.dispersion_steps == 1:
            return (self.wavelength,)
        half, last = self.dispersion / 200, self.dispersion_steps - 1
        return tuple(self.wavelength * (1 + half * (2 * n / last - 1)) for n in range(self.dispersion_steps))


@dataclass(frozen=True)
class Spindle:
    """Rotation during the exposure about ``axis``: from ``phi`` over ``oscillation`` degrees in ``steps`` steps
    (step t stands at phi + oscillation · t / steps). Raises :class:`SceneError`.
    """

    phi: float = 0.0
    oscillation: float = 0.0
    steps: int = 1
    axis: tuple[float, float, float] = (0.0, 0.0, 1.0)

    def __post_init__(self) -> None:
        _number("phi", self.phi, -3600.0, 3600.0, "degrees")
        _number("oscillation", self.oscillation, -3600.0, 3600.0, "degrees")
        _whole("phi steps", self.steps, 1, 10_000)
        _direction("spindle axis", self.axis)

    @property
    def angles(self) -> tuple[float, ...]:
        """The sampled rotations in degrees."""
        return tuple(self.phi + self.oscillation * step / self.steps for step in range(self.steps))


@dataclass(frozen=True)
class Detector:
    """A flat detector across the beam. ``distance`` and ``pixel`` in mm; ``slow`` × ``fast`` pixels; every pixel is
    the mean of ``oversample``² points. The beam x̂ meets it at the corner of a pixel one beyond the middle, as
    MOSFLM has it; ``beam_centre`` (slow, fast) in mm from the first pixel's corner replaces that.
    Raises :class:`SceneError`.
    """

    slow: int = 1024
    fast: int = 1024
    distance: float = 100.0
    pixel: float = 0.1
    oversample: int = 1
    beam_centre: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _whole("pixels along slow", self.slow, 1, 65_536)
        _whole("pixels along fast", self.fast, 1, 65_536)
        _number("distance", self.distance, 0.0, 1e7, "mm", above=True)
        _number("pixel", self.pixel, 0.0, 1e4, "mm", above=True)
        _whole("oversample", self.oversample, 1, 64)
        if self.beam_centre is not None:
            _numbers("beam_centre", self.beam_centre, 2)
            for name, value in zip(("slow", "fast"), self.beam_centre, strict=True):
                _number(f"beam_centre along {name}", value, -1e7, 1e7, "mm")

    @property
    def centre(self) -> tuple[float, float]:
        """Where the beam meets the detector: (slow, fast) in mm from the first pixel's corner."""
        return self.beam_centre or ((self.slow / 2 + 1) * self.pixel, (self.fast / 2 + 1) * self.pixel)


@dataclass(frozen=True)
class Scene:
    """Everything that one diffraction image depends on. Raises :class:`SceneError` naming a part of the wrong type."""

    crystal: Crystal = field(default_factory=Crystal)
    beam: Beam = field(default_factory=Beam)
    spindle: Spindle = field(default_factory=Spindle)
    detector: Detector = field(default_factory=Detector)

    def __post_init__(self) -> None:
        for name, kind in (("crystal", Crystal), ("beam", Beam), ("spindle", Spindle), ("detector", Detector)):
            if not isinstance(getattr(self, name), kind):
                raise SceneError(f"{name} must be a {kind.__name__}, found {type(getattr(self, name)).__name__}")

    @property
    def steps(self) -> int:
        """Terms averaged in a pixel: sources × phi steps × mosaic domains × oversample²."""
        sources = len(self.beam.directions) * self.beam.dispersion_steps
        return sources * self.spindle.steps * self.crystal.mosaic_domains * self.detector.oversample**2

    @property
    def forward_peak(self) -> float:
        """Largest intensity that a pixel in the beam could have: F² · (NaNbNc)² · Ω with Ω = pixel²/distance²."""
        strongest = max([self.crystal.default_f, *self.crystal.structure.values()])
        return (strongest * math.prod(self.crystal.cells) * self.detector.pixel / self.detector.distance) ** 2


def seed_scene(pixels: int) -> Scene:
    """S003's benchmark: the cubic 100 Å cell, 5³ unit cells, 6.2 Å, ``pixels``² of 0.1 mm at 100 mm."""
    return Scene(beam=Beam(wavelength=6.2), detector=Detector(pixels, pixels))
