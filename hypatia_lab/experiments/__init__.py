"""The experiments: which workloads, variants and clocks answer which question, at which preset."""

from __future__ import annotations

from hypatia_lab.experiments import conv_block, diffraction, graph_optimizer, linear_relu, method, torch_compile
from hypatia_lab.experiments.plan import PRESETS, PROCESSES, Experiment, Group, Probe, Source

__all__ = ["EXPERIMENTS", "PRESETS", "PROCESSES", "Experiment", "Group", "Probe", "Source"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for module in (method, linear_relu, diffraction, conv_block, torch_compile, graph_optimizer)
    for experiment in module.EXPERIMENTS
}
"""Name → experiment; those of one notebook stand together."""
