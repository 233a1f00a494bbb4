"""The experiments: which workloads, variants and clocks answer which question, at which preset."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from hypatia_lab.experiments.plan import PRESETS, PROCESSES, Experiment, Group, Probe, Source
from hypatia_lab.variants import load

__all__ = ["EXPERIMENTS", "PRESETS", "PROCESSES", "Experiment", "Group", "Probe", "Source"]

load()  # what the plans name
_found = [
    experiment
    for module in iter_modules(__path__)
    for experiment in getattr(import_module(f"{__name__}.{module.name}"), "EXPERIMENTS", ())
]
EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in sorted(_found, key=lambda one: one.notebook)}
"""Name → experiment, of every module here that has some, in the order of their notebooks."""
