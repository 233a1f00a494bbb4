"""What keeps the lab's own kernels from being faster: how busy each keeps the GPU's units, by its hardware counters."""

from __future__ import annotations

from hypatia_lab.experiments.axes import STEP, Setting, experiment
from hypatia_lab.experiments.linear_relu import LARGE, MEDIUM, SMALL
from hypatia_lab.experiments.plan import Probe
from hypatia_lab.probes import counters
from hypatia_lab.workloads import Workload

CASE, TOPICS = counters.BUSY, counters.SHARE_TOPICS
"""The case of the probes, and unit of the GPU → topic of the detail lines that hold its shares."""

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
    (Workload("conv_block", (5, 64, 128, 128)), "whole_bf16x3"),
    (Workload("conv_block", (5, 64, 128, 128), "float32", "tf32"), "whole"),
    (Workload("conv_block", (5, 64, 128, 128), "bfloat16", direction=STEP), "whole"),
    *((Workload("diffraction", shape), "cuda") for shape in ((4096, 4096), (1024, 1024))),
    (Workload("diffraction_batch", (64, 256, 256)), "cuda"),
)
"""What the lab's goals for its kernels are about."""


def _units(at: Setting) -> list[Probe]:
    counted = at.pick({"quick": (), "cuda": COUNTED})
    return [Probe("counters", work, name, CASE, 1) for work, name in counted]


EXPERIMENTS = (
    experiment("units", "18_decisions", "which units of the GPU the lab's kernels keep busy", probes=(_units,)),
)
