from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import WIDEST, cell_line, judgement, row, run_line, widths

from hypatia_lab import formats, records, results, tables
from hypatia_lab.claims import ANY, GROUPS
from hypatia_lab.claims.claim import PROGRAMS
from hypatia_lab.figures import comparisons
from hypatia_lab.intervals import Interval
from hypatia_lab.results import Row
from hypatia_lab.tables import claims as claim_tables

pytestmark = pytest.mark.usefixtures("two_processes")

ORIGINS = {
    "eager": "peer",
    "naive": "seed",
    "cublas_relu": "seed",
    "aten": "seed",
    "epilogue": "peer",
    "compile": "peer",
}
FACTS = {"name": "Card", "cores": 2, "memory_gib": 15.6, "cache_bytes": 50 * 2**20, "versions": {"torch": "2.13.0"}}


def work(operation: str, shape: tuple[int, ...], itemsize: int = 4) -> tuple[int, int]:
    """FLOPs and compulsory bytes of the synthetic cells."""
    if operation == "copy":
        return 0, 2 * shape[0] * itemsize
    m, k, n = shape
    return 2 * m * k * n, (m * k + k * n + m * n) * itemsize


def cell(
    operation: str, shape: tuple[int, ...], variant: str, medians: list[float | None], **more: Any
) -> dict[str, Any]:
    """One valid cell; its medians (µs, one a process) are given, the rest is filled in."""
    flops, traffic = work(operation, shape)
    filled: dict[str, Any] = cell_line(
        operation=operation,
        shape=list(shape),
        variant=variant,
        origin=ORIGINS.get(variant.removesuffix("@again"), "own"),
        error=3.1e-7,
        max_error=1.3e-4,
        flops=flops,
        traffic=traffic,
        medians_us=medians,
        samples_us=[m for m in medians if m is not None],
        calls=10,
        outliers={"mild": 0, "severe": 0, "of": len(medians)},
    )
    return filled | more


def run(machine: str, experiment: str, processes: int, **more: Any) -> dict[str, Any]:
    """A valid run line."""
    filled = run_line(
        machine=machine,
        experiment=experiment,
        preset="seed",
        device="cuda",
        started="2025-11-20T10:00:00Z",
        commit="0123456789abcdef",
        dirty=False,
        processes=processes,
        facts=FACTS,
    )
    return filled | more


def around(center: float, spread: float, processes: int, draw: random.Random) -> list[float | None]:
    """Per-process medians (µs) scattered about ``center`` with a relative spread."""
    return [center * math.exp(draw.gauss(0, spread)) for _ in range(processes)]


