"""Saturation and extraction: what is shared counts once, cycles are no computation, a tie keeps the original."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from hypatia_lab.egraph import DEFAULT, Costs, Time
from hypatia_lab.egraph.cost import LAUNCH_US, key, weights
from hypatia_lab.egraph.extract import extract, reachable, total
from hypatia_lab.egraph.rules import rules_of
from hypatia_lab.egraph.saturation import EGraph, ENode, Node, saturate
from hypatia_lab.egraph.terms import OPERATORS, Type

X, W, B = Type((8, 16), "float32"), Type((16, 16), "float32"), Type((16,), "float32")
CUDA = Costs("cuda")


def inputs(*extra: Node) -> list[Node]:
    return [
        Node("x", "Input", ("x",), X),
        Node("w", "Param", ("w",), W),
        Node("b", "Param", ("b",), B),
        *extra,
    ]


def node(name: str, operator: str, *arguments, type=X) -> Node:
    return Node(name, operator, arguments, type)


def best(nodes, *roots, costs=CUDA, goals=DEFAULT, seconds=5.0):
    egraph = saturate(nodes, rules_of(goals))
    return egraph, extract(egraph, [egraph.class_of[root] for root in roots], weights(egraph, costs), seconds=seconds)


def operators(extraction) -> list[str]:
    return sorted(
        way.operator for way in extraction.chosen.values() if way.operator not in ("Input", "Param", "Absent")
    )


def test_a_chain_of_200_residual_blocks_is_fused_block_by_block():
    nodes, last = inputs(), "x"
    for n in range(200):
        nodes += [node(f"l{n}", "Linear", last, "w", "b"), node(f"r{n}", "Relu", f"l{n}")]
        nodes.append(node(f"a{n}", "Add", f"r{n}", last))
        last = f"a{n}"
    egraph, found = best(nodes, last, costs=Costs("cuda"))
    assert operators(found) == ["Add"] * 200 + ["LinearRelu"] * 200
    # 200 blocks of two launches: a tree's sum would be 2^200 of them.
    assert found.weight == pytest.approx(400 * LAUNCH_US["cuda"], rel=0.01)
    assert found.gap < 1e-6


def test_a_shared_product_is_not_computed_twice():
    nodes = inputs(node("y", "Linear", "x", "w", "b"), node("r", "Relu", "y"), node("s", "Add", "r", "y"))
    large = [replace(n, type=Type((512,) if n.name == "b" else (512, 512), "float64")) for n in nodes]
    found = best(large, "s")[1]
    assert operators(found) == ["Add", "Linear", "Relu"]
    assert found.gap < 1e-6
    # Greedy alone doubles the product; the original graph, held against it, is still there.
    kept = best(large, "s", seconds=0)[1]
    assert (operators(kept), kept.method) == (["Add", "Linear", "Relu"], "original")


def test_two_transposes_are_none_and_no_cycle_is_a_computation():
    nodes = inputs(node("t", "Transpose", "x", 0, 1, type=Type((16, 8), "float32")))
    nodes += [node("tt", "Transpose", "t", 0, 1), node("r", "Relu", "tt")]
    egraph, found = best(nodes, "r")
    assert egraph.class_of["tt"] == egraph.class_of["x"]
    assert operators(found) == ["Relu"]
    assert found.weight > LAUNCH_US["cuda"]


def test_equal_layers_become_one_kernel_where_one_is_and_unequal_ones_do_not():
    def chain(widths, dtype):
        nodes, last = [Node("x", "Input", ("x",), Type((8, widths[0]), dtype))], "x"
        for n, (a, b) in enumerate(itertools.pairwise(widths)):
            nodes += [
                Node(f"w{n}", "Param", (f"w{n}",), Type((b, a), dtype)),
                Node(f"b{n}", "Param", (f"b{n}",), Type((b,), dtype)),
            ]
            nodes.append(Node(f"l{n}", "Linear", (last, f"w{n}", f"b{n}"), Type((8, b), dtype)))
            last = f"l{n}"
            if n < len(widths) - 2:
                nodes.append(Node(f"r{n}", "Relu", (last,), Type((8, b), dtype)))
                last = f"r{n}"
        return nodes, last

    nodes, last = chain((16, 16, 16), "bfloat16")
    assert operators(best(nodes, last)[1]) == ["Mlp2"]
    assert operators(best(nodes, last, costs=Costs("cpu"))[1]) == ["Linear", "LinearRelu"]
    nodes, last = chain((16, 16, 16, 16), "float16")
    assert operators(best(nodes, last)[1]) == ["Mlp3"]
    for widths, dtype in (((16, 32, 16), "bfloat16"), ((16, 16, 16), "float32"), ((512, 512, 512), "bfloat16")):
        nodes, last = chain(widths, dtype)
        assert operators(best(nodes, last)[1]) == ["Linear", "LinearRelu"]


def test_a_product_without_bias_and_its_bias_become_a_linear_layer_behind_views_too():
    flat, deep = Type((8, 16), "float32"), Type((2, 4, 16), "float32")
    nodes = inputs(node("wt", "Transpose", "w", 0, 1, type=W), node("m", "Mm", "x", "wt", type=flat))
    nodes += [
        node("v", "View", "m", (2, 4, 16), type=deep),
        node("s", "Add", "v", "b", type=deep),
        node("r", "Relu", "s", type=deep),
    ]
    assert operators(best(nodes, "r")[1]) == ["LinearRelu", "View"]


@pytest.mark.parametrize("depth", [1, 3, 64])
def test_a_products_work_grows_with_its_depth(depth):
    out, a, b = (Type(shape, "float32") for shape in ((5, 7), (5, depth), (depth, 7)))
    assert OPERATORS["Mm"].flops(out, a, b) == 2 * 5 * 7 * depth


def test_products_are_reordered_by_their_shapes_only_when_asked():
    shapes = {"a": (512, 4), "b": (4, 512), "c": (512, 4)}
    nodes = [Node(name, "Input", (name,), Type(shape, "float32")) for name, shape in shapes.items()]
    nodes.append(Node("ab", "Mm", ("a", "b"), Type((512, 512), "float32")))
    nodes.append(Node("abc", "Mm", ("ab", "c"), Type((512, 4), "float32")))
    egraph, kept = best(nodes, "abc", costs=Costs("cpu"))
    assert kept.chosen[egraph.class_of["abc"]].arguments[0] == egraph.class_of["ab"]
    egraph, found = best(nodes, "abc", costs=Costs("cpu"), goals=("matmul",))
    assert found.chosen[egraph.class_of["abc"]].arguments[0] == egraph.class_of["a"]
    assert found.weight < kept.weight


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ((1.0, Time(10.0, 11.5, 13.0)), "Linear Relu"),
        ((1.0, Time(10.0, 10.9, 11.0)), "Linear Relu"),
        ((1.0, Time(10.0, 10.2, 10.8)), "LinearRelu"),
        ((10.0, None), "Linear Relu"),  # a roofline is no argument against a measured time
        ((10.0, Time(9.0, 10.0, 11.0)), "LinearRelu"),
        (None, "LinearRelu"),
    ],
)
def test_a_measured_tie_keeps_the_original_and_a_measured_gain_does_not(known, expected):
    """What is known: how much slower the two operators are than 12 µs, and the time of both in one."""
    nodes, measured = inputs(node("l", "Linear", "x", "w", "b"), node("r", "Relu", "l")), {}
    if known is not None:
        slower, fused = known
        apart = {("Linear", X, W, B): Time(9.0, 10.0, 11.0), ("Relu", X): Time(1.9, 2.0, 2.1)}
        for (operator, *arguments), time in apart.items():
            measured[key(operator, arguments, X)] = Time(*(slower * us for us in (time.low, time.estimate, time.high)))
        measured |= {key("LinearRelu", [X, W, B], X): fused} if fused else {}
    assert " ".join(operators(best(nodes, "r", costs=Costs("cuda", measured=measured))[1])) == expected


def test_ceilings_replace_the_stated_defaults():
    nodes = inputs(node("l", "Linear", "x", "w", "b"))
    slow = Costs("cuda", ceilings={("matmul", "float32/ieee", "hot"): 1e6, ("copy", "", "hot"): 1e12})
    assert best(nodes, "l", costs=slow)[1].weight == pytest.approx(2.0 + 2 * 8 * 16 * 16)
    assert best(nodes, "l")[1].weight == pytest.approx(2.0, rel=0.01)
    with pytest.raises(ValueError, match="no costs for 'tpu'"):
        Costs("tpu")


def random_egraph(rng: random.Random) -> tuple[EGraph, dict[tuple[int, ENode], float]]:
    """Eight e-classes, cycles allowed, each with a first way that reads smaller numbers only (the original graph)."""
    classes, cost, original, names = {}, {}, {}, {}
    for number in range(8):
        name = f"n{number}"
        children = tuple(rng.sample(range(number), min(number, rng.choice((0, 1, 2)))))
        ways = [ENode("Opaque", (name, *children))] if number else [ENode("Input", ("x",))]
        for extra in range(rng.choice((0, 1, 2)) if number else 0):
            reads = [child for child in rng.sample(range(8), rng.choice((1, 2))) if child != number]
            ways.append(ENode("Way", (f"{name}.{extra}", *reads)))
        classes[number], names[name], original[name] = ways, number, ways[0]
        cost |= {(number, way): float(rng.randrange(1, 20)) for way in ways}
    return EGraph(classes, names, original, ()), cost


@pytest.mark.parametrize("seed", range(25))
def test_the_program_finds_the_optimum_and_no_cycle(seed, monkeypatch):
    # Ways of an operator unknown to the terms, read as an opaque node's are.
    monkeypatch.setattr(ENode, "children", property(lambda way: way.arguments[1:]))
    egraph, cost = random_egraph(random.Random(seed))
    for number, ways in egraph.classes.items():
        # What stands for a leaf elsewhere is a choice like any other here.
        renamed = [ENode("Way", way.arguments) for way in ways]
        cost |= {(number, new): cost[number, old] for new, old in zip(renamed, ways, strict=True)}
        egraph.classes[number], egraph.original[f"n{number}"] = renamed, renamed[0]
    found = extract(egraph, [7, 6], lambda number, way: cost[number, way])
    ways = {number: [(way, cost[number, way]) for way in own] for number, own in egraph.classes.items()}
    every = (dict(zip(egraph.classes, choice, strict=True)) for choice in itertools.product(*egraph.classes.values()))
    optimum = min(total(choice, [7, 6], ways) for choice in every)
    assert found.weight == pytest.approx(optimum)
    assert found.bound == pytest.approx(optimum)
    assert total(found.chosen, [7, 6], ways) == pytest.approx(optimum)
    assert set(found.chosen) == reachable(found.chosen, [7, 6])
