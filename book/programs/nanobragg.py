"""S003's own program: the PyTorch port of nanoBragg with its three benchmark scripts, unedited, at its commit.

What must lie on this machine: the files that ``nanobragg.pins`` names, below ``$HYPATIA_OUTSIDE/nanobragg`` (default:
``outside/nanobragg`` beside ``book``). The benchmark also runs the original C program, built from ``nanoBragg.c`` among
these files: ``NB_C_BIN`` names it. Needs torch, numpy and psutil.

The simulator is called in process too, as variant ``author_torch``. As published (draw 0) it gets the numbers that the
scripts give it. Every other scene is put so that it computes neither more nor less, and compiles nothing anew. Of
wavelength and cell only the quotient counts, so the wavelength stays 6.2 Å. The crystal is turned by the spindle, which
turns it anyway, by zero; a misset would be some 650 operations more in each run. Cells of which two angles are not
right ones it builds wrongly, as the C program does (c* along z), so it is given the cell that comes out as ours.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypatia_lab as lab
from hypatia_lab.compiled import compile_missing
from hypatia_lab.profiler.subject import Ended

if TYPE_CHECKING:
    import torch

    from hypatia_lab.profiler.program import Output, Shell

Figures = Callable[["Shell"], Iterator[dict[str, Any]]]
Needs = Callable[[lab.Workload, str], str]

HERE = Path(__file__).resolve().parent
OUTSIDE = Path(os.environ.get("HYPATIA_OUTSIDE") or HERE.parents[1] / "outside")
upstream = lab.Provenance.pinned(HERE / "nanobragg.pins", root=OUTSIDE / "nanobragg", licence="MIT")
nanobragg = lab.program("author_nanobragg", "S003's simulator, its benchmark scripts and the C program", [upstream])

SIZES = (256, 512, 1024, 2048, 4096)
"""Pixels along each side of the scripts' detectors."""
WAVELENGTH = 6.2
"""Å, in every script."""
SCRIPTS = upstream.root / "scripts" / "benchmarks"
SOURCES = upstream.root / "src"
COLLECTING = {"TORCH_CUDAGRAPH_GC": "1", "TORCHINDUCTOR_GRAPH_PARTITION": "0"}
"""Up to PyTorch 2.8 every recording of a CUDA graph began with a collection of garbage, and what torch.compile had
compiled became one graph or none; from 2.9 on these ask for it. The document is of September 2025, when 2.8 was the
newest release."""
CALLS = 12
"""How often ``warm`` calls the simulator at each size."""


def _works(size: int) -> lab.Workload:
    return lab.Workload("diffraction", (size, size), "float64")


# ---------------------------------------------------------------- the simulator, in process


def _simulates(workload: lab.Workload, device: str) -> str:
    """Why the simulator cannot run; empty where it can."""
    if workload.dtype != "float64":
        return "the simulator's dtype is float64 wherever a script does not say otherwise"
    return compile_missing(workload, device)


def _imported() -> tuple[Any, Any, Any, Any]:
    """The upstream's modules config, crystal, detector and simulator; nothing is written beside them."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(SOURCES))
    try:
        from nanobrag_torch import config, simulator  # pyright: ignore[reportMissingImports]
        from nanobrag_torch.models import crystal, detector  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(SOURCES))
        sys.dont_write_bytecode = before
    return config, crystal, detector, simulator


def cell_of(vectors: torch.Tensor) -> list[float]:
    """Edges (Å) and angles (degrees) of the cell whose ``vectors`` are rows a, b, c (float64, CPU)."""
    edges = vectors.norm(dim=1)
    a, b, c = vectors / edges[:, None]
    angles = [math.degrees(math.acos(float(one @ other))) for one, other in ((b, c), (a, c), (a, b))]
    return [*edges.tolist(), *angles]


def turn_of(rotation: torch.Tensor) -> tuple[tuple[float, float, float], float]:
    """Unit axis and angle (degrees, below 180) of a ``rotation`` matrix (3, 3)."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation.tolist()
    axis = (zy - yz, xz - zx, yx - xy)
    length = math.hypot(*axis)
    if length == 0.0:
        return (0.0, 0.0, 1.0), 0.0
    x, y, z = (part / length for part in axis)
    return (x, y, z), math.degrees(math.atan2(length, xx + yy + zz - 1))


