"""Triton's diffraction image."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import torch

from hypatia_lab.check import Problem
from hypatia_lab.diffraction.physics import Layout
from hypatia_lab.diffraction.simulators import NAMES
from hypatia_lab.kernels.diffraction.diffraction_triton import diffraction
from hypatia_lab.workloads import Workload


def check_the_triton_kernel_agrees_with_float64() -> None:
    for operation, shape in (
        ("diffraction_sources", (9, 70)),
        ("diffraction_table", (9, 70)),
        ("diffraction_batch", (2, 9, 70)),
    ):
        for dtype, allowed in ((torch.float32, 5e-5), (torch.float64, 1e-9)):
            problem = Problem(Workload(operation, shape), "cpu")
            problem.draw(1)
            layout = Layout.from_tensor(problem.inputs["layout"])
            out = torch.empty(shape, dtype=dtype)
            tensors = {name: problem.inputs[name] for name in NAMES}
            diffraction(out=out, oversample=1, cells=layout.cells, miller_low=layout.miller_low, **tensors)
            reference = problem.reference()
            error = float((out - reference).abs().max() / reference.max())
            assert error < allowed, (operation, dtype, error)