@pytest.fixture
def three() -> tuple[float, float, float]:
    return 1.0, 0.98, 1.03


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Two machines: naive is 27 times slower on one and 9 on the other; aten is equal; compile is skipped on one."""
    draw = random.Random(1)
    shape = (1024, 784, 2048)
    for machine, slower in (("h200", 27.0), ("epyc-2c", 9.0)):
        cells = [
            cell("linear_relu", shape, "eager", around(100, 0.001, 8, draw)),
            cell("linear_relu", shape, "naive", around(100 * slower, 0.01, 8, draw)),
            cell("linear_relu", shape, "aten", around(100, 0.001, 8, draw)),
        ]
        lost = {"status": "skipped", "reason": "no compiler", "error": None, "max_error": None}
        cells.append(cell("linear_relu", shape, "compile", [], **lost))
        records.write(tmp_path, run(machine, "naive_vs_cublas", 8), cells)
    records.write(
        tmp_path,
        run("h200", "ceilings", 2),
        [
            cell("matmul", (4096, 4096, 4096), "eager", [3000.0, 3000.0]),
            cell("copy", (2**26,), "eager", [150.0, 150.0]),
        ],
    )
    return results.rows(records.load(tmp_path))


NAN = math.nan


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.678, "12300"),
        (54.14, "54.1"),
        (9.996, "10.0"),
        (0.0001234, "0.000123"),
        (3.1e-7, "3.10e-07"),
        (8, "8"),
        (0.0, "0"),
        (-2.5, "-2.50"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_a_number_has_three_significant_digits(value: float | None, text: str) -> None:
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("triple", "text"),
    [
        ((54.1234, 53.9, 54.3), "54.1× [53.9, 54.3]"),
        ((1.00071, 1.00021, 1.00112), "1.0007× [1.0002, 1.0011]"),
        ((1.05, 0.98, 1.12), "1.05× [0.98, 1.12]"),
        ((27.1, math.nan, math.nan), "too noisy"),
        ((1.0, 0.11, 9.0), "1.00× [0.11, 9.00]"),
        ((1.0, 0.09, 10.0), "too noisy"),
        ((0.1, -0.2, 0.4), "0.100× [-0.200, 0.400]"),  # a difference
        ((0.001, -0.2, 0.4), "too noisy"),
        ((math.nan, math.nan, math.nan), "–"),
        ((1.0, 1.0, 1.0), "1.00× [1.00, 1.00]"),
    ],
)
def test_an_interval_shows_the_digits_it_earns(triple: tuple[float, float, float], text: str) -> None:
    assert formats.interval(*triple) == text


def test_units() -> None:
    assert formats.interval(12.3, 12.1, 12.5, "µs") == "12.3 µs [12.1, 12.5]"
    assert formats.interval(12.3, 0.1, 1250.0, "µs", 4) == "too noisy (n = 4)"
    assert formats.time(Interval(1.52e6, 1.5e6, 1.54e6, 8)) == "1.52 s [1.50, 1.54]"
    assert formats.time(Interval(1.52e6, math.nan, math.nan, 1)) == formats.ALONE
    assert formats.figure(Interval(905, 905, 905, 3), "calls") == "905 calls"
    assert [formats.margin(share) for share in (0.00134, 0.5, 1.7, 3e12)] == [
        *("±0.134%", "±50.0%", "a factor of 2.70", "a factor of 100 and more")
    ]
    assert [formats.duration(us) for us in (0.95, 4.123, 1100, 2.1e6, math.nan)] == [
        "950 ns",
        "4.12 µs",
        "1.10 ms",
        "2.10 s",
        "–",
    ]
    assert formats.duration(999.9) == "1.00 ms"
    scaled = [formats.scaled(value, "B/s") for value in (51.2e12, 3.3e9, 4.4e6, 5.0)]
    assert scaled == ["51.2 TB/s", "3.30 GB/s", "4.40 MB/s", "5.00 B/s"]
    assert formats.scaled(None, "B/s") == "–"


@pytest.mark.parametrize(
    ("triple", "word"),
    [
        ((1.0, 0.985, 1.015), "equal"),
        ((1.005, 1.003, 1.007), "equal"),
        ((1.2, 1.1, 1.3), "faster"),
        ((0.5, 0.4, 0.6), "slower"),
        ((1.0, 0.9, 1.1), "undecided"),
        ((2.0, 1.3, 3.1), "faster"),
        ((1.0, 0.5, 3.1), "too noisy to say"),
        ((math.nan, math.nan, math.nan), "–"),
    ],
)
def test_reading_follows_the_interval(triple: tuple[float, float, float], word: str) -> None:
    fields = dict(zip(("ratio", "ratio_low", "ratio_high"), triple, strict=True))
    assert row(**fields, n=8).reading == word
    if word != "–":
        assert row(**fields, n=1).reading == "too few to tell"
        assert row(**fields, n=8, veto="eager@again takes 1.2 times as long as eager").reading == "A/A failed"


def test_readings_are_counted_in_one_order() -> None:
    assert (
        tables.counted(["slower", "too noisy to say", "slower", "faster"])
        == "1 faster, 2 slower and 1 too noisy to say"
    )
    assert tables.counted(["equal"]) == "1 equal"


def test_results_table_holds_every_row_and_invents_no_number(rows: list[Row]) -> None:
    table = tables.results_table(rows)
    assert len(table) == len(rows)
    skipped = table[table["variant"] == "compile"].iloc[0]
    assert (skipped["time"], skipped["ratio"], skipped["status"]) == ("–", "–", "skipped: no compiler")
    naive = table[(table["variant"] == "naive") & (table["machine"] == "h200")].iloc[0]
    assert naive["workload"] == "linear_relu 1024×784×2048 float32/ieee"
    assert naive["time"].startswith("27")
    assert naive["ratio"].startswith("0.037")
    with pytest.raises(tables.TableError, match="no rows"):
        tables.results_table([])


def test_the_limit_is_unknown_without_ceilings(rows: list[Row]) -> None:
    table = tables.results_table(rows)
    eager = table[(table["variant"] == "eager") & table["workload"].str.startswith("linear_relu")].set_index("machine")
    assert eager.loc["epyc-2c", "of limit"] == "–"
    assert eager.loc["h200", "of limit"] not in ("–", "0%")


def test_claims_keep_the_seeds_figure_and_show_the_interval() -> None:
    untested = judgement(
        claimed=[50, 200], measured=NAN, low=NAN, high=NAN, n=0, band=(50, 200), verdict="not_testable"
    )
    table = claim_tables.claims_table([judgement(), untested])
    assert table.loc[0, "claimed"] == "7.67×"
    assert table.loc[0, "measured"] == "27.1× [26.9, 27.3] (n = 8)"
    assert table.loc[0, "program"] == claim_tables.WHOSE["author"]
    assert table.loc[0, "verdict"] == claim_tables.verdict_text("refuted")
    assert list(table.loc[1, ["claimed", "measured", "bound", "verdict"]]) == [
        "50–200×",
        "–",
        "–",
        claim_tables.verdict_text("not_testable"),
    ]
    with pytest.raises(tables.TableError, match="no claims"):
        claim_tables.claims_table([])
    with pytest.raises(KeyError, match="maybe"):
        claim_tables.claims_table([judgement(verdict="maybe")])


@pytest.mark.parametrize(
    ("claimed", "band", "text"),
    [
        (7.67, (6.903, 8.437), "7.67×"),
        (1, (0.98, 1.02), "1× (band: 0.98–1.02×)"),
        ([1.05, 1.2], (1.05, 1.2), "1.05–1.2×"),
        ([1.1, 1.2], (1.1, 1.25), "1.1–1.2× (band: 1.1–1.25×)"),
        ([3, 5], (3.0, 1e6), "3–5× (band: 3× or more)"),
        (9.58, (0.0, 18.62), "9.58× (band: 18.62× or less)"),
        (0, (-0.1, 0.1), "0× (band: -0.1–0.1×)"),
        (2, (math.nan, math.nan), "2×"),
    ],
)
def test_a_band_is_shown_where_it_is_not_the_figure_itself(claimed: Any, band: Any, text: str) -> None:
    assert claim_tables.claims_table([judgement(claimed=claimed, band=band)]).loc[0, "claimed"] == text


@pytest.mark.parametrize(
    ("sense", "claimed", "band", "ends", "other"),
    [
        ("at_least", 2, (2.0, 16.0), ["2×"], "16"),
        ("at_least", [2, 5], (1.5, 6.0), ["2×", "1.5×"], "5"),
        ("at_most", [0, 1], (0.0, 1.02), ["1×", "1.02×"], "0"),
        ("at_most", 1, (0.0, 1.5), ["1×", "1.5×"], "0"),
    ],
)
def test_of_what_is_claimed_at_least_or_at_most_only_the_end_that_decides_is_shown(
    sense: str, claimed: Any, band: Any, ends: list[str], other: str
) -> None:
    text = claim_tables.claims_table([judgement(sense=sense, claimed=claimed, band=band)]).loc[0, "claimed"]
    assert re.findall(r"[0-9.]+×", text) == ends
    assert not re.search(rf"(?<![0-9.]){re.escape(other)}×", text)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "27.1× [26.9, 27.3] (n = 8)"),
        ({"measured": NAN, "n": 3}, "26.9–27.3× (n = 3)"),
        ({"measured": 2, "low": 2, "high": 2, "n": 1, "unit": "launches"}, "2 launches (n = 1)"),
        ({"measured": 7.7, "low": 7.7, "high": 7.7, "n": 0}, "7.7×"),
        ({"measured": NAN, "low": NAN, "high": NAN, "n": 0}, "–"),
        ({"low": 0.1, "high": 7344.0}, "0.1–7344× (n = 8)"),  # too wide for a value
        ({"measured": 2.5, "low": NAN, "high": NAN, "n": 1}, "2.5× (n = 1)"),
        ({"measured": NAN, "low": NAN, "high": NAN, "n": 2}, "too noisy (n = 2)"),
    ],
)
def test_every_measured_figure_has_its_n(found: dict[str, Any], text: str) -> None:
    assert claim_tables.judged(judgement(**found)) == text


@pytest.mark.parametrize(
    ("verdict", "held", "total", "counted"),
    [
        ("confirmed", 3, 3, False),
        ("confirmed", 2, 3, True),
        ("confirmed_in_part", 1, 3, True),
        ("refuted", 1, 3, False),
        ("confirmed", 0, 0, False),
    ],
)
def test_a_verdict_says_how_many_hold_where_not_all_do(verdict: str, held: int, total: int, counted: bool) -> None:
    text = claim_tables.word(judgement(verdict=verdict, held=held, total=total))
    assert text.startswith(claim_tables.verdict_text(verdict))
    assert re.findall(r"\d+", text) == [str(held), str(total)] * counted
    assert " " not in text  # no line breaks within it


def test_every_program_that_decides_has_a_mark() -> None:
    marks = [claim_tables.whose(judgement(program=program)) for program in (*PROGRAMS, "equal")]
    assert all(marks)
    assert len(set(marks)) == len(marks)
    assert claim_tables.whose(judgement(program="")) == ""


def test_claims_are_counted_by_what_became_of_them_and_by_document() -> None:
    verdicts = {"S002-01": "confirmed", "S001-02": "refuted", "S002-03": "refuted", "S001-04": "undecided"}
    rows = [judgement(id=name, document=name[:4], verdict=verdict) for name, verdict in verdicts.items()]
    rows += [judgement(id="S001-09", machine=ANY, verdict="inconsistent"), judgement(machine="other")]
    groups = claim_tables.group_counts(rows, "h200")
    assert groups["claims"].to_list() == ["1", "0", "3", "1", "0", "5"]
    assert groups.iloc[:, 0].to_list() == [*GROUPS, "all"]
    assert all(claim_tables.verdict_text(word) in groups.iloc[2, 2] for word in ("refuted", "inconsistent"))
    by_seed = claim_tables.verdicts_by_seed(rows, "h200").set_index("document")
    assert list(by_seed["all"]) == [2, 3, 5]
    assert list(by_seed.index) == ["S002", "S001", "all"]
    assert list(by_seed[claim_tables.verdict_text("refuted")]) == [1, 1, 2]
    with pytest.raises(tables.TableError, match="no claims judged on 'gpu'"):
        claim_tables.verdicts_by_seed(rows[:4], "gpu")


def test_a_claim_has_a_line_with_its_figures_folded_beneath_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    none = {"measured": NAN, "low": NAN, "high": NAN, "n": 0}
    told = judgement(reason="Outside <b>.", details=("First detail.", "Second <i>."))
    unmeasured = enumerate(("not_testable", "adds_up", "inconsistent"), 5)
    silent = [judgement(**none, id=f"S001-{n:02}", verdict=word, reason=f"Because {n}.") for n, word in unmeasured]
    other = judgement(id="S001-04", machine="epyc-2c")
    stated = [replace(one, parts=(one,)) for one in (told, *silent, other)]
    claim_tables.show_claims(stated, "h200")
    assert all(text in shown[0]["text/plain"] for text in (claim_tables.asked(told), claim_tables.judged(told)))
    seen, _, folded = shown[0]["text/html"].partition('<details class="lab-fold">')
    for piece in (told.id, "Outside &lt;b&gt;.", "First detail. Second &lt;i&gt;.", told.section):
        assert piece in seen
    assert "3 rows" in folded
    for untested in silent:
        assert untested.id in folded
        assert untested.reason in folded
        assert untested.id in shown[0]["text/plain"]
    assert "S001-04" not in shown[0]["text/html"]
    claim_tables.show_claims(stated[:4], "epyc-2c")
    assert len(shown) == 1


def test_a_folded_column_goes_into_the_cell_it_explains() -> None:
    text = tables.html(claim_tables.claims_table([judgement(reason="Because <b>.")]), folded={"reason": "claim"})
    assert "<details><summary>reason</summary>Because &lt;b&gt;.</details></td>" in text
    assert '<th scope="col">reason</th>' not in text


def test_a_whole_table_is_folded_away_beneath_its_number_of_rows() -> None:
    table = pandas.DataFrame({"a": ["x", "y"]})
    text = tables.html(table, summary="All <b>")
    assert text.startswith('<details class="lab-fold"><summary>All &lt;b&gt; (2 rows)</summary>')
    assert tables.html(table) in text


def test_an_empty_text_is_not_folded_away() -> None:
    import pandas

    text = tables.html(pandas.DataFrame([{"a": 1, "why": ""}, {"a": 2, "why": "so"}]), folded={"why": "a"})
    assert text.count("<details>") == 1


def test_a_machines_caution_stands_once_beneath_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    warned = judgement(caution="Beware of h200.", details=("First detail.", "Beware of h200."))
    stated = [replace(one, parts=(one,)) for one in (warned, replace(warned, id="S001-02"))]
    claim_tables.show_claims(stated, "h200")
    claim_tables.show_statements(stated, "h200")
    for form in shown:
        assert form["text/html"].count("Beware of h200.") == 1
        assert form["text/html"].count("First detail.") == 2
    with pytest.raises(tables.TableError, match="no claims"):
        claim_tables.show_statements(stated, "epyc-2c")


def test_machines_table_says_unknown_where_nothing_was_measured(rows: list[Row], tmp_path: Path) -> None:
    table = tables.machines_table(records.load(tmp_path)).set_index("fact")
    assert table.loc["device", "h200"] == "Card"
    assert table.loc["last-level cache", "h200"] == "50.0 MiB"
    rate = 2 * 4096**3 / 3000e-6
    assert table.loc["best matmul float32/ieee, hot clock", "h200"] == formats.scaled(rate, "FLOP/s")
    assert table.loc["best matmul float32/ieee, hot clock", "epyc-2c"] == "unknown"
    assert table.loc["experiments", "h200"] == "ceilings (seed, 2 processes); naive_vs_cublas (seed, 8 processes)"
    assert list(table.index)[0] == "device"
    with pytest.raises(tables.TableError, match="no records"):
        tables.machines_table([])


def test_machines_table_shows_facts_that_disagree(tmp_path: Path) -> None:
    shape = (64, 64, 64)
    for experiment, torch in (("one", "2.13.0"), ("two", "2.12.0")):
        facts = FACTS | {"versions": {"torch": torch}}
        records.write(
            tmp_path,
            run("m", experiment, 1, facts=facts, dirty=experiment == "two"),
            [cell("matmul", shape, "eager", [1.0])],
        )
    table = tables.machines_table(records.load(tmp_path)).set_index("fact")
    assert table.loc["torch", "m"] == "2.12.0; 2.13.0"
    assert table.loc["commit", "m"] == "0123456789; 0123456789 (with local changes)"


def test_html_is_accessible_safe_and_always_the_same(rows: list[Row]) -> None:
    table = tables.results_table(rows)
    table.loc[0, "status"] = "<script>alert(1)</script>"
    text = tables.html(table, caption="A & B")
    assert text == tables.html(table, caption="A & B")
    assert text.count('scope="col"') == len(table.columns)
    assert text.count('scope="row"') == len(table)
    assert "<script>" not in text
    assert "<caption>A &amp; B</caption>" in text
    assert '<th scope="col" style="text-align:right">time</th>' in text
    assert '<th scope="col">variant</th>' in text
    assert "filterable" not in text
    assert 'class="lab-table filterable"' in tables.html(table, filterable=True)


def test_show_gives_html_and_plain_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display

    shown: list[dict[str, str]] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: shown.append(bundle))
    tables.show(claim_tables.claims_table([judgement()]), filterable=True)
    assert set(shown[0]) == {"text/html", "text/plain"}
    assert "27.1× [26.9, 27.3]" in shown[0]["text/html"].replace("\N{NO-BREAK SPACE}", " ")
    assert "27.1× [26.9, 27.3]" in shown[0]["text/plain"]


def test_one_of_a_unit_is_singular() -> None:
    assert claim_tables.quantity_text(1.0, "launches") == "1 launch"
    assert claim_tables.quantity_text(2.0, "launches") == "2 launches"
    assert claim_tables.quantity_text([1, 3], "regions") == "1–3 regions"


def test_a_reason_does_not_say_its_status_twice() -> None:
    said = [("wrong", "wrong values: off"), ("wrong", "shape: (2,)"), ("ok", "")]
    table = tables.results_table([row(status=status, reason=reason) for status, reason in said])
    assert list(table["status"]) == ["wrong values: off", "wrong: shape: (2,)", "ok"]


def test_a_number_that_is_not_known_moves_no_column() -> None:
    import pandas

    frame = pandas.DataFrame([{"id": "S001-63", "rate": "5.1 TB/s"}, {"id": "S001-64", "rate": "not measured"}])
    text = tables.html(frame)
    assert '<th scope="col" style="text-align:right;white-space:nowrap">rate</th>' in text
    assert '<th scope="row" style="white-space:nowrap">S001-63</th>' in text


def test_a_printed_interval_is_read_as_it_is_written() -> None:
    text = "29.5 µs [3.8, 224.2], 0.449× [1.7e-05, 11,892], 12% [-3, 4] and 905 [a, b]"
    assert [round(width, 3) for width in widths(text).values()] == [59.0, 699529411.765, 1.778]


SCATTER = st.lists(st.floats(-1, 1), min_size=2, max_size=8)


@settings(max_examples=25, deadline=None)
@given(scatter=SCATTER, other=SCATTER, size=st.floats(0.01, 8))
def test_no_interval_wider_than_a_hundredfold_is_printed(scatter: list[float], other: list[float], size: float) -> None:
    count = min(len(scatter), len(other))
    times = {"eager": scatter[:count], "naive": other[:count]}
    cells = [
        cell("linear_relu", (64, 64, 64), name, [100 * math.exp(size * x) for x in own]) for name, own in times.items()
    ]
    line = run("m", "method", count)
    rows = results.rows([records.Record(Path("nowhere"), line, tuple(cells), "")])
    texts = [tables.results_table(rows).to_string()]
    for figure, table in (
        comparisons.speedups(rows),
        comparisons.slowdowns(rows),
        comparisons.times_against_limit(rows),
    ):
        drawn = [cell for block in figure.blocks for cell in block.cells]
        texts += [figure.alt, table.to_string(), *(f"{cell.said}\n{cell.text}" for cell in drawn)]
    assert {text: width for text, width in widths("\n".join(texts)).items() if width > WIDEST} == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (27.24, "27"),
        (151.2, "150"),
        (1.049, "1.05"),
        (0.0371, "0.037"),
        (2.31, "2.3"),
        (1440, "1,400"),
        (9.96, "10"),
        (0, "0"),
    ],
)
def test_a_spoken_number_has_as_many_digits_as_one_says(value: float, text: str) -> None:
    assert formats.spoken(value) == text


def test_html_in_a_column_stays_html_whatever_keeps_text_for_pandas() -> None:
    column = tables.html_column(["<b>so</b>", ""])
    assert column.dtype == object
    table = pandas.DataFrame({"a": ["x", "y"]})
    table["why"] = column
    assert "<summary>why</summary><b>so</b></details>" in tables.html(table, folded={"why": "a"})
