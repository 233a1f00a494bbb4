"""Figures of details: what one call did, one process, one kernel.

A detail line (see :data:`hypatia_lab.records.DETAIL`) says what a probe saw of one call or one process; the lines of
one workload, variant, case and machine make up a :class:`Configuration`.

Each figure takes detail lines of records, each with its ``machine``, filtered by the caller, and returns
``(figure, table)`` as in :mod:`hypatia_lab.figures.comparisons`. A variant × case (and whatever else differs) is a
configuration, which keeps its variant's look. One that was skipped, crashed or wrong is named with its status and never
drawn. Values are over fresh processes, one each; the bars are 95% t-intervals, of logarithms on a log axis.
When there is nothing to draw :class:`FigureError` says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypatia_lab import formats, intervals, tables
from hypatia_lab.figures import marks
from hypatia_lab.figures.axes import Axis, duration, extent, log_axis, time_axis
from hypatia_lab.figures.language import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, FigureError, Style, style
from hypatia_lab.figures.mark_rows import NOTHING, Block, Cell, Segment, bars, draw, stacked
from hypatia_lab.figures.plots import plotted, points_trace, tile, tiles
from hypatia_lab.formats import absent, listing, significant
from hypatia_lab.intervals import Interval, Triple
from hypatia_lab.variants import label, load, variants

FACTORS = {"s": 1e6, "ms": 1e3, "us": 1.0, "1": 1.0, "%": 1.0, "B": 1.0, "B/s": 1.0}
"""Unit of a detail → what its values are multiplied by: times become µs, all else stays."""

CASES = {
    "empty": "nothing stored",
    "disk": "disk caches",
    "mega": "Mega-Cache",
    "aoti_package": "package, Python loader",
    "aoti_disk": "package and caches",
    "aoti_raw": "package, C++ loader",
    "cubin": "compiled before",
    "no cubin": "compiled now",
}
"""Case of a start → what a figure calls it."""
PLACE = ("operation", "shape", "math", "machine")
"""The fields of a :class:`Configuration` that say what was computed and where."""
WHO = ("variant", "case", *PLACE)
"""Columns of a table by which alt text tells configurations apart."""


@dataclass(frozen=True)
class Configuration:
    """What a probe looked at: a variant in a case, on a workload of ``size`` elements and a machine; its detail lines.

    ``operation`` names a direction other than forward too; ``shape`` and ``math`` are as pages write them.
    """

    variant: str
    case: str
    origin: str
    operation: str
    shape: str
    math: str
    machine: str
    size: int
    details: list[dict[str, Any]] = field(default_factory=list)

    @property
    def place(self) -> dict[str, str]:
        """Its fields of :data:`PLACE`."""
        return {name: getattr(self, name) for name in PLACE}

    @property
    def look(self) -> Style:
        """Colour, marker and place of its variant."""
        return style(self.variant, self.origin)

    @property
    def fault(self) -> str:
        """Status and reason of its first line that is not ok; empty when all are."""
        bad = next((line for line in self.details if line["status"] != "ok"), None)
        return "" if bad is None else f"{bad['status'].replace('_', ' ')}: {bad['reason']}".removesuffix(": ")

    @property
    def status(self) -> str:
        """Why nothing is drawn, in a word or two."""
        return self.fault.split(":")[0] or "no value"

    def per_process(self, *names: str) -> list[float | None]:
        """Sum of the lines called ``names`` in each process (times in µs), None where one has no value."""
        found = [line for line in self.details if line["name"] in names and line["values"]]
        if self.fault or not found:
            return []
        columns = zip(*(line["values"] for line in found), strict=True)
        factor = FACTORS[found[0]["unit"]]
        return [None if any(map(absent, column)) else factor * math.fsum(column) for column in columns]

    def estimate(self, *names: str) -> Interval:
        """The lines called ``names`` together, over the processes (times in µs); NaN where nothing was measured.

        What is the same in all processes is exact, and so is a count of one (a script prints ratios of times without a
        unit, too). Of what may be zero the mean is arithmetic.
        """
        values = [v for v in self.per_process(*names) if v is not None]
        if not values:
            return intervals.NOTHING
        named = [line for line in self.details if line["name"] in names]
        counts = all(line["unit"] == "1" and (line["topic"] != "program" or values[0] % 1 == 0) for line in named)
        if len(set(values)) == 1 and (len(values) > 1 or counts):
            return Interval(values[0], values[0], values[0], len(values))
        return intervals.estimate(values)

    def triple(self, *names: str, logarithms: bool = True) -> Triple:
        """Mean over the processes between its bounds, geometric or arithmetic; NaN where nothing was measured.

        Arithmetic is for counts, and for parts of a whole that have to add up to it.
        """
        values = [v for v in self.per_process(*names) if v is not None and (v > 0 or not logarithms)]
        return mean(values, logarithms) if values else NOTHING

    @property
    def name(self) -> str:
        """What a person calls its variant."""
        return label(self.operation.partition(",")[0], self.variant)

    def text(self, fields: Sequence[str]) -> str:
        """Its variant in words, its case, and those of ``fields`` that tell several apart, on one line."""
        case = CASES.get(self.case, self.case)
        return ", ".join(part for part in (self.name, case, *(getattr(self, f) for f in fields)) if part)

    def bare(self, fields: Sequence[str] = ()) -> str:
        """The same by the variant's own name: what a trace is called, and what an error names."""
        return ", ".join(part for part in (self.variant, self.case, *(getattr(self, f) for f in fields)) if part)

    def said(self, fields: Sequence[str]) -> str:
        """The same for the pointer, which is told the variant's own name as well."""
        return f"{self.text(fields)}<br>{self.variant} ({self.origin})"


