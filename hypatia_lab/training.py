"""Both passes of the dispatcher's operations: who competes under autograd, and what their gradients are held to.

A form of both passes is a function of its tensors like any other, and differentiable: eager as it is, and the others
as an ``autograd.Function``, or a node of its kind in C++ (``both_passes.cpp``), that keeps what its backward pass
reads. These have a first derivative only. Where a second is wanted, or a transform of ``torch.func`` runs, PyTorch's
operations take their place, and a warning says so once.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from hypatia_lab import variants
from hypatia_lab.kernels import loader, plans
from hypatia_lab.operations import conv_block as block
from hypatia_lab.operations import linear_relu as layer
from hypatia_lab.operations import mlp as layers
from hypatia_lab.operations.conv_block import own as own_block
from hypatia_lab.operations.linear_relu import own_backward, tensor_cores
from hypatia_lab.operations.operators import Operator
from hypatia_lab.operations.torch_forms import Form, step
from hypatia_lab.workloads import UNIT, Workload, tail

Result = TypeVar("Result")
Needs = tuple[bool, ...]
"""Of each tensor of a call, whether its gradient is asked for."""
Tensors = Sequence["torch.Tensor | None"]

PLAIN_TAKES_OVER = (
    "second derivatives, forward-mode derivatives and transforms of torch.func are computed by PyTorch's own "
    "operations: what was chosen has a first derivative only"
)

Calls = dict[str, Callable[[], Any]]
Fault = Callable[[Any], str]
"""How an answer is off; empty where it is not."""

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that are memory and nothing else."""
told: set[str] = set()
_racing = threading.local()
_transforms = torch._C._functorch.peek_interpreter_stack  # pyright: ignore[reportAttributeAccessIssue]

# ---------------------------------------------------------------- where the lab's kernels cannot be


def tell_once() -> None:
    """Warn that PyTorch's own operations are taken, once a process."""
    if PLAIN_TAKES_OVER not in told:
        told.add(PLAIN_TAKES_OVER)
        warnings.warn(PLAIN_TAKES_OVER, RuntimeWarning, stacklevel=3)


def transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is at work: tensors are not memory then."""
    return _transforms() is not None or forward_ad._current_level >= 0


def is_capturing(x: torch.Tensor) -> bool:
    return x.is_cuda and torch._C._cuda_isCurrentStreamCapturing()


def in_backward() -> bool:
    """Whether autograd's engine called, as it does where a checkpoint computes again."""
    return torch._C._current_graph_task_id() != -1


def apart(work: Callable[[], Result]) -> Result:
    """``work()`` in a thread of its own, where nothing of the caller's hooks in: no checkpoint that counts saved
    tensors, no mode of dispatch, no autocast. Within such work, and within a backward pass, in the same thread.

    What a backward pass waits for must not need the engine's thread for a pass of its own.
    """
    if getattr(_racing, "on", False) or in_backward():
        return work()

    def marked() -> Result:
        _racing.on = True
        return work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(marked).result()


# ---------------------------------------------------------------- the lab's forms


def differentiable(
    forward: Callable[..., tuple[torch.Tensor, Tensors]],
    backward: Callable[[Any, torch.Tensor], Tensors],
    twice: Callable[[Any, torch.Tensor], Tensors],
) -> Form:
    """A function of tensors whose ``forward(needs, *tensors)`` returns y and what is kept, and whose ``backward(ctx,
    grad)`` the gradients; ``twice`` does the same by operations that can be differentiated again.

    y must be no view (``y.data`` is none): autograd has nobody change a function's views in place.
    """

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor | None) -> torch.Tensor:
            y, kept = forward(ctx.needs_input_grad, *tensors)
            ctx.save_for_backward(*kept)
            ctx.set_materialize_grads(False)
            return y

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if grad is None:
                return tuple(None for _ in ctx.needs_input_grad)
            if torch.is_grad_enabled() or transformed():
                tell_once()
                return tuple(twice(ctx, grad))
            return tuple(backward(ctx, grad))

    return Both.apply


def _asked(gradients: Sequence[torch.Tensor | None], needs: Needs) -> list[torch.Tensor | None]:
    """``gradients`` where they are asked for: some kernels make one on the way to another."""
    return [one if needed else None for one, needed in zip(gradients, needs, strict=True)]


