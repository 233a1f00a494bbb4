"""How far one ratio spreads: over machines side by side, and from one visit to the next.

Everything is worked out on logarithms. What is identical code under two names, or a baseline against itself, is no
ratio here.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from hypatia_lab import intervals, results
from hypatia_lab.formats import absent
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record
from hypatia_lab.results import Row, grouped
from hypatia_lab.results.scatter import PRESENT, Scatter, between, class_of, weight

CHIPS = 5
"""With fewer chips nothing is said of the next one."""

Fact = tuple[str, str, str, str]
"""A ratio on whichever machine and by whichever experiment: workload, clock, variant, baseline."""
Kind = tuple[str, bool]
"""A class of ratios: their clock, and whether a tuner chose the kernels (:attr:`Row.tuned`)."""


def fact(row: Row) -> Fact:
    """What ``row`` is the ratio of."""
    return row.workload, row.clock, row.variant, row.baseline


def ratios(rows: Iterable[Row]) -> list[Row]:
    """Those of ``rows`` that have a ratio: neither a baseline nor of the A/A control."""
    return [row for row in rows if not absent(row.ratio) and row.variant != row.baseline and not row.is_twin]


# ---------------------------------------------------------------- side by side


@dataclass(frozen=True)
class Across:
    """One ratio on several machines. ``rows`` has that of each, ``values`` one a chip, without those in doubt."""

    rows: dict[str, Row]
    values: dict[str, float]

    @property
    def row(self) -> Row:
        """The first of its rows, by which it is named."""
        return next(iter(self.rows.values()))

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest of its values; NaN where there are none."""
        found = self.values.values()
        return (min(found), max(found)) if found else (math.nan, math.nan)

    @property
    def next(self) -> Interval:
        """The prediction interval for the next machine of the kind, of :data:`CHIPS` values or more."""
        found = list(self.values.values())
        return intervals.prediction(found) if len(found) >= CHIPS else intervals.NOTHING


def across(rows: Iterable[Row], chips: Mapping[tuple[str, str], str] | None = None) -> list[Across]:
    """Each ratio that at least two machines of ``rows``, one a machine, measured, in order of the rows.

    ``chips`` maps machine and experiment to the chip that its record names (:func:`chips`): one that two machines
    name counts once, by the geometric mean of both. A machine whose record names none counts as a chip of its own.
    """
    machines: dict[Fact, dict[str, Row]] = {}
    for row in ratios(rows):
        machines.setdefault(fact(row), {})[row.machine] = row
    out = []
    for own in machines.values():
        by_chip: dict[str, list[float]] = {}
        for machine, row in own.items():
            if not row.speed.doubt:
                by_chip.setdefault((chips or {}).get((machine, row.experiment)) or machine, []).append(row.ratio)
        if len(own) > 1:
            out.append(Across(own, {chip: statistics.geometric_mean(found) for chip, found in by_chip.items()}))
    return out


