"""From a selection of terms back to a torch.fx graph, on the parameters and buffers of the graph it came from.

Nothing is copied: a parameter stays the object it was, so an optimizer's step or load_state_dict on the original
module is seen. Every computation stands once, however many read it; nodes that keep their order keep it.
``meta["class"]`` of a node is the e-class that it computes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from hypatia_lab.egraph.calls import SWIFT
from hypatia_lab.egraph.fx_in import Terms, memory_of
from hypatia_lab.egraph.saturation import EGraph, ENode
from hypatia_lab.egraph.terms import OPERATORS


def rebuild(module: fx.GraphModule, terms: Terms, egraph: EGraph, chosen: Mapping[int, ENode]) -> fx.Graph:
    """A graph computing the chosen e-node of every e-class that is needed, with the original's signature.

    ``chosen`` maps each e-class to one e-node, without cycles, and covers the outputs and the nodes with effects.
    """
    graph = fx.Graph()
    graph.set_codegen(module.graph._codegen)
    old = {node.name: node for node in module.graph.nodes}
    made: dict[int, fx.Node | None] = {}
    source: dict[int, fx.Node] = {}
    for node in terms.nodes:
        source.setdefault(egraph.class_of[node.name], old[node.name])

    def copied(node: fx.Node) -> fx.Node:
        return graph.node_copy(node, lambda argument: made[egraph.class_of[argument.name]])  # pyright: ignore[reportArgumentType]

    def static(dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-1 if size in terms.sizes.hints else size for size in dims)

    def create(number: int) -> fx.Node | None:
        way = chosen[number]
        if way.operator == "Absent":
            return None
        if way.operator == "Opaque":
            made_here = copied(old[way.arguments[0]])
            made_here.meta["class"] = number
            return made_here
        if way.operator == "Param":
            made_here = graph.get_attr(way.arguments[0])
        else:
            operator = OPERATORS[way.operator]
            values = [
                made[argument] if sort == "T" else static(argument) if sort == "Dims" else argument
                for sort, argument in zip(operator.sorts, way.arguments, strict=True)
            ]
            made_here = graph.call_function(operator.target, operator.arguments(*values), operator.keywords(*values))
        if number in source:
            made_here.meta = dict(source[number].meta)
        made_here.meta["class"] = number
        return made_here

    def demand(number: int) -> None:
        stack = [number]
        while stack:
            top = stack[-1]
            if top in made:
                stack.pop()
            elif missing := [child for child in chosen[top].children if child not in made]:
                stack += missing
            else:
                made[stack.pop()] = create(top)

    needed = _reachable(terms, egraph, chosen)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            made[egraph.class_of[node.name]] = copied(node)
    for node in module.graph.nodes:
        if node.name in terms.pinned and egraph.class_of[node.name] in needed:
            demand(egraph.class_of[node.name])
        elif node.op == "output":
            for name in terms.outputs:
                demand(egraph.class_of[name])
            copied(node)
    _apart(module, graph)
    for node in graph.nodes:
        node.target = SWIFT.get(node.target, node.target)
    graph.lint()
    return graph


def _apart(module: fx.GraphModule, graph: fx.Graph) -> None:
    """Copy results that share memory with another result, an input or a parameter and did not in the original.

    Equal results are computed once, and whoever writes into one that was handed out must not change the other.
    """
    old, new = memory_of(module, module.graph), memory_of(module, graph)
    (before,), (after,) = (g.find_nodes(op="output") for g in (module.graph, graph))
    pairs = [*_inputs(module.graph, graph), *zip(_results(before), _results(after), strict=True)]
    known: dict[fx.Node, object] = {}
    copies: dict[int, fx.Node] = {}
    for position, (was, now) in enumerate(pairs):
        if known.setdefault(new.find(now), old.find(was)) != old.find(was):
            with graph.inserting_before(after):
                copies[position] = graph.call_function(torch.ops.aten.clone.default, (now,))
                copies[position].meta = dict(now.meta)
    if copies:
        rest = iter([copies.get(position, now) for position, (_, now) in enumerate(pairs)][-len(_results(after)) :])
        after.args = fx.map_arg(after.args, lambda _: next(rest))


def _inputs(old: fx.Graph, new: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    stored = {(node.op, node.target): node for node in old.nodes}
    return [(stored[node.op, node.target], node) for node in new.nodes if node.op in ("placeholder", "get_attr")]


def _results(output: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(output.args, found.append)
    return found


def _reachable(terms: Terms, egraph: EGraph, chosen: Mapping[int, ENode]) -> set[int]:
    todo = [egraph.class_of[name] for name in (*terms.outputs, *terms.effects)]
    found: set[int] = set()
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            todo += chosen[number].children
    return found
