"""The terms: what a graph of tensor operations is written in, for the e-graph, for the gate and for the way back.

A term is an operator and its arguments, written as an S-expression: ``(Relu (Linear x w b))``. Every operator is one
entry of :data:`OPERATORS`: the sorts of its arguments, the type (shape and dtype) of its result, its FLOPs, its kernel
launches, its roundings, and the torch operation that computes it. The torch operation is the same in the graph that is
rebuilt and in the gate that fuzzes the rules, so what is tested is what runs.

Sorts: ``T`` a tensor (or the absent bias, ``(Absent)``), ``Dims`` a list of integers, ``i64``, ``bool``, ``String``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


def _fits(condition: bool, message: str) -> None:
    if not condition:
        raise IllTyped(message)


@dataclass(frozen=True)
class Operator:
    """One operator of the term language.

    ``shape(*arguments)`` maps argument types (attributes as they are) to the result's type, or raises
    :class:`IllTyped`. ``target`` is the torch operation, called with ``arguments(*values)`` and
    ``keywords(*values)``. ``flops(out, *types)`` counts a multiplication and an addition as two;
    ``kernels(device)`` counts launches (0: only the view changes). ``roundings(*types)`` bounds the roundings that an
    element goes through, and ``magnitude(*tensors)`` evaluates the operator with every sum taken over absolute values
    (by default as it is, on absolute values), both for the gate's error bounds (:mod:`gate`).
    ``missing(device, *types)`` says why no kernel can compute it there; empty when one can.
    """

    name: str
    sorts: tuple[str, ...]
    shape: Callable[..., Type]
    target: Callable[..., Any]
    arguments: Callable[..., tuple[Any, ...]] = lambda *values: values
    keywords: Callable[..., dict[str, Any]] = lambda *values: {}
    flops: Callable[..., int] = lambda out, *types: 0
    roundings: Callable[..., int] = lambda *types: 0
    magnitude: Callable[..., torch.Tensor] | None = None
    kernels: Callable[[str], int] = lambda device: 1
    missing: Callable[..., str] = lambda device, *types: ""

    def evaluate(self, *values: Any) -> torch.Tensor:
        """The operator on tensors and attributes."""
        return self.target(*self.arguments(*values), **self.keywords(*values))


def _same(x: Type, *rest: Any) -> Type:
    _fits(x is not None, "no tensor")
    return x


def _one_dtype(*types: Type | None) -> None:
    _fits(len({t.dtype for t in types if t is not None}) == 1, "more than one dtype")


def _linear(x: Type, w: Type, b: Type | None) -> Type:
    _fits(x is not None and w is not None, "no tensor")
    _one_dtype(x, w, b)
    _fits(len(w.shape) == 2 and len(x.shape) >= 1 and x.shape[-1] == w.shape[1], "x is (..., in), w (out, in)")
    _fits(b is None or b.shape == w.shape[:1], "b is (out)")
    return Type((*x.shape[:-1], w.shape[0]), x.dtype)


def _mlp_shape(x: Type, *parameters: Type) -> Type:
    out = x
    for w, b in zip(parameters[::2], parameters[1::2], strict=True):
        _fits(b is not None and w.shape == (out.shape[-1], out.shape[-1]), "w is (width, width), b (width)")
        out = _linear(out, w, b)
    return out


def _broadcast(x: Type, y: Type) -> Type:
    _fits(x is not None and y is not None, "no tensor")
    _one_dtype(x, y)
    try:
        return Type(tuple(torch.broadcast_shapes(x.shape, y.shape)), x.dtype)
    except RuntimeError as error:
        raise IllTyped(str(error)) from None


def _mm(a: Type, b: Type) -> Type:
    _fits(a is not None and b is not None, "no tensor")
    _one_dtype(a, b)
    _fits(len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0], "a is (n, k), b (k, m)")
    return Type((a.shape[0], b.shape[1]), a.dtype)


def _addmm(c: Type, a: Type, b: Type) -> Type:
    out = _mm(a, b)
    _fits(_broadcast(c, out) == out, "c is broadcast to (n, m)")
    return out


def _view(x: Type, dims: Sequence[int]) -> Type:
    _fits(math.prod(dims) == x.numel, "as many elements")
    return Type(tuple(dims), x.dtype)


def _transpose(x: Type, first: int, second: int) -> Type:
    _fits(0 <= first < second < len(x.shape), "first < second < rank")
    shape = list(x.shape)
    shape[first], shape[second] = shape[second], shape[first]
    return Type(tuple(shape), x.dtype)


def _conv2d(x: Type, w: Type, b: Type | None, dims: Sequence[int]) -> Type:
    _one_dtype(x, w, b)
    _fits(len(dims) == 7 and len(x.shape) == len(w.shape) == 4, "x is (n, in, h, w), w (out, in / groups, kh, kw)")
    groups = dims[6]
    _fits(x.shape[1] == w.shape[1] * groups and w.shape[0] % groups == 0, "channels and groups fit")
    _fits(b is None or b.shape == w.shape[:1], "b is (out)")
    sizes = [
        (x.shape[2 + n] + 2 * dims[2 + n] - dims[4 + n] * (w.shape[2 + n] - 1) - 1) // dims[n] + 1 for n in range(2)
    ]
    _fits(min(sizes) > 0 and min(w.shape) > 0, "the kernel fits into the image")
    return Type((x.shape[0], w.shape[0], *sizes), x.dtype)


def _norm(x: Type, *parameters: Any) -> Type:
    channels = [p for p in parameters if isinstance(p, Type)]
    _one_dtype(x, *channels)
    _fits(len(x.shape) >= 2 and all(p.shape == (x.shape[1],) for p in channels), "x is (n, c, ...), parameters (c)")
    return x


def _batch_norm(x: Type, g: Type, b: Type, mean: Type, var: Type, eps: str) -> Type:
    _fits(mean is not None and var is not None, "running statistics are needed")
    return _norm(x, g, b, mean, var)


def _instance_norm(x: Type, g: Type, b: Type, eps: str) -> Type:
    _fits(len(x.shape) >= 3 and math.prod(x.shape[2:]) > 1, "more than one element a channel")
    return _norm(x, g, b)


def _conv_block(x: Type, w: Type, b: Type, g: Type, c: Type, dims: Any, eps: str, kind: str) -> Type:
    return _instance_norm(_conv2d(x, w, b, dims), g, c, eps)


def _folded_weight(w: Type, g: Type, var: Type, eps: str) -> Type:
    _fits(w is not None and var is not None, "no tensor")
    _one_dtype(w, g, var)
    _fits(all(p.shape == w.shape[:1] for p in (g, var) if p is not None), "one number an output channel")
    return w


def _folded_bias(b: Type, g: Type, c: Type, mean: Type, var: Type, eps: str) -> Type:
    _fits(mean is not None and var is not None and len(var.shape) == 1, "running statistics are needed")
    _one_dtype(b, g, c, mean, var)
    _fits(all(p.shape == var.shape for p in (b, g, c, mean) if p is not None), "one number a channel")
    return var


def _conv_arguments(x: Any, w: Any, b: Any, dims: Sequence[int]) -> tuple[Any, ...]:
    return x, w, b, list(dims[:2]), list(dims[2:4]), list(dims[4:6]), dims[6]


def _norm_arguments(x: Any, g: Any, b: Any, mean: Any, var: Any, eps: str) -> tuple[Any, ...]:
    return x, g, b, mean, var, False, 0.0, float(eps), torch.backends.cudnn.enabled


def _norm_magnitude(x: Any, g: Any, b: Any, mean: Any, var: Any, eps: str) -> torch.Tensor:
    size = [1, -1] + [1] * (x.dim() - 2)
    scale = (1.0 if g is None else g) * torch.rsqrt(var + float(eps))
    return (x + mean.view(size)) * scale.view(size) + (0.0 if b is None else b.view(size))


def _with_eps(*values: Any) -> tuple[Any, ...]:
    return (*values[:-1], float(values[-1]))


def _folded_bias_magnitude(b: Any, g: Any, c: Any, mean: Any, var: Any, eps: str) -> torch.Tensor:
    return calls.folded_bias(mean if b is None else b + mean, g, c, torch.zeros_like(mean), var, float(eps))


def _mlp_magnitude(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    for w, b in zip(parameters[::2], parameters[1::2], strict=True):
        x = aten.linear.default(x, w, b)
    return x


def _linear_flops(out: Type, x: Type, w: Type, *rest: Any) -> int:
    return 2 * out.numel * w.shape[1]


def _split_flops(out: Type, x: Type, w: Type, *rest: Any) -> int:
    # As many float32 operations as take that long: three products by tensor cores of about eight times the rate.
    return 3 * _linear_flops(out, x, w) // 8


def _mlp_flops(out: Type, x: Type, *parameters: Type) -> int:
    return sum(2 * x.numel * w.shape[0] for w in parameters[::2])


def _unfused(device: str, x: Type, *parameters: Type) -> str:
    # A float32 product in the fused kernel is a TF32 one: other values, so never by itself.
    return _mlp.unfusable(x.shape[-1], x.dtype, "ieee") if device == "cuda" else "layer by layer, nothing to gain"


def _two(device: str) -> int:
    return 2


def _joined(device: str, x: Type, w: Type, b: Type) -> str:
    return calls.apart_missing(device, x.dtype)


def _linear_operator(name: str, target: Any, **more: Any) -> Operator:
    """x·Wᵀ + b, with a ReLU behind it or not, by ``target``; ``more`` are fields that differ."""
    own = {"flops": _linear_flops, "roundings": lambda x, w, b: w.shape[1] + 1, "magnitude": aten.linear.default}
    return Operator(name, ("T", "T", "T"), _linear, target, **own | more)


def _mlp_operator(layers: int) -> Operator:
    return Operator(
        f"Mlp{layers}",
        ("T",) * (1 + 2 * layers),
        _mlp_shape,
        calls.mlp,
        flops=_mlp_flops,
        roundings=lambda x, *parameters: sum(w.shape[1] + 1 for w in parameters[::2]),
        magnitude=_mlp_magnitude,
        missing=_unfused,
    )


def _first(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x


def _no_launch(device: str) -> int:
    return 0


OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        _linear_operator("Linear", aten.linear.default, magnitude=None),
        Operator("Relu", ("T",), _same, aten.relu.default, magnitude=_first),
        # On a CPU there is no epilogue: a product, then a ReLU in place.
        _linear_operator("LinearRelu", calls.linear_relu, kernels=lambda device: 1 if device == "cuda" else 2),
        _linear_operator("LinearApart", calls.linear_apart, kernels=_two, missing=_joined),
        _linear_operator("LinearReluApart", calls.linear_relu_apart, kernels=_two, missing=_joined),
        _linear_operator(
            "LinearReluSplit",
            calls.linear_relu_split,
            flops=_split_flops,
            kernels=_two,
            missing=lambda device, x, w, b: calls.split_missing(device, x.dtype),
        ),
        _mlp_operator(2),
        _mlp_operator(3),
        Operator("Add", ("T", "T"), _broadcast, aten.add.Tensor, roundings=lambda x, y: 1),
        Operator(
            "Mm",
            ("T", "T"),
            _mm,
            aten.mm.default,
            flops=lambda out, a, b: 2 * out.numel * a.shape[1],
            roundings=lambda a, b: a.shape[1],
        ),
        Operator(
            "Addmm",
            ("T", "T", "T"),
            _addmm,
            aten.addmm.default,
            flops=lambda out, c, a, b: 2 * out.numel * a.shape[1],
            roundings=lambda c, a, b: a.shape[1] + 1,
        ),
        # reshape, not view: once moved, a view may stand behind strides that view refuses.
        Operator(
            "View",
            ("T", "Dims"),
            _view,
            aten.reshape.default,
            lambda x, dims: (x, list(dims)),
            kernels=_no_launch,
        ),
        Operator("Transpose", ("T", "i64", "i64"), _transpose, aten.transpose.int, kernels=_no_launch),
        Operator(
            "Dropout",
            ("T", "String", "bool"),
            _same,
            aten.dropout.default,
            lambda x, p, training: (x, float(p), training),
            kernels=_no_launch,
            magnitude=_first,
        ),
        Operator(
            "Conv2d",
            ("T", "T", "T", "Dims"),
            _conv2d,
            aten.conv2d.default,
            _conv_arguments,
            flops=lambda out, x, w, b, dims: 2 * out.numel * math.prod(w.shape[1:]),
            roundings=lambda x, w, b, dims: math.prod(w.shape[1:]) + 1,
        ),
        Operator(
            "BatchNorm",
            ("T", "T", "T", "T", "T", "String"),
            _batch_norm,
            aten.batch_norm.default,
            _norm_arguments,
            flops=lambda out, *types: 2 * out.numel,
            roundings=lambda *types: 8,
            magnitude=_norm_magnitude,
        ),
        Operator(
            "InstanceNorm",
            ("T", "T", "T", "String"),
            _instance_norm,
            aten.instance_norm.default,
            lambda x, g, b, eps: (x, g, b, None, None, True, 0.0, float(eps), torch.backends.cudnn.enabled),
            flops=lambda out, *types: 6 * out.numel,
        ),
        Operator(
            "Gelu",
            ("T", "String"),
            _same,
            aten.gelu.default,
            lambda x, kind: (x,),
            lambda x, kind: {"approximate": kind},
            magnitude=_first,
        ),
        Operator(
            "ConvBlock",
            ("T", "T", "T", "T", "T", "Dims", "String", "String"),
            _conv_block,
            calls.conv_block,
            lambda x, w, b, g, c, dims, eps, kind: (x, w, b, g, c, dims, float(eps), kind),
            flops=lambda out, x, w, *rest: 2 * out.numel * math.prod(w.shape[1:]),
            missing=lambda device, x, w, b, g, c, dims, eps, kind: calls.block_missing(
                device, x.dtype, w.shape, g is not None and c is not None, dims, float(eps)
            ),
        ),
        Operator(
            "FoldedWeight",
            ("T", "T", "T", "String"),
            _folded_weight,
            calls.folded_weight,
            _with_eps,
            roundings=lambda *types: 4,
            kernels=lambda device: 4,
        ),
        Operator(
            "FoldedBias",
            ("T", "T", "T", "T", "T", "String"),
            _folded_bias,
            calls.folded_bias,
            _with_eps,
            roundings=lambda *types: 6,
            magnitude=_folded_bias_magnitude,
            kernels=lambda device: 6,
        ),
    )
}
"""Name → operator. Linear: x (..., in), w (out, in), b (out) or absent → (..., out). Mlp2, Mlp3: equal widths, all but
the last layer with a ReLU. Addmm: c + a·b. Conv2d's Dims: stride, padding, dilation (two each), groups. BatchNorm: with
running statistics (evaluation only). LinearApart, LinearReluApart: the bias (and the ReLU) behind a product of its own.
LinearReluSplit: LinearRelu by split operands. ConvBlock:
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
