"""The graph optimizer's drawings, made here and now by the optimizer itself, and its page's table of rules."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from hypatia_lab.drawings import graph as graph_figure
from hypatia_lab.drawings.graph import Node, Panel
from hypatia_lab.pages import graph_drawings, graph_rules


def test_the_scenario_keeps_its_last_relu() -> None:
    panels, _ = graph_drawings.scenario()
    before, after = ([box[0].label for box in panel.boxes] for panel in panels)
    assert before == ["x", *["linear", "relu"] * 3]
    assert after == ["x", *["linear_relu"] * 3]


def test_the_rounds_end_in_one_kernel() -> None:
    panels, _ = graph_drawings.rounds()
    fresh = [{way.label for ways in panel.boxes for way in ways if way.new} for panel in panels]
    assert fresh == [set(), {"LinearRelu"}, {"Mlp2"}, {"Mlp3"}]
    chosen = [way.label for ways in panels[-1].boxes for way in ways if way.chosen]
    assert chosen == ["Mlp3"]


def test_a_drawing_is_one_well_formed_svg_with_its_words() -> None:
    read = Panel(
        "reads <far>", ((Node("x"),), (Node("a", (0,)), Node("b", (0,), new=True)), (Node("c", (0, 1), chosen=True),))
    )
    text = graph_figure.drawn([read, read], "Title & more", "In words", "key").svg()
    tree = ElementTree.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    assert tree.get("role") == "img"
    assert [tree.findtext(f"{name}{tag}") for tag in ("title", "desc")] == ["Title & more", "In words"]
    labels = [node.text for node in tree.iter(f"{name}text")]
    assert labels == ["reads <far>", "x", "a", "b", "c"] * 2
    # Everything lies inside the drawing, the edge that passes outside the others too.
    width, height = (float(value) for value in (tree.get("viewBox") or "").split()[2:])
    assert (width, height) == (2 * read.size[0], read.size[1])
    assert graph_figure._places([read] * 5)[1:] == (2 * read.size[0], 3 * height)
    assert read.lanes == [0]
    for line in (*tree.iter(f"{name}polyline"), *tree.iter(f"{name}polygon")):
        for point in (line.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    assert not re.search(r'"#(?!009E73)', text)


def test_the_table_of_rules_says_what_the_gate_grants_and_tells_like_rules_apart() -> None:
    lines = graph_rules.own(trials=12)  # the gate's own tests take more, and refuse the wrong ones
    assert graph_rules.held(lines) == len(lines)
    assert graph_rules.held([line | {"gate grants": "refused"} for line in lines]) == 0
    assert graph_rules.held([line | {"claims": "EXACT", "gate grants": "REAL"} for line in lines]) == 0
    stated = [(line["rule"], line["where"]) for line in lines]
    stated += [(line["rule"], "anywhere") for line in graph_rules.wrong(trials=1)]
    assert len(set(stated)) == len(stated), "a condition tells a rule that holds from the same that is refused"
