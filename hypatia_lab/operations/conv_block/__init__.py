"""The convolution block, y = dropout(GELU(InstanceNorm2d(Conv2d(x, W 3×3, padding 1) + b; γ, β))), and its peers.

x is ``(N, C_in, H, W)``, W ``(C_out, C_in, 3, 3)``, b, γ and β ``(C_out)``, y ``(N, C_out, H, W)``; all of one floating
dtype on one device. Every plane ``(n, c)`` has its own mean and (biased) variance, ε is 1e-5. GELU is u·Φ(u) by the
error function (operation ``conv_block``) or by its tanh formula (``conv_block_tanh``). Workloads are without dropout.
Source: S000 (Conv → InstanceNorm → GELU, 5×64×128×128; what torch.compile, TorchScript and layouts might give).

b changes nothing: whatever is added to a whole plane, its mean takes off again. So a missing b is no fault here, and
the gradient of b is exactly zero; what rounding leaves of it is judged against the size of the sum that cancels.

No variant runs under autocast: its convolution is bfloat16's or float16's, a precision that no math mode of float32
names, and a tolerance that let it through would let much else through. It is an operation of its own
(:mod:`hypatia_lab.operations.conv_block.points`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional
from torch.nn.grad import conv2d_weight

from hypatia_lab.operations.torch_forms import (
    Form,
    bind,
    by_part,
    channels_last,
    peers,
    register_peers,
    scripted,
    under_autocast,
)
from hypatia_lab.variants import PLAIN, variant
from hypatia_lab.workloads import DTYPES, Backward, Operation, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

OPERATIONS = {"conv_block": "none", "conv_block_tanh": "tanh"}
"""Operation → its GELU, as ``torch.nn.functional.gelu`` calls it (``approximate``)."""

SEED_SHAPE = (5, 64, 128, 128)
"""batch × channels × height × width of S000."""

EPS = 1e-5
PARAMETERS = ("x", "weight", "bias", "gamma", "beta")
GRADIENTS = tuple(f"grad_{name}" for name in PARAMETERS)
TILE = 16
"""Rows and columns of a tile, where statistics are wrongly taken by tile: a block of 256 threads, as S000's had."""

QUIET = 1 / 8
"""Factor on channel 0 of weight and bias: its variance is about 0.03, so that ε counts in float32."""

ACCURACY = {"float64": 1e-12}
"""dtype → relative error that is right where rounding alone makes less (:attr:`Operation.accuracy`)."""

ROUNDINGS = 3
"""Results of 16 bits that a layer hands to the next: the convolution, the normalised, y."""


def conv_block(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    approximate: str = "none",
    p: float = 0.0,
) -> torch.Tensor:
    """The block by PyTorch's own operations, one after the other; differentiable.

    ``approximate`` is GELU's ("none": by erf, or "tanh"); each element is dropped with probability ``p``, the others
    divided by 1 − p. Raises PyTorch's errors.
    """
    z = functional.conv2d(x, weight, bias, padding=1)
    # TorchScript, which reads this text, knows no constants of a module and no keyword-only arguments with defaults.
    y = functional.gelu(functional.instance_norm(z, weight=gamma, bias=beta, eps=1e-5), approximate=approximate)
    return y if p == 0.0 else functional.dropout(y, p)


def checked(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    approximate: str = "none",
    p: float = 0.0,
) -> None:
    """Refuse what the hand-written kernels cannot compute. Raises ``ValueError``, worded as PyTorch would."""
    if approximate not in OPERATIONS.values():
        raise ValueError(f"approximate argument must be either none or tanh, not {approximate!r}")
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    size = list(x.shape)
    if x.dim() != 4:
        raise ValueError(f"Expected 4D (batched) input to conv2d, but got input of size: {size}")
    if weight.dim() != 4 or weight.shape[2:] != (3, 3):
        raise ValueError(f"Expected a weight of size [C_out, C_in, 3, 3], but got weight of size {list(weight.shape)}")
    if x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"Given groups=1, weight of size {list(weight.shape)}, expected input{size} to have {weight.shape[1]} "
            f"channels, but got {x.shape[1]} channels instead"
        )
    given = {"bias": bias, "gamma": gamma, "beta": beta}
    named = {name: tensor for name, tensor in given.items() if tensor is not None}
    for name, tensor in named.items():
        if tensor.shape != weight.shape[:1]:
            raise ValueError(
                f"Given weight of size {list(weight.shape)}, expected {name} to be 1-dimensional with "
                f"{weight.shape[0]} elements, but got {name} of size {list(tensor.shape)} instead"
            )
    if x.shape[2] * x.shape[3] == 1:
        shape = torch.Size((x.shape[0], weight.shape[0], 1, 1))
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {shape}")
    if str(x.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"Input type ({x.dtype}) should be one of {', '.join(DTYPES)}")
    for name, tensor in {"weight": weight, **named}.items():
        if tensor.dtype != x.dtype:
            raise ValueError(f"Input type ({x.dtype}) and {name} type ({tensor.dtype}) should be the same")
        if tensor.device != x.device:
            raise ValueError(
                f"Expected all tensors to be on the same device, but found at least two devices, {x.device} and "
                f"{tensor.device} ({name})!"
            )