def _again(plain: Form, count: int) -> Callable[[Any, torch.Tensor], Tensors]:
    """Gradients of ``plain`` of the first ``count`` of the kept tensors, by autograd: differentiable."""

    def twice(ctx: Any, grad: torch.Tensor) -> Tensors:
        tensors, needs = ctx.saved_tensors[:count], ctx.needs_input_grad
        with torch.enable_grad():
            y = plain(*tensors)
            wanted = [one for one, needed in zip(tensors, needs, strict=True) if needed]
            found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
        return [next(found) if needed else None for needed in needs]

    return twice


def _epilogue(needs: Needs, x: Any, weight: Any, bias: Any) -> tuple[torch.Tensor, Tensors]:
    y = layer.fused_epilogue(x, weight, bias).data
    return y, (x if needs[1] else None, weight if needs[0] else None, y)


# The mask has no derivative: y is no longer asked for one.
_layer_again = layer._formula(lambda grad, y: layer.masked(grad, y.detach()))


def taken_apart(name: str, function: Callable[..., Any]) -> str:
    """The operator ``hypatia::name``, which has no kernel of its own but what ``function`` calls; its full name."""
    torch.library.define(f"hypatia::{name}", torch.library.infer_schema(function, mutates_args=()))
    for key in ("CompositeImplicitAutograd", "FuncTorchBatchedDecomposition"):
        torch.library.impl(f"hypatia::{name}", key, function)
    return f"hypatia::{name}"


