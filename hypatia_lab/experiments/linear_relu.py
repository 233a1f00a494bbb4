"""Linear+ReLU and the models built of it: what is compared, at which sizes, by which clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from hypatia_lab import variants
from hypatia_lab.experiments.axes import (
    BOTH,
    CALLED,
    CPU_CLOCKS,
    FEWER_KINDS,
    KINDS,
    STEP,
    Looks,
    Setting,
    Sweep,
    experiment,
)
from hypatia_lab.experiments.plan import FOR_GOALS, Group, Probe
from hypatia_lab.operations.mlp import MODELS
from hypatia_lab.workloads import SPLIT, Workload

SMALL, MEDIUM, LARGE = (256, 256, 512), (1024, 784, 2048), (8192, 4096, 4096)
"""batch × in × out: the seeds' three sizes."""
FEASIBLE = (512, 512, 512)
"""What the naive loop computes in a tenth of a second on one of two cores; the medium size takes it over a second."""
MORE = ((64, 784, 256), (256, 1024, 1024), (512, 2048, 2048), (2048, 2048, 2048), (4096, 4096, 4096))
SEEDS = {"quick": (SMALL, MEDIUM), "": (SMALL, MEDIUM, LARGE)}
SIZES = {"full": (SMALL, MEDIUM, LARGE, *MORE), **SEEDS}


def sparing(names: str, besides: Mapping[Any, Any] | None = None) -> Mapping[str, Any]:
    """What asks a compiler or a tuner, which take seconds in each of five processes: the seeds' preset of a GPU asks
    them at the medium size alone, and ``besides``."""
    return {"seed cuda": {"asked": names, MEDIUM: names, **(besides or {})}, "": names}


# ---------------------------------------------------------------- a layer, forward

NAIVE = Sweep(
    "linear_relu",
    {"quick cpu": (SMALL, FEASIBLE), **SIZES},
    f"{BOTH} naive",
    # On a CPU a large product takes seconds: one clock, one dtype. In its quick preset the page of checks has the rest.
    {"slow": "float32", "quick cpu": "float32", **KINDS},
    clocks={"slow": "hot", "cuda": "graph cold", **CPU_CLOCKS},
    budget_s={"quick cpu": 0.1, "": 0.4},
)
CHECKED = Sweep("linear_relu", (SMALL,), "eager naive", {"quick cpu": "", "": "float16 float64"}, clocks="")
FUSED = replace(
    NAIVE,
    shapes=SIZES,
    names={
        "quick cpu": {MEDIUM: f"{BOTH} epilogue", "": f"{BOTH} #fusion #new"},  # thirty milliseconds a call
        # Each of five processes tunes anew, up to a minute a shape; the page on tensor cores has the tuner.
        "full": f"{BOTH} #fusion compile #new compile_max_autotune",
        "": f"{BOTH} #fusion compile #new",
    },
    clocks={"slow": "hot", "cuda": "graph wall", **CPU_CLOCKS},
)


def _fusion(at: Setting) -> Iterator[Group]:
    """Each size and dtype, and its parts: the wall clock, less the graph's, shows what launching costs with and without
    the ReLU."""
    clocks = tuple(at.pick(CALLED).split())
    for group in FUSED(at):
        yield group
        work, budget_s = group.workload, min(0.3, group.budget_s)
        yield Group(Workload("linear", work.shape, work.dtype, work.math), ("eager",), clocks, budget_s)
        if work.math == "ieee":
            out = (work.shape[0], work.shape[2])
            yield Group(Workload("relu", out, work.dtype), ("eager",), clocks[:1], budget_s)


LAST = "step_async"
"""The last step on the vector units: once more in 16 bits, so that the way goes on from there."""
LADDER = Sweep(
    "linear_relu",
    {"quick cpu": (SMALL,), "cpu": (SMALL, MEDIUM), **SEEDS},
    {
        "cpu": f"{BOTH} #ladder_cpu",
        "float32": f"{BOTH} #ladder_vector epilogue",
        "": f"{BOTH} {LAST} #ladder_tensor triton epilogue",
    },
    FEWER_KINDS,
    budget_s={"cpu": 0.3, LARGE: 0.1, "": 0.2},  # there one call of a first step takes a third of a second
)

# ---------------------------------------------------------------- tensor cores

