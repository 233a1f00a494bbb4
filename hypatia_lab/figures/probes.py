"""Figures of details: what one call did, one process, one kernel.

Each function takes detail lines of records, each with its ``machine``, filtered by the caller, and returns
``(figure, table)`` as in :mod:`hypatia_lab.figures.comparisons`. A variant × case (and whatever else differs) is a
configuration, which keeps its variant's look. One that was skipped, crashed or wrong is named with its status and never
drawn. Values are over fresh processes, one each; the bars are 95% t-intervals, of logarithms on a log axis.
When there is nothing to draw :class:`FigureError` says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import formats
from hypatia_lab.figures.language import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    SMALL,
    FigureError,
    assemble,
    error_bars,
    extent,
    heading,
    intervals_key,
    log_axis,
    points_trace,
    rule_trace,
    short,
    thinned,
    time_axis,
)
from hypatia_lab.figures.panels import above_rows, tile, tiles
from hypatia_lab.figures.probe_rows import (
    COLUMN,
    FACTORS,
    NONE,
    Configuration,
    bar_trace,
    closed,
    ends,
    filled,
    frame,
    identity,
    lane_rules,
    lanes,
    legend_columns,
    mean,
    nothing,
    process_count,
    read,
    timed,
)
from hypatia_lab.formats import absent, listing, significant
from hypatia_lab.intervals import Triple

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


def waterfall(details: Sequence[dict[str, Any]], title: str, *, leave_out: Sequence[str] = ()) -> tuple[Any, Any]:
    """Stages of a start (topic ``start``) as stacked bars in ms, a lane a configuration, its interval at the end.

    Stages are arithmetic means over the processes that have all of them, so that they add up; ``leave_out`` names
    stages that are not drawn. One that does not say what its call 1 consists of shows it whole as the rest of call 1.
    Raises :class:`FigureError` when no configuration has a stage, or for an unknown stage in ``leave_out``.
    """
    if unknown := [name for name in leave_out if name not in STAGES]:
        raise FigureError(f"waterfall: there is no stage {unknown[0]!r} to leave out; stages: {', '.join(STAGES)}")
    configs, fields, common = read(details, "waterfall", "start")
    kept = [name for name in STAGES if name not in leave_out]
    means: list[dict[str, float]] = []
    totals: list[Triple] = []
    for config in configs:
        columns = {name: config.per_process(name) for name in kept}
        if "rest of call 1" in columns and not columns["rest of call 1"]:
            columns["rest of call 1"] = config.per_process("call 1")
        columns = {name: values for name, values in columns.items() if values}
        whole = [n for n in range(max(map(len, columns.values()), default=0)) if None not in _row(columns, n)]
        means.append(
            {name: math.fsum(values[n] or 0 for n in whole) / len(whole) for name, values in columns.items()}
            if whole
            else {}
        )
        totals.append(mean([math.fsum(v or 0 for v in _row(columns, n)) for n in whole], False) if whole else NONE)
    if not any(means):
        raise nothing(configs, "waterfall", "a stage")
    names = [config.text(fields) for config in configs]
    longest = max(extent(totals))
    unit, size = _axis_unit(longest)
    data: list[dict[str, Any]] = []
    for stage in kept:
        own = [n for n, found in enumerate(means) if found.get(stage, 0) > 0]
        if not own:
            continue
        hover = [
            f"{configs[n].said(fields)}<br>{stage}: {formats.duration(means[n][stage])}, "
            f"{formats.number(100 * means[n][stage] / totals[n][0])}% of {formats.duration(totals[n][0])}"
            for n in own
        ]
        starts = [math.fsum(means[n].get(s, 0) for s in kept[: kept.index(stage)]) / size for n in own]
        shown = {"name": stage.replace("hypatia_lab", "lab"), "hovertext": hover, "width": 0.46}
        shown |= {
            "text": [shown["name"]] * len(own),
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "textfont": {"size": 12},
        }
        data.append(bar_trace(*STAGES[stage], starts, [means[n][stage] / size for n in own], own, **shown))
    legend = legend_columns(data)
    notes = ends(data, configs, fields, totals, size, below=0.36)  # below the bar, whose words it would cross
    left_out = f"without {_stretch(leave_out)}" if leave_out else ""
    of_whole = f"{bars} of the whole" if (bars := intervals_key(data)) else ""
    head = heading(title, [*common, process_count(configs), of_whole, left_out])
    head["margin"] |= {"r": COLUMN}
    layout = lanes(head, names, 38) | {
        "barmode": "overlay",
        "uniformtext": {"minsize": 10, "mode": "hide"},
        "xaxis": {"range": [0, significant(1.05 * longest / size)], "nticks": 5, "title": {"text": f"time, {unit}"}},
        "annotations": notes,
    }
    points = "; ".join(
        f"{config.text(fields)}: {formats.duration(total[0])}, the largest part {max(found, key=lambda s: found[s])} "
        f"({formats.duration(max(found.values()))})"
        for config, found, total in zip(configs, means, totals, strict=True)
        if found
    )
    table = frame(
        [
            identity(config)
            | {
                stage: formats.duration(found.get(stage)) if found.get(stage) != 0 else "0"
                for stage in kept
                if any(stage in m for m in means)
            }
            | {"whole": timed(total), "status": config.fault or "ok"}
            for config, found, total in zip(configs, means, totals, strict=True)
        ]
    )
    return assemble(
        data,
        above_rows(legend(layout), names, tall=56, share=0.43),
        f"Stages of a start ({', '.join(common)}). {points}.",
    ), table


def _axis_unit(longest: float) -> tuple[str, float]:
    """The unit for an axis up to ``longest`` µs, in which its longest time is written, and how many µs that unit is."""
    return ("s", 1e6) if longest >= 1e6 else ("ms", 1e3) if longest >= 1e3 else ("µs", 1.0)


def _stretch(stages: Sequence[str]) -> str:
    """Stages by name, or the first and the last of many neighbours, which a telephone has room for."""
    places = [list(STAGES).index(stage) for stage in stages]
    neighbours = len(places) > 2 and places == list(range(places[0], places[-1] + 1))
    return f"{stages[0]} to {stages[-1]}" if neighbours else listing(list(stages))


def _row(columns: Mapping[str, Sequence[float | None]], number: int) -> list[float | None]:
    return [values[number] for values in columns.values()]


def calls(details: Sequence[dict[str, Any]], title: str) -> tuple[Any, Any]:
    """Every call of a fresh process on its own (topic ``start``, lines ``call 1``, …): time on a log axis over number.

    A tile a configuration, with the geometric mean and interval over the processes. Where there is one of
    ``compile_reduce_overhead`` its first calls are marked compile, record and replay.
    Raises :class:`FigureError` when no configuration has a call.
    """
    configs, fields, common = read(details, "calls", "start")
    data: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    told: list[str] = []
    drawn: list[str] = []
    seen: list[float] = []
    last = 1
    for config in configs:
        numbers = sorted(int(line["name"][5:]) for line in config.details if re.fullmatch(r"call \d+", line["name"]))
        triples = {n: t for n in numbers if not absent((t := config.triple(f"call {n}"))[0])}
        rows.append(
            identity(config) | {f"call {n}": timed(t) for n, t in triples.items()} | {"status": config.fault or "ok"}
        )
        if not triples:
            continue
        name = config.text(fields)
        hover = [f"{config.said(fields)}<br>call {n}: {timed(t)}" for n, t in triples.items()]
        more = {"along": "y", "size": 7, "mode": "lines+markers", "line": {"color": config.look.colour, "width": 2}}
        more |= {"name": config.bare(fields)} | tile(len(data))
        data.append(points_trace(config.look, list(triples.values()), list(triples), hover, **more))
        drawn.append(name)
        seen += extent(triples.values())
        last = max(last, *triples)
        first, settled = triples[min(triples)][0], triples[max(triples)][0]
        told.append(f"{name}: call 1 {formats.duration(first)}, call {max(triples)} {formats.duration(settled)}")
    if not data:
        raise nothing(configs, "calls", "a call")
    missing = [f"{config.text(fields)} ({config.status})" for config in configs if config.fault]
    left_out = f"not drawn: {', '.join(missing)}" if missing else ""
    head = heading(title, [*common, process_count(configs), intervals_key(data), left_out])
    across = {
        "range": [0.5, last + 0.5],
        "dtick": 1 if last < 8 else 3,
        "tick0": 0,
        "title": {"text": "↑ time per call (log scale)\N{EM SPACE}→ call of a fresh process"},
    }
    layout = tiles(drawn, across, thinned(time_axis(seen), 4), head)
    for number, config in enumerate(config for config in configs if config.text(fields) in drawn):
        if config.variant == "compile_reduce_overhead":
            words = _replayed(data[number])
            layout["annotations"] += words
            layout["meta"]["narrow"]["annotations"] += words
            break
    alt = f"Time of each call of a fresh process, log axis ({', '.join(common)}). {'; '.join(told)}."
    return assemble(data, layout, alt), filled(rows)


def _replayed(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the first calls under CUDA graphs do: the third and all later ones replay."""
    on = {"xref": trace.get("xaxis", "x"), "yref": trace.get("yaxis", "y")}
    beside = {"xanchor": "left", "xshift": 6, "yanchor": "bottom", "yshift": -2}
    first = {"yanchor": "middle", "yshift": 0}
    at = dict(zip(trace["x"], trace["y"], strict=True))
    return [
        # The first lies beside its point, which is the highest: above it stands the panel's name.
        SMALL | beside | on | {"text": word, "x": n, "y": round(math.log10(at[n]), 4)} | (first if n == 1 else {})
        for n, word in ((1, "compile"), (2, "record"), (3, "replay"))
        if n in at
    ]


