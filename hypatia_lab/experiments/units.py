"""What keeps the lab's own kernels from being faster: the units that each keeps busy, and what each waits for."""

from __future__ import annotations

from hypatia_lab import variants
from hypatia_lab.experiments.axes import STEP, Setting, experiment
from hypatia_lab.experiments.linear_relu import LARGE, MEDIUM, SMALL
from hypatia_lab.experiments.plan import Probe
from hypatia_lab.probes import counters
from hypatia_lab.workloads import Workload

CASE, TOPICS = counters.BUSY, counters.SHARE_TOPICS
"""The case of the probes, and unit of the GPU → topic of the detail lines that hold its shares."""
LIMITED, LIMIT_TOPICS = counters.LIMITED, counters.LIMIT_TOPICS
"""The same of what may hold a step of the ladder back."""

COUNTED = (
    # Workload, and one of the lab's quickest own forms of it.
    *((Workload("linear_relu", shape), "fp16x3_cuda") for shape in (MEDIUM, LARGE)),
    *((Workload("linear_relu", shape, direction=STEP), "fp16x3_cuda") for shape in (MEDIUM, LARGE)),
    *((Workload("linear_relu", shape, "bfloat16"), "triton") for shape in (SMALL, MEDIUM, LARGE)),
    *((Workload("linear_relu", shape, "bfloat16"), "cuda") for shape in (SMALL, MEDIUM)),
    *((Workload("linear_relu", MEDIUM, "float32", "tf32"), name) for name in ("triton", "cuda")),
    (Workload("linear_relu", MEDIUM, "bfloat16", direction=STEP), "fused_backward"),
    *((Workload("mlp3", (65536, width), "bfloat16"), "fused_cuda") for width in (64, 128, 256)),
    *((Workload("conv_block", (images, 64, 128, 128), "bfloat16"), "whole") for images in (5, 1, 20)),
    *((Workload("conv_block", (images, 64, 128, 128)), "whole_fp16x3") for images in (5, 20)),
    (Workload("conv_block", (5, 64, 128, 128), "float32", "tf32"), "whole"),
    (Workload("conv_block", (5, 64, 128, 128), "bfloat16", direction=STEP), "whole"),
    (Workload("conv_block", (5, 64, 128, 128), direction=STEP), "whole_fp16x3"),
    *((Workload("diffraction", shape), "cuda") for shape in ((4096, 4096), (1024, 1024))),
    (Workload("diffraction_batch", (64, 256, 256)), "cuda"),
)
"""What the lab's goals for its kernels are about."""
LADDERS = (("ladder_vector", "float32"), ("ladder_tensor", "bfloat16"))
"""The ladder's steps, by tag, and in which dtype each is asked what it waits for: at the size of the climb's table."""


def _units(at: Setting) -> list[Probe]:
    counted = at.pick({"quick": (), "cuda": COUNTED})
    return [Probe("counters", work, name, CASE, 1) for work, name in counted]


def _limits(at: Setting) -> list[Probe]:
    return [
        Probe("counters", Workload("linear_relu", LARGE, dtype), name, LIMITED, 1)
        for tag, dtype in at.pick({"quick": (), "cuda": LADDERS})
        for name in variants.names("linear_relu", tag)
    ]


EXPERIMENTS = (
    experiment("units", "18_decisions", "which units of the GPU the lab's kernels keep busy", probes=(_units, _limits)),
)
