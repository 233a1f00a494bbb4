"""Figures that a claim names one by one: a line of a probe or the time of a cell, in one machine's records.

Quantity ``figure`` is one of them, or several added; quantity ``quotient`` is one sum of them over another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hypatia_lab import intervals
from hypatia_lab.claims.claim import Claim, Figure
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record
from hypatia_lab.results import Row

QUANTITIES = ("figure", "quotient")

UNITS = {"s": ("time", 1e6), "ms": ("time", 1e3), "µs": ("time", 1.0), "us": ("time", 1.0)}
UNITS |= {"%": ("share", 1.0), "B": ("size", 1.0), "MB": ("size", 1e6), "B/s": ("rate", 1.0), "GB/s": ("rate", 1e9)}
"""Unit of a record or a claim → (what it measures, its size); any other unit counts something."""
COUNT = ("count", 1.0)
MISSING = "no record has"
"""How a :class:`NoFigure` begins when nobody has measured the figure yet."""

BETWEEN_RUNS = {"graph": 0.042, "cold": 0.042}
"""Clock → by how much the time of one cell differs from one run to the next: the standard deviation of its logarithm.

Root mean square over 106 cells (wall clock: 53) that several experiments of one H200 measured.
"""
BETWEEN_RUNS_HOST = 0.21
"""The same for times in which the host has a part: by the wall clock, and all that a probe times."""

Key = tuple[str, str, str, str, str]
"""(workload, variant, topic, case, name) of a detail; topic and case are empty and name is the clock of a cell."""
Index = dict[Key, list["Series"]]


class NoFigure(Exception):
    """There is no figure to judge: ``verdict`` says in which way, the message why."""

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


@dataclass(frozen=True)
class Series:
    """One figure of one experiment: a value a process (None where it is missing), or the status that says why not."""

    experiment: str
    unit: str
    values: tuple[float | None, ...]
    status: str = "ok"
    reason: str = ""
    throttled: bool = False
    clock: str = ""
    vetoed: bool = False
    rare: bool = True

    @property
    def n(self) -> int:
        """Processes that gave a value."""
        return sum(value is not None for value in self.values)

    @property
    def spread(self) -> float:
        """By how much it would differ in another run: the standard deviation of its logarithm. Counts do not."""
        timed = UNITS.get(self.unit, COUNT)[0] in ("time", "rate")
        return BETWEEN_RUNS.get(self.clock, BETWEEN_RUNS_HOST) if timed else 0.0


def place(workload: str) -> str:
    """``linear_relu 1024x784x2048 float32``: a workload in a sentence (math mode and direction only where unusual)."""
    operation, shape, dtype, math_mode, direction = workload.split("/")
    text = f"{operation} {shape} {dtype}" + ("" if math_mode == "ieee" else f" as {math_mode}")
    return text if direction == "forward" else f"{text} {direction.replace('_', ' and ')}"


def index(records: Iterable[Record], rows: Iterable[Row]) -> Index:
    """Every detail of one machine's ``records`` and every time of its results ``rows``, by :data:`Key`.

    What a probe left behind that did not end well also stands under the name ``""``: it is all that can be said of
    the lines that are missing.
    """
    found: Index = {}
    for row in rows:
        times = Series(
            *(row.experiment, "us", tuple(row.medians_us), row.status, row.reason),
            throttled=row.throttled,
            clock=row.clock,
            vetoed=bool(row.veto),
            rare=False,
        )
        found.setdefault((row.workload, row.variant, "", "", row.clock), []).append(times)
    for record in records:
        for line in record.details:
            shape = "x".join(map(str, line["shape"]))
            direction = line.get("direction", "forward")
            where = "/".join((line["operation"], shape, line["dtype"], line["math"], direction))
            one = Series(record.experiment, line["unit"], tuple(line["values"]), line["status"], line["reason"])
            probe = (where, line["variant"], line["topic"], line["case"])
            found.setdefault((*probe, line["name"]), []).append(one)
            if one.status != "ok":
                found.setdefault((*probe, ""), []).append(one)
    return found


def _label(figures: Sequence[Figure], clock: str) -> str:
    """``call 2 + call 3 (start, empty) of compile``: what figures have in common (variant, probe) stands once."""
    groups: dict[Figure, list[str]] = {}
    for figure in figures:
        groups.setdefault(Figure(figure.variant, figure.topic, "", figure.case, "", figure.workload), []).append(
            figure.name if figure.topic else f"{figure.clock or clock} clock"
        )
    texts = []
    for own, names in groups.items():
        under = ", ".join(part for part in (own.topic, own.case) if part)
        what = f"{' + '.join(names)} ({under})" if own.topic else f"the time ({' + '.join(names)})"
        texts.append(f"{what} of {own.variant}" + (f" at {place(own.workload)}" if own.workload else ""))
    return " + ".join(texts)


def subject(claim: Claim, clock: str) -> str:
    """What the claim's figure is, as the noun phrase of a reason; ``clock`` is that of cells that name none."""
    if claim.quantity == "figure":
        return _label(claim.of, clock)
    word = "as a share of" if claim.unit == "%" else "over"
    return f"{_label(claim.over, clock)} {word} {_label(claim.under, clock)}"


