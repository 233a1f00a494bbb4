"""Linear+ReLU after Linear+ReLU: in training, a run of layers whose like has been before is one call into C++.

To look up a choice takes Python some microseconds a layer, and several times as long where the caches hold other code.
So once every layer of a run is chosen, C++ is told of the forms and of all that their choice depends on: shapes,
strides, dtypes and devices, whose gradients are asked for, and precision. It tells such runs by that. Where autocast is
on, a tracer or a mode of dispatch looks on, or a form is none of C++'s, Python goes layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hypatia_lab import training
from hypatia_lab.dispatch import LINEAR_RELU
from hypatia_lab.kernels import plans

_PYTORCH, _PYTHON = -1, -2
"""In place of its operators' number: PyTorch's own form, and one that C++ knows nothing of."""
_PLAIN = {*training.PLAIN, type(None)}


def linear_relus(x: torch.Tensor, parameters: Sequence[torch.Tensor | None], *, clock: str = "wall") -> torch.Tensor:
    """x through ``dispatch.linear_relu`` of each weight and bias of ``parameters``: weight, bias, weight, bias, …

    Shapes, ``clock`` and errors are those of that function, but for a ``clock`` that is no text: PyTorch's own.
    """
    own = training.in_cpp() if _in_training(x, parameters) else None
    found = own.run.default(clock, x, parameters) if own else x
    if not (found is None or found is x):
        return found
    numbers: list[Any] = []
    y = x
    for pair in zip(parameters[::2], parameters[1::2], strict=True):
        given = (y, *pair)
        y = LINEAR_RELU(clock, False, *given)
        if found is None:
            numbers.append(_number(clock, given))
    if own and found is None and None not in numbers:
        own.keep.default(clock, x, parameters, [] if _PYTHON in numbers else numbers)
    return y


def _in_training(x: torch.Tensor, parameters: Sequence[torch.Tensor | None]) -> bool:
    """Whether forms of both passes are chosen, of what is memory and nothing else, and nobody looks on."""
    if torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled():
        return False
    watched = torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
    if watched or torch._C._get_tracing_state() or torch._C._is_any_autocast_enabled() or training.transformed():
        return False
    plain = type(x) is torch.Tensor and {*map(type, parameters)} <= _PLAIN and x.device.type in plans.DEVICES
    learns = x.requires_grad or any(one is not None and one.requires_grad for one in parameters)
    return plain and learns and not training.is_capturing(x)


def _number(clock: str, given: training.Tensors) -> int | None:
    """By which C++ knows the form that was chosen for such tensors; None where nothing was."""
    form = LINEAR_RELU.known(clock, given)
    if form is LINEAR_RELU.direct["eager"]:
        return _PYTORCH
    if form is LINEAR_RELU.direct["epilogue"]:  # of a layer that learns nothing
        form = training.EPILOGUE
    return form and (form.number if isinstance(form, training.Layer) else _PYTHON)
