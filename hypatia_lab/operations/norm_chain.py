"""Three instance normalisations in a row with GELU between, times x, scaled to planes of norm 1; and who computes it.

t = GELU(InstanceNorm(t; γ_i, β_i)) three times, beginning with t = x, then y = t·x / max(‖t·x‖, 1e-12), the norm taken
over each plane. x and y are ``(N, C, H, W)``, γ and β ``(3, C)``, ε is 1e-5. Compilers fuse such chains across their
reductions, and have been reported to compute them wrongly (pytorch#183601, a chain of the same kinds of operations).
That chain itself has no answer to be held to: see :func:`reported`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional

from hypatia_lab.operations.conv_block import normalised
from hypatia_lab.operations.torch_forms import Form, by_part, channels_last, peers, register_peers
from hypatia_lab.workloads import Backward, Operation, register

if TYPE_CHECKING:
    from hypatia_lab.workloads import Inputs, Workload

LENGTH = 3
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
PARAMETERS = ("x", "gamma", "beta")
GRADIENTS = tuple(f"grad_{name}" for name in PARAMETERS)

ROUNDINGS = 2 * LENGTH + 3
"""Results that an operation hands to the next: the normalised and its GELU each time, then product, norm, quotient."""


def chain(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """The chain by PyTorch's own operations; differentiable. Raises PyTorch's errors."""
    t = x
    for n in range(LENGTH):
        t = functional.gelu(functional.instance_norm(t, weight=gamma[n], bias=beta[n]))
    return functional.normalize(t * x, dim=(2, 3))  # pyright: ignore[reportArgumentType]  (a tuple works)


def reported(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What pytorch#183601 computes of x (N, C, H, W), and what its answer is made of: the means it scales to norm 1.

    The mean of an instance-normalised plane is zero. What is left of it in any arithmetic is rounding, and the chain
    divides that by its own norm: its answer is made of rounding errors, in eager PyTorch as well as compiled.
    """
    means = functional.adaptive_avg_pool2d(functional.instance_norm(x), (1, 1))
    t = functional.hardswish(functional.normalize(means, dim=0) * x)
    return functional.normalize(t, dim=0), means


def exact(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, over: tuple[int, ...] = (2, 3), length: int = LENGTH
) -> torch.Tensor:
    """The chain in its tensors' dtype, from means and variances over the dimensions ``over``, ``length`` norms long."""
    return _traced(x, gamma, beta, over, length)[0]


def _traced(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, over: tuple[int, ...], length: int
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """y, and of each normalisation what it normalised and what γ and β made of it."""
    t, inner = x, []
    for n in range(length):
        normal = normalised(t, over)[0]
        affine = normal * gamma[n].view(1, -1, 1, 1) + beta[n].view(1, -1, 1, 1)
        inner.append((normal, affine))
        t = functional.gelu(affine)
    t = t * x
    return t / t.square().sum((2, 3), keepdim=True).sqrt().clamp_min(1e-12), inner


def _wide(inputs: Inputs) -> Three:
    x, gamma, beta = (inputs[name].double() for name in PARAMETERS)
    return x, gamma, beta


def _leaves(inputs: Inputs) -> Three:
    x, gamma, beta = (tensor.clone().requires_grad_() for tensor in _wide(inputs))
    return x, gamma, beta


def gradient_reference(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """float64 y and the gradients of x, γ and β."""
    with torch.enable_grad():
        leaves = _leaves(inputs)
        y = exact(*leaves)
        found = torch.autograd.grad(y, leaves, inputs["grad"].double())
    return y.detach(), *found


def summed(inputs: Inputs) -> dict[str, float]:
    """Size of the sums that are the gradients of γ and β: the largest channel's √(Σ squares of its terms).

    A plane's scale changes nothing behind a further normalisation, so most of such a sum cancels: what rounding leaves
    of it is about this times the unit roundoff.
    """
    with torch.enable_grad():
        leaves = _leaves(inputs)
        y, inner = _traced(*leaves, (2, 3), LENGTH)
        upstream = torch.autograd.grad(y, [affine for _, affine in inner], inputs["grad"].double())
    pairs = [(terms * normal.detach(), terms) for (normal, _), terms in zip(inner, upstream, strict=True)]
    sizes = [[float(terms.square().sum((0, 2, 3)).sqrt().max()) for terms in pair] for pair in pairs]
    return {name: max(size) for name, size in zip(GRADIENTS[1:], zip(*sizes, strict=True), strict=True)}


def _faults(inputs: Inputs) -> dict[str, torch.Tensor]:
    x, gamma, beta = _wide(inputs)
    return {
        "statistics over the batch (batch normalisation)": exact(x, gamma, beta, (0, 2, 3)),
        "last normalisation missing": exact(x, gamma, beta, length=LENGTH - 1),
        "gamma and beta ignored": exact(x, torch.ones_like(gamma), torch.zeros_like(beta)),
        "gamma and beta of the first normalisation in all": exact(x, gamma[:1].expand(3, -1), beta[:1].expand(3, -1)),
    }


def _backward_faults(inputs: Inputs) -> dict[str, dict[str, torch.Tensor]]:
    zeros = {"gradient missing (zeros)": tuple(map(torch.zeros_like, gradient_reference(inputs)))}
    return by_part(zeros, GRADIENTS)


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    shape, channels = workload.shape, workload.shape[1]

    normal = partial(torch.randn, device=device, generator=generator)
    drawn = {
        "x": normal(*shape),
        "gamma": 1 + normal(LENGTH, channels) / 8,
        "beta": normal(LENGTH, channels) / 8,
    }
    if workload.backward:
        drawn["grad"] = normal(*shape)
    return channels_last({name: tensor.to(getattr(torch, workload.dtype)) for name, tensor in drawn.items()})


def _elements(shape: tuple[int, ...]) -> int:
    batch, channels, height, width = shape
    return batch * channels * height * width


def _terms(shape: tuple[int, ...]) -> int:
    return shape[0] * shape[2] * shape[3]


register(
    Operation(
        name="norm_chain",
        dims=("batch", "channels", "height", "width"),
        small=((3, 5, 33, 29), (2, 16, 32, 32)),
        summary="y = three InstanceNorm + GELU in a row, times x, each plane scaled to norm 1",
        make_inputs=_inputs,
        reference=lambda inputs: exact(*_wide(inputs)),
        flops=lambda shape: _elements(shape) * (13 * LENGTH + 4),
        traffic=lambda shape, size: size * (2 * _elements(shape) + 2 * LENGTH * shape[1]),
        faults=_faults,
        depth=lambda shape: shape[2] * shape[3],
        roundings=lambda shape: ROUNDINGS,
        operands=lambda shape: 0.0,
        backward=Backward(
            reference=lambda inputs, y, near: gradient_reference(inputs),
            depth=lambda shape: {name: _terms(shape) for name in GRADIENTS},
            faults=_backward_faults,
        ),
        scale=lambda inputs: summed(inputs) if "grad" in inputs else {},
    )
)


# ---------------------------------------------------------------- who computes it


def _form(workload: Workload) -> Form:
    return chain


WAYS = ("eager", "eager_channels_last", "compile", "compile_channels_last")  # compiled: fused across reductions

register_peers("norm_chain", peers(_form, PARAMETERS, WAYS))
