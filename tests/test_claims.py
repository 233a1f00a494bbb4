"""The ledger: every verdict can happen, and follows from the records alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from synthetic import cell_line, detail_line, run_line

from hypatia_lab import records
from hypatia_lab.claims import COLUMNS, VERDICTS, Claim, judge, ledger
from hypatia_lab.claims.ledger import HERE, QUANTITIES, Figure
from hypatia_lab.claims.verdicts import ANY
from hypatia_lab.experiments import EXPERIMENTS  # registers the variants that claims name as well
from hypatia_lab.formats import interval
from hypatia_lab.variants import variants

SMALL, MEDIUM, LARGE = (
    f"linear_relu/{shape}/float32/ieee/forward" for shape in ("256x256x512", "1024x784x2048", "8192x4096x4096")
)
LINEAR = MEDIUM.replace("linear_relu", "linear")
RELU = "relu/1024x2048/float32/ieee/forward"
WOBBLE = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.003, 0.997)


def run_of(machine: str = "box", experiment: str = "fusion", device: str = "cuda", processes: int = 8) -> dict:
    """The run line of a synthetic record."""
    return run_line(
        machine=machine,
        experiment=experiment,
        preset="seed",
        device=device,
        commit="synthetic",
        dirty=False,
        processes=processes,
        facts={},
    )


def cell(workload: str, variant: str, us: float | Sequence[float | None], clock: str = "graph", **changes) -> dict:
    """A cell of ``workload`` × ``variant``: ``us`` once a process, wobbling a little unless it is a list."""
    operation, shape, dtype, math_mode, direction = workload.split("/")
    extents = [int(n) for n in shape.split("x")]
    medians = [us * wobble for wobble in WOBBLE] if isinstance(us, int | float) else list(us)
    return (
        cell_line(
            operation=operation,
            shape=extents,
            dtype=dtype,
            math=math_mode,
            direction=direction,
            clock=clock,
            variant=variant,
            max_error=5e-7,
            flops=2 * math.prod(extents) if operation in ("linear", "linear_relu", "matmul") else 0,
            traffic=4 * sum(extents),
            medians_us=medians,
            samples_us=[],
            calls=1,
            outliers={"mild": 0, "severe": 0, "of": 0},
        )
        | changes
    )


@pytest.fixture(name="measured")
def written(tmp_path):
    """Writes cells and details as a record and reads all records written so far."""

    def write(*cells: dict, details: Sequence[dict] = (), **run: str) -> list[records.Record]:
        processes = max(len(c["medians_us"]) for c in cells)
        records.write(tmp_path, run_of(processes=processes, **run), cells, details, overwrite=True)
        return records.load(tmp_path)

    return write


def entry(quantity: str = "slowdown", claimed: float = 10, band: tuple[float, float] = (9, 11), **more) -> Claim:
    """A claim about naive at the medium size, unless told otherwise."""
    fields = {"workloads": (MEDIUM,), "variant": "naive", **more}
    return Claim("S001-01", "A", "A claim.", (claimed, claimed), "×", quantity, "Because.", band=band, **fields)


def verdict(found: list[records.Record], claim: Claim) -> dict:
    rows = judge(found, [claim])
    assert len(rows) == 1
    assert set(COLUMNS) <= set(rows[0])
    assert rows[0]["verdict"] in VERDICTS
    return rows[0]


# Verdicts


@pytest.mark.parametrize(("naive_us", "word"), [(1000, "confirmed"), (1200, "refuted"), (1100, "undecided")])
def test_the_medians_alone_decide(measured, naive_us, word):
    row = verdict(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", [naive_us] * 8)), entry())
    assert row["verdict"] == word
    assert row["measured"] == pytest.approx(naive_us / 100, rel=0.01)
    assert row["low"] < row["measured"] < row["high"]
    assert interval(row["measured"], row["low"], row["high"]) in row["reason"]


@pytest.mark.parametrize(("kept", "word"), [(0, "not_testable"), (8, "confirmed")])
def test_what_only_one_of_two_rows_has_is_not_compared(measured, kept, word):
    naive = [1000 * wobble for wobble in WOBBLE]
    found = measured(cell(MEDIUM, "eager", [100.0] * 8), cell(MEDIUM, "naive", naive[:kept]))
    assert verdict(found, entry())["verdict"] == word


def test_changing_one_record_by_a_fifth_changes_the_verdict(measured):
    before = verdict(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1000)), entry())
    after = verdict(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1200)), entry())
    assert (before["verdict"], after["verdict"]) == ("confirmed", "refuted")
    assert before["reason"] != after["reason"]


def test_equal_means_within_two_per_cent(measured):
    claim = entry("ratio", 1.0, (0.98, 1.02), variant="aten")
    assert verdict(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "aten", 100)), claim)["verdict"] == "confirmed"
    assert verdict(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "aten", 95)), claim)["verdict"] == "refuted"
    noisy = [80.0, 120, 90, 110, 100, 85, 115, 100]
    row = verdict(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "aten", noisy)), claim)
    assert row["verdict"] == "undecided"
    assert "cannot tell" in row["reason"]


def test_one_process_decides_nothing(measured):
    row = verdict(measured(cell(MEDIUM, "eager", [100.0]), cell(MEDIUM, "naive", [1000.0])), entry())
    assert row["verdict"] == "undecided"
    assert "single process" in row["reason"]


def test_ratio_is_paired_by_process_and_missing_processes_drop_out(measured):
    drift = [100.0, 200, None, 400]
    row = verdict(measured(cell(MEDIUM, "eager", drift), cell(MEDIUM, "naive", [1000.0, 2001, 9, 4000])), entry())
    assert row["verdict"] == "confirmed"
    row = verdict(measured(cell(MEDIUM, "eager", [1.0, None]), cell(MEDIUM, "naive", [None, 1.0])), entry())
    assert row["verdict"] == "not_testable"


SIZES = {SMALL: 10, MEDIUM: 27, LARGE: 54}


def sizes(factors: Mapping[str, float]) -> list[dict]:
    """Eager and naive at each workload, naive slower by the factor, give or take."""
    naive = [cell(w, "naive", [100 * factor * wobble for wobble in reversed(WOBBLE)]) for w, factor in factors.items()]
    return [cell(w, "eager", 100) for w in factors] + naive


def test_several_sizes_make_a_claim_conditional(measured):
    claim = entry(claimed=30, band=(20, 100), workloads=tuple(SIZES))
    row = verdict(measured(*sizes(SIZES)), claim)
    assert row["verdict"] == "conditional"
    assert "linear_relu 8192x4096x4096 float32 but not at linear_relu 256x256x512 float32" in row["reason"]
    assert math.isnan(row["measured"])
    assert row["low"] < 10 < 54 < row["high"]
    assert [case["verdict"] for case in row["cases"]] == ["refuted", "confirmed", "confirmed"]
    assert verdict(measured(*sizes(dict.fromkeys(SIZES, 30))), claim)["verdict"] == "confirmed"
    assert verdict(measured(*sizes(dict.fromkeys(SIZES, 3))), claim)["verdict"] == "refuted"
    assert verdict(measured(*sizes(SIZES | {SMALL: 20})), claim)["verdict"] == "undecided"


def test_a_size_that_was_not_measured_is_named_and_left_out(measured):
    skipped = cell(LARGE, "naive", [], status="skipped", reason="takes over 5 s a call")
    found = measured(*sizes({SMALL: 10, MEDIUM: 10}), cell(LARGE, "eager", 1), skipped)
    row = verdict(found, entry(workloads=tuple(SIZES)))
    assert row["verdict"] == "confirmed"
    assert row["workload"] == f"{SMALL}, {MEDIUM}"
    assert "takes over 5 s a call" in row["reason"]


def test_constant_needs_every_size(measured):
    claim = entry("constant", 10, (9, 11), workloads=tuple(SIZES))
    assert verdict(measured(*sizes(dict.fromkeys(SIZES, 10))), claim)["verdict"] == "confirmed"
    row = verdict(measured(*sizes(SIZES)), claim)
    assert row["verdict"] == "refuted"
    assert "outside" in row["reason"]
    assert verdict(measured(*sizes({SMALL: 10, MEDIUM: 10, LARGE: 11})), claim)["verdict"] == "undecided"
    row = verdict(measured(*sizes({SMALL: 10})), claim)
    assert row["verdict"] == "undecided"
    assert "at least two" in row["reason"]


@pytest.mark.parametrize("status", ["wrong", "too_fast", "crashed", "timeout"])
def test_a_failed_measurement_judges_nothing(measured, status):
    broken = cell(MEDIUM, "naive", 1000, status=status, reason="the bias is missing")
    row = verdict(measured(cell(MEDIUM, "eager", 100), broken), entry())
    assert row["verdict"] == "invalid"
    assert status in row["reason"]
    assert "the bias is missing" in row["reason"]
    assert math.isnan(row["measured"])


def test_a_failure_in_one_experiment_is_not_hidden_by_another(measured):
    measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1000), experiment="first")
    found = measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1, status="too_fast"), experiment="second")
    assert verdict(found, entry())["verdict"] == "invalid"


def test_rows_are_paired_within_the_experiment_of_most_processes(measured):
    measured(cell(MEDIUM, "eager", [1.0]), cell(MEDIUM, "naive", [1.0]), experiment="few")
    measured(cell(MEDIUM, "eager", 100), experiment="half")
    found = measured(cell(MEDIUM, "eager", 200), cell(MEDIUM, "naive", 2000), experiment="whole")
    row = verdict(found, entry())
    assert row["verdict"] == "confirmed"


def test_of_experiments_with_as_many_processes_the_claim_s_own_counts(measured):
    measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 500), experiment="first")
    found = measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1000), experiment="second")
    assert verdict(found, entry())["verdict"] == "refuted"
    assert verdict(found, entry(experiment="second"))["verdict"] == "confirmed"
    named = {"over": (Figure("naive"),), "under": (Figure("eager"),), "variant": ""}
    words = [verdict(found, entry("quotient", **named, experiment=name))["verdict"] for name in ("first", "second")]
    assert words == ["refuted", "confirmed"]


def test_not_testable_says_why(measured):
    found = measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", [], status="skipped", reason="no nvcc here"))
    assert "no nvcc here" in verdict(found, entry())["reason"]
    row = verdict(measured(cell(MEDIUM, "eager", 100)), entry())
    assert row["verdict"] == "not_testable"
    assert f"no record has naive on {MEDIUM} at the graph clock" in row["reason"]


def test_a_claim_about_gpus_is_not_judged_on_a_cpu(measured):
    cells = cell(MEDIUM, "eager", 100, "hot"), cell(MEDIUM, "naive", 1000, "hot")
    found = measured(*cells, device="cpu")
    row = verdict(found, entry(device="cuda"))
    assert row["verdict"] == "not_testable"
    assert "CUDA" in row["reason"]
    assert verdict(found, entry())["verdict"] == "confirmed"  # judged at the hot clock


def test_the_clock_can_be_named(measured):
    wall = cell(MEDIUM, "eager", 200, "wall"), cell(MEDIUM, "naive", 2000, "wall")
    found = measured(cell(MEDIUM, "eager", 100), *wall)
    assert verdict(found, entry())["verdict"] == "not_testable"
    assert verdict(found, entry(clock="wall"))["verdict"] == "confirmed"


def test_untestable_still_shows_what_was_measured(measured):
    claim = entry("time", 1.0, (0.9, 1.1), untestable="The GPU is not named.")
    row = verdict(measured(cell(MEDIUM, "naive", 1000)), claim)
    assert row["verdict"] == "not_testable"
    assert row["measured"] == pytest.approx(1.0, rel=0.01)
    assert row["reason"].startswith("The GPU is not named. On box, the time of naive (graph clock) is 1.000× [")
    broken = cell(MEDIUM, "naive", 1000, status="wrong", reason="NaN in the output")
    row = verdict(measured(broken), claim)
    assert row["verdict"] == "not_testable"
    assert "NaN in the output" in row["reason"]
    assert math.isnan(row["measured"])


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
        (entry("share", part="linear"), 90.0),
        (entry("saving", variant="aten", clock="wall"), 0.05),  # ms
        (entry("launch"), 17.0),  # µs: (220 - 200) - (183 - 180)
        (entry("max_error"), 5e-7),
    ],
)
def test_quantities(measured, claim, value):
    found = measured(
        cell(MEDIUM, "eager", 200),
        cell(MEDIUM, "eager", 220, "wall"),
        cell(MEDIUM, "naive", 2000),
        cell(MEDIUM, "aten", 100),
        cell(MEDIUM, "aten", 170, "wall"),
        cell(RELU, "eager", 20),
        cell(LINEAR, "eager", 180),
        cell(LINEAR, "eager", 183, "wall"),
    )
    row = verdict(found, claim)
    assert row["measured"] == pytest.approx(value, rel=0.01)
    assert row["low"] <= row["measured"] <= row["high"]


def test_a_saving_may_be_negative(measured):
    found = measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 3000))
    row = verdict(found, entry("saving", -2.9, (-3, -2.8)))
    assert row["verdict"] == "confirmed"
    assert row["high"] < 0
    flat = verdict(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 100)), entry("saving", 0, (-1, 1)))
    assert flat["measured"] == 0
    assert flat["verdict"] == "confirmed"


def test_an_error_is_exact(measured):
    claim = entry("max_error", 1e-6, (0, 1e-6))
    assert verdict(measured(cell(MEDIUM, "naive", 1, max_error=0)), claim)["verdict"] == "confirmed"
    assert verdict(measured(cell(MEDIUM, "naive", [1.0], max_error=9e-7)), claim)["verdict"] == "confirmed"
    assert verdict(measured(cell(MEDIUM, "naive", 1, max_error=1.3e-4)), claim)["verdict"] == "refuted"
    assert verdict(measured(cell(MEDIUM, "naive", 1, max_error=None)), claim)["verdict"] == "not_testable"


def test_bounds_come_from_the_machine(measured):
    cells = cell(MEDIUM, "eager", 100), cell(MEDIUM, "epilogue", 95), cell(LINEAR, "eager", 80)
    found = measured(*cells)
    row = verdict(found, entry("ratio", variant="epilogue", bound="free_relu"))
    assert row["bound"] == pytest.approx(1.25, rel=0.01)
    assert "A ReLU that cost nothing would allow at most 1.25×." in row["reason"]
    slower = measured(*cells[:2], cell(LINEAR, "eager", 101), experiment="noisy")
    row = verdict(slower, entry("ratio", variant="epilogue", bound="free_relu", experiment="noisy"))
    assert row["bound"] == 1.0  # leaving work out cannot cost time
    roofline = {q: entry(q, variant="epilogue", bound="roofline") for q in ("ratio", "time", "rate", "bandwidth")}
    assert math.isnan(verdict(found, roofline["time"])["bound"])  # no ceiling, no bound
    matmul = cell("matmul/1000x1000x1000/float32/ieee/forward", "eager", [50.0] * 8, "hot")
    copy = cell("copy/1000000/float32/ieee/forward", "eager", [1.0] * 8, "hot")
    found = measured(matmul, copy, experiment="ceilings")
    limit = 1024 * 784 * 2048 / 1e9 * 50  # µs
    row = {name: verdict(found, claim) for name, claim in roofline.items()}
    assert row["time"]["bound"] == pytest.approx(limit / 1e3)
    assert "no less than" in row["time"]["reason"]
    assert row["ratio"]["bound"] == pytest.approx(100 / limit, rel=0.01)
    assert row["rate"]["bound"] == pytest.approx(2e9 / 50e-6 / 1e9)
    assert row["bandwidth"]["bound"] == pytest.approx(4 * (1024 + 784 + 2048) / limit / 1e3)


def test_cautions(measured):
    plain = cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1000)
    assert "Caution" not in verdict(measured(*plain), entry())["reason"]
    control = [cell(f"relu/{n}x8/float32/ieee/forward", "eager", 100) for n in range(1, 9)]
    control += [cell(f"relu/{n}x8/float32/ieee/forward", "eager@again", [120.0] * 8) for n in range(1, 9)]
    row = verdict(measured(plain[0], cell(MEDIUM, "naive", 1000, throttled=True), *control), entry())
    assert row["verdict"] == "confirmed"
    assert "throttled" in row["reason"]
    assert "A/A control of box calls identical code different in 100% of 8 pairs" in row["reason"]


def test_a_control_that_errs_less_than_it_may_speaks_of_what_is_undecided_only(measured):
    names = ("eager", "eager@again")
    same = [
        cell(f"relu/{n}x8/float32/ieee/forward", name, [100.0 + n % 2] * 8) for n in range(1, 101) for name in names
    ]
    decided = verdict(measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1000), *same), entry())
    assert (decided["verdict"], "A/A" in decided["reason"]) == ("confirmed", False)
    wide = [cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", [500.0, 1500.0] * 4)]
    open_ = verdict(measured(*wide, *same), entry())
    assert open_["verdict"] == "undecided"
    assert "Its intervals are wider than they need be: the A/A control of box calls" in open_["reason"]
    assert "different in 0% of 100 pairs, and 5% would do." in open_["reason"]


def test_each_machine_has_its_own_row(measured):
    measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 1000), machine="one")
    found = measured(cell(MEDIUM, "eager", 100), cell(MEDIUM, "naive", 2000), machine="two")
    assert [(row["machine"], row["verdict"]) for row in judge(found, [entry()])] == [
        ("one", "confirmed"),
        ("two", "refuted"),
    ]


def test_arithmetic_claims_show_their_arithmetic():
    claim = entry("arithmetic", 1.6, (1.55, 1.65), expression="2 * 1024 * 784 * 2048 / giga")
    row = verdict([], claim)
    assert (row["verdict"], row["machine"]) == ("inconsistent", ANY)
    assert row["measured"] == pytest.approx(3.288334336)
    assert "2 * 1024 * 784 * 2048 / giga = 3.29" in row["reason"]
    assert verdict([], entry("arithmetic", 3.3, (3.2, 3.4), expression=claim.expression))["verdict"] == "confirmed"
    row = verdict([], entry("none", untestable="No clock measures effort."))
    assert (row["verdict"], row["machine"]) == ("not_testable", ANY)
    assert "No clock measures effort." in row["reason"]


def test_a_contradiction_says_whether_it_is_the_claim_or_its_arithmetic():
    said = entry("none", untestable="Why.", conflicts=("S001-02", "S001-03"))
    sums = replace(entry("arithmetic", 3, (2.9, 3.1), expression="2 + 2"), id="S001-02", part_of="S001-01")
    sums = replace(sums, conflicts=("S001-01",))
    other = replace(said, id="S001-03", conflicts=("S001-01",))
    first, second, third = judge([], [said, sums, other])
    assert first["reason"] == "Why. Because. Its own arithmetic contradicts it (S001-02). It contradicts S001-03."
    assert second["reason"].endswith("Because. Worked out, it contradicts S001-01.")
    assert third["reason"] == "Why. Because. It contradicts S001-01."


# The ledger itself


def test_the_ledger_is_whole():
    claims = ledger()
    by_id = {claim.id: claim for claim in claims}
    assert len(by_id) == len(claims) >= 30
    assert {"S000", "S001", "S002", "S003", "S004"} <= {claim.seed for claim in claims}
    for claim in claims:
        assert all(claim.id in by_id[other].conflicts for other in claim.conflicts), claim.id
        for workload in claim.workloads:
            assert {claim.variant, claim.baseline} <= {"", "eager", *variants(workload.partition("/")[0])}, claim.id
            for figure in (*claim.of, *claim.over, *claim.under):
                assert figure.variant in variants((figure.workload or workload).partition("/")[0]), claim.id
        if claim.quantity == "ratio" and claim.claimed == (1.0, 1.0):
            assert claim.band == (0.98, 1.02), claim.id
        if claim.quantity in ("time", "saving"):
            assert claim.untestable, claim.id
        if claim.quantity in ("rate", "bandwidth"):  # of a GPU that no document names
            assert claim.untestable or "modern GPUs" in claim.claim, claim.id
    assert {claim.quantity for claim in claims} == set(QUANTITIES)
    assert {path.stem.upper() for path in HERE.glob("*.yaml")} == {claim.seed for claim in claims}


def test_the_arithmetic_of_the_seeds_is_worked_out():
    rows = {row["id"]: row for row in judge([]) if row["quantity"] == "arithmetic"}
    assert all(math.isfinite(row["measured"]) for row in rows.values())
    assert {row["verdict"] for row in rows.values()} == {"confirmed", "inconsistent"}
    by_hand = {
        "S000-05": 78.365,
        "S001-06": 388.23,
        "S001-08": 2989.4,
        "S001-25": 12 / 11,
        "S001-24": 182.4,
        "S001-31": 9.633792,
        "S001-34": 2.128,
        "S001-36": 33.14,
        "S001-40": 7.7,
        "S001-15": 0.018641,
        "S001-66": 0.8,
        "S001-76": 12.99,
        "S001-106": 1.6645e-7,
        "S002-13": 3288.3,
        "S002-14": 438.4,
        "S002-22": 8.0667,
        "S002-25": 3131.7,
        "S002-47": 706.7,
        "S002-48": 80,
        "S002-50": 31.317,
        "S003-01": 11.52,
        "S003-02": 3.276,
        "S003-04": 2.792,
        "S003-25": 3.187,
        "S003-36": 0.680,
        "S003-77": 0.7701,
        "S003-79": 2.696,
        "S003-87": 1.0354,
    }
    for name, value in by_hand.items():
        assert rows[name]["measured"] == pytest.approx(value, rel=1e-3), name
        assert rows[name]["verdict"] == "inconsistent", name


UNITS = {"GPU time": "us", "in graph replay": "%", "top kernel": "%", "top three kernels": "%"}
UNITS |= dict.fromkeys(("bytes read", "bytes written", "L2 bytes", "L2 written", "compulsory bytes"), "B")
"""Units of the probes ``trace`` and ``counters`` where they do not count; those of ``start`` and ``process`` are ms."""
EXACT = ("1", "B")


def behind(claims: Sequence[Claim], primary: str) -> tuple[list[dict], list[dict]]:
    """Cells and details from which every one of ``claims`` can be judged."""
    cells: dict[tuple[str, str, str], dict] = {}
    details: dict[tuple[str, Figure], dict] = {}

    def time(workload: str, variant: str, clock: str) -> None:
        us = {"linear": 90, "relu": 10}.get(workload.partition("/")[0], 100 + 10 * len(variant))
        cells[workload, variant, clock] = cell(workload, variant, us, clock)

    for claim in claims:
        for own in claim.workloads:
            for variant in (claim.variant, claim.baseline) if claim.variant else ():
                time(own, variant, claim.clock or primary)
            if claim.quantity in ("share", "launch") or claim.bound == "free_relu":
                _, shape, dtype, math_mode, _ = own.split("/")
                batch, _, columns = shape.split("x")
                for clock in (primary, "wall"):
                    time(own, "eager", clock)
                    time(own.replace("linear_relu", "linear"), "eager", clock)
                    if math_mode == "ieee":  # as the experiments do: a ReLU has no other math mode
                        time(f"relu/{batch}x{columns}/{dtype}/ieee/forward", "eager", clock)
            for figure in (*claim.of, *claim.over, *claim.under):
                workload = figure.workload or own
                if not figure.topic:
                    time(workload, figure.variant, figure.clock or primary)
                    continue
                operation, shape, dtype, math_mode, _ = workload.split("/")
                unit = "ms" if figure.topic in ("start", "process") else UNITS.get(figure.name, "1")
                details[workload, figure] = detail_line(
                    operation=operation,
                    shape=[int(n) for n in shape.split("x")],
                    dtype=dtype,
                    math=math_mode,
                    variant=figure.variant,
                    topic=figure.topic,
                    case=figure.case,
                    name=figure.name,
                    unit=unit,
                    values=[3.0] * 3 if unit in EXACT else [len(figure.name) * wobble for wobble in WOBBLE[:3]],
                )
    return list(cells.values()), list(details.values())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_entry_gets_a_verdict_with_a_reason(measured, device):
    cells, details = behind(ledger(), {"cuda": "graph", "cpu": "hot"}[device])
    rows = judge(measured(*cells, details=details, device=device))
    assert {row["id"] for row in rows} == {claim.id for claim in ledger()}
    for row in rows:
        assert row["verdict"] in VERDICTS
        assert row["reason"].endswith(".")
        assert "nan" not in row["reason"].lower()
        assert row["machine"] in ("box", ANY)
    judged = {row["verdict"] for row in rows if row["machine"] == "box"}
    assert "invalid" not in judged
    if device == "cuda":
        missing = [row["id"] for row in rows if "no record has" in row["reason"]]
        assert missing == []
        assert judged == {"confirmed", "refuted", "not_testable"}


def test_what_is_measured_comes_from_an_experiment():
    for claim in ledger(seeds=["S000", "S001", "S002", "S004"]):
        measures = claim.quantity not in ("arithmetic", "none")
        assert claim.experiment in (EXPERIMENTS if measures else [""]), claim.id


def test_no_time_of_a_start_is_judged_by_one_process():
    figures = {
        (figure.variant, figure.case)
        for claim in ledger()
        for figure in (*claim.of, *claim.over, *claim.under)
        if figure.topic == "start"
    }
    probes = EXPERIMENTS["warm_up"].probes("seed", "cuda", ())
    assert figures
    assert [probe for probe in probes if probe.processes < 2 and (probe.variant, probe.case) in figures] == []


def test_a_missing_record_names_its_experiment(measured):
    row = verdict(measured(cell(MEDIUM, "eager", 100)), entry(experiment="gemm_ladder"))
    assert row["verdict"] == "not_testable"
    assert f"no record has naive on {MEDIUM} at the graph clock. Experiment gemm_ladder measures it." in row["reason"]
    skipped = cell(MEDIUM, "naive", [], status="skipped", reason="no nvcc here")
    row = verdict(measured(cell(MEDIUM, "eager", 100), skipped), entry(experiment="gemm_ladder"))
    assert "Experiment" not in row["reason"]


def test_a_reason_says_when_backward_is_timed_too(measured):
    both = MEDIUM.replace("forward", "forward_backward")
    found = measured(cell(both, "eager", 100), cell(both, "naive", 1000))
    assert (
        "at linear_relu 1024x784x2048 float32 forward and backward."
        in verdict(found, entry(workloads=(both,)))["reason"]
    )


def test_no_machine_leaves_what_arithmetic_decides():
    assert {row["machine"] for row in judge([])} == {ANY}
