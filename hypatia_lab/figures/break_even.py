"""The figure of break-even: what a compiled form has cost after so many calls, against the one it replaces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.figures.language import (
    LINE,
    FigureError,
    assemble,
    heading,
    log_axis,
    origins_key,
    plain,
    short,
    style,
    with_legend,
)
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
    """Whole time of a process over its calls, both on log axes: a line a curve, the first dashed grey.

    A marker stands where a line crosses the first. ``where`` says what the curves have in common. Raises
    :class:`FigureError` when there are not at least two curves.
    """
    if len(curves) < 2:
        raise FigureError("break_even: at least two curves are needed, one to replace and one that replaces it")
    first = curves[0]
    crossings = [c.calls.value for c in curves[1:] if math.isfinite(c.calls.value)]
    decades = math.ceil(math.log10(max([*crossings, 1e3]))) + 1
    numbers = [10.0 ** (n / 4) for n in range(4 * decades + 1)]

    def whole(curve: Curve, calls: float) -> float:
        return (curve.paid.value + calls * curve.call.value) / 1e6

    data: list[dict[str, Any]] = []
    for number, curve in enumerate(curves):
        look = style(curve.variant, curve.origin)
        own = {"color": LINE, "dash": "dash", "width": 2} if not number else {"color": look.colour, "width": 2}
        hover = [f"{curve.name}<br>{count(n)} calls: {formats.duration(1e6 * whole(curve, n))}" for n in numbers]
        line = {"type": "scatter", "mode": "lines", "line": own, "name": curve.name}
        line |= {"hovertext": hover, "hoverinfo": "text"}
        data.append(
            line | {"x": [significant(n) for n in numbers], "y": [significant(whole(curve, n)) for n in numbers]}
        )
    for curve in curves[1:]:
        at = curve.calls.value
        if not math.isfinite(at) or at < 1:
            continue
        look = style(curve.variant, curve.origin)
        marker = {"color": look.colour, "symbol": look.symbol, "size": 11, "line": {"color": "#333333", "width": 1}}
        dot = {"type": "scatter", "mode": "markers", "marker": marker, "showlegend": False, "hoverinfo": "text"}
        dot |= {"hovertext": [f"{curve.name}<br>calls to break even: {calls_text(curve.calls)}"]}
        data.append(dot | {"x": [significant(at)], "y": [significant(whole(curve, at))]})
    seconds = [value for trace in data for value in trace["y"]]
    under = [*where, "marker: paid back", origins_key(curves)]
    layout = heading(title, under) | {
        "height": 300,
        "xaxis": log_axis(
            numbers, "calls", lambda n: f"{plain(n)}" if n < 1e4 else f"10{_SUPER[round(math.log10(n))]}"
        ),
        "yaxis": log_axis(seconds, "whole time", lambda s: short(formats.duration(1e6 * s)), pad=1.3),
    }
    told = "; ".join(
        f"{c.name}: {formats.time(c.paid)} once and {formats.time(c.call)} a call"
        + ("" if absent(c.calls.value) else f", calls to break even: {calls_text(c.calls)}")
        for c in curves
    )
    alt = f"Whole time over the number of calls, both log axes ({', '.join(where)}). {told}."
    return assemble(data, with_legend(layout, [c.name for c in curves]), alt), _table(curves, first)


_SUPER = {n: "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(d)] for d in str(n)) for n in range(31)}


def _table(curves: Sequence[Curve], first: Curve) -> Any:
    import pandas

    return pandas.DataFrame(
        [
            {
                "variant": c.name,
                "paid once": formats.time(c.paid),
                "a call": formats.time(c.call),
                f"calls until it is no slower than {first.name}": calls_text(c.calls),
            }
            for c in curves
        ]
    )
