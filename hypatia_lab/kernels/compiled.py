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


def compile_missing(workload: Any, device: str) -> str:
    """Why torch.compile has no backend here; empty when it has."""
    from hypatia_lab.kernels import loader

    return loader.triton_missing(device) if device == "cuda" else loader.compiler_missing()
