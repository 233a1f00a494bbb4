"""float32 without lost digits: every tile of pixels has an anchor in float64, and pixels add a small difference.

h reaches tens or hundreds, and only its fraction counts, so float32 loses the digits that matter. Here the integer
part is removed at the tile's centre, in float64, and the rest is the exact difference between pixel and centre:

    1/R − 1/R₀ = −(R² − R₀²) / (R·R₀·(R + R₀)),     R² − R₀² = Δ·(2p₀ + Δ)

No series is cut off; the rounding error scales with how far h moves within a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hypatia_lab.diffraction.physics import Layout, interference, nearest, polarization_factor, structure_at, subpixels

if TYPE_CHECKING:
    from torch import Tensor

    from hypatia_lab.workloads import Inputs

TILE = (16, 64)
"""Pixels (slow, fast) that share one anchor."""


def tiles(layout: Layout) -> tuple[int, int]:
    """How many tiles cover the detector along slow and fast."""
    return -(-layout.slow // TILE[0]), -(-layout.fast // TILE[1])


def anchors(inputs: Inputs, layout: Layout, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """What the pixels of a tile share: (per tile, per tile and step, per tile and step in whole numbers).

    ``places`` (9, Ts, Tf): R₀², R₀, 2p₀·F, 2p₀·S, p₀ (3), F·F, S·S. ``steps`` (sources · crystals, 3 axes, 4, Ts, Tf):
    δ₀, a·p₀/λ, a·F/λ, a·S/λ. ``whole`` (sources · crystals, 3, Ts, Tf) float64: the integers removed.
    Worked out in float64, returned in ``dtype``.
    """
    crystals, sources, detector = inputs["crystals"], inputs["sources"], inputs["detector"]
    corner, along, down = detector[0:3], detector[3:6], detector[6:9]
    rows, columns = tiles(layout)
    slow = TILE[0] * (torch.arange(rows, device=detector.device, dtype=torch.float64)[:, None] + 0.5)
    fast = TILE[1] * (torch.arange(columns, device=detector.device, dtype=torch.float64)[None, :] + 0.5)
    place = corner[:, None, None] + fast * along[:, None, None] + slow * down[:, None, None]
    square = (place * place).sum(0)
    radius = square.sqrt()
    lean = 2 * torch.einsum("d,dsf->sf", along, place), 2 * torch.einsum("d,dsf->sf", down, place)
    flat = torch.ones_like(square)
    places = torch.stack([square, radius, *lean, *place.unbind(), flat * (along @ along), flat * (down @ down)])
    incident, wavelength = sources[:, :3], sources[:, 3]
    waves = crystals[None] / wavelength[:, None, None, None]
    projected = torch.einsum("jmad,dsf->jmasf", waves, place)
    index = projected / radius - torch.einsum("jmad,jd->jma", waves, incident)[..., None, None]
    whole = nearest(index)
    per_step = [
        index - whole,
        projected,
        *(torch.einsum("jmad,d->jma", waves, step)[..., None, None].expand_as(index) for step in (along, down)),
    ]
    return (
        places.to(dtype),
        torch.stack(per_step, 3).flatten(0, 1).to(dtype),
        whole.flatten(0, 1),
    )


def pixels(places: Tensor, steps: Tensor, whole: Tensor, inputs: Inputs, layout: Layout) -> Tensor:
    """The image, shape (slow, fast), from the anchors, in their dtype."""
    dtype, device = places.dtype, places.device
    sources, crystals = inputs["sources"], inputs["crystals"]
    square, radius, lean_fast, lean_slow, px, py, pz, fast2, slow2 = places[:, :, None, :, None].unbind()
    far = (inputs["detector"][9] * (inputs["detector"][3:6].norm() * inputs["detector"][6:9].norm())).to(dtype)
    along, down = inputs["detector"][3:6].to(dtype), inputs["detector"][6:9].to(dtype)
    pole, structure = inputs["polarization"].to(dtype), inputs["structure"].to(dtype)
    count = len(sources) * len(crystals)
    total = torch.zeros((), device=device, dtype=dtype)
    for point_slow, point_fast in subpixels(layout.oversample):
        ds = (torch.arange(TILE[0], device=device, dtype=dtype) + (point_slow - TILE[0] / 2))[:, None, None]
        df = torch.arange(TILE[1], device=device, dtype=dtype) + (point_fast - TILE[1] / 2)
        moved = df * (lean_fast + df * fast2) + ds * (lean_slow + ds * slow2)
        inverse = torch.rsqrt(square + moved)
        change = -moved * inverse / (radius * ((square + moved) * inverse + radius))
        x, y, z = ((p + df * f + ds * s) * inverse for p, f, s in zip((px, py, pz), along, down, strict=True))
        intensity = torch.zeros((), device=device, dtype=dtype)
        for number in range(count):
            source = sources[number // len(crystals)]
            if number % len(crystals) == 0:
                polarization = polarization_factor((x, y, z), source[:3].to(dtype), pole)
            lattice, index = torch.ones((), device=device, dtype=dtype), []
            for axis in range(3):
                start, at, by_fast, by_slow = steps[number, axis][:, :, None, :, None].unbind()
                moved_to = start + at * change + (by_fast * df + by_slow * ds) * inverse
                nearby = nearest(moved_to)
                index.append(whole[number, axis][:, None, :, None] + nearby)
                lattice = lattice * interference(moved_to - nearby, layout.cells[axis])
            factor = structure_at(structure, layout.miller_low, index[0], index[1], index[2])
            intensity = intensity + polarization * factor * lattice**2
        total = total + far * inverse**3 * intensity
    image = (total / (count * layout.oversample**2)).flatten(2, 3).flatten(0, 1)
    return image[: layout.slow, : layout.fast].contiguous()
