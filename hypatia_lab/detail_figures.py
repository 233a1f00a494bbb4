"""Figures of what cells cannot hold: one call, one process, one kernel, and the diffraction image itself.

Each function returns ``(figure, table)`` as in :mod:`hypatia_lab.figures`. Most take ``details``: detail lines of
records (see :data:`hypatia_lab.records.DETAIL`), each with its ``machine``, filtered by the caller; a line without
``origin`` gets that of its variant's marker, else ``own``. A variant × case is called a way. A way that was skipped,
crashed or wrong is named with its status and never drawn. Values are over fresh processes, one each; the bars are 95%
t-intervals, of logarithms wherever the axis is one. Raises :class:`FigureError` when there is nothing to draw.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypatia_lab import formats, intervals, tables
from hypatia_lab.drawing import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    KNOWN,
    LINE,
    ORANGE,
    PURPLE,
    RED,
    SHAPES,
    SKY,
    FigureError,
    Style,
    assemble,
    error_bars,
    heading,
    legend_names,
    listing,
    log_axis,
    measured,
    origins_key,
    plain,
    points_trace,
    rule_trace,
    several,
    short,
    singles,
    spanning,
    split_fields,
    style,
    time_axis,
    with_legend,
    wrapped,
)
from hypatia_lab.formats import absent, significant
from hypatia_lab.tables import Triple

STAGES = {
    "interpreter": (GREY, ""),
    "import torch": (SKY, ""),
    "import hypatia_lab": (SKY, "/"),
    "CUDA context": (BLUE, ""),
    "set-up": (GREEN, ""),
    "build": (GREEN, "/"),
    "Dynamo": (ORANGE, ""),
    "AOTAutograd": (ORANGE, "\\"),
    "Inductor": (RED, ""),
    "Triton": (RED, "x"),
    "autotune": (RED, "."),
    "rest of call 1": (PURPLE, ""),
}
"""The stages of a start in their order: colour by phase (process, device, set-up, trace, generate, run) and pattern."""
MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "1": 1.0, "%": 1.0, "B": 1.0}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SMALL = {"showarrow": False, "font": {"size": 12}}
NONE = (math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Way:
    """One way of computing something: variant and case, where it ran, and its detail lines in their order."""

    variant: str
    case: str
    origin: str
    where: Mapping[str, str]
    pixels: int
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def look(self) -> Style:
        return style(self.variant, self.origin)

    @property
    def fault(self) -> str:
        """Status and reason of its first line that is not ok; empty when all are."""
        bad = next((line for line in self.lines if line["status"] != "ok"), None)
        return "" if bad is None else f"{bad['status'].replace('_', ' ')}: {bad['reason']}".removesuffix(": ")

    def per_process(self, *names: str) -> list[float | None]:
        """Sum of the lines called ``names`` in each process (times in µs), None where one has no value."""
        found = [line for line in self.lines if line["name"] in names and line["values"]]
        if self.fault or not found:
            return []
        columns = zip(*(line["values"] for line in found), strict=True)
        factor = MICROSECONDS[found[0]["unit"]]
        return [None if any(map(absent, column)) else factor * math.fsum(column) for column in columns]

    def triple(self, *names: str, logarithms: bool = True) -> Triple:
        """Mean over the processes between its bounds, geometric or arithmetic; NaN where nothing was measured."""
        values = [v for v in self.per_process(*names) if v is not None and (v > 0 or not logarithms)]
        return _mean(values, logarithms) if values else NONE

    def text(self, fields: Sequence[str]) -> str:
        """Variant, case and those of ``fields`` that tell ways apart, on one line."""
        return ", ".join(part for part in (self.variant, self.case, *(self.where[f] for f in fields)) if part)

    def label(self, fields: Sequence[str], room: int = 17) -> str:
        """The same for the margin of a narrow figure: several lines."""
        lines = wrapped(self.variant).split("<br>")
        for part in filter(None, (self.case, *(self.where[f] for f in fields))):
            if len(lines[-1]) + len(part) + 3 <= room:
                lines[-1] += f" · {part}"
            else:
                lines.append(part)
        return "<br>".join(lines)


def _mean(values: Sequence[float], logarithms: bool) -> Triple:
    found = intervals.geometric(values) if logarithms else intervals.mean(values)
    return found.value, found.low if logarithms else max(0.0, found.low) if found.n > 1 else math.nan, found.high


def _ways(details: Sequence[dict[str, Any]], figure: str, topic: str) -> tuple[list[Way], list[str], list[str]]:
    """The ways in details of ``topic``: smallest workload first, variants in their places, cases as they come.

    With them the fields that tell them apart, and what they have in common as text.
    """
    own = [d for d in details if d["topic"] == topic]
    if not own:
        known = ", ".join(dict.fromkeys(d["topic"] for d in details)) or "none at all"
        raise FigureError(f"{figure}: no details of topic {topic!r} to draw; topics given: {known}")
    found: dict[tuple[str, ...], Way] = {}
    for d in own:
        where = {
            "operation": d["operation"],
            "shape": "×".join(map(str, d["shape"])),
            "math": f"{d['dtype']}/{d['math']}",
            "machine": d["machine"],
        }
        key = (*where.values(), d["variant"], d["case"])
        symbol = KNOWN[d["variant"]].symbol if d["variant"] in KNOWN else ""
        origin = d.get("origin") or next((name for name, symbols in SHAPES.items() if symbol in symbols), "own")
        found.setdefault(key, Way(d["variant"], d["case"], origin, where, math.prod(d["shape"]))).lines.append(d)
    ways = list(found.values())
    fields = [f for f in ways[0].where if len({way.where[f] for way in ways}) > 1]
    places = list(dict.fromkeys((way.where["machine"], way.where["operation"]) for way in ways))

    def place(way: Way) -> tuple[int, int, str, int]:
        here = places.index((way.where["machine"], way.where["operation"]))
        return here, way.pixels, way.where["math"], way.look.place

    return sorted(ways, key=place), fields, [ways[0].where[f] for f in ways[0].where if f not in fields]


def _nothing(ways: Sequence[Way], figure: str, what: str) -> FigureError:
    seen = "; ".join(f"{way.text([])}: {way.fault or 'not measured'}" for way in ways)
    return FigureError(f"{figure}: none of {len(ways)} ways has {what} ({seen[:400]})")


def _said(triple: Triple) -> str:
    """A time in µs between its bounds, in the unit that suits it: ``1.52 s [1.50, 1.54]``."""
    if absent(triple[0]):
        return formats.MISSING
    unit = formats.duration(triple[0]).split(" ")[1]
    factor = {"s": 1e6, "ms": 1e3, "µs": 1.0, "ns": 1e-3}[unit]
    return formats.interval(*(x / factor for x in triple), unit)


def _frame(rows: Sequence[dict[str, Any]]) -> Any:
    import pandas

    return pandas.DataFrame(list(rows))


def _identity(way: Way) -> dict[str, str]:
    return {"variant": way.variant, "case": way.case or formats.MISSING} | dict(way.where)


def _processes(ways: Sequence[Way]) -> str:
    counts = [len(line["values"]) for way in ways for line in way.lines if line["values"]]
    most = max(counts, default=0)
    return f"{most} fresh process{'' if most == 1 else 'es'}"


def _lanes(head: dict[str, Any], labels: Sequence[str], pitch: int = 0) -> dict[str, Any]:
    """Margins, height and y axis for a lane a label, the first at the top; lane n lies at y = n."""
    parts = [label.split("<br>") for label in labels]
    pitch = max(pitch, 30, 12 + 15 * max(map(len, parts)))
    left = round(18 + 6.6 * max(len(part) for lines in parts for part in lines))
    head["margin"] |= {"l": left}
    return head | {
        "height": pitch * len(labels),
        "yaxis": {
            "range": [len(labels) - 0.5, -0.5],
            "tickvals": list(range(len(labels))),
            "ticktext": list(labels),
            "showgrid": False,
        },
    }


def _closed(layout: dict[str, Any]) -> dict[str, Any]:
    """``layout``, whose height is that of its panel, without a legend."""
    margin = layout["margin"]
    return layout | {"height": layout["height"] + margin["t"] + margin["b"]}


def _bars(
    colour: str, pattern: str, base: Sequence[float] | None, x: Sequence[float], y: Sequence[float], **more: Any
) -> dict[str, Any]:
    """Horizontal bars; a pattern lies over the colour, so that neighbours are told apart without it."""
    marker: dict[str, Any] = {"color": colour, "line": {"width": 0}}
    if pattern:
        marker["pattern"] = {"shape": pattern, "fillmode": "overlay", "fgcolor": "rgba(0,0,0,0.5)", "size": 6}
    trace = {"type": "bar", "orientation": "h", "marker": marker, "hoverinfo": "text", "y": list(y)}
    trace |= {} if base is None else {"base": [significant(b) for b in base]}
    return trace | {"x": [significant(v) for v in x]} | more


# ---------------------------------------------------------------- the image

DRAWN, FELT = 384, 128
"""Most pixels along an edge of an image that are drawn, and that answer to the pointer."""
LEVELS = 255


def _reduced(values: Any, most: int) -> tuple[Any, int]:
    """``values`` by the largest of each block, at most ``most`` along an edge; and the block's edge in pixels."""
    import numpy

    block = math.ceil(max(values.shape) / most)
    edges = [(0, -extent % block) for extent in values.shape]
    padded = numpy.pad(values, edges)
    slow, fast = (extent // block for extent in padded.shape)
    return padded.reshape(slow, block, fast, block).max(axis=(1, 3)), block


def _spots(values: Any, count: int) -> list[tuple[int, int]]:
    """Pixels (slow, fast) of the ``count`` brightest spots; neighbours of equal brightness count once.

    Compared in float32, so that the last bits of a float64 image decide nothing.
    """
    import numpy

    rounded = values.astype("float32")
    padded = numpy.pad(rounded, 1)
    slow, fast = rounded.shape
    around = [padded[1 + i : 1 + i + slow, 1 + j : 1 + j + fast] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    places = numpy.argwhere((rounded >= numpy.max(around, axis=0)) & (rounded > 0))
    order = numpy.lexsort((places[:, 1], places[:, 0], -rounded[places[:, 0], places[:, 1]]))
    reach, chosen = max(2, max(values.shape) // 100), []
    for s, f in places[order].tolist():
        if all(max(abs(s - a), abs(f - b)) > reach for a, b in chosen):
            chosen.append((s, f))
        if len(chosen) == count:
            break
    return chosen


def image(values: Any, title: str, *, pixel: float, centre: tuple[float, float]) -> tuple[Any, Any]:
    """A diffraction image on a log scale of 2 to 5 decades, so that weak and strong spots show; axes in mm from the beam.

    ``values``: intensities, shape (slow, fast), array or tensor of any real dtype; ``pixel`` (mm) and ``centre``
    (slow, fast, mm from the first pixel's corner) as in ``scene.Detector``. What is drawn has 8 bits, and a large image is
    reduced by the largest value of each block, so that no spot is lost; intensities under the pointer have 3 digits
    and are the largest of at most 128 blocks along an edge. The table lists the ten brightest spots.
    Raises :class:`FigureError` for another rank, for NaN or negative intensities, and when no pixel is lit.
    """
    import numpy

    array = numpy.asarray(values, dtype="float64")
    if array.ndim != 2 or not array.size:
        raise FigureError(f"image: shape {array.shape} is not an image of slow × fast pixels")
    if not numpy.isfinite(array).all() or array.min() < 0:
        raise FigureError("image: it holds NaN, infinite or negative intensities, which no log scale can show")
    peak = float(array.max())
    if not peak:
        raise FigureError("image: every pixel is dark; there is nothing to draw")
    shown, block = _reduced(array, DRAWN)
    dim = float(numpy.quantile(shown[shown > 0], 0.25))
    decades = min(5, max(2, math.ceil(math.log10(peak / dim))))
    floor = peak / 10**decades
    levels = numpy.rint(LEVELS * (1 + numpy.log10(numpy.maximum(shown, floor) / peak) / decades)).astype("uint8")
    felt, coarse = _reduced(array, FELT)
    places = 2 - numpy.floor(numpy.log10(numpy.maximum(felt, floor)))
    rounded = numpy.where(felt < floor, 0, numpy.rint(felt * 10.0**places) / 10.0**places).astype("float32")
    powers = range(math.ceil(math.log10(floor)), math.floor(math.log10(peak)) + 1)
    ticks = [10.0**e for e in powers if e < math.log10(peak) - 0.4] + [peak]
    colourbar = {
        "orientation": "h",
        "lenmode": "pixels",
        "len": 270,
        "thickness": 10,
        "x": 0,
        "xanchor": "left",
        "xpad": 8,
        "y": 1,
        "yanchor": "bottom",
        "ypad": 4,
        "outlinewidth": 0,
        "tickvals": [round(LEVELS * (1 + math.log10(t / peak) / decades), 1) for t in ticks],
        "ticktext": [*(plain(significant(t)) for t in ticks[:-1]), formats.number(peak)],
        "tickfont": {"size": 11},
        "title": {"text": "intensity (log scale)", "side": "top", "font": {"size": 12}},
    }

    def grid(step: int) -> dict[str, float]:
        first = {"y0": 0.5 * step * pixel - centre[0], "x0": 0.5 * step * pixel - centre[1]}
        return {k: round(v, 4) for k, v in (first | {"dx": step * pixel, "dy": step * pixel}).items()}

    scale = {"colorscale": "Inferno", "zmin": 0, "zmax": LEVELS, "zsmooth": "fast", "colorbar": colourbar}
    hover = "%{x:.2f} mm fast, %{y:.2f} mm slow<br>intensity %{z:.3~g}<extra></extra>"
    data = [
        {"type": "heatmap", "z": levels, "hoverinfo": "skip"} | grid(block) | scale,
        # What the pointer feels: coarser than the eye, and in intensities, which 8 bits cannot hold.
        {"type": "heatmap", "z": rounded, "opacity": 0, "showscale": False, "hovertemplate": hover} | grid(coarse),
    ]
    slow, fast = array.shape
    size = f"{slow}×{fast} pixels"
    below = f"{decades} decades, black below {formats.number(floor)}"
    head = heading(title, [size, below, f"drawn: largest of {block}×{block} pixels" if block > 1 else ""])
    panel = 370
    head["margin"] |= {"t": head["margin"]["t"] + 56}
    frame = {"showgrid": False, "mirror": True, "showline": True, "ticks": "outside", "constrain": "domain"}
    across = frame | {"constraintoward": "left", "nticks": 6, "title": {"text": "mm from the beam, fast"}}
    down = frame | {"constraintoward": "top", "scaleanchor": "x", "autorange": "reversed", "nticks": 7}
    down |= {"title": {"text": "mm from the beam, slow"}}
    figure_layout = _closed(head | {"height": panel, "xaxis": across, "yaxis": down})

    def at(place: tuple[int, int]) -> list[float]:
        return [round((n + 0.5) * pixel - c, 3) for n, c in zip(place, centre, strict=True)]

    brightest = [(at(place), float(array[place])) for place in _spots(array, 10)]
    table = _frame(
        [
            {
                "spot": number,
                "mm slow": formats.number(place[0]),
                "mm fast": formats.number(place[1]),
                "intensity": formats.number(value),
                "of the peak": f"{formats.number(100 * value / peak)}%",
            }
            for number, (place, value) in enumerate(brightest, 1)
        ]
    )
    where = " and ".join(formats.number(abs(x)) for x in brightest[0][0])
    alt = (
        f"Diffraction image of {size} on a log scale of {decades} decades. The brightest spot, {formats.number(peak)}, "
        f"lies {where} mm from the beam; the mean intensity is {formats.number(float(array.mean()))}."
    )
    return assemble(data, figure_layout, alt), table


# ---------------------------------------------------------------- a fresh process


def waterfall(details: Sequence[dict[str, Any]], title: str, *, leave_out: Sequence[str] = ()) -> tuple[Any, Any]:
    """Stages of a start (topic ``start``) as stacked bars in ms, a lane a way, its marker at the end with its interval.

    Stages are arithmetic means over the processes that have all of them, so that they add up; ``leave_out`` names
    stages that are not drawn. A way that does not say what its call 1 consists of shows it whole as the rest of call 1.
    Raises :class:`FigureError` when no way has a stage, or for an unknown stage in ``leave_out``.
    """
    if unknown := [name for name in leave_out if name not in STAGES]:
        raise FigureError(f"waterfall: there is no stage {unknown[0]!r} to leave out; stages: {', '.join(STAGES)}")
    ways, fields, common = _ways(details, "waterfall", "start")
    kept = [name for name in STAGES if name not in leave_out]
    means: list[dict[str, float]] = []
    totals: list[Triple] = []
    for way in ways:
        columns = {name: way.per_process(name) for name in kept}
        if "rest of call 1" in columns and not columns["rest of call 1"]:
            columns["rest of call 1"] = way.per_process("call 1")
        columns = {name: values for name, values in columns.items() if values}
        whole = [n for n in range(max(map(len, columns.values()), default=0)) if None not in _row(columns, n)]
        means.append({name: math.fsum(values[n] or 0 for n in whole) / len(whole) for name, values in columns.items()} if whole else {})
        totals.append(_mean([math.fsum(v or 0 for v in _row(columns, n)) for n in whole], False) if whole else NONE)
    if not any(means):
        raise _nothing(ways, "waterfall", "a stage")
    labels = [way.label(fields) for way in ways]
    data: list[dict[str, Any]] = []
    for stage in kept:
        own = [n for n, found in enumerate(means) if found.get(stage, 0) > 0]
        if not own:
            continue
        hover = [
            f"{ways[n].text(fields)}<br>{stage}: {formats.duration(means[n][stage])}, "
            f"{formats.number(100 * means[n][stage] / totals[n][0])}% of {formats.duration(totals[n][0])}"
            for n in own
        ]
        starts = [math.fsum(means[n].get(s, 0) for s in kept[: kept.index(stage)]) / 1e3 for n in own]
        shown = {"name": stage.replace("hypatia_lab", "lab"), "hovertext": hover, "width": 0.62}
        shown |= {"text": [shown["name"]] * len(own), "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        data.append(_bars(*STAGES[stage], starts, [means[n][stage] / 1e3 for n in own], own, **shown))
    legend = [trace["name"] for trace in data]
    notes = _ends(data, ways, fields, [tuple(x / 1e3 for x in t) for t in totals], [formats.duration(t[0]) for t in totals])
    longest = max(x for t in totals for x in t if not absent(x)) / 1e3
    left_out = f"without {listing(list(leave_out))}" if leave_out else ""
    head = heading(title, [*common, _processes(ways), "bars: 95% intervals of the whole", left_out])
    layout = _lanes(head, labels) | {
        "barmode": "overlay",
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "xaxis": {"range": [0, significant(1.3 * longest)], "nticks": 6, "title": {"text": "time, ms"}},
        "annotations": notes,
    }
    points = "; ".join(
        f"{way.text(fields)}: {formats.duration(total[0])}, most of it {max(found, key=lambda s: found[s])} "
        f"({formats.duration(max(found.values()))})"
        for way, found, total in zip(ways, means, totals, strict=True)
        if found
    )
    table = _frame(
        [
            _identity(way)
            | {stage: formats.duration(found.get(stage)) for stage in kept if any(stage in m for m in means)}
            | {"whole": _said(total), "status": way.fault or "ok"}
            for way, found, total in zip(ways, means, totals, strict=True)
        ]
    )
    return assemble(data, with_legend(layout, legend), f"Stages of a start ({', '.join(common)}). {points}."), table


def _row(columns: Mapping[str, Sequence[float | None]], number: int) -> list[float | None]:
    return [values[number] for values in columns.values()]


def _ends(
    data: list[dict[str, Any]],
    ways: Sequence[Way],
    fields: Sequence[str],
    triples: Sequence[Triple],
    texts: Sequence[str],
    log: bool = False,
) -> list[dict[str, Any]]:
    """Put each way's marker with its interval at ``triples`` and return ``texts`` to its right, or its fault."""
    notes: list[dict[str, Any]] = []
    for n, (way, triple, text) in enumerate(zip(ways, triples, texts, strict=True)):
        if absent(triple[0]):
            said = {"text": f"<i>{(way.fault or 'not measured').split(':')[0]}</i>", "xref": "paper", "x": 0.01}
            notes.append(SMALL | said | {"y": n, "xanchor": "left"})
            continue
        hover = [f"{way.text(fields)} ({way.origin})<br>{text}"]
        data.append(points_trace(way.look, [triple], [n], hover, name=way.text(fields), showlegend=False))
        end = triple[0] if absent(triple[2]) else triple[2]
        place = {"x": round(math.log10(end), 4) if log else significant(end), "xanchor": "left", "xshift": 7}
        notes.append(SMALL | {"text": text, "y": n} | place)
    return notes
