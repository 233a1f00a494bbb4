"""Figures of what binds a call: the measured ceilings, calls beneath them, and gains against a crossover."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, results, tables
from hypatia_lab.figures import probe_rows
from hypatia_lab.figures.language import (
    GREY,
    LINE,
    PALETTE,
    PRECISIONS,
    SHAPES,
    FigureError,
    Style,
    assemble,
    bytes_text,
    extent,
    heading,
    launch_note,
    legend_names,
    log_axis,
    measured,
    named,
    ordered,
    origins_key,
    plain,
    points_trace,
    rate_axis,
    rule_trace,
    singles,
    spanning,
    split_fields,
    style,
    times_text,
    unclear,
    where,
    with_legend,
)
from hypatia_lab.formats import significant
from hypatia_lab.intervals import Triple
from hypatia_lab.results import Row

_SECOND = {"xaxis": "x2", "yaxis": "y2"}
_SWEPT: dict[str, tuple[str, str, Callable[[Row], float]]] = {
    "matmul": ("flops", "FLOP/s", lambda r: math.prod(map(int, r.shape.split("x"))) ** (1 / 3)),
    "copy": ("traffic", "B/s", lambda r: r.traffic),
}
"""What is swept: which work of a row counts, its unit a second, and the size of a row."""


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
    layout = heading(title, [*where, origins_key(points), "bars: 95% intervals"])
    layout |= {"height": 300, "xaxis": horizontal, "yaxis": vertical}
    told = []
    for kind in kinds:
        values = [point.across[0] for point in points if point.kind == kind]
        told.append(f"{kind}: {spanning(values, times_text)} in {len(values)} calls")
    line = "" if at is None else f" A dashed line stands at {formats.number(at)}."
    alt = f"{across} over {along}, both log axes ({', '.join(where)}). {'; '.join(told)}.{line}"
    table = probe_rows.frame(
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
    return assemble(data, with_legend(layout, machines), alt), probe_rows.frame(lines)


def roofline(
    rows: Sequence[Row], ceilings: dict[tuple[str, str, str], float], *, clock: str, title: str = ""
) -> tuple[Any, Any]:
    """Attained FLOP/s over arithmetic intensity (FLOP per compulsory byte) under one machine's measured ceilings.

    ``ceilings`` is :func:`hypatia_lab.results.ceilings` of that machine's records, of which those by ``clock`` and of
    the rows' arithmetic are drawn. A/A controls are left out. Raises :class:`FigureError` when no row has a time,
    when rows hold several machines, or when copy bandwidth or every matrix rate is missing.
    """
    rows = ordered([r for r in singles(rows) if r.flops > 0 and r.traffic > 0])
    kept = measured(rows, "roofline", "median_us", "a time")
    if len(machines := list(dict.fromkeys(r.machine for r in kept))) > 1:
        raise FigureError(f"roofline: ceilings belong to one machine, the rows hold {', '.join(machines)}")
    bandwidth = ceilings.get(("copy", "", clock))
    used = dict.fromkeys(results.arithmetic(r.dtype, r.math, ceilings) for r in kept)
    roofs = {p: ceilings["matmul", p, clock] for p in used if ("matmul", p, clock) in ceilings}
    if bandwidth is None or not roofs:
        lacking = "copy bandwidth" if bandwidth is None else f"a matrix rate for {', '.join(used)}"
        raise FigureError(f"roofline: {lacking} by the {clock} clock is missing from the ceilings of {machines[0]}")
    intensity = [r.flops / r.traffic for r in kept]
    ridge = max(roofs.values()) / bandwidth
    left, right = min(*intensity, ridge) / 2.5, max(*intensity, ridge) * 4
    copied = f"limit: {formats.scaled(bandwidth, 'B/s')} copied"
    slope = [significant(x) for x in (left, ridge)], [significant(x * bandwidth) for x in (left, ridge)]
    data = [rule_trace(*slope, "solid", copied, showlegend=False)]
    notes: list[dict[str, Any]] = []
    labelled = 0.0
    for precision, rate in sorted(roofs.items(), key=lambda item: item[1]):
        said = f"{precision} {formats.scaled(rate, 'FLOP/s')}"
        ends = [significant(rate / bandwidth), significant(right)]
        data.append(rule_trace(ends, [significant(rate)] * 2, "solid", f"limit: {said}", showlegend=False))
        if rate < 1.35 * labelled:  # two roofs too close for two labels share one
            notes[-1]["text"] += f", {precision}"
            continue
        labelled = rate
        note = {"text": said, "x": round(math.log10(right), 3), "xanchor": "right", "yanchor": "bottom", "yshift": 2}
        notes.append(note | {"y": round(math.log10(rate), 3), "showarrow": False, "font": {"size": 11}})
    looks = legend_names(kept)
    for variant, name in looks.items():
        own = [r for r in kept if r.variant == variant]
        rates = [r.rate().triple for r in own]
        said = [f"{r.text}<br>{tables.rate_text(r)}" for r in own]
        across = [significant(r.flops / r.traffic) for r in own]
        data.append(
            points_trace(
                style(variant, own[0].origin), rates, across, [f"{name}<br>{s}" for s in said], along="y", name=name
            )
        )
    clear = [r for r in kept if not r.time.doubt]
    claim = f"The rates: {unclear(r.time for r in kept)}"
    if clear:
        summit = max([r for r in clear if not r.launch_path] or clear, key=lambda r: r.flops / r.median_us)
        share = f", {summit.attained} of its limit" if summit.attained else ""
        claim = f"{named(summit)} attains {tables.rate_text(summit)} at {where(summit, 'shape')}{share}"
    _, common = split_fields(rows)
    under = [
        *common,
        "grey lines: measured ceilings",
        f"copy {formats.scaled(bandwidth, 'B/s')}",
        launch_note(kept),
        "bars: 95% intervals",
    ]
    head = heading(title or "Rates under the measured ceilings", under)
    seen = [*roofs.values(), *extent(r.rate().triple for r in kept)]
    layout = head | {
        "height": 280,
        "xaxis": log_axis([left, right], "intensity, FLOP per byte", plain, pad=1.0),
        "yaxis": rate_axis(seen, "FLOP/s"),
        "annotations": notes,
    }
    alt = (
        f"Roofline of {machines[0]} by the {clock} clock, log axes: copy bandwidth {formats.scaled(bandwidth, 'B/s')}, "
    )
    alt += ", ".join(f"{p} {formats.scaled(rate, 'FLOP/s')}" for p, rate in roofs.items())
    alt += f". {len(kept)} points. {claim}."
    table = tables.results_table(kept)
    table.insert(5, "intensity, FLOP/B", [formats.number(x) for x in intensity])
    table.insert(6, "rate", [tables.rate_text(r) for r in kept])
    return assemble(data, with_legend(layout, list(looks.values())), alt), table


def sweep(rows: Sequence[Row], *, title: str = "") -> tuple[Any, Any]:
    """The sweep behind the ceilings of one machine and clock: matrix rate and copy bandwidth over size (log axes).

    ``rows`` of the ``ceilings`` experiment; a ceiling is the best process, as in :func:`hypatia_lab.results.ceilings`.
    A product's extent is the cube root of m·k·n, a copy's the bytes it moves.
    Raises :class:`FigureError` when nothing was timed or when rows hold several machines or clocks.
    """
    rows = ordered([r for r in singles(rows) if r.operation in ("matmul", "copy")])
    kept = measured(rows, "sweep", "median_us", "a time of a matmul or copy")
    if len(places := {f"{r.machine} by {r.clock}": r for r in kept}) > 1:
        raise FigureError(f"sweep: one machine and clock at a time, the rows hold {', '.join(places)}")
    machine, clock = kept[0].machine, kept[0].clock
    # Of several ways at one size the quickest counts, as in the ceiling.
    quickest = {r.workload: r for r in sorted(kept, key=lambda r: -r.median_us)}
    kept = [r for r in kept if r is quickest[r.workload]]
    panels = [p for p in ("matmul", "copy") if any(r.operation == p for r in kept)]
    curves: dict[tuple[str, str], list[Row]] = {}
    for panel in panels:
        own = [r for r in kept if r.operation == panel]
        found = {f"{r.dtype}/{r.math}" for r in own} if panel == "matmul" else {"copy"}
        for name in sorted(found, key=lambda n: (list(PRECISIONS).index(n) if n in PRECISIONS else 99, n)):
            curve = [r for r in own if panel == "copy" or f"{r.dtype}/{r.math}" == name]
            curves[panel, name] = sorted(curve, key=_SWEPT[panel][2])
    data: list[dict[str, Any]] = []
    best: dict[str, float] = {}
    seen: dict[str, tuple[list[float], list[float]]] = {panel: ([], []) for panel in panels}
    for (panel, name), own in curves.items():
        work, unit, size = _SWEPT[panel]
        rates = [r.rate(work).triple for r in own]
        # A ceiling is what the machine reached at its best: here the least time counts, as in results.ceilings.
        best[name] = max(getattr(r, work) * 1e6 / us for r in own for us in r.medians_us if us is not None)
        seen[panel][0].extend(map(size, own))
        seen[panel][1].extend(extent(rates))
        colour, symbol, dash = PRECISIONS.get(name, (GREY, "x", "dot"))
        said = [f"{name}, {where(r, 'shape')}<br>{tables.rate_text(r, work, unit)}" for r in own]
        shown = {
            "along": "y",
            "size": 8,
            "mode": "lines+markers",
            "name": f"{name}, ceiling {formats.scaled(best[name], unit)}",
        }
        shown |= {"line": {"color": colour, "dash": dash, "width": 2}} | ({} if panel == panels[0] else _SECOND)
        sizes = [round(size(r), 1) for r in own]
        data.append(points_trace(Style(colour, symbol, 0), rates, sizes, said, **shown))
    peaks = {n: formats.scaled(rate, "B/s" if n == "copy" else "FLOP/s") for n, rate in best.items()}
    points = "; ".join(f"{name} {rate}" for name, rate in peaks.items())
    head = heading(title or "Rate over size", [f"{clock} clock", "bars: 95% intervals", "ceiling: best process"])
    tall = 200 * len(panels) + 70 * (len(panels) - 1)
    layout = head | {"height": tall}
    for panel in panels:
        unit, first, alone = _SWEPT[panel][1], panel == panels[0], len(panels) == 1
        titles = {"matmul": "matrix extent (m·k·n)<sup>1/3</sup>", "copy": "bytes moved"}
        number, share = "" if first else "2", round(200 / tall, 4)
        across = log_axis(seen[panel][0], titles[panel], plain if panel == "matmul" else bytes_text)
        up = rate_axis(seen[panel][1], unit)
        layout[f"xaxis{number}"] = across | {"anchor": f"y{number}"}
        domain = [0, 1] if alone else [1 - share, 1] if first else [0, share]
        layout[f"yaxis{number}"] = up | {"anchor": f"x{number}", "domain": domain}
    table = tables.results_table(kept).drop(columns=["machine", "clock", "ratio", "of limit"])
    table.insert(
        4,
        "rate",
        [tables.rate_text(r, *_SWEPT[r.operation][:2]) for r in kept],
    )
    layout = with_legend(layout, [trace["name"] for trace in data])
    return assemble(
        data, layout, f"Rate over size, log axes, on {machine} by the {clock} clock. Ceilings (best process): {points}."
    ), table
