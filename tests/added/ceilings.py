"""Added to ``hypatia_lab/experiments/method.py``: ceilings that take no time."""

from hypatia_lab.experiments.method import EXPERIMENTS
from hypatia_lab.experiments.plan import Experiment, Group
from hypatia_lab.workloads import Workload


def _few(preset, device, shapes):
    works = (Workload("matmul", (512, 512, 512)), Workload("copy", (65536,)), Workload("copy", (4096,)))
    return [Group(work, ("eager",), ("hot",), 0.02) for work in works]


EXPERIMENTS = (Experiment("ceilings", "01_method", "few, for a test", "matmul", _few, processes=1), *EXPERIMENTS[1:])
