"""What an experiment is: groups of interleaved variants, probes, and the question they answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hypatia_lab import variants
from hypatia_lab.clock import CLOCKS
from hypatia_lab.messages import unknown
from hypatia_lab.probes import accuracy, caches, counters
from hypatia_lab.workloads import Workload, operations

VERSIONS = {
    1: "2026-11-28: at least 5 processes (quick, seed) or 12 (full), and more until ratios are known well enough; "
    "two processes that find the same wrong are enough",
}
"""What changed how often and in which order things are measured, and since when. What is measured a record says."""
VERSION = max(VERSIONS)

PRESETS = ("quick", "seed", "full")
PROCESSES = {"quick": 5, "seed": 5, "full": 12}
"""Fresh processes behind every interval, at least."""
FOR_GOALS = 8
"""And where the lab's own kernels are held against a goal, beyond the quick preset."""
MOST = {"quick": 7, "seed": 12, "full": 20}
"""And at most, of those workloads whose ratios are not known well enough by then. To stop at a width costs an interval
little of its coverage: 94.0 to 95.1% of simulated ones hold the truth, whatever the scatter."""
MORE_S = {"quick": 3.0, "seed": 60.0, "full": 300.0}
"""No further process of an experiment is begun so long (s) after those that are due."""
LATEST_S = {"quick": 60.0, "seed": 240.0, "full": 3600.0}
"""Nor so long after the first one's start: a notebook of the seeds' preset is to take a GPU five minutes."""

Shapes = Sequence[tuple[int, ...]]
"""Shapes that replace a preset's own; empty: the preset's."""


CASES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("trace", "process", "graph", "oracle", "training", "choice"), ("",)),
    "start": caches.CASES,
    "accuracy": accuracy.CASES,
    "counters": tuple(counters.CASES),
}
"""Topic of a probe → its cases. Those of topic ``program`` are its file's own."""


class PlanError(ValueError):
    """A plan that cannot be measured as asked: the message says where, what is wrong with it and what would do."""


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
    """A look at one variant that no clock gives: ``processes`` fresh processes of ``probes.<topic>``.

    ``topic``: start (every stage and call of a fresh process), trace (kernels), accuracy (error measures), process
    (a whole program), program (a command of a program from outside), counters (bytes that a call moves), graph
    (optimizing a model's graph), oracle (the lab's clock beside another timer) or training (losses of 200 steps).
    ``case`` says which of several ways, such as which caches are warm.
    """

    topic: str
    workload: Workload
    variant: str
    case: str = ""
    processes: int = 3


@dataclass(frozen=True)
class Source:
    """A reader's file: its path, and the digest of its text as it was planned.

    ``kind``: own (it registers an operation), program (it runs programs from outside, and says whose in
    ``provenance``, in the form of a record) or the name of a public format, of whose ``problem`` it is a candidate.
    """

    path: str
    digest: str
    kind: str = "own"
    provenance: tuple[dict[str, Any], ...] = ()
    problem: str = ""

    @property
    def guarded(self) -> bool:
        """Whether the file is kept apart from what measures it (:mod:`hypatia_lab.judged`), which takes Linux."""
        return self.kind != "program" and sys.platform.startswith("linux")


@dataclass(frozen=True)
class Experiment:
    """A question: its notebook, one line on it, and the plan that answers it.

    ``plan(preset, device, shapes)`` lists the groups; ``shapes`` replaces the preset's shapes of the
    experiment's ``operation`` when given. ``probes`` lists the probes in the same way. ``source`` is the reader's file
    that each fresh process imports first; None for the lab's own experiments. ``processes``: so many fresh ones
    whatever the preset, and none added; 0 where the preset says how many. ``least``: at least so many beyond the quick
    preset. ``within_s``: to what the preset says processes are added for so long (s) from the first one's start.
    """

    name: str
    notebook: str
    summary: str
    operation: str
    plan: Callable[[str, str, Shapes], list[Group]] = lambda preset, device, shapes: []
    probes: Callable[[str, str, Shapes], list[Probe]] = lambda preset, device, shapes: []
    source: Source | None = None
    processes: int = 0
    least: int = 0
    within_s: float = 0.0

    @property
    def dims(self) -> tuple[str, ...]:
        """What the extents of its shapes are; none where it has no shapes to replace."""
        return operations()[self.operation].dims if self.operation else ()

    def fitting(self, shapes: Shapes) -> list[tuple[int, ...]]:
        """Those of ``shapes`` that have its number of extents; a page may have experiments of several operations."""
        return [shape for shape in shapes if len(shape) == len(self.dims)]

    def only(self, names: Collection[str]) -> Experiment:
        """The same plan of the variants ``names`` alone, each beside the baseline that it is compared with."""

        def kept(group: Group) -> Group:
            known = variants.variants(group.workload.operation)
            baselines = {name for name, one in known.items() if one.baseline}
            return replace(group, variants=tuple(name for name in group.variants if name in {*names, *baselines}))

        def plan(preset: str, device: str, shapes: Shapes) -> list[Group]:
            return [kept(group) for group in self.plan(preset, device, shapes) if {*names} & {*group.variants}]

        def probes(preset: str, device: str, shapes: Shapes) -> list[Probe]:
            return [probe for probe in self.probes(preset, device, shapes) if probe.variant in names]

        return replace(self, plan=plan, probes=probes)

    def groups(self, preset: str, device: str, shapes: Shapes = ()) -> list[Group]:
        """The groups of ``plan``, once every name in them and in ``probes`` is found to be known.

        Raises :class:`PlanError` for an unknown one, for a shape that has not the operation's extents, and for what
        would be timed twice.
        """
        for shape in shapes:
            if not self.fitting([shape]):
                told = f"shape {'x'.join(map(str, shape))} does not fit {self.name}"
                raise PlanError(f"{told}: its shapes are {' x '.join(self.dims)}")
        groups, probes = self.plan(preset, device, shapes), self.probes(preset, device, shapes)
        named = [(group.workload, name) for group in groups for name in group.variants]
        named += [(probe.workload, probe.variant) for probe in probes if probe.topic != "program"]
        for work, name in named:
            there = variants.variants(work.operation)
            self._ensure_known("variant", name.removesuffix(variants.AGAIN), there, work.operation)
        for clock in (clock for group in groups for clock in group.clocks):
            self._ensure_known("clock", clock, CLOCKS)
        self._ensure_once(groups)
        for probe in probes:
            self._ensure_known("topic", probe.topic, (*CASES, "program"))
            if probe.topic in CASES:
                self._ensure_known("case", probe.case, CASES[probe.topic], probe.topic)
        return groups

    def _ensure_once(self, groups: Sequence[Group]) -> None:
        """Raise :class:`PlanError` for what two groups would time, which no record takes."""
        seen: set[tuple[Workload, str, str]] = set()
        for group in groups:
            for cell in product((group.workload,), group.variants, group.clocks or ("none",)):
                if cell in seen:
                    work, name, clock = cell
                    told = f"{name} at {work.shape_text} by the {clock} clock is in two groups, or twice in one"
                    raise PlanError(f"{self.source.path if self.source else self.name}: {told}; name it once")
                seen.add(cell)

    def _ensure_known(self, what: str, name: str, known: Collection[str], of: str = "") -> None:
        if name not in known:
            raise PlanError(f"{self.source.path if self.source else self.name}: {unknown(what, name, known, of)}")
