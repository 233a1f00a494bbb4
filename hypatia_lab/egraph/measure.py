"""Costs by the lab's clock: every operator of an e-graph timed once a device, shape and dtype, and kept.

Times lie in the cache folder of the built kernels, one file a device, torch version and number of threads, by clock and
by passes. An interval is a t-interval over the samples of one process: wide enough to keep a tie from deciding, not the
lab's interval over fresh processes, which judges what came of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from hypatia_lab import clock as timer
from hypatia_lab import intervals, machine
from hypatia_lab.egraph.cost import Application, Costs, Time, key
from hypatia_lab.egraph.saturation import EGraph
from hypatia_lab.egraph.terms import Type
from hypatia_lab.kernels import loader

BUDGET_S = 0.03
"""Time for each operator, beside its warming up."""

SPREAD = 1.25
"""Largest quotient of an interval's ends that is worth keeping: more comes of a busy machine, and is measured again."""

SAFETY = 0.02
"""Share by which an interval is widened: a process, too, is one sample only."""


RACE_S = 0.25
"""Time for each whole graph: too little of it, and a real gain of a tenth looks like a tie."""

TIE = 0.01
"""Share by which a whole graph must be faster to replace the original: in one process, graphs that are identical differ
by nearly as much."""


def cost_file(device: str) -> Path:
    """Where the measured costs of this machine's ``device`` lie."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{machine.cpu_name()}-{torch.get_num_threads()}"
    return loader.cache_folder() / f"costs-{re.sub(r'[^A-Za-z0-9.]+', '-', f'{name}-torch-{torch.__version__}')}.json"


def _section(costs: Costs) -> str:
    # The same operation takes another time where float32 products may be TF32 ones.
    passes = ", forward and backward" * costs.training
    return f"{costs.clock}{passes}, float32 products {torch.get_float32_matmul_precision()}"


def stored(device: str, clock: str = "hot", training: bool = False) -> Costs:
    """The costs that were measured on this machine before; a roofline for all else.

    ``clock``: "hot" for a graph that is called (on a GPU the slower of launching and computing), "graph" for one that
    is replayed as a CUDA graph. ``training``: of both passes. An unreadable file counts as none. Raises ``ValueError``
    for another device.
    """
    none, found = Costs(device, clock=clock, training=training), dict[str, Time]()
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        kept = _kept(device).get(_section(none), {})
        found = {name: Time(*map(float, times)) for name, times in kept.items()}
    return replace(none, measured=found)


def _kept(device: str) -> dict[str, Any]:
    try:
        return json.loads(cost_file(device).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _store(costs: Costs, fresh: Mapping[str, Time]) -> None:
    kept, section = _kept(costs.device), _section(costs)
    times = {name: [time.low, time.estimate, time.high] for name, time in fresh.items()}
    kept[section] = kept.get(section, {}) | times
    loader.store(cost_file(costs.device), json.dumps(kept, indent=0, sort_keys=True).encode())


def measure(costs: Costs, egraph: EGraph, seconds: float = 20.0) -> Costs:
    """``costs`` with every operator of the e-graph measured that is not yet, within about ``seconds``.

    What is new, and not too uncertain, is stored. Nothing is measured where there is no choice.
    """
    if not any(len(ways) > 1 for ways in egraph.classes.values()):
        return costs
    ways = [(number, way) for number, own in egraph.classes.items() for way in own]
    applied = [one for number, way in ways if (one := costs.application(egraph, number, way)) and one.operator.kernels]
    wanted = {key(one.operator.name, one.arguments, one.out): one for one in applied}
    wanted = {name: one for name, one in wanted.items() if name not in costs.measured}
    if not wanted:
        return costs

    @cache
    def tensor(kind: Type, wants: bool, place: int) -> torch.Tensor:
        drawn = torch.randn(kind.shape, device=costs.device).to(getattr(torch, kind.dtype))
        return drawn.requires_grad_(wants and drawn.is_floating_point())

    def bound(one: Application) -> Callable[[], Any]:
        places = count()  # of two tensors that are one, something else would be timed

        def operand(kind: Type | None) -> torch.Tensor | None:
            place = next(places)
            wants = costs.training and place not in one.operator.constants
            return None if kind is None else tensor(kind, wants, place)

        given, keywords = one.operator.call(*one.operator.each(one.arguments, operand))
        return _passes(lambda: one.operator.target(*given, **keywords), tree_leaves((given, keywords)))

    with torch.set_grad_enabled(costs.training):
        runs = {name: bound(one) for name, one in wanted.items()}
        budget_s = min(BUDGET_S, seconds / len(runs))
        timings = timer.measure(runs, costs.clock, costs.device, budget_s=budget_s)
    fresh = {name: time for name, timing in timings.items() if (time := _time(timing)) is not None}
    _store(costs, {name: time for name, time in fresh.items() if time.high <= SPREAD * time.low})
    return replace(costs, measured={**costs.measured, **fresh})


def _passes(forward: Callable[[], Any], tensors: Sequence[Any]) -> Callable[[], Any]:
    """``forward``, and where autograd is on the gradients of those ``tensors`` that want one, which are not kept."""
    leaves = [one for one in tensors if isinstance(one, torch.Tensor) and one.requires_grad]
    given: list[torch.Tensor] = []

    def run() -> Any:
        result = forward()
        ends = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
        if not (leaves and ends):
            return result
        given.extend(torch.ones_like(one) for one in ends[len(given) :])  # made once: that is not timed
        torch.autograd.grad(ends, leaves, given, allow_unused=True)
        return None

    return run


def race(
    original: fx.GraphModule, rewritten: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any], costs: Costs
) -> dict[str, float]:
    """µs a call of both graphs as a whole, by the clock of ``costs``, turn about; ``rewritten`` is left out where it is
    not faster beyond the interval and :data:`TIE`. Empty where one of them cannot be timed.

    The interval is that of the quotient of samples taken next to each other: a host that is slow for a while is slow
    for both. A sum of costs knows nothing of what one operation leaves in the caches for the next, or of the host that
    launches. What was timed before, on tensors of these shapes, is not timed again.
    """
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    given += [*original.parameters(), *original.buffers()]
    graphs = {"original": original, "rewritten": rewritten}
    runs = {name: _passes(partial(graph, *args, **kwargs), given) for name, graph in graphs.items()}
    tensors = [(tuple(t.shape), str(t.dtype), costs.training and t.requires_grad) for t in given]
    both = hashlib.sha256(f"{original.code}{rewritten.code}{tensors}".encode()).hexdigest()[:16]
    names = {name: f"whole {both} {name}" for name in runs}
    times = {name: costs.measured[key] for name, key in names.items() if key in costs.measured}
    if len(times) < len(runs):
        samples: dict[str, list[float]] = {}
        for passes in (True, False) if costs.training else (False,):  # not everything has a backward pass
            with torch.set_grad_enabled(passes):
                timings = timer.measure(runs, costs.clock, costs.device, budget_s=RACE_S)
            samples = {name: timing.samples_us for name, timing in timings.items() if isinstance(timing, timer.Timing)}
            if all(len(samples.get(name, ())) > 1 for name in runs):
                break
        else:
            return {}
        whole = intervals.geometric(samples["original"]).value
        share = intervals.ratio(samples["rewritten"], samples["original"])
        ends = (whole * share.low, whole * share.value, whole * share.high)
        times = {"original": Time(whole, whole, whole), "rewritten": Time(*ends)}
        if all(time.high <= SPREAD * time.low for time in times.values()):
            _store(costs, {names[name]: time for name, time in times.items()})
    if not times["rewritten"].high * (1 + TIE) < times["original"].estimate:
        del times["rewritten"]
    return {name: time.estimate for name, time in times.items()}


def _time(timing: timer.Timing | timer.ClockError) -> Time | None:
    if not isinstance(timing, timer.Timing) or len(timing.samples_us) < 2:
        return None
    found = intervals.geometric(timing.samples_us)
    return Time(found.low * (1 - SAFETY), found.value, found.high * (1 + SAFETY))
