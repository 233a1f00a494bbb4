"""The page of a reader's own kernel, from the records in the reader's own book.

``hypatia-lab judge`` writes the notebook that calls this. Only the reader's variants (origin ``own``) are told;
``eager`` and ``compile`` are what they are held against.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypatia_lab import formats, records, results, tables
from hypatia_lab.figures.drawn_rows import singles
from hypatia_lab.pages import beside
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.readings import took
from hypatia_lab.results import Row

FAILED = ("cheated", "wrong", "too_fast", "crashed", "timeout")
"""Statuses of a variant that cannot be believed."""


def read(folder: Path, experiment: str, here: str = "") -> Evidence:
    """The records below ``folder`` of the machines that measured ``experiment``, GPUs first; ``here`` is this machine.

    Raises :class:`records.RecordError` for a malformed record, or when no machine has measured it.
    """
    found = records.load(folder, experiments=[experiment, "ceilings"])
    measured = {record.machine for record in found if record.experiment == experiment}
    if not measured:
        raise records.RecordError(f"no records of {experiment} below {folder}; measure it with hypatia-lab judge")
    kept = [record for record in found if record.machine in measured]
    kept.sort(key=lambda record: record.run["device"] != "cuda")
    return Evidence(kept, results.rows(kept), here).shown()


def failures(rows: Sequence[Row]) -> list[Row]:
    """The rows of the reader's variants that are wrong, too fast, crashed or hung."""
    return [row for row in rows if row.origin == "own" and row.status in FAILED]


def can_limit(rows: Sequence[Row]) -> bool:
    """Whether there is a time to draw."""
    return any(row.timed for row in singles(rows))


def can_place(data: Evidence, machine: str, rows: Sequence[Row]) -> bool:
    """Whether there is a roofline to draw: FLOPs were given, something was timed, and a ceiling is known."""
    rates, clock = data.measured[machine].ceilings, data.primary(machine)
    timed = [row for row in singles(rows) if row.flops and row.traffic and row.timed]
    known = any(("matmul", f"{row.dtype}/{row.math}", clock) in rates for row in timed)
    return known and ("copy", "", clock) in rates


def summary(data: Evidence, machine: str, experiment: str) -> list[dict[str, str]]:
    """A line a variant of the reader's, workload and clock, those that failed first, once each.

    A baseline without a time stands there too, for then there is no ratio.
    """
    rows = data.select(machine=machine, experiment=experiment)
    told = [row for row in rows if row.origin == "own" or (row.variant == row.baseline and not row.timed)]
    once = {(row.variant, row.workload, row.clock if row.timed else row.reason): row for row in told}
    return [
        {
            "variant": row.variant,
            "at": f"{row.at} {row.dtype}",
            "clock": row.clock if row.timed else formats.MISSING,
            "against its baseline": row.reading,
            "ratio": formats.told(row.speed),
            "against compile": formats.told(
                beside.over(data, beside.beside(data, row, variant="compile"), variant=row.variant)
            ),
            "time": took(row),
            "error": formats.number(row.error),
            "error / baseline's": formats.number(beside.error(data, row, variant=row.baseline)),
        }
        for row in sorted(once.values(), key=lambda row: row.status not in FAILED)
    ]


def every_cell(data: Evidence, machine: str, experiment: str) -> Any:
    """All cells of ``experiment`` on ``machine`` as a table of text, without the columns that never vary."""
    rows = data.select(machine=machine, experiment=experiment)
    return tables.results_table(rows).drop(columns=["machine", "origin"])