def fitted(cell: list[float], vectors_of: Callable[[list[float]], torch.Tensor]) -> list[float]:
    """The cell of which ``vectors_of`` makes vectors of ``cell``; itself where those have its edges and angles.

    The two differ little, so that what comes out wrong is taken off what is put in until nothing is left.
    Raises ``ValueError`` if that does not end.
    """
    given = list(cell)
    for _ in range(50):
        off = [wanted - got for wanted, got in zip(cell, cell_of(vectors_of(given)), strict=True)]
        if max(map(abs, off)) < 1e-11:
            return given
        given = [old + more for old, more in zip(given, off, strict=True)]
    raise ValueError(f"no cell of the upstream's becomes {cell}")


@lab.variant("diffraction", "author_torch", origin="author", needs=_simulates)
def author_torch(workload: lab.Workload, inputs: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    """S003's PyTorch simulator itself: float64, its own torch.compile (max-autotune on a GPU).

    As in its benchmark, simulators of one process share what is compiled: from the second size on of dynamic shape.
    """
    import torch

    config, crystal, detector, simulator = _imported()
    device, (slow, fast) = inputs["crystals"].device, workload.shape
    cells, strength = inputs["layout"].tolist()[3:6], math.sqrt(float(inputs["structure"]))

    def crystal_config(cell: list[float], axis: tuple[float, ...] = (0.0, 0.0, 1.0), angle: float = 0.0) -> Any:
        edges = dict(zip(("cell_a", "cell_b", "cell_c", "cell_alpha", "cell_beta", "cell_gamma"), cell, strict=True))
        turned = {"spindle_axis": axis, "phi_start_deg": angle}
        shape = config.CrystalShape.SQUARE
        return config.CrystalConfig(**edges, **turned, N_cells=cells, default_F=strength, shape=shape)

    def vectors_of(cell: list[float]) -> torch.Tensor:
        made = crystal.Crystal(crystal_config(cell)).compute_cell_tensors()
        return torch.stack([made[edge] for edge in "abc"])

    def built() -> Any:
        """Their simulator of the scene that the inputs hold now."""
        # Rounded, so that 100 Å and 90° are just that, as in the scripts.
        vectors = inputs["crystals"][0].cpu() * (WAVELENGTH / float(inputs["sources"][0, 3]))
        cell = fitted([float(f"{number:.13g}") for number in cell_of(vectors)], vectors_of)
        turned = crystal_config(cell, *turn_of(torch.linalg.solve(vectors_of(cell), vectors).T))
        detector_config = config.DetectorConfig(
            spixels=slow,
            fpixels=fast,
            pixel_size_mm=float(inputs["detector"][5]),
            distance_mm=float(inputs["detector"][9]),
            detector_convention=config.DetectorConvention.MOSFLM,
            oversample=1,
        )
        return simulator.Simulator(
            crystal.Crystal(turned, device=device),
            detector.Detector(detector_config, device=device),
            turned,
            config.BeamConfig(wavelength_A=WAVELENGTH),
            device=device,
        )

    watched = [inputs[name] for name in ("crystals", "sources", "detector")]
    versions: list[int] = []
    current: list[Any] = []

    def run() -> torch.Tensor:
        now = [tensor._version for tensor in watched]
        if now != versions:
            versions[:], current[:] = now, [built()]
        return current[0].run()

    return run


@nanobragg.cells
def cells(preset: str, device: str) -> list[lab.Group]:
    """The simulator by the wall clock beside forms that replay graphs, or are C, at the document's sizes."""
    sizes = SIZES if device == "cuda" else SIZES[:3:2] if preset == "quick" else SIZES[:4]
    replays = ("compile_reduce_overhead",) if device == "cuda" else ()
    names = ("eager", "author_torch", *replays, "c_openmp")
    return [lab.Group(_works(size), names, ("wall",), 0.3) for size in sizes]


# ---------------------------------------------------------------- the scripts, whole


def _needs_cuda(workload: lab.Workload, device: str) -> str:
    return "" if device == "cuda" else "the script ends at once where there is no CUDA device"


def _needs_c(workload: lab.Workload, device: str) -> str:
    """Why the benchmark cannot run; empty where it can."""
    named = os.environ.get("NB_C_BIN", "")
    if not named:
        return "NB_C_BIN names no C program; build nanoBragg.c and name the program there"
    return "" if os.access(named, os.X_OK) else f"NB_C_BIN names {named}, which is no program"


_START = """
import runpy, sys
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

_RENAMED = f"""
from torch.autograd.profiler_util import FunctionEventAvg
FunctionEventAvg.cuda_time_total = property(lambda event: event.device_time_total)
{_START}
"""
"""The script asks for a name that torch has given up, and would die of it before its report is whole."""

_LEAST = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("compare", sys.argv[1])
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)
measure = compare.benchmark_dtype
def measured(*given, **named):
    found = measure(*given, **named)
    print(f"minimum of {found['dtype']}: {float(found['min_time'])!r} s")
    return found
compare.benchmark_dtype = measured
compare.main()
"""
"""The least time is returned, and neither printed nor written: who calls the script's function prints it."""

_OFTEN = """
import sys, time, torch
from pathlib import Path
from nanobrag_torch.config import BeamConfig, CrystalConfig, CrystalShape, DetectorConfig, DetectorConvention
from nanobrag_torch.models.crystal import Crystal
from nanobrag_torch.models.detector import Detector
from nanobrag_torch.simulator import Simulator
device, calls, sizes = torch.device(sys.argv[1]), int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
for size in sizes:
    # Cell, detector and beam as in the benchmark script.
    crystal = CrystalConfig(N_cells=[5, 5, 5], default_F=100.0, shape=CrystalShape.SQUARE)
    detector = DetectorConfig(
        spixels=size, fpixels=size, detector_convention=DetectorConvention.MOSFLM, oversample=1
    )
    parts = Crystal(crystal, device=device), Detector(detector, device=device)
    simulator = Simulator(*parts, crystal, BeamConfig(wavelength_A=6.2), device=device)
    for call in range(1, calls + 1):
        start = time.perf_counter()
        simulator.run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        print(f"{size} call {call}: {(time.perf_counter() - start) * 1e3:.6f} ms", flush=True)
"""


def _run(shell: Shell, code: str, *given: str | Path, stored: bool = False, **env: str) -> Output:
    """Run ``code`` in a fresh Python that finds the upstream's package, on the shell's device.

    ``stored``: what one process compiles, the next ones find.
    """
    path = os.pathsep.join(filter(None, (str(SOURCES), os.environ.get("PYTHONPATH", ""))))
    # The scripts take a GPU wherever there is one.
    hidden = {} if shell.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    caches = {f"{name}_CACHE_DIR": str(shell.folder / name.lower()) for name in ("TORCHINDUCTOR", "TRITON")}
    env = {"PYTHONPATH": path} | hidden | (caches if stored else {}) | env
    return shell.run([sys.executable, "-P", "-c", code, *given], env=env, writes=[shell.folder] if stored else [])


def _left(out: Output, name: str) -> str:
    """Text of the file ``name`` that the script wrote. Ends the command where it wrote none."""
    found = sorted(out.folder.glob(f"reports/benchmarks/*/{name}"))
    if not found:
        raise Ended("wrong", f"the script left no {name}")
    return found[0].read_text(encoding="utf-8", errors="replace")


def _both(name: str, processes: int, limit_s: float, needs: Needs) -> Callable[[Figures], Figures]:
    """Declare a command twice: by the release that is installed, and on a GPU as graphs were recorded up to 2.8."""

    def records(workload: lab.Workload, device: str) -> str:
        return needs(workload, device) if device == "cuda" else "without a GPU no graph is recorded"

    def declare(figures: Figures) -> Figures:
        for word, why_not, switches in ((name, needs, {}), (f"{name}_collecting", records, COLLECTING)):
            nanobragg.command(
                word,
                _works(1024),
                variant="author_torch",
                processes=processes,
                limit_s=limit_s,
                needs=why_not,
                switches=switches,
            )(figures)
        return figures

    return declare


@_both("benchmark_detailed", 3, 240, _needs_c)
def benchmark_detailed(shell: Shell) -> Iterator[dict[str, Any]]:
    """benchmark_detailed.py: C and PyTorch at five sizes, one sample each, in one process with empty caches."""
    program = str(Path(os.environ["NB_C_BIN"]).resolve())
    out = _run(shell, _START, SCRIPTS / "benchmark_detailed.py", NB_C_BIN=program)
    rows = {row["size"]: row for row in json.loads(_left(out, "benchmark_results.json"))}
    for size in SIZES:
        if size not in rows:  # it prints the error, leaves the size out and ends as if all were well
            raise Ended("wrong", f"the script left no row of {size}x{size}: one of the two programs failed there")
        row, of = rows[size], (size, size)
        if shell.device not in str(row["py_timings"]["device"]):
            raise Ended("wrong", f"the script ran on {row['py_timings']['device']}, not on {shell.device}")
        setup, simulation = row["py_timings"]["setup"], row["py_timings"]["simulation"]
        yield shell.figure("c", row["c_time"], "s", shape=of, variant="author_c")
        yield shell.figure("setup", setup, "s", shape=of)
        yield shell.figure("simulation", row["py_sim_time"], "s", shape=of)
        yield shell.figure("total", row["py_time"], "s", shape=of)
        yield shell.figure("slowdown", row["py_time"] / row["c_time"], shape=of)
        yield shell.figure("simulation slowdown", row["py_sim_time"] / row["c_time"], shape=of)
        yield shell.figure("setup share", 100 * setup / (setup + simulation), "%", shape=of)
        yield shell.figure("correlation", row["correlation"], shape=of)


LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")


def launched(events: list[dict[str, Any]]) -> tuple[float, float, dict[str, float]]:
    """Of a trace's events the GPU's time (µs): in all, of what graphs launched, and by kernel.

    The document took its share of graph replays from a row of the profiler's table that torch no longer makes. What a
    graph launched has the correlation number of that launch.
    """
    calls = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    graphs = {event["args"]["correlation"] for event in calls if event["name"].startswith(LAUNCHES)}
    kernels: dict[str, float] = defaultdict(float)
    for event in work:
        if event["cat"] == "kernel":
            kernels[event["name"]] += event["dur"]
    replayed = sum(event["dur"] for event in work if event["args"].get("correlation") in graphs)
    return sum(event["dur"] for event in work), replayed, dict(kernels)


@_both("profile", 3, 180, _needs_cuda)
def profile(shell: Shell) -> Iterator[dict[str, Any]]:
    """profile_cuda_kernels.py: torch.profiler over the second run at 1024x1024, which records its graphs."""
    out = _run(shell, _RENAMED, SCRIPTS / "profile_cuda_kernels.py", stored=True)
    yield shell.figure("kernel calls", out.number(r"^Total CUDA kernel calls: (\d+)", "number of kernel calls"))
    yield shell.figure("unique kernels", out.number(r"^Total unique CUDA kernels: (\d+)", "number of kernels"))
    total, replayed, kernels = launched(json.loads(_left(out, "trace_detpixels_1024.json"))["traceEvents"])
    if not kernels:
        raise Ended("wrong", "the script's trace holds no kernel")
    longest = sorted(kernels.values(), reverse=True)
    yield shell.figure("gpu time", total / 1e3, "ms")
    yield shell.figure("graph launch share", 100 * replayed / total, "%")
    yield shell.figure("top kernel share", 100 * longest[0] / total, "%")
    yield shell.figure("top three share", 100 * sum(longest[:3]) / total, "%")
    report = _left(out, "profile_report_detpixels_1024.txt")
    yield shell.figure("regions", len(set(re.findall(r"Torch-Compiled Region: (\d+)/\d+", report))))
    # The same name has a row of the GPU's time, in which the CPU has no share.
    shares = re.findall(r"CUDAGraphNode\.record \(dynamo_timed\)\s+([\d.]+)%", report)
    if not shares:
        raise Ended("wrong", "the script's report has no row CUDAGraphNode.record")
    yield shell.figure("record share", max(map(float, shares)), "%")


@_both("dtype", 4, 180, _needs_cuda)
def dtype(shell: Shell) -> Iterator[dict[str, Any]]:
    """compare_dtype_performance.py: float64, then float32 at 1024x1024, a warm-up and the mean of three runs each."""
    out = _run(shell, _LEAST, SCRIPTS / "compare_dtype_performance.py", stored=True)
    found = json.loads(_left(out, "dtype_comparison.json"))
    names = ("speedup", "correlation", "mean relative error", "max relative error")
    yield shell.figure("fp64", found["fp64_time"], "s")
    yield shell.figure("fp32", found["fp32_time"], "s")
    for name, key in zip(names, ("speedup", "correlation", "mean_rel_error", "max_rel_error"), strict=True):
        yield shell.figure(name, found[key])
    for name, kind in (("fp64 minimum", "float64"), ("fp32 minimum", "float32")):
        yield shell.figure(name, out.number(rf"^minimum of torch\.{kind}: (\S+) s", f"least time in {kind}"), "s")


@_both("warm", 3, 240, _simulates)
def warm(shell: Shell) -> Iterator[dict[str, Any]]:
    """Ours: the benchmark's simulator called twelve times at each size, every call synchronised."""
    sizes = SIZES if shell.device == "cuda" else SIZES[:3]
    out = _run(shell, _OFTEN, shell.device, str(CALLS), *map(str, sizes), stored=True)
    for size in sizes:
        for call in range(1, CALLS + 1):
            took = out.number(rf"^{size} call {call}: (\S+) ms", f"time of call {call} at {size}x{size}")
            yield shell.figure(f"call {call}", took, "ms", shape=(size, size))
