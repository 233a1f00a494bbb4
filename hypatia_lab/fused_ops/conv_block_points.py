"""The convolution block by those points of S000's strategy that its plain forms leave out, and by all together.

On ``conv_block`` and ``conv_block_tanh``: preallocated outputs, group_norm on channels-last tensors, and the points
together. ``conv_block_autocast`` is ``conv_block`` with x and parameters in float32, under ``torch.autocast`` to the
workload's dtype, which is that of y; gradients are float32. So autocast is judged by its own dtype's tolerance, and by
that of operands rounded to it, and never passes for float32.
Source: S000 (mixed precision, operator-level optimisation, pre-allocated tensors).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional

from hypatia_lab.compiled import compile_missing, compiled
from hypatia_lab.fused_ops import conv_block as block
from hypatia_lab.fused_ops.conv_block import EPS, OPERAND_ERROR, OPERATIONS, PARAMETERS, PEAK_ERROR, bind
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS, SPLIT, Backward, Operation, Workload, operations, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs

AUTOCAST = "conv_block_autocast"

ROUNDED = {"bfloat16": 4 * OPERAND_ERROR["tf32"], "float16": OPERAND_ERROR["tf32"]}
"""dtype → what is added to its tolerance where float32 operands are rounded to it.

In units of the peak: float16 keeps as many bits as TF32, bfloat16 two fewer.
"""

Function = Callable[..., torch.Tensor]


# ---------------------------------------------------------------- what is right under autocast


def autocast_peak_error(workload: Workload) -> float:
    """Largest acceptable max |out − ref| / max |ref| of a block under autocast, against float64 of float32 tensors."""
    return PEAK_ERROR[workload.dtype] + ROUNDED.get(workload.dtype, 0.0)


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    wide = Workload("conv_block", workload.shape, "float32", direction=workload.direction)
    return wide.spec.make_inputs(wide, device, generator)


def _define() -> Operation:
    plain = operations()["conv_block"]
    backward = plain.backward
    assert backward is not None
    return register(
        Operation(
            name=AUTOCAST,
            dims=plain.dims,
            summary="y = the block of float32 tensors under autocast to the dtype",
            make_inputs=_inputs,
            reference=plain.reference,
            flops=plain.flops,
            traffic=plain.traffic,
            faults=plain.faults,
            depth=plain.depth,
            peak_error=autocast_peak_error,
            backward=Backward(
                reference=backward.reference,
                depth=backward.depth,
                flops=backward.flops,
                traffic=backward.traffic,
                faults=backward.faults,
                scale=backward.scale,
                dtype="float32",
            ),
            convolves=True,
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
    if workload.math in SPLIT:
        return f"the library's convolutions know no {workload.math}"
    if workload.operation.endswith("_autocast") and workload.dtype not in ROUNDED:
        return f"autocast casts to 16 bits, not to {workload.dtype}"
    return ""


def compiled_missing(workload: Workload, device: str) -> str:
    """Why the compiled forms cannot compute ``workload`` on ``device``; empty when they can."""
    return plain_missing(workload, device) or compile_missing(workload, device)


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
        variant(_operation, _name, origin="peer", needs=_needs, directions=_directions, baseline=_name == "eager")(
            _factory
        )
