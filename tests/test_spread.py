"""Chips of one model told apart, and what several of them say of the next: names, ranges, intervals, shares."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from scipy.special import stdtrit
from synthetic import cell_line, evidence_of, judgement, run_line

import hypatia_lab
from hypatia_lab import claims, intervals, records, results, spread
from hypatia_lab.chapters import chip_to_chip
from hypatia_lab.claims import Claim
from hypatia_lab.cli import commands
from hypatia_lab.records import RecordError
from hypatia_lab.spread import Component, Sighting
from hypatia_lab.tables import chips

WORK = "linear_relu/8x8x8/float32/ieee/forward"
CLAIM = Claim(
    *("S009-01", "A", "naive is half as fast", (0.5, 0.5), "×", "ratio", "Because."),
    band=(0.45, 0.55),
    workloads=(WORK,),
    variant="naive",
    lead="S009-01",
)


def recorded(
    root: Path, machine: str, chip: str, speeds: dict[str, float], *, processes: int = 5, name: str = "NVIDIA H200"
) -> None:
    """A GPU's record of ``method`` in which variants have ``speeds`` over eager, nearly without scatter."""
    scatter = [1 + n / 10000 for n in range(processes)]
    own = {"shape": [8, 8, 8], "clock": "graph"}
    lines = [cell_line(variant="eager", medians_us=[10.0] * processes, **own)]
    lines += [
        cell_line(variant=variant, medians_us=[10 / speed * by for by in scatter], **own)
        for variant, speed in speeds.items()
    ]
    facts = {"name": name} | ({"chip": chip} if chip else {})
    records.write(root, run_line(machine=machine, device="cuda", processes=processes, facts=facts), lines)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that stands in for the committed records."""
    monkeypatch.setattr(records, "COMMITTED", tmp_path / "records")
    return tmp_path / "records"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Calls the command in this process: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            commands.main(list(arguments), prog_name="hypatia-lab")
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return run


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("machine", "named", "model"),
    [
        ("h200-cb31d3", {"cb31d3"}, "h200"),
        ("h200-cb31d3", {"cb31d3", "d23e05", ""}, "h200"),
        ("h200-cb31d3", {"d23e05"}, "h200-cb31d3"),
        ("h200-cb31d3", {""}, "h200-cb31d3"),
        ("h200-", {""}, "h200-"),
        ("-cb31d3", {"cb31d3"}, "-cb31d3"),
        ("cb31d3", {"cb31d3"}, "cb31d3"),
        ("rtx-4090-cb31d3", {"cb31d3"}, "rtx-4090"),
        ("epyc-2c", {""}, "epyc-2c"),
    ],
)
def test_a_chips_machine_is_of_its_model_and_any_other_of_its_own(machine: str, named: set[str], model: str) -> None:
    assert records.model(machine, named) == model


@pytest.fixture
def fleet(root: Path) -> Path:
    """Machines of three models: two chips beside the machine of their name, one whose name is no chip's, one alone."""
    for machine, chip in (("h200", "d23e05"), ("h200-aaaaaa", "aaaaaa"), ("h200-bbbbbb", "bbbbbb")):
        recorded(root, machine, chip, {"naive": 0.5})
    recorded(root, "h200-cccccc", "d23e05", {"naive": 0.5})
    recorded(root, "a100-dddddd", "dddddd", {"naive": 0.5}, name="NVIDIA A100")
    return root


CHIPS = {"h200", "h200-aaaaaa", "h200-bbbbbb"}


