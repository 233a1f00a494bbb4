"""From a torch.fx graph to terms: what the rules may see, and what must stay as it is.

The graph is one of ATen operations with tensors in ``meta["val"]``, as torch.export and AOTAutograd make it. An
operation that has a term becomes one; any other node is opaque and stays as it is. Opaque, and in their order, stay

- operations that write into a tensor, and every node that reads or aliases a tensor that any operation writes into:
  what such a node computes depends on when it runs (but relu_ of a product that nobody else reads is a ReLU);
- operations that draw random numbers: a seed shall give the same numbers as before;
- calls of modules, methods and functions that are no ATen operations: nobody knows what they write into.

Symbolic sizes (a dynamic batch) are stood for by large primes, see :class:`Sizes`.
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hypatia_lab.egraph.module import guards
from hypatia_lab.egraph.saturation import Node
from hypatia_lab.egraph.terms import OPERATORS, IllTyped, Type, aten

Term = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Terms:
    """A graph as terms: ``nodes`` in order, arguments first; names of the nodes that keep their order (``pinned``), of
    those that must run whoever reads them (``effects``), and of those that the output reads (``outputs``).

    ``sizes`` says which numbers in the types stand for symbolic sizes.
    """

    nodes: tuple[Node, ...]
    pinned: frozenset[str]
    effects: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: Sizes


class Sizes:
    """Symbolic sizes as numbers: every symbol is a large prime, and an expression its value at those primes.

    Two sizes are then equal as numbers if they are equal for whatever the symbols are, and sums and products of sizes
    stay right; that different expressions meet in one number by chance is as good as impossible.
    ``hints`` maps such a number to the size that the example inputs had.
    """

    def __init__(self) -> None:
        self.hints: dict[int, int] = {}
        self._symbols: dict[Any, int] = {}

    def number(self, size: Any) -> int | None:
        """The number of one size; None where no example value is known."""
        if isinstance(size, int):
            return size
        import sympy

        expression = size.node.expr
        if not size.node.has_hint():
            return None
        for symbol in expression.free_symbols:
            # Small enough for 64 bits to count the bytes of a tensor that has three such sizes.
            self._symbols.setdefault(symbol, sympy.nextprime(100_000 + 1000 * len(self._symbols)))
        value = int(expression.xreplace({symbol: sympy.Integer(p) for symbol, p in self._symbols.items()}))
        if not expression.free_symbols:
            return value
        self.hints[value] = int(size.node.hint)
        return value

    def type(self, tensor: Any) -> Type | None:
        """Type of a tensor; None of anything else."""
        if not isinstance(tensor, torch.Tensor):
            return None
        shape = [self.number(size) for size in tensor.shape]
        known = tuple(size for size in shape if size is not None)
        return Type(known, str(tensor.dtype).removeprefix("torch.")) if len(known) == len(shape) else None


def _bound(node: fx.Node) -> dict[str, Any]:
    """Arguments of an ATen operation by name, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    values = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    values |= {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    return values | node.kwargs


Reading = Callable[[dict[str, Any], Type, Sizes], "Term | None"]
"""From an operation's arguments by name and its result's type to its term, or to None where no term says the same."""


def _plain(operator: str, *names: str, **only: Any) -> Reading:
    """``operator`` of the arguments ``names``, where those named in ``only`` are what stands there."""

    def reading(bound: dict[str, Any], *_: Any) -> Term | None:
        fits = all(bound[name] == wanted for name, wanted in only.items())
        return (operator, tuple(bound[name] for name in names)) if fits else None

    return reading


def _view(bound: dict[str, Any], kind: Type, sizes: Sizes) -> Term | None:
    # On the way back a symbolic size is a -1, of which a view can have one, beside no zero.
    symbolic = sum(size in sizes.hints for size in kind.shape)
    return None if symbolic > 1 or (symbolic and 0 in kind.shape) else ("View", (bound["self"], kind.shape))


def _swap(x: fx.Node, rank: int, first: int, second: int) -> Term | None:
    first, second = sorted((first % rank, second % rank)) if rank else (0, 0)
    return ("Transpose", (x, first, second)) if first < second else None


def _permute(bound: dict[str, Any], kind: Type, _: Sizes) -> Term | None:
    rank = len(kind.shape)
    moved = [position for position, dim in enumerate(bound["dims"]) if position != dim % rank]
    return _swap(bound["self"], rank, *moved) if len(moved) == 2 else None


def _conv2d(bound: dict[str, Any], *_: Any) -> Term:
    pairs = [bound[name] for name in ("stride", "padding", "dilation")]
    dims = tuple(size for pair in pairs for size in (pair * 2 if len(pair) == 1 else pair))
    return "Conv2d", (bound["input"], bound["weight"], bound["bias"], (*dims, bound["groups"]))


VIEWS = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
)
NORMED = ("input", "weight", "bias")

