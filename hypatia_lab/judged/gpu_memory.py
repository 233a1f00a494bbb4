"""Memory of a GPU that several processes see, each of which is given a file descriptor of it.

Source: cuda.h, "Virtual Memory Management" (cuMemCreate, cuMemExportToShareableHandle).
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from hypatia_lab.kernels.loader import driver

if TYPE_CHECKING:
    import torch

_PINNED, _FILE, _DEVICE, _BOTH_WAYS = 1, 1, 1, 3
"""CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
CU_MEM_ACCESS_FLAGS_PROT_READWRITE."""
_FULL = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""


def _ensure(status: int, what: str) -> None:
    import torch

    if status:
        kind = torch.OutOfMemoryError if status == _FULL else RuntimeError
        raise kind(f"{what} failed: the driver's error {status}")


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Array:
    """``size`` bytes at ``address``, as torch takes them from other libraries. Source: Numba's documentation."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class GpuMemory:
    """Memory of the current GPU, of at least ``size`` bytes, shared by the file descriptor :attr:`file`."""

    def __init__(self, size: int, file: int | None = None) -> None:
        """New memory, or that of ``file``. Raises ``RuntimeError`` with the driver's error, or torch's for
        memory that is full."""
        device, unit, handle, what = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_uint64(), f"sharing {size} bytes"
        _ensure(driver().cuCtxGetDevice(ctypes.byref(device)), what)
        where = _Location(_DEVICE, device.value)
        kind = _Properties(_PINNED, _FILE, where)
        _ensure(driver().cuMemGetAllocationGranularity(ctypes.byref(unit), ctypes.byref(kind), ctypes.c_int(0)), what)
        self.size = ctypes.c_size_t(-(-size // unit.value) * unit.value)
        if file is None:
            status = driver().cuMemCreate(ctypes.byref(handle), self.size, ctypes.byref(kind), ctypes.c_uint64(0))
        else:
            status = driver().cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(file), _FILE)
        _ensure(status, what)
        try:
            self.file = self._exported(handle, what) if file is None else file
            self._address = self._mapped(handle, where, what)
        finally:
            driver().cuMemRelease(handle)  # what is mapped stays

    @staticmethod
    def _exported(handle: ctypes.c_uint64, what: str) -> int:
        found = ctypes.c_int()
        _ensure(driver().cuMemExportToShareableHandle(ctypes.byref(found), handle, _FILE, ctypes.c_uint64(0)), what)
        os.set_inheritable(found.value, False)
        return found.value

    def _mapped(self, handle: ctypes.c_uint64, where: _Location, what: str) -> ctypes.c_uint64:
        address, nothing = ctypes.c_uint64(), ctypes.c_uint64(0)
        _ensure(
            driver().cuMemAddressReserve(ctypes.byref(address), self.size, ctypes.c_size_t(0), nothing, nothing), what
        )
        _ensure(driver().cuMemMap(address, self.size, ctypes.c_size_t(0), handle, nothing), what)
        access = _Access(where, _BOTH_WAYS)
        _ensure(driver().cuMemSetAccess(address, self.size, ctypes.byref(access), ctypes.c_size_t(1)), what)
        return address

    def part(self, kind: torch.dtype, count: int, offset: int) -> torch.Tensor:
        """``count`` numbers of ``kind`` at ``offset`` (bytes)."""
        import torch

        array = _Array(self._address.value + offset, count * kind.itemsize)
        return torch.as_tensor(array, device="cuda").view(kind)

    def close(self) -> None:
        """Let go of it. No tensor of it may be looked at afterwards."""
        driver().cuCtxSynchronize()
        driver().cuMemUnmap(self._address, self.size)
        driver().cuMemAddressFree(self._address, self.size)
        os.close(self.file)


def shareable() -> bool:
    """Whether this process can share memory of the current GPU so: not every system lets it."""
    try:
        GpuMemory(1).close()
    except RuntimeError:
        return False
    return True