def test_a_models_name_means_all_its_chips_wherever_machines_are_chosen(
    fleet: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    for asked, meant in (("h200", CHIPS), ("h200-aaaaaa", {"h200-aaaaaa"}), ("a100", {"a100-dddddd"})):
        assert {record.machine for record in records.load(machines=[asked])} == meant
        page = hypatia_lab.evidence(hypatia_lab.Parameters(machine=asked))
        assert {record.machine for record in page.records} == meant
        code, out, _ = call("results", "--machine", asked, "--json")
        assert code == 0
        assert {line["machine"] for line in json.loads(out)} == meant
    code, out, _ = call("claims", "--machine", "h200", "--json")
    assert {line["machine"] for line in json.loads(out)} - {claims.ANY} == CHIPS


def test_what_a_models_name_begins_with_will_do(fleet: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    recorded(fleet, "h100-80gb-hbm3-eeeeee", "eeeeee", {"naive": 0.5}, name="NVIDIA H100 80GB HBM3")
    recorded(fleet, "h100-of-mine", "ffffff", {"naive": 0.5}, name="NVIDIA H100 80GB HBM3")
    for asked in ("h100", "h100-80gb", "h100-80gb-hbm3", "h100-80gb-hbm3-eeeeee"):
        code, out, _ = call("results", "--machine", asked, "--json")
        assert (code, {line["machine"] for line in json.loads(out)}) == (0, {"h100-80gb-hbm3-eeeeee"})
    with pytest.raises(RecordError, match="h100"):
        records.load(machines=["h10"])


@pytest.mark.parametrize(("asked", "near"), [("h20", "h200"), ("a10", "a100"), ("h200-aaaaab", "h200-aaaaaa")])
def test_a_slip_gets_the_nearest_machine_or_model(
    fleet: Path, call: Callable[..., tuple[int, str, str]], asked: str, near: str
) -> None:
    with pytest.raises(RecordError, match=f"did you mean '{near}'"):
        records.load(machines=[asked])
    code, _, err = call("compare", asked, "h200-cccccc")
    assert code == 2
    assert f"did you mean '{near}'" in err


def test_a_damaged_record_of_a_chip_is_told_of_by_the_models_name(fleet: Path) -> None:
    (fleet / "h200-aaaaaa" / "method.jsonl").write_text("{\n")
    with pytest.raises(RecordError, match=r"h200-aaaaaa/method\.jsonl:1"):
        records.load(machines=["h200"])
    assert records.load(machines=["a100"])


# ---------------------------------------------------------------- one ratio on several machines


def test_the_prediction_interval_is_that_of_the_textbook() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 1.2]
    logs = [math.log(value) for value in values]
    half = float(stdtrit(4, 0.975)) * statistics.stdev(logs) * math.sqrt(1 + 1 / 5)
    found = intervals.prediction(values)
    assert found.value == pytest.approx(statistics.geometric_mean(values))
    assert math.log(found.high / found.value) == pytest.approx(half)
    assert math.log(found.value / found.low) == pytest.approx(half)
    with pytest.raises(ValueError, match="positive finite"):
        intervals.prediction([])


def measured(rng: random.Random, chips: float, processes: float) -> float:
    """The ratio that is measured on a chip drawn at random, in five processes."""
    chip = rng.gauss(0, chips)
    return math.exp(statistics.fmean(chip + rng.gauss(0, processes) for _ in range(5)))


@pytest.mark.parametrize(("chips", "processes"), [(0.02, 0.001), (0.01, 0.03), (0.0, 0.02)])
@pytest.mark.parametrize("n", [5, 12])
def test_nineteen_of_twenty_chips_lie_where_the_others_predict(n: int, chips: float, processes: float) -> None:
    """Whether the chips differ, or measuring alone does: the interval is one for what is measured next."""
    rng = random.Random(24)
    trials = 1500
    hits = 0
    for _ in range(trials):
        found = intervals.prediction([measured(rng, chips, processes) for _ in range(n)])
        hits += found.low <= measured(rng, chips, processes) <= found.high
    assert 0.93 <= hits / trials <= 0.97


def rows_of(root: Path) -> tuple[list[results.Row], list[records.Record]]:
    found = records.load(root)
    return results.rows(found), found


def test_a_chip_counts_once_and_what_is_in_doubt_not_at_all(root: Path) -> None:
    for machine, chip, speed, processes in (
        ("one", "aaaaaa", 1.0, 5),
        ("again", "aaaaaa", 1.21, 5),
        ("two", "bbbbbb", 2.0, 5),
        ("silent", "", 3.0, 5),
        ("short", "dddddd", 9.0, 2),
    ):
        recorded(root, machine, chip, {"naive": speed}, processes=processes)
    rows, found = rows_of(root)
    (one,) = spread.across(rows, spread.chips(found))
    assert set(one.rows) == {"one", "again", "two", "silent", "short"}
    assert {name: round(value, 2) for name, value in one.values.items()} == {"aaaaaa": 1.1, "bbbbbb": 2, "silent": 3}
    assert one.range == pytest.approx((1.1, 3), rel=1e-3)
    assert one.next is intervals.NOTHING
    assert len(spread.across(rows)[0].values) == 4
    assert spread.across([row for row in rows if row.machine == "one"]) == []


def drawn(rng: random.Random, chips: int, ratios: int, scatter: float) -> list[spread.Across]:
    """Untuned ratios on so many chips, each with a mean of its own; a chip may push all of them alike."""
    alike = [rng.gauss(0, scatter) for _ in range(chips)]
    found = []
    for number in range(ratios):
        values = {str(n): math.exp(number + (alike[n] + rng.gauss(0, scatter)) / math.sqrt(2)) for n in range(chips)}
        found.append(spread.Across({"a": ROW}, values))
    return found


(ROW,) = results.rows([records.Record(Path(), run_line(), (cell_line(variant="naive"),), "")])


def test_the_next_chips_ratios_lie_where_their_class_predicts() -> None:
    rng = random.Random(5)
    inside, trials = 0, 300
    for _ in range(trials):
        *seen, mine = zip(*(one.values.values() for one in drawn(rng, 7, 8, 0.01)), strict=True)
        chips = [spread.Across({"a": ROW}, dict(enumerate_as_text(values))) for values in zip(*seen, strict=True)]
        (found,) = spread.expectations(chips)
        assert (found.chips, found.ratios) == (6, 8)
        for own, value in zip(chips, mine, strict=True):
            middle = statistics.geometric_mean(own.values.values())
            inside += found.low <= value / middle <= found.high
    assert 0.93 <= inside / (8 * trials) <= 0.99  # more than 95% where ratios have a scatter of their own


def enumerate_as_text(values: Sequence[float]) -> list[tuple[str, float]]:
    return [(str(number), value) for number, value in enumerate(values)]


def test_of_few_chips_there_is_a_range_and_no_promise() -> None:
    rng = random.Random(5)
    (few,) = spread.expectations(drawn(rng, intervals.FEW - 1, 3, 0.01))
    assert (few.chips, few.ratios) == (4, 3)
    assert few.within > 0
    assert math.isnan(few.low)
    assert math.isnan(few.high)
    assert spread.expectations(drawn(rng, 1, 3, 0.01)) == []
    (both,) = spread.expectations([*drawn(rng, 5, 2, 0.001), *drawn(rng, 2, 9, 0.5)])
    assert (both.chips, both.ratios) == (5, 2)  # those of which there is enough count alone
    assert both.high < 1.02


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ((2.0, 2.0, 2.0, 2.0, 2.0), "[1.00, 1.00]"),
        ((2.0, 2.001, 2.002, 2.001, 2.0), "[0.9987, 1.0013]"),
        ((1.0, 1.1, 1.2, 1.3, 1.1), "[0.74, 1.35]"),
        ((1.0, 1000.0, 1e-3, 1e5, 1.0), "too wide"),
    ],
)
def test_what_is_expected_is_said_as_finely_as_it_is_known(values: tuple[float, ...], ends: str) -> None:
    found = spread.expectations([spread.Across({"a": ROW}, dict(enumerate_as_text(values)))])
    (text,) = chips.will_mine_differ(len(values), found)
    assert ends in text


