"""Who of several forms is the quickest: one of the lab's only where that is sure.

It has to be faster than the quickest of the library's by more than :data:`MARGIN`, and again, at the end of its
interval, in a race with it and with eager. Else the choice is the library's: eager, or another that was quicker at
first and surely in that race.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hypatia_lab import clock as timer
from hypatia_lab import intervals

Runs = Mapping[str, Callable[[], Any]]
"""Name of a form → a call of it."""
Samples = Mapping[str, Sequence[float]]
"""Name of a form → µs a call, taken turn about."""

MARGIN = intervals.EQUIVALENCE
"""Share by which a form of the lab's must be significantly faster than the library's to be chosen."""
BUDGET_S, RACE_S = 0.02, 0.06
"""Time of each candidate beside its warming up, and of those that race to be sure."""
LIBRARY = ("eager", "epilogue", "group_norm")
"""Forms of PyTorch's that stand for the library."""


def winner(runs: Runs, clock: str, device: str, first: Samples | None = None) -> str:
    """The name of the choice among ``runs`` by ``clock``, of which ``first`` may be known; see the module."""
    name, rival = quickest(timed(runs, clock, device, BUDGET_S) if first is None else first)
    racing = {one: runs[one] for one in dict.fromkeys(("eager", rival or name, name)) if one in runs}
    return confirmed(name, rival, timed(racing, clock, device, RACE_S)) if name != "eager" else name


def winner_in_training(runs: Runs, device: str) -> str:
    """The choice for a caller who waits for whole training steps, among ``runs`` of both passes of one layer.

    Layers of a step follow each other without a wait, so calls are timed back to back. Whether a step takes as long as
    the host or as long as the GPU depends on the model, and the host's time in a race of one layer is noisy. So where
    that is not sure of a form of the lab's, the GPU's time decides, which is known to a per cent, among those that are
    not surely slower back to back by more than :data:`MARGIN`.
    """
    runs = {name: partial(_forgotten, run) for name, run in runs.items()}
    chosen = winner(runs, "hot", device)
    if chosen not in LIBRARY or device != "cuda":
        return chosen
    hot = timed(runs, "hot", device, RACE_S)
    left = {name: runs[name] for name in hot if name == chosen or not gain(hot[name], hot.get(chosen, ())) > MARGIN}
    first = timed(left, "graph", device, BUDGET_S)
    return winner(left, "graph", device, first) if chosen in first else chosen


def quickest(samples: Samples) -> tuple[str, str]:
    """The quickest form by ``samples``, and the library's that it has to beat in a race.

    The latter is empty where the library's quickest is the choice: where the quickest of the lab's is not ahead by more
    than :data:`MARGIN`. These are means of few samples; the race tells whether that is sure.
    """
    means = {name: intervals.geometric(own).value for name, own in samples.items()}
    library = min((name for name in LIBRARY if name in samples), key=means.__getitem__, default="")
    own = min((name for name in samples if name not in LIBRARY), key=means.__getitem__, default="")
    if not (library and own) or means[library] <= (1 + MARGIN) * means[own]:
        return library or "eager", ""
    return own, library


def confirmed(name: str, rival: str, again: Samples) -> str:
    """The choice by a second measurement, ``again``, where ``name`` and ``rival`` are what :func:`quickest` found.

    Whoever is to take the place of another has to win twice, and the second time surely: a form of the library's from
    eager, one of the lab's from the library's, and that by more than :data:`MARGIN`.
    """
    library = rival or name
    if "eager" in again and gain(again["eager"], again.get(library, ())) <= 0:
        library = "eager"
    sure = rival and {name, library} <= again.keys() and gain(again[library], again[name]) > MARGIN
    return name if sure else library


def gain(before: Sequence[float], after: Sequence[float]) -> float:
    """By what share ``after`` is surely faster: the lower end of the interval, less one; −1 where nothing is known."""
    many = min(len(before), len(after))
    low = intervals.ratio(before[:many], after[:many]).low if many else math.nan
    return -1.0 if math.isnan(low) else low - 1


def timed(runs: Runs, clock: str, device: str, budget_s: float) -> dict[str, list[float]]:
    """Samples of ``runs``, of those that can be timed so."""
    timings = timer.measure(runs, clock, device, budget_s=budget_s)
    return {name: one.samples_us for name, one in timings.items() if isinstance(one, timer.Timing) and one.samples_us}


def _forgotten(run: Callable[[], Any]) -> None:
    """A call whose answer is not kept: of many back to back that would be much memory."""
    run()
