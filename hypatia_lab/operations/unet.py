"""A small U-Net of five convolution blocks, its training step, and who computes them.

Each block is GELU(norm(Conv 3×3, padding 1)); the convolutions have no bias, which the norm would take off again. With
C channels at H × W: *down1* (C → C), 2 × 2 means, *down2* (C → 2C), 2 × 2 means, *middle* (2C → 2C), nearest neighbours
up to down2's size and joined with its result, *up2* (4C → C), up to down1's size and joined with its result, *up1*
(2C → C). x and y are ``(N, C, H, W)``; odd extents lose their last row or column in a mean and get it back on the way
up. Each block has a weight ``(C_out, C_in, 3, 3)``, γ and β ``(C_out)``.

Operations: ``unet`` with instance normalisation, and ``unet_group`` with group normalisation of eight groups, which is
another function with a reference of its own. ``unet_autocast`` is ``unet`` with everything in float32 but what
``torch.autocast`` casts to the workload's dtype; y has that dtype, gradients are float32. A training step is direction
``forward_backward``: y and the gradients of x and of all parameters for a given gradient at y, without an optimizer.
Source: S000 (U-Nets of such blocks were what its strategy was for).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional

from hypatia_lab.operations import torch_forms
from hypatia_lab.operations.conv_block import ACCURACY, ELEMENT_FLOPS, ROUNDINGS, normalised
from hypatia_lab.operations.conv_block.points import CAST_ROUNDINGS, compiled_missing, plain_missing
from hypatia_lab.workloads import Backward, Operation, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

BLOCKS = ("down1", "down2", "middle", "up2", "up1")
KINDS = ("weight", "gamma", "beta")
PARAMETERS = tuple(f"{block}_{kind}" for block in BLOCKS for kind in KINDS)
GRADIENTS = tuple(f"grad_{name}" for name in ("x", *PARAMETERS))

INSTANCE, EACH, GROUPS = 0, -1, 8
"""How a norm groups channels: instance_norm, group_norm with a channel a group (the same), and with so many groups."""


def widths(channels: int) -> dict[str, tuple[int, int]]:
    """Block → its channels in and out, of a U-Net with ``channels`` at the top."""
    c = channels
    return {"down1": (c, c), "down2": (c, 2 * c), "middle": (2 * c, 2 * c), "up2": (4 * c, c), "up1": (2 * c, c)}


# [unet]
def _block(x: torch.Tensor, weight: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, groups: int) -> torch.Tensor:
    z = functional.conv2d(x, weight, None, padding=1)
    if groups == 0:
        z = functional.instance_norm(z, weight=gamma, bias=beta, eps=1e-5)  # (1)
    else:
        count = z.shape[1] if groups < 0 else math.gcd(groups, z.shape[1])
        z = functional.group_norm(z, count, gamma, beta, 1e-5)
    return functional.gelu(z)
    # [/unet]


def _up(x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    # TorchScript wants a list of the sizes.
    larger = functional.interpolate(x, size=[skip.shape[2], skip.shape[3]], mode="nearest")
    return torch.cat([larger, skip], 1)


# [unet]
def unet(x: torch.Tensor, p: list[torch.Tensor], groups: int = 0) -> torch.Tensor:
    """The U-Net by PyTorch's own operations; ``p`` are its parameters in the order of :data:`PARAMETERS`.

    ``groups`` is :data:`INSTANCE`, :data:`EACH` or a number of groups, of which as many are made as divide the
    channels. Raises PyTorch's errors.
    """
    first = _block(x, p[0], p[1], p[2], groups)
    second = _block(functional.avg_pool2d(first, 2), p[3], p[4], p[5], groups)  # (2)
    middle = _block(functional.avg_pool2d(second, 2), p[6], p[7], p[8], groups)
    up = _block(_up(middle, second), p[9], p[10], p[11], groups)  # (3)
    return _block(_up(up, first), p[12], p[13], p[14], groups)
    # [/unet]


# ---------------------------------------------------------------- what is right


@dataclass(frozen=True)
class Form:
    """What the float64 U-Net does; anything but the default is a well-known mistake, or another ``groups``."""

    groups: int = INSTANCE
    over_batch: bool = False
    affine: bool = True
    gelu: str = "none"
    skips: bool = True
    smooth: bool = False


def _norm(z: torch.Tensor, form: Form) -> torch.Tensor:
    if form.over_batch:
        return normalised(z, (0, 2, 3))[0]
    if form.groups == INSTANCE:
        return normalised(z)[0]
    count = math.gcd(form.groups, z.shape[1])
    return normalised(z.unflatten(1, (count, -1)), (2, 3, 4))[0].flatten(1, 2)


def _halved(x: torch.Tensor) -> torch.Tensor:
    """Means of 2 × 2 pixels."""
    height, width = x.shape[2] // 2, x.shape[3] // 2
    return x[..., : 2 * height, : 2 * width].unflatten(3, (width, 2)).unflatten(2, (height, 2)).mean((3, 5))


def _joined(x: torch.Tensor, skip: torch.Tensor, form: Form) -> torch.Tensor:
    """``x`` enlarged to ``skip``'s size, by nearest neighbours, and ``skip`` behind its channels."""
    height, width = skip.shape[2:]
    if form.smooth:
        larger = functional.interpolate(x, size=(height, width), mode="bilinear")
    else:
        rows = torch.arange(height, device=x.device) * x.shape[2] // height
        columns = torch.arange(width, device=x.device) * x.shape[3] // width
        larger = x[:, :, rows][..., columns]
    return torch.cat((larger, skip if form.skips else torch.zeros_like(skip)), 1)


