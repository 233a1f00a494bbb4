"""How far one ratio, or one time, differs from visit to visit: on another chip of its model, on another day.

:mod:`hypatia_lab.results.visits` makes these figures of the committed records, and a test holds them to it.
"""

from __future__ import annotations

from hypatia_lab import intervals

PRESENT = "2026-11-25T01:47:12Z"
"""Records started since then are timed as today: each sample of a graph begins after another process's kernel."""

Scatter = dict[str, dict[str, tuple[float, ...]]]
"""Device → clock → standard deviations of a logarithm from visit to visit."""

BETWEEN: Scatter = {
    "NVIDIA H100 80GB HBM3": {
        "graph": (0.00053, 0.005, 0.0067),
        "wall": (0.0041, 0.047, 0.06),
        "hot": (0.035, 0.057, 0.057),
        "cold": (0.0066, 0.0073, 0.0073),
        "profiler": (0.0035, 0.0048, 0.004),
    },
    "NVIDIA H200": {
        "graph": (0.0011, 0.0026, 0.0029),
        "wall": (0.0029, 0.033, 0.04),
        "hot": (0.035, 0.057, 0.057),
        "cold": (0.0066, 0.0073, 0.0073),
        "profiler": (0.0035, 0.004, 0.004),
    },
    "AMD EPYC": {
        "hot": (0.0082, 0.048, 0.058),
        "cold": (0.0071, 0.011, 0.011),
        "wall": (0.25, 0.28, 0.28),
        "profiler": (0.0, 0.0, 0.0),
    },
}
"""Of ratios: of two programs that take the same time within ±2%, of others, and where a tuner chose the kernels.

What :func:`hypatia_lab.results.visits.estimated` makes of the committed records, to two digits.
"""
BETWEEN_TIMES: Scatter = {
    "NVIDIA H100 80GB HBM3": {
        "graph": (0.007,),
        "wall": (0.14,),
        "hot": (0.18,),
        "cold": (0.047,),
        "profiler": (0.006,),
    },
    "NVIDIA H200": {"graph": (0.0043,), "wall": (0.07,), "hot": (0.18,), "cold": (0.051,), "profiler": (0.0059,)},
    "AMD EPYC": {"hot": (0.34,), "cold": (0.11,), "wall": (0.46,), "profiler": (0.082,)},
}
"""Of the times of single cells, in the same way."""


def between(device_name: str, clock: str, tuned: bool, ratio: float) -> float:
    """By how much a ratio differs from one visit to the next: the standard deviation of its logarithm.

    On another chip of the model, on another day. ``tuned``: :attr:`hypatia_lab.results.Row.chosen`. 0 for a model that
    nobody visited twice.
    """
    return _scatter(BETWEEN, device_name, clock)[class_of(tuned, ratio)]


def between_times(device_name: str, clock: str) -> float:
    """The same of the time of one cell; what is timed by no clock of a cell, such as a probe, by the wall clock."""
    return _scatter(BETWEEN_TIMES, device_name, clock)[0]


def _scatter(table: Scatter, device_name: str, clock: str) -> tuple[float, ...]:
    own = table.get(device_name, {})
    return own.get(clock) or own.get("wall") or own.get("hot") or (0.0, 0.0, 0.0)


def class_of(tuned: bool, ratio: float) -> int:
    """The class of a ratio in :data:`BETWEEN`: level, other, or chosen by a tuner."""
    return 2 if tuned else int(abs(ratio - 1) > intervals.EQUIVALENCE)


def weight(vetoed: bool, n: int, started: str) -> tuple[bool, bool, int, str]:
    """Which of several experiments' records of one fact the book tells: that of the greatest weight.

    One whose A/A control passed before others, then one timed as today (:data:`PRESENT`), then that of most processes,
    then the newest.
    """
    return not vetoed, started >= PRESENT, n, started
