"""Records as tidy rows: one row a cell, with ratio, interval and physical limit worked out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, TypeVar

from hypatia_lab import formats, intervals
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record, cell_key
from hypatia_lab.results.scatter import between
from hypatia_lab.variants import AGAIN

_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)

SURELY = 0.001
"""Identical code that seems different with a smaller p-value was not measured alike."""
APART = 0.05
"""Nor was identical code that seems different by more, and whose interval excludes 1."""

TOLERANCE = 1.10
"""A result may beat the best measured ceiling by a tenth before it is too fast to be true."""

CHOSEN = ("nvmath", "egraph")
"""Beside torch.compile, what chooses its kernels by trying them."""

MAY_SPLIT = ("dispatched", "dispatched_wall", "modules", "modules_replayed", "egraph")
"""Who may turn out to be a form that splits float32's operands: a choice, of which its cell says no more. An e-graph's
only where gradients are asked for: its training step is made of modules."""
INTO = ("float16/ieee", 3)
"""What they would split them into, and how many products that makes of one."""

DROPPED = re.compile(r"(triton|whole)_bf16x3(_graph)?")
"""Variants of older records that passed for IEEE float32 with ten times its error. They are an arithmetic of their own
since, so their cells are told no more."""
FLOAT32 = 4e-6
"""The block's error in IEEE float32 is below this, and that of those variants above; nor is a choice of one told."""


