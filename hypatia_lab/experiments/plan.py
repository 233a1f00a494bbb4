"""What an experiment is: groups of interleaved variants, probes, and the question they answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab.workloads import Workload

PRESETS = ("quick", "seed", "full")
PROCESSES = {"quick": 2, "seed": 8, "full": 12}
"""Fresh processes behind every interval."""

Shapes = Sequence[tuple[int, ...]]
"""Shapes that replace a preset's own; empty: the preset's."""


@dataclass(frozen=True)
class Group:
    """Variants that are interleaved on one workload: each is checked, then timed under every clock.

    ``budget_s`` is the time each variant may take under each clock in one process. No clock: checked only.
    """

    workload: Workload
    variants: tuple[str, ...]
    clocks: tuple[str, ...]
    budget_s: float


@dataclass(frozen=True)
class Probe:
    """A look at one variant that no clock gives: ``processes`` fresh processes of ``profiler.<topic>``.

    ``topic``: start (every stage and call of a fresh process), trace (kernels), accuracy (error measures), process
    (a whole program), program (a command of a program from outside), counters (bytes that a call moves), graph
    (optimizing a model's graph) or oracle (the lab's clock beside another timer). ``case`` says which of several ways,
    such as which caches are warm.
    """

    topic: str
    workload: Workload
    variant: str
    case: str = ""
    processes: int = 3


@dataclass(frozen=True)
class Source:
    """A reader's file: its path, and the digest of its text as it was planned.

    ``kind``: own (it registers an operation) or program (it runs programs from outside, and says whose in
    ``provenance``, in the form of a record).
    """

    path: str
    digest: str
    kind: str = "own"
    provenance: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A question: its notebook, one line on it, and the plan that answers it.

    ``plan(preset, device, shapes)`` lists the groups; ``shapes`` replaces the preset's shapes of the
    experiment's ``operation`` when given. ``probes`` lists the probes in the same way. ``source`` is the reader's file
    that each fresh process imports first; None for the lab's own experiments.
    """

    name: str
    notebook: str
    summary: str
    operation: str
    plan: Callable[[str, str, Shapes], list[Group]] = lambda preset, device, shapes: []
    probes: Callable[[str, str, Shapes], list[Probe]] = lambda preset, device, shapes: []
    source: Source | None = None


def dtypes(device: str) -> list[tuple[str, str]]:
    """dtype and math that are timed on ``device``."""
    found = [("float32", "ieee"), ("bfloat16", "ieee")]
    return [found[0], ("float32", "tf32"), found[1]] if device == "cuda" else found


def cpu_clocks(preset: str) -> tuple[str, ...]:
    """Clocks of a CPU: the cold cache is worth its time beyond the quick preset."""
    return ("hot",) if preset == "quick" else ("hot", "cold")


def asked(preset: str, device: str, *compilers: str) -> tuple[str, ...]:
    """``compilers`` where a page is not about them: none in the quick preset of a CPU, where each costs every process
    several seconds."""
    return () if (preset, device) == ("quick", "cpu") else compilers
