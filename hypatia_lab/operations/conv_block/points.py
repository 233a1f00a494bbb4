"""The convolution block by those points of S000's strategy that its plain forms leave out, and by all together.

On ``conv_block`` and ``conv_block_tanh``: preallocated outputs, group_norm on channels-last tensors, and the points
together. ``conv_block_autocast`` is ``conv_block`` with x and parameters in float32, under ``torch.autocast`` to the
workload's dtype, which is that of y; gradients are float32. So autocast is judged by its own dtype's tolerance, and by
that of operands rounded to it, and never passes for float32.
Source: S000 (mixed precision, operator-level optimisation, pre-allocated tensors).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional

from hypatia_lab.kernels.compiled import compile_missing
from hypatia_lab.operations import conv_block as block
from hypatia_lab.operations.conv_block import EPS, OPERATIONS, PARAMETERS
from hypatia_lab.operations.torch_forms import Peers, peers, register_peers
from hypatia_lab.workloads import Operation, Workload, operations, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs

AUTOCAST = "conv_block_autocast"

CASTS = ("bfloat16", "float16")
"""dtypes that autocast casts to."""

CAST_ROUNDINGS = block.ROUNDINGS + 2
"""Under autocast both operands of the convolution are rounded, too."""

# ---------------------------------------------------------------- what is right under autocast


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    wide = Workload("conv_block", workload.shape, "float32", direction=workload.direction)
    return wide.spec.make_inputs(wide, device, generator)


def _define() -> Operation:
    plain = operations()["conv_block"]
    assert plain.backward is not None
    return register(
        replace(
            plain,
            name=AUTOCAST,
            summary="y = the block of float32 tensors under autocast to the dtype",
            make_inputs=_inputs,
            roundings=lambda shape: CAST_ROUNDINGS,
            backward=replace(plain.backward, dtype="float32"),
        )
    )


_define()


# ---------------------------------------------------------------- who computes it


def preallocated(workload: Workload, inputs: Inputs) -> Run:
    """The eager form into memory of its own that every call reuses (S000), as far as PyTorch has ``out=`` for it.

    The normalisation writes there as batch normalisation of all planes, and GELU over it. The convolution's ``out=``
    computes elsewhere and copies, so it is left as it is; nothing that writes to ``out=`` can be differentiated.
    """
    x, weight, bias, gamma, beta = (inputs[name] for name in PARAMETERS)
    approximate = OPERATIONS[workload.operation]
    batch, channels, height, width = x.shape
    flat = (1, batch * channels, height, width)
    y = torch.empty_like(x)
    # Statistics are kept in float32, and on a CPU in the parameters' dtype.
    kept = torch.float32 if x.is_cuda and x.element_size() == 2 else x.dtype
    mean, scale = (torch.empty(batch * channels, dtype=kept, device=x.device) for _ in range(2))

    def run() -> torch.Tensor:
        z = functional.conv2d(x, weight, bias, padding=1).reshape(flat)
        parameters = gamma.repeat(batch), beta.repeat(batch)
        torch.ops.aten.native_batch_norm.out(
            z, *parameters, None, None, True, 0.0, EPS, out=y.view(flat), save_mean=mean, save_invstd=scale
        )
        torch.ops.aten.gelu.out(y, approximate=approximate, out=y)
        return y

    return run


def plain_missing(workload: Workload, device: str) -> str:
    """Why PyTorch's plain forms cannot compute ``workload``; empty when they can."""
    if workload.operation.endswith("_autocast") and workload.dtype not in CASTS:
        return f"autocast casts to 16 bits, not to {workload.dtype}"
    return ""


def compiled_missing(workload: Workload, device: str) -> str:
    """Why the compiled forms cannot compute ``workload`` on ``device``; empty when they can."""
    return compile_missing(workload, device) or plain_missing(workload, device)


_peers = partial(peers, block.torch_form, PARAMETERS, plain=plain_missing, compiling=compiled_missing)
# S000's points together: compiled, channels last, group_norm's kernel, under autocast where that is the operation.
# TorchScript is left out, for torch.compile does not take scripted functions.
SHARED = ("group_norm_channels_last", "compile_together")
PLAIN: Peers = _peers(SHARED) | {"preallocated": (preallocated, plain_missing, ("forward",))}
CAST: Peers = _peers(("eager", "eager_channels_last", "compile", *SHARED))

for _operation, _own in {**dict.fromkeys(OPERATIONS, PLAIN), AUTOCAST: CAST}.items():
    register_peers(_operation, _own)
