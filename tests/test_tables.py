from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import drawn
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import WIDEST, ceilings, cell_line, cells, judgement, row, run_line, widths
from tabled import tabled

import hypatia_lab.operations  # noqa: F401  (registers)
from hypatia_lab import formats, records, results, tables
from hypatia_lab.claims import ANY, GROUPS
from hypatia_lab.figures import comparisons
from hypatia_lab.intervals import Interval
from hypatia_lab.results import Row
from hypatia_lab.tables import claims as claim_tables

pytestmark = pytest.mark.usefixtures("two_processes")

FACTS = {"name": "Card", "cores": 2, "memory_gib": 15.6, "cache_bytes": 50 * 2**20, "versions": {"torch": "2.13.0"}}


def run(machine: str, experiment: str, **more: Any) -> dict[str, Any]:
    """A valid run line of a GPU."""
    own = {"preset": "seed", "device": "cuda", "dirty": False, "commit": "0123456789abcdef", "facts": FACTS}
    return run_line(machine=machine, experiment=experiment, **own | more)


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Two machines, one with ceilings: naive is 27 times slower there and 9 on the other; compile is skipped."""
    for machine, slower in (("h200", 27.0), ("epyc-2c", 9.0)):
        lines = cells({"eager": 100, "naive": 100 * slower, "aten": 100}, clock="hot")
        lines += cells({"compile": 0}, clock="hot", status="skipped", reason="no compiler", medians_us=[])
        records.write(tmp_path, run(machine, "naive_vs_cublas"), lines)
    records.write(tmp_path, run("h200", "ceilings"), ceilings({"ieee": 45.8}, "hot"))
    return results.rows(records.load(tmp_path))


NOTHING = {"measured": math.nan, "low": math.nan, "high": math.nan, "n": 0}
"""Of what was not measured."""


@tabled("written", "figures")
def test_a_figure_is_written_with_the_digits_it_earns(write: str, given: list[Any], text: str) -> None:
    assert getattr(formats, write)(*given) == text


def test_a_figure_of_another_kind_is_written_as_it_should() -> None:
    assert formats.time(Interval(1.52e6, 1.5e6, 1.54e6, 8)) == "1.52 s [1.50, 1.54]"
    assert formats.time(Interval(1.52e6, math.nan, math.nan, 1)) == formats.ALONE
    assert formats.figure(Interval(905, 905, 905, 3), "calls") == "905 calls"
    assert claim_tables.quantity_text(1.0, "launches") == "1 launch"
    assert claim_tables.quantity_text([1, 3], "regions") == "1–3 regions"
    assert tables.counted(["slower", "equal", "slower", "faster"]) == "1 faster, 1 equal and 2 slower"


@tabled("written", "readings")
def test_reading_follows_the_interval(triple: tuple[float, float, float], word: str) -> None:
    fields = dict(zip(("ratio", "ratio_low", "ratio_high"), triple, strict=True))
    assert row(**fields, n=8).reading == word
    if word != "–":
        assert row(**fields, n=1).reading == "too few to tell"
        assert row(**fields, n=8, veto="eager@again takes 1.2 times as long as eager").reading == "A/A failed"


def test_results_table_holds_every_row_and_invents_no_number(rows: list[Row]) -> None:
    table = tables.results_table(rows)
    assert len(table) == len(rows)
    lines = {(line["machine"], line["variant"]): line for line in table.to_dict("records")}
    skipped, naive = lines["h200", "compile"], lines["h200", "naive"]
    assert (skipped["time"], skipped["ratio"], skipped["status"]) == ("–", "–", "skipped: no compiler")
    assert naive["workload"] == "linear_relu 1024×784×2048 float32/ieee"
    assert (naive["time"][:2], naive["ratio"][:5]) == ("27", "0.037")
    assert lines["epyc-2c", "aten"]["of limit"] == "–", "unknown without ceilings"
    assert float(lines["h200", "aten"]["of limit"].removesuffix("%")) == pytest.approx(71.8, rel=0.01)
    with pytest.raises(tables.TableError, match="no rows"):
        tables.results_table([])


def test_claims_keep_the_seeds_figure_and_show_the_interval() -> None:
    untested = judgement(claimed=[50, 200], band=(50, 200), verdict="not_testable", **NOTHING)
    table = claim_tables.claims_table([judgement(), untested])
    shown = table[["claimed", "measured", "bound", "verdict"]].to_numpy().tolist()
    words = [claim_tables.verdict_text(word) for word in ("refuted", "not_testable")]
    assert shown[0][:2] + shown[0][3:] == ["7.67×", "27.1× [26.9, 27.3] (n = 8)", words[0]]
    assert shown[1] == ["50–200×", "–", "–", words[1]]
    assert table.loc[0, "program"] == claim_tables.WHOSE["author"]
    with pytest.raises(tables.TableError, match="no claims"):
        claim_tables.claims_table([])
    with pytest.raises(KeyError, match="maybe"):
        claim_tables.claims_table([judgement(verdict="maybe")])


@tabled("written", "bands")
def test_a_band_is_shown_where_it_is_not_the_figure_itself(claimed: Any, band: Any, text: str) -> None:
    assert claim_tables.claims_table([judgement(claimed=claimed, band=band)]).loc[0, "claimed"] == text


@tabled("written", "senses")
def test_of_what_is_claimed_at_least_or_at_most_only_the_end_that_decides_is_shown(
    sense: str, claimed: Any, band: Any, ends: list[str], other: str
) -> None:
    text = claim_tables.claims_table([judgement(sense=sense, claimed=claimed, band=band)]).loc[0, "claimed"]
    assert re.findall(r"[0-9.]+×", text) == ends
    assert not re.search(rf"(?<![0-9.]){re.escape(other)}×", text)


@tabled("written", "measured")
def test_every_measured_figure_has_its_n(found: dict[str, Any], text: str) -> None:
    assert claim_tables.judged(judgement(**found)) == text


@tabled("written", "held")
def test_a_verdict_says_how_many_hold_where_not_all_do(verdict: str, held: int, total: int, counted: bool) -> None:
    text = claim_tables.word(judgement(verdict=verdict, held=held, total=total))
    assert text.startswith(claim_tables.verdict_text(verdict))
    assert re.findall(r"\d+", text) == [str(held), str(total)] * counted
    assert not re.search(r"^\S |, ", text)  # no line ends behind the sign, or within the count


def test_claims_are_counted_by_what_became_of_them_and_by_document() -> None:
    verdicts = {"S002-01": "confirmed", "S001-02": "refuted", "S002-03": "refuted", "S001-04": "undecided"}
    rows = [judgement(id=name, document=name[:4], verdict=verdict) for name, verdict in verdicts.items()]
    rows += [judgement(id="S001-09", machine=ANY, verdict="inconsistent"), judgement(machine="other")]
    groups = claim_tables.group_counts(rows, "h200")
    assert list(groups.iloc[:, 0]) == [*GROUPS, "all"]
    assert list(groups["claims"]) == list("103105")
    assert all(claim_tables.verdict_text(word) in groups.iloc[2, 2] for word in ("refuted", "inconsistent"))
    by_seed = claim_tables.verdicts_by_seed(rows, "h200").set_index("document")
    assert by_seed["all"].to_dict() == {"S002": 2, "S001": 3, "all": 5}
    assert list(by_seed[claim_tables.verdict_text("refuted")]) == [1, 1, 2]
    with pytest.raises(tables.TableError, match="no claims judged on 'gpu'"):
        claim_tables.verdicts_by_seed(rows[:4], "gpu")


def test_parts_are_counted_by_when_their_bands_were_set() -> None:
    parts = [judgement(band_set=f"2026-11-21 {when}") for when in ("before", "after", "after")]
    rows = [judgement(parts=(*parts, judgement(band_set=""))), judgement(machine="other", parts=(*parts,))]
    found = claim_tables.band_counts(rows, "h200")
    assert list(found["parts"]) == ["1", "2"]
    assert (found.iloc[:, 2:].astype(int).sum(axis=1) == found["parts"].astype(int)).all()


def test_a_claim_has_a_line_with_its_figures_folded_beneath_it(shown: list[dict[str, str]]) -> None:
    told = judgement(reason="Outside <b>.", details=("First detail.", "Second <i>."))
    unmeasured = enumerate(("not_testable", "adds_up", "inconsistent"), 5)
    silent = [judgement(**NOTHING, id=f"S001-{n:02}", verdict=word, reason=f"Because {n}.") for n, word in unmeasured]
    other = judgement(id="S001-04", machine="epyc-2c")
    stated = [replace(one, parts=(one,)) for one in (told, *silent, other)]
    claim_tables.show_claims(stated, "h200")
    (form,) = shown
    seen, _, folded = form["text/html"].partition('<details class="lab-fold">')
    assert all(
        piece in seen for piece in (told.id, "Outside &lt;b&gt;.", "First detail. Second &lt;i&gt;.", told.section)
    )
    assert all(piece in folded for one in silent for piece in (one.id, one.reason, "3 rows"))
    plain = (claim_tables.asked(told), claim_tables.judged(told), *(one.id for one in silent))
    assert all(piece in form["text/plain"] for piece in plain)
    assert other.id not in form["text/html"]
    claim_tables.show_claims(stated[:4], "epyc-2c")
    assert len(shown) == 1


def test_claims_that_are_not_first_are_folded_away(shown: list[dict[str, str]]) -> None:
    stated = [judgement(id=f"S001-{n:02}") for n in range(1, 5)]
    stated = [replace(one, parts=(one,)) for one in stated]
    claim_tables.show_claims(stated, "h200", ("S001-02",))
    seen, _, folded = shown[0]["text/html"].partition('<details class="lab-fold">')
    assert [one.id for one in stated if one.id in seen] == ["S001-02"]
    assert [one.id for one in stated if one.id in folded] == ["S001-01", "S001-03", "S001-04"]


def test_a_folded_column_goes_into_the_cell_it_explains() -> None:
    text = tables.html(claim_tables.claims_table([judgement(reason="Because <b>.")]), folded={"reason": "claim"})
    assert "<details><summary>reason</summary>Because &lt;b&gt;.</details></td>" in text
    assert '<th scope="col">reason</th>' not in text
    table = pandas.DataFrame({"a": ["x", "y"]})
    table["why"] = tables.html_column(["<b>so</b>", ""])
    text = tables.html(table, folded={"why": "a"})
    assert text.count("<details>") == text.count("<summary>why</summary><b>so</b></details>") == 1


def test_a_whole_table_is_folded_away_beneath_its_number_of_rows() -> None:
    table = pandas.DataFrame({"a": ["x", "y"]})
    text = tables.html(table, summary="All <b>")
    assert text.startswith('<details class="lab-fold"><summary>All &lt;b&gt; (2 rows)</summary>')
    assert tables.html(table) in text


def test_a_machines_caution_stands_once_beneath_its_claims(shown: list[dict[str, str]]) -> None:
    warned = judgement(caution="Beware of h200.", details=("First detail.", "Beware of h200."))
    stated = [replace(one, parts=(one,)) for one in (warned, replace(warned, id="S001-02"))]
    claim_tables.show_claims(stated, "h200")
    claim_tables.show_statements(stated, "h200")
    counts = [[form["text/html"].count(text) for text in ("Beware of h200.", "First detail.")] for form in shown]
    assert counts == [[1, 2], [1, 2]]
    with pytest.raises(tables.TableError, match="no claims"):
        claim_tables.show_statements(stated, "epyc-2c")


def test_machines_table_says_unknown_where_nothing_was_measured(rows: list[Row], tmp_path: Path) -> None:
    table = tables.machines_table(records.load(tmp_path)).set_index("fact")
    assert table.loc["device", "h200"] == "Card"
    assert table.loc["last-level cache", "h200"] == "50.0 MiB"
    assert table.loc["best matmul float32/ieee, hot clock", "h200"] == formats.scaled(45.8e12, "FLOP/s")
    assert table.loc["best matmul float32/ieee, hot clock", "epyc-2c"] == "unknown"
    assert table.loc["experiments", "h200"] == "ceilings (seed, 2 processes); naive_vs_cublas (seed, 2 processes)"
    assert list(table.index)[0] == "device"
    with pytest.raises(tables.TableError, match="no records"):
        tables.machines_table([])


def test_machines_table_shows_facts_that_disagree(tmp_path: Path) -> None:
    for experiment, torch in (("one", "2.13.0"), ("two", "2.12.0")):
        line = run("m", experiment, facts=FACTS | {"versions": {"torch": torch}}, dirty=experiment == "two")
        records.write(tmp_path, line, [cell_line()])
    table = tables.machines_table(records.load(tmp_path)).set_index("fact")
    assert table.loc["torch", "m"] == "2.12.0; 2.13.0"
    assert table.loc["commit", "m"] == "0123456789; 0123456789 (with local changes)"


def test_html_is_accessible_safe_and_always_the_same(rows: list[Row]) -> None:
    table = tables.results_table(rows)
    table.loc[0, "status"] = "<script>alert(1)</script>"
    text = tables.html(table, caption="A & B")
    assert text == tables.html(table, caption="A & B")
    assert (text.count('scope="col"'), text.count('scope="row"')) == (len(table.columns), len(table))
    assert ("<script>" in text, "<caption>A &amp; B</caption>" in text) == (False, True)
    assert all(f'<th scope="col"{how}</th>' in text for how in (' style="text-align:right">time', ">variant"))
    assert [" filterable" in tables.html(table, filterable=asked) for asked in (False, True)] == [False, True]


def test_a_printed_interval_is_read_as_it_is_written() -> None:
    text = "29.5 µs [3.8, 224.2], 0.449× [1.7e-05, 11,892], 12% [-3, 4] and 905 [a, b]"
    assert [round(width, 3) for width in widths(text).values()] == [59.0, 699529411.765, 1.778]


def test_a_reason_does_not_say_its_status_twice() -> None:
    said = [("wrong", "wrong values: off"), ("wrong", "shape: (2,)"), ("ok", "")]
    table = tables.results_table([row(status=status, reason=reason) for status, reason in said])
    assert list(table["status"]) == ["wrong values: off", "wrong: shape: (2,)", "ok"]


def test_a_number_that_is_not_known_moves_no_column_and_a_step_with_its_number_is_words() -> None:
    columns = {"id": ["S001-63", "S1"], "rate": ["5.1 TB/s", "not measured"], "step": ["6 · none", "6b · memory's"]}
    text = tables.html(pandas.DataFrame(columns))
    assert '<th scope="col" style="text-align:right">rate</th>' in text
    assert '<td style="text-align:right;white-space:nowrap">5.1' in text
    assert '<th scope="row" style="white-space:nowrap">S001-63</th>' in text
    assert '<th scope="col">step</th>' in text


SCATTER = st.lists(st.floats(-1, 1), min_size=2, max_size=8)


@settings(max_examples=25, deadline=None)
@given(scatter=SCATTER, other=SCATTER, size=st.floats(0.01, 8))
def test_no_interval_wider_than_a_hundredfold_is_printed(scatter: list[float], other: list[float], size: float) -> None:
    count = min(len(scatter), len(other))
    lines = [
        cell_line(variant=name, medians_us=[100 * math.exp(size * x) for x in own[:count]])
        for name, own in (("eager", scatter), ("naive", other))
    ]
    rows = results.rows([records.Record(Path("nowhere"), run("m", "method", processes=count), tuple(lines), "")])
    texts = [tables.results_table(rows).to_string()]
    for draw in (comparisons.speedups, comparisons.slowdowns, comparisons.times_against_limit):
        figure, table = draw(rows)
        texts += [figure.alt, table.to_string(), *(f"{one.said}\n{one.text}" for one in drawn.cells(figure))]
    assert {text: width for text, width in widths("\n".join(texts)).items() if width > WIDEST} == {}
