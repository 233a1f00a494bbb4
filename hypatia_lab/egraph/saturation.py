"""Equality saturation: a graph's terms go into egglog, the rules run, and the e-graph comes back as Python objects.

Every node of the graph is one flat egglog command, so the depth of a network costs no recursion.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypatia_lab.egraph.rules import Rule
from hypatia_lab.egraph.terms import OPERATORS, IllTyped, Type
from hypatia_lab.kernels import loader

ITERATIONS = 30
"""Rounds of rewriting. The sets of rules terminate by themselves within a few; the bound is for those yet to come."""


@dataclass(frozen=True)
class Node:
    """One node of a graph as a term: its ``operator`` (or leaf) and ``arguments``, tensors by name, attributes as are.

    ``type`` is None for what is no tensor, and where a size is symbolic.
    """

    name: str
    operator: str
    arguments: tuple[Any, ...]
    type: Type | None = None
    inputs: tuple[str, ...] = ()
    """What it reads, by name."""


@dataclass(frozen=True)
class ENode:
    """One operator application of an e-class: tensors are numbers of e-classes, attributes stand as they are.

    For an opaque node ``arguments`` is its name, then the e-classes it reads.
    """

    operator: str
    arguments: tuple[Any, ...]

    @property
    def children(self) -> tuple[int, ...]:
        """The e-classes it reads."""
        if self.operator in OPERATORS:
            return OPERATORS[self.operator].tensors(self.arguments)
        return self.arguments[1:] if self.operator == "Opaque" else ()


@dataclass
class EGraph:
    """E-classes of equal values, each with the ways to compute it; which e-class each node of the graph is in."""

    classes: dict[int, list[ENode]]
    class_of: dict[str, int]
    original: dict[str, ENode]
    """Node of the graph, in order → its e-node, before any rewriting."""
    fired: tuple[tuple[str, int], ...]
    """(rule, e-class) pairs: where each rule found its left side."""
    types: dict[int, Type | None] = field(default_factory=dict)
    hints: Mapping[int, int] = field(default_factory=dict)
    """Number that stands for a symbolic size → the size that the example inputs had."""


def schema() -> str:
    """The declarations in egglog's language: sorts, operators, what is known of the sizes, and how it spreads."""
    constructors = " ".join(f"({name} {' '.join(operator.sorts)})" for name, operator in OPERATORS.items())
    return f"""
(sort Dims (Vec i64))
(datatype T (Input String) (Param String) (Opaque String) (Absent) {constructors})
(function class-of (String) T :no-merge)
(function dims (T) Dims :merge old)
(relation fired (String T))
(ruleset sizes)
(rule ((= e (Relu x)) (= d (dims x))) ((set (dims e) d)) :ruleset sizes)
(rule ((= e (Gelu x k)) (= d (dims x))) ((set (dims e) d)) :ruleset sizes)
(rule ((= e (Add x y)) (= d (dims x)) (= d (dims y))) ((set (dims e) d)) :ruleset sizes)
(rule ((= e (View x d))) ((set (dims e) d)) :ruleset sizes)
(rule ((= e (Mm a b)) (= m (vec-get (dims a) 0)) (= n (vec-get (dims b) 1)))
      ((set (dims e) (vec-of m n))) :ruleset sizes)
(rule ((= e (Linear x w b)) (= d (dims x)) (= n (vec-get (dims w) 0)))
      ((set (dims e) (vec-set d (- (vec-length d) 1) n))) :ruleset sizes)
(ruleset goals)
"""


