"""The same machine on two visits: which verdicts stay, and how far the ratios behind them move.

Records of a visit other than the one in ``book/records`` lie in ``book/visits/<visit>/<machine>/<experiment>.jsonl``.
Either visit is judged by the experiments that both have, and by nothing else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypatia_lab import claims, formats, records, results, tables
from hypatia_lab.chapters import machines
from hypatia_lab.formats import absent
from hypatia_lab.notebook import Evidence
from hypatia_lab.records import Record

Row = dict[str, Any]

OPPOSITE = {"confirmed", "refuted"}


def folder() -> Path:
    """Where the records of other visits lie: beside the committed records."""
    return records.COMMITTED.parent / "visits"


@dataclass(frozen=True)
class Visit:
    """Another visit to a machine: of each experiment the earlier record (``then``) and the later, in one order.

    ``kept`` are those of them that lie in the visit's own folder.
    """

    name: str
    machine: str
    then: list[Record]
    now: list[Record]
    kept: list[Record]


def visits(lab: Evidence) -> list[Visit]:
    """The other visits to the machines of ``lab``, the latest first; experiments that only one visit has are left out.

    Raises :class:`records.RecordError` for a malformed file.
    """
    found = []
    for place in sorted(path for path in folder().glob("*") if path.is_dir()):
        everything = records.load(place)
        for machine in lab.machines:
            other = {record.experiment: record for record in everything if record.machine == machine}
            # The book shows the later of two records, unless its host was the worse: either may be the earlier.
            pairs = [
                sorted((other[record.experiment], record), key=lambda one: one.run["started"])
                for record in lab.of(machine)
                if record.experiment in other
            ]
            if pairs:
                then, now = (list(side) for side in zip(*pairs, strict=True))
                kept = [other[record.experiment] for record in now]
                found.append(Visit(place.name, machine, then, now, kept))
    return sorted(found, key=lambda visit: max(record.run["started"] for record in visit.then), reverse=True)


# ---------------------------------------------------------------- verdicts


def verdicts(visit: Visit) -> list[tuple[Row, Row]]:
    """What either visit says of each part of a claim that both could test, in order of the ledger."""
    then, now = (
        {row["id"]: row for row in claims.judge(found, beside=records.load()) if row["machine"] == visit.machine}
        for found in (visit.then, visit.now)
    )
    pairs = [(then[name], now[name]) for name in then if name in now]
    return [pair for pair in pairs if not any(row["verdict"] in machines.UNJUDGED for row in pair)]


def equal(pairs: Sequence[tuple[Row, Row]]) -> str:
    """How many verdicts of :func:`verdicts` are equal, and whether any turned round, in two sentences."""
    if not pairs:
        return "No claim could be judged on both visits."
    same = sum(a["verdict"] == b["verdict"] for a, b in pairs)
    turned = [a["id"] for a, b in pairs if {a["verdict"], b["verdict"]} == OPPOSITE]
    text = f"**{same} of {len(pairs)} verdicts are equal** ({formats.number(100 * same / len(pairs))}%)."
    if turned:
        return f"{text} Turned from confirmed to refuted or back: {', '.join(turned)}."
    return f"{text} None turned from confirmed to refuted or back."


def changed(visit: Visit, pairs: Sequence[tuple[Row, Row]]) -> list[Row]:
    """A line a verdict that differs: either visit's, and why."""
    lines = []
    for pair in pairs:
        if pair[0]["verdict"] == pair[1]["verdict"]:
            continue
        named = [row | {"machine": name} for row, name in zip(pair, ("the earlier visit", "the later"), strict=True)]
        lines.append(
            {"id": pair[0]["id"], "claim": pair[0]["claim"]}
            | {
                f"{name} visit": f"{tables.verdict_text(row['verdict'])}, {tables.judged(row)}"
                for row, name in zip(pair, ("earlier", "later"), strict=True)
            }
            | {"why": machines.cause(named)[1]}
        )
    return lines


# ---------------------------------------------------------------- ratios


def moved(visit: Visit) -> list[Row]:
    """A line an experiment: when and by which code it was measured, and how far its ratios to the baseline moved.

    At the primary clock. A ratio moved if the intervals of the two visits do not overlap.
    """
    lines = []
    for then, now in zip(visit.then, visit.now, strict=True):
        both = _ratios(then, now)
        changes = {name: math.log(b["ratio"] / a["ratio"]) for name, (a, b) in both.items()}
        line: Row = {"experiment": now.experiment}
        line |= {"earlier visit": _when(then), "later visit": _when(now), "ratios": len(both)}
        line |= {"apart": 0, "median change": formats.MISSING, "largest change": ""}
        if both:
            apart = sum(a["ratio_high"] < b["ratio_low"] or b["ratio_high"] < a["ratio_low"] for a, b in both.values())
            most = max(changes, key=lambda name: abs(changes[name]))
            line |= {
                "apart": apart,
                "median change": _percent(statistics.median(map(abs, changes.values()))),
                "largest change": f"{_percent(abs(changes[most]))}: {most}",
            }
        lines.append(line)
    return lines


def _ratios(then: Record, now: Record) -> dict[str, tuple[Row, Row]]:
    """By variant and workload, the rows of both visits that have a ratio with an interval."""
    clock = results.primary_clock(now.run["device"])

    def rows(record: Record) -> dict[str, Row]:
        return {
            f"{row['variant']} at {tables.workload_text(row)}": row
            for row in results.rows([record])
            if row["clock"] == clock and row["variant"] != row["baseline"] and not absent(row["ratio_low"])
        }

    old, new = rows(then), rows(now)
    return {name: (old[name], new[name]) for name in old if name in new}


def _percent(change: float) -> str:
    return f"{formats.number(100 * math.expm1(change))}%"


def _when(record: Record) -> str:
    return f"{record.run['started'][:10]}, code {record.run['commit'][:7]}"
