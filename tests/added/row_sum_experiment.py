"""Row sums by two ways."""

from __future__ import annotations

from hypatia_lab.experiments.plan import Experiment, Group, Shapes
from hypatia_lab.variants import AGAIN, names
from hypatia_lab.workloads import Workload


def _plan(preset: str, device: str, shapes: Shapes) -> list[Group]:
    own = ("eager", "eager" + AGAIN, *names("row_sum"))
    return [Group(Workload("row_sum", shape), own, ("hot",), 0.01) for shape in shapes or [(64, 96)]]


EXPERIMENTS = (Experiment("row_sum", "21_row_sum", "row sums by two ways", "row_sum", _plan),)
