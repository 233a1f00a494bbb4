"""What probes saw, configuration by configuration, read from detail lines of records; and what their tables share.

A detail line (see :data:`hypatia_lab.records.DETAIL`) says what a probe saw of one call or one process; the lines of
one workload, variant, case and machine make up a :class:`Configuration`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypatia_lab import formats, intervals, tables
from hypatia_lab.figures.language import FigureError, Style, style
from hypatia_lab.figures.mark_rows import NOTHING, Cell
from hypatia_lab.formats import absent
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