def _said(cell: dict[str, Any]) -> dict[str, Any]:
    """``cell`` with what an older record left unsaid, or said in another word."""
    return {"operator": False} | cell | ({"origin": "rebuilt"} if cell.get("origin") == "seed" else {})


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """The ``items`` of each ``key``, keys and items in the order in which they come."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def primary_clock(device: str) -> str:
    """The clock verdicts rest on: ``graph`` on a GPU (no launch overhead), ``hot`` on a CPU."""
    return "graph" if device == "cuda" else "hot"


LAUNCH = "launch path"
"""What a row reads whose time includes the lab's way in (:attr:`Row.launch_path`)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of a record, tidy. Numbers that do not exist are NaN; times in µs, rates a second.

    ``workload`` is operation/shape/dtype/math/direction. ``median_us`` is the geometric mean of the processes' medians
    (``medians_us``), so that a ratio whose processes all pair is the quotient of two of them. ``ratio`` is baseline
    time over variant time within the same ``n`` processes, so above 1 is faster. A row whose ``status`` is not ``ok``
    carries neither. ``limit_us`` is the shortest time that the machine's own ceilings allow, ``error`` is
    ‖out − ref‖/‖ref‖, ``max_error`` that of one element, ``peak`` the largest of the reference; ``flops`` and
    ``traffic`` (compulsory bytes) are one call's.

    ``veto`` says that, and how, the A/A control of the workload failed, in that experiment and by that clock: the lab
    told identical code apart (p < :data:`SURELY`, or by more than :data:`APART` with an interval that excludes 1), so
    it can say nothing of other code there. Empty where it did not, or where there is no control. ``model`` is the model
    of device where the row is told by the book (:func:`hypatia_lab.results.visits.told`), whose quotients hold what
    another visit differs by. ``beside``: what a rule of the task's own says of its answers, by name.
    """

    machine: str
    experiment: str
    operation: str
    workload: str
    shape: str
    dtype: str
    math: str
    clock: str
    direction: str
    variant: str
    origin: str
    baseline: str
    median_us: float
    ratio: float
    ratio_low: float
    ratio_high: float
    n: int
    limit_us: float
    error: float
    max_error: float
    status: str
    reason: str
    device: str
    medians_us: Sequence[float | None]
    flops: int
    traffic: int
    throttled: bool
    peak: float
    operator: bool = False
    veto: str = ""
    model: str = ""
    beside: tuple[tuple[str, float], ...] = ()

    @property
    def at(self) -> str:
        """The shape for a reader: ``1024×784×2048``."""
        return formats.shape(self.shape)

    @property
    def text(self) -> str:
        """The workload for a reader: ``linear_relu 1024×784×2048 float32/ieee``."""
        return formats.workload(self.workload)

    @property
    def is_twin(self) -> bool:
        """Whether it is of the A/A control: identical code under another name."""
        return self.variant.endswith(AGAIN)

    @property
    def tuned(self) -> bool:
        """Whether a tuner, torch.compile's, chose its kernels: it may choose others on the next machine."""
        return "compile" in self.variant

    @property
    def chosen(self) -> bool:
        """Whether what runs was chosen by trying, and may be another choice on the next visit."""
        return self.tuned or any(name in self.variant for name in CHOSEN)

    @property
    def timed(self) -> bool:
        """Whether it carries a time."""
        return not math.isnan(self.median_us)

    @property
    def launch_path(self) -> bool:
        """Whether its time includes the lab's launch path, and so says nothing of a document's program.

        True of a form of origin ``rebuilt`` that is called through an operator of the lab's, or a gradient in Python,
        where the clock times the call and not its kernels alone: ``wall`` and ``hot``, and on a
        CPU every clock. The authors' own way in is a C++ extension; a replayed graph has no way in at all.
        """
        if self.origin != "rebuilt" or not self.operator or self.clock == "none":
            return False
        return self.clock in ("wall", "hot") or self.device == "cpu"

    @property
    def speed(self) -> Interval:
        """Baseline time over its time; NaN where there is none, vetoed where its A/A control failed."""
        return Interval(self.ratio, self.ratio_low, self.ratio_high, self.n, bool(self.veto))

    @property
    def time(self) -> Interval:
        """Its time (µs): the geometric mean of its processes' medians, as ``median_us`` is; NaN where none."""
        return across(self.medians_us)

    def rate(self, work: str = "flops") -> Interval:
        """Work a second: ``flops`` in FLOP/s, ``traffic`` (compulsory bytes) in B/s."""
        time, done = self.time, getattr(self, work) * 1e6
        return replace(time, value=done / time.value, low=done / time.high, high=done / time.low)

    def over(self, quick: Row) -> Interval:
        """Its time over that of another row, paired by process; vetoed where the A/A control of one of them failed.

        Where no process timed both, since one was added to its experiment later, it follows from what each of them
        takes beside the baseline of both. NaN when there is none.
        """
        found = quotient(self.medians_us, quick.medians_us)
        if not found.n and self._beside == quick._beside:
            found = intervals.quotient(quick.speed, self.speed)
        if self.model and found.n:
            scatter = between(self.model, self.clock, self.chosen or quick.chosen, found.value)
            found = intervals.widened(found, scatter)
        return replace(found, vetoed=bool(self.veto or quick.veto))

    @property
    def _beside(self) -> tuple[str, ...]:
        """What its ratio is to: a time of a machine."""
        return (self.machine, self.experiment, self.workload, self.clock, self.baseline)

    def against(self, other: Row) -> Row:
        """The row with ``other`` for its baseline: the ratio is that of the two."""
        found = other.over(self)
        ratio = {"ratio": found.value, "ratio_low": found.low, "ratio_high": found.high, "n": found.n}
        return replace(self, **ratio, baseline=other.variant, veto=self.veto or other.veto)

    @property
    def reading(self) -> str:
        """What its interval says against its baseline, as :func:`intervals.reading` has it; ``–`` without a ratio.

        A row whose time includes the lab's launch path reads :data:`LAUNCH` whatever its interval.
        """
        if math.isnan(self.ratio):
            return formats.MISSING
        return LAUNCH if self.launch_path else intervals.reading(self.speed)

    @property
    def took(self) -> str:
        """Its time with its interval, in the unit that suits it, for a table."""
        return formats.time(self.time)

    @property
    def attained(self) -> str:
        """The share of its limit that it reaches, in a sentence; empty where no limit is known, or no time."""
        unknown = math.isnan(self.limit_us) or self.time.doubt
        return "" if unknown else f"{formats.number(100 * self.limit_us / self.median_us)}%"

    @property
    def off(self) -> float:
        """Largest error over the peak; NaN where the check did not get that far."""
        return self.max_error / self.peak if self.peak else math.nan

    @property
    def largest(self) -> str:
        """The largest error against float64 as text: absolute, and as a share of the reference's peak."""
        share = "" if math.isnan(self.off) else f" ({formats.number(self.off)} of the peak)"
        return formats.number(self.max_error) + share


COLUMNS = [field.name for field in fields(Row)]
COLUMNS = COLUMNS[: COLUMNS.index("reason") + 1]
"""What of a row the results table holds, which is a contract."""