def first_image(details: Sequence[dict[str, Any]], title: str, *, goals: Sequence[float] = ()) -> tuple[Any, Any]:
    """From CUDA context to first image (topic ``start``, line ``first image``): a lane a configuration, on a log axis.

    ``goals`` in ms are dashed lines. Dots are geometric means over the processes.
    Raises :class:`FigureError` when no configuration has a first image.
    """
    configs, fields, common = read(details, "first_image", "start")
    triples = [config.triple("first image") for config in configs]
    seen = extent(triples)
    if not seen:
        raise nothing(configs, "first_image", "a first image")
    marks = [significant(goal) for goal in goals]
    goal_texts = [_ms(mark) for mark in marks]
    span = [-0.5, len(configs) - 0.5]
    data = [rule_trace([mark] * 2, span, "dash", f"goal: {_ms(mark)}") for mark in marks]
    notes = ends(data, configs, fields, triples)
    for step, (mark, text) in enumerate(sorted(zip(marks, goal_texts, strict=True), reverse=True)):
        # One above the other: on a telephone two goals are closer than their words.
        place = {"x": round(math.log10(mark), 4), "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom"}
        notes.append(SMALL | {"text": text, "yshift": 14 * step} | place)
    goal = f"dashed: goal{'s' if len(marks) > 1 else ''}" if marks else ""
    head = heading(title, [*common, process_count(configs), intervals_key(data), goal])
    head["margin"] |= {"t": head["margin"]["t"] + 4 + 14 * len(marks), "r": COLUMN}
    axis = thinned(log_axis([*(us / 1e3 for us in seen), *marks], "first image", _ms, pad=1.4), 3)
    names = [config.text(fields) for config in configs]
    layout = lanes(head, names)
    layout |= {"xaxis": axis, "annotations": notes, "shapes": lane_rules(len(configs))}
    table = frame(
        [
            identity(config)
            | {"first image": timed(t)}
            | {f"within {text}": _within(t, 1e3 * mark) for mark, text in zip(marks, goal_texts, strict=True)}
            | {"status": config.fault or "ok"}
            for config, t in zip(configs, triples, strict=True)
        ]
    )
    points = "; ".join(
        f"{config.text(fields)}: {timed(t)}" for config, t in zip(configs, triples, strict=True) if t[0] > 0
    )
    against = f" Dashed lines mark {listing(goal_texts)}." if marks else ""
    alt = f"Time to the first image on a log axis ({', '.join(common)}). {points}.{against}"
    return assemble(data, above_rows(closed(layout), names), alt), table


