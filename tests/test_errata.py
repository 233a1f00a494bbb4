"""Errata: figures that do not follow from the document's own, and claims that exclude each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hypatia_lab import claims
from hypatia_lab.claims import Claim
from hypatia_lab.pages import errata


def claim(number: int, claimed: float, expression: str = "", conflicts: tuple[str, ...] = (), **more: Any) -> Claim:
    """A claim with a band of ±0.1 around its one figure."""
    own = f"S001-{number:02d}", "section", f"claim {number}", (claimed, claimed), "×", "arithmetic", "why"
    band = claimed - 0.1, claimed + 0.1
    found = Claim(*own, band=band, expression=expression, conflicts=conflicts, lead=own[0])
    return replace(found, **more)


LEDGER = [
    claim(1, 4.0, "2 + 2"),
    claim(2, 5.0, "2 + 2", ("S001-01",)),
    claim(3, 40.0, "2 * 2"),
    claim(4, 0.0, "1 + 1"),
    claim(5, 1.0, conflicts=("S001-02",)),
    claim(6, 4.2, "2 + 2"),
    claim(1, 7.0, "2 + 2", id="S002-01", lead="S002-01", conflicts=("S001-01",)),
    claim(1, 7.0, "2 + 2", id="LAB-01", lead="LAB-01"),  # no document's
]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
    """The ledger, to be filled."""
    found: list[Claim] = []
    monkeypatch.setattr(claims, "ledger", lambda: found)
    return found


def test_sums_are_worked_out_and_in_each_document_the_farthest_off_comes_first(known: list[Claim]) -> None:
    known += LEDGER
    lines = errata.corrections()
    assert [line["id"] for line in lines] == ["S001-04", "S001-03", "S001-02", "S001-06", "S002-01"]
    assert [line["off by"] for line in lines] == ["–", "10.0×", "1.25×", "5.00%", "1.75×"]
    assert [line["its own figures give"] for line in lines] == ["2×", "4×", "4×", "4×", "4×"]


@pytest.mark.parametrize(("said", "given"), [(5.0, ""), (10.0, ""), (5.5, "5×"), (9.0, "10×")])
def test_a_multiply_add_may_count_as_one_or_as_two(known: list[Claim], said: float, given: str) -> None:
    known.append(claim(1, said, "5 * multiply_add"))
    assert [line["its own figures give"] for line in errata.corrections()] == [given] * bool(given)


def test_claims_sums_and_pairs_are_counted_by_document_and_in_all(known: list[Claim]) -> None:
    known += [replace(one, lead="S001-02") if one.id == "S001-03" else one for one in LEDGER]
    assert [list(line.values()) for line in errata.counts()] == [
        ["S001", "5", "5", "4", "3", "2", "1"],
        ["S002", "1", "1", "1", "1", "0", "1"],
        ["all", "6", "6", "5", "4", "2", "1"],
    ]


ONE, OTHER = claim(1, 4.0), claim(2, 5.0, conflicts=("S001-01",))


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        ((replace(ONE, conflicts=("S001-02",)), OTHER, claim(3, 9.0)), ["S001-02"]),  # whoever names it
        ((ONE, OTHER, replace(OTHER, id="S001-02e")), ["S001-02"]),  # by several clocks
        ((ONE, OTHER, replace(OTHER, id="S001-02f", claimed=(6.0, 6.0))), ["S001-02", "S001-02f"]),
        ((ONE, replace(OTHER, expression="2 + 2", lead="S001-01")), []),  # a sum that fails
        ((ONE, replace(OTHER, lead="S001-01")), ["S001-02"]),
    ],
)
def test_a_pair_of_claims_is_listed_once(known: list[Claim], given: tuple[Claim, ...], pairs: list[str]) -> None:
    known += given
    assert [(a.id, b.id) for a, b in errata.pairs()] == [("S001-01", other) for other in pairs]


def test_a_contradiction_says_both_figures_and_what_the_arithmetic_gives(known: list[Claim]) -> None:
    known += [replace(claim(8, 2.0), claimed=(2.0, 1e6)), claim(9, 1.0, "1 + 2", ("S001-08",))]
    (line,) = errata.contradictions()
    assert (line["id"], line["against"]) == ("S001-08", "S001-09")
    assert line["one says"].startswith("claim 8 (2×")
    assert line["the other says"].startswith("claim 9 (1×")
    assert line["the other says"].endswith(" 3×)")


def test_the_errata_are_those_that_the_judge_calls_inconsistent_and_add_up() -> None:
    judged = claims.judge([])
    assert {row.id for row in judged if row.verdict == "inconsistent"} == {one.id for one in errata.wrong()}
    *documents, whole = errata.counts()
    assert len(errata.corrections()) == int(whole["sums that fail"])
    assert len(errata.contradictions()) == int(whole["pairs within"]) + int(whole["pairs across"])
    for name in set(whole) - {"document", "pairs across"}:
        assert sum(int(line[name]) for line in documents) == int(whole[name])
    assert sum(int(line["pairs across"]) for line in documents) == 2 * int(whole["pairs across"])
