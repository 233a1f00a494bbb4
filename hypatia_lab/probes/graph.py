"""Probe ``graph``: how long optimizing an MLP's graph takes, stage by stage, and what becomes of its nodes.

Run as a process by :mod:`hypatia_lab.bench.sessions`. Capturing (torch.export) is timed apart. The first way from
graph to module loads egglog and scipy, too; the stages are those of the fastest of three ways after it.
The costs are the roofline's: nothing is measured, so the stages are the optimizer's own. What comes out is checked.
"""

from __future__ import annotations

import time

from hypatia_lab import check
from hypatia_lab.probes.probe import Emit, Ended, Subject, probe

STAGES = ("read", "saturate", "extract", "rebuild")
"""The way from the captured graph to the rebuilt module, in order."""
REPEATS = 3


def look(subject: Subject, emit: Emit) -> None:
    """Emit times in ms and counts of nodes. Raises :class:`Ended` when the rewritten module is wrong."""
    import torch

    from hypatia_lab.egraph import Costs, rewrite_graph
    from hypatia_lab.egraph.variants import module_of

    problem = subject.problem()
    module, x = module_of(problem.inputs), problem.inputs["x"]

    def tell(name: str, value: float, unit: str = "ms") -> None:
        emit("detail", topic="graph", name=name, unit=unit, value=value, count=1)

    start = time.perf_counter()
    captured = torch.export.export(module, (x,)).module()
    tell("capture", 1e3 * (time.perf_counter() - start))
    found, totals = [], []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        found.append(rewrite_graph(captured, costs=Costs(subject.device)))
        totals.append(1e3 * (time.perf_counter() - start))
    best = min(range(1, 1 + REPEATS), key=totals.__getitem__)
    result = found[best]
    checked = check.check(lambda: result(x), problem)
    if not checked.ok:
        raise Ended("wrong", checked.reason)
    tell("graph to module, first", totals[0])
    tell("graph to module", totals[best])
    for name in STAGES:
        tell(name, 1e3 * result.report.seconds[name])
    tell("nodes before", result.report.nodes_before, "1")
    tell("nodes after", result.report.nodes_after, "1")
    tell("largest gap to the optimum", 100 * result.report.gap, "%")


if __name__ == "__main__":
    probe(look)
