"""Claims about figures that are named one by one: details of probes, times of cells, their sums and quotients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import claimed
import numpy
import pytest
from claimed import entry, told, verdict, written  # noqa: F401  (the fixture measured)
from scipy import stats
from synthetic import run_line

from hypatia_lab.claims import Claim, Judgement, details
from hypatia_lab.claims.claim import Figure
from hypatia_lab.results import scatter

SMALL, LARGE = "diffraction/256x256/float32/ieee/forward", "diffraction/1024x1024/float32/ieee/forward"
DOUBLE = LARGE.replace("float32", "float64")
detail = partial(claimed.detail, workload=LARGE)


def cell(variant: str, us: Sequence[float], workload: str = LARGE, clock: str = "wall", **changes) -> dict:
    return claimed.cell(workload, variant, us, clock, **changes)


def start(name: str, variant: str = "compile", **more: str) -> Figure:
    return Figure(variant, "start", name, **more)


SECOND, TWELFTH = start("call 2"), start("call 12")


def claim_of(quantity: str, unit: str, band: tuple[float, float] = (9, 11), **more) -> Claim:
    return entry(quantity, band[0], band, **{"unit": unit, "workloads": (LARGE,), "variant": ""} | more)


def figure(*of: Figure, unit: str = "ms", **more) -> Claim:
    return claim_of("figure", unit, of=of, **more)


def quotient(over: Sequence[Figure], under: Sequence[Figure], unit: str = "×", **more) -> Claim:
    return claim_of("quotient", unit, over=tuple(over), under=tuple(under), **more)


# One figure


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((10, 10.1, 9.9), "confirmed"),
        ((20, 20.1, 19.9), "refuted"),
        ((9, 11, 13), "undecided"),
        ((10,), "undecided"),
        ((10, None), "undecided"),
        ((None, None), "not_testable"),
        ((), "not_testable"),
    ],
)
def test_a_time_is_judged_by_its_interval_over_processes(measured, values, word):
    row = verdict(measured(detail("call 2", values)), figure(SECOND))
    assert (row.verdict, row.workload) == (word, LARGE)
    if word == "confirmed":
        assert row.measured == pytest.approx(10, rel=1e-3)
        assert row.low < row.measured < row.high
        assert row.n == 3
        assert all(word in told(row) for word in ("call 2", "start", "compile", "box", "10.00 ms ["))


LAUNCHES = {"topic": "trace", "name": "kernel launches", "unit": "1"}
SHARE = {"topic": "trace", "name": "in graph replay", "unit": "%"}
REPLAYED = Figure("compile", "trace", "in graph replay")
CORRELATION = {"topic": "accuracy", "name": "correlation", "unit": "1"}


@pytest.mark.parametrize(
    ("line", "unit", "band", "values", "word"),
    [
        (LAUNCHES, "launches", (9, 11), (10.0,), "confirmed"),
        (LAUNCHES, "launches", (9, 11), (10.0,) * 3, "confirmed"),
        (LAUNCHES, "launches", (9, 11), (12.0,) * 3, "refuted"),
        (CORRELATION, "correlation", (0.9999995, 1.0000005), (0.99998,) * 3, "refuted"),  # not rounded into its band
        (SHARE, "%", (0, 1), (0.0, 0.0), "confirmed"),
    ],
)
def test_a_count_that_is_always_the_same_is_exact(measured, line, unit, band, values, word):
    claim = figure(Figure("compile", line["topic"], line["name"]), unit=unit, band=band)
    row = verdict(measured(detail(values=values, **line)), claim)
    assert row.verdict == word
    assert row.low == row.measured == row.high == values[0]
    assert row.n == len(values)


def test_a_figure_may_be_zero_or_negative(measured):
    row = verdict(measured(detail(values=[0.0, 0.01, 0.02], **SHARE)), figure(REPLAYED, unit="%", band=(0, 1)))
    assert row.low < 0 < row.high


@pytest.mark.parametrize(
    ("unit", "record", "value"),
    [
        *(("s", "ms", 0.01), ("ms", "ms", 10), ("µs", "ms", 10_000), ("ms", "s", 10_000), ("ms", "us", 0.01)),
        *(("MB", "B", 1e-5), ("GB/s", "B/s", 1e-8)),
    ],
)
def test_units_are_converted(measured, unit, record, value):
    row = verdict(measured(detail("call 2", [10.0, 10.0], unit=record)), figure(SECOND, unit=unit))
    assert row.measured == pytest.approx(value)


def test_bytes_are_added_and_shown_in_megabytes(measured):
    moved = [Figure("naive", "counters", name, "each kernel") for name in ("bytes read", "L2 written")]
    sizes = {"topic": "counters", "case": "each kernel", "unit": "B", "variant": "naive"}
    found = measured(detail("bytes read", [9.7e6], **sizes), detail("L2 written", [8.4e6], **sizes))
    row = verdict(found, figure(*moved, unit="MB", band=(16.2, 19.8)))
    assert (row.verdict, row.measured) == ("confirmed", pytest.approx(18.1))  # one process: counts are exact
    assert "bytes read + L2 written (counters, each kernel) of naive" in told(row)
    assert "18.1 MB" in row.reason


def test_figures_are_added_process_by_process(measured):
    found = measured(detail("first image", [7.0, 8, 9]), detail("call 2", [3.0, 2, 1]))
    row = verdict(found, figure(start("first image"), SECOND))
    assert (row.verdict, row.measured) == ("confirmed", pytest.approx(10))
    assert "first image + call 2 (start) of compile" in told(row)


def test_units_that_do_not_go_together_are_refused(measured):
    found = measured(detail("call 2", [1.0, 1.0]), detail("error over peak", [1.0, 1.0], unit="1"))
    for claim in (
        figure(SECOND, unit="%"),
        figure(SECOND, start("error over peak")),
        quotient([SECOND], [start("error over peak")]),
    ):
        row = verdict(found, claim)
        assert (row.verdict, row.n) == ("not_testable", 0)
        assert claim.unit in row.reason


# One over another


def test_quotients_are_paired_by_process(measured):
    found = measured(detail("call 2", [10.0, 200, None, 30]), detail("call 12", [1.0, 20, 5, 3]))
    row = verdict(found, quotient([SECOND], [TWELFTH]))
    assert (row.verdict, row.measured) == ("confirmed", pytest.approx(10))
    found = measured(detail("call 2", [10.0, 10, 10]), detail("call 12", [1.0, 0, None]))
    assert verdict(found, quotient([SECOND], [TWELFTH])).verdict == "undecided"  # one process is left


def test_a_share_is_in_per_cent(measured):
    found = measured(detail("first image", [1.0, 2.0]), detail("call 2", [9.0, 18.0]))
    row = verdict(found, quotient([start("first image")], [start("first image"), SECOND], unit="%"))
    assert (row.verdict, row.measured) == ("confirmed", pytest.approx(10))


def test_cells_and_details_go_together(measured):
    trace = Figure("compile", "trace", "GPU time")
    claim = quotient([trace], [Figure("compile", clock="wall")], unit="%")
    gpu = detail("GPU time", [10.0, 10.1, 9.9], topic="trace", unit="us")
    row = verdict(measured(gpu, cell("compile", [100.0] * 8, throttled=True)), claim)
    assert (row.verdict, row.measured) == ("confirmed", pytest.approx(10, rel=1e-3))
    assert all(text in told(row) for text in ("GPU time (trace) of compile", "(wall clock) of compile", "throttled"))


def test_a_figure_may_have_a_workload_of_its_own(measured):
    claim = quotient([Figure("cuda", workload=DOUBLE)], [Figure("cuda")])  # at the clock that verdicts rest on
    single, double = ([10.0, 20.0], LARGE), ([100.0, 200.0], DOUBLE)
    found = measured(*(cell("cuda", *which, clock="graph") for which in (single, double)))
    row = verdict(found, claim)
    assert (row.verdict, row.measured) == ("confirmed", pytest.approx(10))
    assert "(graph clock) of cuda at diffraction 1024×1024 float64" in told(row)
    assert row.workload == LARGE
    found = measured(*(cell("cuda", *which, clock="hot") for which in (single, double)), device="cpu")
    assert verdict(found, claim).verdict == "confirmed"


def test_cases_variants_topics_and_workloads_are_told_apart(measured):
    apart = ({"variant": "eager"}, {"topic": "process"}, {"workload": SMALL}, {"workload": DOUBLE})
    own = [detail("call 2", [number] * 2, **more) for number, more in enumerate(({}, *apart), start=1)]
    found = measured(detail("call 2", [10.0, 10.0], case="empty"), *own)
    row = verdict(found, figure(start("call 2", case="empty")))
    assert (row.verdict, row.measured) == ("confirmed", 10)
    assert "call 2 (start, empty) of compile" in told(row)
    assert verdict(found, figure(SECOND)).measured == 1
    assert verdict(found, figure(SECOND, workloads=(SMALL,))).measured == 4


# What cannot be judged


def test_what_is_not_recorded_is_not_testable(measured):
    row = verdict(measured(detail("call 2", [1.0])), quotient([SECOND], [TWELFTH]))
    assert row.verdict == "not_testable"
    assert all(word in row.reason for word in ("box", details.MISSING, "call 12 (start) of compile", "1024×1024"))
    row = verdict(measured(detail("call 2", [1.0])), quotient([SECOND], [Figure("triton", workload=DOUBLE)]))
    assert "(graph clock) of triton at diffraction 1024×1024 float64" in row.reason


@pytest.mark.parametrize("status", ["wrong", "too_fast", "crashed", "timeout"])
def test_a_probe_that_failed_judges_nothing(measured, status):
    failed = {"status": status, "reason": "NaN in the image"}
    for line in (detail("call 2", [10.0, 10.0], **failed), detail("set-up", [], **failed)):
        row = verdict(measured(line), figure(SECOND))
        assert row.verdict == "not_testable"
        assert f"{status}: NaN in the image" in row.reason
    row = verdict(measured(cell("compile", [1.0], **failed)), figure(Figure("compile", clock="wall")))
    assert row.verdict == "not_testable"


def test_another_experiment_may_have_what_one_skipped(measured):
    row = verdict(measured(detail("status", [], status="skipped", reason="no nvcc here")), figure(SECOND))
    assert (row.verdict, "no nvcc here" in row.reason) == ("not_testable", True)
    row = verdict(measured(detail("call 2", [10.0, 10.0]), experiment="other"), figure(SECOND))
    assert row.verdict == "confirmed"


# Which experiment


def test_figures_come_from_one_experiment_where_one_has_them_all(measured):
    measured(detail("call 2", [10.0, 10.0]), detail("call 12", [1.0, 1.0]), experiment="both")
    measured(detail("call 2", [70.0] * 9), experiment="half")
    found = measured(detail("call 2", [70.0]), detail("call 12", [1.0]), experiment="few")
    assert verdict(found, quotient([SECOND], [TWELFTH])).measured == pytest.approx(10)


def test_figures_come_from_several_experiments_where_none_has_them_all(measured):
    measured(detail("call 2", [10.0] * 3), experiment="warm_up")
    whole = detail("whole", [1.0] * 5, variant="c_openmp", topic="process")
    found = measured(whole, experiment="diffraction")
    row = verdict(found, quotient([SECOND], [Figure("c_openmp", "process", "whole")]))
    assert (row.verdict, row.measured) == ("confirmed", pytest.approx(10))
    found = measured(whole | {"status": "wrong", "reason": "half an image"}, experiment="again")
    assert verdict(found, quotient([SECOND], [Figure("c_openmp", "process", "whole")])).verdict == "not_testable"


# Figures of different runs


def runs(measured, over: Sequence[float], under: Sequence[float], apart: bool) -> Judgement:
    """The verdict on a quotient of two cells, measured in one run or, ``apart``, in two."""
    first, second = cell("cuda", over, clock="graph"), cell("eager", under, clock="graph")
    parts = [[first], [second]] if apart else [[first, second]]
    *_, found = (measured(*cells, experiment=f"run{number}") for number, cells in enumerate(parts))
    return verdict(found, quotient([Figure("cuda", clock="graph")], [Figure("eager", clock="graph")]))


NARROW = [100.0, 100.1, 99.9, 100.05] * 2, [10.0, 10.01, 9.99, 10.0] * 2


@pytest.fixture
def scattered(monkeypatch):
    """A model of device whose times differ by 4% from visit to visit, and whose ratios by 1%."""
    model = run_line()["facts"]["name"]
    monkeypatch.setattr(scatter, "BETWEEN_TIMES", {model: {"graph": (0.04,)}})
    monkeypatch.setattr(scatter, "BETWEEN", {model: {"graph": (0.001, 0.01, 0.02)}})


def test_a_quotient_of_two_runs_is_wider_by_what_lies_between_two_times(measured, scattered):
    row = runs(measured, *NARROW, apart=True)
    assert row.measured == pytest.approx(10, rel=1e-3)
    # Two runs differ independently: each end lies at least 1.96 times the root of both squares away.
    for end in (row.low, row.high):
        assert abs(math.log(end / row.measured)) == pytest.approx(1.96 * math.sqrt(2) * 0.04, rel=0.02)


def test_a_quotient_of_one_run_is_wider_by_what_lies_between_two_ratios(measured, scattered):
    row = runs(measured, *NARROW, apart=False)
    assert row.high / row.measured == pytest.approx(math.exp(1.96 * 0.01), rel=2e-3)
    (case,) = row.cases
    assert case.visit.high / case.visit.low < 1.01 < row.high / row.low


def test_a_model_that_nobody_visited_twice_is_not_widened(measured, monkeypatch):
    monkeypatch.setattr(scatter, "BETWEEN", {})
    row = runs(measured, *NARROW, apart=False)
    assert row.high / row.low < 1.01


@pytest.mark.parametrize(("apart", "word"), [(False, "confirmed"), (True, "undecided")])
def test_a_close_call_of_two_runs_stays_open_and_of_one_does_not(measured, scattered, apart, word):
    over = [105.0, 105.1, 104.9, 105.05] * 2
    assert runs(measured, over, NARROW[1], apart).verdict == word


def test_what_was_measured_in_different_processes_uses_all_of_them(measured):
    few, many = [10.0, 11.0, 9.0], [1.0, 1.02, 0.98, 1.01, 0.99, 1.0, 1.03, 0.97]
    found = measured(detail("call 2", few), cell("eager", [us * 1000 for us in many]))
    (case,) = verdict(found, quotient([SECOND], [Figure("eager", clock="wall")])).cases
    welch = stats.ttest_ind(numpy.log(few), numpy.log(many), equal_var=False).confidence_interval(0.95)
    expected = [math.exp(end) for end in (welch.low, welch.high)]
    assert [case.visit.low, case.visit.high] == pytest.approx(expected, rel=1e-6)
    assert case.visit.value == pytest.approx(math.sqrt(math.prod(expected)))
    assert case.visit.n == 3


def test_counts_do_not_differ_between_runs(measured):
    measured(detail(values=[20.0], **LAUNCHES), experiment="one")
    found = measured(detail(values=[2.0], variant="eager", **LAUNCHES), experiment="two")
    over, under = (Figure(name, "trace", "kernel launches") for name in ("compile", "eager"))
    row = verdict(found, quotient([over], [under], unit="times the launches"))
    assert (row.verdict, row.low, row.high) == ("confirmed", 10, 10)
