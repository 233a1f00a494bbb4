"""Chips of one model told apart, and what several of them say of the next: names, ranges, intervals, shares."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import call, refused
from scipy.special import stdtrit
from synthetic import cell_line, evidence_of, judgement, run_line
from tabled import tabled, tables

import hypatia_lab
from hypatia_lab import claims, intervals, records, results
from hypatia_lab.claims import Claim
from hypatia_lab.cli import compare
from hypatia_lab.pages import repeatability
from hypatia_lab.records import RecordError
from hypatia_lab.results import scatter, visits

WORK = "linear_relu/8x8x8/float32/ieee/forward"
CLAIM = Claim(
    *("S009-01", "A", "naive is half as fast", (0.5, 0.5), "×", "ratio", "Because."),
    band=(0.45, 0.55),
    workloads=(WORK,),
    variant="naive",
    lead="S009-01",
)


def recorded(
    root: Path, machine: str, chip: str, speed: float, *, processes: int = 5, name: str = "H200", **run: Any
) -> None:
    """A GPU's record of ``method`` in which naive has a ``speed`` over eager, nearly without scatter."""
    times = dict.fromkeys(("eager", "eager@again"), [10.0] * processes)
    times |= {"naive": [10 / speed * (1 + n / 10000) for n in range(processes)]}
    own = {"shape": [8, 8, 8], "clock": "graph", "sources": run.pop("text", 12 * "0"), "origin": "own"}
    lines = [cell_line(variant=variant, medians_us=us, **own) for variant, us in times.items()]
    facts = {"name": f"NVIDIA {name}"} | ({"chip": chip} if chip else {})
    run = {"machine": machine, "device": "cuda", "processes": processes, "facts": facts} | run
    records.write(root, run_line(**{"started": scatter.PRESENT} | run), lines, overwrite=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that stands in for the committed records; the ledger is one claim."""
    monkeypatch.setattr(records, "COMMITTED", tmp_path / "records")
    monkeypatch.setattr(claims, "ledger", lambda: [CLAIM])
    return tmp_path / "records"


# ---------------------------------------------------------------- names


@tabled("spread", "models")
def test_a_chips_machine_is_of_its_model_and_any_other_of_its_own(machine: str, named: list[str], model: str) -> None:
    assert records.model(machine, set(named)) == model


def lines_of(*arguments: str) -> list[dict[str, Any]]:
    """What a command that succeeds prints as JSON."""
    found = call(*arguments, "--json")
    assert (found.code, found.err) == (0, [])
    return json.loads(found.out)


@pytest.fixture
def fleet(root: Path) -> Path:
    """Machines of three models: two chips beside the machine of their name, one whose name is no chip's, one alone."""
    for machine, chip in (("h200", "d23e05"), ("h200-aaaaaa", "aaaaaa"), ("h200-bbbbbb", "bbbbbb")):
        recorded(root, machine, chip, 0.5)
    recorded(root, "h200-cccccc", "d23e05", 0.5)
    recorded(root, "a100-dddddd", "dddddd", 0.5, name="A100")
    return root


CHIPS = {"h200", "h200-aaaaaa", "h200-bbbbbb"}


def test_a_models_name_means_all_its_chips_wherever_machines_are_chosen(fleet: Path) -> None:
    for asked, meant in (("h200", CHIPS), ("h200-aaaaaa", {"h200-aaaaaa"}), ("a100", {"a100-dddddd"})):
        assert {record.machine for record in records.load(machines=[asked])} == meant
        page = hypatia_lab.evidence(hypatia_lab.Parameters(machine=asked))
        assert {record.machine for record in page.records} == meant
        assert {line["machine"] for line in lines_of("results", "--machine", asked)} == meant
    assert {line["machine"] for line in lines_of("claims", "--machine", "h200")} - {claims.ANY} == CHIPS


def test_what_a_models_name_begins_with_will_do(fleet: Path) -> None:
    recorded(fleet, "h100-80gb-hbm3-eeeeee", "eeeeee", 0.5, name="H100 80GB HBM3")
    recorded(fleet, "h100-of-mine", "ffffff", 0.5, name="H100 80GB HBM3")
    for asked in ("h100", "h100-80gb", "h100-80gb-hbm3", "h100-80gb-hbm3-eeeeee"):
        assert {record.machine for record in records.load(machines=[asked])} == {"h100-80gb-hbm3-eeeeee"}
    with pytest.raises(RecordError, match="h100"):
        records.load(machines=["h10"])


@pytest.mark.parametrize(("asked", "near"), [("h20", "h200"), ("a10", "a100"), ("h200-aaaaab", "h200-aaaaaa")])
def test_a_slip_gets_the_nearest_machine_or_model(fleet: Path, asked: str, near: str) -> None:
    with pytest.raises(RecordError, match=f"did you mean '{near}'"):
        records.load(machines=[asked])
    assert f"'{near}'" in refused("compare", asked, "h200-cccccc")


def test_a_damaged_record_of_a_chip_is_told_of_by_the_models_name(fleet: Path) -> None:
    next((fleet / "h200-aaaaaa" / "method").iterdir()).write_text("{\n")
    with pytest.raises(RecordError, match=r"h200-aaaaaa/method/.*\.jsonl:1"):
        records.load(machines=["h200"])
    assert records.load(machines=["a100"])


# ---------------------------------------------------------------- one ratio on several machines


def test_the_prediction_interval_is_that_of_the_textbook() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 1.2]
    logs = [math.log(value) for value in values]
    half = float(stdtrit(4, 0.975)) * statistics.stdev(logs) * math.sqrt(1 + 1 / 5)
    found = intervals.prediction(values)
    ends = [math.log(one) for one in (found.low, found.value, found.high)]
    middle = statistics.mean(logs)
    assert ends == pytest.approx([middle - half, middle, middle + half])


