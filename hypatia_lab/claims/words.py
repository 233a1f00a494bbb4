"""The words of a verdict, once, as tables: a case's reading, a part's word, a claim's word, and the groups of words.

A case is one workload held against the band, a part one way to test a claim over its cases, a claim what is said over
its parts. What was found is one mark; whose program it was is another (:data:`hypatia_lab.claims.claim.PROGRAMS`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

READINGS = {
    "in": "the interval lies inside the band",
    "against": "it lies outside, on the bad side of what is said",
    "favour": "it lies outside, because a claimed gain is larger than said",
    "straddles": "it lies on both sides of an edge, or fewer than three processes stand behind it",
    "missing": "nothing was measured, a check failed, or the figure is of other hardware",
}
"""What a case may read, and when it does."""

VERDICTS = {
    "confirmed": "✓",
    "confirmed_in_part": "◔",
    "conditional": "◐",
    "refuted": "✗",
    "fell_short": "↓",
    "understated": "»",
    "inconsistent": "≠",
    "undecided": "?",
    "agrees": "≈",
    "differs": "≉",
    "not_testable": "○",
    "adds_up": "=",
}
"""Every word of a part or a claim, in the order of tables, and the sign beside it."""
GROUPS = {
    "holds": ("confirmed",),
    "holds in part": ("confirmed_in_part", "conditional"),
    "the figure does not hold here": ("refuted", "fell_short", "understated", "inconsistent"),
    "open": ("undecided", "agrees", "differs", "not_testable"),
    "by its own arithmetic only": ("adds_up",),
}
"""What became of claims, as they are counted: group → its words."""
SUMS = ("adds_up", "inconsistent")
"""Words of a part that the document's own figures decide."""
UNJUDGED = ("not_testable", "agrees", "differs")
"""Words that say nothing of the document's own program on a machine."""


@dataclass(frozen=True)
class Rule:
    """One line of a table: ``word`` where each group of ``needs`` is met and nothing beyond ``may`` is there."""

    needs: tuple[tuple[str, ...], ...]
    may: tuple[str, ...]
    word: str

    def fits(self, seen: set[str]) -> bool:
        """Whether the line says what becomes of ``seen``."""
        known = {word for group in self.needs for word in group} | set(self.may)
        return seen <= known and all(seen.intersection(group) for group in self.needs)


def _rule(word: str, needs: str = "", may: str = "") -> Rule:
    return Rule(tuple(tuple(group.split("|")) for group in needs.split()), tuple(may.split()), word)


PARTS = (
    _rule("not_testable"),
    _rule("confirmed", "in"),
    _rule("confirmed_in_part", "in straddles"),
    _rule("conditional", "in against|favour", "straddles"),
    _rule("understated", "favour", "straddles"),
    _rule("refuted", "against", "straddles favour"),
    _rule("undecided", "straddles"),
)
"""Readings of the cases that are not missing → the word of a part; the first line that fits."""
REWRITTEN = (
    _rule("not_testable"),
    _rule("differs", "against", "in favour straddles"),
    _rule("agrees", "in|favour"),
    _rule("undecided", "straddles", "in favour"),
)
"""The same of a part that only a rewrite could measure which no record shows equal to the author's program."""
_SILENT = "not_testable agrees differs"
_HOLD, _FAIL = "confirmed|confirmed_in_part", "refuted|fell_short|understated"
CLAIMS = (
    _rule("not_testable", "", "not_testable"),
    _rule("confirmed", "confirmed"),
    _rule("confirmed_in_part", _HOLD, f"undecided {_SILENT}"),
    _rule("conditional", "conditional", f"{_HOLD} {_FAIL} undecided {_SILENT}".replace("|", " ")),
    _rule("conditional", f"{_HOLD} {_FAIL}", f"undecided {_SILENT}"),
    _rule("refuted", "refuted", f"fell_short understated undecided {_SILENT}"),
    _rule("refuted", "fell_short understated", f"undecided {_SILENT}"),
    _rule("fell_short", "fell_short", f"undecided {_SILENT}"),
    _rule("understated", "understated", f"undecided {_SILENT}"),
    _rule("undecided", "undecided", _SILENT),
    _rule("agrees", "agrees", "not_testable"),
    _rule("differs", "differs", "not_testable"),
    _rule("not_testable", "agrees differs", "not_testable"),
)
"""Words of the parts, sums aside → the word of a claim; the first line that fits."""


def _first(rules: tuple[Rule, ...], seen: set[str]) -> str:
    return next(rule.word for rule in rules if rule.fits(seen))


def part(readings: Iterable[str], *, forecast: bool = False, rewrite: bool = False) -> str:
    """The word of a part whose cases have ``readings``.

    ``rewrite``: measured was a rewrite that no record shows equal to the author's program. Of a ``forecast`` what is
    refuted fell short.
    """
    seen = set(readings) - {"missing"}
    word = _first(REWRITTEN if rewrite else PARTS, seen)
    return "fell_short" if forecast and word == "refuted" else word


def claim(parts: Iterable[str]) -> str:
    """The word of a claim whose parts have the words ``parts``.

    Sums stand aside where anything was measured. Where nothing was they decide: inconsistent where one fails.
    """
    given = set(parts)
    sums, measured = given.intersection(SUMS), given.difference(SUMS)
    if sums and measured <= {"not_testable"}:
        return max(sums)  # inconsistent before adds_up
    return _first(CLAIMS, measured)
