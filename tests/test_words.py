"""The words of a verdict: their tables, held against the rules in prose over every combination there is."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from hypatia_lab.claims import words


def subsets(of):
    return [set(found) for found in chain.from_iterable(combinations(of, n) for n in range(len(of) + 1))]


@pytest.mark.parametrize("seen", subsets(words.READINGS), ids=lambda seen: "+".join(sorted(seen)) or "nothing")
def test_the_word_of_a_part_follows_from_its_readings(seen):
    there = seen - {"missing"}
    beyond = there & {"against", "favour"}
    if not there:
        expected = "not_testable"
    elif "in" in there:
        expected = "conditional" if beyond else "confirmed_in_part" if "straddles" in there else "confirmed"
    elif "against" in there:
        expected = "refuted"
    else:
        expected = "understated" if "favour" in there else "undecided"
    assert words.part(seen) == expected
    assert words.part(seen, forecast=True) == ("fell_short" if expected == "refuted" else expected)


@pytest.mark.parametrize("seen", subsets(words.READINGS), ids=lambda seen: "+".join(sorted(seen)) or "nothing")
def test_a_rewrite_agrees_or_differs_and_judges_nobody(seen):
    there = seen - {"missing"}
    expected = "not_testable" if not there else "undecided" if "straddles" in there else "agrees"
    assert words.part(seen, rewrite=True, forecast=True) == ("differs" if "against" in there else expected)


HOLD = {"confirmed", "confirmed_in_part"}
FAIL = {"refuted", "fell_short", "understated"}


def expected_of(seen):
    """The word of a claim, as the rules have it in prose."""
    sums, measured = seen & set(words.SUMS), seen - set(words.SUMS)
    loud = measured - {"not_testable"}
    if not loud:
        return "inconsistent" if "inconsistent" in sums else "adds_up" if sums else "not_testable"
    if measured == {"confirmed"}:
        return "confirmed"
    if "conditional" in measured or (measured & HOLD and measured & FAIL):
        return "conditional"
    if measured & HOLD:
        return "confirmed_in_part"
    if failed := measured & FAIL:
        return failed.pop() if len(failed) == 1 else "refuted"
    if "undecided" in measured:
        return "undecided"
    return loud.pop() if len(loud) == 1 else "not_testable"


def test_the_word_of_a_claim_follows_from_its_parts_in_every_combination():
    tried = subsets(words.VERDICTS)
    assert len(tried) == 2 ** len(words.VERDICTS)
    wrong = [(sorted(seen), words.claim(seen)) for seen in tried if words.claim(seen) != expected_of(seen)]
    assert wrong == []


def test_every_word_is_counted_in_one_group():
    grouped = [word for own in words.GROUPS.values() for word in own]
    assert sorted(grouped) == sorted(words.VERDICTS)
    assert words.GROUPS["holds"] == ("confirmed",)


def test_no_line_of_a_table_is_dead():
    for name, of in (("PARTS", words.READINGS), ("REWRITTEN", words.READINGS), ("CLAIMS", words.VERDICTS)):
        rules = getattr(words, name)
        live: set[int] = set()
        for seen in subsets(of):
            live.add(next((number for number, rule in enumerate(rules) if rule.fits(seen)), -1))
            if live >= {*range(len(rules))}:
                break
        assert live >= {*range(len(rules))}
