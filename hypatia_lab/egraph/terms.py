"""The terms: what a graph of tensor operations is written in, for the e-graph, for the gate and for the way back.

A term is an operator and its arguments, written as an S-expression: ``(Relu (Linear x w b))``. Every operator is one
entry of :data:`OPERATORS`: the sorts of its arguments, the torch operation that computes it, how many numbers it sums,
its kernel launches and its roundings. The torch operation is the same in the graph that is rebuilt and in the gate that
fuzzes the rules, so what is tested is what runs; the type (shape and dtype) of a result is what it gives without data.

Sorts: ``T`` a tensor (or the absent bias, ``(Absent)``), ``Dims`` a list of integers, ``i64``, ``f64``, ``bool``,
``String``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from hypatia_lab.egraph import calls
from hypatia_lab.operations import mlp as _mlp

aten = torch.ops.aten


class Type(NamedTuple):
    """Shape (elements) and dtype (torch's name) of a tensor. The absent bias has none: its type is None."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of memory, densely packed."""
        return self.numel * getattr(torch, self.dtype).itemsize


class IllTyped(ValueError):
    """The arguments of an operator do not fit."""


REFUSALS = (RuntimeError, ValueError, IndexError, TypeError)
"""What torch raises where arguments do not fit; :class:`IllTyped` is one of them."""


@dataclass(frozen=True)
class Operator:
    """One operator of the term language.

    ``target`` is the torch operation, called with ``arguments(*values)``, the last by name: ``keywords``.
    ``fits(*arguments)`` says of arguments that torch takes whether a term may have them: what it broadcasts or reads
    in another way, a rule or a kernel need not. ``summands(*arguments)`` counts the products that an element of the
    result sums, ``roundings`` what it goes through beside those; they make the FLOPs, too, of which ``pace`` of the
    dtype's own take as long as one. ``subtracts`` are positions of arguments that are subtracted: by the gate's bounds
    they add (:mod:`gate`), ``constants`` those of running statistics, which have no gradient. ``kernels`` counts
    launches on a GPU (0: only the view changes), ``more_on_cpu`` those that a CPU adds. ``missing(device, *types)``
    says why no kernel can compute it there; empty when one can.

    Wherever they are asked, arguments are tensors or their types, and attributes as they are.
    """

    name: str
    sorts: tuple[str, ...]
    target: Callable[..., Any]
    arguments: Callable[..., tuple[Any, ...]] = lambda *values: values
    keywords: tuple[str, ...] = ()
    fits: Callable[..., bool] = lambda *arguments: True
    summands: Callable[..., int] = lambda *arguments: 0
    roundings: int = 0
    pace: float = 1.0
    subtracts: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    kernels: int = 1
    more_on_cpu: int = 0
    missing: Callable[..., str] = lambda device, *types: ""

    def each(self, arguments: Iterable[Any], tensor: Callable[[Any], Any]) -> tuple[Any, ...]:
        """``arguments`` with ``tensor`` of every tensor, and of what is absent."""
        return tuple(tensor(a) if sort == "T" else a for sort, a in zip(self.sorts, arguments, strict=True))

    def tensors(self, arguments: Iterable[Any]) -> tuple[Any, ...]:
        """The tensors among ``arguments``, and what is absent."""
        return tuple(a for sort, a in zip(self.sorts, arguments, strict=True) if sort == "T")

    def call(self, *values: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What ``target`` is called with: its arguments by position and by name."""
        given = self.arguments(*values)
        plain = len(given) - len(self.keywords)
        return given[:plain], dict(zip(self.keywords, given[plain:], strict=True))

    def evaluate(self, *values: Any) -> torch.Tensor:
        """The operator on tensors and attributes. Raises one of :data:`REFUSALS` where they do not fit."""
        given, keywords = self.call(*values)
        result = self.target(*given, **keywords)
        if not self.fits(*values):
            raise IllTyped(f"{self.name} does not take {[getattr(value, 'shape', value) for value in values]}")
        return result

    def type(self, *arguments: Any) -> Type:
        """Type of the result, from the types of tensors. Raises :class:`IllTyped` where they do not fit, and for more
        than one dtype."""
        return _type(self, arguments)

    def flops(self, out: Type, *arguments: Any) -> float:
        """Operations for a result of type ``out``, a multiplication and an addition as two."""
        return 2 * self.pace * out.numel * self.summands(*arguments)


@cache
def _type(operator: Operator, arguments: tuple[Any, ...]) -> Type:
    if len({argument.dtype for argument in arguments if isinstance(argument, Type)}) > 1:
        raise IllTyped("more than one dtype")
    try:
        result = operator.evaluate(*map(_hollow, arguments))
    except REFUSALS as error:
        raise IllTyped(str(error)) from None
    return Type(tuple(result.shape), str(result.dtype).removeprefix("torch."))


def _hollow(argument: Any) -> Any:
    """For a type a tensor of it that has no data."""
    if not isinstance(argument, Type):
        return argument
    return torch.empty(argument.shape, dtype=getattr(torch, argument.dtype), device="meta")


def _channels(count: int, *parameters: Any) -> bool:
    """Whether each is a vector of ``count`` numbers, or absent."""
    return all(p is None or tuple(p.shape) == (count,) for p in parameters)


def _linear(x: Any, w: Any, b: Any) -> bool:
    return len(w.shape) == 2 and _channels(w.shape[0], b)


def _square(x: Any, *parameters: Any) -> bool:
    width = x.shape[-1]
    weights, biases = parameters[::2], parameters[1::2]
    given = all(b is not None for b in biases)
    return given and all(w.shape == (width, width) for w in weights) and _channels(width, *biases)


def _conv2d(x: Any, w: Any, b: Any, dims: Sequence[int]) -> bool:
    return len(x.shape) == 4 and min(w.shape) > 0 and w.shape[0] % dims[6] == 0 and _channels(w.shape[0], b)


def _conv_arguments(x: Any, w: Any, b: Any, dims: Sequence[int]) -> tuple[Any, ...]:
    return x, w, b, list(dims[:2]), list(dims[2:4]), list(dims[4:6]), dims[6]


def _apart_missing(device: str, x: Type, w: Type, b: Type) -> str:
    return calls.apart_missing(device, x.dtype)


def _mlp_missing(device: str, x: Type, *parameters: Type) -> str:
    # A float32 product in the fused kernel is a TF32 one: other values, so never by itself.
    return _mlp.unfusable(x.shape[-1], x.dtype, "ieee") if device == "cuda" else "layer by layer, nothing to gain"


def _linear_operator(name: str, target: Any, **more: Any) -> Operator:
    """x·Wᵀ + b, with a ReLU behind it or not, by ``target``; ``more`` are other fields."""
    return Operator(name, ("T",) * 3, target, fits=_linear, summands=lambda x, w, b: w.shape[1], roundings=1, **more)


def _gelu_operator(name: str, target: Any, missing: Any, **more: Any) -> Operator:
    """GELU of x·Wᵀ + b, or of its ReLU, by ``target``, unless it is ``missing``; ``more`` are other fields."""
    return Operator(
        name,
        ("T", "T", "T", "String"),
        target,
        fits=lambda x, w, b, kind: _linear(x, w, b),
        summands=lambda x, w, b, kind: w.shape[1],
        roundings=1,
        missing=lambda device, x, w, b, kind: missing(device, x.dtype),
        **more,
    )


def _mlp_operator(layers: int) -> Operator:
    return Operator(
        f"Mlp{layers}",
        ("T",) * (1 + 2 * layers),
        calls.mlp,
        fits=_square,
        summands=lambda x, *parameters: sum(w.shape[1] for w in parameters[::2]),
        roundings=layers,
        missing=_mlp_missing,
    )


# Three products by tensor cores of about eight times the rate; operands are split before.
_SPLIT: dict[str, Any] = {"pace": 3 / 8, "kernels": 2}

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        _linear_operator("Linear", aten.linear.default),
        Operator("Relu", ("T",), aten.relu.default),
        # On a CPU there is no epilogue: a product, then a ReLU in place.
        _linear_operator("LinearRelu", calls.linear_relu, more_on_cpu=1),
        _linear_operator("LinearApart", calls.linear_apart, kernels=2, missing=_apart_missing),
        _linear_operator("LinearReluApart", calls.linear_relu_apart, kernels=2, missing=_apart_missing),
        _linear_operator(
            "LinearReluSplit",
            calls.linear_relu_split,
            **_SPLIT,
            missing=lambda device, x, w, b: calls.split_missing(device, x.dtype),
        ),
        _gelu_operator("LinearGelu", calls.linear_gelu, calls.gelu_missing),
        _gelu_operator("LinearReluGelu", calls.linear_relu_gelu, calls.gelu_missing),
        _gelu_operator("LinearGeluSplit", calls.linear_gelu_split, calls.gelu_split_missing, **_SPLIT),
        _mlp_operator(2),
        _mlp_operator(3),
        Operator("Add", ("T", "T"), aten.add.Tensor, roundings=1),
        Operator("Mm", ("T", "T"), aten.mm.default, summands=lambda a, b: a.shape[1]),
        Operator("Addmm", ("T", "T", "T"), aten.addmm.default, summands=lambda c, a, b: a.shape[1], roundings=1),
        # reshape, not view: once moved, a view may stand behind strides that view refuses.
        Operator("View", ("T", "Dims"), aten.reshape.default, kernels=0),
        Operator("Transpose", ("T", "i64", "i64"), aten.transpose.int, kernels=0),
        Operator("Dropout", ("T", "f64", "bool"), aten.dropout.default, kernels=0),
        Operator(
            "Conv2d",
            ("T", "T", "T", "Dims"),
            aten.conv2d.default,
            _conv_arguments,
            fits=_conv2d,
            summands=lambda x, w, b, dims: math.prod(w.shape[1:]),
            roundings=1,
        ),
        Operator(
            "BatchNorm",
            ("T", "T", "T", "T", "T", "f64"),
            aten.batch_norm.default,
            lambda x, g, b, mean, var, eps: (x, g, b, mean, var, False, 0.0, eps, torch.backends.cudnn.enabled),
            fits=lambda x, g, b, mean, var, eps: _channels(x.shape[1], g, b, mean, var),
            roundings=8,
            subtracts=(3,),
            constants=(3, 4),
        ),
        Operator(
            "InstanceNorm",
            ("T", "T", "T", "f64"),
            aten.instance_norm.default,
            lambda x, g, b, eps: (x, g, b, None, None, True, 0.0, eps, torch.backends.cudnn.enabled),
            fits=lambda x, g, b, eps: math.prod(x.shape[2:]) > 1 and _channels(x.shape[1], g, b),
        ),
        Operator("Gelu", ("T", "String"), aten.gelu.default, keywords=("approximate",)),
        Operator(
            "ConvBlock",
            ("T", "T", "T", "T", "T", "Dims", "f64", "String"),
            calls.conv_block,
            summands=lambda x, w, *rest: math.prod(w.shape[1:]),
            missing=lambda device, x, w, b, g, c, dims, eps, kind: calls.block_missing(
                device, x.dtype, w.shape, g is not None and c is not None, dims, eps
            ),
        ),
        Operator("FoldedWeight", ("T", "T", "T", "f64"), calls.folded_weight, roundings=4, constants=(2,), kernels=4),
        Operator(
            "FoldedBias",
            ("T", "T", "T", "T", "T", "f64"),
            calls.folded_bias,
            roundings=6,
            subtracts=(3,),
            constants=(3, 4),
            kernels=6,
        ),
    )
}
"""Name → operator. Linear: x (..., in), w (out, in), b (out) or absent → (..., out). Mlp2, Mlp3: equal widths, all but
the last layer with a ReLU. Addmm: c + a·b. Conv2d's Dims: stride, padding, dilation (two each), groups. BatchNorm: with
running statistics (evaluation only). LinearApart, LinearReluApart: the bias (and the ReLU) behind a product of its own.
LinearReluSplit: LinearRelu by split operands. LinearGelu, LinearReluGelu: with a Gelu behind them. ConvBlock:
Gelu(InstanceNorm(Conv2d)). FoldedWeight, FoldedBias: those of a Conv2d that includes the BatchNorm behind it. Dropout
is random in training and never a term of a graph then. Gelu's String: none or tanh."""

LEAVES = ("Input", "Param", "Opaque", "Absent")
"""Leaves: an input by name, a parameter or buffer by qualified name, any other node of the graph by its name (it stays
as it is, with its inputs), and the bias that is not there."""

Expression = str | int | bool | tuple["Expression", ...]
"""A parsed S-expression: variables and names are strings (string literals keep their quotes), terms are tuples."""


def parse(text: str) -> Expression:
    """One S-expression. Raises ``ValueError`` where brackets do not match."""
    stack: list[list[Any]] = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise ValueError(f"unmatched bracket in {text!r}")
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(_atom(token))
    if len(stack) != 1 or len(stack[0]) != 1:
        raise ValueError(f"{text!r} is not one S-expression")
    return stack[0][0]


def _atom(token: str) -> Expression:
    if token in ("true", "false"):
        return token == "true"
    return int(token) if token.lstrip("-").isdigit() else token