def ceilings(records: Iterable[Record]) -> dict[tuple[str, str, str], float]:
    """Best measured rates of one machine: (quantity, dtype/math, clock) → rate.

    quantity ``matmul`` in FLOP/s, keyed by ``dtype/math``; quantity ``copy`` in bytes/s, keyed by ``""``.
    The best process over the sweep of sizes that the ``ceilings`` experiment measured; what was not measured, or moved
    or computed nothing, is absent.
    """
    best: dict[tuple[str, str, str], float] = {}
    for cell, seconds in _swept(records):
        if cell["operation"] == "matmul":
            key, rate = ("matmul", f"{cell['dtype']}/{cell['math']}", cell["clock"]), cell["flops"] / seconds
        elif cell["operation"] == "copy":
            key, rate = ("copy", "", cell["clock"]), cell["traffic"] / seconds
        else:
            continue
        if rate > 0:
            best[key] = max(rate, best.get(key, 0.0))
    return best


def copies(records: Iterable[Record]) -> dict[tuple[str, int], float]:
    """Best measured rates of a copy on one machine, in bytes/s: (clock, bytes read and written) → rate."""
    best: dict[tuple[str, int], float] = {}
    for cell, seconds in _swept(records):
        if cell["operation"] == "copy" and cell["traffic"]:
            key = cell["clock"], cell["traffic"]
            best[key] = max(cell["traffic"] / seconds, best.get(key, 0.0))
    return best


