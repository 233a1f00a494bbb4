"""Other epilogues than a ReLU: GELU behind a product, and a ReLU with a GELU behind it, within its kernel and after."""

from __future__ import annotations

from hypatia_lab.experiments.axes import BOTH, CALLED, KINDS, Sweep, experiment
from hypatia_lab.experiments.linear_relu import MEDIUM, SEEDS, SMALL, sparing
from hypatia_lab.operations.linear_gelu import OPERATIONS

BY_HAND = {"cuda bfloat16": "cuda", "cuda tf32": "cuda", "cuda float32": "fp16x3_cuda", "": ""}
"""The CUDA kernels for Hopper, each in the arithmetic that it is for."""
EPILOGUES = tuple(
    Sweep(
        operation,
        {"quick cpu": (SMALL,), "cpu": (SMALL, MEDIUM), **SEEDS},
        (BOTH, sparing("?compile"), "#new", BY_HAND),
        KINDS,
        clocks=CALLED,
        budget_s={"cuda": 0.1, "quick": 0.1, "": 0.2},
    )
    for operation in OPERATIONS
)

EXPERIMENTS = (experiment("epilogues", "03_aten_fusion", "GELU in a product's kernel, and after it", *EPILOGUES),)
