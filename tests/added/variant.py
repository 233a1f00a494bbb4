"""Added to ``hypatia_lab/operations/linear_relu.py``: two variants."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional

from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


@variant("linear_relu", "by_halves", origin="own", label="two products of half the rows")
def by_halves(workload: Workload, inputs: Inputs) -> Run:
    """The batch cut in two, a product and a ReLU for each half."""
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    return lambda: torch.cat([functional.linear(half, weight, bias).relu() for half in x.split(-(-len(x) // 2))])


@variant("linear_relu", "step_by_halves", origin="own", tags=("ladder_cpu",))
def step_by_halves(workload: Workload, inputs: Inputs) -> Run:
    """The same as a step of the ladder."""
    return by_halves(workload, inputs)
