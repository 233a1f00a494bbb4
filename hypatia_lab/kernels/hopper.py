"""What kernels of Hopper's own instructions (``hopper.cuh``) have in common on the host's side."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader

if TYPE_CHECKING:
    from torch import Tensor

HALVES = ("bfloat16", "float16")
"""dtypes that the tensor cores multiply as they are."""

ROW_BYTES, SECTOR_BYTES, PACK_BYTES = 128, 32, 16
"""Bytes of a box along k, as ``hopper.cuh`` has them, those at whose multiples the level 2 cache fetches, and those at
whose multiples rows must begin for the copy engine."""


def missing(dtype: str, device: str) -> str:
    """Why such kernels cannot multiply 16-bit ``dtype`` on this machine's ``device``; empty when they can."""
    if device != "cuda":
        return loader.NO_GPU
    if reason := loader.capability_missing((9, 0), exactly=True):
        return reason
    return "" if dtype in HALVES else f"tensor cores multiply {' and '.join(HALVES)} here, not {dtype}"


@cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def unfit(x: Tensor) -> str:
    """Why such kernels cannot run on the device of ``x``; empty where they can."""
    if not x.is_cuda or _capability(x.device.index) != (9, 0):
        return f"x is on {x.device}; the CUDA kernel needs compute capability 9.0"
    return loader.cuda_missing()


def ensure(x: Tensor) -> None:
    """Raise ``ValueError`` where such kernels cannot run on the device of ``x``."""
    if reason := unfit(x):
        raise ValueError(reason)


def packed(tensor: Tensor) -> Tensor:
    """``tensor`` contiguous and at a multiple of 16 bytes, which vector loads and TMA need."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % PACK_BYTES == 0 else tensor.clone()


A_MULTIPROCESSOR, A_BLOCK, RESERVED, STATIC = 228 * 1024, 227 * 1024, 1024, 1024
"""Bytes of shared memory that a multiprocessor of Hopper has, those that a block may have, those that the driver takes
for itself of each block's, and those that are left for what a kernel declares itself."""
MANY = 32
"""No multiprocessor takes more blocks."""


def share_of_memory(blocks: int, device: int | None) -> int:
    """Bytes of dynamic shared memory by which a multiprocessor of Hopper takes its share of ``blocks``, or few more.

    For short kernels that are launched early: blocks go where there is room, and without a limit that is on the few
    multiprocessors that the kernel before has left first. 0 where there are so many blocks that all have enough.
    """
    share = -(-blocks // loader.multiprocessors(device))
    return 0 if share > MANY else min(A_MULTIPROCESSOR // share - RESERVED, A_BLOCK) - STATIC
