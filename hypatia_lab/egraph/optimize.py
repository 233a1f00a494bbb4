"""A module in, an equal and cheaper one out: capture, terms, saturation, extraction, rebuilding, comparison."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

import hypatia_lab.egraph.measure as measuring
from hypatia_lab.egraph.cost import Costs, weights
from hypatia_lab.egraph.extract import extract
from hypatia_lab.egraph.fx_in import read
from hypatia_lab.egraph.fx_out import copied, rebuild
from hypatia_lab.egraph.log import log
from hypatia_lab.egraph.module import Optimized, Report, guards
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
    inputs or buffers are not raced). Where autograd is on, the times of a module in train mode are those of both
    passes, for which hooks of its parameters are called, too. ``seconds`` is the time limit of the integer program.

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
    keywords, seconds_of = dict(kwargs or {}), {}
    try:
        with _timed(seconds_of, "capture"):
            captured = _capture(module, tuple(example_inputs), keywords, dynamic_shapes)
    except Exception as error:  # whatever it met, the original still runs
        return _unchanged(module, Report(f"cannot be captured: {_first_line(error)}"), mode)
    training = module.training and torch.is_grad_enabled()
    costs = costs or measuring.stored(_device(module, example_inputs, keywords), training=training)
    try:
        result, acts = _rewrite(captured, goals, costs, measure, seconds, seconds_of)
        if measure and result.report.rewrites and not acts:
            with _timed(seconds_of, "race"):
                result = _faster(captured, result, example_inputs, keywords, costs)
    except Exception as error:  # the original still runs
        return _unchanged(module, Report(f"cannot be rewritten: {_first_line(error)}"), mode)
    for part in result.modules():
        part.training = module.training
    if mode == "off":
        return result
    with _timed(seconds_of, "compare"):
        found = compare(module, result, example_inputs, keywords, tolerance)
        report = replace(result.report, **vars(found))
        if not found.reason:
            try:
                steps = step_errors(captured, result, report.rewrites, example_inputs, keywords)
                report = replace(report, rewrites=steps)
            except Exception as error:  # the outputs were compared already
                report = replace(report, left_out={**report.left_out, "steps": _first_line(error)})
    if report.reason and mode == "strict":
        return _unchanged(module, report, mode)
    if report.reason:
        warnings.warn(f"optimized, but {report.reason}", stacklevel=2)
    result.report = report
    return result


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


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


def rewrite_graph(captured: fx.GraphModule, *, costs: Costs) -> Optimized:
    """The cheapest equal graph found for a graph of ATen operations (tensors in ``meta["val"]``), not compared.

    By the default goals, with nothing measured; the integer program has a second. ``costs`` as of :func:`optimize`.
    """
    return _rewrite(captured, DEFAULT, costs, measure=False, seconds=1.0, seconds_of={})[0]


def _rewrite(
    captured: fx.GraphModule,
    goals: tuple[str, ...],
    costs: Costs,
    measure: bool,
    seconds: float,
    seconds_of: dict[str, float],
) -> tuple[Optimized, bool]:
    """The result, and whether a call does more than compute: it writes somewhere, or draws random numbers."""
    with _timed(seconds_of, "read"):
        terms = read(captured)
    with _timed(seconds_of, "saturate"):
        egraph = saturate(terms.nodes, rules_of(goals))
        egraph.hints = terms.sizes.hints
    with _timed(seconds_of, "measure"):
        costs = measuring.measure(costs, egraph) if measure else costs
    with _timed(seconds_of, "extract"):
        roots = [egraph.class_of[name] for name in (*terms.outputs, *terms.effects)]
        extraction = extract(egraph, roots, weights(egraph, costs), seconds=seconds)
    with _timed(seconds_of, "rebuild"):
        result = Optimized(captured, rebuild(captured, terms, egraph, extraction.chosen))
    made = {node.meta["class"]: node.name for node in result.graph.nodes if "class" in node.meta}
    result.report = Report(
        nodes_before=_calls(captured),
        nodes_after=_calls(result),
        rewrites=log(egraph, extraction.chosen, made),
        cost_before=_cost(egraph, costs, [(egraph.class_of[name], way) for name, way in egraph.original.items()]),
        cost_after=_cost(egraph, costs, list(extraction.chosen.items())),
        gap=extraction.gap,
        method=extraction.method,
        measured=_measured(egraph, costs),
        seconds=seconds_of,
    )
    return result, any(node.name in terms.effects and not guards(node) for node in captured.graph.nodes)


def _faster(
    captured: fx.GraphModule, rewritten: Optimized, args: Sequence[Any], kwargs: Mapping[str, Any], costs: Costs
) -> Optimized:
    """The rewritten graph, or the original one where the rewritten is not faster as a whole."""
    original, report = Optimized(captured, copied(captured)), rewritten.report
    times = measuring.race(original, rewritten, args, kwargs, costs)
    if not times or "rewritten" in times:
        rewritten.report = replace(report, raced=times)
        return rewritten
    kept = {"nodes_after": report.nodes_before, "cost_after": report.cost_before, "rewrites": (), "method": "original"}
    original.report = replace(report, raced=times, **kept)
    return original


def _calls(module: fx.GraphModule) -> int:
    """Calls in the graph, without the check of the inputs."""
    return sum(node.op.startswith("call") and not guards(node) for node in module.graph.nodes)


def _cost(egraph: EGraph, costs: Costs, ways: list[tuple[int, Any]]) -> float:
    times = [costs.time(egraph, number, way) for number, way in ways]
    return sum(time.estimate for time in times if time is not None)


def _measured(egraph: EGraph, costs: Costs) -> float:
    """Share of the ways that launch something, where there is a choice, whose time is a measured one."""
    choices = [(number, way) for number, ways in egraph.classes.items() if len(ways) > 1 for way in ways]
    launched = [(number, way) for number, way in choices if getattr(OPERATORS.get(way.operator), "kernels", 0)]
    times = [time for number, way in launched if (time := costs.time(egraph, number, way)) is not None]
    return sum(time.low < time.high for time in times) / len(times) if times else 0.0


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
