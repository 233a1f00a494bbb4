"""How coordinator, referee and workers talk: lines over a socket, and tensors in memory that both sides see."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import mmap
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hypatia_lab.kernels.loader import driver

if TYPE_CHECKING:
    import torch

MARK = b"|"
"""A line of its own, sent right before and right after calls that are timed."""
LONGEST_LINE = 2**20
"""Bytes. Whoever says more at once says nothing that is expected."""
BEAT_S = 0.25
_ALIGNED = 4096
_SEALS = 0x0002 | 0x0004 | 0x0001
"""Neither smaller nor larger, and no further seal. Source: linux/fcntl.h (F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL)."""

_LIBC = ctypes.CDLL(None, use_errno=True)

Described = Sequence[tuple[str, str, Sequence[int]]]
"""Of each tensor its name, its dtype as torch names it, and its shape."""


class Gone(RuntimeError):
    """The other side has ended."""


class Silent(RuntimeError):
    """The other side says nothing."""


class Garbled(RuntimeError):
    """The other side says what nobody asked for."""


class Channel:
    """One end of a conversation. What comes from the other one is data: JSON objects, marks and file descriptors."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._rest = b""
        self._lines: list[tuple[bytes, float]] = []
        self._files: list[int] = []

    def close(self) -> None:
        """Say that there is no more to say."""
        self.end.close()
        for file in self._files:
            os.close(file)

    def mark(self) -> None:
        """Send a mark."""
        self.end.sendall(MARK + b"\n")

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send ``message`` with the file descriptors ``files``. Raises :class:`Gone`."""
        line = json.dumps(message).encode() + b"\n"
        try:
            if files:
                sent = socket.send_fds(self.end, [line], files)
                line = line[sent:]
            self.end.sendall(line)
        except OSError as cause:
            raise Gone(str(cause)) from None

    def marked(self, silence_s: float = math.inf, beat: Callable[[], None] = lambda: None) -> float:
        """Wait for a mark; the time (s) at which it came, by this process's clock."""
        line, when = self._line(silence_s, beat)
        if line != MARK:
            raise Garbled("it said something else than it was asked for")
        return when

    def receive(self, silence_s: float = math.inf, beat: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Wait for a message, for ``silence_s`` at most; ``beat`` is called now and then.

        Raises :class:`Gone`, :class:`Silent` or :class:`Garbled`, and what ``beat`` raises.
        """
        line, _ = self._line(silence_s, beat)
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Garbled("it said something else than it was asked for")
        return found

    def files(self, count: int) -> list[int]:
        """The next ``count`` file descriptors that came with messages. Raises :class:`Garbled` if there are fewer."""
        found, self._files = self._files[:count], self._files[count:]
        if len(found) < count:
            raise Garbled("it did not pass what it was asked for")
        return found

    def _line(self, silence_s: float, beat: Callable[[], None]) -> tuple[bytes, float]:
        heard = time.perf_counter()
        while not self._lines:
            self.end.settimeout(BEAT_S)
            try:
                data, files, _, _ = socket.recv_fds(self.end, 65536, 8)
            except TimeoutError:
                beat()
                if time.perf_counter() - heard > silence_s:
                    raise Silent(f"no sign of life for {silence_s:.0f} s") from None
                continue
            except OSError as cause:
                raise Gone(str(cause)) from None
            finally:
                self.end.settimeout(None)
            now = time.perf_counter()
            self._files += files
            if not data:
                raise Gone("it has ended")
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [(line, now) for line in lines]
            if len(self._rest) > LONGEST_LINE:
                raise Garbled("it said more than it was asked for")
        return self._lines.pop(0)


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Shelf:
    """Tensors in memory that several processes see, by name. Its size is fixed, whoever holds it."""

    def __init__(self, described: Described, file: int | None = None) -> None:
        """Lay out new memory for tensors as ``described``; or see that of ``file``, laid out for the same ones."""
        import torch

        self._places: dict[str, tuple[torch.dtype, tuple[int, ...], int, int]] = {}
        size = 0
        for name, dtype, shape in described:
            kind = getattr(torch, dtype)
            count = math.prod(shape)
            self._places[name] = kind, tuple(shape), size, count
            size += -(-count * kind.itemsize // _ALIGNED) * _ALIGNED
        self.size = max(size, _ALIGNED)
        self.file = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if file is None else file
        if file is None:
            os.ftruncate(self.file, self.size)
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, _SEALS)
        self.memory = mmap.mmap(self.file, self.size)
        if file is None:
            self.memory.madvise(mmap.MADV_DONTFORK)  # whoever is to see it is given the file
        self._unpin: Callable[[], object] = lambda: None

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor ``name``; what is written into it is seen by all."""
        import torch

        kind, shape, offset, count = self._places[name]
        if not count:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(self.memory, dtype=kind, count=count, offset=offset).reshape(shape)

    def holds(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> bool:
        """Whether there is a tensor ``name`` of that ``dtype`` and ``shape``."""
        return name in self._places and self._places[name][:2] == (dtype, tuple(shape))

    def fits(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` can be put into ``name``."""
        return self.holds(name, tensor.dtype, tensor.shape)

    def copy_from(self, other: Shelf) -> None:
        """Take all that ``other``, of the same layout, holds."""
        memoryview(self.memory)[:] = memoryview(other.memory)

    def spoil(self, name: str) -> None:
        """Make the first element of the floating-point tensor ``name`` a number that is no answer to anything."""
        offset = self._places[name][2]
        self.memory[offset : offset + 8] = b"\x7f" * 8

    def write_into(self, process: int, addresses: dict[str, int]) -> bool:
        """Write the tensors into the memory of ``process``, each at its own of ``addresses``; whether that is allowed.

        Source: man 2 process_vm_writev.
        """
        base = self._address()
        here, there = ((_Span * len(addresses))() for _ in range(2))
        for number, (name, address) in enumerate(addresses.items()):
            kind, _, offset, count = self._places[name]
            here[number] = base + offset, count * kind.itemsize
            there[number] = address, count * kind.itemsize
        size = sum(span.size for span in here)
        _LIBC.process_vm_writev.restype = ctypes.c_ssize_t
        return _LIBC.process_vm_writev(process, here, len(here), there, len(there), ctypes.c_ulong(0)) == size

    def pin(self) -> None:
        """Let a GPU copy from and to it directly, where the driver allows that: else through memory of its own.

        Source: cuda.h (cuMemHostRegister).
        """
        address = ctypes.c_void_p(self._address())
        if driver().cuMemHostRegister_v2(address, ctypes.c_size_t(self.size), ctypes.c_uint(0)) == 0:
            self._unpin = partial(driver().cuMemHostUnregister, address)

    def _address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def close(self) -> None:
        """Let go of it; the memory goes when nobody holds it any more."""
        self._unpin()
        with contextlib.suppress(BufferError):  # a tensor of it is still looked at
            self.memory.close()
        os.close(self.file)


def described(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, list[int]]]:
    """What a :class:`Shelf` needs to know to hold ``tensors``."""
    return [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()]