def exact(tensors: dict[str, torch.Tensor], form: Form) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """y from x and the parameters, in their dtype, and of each block what it normalised and what γ and β made of it.

    Written with means, variances and indices, so that it shares no kernel with what it judges but the convolution's.
    """
    inner = []

    def block(x: torch.Tensor, name: str) -> torch.Tensor:
        normal = _norm(functional.conv2d(x, tensors[f"{name}_weight"], padding=1), form)
        scale, shift = (tensors[f"{name}_{kind}"].view(1, -1, 1, 1) for kind in KINDS[1:])
        affine = normal * scale + shift if form.affine else normal
        inner.append((normal, affine))
        return affine.relu() if form.gelu == "relu" else functional.gelu(affine, approximate=form.gelu)

    first = block(tensors["x"], "down1")
    second = block(_halved(first), "down2")
    middle = block(_halved(second), "middle")
    up = block(_joined(middle, second, form), "up2")
    return block(_joined(up, first, form), "up1"), inner


def _wide(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {name: inputs[name].double() for name in ("x", *PARAMETERS)}


def reference(inputs: Inputs, form: Form) -> torch.Tensor:
    """float64 answer (N, C, H, W) for x and the parameters of ``inputs``."""
    return exact(_wide(inputs), form)[0]


def gradient_reference(inputs: Inputs, form: Form, grad: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """float64 y and the gradients of x and every parameter; ``grad`` replaces the upstream gradient of ``inputs``."""
    with torch.enable_grad():
        leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in _wide(inputs).items()}
        y = exact(leaves, form)[0]
        upstream = (inputs["grad"] if grad is None else grad).double()
        found = torch.autograd.grad(y, list(leaves.values()), upstream, allow_unused=True)
    filled = (torch.zeros_like(leaf) if own is None else own for own, leaf in zip(found, leaves.values(), strict=True))
    return y.detach(), *filled


def summed(inputs: Inputs, form: Form) -> dict[str, float]:
    """Size of the sums that are the gradients of each γ and β: the largest channel's √(Σ squares of its terms).

    As for a single block: what rounding leaves of such a sum is about this times the unit roundoff.
    """
    with torch.enable_grad():
        leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in _wide(inputs).items()}
        y, inner = exact(leaves, form)
        upstream = torch.autograd.grad(y, [affine for _, affine in inner], inputs["grad"].double())
    sizes = {}
    for name, (normal, _), terms in zip(BLOCKS, inner, upstream, strict=True):
        for kind, own in (("gamma", terms * normal.detach()), ("beta", terms)):
            sizes[f"grad_{name}_{kind}"] = float(own.square().sum((0, 2, 3)).sqrt().max())
    return sizes


MISTAKES = {
    "statistics over the batch (batch normalisation)": {"over_batch": True},
    "gamma and beta ignored": {"affine": False},
    "GELU by tanh instead of erf": {"gelu": "tanh"},
    "ReLU instead of GELU": {"gelu": "relu"},
    "skip connections missing": {"skips": False},
    "enlarged smoothly instead of by nearest neighbours": {"smooth": True},
}
"""Mistake → what it changes in the form."""


def _faults(inputs: Inputs, form: Form) -> dict[str, torch.Tensor]:
    taken = "instance instead of group normalisation" if form.groups else "group instead of instance normalisation"
    wrong = {name: replace(form, **change) for name, change in MISTAKES.items()}
    wrong[taken] = replace(form, groups=INSTANCE if form.groups else GROUPS)
    return {name: reference(inputs, one) for name, one in wrong.items()}


def _backward_faults(inputs: Inputs, form: Form) -> dict[str, dict[str, torch.Tensor]]:
    right = gradient_reference(inputs, form)
    answers = {
        "upstream gradient taken as ones": gradient_reference(inputs, form, torch.ones_like(inputs["grad"])),
        "gradient through the skip connections missing": gradient_reference(inputs, replace(form, skips=False)),
        "gradient missing (zeros)": tuple(map(torch.zeros_like, right)),
        "mean over the batch for its sum": tuple(part / len(inputs["x"]) for part in right),
    }
    return torch_forms.by_part(answers, GRADIENTS)


