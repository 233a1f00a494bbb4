"""Statements: what a document says once, judged by its parts and counted once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, permutations, product
from typing import Any

import pytest
from test_claims import LARGE, MEDIUM, SMALL, WOBBLE, cell, entry, written  # noqa: F401  (the fixture measured)

from hypatia_lab import records, tables
from hypatia_lab.claims import COLUMNS, VERDICTS, Claim, judge, ledger, statements, together
from hypatia_lab.claims.ledger import HERE
from hypatia_lab.claims.verdicts import ANY

# One verdict from many


def decided(parts: Sequence[str]) -> str:
    """The verdict where nothing is open, worked out by what holds and what fails."""
    holds = any(part in ("confirmed", "conditional") for part in parts)
    fails = any(part in ("refuted", "inconsistent", "conditional") for part in parts)
    if holds and fails:
        return "conditional"
    if holds:
        return "confirmed"
    return "inconsistent" if set(parts) == {"inconsistent"} else "refuted"


def test_a_verdict_is_left_open_exactly_where_what_is_open_could_change_it():
    tried = [parts for count in range(1, 5) for parts in combinations_with_replacement(VERDICTS, count)]
    assert len(tried) == 329
    for parts in tried:
        found = together(parts)
        tested = [part for part in parts if part != "not_testable"]
        if not tested:
            assert found == "not_testable", parts
            continue
        known = [part for part in tested if part not in ("undecided", "invalid")]
        open_ = [part for part in tested if part not in known]
        ways = product(("confirmed", "refuted", "conditional"), repeat=len(open_))
        could = {decided([*known, *way]) for way in ways}
        if len(could) == 1:
            assert found == could.pop(), parts
        else:
            assert found == ("invalid" if "invalid" in open_ else "undecided"), parts


def test_the_order_of_parts_does_not_matter():
    for parts in combinations_with_replacement(VERDICTS, 3):
        assert len({together(order) for order in permutations(parts)}) == 1, parts


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ("confirmed confirmed", "confirmed"),
        ("refuted inconsistent", "refuted"),
        ("inconsistent inconsistent", "inconsistent"),
        ("confirmed refuted", "conditional"),
        ("confirmed undecided", "undecided"),
        ("confirmed refuted undecided", "conditional"),
        ("confirmed not_testable", "confirmed"),
        ("confirmed invalid", "invalid"),
        ("confirmed inconsistent invalid", "conditional"),
    ],
)
def test_verdicts_that_were_agreed(parts, verdict):
    assert together(parts.split()) == verdict


# Statements of records

LEAD = entry()
MORE = replace(entry(workloads=(SMALL,)), id="S001-02", part_of="S001-01")
SUM = replace(entry("arithmetic", workloads=(), variant="", expression="2 * 5"), id="S001-03", part_of="S001-01")
WEEKS = replace(entry("none", untestable="No clock measures effort."), id="S001-04", part_of="S001-01")
WRONG = replace(SUM, expression="2 * 50")


def factors(medium: float | Sequence[float], small: float) -> list[dict]:
    """Eager, and naive slower by a factor, at two sizes."""
    slow = [100 * medium * wobble for wobble in WOBBLE] if isinstance(medium, int | float) else list(medium)
    medium_cells = cell(MEDIUM, "eager", [100.0] * len(slow)), cell(MEDIUM, "naive", slow)
    few = [100 * wobble for wobble in (*WOBBLE, *WOBBLE)][: len(slow)]
    return [*medium_cells, cell(SMALL, "eager", few), cell(SMALL, "naive", [small * us for us in few])]


def stated(found: list[records.Record], *claims: Claim) -> dict[str, Any]:
    """The one statement that ``claims`` make, on one machine."""
    (row,) = statements(judge(found, claims), claims)
    assert set(row) == {*COLUMNS, "parts"}
    return row


def test_changing_a_record_changes_a_statements_verdict(measured):
    row = stated(measured(*factors(10, 10)), LEAD, MORE, SUM)
    assert (row["verdict"], row["machine"], row["id"]) == ("confirmed", "box", "S001-01")
    assert row["reason"] == "Of 3 parts S001-01, S001-02 hold; S001-03 adds up."
    row = stated(measured(*factors(10, 20)), LEAD, MORE, SUM)
    assert row["verdict"] == "conditional"
    assert row["reason"] == "Of 3 parts S001-01 holds; S001-03 adds up; S001-02 is refuted."
    assert stated(measured(*factors(20, 20)), LEAD, MORE)["verdict"] == "refuted"


def test_the_figures_of_a_statement_are_its_leads_and_its_parts_have_their_own(measured):
    row = stated(measured(*factors(10, 20)), replace(LEAD, statement="At both sizes."), MORE, WEEKS)
    assert row["claim"] == "At both sizes."
    assert row["measured"] == pytest.approx(10, rel=0.01)
    assert row["workload"] == MEDIUM
    assert [part["id"] for part in row["parts"]] == ["S001-01", "S001-02", "S001-04"]
    assert row["parts"][1]["measured"] == pytest.approx(20, rel=0.01)
    assert row["reason"].endswith("S001-02 is refuted; S001-04 cannot be tested.")


def test_a_statement_of_one_part_is_that_part(measured):
    found = measured(*factors(10, 10))
    row, (part,) = stated(found, LEAD), judge(found, [LEAD])
    assert {key: row[key] for key in COLUMNS} == {key: part[key] for key in COLUMNS}


def test_arithmetic_counts_only_where_something_was_measured(measured):
    assert stated(measured(*factors(10, 10)), LEAD, WRONG)["verdict"] == "conditional"
    row = stated(measured(cell(MEDIUM, "eager", 100)), LEAD, WRONG, WEEKS)
    assert (row["verdict"], row["machine"]) == ("not_testable", "box")
    assert (
        row["reason"] == "No part of it could be measured on box. By arithmetic alone S001-03 fails its own arithmetic."
    )
    broken = cell(MEDIUM, "naive", 1000, status="wrong", reason="NaN")
    assert stated(measured(cell(MEDIUM, "eager", 100), broken), LEAD, SUM)["verdict"] == "invalid"


def test_what_no_machine_decides_is_stated_once(measured):
    measured(*factors(10, 10), machine="one")
    found = measured(*factors(20, 20), machine="two")
    time = entry("time", 1.0, (0.9, 1.1), untestable="The GPU is not named.")
    row = stated(found, time, WRONG)
    assert (row["machine"], row["verdict"]) == (ANY, "inconsistent")
    assert [part["machine"] for part in row["parts"]] == ["one", "two", ANY]
    assert math.isnan(row["measured"])  # of the lead either machine has its own
    assert row["reason"] == "Of 2 parts S001-03 fails its own arithmetic; S001-01 cannot be tested."
    assert stated(found, time)["reason"].startswith("The GPU is not named.")
    assert [row["machine"] for row in statements(judge(found, [LEAD, SUM]), [LEAD, SUM])] == ["one", "two"]
    assert [row["machine"] for row in statements(judge([], [LEAD, SUM, time]), [time, SUM])] == [ANY]


def test_figures_that_follow_from_each_other_save_no_claim_that_was_measured(measured):
    refuted = measured(*factors(20, 20))
    assert stated(refuted, LEAD, SUM)["verdict"] == "refuted"
    assert stated(refuted, LEAD, SUM)["reason"] == "Of 2 parts S001-03 adds up; S001-01 is refuted."
    assert stated(measured(*factors(10, 20)), replace(LEAD, workloads=(SMALL, MEDIUM)), SUM)["verdict"] == "conditional"
    sums = replace(SUM, id="S001-01", part_of=""), replace(WRONG, id="S001-05")
    assert stated(refuted, *sums)["verdict"] == "conditional"  # nothing of it was to be measured


# What would decide


@pytest.mark.parametrize(
    ("naive", "said"),
    [
        ([1000.0], "A second fresh process would begin to decide it."),
        ([1000.0, 1400.0, 1000.0, 1200.0], r"about \d+ fresh processes in place of 4 to decide it"),
        ([1099.0, 1101.0] * 4, "over 1000 fresh processes in place of 8 to decide it"),
    ],
)
def test_an_undecided_verdict_says_what_would_decide_it(measured, naive, said):
    row = stated(measured(cell(MEDIUM, "eager", [100.0] * len(naive)), cell(MEDIUM, "naive", naive)), LEAD)
    assert row["verdict"] == "undecided"
    assert re.search(said, row["reason"])
    alone = row["parts"][0]["settles"]
    both = stated(measured(*factors(naive, 10)), LEAD, MORE)
    assert both["verdict"] == "undecided"
    assert f" S001-01: {alone}" in both["reason"]


def test_so_many_processes_would_decide(measured):
    noisy = [1000.0, 1200.0, 1000.0, 1200.0, 1000.0, 1150.0]
    row = stated(measured(cell(MEDIUM, "eager", [100.0] * 6), cell(MEDIUM, "naive", noisy)), LEAD)
    needed = int(re.findall(r"about (\d+) fresh", row["reason"])[0])
    more = noisy * math.ceil(needed / len(noisy))
    found = measured(cell(MEDIUM, "eager", [100.0] * len(more)), cell(MEDIUM, "naive", more))
    assert (row["verdict"], stated(found, LEAD)["verdict"]) == ("undecided", "confirmed")


def test_a_second_size_would_decide_what_is_said_to_be_constant(measured):
    claim = entry("constant", 10, (9, 11), workloads=(SMALL, MEDIUM, LARGE))
    row = stated(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1000)), claim)
    assert (row["verdict"], "Another size would decide it." in row["reason"]) == ("undecided", True)


# The ledger itself

GOALS = {"S000": 10, "S001": 40, "S002": 20, "S003": 35, "S004": 25}
"""Claims that each document was expected to make; a count by rule may be a fifth off."""


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return ledger()


def test_the_documents_claims_are_counted_without_their_parts(claims):
    for seed, goal in GOALS.items():
        own = [claim for claim in claims if claim.seed == seed]
        leads = [claim for claim in own if not claim.part_of]
        assert abs(len(leads) - goal) <= goal / 5, seed
        header = (HERE / f"{seed.lower()}.yaml").read_text(encoding="utf-8").split("- id:")[0]
        assert f"# {len(leads)} claims in {len(own)} parts" in header
    words = [claim.statement or claim.claim for claim in claims if not claim.part_of]
    assert [f"{text} ({n})" for text, n in Counter(words).items() if n > 1] == []


@pytest.fixture(scope="module")
def committed(claims) -> list[dict[str, Any]]:
    """The statements on the committed GPU, in half of the time that all machines take."""
    return statements(judge(records.load(records.COMMITTED, machines=["h200"]), claims), claims)


def test_every_statement_has_a_verdict_on_every_machine_with_a_reason(committed, claims):
    machines = {row["machine"] for row in committed} - {ANY}
    seen: Counter[tuple[str, str]] = Counter()
    for row in committed:
        seen.update((row["id"], machine) for machine in (machines if row["machine"] == ANY else [row["machine"]]))
    parts: dict[str, set[str]] = {}
    for claim in claims:
        parts.setdefault(claim.lead, set()).add(claim.id)
    assert seen == Counter(product(parts, machines))
    for row in committed:
        assert row["verdict"] in VERDICTS
        assert row["reason"].endswith(".")
        assert {part["id"] for part in row["parts"]} == parts[row["id"]]


def test_few_statements_are_undecided_on_the_gpu_and_each_says_what_would_decide_it(committed):
    tested = [row for row in committed if row["machine"] == "h200" and row["verdict"] != "not_testable"]
    undecided = [row for row in tested if row["verdict"] == "undecided"]
    assert len(undecided) <= len(tested) / 10
    for row in undecided:
        open_ = [part for part in row["parts"] if part["verdict"] == "undecided"]
        assert open_
        assert all(part["settles"] and part["settles"] in row["reason"] for part in open_), row["id"]


# The page


def test_the_page_has_a_row_a_statement_with_its_parts_inside(committed, claims, monkeypatch):
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    tables.show_statements(committed)
    text = shown[0]["text/html"]
    table = tables.statements_table(committed)
    assert list(table.columns) == ["id", "h200", "claim", "document"]
    assert list(table["id"]) == list(dict.fromkeys(row["id"] for row in committed))
    assert text.count('class="lab-parts"') == len(table)
    assert tables.claims_counted(committed) == f"{len(table)} claims in {len(claims)} parts"
    for part in (part for row in committed for part in row["parts"]):
        assert re.search(rf">{part['id']}[ <]", text), part["id"]
    only = [row for row in committed if row["machine"] == ANY]
    assert set(tables.statements_table(only)["any machine"]) <= {tables.verdict_text(verdict) for verdict in VERDICTS}
    with pytest.raises(tables.TableError, match="no claims"):
        tables.statements_table([])


def test_a_part_is_shown_with_its_figures_and_what_is_hostile_is_escaped(measured, monkeypatch):
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    lead = replace(LEAD, claim="<script>alert(1)</script>", why="<b>Because</b>.")
    claims = [lead, replace(MORE, why="For so it is."), SUM]
    found = measured(*factors(10, 20))
    tables.show_statements(statements(judge(found, claims), claims))
    text = shown[0]["text/html"]
    assert "<script" not in text
    assert "&lt;b&gt;Because&lt;/b&gt;." in text
    verdict = tables.verdict_text("confirmed")
    assert f'<th scope="row">box</th><td>{verdict}</td><td>10×</td><td>' in text
    assert text.count("For so it is.") == 1
    assert "<p>box: Of 3 parts S001-01 holds; S001-03 adds up; S001-02 is refuted.</p>" in text
    assert "cannot" not in text
    tables.show_statements(statements(judge(measured(cell(MEDIUM, "eager", 100)), [LEAD]), [LEAD]))
    assert '<td>10×</td><td colspan="2">On box no record has naive' in shown[1]["text/html"]