def test_what_an_interval_takes_is_said_once() -> None:
    few = [spread.Across({"a": ROW}, dict(enumerate_as_text([1.0, 1.1])))]
    (found,) = spread.expectations(few)
    first, second, last = chips.will_mine_differ(11, [found, found])
    assert first == second
    assert "on 2 or more of 11 chips" in first
    assert f"{intervals.FEW} chips" in last
    assert "chips that ran the same ratio" not in first


def test_ends_are_written_however_far_apart_they_lie() -> None:
    assert chips.span(1.0162, 1.0181) == "[1.0162, 1.0181]"
    assert chips.span(0.01, 50.0) == "[0.0100, 50.0]"
    assert chips.span(2.0, 2.0) == "[2.00, 2.00]"
    assert chips.span(math.nan, math.nan) == "–"


# ---------------------------------------------------------------- where the scatter comes from


def simulated(
    shape: Sequence[int], deviations: Sequence[float], ratios: int = 150, named: bool = True
) -> list[Sighting]:
    """Ratios on so many models of so many chips, visits and processes; ``deviations`` of these levels in that order."""
    rng = random.Random(11)
    models, chips, visits, processes = shape
    found = []
    for number in range(ratios):
        own = rng.gauss(0, 1)
        for m in range(models):
            model = own + rng.gauss(0, deviations[0])
            for c in range(chips):
                chip = model + rng.gauss(0, deviations[1])
                for v in range(visits):
                    visit = chip + rng.gauss(0, deviations[2])
                    logs = tuple(visit + rng.gauss(0, deviations[3]) for _ in range(processes))
                    key = ("method", str(number), "graph", "naive", "eager")
                    chip_name = f"{m}-{c}" if named else ""
                    found.append(Sighting(key, ("graph", False), str(m), chip_name, f"{m}-{c}-{v}", logs))
    return found


