"""The ledger: every verdict can happen, and follows from the records alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean

import pytest
from claimed import LARGE, MEDIUM, SMALL, WOBBLE, cell, detail, entry, pair, told, verdict, written  # noqa: F401  (measured)

from hypatia_lab.claims import Claim, Judgement, details, judge
from hypatia_lab.claims.claim import QUANTITIES, Figure
from hypatia_lab.claims.ledger import HERE
from hypatia_lab.claims.verdicts import ANY
from hypatia_lab.formats import interval
from hypatia_lab.tables import claims as claim_tables

LINEAR = MEDIUM.replace("linear_relu", "linear")
TF32 = MEDIUM.replace("ieee", "tf32")
RELU = "relu/1024x2048/float32/ieee/forward"


# Verdicts


@pytest.mark.parametrize(
    ("eager", "naive", "again", "word", "n"),
    [
        (100, [1000.0] * 8, 0, "confirmed", 8),
        (100, [1200.0] * 8, 0, "refuted", 8),
        (100, [1100.0] * 8, 0, "undecided", 8),
        (100, [800.0, 1250.0] * 4, 0, "undecided", 8),
        # Processes that lack one of the two drop out of what is paired.
        ([100.0], [], 0, "not_testable", 0),
        ([1.0, None], [None, 1.0], 0, "not_testable", 0),
        ([100.0], [1000.0], 0, "undecided", 1),
        ([100.0, 200, None, 400, 50, 800], [1000.0, 2001, 9, 4000, 500, 8000], 0, "confirmed", 5),
        # Neither a wide interval nor few processes decide anything, and a control that errs takes all.
        ([100.0], [1000.0] * 2 + [1001.0], 100.2, "confirmed", 3),
        ([100.0], [1000.0, 1001.0], 100.2, "undecided", 2),
        ([100.0], [0.5, 60.0, 0.6, 50.0, 0.4], 100.2, "refuted", 5),
        ([100.0], [50.0, 6000.0, 60.0, 5000.0, 40.0], 100.2, "undecided", 5),
        ([100.0], [1000.0] * 4 + [1001.0], 120.0, "not_testable", 0),
    ],
)
def test_the_medians_alone_decide(measured, eager, naive, again, word, n):
    eager = eager * max(len(naive), 1) if eager == [100.0] else eager
    twin = [again * wobble for wobble in WOBBLE[: len(naive)]]
    control = [cell(MEDIUM, "eager@again", twin, baseline="eager")] if again else []
    row = verdict(measured(cell(MEDIUM, "eager", eager), cell(MEDIUM, "naive", naive), *control), entry())
    assert (row.verdict, row.n) == (word, n)
    assert bool(row.settles) is (word == "undecided")
    assert ("A/A" in row.reason) is (again == 120.0)
    assert (row.program, row.band_set, row.lead) == ("own", "2026-11-21 before", "S001-01")
    if n == 8:
        assert row.measured == pytest.approx(geometric_mean(naive) / 100, rel=0.01)
        assert row.low < row.measured < row.high
        assert interval(row.measured, row.low, row.high) in row.reason


SIZES = {SMALL: 10, MEDIUM: 27, LARGE: 54}


def sizes(factors: Mapping[str, float]) -> list[dict]:
    """Eager and naive at each workload, naive slower by the factor, give or take."""
    naive = [cell(w, "naive", [100 * factor * wobble for wobble in reversed(WOBBLE)]) for w, factor in factors.items()]
    return [cell(w, "eager", 100) for w in factors] + naive


ALL = entry(claimed=30, band=(20, 100), workloads=tuple(SIZES))
CONSTANT = entry("constant", 10, (9, 11), workloads=tuple(SIZES))
GAIN = entry(gain=True, workloads=tuple(SIZES))


@pytest.mark.parametrize(
    ("claim", "factors", "word", "readings"),
    [
        (ALL, (10, 27, 54), "conditional", "against in in"),
        (ALL, (20, 27, 54), "confirmed_in_part", "straddles in in"),
        (ALL, (30, 30, 30), "confirmed", "in in in"),
        (ALL, (3, 3, 3), "refuted", "against against against"),
        (CONSTANT, (10, 10, 10), "confirmed", None),
        (CONSTANT, (10, 27, 54), "conditional", None),
        (CONSTANT, (10, 10, 11), "confirmed_in_part", None),
        (CONSTANT, (10,), "undecided", None),
        (GAIN, (10, 10, 30), "conditional", None),
        (GAIN, (30, 30, 30), "understated", None),
        (GAIN, (10, 30, 3), "conditional", None),
        (GAIN, (30, 30, 3), "refuted", None),
        (GAIN, (3, 3, 3), "refuted", None),
    ],
)
def test_several_sizes_are_judged_together(measured, claim, factors, word, readings):
    row = verdict(measured(*sizes(dict(zip(SIZES, factors, strict=False)))), claim)
    assert row.verdict == word
    if readings:
        assert [case.reading for case in row.cases] == readings.split()
        assert (row.held, row.total) == (readings.split().count("in"), 3)
    if factors == (10, 27, 54):  # what differs is told of each
        assert math.isnan(row.measured)
        assert row.low < 10 < 54 < row.high
        assert all(size in row.reason for size in ("256×256×512", "1024×784", "8192×4096"))


def test_a_size_that_was_not_measured_is_named_and_left_out(measured):
    skipped = cell(LARGE, "naive", [], status="skipped", reason="takes over 5 s a call")
    found = measured(*sizes({SMALL: 10, MEDIUM: 10}), cell(LARGE, "eager", 1), skipped)
    row = verdict(found, entry(workloads=tuple(SIZES)))
    assert (row.verdict, row.workload) == ("confirmed", f"{SMALL}, {MEDIUM}")
    assert skipped["reason"] in told(row)


@pytest.mark.parametrize("status", ["wrong", "too_fast", "crashed", "timeout"])
def test_a_failed_measurement_judges_nothing(measured, status):
    row = verdict(measured(*pair(1000, status=status, reason="the bias is missing")), entry())
    assert (row.verdict, [case.reading for case in row.cases]) == ("not_testable", [])
    assert status in row.reason
    assert "the bias is missing" in row.reason
    assert math.isnan(row.measured)


QUOTIENT = {"quantity": "quotient", "over": (Figure("naive"),), "under": (Figure("eager"),), "variant": ""}
LATER = "2026-11-22T10:00:00Z"


@pytest.mark.parametrize(
    ("runs", "claim", "word"),
    [
        # A failure in one experiment is not hidden by another.
        ([({}, 100, 1000, "ok"), ({}, 100, 1, "too_fast")], {}, "not_testable"),
        # That of most processes counts, and of as many the newest, unless the claim names another.
        ([({}, [1.0], [1.0], "ok"), ({}, 100, None, "ok"), ({}, 200, 2000, "ok")], {}, "confirmed"),
        ([({"started": LATER}, 100, 1000, "ok"), ({}, 100, 500, "ok")], {}, "confirmed"),
        ([({}, 100, 1000, "ok"), ({"started": LATER}, 100, 500, "ok")], {}, "refuted"),
        ([({"started": LATER}, 100, 1000, "ok"), ({}, 100, 500, "ok")], {"experiment": "e1"}, "confirmed"),
        ([({"started": LATER}, 100, 1000, "ok"), ({}, 100, 500, "ok")], QUOTIENT | {"experiment": "e1"}, "confirmed"),
    ],
)
def test_of_several_experiments_one_is_judged(measured, runs, claim, word):
    found = []
    for number, (run, eager, naive, status) in enumerate(runs):
        cells = [cell(MEDIUM, "eager", eager)]
        cells += [cell(MEDIUM, "naive", naive, status=status)] if naive else []
        found = measured(*cells, experiment=f"e{number}", **run)
    assert verdict(found, entry(**claim)).verdict == word


def test_not_testable_says_why(measured):
    claim = entry(experiment="gemm_ladder")
    row = verdict(measured(cell(MEDIUM, "eager", 100)), claim)
    assert row.verdict == "not_testable"
    assert all(word in row.reason for word in (details.MISSING, "naive", MEDIUM, "graph"))
    assert "gemm_ladder" in told(row)
    row = verdict(measured(*pair([], status="skipped", reason="no nvcc here")), claim)
    assert ("no nvcc here" in row.reason, "gemm_ladder" in told(row)) == (True, False)


def test_a_claim_about_gpus_is_not_judged_on_a_cpu(measured):
    found = measured(*pair(1000, clock="hot"), device="cpu")
    row = verdict(found, entry(device="cuda"))
    assert row.verdict == "not_testable"
    assert "CUDA" in row.reason
    assert verdict(found, entry()).verdict == "confirmed"  # judged at the hot clock


MILLISECOND = entry("time", 1.0, (0.9, 1.1))


def test_a_figure_of_other_hardware_stands_beside_and_decides_nothing(measured):
    claim = replace(MILLISECOND, elsewhere="The GPU is not named.")
    row = verdict(measured(cell(MEDIUM, "naive", 1000)), claim)
    assert (row.verdict, row.reason, row.held) == ("not_testable", "The GPU is not named.", 0)
    assert row.measured == pytest.approx(1.0, rel=0.01)
    assert interval(row.measured, row.low, row.high) in told(row)
    row = verdict(measured(cell(MEDIUM, "naive", 1000, status="wrong", reason="NaN in the output")), claim)
    assert row.verdict == "not_testable"
    assert math.isnan(row.measured)


def test_a_goal_for_some_models_is_not_held_against_another(measured):
    found = measured(cell(MEDIUM, "naive", 1000))
    assert verdict(found, replace(MILLISECOND, models=("H200",))).verdict == "not_testable"
    assert verdict(found, replace(MILLISECOND, models=("H200", found[0].model))).verdict == "confirmed"


# What a verdict is worth


FASTER, EQUAL, SLOWER = ([100 / (factor * wobble) for wobble in WOBBLE] for factor in (2, 1, 0.5))
NOISY = [80.0, 120, 90, 110, 100, 85, 115, 100]


@pytest.mark.parametrize(
    ("more", "times", "word"),
    [
        ({"sense": "about"}, EQUAL, "confirmed"),
        ({"sense": "about"}, NOISY, "undecided"),
        ({"sense": "about"}, FASTER, "refuted"),
        ({"sense": "about", "gain": True}, FASTER, "understated"),
        ({"sense": "about", "gain": True}, SLOWER, "refuted"),
        ({"sense": "at_least"}, FASTER, "confirmed"),
        ({"sense": "at_least"}, SLOWER, "refuted"),
        ({"sense": "at_most"}, FASTER, "refuted"),
        ({"sense": "at_most"}, SLOWER, "confirmed"),
        ({"forecast": True}, SLOWER, "fell_short"),
        ({"forecast": True, "gain": True}, FASTER, "understated"),
        ({"forecast": True, "sense": "at_least"}, FASTER, "confirmed"),
        ({"forecast": True}, EQUAL, "confirmed"),
        ({"forecast": True}, NOISY, "undecided"),
        ({"program": "rewrite"}, EQUAL, "agrees"),
        ({"program": "rewrite"}, FASTER, "differs"),
    ],
)
def test_sense_gain_and_program_say_what_a_figure_is_worth(measured, more, times, word):
    claim = entry("ratio", 1.0, (0.98, 1.02), **more)
    row = verdict(measured(cell(MEDIUM, "eager", [100.0] * 8), cell(MEDIUM, "naive", times)), claim)
    assert row.verdict == word
    assert row.sense == claim.sense
    assert interval(row.measured, row.low, row.high) in row.reason


# Whose program


V1, CALLS = "author_v1", Figure("author_v1", "trace", "kernel launches")


def by_author(quantity: str = "slowdown", **more) -> Claim:
    fields = {"program": "author", "variant": V1, "rewrites": ((V1, "naive"),), "experiment": "author_lab"}
    return entry(quantity, **fields | more)


def beside(us: float, rewrite: float, workload: str = MEDIUM, clock: str = "graph") -> list[dict]:
    """The author's program and its rewrite in one group."""
    own = cell(workload, V1, [us * wobble for wobble in reversed(WOBBLE)], clock, origin="author")
    return [cell(workload, "eager", 100, clock), own, cell(workload, "naive", rewrite, clock, origin="rebuilt")]


