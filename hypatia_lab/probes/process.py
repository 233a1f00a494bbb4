"""Probe ``process``: a whole program, from spawn to exit, that simulates one image and writes it to a file.

Run as a process by :mod:`hypatia_lab.bench.sessions`; the program is a process below it. ``c_openmp`` is the C
program; any other variant is a Python program (:func:`program`) that imports, simulates once and writes. Each writes
float32, row by row, and prints ``simulation_ms <ms> writing_ms <ms>``. "simulation" is the one call, synchronised,
which includes whatever a first call has to do; "file output" includes the copy from the device. The first of the
probe's processes runs the program once untimed, so that files and compilers' caches are warm for all.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hypatia_lab import check, clock, variants
from hypatia_lab.bench import sessions
from hypatia_lab.probes.probe import Emit, Ended, Subject, probe, workload_of

if TYPE_CHECKING:
    from hypatia_lab.diffraction.physics import Layout
    from hypatia_lab.workloads import Inputs


def write_vectors(path: Path, inputs: Inputs, layout: Layout) -> None:
    """Write what the C program reads: 14 int64 (:meth:`Layout.sizes`), then the arrays (:data:`physics.NAMES`) as
    float64, in this machine's byte order.

    Source: ``hypatia_lab/kernels/diffraction/diffraction_program.cpp``.
    """
    import numpy

    from hypatia_lab.diffraction.physics import NAMES

    with path.open("wb") as stream:
        stream.write(numpy.array(layout.sizes(inputs), dtype=numpy.int64).tobytes())
        for name in NAMES:
            stream.write(inputs[name].double().cpu().contiguous().numpy().tobytes())


def _c_command(subject: Subject, image: Path) -> list[str]:
    from hypatia_lab.diffraction.operations import layout_of
    from hypatia_lab.kernels import loader

    vectors = image.with_suffix(".vectors")
    write_vectors(vectors, subject.workload.inputs("cpu"), layout_of(subject.workload))
    return [str(loader.cpp_program("diffraction/diffraction_program")), str(vectors), str(image)]


def command(subject: Subject, image: Path) -> list[str]:
    """The command line of ``subject``'s program, which writes ``image``; a C program is built first."""
    if subject.variant.name == "c_openmp":
        return _c_command(subject, image)
    return sessions.python("hypatia_lab.probes.process", json.dumps(subject.plan), str(image))


def program(plan: str, image: str) -> None:
    """The Python program: simulate ``plan`` (JSON: workload, variant, device) once and write the file ``image``."""
    asked = json.loads(plan)
    workload, device = workload_of(asked), asked["device"]
    with workload.precision():
        run = variants.find(workload.operation, asked["variant"]).factory(workload, workload.inputs(device))
        clock.synchronize(device)
        start = time.perf_counter()
        out = run()
        clock.synchronize(device)
        simulated = time.perf_counter()
    out.cpu().contiguous().numpy().tofile(image)
    written = time.perf_counter()
    print(f"simulation_ms {(simulated - start) * 1e3:.3f} writing_ms {(written - simulated) * 1e3:.3f}")


def timed(line: list[str]) -> dict[str, float]:
    """Run the program ``line`` to its end; its times in ms. Raises :class:`Ended` when it fails."""
    start = time.perf_counter()
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    whole = (time.perf_counter() - start) * 1e3
    said = re.search(r"simulation_ms ([0-9.]+) writing_ms ([0-9.]+)", done.stdout)
    if done.returncode or said is None:
        print(done.stdout, done.stderr, file=sys.stderr)
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1][:200]
        raise Ended("crashed", f"the program ended with exit status {done.returncode}: {last}")
    return {"whole": whole, "simulation": float(said[1]), "file output": float(said[2])}


def judged(image: Path, problem: check.Problem) -> check.Check:
    """The check of the float32 file ``image`` against ``problem``'s float64 reference."""
    import numpy
    import torch

    shape, found = problem.reference().shape, numpy.fromfile(image, dtype=numpy.float32)
    if found.size != shape.numel():
        return check.Check(f"wrong size: the file holds {found.size} pixels instead of {shape.numel()}")
    return check.judge(torch.from_numpy(found).view(shape).to(problem.device), problem)


def look(subject: Subject, emit: Emit) -> None:
    """Emit the times of one run. Raises :class:`Ended` when the program fails or its image is wrong."""
    if subject.workload.dtype != "float32":
        raise Ended("skipped", f"the programs write float32, not {subject.workload.dtype}")
    image = subject.folder / f"{subject.variant.name}.f32"
    line = command(subject, image)
    if subject.number == 0:
        timed(line)
    image.unlink(missing_ok=True)
    found = timed(line)
    check_of_image = judged(image, subject.problem())
    if not check_of_image.ok:
        raise Ended("wrong", check_of_image.reason)
    for name, value in found.items():
        emit("detail", topic="process", name=name, unit="ms", value=value, count=1)


if __name__ == "__main__":
    program(*sys.argv[1:]) if len(sys.argv) == 3 else probe(look)
