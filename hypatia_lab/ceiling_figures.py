"""Figures of what binds a call: gains against a crossover, and the crossover itself machine by machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, ways
from hypatia_lab.drawing import (
    LINE,
    PALETTE,
    SHAPES,
    FigureError,
    Style,
    assemble,
    extent,
    heading,
    log_axis,
    origins_key,
    plain,
    points_trace,
    rule_trace,
    spanning,
    times_text,
    with_legend,
)
from hypatia_lab.formats import significant
from hypatia_lab.tables import Triple


@dataclass(frozen=True)
class Point:
    """One measured call: the ``kind`` that gives its colour, the origin that gives its shape, and its place.

    ``across`` has its interval; ``along`` is worked out, not measured, or its interval does not matter.
    """

    kind: str
    origin: str
    name: str
    along: float
    across: Triple


def crossover(
    points: Sequence[Point], title: str, where: Sequence[str], *, along: str, across: str, at: float | None = None
) -> tuple[Any, Any]:
    """``points`` on two log axes, with a dashed grey line at ``at`` along and a solid one at 1 across.

    ``along`` and ``across`` are the axes' titles; ``across`` is in times (×). Raises :class:`FigureError` without
    points.
    """
    if not points:
        raise FigureError("crossover: no points; the records hold none of what was asked for")
    kinds = list(dict.fromkeys(point.kind for point in points))
    horizontal = log_axis([point.along for point in points] + ([] if at is None else [at]), along, plain, pad=1.4)
    vertical = log_axis([*extent(point.across for point in points), 1.0], across, plain, pad=1.2)
    (left, right), (low, high) = ([10**end for end in axis["range"]] for axis in (horizontal, vertical))
    data = [rule_trace([left, right], [1, 1], "solid", "")]
    if at is not None:
        data.append(rule_trace([significant(at)] * 2, [low, high], "dash", ""))
    data = [rule | {"showlegend": False} for rule in data]
    for number, kind in enumerate(kinds):
        for origin in SHAPES:
            own = [point for point in points if (point.kind, point.origin) == (kind, origin)]
            turn, colour = divmod(number, len(PALETTE))
            # Colour and symbol turn at different paces, so that no two kinds share both.
            look = Style(PALETTE[colour], SHAPES[origin][(number + turn) % len(SHAPES[origin])], number)
            said = [f"{kind}, {point.name}<br>{formats.interval(*point.across)}" for point in own]
            at_x, triples = [significant(point.along) for point in own], [point.across for point in own]
            if own:
                data.append(points_trace(look, triples, at_x, said, along="y", name=f"{kind} ({origin})"))
    layout = heading(title, [*where, origins_key([{"origin": p.origin} for p in points]), "bars: 95% intervals"])
    layout |= {"height": 300, "xaxis": horizontal, "yaxis": vertical}
    told = []
    for kind in kinds:
        values = [point.across[0] for point in points if point.kind == kind]
        told.append(f"{kind}: {spanning(values, times_text)} in {len(values)} calls")
    line = "" if at is None else f" A dashed line stands at {formats.number(at)}."
    alt = f"{across} over {along}, both log axes ({', '.join(where)}). {'; '.join(told)}.{line}"
    table = ways.frame(
        [
            {"kind": p.kind, "call": p.name, along: formats.number(p.along), across: formats.interval(*p.across)}
            for p in points
        ]
    )
    named = [str(trace["name"]) for trace in data if "name" in trace]
    return assemble(data, with_legend(layout, named), alt), table


def balances(found: Sequence[tuple[str, str, float]], title: str) -> tuple[Any, Any]:
    """FLOP per byte at which memory and arithmetic take equally long: a lane a precision, a marker a machine.

    ``found`` lists machine, dtype/math and balance (FLOP/B). Raises :class:`FigureError` without any.
    """
    if not found:
        raise FigureError("balances: no machine has both ceilings; measure the ceilings first")
    machines, lanes = list(dict.fromkeys(name for name, _, _ in found)), list(dict.fromkeys(one for _, one, _ in found))
    data = []
    for number, machine in enumerate(machines):
        own = [(precision, value) for name, precision, value in found if name == machine]
        look = Style(PALETTE[(2 * number + 3) % len(PALETTE)], SHAPES["own" if number else "peer"][0], number)
        said = [f"{machine}, {precision}<br>{formats.number(value)} FLOP/B" for precision, value in own]
        places = [(value, math.nan, math.nan) for _, value in own]
        at = [lanes.index(precision) for precision, _ in own]
        data.append(points_trace(look, places, at, said, size=12, name=machine))
    layout = heading(title, ["left of a marker memory binds", "right of it arithmetic"])
    layout["margin"] |= {"l": 96}
    layout |= {
        "height": 38 * len(lanes) + 40,
        "xaxis": log_axis([value for _, _, value in found], "FLOP per byte", plain, pad=1.6),
        "yaxis": {
            "range": [len(lanes) - 0.5, -0.5],
            "tickvals": list(range(len(lanes))),
            "ticktext": lanes,
            "gridcolor": LINE,
        },
    }
    told = "; ".join(f"{machine}, {precision}: {formats.number(value)}" for machine, precision, value in found)
    alt = f"FLOP per byte at which memory and arithmetic take equally long, log axis. {told}."
    lines = [
        {"precision": lane}
        | {
            machine: next(
                (f"{formats.number(value)} FLOP/B" for name, one, value in found if (name, one) == (machine, lane)),
                formats.MISSING,
            )
            for machine in machines
        }
        for lane in lanes
    ]
    return assemble(data, with_legend(layout, machines), alt), ways.frame(lines)
