"""A function as an operator of PyTorch's: ``torch.ops.hypatia.<name>``.

Out of the parts of ``torch.library`` and not by its ``custom_op``, whose first call imports Dynamo: seconds in every
fresh process. Source: torch.library's manual, "low-level APIs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Operator(Generic[Parameters, Result]):
    """The operator ``hypatia::name`` that ``function`` computes on every device; called as that is.

    Its schema is read from the annotations of ``function``, which must return new tensors; ``mutates`` names the
    arguments it changes. A tensor it changes must be told to autograd by the function itself
    (``torch.autograd.graph.increment_version``). Raises ``ValueError`` for annotations that PyTorch has no schema for.
    """

    def __init__(self, name: str, function: Callable[Parameters, Result], mutates: Iterable[str] = ()) -> None:
        self.name = f"hypatia::{name}"
        torch.library.define(self.name, torch.library.infer_schema(function, mutates_args=tuple(mutates)))
        torch.library.impl(self.name, "CompositeExplicitAutograd", function)
        self._call: Callable[Parameters, Result] = getattr(torch.ops.hypatia, name)
        self.__doc__ = function.__doc__

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """What the function returns."""
        return self._call(*args, **kwargs)

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: shapes and dtypes of the result, for tensors without memory."""
        torch.library.register_fake(self.name, function)
        return function

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None] | None = None
    ) -> None:
        """The formula of the gradients: see ``torch.library.register_autograd``."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context)


def operator(
    name: str, *, mutates: Iterable[str] = ()
) -> Callable[[Callable[Parameters, Result]], Operator[Parameters, Result]]:
    """Decorator: the function becomes :class:`Operator` ``name``."""
    return lambda function: Operator(name, function, mutates)
