"""Extraction: one way for every e-class that is needed, so that what is shared is computed, and counted, once.

The sum over a *tree* of terms doubles with every residual block and duplicates what two terms read; here a selection's
cost is the sum over its distinct e-classes. Three candidates, the cheapest wins and the original wins a tie: the
original graph, a greedy selection, and an integer linear program within a time limit, whose dual bound states how far
from the optimum the winner can be at most.

Greedy: every e-class keeps the e-classes that its best way so far needs, with their costs, as the extraction gym's
greedy DAG extractors do. Program: Y. Yang et al., Equality Saturation for Tensor Graph Superoptimization (TENSAT,
2021), with an order of the e-classes against cycles, which only e-classes on a cycle need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from hypatia_lab.egraph.saturation import EGraph, ENode
from hypatia_lab.egraph.terms import LEAVES

Ways = dict[int, list[tuple[ENode, float]]]
"""E-class → its ways with their weights."""

LARGEST = 50_000
"""Ways beyond which the program is not tried."""


@dataclass(frozen=True)
class Extraction:
    """The winner: ``chosen`` e-node of every needed e-class, its ``weight``, a lower ``bound`` of any selection's
    weight, and the ``method`` that found it (original, greedy or program)."""

    chosen: dict[int, ENode]
    weight: float
    bound: float
    method: str

    @property
    def gap(self) -> float:
        """Largest possible excess over the optimum, as a share of the weight; 0 where the optimum is proved."""
        return max(0.0, 1 - self.bound / self.weight) if self.weight > 0 else 0.0


def extract(
    egraph: EGraph,
    roots: Iterable[int],
    weight: Callable[[int, ENode], float | None],
    *,
    seconds: float = 1.0,
) -> Extraction:
    """The cheapest selection found for ``roots`` (e-classes). ``seconds`` limits the program; 0 leaves it out."""
    wanted = sorted(set(roots))
    original = _original(egraph)
    ways, order = _ways(egraph, wanted, weight)
    candidates = [("original", original), ("greedy", _greedy(ways, order))]
    bound, lean = 0.0, {number: _undominated(own) for number, own in ways.items()}
    if all(len(own) == 1 for own in lean.values()):
        candidates.append(("greedy", {number: own[0][0] for number, own in lean.items()}))
        bound = total(candidates[-1][1], wanted, ways)
    elif seconds > 0 and sum(map(len, lean.values())) <= LARGEST:
        solution, bound = _program(lean, wanted, seconds)
        if solution is not None:
            candidates.append(("program", solution))
    best = min(candidates, key=lambda candidate: total(candidate[1], wanted, ways))
    cost = total(best[1], wanted, ways)
    needed = reachable(best[1], wanted)
    return Extraction({number: best[1][number] for number in needed}, cost, min(bound, cost), best[0])


def _original(egraph: EGraph) -> dict[int, ENode]:
    # Of several nodes in an e-class the first: it reads earlier ones only, so the selection has no cycle.
    chosen: dict[int, ENode] = {}
    for name, way in egraph.original.items():
        chosen.setdefault(egraph.class_of[name], way)
    for number, ways in egraph.classes.items():
        if any(way.operator == "Absent" for way in ways):
            chosen[number] = ENode("Absent", ())
    return chosen


def _ways(egraph: EGraph, roots: list[int], weight: Callable[[int, ENode], float | None]) -> tuple[Ways, list[int]]:
    """Ways with weights of every e-class that any selection could need, and an order, arguments mostly first."""
    ways: Ways = {}
    order: list[int] = []
    stack: list[tuple[int, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        number, done = stack.pop()
        if done:
            order.append(number)
            continue
        if number in ways:
            continue
        own = [(way, cost) for way in egraph.classes[number] if (cost := weight(number, way)) is not None]
        # Any way to compute a leaf would need the leaf.
        leaves = [(way, cost) for way, cost in own if way.operator in LEAVES]
        ways[number] = leaves or own
        stack.append((number, True))
        stack += [(child, False) for way, _ in ways[number] for child in way.children if child not in ways]
    return ways, order


def _undominated(own: list[tuple[ENode, float]]) -> list[tuple[ENode, float]]:
    """Of the ways that read the same e-classes the cheapest (the first, of equals): no selection is worse for it."""
    best: dict[frozenset[int], tuple[ENode, float]] = {}
    for way, cost in own:
        reads = frozenset(way.children)
        if reads not in best or cost < best[reads][1]:
            best[reads] = way, cost
    return list(best.values())


def reachable(chosen: Mapping[int, ENode], roots: Iterable[int]) -> set[int]:
    """E-classes that a selection needs for ``roots``."""
    todo, found = list(roots), set()
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            todo += chosen[number].children
    return found


def total(chosen: Mapping[int, ENode], roots: Iterable[int], ways: Ways) -> float:
    """Weight of a selection, every e-class once; infinite where it is incomplete, impossible or has a cycle."""
    try:
        reads = {number: chosen[number].children for number in reachable(chosen, roots)}
        TopologicalSorter(reads).prepare()
        return math.fsum(dict(ways[number])[chosen[number]] for number in reads)
    except (KeyError, CycleError):
        return math.inf


def _greedy(ways: Ways, order: list[int]) -> dict[int, ENode]:
    best: dict[int, tuple[ENode, float, dict[int, float]]] = {}
    for _ in order:
        changed = False
        for number in order:
            for way, cost in ways[number]:
                if any(child not in best for child in way.children):
                    continue
                needed: dict[int, float] = {}
                for child in way.children:
                    needed |= best[child][2]
                if number in needed:
                    continue
                needed[number] = cost
                weight = sum(needed.values())
                if number not in best or weight < best[number][1] * (1 - 1e-12):
                    best[number] = way, weight, needed
                    changed = True
        if not changed:
            break
    return {number: way for number, (way, _, _) in best.items()}


def _cyclic(ways: Ways) -> dict[int, int]:
    """E-classes on a cycle of the e-graph → number of their strongly connected component."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    index = {number: position for position, number in enumerate(ways)}
    edges = [(index[n], index[child]) for n, own in ways.items() for way, _ in own for child in way.children]
    if not edges:
        return {}
    rows, columns = zip(*edges, strict=True)
    matrix = csr_matrix((np.ones(len(edges)), (rows, columns)), shape=(len(index), len(index)))
    _, labels = connected_components(matrix, directed=True, connection="strong")
    sizes = np.bincount(labels)
    return {number: int(labels[position]) for number, position in index.items() if sizes[labels[position]] > 1}


