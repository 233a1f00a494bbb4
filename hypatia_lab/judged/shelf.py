"""Tensors in memory that several processes see: the host's, or a GPU's."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hypatia_lab.judged.gpu_memory import GpuMemory
from hypatia_lab.kernels.loader import driver

if TYPE_CHECKING:
    import torch

_ALIGNED = 4096
_SEALS = 0x0002 | 0x0004 | 0x0001
"""Neither smaller nor larger, and no further seal. Source: linux/fcntl.h (F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL)."""

_LIBC = ctypes.CDLL(None, use_errno=True)

Described = Sequence[tuple[str, str, Sequence[int]]]
"""Of each tensor its name, its dtype as torch names it, and its shape."""


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _HostMemory:
    """Memory of the host that is shared by the file descriptor :attr:`file`; of ``size`` bytes."""

    def __init__(self, size: int, file: int | None = None) -> None:
        self.size = size
        self.file = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if file is None else file
        if file is None:
            os.ftruncate(self.file, self.size)
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, _SEALS)
        self.memory = mmap.mmap(self.file, self.size)
        if file is None:
            self.memory.madvise(mmap.MADV_DONTFORK)  # whoever is to see it is given the file
        self._unpin: Callable[[], object] = lambda: None

    def part(self, kind: torch.dtype, count: int, offset: int) -> torch.Tensor:
        """``count`` numbers of ``kind`` at ``offset`` (bytes)."""
        import torch

        return torch.frombuffer(self.memory, dtype=kind, count=count, offset=offset)

    def address(self) -> int:
        """Where it lies in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def pin(self) -> None:
        """Let a GPU copy from and to it directly, where the driver allows that: else through memory of its own.

        Source: cuda.h (cuMemHostRegister).
        """
        address = ctypes.c_void_p(self.address())
        if driver().cuMemHostRegister_v2(address, ctypes.c_size_t(self.size), ctypes.c_uint(0)) == 0:
            self._unpin = partial(driver().cuMemHostUnregister, address)

    def close(self) -> None:
        self._unpin()
        with contextlib.suppress(BufferError):  # a tensor of it is still looked at
            self.memory.close()
        os.close(self.file)


class Shelf:
    """Tensors in memory that several processes see, by name. Its size is fixed, whoever holds it."""

    def __init__(self, described: Described, device: str = "cpu", file: int | None = None) -> None:
        """Lay out new memory of ``device`` for tensors as ``described``; or see that of ``file``, laid out for the same
        ones there."""
        import torch

        self._places: dict[str, tuple[torch.dtype, tuple[int, ...], int, int]] = {}
        size = 0
        for name, dtype, shape in described:
            kind = getattr(torch, dtype)
            count = math.prod(shape)
            self._places[name] = kind, tuple(shape), size, count
            size += -(-count * kind.itemsize // _ALIGNED) * _ALIGNED
        self.device = device
        self._memory = (GpuMemory if device == "cuda" else _HostMemory)(max(size, _ALIGNED), file)
        self.file = self._memory.file
        """The file descriptor by which others see it."""

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor ``name``; what is written into it is seen by all."""
        import torch

        kind, shape, offset, count = self._places[name]
        if not count:
            return torch.empty(shape, dtype=kind, device=self.device)
        return self._memory.part(kind, count, offset).reshape(shape)

    def holds(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> bool:
        """Whether there is a tensor ``name`` of that ``dtype`` and ``shape``."""
        return name in self._places and self._places[name][:2] == (dtype, tuple(shape))

    def spoil(self, name: str) -> None:
        """Make the first element of the floating-point tensor ``name`` a number that is no answer to anything."""
        import torch

        self[name].view(-1)[:1].view(torch.uint8).fill_(0x7F)

    def write_into(self, process: int, addresses: dict[str, int]) -> bool:
        """Write the tensors, which lie on the host, into the memory of ``process``, each at its own of ``addresses``;
        whether that is allowed.

        Source: man 2 process_vm_writev.
        """
        assert isinstance(self._memory, _HostMemory)
        base = self._memory.address()
        here, there = ((_Span * len(addresses))() for _ in range(2))
        for number, (name, address) in enumerate(addresses.items()):
            kind, _, offset, count = self._places[name]
            here[number] = base + offset, count * kind.itemsize
            there[number] = address, count * kind.itemsize
        size = sum(span.size for span in here)
        _LIBC.process_vm_writev.restype = ctypes.c_ssize_t
        return _LIBC.process_vm_writev(process, here, len(here), there, len(there), ctypes.c_ulong(0)) == size

    def pin(self) -> None:
        """Let a GPU copy from and to it directly."""
        if isinstance(self._memory, _HostMemory):
            self._memory.pin()

    def close(self) -> None:
        """Let go of it; the memory goes when nobody holds it any more."""
        self._memory.close()


def described(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, list[int]]]:
    """What a :class:`Shelf` needs to know to hold ``tensors``."""
    return [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()]
