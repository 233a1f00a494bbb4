"""The e-graph behind torch.compile: ``torch.compile(module, backend="hypatia_lab")``, for inference and for training.

AOTAutograd hands over graphs of ATen operations, the forward and the backward one apart, so the fusion happens after
differentiation and the gradients are those of the original operations. Parameters arrive as inputs there.

The name is the package's and not ``hypatia``: the authors' own backend is called that, and gives way where it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from hypatia_lab.egraph.measure import stored
from hypatia_lab.egraph.optimize import rewrite_graph


def _compile(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func  # pyright: ignore[reportPrivateImportUsage]

    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    costs = stored("cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu")
    return make_boxed_func(rewrite_graph(graph, costs=costs).forward)


def hypatia_lab(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A torch.compile backend: the default goals, the roofline of the inputs' device, no kernels generated."""
    # Found late: most uses of the e-graph do without torch.compile's machinery.
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=_compile, bw_compiler=_compile, inference_compiler=_compile)(graph, example_inputs)


def register() -> None:
    """Make "hypatia_lab" a name that torch.compile knows, where the package's entry point is not installed (yet)."""
    from torch._dynamo.backends import registry

    if "hypatia_lab" not in registry.list_backends(exclude_tags=()):
        registry.register_backend(hypatia_lab)