def _layers_again(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, needs_x: bool, needs_weight: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tell_once()
    ctx = SimpleNamespace(saved_tensors=(x, weight, y), needs_input_grad=(needs_x, needs_weight, True))
    of_x, of_weight, of_bias = (grad.new_empty(0) if one is None else one for one in _layer_again(ctx, grad))
    return of_x, of_weight, of_bias


AGAIN = taken_apart("linear_relu_gradients_again", _layers_again)


@cache
def in_cpp() -> Any:
    """What ``both_passes.cpp`` gives Python; None where it cannot be built, which is said once."""
    if loader.cpp_missing():
        return None
    try:
        loader.aten_library("both_passes")
    except (loader.BuildError, OSError, RuntimeError) as cause:
        warnings.warn(f"training goes through Python and takes longer: {cause}", stacklevel=2)
        return None
    return torch.ops.hypatia_both_passes


class Layer:
    """Both passes of a layer by two operators. On a GPU autograd's own thread calls the second one without Python, for
    which it would have to wait. What torch.compile traces goes ``by_python`` everywhere."""

    def __init__(self, by_python: Form, forward: str, gradients: str) -> None:
        self._by_python, self._names = by_python, (forward, gradients, AGAIN)

    @cached_property
    def number(self) -> int | None:
        """By which C++ knows the operators; None where it is not there."""
        own = in_cpp()
        return own and own.enroll(*self._names)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        plain = type(x) in PLAIN and x.device.type in plans.DEVICES
        if plain and self.number is not None:
            return in_cpp().linear_relu.default(self.number, x, weight, bias)
        return self._by_python(x, weight, bias)


def _own_layer(forward: Operator[..., torch.Tensor], gradients: str) -> Layer:
    """Both passes by operators of the lab's, of which the second gives all three gradients."""

    def keep(needs: Needs, x: Any, weight: Any, bias: Any) -> tuple[torch.Tensor, Tensors]:
        y = forward(x, weight, bias).data
        return y, (x, weight, y)

    def backward(ctx: Any, grad: torch.Tensor) -> Tensors:
        needs = ctx.needs_input_grad
        computed = getattr(torch.ops.hypatia, gradients).default(grad, *ctx.saved_tensors, needs[0], needs[1])
        return _asked(computed, needs)

    return Layer(differentiable(keep, backward, _layer_again), forward.name, f"hypatia::{gradients}")


EPILOGUE = Layer(
    differentiable(_epilogue, layer._formula(layer.masked), _layer_again),
    "hypatia_both_passes::epilogue",
    "hypatia_both_passes::epilogue_gradients",
)
LAYERS = {
    "fused_backward": _own_layer(own_backward.linear_relu_fused, "linear_relu_gradients"),
    "fp16x3_backward": _own_layer(tensor_cores.linear_relu_fp16x3, "linear_relu_fp16x3_gradients"),
    "fp16x3_cuda": _own_layer(tensor_cores.linear_relu_fp16x3_cuda, "linear_relu_fp16x3_cuda_gradients"),
}
"""Variant of Linear+ReLU → both its passes."""


def linear_relu(work: Workload, device: str, needs: Needs) -> dict[str, Form]:
    """Name → form beside eager: the library's epilogue, and where weights are not frozen the lab's own kernels.

    These keep x, which a frozen layer need not.
    """
    return {"epilogue": EPILOGUE} | (_able(LAYERS, work, device) if needs[1] else {})


def _able(forms: Mapping[str, Form], work: Workload, device: str) -> dict[str, Form]:
    known = variants.variants(work.operation)
    return {name: form for name, form in forms.items() if name in known and not known[name].needs(work, device)}


def conv_block(work: Workload, device: str, needs: Needs) -> dict[str, Form]:
    """Name → form beside the library's, which has its own: the lab's kernels, which compute all five gradients."""
    approximate = block.OPERATIONS[work.operation]
    names = [name + split for name in own_block.FORMS for split in ("", f"_{own_block.SPLIT}")]
    return _able({name: _own_block(name, approximate, work.math) for name in names}, work, device)


def _own_block(name: str, approximate: str, math: str) -> Form:
    form, _, precision = name.partition("_")

    def keep(needs: Needs, x: Any, *others: Any) -> tuple[torch.Tensor, Tensors]:
        how: Any = (approximate, precision or math, form, True, None)
        y, *kept = own_block.conv_block_fused(x, *others, *how)
        return lying_as(x, y).data, (x, *others, *kept)

    def backward(ctx: Any, grad: torch.Tensor) -> Tensors:
        x, weight, _, gamma, beta, convolved, statistics = ctx.saved_tensors
        kept = (x, weight, gamma, beta, convolved, statistics)
        of_x, *others = own_block.conv_block_gradients(grad, *kept, approximate, precision or math, None)
        return _asked([lying_as(x, of_x), *others], ctx.needs_input_grad)

    plain = partial(block.conv_block, approximate=approximate)
    return differentiable(keep, backward, _again(plain, len(block.PARAMETERS)))


def lying_as(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``y``, contiguous where ``x`` is, as the library's: who calls ``view`` on it must not depend on a choice."""
    return y.contiguous() if x.is_contiguous() else y


def mlp(hidden: Form, work: Workload, device: str, needs: Needs) -> dict[str, Form]:
    """Name → form beside eager: hidden layers by ``hidden``, and where all are of one width one kernel a pass."""
    found = {"layers": layers._layer_by_layer(hidden)}
    rows, first, width, inner, last = work.shape
    count = inner + 1
    one = {own: number for number, own in layers.FUSED.items()}.get(count)
    if one is None or not first == width == last:
        return found
    alike = Workload(one, (rows, width), work.dtype, work.math)
    fused = variants.find(one, "fused")
    return found if fused.needs(alike, device) else found | {"fused": _own_mlp(count, work.math)}


def _own_mlp(count: int, math: str) -> Form:
    def keep(needs: Needs, *tensors: Any) -> tuple[torch.Tensor, Tensors]:
        return layers.mlp(tensors[0], tensors[1::2], tensors[2::2], math).data, tensors

    def backward(ctx: Any, grad: torch.Tensor) -> Tensors:
        x, *parameters = ctx.saved_tensors
        of_x, weights, biases = layers.mlp_backward(grad, x, parameters[::2], parameters[1::2], math)
        pairs = zip(weights.unbind(), biases.unbind(), strict=True)
        return _asked([of_x, *(one for pair in pairs for one in pair)], ctx.needs_input_grad)

    return differentiable(keep, backward, _again(layers.plain, 2 * count + 1))


# ---------------------------------------------------------------- what is timed, and whether it is right


@dataclass(frozen=True)
class Asked:
    """What of the backward pass: which gradients (``needs``), and under autocast to which dtype, if any."""

    needs: Needs
    autocast: torch.dtype | None = None

    def cast(self, forms: Mapping[str, Form]) -> dict[str, Form]:
        """``forms``, of what autocast makes of linear's tensors; PyTorch's own casts by itself."""
        if self.autocast is None:
            return dict(forms)
        return {name: form if name == "eager" else partial(_cast, self.autocast, form) for name, form in forms.items()}


def _cast(dtype: torch.dtype, form: Form, x: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
    """``form`` of the tensors in ``dtype``; their gradients have their own dtypes."""
    with torch.autocast(x.device.type, enabled=False):
        return form(x.to(dtype), *(None if one is None else one.to(dtype) for one in others))


def castable(one: torch.Tensor | None) -> bool:
    """Whether autocast would cast it: any floating numbers but float64."""
    return one is None or (one.is_floating_point() and one.dtype is not torch.float64)


def differs(
    answer: torch.Tensor,
    right: torch.Tensor,
    work: Workload,
    part: str = "y",
    least: float = 0.0,
    jump: torch.Tensor | None = None,
) -> str:
    """How ``answer`` is off from ``right``, eager's, by more than twice what one may be off; empty where it is not.

    Both are that ``part`` of the answer; ``least`` is the size that errors are judged against where its own is smaller,
    and ``jump`` by how much each element may be off beside.
    """
    if (answer.shape, answer.dtype, answer.device) != (right.shape, right.dtype, right.device):
        return f"{answer.dtype} {list(answer.shape)} on {answer.device} for {right.dtype} {list(right.shape)}"
    difference, sizes = (answer.double() - right.double()).abs(), right.double()
    if jump is not None:
        difference = (difference - 2 * tail(right.numel()) * jump).relu()
    peak = max(float(sizes.abs().max()), least, UNIT[work.part_dtype(part)])
    most = 2 * work.tolerance(part) * tail(right.numel()) * peak
    if not bool((difference <= most).all()):  # NaN is no answer
        return f"an element is off by {float(difference.max()):.1e}, {most:.1e} may be"
    slack = 2 * work.tolerance(part) * (1 + tail(1) / math.sqrt(right.numel()))
    error = float(difference.norm()) / (max(float(sizes.norm()), least * math.sqrt(right.numel())) or 1.0)
    return f"off by {error:.1e}, {slack:.1e} may be" if error > slack else ""


def race(
    asked: Asked, forms: Mapping[str, Form], names: Sequence[str], tensors: Tensors, work: Workload
) -> tuple[Calls, Fault]:
    """Name → a call of both passes on ``tensors``, y and the gradients asked for, and what tells how that is off.

    Off is what is off from eager's answer and from float64's (:func:`differs`). Of a ReLU's argument that rounding may
    have taken across 0 both sides are right: a gradient is held against float64's with the mask of the answer's own y,
    and where hidden layers decide, it may be off by what jumps.
    """
    needs, device = asked.needs, next(one.device.type for one in tensors if one is not None)
    leaves = [None if one is None else one.requires_grad_(need) for one, need in zip(tensors, needs, strict=True)]
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    drawn = work.inputs(device)
    pairs = zip(names, tensors, strict=True)
    inputs = {name: drawn[name] * 0 if one is None else one.detach().reshape(drawn[name].shape) for name, one in pairs}
    inputs["grad"] = drawn["grad"]

    def run(form: Form) -> tuple[torch.Tensor, ...]:
        # Entered anew each time, as by a training step: within, autocast keeps the weights that it has cast.
        with torch.autocast(device, asked.autocast) if asked.autocast else nullcontext():
            y = form(*leaves)
        return step(y, wanted, inputs["grad"].view(y.shape))

    calls = {name: partial(run, form) for name, form in forms.items()}
    right, backward = calls["eager"](), work.backward
    assert backward is not None
    parts = [work.parts[0], *(part for part, needed in zip(work.parts[1:], needs, strict=True) if needed)]
    scales, jumps = work.spec.scale(inputs), backward.jumps(inputs, work.tolerance() / 2)
    near = work.tolerance() * tail(right[0].numel()) * float(right[0].abs().max())

    def fault(answer: tuple[torch.Tensor, ...]) -> str:
        own = answer[0].reshape(inputs["grad"].shape)
        whole = dict(zip(work.parts, backward.reference(inputs, own, near), strict=True))
        for part, found, theirs in zip(parts, answer, right, strict=True):
            how = {"part": part, "least": scales.get(part, 0.0)}
            exact = whole[part].reshape(theirs.shape).to(theirs.dtype)
            if differs(found, theirs, work, **how) and (
                off := differs(found, exact, work, jump=jumps.get(part), **how)
            ):
                return f"{part}: {off}"
        return ""

    return calls, fault