def mean(values: Sequence[float], logarithms: bool) -> Triple:
    """Geometric (``logarithms``) or arithmetic mean of times between its bounds, of which none is negative."""
    found = intervals.geometric(values) if logarithms else intervals.mean(values)
    return found.value, found.low if absent(found.low) else max(0.0, found.low), found.high


def read(
    details: Sequence[dict[str, Any]], figure: str, topic: str
) -> tuple[list[Configuration], list[str], list[str]]:
    """Configurations in details of ``topic``: smallest workload first, variants in their places, cases as they come.

    With them the fields that tell them apart, and what they have in common as text.
    """
    own = [d for d in details if d["topic"] == topic]
    if not own:
        known = ", ".join(dict.fromkeys(d["topic"] for d in details)) or "none at all"
        raise FigureError(f"{figure}: no details of topic {topic!r} to draw; topics given: {known}")
    load()
    found: dict[tuple[str, ...], Configuration] = {}
    for d in own:
        # That everything is forward goes without saying.
        direction = d.get("direction", "forward")
        step = "" if direction == "forward" else f", {formats.direction(direction)}"
        place = (d["operation"] + step, "×".join(map(str, d["shape"])), f"{d['dtype']}/{d['math']}", d["machine"])
        # Two experiments may look at the same thing: that makes two, not one of twice the lines.
        key = (*place, d["variant"], d["case"], d.get("experiment", ""))
        known = variants(d["operation"]).get(d["variant"])
        origin = d.get("origin") or (known.origin if known else "own")
        new = Configuration(d["variant"], d["case"], origin, *place, math.prod(d["shape"]))
        lines = found.setdefault(key, new).details
        # Two probes of one start are more processes of it; other topics may list a name twice.
        twin = next((n for n, line in enumerate(lines) if topic == "start" and line["name"] == d["name"]), None)
        if twin is None:
            lines.append(d)
        else:
            lines[twin] = lines[twin] | {"values": [*lines[twin]["values"], *d["values"]]}
    configs = list(found.values())
    fields = [f for f in PLACE if len({getattr(config, f) for config in configs}) > 1]
    places = list(dict.fromkeys((config.machine, config.operation) for config in configs))
    configs.sort(
        key=lambda config: (
            places.index((config.machine, config.operation)),
            config.size,
            config.math,
            config.look.place,
        )
    )
    return configs, fields, [getattr(configs[0], f) for f in PLACE if f not in fields]


