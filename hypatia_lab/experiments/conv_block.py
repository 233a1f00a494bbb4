"""The convolution block: its peers and the seeds' three kernels."""

from __future__ import annotations

from hypatia_lab.experiments.plan import FOR_GOALS, Experiment, Group, Probe, Shapes, peers
from hypatia_lab.operations.conv_block import OPERATIONS, SEED_SHAPE
from hypatia_lab.variants import AGAIN, names
from hypatia_lab.workloads import Workload


def _conv_sizes(preset: str, device: str, shapes: Shapes) -> list[tuple[int, ...]]:
    # On two cores one call of the seeds' loops takes seconds at the seeds' size.
    small = (1, 16, 64, 64)
    sizes = [small] if preset == "quick" and device == "cpu" else [SEED_SHAPE]
    sizes += [(5, 16, 128, 128), (5, 128, 64, 64), (5, 64, 512, 512)] if preset == "full" and device == "cuda" else []
    return list(shapes) or sizes


BOTH = ("eager", "eager" + AGAIN)
OWN = ("triton", "whole")
OWN_SPLIT = ("triton_bf16x3", "whole_bf16x3")
"""Own kernels that multiply float32 as three products of bfloat16."""

CORNERS = ((1, 3, 97, 131), (33, 16, 16, 16), (2, 64, 65, 100), (2, 96, 40, 40))
"""Shapes that are only checked: one image and many, odd extents, few channels and many, no power of two."""

BATCHES = (1, 2, 20)
"""Images of the seeds' size at once, beside the seeds' five: where a kernel of our own begins to pay."""


def _conv_block(preset: str, device: str, shapes: Shapes) -> list[Group]:
    # The quick preset of a CPU leaves what is only checked to the page of checks.
    checked = [] if shapes or (preset, device) == ("quick", "cpu") else _conv_checked(preset, device)
    return (_conv_on_gpu if device == "cuda" else _conv_on_cpu)(preset, shapes) + checked


def _conv_on_gpu(preset: str, shapes: Shapes) -> list[Group]:
    # How fast it computes by the graph clock; what a caller waits for by the wall's, with fewer variants.
    graph = {
        ("float32", "ieee"): (*BOTH, "naive", "eager_channels_last", "group_norm", "compile", "triton", *OWN_SPLIT),
        ("float32", "tf32"): (*BOTH, "eager_channels_last", *OWN),
        ("bfloat16", "ieee"): (*BOTH, "naive", "eager_channels_last", "compile", "compile_channels_last", *OWN),
    }
    wall = {
        ("float32", "ieee"): (*BOTH, "eager_graph", "naive", "naive_malloc", "whole_bf16x3", "whole_bf16x3_graph"),
        ("bfloat16", "ieee"): (*BOTH, "eager_graph", *OWN, "triton_graph", "whole_graph"),
    }
    steps = {
        ("float32", "ieee"): (*BOTH, "eager_channels_last", *OWN_SPLIT),
        ("bfloat16", "ieee"): (*BOTH, "eager_channels_last", "compile", "compile_channels_last", *OWN),
    }
    sizes = _conv_sizes(preset, "cuda", shapes)
    groups, new = [], names("conv_block")
    ours, theirs = (peers("conv_block", preset, "cuda", own_stream=own) for own in (False, True))
    for shape in sizes:
        for clock, kinds, others, budget_s in (("graph", graph, ours, 0.15), ("wall", wall, theirs, 0.1)):
            for (dtype, math), known in kinds.items():
                named = (*known, *new, *(others if shape == sizes[0] else ()))
                groups.append(Group(Workload("conv_block", shape, dtype, math), named, (clock,), budget_s))
    for dtype, math in graph if theirs else ():
        known = OWN_SPLIT if (dtype, math) == ("float32", "ieee") else OWN
        work = Workload("conv_block", sizes[0], dtype, math)
        groups.append(Group(work, ("eager", *known, *theirs), ("profiler",), 0.05))
    for (dtype, math), known in steps.items():
        work = Workload("conv_block", sizes[0], dtype, math, "forward_backward")
        groups.append(Group(work, (*known, *names("conv_block", direction=work.direction)), ("graph",), 0.15))
    for images in () if shapes or preset == "quick" else BATCHES:
        several = (images, *SEED_SHAPE[1:])
        groups.append(Group(Workload("conv_block", several), ("eager", "naive", *OWN_SPLIT), ("graph",), 0.05))
        groups.append(Group(Workload("conv_block", several, "bfloat16"), ("eager", *OWN), ("graph",), 0.05))
    return groups


