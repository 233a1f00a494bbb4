"""Checked and timed in this very process: one observation, in seconds, for whoever tries something out.

Whatever takes the process with it takes the reader's Python with it; a measurement that counts is of fresh processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from hypatia_lab import machine
from hypatia_lab.bench.cells import Case, OwnSession
from hypatia_lab.probes.probe import Ended
from hypatia_lab.workloads import Workload

BUDGET_S = 0.3
"""Time that each variant may take under each clock."""


def cases(workload: Workload, names: Sequence[str], device: str, clocks: Sequence[str]) -> list[Case]:
    """What became of each variant of ``names`` on ``device``: held against float64, then timed by ``clocks``.

    As in a fresh process of a measurement; without clocks they are checked alone.
    """
    group = {"workload": asdict(workload), "variants": list(names), "clocks": list(clocks), "budget_s": BUDGET_S}
    plan = {"device": device, "gpu": machine.gpu_uuid() if device == "cuda" else "", "excluded": {}}
    session = OwnSession(plan | {"groups": [(0, group)]}, lambda event, **fields: None)
    try:
        with session.opened(0, group) as (found, measure):
            measure()
        return list(found)
    except Ended as cause:  # no memory for the inputs, say
        return [Case(name, cause.status, cause.reason) for name in names]
    finally:
        session.close()
