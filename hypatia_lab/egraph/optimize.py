"""A module in, an equal and cheaper one out: capture, terms, saturation, extraction, rebuilding, comparison."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hypatia_lab.egraph.cost import Costs, weights
from hypatia_lab.egraph.extract import Extraction, extract
from hypatia_lab.egraph.fx_in import Terms, read
from hypatia_lab.egraph.fx_out import rebuild
from hypatia_lab.egraph.rules import DEFAULT, rules_of
from hypatia_lab.egraph.saturation import EGraph, saturate

MODES = ("warn", "strict", "off")

TOLERANCE = 1000
"""Largest ‖new − old‖/‖old‖ of a result, in units of its dtype's machine epsilon: roundings pass, errors do not."""


class EGraphError(RuntimeError):
    """In strict mode: the module cannot be captured or rewritten, or the results differ."""


@dataclass(frozen=True)
class Rewrite:
    """One rewriting in the result: names of the ``rules`` that met, ``at`` which nodes of the captured graph, and the
    operator that computes them now (a leaf's name where they are just another value)."""

    rules: tuple[str, ...]
    at: tuple[str, ...]
    into: str


@dataclass(frozen=True)
class Report:
    """What was done. Times of the cost model in µs, durations in seconds, ``error`` the largest ‖new − old‖/‖old‖ over
    the outputs on the example inputs (NaN: not compared). ``reason`` says why nothing was done; empty otherwise.

    ``nodes_before`` and ``nodes_after`` count the calls in the graph. ``gap`` bounds how far the selection is from the
    optimum of the cost model, as a share of its cost; ``method`` is what found it.
    """

    reason: str = ""
    nodes_before: int = 0
    nodes_after: int = 0
    rewrites: tuple[Rewrite, ...] = ()
    cost_before: float = 0.0
    cost_after: float = 0.0
    gap: float = 0.0
    method: str = "original"
    error: float = float("nan")
    seconds: Mapping[str, float] = field(default_factory=dict)


class Optimized(fx.GraphModule):
    """A rewritten graph on the parameters and buffers of the module it came from, and the ``report``."""

    report: Report

    def train(self, mode: bool = True) -> Optimized:
        """Nothing in the mode of the capture. Raises ``NotImplementedError`` for the other: dropout and batch norm
        were captured in this one."""
        if mode != self.training:
            now = "train" if self.training else "eval"
            raise NotImplementedError(f"captured in {now} mode; optimize the module again in the other")
        return self


class Unchanged(torch.nn.Module):
    """The original module where it could not be optimized, with the ``report`` that says why."""

    def __init__(self, module: torch.nn.Module, report: Report) -> None:
        super().__init__()
        self.module, self.report = module, report

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's outputs."""
        return self.module(*args, **kwargs)


def optimize(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    rules: Sequence[str] = DEFAULT,
    mode: str = "warn",
    costs: Costs | None = None,
    seconds: float = 1.0,
    tolerance: float = TOLERANCE,
) -> Optimized | Unchanged:
    """An equal module for inputs of the example inputs' shapes and for the module's present mode (train or eval).

    It shares the module's parameters and buffers; its outputs have the same values, not always the same strides.
    ``rules`` are goals (:data:`rules.GOALS`), ``costs`` the cost model (the roofline of the example inputs' device by
    default), ``seconds`` the time limit of the integer program.
    ``mode``: "warn" compares the outputs on the example inputs and, where they differ or the module cannot be captured,
    warns and gives the original back; "strict" raises :class:`EGraphError` then; "off" compares nothing and gives the
    original back silently. Every result has a ``report``.

    Raises ``ValueError`` for an unknown mode or goal.
    """
    if mode not in MODES:
        raise ValueError(f"no mode {mode!r}: the modes are {', '.join(MODES)}")
    rules_of(tuple(rules))
    start = time.perf_counter()
    keywords = dict(kwargs or {})
    try:
        captured = _capture(module, tuple(example_inputs), keywords)
    except Exception as error:  # whatever it met, the original still runs
        return _unchanged(module, f"cannot be captured: {_first_line(error)}", mode)
    capture = time.perf_counter() - start
    costs = costs or Costs(_device(module, example_inputs, keywords))
    try:
        result = rewrite_graph(captured, rules=rules, costs=costs, seconds=seconds)
    except Exception as error:  # the original still runs
        return _unchanged(module, f"cannot be rewritten: {_first_line(error)}", mode)
    report = replace(result.report, seconds={"capture": capture, **result.report.seconds})
    if mode != "off":
        error, reason = _compare(module, result, example_inputs, keywords, tolerance)
        if reason:
            return _unchanged(module, reason, mode)
        report = replace(report, error=error)
    for part in result.modules():
        part.training = module.training
    result.report = report
    return result


