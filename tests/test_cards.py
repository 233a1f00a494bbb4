"""Cards, which say what the ledger says, and numbers in sentences, which say what intervals allow."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from synthetic import cell_line, evidence, judgement

from hypatia_lab import formats, intervals
from hypatia_lab.claims import ANY
from hypatia_lab.intervals import Interval
from hypatia_lab.pages import cards, numbers
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.tables import claims as claim_tables

REFUTED = judgement(machine="box", claim="a < b", reason="So <i>.", program="own")
PARTLY = judgement(id="S002-01", machine=ANY, verdict="confirmed_in_part", held=2, total=3)
PART = replace(REFUTED, id="S001-01a", verdict="confirmed")


@pytest.fixture
def lab() -> Evidence:
    """A machine, ``box``, on which a claim and a part of it are judged, beside one that no machine decides."""
    found = evidence({"method": [cell_line()]})
    rows = (REFUTED, PARTLY, PART, replace(REFUTED, id="S001-02", machine="elsewhere"))
    found.__dict__["judged"] = {row.id: {row.machine: row} for row in rows}
    return found


# ---------------------------------------------------------------- cards


def test_a_card_has_sentence_verdict_figures_and_reason_of_the_ledger(lab: Evidence) -> None:
    form = cards.cards(cards.judged(lab, "box", [REFUTED.id, PARTLY.id]))
    assert '<div class="lab-card refuted"><h3>a &lt; b</h3>' in form
    assert '<div class="lab-card confirmed_in_part">' in form
    assert "<p>So &lt;i&gt;.</p>" in form
    for row in (REFUTED, PARTLY):
        assert all(of(row) in form for of in (claim_tables.word, claim_tables.asked, claim_tables.judged))
        assert f">{row.id}</a>" in form
    assert claim_tables.whose(REFUTED).replace("'", "&#x27;") in form


def test_a_claim_or_a_part_of_one_is_shown_by_machine_and_an_unknown_one_refused(lab: Evidence) -> None:
    assert cards.judged(lab, "box", [PART.id, PARTLY.id, "S001-02"]) == [PART, PARTLY]
    with pytest.raises(ValueError, match="S001-999, LAB-99"):
        cards.judged(lab, "box", [PART.id, "S001-999", "LAB-99"])


def test_cards_are_told_as_text_too_and_of_nothing_there_are_none(lab: Evidence, shown: list[Any]) -> None:
    cards.show(lab, REFUTED.id, PARTLY.id)
    assert shown[0]["text/html"] == cards.cards([REFUTED, PARTLY])
    for row in (REFUTED, PARTLY):
        assert all(part in shown[0]["text/plain"] for part in (row.claim, claim_tables.word(row), row.reason))
    cards.show(lab, "S001-02")
    cards.show(lab, REFUTED.id, machines=["elsewhere"])
    assert len(shown) == 1


# ---------------------------------------------------------------- numbers

SURE = Interval(1.49, 1.48, 1.5, 8)
FEW, VETOED = replace(SURE, n=intervals.FEW - 1), replace(SURE, vetoed=True)
FAST, SLOW, BOTH = Interval(6.0, 2.5, 14.0, 8), Interval(0.2, 0.04, 0.62, 8), Interval(1.0, 0.4, 2.5, 8)
NONE = intervals.NOTHING


@pytest.mark.parametrize(
    ("number", "text", "brief"),
    [
        (numbers.ratio(SURE), "1.49× [1.48, 1.50]", "1.49×"),
        (numbers.time(SURE.times(1e6)), "1.49 s [1.48, 1.50]", "1.49 s"),
        (numbers.share(SURE.times(0.1)), "14.9% [14.8, 15.0]", "14.9%"),
        (numbers.count(SURE, "launches"), "1.49 launches [1.48, 1.50]", "1.49 launches"),
        (numbers.count(Interval(1.0, 1.0, 1.0, 1), "launches"), "1 launch", "1 launch"),
        (numbers.fixed(0.2812), "0.28×", "0.28×"),
        (numbers.ratio(NONE), numbers.NOTHING, numbers.NOTHING),
        (numbers.share(NONE), numbers.NOTHING, numbers.NOTHING),
    ],
)
def test_a_number_is_told_with_its_interval_or_briefly_without(number: numbers.Number, text: str, brief: str) -> None:
    assert (f"{number}", f"{number:brief}") == (text, brief)
    with pytest.raises(ValueError, match="long"):
        f"{number:long}"


@pytest.mark.parametrize("make", [numbers.ratio, numbers.time, numbers.share, numbers.count])
def test_each_doubt_is_said_in_place_of_the_value(make: Callable[[Interval], numbers.Number]) -> None:
    for found, doubt in (FEW, intervals.TOO_FEW), (VETOED, intervals.VETOED):
        assert f"{make(found)}" == f"{make(found):brief}"
        assert re.fullmatch(rf"\D+{formats.DOUBTS[doubt]}", str(make(found)))


def test_a_wide_ratio_tells_the_nearer_bound_on_one_side_of_1_and_a_wide_time_both() -> None:
    assert str(numbers.ratio(FAST)).endswith(" 2.5×")
    assert str(numbers.ratio(SLOW)).endswith(" 0.620×")
    assert str(numbers.ratio(BOTH)).endswith(formats.DOUBTS[intervals.TOO_NOISY])
    assert all(f"{numbers.ratio(found):brief}" == str(numbers.ratio(found)) for found in (FAST, SLOW, BOTH))
    assert str(numbers.time(FAST)).endswith("6.00 µs [2.50, 14.00]")
    assert str(numbers.time(Interval(6.0, 0.1, 360.0, 8))).endswith(formats.DOUBTS[intervals.TOO_NOISY])


def test_a_span_is_told_by_its_ends_and_leaves_out_what_is_in_doubt() -> None:
    least, most = Interval(1.01, 1.0, 1.02, 8), Interval(3.0, 2.9, 3.1, 8)
    ends = f"{numbers.ratio(least)} to {numbers.ratio(most)}"
    assert numbers.span([most, SURE, FAST, FEW, VETOED, NONE, least]) == ends
    assert numbers.span([SURE, SLOW]) == str(numbers.ratio(SURE))
    assert numbers.span([SURE], numbers.time) == str(numbers.time(SURE))
    assert numbers.span([FEW, NONE]) == numbers.span([]) == numbers.NOTHING


def test_a_sentence_without_its_number_is_left_out(shown: list[Any]) -> None:
    numbers.say("One.", f"Two: {numbers.ratio(NONE)}.", "", f"{numbers.span([NONE])}.", f"{numbers.ratio(SURE)}.")
    assert shown[0].data == f"One. {numbers.ratio(SURE)}."
    numbers.say(f"Two: {numbers.ratio(NONE)}.")
    numbers.say("One.", when=False)
    numbers.say()
    assert len(shown) == 1


def test_a_table_shows_numbers_as_text_and_a_dash_for_none() -> None:
    table = numbers.table([SURE, NONE], {"speed": numbers.ratio, "n": lambda found: found.n})
    assert table.to_dict("list") == {"speed": [str(numbers.ratio(SURE)), formats.MISSING], "n": ["8", "0"]}
    assert list(numbers.table([], {"speed": numbers.ratio}).columns) == ["speed"]