def test_a_chip_counts_once_and_what_is_in_doubt_not_at_all(root: Path) -> None:
    speeds = {("one", "aaaaaa"): 1.0, ("again", "aaaaaa"): 1.21, ("two", "bbbbbb"): 2.0, ("silent", ""): 3.0}
    for (machine, chip), speed in speeds.items():
        recorded(root, machine, chip, speed)
    recorded(root, "short", "dddddd", 9.0, processes=2)
    found = records.load(root)
    rows = results.rows(found)
    (one,) = visits.across(rows, visits.chips(found))
    assert set(one.rows) == {"one", "again", "two", "silent", "short"}
    assert {name: round(value, 2) for name, value in one.values.items()} == {"aaaaaa": 1.1, "bbbbbb": 2, "silent": 3}
    assert one.range == pytest.approx((1.1, 3), rel=1e-3)
    assert one.next is intervals.NOTHING
    assert len(visits.across(rows)[0].values) == 4
    assert visits.across([row for row in rows if row.machine == "one"]) == []


def drawn(rng: random.Random, chips: int, ratios: int, scatter: float) -> list[visits.Across]:
    """Untuned ratios on so many chips, each with a mean of its own; a chip may push all of them alike."""
    alike = [rng.gauss(0, scatter) for _ in range(chips)]
    found = []
    for number in range(ratios):
        values = {str(n): math.exp(number + (alike[n] + rng.gauss(0, scatter)) / math.sqrt(2)) for n in range(chips)}
        found.append(visits.Across({"a": ROW}, values))
    return found


(ROW,) = results.rows([records.Record(Path(), run_line(), (cell_line(variant="naive"),), "")])


def test_the_next_chips_ratios_lie_where_their_class_predicts() -> None:
    rng = random.Random(5)
    inside, trials = 0, 300
    for _ in range(trials):
        *seen, mine = zip(*(one.values.values() for one in drawn(rng, 7, 8, 0.01)), strict=True)
        chips = [
            visits.Across({"a": ROW}, dict(zip("123456", values, strict=True))) for values in zip(*seen, strict=True)
        ]
        (found,) = visits.expectations(chips)
        assert (found.chips, found.ratios) == (6, 8)
        for own, value in zip(chips, mine, strict=True):
            middle = statistics.geometric_mean(own.values.values())
            inside += found.low <= value / middle <= found.high
    assert 0.93 <= inside / (8 * trials) <= 0.99  # more than 95% where ratios have a scatter of their own