def _capture(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        captured = torch.export.export(module, args, kwargs).module()
    for warning in caught:
        # An attribute that forward() sets would no longer be set. Recurrent layers only refresh a list of parameters.
        if "assigned during export" in str(warning.message) and "_flat_weights" not in str(warning.message):
            raise ValueError(str(warning.message))
    return captured


def rewrite_graph(
    captured: fx.GraphModule, *, rules: Sequence[str] = DEFAULT, costs: Costs, seconds: float = 1.0
) -> Optimized:
    """The cheapest equal graph found for a graph of ATen operations (tensors in ``meta["val"]``)."""
    marks = [time.perf_counter()]
    terms = read(captured)
    marks.append(time.perf_counter())
    egraph = saturate(terms.nodes, rules_of(tuple(rules)))
    marks.append(time.perf_counter())
    roots = [egraph.class_of[name] for name in (*terms.outputs, *terms.effects)]
    extraction = extract(egraph, roots, weights(egraph, costs), seconds=seconds)
    marks.append(time.perf_counter())
    result = Optimized(captured, rebuild(captured, terms, egraph, extraction.chosen))
    marks.append(time.perf_counter())
    names = ("read", "saturate", "extract", "rebuild")
    result.report = Report(
        nodes_before=_calls(captured),
        nodes_after=_calls(result),
        rewrites=_rewrites(terms, egraph, extraction),
        cost_before=_cost(egraph, costs, [(egraph.class_of[name], way) for name, way in egraph.original.items()]),
        cost_after=_cost(egraph, costs, list(extraction.chosen.items())),
        gap=extraction.gap,
        method=extraction.method,
        seconds=dict(zip(names, (b - a for a, b in zip(marks, marks[1:], strict=False)), strict=True)),
    )
    return result


def _calls(module: fx.GraphModule) -> int:
    return sum(node.op.startswith("call") for node in module.graph.nodes)


def _cost(egraph: EGraph, costs: Costs, ways: list[tuple[int, Any]]) -> float:
    times = [costs.time(egraph, number, way) for number, way in ways]
    return sum(time.estimate for time in times if time is not None)


def _rewrites(terms: Terms, egraph: EGraph, extraction: Extraction) -> tuple[Rewrite, ...]:
    at: dict[int, list[str]] = {}
    for node in terms.nodes:
        at.setdefault(egraph.class_of[node.name], []).append(node.name)
    fired: dict[int, list[str]] = {}
    for rule, number in egraph.fired:
        fired.setdefault(number, []).append(rule)
    found = []
    for number, way in extraction.chosen.items():
        names = at.get(number, [])
        before = {egraph.original[name] for name in names}
        if number in fired and (way not in before or len(before) > 1):
            found.append(Rewrite(tuple(sorted(fired[number])), tuple(names), way.operator))
    return tuple(found)


def _device(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    tensors = [leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    tensors += list(module.parameters())
    return "cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _unchanged(module: torch.nn.Module, reason: str, mode: str) -> Unchanged:
    if mode == "strict":
        raise EGraphError(reason)
    if mode == "warn":
        warnings.warn(f"not optimized: {reason}", stacklevel=3)
    return Unchanged(module, Report(reason=reason))


@contextmanager
def _restored(module: torch.nn.Module) -> Iterator[None]:
    """Run something and put every parameter, buffer and random number generator back as it was."""
    tensors = [*module.parameters(), *module.buffers()]
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.random.fork_rng(), torch.no_grad():
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def _run(module: torch.nn.Module, state: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Outputs, then arguments and ``state``'s buffers after the call: what is written into is a result too."""

    def own(leaf: Any) -> Any:
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = pytree.tree_map(own, (tuple(args), dict(kwargs)))
    with _restored(state):
        torch.manual_seed(0)
        outputs = module(*args, **kwargs)
        return [own(leaf) for leaf in pytree.tree_leaves((outputs, args, kwargs, list(state.buffers())))]


def _compare(
    old: torch.nn.Module, new: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any], tolerance: float
) -> tuple[float, str]:
    """Largest relative error over all results, and what is wrong (empty: nothing)."""
    shared = {id(tensor) for tensor in (*old.parameters(), *old.buffers())}
    if any(id(tensor) not in shared for tensor in (*new.parameters(), *new.buffers())):
        return float("nan"), "a parameter was copied"
    before, after = (_run(module, old, args, kwargs) for module in (old, new))
    if len(before) != len(after):
        return float("nan"), f"{len(after)} results, were {len(before)}"
    worst = 0.0
    for number, (a, b) in enumerate(zip(before, after, strict=True)):
        if isinstance(a, torch.Tensor):
            error, reason = _difference(a, b)
            if not reason and error > tolerance * (torch.finfo(a.dtype).eps if a.is_floating_point() else 0):
                reason = f"differs by {error:.2g} of its norm"
            if reason:
                return error, f"result {number} {reason}"
            worst = max(worst, error)
    return worst, ""


def _difference(a: torch.Tensor, b: torch.Tensor) -> tuple[float, str]:
    """‖b − a‖/‖a‖ where both are finite (absolute where a is 0), and what makes them incomparable."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("nan"), f"is {b.dtype} {list(b.shape)}, was {a.dtype} {list(a.shape)}"
    if not a.is_floating_point():
        return float(not torch.equal(a, b)), ""
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return float("nan"), "is not finite at other places"
    x, y = a[finite].double(), b[finite].double()
    scale, apart = float(x.norm()), float((x - y).norm())
    return (apart / scale if scale else apart), ""
