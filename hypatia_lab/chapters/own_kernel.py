"""The chapter of a reader's own kernel: its findings, from the records in the reader's own book.

``hypatia-lab judge`` writes the notebook that calls this. Only the reader's variants (origin ``own``) get a finding;
``eager`` and ``compile`` are what they are held against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypatia_lab import formats, intervals, records, results, tables
from hypatia_lab.figures.language import contenders, singles
from hypatia_lab.formats import absent
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import say
from hypatia_lab.results import Row

FAILED = ("cheated", "wrong", "too_fast", "crashed", "timeout")
"""Statuses of a variant that cannot be believed, the worst first."""
SAID = {
    "cheated": "{} cheats",
    "wrong": "{} is wrong",
    "too_fast": "{} is too fast to be believed",
    "crashed": "{} crashed",
    "timeout": "{} hung",
}


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
    return Evidence(kept, results.rows(kept), here)


def failures(rows: Sequence[Row]) -> list[Row]:
    """The rows of the reader's variants that are wrong, too fast, crashed or hung."""
    return [row for row in rows if row.origin == "own" and row.status in FAILED]


def can_compare(rows: Sequence[Row]) -> bool:
    """Whether there is a ratio to draw: a variant beside the baseline, both timed."""
    return any(not absent(row.ratio) for row in contenders(rows))


def can_limit(rows: Sequence[Row]) -> bool:
    """Whether there is a time to draw."""
    return any(row.timed for row in singles(rows))


def can_place(lab: Evidence, machine: str, rows: Sequence[Row]) -> bool:
    """Whether there is a roofline to draw: FLOPs were given, something was timed, and a ceiling is known."""
    rates, clock = results.ceilings(lab.of(machine)), lab.primary(machine)
    timed = [row for row in singles(rows) if row.flops and row.traffic and row.timed]
    known = any(("matmul", f"{row.dtype}/{row.math}", clock) in rates for row in timed)
    return known and ("copy", "", clock) in rates


def _failed(variant: str, bad: Sequence[Row], of: int, page: str) -> Finding:
    worst = min(bad, key=lambda row: FAILED.index(row.status))
    told = f"At {worst.at} in {worst.dtype}: {worst.reason.rstrip('.')}. "
    count = f"It failed in {len(bad)} of {of} cases. " if of > 1 else ""
    where = "What fails has no time and no ratio, whatever its speed."
    title = SAID[worst.status].format(variant)
    return Finding(worst.status.replace("_", " "), title, told + count + where, page)


def _variant(lab: Evidence, machine: str, experiment: str, variant: str) -> Finding:
    rows = sorted(
        lab.leading(machine, experiment=experiment, variant=variant), key=lambda row: (row.flops, row.traffic)
    )
    checked = lab.select(machine=machine, experiment=experiment, variant=variant)
    if bad := failures(checked):
        return _failed(variant, bad, len(checked), experiment)
    timed = [row for row in rows if row.status == "ok"]
    if not timed:
        why = rows[0].reason if rows else "no record names it"
        text = f"The reason: {why.rstrip('.')}."
        return Finding(formats.MISSING, f"{variant} was not timed here", text, experiment)
    compared = [row for row in timed if not absent(row.ratio)]
    decided = [row for row in compared if intervals.decided(row.speed)]
    told = max(decided, key=lambda row: row.speed.value, default=timed[-1])
    text = f"At {told.at} in {told.dtype} it takes {told.takes} by the {told.clock} clock"
    text += f", {share} of what this machine's measured ceilings allow" if (share := told.attained) else ""
    text += f". Error against float64: {formats.number(told.error)}. "
    for peer in lab.leading(machine, experiment=experiment, workload=told.workload, variant="compile", status="ok"):
        text += f"Against torch.compile there: {say(peer.over(told))}. "
    if not compared:
        text += f"There is no ratio: {told.baseline} has no valid time."
        figure = told.time.doubt or formats.duration(told.median_us)
        return Finding(figure, f"{variant} is right", text, experiment)
    words = Counter(row.reading for row in compared)
    text += f"Against {told.baseline}, by 95% intervals: {tables.counted(list(words.elements()))} of {len(compared)}."
    title = _headline(variant, told.baseline, words, len(compared))
    if not decided:
        return unsaid(lab, machine, title, experiment, [row.speed for row in compared], facts=text)
    return Finding(f"{formats.number(told.speed.value)}×", title, text, experiment)


def _headline(variant: str, baseline: str, words: Counter[str], of: int) -> str:
    """The title of the card of a variant that was compared ``of`` times."""
    reads = {"faster": f"is faster than {baseline}", "slower": f"is slower than {baseline}"}
    for word, text in (reads | {"equal": f"is as fast as {baseline}"}).items():
        if words[word] == of:
            return f"{variant} {text}"
    some = [text for word, text in reads.items() if words[word]]
    if not some:
        return f"Whether {variant} is faster than {baseline}"
    return f"{variant} {some[0]} in some cases" + (" and slower in others" if len(some) > 1 else "")


def findings(lab: Evidence, machine: str, experiment: str) -> list[Finding]:
    """One finding a variant of the reader's, and one on the baseline where that fails its own check."""
    rows = lab.select(machine=machine, experiment=experiment)
    names = dict.fromkeys(row.variant for row in rows if row.origin == "own")
    found = [_variant(lab, machine, experiment, name) for name in names]
    bad = [row for row in rows if row.variant == row.baseline and row.status == "wrong"]
    if bad:
        text = f"At {bad[0].at} in {bad[0].dtype}: {bad[0].reason}. Without a baseline there are no ratios. "
        text += "If its rounding is what it should be, tell the operation: depth counts the terms of a sum, roundings "
        text += "the steps that round."
        found.append(Finding("wrong", "The reference itself fails the check in this dtype", text, experiment))
    return found


def every_cell(lab: Evidence, machine: str, experiment: str) -> Any:
    """All cells of ``experiment`` on ``machine`` as a table of text, without the columns that never vary."""
    rows = lab.select(machine=machine, experiment=experiment)
    return tables.results_table(rows).drop(columns=["machine", "origin"])
