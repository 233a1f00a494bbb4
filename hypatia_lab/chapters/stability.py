"""The same machine on two visits: which verdicts stay, how far the ratios behind them move, how often they agree.

Records of a visit other than the one in ``book/records`` lie in ``book/visits/<visit>/<machine>/<experiment>.jsonl``.
Either visit is judged by the experiments that both have, and by nothing else.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypatia_lab import claims, formats, intervals, records, results
from hypatia_lab.chapters import machines
from hypatia_lab.claims import Judgement
from hypatia_lab.formats import absent
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.records import Record
from hypatia_lab.results import Row
from hypatia_lab.tables import claims as claim_tables

OPPOSITE = {"confirmed", "refuted"}


def folder() -> Path:
    """Where the records of other visits lie: beside the committed records."""
    return records.COMMITTED.parent / "visits"


@dataclass(frozen=True)
class Visit:
    """Another visit to a machine: of each experiment the earlier record (``then``) and the later, in one order.

    ``kept`` are those of them that lie in the visit's own folder, ``beside`` are all that the book shows.
    """

    name: str
    machine: str
    then: list[Record]
    now: list[Record]
    kept: list[Record]
    beside: list[Record]


def visits(lab: Evidence) -> list[Visit]:
    """The other visits to the machines of ``lab``, the latest first; experiments that only one visit has are left out.

    Raises :class:`records.RecordError` for a malformed file.
    """
    found = []
    for place in sorted(path for path in folder().glob("*") if path.is_dir()):
        everything = records.load(place)
        for machine in lab.machines:
            other = {record.experiment: record for record in everything if record.machine == machine}
            # The book shows the later of two records, unless its host was the worse or its plan the smaller.
            pairs = [
                sorted((other[record.experiment], record), key=lambda one: one.run["started"])
                for record in lab.of(machine)
                if record.experiment in other
            ]
            if pairs:
                then, now = (list(side) for side in zip(*pairs, strict=True))
                kept = [other[record.experiment] for record in now]
                found.append(Visit(place.name, machine, then, now, kept, lab.records))
    return sorted(found, key=lambda visit: max(record.run["started"] for record in visit.then), reverse=True)


# ---------------------------------------------------------------- verdicts


def verdicts(visit: Visit) -> list[tuple[Judgement, Judgement]]:
    """What either visit says of each part of a claim that both could test, in order of the ledger."""
    then, now = (
        {row.id: row for row in claims.judge(found, beside=visit.beside) if row.machine == visit.machine}
        for found in (visit.then, visit.now)
    )
    pairs = [(then[name], now[name]) for name in then if name in now]
    return [pair for pair in pairs if not any(row.verdict in claims.UNJUDGED for row in pair)]


Pairs = Sequence[tuple[Judgement, Judgement]]
"""What :func:`verdicts` gives."""


def summary(found: Sequence[tuple[Visit, Pairs]]) -> str:
    """How many verdicts of all visits are equal, and which claims turned round: Markdown."""
    everything = [(visit.machine, a, b) for visit, pairs in found for a, b in pairs]
    if not everything:
        return "No claim could be judged on both visits."
    same = sum(a.verdict == b.verdict for _, a, b in everything)
    text = f"**{same} of {len(everything)} pairs of verdicts are equal.**"
    turned = [
        f"On `{machine}` {a.id} turned from {a.verdict} to {b.verdict}: “{a.claim}”"
        for machine, a, b in everything
        if {a.verdict, b.verdict} == OPPOSITE
    ]
    return " ".join([text, *(turned or ["None turned from confirmed to refuted or back."])])


def overview(found: Sequence[tuple[Visit, Pairs]]) -> list[dict[str, Any]]:
    """A line a visit: when it was, on which chips, how many experiments it shares, and what became of verdicts."""
    return [
        {
            "machine": visit.machine,
            "other visit": _days(visit),
            "experiments (chip)": machines.compared(zip(visit.then, visit.now, strict=True)),
            "equal verdicts": f"{sum(a.verdict == b.verdict for a, b in pairs)} of {len(pairs)}",
            "turned round": sum({a.verdict, b.verdict} == OPPOSITE for a, b in pairs),
        }
        for visit, pairs in found
    ]


def _days(visit: Visit) -> str:
    """The days on which the records were made that the book does not show."""
    days = sorted(record.run["started"][:10] for record in visit.kept)
    return " to ".join(dict.fromkeys((days[0], days[-1])))


def changed(visit: Visit, pairs: Pairs) -> list[dict[str, Any]]:
    """A line a verdict that differs: either visit's, and why."""
    lines = []
    for pair in pairs:
        if pair[0].verdict == pair[1].verdict:
            continue
        named = [replace(row, machine=name) for row, name in zip(pair, ("the earlier visit", "the later"), strict=True)]
        lines.append(
            {"id": pair[0].id, "claim": pair[0].claim, "machine": visit.machine, "other visit": _days(visit)}
            | {
                f"{name} record": f"{claim_tables.verdict_text(row.verdict)}, {claim_tables.judged(row)}"
                for row, name in zip(pair, ("earlier", "later"), strict=True)
            }
            | {"why": machines.cause(named)[1]}
        )
    return lines


