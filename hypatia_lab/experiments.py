"""The experiments: which workloads, variants and clocks answer which question, at which preset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import hypatia_lab.diffraction
import hypatia_lab.fused_ops  # noqa: F401  (registers the operations and variants that the plans name)
from hypatia_lab.fused_ops.conv_block import SEED_SHAPE
from hypatia_lab.fused_ops.mlp import MODELS
from hypatia_lab.variants import AGAIN, variants
from hypatia_lab.workloads import Workload

PRESETS = ("quick", "seed", "full")
PROCESSES = {"quick": 2, "seed": 8, "full": 12}
"""Fresh processes behind every interval."""

SMALL, MEDIUM, LARGE = (256, 256, 512), (1024, 784, 2048), (8192, 4096, 4096)
"""batch × in × out: the seeds' three sizes."""


@dataclass(frozen=True)
class Group:
    """Variants that are interleaved on one workload: each is checked, then timed under every clock.

    ``budget_s`` is the time each variant may take under each clock in one process. No clock: checked only.
    """

    workload: Workload
    variants: tuple[str, ...]
    clocks: tuple[str, ...]
    budget_s: float


@dataclass(frozen=True)
class Probe:
    """A look at one variant that no clock gives: ``processes`` fresh processes of ``profiler.<topic>``.

    ``topic``: start (every stage and call of a fresh process), trace (kernels), accuracy (error measures), process
    (a whole program) or counters (bytes that a call moves). ``case`` says which of several ways, such as which caches
    are warm.
    """

    topic: str
    workload: Workload
    variant: str
    case: str = ""
    processes: int = 3


Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Experiment:
    """A question: its notebook, one line on it, and the plan that answers it.

    ``plan(preset, device, shapes)`` lists the groups; ``shapes`` replaces the preset's shapes of the
    experiment's ``operation`` when given. ``probes`` lists the probes in the same way.
    """

    name: str
    notebook: str
    summary: str
    operation: str
    plan: Callable[[str, str, Shapes], list[Group]] = lambda preset, device, shapes: []
    probes: Callable[[str, str, Shapes], list[Probe]] = lambda preset, device, shapes: []


def _dtypes(device: str) -> list[tuple[str, str]]:
    found = [("float32", "ieee"), ("bfloat16", "ieee")]
    return [found[0], ("float32", "tf32"), found[1]] if device == "cuda" else found


def _ceilings(preset: str, device: str, shapes: Sequence[tuple[int, ...]]) -> list[Group]:
    gpu = device == "cuda"
    clocks = ("graph", "cold") if gpu else ("hot", "cold")
    budget_s = 0.1 if preset == "quick" else 0.3
    sides = [1024, 2048, 4096, 8192] if gpu else [512, 1024] if preset == "quick" else [512, 1024, 2048]
    cubes = shapes or [(n, n, n) for n in sides] + ([LARGE] if gpu else [])
    kinds = [*_dtypes(device), ("float16", "ieee"), ("float64", "ieee")]
    groups = [
        Group(Workload("matmul", shape, dtype, math), ("eager",), clocks, budget_s)
        for dtype, math in kinds
        for shape in cubes
        # A CPU without float16 matrix units needs seconds for a large half-precision product.
        if gpu or dtype != "float16" or shape == cubes[0]
    ]
    lengths = [2**n for n in ((18, 20, 21, 22, 24, 26, 28, 30) if gpu else (12, 14, 16, 18, 20, 22, 24))]
    return groups + [Group(Workload("copy", (n,)), ("eager",), clocks, budget_s) for n in lengths]


def _method(preset: str, device: str, shapes: Sequence[tuple[int, ...]]) -> list[Group]:
    clocks = ("wall", "hot", "graph", "cold", "profiler") if device == "cuda" else ("wall", "hot", "cold", "profiler")
    names = ("eager", "eager" + AGAIN, "cublas_relu", "aten", "epilogue")
    dtypes = [("float32", "ieee"), ("bfloat16", "ieee")] if device == "cuda" else [("float32", "ieee")]
    sizes = shapes or ([SMALL, MEDIUM] if device == "cuda" or preset != "quick" else [SMALL])
    return [Group(Workload("linear_relu", s, dtype, math), names, clocks, 0.3) for s in sizes for dtype, math in dtypes]