def _conv_on_cpu(preset: str, shapes: Shapes) -> list[Group]:
    # On two cores the seeds' loops take seconds a call at the seeds' size, a compiler as long in every process.
    quick = preset == "quick"
    peers = ("eager_channels_last", "group_norm")
    loops = (*BOTH, "naive", "threaded", *peers, *names("conv_block"))
    small, step = (1, 16 if quick else 64, 64, 64), (2, 16, 32, 32)
    groups = [Group(Workload("conv_block", shape), loops, ("hot",), 0.2) for shape in shapes or (small,)]
    if shapes:
        return groups
    if not quick:
        groups.append(Group(Workload("conv_block", small, "bfloat16"), ("eager", "naive"), ("hot",), 0.1))
        groups.append(Group(Workload("conv_block", SEED_SHAPE), ("eager", *peers), ("hot",), 0.2))
    trained = Workload("conv_block", step, direction="forward_backward")
    return [*groups, Group(trained, (*BOTH, "eager_channels_last", "group_norm"), ("hot",), 0.2)]


def _conv_checked(preset: str, device: str) -> list[Group]:
    """Both GELUs in every dtype, which S000's one error is held against; then shapes that are not the goal's."""
    gpu = device == "cuda"
    plain = ("eager", "naive", *(OWN if gpu else ("threaded",)))
    seeds = SEED_SHAPE if gpu and preset != "quick" else (2, 16, 64, 64)
    kinds = [("float32", "ieee"), ("bfloat16", "ieee"), ("float16", "ieee")]
    kinds += [("float64", "ieee"), ("float32", "tf32")] if gpu else []
    groups = []
    for operation in OPERATIONS:
        for dtype, math in kinds if operation == "conv_block" or (gpu and preset != "quick") else kinds[:1]:
            own = (*plain, *OWN_SPLIT) if gpu and (dtype, math) == ("float32", "ieee") else plain
            work, large = Workload(operation, seeds, dtype, math), gpu and preset != "quick"
            if large and operation == "conv_block" and dtype in ("float32", "bfloat16"):
                continue  # what is timed is checked there
            # The ledger holds a largest error of what was timed.
            timed = large and operation == "conv_block" and dtype == "float16"
            groups.append(Group(work, own, ("graph",) if timed else (), 0.03 if timed else 0.0))
    # Large ones take a CPU seconds; the unit tests have them.
    for shape in CORNERS[: 1 if preset == "quick" else 4 if gpu else 2]:
        for dtype in ("float32", "bfloat16") if gpu else ("float32",):
            own = (*plain, "eager_channels_last", *(OWN_SPLIT if gpu and dtype == "float32" else ()))
            groups.append(Group(Workload("conv_block", shape, dtype), own, (), 0.0))
            if gpu and preset != "quick":
                trained = Workload("conv_block", shape, dtype, direction="forward_backward")
                own = OWN_SPLIT if dtype == "float32" else OWN
                groups.append(Group(trained, ("eager", *own), (), 0.0))
    return groups


def _conv_kernels(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    shape = _conv_sizes(preset, device, shapes)[0]
    named: dict[str, tuple[str, ...]] = {"float32": ("eager", "naive", "group_norm")}
    if device == "cuda":
        named["float32"] += ("naive_malloc", "eager_channels_last", "compile", *OWN_SPLIT)
        named["bfloat16"] = ("eager", "compile_channels_last", *OWN)
    elif preset != "quick":
        shape = (1, *SEED_SHAPE[1:])
    return [
        Probe("trace", Workload("conv_block", shape, dtype), name, "", 1)
        for dtype, own in named.items()
        for name in own[: 2 if preset == "quick" else None]
    ]


EXPERIMENTS = (
    Experiment(
        "conv_block",
        "05_conv_block",
        "three kernels against the library",
        "conv_block",
        _conv_block,
        _conv_kernels,
        least=FOR_GOALS,
    ),
)
