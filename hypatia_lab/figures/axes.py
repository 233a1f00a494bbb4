"""Axes: from where to where, on which scale, and how a value on one is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.formats import absent, significant
from hypatia_lab.intervals import Triple
from hypatia_lab.results import Row


def plain(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}"


def duration(us: float) -> str:
    """A time in µs without the digits that only measured values need: ``10.0 µs`` → ``10 µs``."""
    return _short(formats.duration(us)) if us else "0"


def bytes_text(value: float) -> str:
    return _short(formats.scaled(value, "B"))


def _short(text: str) -> str:
    value, unit = text.split(" ")
    return f"{float(value):g} {unit}"


@dataclass(frozen=True)
class Axis:
    """An axis of what ``title`` says from ``low`` to ``high``, logarithmic if ``log``; ``text`` writes a value."""

    low: float
    high: float
    title: str
    log: bool = False
    text: Callable[[float], str] = plain

    @property
    def named(self) -> str:
        """The title; a log axis says so."""
        return f"{self.title} (log scale)" if self.log else self.title

    def place(self, value: float) -> float:
        """Where ``value`` lies between the ends, in percent; beyond them below 0 or above 100."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(100 * (at - low) / (high - low), 2)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values between the ends, on a log axis at ``most`` so many: steps of 1, 2 or 5, or powers of ten."""
        if not self.log:
            whole = 10.0 ** math.floor(math.log10(self.high - self.low))
            step = next(whole * part for part in (1, 0.5, 0.2, 0.1) if self.high - self.low >= 2 * whole * part)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [significant(n * step) for n in range(first, last + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks: list[float] = []
        for parts, every in (((1, 2, 5), 1), *(((1,), every) for every in range(1, len(powers) + 1))):
            ticks = [part * 10.0**n for n in powers if n % every == 0 for part in parts]
            ticks = [significant(tick) for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) <= most:
                break
        return ticks

    def plotly(self) -> dict[str, Any]:
        """The axis as plotly takes it; plotly finds the ticks of a linear one."""
        if not self.log:
            return {"range": [self.low, self.high], "title": {"text": self.named}}
        ends = [round(math.log10(end), 3) for end in (self.low, self.high)]
        found = {"type": "log", "range": ends, "title": {"text": self.named}, "tickvals": self.ticks()}
        return found | {"ticktext": [self.text(tick) for tick in found["tickvals"]]}


def log_axis(values: Sequence[float], title: str, text: Callable[[float], str] = plain, pad: float = 1.15) -> Axis:
    """A log axis that holds ``values`` and a factor of ``pad`` about them, at least a factor of 4 in all."""
    low, high = min(values) / pad, max(values) * pad
    if high / low < 4:
        middle = math.sqrt(low * high)
        low, high = middle / 2, middle * 2
    return Axis(low, high, title, True, text)


def time_axis(values: Sequence[float]) -> Axis:
    return log_axis(values, "time per call", duration, pad=1.4)


def rate_axis(values: Sequence[float], unit: str) -> Axis:
    """A log axis of rates (``unit`` per second, without prefix) labelled in the prefix that suits the largest."""
    prefix = formats.scaled(max(values), unit).split(" ")[1]
    one = {"T": 1e12, "G": 1e9, "M": 1e6}.get(prefix.removesuffix(unit), 1.0)
    return log_axis(values, prefix, lambda v: plain(v / one), pad=1.5)


def ratios_axis(ends: Sequence[float], title: str) -> Axis:
    """An axis over ratios that holds 1 and the ±2% band: linear, or log where they span over 4×."""
    low, high = min([*ends, 1 - 1.5 * intervals.EQUIVALENCE]), max([*ends, 1 + 1.5 * intervals.EQUIVALENCE])
    if high > 4 * low:
        return log_axis([low, high], title)
    pad = 0.05 * (high - low)
    return Axis(round(low - pad, 4), round(high + pad, 4), title)


def ratio_axis(rows: Sequence[Row], title: str) -> Axis:
    """:func:`ratios_axis` over the rows' ratio intervals."""
    return ratios_axis(extent(r.speed.triple for r in rows), title)


def extent(triples: Iterable[Triple]) -> list[float]:
    """What an axis has to hold of ``triples``: the values, and of their intervals what a table would tell.

    What reaches further is cut where the axis ends: else one noisy point would hide all others.
    """
    reach = math.sqrt(intervals.UNTOLD)
    ends = [(v, max(low, v / reach), min(high, v * reach)) for v, low, high in triples if v > 0]
    return [end for three in ends for end in three if not absent(end)]
