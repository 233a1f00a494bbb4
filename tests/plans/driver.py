"""Who imports this has its calls planned on a CPU, and launched by a stand-in for the CUDA driver."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypatia_lab.kernels import loader, plans

folder = Path(sys.argv[1])
"""Where the stand-in lies, and plans are kept."""
plans.DRIVER, plans.DEVICES = str(folder / "driver.so"), {"cpu"}
# As some compilers do unasked. Two standard libraries in a process do not mix. What is quicker to build will do.
loader.SHARED = [*loader.SHARED, "-static-libstdc++", "-O1"]
plans.library()
loader.cache_folder = lambda: folder
driver = ctypes.CDLL(plans.DRIVER)
driver.launches.restype = ctypes.c_char_p
driver.a_kernel.restype = ctypes.c_uint64


def launches(function: Callable[..., object], *given: Any, watched: int = 0) -> list[list[str]]:
    """The words of every launch of a call, with so many of its parameters; what it returns lives as long."""
    driver.watch(watched)
    held = function(*given)
    found = [line.split() for line in driver.launches().decode().splitlines()]
    del held
    return found
