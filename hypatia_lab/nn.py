"""Modules that compute by :mod:`hypatia_lab.dispatch`, and :func:`convert`, which puts them into a model of another's.

They hold what PyTorch's hold, under the same names: a state dict saved before a conversion is loaded after it, and the
other way round, and an optimizer keeps its parameters. Where a part of a pattern has a hook, or is no plain module of
PyTorch's, it is called as before.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules import module as hooks

from hypatia_lab import dispatch
from hypatia_lab.runs import linear_relus


class LinearReLU(nn.Linear):
    """``nn.Linear`` with a ReLU behind it: x (..., in) → (..., out). Arguments and state are ``nn.Linear``'s.

    ``clock`` is the dispatcher's: "wall", or "graph" for steps that are replayed as a CUDA graph.
    """

    clock = "wall"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """max(0, x·Wᵀ + b)."""
        return dispatch.linear_relu(input, self.weight, self.bias, clock=self.clock)


class Sequential(nn.Sequential):
    """``nn.Sequential`` that calls every Linear with a ReLU behind it as one, and every convolution block.

    A block is Conv2d (3×3, padded by one, as many channels out as in), InstanceNorm2d (affine, without running
    statistics) and GELU. The modules within stay what they are. ``clock`` as of :class:`LinearReLU`.
    """

    clock = "wall"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """What the modules within make of it, one after the other."""
        if hooks._has_any_global_hook() or not isinstance(input, torch.Tensor):  # FX's proxies are none
            return super().forward(input)
        children, at = [*self._modules.values()], 0
        while at < len(children):
            one: Any = children[at]
            if (taken := _pattern(children, at)) == 2 and not torch.is_grad_enabled():
                input = dispatch.linear_relu(input, one.weight, one.bias, clock=self.clock)
            elif taken == 2:
                parameters = [*_operands(one)]
                while at + taken < len(children) and _pattern(children, at + taken) == 2:
                    parameters += _operands(children[at + taken])
                    taken += 2
                input = linear_relus(input, parameters, clock=self.clock)
            elif taken == 3 and input.dim() == 4:
                norm, gelu = children[at + 1 : at + 3]
                kept: Any = (one.weight, one.bias, norm.weight, norm.bias, gelu.approximate)
                input = dispatch.conv_block(input, *kept, clock=self.clock)
            else:
                input, taken = one(input), 1
            at += taken
        return input


def _pattern(children: Sequence[Any], at: int) -> int:
    """How many of ``children``, from that place on, are one call: 2, 3, or 0 where the first is called by itself."""
    first = children[at]
    if type(first) is nn.Linear and at + 1 < len(children) and type(children[at + 1]) is nn.ReLU:
        return 2 if _plain(first) and _plain(children[at + 1]) else 0
    if type(first) is not nn.Conv2d:
        return 0
    block = children[at : at + 3]
    if [type(one) for one in block[1:]] != [nn.InstanceNorm2d, nn.GELU] or not all(map(_plain, block)):
        return 0
    conv, norm, _ = block
    shape = (conv.kernel_size, conv.stride, conv.dilation, conv.groups, conv.padding_mode)
    same = shape == ((3, 3), (1, 1), (1, 1), 1, "zeros") and conv.padding in ((1, 1), "same")
    same = same and conv.in_channels == conv.out_channels == norm.num_features
    return 3 if same and norm.affine and norm.eps == 1e-5 and not norm.track_running_stats else 0


def _operands(one: nn.Module) -> tuple[Any, Any]:
    """Weight and bias, without ``nn.Module``'s search for attributes where they are parameters."""
    own = one._parameters
    try:
        return own["weight"], own["bias"]
    except KeyError:  # somebody has put tensors in their place
        return one.weight, one.bias


def _plain(one: nn.Module) -> bool:
    """Whether a call of it is its ``forward`` alone, and that its class's."""
    hooked = one._forward_hooks or one._forward_pre_hooks or one._backward_hooks or one._backward_pre_hooks
    return not hooked and one._compiled_call_impl is None and "forward" not in one.__dict__


