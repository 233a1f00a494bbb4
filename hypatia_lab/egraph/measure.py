"""Costs by the lab's clock: every operator of an e-graph timed once a device, shape and dtype, and kept.

Times lie in the cache folder of the built kernels, one file a device, torch version and number of threads, and by
clock. An interval is a t-interval over the samples of one process: wide enough to keep a tie from deciding, not the
lab's interval over fresh processes, which judges what came of it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hypatia_lab import clock as timer
from hypatia_lab import intervals, machine
from hypatia_lab.egraph.cost import Costs, Time, key, sized
from hypatia_lab.egraph.saturation import EGraph
from hypatia_lab.egraph.terms import OPERATORS, Type
from hypatia_lab.kernels import loader

BUDGET_S = 0.03
"""Time for each operator, beside its warming up."""

SPREAD = 1.25
"""Largest quotient of an interval's ends that is worth keeping: more comes of a busy machine, and is measured again."""

SAFETY = 0.02
"""Share by which an interval is widened: a process, too, is one sample only."""


def cost_file(device: str) -> Path:
    """Where the measured costs of this machine's ``device`` lie."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{machine.cpu_name()}-{torch.get_num_threads()}"
    return loader.cache_folder() / f"costs-{re.sub(r'[^A-Za-z0-9.]+', '-', f'{name}-torch-{torch.__version__}')}.json"


def _section(clock: str) -> str:
    # The same operation takes another time where float32 products may be TF32 ones.
    return f"{clock}, float32 products {torch.get_float32_matmul_precision()}"


def stored(device: str, clock: str = "hot") -> Costs:
    """The costs that were measured on this machine before; a roofline for all else.

    ``clock``: "hot" for a graph that is called (on a GPU the slower of launching and computing), "graph" for one that
    is replayed as a CUDA graph. An unreadable file counts as none. Raises ``ValueError`` for another device.
    """
    found: dict[str, Time] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        kept = json.loads(cost_file(device).read_text(encoding="utf-8")).get(_section(clock), {})
        found = {name: Time(*map(float, times)) for name, times in kept.items()}
    return Costs(device, measured=found, clock=clock)


def _store(costs: Costs, fresh: Mapping[str, Time]) -> None:
    path = cost_file(costs.device)
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    times = {name: [time.low, time.estimate, time.high] for name, time in fresh.items()}
    kept[_section(costs.clock)] = kept.get(_section(costs.clock), {}) | times
    loader.store(path, json.dumps(kept, indent=0, sort_keys=True).encode())


def measure(costs: Costs, egraph: EGraph, seconds: float = 20.0) -> Costs:
    """``costs`` with every operator of the e-graph measured that is not yet, within about ``seconds``.

    What is new, and not too uncertain, is stored. Nothing is measured where there is no choice.
    """
    if not any(len(ways) > 1 for ways in egraph.classes.values()):
        return costs
    wanted: dict[str, tuple[Any, ...]] = {}
    for number, ways in egraph.classes.items():
        out = egraph.types.get(number)
        for way in ways:
            if out is None or way.operator not in OPERATORS or any(c not in egraph.types for c in way.children):
                continue
            operator, arguments = OPERATORS[way.operator], sized(egraph, way)
            name = key(way.operator, arguments, out)
            possible = operator.kernels(costs.device) and not operator.missing(costs.device, *arguments)
            if possible and name not in costs.measured and costs.time(egraph, number, way) is not None:
                wanted[name] = (operator, arguments)
    if not wanted:
        return costs
    tensors: dict[Type, torch.Tensor] = {}

    def value(sort: str, argument: Any) -> Any:
        if sort != "T" or argument is None:
            return argument
        if argument not in tensors:
            tensors[argument] = torch.randn(argument.shape, device=costs.device).to(getattr(torch, argument.dtype))
        return tensors[argument]

    def bound(operator: Any, arguments: tuple[Any, ...]) -> Any:
        values = [value(sort, argument) for sort, argument in zip(operator.sorts, arguments, strict=True)]
        given, keywords = operator.arguments(*values), operator.keywords(*values)
        return lambda: operator.target(*given, **keywords)

    with torch.no_grad():
        runs = {name: bound(*what) for name, what in wanted.items()}
        budget_s = min(BUDGET_S, seconds / len(runs))
        timings = timer.measure(runs, costs.clock, costs.device, budget_s=budget_s)
    fresh: dict[str, Time] = {}
    for name, timing in timings.items():
        if isinstance(timing, timer.Timing) and len(timing.samples_us) > 1:
            found = intervals.geometric(timing.samples_us)
            fresh[name] = Time(found.low * (1 - SAFETY), found.value, found.high * (1 + SAFETY))
    _store(costs, {name: time for name, time in fresh.items() if time.high <= SPREAD * time.low})
    return replace(costs, measured={**costs.measured, **fresh})
