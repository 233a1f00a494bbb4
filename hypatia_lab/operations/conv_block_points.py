"""The convolution block by those points of S000's strategy that its plain forms leave out, and by all together.

On ``conv_block`` and ``conv_block_tanh``: preallocated outputs, group_norm on channels-last tensors, and the points
together. ``conv_block_autocast`` is ``conv_block`` with x and parameters in float32, under ``torch.autocast`` to the
workload's dtype, which is that of y; gradients are float32. So autocast is judged by its own dtype's tolerance, and by
that of operands rounded to it, and never passes for float32.
Source: S000 (mixed precision, operator-level optimisation, pre-allocated tensors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional

from hypatia_lab.compiled import compile_missing, compiled
from hypatia_lab.operations import conv_block as block
from hypatia_lab.operations.conv_block import EPS, OPERATIONS, PARAMETERS, bind
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS, Operation, Workload, operations, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs

AUTOCAST = "conv_block_autocast"

CASTS = ("bfloat16", "float16")
"""dtypes that autocast casts to."""

CAST_ROUNDINGS = block.ROUNDINGS + 2
"""Under autocast both operands of the convolution are rounded, too."""

Function = Callable[..., torch.Tensor]


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


def torch_form(workload: Workload, *, grouped: bool = False) -> Function:
    """The block as a function of x, weight, bias, γ and β; ``grouped``: by group_norm with one channel a group.

    Under autocast where that is the operation.
    """
    approximate = OPERATIONS.get(workload.operation, "none")

    def form(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        if not grouped:
            return block.conv_block(x, weight, bias, gamma, beta, approximate)
        z = functional.conv2d(x, weight, bias, padding=1)
        return functional.gelu(functional.group_norm(z, z.shape[1], gamma, beta, EPS), approximate=approximate)

    if workload.operation != AUTOCAST:
        return form
    dtype = getattr(torch, workload.dtype)

    def cast(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype):
            # Autocast leaves some results, such as a GPU's group_norm, in float32.
            return form(x, weight, bias, gamma, beta).to(dtype)

    return cast


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


def group_norm_channels_last(workload: Workload, inputs: Inputs) -> Run:
    """The same function by group_norm on x and W that lie channels last, which group_norm keeps so."""
    return bind(torch_form(workload, grouped=True), inputs, "_channels_last")


def compile_together(workload: Workload, inputs: Inputs) -> Run:
    """S000's points together: compiled, channels last, group_norm's kernel, under autocast where that is the operation.

    TorchScript is left out, for torch.compile does not take scripted functions.
    """
    return bind(compiled(torch_form(workload, grouped=True)), inputs, "_channels_last")


def autocast_eager(workload: Workload, inputs: Inputs) -> Run:
    """Plain PyTorch under autocast: the convolution casts x and W each call, what follows has the dtype already."""
    return bind(torch_form(workload), inputs)


def autocast_channels_last(workload: Workload, inputs: Inputs) -> Run:
    """Plain PyTorch under autocast on x and W that lie channels last in memory."""
    return bind(torch_form(workload), inputs, "_channels_last")


def autocast_compile(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile, default mode, of the form under autocast."""
    return bind(compiled(torch_form(workload)), inputs)


def plain_missing(workload: Workload, device: str) -> str:
    """Why PyTorch's plain forms cannot compute ``workload``; empty when they can."""
    if workload.operation.endswith("_autocast") and workload.dtype not in CASTS:
        return f"autocast casts to 16 bits, not to {workload.dtype}"
    return ""


def compiled_missing(workload: Workload, device: str) -> str:
    """Why the compiled forms cannot compute ``workload`` on ``device``; empty when they can."""
    return compile_missing(workload, device) or plain_missing(workload, device)


Needs = Callable[["Workload", str], str]
SHARED: dict[str, tuple[Factory, Needs, tuple[str, ...]]] = {
    "group_norm_channels_last": (group_norm_channels_last, plain_missing, DIRECTIONS),
    "compile_together": (compile_together, compiled_missing, DIRECTIONS),
}
PLAIN = SHARED | {"preallocated": (preallocated, plain_missing, ("forward",))}
CAST = {
    "eager": (autocast_eager, plain_missing, DIRECTIONS),
    "eager_channels_last": (autocast_channels_last, plain_missing, DIRECTIONS),
    "compile": (autocast_compile, compiled_missing, DIRECTIONS),
} | SHARED
"""Variant → its factory, its needs, and the directions that it computes."""

for _operation, _variants in {**dict.fromkeys(OPERATIONS, PLAIN), AUTOCAST: CAST}.items():
    for _name, (_factory, _needs, _directions) in _variants.items():
        _peer = partial(variant, _operation, origin="peer", needs=_needs, directions=_directions, tags=("library",))
        _peer(_name, baseline=_name == "eager")(_factory)
