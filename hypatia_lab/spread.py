"""How far one ratio spreads: over machines side by side, and over processes, visits, chips and models.

Everything is worked out on logarithms of ratios, of those alone that say something (:attr:`Interval.doubt`). What is
identical code under two names, or a baseline against itself, is no ratio here.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hypatia_lab import intervals, results
from hypatia_lab.formats import absent
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record
from hypatia_lab.results import Row

Key = tuple[str, str, str, str, str]
"""A ratio on whichever machine: experiment, workload, clock, variant, baseline."""
Kind = tuple[str, bool]
"""A class of ratios: their clock, and whether a tuner chose the kernels (:attr:`Row.tuned`)."""


def key(row: Row) -> Key:
    """What ``row`` is the ratio of."""
    return row.experiment, row.workload, row.clock, row.variant, row.baseline


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
        """The prediction interval for the next machine of the kind, of :data:`intervals.FEW` values or more."""
        found = list(self.values.values())
        return intervals.prediction(found) if len(found) >= intervals.FEW else intervals.NOTHING


def across(rows: Iterable[Row], chips: Mapping[tuple[str, str], str] | None = None) -> list[Across]:
    """Each ratio that at least two machines of ``rows`` measured, in order of the rows.

    ``chips`` maps machine and experiment to the chip that its record names (:func:`chips`): one that two machines
    name counts once, by the geometric mean of both. A machine whose record names none counts as a chip of its own.
    """
    machines: dict[Key, dict[str, Row]] = {}
    for row in ratios(rows):
        machines.setdefault(key(row), {})[row.machine] = row
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
    such ratios are expected on the next chip; NaN for fewer than :data:`intervals.FEW` chips.
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

    Ratios with :data:`intervals.FEW` chips or more count alone where there are any. They share one variance s², that
    of their logarithms about each one's own mean, pooled; the next chip's ratio then lies within t·s·√(1 + 1/n) of the
    mean, as in :func:`intervals.prediction`, with n the fewest chips and t for n − 1 degrees of freedom: the ratios of
    one chip may go up and down together. Where they scatter differently, 95% holds of them on average.
    """
    from scipy.special import stdtrit

    kinds: dict[Kind, list[list[float]]] = {}
    for one in found:
        if len(one.values) > 1:
            logs = [math.log(value) for value in one.values.values()]
            kinds.setdefault((one.row.clock, one.row.tuned), []).append([x - _mean(logs) for x in logs])
    out = []
    for (clock, tuned), everything in sorted(kinds.items()):
        enough = [apart for apart in everything if len(apart) >= intervals.FEW]
        counted = enough or everything
        n = min(map(len, counted))
        within = math.expm1(max(abs(x) for apart in counted for x in apart))
        half = math.nan
        if enough:
            variance = sum(x * x for apart in counted for x in apart) / sum(len(apart) - 1 for apart in counted)
            half = float(stdtrit(n - 1, 0.5 + intervals.CONFIDENCE / 2)) * math.sqrt(variance * (1 + 1 / n))
        out.append(Expectation(clock, tuned, n, len(counted), within, math.exp(-half), math.exp(half)))
    return out


# ---------------------------------------------------------------- where the scatter comes from

LEVELS = ("process", "visit", "chip", "model")
"""From process to process of one visit, from visit to visit to one chip, and so on."""


@dataclass(frozen=True)
class Sighting:
    """One ratio on one visit: the logarithm of each process. ``chip`` is empty where the record names none."""

    ratio: Key
    kind: Kind
    model: str
    chip: str
    visit: str
    logs: tuple[float, ...]


def sightings(records: Sequence[Record]) -> list[Sighting]:
    """Every ratio of every record, which is a visit; the model is the device's own name."""
    out = []
    for record in records:
        rows = results.rows([record])
        base = {(row.workload, row.clock, row.variant): row.medians_us for row in rows}
        for row in ratios(rows):
            if row.speed.doubt:
                continue
            pairs = zip(base[row.workload, row.clock, row.baseline], row.medians_us, strict=True)
            logs = tuple(math.log(a / b) for a, b in pairs if a and b)
            kind = row.clock, row.tuned
            out.append(Sighting(key(row), kind, record.device_name, record.chip, record.digest, logs))
    return out