def by_level(found: Sequence[Sighting]) -> dict[str, Component]:
    return {one.level: one for one in spread.components(found)}


def test_each_source_of_scatter_has_the_share_that_was_put_in() -> None:
    found = by_level(simulated((5, 5, 2, 5), (0.04, 0.03, 0.02, 0.01)))
    assert list(found) == list(spread.LEVELS)
    for level, deviation in {"process": 0.01, "visit": 0.02, "chip": 0.03, "model": 0.04}.items():
        assert found[level].deviation == pytest.approx(deviation, rel=0.12)
        assert found[level].holds == (level,)


def test_an_unbalanced_fleet_is_no_worse() -> None:
    rng = random.Random(2)
    whole = simulated((2, 8, 2, 6), (0.0, 0.02, 0.02, 0.01), ratios=300)
    kept = [one for one in whole if one.visit.endswith("0") or rng.random() < 0.7]
    found = by_level(kept)
    assert found["process"].variance == pytest.approx(1e-4, rel=0.1)
    assert found["visit"].variance == pytest.approx(4e-4, rel=0.15)
    assert found["chip"].variance == pytest.approx(4e-4, rel=0.2)
    assert math.isnan(found["model"].variance)  # two are not enough


def test_visits_that_nobody_repeated_are_within_the_chips() -> None:
    found = by_level(simulated((1, 6, 1, 5), (0.5, 0.03, 0.04, 0.01), ratios=400))
    assert found["chip"].holds == ("visit", "chip")
    assert found["chip"].variance == pytest.approx(25e-4, rel=0.15)
    assert found["visit"].holds == ()
    assert math.isnan(found["visit"].variance)


@pytest.mark.parametrize(("chips", "enough"), [(4, False), (5, True)])
def test_it_takes_five_chips_to_tell_them_apart(chips: int, enough: bool) -> None:
    found = by_level(simulated((1, chips, 1, 5), (0.0, 0.1, 0.0, 0.01), ratios=5))
    assert math.isnan(found["chip"].variance) is not enough
    assert found["process"].ratios == 5


def test_records_without_a_chip_tell_of_processes_alone() -> None:
    found = by_level(simulated((6, 6, 2, 5), (0.1, 0.1, 0.1, 0.01), ratios=20, named=False))
    assert found["process"].deviation == pytest.approx(0.01, rel=0.1)
    assert [one.level for one in found.values() if one.holds] == ["process"]


def test_no_variance_is_negative_and_one_process_says_nothing() -> None:
    found = by_level(simulated((1, 5, 1, 5), (0.0, 0.0, 0.0, 0.01), ratios=1))
    assert all(not one.holds or one.variance >= 0 for one in found.values())
    alone = simulated((1, 1, 1, 1), (0, 0, 0, 0.01))
    assert not any(one.holds for one in spread.components(alone))
    assert not any(one.holds for one in spread.components([]))


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("verdicts", "verdict", "holds"),
    [
        ("confirmed confirmed confirmed", "confirmed", "all"),
        ("confirmed refuted refuted", "refuted", "most"),
        ("confirmed refuted refuted undecided", "refuted", "some"),
        ("refuted confirmed", "confirmed", "one"),
        ("refuted", "refuted", "one"),
        ("refuted not_testable refuted", "refuted", "all"),
        ("confirmed confirmed refuted refuted", "confirmed", "some"),
    ],
)
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
        recorded(root, name, name.partition("-")[2], {"naive": speed})
    return names