def convert(model: nn.Module, *, clock: str = "wall") -> int:
    """Have ``model`` compute by the dispatcher what it can, in place; returns how many patterns were found.

    - An ``nn.Sequential`` with patterns in it becomes a :class:`Sequential`.
    - A Linear and a ReLU that a ``forward`` calls one after the other become a :class:`LinearReLU` and an
      ``nn.Identity``. Who calls whom is what ``torch.fx`` traces, in training and in evaluation, with and without its
      arguments' defaults; what it cannot trace stays as it is, as does what ``forward`` computes by functions
      (``relu(self.layer(x))``) and a ReLU that something else is given to, too.

    Parameters, state and names stay; who holds a converted Linear by itself gets its ReLU, too. ``clock`` as of
    :class:`LinearReLU`. A second conversion finds nothing.
    """
    found = 0
    for one in [*model.modules()]:
        if type(one) is nn.Sequential:
            own = [_pattern([*one._modules.values()], at) for at in range(len(one))]
            if any(own):
                one.__class__, one.__dict__["clock"] = Sequential, clock
                found += sum(map(bool, own))
    for layer, places in _traced(model):
        layer.__class__, layer.__dict__["clock"] = LinearReLU, clock
        for owner, name in places:
            owner._modules[name] = nn.Identity()
        found += 1
    return found


# ---------------------------------------------------------------- who calls whom


class _Calls(fx.Tracer):
    """One module's ``forward``, whatever it calls as a whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(model: nn.Module) -> list[tuple[Any, set[tuple[nn.Module, str]]]]:
    """Linears that only a ReLU reads, in whatever calls them, and the places (owner, name) of that ReLU."""
    holders = Counter(id(child) for one in model.modules() for child in one._modules.values())
    good: dict[Any, set[tuple[nn.Module, str]]] = {}
    bad: set[nn.Module] = set()
    for caller in model.modules():
        kinds = {type(part) for part in caller.modules()}
        if (
            type(caller) in (Sequential, nn.Sequential, nn.ModuleList, nn.ModuleDict)
            or not {nn.Linear, nn.ReLU} <= kinds
        ):
            continue
        for graph in _graphs(caller):
            pairs, others = _pairs(caller, graph)
            bad |= others
            for layer, place in pairs:
                good.setdefault(layer, set()).add(place)
    return [(layer, places) for layer, places in good.items() if layer not in bad and holders[id(layer)] == 1]


def _graphs(caller: nn.Module) -> list[fx.Graph]:
    """``forward`` in training and in evaluation, with the defaults of its arguments and with others given.

    Empty where it cannot be traced in every way.
    """
    given = inspect.signature(caller.forward).parameters.values()
    usual = {one.name: one.default for one in given if one.default is not one.empty}
    mode, found = caller.training, []
    try:
        for caller.training in (True, False):
            found += [_Calls().trace(caller), _Calls().trace(caller, concrete_args=usual)]
    except Exception:  # whatever it does with its arguments, it is called as before
        return []
    finally:
        caller.training = mode
    return found


def _pairs(caller: nn.Module, graph: fx.Graph) -> tuple[list[tuple[nn.Module, tuple[nn.Module, str]]], set[nn.Module]]:
    """Each Linear that only a ReLU reads, with the place of that ReLU, which reads no others; all other Linears."""
    called = {node: caller.get_submodule(str(node.target)) for node in graph.find_nodes(op="call_module")}
    times = Counter(called.values())

    def read_by(node: fx.Node) -> fx.Node | None:
        """The ReLU that alone reads a Linear."""
        layer, users = called[node], [*node.users]
        fits = type(layer) is nn.Linear and times[layer] == 1 and _plain(layer) and len(users) == 1
        relu = called.get(users[0]) if fits else None
        return users[0] if type(relu) is nn.ReLU and _plain(relu) else None

    pairs = {node: relu for node in called if (relu := read_by(node)) is not None}
    shared = {called[node] for node in called if type(called[node]) is nn.ReLU and node.args[0] not in pairs}
    pairs = {node: relu for node, relu in pairs.items() if called[relu] not in shared}
    found = [(called[node], _place(caller, str(relu.target))) for node, relu in pairs.items()]
    return found, {one for node, one in called.items() if type(one) is nn.Linear and node not in pairs}


def _place(caller: nn.Module, path: str) -> tuple[nn.Module, str]:
    owner, _, name = path.rpartition(".")
    return caller.get_submodule(owner), name