def chips(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """Machine and experiment → the chip that the record names, of those that name one."""
    return {(record.machine, record.experiment): record.chip for record in records if record.chip}


@dataclass(frozen=True)
class Expectation:
    """What the ratios of a class did on the chips seen of a model, and what they will do on the next.

    ``chips`` is the fewest that stand behind one of its ``ratios``. ``within`` is the largest distance of a chip from
    the chips' mean, as a share (0.01: a hundredth). ``low`` and ``high`` are factors of that mean, between which 95% of
    such ratios are expected on the next chip; NaN for fewer than :data:`CHIPS` chips.
    """

    clock: str
    tuned: bool
    chips: int
    ratios: int
    within: float
    low: float
    high: float


def expectations(found: Sequence[Across]) -> list[Expectation]:
    """What to expect of the next chip, a line a class of ratios of one model; none where no ratio has two chips.

    Ratios with :data:`CHIPS` chips or more count alone where there are any. They share one variance s², that
    of their logarithms about each one's own mean, pooled; the next chip's ratio then lies within t·s·√(1 + 1/n) of the
    mean, as in :func:`intervals.prediction`, with n the fewest chips and t for n − 1 degrees of freedom: the ratios of
    one chip may go up and down together. Where they scatter differently, 95% holds of them on average.
    """
    kinds: dict[Kind, list[list[float]]] = {}
    for one in found:
        if len(one.values) > 1:
            logs = [math.log(value) for value in one.values.values()]
            kinds.setdefault((one.row.clock, one.row.tuned), []).append([x - _mean(logs) for x in logs])
    out = []
    for (clock, tuned), everything in sorted(kinds.items()):
        enough = [apart for apart in everything if len(apart) >= CHIPS]
        counted = enough or everything
        n = min(map(len, counted))
        within = math.expm1(max(abs(x) for apart in counted for x in apart))
        half = math.nan
        if enough:
            variance = sum(x * x for apart in counted for x in apart) / sum(len(apart) - 1 for apart in counted)
            half = intervals.student(n - 1) * math.sqrt(variance * (1 + 1 / n))
        out.append(Expectation(clock, tuned, n, len(counted), within, math.exp(-half), math.exp(half)))
    return out


# ---------------------------------------------------------------- from one visit to the next

LEAST = 20
"""A model with fewer figures of a class measured twice has what all models have there."""
GROSS = 16.0
"""A figure counts at most as one four standard deviations off: a single gross outlier is not all there is."""


@dataclass(frozen=True)
class Visit:
    """One figure, the ratio or the time that ``fact`` names, on one visit to a ``model``, which a record is.

    ``kind`` is its class in :data:`hypatia_lab.results.scatter.BETWEEN`, ``logs`` are the logarithms of its processes,
    ``ran`` is the digest of what a form of the lab's ran: after a change of a kernel there is nothing to repeat.
    """

    model: str
    device: str
    record: str
    fact: Fact
    kind: int
    found: Interval
    logs: tuple[float, ...]
    ran: str

    @property
    def clock(self) -> str:
        """The clock it is by."""
        return self.fact[1]

    @cached_property
    def middle(self) -> float:
        """The mean of its logarithms."""
        return _mean(self.logs)

    @cached_property
    def scatter(self) -> float:
        """The variance of :attr:`middle` from process to process."""
        return intervals.variance(self.logs) / len(self.logs)


Visits = Sequence[Sequence[Visit]]
"""Figures that two or more records of one model have, each on all its visits."""


def visits(records: Iterable[Record], *, times: bool = False) -> Visits:
    """The ratios, or the ``times``, that two or more ``records`` of one model measured, those of a GPU as today."""
    counted = (record for record in records if record.run["device"] != "cuda" or record.run["started"] >= PRESENT)
    found = (one for record in counted for one in (_times if times else _ratios)(record))
    return [own for own in grouped(found, attrgetter("model", "fact", "ran")).values() if len(own) > 1]


def _ran(record: Record) -> dict[tuple[str, str], str]:
    """Operation and variant → the digest of what it ran, of the forms that are not the library's or an author's."""
    own = (cell for cell in record.cells if cell["origin"] not in ("peer", "author"))
    return {(cell["operation"], cell["variant"]): cell.get("sources") or "" for cell in own}


def _ratios(record: Record) -> Iterator[Visit]:
    rows, ran = results.rows([record]), _ran(record)
    base = {(row.workload, row.clock, row.variant): row.medians_us for row in rows}
    for row in ratios(rows):
        if not row.speed.flaw:
            pairs = zip(base[row.workload, row.clock, row.baseline], row.medians_us, strict=True)
            logs = tuple(math.log(a / b) for a, b in pairs if a and b)
            kind = class_of(row.chosen, row.ratio)
            by = ran.get((row.operation, row.variant), "")
            yield Visit(record.device_name, row.device, record.digest, fact(row), kind, row.speed, logs, by)


def _times(record: Record) -> Iterator[Visit]:
    ran = _ran(record)
    for row in results.rows([record]):
        if row.timed and not row.is_twin and not row.time.flaw:
            logs = tuple(math.log(us) for us in row.medians_us if us)
            by = ran.get((row.operation, row.variant), "")
            yield Visit(record.device_name, row.device, record.digest, (*fact(row)[:3], ""), 0, row.time, logs, by)


def estimated(found: Visits, kinds: int = 3) -> Scatter:
    """The scatter of every class of every model that was visited twice (:data:`hypatia_lab.results.scatter.BETWEEN`),
    by clock.

    ``found`` are :func:`visits`. A class with fewer than :data:`LEAST` figures on a model has what all GPUs, or all
    CPUs, have of it. Where those are fewer, too, tuned and other ratios that are not level count as one class, and
    level ones take what all ratios have.
    """
    out: Scatter = {}
    for model, device in dict.fromkeys((own[0].model, own[0].device) for own in found):
        alike = [own for own in found if own[0].device == device]
        for clock in dict.fromkeys(own[0].clock for own in alike):
            by_clock = [own for own in alike if own[0].clock == clock]
            sigmas = []
            for kind in range(kinds):
                everywhere = [own for own in by_clock if own[0].kind == kind]
                here = [own for own in everywhere if own[0].model == model]
                wider = [own for own in by_clock if own[0].kind and kind] or by_clock
                sigmas.append(deviation(next((few for few in (here, everywhere) if len(few) >= LEAST), wider)))
            out.setdefault(model, {})[clock] = tuple(float(f"{sigma:.2g}") for sigma in sigmas)
    return out


def deviation(found: Visits) -> float:
    """The standard deviation between visits that figures of one class share, beside what processes scatter.

    That at which the variance of a figure's visits is, on average, what it should be: between visits, plus within
    each by the number of its processes. Source: Paule and Mandel, J. Res. NBS 87 (1982), pooled over figures; none
    counts for more than :data:`GROSS` times what it should be.
    """
    import numpy

    n = numpy.array([len(own) - 1 for own in found])
    within = numpy.array([_mean([one.scatter for one in own]) for own in found])
    apart = numpy.array([intervals.variance([one.middle for one in own]) for own in found])

    def beyond(variance: float) -> float:
        return float(n @ (numpy.minimum(GROSS, apart / numpy.maximum(variance + within, 1e-12)) - 1))

    low, high = 0.0, 1.0
    if beyond(low) <= 0:
        return low
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > 0 else (low, middle)
    return math.sqrt(low)


def facts(rows: Iterable[Row], records: Iterable[Record], key: Callable[[Row], Any] | None = None) -> dict[Any, Row]:
    """``key``, else machine and fact → the one row that stands for it; its interval holds what visits differ by.

    Where several experiments of a machine measured one ratio it is that of the greatest
    :func:`hypatia_lab.results.scatter.weight`.
    """
    models = {(one.machine, one.experiment): (one.device_name, one.run["started"]) for one in records}

    def weight_of(row: Row) -> tuple[bool, bool, int, str]:
        return weight(bool(row.veto), row.n, models[row.machine, row.experiment][1])

    best: dict[Any, Row] = {}
    for row in ratios(rows):
        own = key(row) if key else (row.machine, fact(row))
        best[own] = max(best.get(own, row), row, key=weight_of)
    for own, row in best.items():
        model = models[row.machine, row.experiment][0]
        wide = intervals.widened(row.speed, between(model, row.clock, row.chosen, row.ratio))
        best[own] = replace(row, ratio_low=wide.low, ratio_high=wide.high)
    return best


def told(rows: Sequence[Row], records: Sequence[Record]) -> list[Row]:
    """``rows`` of the results as the book tells them: those of one fact all have the ratio of its :func:`facts`, but
    for a kernel as it was before a change by which its ratio is another.

    They know their model, so that a quotient of two of them holds what another visit differs by, too.
    """
    ran = {(one.machine, one.experiment): _ran(one) for one in records}

    def key(row: Row) -> tuple[str, Fact, str]:
        return row.machine, fact(row), ran[row.machine, row.experiment].get((row.operation, row.variant), "")

    best, apart = facts(rows, records), facts(rows, records, key)

    def one(row: Row) -> Row:
        of, own = best.get((row.machine, fact(row)), row), apart.get(key(row), row)
        of = own if own.speed.outside(of.ratio_low, of.ratio_high) else of
        ends = {"ratio": of.ratio, "ratio_low": of.ratio_low, "ratio_high": of.ratio_high, "n": of.n, "veto": of.veto}
        return replace(row, **ends if not absent(row.ratio) else {}, model=models[row.machine])

    models = {record.machine: record.device_name for record in records}
    return [one(row) for row in rows]


@dataclass(frozen=True)
class Repeat:
    """How the ratios of a model by a clock agree from visit to visit, with the intervals of one visit and as told.

    ``agree`` are the shares of ``pairs`` of visits that agree, ``half`` the median half-width of an interval, as a
    share.
    """

    model: str
    clock: str
    ratios: int
    pairs: int
    agree: tuple[float, float]
    half: tuple[float, float]


def repeats(found: Visits) -> list[Repeat]:
    """What an interval is worth, a line a model and clock: each visit is left out in turn, and held against the others.

    The scatter that widens both is then estimated without it, and what only it tells of is left out. Two estimates
    agree where their logarithms differ by no more than both half-widths, added in squares.
    """
    agree: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
    for left in dict.fromkeys(one.record for own in found for one in own):
        rest = [[one for one in own if one.record != left] for own in found]
        scatter = estimated([own for own in rest if len(own) > 1])
        for own in found:
            for out, other in itertools.product(own, own):
                if out.record == left != other.record and out.clock in scatter.get(out.model, {}):
                    wide = (_widened(one, scatter) for one in (out, other))
                    both = _agree(out.found, other.found), _agree(*wide)
                    agree.setdefault((out.model, out.clock), []).append(both)
    everything, lines = estimated(found), []
    for (model, clock), pairs in agree.items():
        mine = [own for own in found if (own[0].model, own[0].clock) == (model, clock)]
        widths = [(_half(one.found), _half(_widened(one, everything))) for own in mine for one in own]
        shares = [_mean(side) for side in zip(*pairs, strict=True)]
        halves = [statistics.median(side) for side in zip(*widths, strict=True)]
        lines.append(Repeat(model, clock, len(mine), len(pairs) // 2, (shares[0], shares[1]), (halves[0], halves[1])))
    return lines


def _widened(one: Visit, scatter: Scatter) -> Interval:
    return intervals.widened(one.found, scatter[one.model][one.clock][one.kind])


def _agree(one: Interval, other: Interval) -> bool:
    halves = [math.log(each.high / each.low) / 2 for each in (one, other)]
    return abs(math.log(one.value / other.value)) <= math.hypot(*halves)


def _half(found: Interval) -> float:
    return math.sqrt(found.high / found.low) - 1


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
