"""Linear+ReLU and the models built of it: what is compared, at which sizes, by which clocks."""

from __future__ import annotations

from dataclasses import replace

from hypatia_lab import variants
from hypatia_lab.experiments.plan import FOR_GOALS, Experiment, Group, Probe, Shapes, asked, cpu_clocks, dtypes, peers
from hypatia_lab.operations.mlp import MODELS
from hypatia_lab.variants import AGAIN, WHOLE_DEVICE
from hypatia_lab.workloads import SPLIT, Workload

SMALL, MEDIUM, LARGE = (256, 256, 512), (1024, 784, 2048), (8192, 4096, 4096)
"""batch × in × out: the seeds' three sizes."""


FEASIBLE = (512, 512, 512)
"""What the naive loop computes in a tenth of a second on one of two cores; the medium size takes it over a second."""


def _linear_relu_sizes(preset: str, shapes: Shapes) -> list[tuple[int, ...]]:
    if shapes:
        return list(shapes)
    sweep = [(64, 784, 256), (256, 1024, 1024), (512, 2048, 2048), (2048, 2048, 2048), (4096, 4096, 4096)]
    return {"quick": [SMALL, MEDIUM], "seed": [SMALL, MEDIUM, LARGE], "full": [SMALL, MEDIUM, LARGE, *sweep]}[preset]


def _sparing(preset: str, device: str, shape: tuple[int, ...], shapes: Shapes) -> bool:
    """Whether no compiler and no tuner is asked at ``shape``: they take seconds in each of five processes,
    so the seeds' preset of a GPU asks them at the medium size alone."""
    return (preset, device) == ("seed", "cuda") and shape != MEDIUM and not shapes


def _linear_relu(
    names: tuple[str, ...], clocks: tuple[str, ...], preset: str, device: str, shapes: Shapes
) -> list[tuple[Group, bool]]:
    """Groups over sizes and dtypes, each with whether it is timed; float16 and float64 are only checked."""
    gpu = device == "cuda"
    brief = not gpu and preset == "quick"  # one dtype; the page of checks has the others
    sizes = _linear_relu_sizes(preset, shapes)
    groups = []
    for shape in sizes:
        # On a CPU a large product takes seconds: one clock, one dtype.
        slow = not gpu and shape[0] * shape[1] * shape[2] > 2**33
        for dtype, math in dtypes(device)[: 1 if slow or brief else None]:
            work, budget_s = Workload("linear_relu", shape, dtype, math), 0.1 if brief else 0.4
            groups.append((Group(work, names, clocks[: 1 if slow else None], budget_s), True))
    for shape in shapes or [SMALL]:
        for dtype in () if brief else ("float16", "float64"):
            # Nothing is compared here, so no twin; and tuning computes what plain compiling computes.
            once = tuple(name for name in names if AGAIN not in name and name != "compile_max_autotune")
            groups.append((Group(Workload("linear_relu", shape, dtype), once, (), 0.0), False))
    return groups


def _naive(preset: str, device: str, shapes: Shapes) -> list[Group]:
    names = ("eager", "eager" + AGAIN, "naive")
    clocks = ("graph", "cold") if device == "cuda" else cpu_clocks(preset)
    if (preset, device) == ("quick", "cpu"):
        shapes = shapes or (SMALL, FEASIBLE)
    return [group for group, _ in _linear_relu(names, clocks, preset, device, shapes)]