TENSOR_CORES = Sweep(
    "linear_relu",
    {"quick cpu": (SMALL,), "cpu": (SMALL, MEDIUM), **SIZES},
    {
        "cpu": f"{BOTH} epilogue ?compile",
        "tf32": "eager epilogue triton cuda #peers",
        "float32": (BOTH, "epilogue", sparing("compile"), "#split", "#peers"),
        "": (BOTH, "epilogue", sparing("compile compile_max_autotune"), "triton cuda #peers"),
    },
    {"cuda": "float32 bfloat16 tf32", "quick": {"first": "float32 bfloat16"}, "": "float32 bfloat16"},
    # Small kernels differ from process to process, hardly within one; what power holds back needs its time.
    budget_s={"cpu": 0.2, LARGE: 0.2, "": 0.05},
)
APART = Sweep(
    "linear_relu",
    {"quick": (), "cuda": (MEDIUM, LARGE)},
    {
        "float32 ieee": "eager epilogue fp16x3 tf32x3 #apart",
        **dict.fromkeys(SPLIT, "triton #apart"),
        "": "eager epilogue triton cuda #apart",
    },
    f"{KINDS['cuda']} {' '.join(SPLIT)}",
    clocks="wall profiler",
    budget_s=0.05,  # each sample starts and stops a profiler, which takes far longer than what is timed
)


def _apart(at: Setting) -> Iterator[Group]:
    """Peers that no graph captures, beside what they are to be compared with, by the clocks that see them."""
    for group in APART(at):
        able = tuple(name for name in group.variants if _multiplies(name, group.workload))
        if (at.preset, group.workload) == ("seed", Workload("linear_relu", LARGE)):
            # XLA tries out for seven seconds in each of five processes what is the library's in the end.
            able = tuple(name for name in able if name != "jax")
        yield replace(group, variants=able)


def _multiplies(name: str, work: Workload) -> bool:
    """Whether the variant ``name`` has the arithmetic of ``work``; only float32's operands are split."""
    one = variants.find(work.operation, name)
    return work.math in one.maths and (work.dtype == "float32" or one.splits is None)


ONE_KERNEL = Looks(
    "linear_relu",
    {"cuda": (MEDIUM,)},
    {"bfloat16": "eager epilogue triton cuda step_wgmma", "": "epilogue tf32x3 fp16x3"},
    "bfloat16 float32",
    asked="first",
)
BACKWARD = Sweep(
    "linear_relu",
    SEEDS,
    (
        f"{BOTH} #fusion",
        {"cuda": "#backward"},
        "#new",
        sparing("?compile"),
        sparing("#peers", {LARGE: {"float32": "#peers"}}),  # where there is a goal
        {MEDIUM: {"float32": "naive"}},  # S002 compares v2 with v1 at this size, in this dtype
    ),
    # Others take a CPU seconds a call.
    {"cuda": "float32 bfloat16", LARGE: "", "quick": {SMALL: "float32"}, "": "float32"},
    STEP,
    clocks={"cpu": "hot", MEDIUM: "graph wall", "": "graph"},
    budget_s={"cuda": 0.15, "cpu": 0.3},
)

# ---------------------------------------------------------------- models

GOALS = ((65536, 64), (65536, 128))
"""Compilers are asked at the sizes of the goal only: each takes seconds a size, and the tuner up to a minute."""
ROWS, WIDTHS, LAYERWISE_WIDTHS = (64, 1024, 16384, 65536, 262144), (16, 32, 64, 128, 256), (512, 1024)
"""Rows, widths that a kernel takes whole, and wider ones, whose layers stand alone: those are the full preset's."""


