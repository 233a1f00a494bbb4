"""The machine's ceilings and the instrument itself."""

from __future__ import annotations

from hypatia_lab.experiments.linear_relu import LARGE, MEDIUM, SMALL
from hypatia_lab.experiments.plan import PROCESSES, Experiment, Group, Probe, Shapes, asked, cpu_clocks, dtypes
from hypatia_lab.variants import AGAIN
from hypatia_lab.workloads import Workload


def _ceilings(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu = device == "cuda"
    clocks = ("graph", "cold") if gpu else cpu_clocks(preset)
    budget_s = 0.1 if preset == "quick" else 0.3
    sides = [1024, 2048, 4096, 8192] if gpu else [512, 1024] if preset == "quick" else [512, 1024, 2048]
    cubes = shapes or [(n, n, n) for n in sides] + ([LARGE] if gpu else [])
    kinds = [*dtypes(device), ("float16", "ieee"), ("float64", "ieee")]
    groups = [
        Group(Workload("matmul", shape, dtype, math), ("eager",), clocks, budget_s)
        for dtype, math in kinds
        for shape in cubes
        # A CPU without float16 matrix units takes about a second for the largest.
        if gpu or dtype != "float16" or shape == cubes[0]
    ]
    lengths = [
        2**n
        for n in (
            (18, 20, 21, 22, 24, 26, 28, 30)
            if gpu
            else (12, 16, 20, 24)
            if preset == "quick"
            else (12, 14, 16, 18, 20, 22, 24)
        )
    ]
    for length in lengths:
        names, words = ("eager",), clocks
        if length >= 2**28:  # The driver's copy is slow there in a graph: is it so in a stream, and is a kernel?
            names, words = ("eager", "copy_kernel"), (*clocks, "hot")
        groups.append(Group(Workload("copy", (length,)), names, words, budget_s))
    return groups


def _method(preset: str, device: str, shapes: Shapes) -> list[Group]:
    clocks = ("wall", "hot", "graph", "cold", "profiler") if device == "cuda" else ("wall", "hot", "cold", "profiler")
    names = ("eager", "eager" + AGAIN, *asked(preset, device, "cublas_relu", "aten"), "epilogue")
    dtypes = [("float32", "ieee"), ("bfloat16", "ieee")] if device == "cuda" else [("float32", "ieee")]
    sizes = shapes or ([SMALL, MEDIUM] if device == "cuda" or preset != "quick" else [SMALL])
    budget_s = 0.1 if preset == "quick" or device == "cuda" else 0.3
    return [
        Group(Workload("linear_relu", s, dtype, math), names, clocks, budget_s) for s in sizes for dtype, math in dtypes
    ]


def _agreement(preset: str, device: str, shapes: Shapes) -> list[Group]:
    """Pairs of identical code: few samples each, for a rate is known by the number of pairs.

    A workload has one pair. Its tensors, its moment and its place in memory are its own, so that pairs of one process
    are as good as independent; :func:`hypatia_lab.results.agreement` says how far that is true.
    """
    step, last = (32, 864) if device == "cuda" else (16, 320)
    batches = range(step, last + 1, step if preset != "quick" else 8 * step)
    sizes = shapes or [
        (batch, inner, outer) for batch in batches for inner, outer in ((128, 256), (256, 128), (256, 384), (384, 256))
    ]
    dtypes = (
        [("float32", "ieee"), ("bfloat16", "ieee")] if device == "cuda" else [("float32", "ieee"), ("float64", "ieee")]
    )
    dtypes = dtypes[:1] if preset == "quick" else dtypes
    clock, budget_s = ("graph", 0.01) if device == "cuda" else ("hot", 0.04)
    return [
        Group(Workload("linear_relu", shape, dtype, math), ("eager", "eager" + AGAIN), (clock,), budget_s)
        for shape in sizes
        for dtype, math in dtypes
    ]


def _oracle(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    """The shortest call of the documents' sizes, and a longer one. Half of an interval's processes, at least five."""
    kinds = ("bfloat16", "float32") if device == "cuda" else ("float32", "float32")
    works = [Workload("linear_relu", shape, dtype) for shape, dtype in zip((SMALL, MEDIUM), kinds, strict=True)]
    works = [Workload("linear_relu", shape) for shape in shapes] or (works[:1] if preset == "quick" else works)
    return [Probe("oracle", work, "eager", "", max(5, PROCESSES[preset] // 2)) for work in works]


EXPERIMENTS = (
    # The best of few: a ceiling has no interval.
    Experiment("ceilings", "01_method", "what the machine can do at best", "matmul", _ceilings, processes=3),
    Experiment("method", "01_method", "one operation under every clock", "linear_relu", _method),
    Experiment(
        "agreement",
        "01_method",
        "A/A: does the lab see differences where there are none",
        "linear_relu",
        _agreement,
    ),
    Experiment("oracle", "01_method", "the lab's clock beside another timer", "linear_relu", probes=_oracle),
)