def test_of_few_chips_there_is_a_range_and_no_promise() -> None:
    rng = random.Random(5)
    (few,) = visits.expectations(drawn(rng, visits.CHIPS - 1, 3, 0.01))
    assert (few.chips, few.ratios, few.within > 0) == (4, 3, True)
    assert all(math.isnan(end) for end in (few.low, few.high))
    assert visits.expectations(drawn(rng, 1, 3, 0.01)) == []
    (both,) = visits.expectations([*drawn(rng, 5, 2, 0.001), *drawn(rng, 2, 9, 0.5)])
    assert (both.chips, both.ratios) == (5, 2)  # those of which there is enough count alone
    assert both.high < 1.02


def test_ends_are_written_however_far_apart_they_lie() -> None:
    assert compare.span(1.0162, 1.0181) == "[1.0162, 1.0181]"
    assert compare.span(0.01, 50.0) == "[0.0100, 50.0]"
    assert compare.span(2.0, 2.0) == "[2.00, 2.00]"
    assert compare.span(math.nan, math.nan) == "–"


# ---------------------------------------------------------------- from one visit to the next


def test_the_scatter_between_visits_is_what_the_records_say(committed_records: list[records.Record]) -> None:
    committed = [*committed_records, *repeatability.others()]
    assert visits.estimated(visits.visits(committed)) == scatter.BETWEEN
    assert visits.estimated(visits.visits(committed, times=True), 1) == scatter.BETWEEN_TIMES


def test_what_nobody_visited_twice_has_no_scatter() -> None:
    assert scatter.between("NVIDIA A100", "graph", False, 2.0) == scatter.between_times("NVIDIA A100", "graph") == 0
    model = "NVIDIA H200"
    level, others = (scatter.between(model, "graph", False, ratio) for ratio in (0.99, 3.0))
    assert 0 < level < others
    assert scatter.between_times(model, "a probe") == scatter.between_times(model, "wall")


def drawn_visits(
    rng: random.Random, sigma: float, within: float, *, figures: int, seen: int = 2, processes: int = 5
) -> list[list[visits.Visit]]:
    """Ratios on so many visits to one model; ``within`` is how far its processes scatter."""
    found = []
    for number in range(figures):
        own = []
        for visit in range(seen):
            middle = number / 100 + rng.gauss(0, sigma)
            logs = tuple(middle + rng.gauss(0, within) for _ in range(processes))
            speed = intervals.geometric([math.exp(log) for log in logs])
            name = (WORK, "graph", str(number), "eager")
            own.append(visits.Visit("model", "cuda", f"{visit}", name, 1, speed, logs, ""))
        found.append(own)
    return found


@pytest.mark.parametrize(("sigma", "within"), [(0.01, 0.001), (0.01, 0.02), (0.0, 0.01)])
@pytest.mark.parametrize("seen", [2, 4])
def test_the_scatter_that_was_put_in_is_found(sigma: float, within: float, seen: int) -> None:
    found = visits.deviation(drawn_visits(random.Random(3), sigma, within, figures=400, seen=seen))
    assert found == pytest.approx(sigma, rel=0.15, abs=0.003)


def test_one_gross_outlier_is_not_all_there_is() -> None:
    found = drawn_visits(random.Random(4), 0.01, 0.001, figures=100)
    gross = replace(found[0][0], logs=tuple(log + 2.27 for log in found[0][0].logs))
    without, with_ = (visits.deviation([[one, found[0][1]], *found[1:]]) for one in (found[0][0], gross))
    assert without < with_ < 1.2 * without


def test_two_visits_agree_as_often_as_is_promised_once_what_lies_between_them_counts() -> None:
    (found,) = visits.repeats(drawn_visits(random.Random(5), 0.01, 0.003, figures=200, seen=3))
    assert (found.ratios, found.pairs) == (200, 600)
    assert found.agree[0] < 0.5
    assert 0.93 <= found.agree[1] <= 0.97
    assert found.half[0] < found.half[1] == pytest.approx(1.96 * 0.01, rel=0.15)