def test_an_author_s_program_is_judged_first(measured):
    row = verdict(measured(*beside(1000, 3000)), by_author())
    assert (row.verdict, row.program) == ("confirmed", "author")
    assert row.measured == pytest.approx(10, rel=0.01)
    eager, _, naive = beside(1000, 1000)
    lost = cell(MEDIUM, V1, 1000, origin="author", status="wrong", reason="NaN")
    row = verdict(measured(eager, lost, naive), by_author())
    assert (row.verdict, row.program) == ("not_testable", "author")  # its rewrite does not stand in for a failure


def on(machine: str, rows: Sequence[Judgement]) -> Judgement:
    (row,) = (row for row in rows if row.machine == machine)
    return row


@pytest.mark.parametrize(
    ("rewrite", "naive", "word"),
    [
        (1000, 1000, "confirmed equal"),
        (1000, 3000, "refuted equal"),
        (1100, 1000, "agrees rewrite"),
        (1100, 3000, "differs rewrite"),
    ],
)
def test_a_rewrite_stands_in_where_a_record_of_any_machine_shows_it_equal(measured, rewrite, naive, word):
    measured(*beside(1000, rewrite), machine="there", experiment="author_lab")
    found = measured(*pair(naive), machine="here")
    rows = judge(found, [by_author()])
    assert on("there", rows).program == "author"
    row = on("here", rows)
    assert f"{row.verdict} {row.program}" == word
    assert row.measured == pytest.approx(naive / 100, rel=0.01)
    assert all(word in told(row) for word in ("naive", V1, "there"))