def nothing(configs: Sequence[Configuration], figure: str, what: str) -> FigureError:
    """The error of a figure for which no configuration has ``what``: it says what became of each."""
    seen = "; ".join(f"{config.bare()}: {config.fault or 'not measured'}" for config in configs)
    return FigureError(f"{figure}: none of {len(configs)} configurations has {what} ({seen[:400]})")


def timed(triple: Triple) -> str:
    """A time in µs between its bounds, in the unit that suits it: ``1.52 s [1.50, 1.54]``.

    What one process took, or what is a sum of others, has no bounds; it says so.
    """
    if not absent(triple[0]) and absent(triple[1]):
        return f"{formats.duration(triple[0])} (no interval)"
    return formats.time(Interval(*triple, 0))


def identity(config: Configuration) -> dict[str, str]:
    """The first columns of a table: which configuration it is, and where it ran."""
    return {"variant": config.variant, "case": config.case or formats.MISSING} | config.place


def process_count(configs: Sequence[Configuration]) -> str:
    """How many fresh processes gave a value, in words: the fewest and the most behind a line of a figure."""
    drawn = (line["values"] for config in configs if not config.fault for line in config.details)
    return tables.processes(drawn, "fresh process")


def filled(rows: Sequence[dict[str, Any]]) -> Any:
    """A frame of rows that have not all the same columns; the last column stays last."""
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "status"))
    return tables.frame([{name: row.get(name, formats.MISSING) for name in [*columns, "status"]} for row in rows])