@pytest.mark.parametrize("n", [3, 5])
def test_compare_sets_a_models_chips_side_by_side(
    root: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(claims, "ledger", lambda: [CLAIM])
    speeds = [0.5, 0.502, 0.497, 0.51, 0.6][-n:]
    names = chips_recorded(root, speeds)
    code, out, err = call("compare", "h200", "--json")
    assert (code, err) == (0, "")
    assert out == call("compare", *names, "--json")[1]
    ratio, *rest = json.loads(out)
    assert {name: round(own["ratio"], 3) for name, own in ratio["machines"].items()} == dict(
        zip(names, (round(speed, 3) for speed in speeds), strict=True)
    )
    found = {"range": (min(speeds), max(speeds))}
    predicted = intervals.prediction(speeds)
    found["next"] = predicted.low, predicted.high
    assert ratio["bounds"] == ("next" if n >= intervals.FEW else "range")
    assert (ratio["low"], ratio["high"]) == pytest.approx(found[ratio["bounds"]], rel=1e-3)
    expectation, verdict = rest
    assert [ratio["kind"], expectation["kind"], verdict["kind"]] == ["ratio", "expectation", "verdict"]
    assert (expectation["model"], expectation["chips"]) == ("NVIDIA H200", n)
    assert (expectation["low"] is None) is (n < intervals.FEW)
    assert (verdict["verdict"], verdict["holds"]) == ("confirmed", "most")
    assert verdict["verdicts"][names[-1]] == "refuted"

    lines = call("compare", "h200")[1]
    assert "S009-01" in lines
    assert f"on {n} or more of {n} chips" in " ".join(lines.split())
    (head,) = [line.split() for line in lines.splitlines() if line.split()[:1] == ["variant"]]
    assert head[-1] == ratio["bounds"]
    (values,) = [line for line in lines.splitlines() if line.split()[:1] == ["naive"]]
    assert values.rstrip().endswith("]")


@pytest.mark.parametrize("width", [60, 80, 140])
def test_many_chips_fit_the_terminal(
    root: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(claims, "ledger", lambda: [CLAIM])
    chips_recorded(root, [0.5 + number / 1000 for number in range(16)])
    out = call("compare", "h200")[1].splitlines()
    assert max(map(len, out)) <= width
    assert any("--json" in line for line in out)


def test_models_that_differ_are_given_a_range_whatever_their_number(
    root: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "ledger", lambda: [CLAIM])
    chips_recorded(root, [0.5, 0.51, 0.52, 0.53])
    recorded(root, "h100", "eeeeee", {"naive": 0.4}, name="NVIDIA H100")
    lines = json.loads(call("compare", "h200", "h100", "--json")[1])
    assert (lines[0]["bounds"], lines[0]["chips"]) == ("range", 5)
    assert [line["model"] for line in lines if line["kind"] == "expectation"] == ["NVIDIA H200"]
    assert "One chip was seen" in call("compare", "h200", "h100")[1]


def test_two_chips_or_one_beside_its_model_are_compared_as_two_machines(
    root: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "ledger", lambda: [CLAIM])
    one, two = chips_recorded(root, [0.5, 0.6])
    (line,) = json.loads(call("compare", "h200", "--json")[1])
    assert (line["machine_a"], line["verdict_a"], line["machine_b"], line["verdict_b"]) == (
        *(one, "confirmed"),
        *(two, "refuted"),
    )
    recorded(root, "a100", "", {"naive": 0.5})
    recorded(root, "a100-bbbbbb", "bbbbbb", {"naive": 0.6})
    (line,) = json.loads(call("compare", "a100", "a100-bbbbbb", "--json")[1])
    assert (line["machine_a"], line["machine_b"]) == ("a100", "a100-bbbbbb")
    for sides in (("a100",), (one,)):
        code, _, err = call("compare", *sides)
        assert code == 2
        assert sides[0] in err
    code, _, err = call("compare", one, two, one)
    assert (code, "the same records" in err) == (2, True)


# ---------------------------------------------------------------- the page


def test_the_page_holds_chips_of_one_model_side_by_side(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = claims.judge
    monkeypatch.setattr(claims, "judge", lambda found, beside=(): judge(found, [CLAIM], beside=beside))
    names = chips_recorded(root, [0.5, 0.502, 0.497, 0.51, 0.6])
    recorded(root, "silent", "", {"naive": 5.0})
    recorded(root, "h100", "eeeeee", {"naive": 0.4}, name="NVIDIA H100")
    taken = chip_to_chip.taken(evidence_of(root), [])
    held = chip_to_chip.verdicts(taken)
    ((model, table),) = chip_to_chip.ratio_tables(taken).items()
    assert model == "NVIDIA H200"
    chips = [name.partition("-")[2] for name in names]
    assert list(table.columns) == ["ratio", *chips, "next"]
    (line,) = table.to_dict("records")
    assert [float(line[chip]) for chip in chips] == pytest.approx([0.5, 0.502, 0.497, 0.51, 0.6], rel=1e-3)
    ((_, verdicts),) = chip_to_chip.verdict_tables(held).items()
    assert [word.split()[1] for word in verdicts.iloc[0][chips]] == 4 * ["confirmed"] + ["refuted"]
    said = chip_to_chip.said(taken, held)
    assert "5 of 6 records" in said
    assert "0 of 1 parts of claims have one verdict on every chip" in said
    (expected,) = chip_to_chip.expected(taken).to_dict("records")
    assert (expected["model"], expected["ratios"]) == (model, "untuned, graph clock")
    assert (expected["how many"], expected["chips each"]) == (1, "at least 5")
    assert expected["95% of the next"].startswith("[")
    assert {line["chip"] for line in chip_to_chip.named(taken)} == {*chips, "eeeeee"}
    (scatter,) = chip_to_chip.scatter(taken).to_dict("records")
    assert list(scatter) == ["ratios", "clock", "process", "chip"]  # of visits and models nothing is known
    assert "visits included" in scatter["chip"]


def test_records_without_a_chip_say_nothing_of_scatter(root: Path) -> None:
    """Their processes may be quieter than those of the chips, whose own scatter would then seem to be the chips'."""
    chips_recorded(root, [0.5, 0.502, 0.497, 0.51, 0.6])
    alone = chip_to_chip.scatter(chip_to_chip.taken(evidence_of(root), []))
    recorded(root, "silent", "", {"naive": 5.0})
    assert chip_to_chip.scatter(chip_to_chip.taken(evidence_of(root), [])).equals(alone)


def test_of_two_chips_no_interval_is_told(root: Path) -> None:
    chips_recorded(root, [0.5, 0.6])
    (line,) = chip_to_chip.expected(chip_to_chip.taken(evidence_of(root), [])).to_dict("records")
    assert (line["chips each"], line["95% of the next"]) == ("at least 2", "–")


def test_the_front_page_says_what_another_chip_makes_of_a_ratio(root: Path) -> None:
    names = chips_recorded(root, [0.5, 0.502, 0.497, 0.51])
    recorded(root, "h100", "eeeeee", {"naive": 0.4}, name="NVIDIA H100")
    said = chip_to_chip.on_yours(evidence_of(root), [], names[0])
    assert "Untuned, graph clock: 1 ratio on 4 or more of 4 chips; the furthest lies 1.55%" in said
    assert f"It takes {intervals.FEW} chips" in said
    assert chip_to_chip.on_yours(evidence_of(root), [], "h100") == ""
    recorded(root, "h200-aaaaa9", "aaaaa9", {"naive": 0.505})
    said = chip_to_chip.on_yours(evidence_of(root), [], names[0])
    low, high = re.findall(r"within \[(\S+), (\S+)\] times that mean", said)[0]
    assert 0.95 < float(low) < 0.51 / 0.503 < float(high) < 1.05


def test_a_chip_without_a_ratio_has_no_column(root: Path) -> None:
    chips_recorded(root, [0.5, 0.6])
    recorded(root, "lone", "ffffff", {"aten": 0.9})
    (table,) = chip_to_chip.ratio_tables(chip_to_chip.taken(evidence_of(root), [])).values()
    assert list(table.columns) == ["ratio", "aaaaa0", "aaaaa1", "range"]


def test_a_chip_visited_twice_is_one_chip(root: Path, tmp_path: Path) -> None:
    chips_recorded(root, [0.5, 0.6])
    recorded(tmp_path / "visit", "h200", "aaaaa0", {"naive": 0.5 * 1.21})
    found = [*records.load(root), *records.load(tmp_path / "visit")]
    (one,) = chip_to_chip.side_by_side(found)
    assert one.values == pytest.approx({"aaaaa0": 0.55, "aaaaa1": 0.6}, rel=1e-3)


def test_without_a_chip_or_a_gpu_the_page_says_so(root: Path) -> None:
    recorded(root, "gpu", "", {"naive": 0.5})
    taken = chip_to_chip.taken(evidence_of(root), [])
    assert "0 of 1 records" in chip_to_chip.said(taken, chip_to_chip.verdicts(taken))
    assert (chip_to_chip.ratio_tables(taken), chip_to_chip.verdicts(taken)) == ({}, {})
    assert chip_to_chip.expected(taken) is None
    assert chip_to_chip.said([], {})
    assert chip_to_chip.scatter([]) is None
