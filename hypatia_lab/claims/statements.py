"""The verdict on a claim as a whole: it follows from those on its parts alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypatia_lab.claims.claim import PROGRAMS, Claim
from hypatia_lab.claims.judgement import ANY, Judgement
from hypatia_lab.claims.ledger import ledger
from hypatia_lab.claims.verdicts import HOLD

FAIL = frozenset({"refuted", "inconsistent", "conditional"})
"""Verdicts that say of a part that it fails; a conditional one says that it fails in part."""
SILENT = frozenset({"not_testable", "not_reproduced"})
"""Verdicts on a part that say nothing for or against its claim."""


def together(verdicts: Iterable[str]) -> str:
    """The verdict on a claim from ``verdicts``, those on its parts.

    Parts that hold and parts that fail make it conditional, whatever is left open. Else what is left open could change
    it: invalid if a part's measurement failed a check, or undecided. Else the parts that could be tested agree, and it
    is confirmed (exceeded if one of them is), or refuted (inconsistent if each of them fails its own arithmetic). Parts
    that cannot be tested or reproduced do not count, unless there is no other.
    """
    given = set(verdicts)
    seen = given - SILENT
    if seen & HOLD and seen & FAIL:
        return "conditional"
    for verdict in ("invalid", "undecided", "exceeded", "confirmed", "refuted", "inconsistent"):
        if verdict in seen:
            return verdict
    return "not_reproduced" if "not_reproduced" in given else "not_testable"


def statements(rows: Sequence[Judgement], claims: Sequence[Claim] | None = None) -> list[Judgement]:
    """The verdict on every claim as a whole: one judgement a claim and machine, in order of the ledger.

    ``rows`` are those of :func:`judge`, ``claims`` the whole ledger or file that they were judged by; it defaults to
    :func:`ledger`. The figures are the first part's that was judged. Of the parts that arithmetic decides, those that
    fail count on every machine where another part could be tested; those that add up do not, for a document that
    divides rightly has measured nothing. A claim that no machine can decide has a single judgement, on :data:`ANY`; its
    parts may have one a machine.
    """
    found = ledger() if claims is None else claims
    wholes: dict[str, list[Claim]] = {}
    for claim in found:
        wholes.setdefault(claim.lead, []).append(claim)
    own: dict[str, list[Judgement]] = {}
    for row in rows:
        own.setdefault(row.lead, []).append(row)
    machines = list(dict.fromkeys(row.machine for row in rows if row.machine != ANY))
    out = []
    for lead, members in wholes.items():
        shown = own.get(lead, [])
        if not any(claim.testable for claim in members):
            out += [_stated(members[0], shown, ANY)] if shown else []
            continue
        for machine in machines:
            out.append(_stated(members[0], [row for row in shown if row.machine in (machine, ANY)], machine))
    return out


def _stated(lead: Claim, rows: Sequence[Judgement], machine: str) -> Judgement:
    """The row of the claim that ``lead`` is the first part of, from those of its parts that concern ``machine``."""
    measured = any(row.machine != ANY and row.verdict != "not_testable" for row in rows)
    tested = measured or machine == ANY
    counted = [row.verdict for row in rows if not (measured and _adds_up(row))]
    verdict = together(counted) if tested else "not_testable"
    # The part that speaks for the whole: the first that was judged as the whole is, by the best program there is.
    first = min(rows, key=lambda row: (row.verdict != verdict, _RANK.get(row.program, len(_RANK))))
    reason = _sum_up(rows, machine, tested) if len({row.id for row in rows}) > 1 else first.reason
    return replace(
        first,
        id=lead.lead,
        section=lead.section,
        claim=lead.statement,
        machine=machine,
        verdict=verdict,
        reason=reason,
        parts=tuple(rows),
    )


_RANK = {program: number for number, program in enumerate(PROGRAMS)}


def _adds_up(row: Judgement) -> bool:
    """Whether this is a part that arithmetic decides, and its figures follow from each other."""
    return row.quantity == "arithmetic" and row.verdict == "confirmed"


_SOUND = "sound"
_SAYINGS = {
    "confirmed": ("holds", "hold"),
    "exceeded": ("is exceeded", "are exceeded"),
    _SOUND: ("adds up", "add up"),
    "conditional": ("holds in part", "hold in part"),
    "refuted": ("is refuted", "are refuted"),
    "inconsistent": ("fails its own arithmetic", "fail their own arithmetic"),
    "undecided": ("is undecided", "are undecided"),
    "invalid": ("was not measured rightly", "were not measured rightly"),
    "not_reproduced": ("is not reproduced", "are not reproduced"),
    "not_testable": ("cannot be tested", "cannot be tested"),
}


def _sum_up(rows: Sequence[Judgement], machine: str, tested: bool) -> str:
    """The reason of a claim of several parts, one sentence: what became of which of them, by its letter."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        letters = groups.setdefault(_SOUND if _adds_up(row) else row.verdict, [])
        if row.id[-1] not in letters:
            letters.append(row.id[-1])
    if not tested:
        groups.pop("not_testable", None)
    said = [f"{', '.join(own)} {_SAYINGS[key][len(own) > 1]}" for key in _SAYINGS if (own := groups.get(key))]
    if tested:
        return f"Of {len({row.id for row in rows})} parts {'; '.join(said)}."
    return f"No part of it could be measured on {machine}" + (f"; by arithmetic {'; '.join(said)}." if said else ".")
