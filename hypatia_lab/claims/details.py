"""Figures that a claim names one by one: a line of a probe or the time of a cell, in one machine's records.

Quantity ``figure`` is one of them, or several added; quantity ``quotient`` is one sum of them over another.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypatia_lab import formats, intervals, results
from hypatia_lab.claims.claim import Claim, Figure
from hypatia_lab.intervals import Interval
from hypatia_lab.results import Measured, scatter

QUANTITIES = ("figure", "quotient")

UNITS = {"s": ("time", 1e6), "ms": ("time", 1e3), "µs": ("time", 1.0), "us": ("time", 1.0), "%": ("share", 1.0)}
UNITS |= {f"{prefix}B": ("size", size) for prefix, size in {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.items()}
UNITS |= {f"{unit}/s": ("rate", size) for unit, (kind, size) in UNITS.items() if kind == "size"}
"""Unit of a record or a claim → (what it measures, its size); any other unit counts something."""
COUNT = ("count", 1.0)
MISSING = "no record has"
"""How a :class:`NoFigure` begins when nobody has measured the figure yet."""

Key = tuple[str, str, str, str, str]
"""(workload, variant, topic, case, name) of a detail; topic and case are empty and name is the clock of a cell."""
Index = dict[Key, list["Series"]]


HOST = "wall"
"""The clock by which probes scatter: the host has a part in all that they time."""


class NoFigure(Exception):
    """There is no figure to judge: the message says why, as the end of a sentence."""


class Failed(NoFigure):
    """A measurement did not pass its check, and decides nothing."""


@dataclass(frozen=True)
class Series:
    """One figure of one experiment: a value a process (None where it is missing), or the status that says why not.

    Series of one ``source`` were taken in the same processes. ``printed``: by an author's script. ``started`` is when
    its record was begun.
    """

    experiment: str
    unit: str
    values: tuple[float | None, ...]
    status: str = "ok"
    reason: str = ""
    throttled: bool = False
    clock: str = ""
    vetoed: bool = False
    source: str = ""
    printed: bool = False
    started: str = ""

    @property
    def n(self) -> int:
        """Processes that gave a value."""
        return sum(value is not None for value in self.values)

    @property
    def weight(self) -> tuple[bool, bool, int, str]:
        """Which of several experiments' series the book tells, as :func:`hypatia_lab.results.scatter.weight` has it."""
        return scatter.weight(self.vetoed, self.n, self.started)

    @property
    def timed(self) -> bool:
        """Whether it is a time or a rate, which differs from visit to visit; counts and sizes do not."""
        return UNITS.get(self.unit, COUNT)[0] in ("time", "rate")

    @property
    def exact(self) -> bool:
        """Whether one process is enough: of a count or a size that cannot vary from process to process."""
        counted = UNITS.get(self.unit, COUNT)[0] in ("count", "size")
        # A script prints ratios of times without a unit, too.
        return counted and not (self.printed and any(value and value % 1 for value in self.values))


def place(workload: str) -> str:
    """``linear_relu 1024×784×2048 float32``: a workload in a sentence (math mode and direction only where unusual)."""
    return formats.workload(workload).replace("/ieee", "")


def index(of: Measured) -> Index:
    """Every detail of one machine's records and every time of its results, by :data:`Key`.

    What a probe left behind that did not end well also stands under the name ``""``: it is all that can be said of
    the lines that are missing.
    """
    found: Index = {}
    for row in of.rows:
        times = Series(
            *(row.experiment, "us", tuple(row.medians_us), row.status, row.reason),
            throttled=row.throttled,
            clock=row.clock,
            vetoed=bool(row.veto),
            source=row.experiment,
            started=of.started[row.experiment],
        )
        found.setdefault((row.workload, row.variant, "", "", row.clock), []).append(times)
    for record in of.records:
        for line in record.details:
            probe = (results.workload(line), line["variant"], line["topic"], line["case"])
            one = Series(
                *(record.experiment, line["unit"], tuple(line["values"]), line["status"], line["reason"]),
                source="/".join((record.experiment, *probe)),
                printed=line["topic"] == "program",
                started=record.run["started"],
            )
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
            raise Failed(f"{what} is not valid ({series.status}: {series.reason}), and decides nothing")
    usable = [series for series in there if series.status == "ok"]
    if not usable and there:
        raise NoFigure(f"{what} was skipped: {there[0].reason or 'no reason given'}")
    if not usable:
        raise NoFigure(f"{MISSING} {what}")
    return usable


def _together(candidates: Sequence[Sequence[Series]]) -> list[Series]:
    """One series a figure, all from the experiment that has them all: the one of greatest :attr:`Series.weight`.

    Probes of one question may lie in different experiments; then each figure comes from where it has most weight.
    """
    by_experiment = [{series.experiment: series for series in own} for own in candidates]
    shared = [name for name in by_experiment[0] if all(name in own for own in by_experiment)]
    if shared:
        best = max(shared, key=lambda name: min(own[name].weight for own in by_experiment))
        return [own[best] for own in by_experiment]
    return [max(own, key=lambda series: series.weight) for own in candidates]


