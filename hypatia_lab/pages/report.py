"""The page of a report on documents that are not the lab's: its ledger, drafts and figures, from its own folder.

``hypatia-lab investigate`` writes the notebook that calls this. Without records the page says that nothing is measured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypatia_lab import claims, formats, records, results, tables
from hypatia_lab.claims import ANY, VERDICTS, Contents, Judgement
from hypatia_lab.figures import verdicts
from hypatia_lab.formats import MISSING
from hypatia_lab.intervals import estimate as rare
from hypatia_lab.pages import readings
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.tables import claims as claim_tables

NOTHING = "Nothing is measured yet: there are no records."
UNMEASURED = "not measured"


@dataclass(frozen=True)
class Report:
    """What a report's folder holds: its ledger files together, and its records."""

    ledger: Contents
    data: Evidence

    def stated(self) -> list[Judgement]:
        """The verdicts of the records on the report's claims, one a claim and machine."""
        parts = list(self.ledger.claims)
        return claims.statements(claims.judge([*self.data.measured.values()], parts), parts)

    def compared_on(self, machine: str) -> bool:
        """Whether ``machine`` measured a figure that stands beside one of a claim."""
        return any(row.machine == machine and verdicts.comparable(row) for row in self.stated())

    def summary(self) -> str:
        """How much of the report is there, and how many claims have which verdict on each machine."""
        wholes = len({claim.lead for claim in self.ledger.claims})
        said = f"{_many(wholes, 'claim')} in {_many(len(self.ledger.claims), 'part')}."
        said += f" {self.ledger.drafted}" if self.ledger.drafts else ""
        if not self.data.machines:
            return f"{said} {NOTHING}"
        found = Counter((row.machine, row.verdict) for row in self.stated())
        for machine in self.data.machines:
            counts = {verdict: found[machine, verdict] + found[ANY, verdict] for verdict in VERDICTS}
            told = [f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts.items() if count]
            said += f" Measured on {machine}: {formats.listing(told)}."
        return said

    def documents(self) -> list[Any]:
        """A table of the documents, if the ledger names any: file and digest, a line a document."""
        return _table([{"document": file, "sha256": digest} for file, digest in self.ledger.documents])

    def unmeasured(self) -> list[Any]:
        """A table of the claims that stands in for verdicts while there are no records, if there are claims.

        What no machine can decide has its verdict.
        """
        known = {row.id: claim_tables.verdict_text(row.verdict) for row in self.stated()}
        wholes = {claim.lead: claim.statement for claim in self.ledger.claims}
        lines = [{"id": lead, "verdict": known.get(lead, UNMEASURED), "claim": text} for lead, text in wholes.items()]
        return _table(lines)

    def unworded(self) -> list[Any]:
        """A table of the drafts, if there are any: id, where the figure stands, figure and kind."""
        lines = []
        for draft in self.ledger.drafts:
            figure = claim_tables.claimed_text(draft.claimed, draft.unit)
            lines.append({"id": draft.id, "where": draft.section, "figure": figure, "kind": draft.kind or MISSING})
        return _table(lines)


def _table(lines: list[dict[str, str]]) -> list[Any]:
    """A table of ``lines``, if there are any."""
    return [tables.frame(lines)] if lines else []


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def read(folder: Path) -> Report:
    """The report in ``folder``: its ledger files, ``claims/*.yaml``, and its records, ``records/``.

    Raises :class:`hypatia_lab.claims.ClaimError` or :class:`hypatia_lab.records.RecordError` for what is malformed.
    """
    ledger = claims.gather(sorted((folder / "claims").glob("*.yaml")))
    found = records.load(folder / "records")
    found.sort(key=lambda record: record.run["device"] != "cuda")
    return Report(ledger, Evidence(found, results.rows(found)).shown())


def beside(data: Evidence, machine: str) -> list[results.Row]:
    """What ``machine`` timed beside a baseline, its ceilings left out; empty where there is no ratio to draw."""
    rows = [row for row in data.leading(machine) if row.experiment != "ceilings"]
    return rows if readings.compared(rows) else []


def measured(data: Evidence, machine: str) -> list[Any]:
    """Tables of all that ``machine`` measured: the figures that programs printed, and the cells; one each at most."""
    lines = []
    for line in data.details(machine=machine, topic="program"):
        values = [value for value in line["values"] if value is not None]
        unit = line["unit"].removesuffix("1")
        lines.append(
            {
                "command": line["case"],
                "figure": line["name"] or MISSING,
                "of": line["variant"],
                "size": formats.shape("x".join(map(str, line["shape"]))),
                "measured": formats.figure(rare(values), unit) if values else MISSING,
                "n": str(len(values)),
                "status": line["status"].replace("_", " ") + (f": {line['reason']}" if line["reason"] else ""),
            }
        )
    rows = data.select(machine=machine)
    return _table(lines) + ([tables.results_table(rows).drop(columns="machine")] if rows else [])
