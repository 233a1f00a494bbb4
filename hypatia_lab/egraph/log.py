"""The log of a rewriting: every step as a term over the captured graph's own nodes, text for people.

A step says that some nodes are computed by another term. Terms are S-expressions whose leaves are names of nodes
(``:name``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypatia_lab.egraph.module import Rewrite
from hypatia_lab.egraph.rules import GOALS
from hypatia_lab.egraph.saturation import EGraph, ENode
from hypatia_lab.egraph.terms import OPERATORS

MERGED = "same term"
"""What stands for a rule where nodes are merged because they compute the same."""

_HEADS = {
    rule.name: rule.right.split()[0][1:] if rule.right[0] == "(" else "" for rules in GOALS.values() for rule in rules
}
"""Rule → the operator of its right side; empty where that is a variable."""


def log(egraph: EGraph, chosen: Mapping[int, ENode], made: Mapping[int, str]) -> tuple[Rewrite, ...]:
    """The steps from the captured graph to the selection ``chosen``, arguments before what reads them.

    ``made`` has the node of the rebuilt graph that computes an e-class.
    """
    at: dict[int, list[str]] = {}
    for name in egraph.original:
        at.setdefault(egraph.class_of[name], []).append(name)
    fired: dict[int, set[str]] = {}
    for rule, number in egraph.fired:
        fired.setdefault(number, set()).add(rule)
    found = []
    for number, names in at.items():
        way, were = chosen.get(number), {egraph.original[name] for name in names}
        if way is None:
            continue
        if way not in were:
            # What lies between has no name of its own, and its rules are this step's.
            inner = _unnamed(number, chosen, at)
            rules = set().union(*(_leading(fired.get(own, set()), chosen[own]) for own in (number, *inner)))
        elif len(were) > 1:
            rules = fired.get(number, set())
        elif len(names) > 1 and way.operator != "Param":
            rules = {MERGED}
        else:
            continue
        text = _text(way, chosen, at)
        found.append(
            Rewrite(tuple(sorted(rules)) or (MERGED,), tuple(names), way.operator, text, node=made.get(number, ""))
        )
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
    def part(sort: str, argument: Any) -> str:
        if sort != "T":
            return json.dumps(argument, separators=(",", ":"))
        return f":{at[argument][0]}" if argument in at else _text(chosen[argument], chosen, at)

    if way.operator not in OPERATORS:
        return f"({way.operator})"
    return f"({way.operator} {' '.join(map(part, OPERATORS[way.operator].sorts, way.arguments))})"
