"""The optimized module: a graph module that costs little to call, and the report of what was done."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen, _format_target
from torch.nn.modules import module as hooks


@dataclass(frozen=True)
class Rewrite:
    """One rewriting in the result: names of the ``rules`` that met, ``at`` which nodes of the captured graph, and the
    operator that computes them now (a leaf's name where they are just another value).

    ``term`` is the whole replacement over names of nodes. ``error`` is ‖new − old‖/‖old‖ of that value on the example
    inputs (NaN: not compared), ``node`` the node of the rewritten graph that computes it.
    """

    rules: tuple[str, ...]
    at: tuple[str, ...]
    into: str
    term: str = ""
    error: float = float("nan")
    node: str = ""


@dataclass(frozen=True)
class Report:
    """What was done. Times of the cost model in µs, durations in seconds. ``reason`` says what is wrong; else empty.

    ``nodes_before`` and ``nodes_after`` count the calls in the graph. ``gap`` bounds how far the selection is from the
    optimum of the cost model, as a share of its cost; ``method`` is what found it; ``measured`` is the share of the
    ways to choose from whose cost was measured. ``raced`` has the times of the original and, where it is faster, of the
    rewritten graph as a whole (empty: not raced). ``errors`` are the comparisons made, by name (:mod:`validate`), each
    the largest ‖new − old‖/‖old‖, and ``left_out`` says why others were not. ``checksum`` is the SHA-256 of every byte
    of every parameter and buffer.
    """

    reason: str = ""
    nodes_before: int = 0
    nodes_after: int = 0
    rewrites: tuple[Rewrite, ...] = ()
    cost_before: float = 0.0
    cost_after: float = 0.0
    gap: float = 0.0
    method: str = "original"
    measured: float = 0.0
    raced: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    checksum: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)


class Optimized(fx.GraphModule):
    """A rewritten graph on the parameters and buffers of the module it came from, and the ``report``.

    Calling it costs little more than its operations: parameters are read off the modules' own dictionaries, and the
    arguments' shapes, dtypes and devices are compared in a line each.
    """

    @property
    def report(self) -> Report:
        """What was done."""
        return self.meta["report"]

    @report.setter
    def report(self, report: Report) -> None:
        self.meta["report"] = report

    def train(self, mode: bool = True) -> Optimized:
        """Nothing in the mode of the capture. Raises ``NotImplementedError`` for the other: dropout and batch norm
        were captured in this one."""
        if mode != self.training:
            now = "train" if self.training else "eval"
            raise NotImplementedError(f"captured in {now} mode; optimize the module again in the other")
        return self

    def recompile(self) -> Any:
        """FX's code of the graph, and from it the method that is called."""
        code = super().recompile()
        # Every graph module is the only one of its class.
        kind: Any = type(self)
        kind.forward = _swift(self, code)
        kind.__call__ = _called(kind.forward)
        return code


def _called(forward: Callable[..., Any]) -> Callable[..., Any]:
    """``Module.__call__`` that goes straight to ``forward`` where nobody has hooked in: it takes a microsecond less."""

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        own = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        if own or hooks._has_any_global_hook() or self._compiled_call_impl is not None:
            return torch.nn.Module.__call__(self, *args, **kwargs)
        return forward(self, *args, **kwargs)

    return call


class Plain(CodeGen):
    """Code of a signature without containers: ``arguments`` are (shape, dtype, device) by name."""

    def __init__(self, arguments: Mapping[str, tuple[torch.Size, torch.dtype, torch.device]]) -> None:
        super().__init__()
        self.arguments = arguments


def _swift(module: fx.GraphModule, code: Any) -> Any:
    """``forward`` from FX's ``code``, parameters bound to where the modules keep them, arguments compared."""
    names, bound = dict(code.globals), {}
    for position, node in enumerate(module.graph.find_nodes(op="get_attr")):
        path, _, name = str(node.target).rpartition(".")
        owner = module.get_submodule(path)
        kept = next((kind for kind in (owner._parameters, owner._buffers) if kind.get(name) is not None), None)
        if kept is not None:
            names[f"_kept{position}"] = kept
            bound[_format_target("self", str(node.target))] = f"_kept{position}[{name!r}]"
    text = re.sub(r"(?m)(?<== )(self\.|getattr\().*?(?=;|$)", lambda m: bound.get(m.group(), m.group()), code.src)
    lines = text.splitlines()
    head = next(position for position, line in enumerate(lines) if line.startswith("def forward("))
    checks = []
    for name, (shape, dtype, device) in getattr(module.graph._codegen, "arguments", {}).items():
        names |= {f"_shape_{name}": shape, f"_dtype_{name}": dtype, f"_device_{name}": device, "_refuse": _refuse}
        wrong = f"{name}.shape != _shape_{name} or {name}.dtype is not _dtype_{name}"
        checks.append(f"    if {wrong} or {name}.device != _device_{name}:")
        checks.append(f"        _refuse({name!r}, {name}, _shape_{name}, _dtype_{name}, _device_{name})")
    lines[head + 1 : head + 1] = checks
    exec(compile("\n".join(lines) + "\n", "<the e-graph's module>", "exec"), names)
    return names["forward"]


def _refuse(name: str, given: torch.Tensor, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
    raise ValueError(
        f"{name} is {list(given.shape)} {given.dtype} on {given.device}, but the module was optimized for "
        f"{list(shape)} {dtype} on {device}; optimize it again with such an input"
    )


def guards(node: fx.Node) -> bool:
    """Whether it is torch.export's check of the inputs."""
    return node.op == "call_module" and str(node.target).startswith("_guards_fn")


def simplify(graph: fx.Graph) -> None:
    """Give ``graph``, of torch.export, a plain signature where its arguments and its results are tensors and no
    containers, and compare the arguments there instead of in torch.export's own guards.

    It stays as it is where that cannot be: keyword arguments, containers, symbolic sizes.
    """
    info = getattr(graph._codegen, "pytree_info", None)
    if (
        info is None
        or info.in_spec.num_leaves != info.in_spec.child(0).num_children
        or info.in_spec.child(1).num_leaves
    ):
        return
    places, (output,) = graph.find_nodes(op="placeholder"), graph.find_nodes(op="output")
    values = [node.meta.get("val") for node in places]
    results, names = list(output.args[0]), info.orig_args
    whole = info.out_spec.is_leaf() or (info.out_spec.type is tuple and info.out_spec.num_children == len(results))
    tensors = all(isinstance(v, torch.Tensor) and all(isinstance(n, int) for n in v.shape) for v in values)
    if not (whole and tensors and all(isinstance(result, fx.Node) for result in results) and len(names) == len(places)):
        return
    arguments = {name: (v.shape, v.dtype, v.device) for name, v in zip(names, values, strict=True)}
    graph.set_codegen(Plain(arguments))
    for node in filter(guards, list(graph.nodes)):
        graph.erase_node(node)
    for node, name in zip(places, names, strict=True):
        node.target = name
    output.args = (results[0] if info.out_spec.is_leaf() else tuple(results),)
