"""The diffraction simulator: its forms, its kernels, its first calls and its precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypatia_lab.experiments.axes import CALLED, Looks, Setting, Sweep, experiment
from hypatia_lab.experiments.plan import FOR_GOALS, Group, Probe
from hypatia_lab.workloads import SPLIT, Workload


def _square(*sides: int) -> tuple[tuple[int, ...], ...]:
    return tuple((side, side) for side in sides)


DETECTORS = _square(256, 512, 1024, 2048, 4096)
"""S003's: pixels along each side."""
# On a CPU the eager form takes seconds for the largest.
SIDES = {"full": DETECTORS, "quick cpu": _square(256, 1024), "cpu": DETECTORS[:4], "": DETECTORS}

ANCHORED = {"full": "compile_anchored", "cpu": "compile_anchored"}
"""The anchored form in torch takes longest to compile: on a GPU the seeds' preset leaves it to the precision page."""
TUNED = (ANCHORED, "compile_max_autotune")
OWN = "c_pixelwise c_openmp triton cuda #new"
REPLAYED, TWIN = "compile_reduce_overhead", "eager@again"
# Each of five processes compiles anew, for seconds: on a GPU the seeds' preset compiles at three sizes, and at one of
# them in other ways than the default. A shape that is asked for has all ways.
IMAGES = Sweep(
    "diffraction",
    SIDES,
    (
        f"eager eager_direct {OWN}",
        {"asked": "?compile", "full": "compile", "cpu": "?compile", **dict.fromkeys(DETECTORS[::2], "compile")},
        {"quick cpu": "", "asked": REPLAYED, "full": REPLAYED, "cpu": REPLAYED, "1024": REPLAYED},
        # Tuning and the A/A control are worth two sizes.
        {"quick cpu": "", "asked": TWIN, "1024": TWIN, "4096": TWIN},
        {"quick cpu": "", "asked": TUNED, "1024": TUNED, "4096 full": TUNED},
    ),
    clocks=CALLED,
    budget_s={"cuda": 0.05, "cpu": 0.1},
)


def _physics(at: Setting) -> Iterator[Group]:
    """What the physics costs. Replaying launches by itself is the detectors' question."""
    compiled, sides = ({"full": "compile", "cpu": "compile"}, ANCHORED), {"cuda": _square(1024), "cpu": _square(256)}
    # Nine steps unrolled take a minute to compile on two cores.
    unrolled = {"full": "compile compile_anchored"}
    for case, shapes, costly in (
        ("diffraction_triclinic", {"quick": (), **sides}, compiled),
        ("diffraction_sources", {"quick": (), **sides}, unrolled),
        ("diffraction_table", {"quick cpu": (), **sides}, compiled),
    ):
        names = ("eager eager_direct", costly, OWN)
        yield from Sweep(case, shapes, names, asked="kept", budget_s=IMAGES.budget_s)(at)
        # float64 is only checked here; its times are the precision page's.
        checked = ("eager c_pixelwise c_openmp", {"cuda": (ANCHORED, "triton cuda")})
        yield from Sweep(case, {"quick cpu": (), "": ((33, 77),)}, checked, "float64", asked="kept", clocks="")(at)


BATCH = Sweep(
    "diffraction_batch",
    {"quick cpu": (), "": ((64, 256, 256),)},
    "one_by_one eager compile triton cuda",  # it is compared with a compiled simulator
    asked="kept",
    clocks=CALLED,
    budget_s=IMAGES.budget_s,
)


def _whole_programs(at: Setting) -> Iterator[Probe]:
    sides = at.shapes or at.pick(SIDES)
    # A Python program takes seconds to start, whatever the size: one size says it.
    named = [(shape, "c_openmp") for shape in at.pick({"quick": sides[-1:], "": sides})]
    named.append((sides[-1], at.pick({"cuda": "cuda", "cpu": "eager"})))
    for shape, name in named:
        yield Probe("process", Workload("diffraction", shape), name, "", at.pick({"quick": 1, "": 3}))


PROFILES = Looks(
    "diffraction",
    {"quick cpu": _square(256), "": _square(1024)},
    {
        "cuda": "eager compile compile_reduce_overhead compile_anchored triton cuda",
        "cpu": "eager ?compile ?compile_anchored",
    },
    processes={"quick": 1, "": 3},
)