def test_without_such_a_record_a_rewrite_is_a_finding(measured):
    row = verdict(measured(*pair(3000)), by_author())
    assert (row.verdict, row.program, row.n) == ("differs", "rewrite", 8)
    row = verdict(measured(cell(MEDIUM, "eager", 100)), by_author())
    assert (row.verdict, row.program) == ("not_testable", "author")
    assert row.reason.count("box") == 1
    assert "author_lab" in told(row)


def test_equal_by_one_clock_is_not_equal_by_another(measured):
    measured(*beside(1000, 1000, clock="wall"), *beside(1000, 1500), machine="there", experiment="author_lab")
    found = measured(*pair(1000, clock="wall"), *pair(1000), machine="here")
    assert on("here", judge(found, [by_author(clock="wall")])).verdict == "confirmed"
    assert on("here", judge(found, [by_author()])).verdict == "agrees"


def test_a_size_that_was_compared_itself_decides_else_all_that_were(measured):
    measured(*beside(1000, 1000), *beside(1000, 1500, LARGE), machine="there", experiment="author_lab")
    found = measured(*(one for place in SIZES for one in pair(1000, place)), machine="here")
    words = {place: on("here", judge(found, [by_author(workloads=(place,))])).verdict for place in SIZES}
    assert words == {SMALL: "agrees", MEDIUM: "confirmed", LARGE: "agrees"}