def _ms(value: float) -> str:
    return short(formats.duration(1e3 * value))


def _within(triple: Triple, goal: float) -> str:
    """Whether a time keeps to ``goal``: ``undecided`` where its interval holds the goal, or there is none."""
    value, low, high = triple
    if absent(value):
        return formats.MISSING
    return "yes" if high <= goal else "no" if low > goal else "undecided"


_FUNCTOR = re.compile(r"CUDAFunctor_(\w+)|(\w+?)(?:_kernel_cuda|_kernel_impl|Functor|Op)\b")
_WRAPPERS = ("AUnary", "BUnary", "Binary", "gpu")


def short_kernel(name: str, room: int = 36) -> str:
    """A kernel's name for a narrow figure: no return type, namespaces, template arguments, but the functor in them."""
    bare = name.replace("(anonymous namespace)::", "")
    bare = re.sub(r"^(?:void|std::enable_if<[^<>]*>::type) ", "", bare)
    if wrapped := re.match(r"cutlass::Kernel2?<(\w+)>", bare):  # the wrapper says nothing of what it runs
        bare = wrapped[1]
    spaces = re.split(r"(?<=\w)[<(]", bare)[0].split("::")
    base = "::".join(spaces[-2:]) if spaces[-1] == "kernel" else spaces[-1]
    found = (first or second for first, second in _FUNCTOR.findall(bare.partition("<")[2]))
    inside = next((word for word in found if word not in _WRAPPERS), "")
    if inside and inside not in base:
        base = f"{base.removesuffix('_kernel')} ({inside})"
    if len(base) <= room:
        return base
    tail = (room - 1) // 3
    return f"{base[: room - 1 - tail]}…{base[-tail:]}"


