"""The geometry of a diffraction image: beam, crystal, reciprocal lattice, detector."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypatia_lab.drawings.canvas import BLUE, GREEN, LINE, RED, Canvas, Point


@dataclass(frozen=True)
class Ewald:
    """A square reciprocal lattice turned until its point ``index`` lies on Ewald's circle, 2θ from the beam.

    ``centre`` is where the crystal stands, ``radius`` stands for 1/λ; the beam travels to the right, y points down.
    """

    centre: Point = (140.0, 200.0)
    radius: float = 120.0
    two_theta: float = math.radians(30)
    index: tuple[int, int] = (2, 1)

    @property
    def origin(self) -> Point:
        """Where the lattice's origin lies: at the end of the incident ray's arrow."""
        return self.centre[0] + self.radius, self.centre[1]

    @property
    def direction(self) -> Point:
        """The unit vector d along which the reflection leaves."""
        return math.cos(self.two_theta), -math.sin(self.two_theta)

    def node(self, h: int, k: int) -> Point:
        """The reciprocal lattice's point (h, k)."""
        (x, y), (p, q) = self.direction, self.index
        step = complex(self.radius * (x - 1), self.radius * y) / complex(p, q)
        there = step * complex(h, k)
        return self.origin[0] + there.real, self.origin[1] + there.imag


def diffraction() -> Canvas:
    """Beam, crystal, Ewald's circle with a lattice point on it, and the pixel that it lights."""
    ewald = Ewald()
    draw = Canvas(
        "diffraction",
        "A pixel is bright where the scattering vector meets a point of the crystal's reciprocal lattice",
        "The beam i meets the crystal. What leaves along d reaches one pixel. The scattering vector q = (d − i)/λ "
        "ends on Ewald's circle of radius 1/λ around the crystal. Where it ends on a point of the reciprocal "
        "lattice, h = a·q, k = b·q and l = c·q are whole, and the pixel is bright. Circle and lattice are in 1/Å, "
        "the detector in mm.",
        392,
    )
    (x, y), (ox, oy), (px, py) = ewald.centre, ewald.origin, ewald.node(*ewald.index)
    wall = 396.0
    hit = y + (wall - x) * ewald.direction[1] / ewald.direction[0]
    draw.circle(x, y, ewald.radius, colour=LINE)
    for h in range(-6, 7):
        for k in range(-6, 7):
            place = ewald.node(h, k)
            named = place[0] > ox + 8 and oy - 56 < place[1] < oy - 22
            if math.dist(place, ewald.origin) < 92 and not named:
                draw.circle(*place, 2.5, colour=LINE, look="strong")
    draw.circle(px, py, 6, colour=RED, look="strong")
    draw.cells(x - 10, y - 10, 3, 3, (20 / 3, 20 / 3), lambda row, column: (GREEN, "strong"))
    draw.arrow((6, y), (x - 12, y), colour=BLUE, stroke=2.5)
    draw.arrow((x + 12, y), (ox, oy), colour=BLUE, stroke=2.5)
    draw.line([(ox, oy), (wall, oy)], colour=BLUE, dashed=True)
    dx, dy = ewald.direction
    draw.arrow((x + 12 * dx, y + 12 * dy), (px, py), colour=BLUE, stroke=2.5)
    draw.line([(px + 8 * dx, py + 8 * dy), (wall - 3, hit)], colour=BLUE, dashed=True)
    draw.arrow((ox, oy), (px, py), colour=RED, stroke=3)
    draw.rectangle(wall, 20, 10, 312, colour=LINE, look="soft", corner=0)
    draw.rectangle(wall - 1, hit - 7, 12, 14, colour=RED, look="strong", stroke=2, corner=0)
    draw.label(28, y - 10, "beam i")
    draw.label(x, y + 30, "crystal", anchor="middle")
    draw.label(x + 36 * dx - 2, y + 36 * dy - 8, "d", anchor="end")
    draw.label(x - 52, y + 64, "1/λ")
    draw.line([(x, y), (x - ewald.radius * 0.8, y + ewald.radius * 0.6)], colour=LINE, dashed=True)
    draw.label(wall - 12, hit - 8, "pixel", anchor="end")
    draw.label(432, 350, "detector", anchor="end")
    draw.label(ox + 14, oy - 34, "q = (d − i)/λ", bold=True)
    draw.label(8, 368, "h = a·q, k = b·q, l = c·q all whole: bright.\nDots: the crystal's reciprocal lattice.")
    return draw