def test_every_program_that_a_part_names_must_be_equal(measured):
    plan = cell(MEDIUM, "author_planc", 100, origin="author"), cell(MEDIUM, "aten", 130, origin="rebuilt")
    measured(*beside(1000, 1000), *plan, machine="there", experiment="author_lab")
    found = measured(cell(MEDIUM, "naive", 1000), cell(MEDIUM, "aten", 100), machine="here")
    both = (V1, "naive"), ("author_planc", "aten")
    sides = {"over": (Figure(V1),), "under": (Figure("author_planc"),), "variant": ""}
    claims = by_author(baseline="author_planc", rewrites=both), by_author("quotient", rewrites=both, **sides)
    for claim in claims:
        rows = judge(found, [claim])
        assert (on("here", rows).verdict, on("there", rows).verdict) == ("agrees", "confirmed")


def test_what_a_probe_sees_of_a_rewrite_is_a_finding(measured):
    launches = detail("kernel launches", [10.0], MEDIUM, topic="trace", unit="1", variant="naive")
    own = launches | {"variant": V1}
    measured(*beside(1000, 1000), own, machine="there", experiment="author_lab")
    found = measured(cell(MEDIUM, "eager", 100), launches, machine="here")
    rows = judge(found, [by_author("figure", of=(CALLS,), unit="launches", variant="")])
    assert (on("there", rows).verdict, on("there", rows).program) == ("confirmed", "author")
    assert (on("here", rows).verdict, on("here", rows).measured) == ("agrees", 10)