def _program(ways: Ways, roots: list[int], seconds: float) -> tuple[dict[int, ENode] | None, float]:
    """The program's selection (None where none was found in time) and its lower bound."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    variables = [(number, way, cost) for number, own in ways.items() for way, cost in own]
    of: dict[int, list[int]] = {}
    for position, (number, _, _) in enumerate(variables):
        of.setdefault(number, []).append(position)
    cyclic = _cyclic(ways)
    rank = {number: len(variables) + position for position, number in enumerate(cyclic)}
    rows: list[dict[int, float]] = []
    low: list[float] = []
    for root in roots:
        rows.append(dict.fromkeys(of[root], 1.0))
        low.append(1.0)
    for position, (number, way, _) in enumerate(variables):
        for child in dict.fromkeys(way.children):
            rows.append(dict.fromkeys(of[child], 1.0) | {position: -1.0})
            low.append(0.0)
            if number in rank and child in rank and cyclic[number] == cyclic[child]:
                # Chosen: a rank at least one above the argument's. Not chosen: no constraint.
                size = float(len(cyclic))
                rows.append({rank[number]: 1.0, rank[child]: -1.0, position: -size - 1})
                low.append(-size)
    # scipy's stubs know scalar bounds only.
    upper: Any = np.array([1.0] * len(variables) + [float(len(cyclic))] * len(rank))
    lower: Any = np.array(low)
    data = [(r, c, value) for r, row in enumerate(rows) for c, value in row.items()]
    row_of, column_of, values = zip(*data, strict=True)
    count = len(variables) + len(rank)
    solved = milp(
        np.array([cost for _, _, cost in variables] + [0.0] * len(rank)),
        constraints=LinearConstraint(csr_matrix((values, (row_of, column_of)), shape=(len(rows), count)), lb=lower),
        integrality=np.array([1] * len(variables) + [0] * len(rank)),
        bounds=Bounds(0, upper),
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    bound = solved.mip_dual_bound if solved.mip_dual_bound is not None else 0.0
    if solved.x is None:
        return None, bound
    chosen: dict[int, ENode] = {}
    for position, (number, way, _) in enumerate(variables):
        if solved.x[position] > 0.5 and number not in chosen:
            chosen[number] = way
    return chosen, bound
