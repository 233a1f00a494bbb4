"""The diffraction problems that are checked and timed: one operation a case, over detector sizes.

``diffraction`` is S003's benchmark; the other cases hold what it leaves out: a triclinic cell turned out of its axes,
several wavelengths and spindle angles, a table of structure factors, many crystals at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch

from hypatia_lab.diffraction import physics
from hypatia_lab.diffraction.physics import Layout
from hypatia_lab.diffraction.scene import Beam, Crystal, Detector, Scene, Spindle, seed_scene
from hypatia_lab.workloads import UNIT, Operation, Workload, register

if TYPE_CHECKING:
    from hypatia_lab.workloads import Inputs

TRICLINIC = Crystal(cell=(70.0, 80.0, 90.0, 75.0, 85.0, 95.0), misset=(10.0, 20.0, 30.0))
"""The crystal of the second and third golden image of the reference C program."""

STEEP = 4
"""Roundings of h, k and l, each of half a unit at worst, times the steepest slope of [sin(πNδ) / N sin(πδ)]², 1.7 N."""

DTYPES = ("float64", "float32")
"""What the simulator computes in."""


def _table() -> dict[tuple[int, int, int], float]:
    """A made-up but reproducible table: F falls off with the index and varies from reflection to reflection."""
    span = range(-12, 13)
    return {
        (h, k, m): 400 * math.exp(-0.01 * (h * h + k * k + m * m)) * (0.5 + ((7 * h + 13 * k + 29 * m) % 17) / 17)
        for h in span
        for k in span
        for m in span
    }


CASES: dict[str, tuple[str, Callable[[], Scene]]] = {
    "diffraction": ("S003's benchmark: a cubic cell of 100 Å, 5³ unit cells, 6.2 Å", lambda: seed_scene(1)),
    "diffraction_triclinic": ("a triclinic cell out of its axes at 1 Å", lambda: Scene(TRICLINIC, Beam(1.0))),
    "diffraction_sources": (
        "the same with three wavelengths and three spindle angles",
        lambda: Scene(TRICLINIC, Beam(1.0, dispersion=2.0, dispersion_steps=3), Spindle(0.5, 1.0, 3)),
    ),
    "diffraction_table": (
        "the same at 3 Å, polarized, with structure factors from a table",
        lambda: Scene(dataclasses.replace(TRICLINIC, structure=_table(), default_f=10.0), Beam(3.0, polarization=0.9)),
    ),
    "diffraction_batch": ("many missets of S003's crystal, one image each", lambda: seed_scene(1)),
}
"""Operation → (what it is, its scene on a detector of any size)."""

BATCH = "diffraction_batch"


@cache
def scene_of(workload: Workload) -> Scene:
    """The scene behind ``workload`` as published, before any draw moves it."""
    slow, fast = workload.shape[-2:]
    return dataclasses.replace(CASES[workload.operation][1](), detector=Detector(slow, fast))


def layout_of(workload: Workload) -> Layout:
    """What of the scene is fixed when a kernel is built."""
    return Layout.of(scene_of(workload))


def _peak_error(workload: Workload) -> float:
    """Largest acceptable max |out − ref| / max |ref|: what rounding h, k and l makes of an image.

    h = a · (d − i)/λ is known to about |a|/λ times the unit roundoff, and by N unit cells as many times steeper: a
    sharp spot of a large crystal moves more. Source: Higham, Accuracy and Stability of Numerical Algorithms, ch. 1.
    """
    if workload.dtype != "float32":
        return 1e-9 if workload.dtype in DTYPES else 1e-2
    scene = scene_of(workload)
    reach = sum(n * length for n, length in zip(scene.crystal.cells, scene.crystal.cell[:3], strict=True))
    return STEEP * UNIT["float32"] * reach / scene.beam.wavelength


def _moved(scene: Scene, generator: torch.Generator, device: str) -> dict[str, torch.Tensor]:
    """Cell, misset, distance and wavelength of ``scene``, each moved a little at random (float64, CPU)."""
    draw = (2 * torch.rand(11, generator=generator, device=device, dtype=torch.float64) - 1).cpu()
    cell = torch.tensor(scene.crystal.cell, dtype=torch.float64)
    return {
        "cell": cell * torch.cat([1 + 0.02 * draw[:3], 1 + 0.01 * draw[3:6]]),
        "misset": torch.tensor(scene.crystal.misset, dtype=torch.float64) + 5 * draw[6:9],
        "distance": scene.detector.distance * (1 + 0.05 * draw[9]),
        "wavelength": scene.beam.wavelength * (1 + 0.05 * draw[10]),
    }


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    scene = scene_of(workload)
    # Draw 0 is the case as published, so that its image can be compared; every other draw is new.
    published = generator.initial_seed() % 1_000_003 == 0
    inputs = physics.vectors(scene, **({} if published else _moved(scene, generator, device)))
    if workload.operation == BATCH:
        missets = 360 * torch.rand(workload.shape[0], 3, generator=generator, device=device, dtype=torch.float64).cpu()
        cell = torch.tensor(scene.crystal.cell, dtype=torch.float64)
        inputs["crystals"] = torch.stack([physics.cell_vectors(cell, misset)[None] for misset in missets])
    return {name: tensor.to(device) for name, tensor in inputs.items()} | {"layout": layout_of(workload).tensor()}


def _reference(inputs: Inputs) -> torch.Tensor:
    layout = Layout.from_tensor(inputs["layout"])
    if inputs["crystals"].dim() == 3:
        return physics.reference(inputs, layout)
    return torch.stack([physics.reference(inputs | {"crystals": crystals}, layout) for crystals in inputs["crystals"]])


def _faults(inputs: Inputs) -> dict[str, torch.Tensor]:
    detector = inputs["detector"].clone()
    detector[:3] -= 0.5 * (detector[3:6] + detector[6:9])
    mirrored = inputs["crystals"].mT.contiguous()
    polarized = inputs["polarization"].clone()
    polarized[0] = 1.0 if float(polarized[0]) == 0 else 0.0
    return {
        "pixel corners taken for centres": _reference(inputs | {"detector": detector}),
        "crystal vectors transposed": _reference(inputs | {"crystals": mirrored}),
        "polarization factor ignored": _reference(inputs | {"polarization": polarized}),
    }


for _name, (_summary, _) in CASES.items():
    register(
        Operation(
            name=_name,
            dims=("crystals", "slow", "fast") if _name == BATCH else ("slow", "fast"),
            summary=_summary,
            make_inputs=_inputs,
            reference=_reference,
            # What a pixel costs depends on the form; only the bytes of the image are compulsory.
            flops=lambda shape: 0,
            traffic=lambda shape, size: size * math.prod(shape),
            faults=_faults,
            peak_error=_peak_error,
        )
    )