READINGS: dict[Any, Reading] = {
    aten.linear.default: _plain("Linear", "input", "weight", "bias"),
    torch.ops.hypatia.linear_relu_epilogue.default: _plain("LinearRelu", "x", "weight", "bias"),
    aten.relu.default: _plain("Relu", "self"),
    aten.relu_.default: _plain("Relu", "self"),
    aten.add.Tensor: _plain("Add", "self", "other", alpha=1),
    aten.mm.default: _plain("Mm", "self", "mat2"),
    aten.matmul.default: _plain("Mm", "self", "other"),
    aten.addmm.default: _plain("Addmm", "self", "mat1", "mat2", beta=1, alpha=1),
    **dict.fromkeys(VIEWS, _view),
    aten.t.default: lambda bound, kind, _: _swap(bound["self"], len(kind.shape), 0, 1),
    aten.transpose.int: lambda bound, kind, _: _swap(bound["self"], len(kind.shape), bound["dim0"], bound["dim1"]),
    aten.permute.default: _permute,
    aten.dropout.default: _plain("Dropout", "input", "p", "train", train=False),
    aten.conv2d.default: _conv2d,
    # Neither is a term while it writes into running statistics; in training without any, batch_norm has no type.
    aten.batch_norm.default: _plain("BatchNorm", *NORMED, "running_mean", "running_var", "eps"),
    aten.instance_norm.default: _plain("InstanceNorm", *NORMED, "eps", use_input_stats=True),
    aten.gelu.default: _plain("Gelu", "self", "approximate"),
}
"""ATen operation → its reading."""


def _attribute(module: torch.nn.Module, name: Any) -> Any:
    for part in str(name).split("."):
        module = getattr(module, part)
    return module


def _term(node: fx.Node, kind: Type | None, sizes: Sizes) -> Term | None:
    """The term of an operation; None where there is none, or where its type is not ``kind``, the node's."""
    reading = READINGS.get(node.target)
    term = None if reading is None or kind is None else reading(_bound(node), kind, sizes)
    if term is None:
        return None
    name, arguments = term
    operator = OPERATORS[name]
    arguments = tuple(float(a) if sort == "f64" else a for sort, a in zip(operator.sorts, arguments, strict=True))
    types = operator.each(arguments, lambda x: sizes.type(x.meta.get("val")) if isinstance(x, fx.Node) else None)
    if any(x is not None and known is None for x, known in zip(arguments, types, strict=True)):
        return None
    try:
        if operator.type(*types) != kind:
            return None
    except IllTyped:
        return None
    return name, operator.each(arguments, lambda x: x and x.name)


class Memory:
    """Which nodes may share memory (a union-find), and which memory is written into."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}
        self.writes: list[Any] = []
        """What is written into."""

    def find(self, item: Any) -> Any:
        """The representative of all that may share memory with ``item``."""
        while (parent := self._parent.get(item, item)) != item:
            self._parent[item] = self._parent.get(parent, parent)
            item = parent
        return item

    def share(self, first: Any, second: Any) -> None:
        """``first`` and ``second`` may share memory."""
        self._parent[self.find(first)] = self.find(second)

    def written(self) -> set[Any]:
        """Representatives of all memory that is written into."""
        return {self.find(item) for item in self.writes}


def nodes_in(value: Any) -> list[fx.Node]:
    """The nodes in an argument or a container of arguments, in order; one that stands twice twice."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found


NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
"""What computations with symbolic sizes give."""

OURS = {o.target for o in OPERATORS.values() if not isinstance(o.target, torch._ops.OpOverload)}
"""Functions that a rebuilt graph calls: none writes into anything, and what each returns is new."""

WRITING_STATISTICS = {aten.batch_norm.default: "training", aten.instance_norm.default: "use_input_stats"}
"""Operation that may write into running statistics → the argument that says whether it does."""