def _candidates(figure: Figure, found: Index, workload: str, clock: str) -> list[Series]:
    """The figure as every experiment has it. Raises :class:`NoFigure` when one failed its check or none has it."""
    where = figure.workload or workload
    probe = (where, figure.variant, figure.topic, figure.case)
    name = figure.name if figure.topic else figure.clock or clock
    there = found.get((*probe, name)) or found.get((*probe, ""), [])
    what = f"{_label([figure], clock)}" + ("" if figure.workload else f" at {place(workload)}")
    for series in there:
        if series.status not in ("ok", "skipped"):
            raise NoFigure("invalid", f"{what} is not valid: {series.status}, {series.reason}")
    usable = [series for series in there if series.status == "ok"]
    if not usable and there:
        raise NoFigure("not_testable", f"{what} was skipped: {there[0].reason or 'no reason given'}")
    if not usable:
        raise NoFigure("not_testable", f"{MISSING} {what}")
    return usable


def _together(candidates: Sequence[Sequence[Series]], experiment: str) -> list[Series]:
    """One series a figure, all from the experiment that has them all (of several the one with most processes).

    Of several with as many it is ``experiment``, if that is among them. Probes of one question may lie in different
    experiments; then each figure comes from where it has most processes.
    """
    by_experiment = [{series.experiment: series for series in own} for own in candidates]
    shared = [name for name in by_experiment[0] if all(name in own for own in by_experiment)]
    if shared:
        best = max(shared, key=lambda name: (min(own[name].n for own in by_experiment), name == experiment))
        return [own[best] for own in by_experiment]
    return [max(own, key=lambda series: (series.n, series.experiment == experiment)) for own in candidates]


def _values(claim: Claim, series: Sequence[Series]) -> list[float]:
    """The claimed quantity in every process that has all of ``series``, paired by the process's number.

    Probes run each in processes of their own, so those pairs are pairs of independent samples, which leaves the
    interval valid. Raises :class:`NoFigure` when units do not go together.
    """
    kinds, sizes = zip(*(UNITS.get(one.unit, COUNT) for one in series), strict=True)
    own, size = UNITS.get(claim.unit, COUNT)
    if len(set(kinds)) > 1 or (claim.quantity == "figure" and kinds[0] != own):
        units = ", ".join(dict.fromkeys(one.unit for one in series))
        raise NoFigure("not_testable", f"the units of the record ({units}) do not go together with {claim.unit}")
    values = []
    for process in zip(*(one.values for one in series), strict=False):
        parts = [math.nan if v is None else v * s for v, s in zip(process, sizes, strict=True)]
        above = math.fsum(parts[: len(claim.of or claim.over)])
        below = math.fsum(parts[len(claim.over) :]) if claim.quantity == "quotient" else size
        if below and math.isfinite(above / below):
            values.append(above / below * (100 if claim.quantity == "quotient" and claim.unit == "%" else 1))
    return values


def measured(claim: Claim, found: Index, workload: str, clock: str) -> tuple[Interval, bool]:
    """The claimed quantity at ``workload`` with its interval over processes, and whether the device throttled.

    It is vetoed where the A/A control of a time failed. Counts and errors that are the same in every process are exact;
    positive figures have the interval of their geometric mean, wider where they come from different runs. Raises
    :class:`NoFigure` when there is none: not_testable or invalid.
    """
    named = claim.figures
    series = _together([_candidates(figure, found, workload, clock) for figure in named], claim.experiment)
    values = _values(claim, series)
    if not values:
        raise NoFigure("not_testable", "no process measured everything that is needed")
    exact = len(values) > 1 or all(UNITS.get(one.unit, COUNT)[0] in ("count", "size") for one in series)
    if len(values) == 1 and any(figure.topic == "program" for figure in named):
        exact = values[0].is_integer()  # a script prints ratios of times without a unit, too
    throttled = any(one.throttled for one in series)
    runs = {one.experiment: one.spread for one in sorted(series, key=lambda one: one.spread)}
    # Of a probe's figures, and of figures of several runs, there are few.
    few = len(runs) > 1 or any(one.rare for one in series)
    kind = {"vetoed": any(one.vetoed for one in series), "rare": few}
    if exact and len(set(values)) == 1:
        return Interval(values[0], values[0], values[0], len(values), **kind), throttled
    if min(values) <= 0:
        return replace(intervals.mean(values), **kind), throttled
    # Figures of different runs were not taken side by side: what lies between two runs comes on top.
    between = math.hypot(*runs.values()) if len(runs) > 1 else 0.0
    return replace(intervals.widened(intervals.geometric(values), between), **kind), throttled