# Quantities, each worked out by hand


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        (entry("ratio", variant="naive", baseline="aten"), 0.05),
        (entry("slowdown", variant="naive", baseline="aten"), 20.0),
        (entry("time"), 2.0),  # ms
        (entry("rate"), 2 * 1024 * 784 * 2048 / 2e-3 / 1e9),
        (entry("bandwidth"), 4 * (1024 + 784 + 2048) / 2e-3 / 1e9),
        (entry("share", part="relu"), 10.0),  # %
        (entry("share", part="relu", workloads=(TF32,)), 10.0),  # of a ReLU that has no math mode of its own
        (entry("share", part="linear"), 90.0),
        (entry("saving", variant="aten", clock="wall"), 0.05),  # ms
        (entry("saving"), -1.8),
        (entry("launch"), 17.0),  # µs: (220 - 200) - (183 - 180)
        (entry("max_error"), 5e-7),
    ],
)
def test_quantities(measured, claim, value):
    found = measured(
        *(cell(workload, "eager", 200) for workload in (MEDIUM, TF32)),
        cell(MEDIUM, "eager", 220, "wall"),
        cell(MEDIUM, "naive", 2000),
        cell(MEDIUM, "aten", 100),
        cell(MEDIUM, "aten", 170, "wall"),
        cell(RELU, "eager", 20),
        cell(LINEAR, "eager", 180),
        cell(LINEAR, "eager", 183, "wall"),
    )
    row = verdict(found, claim)
    assert row.measured == pytest.approx(value, rel=0.01)
    assert row.low <= row.measured <= row.high


@pytest.mark.parametrize(
    ("savings_ms", "said", "shown"),
    [
        ((-40, 60, -40, 60, -20), "undecided", False),  # 4 [-59, 67] ms
        ((-0.5, 1.5, -0.5, 1.5, 1.5), "refuted", True),  # 0.7 [-0.7, 2.1] ms: its sign is open, but it is no 5 ms
        ((3, 7, 3, 7, 5), "undecided", True),
    ],
)
def test_a_difference_whose_bounds_lie_ten_times_its_size_apart_has_no_numbers(measured, savings_ms, said, shown):
    times = [1e3 * (100 - saving) for saving in savings_ms]
    found = measured(cell(MEDIUM, "eager", [1e5] * 5), cell(MEDIUM, "naive", times))
    row = verdict(found, entry("saving", 5, (4.5, 5.5)))
    assert row.verdict == said
    assert ("[" in claim_tables.judged(row), "too noisy" in claim_tables.judged(row)) == (shown, not shown)
    assert ("[" in " ".join(row.details)) == shown


@pytest.mark.parametrize(
    ("error", "us", "word"),
    [(0, 1, "confirmed"), (9e-7, [1.0], "confirmed"), (1.3e-4, 1, "refuted"), (None, 1, "not_testable")],
)
def test_an_error_is_exact(measured, error, us, word):
    claim = entry("max_error", 1e-6, (0, 1e-6))
    assert verdict(measured(cell(MEDIUM, "naive", us, max_error=error)), claim).verdict == word


def test_bounds_come_from_the_machine(measured):
    def bound(found, quantity="ratio", kind="free_relu", **more):
        return verdict(found, entry(quantity, variant="epilogue", bound=kind, **more)).bound

    cells = cell(MEDIUM, "eager", 100), cell(MEDIUM, "epilogue", 95)
    found = measured(*cells, cell(LINEAR, "eager", 80))
    assert bound(found) == pytest.approx(1.25, rel=0.01)
    assert "1.25×" in told(verdict(found, entry("ratio", variant="epilogue", bound="free_relu")))
    slower = measured(*cells, cell(LINEAR, "eager", 101), experiment="noisy", started="2026-11-22T10:00:00Z")
    assert bound(slower, experiment="noisy") == 1.0  # leaving work out cannot cost time
    assert math.isnan(bound(found, "time", "roofline"))  # no ceiling, no bound
    matmul = cell("matmul/1000x1000x1000/float32/ieee/forward", "eager", [50.0] * 8, "hot")
    copy = cell("copy/1000000/float32/ieee/forward", "eager", [1.0] * 8, "hot")
    found = measured(matmul, copy, experiment="ceilings")
    limit, traffic = 1024 * 784 * 2048 / 1e9 * 50, 4 * (1024 + 784 + 2048)  # µs, bytes
    limits = {"time": limit / 1e3, "ratio": 100 / limit, "rate": 2e9 / 50e-6 / 1e9, "bandwidth": traffic / limit / 1e3}
    assert {name: bound(found, name, "roofline") for name in limits} == pytest.approx(limits, rel=0.01)


