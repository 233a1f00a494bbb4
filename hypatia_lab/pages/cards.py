"""Cards: what the ledger says of a claim on a machine: sentence, verdict, asked and measured, reason."""

from __future__ import annotations

import html
from collections.abc import Sequence

from hypatia_lab import tables
from hypatia_lab.claims import ANY, Judgement
from hypatia_lab.pages import by_machine
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.tables import claims as claim_tables


def judged(data: Evidence, machine: str, ids: Sequence[str]) -> list[Judgement]:
    """The ledger's judgement on the claims, or parts of claims, ``ids`` on ``machine``.

    Raises ``ValueError`` naming one that is in no ledger.
    """
    if lost := [name for name in ids if name not in data.judged]:
        raise ValueError(f"no claim {', '.join(lost)} in the ledger")
    own = [data.judged[name] for name in ids]
    return [found.get(machine) or found[ANY] for found in own if machine in found or ANY in found]


def cards(rows: Sequence[Judgement]) -> str:
    """``rows`` as HTML, a card each."""
    out = []
    for row in rows:
        whose = html.escape(claim_tables.whose(row))
        link = f'<a href="12_claims.html">{html.escape(row.id)}</a>'
        word = f"{claim_tables.word(row)} <small>{whose} ({link})</small>"
        figures = f"asked {claim_tables.asked(row)} | measured {claim_tables.judged(row)}"
        out.append(
            f'<div class="lab-card {row.verdict}"><h3>{html.escape(row.claim)}</h3><p class="lab-word">{word}</p>'
            f"<p><strong>{html.escape(figures)}</strong></p><p>{html.escape(row.reason)}</p></div>"
        )
    return f'<div class="lab-cards">{"".join(out)}</div>'


def show(data: Evidence, *ids: str, machines: Sequence[str] | None = None) -> None:
    """Display a card for each of ``ids``, claims or parts of claims, by machine; none for what it cannot test."""
    for name in by_machine.tabs(data, machines):
        if rows := [row for row in judged(data, name, ids) if row.verdict != "not_testable"]:
            told = [
                f"{row.claim} {claim_tables.word(row)}: asked {claim_tables.asked(row)}, "
                f"measured {claim_tables.judged(row)}. {row.reason}"
                for row in rows
            ]
            tables.display(cards(rows), "\n".join(told))
