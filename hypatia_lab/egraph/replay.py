"""The log of a rewriting: every step as a term over the captured graph's own nodes, and the way back from it.

A step says that some nodes are computed by another term. Terms are S-expressions whose leaves are names of nodes
(``:name``), so a log can be kept as text, read by people, and replayed on the same graph, in whole or in part: what
is taken from it is the graph, not the e-graph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from hypatia_lab.egraph.fx_in import Terms, read
from hypatia_lab.egraph.fx_out import rebuild
from hypatia_lab.egraph.module import Optimized, Rewrite, simplify
from hypatia_lab.egraph.rules import GOALS
from hypatia_lab.egraph.saturation import EGraph, ENode
from hypatia_lab.egraph.terms import OPERATORS

MERGED = "same term"
"""What stands for a rule where nodes are merged because they compute the same."""


_HEADS = {
    rule.name: rule.right.split()[0][1:] if rule.right[0] == "(" else "" for rules in GOALS.values() for rule in rules
}
"""Rule → the operator of its right side; empty where that is a variable."""


def log(terms: Terms, egraph: EGraph, chosen: Mapping[int, ENode]) -> tuple[Rewrite, ...]:
    """The steps from the graph of ``terms`` to the selection ``chosen``, arguments before what reads them."""
    at: dict[int, list[str]] = {}
    for node in terms.nodes:
        at.setdefault(egraph.class_of[node.name], []).append(node.name)
    fired: dict[int, set[str]] = {}
    for rule, number in egraph.fired:
        fired.setdefault(number, set()).add(rule)
    found = []
    for number, names in at.items():
        way = chosen.get(number)
        if way is None:
            continue
        if way not in {egraph.original[name] for name in names}:
            # What lies between has no name of its own, and its rules are this step's.
            inner = _unnamed(number, chosen, at)
            rules = sorted(set().union(*(_leading(fired.get(own, set()), chosen[own]) for own in (number, *inner))))
            found.append(Rewrite(tuple(rules), tuple(names), way.operator, _text(way, chosen, at)))
        elif len(names) > 1 and any(
            egraph.original[name] != egraph.original[names[0]] or way.operator != "Param" for name in names
        ):
            rules = sorted(fired.get(number, set())) if len({egraph.original[name] for name in names}) > 1 else []
            found.append(Rewrite(tuple(rules) or (MERGED,), tuple(names), way.operator, _text(way, chosen, at)))
    return tuple(found)


def _leading(rules: set[str], way: ENode) -> set[str]:
    """Of the rules that met in an e-class those that may have led to ``way``; all, where none says so."""
    found = {name for name in rules if _HEADS.get(name, way.operator) in (way.operator, "")}
    return found or rules


def _unnamed(number: int, chosen: Mapping[int, ENode], at: Mapping[int, list[str]]) -> list[int]:
    todo, found = list(chosen[number].children), []
    while todo:
        own = todo.pop()
        if own not in at and own not in found:
            found.append(own)
            todo += chosen[own].children
    return found


def _text(way: ENode, chosen: Mapping[int, ENode], at: Mapping[int, list[str]]) -> str:
    if way.operator not in OPERATORS:
        return f"({way.operator})"
    parts = []
    for sort, argument in zip(OPERATORS[way.operator].sorts, way.arguments, strict=True):
        if sort != "T":
            parts.append(json.dumps(argument, separators=(",", ":")))
        elif chosen[argument].operator == "Absent":
            parts.append("(Absent)")
        else:
            parts.append(f":{at[argument][0]}" if argument in at else _text(chosen[argument], chosen, at))
    return f"({way.operator} {' '.join(parts)})"


def _parsed(text: str) -> tuple[Any, ...]:
    """``(Relu :x)`` → ("Relu", ":x"); attributes are JSON."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[()]|[^\s()]+', text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            stack[-1].append(done)
        elif token[0] == ":" or (stack[-1] == [] and token[0].isalpha()):
            stack[-1].append(token)
        else:
            value = json.loads(token)
            stack[-1].append(tuple(value) if isinstance(value, list) else value)
    return stack[0][0]


def replay(captured: fx.GraphModule, steps: Sequence[Rewrite]) -> Optimized:
    """The graph that ``steps`` of a report's log make of ``captured``, the graph module that they were made of.

    The first few of a log are a rewriting too: so the first that goes wrong can be found.
    Raises ``KeyError`` where a step names a node that the graph lacks.
    """
    terms = read(captured)
    classes: dict[str, int] = {}
    leaves: dict[tuple[Any, ...], int] = {}
    for node in terms.nodes:
        # A parameter is one, whatever its names.
        number = len(classes)
        classes[node.name] = leaves.setdefault(node.arguments, number) if node.operator == "Param" else number
    for step in steps:
        for name in step.at[1:]:
            classes[name] = classes[step.at[0]]
    chosen: dict[int, ENode] = {}
    made: dict[ENode, int] = {}
    absent = len(classes)
    chosen[absent] = ENode("Absent", ())

    def place(term: Any) -> int:
        if isinstance(term, str):
            return classes[term[1:]]
        if term[0] == "Absent":
            return absent
        way = enode(term)
        if way not in made:
            made[way] = absent + 1 + len(made)
            chosen[made[way]] = way
        return made[way]

    def enode(term: tuple[Any, ...]) -> ENode:
        sorts = OPERATORS[term[0]].sorts
        return ENode(term[0], tuple(place(a) if sort == "T" else a for sort, a in zip(sorts, term[1:], strict=True)))

    original: dict[str, ENode] = {}
    for node in terms.nodes:
        if node.operator not in OPERATORS:
            way = ENode(node.operator, (*node.arguments, *(classes[name] for name in node.inputs)))
        else:
            sorts = OPERATORS[node.operator].sorts
            known = zip(sorts, node.arguments, strict=True)
            arguments = [(absent if a is None else classes[a]) if sort == "T" else a for sort, a in known]
            way = ENode(node.operator, tuple(arguments))
        original[node.name] = way
        chosen.setdefault(classes[node.name], way)
    for step in steps:
        term = _parsed(step.term)
        if term[0] in OPERATORS:
            chosen[classes[step.at[0]]] = enode(term)
        else:
            chosen[classes[step.at[0]]] = next(original[name] for name in step.at if original[name].operator == term[0])
    graph = rebuild(captured, terms, EGraph({}, classes, original, ()), chosen)
    simplify(graph)
    return Optimized(captured, graph)
