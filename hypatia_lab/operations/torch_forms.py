"""PyTorch's own forms of an operation as variants, plain and compiled, and how a form is called on a draw of inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.variants import anywhere, variant
from hypatia_lab.workloads import DIRECTIONS

if TYPE_CHECKING:
    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs, Workload

Form = Callable[..., torch.Tensor]
"""Of the tensors of an operation, one by one."""
Needs = Callable[["Workload", str], str]
Peers = Mapping[str, "tuple[Factory, Needs, tuple[str, ...]]"]
"""Variant → its factory, its needs, and the directions that it computes."""

LAST = "_channels_last"
"""How the names of inputs end that hold the same numbers channels last in memory."""


def channels_last(inputs: Inputs) -> Inputs:
    """``inputs``, and those of four dimensions channels last too: no variant times a conversion it did not ask for."""
    return inputs | {
        f"{name}{LAST}": tensor.contiguous(memory_format=torch.channels_last)
        for name, tensor in inputs.items()
        if tensor.dim() == 4
    }


def step(y: torch.Tensor, leaves: Sequence[torch.Tensor], grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """y and autograd's gradients of ``leaves``, from the upstream gradient ``grad``."""
    return y.detach(), *torch.autograd.grad(y, leaves, grad)


def bind(
    form: Form, inputs: Inputs, names: Iterable[str] | None = None, layout: str = "", *, cast: bool = False
) -> Run:
    """``form`` of the inputs called ``names``, or of all; where there is ``grad``, y and autograd's gradients of them.

    ``layout`` is "" or :data:`LAST`: which of the inputs of four dimensions are taken. ``cast``: y may have a dtype of
    its own, as under autocast.
    """
    chosen = (name for name in inputs if name != "grad") if names is None else names
    tensors = tuple(inputs.get(name + layout, inputs[name]) for name in chosen)
    if "grad" not in inputs:
        return partial(form, *tensors)  # the shortest way from the clock to the form
    # Leaves of their own on the same memory: whoever refills the inputs refills them.
    leaves, grad = [tensor.detach().requires_grad_() for tensor in tensors], inputs.get("grad" + layout, inputs["grad"])

    def run() -> tuple[torch.Tensor, ...]:
        y = form(*leaves)
        return step(y, leaves, grad.to(y.dtype) if cast else grad)

    return run


def under_autocast(workload: Workload, form: Form) -> Form:
    """``form``, under autocast to the workload's dtype where that is the operation."""
    if not workload.operation.endswith("_autocast"):
        return form
    dtype = getattr(torch, workload.dtype)

    def cast(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype):
            # Autocast leaves some results, such as a GPU's group_norm, in float32.
            return form(x, *others).to(dtype)

    return cast


def by_part(
    answers: Mapping[str, tuple[torch.Tensor, ...]], gradients: Iterable[str]
) -> dict[str, dict[str, torch.Tensor]]:
    """Fault → (y, its ``gradients``), as each gradient's faults."""
    return {part: {name: answer[n] for name, answer in answers.items()} for n, part in enumerate(gradients, 1)}


MODES = {
    "compile": "default",
    "compile_reduce_overhead": "reduce-overhead",
    "compile_max_autotune": "max-autotune-no-cudagraphs",  # graphs are a clock here
}
"""Variant → torch.compile's mode."""

WAYS = {name: (False, "", mode) for name, mode in MODES.items()} | {
    "eager": (False, "", ""),
    "eager_channels_last": (False, LAST, ""),
    "group_norm": (True, "", ""),
    "group_norm_channels_last": (True, LAST, ""),
    "compile_channels_last": (False, LAST, "default"),
    "compile_together": (True, LAST, "default"),
}
"""Variant → whether group_norm takes instance_norm's place in it, its layout, and torch.compile's mode, if any."""


def factory(form: Callable[[Workload], Form], names: Sequence[str], layout: str = "", mode: str = "") -> Factory:
    """The variant that calls the ``form`` of a workload, through torch.compile where that has a ``mode``."""

    def prepare(workload: Workload, inputs: Inputs) -> Run:
        own = form(workload)
        return bind(compiled(own, mode=mode) if mode else own, inputs, names, layout, cast=True)

    return prepare


def peers(
    form: Callable[..., Form],
    names: Sequence[str],
    ways: Iterable[str],
    *,
    plain: Needs = anywhere,
    compiling: Needs = compile_missing,
    script: Factory | None = None,
) -> dict[str, tuple[Factory, Needs, tuple[str, ...]]]:
    """Those of :data:`WAYS` called ``ways``, of ``form(workload)`` or ``form(workload, grouped=True)``; and "script".

    ``names`` are the form's inputs; ``plain`` are the needs of what torch.compile has no part in, ``compiling`` those
    of the others. Only torch.compile's default mode is asked for gradients.
    """
    found: dict[str, tuple[Factory, Needs, tuple[str, ...]]] = {}
    for way in ways:
        if way == "script" and script:
            found[way] = script, plain, DIRECTIONS
            continue
        grouped, layout, mode = WAYS[way]
        own = partial(form, grouped=True) if grouped else form
        needs = (partial(_to_graphs, compiling) if mode == "reduce-overhead" else compiling) if mode else plain
        directions = DIRECTIONS if mode in ("", "default") else DIRECTIONS[:1]
        found[way] = factory(own, names, layout, mode), needs, directions
    return found


def _to_graphs(compiling: Needs, workload: Workload, device: str) -> str:
    """Why torch.compile cannot record CUDA graphs of its own there; empty when it can."""
    return compiling(workload, device) if device == "cuda" else loader.NO_GPU


def scripted(function: Form) -> Form:
    """torch.jit.script of ``function`` (S000's fifth point); PyTorch calls it deprecated, and it still runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # said in the line above
        return torch.jit.script(function)


def register_peers(operation: str, peers: Peers) -> None:
    """Register ``peers`` as variants of ``operation``; the one called eager is the baseline."""
    for name, (factory, needs, directions) in peers.items():
        peer = partial(variant, operation, name, origin="peer", needs=needs, directions=directions, tags=("library",))
        peer(baseline=name == "eager")(factory)
