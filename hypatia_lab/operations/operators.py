"""A function as an operator of PyTorch's: ``torch.ops.hypatia.<name>``.

Out of the parts of ``torch.library`` and not by its ``custom_op``, whose first call imports Dynamo: seconds in every
fresh process. Source: torch.library's manual, "low-level APIs".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch.utils import _pytree as trees

from hypatia_lab.kernels import plans

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# What an argument of a gradient's operator is; the numbers are those of kernels/launch.cpp.
_GRADIENT, _ARGUMENT, _RESULT, _NEEDED = range(4)

_attaching = threading.Lock()


class Operator(Generic[Parameters, Result]):
    """The operator ``hypatia::name`` that ``function`` computes on every device; called as that is.

    Its schema is read from the annotations of ``function``, which must return new tensors; ``mutates`` names the
    arguments it changes. A tensor it changes must be told to autograd by the function itself
    (``torch.autograd.graph.increment_version``). Raises ``ValueError`` for annotations that PyTorch has no schema for.

    ``planned``: on a GPU what the function does for tensors of one kind is recorded once and from then on carried out
    without Python, its gradients included (:mod:`hypatia_lab.kernels.recording` says what such a function may look at);
    where there is no C++ compiler, or while a graph is captured before that, the function computes. Under autocast its
    floating tensors are cast, if it is to be so.
    """

    def __init__(
        self,
        name: str,
        function: Callable[Parameters, Result],
        mutates: Iterable[str] = (),
        *,
        planned: bool = False,
        autocast: bool = False,
    ) -> None:
        self.name = f"hypatia::{name}"
        torch.library.define(self.name, torch.library.infer_schema(function, mutates_args=tuple(mutates)))
        torch.library.impl(self.name, "CompositeExplicitAutograd", self._compute if planned else function)
        self.call: Callable[Parameters, Result] = getattr(torch.ops.hypatia, name).default
        self.function, self._planned, self._autocast, self.attached = function, planned, autocast, False
        self._formula: tuple[str, str, list[int]] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """What the function returns."""
        if self._planned and not self.attached and not torch.compiler.is_compiling():
            self._attach(args)
        return self.call(*args, **kwargs)

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: shapes and dtypes of the result, for tensors without memory."""
        torch.library.register_fake(self.name, function)
        return function

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None] | None = None
    ) -> None:
        """The formula of the gradients: see ``torch.library.register_autograd``."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context)

    def differentiated_by(self, gradient: Operator[..., Any], results: Sequence[str] = ("y",)) -> None:
        """The gradients are what the operator ``gradient`` returns: those of this one's first tensors, in their order.

        Where an argument is a list of tensors its gradients are one tensor, stacked. What ``gradient`` is given follows
        from its arguments' names: ``grad`` is the gradient of the first result, the others' are not differentiable;
        an argument's name or one of the ``results`` is that, and ``needs_x`` whether the gradient of x, which no list
        comes before, is wanted.
        """
        names = [argument.name for argument in _arguments(self.call)]
        known = {"grad": (_GRADIENT, 0)} | {name: (_ARGUMENT, at) for at, name in enumerate(names)}
        known |= {f"needs_{name}": (_NEEDED, at) for at, name in enumerate(names)}
        known |= {name: (_RESULT, at) for at, name in enumerate(results)}
        given = [known[argument.name] for argument in _arguments(gradient.call)]
        tensors = [at for at, argument in enumerate(_arguments(self.call)) if "Tensor" in str(argument.type)]
        self._formula = gradient.name, "", [number for pair in given for number in pair]

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = (output,) if isinstance(output, torch.Tensor) else output
            sources = {_ARGUMENT: inputs, _RESULT: outputs}
            values = [sources[kind][at] if kind in sources else None for kind, at in given]
            leaves, ctx.tree = trees.tree_flatten(values)
            ctx.others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            ctx.save_for_backward(*(leaf if isinstance(leaf, torch.Tensor) else None for leaf in leaves))
            ctx.mark_non_differentiable(*outputs[1:])
            ctx.set_materialize_grads(False)

        def backward(ctx: Any, grad: torch.Tensor | None, *others: Any) -> tuple[Any, ...]:
            found = trees.tree_map(lambda needed: None, [*ctx.needs_input_grad])
            if grad is None:
                return tuple(found)
            both = zip(ctx.saved_tensors, ctx.others, strict=True)
            values = trees.tree_unflatten([other if kept is None else kept for kept, other in both], ctx.tree)
            own = {_GRADIENT: lambda at: grad, _NEEDED: lambda at: ctx.needs_input_grad[at]}
            pairs = zip(given, values, strict=True)
            given_back = gradient(*(own[kind](at) if kind in own else value for (kind, at), value in pairs))
            gradients = (given_back,) if isinstance(given_back, torch.Tensor) else given_back
            for at, one in zip(tensors, gradients, strict=False):
                needed = ctx.needs_input_grad[at]
                found[at] = [*one.unbind()] if isinstance(needed, list | tuple) else one if needed else None
            return tuple(found)

        self.register_autograd(backward, setup_context=keep)

    def not_differentiable(self, why: str) -> None:
        """Whoever differentiates it gets ``NotImplementedError`` with the reason."""

        def refuse(ctx: Any, *grads: Any) -> None:
            raise NotImplementedError(why)

        self._formula = "", why, []
        self.register_autograd(refuse)

    def _compute(self, *args: Any) -> Any:
        """The function, or on a GPU a call again, once there is a plan for it."""
        if not self.attached and self._attach(args):
            return self.call(*args)  # pyright: ignore[reportCallIssue]
        if self.attached and plans.made_ready(self.name, self.function, args):
            return self.call(*args)  # pyright: ignore[reportCallIssue]
        return self.function(*args)  # pyright: ignore[reportCallIssue]

    def _attach(self, args: Sequence[Any]) -> bool:
        """Where ``args`` lie on a GPU C++ takes such calls from now on, and comes back for what has no plan; whether
        that is so.
        """
        device = next((one.device.type for one in args if isinstance(one, torch.Tensor)), "")
        if device not in plans.DEVICES or not plans.available():
            return False
        with _attaching:
            if not self.attached:
                library = plans.library()
                library.replay(self.name, device.upper())
                if self._formula:
                    name, why, given = self._formula
                    library.differentiate(self.name, device.upper(), name, why, given)
                if self._autocast:
                    library.autocast(self.name)
                self.attached = True
        return True


def _arguments(call: Any) -> Sequence[Any]:
    return call._schema.arguments


def operator(
    name: str, *, mutates: Iterable[str] = (), planned: bool = False, autocast: bool = False
) -> Callable[[Callable[Parameters, Result]], Operator[Parameters, Result]]:
    """Decorator: the function becomes :class:`Operator` ``name``."""
    return lambda function: Operator(name, function, mutates, planned=planned, autocast=autocast)