# ---------------------------------------------------------------- what is right


# [reference]
def normalised(
    z: torch.Tensor, over: tuple[int, ...] = (2, 3), *, correction: int = 0, eps: float = EPS
) -> tuple[torch.Tensor, torch.Tensor]:
    """(z − mean) / √(variance + ε) and 1 / √(variance + ε), both taken over the dimensions ``over`` of z."""
    variance, mean = torch.var_mean(z, over, correction=correction, keepdim=True)  # (1)
    scale = (variance + eps).rsqrt()
    return (z - mean) * scale, scale
    # [/reference]


def normalised_by_tile(z: torch.Tensor) -> torch.Tensor:
    """``z`` with mean and variance of each 16 × 16 tile in place of its plane's: S000's first mistake."""
    out = torch.empty_like(z)
    for top in range(0, z.shape[2], TILE):
        for left in range(0, z.shape[3], TILE):
            tile = (..., slice(top, top + TILE), slice(left, left + TILE))
            out[tile] = normalised(z[tile])[0]
    return out


def _by_channel(vector: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, 1, 1)


def _wide(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return tuple(inputs[name].double() for name in PARAMETERS)


# [reference]
def reference(inputs: Inputs, approximate: str) -> torch.Tensor:
    """float64 answer (N, C_out, H, W) for x, weight, bias, gamma and beta of ``inputs``, without dropout."""
    x, weight, bias, gamma, beta = _wide(inputs)
    normal, _ = normalised(functional.conv2d(x, weight, bias, padding=1))  # (2)
    return functional.gelu(normal * _by_channel(gamma) + _by_channel(beta), approximate=approximate)  # (3)
    # [/reference]


@dataclass(frozen=True)
class Passed:
    """Which of the block's derivatives the upstream gradient passes through; all of them is right."""

    gelu: bool = True
    mean: bool = True
    variance: bool = True
    flipped: bool = False


def _at_convolution(
    inputs: Inputs, approximate: str, passed: Passed
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """float64 y, and three tensors of its shape whose sums by channel are the gradients of bias, gamma and beta.

    The first of them is also the gradient at the convolution's output.
    """
    x, weight, bias, gamma, beta = _wide(inputs)
    normal, scale = normalised(functional.conv2d(x, weight, bias, padding=1))
    before = normal * _by_channel(gamma) + _by_channel(beta)
    grad = inputs["grad"].double()
    if passed.gelu:
        grad = torch.ops.aten.gelu_backward(grad, before, approximate=approximate)
    inner = grad * _by_channel(gamma)
    own = inner.clone()
    if passed.mean:
        own -= inner.mean((2, 3), keepdim=True)
    if passed.variance:
        own -= normal * (inner * normal).mean((2, 3), keepdim=True)
    y = functional.gelu(before, approximate=approximate)
    return y, own * scale, grad * normal, grad


def gradient_reference(inputs: Inputs, approximate: str, passed: Passed | None = None) -> tuple[torch.Tensor, ...]:
    """float64 y and the gradients of x, weight, bias (C_out, exactly zero), gamma and beta; ``grad`` is of y's shape.

    ``passed`` other than all gives what well-known mistakes give; the gradient of the bias is then not zero.
    """
    y, *terms = _at_convolution(inputs, approximate, passed or Passed())
    grad_bias, grad_gamma, grad_beta = (term.sum((0, 2, 3)) for term in terms)
    x, weight = inputs["x"].double(), inputs["weight"].double()
    grad_weight = conv2d_weight(x, weight.shape, terms[0], padding=1)
    kernel = weight.flip(2, 3) if passed and passed.flipped else weight
    grad_x = functional.conv_transpose2d(terms[0], kernel, padding=1)
    return y, grad_x, grad_weight, grad_bias if passed else torch.zeros_like(grad_bias), grad_gamma, grad_beta


def summed(inputs: Inputs, approximate: str) -> dict[str, float]:
    """Size of the sums that are the gradients of bias, gamma and beta: the largest channel's √(Σ squares of terms).

    Rounding errors of so many terms of either sign add up to about this times the unit roundoff, however much of the
    sum itself cancels: all of it in the gradient of the bias.
    """
    terms = _at_convolution(inputs, approximate, Passed())[1:]
    sizes = (float(term.square().sum((0, 2, 3)).sqrt().max()) for term in terms)
    return dict(zip(("grad_bias", "grad_gamma", "grad_beta"), sizes, strict=True))


# ---------------------------------------------------------------- what is wrong


def _faults(inputs: Inputs, approximate: str) -> dict[str, torch.Tensor]:
    """A convolution without padding is smaller, and the check says so by itself."""
    x, weight, bias, gamma, beta = _wide(inputs)
    scale, shift = _by_channel(gamma), _by_channel(beta)
    z = functional.conv2d(x, weight, bias, padding=1)
    normal = normalised(z)[0]
    replicated = functional.conv2d(functional.pad(x, (1, 1, 1, 1), mode="replicate"), weight, bias)
    flipped = functional.conv2d(x, weight.flip(2, 3), bias, padding=1)
    other, taken = ("erf", "tanh") if approximate == "tanh" else ("tanh", "erf")
    affine = {
        "statistics per tile instead of per plane": normalised_by_tile(z) * scale + shift,
        "statistics over the batch (batch normalisation)": normalised(z, (0, 2, 3))[0] * scale + shift,
        "statistics over all channels (layer normalisation)": normalised(z, (1, 2, 3))[0] * scale + shift,
        "variance unbiased (n − 1)": normalised(z, correction=1)[0] * scale + shift,
        "eps missing": normalised(z, eps=0.0)[0] * scale + shift,
        "bias added after the normalisation": normal * scale + shift + _by_channel(bias),
        "gamma and beta ignored": normal,
        "gamma ignored": normal + shift,
        "beta ignored": normal * scale,
        "borders replicated instead of zero": normalised(replicated)[0] * scale + shift,
        "kernel flipped": normalised(flipped)[0] * scale + shift,
    }
    right = normal * scale + shift
    return {name: functional.gelu(u, approximate=approximate) for name, u in affine.items()} | {
        f"GELU by {other} instead of {taken}": functional.gelu(right, approximate="none" if other == "erf" else "tanh"),
        "GELU missing": right,
        "ReLU instead of GELU": right.relu(),
    }


MISTAKES = {
    "statistics taken as constants": Passed(mean=False, variance=False),
    "gradient through the mean missing": Passed(mean=False),
    "gradient through the variance missing": Passed(variance=False),
    "derivative of GELU missing": Passed(gelu=False),
    "kernel flipped": Passed(flipped=True),
}
"""What an upstream gradient may be kept from passing through, by name."""


def _backward_faults(inputs: Inputs, approximate: str) -> dict[str, dict[str, torch.Tensor]]:
    ones = inputs | {"grad": torch.ones_like(inputs["grad"])}
    answers = {name: gradient_reference(inputs, approximate, passed) for name, passed in MISTAKES.items()}
    answers["upstream gradient taken as ones"] = gradient_reference(ones, approximate)
    right = gradient_reference(inputs, approximate)
    answers["gradient missing (zeros)"] = tuple(map(torch.zeros_like, right))
    answers["mean over the batch for its sum"] = tuple(part / len(inputs["x"]) for part in right)
    return by_part(answers, GRADIENTS)


# ---------------------------------------------------------------- the operations


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    batch, channels, height, width = workload.shape

    normal = partial(torch.randn, device=device, generator=generator)
    # He's scale: outputs of the convolution have variance 2, whatever the number of channels.
    drawn = {
        "x": normal(batch, channels, height, width),
        "weight": normal(channels, channels, 3, 3) * (2 / (9 * channels)) ** 0.5,
        "bias": normal(channels) / 4,
        "gamma": 1 + normal(channels) / 8,
        "beta": normal(channels) / 8,
    }
    drawn["weight"][0] *= QUIET
    drawn["bias"][0] *= QUIET
    if workload.backward:
        drawn["grad"] = normal(batch, channels, height, width)
    return channels_last({name: tensor.to(getattr(torch, workload.dtype)) for name, tensor in drawn.items()})


ELEMENT_FLOPS = 14
"""Of an output behind the convolution: bias 1, mean 1, variance 3, normalise 2, γ and β 2, GELU 5 (erf counts one)."""


def _flops(shape: tuple[int, ...]) -> int:
    """Products with the border's zeros count."""
    batch, channels, height, width = shape
    return batch * channels * height * width * (2 * 9 * channels + ELEMENT_FLOPS)


def _traffic(shape: tuple[int, ...], size: int) -> int:
    """x, weights and y once each.

    A plane's statistics are known when all of it is computed: unless it stays on the chip until then, the convolution's
    output is read again, or computed again, beyond what is compulsory.
    """
    batch, channels, height, width = shape
    return size * (2 * batch * channels * height * width + 9 * channels * channels + 3 * channels)


def _backward_depth(shape: tuple[int, ...]) -> dict[str, int]:
    batch, channels, height, width = shape
    return {name: 9 * channels if name == "grad_x" else batch * height * width for name in GRADIENTS}


def _define(name: str, approximate: str) -> Operation:
    kind = " (tanh formula)" if approximate == "tanh" else ""
    return register(
        Operation(
            name=name,
            dims=("batch", "channels", "height", "width"),
            small=((3, 5, 33, 29), (2, 16, 32, 32)),
            summary=f"y = GELU(InstanceNorm(Conv 3×3 of x)){kind}, as many channels out as in",
            make_inputs=_inputs,
            reference=lambda inputs: reference(inputs, approximate),
            flops=_flops,
            traffic=_traffic,
            faults=lambda inputs: _faults(inputs, approximate),
            depth=lambda shape: 9 * shape[1],
            roundings=lambda shape: ROUNDINGS,
            operands=lambda shape: 1.0,
            accuracy=ACCURACY,
            backward=Backward(
                reference=lambda inputs, y, near: gradient_reference(inputs, approximate),
                depth=_backward_depth,
                faults=lambda inputs: _backward_faults(inputs, approximate),
                passes=2,
            ),
            scale=lambda inputs: summed(inputs, approximate) if "grad" in inputs else {},
            convolves=True,
        )
    )


for _operation, _approximate in OPERATIONS.items():
    _define(_operation, _approximate)


# ---------------------------------------------------------------- who computes it


def torch_form(workload: Workload, *, grouped: bool = False) -> Form:
    """The block as a function of x, weight, bias, γ and β; ``grouped``: by group_norm with one channel a group.

    Under autocast where that is the operation.
    """
    approximate = OPERATIONS.get(workload.operation, "none")

    def form(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        if not grouped:
            return conv_block(x, weight, bias, gamma, beta, approximate)
        z = functional.conv2d(x, weight, bias, padding=1)
        return functional.gelu(functional.group_norm(z, z.shape[1], gamma, beta, EPS), approximate=approximate)

    return under_autocast(workload, form)


def script(workload: Workload, inputs: Inputs) -> Run:
    """torch.jit.script of the eager form."""
    form, approximate = scripted(conv_block), OPERATIONS[workload.operation]
    return bind(lambda *tensors: form(*tensors, approximate), inputs, PARAMETERS)


# instance_norm folds the batch into the channels, which memory with the channels last does not allow: it copies, and y
# is contiguous. Of one image torch 2.13 has wrong gradients on a CPU (the upstream one is channels last, too): the
# check says so. group_norm is the same function by another kernel.
_COMPILED = ("compile", "compile_channels_last", "compile_reduce_overhead", "compile_max_autotune")
PEERS = peers(
    torch_form, PARAMETERS, ("eager", "eager_channels_last", "group_norm", "script", *_COMPILED), script=script
)

for _operation in OPERATIONS:
    register_peers(_operation, {name: peer for name, peer in PEERS.items() if name != "eager"})
    # The baseline of products of bfloat16 parts, too: it multiplies as IEEE has it.
    _make, _needs, _directions = PEERS["eager"]
    _how = {"maths": (*PLAIN, "bf16x3"), "directions": _directions, "tags": ("library",), "baseline": True}
    variant(_operation, "eager", origin="peer", needs=_needs, **_how)(_make)