def lane(config: Configuration, fields: Sequence[str], triple: Triple = NOTHING, **more: Any) -> Cell:
    """The row of a configuration in a figure: its marker at ``triple``, or what ``more`` says of it, or its fault."""
    own: dict[str, Any] = {"text": timed(triple), "key": config.bare(fields), "status": config.status}
    return Cell(config.text(fields), "", config.look, triple, config.said(fields), **(own | more))


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
        totals.append(mean([math.fsum(v or 0 for v in _row(columns, n)) for n in whole], False) if whole else NOTHING)
    if not any(means):
        raise nothing(configs, "waterfall", "a stage")

    def piece(stage: str, us: float, whole: float) -> Segment:
        share = f"{formats.number(100 * us / whole)}% of {formats.duration(whole)}"
        return Segment(0, us, STAGES[stage], f"{stage}: {formats.duration(us)}, {share}")

    cells = [
        lane(config, fields, total, segments=stacked([piece(*own, total[0]) for own in found.items()]))
        for config, found, total in zip(configs, means, totals, strict=True)
    ]
    seen = [stage for stage in kept if any(found.get(stage, 0) > 0 for found in means)]
    key = [(marks.swatch(*STAGES[stage]), stage) for stage in seen]
    table = tables.frame(
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
    under = [*common, process_count(configs), f"without {listing(list(leave_out))}" if leave_out else ""]
    columns = [*WHO, "whole"]
    return draw(bars({"": cells}, "time", duration), title, under, table, columns, key), table


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
        hover = [f"{config.said(fields)}<br>call {n}: {timed(t)}" for n, t in triples.items()]
        more = {"along": "y", "size": 7, "mode": "lines+markers", "line": {"color": config.look.colour, "width": 2}}
        does = REPLAYED if config.variant == "compile_reduce_overhead" else {}
        values = [formats.duration(us) if high <= low * intervals.UNTOLD else "" for us, low, high in triples.values()]
        more["text"] = [f"{does.get(n, '')} {text}".strip() for n, text in zip(triples, values, strict=True)]
        more |= {"name": config.bare(fields)} | tile(len(data))
        data.append(points_trace(config.look, list(triples.values()), list(triples), hover, **more))
        drawn.append(config.text(fields))
        seen += extent(triples.values())
        last = max(last, *triples)
    if not data:
        raise nothing(configs, "calls", "a call")
    missing = [f"{config.text(fields)} ({config.status})" for config in configs if config.fault]
    under = [*common, process_count(configs), f"not drawn: {', '.join(missing)}" if missing else ""]
    layout = tiles(drawn, Axis(0.5, last + 0.5, "call of a fresh process"), time_axis(seen))
    table = filled(rows)
    columns = [*WHO, "call 1", f"call {last}"]
    return plotted(data, layout, title, under, table, columns), table


REPLAYED = {1: "compile", 2: "record", 3: "replay"}
"""What the first calls under CUDA graphs do: the third and all later ones replay."""


def first_image(details: Sequence[dict[str, Any]], title: str, *, goals: Sequence[float] = ()) -> tuple[Any, Any]:
    """From CUDA context to first image (topic ``start``, line ``first image``): a row a configuration, on a log axis.

    ``goals`` in ms are dashed lines. Dots are geometric means over the processes.
    Raises :class:`FigureError` when no configuration has a first image.
    """
    configs, fields, common = read(details, "first_image", "start")
    triples = [config.triple("first image") for config in configs]
    seen = extent(triples)
    if not seen:
        raise nothing(configs, "first_image", "a first image")
    goals = [significant(goal) for goal in goals]
    texts = [duration(1e3 * goal) for goal in goals]
    table = tables.frame(
        [
            identity(config) | {"first image": timed(t), "status": config.fault or "ok"}
            for config, t in zip(configs, triples, strict=True)
        ]
    )
    axis = log_axis([*seen, *(1e3 * goal for goal in goals)], "first image", duration, pad=1.4)
    cells = [lane(config, fields, triple) for config, triple in zip(configs, triples, strict=True)]
    blocks = [Block("", cells, axis, [(1e3 * goal, "dash") for goal in goals])]
    under = [*common, process_count(configs), f"dashed: goal of {listing(texts)}" if goals else ""]
    return draw(blocks, title, under, table, [*WHO, "first image"]), table


_FUNCTOR = re.compile(r"CUDAFunctor_(\w+)|(\w+?)(?:_kernel_cuda|_kernel_impl|Functor|Op)\b")
_WRAPPERS = ("AUnary", "BUnary", "Binary", "gpu")


def short_kernel(name: str) -> str:
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
    return base if len(base) <= 36 else f"{base[:24]}…{base[-11:]}"


LISTED = 5
"""So many kernels of a call have a bar of their own."""


def kernels(details: Sequence[dict[str, Any]], title: str) -> tuple[Any, Any]:
    """Device time of one call by kernel (topic ``kernels``): the longest ones as bars with launch counts.

    Of a CPU the kernels are torch's operators, and the counts those of their calls.
    What is left is gathered in one bar. Times are arithmetic means over the processes, with their intervals; names
    are shortened, the table and the text under the pointer have them whole.
    Raises :class:`FigureError` when no configuration has a kernel.
    """
    configs, fields, common = read(details, "kernels", "kernels")
    host = all(line.get("device") == "cpu" for config in configs for line in config.details)
    what, one, several = ("operator", "call", "calls") if host else ("kernel", "launch", "launches")
    lanes: dict[str, list[Cell]] = {}
    rows: list[dict[str, Any]] = []
    for config in configs:
        listed = [
            (line["name"], line["count"], config.triple(line["name"], logarithms=False)) for line in config.details
        ]
        listed = sorted((k for k in listed if not absent(k[2][0])), key=lambda k: -k[2][0])
        if not listed:
            lanes.setdefault(config.text(fields), []).append(lane(config, fields))
            continue
        whole, launches = math.fsum(t[0] for _, _, t in listed), sum(count for _, count, _ in listed)
        shown, rest = listed[:LISTED], listed[LISTED:]
        if len(rest) == 1:  # one kernel is no crowd
            shown, rest = listed, []
        if rest:
            left = math.fsum(t[0] for _, _, t in rest)
            shown = [*shown, (f"{len(rest)} others", sum(count for _, count, _ in rest), (left, math.nan, math.nan))]
        bare = Style(config.look.colour, "", 0)  # a bar has no marker at its end
        many = f"{launches} {one if launches == 1 else several}, {formats.duration(whole)}"
        own = lanes.setdefault(f"{config.text(fields)}: {many}", [])
        for name, count, t in shown:
            text = f"{formats.duration(t[0])}{f', {count}×' if count > 1 else ''}"
            bar = lane(config, fields, t, text=text, segments=[Segment(0, t[0], (bare.colour, ""), name)])
            said = f"{bar.said}<br>{name}<br>{timed(t)}, {count}×"
            own.append(replace(bar, name=short_kernel(name), look=bare, said=said))
        rows += [
            identity(config)
            | {"time": timed(t), "share": f"{formats.number(100 * t[0] / whole)}%", several: count, what: name}
            for name, count, t in listed
        ]
    if not rows:
        raise nothing(configs, "kernels", "a kernel")
    timed_what = "time" if host else "device time"
    under = [*common, process_count(configs), f"n×: {several}"]
    table = tables.frame(rows)
    columns = [*WHO, "time", "share", what]
    return draw(bars(lanes, f"{timed_what} of one call", duration), title, under, table, columns), table


def timeline(details: Sequence[dict[str, Any]], title: str) -> tuple[Any, Any]:
    """What the device did in one call (topic ``timeline``, values start and duration), gaps left blank.

    Neighbouring events alternate between two strengths of the variant's colour. Raises :class:`FigureError` when no
    configuration has an event.
    """
    configs, fields, common = read(details, "timeline", "timeline")
    cells: list[Cell] = []
    rows: list[dict[str, Any]] = []
    for config in configs:
        factor = FACTORS[config.details[0]["unit"]]
        lines = [] if config.fault else [line for line in config.details if line["values"]]
        events = [(*(factor * v for v in line["values"]), line["name"]) for line in lines]
        events.sort()
        if not events:
            cells.append(lane(config, fields))
            continue
        pieces: list[Segment] = []
        reached, busy, gap = 0.0, 0.0, 0.0
        for start, length, name in events:
            said = f"{short_kernel(name)}\n{formats.duration(length)} at {formats.duration(start)}"
            strength = 0.6 if len(pieces) % 2 else 1.0
            pieces.append(Segment(start, length, (config.look.colour, ""), said, strength))
            idle = max(0.0, start - reached)
            busy += max(0.0, start + length - max(start, reached))
            gap, reached = max(gap, idle), max(reached, start + length)
            rows.append(
                {"variant": config.text(fields), "start": formats.duration(start), "duration": formats.duration(length)}
                | {"idle before": formats.duration(idle) if idle else formats.MISSING, "event": name}
            )
        many = f"{len(events)} event{'' if len(events) == 1 else 's'} in {formats.duration(reached)}"
        longest = f"longest gap {formats.duration(gap)}" if gap else "no gap"
        text = f"{many}, busy {formats.number(100 * busy / reached, 0)}%, {longest}"
        cells.append(lane(config, fields, text=text, segments=pieces))
    if not rows:
        raise nothing(configs, "timeline", "an event")
    under = [*common, "one call of one process", "blank: the device is idle", "shades tell neighbours apart"]
    table, blocks = tables.frame(rows), bars({"": cells}, "since the first start", duration)
    # Which of hundreds of events is which is for the pointer: in words stand the rows' own texts.
    told = tables.frame([{"variant": cell.name, "said": cell.text} for cell in cells if cell.segments])
    return draw(blocks, title, under, told, ["variant", "said"]), table
