"""The diffraction simulator: its forms, its kernels, its first calls and its precision."""

from __future__ import annotations

from hypatia_lab import variants
from hypatia_lab.experiments.plan import FOR_GOALS, Experiment, Group, Probe, Shapes, asked
from hypatia_lab.variants import AGAIN
from hypatia_lab.workloads import Workload

DIFFRACTION_SIZES = (256, 512, 1024, 2048, 4096)
"""S003's detectors: pixels along each side."""


def _sides(preset: str, device: str, shapes: Shapes) -> list[tuple[int, ...]]:
    # On a CPU the eager form takes seconds for the largest.
    if device == "cpu" and preset != "full":
        sides = (256, 1024) if preset == "quick" else DIFFRACTION_SIZES[:4]
    else:
        sides = DIFFRACTION_SIZES
    return list(shapes) or [(n, n) for n in sides]


def _diffraction(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    clocks, budget_s = (("graph", "wall"), 0.05) if gpu else (("hot",), 0.1)
    # Each of five processes compiles anew, for seconds: on a GPU the seeds' preset compiles at three sizes, and at one
    # of them in other ways than the default.
    few = gpu and preset != "full"
    compiled, replayed = asked(preset, device, "compile"), asked(preset, device, "compile_reduce_overhead")
    plain = ("eager", "eager_direct")
    own = ("c_pixelwise", "c_openmp", "triton", "cuda", *variants.names("diffraction"))
    # Tuning and the A/A control are worth two sizes. So is the anchored form in torch, but on a GPU the seeds' preset
    # leaves it, which takes longest to compile, to the precision chapter.
    twin = ("eager" + AGAIN,) if gpu or preset != "quick" else ()
    tuned = (*(("compile_anchored",) if not few else ()), "compile_max_autotune") if twin else ()
    sides = _sides(preset, device, shapes)
    groups = []
    for shape in sides:
        names, middle, largest = (*plain, *own), shape[0] == 1024 or bool(shapes), shape[0] == 4096
        names += compiled if middle or shape in sides[::2] or not few else ()
        names += replayed if middle or not few else ()
        names += twin if middle or largest else ()
        names += tuned if middle or (largest and not few) else ()
        groups.append(Group(Workload("diffraction", shape), names, clocks, budget_s))
    # Replaying launches by itself is the detectors' question; these cases ask what the physics costs. float64 is only
    # checked here; its times are the precision chapter's.
    anchored = () if few else ("compile_anchored",)
    checked = ("eager", "c_pixelwise", "c_openmp", *((*anchored, "triton", "cuda") if gpu else ()))
    side = 1024 if gpu else 256
    for case in asked(preset, device, "diffraction_triclinic", "diffraction_sources", "diffraction_table"):
        if preset != "quick" or case == "diffraction_table":
            # Nine steps unrolled take a minute to compile on two cores.
            unrolled = case == "diffraction_sources" and preset != "full"
            names = (*plain, *(() if unrolled or few else (*compiled, *anchored)), *own)
            groups.append(Group(Workload(case, (side, side)), names, clocks[:1], budget_s))
        groups.append(Group(Workload(case, (33, 77), "float64"), checked, (), 0))
    # The simulator that a batch is compared with is a compiled one.
    if several := asked(preset, device, "one_by_one", "eager", "compile", "triton", "cuda"):
        groups.append(Group(Workload("diffraction_batch", (64, 256, 256)), several, clocks, budget_s))
    return groups


def _whole_programs(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    sides = _sides(preset, device, shapes)
    count = 1 if preset == "quick" else 3
    # A Python program takes seconds to start, whatever the size: one size says it.
    named = [(shape, "c_openmp") for shape in (sides if preset != "quick" else sides[-1:])]
    named.append((sides[-1], "cuda" if device == "cuda" else "eager"))
    return [Probe("process", Workload("diffraction", shape), name, "", count) for shape, name in named]


def _profiles(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    side = 1024 if device == "cuda" or preset != "quick" else 256
    names = ("eager", "compile", "compile_reduce_overhead", "compile_anchored", "triton", "cuda")
    names = names if device == "cuda" else ("eager", *asked(preset, device, "compile", "compile_anchored"))
    sizes = list(shapes) or [(side, side)]
    return [
        Probe("trace", Workload("diffraction", shape), name, "", 1 if preset == "quick" else 3)
        for shape in sizes
        for name in names
    ]


def _precision(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    clock = ("graph",) if gpu else ("hot",)
    sides = ([512] if not gpu else [1024]) if preset == "quick" else ([1024, 4096] if gpu else [1024])
    names = ("eager", *asked(preset, device, "compile", "compile_anchored"), "triton", "cuda")
    fewer = tuple(name for name in names if preset != "seed" or name != "compile_anchored")
    # Those with a clock of their own, replayed graphs and C, are compared by the wall at one size.
    by_wall = ("eager" + AGAIN, "c_openmp", "compile_reduce_overhead")
    groups = [
        Group(
            Workload("diffraction", shape, dtype),
            fewer if gpu and shape[0] == 4096 else names + by_wall,
            (*clock, "wall") if gpu and shape[0] != 4096 else clock,
            0.1,
        )
        for shape in list(shapes) or [(n, n) for n in sides]
        for dtype in ("float32", "float64")
    ]
    cubes = [1024, 4096] if gpu else [512] if preset == "quick" else [512, 1024]
    kinds = [("float32", "ieee"), ("float64", "ieee"), ("bfloat16", "ieee")]
    kinds += [("float32", "tf32"), ("float32", "tf32x3"), ("float32", "bf16x3")] if gpu else []
    groups += [
        Group(Workload("matmul", (n, n, n), dtype, math), ("split",) if math[-2:] == "x3" else ("eager",), clock, 0.15)
        for n in cubes
        for dtype, math in kinds
    ]
    return groups


def _accuracy(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    sides = (1024, 2048, 4096) if device == "cuda" else (1024, 2048)
    sides = sides if preset != "quick" else (1024,) if device == "cuda" else (512,)
    own = "cuda" if device == "cuda" else "c_openmp"
    names = ("eager", "eager_direct", own)
    names += ("compile", "triton") if device == "cuda" and preset != "quick" else ()
    probes = [
        Probe("accuracy", Workload("diffraction", shape), name, "", 1)
        for shape in list(shapes) or [(n, n) for n in sides]
        for name in names
    ]
    return probes + [
        Probe("accuracy", Workload("diffraction", (sides[0], sides[0])), own, case, 1)
        for case in ("scaled", "faulty row")
    ]


def _starts(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    gpu, quick = device == "cuda", preset == "quick"
    if not gpu and quick:
        small = Workload("diffraction", shapes[0] if shapes else (256, 256))
        ways = [("eager", "", 3), ("compile", "empty", 1), ("c_openmp", "cubin", 3)]
        return [Probe("start", small, *way) for way in ways]
    compiled = "compile_reduce_overhead" if gpu else "compile"
    # By size: set-up and first runs, every compiler cache empty, three processes each, for by fewer no start is judged.
    # One that compiles takes up to half a minute on a GPU box: the smallest and the largest show that the size does not
    # matter.
    sides = _sides(preset, device, shapes)
    sides = sides[:: len(sides) - 1] if gpu and preset != "full" and not shapes else sides
    probes = [Probe("start", Workload("diffraction", shape), compiled, "empty", 3) for shape in sides]
    work = Workload("diffraction", shapes[0] if shapes else (1024, 1024))
    slow = [("compile", "empty"), ("compile", "disk"), ("compile", "mega"), ("compile", "aoti_disk")]
    fast = [("eager", ""), ("compile", "aoti_raw"), ("c_openmp", "cubin")]
    # Half a minute a process, for caches that whoever keeps a package has.
    rare = [("compile", "aoti_package")] if preset == "full" else []
    if gpu:
        slow += [("triton", "no cubin"), ("cuda", "no cubin")]
        fast += [("triton", "cubin"), ("cuda", "cubin")]
        rare += [("compile_max_autotune", "empty")] if preset == "full" else []
    # The ways that compete for the first image are worth more processes; no verdict rests on the rare ones.
    counts = ((slow, 3), (rare, 2), (fast, (4 if preset == "full" else 3) if gpu else 6))
    asked = {(probe.workload, probe.variant, probe.case) for probe in probes}
    rest = [(*way, processes) for ways, processes in counts for way in ways if (work, *way) not in asked]
    return probes + [Probe("start", work, *way) for way in rest]


EXPERIMENTS = (
    Experiment(
        "diffraction",
        "07_diffraction",
        "a diffraction simulator: C, torch, compiled torch, one kernel",
        "diffraction",
        _diffraction,
        _whole_programs,
        least=FOR_GOALS,
    ),
    Experiment("profile", "08_profile", "kernels, launches and gaps of one image", "diffraction", probes=_profiles),
    Experiment(
        "precision", "09_precision", "float32, float64, TF32 and split products", "diffraction", _precision, _accuracy
    ),
    Experiment("warm_up", "10_warm_up", "every call of a fresh process", "diffraction", probes=_starts),
)