def kernels(details: Sequence[dict[str, Any]], title: str, *, top: int = 5) -> tuple[Any, Any]:
    """Device time of one call by kernel (topic ``kernels``): the ``top`` of each as bars with launch counts.

    Of a CPU the kernels are torch's operators, and the counts those of their calls.
    What is left is gathered in one bar. Times are arithmetic means over the processes, with their intervals; names
    are shortened, the table and the text under the pointer have them whole.
    Raises :class:`FigureError` when no configuration has a kernel.
    """
    configs, fields, common = read(details, "kernels", "kernels")
    host = all(line.get("device") == "cpu" for config in configs for line in config.details)
    what, one, several = ("operator", "call", "calls") if host else ("kernel", "launch", "launches")
    timed_what = "time" if host else "device time"
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    shortened: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    told: list[str] = []
    y, longest = 0.0, 0.0
    seen = [value for config in configs for line in config.details for value in line["values"] if value is not None]
    unit, size = _axis_unit(max(seen, default=0.0))
    for config in configs:
        listed = [
            (line["name"], line["count"], config.triple(line["name"], logarithms=False)) for line in config.details
        ]
        listed = sorted((k for k in listed if not absent(k[2][0])), key=lambda k: -k[2][0])
        whole, launches = math.fsum(t[0] for _, _, t in listed), sum(count for _, count, _ in listed)
        said = f"{launches} {one if launches == 1 else several}, {formats.duration(whole)}" if listed else config.status
        notes.append(SMALL | {"text": f"<b>{config.text(fields)}</b>: {said}", "y": y} | _AT_LEFT)
        if not listed:
            y = round(y + 1, 2)
            continue
        shown, rest = listed[:top], listed[top:]
        if len(rest) == 1:  # one kernel is no crowd
            shown, rest = listed, []
        if rest:
            left = math.fsum(t[0] for _, _, t in rest)
            shown = [*shown, (f"{len(rest)} others", sum(count for _, count, _ in rest), (left, math.nan, math.nan))]
        places = []
        for name, count, t in shown:
            y = round(y + 0.9, 2)
            places.append(y)
            text = f"{formats.duration(t[0])}{f', {count}×' if count > 1 else ''}"
            end = significant((t[0] if absent(t[2]) else t[2]) / size)
            at = SMALL | {"y": y} | _AT_LEFT | {"xshift": 6}
            notes.append(at | {"text": short_kernel(name)})
            shortened[short_kernel(name)] = short_kernel(name, 40 - max(len(text), 4))
            notes.append(SMALL | {"text": text, "xref": "paper", "x": 1, "xanchor": "right", "y": y})
            longest = max(longest, end)
        hover = [
            "<br>".join([config.said(fields), *_broken(name), f"{timed(t)}, {count}×"]) for name, count, t in shown
        ]
        drawn = [(t[0] / size, t[1] / size, t[2] / size) for _, _, t in shown]
        bars = bar_trace(config.look.colour, "", None, [t[0] for t in drawn], places, hovertext=hover, width=0.8)
        bars["marker"]["opacity"] = 0.5  # a name shows on its bar, and an interval
        data.append(bars | {"error_x": error_bars(drawn, config.look.colour), "name": config.bare(fields)})
        y = round(y + 1.15, 2)
        name, count, t = listed[0]
        share = formats.number(100 * t[0] / whole)
        told.append(f"{config.text(fields)}: {said}; {share}% in {short_kernel(name)} ({count}×)")
        rows += [
            identity(config)
            | {
                "time": timed(t),
                "share": f"{formats.number(100 * t[0] / whole)}%",
                several: count,
                what: name,
            }
            for name, count, t in listed
        ]
    if not data:
        raise nothing(configs, "kernels", "a kernel")
    head = heading(title, [*common, f"{timed_what} of one call", f"n×: {several}", intervals_key(data)])
    head["margin"] |= {"l": 14}
    layout = head | {
        "height": round(24 * (y + 0.2)),
        "xaxis": {
            "range": [0, significant(1.45 * longest)],
            "showgrid": False,
            "nticks": 6,
            "title": {"text": f"{timed_what} per call, {unit}"},
        },
        "yaxis": {"range": [round(y - 0.4, 2), -0.6], "showticklabels": False, "showgrid": False},
        "annotations": notes,
    }
    # Beside its time a telephone has less room for a name.
    own = [note | {"text": shortened.get(note["text"], note["text"])} for note in notes]
    layout["meta"] = head["meta"] | {"narrow": {"annotations": own}}
    return assemble(data, closed(layout), f"Top kernels ({', '.join(common)}). {'. '.join(told)}."), frame(rows)


