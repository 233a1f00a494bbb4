"""The figure of break-even: what a compiled form has cost after so many calls, against the one it replaces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypatia_lab import formats, intervals, tables
from hypatia_lab.figures.axes import duration, log_axis
from hypatia_lab.figures.language import LINE, FigureError, style
from hypatia_lab.figures.plots import plotted, points_trace, tile, tiles
from hypatia_lab.formats import absent, significant
from hypatia_lab.intervals import Interval

NEVER = math.inf


@dataclass(frozen=True)
class Curve:
    """What a variant costs: ``paid`` (µs) once in a process, ``call`` (µs) each time, ``calls`` to pay for the first.

    ``calls`` is how many calls it takes until the whole is as short as the first curve's: :data:`NEVER` where a call is
    no shorter, and NaN for the first curve itself.
    """

    name: str
    variant: str
    origin: str
    paid: Interval
    call: Interval
    calls: Interval


def calls_text(found: Interval) -> str:
    """``4,100 [3,000, 7,200]`` calls, ``never``, or what is known of a number that may never be reached."""
    if absent(found.value):
        return formats.MISSING
    if math.isinf(found.low):
        return "never"
    if math.isinf(found.high):
        return f"{count(found.low)} or more, if ever"
    if at_least_one(found).width > intervals.UNTOLD:
        return f"{formats.UNTOLD} (n = {found.n})"
    return f"{count(found.value)} [{count(found.low)}, {count(found.high)}]"


def _crossing(curve: Curve) -> Interval | None:
    """Where ``curve`` meets the first one, if :func:`calls_text` has a number for it; None where it tells no such."""
    found = at_least_one(curve.calls)
    told = math.isfinite(found.high) and found.width <= intervals.UNTOLD and curve.calls.value >= 1
    return found if told else None


def at_least_one(found: Interval) -> Interval:
    """A number of calls as it is written: none is less than 1."""
    return replace(found, **{name: max(1.0, getattr(found, name)) for name in ("value", "low", "high")})


def count(value: float) -> str:
    """A number of calls to two digits: no more of them are known."""
    if absent(value) or math.isinf(value):
        return "never" if value == NEVER else "?"
    if value < 1:
        return "1"
    rounded = round(value, 1 - math.floor(math.log10(value)))
    return f"{max(1, round(rounded)):,}"


def break_even(curves: Sequence[Curve], title: str, where: Sequence[str]) -> tuple[Any, Any]:
    """Whole time of a process over its calls, both on log axes: a tile a curve, beside the first one, dashed and grey.

    A marker with its interval stands where a line crosses the first, as far as a table would tell it. ``where`` says
    what the curves have in common. Raises :class:`FigureError` when there are not at least two curves.
    """
    if len(curves) < 2:
        raise FigureError("break_even: at least two curves are needed, one to replace and one that replaces it")
    first, *others = curves
    crossings = [c.calls.value for c in others if math.isfinite(c.calls.value)]
    ends = [at.high for c in others if (at := _crossing(c))]
    decades = math.ceil(max(math.log10(max([*crossings, 1e3])) + 1, math.log10(max([*ends, 1]))))
    numbers = [10.0 ** (n / 4) for n in range(4 * decades + 1)]

    def whole(curve: Curve, calls: float) -> float:
        return (curve.paid.value + calls * curve.call.value) / 1e6

    def line(curve: Curve, **look: Any) -> dict[str, Any]:
        hover = [f"{curve.name}<br>{count(n)} calls: {formats.duration(1e6 * whole(curve, n))}" for n in numbers]
        drawn = {"type": "scatter", "mode": "lines", "name": curve.name, "hovertext": hover, "hoverinfo": "text"}
        places = {"x": [significant(n) for n in numbers], "y": [significant(whole(curve, n)) for n in numbers]}
        return drawn | places | {"line": look | {"width": 2}}

    data: list[dict[str, Any]] = []
    for number, curve in enumerate(others):
        look = style(curve.variant, curve.origin)
        data += [line(first, color=LINE, dash="dash") | tile(number), line(curve, color=look.colour) | tile(number)]
        if at := _crossing(curve):
            said = [f"{curve.name}<br>calls to break even: {calls_text(curve.calls)}"]
            place = [significant(whole(curve, at.value))]
            data.append(points_trace(look, [at.triple], place, said, said=count) | tile(number))
    seconds = [value for trace in data for value in trace["y"]]
    up = log_axis(seconds, "whole time", lambda s: duration(1e6 * s), pad=1.3)
    marked = "marker: paid back" if any(map(_crossing, others)) else ""
    layout = tiles([c.name for c in others], log_axis(numbers, "calls"), up)
    met = f"calls until it is no slower than {first.name}"
    table = tables.frame(
        [
            {"variant": one.name, "paid once": formats.time(one.paid), "a call": formats.time(one.call)}
            | {met: calls_text(one.calls)}
            for one in curves
        ]
    )
    return plotted(data, layout, title, [*where, f"dashed: {first.name}", marked], table, [*table.columns]), table
