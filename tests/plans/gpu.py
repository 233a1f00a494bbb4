"""Who imports this has Triton compile for Hopper, whatever GPU there is."""

# pyright: reportArgumentType=false
from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget


class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)


triton.runtime.driver.set_active(Hopper())