# ---------------------------------------------------------------- the operations


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    batch, channels, height, width = workload.shape

    normal = partial(torch.randn, device=device, generator=generator)
    drawn = {"x": normal(batch, channels, height, width)}
    for name, (inward, outward) in widths(channels).items():
        drawn[f"{name}_weight"] = normal(outward, inward, 3, 3) * (2 / (9 * inward)) ** 0.5  # He's scale
        drawn[f"{name}_gamma"] = 1 + normal(outward) / 8
        drawn[f"{name}_beta"] = normal(outward) / 8
    if workload.backward:
        drawn["grad"] = normal(batch, channels, height, width)
    own = torch.float32 if workload.operation == "unet_autocast" else getattr(torch, workload.dtype)
    return torch_forms.channels_last({name: tensor.to(own) for name, tensor in drawn.items()})


def _pixels(height: int, width: int) -> dict[str, int]:
    """Block → pixels of a plane of its result."""
    whole, half, quarter = ((height >> n) * (width >> n) for n in range(3))
    return {"down1": whole, "down2": half, "middle": quarter, "up2": half, "up1": whole}


def _flops(shape: tuple[int, ...]) -> int:
    """Of the blocks; products with the border's zeros count, means and copies do not."""
    batch, channels, height, width = shape
    pixels = _pixels(height, width)
    return batch * sum(
        pixels[name] * outward * (2 * 9 * inward + ELEMENT_FLOPS)
        for name, (inward, outward) in widths(channels).items()
    )


def _traffic(shape: tuple[int, ...], size: int) -> int:
    """x, parameters and y once each; a stack that computed all else on the chip would move no more."""
    batch, channels, height, width = shape
    parameters = sum(9 * inward * outward + 2 * outward for inward, outward in widths(channels).values())
    return size * (2 * batch * channels * height * width + parameters)


def _backward_depth(shape: tuple[int, ...]) -> dict[str, int]:
    batch, channels, height, width = shape
    return dict.fromkeys(GRADIENTS, batch * height * width) | {"grad_x": 9 * channels}


FORMS = {"unet": Form(), "unet_group": Form(groups=GROUPS), "unet_autocast": Form()}
"""Operation → what it computes."""

SUMMARIES = {
    "unet": "y = a U-Net of five blocks GELU(InstanceNorm(Conv 3×3))",
    "unet_group": "y = the same U-Net with group normalisation, another function",
    "unet_autocast": "y = the U-Net of float32 tensors under autocast to the dtype",
}


def _define(name: str, form: Form) -> Operation:
    return register(
        Operation(
            name=name,
            dims=("batch", "channels", "height", "width"),
            small=((3, 5, 33, 29), (2, 16, 32, 32)),
            summary=SUMMARIES[name],
            make_inputs=_inputs,
            reference=lambda inputs: reference(inputs, form),
            flops=_flops,
            traffic=_traffic,
            faults=lambda inputs: _faults(inputs, form),
            depth=lambda shape: 9 * 4 * shape[1],
            roundings=lambda shape: len(BLOCKS) * (CAST_ROUNDINGS if name == "unet_autocast" else ROUNDINGS),
            operands=lambda shape: math.sqrt(len(BLOCKS)),
            accuracy=ACCURACY,
            backward=Backward(
                reference=lambda inputs, y, near: gradient_reference(inputs, form),
                depth=_backward_depth,
                faults=lambda inputs: _backward_faults(inputs, form),
                passes=2,
                dtype="float32" if name == "unet_autocast" else "",
            ),
            scale=lambda inputs: summed(inputs, form) if "grad" in inputs else {},
            convolves=True,
        )
    )


for _operation, _form in FORMS.items():
    _define(_operation, _form)


# ---------------------------------------------------------------- who computes it

TENSORS = ("x", *PARAMETERS)


def torch_form(workload: Workload, *, grouped: bool = False) -> torch_forms.Form:
    """The U-Net of ``workload`` as a function of x and the parameters, under autocast where that is the operation.

    ``grouped``: instance normalisation as group normalisation with one channel a group, the same by another kernel.
    """
    count = EACH if grouped else FORMS[workload.operation].groups

    def form(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return unet(x, list(parameters), count)

    return torch_forms.under_autocast(workload, form)


def script(workload: Workload, inputs: Inputs) -> Run:
    """torch.jit.script of the eager form."""
    form, count = torch_forms.scripted(unet), FORMS[workload.operation].groups
    return torch_forms.bind(lambda x, *parameters: form(x, list(parameters), count), inputs, TENSORS)


# Of memory with the channels last group_norm keeps the layout, instance_norm copies back. S000's points together:
# TorchScript is left out, for torch.compile does not take scripted functions.
_PLAIN = ("eager", "eager_channels_last", "group_norm", "group_norm_channels_last", "script")
_COMPILED = ("compile", "compile_channels_last", "compile_reduce_overhead", "compile_together")
PEERS = torch_forms.peers(
    torch_form, TENSORS, (*_PLAIN, *_COMPILED), plain=plain_missing, compiling=compiled_missing, script=script
)

MEANINGLESS = {
    "unet": (),
    "unet_group": ("group_norm", "group_norm_channels_last", "compile_together"),
    "unet_autocast": ("script",),
}
"""Operation → variants that it has not: another norm would be another function, TorchScript has an autocast of its
own."""

for _operation, _without in MEANINGLESS.items():
    torch_forms.register_peers(_operation, {name: peer for name, peer in PEERS.items() if name not in _without})
