"""What the lab's own kernels of a linear layer need of a machine and of a workload: why they cannot run, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.linear_relu import linear_relu_cuda as tiles

if TYPE_CHECKING:
    from hypatia_lab.workloads import Workload


def triton(workload: Workload, device: str) -> str:
    """For one Triton kernel."""
    if missing := loader.triton_missing(device):
        return missing
    return "the Triton kernel has no float64" if workload.dtype == "float64" else ""


def hopper_missing(device: str) -> str:
    """Why CUDA kernels of Hopper's own instructions cannot run on this machine's ``device``; empty when they can."""
    return hopper.missing("float16", device)


def cuda(workload: Workload, device: str) -> str:
    """For one CUDA kernel for Hopper."""
    if missing := hopper_missing(device):
        return missing
    return tiles.unfit(workload.dtype, workload.shape[0], workload.shape[1], workload.math)


def split(workload: Workload, device: str) -> str:
    """For products of split operands, in Triton."""
    if missing := loader.triton_missing(device):
        return missing
    if workload.dtype != "float32":
        return "splitting operands is a way to float32's own accuracy"
    return "" if torch.cuda.get_device_capability() >= (9, 0) else "needs tensor descriptors (compute capability 9.0)"


def split_cuda(workload: Workload, device: str) -> str:
    """For the same in CUDA."""
    return split(workload, device) or hopper_missing(device)