def again(count: int, other: float) -> list[dict]:
    """An A/A control: ``count`` pairs of identical code, of which the second takes ``other`` µs for the first's 100."""
    sizes = [f"relu/{n}x8/float32/ieee/forward" for n in range(1, count + 1)]
    times = {"eager": 100.0, "eager@again": other}
    return [cell(work, name, [us] * 8) for work in sizes for name, us in times.items()]


def test_cautions(measured):
    bare = verdict(measured(*pair(1000)), entry())
    row = verdict(measured(*pair(1000, throttled=True), *again(8, 120)), entry())
    assert row.verdict == bare.verdict == "confirmed"
    more = " ".join(text for text in row.details if text not in bare.details)
    assert all(word in more for word in ("throttled", "A/A", "box", "100%", "8 pairs"))
    assert not any(word in told(bare) for word in ("throttled", "A/A"))


def test_a_control_that_errs_less_than_it_may_speaks_of_what_is_undecided_only(measured):
    control = again(100, 100)
    decided = verdict(measured(*pair(1000), *control), entry())
    assert (decided.verdict, "A/A" in told(decided)) == ("confirmed", False)
    open_ = verdict(measured(*pair([500.0, 1500.0] * 4), *control), entry())
    assert (open_.verdict, "A/A" in told(open_)) == ("undecided", True)
    assert "0% of 100 pairs" in told(open_)


def test_arithmetic_claims_show_their_arithmetic():
    claim = entry("arithmetic", 1.6, (1.55, 1.65), expression="2 * 1024 * 784 * 2048 / giga")
    row = verdict([], claim)
    assert (row.verdict, row.machine, row.n) == ("inconsistent", ANY, 0)
    assert row.measured == pytest.approx(3.288334336)
    assert "3.29" in row.reason
    assert f"{claim.expression} = 3.29" in told(row)
    assert verdict([], replace(claim, claimed=(3.3, 3.3), band=(3.2, 3.4))).verdict == "adds_up"
    either = replace(claim, expression="multiply_add * 1024 * 784 * 2048 / giga")
    assert verdict([], either).verdict == "adds_up"  # as one operation
    row = verdict([], entry("none", untestable="No clock measures effort."))
    assert (row.verdict, row.machine) == ("not_testable", ANY)
    assert "No clock measures effort." in row.reason


def test_a_contradiction_says_whether_it_is_the_claim_or_its_arithmetic():
    said = entry("none", untestable="Why.", conflicts=("S001-01b", "S001-03a"))
    sums = entry("arithmetic", 3, (2.9, 3.1), expression="2 + 2", id="S001-01b", conflicts=("S001-01a",))
    other = replace(said, id="S001-03a", lead="S001-03", conflicts=("S001-01a",))
    rows = judge([], [said, sums, other])
    assert "Because." in rows[0].details
    first, second, third = (row.details[-1] for row in rows)
    assert first.index("arithmetic") < first.index("S001-01b") < first.index("S001-03a")
    assert "S001-01a" in second
    assert "S001-01a" in third
    assert "arithmetic" not in third


# The ledger itself


def test_the_ledger_is_whole(committed_claims):
    found, documents = committed_claims, {claim.document for claim in committed_claims}
    ids, leads = {claim.id for claim in found}, {claim.lead for claim in found}
    assert len(ids) == len(found) >= 30
    assert {"S000", "S001", "S002", "S003", "S004"} <= documents == {path.stem.upper() for path in HERE.glob("*.yaml")}
    assert leads.isdisjoint(ids), "a statement and a part of it have one id"
    assert {claim.quantity for claim in found} <= set(QUANTITIES)
    assert [claim.id for claim in found if not claim.pages] == []
    assert {about for claim in found for about in claim.about} <= ids | leads


def test_without_a_record_arithmetic_alone_decides():
    rows = judge([])
    assert {row.machine for row in rows} == {ANY}
    sums = [row for row in rows if row.quantity == "arithmetic"]
    assert all(math.isfinite(row.low) for row in sums)
    assert {row.verdict for row in sums} == {"adds_up", "inconsistent"}


def test_what_is_said_tells_when_backward_is_timed_too(measured):
    both = MEDIUM.replace("forward", "forward_backward")
    row = verdict(measured(*pair(1000, both)), entry(workloads=(both,)))
    assert "forward and backward" in told(row)
