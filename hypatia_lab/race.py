"""The race between forms of one operation: what their samples say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypatia_lab import clock as timer
from hypatia_lab import intervals

MARGIN = intervals.EQUIVALENCE
"""Share by which a form of the lab's must be significantly faster than the library's to be chosen."""
LIBRARY = ("eager", "epilogue", "group_norm")
"""Forms of PyTorch's that stand for the library."""


def quickest(samples: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    """The quickest form by ``samples`` (µs, taken turn about), and the library's that it has to beat in a race.

    The latter is empty where the library's quickest is the choice: where the quickest of the lab's is not ahead by more
    than :data:`MARGIN`. These are means of few samples; the race tells whether that is sure.
    """
    means = {name: intervals.geometric(own).value for name, own in samples.items()}
    library = min((name for name in LIBRARY if name in samples), key=means.__getitem__, default="")
    own = min((name for name in samples if name not in LIBRARY), key=means.__getitem__, default="")
    if not (library and own) or means[library] <= (1 + MARGIN) * means[own]:
        return library or "eager", ""
    return own, library


def confirmed(name: str, rival: str, again: Mapping[str, Sequence[float]]) -> str:
    """The choice by a second measurement, ``again`` (µs), where ``name`` and ``rival`` are what :func:`quickest` found.

    Whoever is to take the place of another has to win twice, and the second time surely: a form of the library's from
    eager, one of the lab's from the library's, and that by more than :data:`MARGIN`.
    """
    library = rival or name
    if "eager" in again and _gain(again["eager"], again.get(library, ())) <= 0:
        library = "eager"
    sure = rival and {name, library} <= again.keys() and _gain(again[library], again[name]) > MARGIN
    return name if sure else library


def _gain(library: Sequence[float], own: Sequence[float]) -> float:
    """By what share ``own`` is surely faster: the lower end of the interval, less one."""
    many = min(len(library), len(own))
    low = intervals.ratio(library[:many], own[:many]).low if many else math.nan
    return -1.0 if math.isnan(low) else low - 1


def timed(runs: Mapping[str, Callable[[], Any]], clock: str, device: str, budget_s: float) -> dict[str, list[float]]:
    """Name → samples (µs) of each of ``runs`` by ``clock``, turn about, within ``budget_s`` each; none of what cannot
    be timed."""
    timings = timer.measure(runs, clock, device, budget_s=budget_s)
    return {name: one.samples_us for name, one in timings.items() if isinstance(one, timer.Timing) and one.samples_us}


def forgotten(run: Callable[[], Any]) -> None:
    """A call whose answer is not kept: of many back to back that would be much memory."""
    run()