_AT_LEFT = {"xref": "paper", "x": 0, "xanchor": "left", "xshift": 2}


def _broken(name: str) -> list[str]:
    """A long name on lines that a hover box has room for."""
    return [name[n : n + 60] for n in range(0, min(len(name), 240), 60)]


def _reach(configs: Sequence[Configuration]) -> float:
    """When the last event of any ends, in µs."""
    spans = [(FACTORS[line["unit"]], line["values"]) for config in configs for line in config.details if line["values"]]
    return max((factor * math.fsum(values) for factor, values in spans), default=0.0)


def timeline(details: Sequence[dict[str, Any]], title: str) -> tuple[Any, Any]:
    """What the device did in one call (topic ``timeline``, values start and duration), gaps left blank.

    Neighbouring events alternate between two strengths of the variant's colour. Raises :class:`FigureError` when no
    configuration has an event.
    """
    configs, fields, common = read(details, "timeline", "timeline")
    data: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    told: list[str] = []
    labels: list[str] = []
    unit, size = _axis_unit(_reach(configs))
    for n, config in enumerate(configs):
        factor = FACTORS[config.details[0]["unit"]]
        events = (
            []
            if config.fault
            else [(*(factor * v for v in line["values"]), line["name"]) for line in config.details if line["values"]]
        )
        events.sort()
        if not events:
            labels.append(f"{config.text(fields)}: {config.status}")
            continue
        reached, busy, gap = 0.0, 0.0, 0.0
        for start, length, name in events:
            idle = max(0.0, start - reached)
            busy += max(0.0, start + length - max(start, reached))
            gap, reached = max(gap, idle), max(reached, start + length)
            rows.append(
                {"variant": config.text(fields), "start": formats.duration(start), "duration": formats.duration(length)}
                | {"idle before": formats.duration(idle) if idle else formats.MISSING, "event": name}
            )
        share = f"{formats.number(100 * busy / reached, 0)}%"
        labels.append(f"{config.text(fields)}: busy {share}")
        said = f"{len(events)} event{'' if len(events) == 1 else 's'} in {formats.duration(reached)}, busy {share}"
        told.append(f"{config.text(fields)}: {said}, {f'longest gap {formats.duration(gap)}' if gap else 'no gap'}")
        hover = [
            f"{config.said(fields)}<br>{short_kernel(name)}<br>{formats.duration(length)} at {formats.duration(start)}"
            for start, length, name in events
        ]
        more = {"hovertext": hover, "width": 0.6, "name": config.bare(fields)}
        starts, lengths = [e[0] / size for e in events], [e[1] / size for e in events]
        bars = bar_trace(config.look.colour, "", starts, lengths, [n] * len(events), **more)
        bars["marker"]["opacity"] = [1.0 if k % 2 == 0 else 0.6 for k in range(len(events))]
        data.append(bars)
    if not data:
        raise nothing(configs, "timeline", "an event")
    longest = max(start + length for trace in data for start, length in zip(trace["base"], trace["x"], strict=True))
    under = [*common, "one call of one process", "blank: the device is idle", "shades tell neighbours apart"]
    layout = lanes(heading(title, under), labels) | {
        "barmode": "overlay",
        "xaxis": {
            "range": [0, significant(1.02 * longest)],
            "nticks": 6,
            "title": {"text": f"since the first start, {unit}"},
        },
        "shapes": lane_rules(len(configs)),
    }
    alt = f"Device timeline ({', '.join(common)}). {'; '.join(told)}."
    return assemble(data, above_rows(closed(layout), labels), alt), frame(rows)
