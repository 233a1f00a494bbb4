"""Statements: what a document says once, judged by its parts and counted once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from claimed import LARGE, MEDIUM, SMALL, WOBBLE, cell, entry, written  # noqa: F401  (the fixture measured)

from hypatia_lab import results
from hypatia_lab.claims import VERDICTS, Claim, Judgement, details, judge, statements
from hypatia_lab.claims.verdicts import ANY
from hypatia_lab.tables import claims as claim_tables

# Statements of records

LEAD = entry()
MORE = entry(workloads=(SMALL,), id="S001-01b")
SUM = entry(
    "arithmetic", workloads=(), variant="", program="arithmetic", band_set="", expression="2 * 5", id="S001-01c"
)
WEEKS = entry("none", program="", band_set="", untestable="No clock measures effort.", id="S001-01d")
WRONG = replace(SUM, expression="2 * 50")


def factors(medium: float | Sequence[float], small: float) -> list[dict]:
    """Eager, and naive slower by a factor, at two sizes."""
    slow = [100 * medium * wobble for wobble in WOBBLE] if isinstance(medium, int | float) else list(medium)
    medium_cells = cell(MEDIUM, "eager", [100.0] * len(slow)), cell(MEDIUM, "naive", slow)
    few = [100 * wobble for wobble in (*WOBBLE, *WOBBLE)][: len(slow)]
    return [*medium_cells, cell(SMALL, "eager", few), cell(SMALL, "naive", [small * us for us in few])]


def stated(found: Sequence[results.Measured], *claims: Claim) -> Judgement:
    """The one statement that ``claims`` make, on one machine."""
    (row,) = statements(judge(found, claims), claims)
    return row


def test_changing_a_record_changes_a_statements_verdict(measured):
    row = stated(measured(*factors(10, 10)), LEAD, MORE, SUM)
    assert (row.verdict, row.machine, row.id, row.sums) == ("confirmed", "box", "S001-01", "adds_up")
    assert all(told in row.reason for told in ("2 confirmed", "1 adds up"))
    assert [part.settles for part in row.parts] == [""] * 3  # nothing is left to settle
    row = stated(measured(*factors(10, 20)), LEAD, MORE, SUM)
    assert (row.verdict, row.held, row.total, row.group) == ("conditional", 1, 2, "holds in part")
    assert stated(measured(*factors(20, 20)), LEAD, MORE).verdict == "refuted"


def test_the_figures_of_a_statement_are_a_part_s_that_was_judged_as_it_was(measured):
    parts = [replace(part, statement="At both sizes.") for part in (LEAD, MORE, WEEKS)]
    row = stated(measured(*factors(10, 20)), *parts)
    assert (row.claim, row.verdict) == ("At both sizes.", "conditional")
    assert [part.id for part in row.parts] == ["S001-01a", "S001-01b", "S001-01d"]
    assert [part.verdict for part in row.parts] == ["confirmed", "refuted", "not_testable"]
    assert row.parts[1].measured == pytest.approx(20, rel=0.01)
    row = stated(measured(*factors([400.0, 1800.0] * 4, 10)), *parts)
    assert (row.verdict, row.held, row.total) == ("confirmed_in_part", 1, 3)
    row = stated(measured(*factors(20, 20)), WEEKS, LEAD)
    assert (row.verdict, row.workload, row.n) == ("refuted", MEDIUM, 8)


def test_the_author_s_program_speaks_for_a_statement_before_others(measured):
    own = cell(MEDIUM, "author_v1", [1000.0 * wobble for wobble in reversed(WOBBLE)], origin="author")
    found = measured(*factors(10, 10), own)
    by_author = replace(MORE, program="author", variant="author_v1", workloads=(MEDIUM,))
    assert stated(found, LEAD, by_author).program == "author"


def test_a_statement_of_one_part_is_that_part(measured):
    row = stated(measured(*factors(10, 10)), LEAD)
    (part,) = row.parts
    assert (row.id, part.id) == ("S001-01", "S001-01a")
    assert row.row() | {"id": part.id} == part.row()


def test_sums_stand_aside_where_something_was_measured(measured):
    row = stated(measured(*factors(10, 10)), LEAD, WRONG)
    assert (row.verdict, row.sums) == ("confirmed", "inconsistent")
    row = stated(measured(cell(MEDIUM, "eager", 100)), LEAD, WRONG, WEEKS)
    assert (row.verdict, row.machine) == ("inconsistent", "box")
    assert stated(measured(cell(MEDIUM, "eager", 100)), LEAD, SUM).verdict == "adds_up"
    broken = cell(MEDIUM, "naive", 1000, status="wrong", reason="NaN")
    assert stated(measured(cell(MEDIUM, "eager", 100), broken), LEAD, WEEKS).verdict == "not_testable"


def test_what_no_machine_decides_is_stated_once(measured):
    measured(*factors(10, 10), machine="one")
    found = measured(*factors(20, 20), machine="two")
    assert [row.machine for row in statements(judge(found, [LEAD, SUM]), [LEAD, SUM])] == ["one", "two"]
    row = stated(found, WEEKS, WRONG)
    assert (row.machine, row.verdict, row.n) == (ANY, "inconsistent", 0)
    assert [part.machine for part in row.parts] == [ANY, ANY]
    assert stated(found, WEEKS).reason == "No clock measures effort."


# What would decide


@pytest.mark.parametrize(
    ("naive", "needed"),
    [([1000.0], "3"), ([1000.0, 1400.0], "3"), ([1000.0, 1400.0] * 3, "6"), ([1099.0, 1101.0] * 4, "No number")],
)
def test_an_undecided_verdict_says_what_would_decide_it(measured, naive, needed):
    row = stated(measured(cell(MEDIUM, "eager", [100.0] * len(naive)), cell(MEDIUM, "naive", naive)), LEAD)
    (part,) = row.parts
    assert row.verdict == part.verdict == "undecided"
    assert part.settles in part.details
    assert needed in part.settles


def test_so_many_processes_would_decide(measured):
    noisy = [1000.0, 1200.0, 1000.0, 1200.0, 1000.0, 1150.0]
    row = stated(measured(cell(MEDIUM, "eager", [100.0] * 6), cell(MEDIUM, "naive", noisy)), LEAD)
    needed = int(re.findall(r"\d+", row.parts[0].settles)[0])
    more = noisy * math.ceil(needed / len(noisy))
    found = measured(cell(MEDIUM, "eager", [100.0] * len(more)), cell(MEDIUM, "naive", more))
    assert (row.verdict, stated(found, LEAD).verdict) == ("undecided", "confirmed")


def test_a_second_size_would_decide_what_is_said_to_be_constant(measured):
    claim = entry("constant", 10, (9, 11), workloads=(SMALL, MEDIUM, LARGE))
    one = stated(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1000)), claim)
    assert (one.verdict, one.parts[0].settles != "") == ("undecided", True)
    assert stated(measured(*factors(10, 10)), claim).verdict == "confirmed"


# The ledger itself


def test_no_two_claims_have_the_same_words(committed_claims):
    words = Counter({claim.lead: claim.statement for claim in committed_claims}.values())
    assert [f"{text} ({n})" for text, n in words.items() if n > 1] == []


@pytest.fixture(scope="module")
def committed(committed_claims, committed_records) -> list[Judgement]:
    """The statements on one of the committed GPUs and on the CPU, in half of the time that all machines take."""
    found = [record for record in committed_records if record.machine in ("h200", "epyc-2c")]
    return statements(judge(results.measured(found), committed_claims), committed_claims)


def test_every_statement_has_a_verdict_on_every_machine_with_a_reason(committed, committed_claims):
    machines = {row.machine for row in committed} - {ANY}
    seen: Counter[tuple[str, str]] = Counter()
    for row in committed:
        seen.update((row.id, machine) for machine in (machines if row.machine == ANY else [row.machine]))
    parts: dict[str, set[str]] = {}
    for claim in committed_claims:
        parts.setdefault(claim.lead, set()).add(claim.id)
    assert seen == Counter(product(parts, machines))
    for row in committed:
        assert row.verdict in VERDICTS
        assert row.reason.endswith(".")
        assert {part.id for part in row.parts} == parts[row.id]
        for part in row.parts:
            assert part.reason.endswith(".")
            assert "nan" not in " ".join([part.reason, *part.details]).lower().split(), part.id
            assert part.verdict in ("not_testable", "agrees", "differs", "undecided") or part.program != "rewrite"


def test_what_a_part_is_about_was_measured_on_the_gpu(committed):
    parts = [part for row in committed if row.machine == "h200" for part in row.parts]
    lacking = {part.id for part in parts if part.verdict == "not_testable" and details.MISSING in part.reason}
    assert lacking <= {"S002-11d", "S003-71d"}


def test_few_statements_are_undecided_on_the_gpu_and_each_says_what_would_decide_it(committed):
    tested = [row for row in committed if row.machine == "h200" and row.verdict != "not_testable"]
    undecided = [row for row in tested if row.verdict == "undecided"]
    assert len(undecided) <= len(tested) / 10
    for row in undecided:
        open_ = [part for part in row.parts if part.verdict == "undecided"]
        assert open_
        assert all(part.settles and part.settles in part.details for part in open_), row.id


# The page


def test_the_page_has_a_row_a_statement_with_its_parts_inside(committed, shown):
    claim_tables.show_statements(committed, "h200")
    text = shown[0]["text/html"]
    rows = [row for row in committed if row.machine in ("h200", ANY)]
    assert text.count('class="lab-parts"') == sum(len(row.parts) > 1 for row in rows)
    for row in rows:
        several = len({part.id for part in row.parts}) > 1
        for name in (part.id if several else row.id for part in row.parts):
            assert re.search(rf">{name}[ <]", text), name


def test_a_part_is_shown_with_its_figures_and_what_is_hostile_is_escaped(measured, shown):
    lead = replace(LEAD, claim="<script>alert(1)</script>", why="<b>Because</b>.")
    claims = [lead, replace(MORE, why="For so it is.", band_set="2026-11-23 after", program="library"), SUM]
    (row,) = judged = statements(judge(measured(*factors(10, 20)), claims), claims)
    claim_tables.show_statements(judged, "box")
    text = shown[0]["text/html"]
    assert "<script" not in text
    assert "&lt;b&gt;Because&lt;/b&gt;." in text
    (line,) = re.findall(r'<tr><th scope="row">S001-01b</th>(.*?)</tr>', text.replace("&#x27;", "'"))
    part = row.parts[1]
    figures = (claim_tables.verdict_text("refuted"), "10×", claim_tables.judged(part), claim_tables.WHOSE["library"])
    assert set(figures) <= set(re.findall(r"<td.*?>(.*?)</td>", line))
    assert all(one in text for one in (row.reason, part.reason, "2026-11-23, after"))
    assert text.count("For so it is.") == 1
