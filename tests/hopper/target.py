"""Who imports this compiles Triton's kernels for Hopper and does not launch them; ``made`` lists what was compiled."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction


class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)


triton.runtime.driver.set_active(Hopper())  # pyright: ignore[reportArgumentType]
made: list[Any] = []
launch = JITFunction.run


def compiled(self: Any, *given: Any, grid: Any, warmup: bool, **how: Any) -> None:
    # What a kernel asks of its tensors' device.
    how |= {name: True for name in ("DEVICE", "DEPENDENT") if name in how}
    made.append(launch(self, *given, grid=grid, warmup=True, **how))


JITFunction.run = compiled


def multiply_by_matrix_instructions(products: list[Any]) -> None:
    """Fails unless each is made of Hopper's instructions, keeps its sums in registers and fits shared memory."""
    for code in products:
        text = code.asm["ptx"]
        assert "wgmma.mma_async" in text, code.metadata.name
        assert "cp.async.bulk.tensor" in text, code.metadata.name
        assert code.metadata.shared <= 232448
        assert ".local" not in text
