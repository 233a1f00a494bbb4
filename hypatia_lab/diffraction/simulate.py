"""The public way to an image: any scene, on any device, in strips of rows, by the fastest form ready to run.

A strip is the same scene with the first pixel's corner moved down the detector, so every variant can compute it, and
memory holds one strip's intermediate values however large the detector is.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hypatia_lab.diffraction import physics
from hypatia_lab.diffraction.physics import Layout
from hypatia_lab.diffraction.scene import Scene
from hypatia_lab.machine import choose_device
from hypatia_lab.messages import unknown
from hypatia_lab.variants import variants
from hypatia_lab.workloads import DTYPES, Workload

if TYPE_CHECKING:
    from torch import Tensor

    from hypatia_lab.variants import Variant

OPERATION = "diffraction"
"""The operation whose variants are chosen from: each of them computes any scene."""

READY = {"cuda": ("cuda", "triton", "eager"), "cpu": ("c_openmp", "eager")}
"""Device → variants that start without torch.compile, the fastest first."""

ROOM = {"cuda": 2**22, "cpu": 2**18}
"""Device → pixels of a strip: the eager form holds 300 bytes a pixel in float64; a CPU takes five times as long with
2²⁰ pixels, whose temporaries leave its caches."""

WORK = {"cuda": 2**34, "cpu": 2**25}
"""Device → pixels times steps of a strip: a second of the eager form on an H200 or on two cores, to see it go on."""

LEAST = 64
"""Rows of a strip however long they take: the C program gives whole rows to the cores."""


class SimulationError(ValueError):
    """An image that cannot be computed as asked: the message says what is missing and what would do."""


def simulate(
    scene: Scene, *, device: str = "auto", dtype: str = "float32", variant: str = "", progress: bool = True
) -> Tensor:
    """The image of ``scene``: (slow, fast), ``dtype``, on ``device`` ("auto", "cpu" or "cuda").

    ``variant`` names who computes it, such as ``compile_anchored``; by default :func:`fastest`. With ``progress``, a
    run of over a second shows a bar on standard error. Gradients do not flow: they do through
    :func:`hypatia_lab.diffraction.physics.vectors` and :func:`hypatia_lab.diffraction.physics.plain`.

    float32 errors, as shares of the peak, with cells of up to 300 Å at 1 Å: the C programs compute in double and are
    right to rounding; anchored forms to 5e-5 while a pixel is at most 0.3% of the distance, to 2e-4 at 3%; ``eager``
    to 3e-4.

    Raises :class:`SimulationError` for what is no scene, for a variant that is unknown or cannot run here and for an
    image that the device's memory does not hold,
    ``WorkloadError`` for an unknown dtype, ``MachineError`` for an unknown or missing device, ``BuildError`` for a
    kernel that does not compile.
    """
    from tqdm import tqdm

    if not isinstance(scene, Scene):
        raise SimulationError(f"simulate takes a Scene, found {type(scene).__name__}")
    place = choose_device(device)
    slow, fast = scene.detector.slow, scene.detector.fast
    rows = _strip(scene, place)
    workload = Workload(OPERATION, (rows, fast), dtype)
    chosen = _available(variant or fastest(place, dtype), workload, place)
    inputs = {name: tensor.to(place) for name, tensor in physics.vectors(scene).items()}
    corner, down = inputs["detector"][0:3].clone(), inputs["detector"][6:9].clone()
    run = chosen.factory(workload, inputs | {"layout": dataclasses.replace(Layout.of(scene), slow=rows).tensor()})
    try:
        image = torch.empty(slow, fast, dtype=getattr(torch, dtype), device=place)
    except RuntimeError as cause:  # there is no memory: each device says so in words of its own
        size = slow * fast * DTYPES[dtype] / 2**30
        said = f"an image of {slow} x {fast} pixels takes {size:.1f} GiB in {dtype}, which {place} does not have"
        raise SimulationError(f"{said}; ask for fewer pixels") from cause
    with tqdm(total=slow, unit="row", desc=chosen.name, delay=1.0, disable=not progress) as bar:
        for start in range(0, slow, rows):
            # All strips are of one height, for which the variant was built: the last may overlap the one before.
            first = min(start, slow - rows)
            inputs["detector"][0:3] = corner + first * down
            image[first : first + rows] = run()
            if progress and place == "cuda":
                torch.cuda.synchronize()
            bar.update(min(start + rows, slow) - start)
    return image


def fastest(device: str, dtype: str = "float32") -> str:
    """Name of the fastest variant that runs on ``device`` ("cpu" or "cuda") without torch.compile.

    Raises :class:`SimulationError` when there is none for ``dtype``, ``WorkloadError`` when there is no such dtype.
    """
    workload = Workload(OPERATION, (1, 1), dtype)
    missing = {name: variants(OPERATION)[name].needs(workload, device) for name in READY[device]}
    for name, reason in missing.items():
        if not reason:
            return name
    raise SimulationError(f"no variant computes {dtype} on {device}: {missing[READY[device][-1]]}")


def _available(name: str, workload: Workload, device: str) -> Variant:
    known = variants(OPERATION)
    if name not in known:
        raise SimulationError(unknown("variant", name, known))
    if reason := known[name].needs(workload, device):
        raise SimulationError(
            f"variant {name!r} cannot run on {device}: {reason}; without a variant one that can is chosen"
        )
    return known[name]


def _strip(scene: Scene, device: str) -> int:
    """Rows of a strip."""
    pixels = min(ROOM[device], WORK[device] // scene.steps)
    return min(max(pixels // scene.detector.fast, LEAST), scene.detector.slow)


def read_reflections(path: Path) -> dict[tuple[int, int, int], float]:
    """Structure factors from a text file with a line ``h k l F`` a reflection; blank lines and ``#`` comments pass.

    Raises :class:`SimulationError` naming file and line.
    """
    found: dict[tuple[int, int, int], float] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        raise SimulationError(f"cannot read the reflections in {path}: {cause}; expected lines 'h k l F'") from cause
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            h, k, l, factor = (*map(int, words[:3]), float(words[3]))  # noqa: E741
            fine = len(words) == 4 and math.isfinite(factor) and factor >= 0
        except (ValueError, IndexError):
            fine = False
        if not fine:
            raise SimulationError(f"{path}, line {number}: expected 'h k l F', found {line.strip()!r}")
        if (h, k, l) in found:
            raise SimulationError(f"{path}, line {number}: reflection {(h, k, l)} appears a second time; keep one")
        found[h, k, l] = factor
    if not found:
        raise SimulationError(f"{path} holds no reflection; expected lines 'h k l F'")
    return found