@dataclass(frozen=True)
class Component:
    """What a level adds to the variance of the logarithm of a ratio; ``ratios`` are those that it is known from.

    ``variance`` is NaN where there is not enough to say.
    ``holds`` are the levels whose scatter it is: its own, and the finer ones that could not be told from it.
    """

    level: str
    ratios: int
    variance: float
    holds: tuple[str, ...]

    @property
    def deviation(self) -> float:
        """The standard deviation, as a share: 0.01 is a hundredth."""
        return math.expm1(math.sqrt(self.variance)) if self.variance >= 0 else math.nan


@dataclass(frozen=True)
class _Visit:
    """The processes of one sighting: how many, their mean, and their mean squared distance from it."""

    n: int
    mean: float
    variance: float


def _visit(logs: Sequence[float]) -> _Visit:
    middle = math.fsum(logs) / len(logs)
    return _Visit(len(logs), middle, math.fsum((x - middle) ** 2 for x in logs) / len(logs))


def components(found: Iterable[Sighting]) -> list[Component]:
    """The scatter of log ratios of one class, split by :data:`LEVELS`: an estimate by the method of moments.

    A random-effects model: log ratio = the ratio's own mean + model + chip + visit + process, each effect independent
    with a variance of its own. Half the mean squared difference of two processes has the expectation

    - σ²(process) of one visit, plus σ²(visit) of two visits to a chip,
    - plus σ²(chip) of two chips of a model, plus σ²(model) of two models.

    So each variance is the difference of two neighbouring ones, averaged over ratios, and 0 where that is negative.
    Pairs of groups count alike however many processes they have. A ratio counts at a level with :data:`intervals.FEW`
    − 1 degrees of freedom there or more (five chips of a model; three of one and three of another). All levels are
    taken from the same ratios: those that count at the coarsest level that any of them count at. A level without
    enough is left open, and the next coarser one then holds its scatter too. Records that name no chip say something
    of processes alone. Source: the symmetric differences of Koch (Technometrics 9, 1967), by pairs of groups.
    """
    ratios_of: dict[Key, list[Sighting]] = {}
    for one in found:
        ratios_of.setdefault(one.ratio, []).append(one)
    moments = list(map(_moments, ratios_of.values()))
    told: list[str] = []
    kept = moments
    for level in reversed(LEVELS):  # the coarsest level chooses the ratios
        if counted := [own for own in kept if level in own]:
            kept, told = counted, [level, *told]
    variances: dict[str, float] = {}
    holds: dict[str, tuple[str, ...]] = {}
    below = ""
    for level in told:
        steps = [own[level] - (own[below] if below else 0.0) for own in kept]
        variances[level] = max(0.0, _mean(steps))
        holds[level] = LEVELS[LEVELS.index(below) + 1 if below else 0 : LEVELS.index(level) + 1]
        below = level
    return [
        Component(
            level,
            len(kept) if level in variances else 0,
            variances.get(level, math.nan),
            holds.get(level, ()),
        )
        for level in LEVELS
    ]


def _moments(found: Sequence[Sighting]) -> dict[str, float]:
    """Level → half the mean squared difference of two processes that differ there and share what is coarser.

    Of one ratio, and of the levels alone at which it has :data:`intervals.FEW` − 1 degrees of freedom.
    """
    every: list[_Visit] = []
    tree: dict[str, dict[str, list[_Visit]]] = {}  # model → chip → visits
    for one in found:
        every.append(_visit(one.logs))
        if one.chip:
            tree.setdefault(one.model, {}).setdefault(one.chip, []).append(every[-1])
    by_model = [list(chips_.values()) for chips_ in tree.values()]
    # Families of groups, each of a coarser group; a group is the visits in it.
    families = {
        "visit": [[[visit] for visit in visits] for own in by_model for visits in own],
        "chip": by_model,
        "model": [[[visit for visits in own for visit in visits] for own in by_model]],
    }
    out = {}
    if sum(visit.n - 1 for visit in every) >= intervals.FEW - 1:
        out["process"] = _mean([visit.variance * visit.n / (visit.n - 1) for visit in every if visit.n > 1])
    for level, groups in families.items():
        if sum(len(family) - 1 for family in groups) >= intervals.FEW - 1:
            pairs = [pair for family in groups for pair in itertools.combinations(family, 2)]
            out[level] = _mean([_mean([_apart(a, b) for a in one for b in other]) for one, other in pairs])
    return out


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _apart(one: _Visit, other: _Visit) -> float:
    """Half the mean squared difference of a process of ``one`` and a process of ``other``."""
    return ((one.mean - other.mean) ** 2 + one.variance + other.variance) / 2