# ---------------------------------------------------------------- ratios


def moved(visit: Visit) -> list[dict[str, Any]]:
    """A line an experiment: when and by which code it was measured, and how far its ratios to the baseline moved.

    At the primary clock, of the ratios that say something on both. One moved if the intervals do not overlap.
    """
    lines = []
    for then, now in zip(visit.then, visit.now, strict=True):
        both = _shared(*(_ratios(record)[results.primary_clock(now.run["device"])] for record in (then, now)))
        speeds = {name: (a.speed, b.speed) for name, (a, b) in both.items()}
        speeds = {name: (a, b) for name, (a, b) in speeds.items() if not (a.doubt or b.doubt)}
        changes = {name: abs(math.log(b.value / a.value)) for name, (a, b) in speeds.items()}
        line: dict[str, Any] = {"machine": visit.machine, "experiment": now.experiment}
        line |= {"chip": machines.chips(then, now), "earlier record": _when(then), "later record": _when(now)}
        line |= {"the book shows": "the earlier" if now in visit.kept else "the later", "ratios": len(speeds)}
        line |= {"apart": sum(a.outside(b.low, b.high) for a, b in speeds.values())}
        line |= {"median change": formats.MISSING, "largest change": ""}
        if changes:
            most = max(changes, key=lambda name: changes[name])
            line["median change"] = _percent(statistics.median(changes.values()))
            line["largest change"] = f"{_percent(changes[most])}: {most}"
        lines.append(line)
    return lines


def _ratios(record: Record) -> dict[str, dict[str, Row]]:
    """By clock, then by variant and workload in words, the rows of ``record`` whose ratio has an interval."""
    found: dict[str, dict[str, Row]] = {clock: {} for clock in records.CLOCKS}
    for row in results.rows([record]):
        if row.variant != row.baseline and not absent(row.ratio_low):
            found[row.clock][f"{row.variant} at {row.text}"] = row
    return found


def _shared(old: dict[str, Row], new: dict[str, Row]) -> dict[str, tuple[Row, Row]]:
    return {name: (old[name], new[name]) for name in old if name in new}


@dataclass(frozen=True)
class Coverage:
    """How often ratios of two visits to GPUs of one model agree: a share of so many, by what the visits have in common.

    ``clock`` is graph or wall, ``chip`` what :func:`machines.chips` says, ``code`` ``same`` or ``another`` (commit).
    ``tuned`` tells what torch.compile's tuner chose from the rest.
    """

    clock: str
    chip: str
    code: str
    tuned: bool
    agree: int
    ratios: int

    @property
    def share(self) -> Interval:
        """The share that agree, with its 95% interval; the ratios are taken to be independent."""
        return intervals.share(self.agree, self.ratios)


def coverage(lab: Evidence, visited: Sequence[Visit], machine: str = "") -> list[Coverage]:
    """Of all ratios that two visits share (to ``machine``, or to any), the A/A control's aside, how many agree.

    They agree when the difference of their logarithms is within the two half-widths added in squares, as that of two
    estimates of one figure is in 95% of cases. Every two records of an experiment on one model of GPU are such visits.
    """
    taken = [*lab.records, *(record for visit in visited for record in visit.kept)]
    taken = [record for record in taken if machine in ("", record.machine)]
    known = [(record, _ratios(record)) for record in taken if record.run["device"] == "cuda"]
    counts: Counter[tuple[str, str, str, bool, bool]] = Counter()
    for (then, old), (now, new) in itertools.combinations(known, 2):
        if _subject(then) != _subject(now):
            continue
        for clock in ("graph", "wall"):
            kind = clock, machines.chips(then, now), "same" if _code(then) == _code(now) else "another"
            for a, b in _shared(old[clock], new[clock]).values():
                if not a.is_twin:
                    counts[(*kind, a.tuned, _agree(a, b))] += 1
    kinds = sorted({key[:4] for key in counts})
    return [Coverage(*kind, counts[(*kind, True)], counts[(*kind, True)] + counts[(*kind, False)]) for kind in kinds]


def _subject(record: Record) -> tuple[str, str]:
    return record.experiment, record.device_name


def _code(record: Record) -> object:
    """What two records have in common that one and the same code made; nothing where that is not known."""
    run = record.run
    return run["commit"][:7] if not run["dirty"] and not run.get("grown") else record.digest


def _agree(one: Row, other: Row) -> bool:
    halves = [math.log(row.ratio_high / row.ratio_low) / 2 for row in (one, other)]
    return abs(math.log(one.ratio / other.ratio)) <= math.hypot(*halves)


def _percent(change: float) -> str:
    return f"{formats.number(100 * math.expm1(change))}%"


def _when(record: Record) -> str:
    return f"{record.run['started'][:10]}, code {record.run['commit'][:7]}"