def test_of_several_experiments_one_is_told(tmp_path: Path) -> None:
    for experiment, us, processes, day in (
        ("method", 20.0, 5, "26"),
        ("aten_fusion", 19.0, 5, "27"),  # of as many the newest
        ("layout", 10.0, 3, "28"),  # newer, of fewer
        ("gemm_ladder", 5.0, 9, "21"),  # by the clock of then
    ):
        run = {"experiment": experiment, "started": f"2026-11-{day}T12:00:00Z"}
        recorded(tmp_path, "box", "", 10 / us, processes=processes, **run)
    found = records.load(tmp_path)
    told = visits.told(results.rows(found), found)
    naive = [row for row in told if row.variant == "naive"]
    assert len({(row.ratio, row.ratio_low, row.ratio_high, row.n) for row in naive}) == 1
    assert (naive[0].ratio, naive[0].n) == (pytest.approx(10 / 19, rel=1e-3), 5)
    assert len({row.median_us for row in naive}) == 4  # each time stays its own
    reach = 1.96 * scatter.between("NVIDIA H200", "graph", False, 0.5)
    assert math.log(naive[0].ratio_high / naive[0].ratio) == pytest.approx(reach, rel=0.01)
    assert {(row.ratio_low, row.ratio_high) for row in told if row not in naive} == {(1.0, 1.0)}


def test_a_kernel_whose_ratio_a_change_made_another_has_its_own(tmp_path: Path) -> None:
    # The third was changed, too, but is as quick as the first.
    for experiment, us, text, count in (("method", 20, "a", 5), ("aten_fusion", 10, "b", 3), ("layout", 20.01, "c", 5)):
        recorded(tmp_path, "box", "", 10 / us, text=12 * text, experiment=experiment, processes=count)
    found = records.load(tmp_path)
    told = {row.experiment: row.ratio for row in visits.told(results.rows(found), found) if row.variant == "naive"}
    assert told["method"] == told["layout"] == pytest.approx(0.5, rel=1e-3)
    assert told["aten_fusion"] == pytest.approx(1.0, rel=1e-3)


EXCLUDED = {tuple(one) for one in tables("spread")["excluded"]}
"""Machine and two experiments that measured one ratio and exclude each other: by the graph clock of before 25 November
2026, whose samples began after the same program's kernel. Nothing is added here: a record by the clock of today takes
the place of the older one, and its line goes."""
UNEXPLAINED = {tuple(one) for one in tables("spread")["unexplained"]}
"""By the clock of today, too: of ``method`` eager alone takes 2 to 7% longer in a graph. The log of 28 November 2026
has what is known, and what would tell why."""


def test_no_two_intervals_of_one_fact_exclude_each_other(committed_records: list[records.Record]) -> None:
    found = committed_records
    started = {(record.machine, record.experiment): record.run["started"] for record in found}
    ran = {
        (record.machine, record.experiment, cell["operation"], cell["variant"]): cell.get("sources")
        for record in found
        for cell in record.cells
        if cell["origin"] == "own"
    }
    models = {record.machine: record.device_name for record in found}
    told: dict[tuple[str, visits.Fact, str | None], list[tuple[str, intervals.Interval]]] = {}
    for row in visits.ratios(results.rows(found)):
        if not row.speed.flaw:
            between = scatter.between(models[row.machine], row.clock, row.chosen, row.ratio)
            wide = intervals.widened(row.speed, between)
            by = ran.get((row.machine, row.experiment, row.operation, row.variant))  # another kernel is another fact
            told.setdefault((row.machine, visits.fact(row), by), []).append((row.experiment, wide))
    excluded = set()
    for (machine, *_), own in told.items():
        for (one, a), (other, b) in itertools.combinations(own, 2):
            if a.outside(b.low, b.high):
                pair = (machine, *sorted((one, other)))
                excluded.add(pair)
                older = min(started[machine, one], started[machine, other]) < scatter.PRESENT
                assert older or pair in UNEXPLAINED
    assert excluded == EXCLUDED | UNEXPLAINED


# ---------------------------------------------------------------- verdicts


@tabled("spread", "agreement")
def test_a_verdict_holds_on_all_on_most_on_some_or_on_one(verdicts: str, verdict: str, holds: str) -> None:
    rows = [judgement(machine=str(number), verdict=word) for number, word in enumerate(verdicts.split())]
    untested = [judgement(id="B", verdict="not_testable"), judgement(id="C", machine=claims.ANY)]
    (line,) = claims.agreement([*rows, *untested])
    assert (line["verdict"], line["holds"]) == (verdict, holds)
    assert len(line["verdicts"]) == sum(word not in claims.UNJUDGED for word in verdicts.split())