def _others(rows: tuple[int, ...], widths: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(shape for shape in product(rows, widths) if shape not in GOALS)


MLP_ON_CPU = Sweep(
    "mlp3",
    {"quick cpu": ((1024, 64),), "cpu": ((1024, 64), (16384, 64), (1024, 512))},
    f"{BOTH} ?compile epilogue #new",
    budget_s=0.2,
)
TUNED = "compile_max_autotune"
MLP3 = Sweep(
    "mlp3",
    {"cuda": GOALS},
    (BOTH, "epilogue", "compile", "#peers", {"full": TUNED, GOALS[-1]: TUNED}, "#fused", "#new"),
    "bfloat16",
    asked="dropped",
    budget_s=0.2,
)
MLP3_APART = replace(
    MLP3, shapes={"quick": (), "cuda": GOALS}, names="eager #fused #new #apart", clocks="wall profiler", budget_s=0.05
)
MLP2 = replace(
    MLP3,
    operation="mlp2",
    names=(BOTH, "epilogue", {"seed": "", "": "compile #peers"}, {"full": TUNED}, "#fused", "#new"),
)
MLP2_APART = replace(MLP3_APART, operation="mlp2", shapes={"full cuda": GOALS})
MLP3_SINGLE = replace(
    MLP3, shapes={"quick": (), "cuda": GOALS}, names="eager epilogue ?compile fused_fp16x3", kinds="float32"
)
MLP_SIZES = Sweep(
    "mlp3",
    {
        "quick cuda": _others((65536,), WIDTHS),
        "seed cuda": _others(ROWS, WIDTHS),
        "full cuda": _others(ROWS, WIDTHS + LAYERWISE_WIDTHS),
    },
    "eager epilogue #fused #new",
    "bfloat16",
    budget_s=0.03,
)
SAFETY = (32, 784, 256, 2, 10)
"""The documents' safety test's model; then their benchmark's."""
NINE = Sweep(
    "mlp",
    {"quick cuda": (SAFETY, *MODELS[:3]), "quick": (SAFETY, *MODELS[:1]), "": (SAFETY, *MODELS)},
    # The compiler is asked for every third model: it takes seconds each.
    (BOTH, "aten", "epilogue", dict.fromkeys(MODELS[::3], "?compile"), "#new"),
    clocks=CALLED,
    budget_s={"cuda": 0.08, "cpu": 0.3},
)

# ---------------------------------------------------------------- layouts, and bytes

LAYOUT = Sweep(
    "linear_relu_layout",
    {"quick": (SMALL,), "cuda": (SMALL, MEDIUM, LARGE), "cpu": (SMALL, MEDIUM)},
    "row_major@again #every",
    FEWER_KINDS,
    clocks={"cpu": "hot", LARGE: "graph", "": "graph wall"},  # launching is no part of a large call
    budget_s={"cuda": 0.08, "cpu": 0.2},
)
LAYOUT_KERNELS = Looks(
    "linear_relu_layout", {"cuda": (MEDIUM,)}, {"quick": "row_major x_strided_batch", "": "#every"}, asked="first"
)
"""A copy inside the library shows as one more kernel; on a CPU nothing would show it."""
TRACED = {"quick": "epilogue eager", "": "epilogue aten cublas_relu eager"}
ON_CPU = Looks("linear_relu", {"cpu": (SMALL,)}, TRACED, asked="first")
UNCOUNTED = replace(ON_CPU, names="eager", topic="counters")
"""No counters: the record says so once, and counts operators instead of kernels."""
COUNTED = Looks(
    "linear_relu",
    {"quick cuda": (MEDIUM,), "cuda": (MEDIUM, SMALL)},
    {"first": "eager naive cublas_relu aten epilogue", "": "eager epilogue"},
    {"quick": {"first": "float32"}, "": "float32 bfloat16"},
    topic="counters",
    processes={"full": 3, "": 1},  # bytes hardly differ from process to process
)


def _traffic(at: Setting) -> Iterator[Probe]:
    """Work by work its bytes, and its kernels. S001's own table, in its size and dtype, adds up what each kernel moves
    by itself."""
    counted = list(COUNTED(at))
    for work in dict.fromkeys(probe.workload for probe in counted):
        own = [probe for probe in counted if probe.workload == work]
        yield from own
        if at.preset != "quick" and work == counted[0].workload:
            yield from (replace(probe, case="each kernel") for probe in own[:3])
        yield from (Probe("trace", work, name, "", 1) for name in at.pick(TRACED).split())


EXPERIMENTS = (
    experiment("naive_vs_cublas", "02_naive_vs_cublas", "one thread per output against the library", NAIVE, CHECKED),
    experiment(
        "aten_fusion",
        "03_aten_fusion",
        "what fusing Linear and ReLU gives",
        _fusion,
        replace(CHECKED, names="eager #fusion ?compile #new"),
    ),
    experiment("gemm_ladder", "04_gemm_ladder", "a product, one idea a step", LADDER, least=FOR_GOALS),
    experiment(
        "tensor_cores",
        "14_tensor_cores",
        "float32's digits and bfloat16's speed on the tensor cores",
        TENSOR_CORES,
        _apart,
        probes=(ONE_KERNEL,),
        least=FOR_GOALS,
    ),
    experiment("backward", "15_backward", "the gradient of Linear and ReLU", BACKWARD, least=FOR_GOALS),
    experiment(
        "fused_mlp",
        "16_fused_mlp",
        "two and three layers in one kernel",
        MLP_ON_CPU,
        MLP3,
        MLP3_APART,
        MLP3_SINGLE,
        MLP2,
        MLP2_APART,
        MLP_SIZES,
        least=FOR_GOALS,
    ),
    experiment("mlp_models", "16_fused_mlp", "the documents' nine models, layer by layer", NINE),
    experiment(
        "layout",
        "17_layout_traffic",
        "row-major, column-major, packed, padded, unaligned and copied operands",
        LAYOUT,
        probes=(LAYOUT_KERNELS,),
    ),
    experiment(
        "traffic", "17_layout_traffic", "bytes that a call moves, and its kernels", probes=(ON_CPU, UNCOUNTED, _traffic)
    ),
)