def _agreement(preset: str, device: str, shapes: Sequence[tuple[int, ...]]) -> list[Group]:
    sides = (64, 128, 192, 256, 384, 512) if device == "cuda" else (64, 96, 128, 160, 192, 256)
    sizes = shapes or [
        (batch, inner, outer) for batch in sides for inner, outer in ((128, 256), (256, 128), (256, 384), (384, 256))
    ]
    dtypes = (
        [("float32", "ieee"), ("bfloat16", "ieee")] if device == "cuda" else [("float32", "ieee"), ("float64", "ieee")]
    )
    dtypes = dtypes[:1] if preset == "quick" else dtypes
    clock = "graph" if device == "cuda" else "hot"
    return [
        Group(Workload("linear_relu", shape, dtype, math), ("eager", "eager" + AGAIN), (clock,), 0.15)
        for shape in sizes
        for dtype, math in dtypes
    ]


def _linear_relu_sizes(preset: str, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    if shapes:
        return list(shapes)
    sweep = [(64, 784, 256), (256, 1024, 1024), (512, 2048, 2048), (2048, 2048, 2048), (4096, 4096, 4096)]
    return {"quick": [SMALL, MEDIUM], "seed": [SMALL, MEDIUM, LARGE], "full": [SMALL, MEDIUM, LARGE, *sweep]}[preset]


def _linear_relu(
    names: tuple[str, ...], clocks: tuple[str, ...], preset: str, device: str, shapes: Sequence[tuple[int, ...]]
) -> list[tuple[Group, bool]]:
    """Groups over sizes and dtypes, each with whether it is timed; float16 and float64 are only checked."""
    gpu = device == "cuda"
    sizes = _linear_relu_sizes(preset, shapes)
    groups = []
    for shape in sizes:
        # On a CPU a large product takes seconds: one clock, one dtype.
        slow = not gpu and shape[0] * shape[1] * shape[2] > 2**33
        for dtype, math in _dtypes(device)[: 1 if slow else None]:
            groups.append(
                (Group(Workload("linear_relu", shape, dtype, math), names, clocks[: 1 if slow else None], 0.4), True)
            )
    for shape in shapes or [SMALL]:
        for dtype in ("float16", "float64"):
            # Nothing is compared here, so no twin; and tuning computes what plain compiling computes.
            once = tuple(name for name in names if AGAIN not in name and name != "compile_max_autotune")
            groups.append((Group(Workload("linear_relu", shape, dtype), once, (), 0.0), False))
    return groups


def _cpu_clocks(preset: str) -> tuple[str, ...]:
    return ("hot",) if preset == "quick" else ("hot", "cold")


def _naive(preset: str, device: str, shapes: Sequence[tuple[int, ...]]) -> list[Group]:
    names = ("eager", "eager" + AGAIN, "naive")
    clocks = ("graph", "cold") if device == "cuda" else _cpu_clocks(preset)
    return [group for group, _ in _linear_relu(names, clocks, preset, device, shapes)]


def _fusion(preset: str, device: str, shapes: Sequence[tuple[int, ...]]) -> list[Group]:
    gpu = device == "cuda"
    names = ("eager", "eager" + AGAIN, "cublas_relu", "aten", "epilogue", "compile")
    # Tuning takes a minute a shape on two cores.
    names += ("compile_max_autotune",) if gpu or preset != "quick" else ()
    clocks = ("graph", "wall") if gpu else _cpu_clocks(preset)
    groups = []
    for group, timed in _linear_relu(names, clocks, preset, device, shapes):
        groups.append(group)
        if not timed:
            continue
        work = group.workload
        # The wall clock, less the graph's, shows what launching costs with and without the ReLU.
        alone = ("graph", "wall") if gpu else ("hot",)
        groups.append(Group(Workload("linear", work.shape, work.dtype, work.math), ("eager",), alone, 0.3))
        if work.math == "ieee":
            out = (work.shape[0], work.shape[2])
            groups.append(Group(Workload("relu", out, work.dtype), ("eager",), alone[:1], 0.3))
    return groups


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
    clocks = ("graph", "wall") if gpu else ("hot",)
    names = ("eager", "eager_direct", "compile", "compile_reduce_overhead", "c_pixelwise", "c_openmp", "triton", "cuda")
    # Tuning, the anchored form in torch, and the A/A control are worth two sizes.
    more = ("eager" + AGAIN, "compile_anchored", "compile_max_autotune") if gpu or preset != "quick" else ()
    groups = [
        Group(Workload("diffraction", shape), names + (more if shape[0] in (1024, 4096) or shapes else ()), clocks, 0.1)
        for shape in _sides(preset, device, shapes)
    ]
    names += ("compile_anchored",)
    # float64 is only checked here; its times are the precision chapter's.
    checked = ("eager", "c_pixelwise", "c_openmp", *(("compile_anchored", "triton", "cuda") if gpu else ()))
    side = 1024 if gpu else 256
    for case in ("diffraction_triclinic", "diffraction_sources", "diffraction_table"):
        if preset != "quick" or case == "diffraction_table":
            # Nine steps unrolled take a minute to compile on two cores.
            compiles = gpu or (preset != "quick" and case != "diffraction_sources")
            own = names if compiles else ("eager", "eager_direct", "c_openmp", "c_pixelwise")
            groups.append(Group(Workload(case, (side, side)), own, clocks[:1], 0.1))
        groups.append(Group(Workload(case, (33, 77), "float64"), checked, (), 0))
    batch = (64, 256, 256) if gpu or preset != "quick" else (8, 128, 128)
    groups.append(
        Group(Workload("diffraction_batch", batch), ("one_by_one", "eager", "compile", "triton", "cuda"), clocks, 0.4)
    )
    return groups


def _whole_programs(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    sides = _sides(preset, device, shapes)
    count = 2 if preset == "quick" else 3
    # A Python program takes seconds to start, whatever the size: one size says it.
    named = [(shape, "c_openmp") for shape in (sides if preset != "quick" else sides[-1:])]
    named.append((sides[-1], "cuda" if device == "cuda" else "eager"))
    return [Probe("process", Workload("diffraction", shape), name, "", count) for shape, name in named]


def _profiles(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    side = 1024 if device == "cuda" or preset != "quick" else 256
    names = ("eager", "compile", "compile_reduce_overhead", "compile_anchored", "triton", "cuda")
    names = names if device == "cuda" else ("eager", "compile", "compile_anchored")
    names = names if device == "cuda" or preset != "quick" else names[:2]
    sizes = list(shapes) or [(side, side)]
    return [
        Probe("trace", Workload("diffraction", shape), name, "", 2 if preset == "quick" else 3)
        for shape in sizes
        for name in names
    ]


def _precision(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    clock = ("graph",) if gpu else ("hot",)
    sides = ([512] if not gpu else [1024]) if preset == "quick" else ([1024, 4096] if gpu else [1024])
    names = ("eager", "compile", "compile_anchored", "triton", "cuda")
    # Those with a clock of their own, the document's replayed graphs and C, are compared by the wall at one size.
    by_wall = ("eager" + AGAIN, "c_openmp", "compile_reduce_overhead")
    groups = [
        Group(
            Workload("diffraction", shape, dtype),
            names if gpu and shape[0] == 4096 else names + by_wall,
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
    count = 2 if quick else 3
    if not gpu and quick:
        small = Workload("diffraction", shapes[0] if shapes else (256, 256))
        ways = [("eager", ""), ("compile", "empty"), ("compile", "disk"), ("c_openmp", "cubin")]
        return [Probe("start", small, name, case, count) for name, case in ways]
    compiled = "compile_reduce_overhead" if gpu else "compile"
    # By size: the document's set-up and first runs, every compiler cache empty.
    # A process that compiles takes half a minute on a GPU box: three sizes show that the size does not matter.
    sides = _sides(preset, device, shapes)
    sides = sides[::2] if gpu and preset != "full" and not shapes else sides
    probes = [Probe("start", Workload("diffraction", shape), compiled, "empty", 2) for shape in sides]
    work = Workload("diffraction", shapes[0] if shapes else (1024, 1024))
    slow = [("compile", "empty"), ("compile", "disk"), ("compile", "mega"), ("compile", "aoti_package")]
    fast = [("eager", ""), ("compile", "aoti_raw"), ("c_openmp", "cubin")]
    if gpu:
        slow += [("compile_max_autotune", "empty"), ("triton", "no cubin"), ("cuda", "no cubin")]
        fast += [("triton", "cubin"), ("cuda", "cubin")]
    # The ways that compete for the first image are worth more processes.
    counts = ((slow, 2), (fast, 4 if gpu else 6))
    return probes + [Probe("start", work, *way, processes) for ways, processes in counts for way in ways]


STEPS = (
    "naive",
    "step_coalesced",
    "step_shared",
    "step_registers_1d",
    "step_registers_2d",
    "step_vectorized",
    "step_conflict_free",
    "step_async",
)
"""The ladder on the vector units, easiest first."""

TENSOR_STEPS = ("step_mma", "step_wgmma", "step_multicast")
"""Its continuation on the tensor cores, in 16 bits."""


def _ladder(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    if not gpu:
        names = ("eager", "eager" + AGAIN, "naive", "blocked", "threaded")
        sizes = list(shapes) or ([SMALL] if preset == "quick" else [SMALL, MEDIUM])
        return [Group(Workload("linear_relu", shape), names, ("hot",), 0.3) for shape in sizes]
    groups = []
    for shape in _linear_relu_sizes("seed" if preset == "full" else preset, shapes):
        # At the large size one call of a first step takes a third of a second.
        budget_s = 0.1 if shape == LARGE else 0.2
        vector = ("eager", "eager" + AGAIN, *STEPS, "epilogue")
        groups.append(Group(Workload("linear_relu", shape), vector, ("graph",), budget_s))
        tensor = ("eager", "eager" + AGAIN, "step_async", *TENSOR_STEPS, "triton", "epilogue")
        groups.append(Group(Workload("linear_relu", shape, "bfloat16"), tensor, ("graph",), budget_s))
    return groups


def _tensor_cores(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    split = ("eager", "eager" + AGAIN, "epilogue", "compile", *(("tf32x3", "fp16x3") if gpu else ()))
    fused = ("eager", "eager" + AGAIN, "epilogue", "compile", *(("compile_max_autotune", "triton") if gpu else ()))
    sizes = _linear_relu_sizes("quick" if not gpu else preset, shapes)[: None if preset != "quick" or gpu else 1]
    groups = []
    for shape in sizes:
        groups.append(Group(Workload("linear_relu", shape), split, ("graph",) if gpu else ("hot",), 0.3))
        groups.append(Group(Workload("linear_relu", shape, "bfloat16"), fused, ("graph",) if gpu else ("hot",), 0.3))
        if gpu:
            tf32 = ("eager", "epilogue", "triton")
            groups.append(Group(Workload("linear_relu", shape, "float32", "tf32"), tf32, ("graph",), 0.2))
    return groups


def _one_kernel(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    if device != "cuda":
        return []
    shape = shapes[0] if shapes else MEDIUM
    named = [("bfloat16", name) for name in ("eager", "epilogue", "triton", "step_wgmma")]
    named += [("float32", name) for name in ("epilogue", "tf32x3", "fp16x3")]
    return [Probe("trace", Workload("linear_relu", shape, dtype), name, "", 1) for dtype, name in named]


def _backward(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    clocks = ("graph", "wall") if gpu else ("hot",)
    names = (
        "eager",
        "eager" + AGAIN,
        "compile",
        "cublas_relu",
        "aten",
        "epilogue",
        *(("fused_backward",) if gpu else ()),
    )
    groups = []
    for shape in _linear_relu_sizes("seed" if preset == "full" else preset, shapes):
        if not gpu and (shape == LARGE or (preset == "quick" and shape != SMALL)):
            continue  # seconds a call
        for dtype in ("float32", "bfloat16") if gpu else ("float32",):
            work = Workload("linear_relu", shape, dtype, direction="forward_backward")
            # S002 compares v2 with v1 at this size, in this dtype.
            first = ("naive",) if (shape, dtype) == (MEDIUM, "float32") else ()
            groups.append(
                Group(work, (*names, *first), clocks if shape == MEDIUM else clocks[:1], 0.15 if gpu else 0.3)
            )
    return groups


MLP_ROWS, MLP_WIDTHS = (64, 1024, 16384, 65536, 262144), (16, 32, 64, 128, 256, 512, 1024)


def _fused_mlp(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu, quick = device == "cuda", preset == "quick"
    both = ("eager", "eager" + AGAIN)
    if not gpu:
        sizes = list(shapes) or [(1024, 64), (16384, 64), (1024, 512)][: 1 if quick else None]
        return [Group(Workload("mlp3", shape), (*both, "compile", "epilogue"), ("hot",), 0.2) for shape in sizes]
    # Compilers are asked at the sizes of the goal only: each takes seconds a size.
    goals = [] if shapes else [(65536, 64), (65536, 128)]
    names = (*both, "compile", "compile_max_autotune", "epilogue", "fused", "fused_cuda")
    groups = [
        Group(Workload(operation, shape, "bfloat16"), names, ("graph",), 0.2)
        for operation in ("mlp3", "mlp2")
        for shape in goals
    ]
    sweep = [(rows, width) for rows in ((65536,) if quick else MLP_ROWS) for width in MLP_WIDTHS]
    return groups + [
        Group(Workload("mlp3", shape, "bfloat16"), ("eager", "epilogue", "fused", "fused_cuda"), ("graph",), 0.05)
        for shape in list(shapes) or sweep
        if shape not in goals
    ]


def _mlp_models(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    # The safety test's model, then the benchmark's.
    models = list(shapes) or [(32, 784, 256, 2, 10), *MODELS[: 3 if preset == "quick" else None]]
    groups = []
    for shape in models:
        # The compiler is asked for every third model: it takes seconds each.
        names = ("eager", "eager" + AGAIN, "aten", "epilogue", *(("compile",) if shape in MODELS[::3] else ()))
        clocks = ("graph", "wall") if gpu else ("hot",)
        groups.append(Group(Workload("mlp", shape), names, clocks, 0.08 if gpu else 0.3))
    return groups


def _layout(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    names = ("row_major" + AGAIN, *variants("linear_relu_layout"))
    sizes = list(shapes) or ([SMALL, MEDIUM, LARGE] if gpu and preset != "quick" else [SMALL, MEDIUM])
    groups = []
    for shape in sizes:
        # Launching is no part of a large call.
        clocks = ("hot",) if not gpu else ("graph",) if shape == LARGE else ("graph", "wall")
        for dtype in ("float32", "bfloat16") if gpu else ("float32",):
            groups.append(Group(Workload("linear_relu_layout", shape, dtype), names, clocks, 0.08 if gpu else 0.2))
    return groups


def _layout_kernels(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    # A copy inside the library shows as one more kernel; on a CPU nothing would show it.
    if device != "cuda":
        return []
    work = Workload("linear_relu_layout", shapes[0] if shapes else MEDIUM)
    names = ("row_major", "x_strided_batch") if preset == "quick" else tuple(variants("linear_relu_layout"))
    return [Probe("trace", work, name, "", 1) for name in names]


def _conv_sizes(preset: str, device: str, shapes: Shapes) -> list[tuple[int, ...]]:
    # On two cores one call of the seeds' loops takes seconds at the seeds' size.
    small = (1, 16, 64, 64)
    sizes = [small] if preset == "quick" and device == "cpu" else [SEED_SHAPE]
    sizes += [(5, 16, 128, 128), (5, 128, 64, 64), (5, 64, 512, 512)] if preset == "full" and device == "cuda" else []
    return list(shapes) or sizes


def _conv_block(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu, quick = device == "cuda", preset == "quick"
    sizes = _conv_sizes(preset, device, shapes)
    clocks = ("graph", "wall") if gpu else ("hot",)
    both, peers = ("eager", "eager" + AGAIN), ("eager_channels_last", "group_norm", "compile")
    names = (*both, *(("naive", "naive_malloc") if gpu else ("naive", "threaded")), *peers)
    # Tuning takes a minute a shape on two cores.
    names += ("compile_channels_last", "compile_max_autotune") if gpu or not quick else ()
    groups = [
        Group(Workload("conv_block", shape, dtype, math), names, clocks, 0.2)
        for shape in sizes
        for dtype, math in _dtypes(device)
    ]
    if gpu or not quick:
        trained = (*both, "eager_channels_last", "group_norm", "compile", "compile_channels_last")
        groups += [
            Group(Workload("conv_block", sizes[0], dtype, math, "forward_backward"), trained, clocks[:1], 0.2)
            for dtype, math in _dtypes(device)
        ]
    # The other GELU and the other dtypes are only checked.
    others = [("conv_block_tanh", "float32"), ("conv_block", "float16"), ("conv_block", "float64")]
    small = sizes[0] if gpu else (1, 16, 33, 29)
    once = tuple(name for name in names if AGAIN not in name and not name.startswith("compile"))
    return groups + [Group(Workload(operation, small, dtype), once, (), 0.0) for operation, dtype in others]


def _conv_kernels(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    names = ("eager", "naive", "eager_channels_last", "group_norm", "compile")[: 2 if preset == "quick" else None]
    work = Workload("conv_block", _conv_sizes(preset, device, shapes)[0])
    return [Probe("trace", work, name, "", 1) for name in names]


def _torch_compile(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu, quick = device == "cuda", preset == "quick"
    clocks = ("graph", "wall") if gpu else ("hot",)
    both = ("eager", "eager" + AGAIN)
    names = (*both, "script", "compile", "compile_channels_last", "eager_channels_last")
    names += ("compile_reduce_overhead", "compile_max_autotune") if gpu else ()
    sizes = _conv_sizes(preset, device, shapes)
    kinds = [*_dtypes(device), ("float16", "ieee")] if gpu else _dtypes(device)[: 1 if quick else None]
    groups = [
        Group(Workload("conv_block", shape, dtype, math), names, clocks, 0.2)
        for shape in sizes
        for dtype, math in kinds
    ]
    # S000's "better batching": images at once.
    batches = [] if quick or shapes else [(n, *SEED_SHAPE[1:]) for n in ((1, 20, 80) if gpu else (1,))]
    return groups + [
        Group(Workload("conv_block", shape, dtype), (*both, "compile"), clocks, 0.1)
        for shape in batches
        for dtype in (("float32", "bfloat16") if gpu else ("float32",))
    ]


def _traffic(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    one_call = ("epilogue", "aten", "cublas_relu", "eager")
    if device != "cuda":
        # No counters: the record says so once, and counts operators instead of kernels.
        work = Workload("linear_relu", shapes[0] if shapes else SMALL)
        return [Probe("trace", work, name, "", 1) for name in one_call] + [Probe("counters", work, "eager", "", 1)]
    quick = preset == "quick"
    sizes, dtypes = list(shapes) or [MEDIUM, SMALL], ("float32", "bfloat16")
    if quick:
        sizes, dtypes, one_call = sizes[:1], dtypes[:1], ("epilogue", "eager")
    count = 3 if preset == "full" else 1  # bytes hardly differ from process to process
    probes = []
    for work in (Workload("linear_relu", shape, dtype) for shape in sizes for dtype in dtypes):
        names = (
            ("eager", "naive", "cublas_relu", "aten", "epilogue") if work.shape == sizes[0] else ("eager", "epilogue")
        )
        probes += [Probe("counters", work, name, "", count) for name in names]
        if not quick and (work.shape, work.dtype) == (sizes[0], "float32"):
            # S001's own table, in its size and dtype, adds up what each kernel moves by itself.
            probes += [Probe("counters", work, name, "each kernel", count) for name in names[:3]]
        probes += [Probe("trace", work, name, "", 1) for name in one_call]
    return probes


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("ceilings", "01_method", "what the machine can do at best", "matmul", _ceilings),
        Experiment("method", "01_method", "one operation under every clock", "linear_relu", _method),
        Experiment(
            "agreement",
            "01_method",
            "A/A: does the lab see differences where there are none",
            "linear_relu",
            _agreement,
        ),
        Experiment(
            "naive_vs_cublas", "02_naive_vs_cublas", "one thread per output against the library", "linear_relu", _naive
        ),
        Experiment("aten_fusion", "03_aten_fusion", "what fusing Linear and ReLU gives", "linear_relu", _fusion),
        Experiment(
            "diffraction",
            "07_diffraction",
            "a diffraction simulator: C, torch, compiled torch, one kernel",
            "diffraction",
            _diffraction,
            _whole_programs,
        ),
        Experiment("profile", "08_profile", "kernels, launches and gaps of one image", "diffraction", probes=_profiles),
        Experiment(
            "precision", "09_precision", "float32, float64, TF32 and split products", "matmul", _precision, _accuracy
        ),
        Experiment("warm_up", "10_warm_up", "every call of a fresh process", "diffraction", probes=_starts),
        Experiment(
            "conv_block", "05_conv_block", "three kernels against the library", "conv_block", _conv_block, _conv_kernels
        ),
        Experiment(
            "torch_compile", "06_torch_compile", "the same block compiled, scripted", "conv_block", _torch_compile
        ),
        Experiment("gemm_ladder", "04_gemm_ladder", "a product, one idea a step", "linear_relu", _ladder),
        Experiment(
            "tensor_cores",
            "14_tensor_cores",
            "float32's digits and bfloat16's speed on the tensor cores",
            "linear_relu",
            _tensor_cores,
            _one_kernel,
        ),
        Experiment("backward", "15_backward", "the gradient of Linear and ReLU", "linear_relu", _backward),
        Experiment("fused_mlp", "16_fused_mlp", "two and three layers in one kernel", "mlp3", _fused_mlp),
        Experiment("mlp_models", "16_fused_mlp", "the documents' nine models, layer by layer", "mlp", _mlp_models),
        Experiment(
            "layout",
            "17_layout_traffic",
            "row-major, column-major, packed, padded, unaligned and copied operands",
            "linear_relu_layout",
            _layout,
            _layout_kernels,
        ),
        Experiment(
            "traffic", "17_layout_traffic", "bytes that a call moves, and its kernels", "linear_relu", probes=_traffic
        ),
    )
}