# ---------------------------------------------------------------- compare


def chips_recorded(root: Path, speeds: Sequence[float]) -> list[str]:
    """Chips of one model, each with one of the ``speeds``."""
    names = [f"h200-aaaaa{number:x}" for number in range(len(speeds))]
    for name, speed in zip(names, speeds, strict=True):
        recorded(root, name, name.partition("-")[2], speed)
    return names


@pytest.mark.parametrize("n", [3, 5])
def test_compare_sets_a_models_chips_side_by_side(root: Path, n: int) -> None:
    speeds = [0.5, 0.502, 0.497, 0.51, 0.6][-n:]
    names = chips_recorded(root, speeds)
    ratio, expectation, verdict = found = lines_of("compare", "h200")
    assert found == lines_of("compare", *names)
    assert [line["kind"] for line in found] == ["ratio", "expectation", "verdict"]
    shown = {name: own["ratio"] for name, own in ratio["machines"].items()}
    assert shown == pytest.approx(dict(zip(names, speeds, strict=True)), rel=1e-3)
    predicted = intervals.prediction(speeds)
    bounds = (predicted.low, predicted.high) if n >= visits.CHIPS else (min(speeds), max(speeds))
    assert ratio["bounds"] == ("next" if n >= visits.CHIPS else "range")
    assert (ratio["low"], ratio["high"]) == pytest.approx(bounds, rel=1e-3)
    assert (expectation["model"], expectation["chips"]) == ("NVIDIA H200", n)
    assert (expectation["low"] is None) is (n < visits.CHIPS)
    assert (verdict["verdict"], verdict["holds"], verdict["verdicts"][names[-1]]) == ("confirmed", "most", "refuted")
    lines = call("compare", "h200").out
    assert "S009-01" in lines
    assert all(f"{name} {speed:.3g}"[:-1] in lines for name, speed in zip(names, speeds, strict=True))


@pytest.mark.parametrize("width", [60, 80, 140])
def test_many_chips_fit_the_terminal(root: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    chips_recorded(root, [0.5 + number / 1000 for number in range(16)])
    assert max(map(len, call("compare", "h200").out.splitlines())) <= width


def test_models_that_differ_are_given_a_range_whatever_their_number(root: Path) -> None:
    chips_recorded(root, [0.5, 0.51, 0.52, 0.53])
    recorded(root, "h100", "eeeeee", 0.4, name="H100")
    lines = lines_of("compare", "h200", "h100")
    assert (lines[0]["bounds"], lines[0]["chips"]) == ("range", 5)
    assert [line["model"] for line in lines if line["kind"] == "expectation"] == ["NVIDIA H200"]
    assert "chips seen: 1" in call("compare", "h200", "h100").out


def test_two_chips_or_one_beside_its_model_are_compared_as_two_machines(root: Path) -> None:
    one, two = chips_recorded(root, [0.5, 0.6])
    (line,) = lines_of("compare", "h200")
    sides = [line[key] for key in ("machine_a", "verdict_a", "machine_b", "verdict_b")]
    assert sides == [one, "confirmed", two, "refuted"]
    recorded(root, "a100", "", 0.5)
    recorded(root, "a100-bbbbbb", "bbbbbb", 0.6)
    (line,) = lines_of("compare", "a100", "a100-bbbbbb")
    assert (line["machine_a"], line["machine_b"]) == ("a100", "a100-bbbbbb")
    for sides in (("a100",), (one,), (one, two, one)):
        assert sides[0] in refused("compare", *sides)
    recorded(root, "a100-cccccc", "cccccc", 0.6)
    assert "a100-cccccc" not in call("compare", "a100", "a100-bbbbbb").out


# ---------------------------------------------------------------- the page


def test_a_model_that_was_measured_again_says_how_far_apart_it_was(root: Path, tmp_path: Path) -> None:
    chips_recorded(root, [0.5])
    recorded(root, "h200-aaaaa0", "bbbbbb", 0.51)
    recorded(root, "h100", "eeeeee", 0.4, name="H100")
    lab = evidence_of(root)
    assert "2.00%" in repeatability.sentence(lab, "h200-aaaaa0")
    assert repeatability.sentence(lab, "h100") == ""
