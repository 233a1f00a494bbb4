"""The machine's ceilings and the instrument itself."""

from __future__ import annotations

from hypatia_lab.experiments.axes import BOTH, CPU_CLOCKS, FEWER_KINDS, Looks, Sweep, experiment
from hypatia_lab.experiments.linear_relu import LARGE, MEDIUM, SMALL
from hypatia_lab.experiments.plan import PROCESSES


def _cubes(*sides: int) -> tuple[tuple[int, ...], ...]:
    return tuple((side, side, side) for side in sides)


def _lengths(*powers: int) -> tuple[tuple[int, ...], ...]:
    return tuple((2**power,) for power in powers)


PRODUCTS = Sweep(
    "matmul",
    {"cuda": (*_cubes(1024, 2048, 4096, 8192), LARGE), "quick": _cubes(512, 1024), "": _cubes(512, 1024, 2048)},
    "eager",
    {
        "cuda": "float32 tf32 bfloat16 float16 float64",
        # A CPU without float16 matrix units takes about a second for the largest.
        "first": "float32 bfloat16 float16 float64",
        "": "float32 bfloat16 float64",
    },
    clocks={"cuda": "graph cold", **CPU_CLOCKS},
    budget_s={"quick": 0.1, "": 0.3},
)
LONG = _lengths(28, 30)
"""The driver's copy is slow there in a graph: is it so in a stream, and is a kernel?"""
COPIES = Sweep(
    "copy",
    {
        "cuda": (*_lengths(18, 20, 21, 22, 24, 26), *LONG),
        "quick": _lengths(12, 16, 20, 24),
        "": _lengths(12, 14, 16, 18, 20, 22, 24),
    },
    {**dict.fromkeys(LONG, "eager copy_kernel"), "": "eager"},
    asked="kept",
    clocks={**dict.fromkeys(LONG, "graph cold hot"), **PRODUCTS.clocks},
    budget_s=PRODUCTS.budget_s,
)
CLOCKS = Sweep(
    "linear_relu",
    {"quick cpu": (SMALL,), "": (SMALL, MEDIUM)},
    f"{BOTH} ?cublas_relu ?aten epilogue",
    FEWER_KINDS,
    clocks={"cuda": "wall hot graph cold profiler", "cpu": "wall hot cold profiler"},
    budget_s={"quick": 0.1, "cuda": 0.1, "": 0.3},
)


def _pairs(batches: range) -> tuple[tuple[int, ...], ...]:
    layers = ((128, 256), (256, 128), (256, 384), (384, 256))
    return tuple((batch, *layer) for batch in batches for layer in layers)


AGREEMENT = Sweep(
    "linear_relu",
    {
        "quick cuda": _pairs(range(32, 865, 256)),
        "quick cpu": _pairs(range(16, 321, 128)),
        "cuda": _pairs(range(32, 865, 32)),
        "cpu": _pairs(range(16, 321, 16)),
    },
    BOTH,
    {"quick": "float32", "cuda": "float32 bfloat16", "cpu": "float32 float64"},
    budget_s={"cuda": 0.01, "cpu": 0.04},
)
"""Pairs of identical code: few samples each, for a rate is known by the number of pairs.

A workload has one pair. Its tensors, its moment and its place in memory are its own, so that pairs of one process are
as good as independent; :func:`hypatia_lab.results.agreement` says how far that is true.
"""
ORACLE = Looks(
    "linear_relu",
    {"quick": (SMALL,), "": (SMALL, MEDIUM)},
    "eager",
    {"cpu": "float32", "asked": "float32", SMALL: "bfloat16", "": "float32"},
    topic="oracle",
    processes={preset: max(5, count // 2) for preset, count in PROCESSES.items()},
)
"""The shortest call of the documents' sizes, and a longer one. Half of an interval's processes, at least five."""

EXPERIMENTS = (
    # The best of few: a ceiling has no interval.
    experiment("ceilings", "01_method", "what the machine can do at best", PRODUCTS, COPIES, processes=3),
    experiment("method", "01_method", "one operation under every clock", CLOCKS),
    experiment("agreement", "01_method", "A/A: does the lab see differences where there are none", AGREEMENT),
    experiment("oracle", "01_method", "the lab's clock beside another timer", probes=(ORACLE,)),
)
