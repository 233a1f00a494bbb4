"""Another process that has the GPU for a moment, so that each sample by CUDA graph begins in the same state of it.

On Hopper the kernels of a graph start 0.15 to 0.35 µs later each in a process that has worked on a second stream, as
whoever captures a graph in PyTorch sooner or later has, until another process has worked on the GPU. So this one works
ahead of each sample. It starts in 0.3 s and takes 60 µs a turn.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

NOTHING = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry nothing() { ret; }
"""
"""A kernel in PTX, which the driver compiles for the GPU."""


class Companion:
    """Started at once, ended with the process that has it. Calling it lets it launch a kernel and waits for that.

    Where it cannot use the GPU, for there is none or one that admits a single process, a call does nothing.
    """

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-I", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.pid, self.there = self._child.pid, True

    def __call__(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        if self.there:
            try:
                self._child.stdin.write(b".")
                self.there = self._child.stdout.read(1) == b"."
            except BrokenPipeError:
                self.there = False

    def close(self) -> None:
        """End it."""
        self.there = False
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
        self._child.wait()


def _launcher() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _ensure(driver.cuInit(0))
    _ensure(driver.cuDeviceGet(ctypes.byref(device), 0))
    _ensure(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    _ensure(driver.cuCtxSetCurrent(context))
    return driver


def _ensure(status: int) -> None:
    if status:
        raise OSError(f"the CUDA driver answers {status}")


def main() -> None:
    """Answers each byte of its input by one, once a kernel has run."""
    try:
        driver = _launcher()
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        _ensure(driver.cuModuleLoadData(ctypes.byref(module), NOTHING + b"\0"))
        _ensure(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"nothing"))
    except OSError as cause:
        sys.exit(f"nobody takes turns on the GPU: {cause}")
    while os.read(0, 1):
        _ensure(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None))
        _ensure(driver.cuCtxSynchronize())
        os.write(1, b".")


if __name__ == "__main__":
    main()
