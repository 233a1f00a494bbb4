"""Equality saturation over torch.fx graphs: rules that passed a gate, costs with intervals, extraction with a gap.

    capture → terms → saturation → extraction → graph → comparison, log

:func:`optimize` goes the whole way. Source of the idea: S004 (an e-graph that turns Linear, ReLU into one node); here
every rule is tested before it is believed, shared results are counted once, and parameters are shared, not copied.
"""

from hypatia_lab.egraph.cost import Costs, Time
from hypatia_lab.egraph.gate import Verdict, admit, examine
from hypatia_lab.egraph.module import Optimized, Report, Rewrite
from hypatia_lab.egraph.optimize import Unchanged, optimize, rewrite_graph
from hypatia_lab.egraph.rules import DEFAULT, GOALS, Grade, Rule

__all__ = [
    "DEFAULT",
    "GOALS",
    "Costs",
    "Grade",
    "Optimized",
    "Report",
    "Rewrite",
    "Rule",
    "Time",
    "Unchanged",
    "Verdict",
    "admit",
    "examine",
    "optimize",
    "rewrite_graph",
]