def _text(value: Any, sort: str = "") -> str:
    if sort == "T":
        return "(Absent)" if value is None else _class(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f"(vec-of {' '.join(map(str, value))})" if value else "(vec-empty)"


def _class(name: str) -> str:
    return f"(class-of {_text(name)})"


def _command(node: Node) -> str:
    sorts = OPERATORS[node.operator].sorts if node.operator in OPERATORS else ("String",)
    text = f"(set {_class(node.name)} ({node.operator} {' '.join(map(_text, node.arguments, sorts))}))"
    return text if node.type is None else f"{text} (set (dims {_class(node.name)}) {_text(node.type.shape)})"


def missing() -> str:
    """Why no graph can be saturated here; empty when it can."""
    return loader.module_missing("egglog", "'hypatia-lab[egraph]'")


def saturate(nodes: Sequence[Node], rules: Sequence[Rule], *, iterations: int = ITERATIONS) -> EGraph:
    """The e-graph of ``nodes`` (in order, arguments first) after the rules have run until nothing new is found."""
    # Found late: egglog's package brings widgets that nothing else here needs.
    from egglog import bindings

    engine = bindings.EGraph()
    lines = [schema(), *(rule.egglog("goals") for rule in rules), *map(_command, nodes)]
    lines.append(f"(run-schedule (repeat {iterations} (saturate (run sizes)) (run goals)))")
    for line in lines:
        # One by one: every command carries a copy of the text it was parsed with, so a single text takes a quadratic
        # time (16 s for 300 layers).
        engine.run_program(*engine.parse_program(line))
    return _read(json.loads(engine.serialize([]).to_json())["nodes"], nodes)


def _read(entries: Mapping[str, Mapping[str, Any]], nodes: Sequence[Node]) -> EGraph:
    """Python's view of egglog's serialized tables."""
    numbers: dict[str, int] = {}

    def number(entry: Mapping[str, Any]) -> int:
        return numbers.setdefault(entry["eclass"], len(numbers))

    def value(key: str) -> Any:
        entry = entries[key]
        sort = entry["eclass"].split("-")[0]
        if sort == "T":
            return number(entry)
        if sort == "Dims":
            return tuple(value(child) for child in entry["children"])
        return json.loads(entry["op"])

    classes: dict[int, list[ENode]] = {}
    class_of: dict[str, int] = {}
    fired: list[tuple[str, int]] = []
    for entry in entries.values():
        if entry["op"] == "class-of":
            class_of[value(entry["children"][0])] = number(entry)
    inputs = {node.name: tuple(class_of[name] for name in node.inputs) for node in nodes}
    for entry in entries.values():
        operator = entry["op"]
        if operator == "fired":
            fired.append(tuple(value(child) for child in entry["children"]))
        elif entry["eclass"].startswith("T-") and operator != "class-of":
            arguments = tuple(value(child) for child in entry["children"])
            if operator == "Opaque":
                arguments += inputs[arguments[0]]
            enode = ENode(operator, arguments)
            # A way that needs its own result is no way.
            if number(entry) not in enode.children:
                classes.setdefault(number(entry), []).append(enode)
    egraph = EGraph(classes, class_of, {}, tuple(fired))
    absent = next((own for own, ways in classes.items() if ENode("Absent", ()) in ways), None)
    if absent is not None:
        egraph.types[absent] = None
    for node in nodes:
        if node.type is not None:
            egraph.types.setdefault(class_of[node.name], node.type)
        if node.operator in OPERATORS:
            way = OPERATORS[node.operator].each(node.arguments, lambda name: absent if name is None else class_of[name])
        else:
            way = (*node.arguments, *inputs[node.name])
        egraph.original[node.name] = ENode(node.operator, way)
    _complete(egraph)
    return egraph


def _complete(egraph: EGraph) -> None:
    """Types of the e-classes that rewriting made, from those of their arguments."""
    todo = [(own, way) for own, ways in egraph.classes.items() if own not in egraph.types for way in ways]
    waiting = -1
    while len(todo) != waiting:
        waiting, later = len(todo), []
        for own, way in todo:
            if own in egraph.types or way.operator not in OPERATORS:
                continue
            if any(child not in egraph.types for child in way.children):
                later.append((own, way))
                continue
            with contextlib.suppress(IllTyped):
                egraph.types[own] = OPERATORS[way.operator].type(*typed(egraph, way))
        todo = later


def typed(egraph: EGraph, way: ENode) -> tuple[Any, ...]:
    """Arguments of an operator with types for tensors, attributes as they are."""
    return OPERATORS[way.operator].each(way.arguments, egraph.types.__getitem__)
