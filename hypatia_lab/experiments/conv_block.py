"""The convolution block: its peers and the seeds' three kernels."""

from __future__ import annotations

from hypatia_lab.experiments.plan import Experiment, Group, Probe, Shapes, dtypes
from hypatia_lab.fused_ops.conv_block import SEED_SHAPE
from hypatia_lab.variants import AGAIN
from hypatia_lab.workloads import Workload


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
        for dtype, math in dtypes(device)
    ]
    if gpu or not quick:
        trained = (*both, "eager_channels_last", "group_norm", "compile", "compile_channels_last")
        groups += [
            Group(Workload("conv_block", sizes[0], dtype, math, "forward_backward"), trained, clocks[:1], 0.2)
            for dtype, math in dtypes(device)
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


EXPERIMENTS = (
    Experiment(
        "conv_block", "05_conv_block", "three kernels against the library", "conv_block", _conv_block, _conv_kernels
    ),
)