def _apart(node: fx.Node) -> bool:
    """Whether it neither writes into what it reads nor returns a part of it, and that is plain to see."""
    return node.target in OURS or isinstance(node.meta.get("val"), NUMBERS)


def _own(source: fx.Node, reader: fx.Node) -> bool:
    """Whether only ``reader`` ever sees the memory of ``source``: written in place or not, nobody can tell."""
    return isinstance(source.target, torch._ops.OpOverload) and not _shares(source) and list(source.users) == [reader]


def _writes(node: fx.Node) -> list[fx.Node]:
    """The nodes whose memory this one may write into."""
    if node.op in ("placeholder", "get_attr", "output") or node.target is python.getitem or guards(node):
        return []
    if _apart(node):
        return []
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.all_input_nodes
    bound = _bound(node)
    if node.target is aten.relu_.default and _own(bound["self"], node):
        return []
    written = [
        bound[a.name] for a in node.target._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]
    # Two operations whose schema does not say so.
    if bound.get(WRITING_STATISTICS.get(node.target, "")):
        written += [bound["running_mean"], bound["running_var"]]
    elif torch.Tag.maybe_aliasing_or_mutating in node.target.tags and node.target not in READINGS:
        written += node.all_input_nodes
    return nodes_in(written)


def _shares(node: fx.Node) -> list[fx.Node]:
    """The nodes whose memory the result of this one may share."""
    if node.op == "output" or _apart(node):
        return []
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.all_input_nodes
    aliasing = any(result.alias_info is not None for result in node.target._schema.returns)
    return node.all_input_nodes if aliasing or torch.Tag.maybe_aliasing_or_mutating in node.target.tags else []


def _random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def draws_random_numbers(module: fx.GraphModule) -> bool:
    """Whether any operation of the graph draws random numbers."""
    return any(_random(node) for node in module.graph.nodes)


def memory_of(module: fx.GraphModule, graph: fx.Graph) -> Memory:
    """The memory of a graph's nodes; ``module`` has the parameters and buffers."""
    memory, placeholders = Memory(), []
    for node in graph.nodes:
        if node.op == "placeholder":
            placeholders.append(node)
        elif node.op == "get_attr":
            value = _attribute(module, node.target)
            if isinstance(value, torch.Tensor) and value.numel():
                memory.share(node, value.untyped_storage().data_ptr())
        for source in _shares(node):
            memory.share(node, source)
        memory.writes += _writes(node)
    # Two inputs may be views of one tensor; where one is written into, so may be the other.
    if {memory.find(node) for node in placeholders} & memory.written():
        for node in placeholders:
            memory.share(node, placeholders[0])
    return memory


def read(module: fx.GraphModule) -> Terms:
    """The terms of a graph module of ATen operations, whatever its depth."""
    memory = memory_of(module, module.graph)
    written, sizes = memory.written(), Sizes()
    names: dict[int, str] = {}
    nodes: list[Node] = []
    pinned: set[str] = set()
    effects: list[str] = []
    outputs: tuple[str, ...] = ()
    for node in module.graph.nodes:
        kind, inputs = sizes.type(node.meta.get("val")), tuple(source.name for source in node.all_input_nodes)
        value = _attribute(module, node.target) if node.op == "get_attr" else None
        if node.op == "output":
            outputs = inputs
            continue
        if node.op == "placeholder":
            term = "Input", (node.name,)
        elif isinstance(value, torch.Tensor):
            # One tensor under two names is one parameter: weight tying is equality.
            term, kind = ("Param", (names.setdefault(id(value), str(node.target)),)), sizes.type(value)
        else:
            writes = bool(_writes(node))
            touched = any(memory.find(near) in written for near in (node, *node.all_input_nodes))
            term = None if writes or touched else _term(node, kind, sizes)
            # Dropout is random by its tag; as a term it is dropout in evaluation, which is not.
            acts = term is None and (writes or node.is_impure() or _random(node))
            if acts or touched:
                pinned.add(node.name)
            if acts:
                effects.append(node.name)
        nodes.append(Node(node.name, *(term or ("Opaque", (node.name,))), kind, inputs))
    return Terms(tuple(nodes), frozenset(pinned), tuple(effects), outputs, sizes)