def _swept(records: Iterable[Record]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each timed cell of the ``ceilings`` experiment with the time (s) of its best process."""
    for record in records:
        for cell in record.cells if record.experiment == "ceilings" else ():
            medians = [m for m in cell["medians_us"] if m is not None]
            if cell["status"] == "ok" and cell["clock"] != "none" and medians:
                yield cell, min(medians) * 1e-6


def arithmetic(dtype: str, mode: str, best: dict[tuple[str, str, str], float]) -> str:
    """dtype/math of the ceiling that products in ``dtype`` are held against.

    That of ``default``, which only operations that convolve have, is TF32's on a GPU (it has the graph clock) and
    IEEE's on a CPU; every other math has its own.
    """
    if mode == "default":
        mode = "tf32" if ("copy", "", "graph") in best else "ieee"
    return f"{dtype}/{mode}"


def limit_us(
    cell: dict[str, Any], best: dict[tuple[str, str, str], float], swept: Mapping[tuple[str, int], float] | None = None
) -> float:
    """Shortest time (µs) the machine's own ceilings allow for a cell; NaN where no ceiling was measured.

    The larger of arithmetic over the best matrix rate and compulsory bytes over a copy's rate, each at the cell's
    clock: ``cold`` against cold ceilings, every other clock against warm ones (launch overhead is the host's doing, no
    physical limit). The copy is the smallest of those ``swept`` (:func:`copies`) that moves at least the cell's bytes,
    or the largest of all: bytes that do not fit into the caches move more slowly, and so do few bytes. Without
    ``swept`` it is the best of any size. A variant that splits operands, or may, is held against the
    quicker of that arithmetic and float32's own.
    """
    clock = "cold" if cell["clock"] == "cold" else "graph" if ("copy", "", "graph") in best else "hot"
    ways = [(arithmetic(cell["dtype"], cell["math"], best), 1)]
    if ways[0][0] == "float32/ieee" and (splits := cell.get("splits") or _may_split(cell)):
        ways.append(splits)
    rates = [best.get(("matmul", precision, clock), math.nan) / products for precision, products in ways]
    rate = None if any(map(math.isnan, rates)) else max(rates)
    bandwidth = _rate_at(cell["traffic"], clock, swept or {}) or best.get(("copy", "", clock))
    if bandwidth is None or (rate is None and cell["flops"] > 0 and cell["operation"] != "copy"):
        return math.nan
    work = 0.0 if rate is None else cell["flops"] / rate
    return max(work, cell["traffic"] / bandwidth) * 1e6 or math.nan  # no work, no limit


def _may_split(cell: dict[str, Any]) -> tuple[str, int] | None:
    chosen = cell.get("variant", "")
    may = chosen in MAY_SPLIT and (chosen != "egraph" or cell["direction"] == "forward_backward")
    return INTO if may else None


def _rate_at(moved: int, clock: str, swept: Mapping[tuple[str, int], float]) -> float | None:
    """Rate of the smallest copy by ``clock`` that moves ``moved`` bytes or more, else of the largest; None without."""
    rates = sorted((size, rate) for (own, size), rate in swept.items() if own == clock)
    return next((rate for size, rate in rates if size >= moved), rates[-1][1] if rates else None)


def least_us(cell: dict[str, Any], best: dict[tuple[str, str, str], float]) -> float:
    """:func:`limit_us` of the cheapest known method, by the best copy of any size.

    Less than it divided by :data:`TOLERANCE` is not believed.
    """
    return limit_us(cell | {"flops": cell.get("fewest_flops", cell["flops"])}, best)


def across(medians: Sequence[float | None]) -> Interval:
    """Geometric mean over the processes that have a median; NaN where none has."""
    values = [us for us in medians if us is not None]
    return intervals.geometric(values) if values else intervals.NOTHING


def quotient(slow: Sequence[float | None], quick: Sequence[float | None]) -> Interval:
    """Geometric mean of a quotient within each process that has both; NaN where none has."""
    return across([a / b for a, b in zip(slow, quick, strict=False) if a and b])


def _believed(cell: dict[str, Any], best: dict[tuple[str, str, str], float]) -> dict[str, Any]:
    """``cell``, ok where it was too fast for the ceilings of its day and the machine has reached more since."""
    times = [m for m in cell["medians_us"] if m is not None]
    if cell["status"] == "too_fast" and times and min(times) >= least_us(cell, best) / TOLERANCE:
        return cell | {"status": "ok", "reason": ""}
    return cell


@dataclass(frozen=True)
class Measured:
    """What one ``machine`` measured, put together once for all who judge it or tell of it: its ``records``, with the
    detail lines in them, and what follows from all of them together."""

    machine: str
    records: tuple[Record, ...]

    @cached_property
    def ceilings(self) -> dict[tuple[str, str, str], float]:
        """Its :func:`ceilings`."""
        return ceilings(self.records)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """A row a cell, record by record."""
        return tuple(row for record in self.records for row in self.rows_of(record))

    def rows_of(self, record: Record) -> tuple[Row, ...]:
        """Those of one of its records. What was too fast is ok once its ceilings, measured again, allow the time."""
        return _rows_of(record, frozenset(self.ceilings.items()), self._copies)

    @cached_property
    def _copies(self) -> frozenset[tuple[tuple[str, int], float]]:
        return frozenset(copies(self.records).items())

    @property
    def device(self) -> str:
        """``cuda`` or ``cpu``."""
        return self.records[0].run["device"]

    @property
    def model(self) -> str:
        """What its device is called."""
        return self.records[0].device_name

    @property
    def clock(self) -> str:
        """Its :func:`primary_clock`."""
        return primary_clock(self.device)

    @cached_property
    def started(self) -> dict[str, str]:
        """Experiment → when its record was begun."""
        return {record.experiment: record.run["started"] for record in self.records}


def measured(records: Iterable[Record]) -> list[Measured]:
    """What each machine measured, in order of its first record."""
    return [Measured(name, tuple(own)) for name, own in grouped(records, attrgetter("machine")).items()]


def rows(records: Iterable[Record]) -> list[Row]:
    """The rows of all that ``records`` are of, machine by machine."""
    return [row for own in measured(records) for row in own.rows]


@lru_cache(maxsize=256)  # a page and whoever judges its claims ask for the same ones
def _rows_of(
    record: Record,
    measured: frozenset[tuple[tuple[str, str, str], float]],
    copied: frozenset[tuple[tuple[str, int], float]],
) -> tuple[Row, ...]:
    """The rows of one record of a machine whose :func:`ceilings` and :func:`copies` are those."""
    best, swept = dict(measured), dict(copied)
    cells = [_believed(_said(cell), best) for cell in record.cells if not _dropped(cell)]
    index = {cell_key(cell): cell for cell in cells}
    made = [_row(record, cell, index, best, swept) for cell in cells]
    failed = {(row.workload, row.clock): said for row in made if (said := _told_apart(row))}
    return tuple(
        replace(row, veto=failed[row.workload, row.clock]) if (row.workload, row.clock) in failed else row
        for row in made
    )


def _told_apart(row: Row) -> str:
    """How ``row``, of the A/A control, was told apart from its twin; empty where it was not, or is of no control."""
    if not row.is_twin or math.isnan(row.ratio_low):
        return ""
    found, p = row.speed, intervals.same_p(row.speed)
    beyond = abs(found.value - 1) > APART and not found.low <= 1 <= found.high
    if p >= SURELY and not beyond:
        return ""
    return f"{row.variant} takes {1 / found.value:.4g} times as long as {row.baseline} (p = {p:.1g})"


_SAME = ("operation", "dtype", "math", "clock", "direction", "variant", "origin", "baseline", "status", "reason")
_SAME += ("flops", "traffic", "throttled", "operator")
"""What a row has from its cell as it is."""


def _dropped(cell: dict[str, Any]) -> bool:
    """Whether a ``cell`` is of :data:`DROPPED`, or of a dispatcher that chose one of them."""
    work = cell["operation"], cell["dtype"], cell["math"], cell["variant"]
    chosen = work == ("conv_block", "float32", "ieee", "dispatched") and (cell.get("error") or 0.0) > FLOAT32
    return chosen or DROPPED.fullmatch(cell["variant"]) is not None


def _row(
    record: Record,
    cell: dict[str, Any],
    index: dict[Any, Any],
    best: dict[tuple[str, str, str], float],
    swept: dict[tuple[str, int], float],
) -> Row:
    base = index.get(cell_key(cell | {"variant": cell["baseline"]}))
    medians, against = (one["medians_us"] if one and one["status"] == "ok" else [] for one in (cell, base))
    found = quotient(against, medians)
    figures: dict[str, Any] = {
        name: math.nan if cell.get(name) is None else cell[name] for name in ("error", "max_error", "peak")
    }
    same = {name: cell[name] for name in _SAME}
    return Row(
        **same,
        **figures,
        machine=record.machine,
        experiment=record.experiment,
        workload=workload(cell),
        shape="x".join(map(str, cell["shape"])),
        median_us=across(medians).value,
        ratio=found.value,
        ratio_low=found.low,
        ratio_high=found.high,
        n=found.n,
        limit_us=math.nan if cell["clock"] == "none" else limit_us(cell, best, swept),
        device=record.run["device"],
        medians_us=medians,
        beside=tuple(cell.get("beside", {}).items()),
    )


def workload(line: dict[str, Any]) -> str:
    """operation/shape/dtype/math/direction of a cell or of a detail, which is forward unless it says otherwise."""
    shape, direction = "x".join(map(str, line["shape"])), line.get("direction", "forward")
    return "/".join((line["operation"], shape, line["dtype"], line["math"], direction))


def table(records: Sequence[Record]) -> Any:
    """:func:`rows` as a pandas DataFrame with the contract's :data:`COLUMNS`."""
    import pandas

    return pandas.DataFrame([[getattr(row, name) for name in COLUMNS] for row in rows(records)], columns=COLUMNS)


def agreement(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The A/A :func:`control` of each machine that has one."""
    return [found for own in measured(records) if (found := control(own))]


def control(of: Measured) -> dict[str, Any] | None:
    """The A/A control of a machine; None where it measured no pair.

    One pair a workload and experiment, at the primary clock: more clocks of one pair would not be independent pairs.
    Keys: machine, pairs (A/A pairs measured), differences (pairs whose 95% interval excludes 1), rate with its exact
    95% interval rate_low and rate_high, p (binomial test of that rate against 5%), together (mean correlation of two
    pairs' log ratios over the processes that they share: 0 if they are independent, as the test takes them to be),
    detectable (median half-width of the ratio's interval: the smallest difference that half of all such comparisons
    would detect), detectable_90 (its 90th percentile).
    """
    import numpy

    own = [row for row in of.rows if row.clock == of.clock]
    pairs = [row for row in own if row.is_twin and not math.isnan(row.ratio_low)]
    if not pairs:
        return None
    differences = sum(not row.ratio_low <= 1 <= row.ratio_high for row in pairs)
    halves = [math.sqrt(row.ratio_high / row.ratio_low) - 1 for row in pairs]
    rate = intervals.share(differences, len(pairs))
    return {
        "machine": of.machine,
        "pairs": len(pairs),
        "differences": differences,
        "rate": rate.value,
        "rate_low": rate.low,
        "rate_high": rate.high,
        "p": intervals.false_rate_p(differences, len(pairs)),
        "together": _together(pairs, own),
        "detectable": float(numpy.quantile(halves, 0.5)),
        "detectable_90": float(numpy.quantile(halves, 0.9)),
    }


def _together(pairs: Sequence[Row], own: Sequence[Row]) -> float:
    """Mean correlation of two A/A ``pairs`` of one experiment, over its processes; NaN where no two share all."""
    medians = {(row.experiment, row.workload, row.variant): row.medians_us for row in own}
    series: dict[tuple[str, int], list[list[float]]] = {}
    for row in pairs:
        base = medians[row.experiment, row.workload, row.baseline]
        logs = [math.log(a / b) for a, b in zip(row.medians_us, base, strict=True) if a and b]
        series.setdefault((row.experiment, len(logs)), []).append(logs)
    found = [(intervals.together(logs), len(logs) * (len(logs) - 1)) for logs in series.values()]
    known = [(value, weight) for value, weight in found if not math.isnan(value)]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else math.nan