def _fusion(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    names = ("eager", "eager" + AGAIN, *variants.names("linear_relu", "fusion"))
    names += (*asked(preset, device, "compile"), *variants.names("linear_relu"))
    # Each of five processes tunes anew, which takes up to a minute a shape; the page on tensor cores has the tuner.
    names += ("compile_max_autotune",) if preset == "full" else ()
    clocks = ("graph", "wall") if gpu else cpu_clocks(preset)
    groups = []
    for group, timed in _linear_relu(names, clocks, preset, device, shapes):
        work = group.workload
        if (preset, device, work.shape) == (
            "quick",
            "cpu",
            MEDIUM,
        ):  # thirty milliseconds a call
            group = replace(group, variants=("eager", "eager" + AGAIN, "epilogue"))
        groups.append(group)
        if not timed:
            continue
        # The wall clock, less the graph's, shows what launching costs with and without the ReLU.
        alone = ("graph", "wall") if gpu else ("hot",)
        budget_s = min(0.3, group.budget_s)
        groups.append(Group(Workload("linear", work.shape, work.dtype, work.math), ("eager",), alone, budget_s))
        if work.math == "ieee":
            out = (work.shape[0], work.shape[2])
            groups.append(Group(Workload("relu", out, work.dtype), ("eager",), alone[:1], budget_s))
    return groups


def _ladder(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    if not gpu:
        names = ("eager", "eager" + AGAIN, *variants.names("linear_relu", "ladder_cpu"))
        sizes = list(shapes) or ([SMALL] if preset == "quick" else [SMALL, MEDIUM])
        return [Group(Workload("linear_relu", shape), names, ("hot",), 0.3) for shape in sizes]
    groups = []
    steps = variants.names("linear_relu", "ladder_vector")
    # The last step on the vector units once more, in 16 bits, so that the way goes on from there.
    halves = (steps[-1], *variants.names("linear_relu", "ladder_tensor"))
    for shape in _linear_relu_sizes("seed" if preset == "full" else preset, shapes):
        # At the large size one call of a first step takes a third of a second.
        budget_s = 0.1 if shape == LARGE else 0.2
        vector = ("eager", "eager" + AGAIN, *steps, "epilogue")
        groups.append(Group(Workload("linear_relu", shape), vector, ("graph",), budget_s))
        tensor = ("eager", "eager" + AGAIN, *halves, "triton", "epilogue")
        groups.append(Group(Workload("linear_relu", shape, "bfloat16"), tensor, ("graph",), budget_s))
    return groups


def _tensor_cores(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    both = ("eager", "eager" + AGAIN, "epilogue")
    split = variants.names("linear_relu", "split") if gpu else ()
    fused = ("triton", "cuda") if gpu else ()
    sizes = _linear_relu_sizes("quick" if not gpu else preset, shapes)[: None if preset != "quick" or gpu else 1]
    others = peers("linear_relu", preset, device, own_stream=False)
    groups = []
    for shape in sizes:
        by = ("graph",) if gpu else ("hot",)
        sparing = _sparing(preset, device, shape, shapes)
        compiled = () if sparing else asked(preset, device, "compile")
        tuned = ("compile_max_autotune",) if gpu and not sparing else ()
        # Small kernels differ from process to process, hardly within one; what power holds back needs its time.
        budget_s = 0.05 if gpu and shape != LARGE else 0.2
        groups.append(Group(Workload("linear_relu", shape), (*both, *compiled, *split, *others), by, budget_s))
        names = (*both, *compiled, *tuned, *fused, *others)
        groups.append(Group(Workload("linear_relu", shape, "bfloat16"), names, by, budget_s))
        if gpu:
            tf32 = ("eager", "epilogue", *fused, *others)
            groups.append(Group(Workload("linear_relu", shape, "float32", "tf32"), tf32, ("graph",), budget_s))
    return groups + _on_own_streams(preset, device, shapes)


def _on_own_streams(preset: str, device: str, shapes: Shapes) -> list[Group]:
    """Peers that no graph captures, beside what they are to be compared with, by the clocks that see them."""
    others = peers("linear_relu", preset, device, own_stream=True)
    if not others:
        return []
    plain = ("eager", "epilogue", "triton", "cuda", *others)
    kinds = {
        ("float32", "ieee"): ("eager", "epilogue", "fp16x3", "tf32x3", *others),
        ("float32", "tf32"): plain,
        ("bfloat16", "ieee"): plain,
        **{("float32", math): ("triton", *others) for math in SPLIT},
    }
    groups = []
    for work in (Workload("linear_relu", shape, *kind) for shape in shapes or (MEDIUM, LARGE) for kind in kinds):
        able = tuple(name for name in kinds[work.dtype, work.math] if _multiplies(name, work))
        if (preset, work) == ("seed", Workload("linear_relu", LARGE)):
            # XLA tries out for seven seconds in each of five processes what is the library's in the end.
            able = tuple(name for name in able if name != "jax")
        # Each sample starts and stops a profiler, which takes far longer than what is timed.
        groups.append(Group(work, able, WHOLE_DEVICE, 0.05))
    return groups


def _multiplies(name: str, work: Workload) -> bool:
    """Whether the variant ``name`` has the arithmetic of ``work``; only float32's operands are split."""
    one = variants.find(work.operation, name)
    return work.math in one.maths and (work.dtype == "float32" or one.splits is None)


def _one_kernel(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    if device != "cuda":
        return []
    shape = shapes[0] if shapes else MEDIUM
    named = [("bfloat16", name) for name in ("eager", "epilogue", "triton", "cuda", "step_wgmma")]
    named += [("float32", name) for name in ("epilogue", "tf32x3", "fp16x3")]
    return [Probe("trace", Workload("linear_relu", shape, dtype), name, "", 1) for dtype, name in named]


def _backward(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    clocks = ("graph", "wall") if gpu else ("hot",)
    names = ("eager", "eager" + AGAIN, *variants.names("linear_relu", "fusion", direction="forward_backward"))
    names += variants.names("linear_relu", "backward", direction="forward_backward") if gpu else ()
    names += variants.names("linear_relu", direction="forward_backward")
    compiled = asked(preset, device, "compile")
    others = peers("linear_relu", preset, device, own_stream=False, direction="forward_backward")
    groups = []
    for shape in _linear_relu_sizes("seed" if preset == "full" else preset, shapes):
        if not gpu and (shape == LARGE or (preset == "quick" and shape != SMALL)):
            continue  # seconds a call
        for dtype in ("float32", "bfloat16") if gpu else ("float32",):
            work = Workload("linear_relu", shape, dtype, direction="forward_backward")
            # S002 compares v2 with v1 at this size, in this dtype.
            first = ("naive",) if (shape, dtype) == (MEDIUM, "float32") else ()
            sparing = _sparing(preset, device, shape, shapes)
            chosen = () if sparing else compiled
            chosen += () if sparing and (shape, dtype) != (LARGE, "float32") else others  # there is a goal
            by = clocks if shape == MEDIUM else clocks[:1]
            groups.append(Group(work, (*names, *chosen, *first), by, 0.15 if gpu else 0.3))
    return groups


MLP_ROWS, MLP_WIDTHS, LAYERWISE_WIDTHS = (64, 1024, 16384, 65536, 262144), (16, 32, 64, 128, 256), (512, 1024)
"""Rows, widths that a kernel takes whole, and wider ones, whose layers stand alone: those are the full preset's."""


def _fused_mlp(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu, quick = device == "cuda", preset == "quick"
    both = ("eager", "eager" + AGAIN)
    if not gpu:
        sizes = list(shapes) or [(1024, 64), (16384, 64), (1024, 512)][: 1 if quick else None]
        names = (*both, *asked(preset, device, "compile"), "epilogue", *variants.names("mlp3"))
        return [Group(Workload("mlp3", shape), names, ("hot",), 0.2) for shape in sizes]
    # Compilers are asked at the sizes of the goal only: each takes seconds a size.
    goals = [] if shapes else [(65536, 64), (65536, 128)]
    own = {name: (*variants.names(name, "fused"), *variants.names(name)) for name in ("mlp3", "mlp2")}
    groups = []
    for operation, shape in ((operation, shape) for operation in ("mlp3", "mlp2") for shape in goals):
        work = Workload(operation, shape, "bfloat16")
        # The compilers take seconds in each of five processes, the tuner up to a minute.
        least = operation == "mlp2" and preset == "seed"
        compiled = () if least else ("compile", *peers(operation, preset, device, own_stream=False))
        tuned = ("compile_max_autotune",) if preset == "full" or (operation, shape) == ("mlp3", goals[-1]) else ()
        names = (*both, "epilogue", *compiled, *tuned, *own[operation])
        groups.append(Group(work, names, ("graph",), 0.2))
        if others := () if least else peers(operation, preset, device, own_stream=True):
            groups.append(Group(work, ("eager", *own[operation], *others), WHOLE_DEVICE, 0.05))
    widths = MLP_WIDTHS + (LAYERWISE_WIDTHS if preset == "full" else ())
    sweep = [(rows, width) for rows in ((65536,) if quick else MLP_ROWS) for width in widths]
    return groups + [
        Group(Workload("mlp3", shape, "bfloat16"), ("eager", "epilogue", *own["mlp3"]), ("graph",), 0.03)
        for shape in list(shapes) or sweep
        if shape not in goals
    ]


def _mlp_models(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    # The safety test's model, then the benchmark's.
    models = list(shapes) or [(32, 784, 256, 2, 10), *MODELS[: (3 if gpu else 1) if preset == "quick" else None]]
    groups = []
    for shape in models:
        # The compiler is asked for every third model: it takes seconds each.
        names = (
            "eager",
            "eager" + AGAIN,
            "aten",
            "epilogue",
            *(asked(preset, device, "compile") if shape in MODELS[::3] else ()),
            *variants.names("mlp"),
        )
        clocks = ("graph", "wall") if gpu else ("hot",)
        groups.append(Group(Workload("mlp", shape), names, clocks, 0.08 if gpu else 0.3))
    return groups


def _layout(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    names = ("row_major" + AGAIN, *variants.variants("linear_relu_layout"))
    several = [SMALL] if preset == "quick" else [SMALL, MEDIUM, LARGE][: 3 if gpu else 2]
    groups = []
    for shape in list(shapes) or several:
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
    names = ("row_major", "x_strided_batch") if preset == "quick" else tuple(variants.variants("linear_relu_layout"))
    return [Probe("trace", work, name, "", 1) for name in names]


def _traffic(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    one_call = ("epilogue", "aten", "cublas_relu", "eager")
    if device != "cuda":
        # No counters: the record says so once, and counts operators instead of kernels.
        work = Workload("linear_relu", shapes[0] if shapes else SMALL)
        traced = one_call[:: 3 if preset == "quick" else 1]
        return [Probe("trace", work, name, "", 1) for name in traced] + [Probe("counters", work, "eager", "", 1)]
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


EXPERIMENTS = (
    Experiment(
        "naive_vs_cublas", "02_naive_vs_cublas", "one thread per output against the library", "linear_relu", _naive
    ),
    Experiment("aten_fusion", "03_aten_fusion", "what fusing Linear and ReLU gives", "linear_relu", _fusion),
    Experiment("gemm_ladder", "04_gemm_ladder", "a product, one idea a step", "linear_relu", _ladder, least=FOR_GOALS),
    Experiment(
        "tensor_cores",
        "14_tensor_cores",
        "float32's digits and bfloat16's speed on the tensor cores",
        "linear_relu",
        _tensor_cores,
        _one_kernel,
        least=FOR_GOALS,
    ),
    Experiment("backward", "15_backward", "the gradient of Linear and ReLU", "linear_relu", _backward, least=FOR_GOALS),
    Experiment("fused_mlp", "16_fused_mlp", "two and three layers in one kernel", "mlp3", _fused_mlp, least=FOR_GOALS),
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
