"""From a selection of terms back to a torch.fx graph, on the parameters and buffers of the graph it came from.

Nothing is copied: a parameter stays the object it was, so an optimizer's step or load_state_dict on the original
module is seen. Every computation stands once, however many read it; nodes that keep their order keep it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from hypatia_lab.egraph.fx_in import Terms
from hypatia_lab.egraph.saturation import EGraph, ENode
from hypatia_lab.egraph.terms import OPERATORS


def rebuild(module: fx.GraphModule, terms: Terms, egraph: EGraph, chosen: Mapping[int, ENode]) -> fx.GraphModule:
    """A graph module computing the chosen e-node of every e-class that is needed, with the original's signature.

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
        return graph.node_copy(node, lambda argument: made[egraph.class_of[argument.name]])  # pyright: ignore

    def create(number: int) -> fx.Node | None:
        way = chosen[number]
        if way.operator == "Absent":
            return None
        if way.operator == "Opaque":
            return copied(old[way.arguments[0]])
        if way.operator == "Param":
            made_here = graph.get_attr(way.arguments[0])
        else:
            operator = OPERATORS[way.operator]
            values = [
                made[argument] if sort == "T" else argument
                for sort, argument in zip(operator.sorts, way.arguments, strict=True)
            ]
            made_here = graph.call_function(operator.target, operator.arguments(*values), operator.keywords(*values))
        if number in source:
            made_here.meta = dict(source[number].meta)
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
    graph.lint()
    return fx.GraphModule(module, graph, module.__class__.__name__)


def _reachable(terms: Terms, egraph: EGraph, chosen: Mapping[int, ENode]) -> set[int]:
    todo = [egraph.class_of[name] for name in (*terms.outputs, *terms.effects)]
    found: set[int] = set()
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            todo += chosen[number].children
    return found

