"""From a selection of terms back to a torch.fx graph, on the parameters and buffers of the graph it came from.

Nothing is copied: a parameter stays the object it was, so an optimizer's step or load_state_dict on the original
module is seen. Every computation stands once, however many read it; nodes that keep their order keep it.
``meta["class"]`` of a node is the e-class that it computes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import fx

from hypatia_lab.egraph.calls import SWIFT
from hypatia_lab.egraph.fx_in import Terms, memory_of, nodes_in
from hypatia_lab.egraph.module import simplify
from hypatia_lab.egraph.saturation import EGraph, ENode
from hypatia_lab.egraph.terms import OPERATORS


def rebuild(module: fx.GraphModule, terms: Terms, egraph: EGraph, chosen: Mapping[int, ENode]) -> fx.Graph:
    """A graph computing the chosen e-node of every e-class that is needed, with the original's signature.

    ``chosen`` maps each e-class that the outputs and the nodes with effects need, and no other, to one e-node, without
    cycles.
    """
    graph = fx.Graph()
    graph.set_codegen(module.graph._codegen)
    old = {node.name: node for node in module.graph.nodes}
    made: dict[int, fx.Node | None] = {}
    source: dict[int, fx.Node] = {}
    for node in terms.nodes:
        source.setdefault(egraph.class_of[node.name], old[node.name])

    def kept(node: fx.Node) -> fx.Node:
        return graph.node_copy(node, lambda argument: made[egraph.class_of[argument.name]])  # pyright: ignore[reportArgumentType]

    def create(number: int) -> fx.Node | None:
        way = chosen[number]
        if way.operator == "Absent":
            return None
        if way.operator == "Opaque":
            result = kept(old[way.arguments[0]])
        elif way.operator == "Param":
            result = graph.get_attr(way.arguments[0])
        else:
            operator = OPERATORS[way.operator]
            values = operator.each(way.arguments, made.__getitem__)
            if operator.name == "View":
                values = values[0], [-1 if size in terms.sizes.hints else size for size in values[1]]
            result = graph.call_function(operator.target, *operator.call(*values))
        if number in source:
            result.meta = dict(source[number].meta)
        result.meta["class"] = number
        return result

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

    for node in module.graph.nodes:
        if node.op == "placeholder":
            made[egraph.class_of[node.name]] = kept(node)
    for node in module.graph.nodes:
        if node.name in terms.pinned and egraph.class_of[node.name] in chosen:
            demand(egraph.class_of[node.name])
        elif node.op == "output":
            for name in terms.outputs:
                demand(egraph.class_of[name])
            kept(node)
    _apart(module, graph)
    return _finished(graph)


def copied(module: fx.GraphModule) -> fx.Graph:
    """The graph of ``module`` as it is, called as a rebuilt one would be."""
    return _finished(copy.deepcopy(module.graph))


def _finished(graph: fx.Graph) -> fx.Graph:
    """``graph`` with the fastest calls and the plainest signature that it can have."""
    for node in graph.nodes:
        node.target = SWIFT.get(node.target, node.target)
    simplify(graph)
    graph.lint()
    return graph


def _apart(module: fx.GraphModule, graph: fx.Graph) -> None:
    """Copy results that share memory with another result, an input or a parameter and did not in the original.

    Equal results are computed once, and whoever writes into one that was handed out must not change the other.
    """
    old, new = memory_of(module, module.graph), memory_of(module, graph)
    (before,), (after,) = (g.find_nodes(op="output") for g in (module.graph, graph))
    pairs = [*_inputs(module.graph, graph), *zip(nodes_in(before.args), nodes_in(after.args), strict=True)]
    known: dict[fx.Node, object] = {}
    copies: dict[int, fx.Node] = {}
    for position, (was, now) in enumerate(pairs):
        if known.setdefault(new.find(now), old.find(was)) != old.find(was):
            with graph.inserting_before(after):
                copies[position] = graph.call_function(torch.ops.aten.clone.default, (now,))
                copies[position].meta = dict(now.meta)
    if copies:
        rest = iter(
            [copies.get(position, now) for position, (_, now) in enumerate(pairs)][-len(nodes_in(after.args)) :]
        )
        after.args = fx.map_arg(after.args, lambda _: next(rest))


def _inputs(old: fx.Graph, new: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    stored = {(node.op, node.target): node for node in old.nodes}
    return [(stored[node.op, node.target], node) for node in new.nodes if node.op in ("placeholder", "get_attr")]
