"""The verdict on a claim as a whole: it follows from those on its parts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from hypatia_lab.claims import words
from hypatia_lab.claims.claim import Claim
from hypatia_lab.claims.judgement import ANY, Judgement
from hypatia_lab.claims.ledger import ledger
from hypatia_lab.formats import listing
from hypatia_lab.results import grouped

_RANK = ("author", "equal", "library", "own", "rewrite", "arithmetic", "")
"""Whose figure speaks for a claim, where several parts have its word."""


def statements(rows: Sequence[Judgement], claims: Sequence[Claim] | None = None) -> list[Judgement]:
    """The verdict on every claim as a whole: one judgement a claim and machine, in order of the ledger.

    ``rows`` are those of :func:`judge`, ``claims`` the whole ledger or file that they were judged by; it defaults to
    :func:`ledger`. The figures are the first part's that was judged as the whole is. A claim that no machine can decide
    has a single judgement, on :data:`ANY`; its parts may have one a machine.
    """
    wholes = grouped(ledger() if claims is None else claims, attrgetter("lead"))
    own = grouped(rows, attrgetter("lead"))
    machines = list(dict.fromkeys(row.machine for row in rows if row.machine != ANY))
    out = []
    for lead, members in wholes.items():
        shown = own.get(lead, [])
        testable = any(claim.testable for claim in members)
        for machine in machines if testable else [ANY] * bool(shown):
            out.append(_stated(members[0], [row for row in shown if row.machine in (machine, ANY)], machine))
    return out


def _stated(lead: Claim, rows: Sequence[Judgement], machine: str) -> Judgement:
    """The row of the claim that ``lead`` is the first part of, from those of its parts that concern ``machine``."""
    verdict = words.claim(row.verdict for row in rows)
    sums = [row.verdict for row in rows if row.verdict in words.SUMS]
    parts = [row for row in rows if row.verdict not in words.SUMS]
    # The part that speaks for the whole: the first that was judged as the whole is, by the best program there is.
    silent = (*words.UNJUDGED, *words.SUMS)
    first = min(rows, key=lambda row: (row.verdict != verdict, row.verdict in silent, _RANK.index(row.program)))
    counted = {"held": sum(row.verdict == "confirmed" for row in parts), "total": len(parts)}
    if len(rows) == 1:
        counted = {"held": first.held, "total": first.total}
    return replace(
        first,
        **counted,
        id=lead.lead,
        section=lead.section,
        claim=lead.statement,
        machine=machine,
        verdict=verdict,
        reason=first.reason if len(rows) == 1 else _sum_up(rows, first),
        sums=max(sums, default="") if parts else "",
        parts=tuple(rows),
    )


def _sum_up(rows: Sequence[Judgement], first: Judgement) -> str:
    """The reason of a claim of several parts: how many have which word, and why, of one part a word; of two parts both.

    ``first``, the part whose figures the claim has, comes first.
    """
    words_of = Counter(row.verdict for row in rows)
    found = [(words_of[word], word) for word in words.VERDICTS if words_of[word]]
    counts = [f"{n} {(_MANY if n > 1 else {}).get(word, word).replace('_', ' ')}" for n, word in found]
    judged = [row for row in rows if row.verdict not in (*words.UNJUDGED, *words.SUMS)]
    speaks = {first.id if len(judged) == 2 else first.verdict: first}
    for row in judged:
        speaks.setdefault(row.id if len(judged) == 2 else row.verdict, row)
    why = [f"Part {row.id[-1]}: {row.reason}" for row in speaks.values()]
    return " ".join([f"Of {len(rows)} parts {listing(counts)}.", *why])


_MANY = {"adds_up": "add up", "agrees": "agree", "differs": "differ"}
"""A verdict that is a verb → the same of several parts."""
