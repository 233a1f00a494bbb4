"""Drawings of the graph optimizer's page: a module before and after, and an e-graph round by round.

They are made as the page is, by the optimizer itself, from the roofline costs of a GPU: the same on any machine.
"""

from __future__ import annotations

from typing import Any

import torch

from hypatia_lab.drawings.graph import Node, Panel

FUSING = ("linear_relu", "mlp")
"""The goals whose rules the drawing of the rounds shows: those that may fire on its 16-bit numbers and lead on. Calls
of that name are what they fuse to."""


def _seeds_module() -> Any:
    """Three pairs of Linear and ReLU, as in S004's scenario, with the sizes of its test (784-256-256-10)."""
    sizes = (784, 256, 256, 10)
    layers = [torch.nn.Linear(inner, outer, device="meta") for inner, outer in zip(sizes, sizes[1:], strict=False)]
    pairs = [part for layer in layers for part in (layer, torch.nn.ReLU())]
    return torch.nn.Sequential(*pairs).to_empty(device="cpu").requires_grad_(False)


def _captured(module: Any, x: Any) -> Any:
    return torch.export.export(module, (x,)).module()


def _drawn(graph: Any, caption: str) -> Panel:
    """A graph's nodes that call something, from top to bottom, placeholders first; parameters left out."""
    nodes = [n for n in graph.nodes if n.op in ("placeholder", "call_function")]
    number = {node: position for position, node in enumerate(nodes)}

    def label(node: Any) -> str:
        return "x" if node.op == "placeholder" else node.target.__name__.split(".")[0]

    ways = [
        (Node(label(n), tuple(number[m] for m in n.all_input_nodes if m in number), chosen=label(n) in FUSING),)
        for n in nodes
    ]
    return Panel(caption, tuple(ways))


def scenario() -> tuple[list[Panel], str]:
    """S004's three pairs before and after, and what is to be seen in words."""
    from hypatia_lab.egraph import Costs, rewrite_graph

    captured = _captured(_seeds_module(), torch.zeros(64, 784))
    result = rewrite_graph(captured, costs=Costs("cuda"))
    before, after = result.report.nodes_before, result.report.nodes_after
    panels = [_drawn(captured.graph, f"before: x, {before} nodes"), _drawn(result.graph, f"after: x, {after} nodes")]
    names = [", ".join(box[0].label for box in panel.boxes[1:]) for panel in panels]
    return panels, f"Before: {names[0]}. After: {names[1]}."


def rounds() -> tuple[list[Panel], str]:
    """The e-graph of three equal layers in bfloat16 after every round of rewriting, and what was chosen in the end."""
    from hypatia_lab.egraph import Costs
    from hypatia_lab.egraph.cost import weights
    from hypatia_lab.egraph.extract import extract
    from hypatia_lab.egraph.fx_in import read
    from hypatia_lab.egraph.rules import rules_of
    from hypatia_lab.egraph.saturation import saturate

    layers = [torch.nn.Linear(64, 64, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    pairs = [part for layer in layers for part in (layer, torch.nn.ReLU())][:-1]
    module = torch.nn.Sequential(*pairs).requires_grad_(False)
    terms = read(_captured(module, torch.zeros(65536, 64, device="meta", dtype=torch.bfloat16)))
    known: dict[str, list[str]] = {}
    panels, said = [], []
    for number in range(10):
        egraph = saturate(terms.nodes, rules_of(FUSING), iterations=number)
        root = egraph.class_of[terms.outputs[0]]
        extraction = extract(egraph, [root], weights(egraph, Costs("cuda")))
        names = [node.name for node in terms.nodes if node.operator not in ("Param", "Opaque")]
        box = {egraph.class_of[name]: position for position, name in enumerate(names)}
        boxes, fresh = [], []
        for own, name in zip(box, names, strict=True):
            # In the order in which they were found, so that a way keeps its place from panel to panel.
            order = known.setdefault(name, [])
            ways = {way.operator: way for way in egraph.classes[own]}
            new = [operator for operator in sorted(ways) if operator not in order]
            order += new
            fresh += new if number else []
            chosen = extraction.chosen.get(own)
            boxes.append(
                tuple(
                    Node(
                        "x" if operator == "Input" else operator,
                        tuple(box[child] for child in ways[operator].children if child in box),
                        new=number > 0 and operator in new,
                        chosen=chosen == ways[operator] and operator != "Input",
                    )
                    for operator in order
                )
            )
        if number and not fresh:
            break
        caption = f"round {number}" + (f": {', '.join(dict.fromkeys(fresh))}" if number else ": as captured")
        panels.append(Panel(caption, tuple(boxes), classes=True))
        chosen = [way.operator for way in extraction.chosen.values() if way.operator not in ("Input", "Param")]
        said.append(f"{caption}; cheapest: {', '.join(chosen)}")
    return panels, ". ".join(said) + "."