PRECISION = Sweep(
    "diffraction",
    {"quick cpu": _square(512), "seed cuda": _square(1024, 4096), "full cuda": _square(1024, 4096), "": _square(1024)},
    {
        "seed cuda 4096": "eager compile triton cuda",
        "cuda 4096": "eager compile compile_anchored triton cuda",
        # Those with a clock of their own, replayed graphs and C, are compared by the wall at one size.
        "": "eager ?compile ?compile_anchored triton cuda eager@again c_openmp compile_reduce_overhead",
    },
    "float32 float64",
    clocks={"cpu": "hot", "4096": "graph", "": "graph wall"},
    budget_s=0.1,
)
PRODUCTS = Sweep(
    "matmul",
    {
        "cuda": ((1024, 1024, 1024), (4096, 4096, 4096)),
        "quick": ((512, 512, 512),),
        "": ((512, 512, 512), (1024, 1024, 1024)),
    },
    {**dict.fromkeys(SPLIT, "split"), "": "eager"},
    {"cuda": f"float32 float64 bfloat16 tf32 {' '.join(SPLIT)}", "cpu": "float32 float64 bfloat16"},
    asked="kept",
    budget_s=0.15,
)
SIDES_OF_ERRORS = {"quick cpu": _square(512), "quick": _square(1024), "cuda": _square(1024, 2048, 4096)}
OWN_KERNEL = {"cuda": "cuda", "cpu": "c_openmp"}
ACCURACY = Looks(
    "diffraction",
    {**SIDES_OF_ERRORS, "": _square(1024, 2048)},
    ("eager eager_direct", OWN_KERNEL, {"quick": "", "cuda": "compile triton"}),
    topic="accuracy",
)
SPOILED = replace(ACCURACY, shapes={"quick cpu": _square(512), "": _square(1024)}, names=OWN_KERNEL, asked="kept")


def _starts(at: Setting) -> Iterator[Probe]:
    gpu = at.device == "cuda"
    if (at.preset, at.device) == ("quick", "cpu"):
        small = Workload("diffraction", at.shapes[0] if at.shapes else (256, 256))
        for way in (("eager", "", 3), ("compile", "empty", 1), ("c_openmp", "cubin", 3)):
            yield Probe("start", small, *way)
        return
    compiled = "compile_reduce_overhead" if gpu else "compile"
    # By size: set-up and first runs, every compiler cache empty, three processes each, for by fewer no start is judged.
    sides = at.shapes or at.pick(SIDES)
    sides = sides[:: len(sides) - 1] if gpu and at.preset != "full" and not at.shapes else sides
    seen = {(shape, compiled, "empty") for shape in sides}
    for shape in sides:
        yield Probe("start", Workload("diffraction", shape), compiled, "empty", 3)
    shape = at.shapes[0] if at.shapes else (1024, 1024)
    slow = (("compile", "empty"), ("compile", "disk"), ("compile", "mega"), ("compile", "aoti_disk"))
    fast = (("eager", ""), ("compile", "aoti_raw"), ("c_openmp", "cubin"))
    # Half a minute a process, for caches that whoever keeps a package has.
    rare = at.pick({"full": (("compile", "aoti_package"),)})
    if gpu:
        slow += (("triton", "no cubin"), ("cuda", "no cubin"))
        fast += (("triton", "cubin"), ("cuda", "cubin"))
        rare += at.pick({"full": (("compile_max_autotune", "empty"),)})
    # The ways that compete for the first image are worth more processes; no verdict rests on the rare ones.
    for ways, processes in ((slow, 3), (rare, 2), (fast, at.pick({"cpu": 6, "full": 4, "": 3}))):
        for name, case in ways:
            if (shape, name, case) not in seen:
                yield Probe("start", Workload("diffraction", shape), name, case, processes)


EXPERIMENTS = (
    experiment(
        "diffraction",
        "07_diffraction",
        "a diffraction simulator: C, torch, compiled torch, one kernel",
        IMAGES,
        _physics,
        BATCH,
        probes=(_whole_programs,),
        least=FOR_GOALS,
    ),
    experiment("profile", "08_profile", "kernels, launches and gaps of one image", probes=(PROFILES,)),
    experiment(
        "precision",
        "09_precision",
        "float32, float64, TF32 and split products",
        PRECISION,
        PRODUCTS,
        probes=(ACCURACY, replace(SPOILED, case="scaled"), replace(SPOILED, case="faulty row")),
    ),
    experiment("warm_up", "10_warm_up", "every call of a fresh process", operation="diffraction", probes=(_starts,)),
)
