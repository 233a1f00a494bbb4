"""A module in, an equal and cheaper one out: capture, terms, saturation, extraction, rebuilding, comparison."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

import hypatia_lab.egraph.measure as measuring
from hypatia_lab.egraph.cost import Costs, weights
from hypatia_lab.egraph.extract import extract
from hypatia_lab.egraph.fx_in import read
from hypatia_lab.egraph.fx_out import rebuild
from hypatia_lab.egraph.module import Optimized, Report, simplify
from hypatia_lab.egraph.replay import log as log_of
from hypatia_lab.egraph.replay import replay
from hypatia_lab.egraph.rules import DEFAULT, rules_of
from hypatia_lab.egraph.saturation import EGraph, saturate
from hypatia_lab.egraph.terms import OPERATORS
from hypatia_lab.egraph.validate import TOLERANCE, compare, step_errors

MODES = ("warn", "strict", "off")


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
    dynamic_shapes: Any = None,
    rules: Sequence[str] = DEFAULT,
    split: bool = False,
    mode: str = "warn",
    costs: Costs | None = None,
    measure: bool = False,
    seconds: float = 1.0,
    tolerance: float = TOLERANCE,
) -> Optimized | Unchanged:
    """An equal module for inputs of the example inputs' shapes and for the module's present mode (train or eval).

    It shares the module's parameters and buffers; its outputs have the same values, not always the same strides.
    ``dynamic_shapes`` are torch.export's: what they leave open may vary. ``rules`` are goals (:data:`rules.GOALS`);
    ``split`` adds one that the module's numerics must allow: float32 products by split operands on tensor cores, of
    float32's accuracy but not of IEEE float32. ``costs`` is the cost model: by default what was measured on this
    machine before, and a roofline for all else; ``measure`` measures what is missing first, then both graphs as a
    whole on the example inputs, and keeps the original unless the rewritten one is faster (graphs that write into
    inputs or buffers are not raced). ``seconds`` is the time limit of the integer program.

    ``mode`` is about the comparison (:mod:`validate`) of both modules on the example inputs. "strict": where they
    differ, or the comparison fails, the original is given back. "warn": it is not. Either warns and says why in the
    ``report`` that every result has. "off": nothing is compared. A module that cannot be captured or rewritten is
    given back as it is in every mode, of which all but "off" warn.

    Raises ``ValueError`` for an unknown mode or goal.
    """
    if mode not in MODES:
        raise ValueError(f"no mode {mode!r}: the modes are {', '.join(MODES)}")
    goals = (*rules, "split") if split and "split" not in rules else tuple(rules)
    rules_of(goals)
    start = time.perf_counter()
    keywords = dict(kwargs or {})
    try:
        captured = _capture(module, tuple(example_inputs), keywords, dynamic_shapes)
    except Exception as error:  # whatever it met, the original still runs
        return _unchanged(module, Report(f"cannot be captured: {_first_line(error)}"), mode)
    capture = time.perf_counter() - start
    costs = costs or measuring.stored(_device(module, example_inputs, keywords))
    try:
        result, pairs = _rewrite(captured, goals, costs, measure, seconds)
        if measure and result.report.rewrites and not _acts(captured):
            start = time.perf_counter()
            result, pairs = _faster(captured, result, pairs, example_inputs, keywords, costs)
            took = {**result.report.seconds, "race": time.perf_counter() - start}
            result.report = replace(result.report, seconds=took)
    except Exception as error:  # the original still runs
        return _unchanged(module, Report(f"cannot be rewritten: {_first_line(error)}"), mode)
    for part in result.modules():
        part.training = module.training
    report = replace(result.report, seconds={"capture": capture, **result.report.seconds})
    if mode != "off":
        start = time.perf_counter()
        found = compare(module, result, example_inputs, keywords, tolerance)
        report = replace(
            report, reason=found.reason, errors=found.errors, left_out=found.left_out, checksum=found.checksum
        )
        if not found.reason:
            try:
                errors = step_errors(captured, result, pairs, example_inputs, keywords)
            except Exception as error:  # the outputs were compared already
                report = replace(report, left_out={**report.left_out, "steps": _first_line(error)})
            else:
                steps = [replace(step, error=errors.get(step.at[0], float("nan"))) for step in report.rewrites]
                report = replace(report, rewrites=tuple(steps))
        report = replace(report, seconds={**report.seconds, "compare": time.perf_counter() - start})
        if report.reason:
            if mode == "strict":
                return _unchanged(module, report, mode)
            warnings.warn(f"optimized, but {report.reason}", stacklevel=2)
    result.report = report
    return result


def _capture(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> fx.GraphModule:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        captured = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes).module()
    for warning in caught:
        # An attribute that forward() sets would no longer be set. Recurrent layers only refresh a list of parameters.
        if "assigned during export" in str(warning.message) and "_flat_weights" not in str(warning.message):
            raise ValueError(str(warning.message))
    return captured


def rewrite_graph(
    captured: fx.GraphModule,
    *,
    rules: Sequence[str] = DEFAULT,
    costs: Costs,
    measure: bool = False,
    seconds: float = 1.0,
) -> Optimized:
    """The cheapest equal graph found for a graph of ATen operations (tensors in ``meta["val"]``), not compared.

    Arguments as of :func:`optimize`. Raises ``ValueError`` for an unknown goal.
    """
    return _rewrite(captured, tuple(rules), costs, measure, seconds)[0]


def _rewrite(
    captured: fx.GraphModule, goals: tuple[str, ...], costs: Costs, measure: bool, seconds: float
) -> tuple[Optimized, dict[str, str]]:
    """The result, and for the first node of every rewriting the node of the result that computes it."""
    marks = [time.perf_counter()]
    terms = read(captured)
    marks.append(time.perf_counter())
    egraph = saturate(terms.nodes, rules_of(goals))
    egraph.hints = terms.sizes.hints
    marks.append(time.perf_counter())
    if measure:
        costs = measuring.measure(costs, egraph)
    marks.append(time.perf_counter())
    roots = [egraph.class_of[name] for name in (*terms.outputs, *terms.effects)]
    extraction = extract(egraph, roots, weights(egraph, costs), seconds=seconds)
    steps = log_of(terms, egraph, extraction.chosen)
    marks.append(time.perf_counter())
    graph = rebuild(captured, terms, egraph, extraction.chosen)
    simplify(graph)
    result = Optimized(captured, graph)
    marks.append(time.perf_counter())
    names = ("read", "saturate", "measure", "extract", "rebuild")
    result.report = Report(
        nodes_before=_calls(captured),
        nodes_after=_calls(result),
        rewrites=steps,
        cost_before=_cost(egraph, costs, [(egraph.class_of[name], way) for name, way in egraph.original.items()]),
        cost_after=_cost(egraph, costs, list(extraction.chosen.items())),
        gap=extraction.gap,
        method=extraction.method,
        measured=_measured(egraph, costs),
        seconds=dict(zip(names, (b - a for a, b in zip(marks, marks[1:], strict=False)), strict=True)),
    )
    made = {node.meta["class"]: node.name for node in result.graph.nodes if "class" in node.meta}
    pairs = {step.at[0]: made.get(egraph.class_of[step.at[0]], "") for step in steps}
    return result, {name: other for name, other in pairs.items() if other}


def _faster(
    captured: fx.GraphModule,
    rewritten: Optimized,
    pairs: dict[str, str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    costs: Costs,
) -> tuple[Optimized, dict[str, str]]:
    """The rewritten graph, or the original one where the rewritten is not faster as a whole."""
    original, report = replay(captured, ()), rewritten.report
    times = measuring.race(original, rewritten, args, kwargs, costs)
    if not times or "rewritten" in times:
        rewritten.report = replace(report, raced=times)
        return rewritten, pairs
    original.report = replace(
        report,
        nodes_after=report.nodes_before,
        rewrites=(),
        cost_after=report.cost_before,
        method="original",
        raced=times,
    )
    return original, {}


def _acts(captured: fx.GraphModule) -> bool:
    """Whether a call does more than compute: it writes somewhere, or draws random numbers."""
    effects = read(captured).effects
    return any(node.name in effects and not _guards(node) for node in captured.graph.nodes)


def _guards(node: fx.Node) -> bool:
    """Whether it is torch.export's check of the inputs."""
    return str(node.target).startswith("_guards_fn")


def _calls(module: fx.GraphModule) -> int:
    """Calls in the graph, without the check of the inputs."""
    return sum(node.op.startswith("call") and not _guards(node) for node in module.graph.nodes)


def _cost(egraph: EGraph, costs: Costs, ways: list[tuple[int, Any]]) -> float:
    times = [costs.time(egraph, number, way) for number, way in ways]
    return sum(time.estimate for time in times if time is not None)


def _measured(egraph: EGraph, costs: Costs) -> float:
    """Share of the ways that launch something, where there is a choice, whose time is a measured one."""
    known = total = 0
    for number, ways in egraph.classes.items():
        for way in ways if len(ways) > 1 else ():
            if way.operator in OPERATORS and OPERATORS[way.operator].kernels(costs.device):
                time = costs.time(egraph, number, way)
                total += time is not None
                known += time is not None and time.low < time.high
    return known / total if total else 0.0


def _device(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    tensors = [leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    tensors += list(module.parameters())
    return "cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _unchanged(module: torch.nn.Module, report: Report, mode: str) -> Unchanged:
    if mode != "off":
        warnings.warn(f"not optimized: {report.reason}", stacklevel=3)
    return Unchanged(module, report)
