"""What torch.compile traces of the dispatcher: an operator that it takes apart, and one that is left.

It takes ``hypatia::traced`` apart while it traces for gradients, when tensors have shapes and no numbers. So a choice
can be asked for, and measured in a thread of its own on tensors of those shapes, and nothing that comes before in the
function is carried out for it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hypatia_lab import training
from hypatia_lab.operations.operators import Operator
from hypatia_lab.training import Tensors

DISPATCHERS: dict[str, Any] = {}
"""Operation → its :class:`hypatia_lab.dispatch.Dispatcher`, which puts itself here."""


def text() -> str:
    """A digest of the text of all forms, and of what chooses among them."""
    home, found = Path(__file__).resolve().parent, hashlib.sha256()
    own = [home / f"{name}.py" for name in ("dispatch", "races", "tracing", "training")]
    for path in own + sorted(path for folder in ("kernels", "operations") for path in (home / folder).rglob("*.*")):
        if "__pycache__" not in path.parts:
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _stamp() -> str:
    """The digest that a graph is told of; none in a program that is exported, which must do without the lab."""
    return "" if torch.compiler.is_exporting() else text()


# A constant to Dynamo: all that torch.compiler.assume_constant_result does, which would import Dynamo for it. PyTorch
# 2.11's Dynamo itself says of all that it traces that it is exported.
_stamp._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def by_inductor(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of tensors, or None, as Inductor compiles it for the first that it is called with.

    Without Dynamo, which may be at work already and let nobody else in. It has no backward pass.
    """
    found: list[Any] = []

    def form(*tensors: Any) -> Any:
        from torch.fx.experimental.proxy_tensor import make_fx

        given = [one for one in tensors if one is not None]
        if not found:

            def whole(*given: Any) -> Any:
                due = iter(given)
                return function(*(one if one is None else next(due) for one in tensors))

            found.append(torch._inductor.compile(make_fx(whole)(*given), given, options={"triton.cudagraphs": False}))
        made = found[0](*given)
        return made[0] if isinstance(made, (tuple, list)) else made

    return form


def call(operation: str, clock: str, tensors: Tensors) -> torch.Tensor:
    """The operation, while Dynamo traces: an operator of its graph."""
    stamp = _stamp()
    return torch.ops.hypatia.traced(operation, clock, stamp, tensors) if stamp else _eager(operation)(*tensors)


def _eager(operation: str) -> Callable[..., torch.Tensor]:
    return DISPATCHERS[operation].direct["eager"]


def _traced(operation: str, clock: str, stamp: str, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    # ``stamp`` keeps graphs apart that torch.compile has stored.
    from torch._subclasses.functional_tensor import FunctionalTensor

    one, eager, given = DISPATCHERS[operation], _eager(operation), [one for one in tensors if one is not None]
    kinds, (kind, *others) = {*map(type, given)}, {one.device.type for one in given}
    if training.transformed() or others or kind not in ("cpu", "cuda"):
        return eager(*tensors)
    if kinds <= {*training.PLAIN}:  # of a backend that runs the graph as it is
        return one(clock, False, *tensors)
    # Dynamo itself asks for shapes alone; in a backward pass nothing could be asked for in another thread; and a class
    # of its own says what it does itself.
    if training.in_backward() or kinds != {FunctionalTensor}:
        return eager(*tensors)
    grad = torch.is_grad_enabled() and any(one.requires_grad for one in given)
    clock = "graph" if _replayed() and not grad else clock
    cast = torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))

    def ask() -> Callable[..., torch.Tensor] | None:
        with torch.set_grad_enabled(grad), cast:
            return one.own(clock, [*map(_like, tensors)])

    try:
        own = training.apart(ask)
    except (RuntimeError, TypeError):  # too little memory, or sizes that nobody knows
        own = None
    if own is None or not all(one.is_contiguous() for one in given):
        return eager(*tensors)
    if not grad:
        return torch.ops.hypatia.quickest(operation, clock, tensors)
    known = all(isinstance(size, int) for one in given for size in one.shape)
    return (own if known else eager)(*tensors)


def _replayed() -> bool:
    """Whether Inductor, if it is the one that traces now, is to replay what it makes as a CUDA graph."""
    config = sys.modules.get("torch._inductor.config")
    return config is not None and config.triton.cudagraphs


def _like(one: torch.Tensor | None) -> torch.Tensor | None:
    """Memory as ``one`` would have it, whose sizes torch.compile may leave open."""
    if one is None:
        return None
    sizes, strides = ([n if isinstance(n, int) else n.node.hint for n in own] for own in (one.shape, one.stride()))
    found = torch.empty_strided(sizes, strides, dtype=one.dtype, device=one.device)
    return found.requires_grad_(one.requires_grad)


def _quickest(operation: str, clock: str, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    return DISPATCHERS[operation](clock, False, *tensors)


training.taken_apart("traced", _traced)
Operator("quickest", _quickest).register_fake(lambda operation, clock, tensors: _eager(operation)(*tensors))