def _scaled(claim: Claim, series: Sequence[Series]) -> list[list[float]]:
    """The values of every series in base units, NaN where a process has none.

    Raises :class:`NoFigure` when units do not go together.
    """
    kinds, sizes = zip(*(UNITS.get(one.unit, COUNT) for one in series), strict=True)
    own = UNITS.get(claim.unit, COUNT)[0]
    if len(set(kinds)) > 1 or (claim.quantity == "figure" and kinds[0] != own):
        units = ", ".join(dict.fromkeys(one.unit for one in series))
        raise NoFigure(f"the units of the record ({units}) do not go together with {claim.unit}")
    pairs = zip(series, sizes, strict=True)
    return [[math.nan if v is None else v * size for v in one.values] for one, size in pairs]


def _value(claim: Claim, parts: Sequence[float]) -> float:
    """The claimed quantity of one value a series, the figures of ``of`` or ``over`` first; NaN where there is none."""
    above = math.fsum(parts[: len(claim.of or claim.over)])
    if claim.quantity == "figure":
        return above / UNITS.get(claim.unit, COUNT)[1]
    below = math.fsum(parts[len(claim.over) :])
    return above / below * {"%": 100}.get(claim.unit, 1) if below else math.nan


def _apart(claim: Claim, series: Sequence[Series], values: Sequence[Sequence[float]]) -> Interval:
    """The claimed quantity of series that were taken in different processes, all of which count.

    Each source has its own scatter: the quantity is worked out process by process of one with the means of the
    others, and the variances of those means add (Welch and Satterthwaite, on logarithms).
    """
    sources = list(dict.fromkeys(one.source for one in series))
    whole = [[v for v in own if v > 0] for own in values]
    if not all(whole):
        raise NoFigure("no process measured everything that is needed")
    middle = [statistics.geometric_mean(own) for own in whole]
    logs = []
    for source in sources:
        mine = [one.source == source for one in series]
        count = max(len(own) for own, is_mine in zip(values, mine, strict=True) if is_mine)
        found = [
            _value(claim, [own[k] if is_mine else m for own, is_mine, m in zip(values, mine, middle, strict=True)])
            for k in range(count)
            if all(k < len(own) for own, is_mine in zip(values, mine, strict=True) if is_mine)
        ]
        logs.append([math.log(v) for v in found if v > 0])
    if not all(logs):
        raise NoFigure("no process measured everything that is needed")
    return intervals.welch(logs, math.log(_value(claim, middle)))


def measured(
    claim: Claim, found: Index, workload: str, clock: str, device: str
) -> tuple[Interval, Interval, bool, set[str]]:
    """The claimed quantity at ``workload`` on a ``device``: as the next visit should agree with, on this one alone,
    whether the device throttled, and the experiments that it is from.

    It is vetoed where the A/A control of a time failed. Counts and errors that are the same in every process are exact;
    positive figures have the interval of their geometric mean, and what lies between two visits on top. Raises
    :class:`NoFigure` when there is none.
    """
    series = _together([_candidates(figure, found, workload, clock) for figure in claim.figures])
    scaled = _scaled(claim, series)
    throttled, origins = any(one.throttled for one in series), {one.experiment for one in series}
    alone = _alone(claim, series, scaled)
    by = {(one.experiment, one.clock or HOST) for one in series if one.timed}
    if not by or alone.low == alone.high:
        return alone, alone, throttled, origins
    if claim.quantity == "figure" or len({experiment for experiment, _ in by}) > 1:
        between = math.hypot(*(scatter.between_times(device, clock) for _, clock in by))
    else:
        between = max(scatter.between(device, clock, False, alone.value) for _, clock in by)
    return intervals.widened(alone, between), alone, throttled, origins


def _alone(claim: Claim, series: Sequence[Series], scaled: Sequence[Sequence[float]]) -> Interval:
    """The claimed quantity of ``series`` on the visits that they are of, whose values in base units are ``scaled``."""
    vetoed = any(one.vetoed for one in series)
    constant = all(one.exact and len(set(own)) == 1 for one, own in zip(series, scaled, strict=True))
    if len({one.source for one in series}) > 1 and not constant:
        return replace(_apart(claim, series, scaled), vetoed=vetoed)
    values = [_value(claim, parts) for parts in zip(*scaled, strict=False)]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        raise NoFigure("no process measured everything that is needed")
    if len(set(values)) == 1 and (constant or len(values) > 1):
        return Interval(values[0], values[0], values[0], len(values), vetoed)
    return replace(intervals.estimate(values), vetoed=vetoed)
