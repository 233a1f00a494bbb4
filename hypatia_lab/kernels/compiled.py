"""torch.compile as a variant: every call gets code of its own, so that no shape slows another's guards."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., Any], *, mode: str = "default") -> Callable[..., Any]:
    """``torch.compile(function)`` for static shapes, in one graph.

    Dynamo keeps its cache on the code object and gives up after a few shapes, silently: a copied code object
    starts with an empty cache. Source: torch._dynamo's ``recompile_limit``.
    """
    import torch

    own = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    own.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(own, mode=mode, dynamic=False, fullgraph=True)


def by_inductor(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of tensors, or None, as Inductor compiles it for the first that it is called with.

    Without Dynamo, which may be at work already and let nobody else in. It has no backward pass.
    """
    found: list[Any] = []

    def form(*tensors: Any) -> Any:
        import torch
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


def compile_missing(workload: Any, device: str) -> str:
    """Why torch.compile has no backend here; empty when it has."""
    from hypatia_lab.kernels import loader

    return loader.triton_missing(device) if device == "cuda" else loader.compiler_missing()
