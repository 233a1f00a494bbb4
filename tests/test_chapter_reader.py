"""What the reader's pages say, from synthetic records and claims: decisions, machines, errata, the front page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import (
    Lines,
    ceilings,
    cell_line,
    detail_line,
    evidence,
    evidence_of,
    judgement,
    played,
    said,
    write_records,
)

import hypatia_lab.experiments  # noqa: F401  (registers the operations of the cells below)
from hypatia_lab import claims, formats, tables, variants
from hypatia_lab.chapters import decisions, errata, front, goals, machines, torch_compile
from hypatia_lab.claims import Claim, Judgement
from hypatia_lab.claims.judgement import Case
from hypatia_lab.experiments import units
from hypatia_lab.figures import ceilings as ceiling_figures
from hypatia_lab.figures import verdicts as verdict_figure
from hypatia_lab.figures.language import FigureError
from hypatia_lab.intervals import Interval
from hypatia_lab.pages import evidence as lab_evidence
from hypatia_lab.pages import findings
from hypatia_lab.pages.evidence import Evidence, Parameters
from hypatia_lab.pages.findings import Finding
from hypatia_lab.tables import claims as claim_tables
from hypatia_lab.workloads import Workload

pytestmark = pytest.mark.usefixtures("two_processes")

SMALL, LARGE = [256, 256, 512], [8192, 4096, 4096]
RATES = {"ieee": 50.0, "tf32": 400.0, "bfloat16": 760.0}


def cells(times: dict[str, float], **changes: Any) -> Lines:
    """Timed cells of two processes 1% apart; ``*name`` is a kernel of our own."""
    own = {"shape": SMALL, "dtype": "float32", "clock": "graph", "operation": "linear_relu"} | changes
    work = Workload(own["operation"], tuple(own["shape"]), own["dtype"], own.get("math", "ieee"))
    own |= {"flops": work.flops, "traffic": work.traffic}
    return [
        cell_line(
            variant=name.lstrip("*"), origin="own" if name[0] == "*" else "peer", medians_us=[us, 1.01 * us], **own
        )
        for name, us in times.items()
    ]


TENSOR = [
    *cells({"eager": 5.0, "epilogue": 3.0, "*triton": 4.0}, dtype="bfloat16"),
    *cells({"eager": 9.0, "epilogue": 8.0, "*fp16x3": 4.0}),
    *cells({"eager": 5500.0, "epilogue": 5490.0, "*fp16x3": 1500.0}, shape=LARGE),
]
MLP = cells({"eager": 30.0, "epilogue": 20.0, "*fused": 6.0}, operation="mlp3", shape=[65536, 64], dtype="bfloat16")
ATEN = [
    *cells({"eager": 9.0}),
    *cells({"eager": 27.0}, clock="wall"),
    *cells({"eager": 5500.0}, shape=LARGE),
    *cells({"eager": 5520.0}, shape=LARGE, clock="wall"),
]
CPU = cells({"eager": 360.0, "*threaded": 500.0}, clock="hot")


@pytest.fixture
def lab(tmp_path: Path) -> Evidence:
    gpu = {"ceilings": ceilings(RATES), "aten_fusion": ATEN, "tensor_cores": TENSOR, "fused_mlp": MLP}
    write_records(tmp_path, "gpu", "cuda", gpu)
    write_records(tmp_path, "cpu", "cpu", {"ceilings": ceilings({"ieee": 0.2}, "hot"), "gemm_ladder": CPU})
    found = evidence_of(tmp_path)
    found.records.sort(key=lambda record: record.run["device"] != "cuda")
    return found


# ---------------------------------------------------------------- decisions


def test_a_machine_whose_units_were_not_counted_keeps_its_place() -> None:
    read = lab_evidence.evidence(Parameters(), [goals.COUNTED], decisions.READ)
    assert read.machines == lab_evidence.evidence(Parameters()).machines
    assert {one.machine for one in read.records if one.experiment == goals.COUNTED} < set(read.machines)


def test_launching_is_told_from_computing(lab: Evidence) -> None:
    found = said(decisions.launches(lab, "gpu"))
    assert found.figure == "1 of 2 calls"
    assert "more than twice as long" in found.text  # by what the figure counts
    assert [round(point.across[0], 1) for point in decisions.launched(lab, "gpu")] == [3.0, 1.0]
    assert decisions.launches(lab, "cpu") is None


def test_the_balance_is_the_quotient_of_two_ceilings(lab: Evidence) -> None:
    assert decisions.balance(lab, "gpu") == pytest.approx(
        {"float32/ieee": 12.5, "float32/tf32": 100.0, "bfloat16/ieee": 190.0}
    )
    found = said(decisions.ceiling(lab, "gpu"))
    assert found.figure == "12 operations a byte in float32"
    assert "In bfloat16 the border is 190." in found.text
    assert [machine for machine, _, _ in decisions.balances(lab)] == ["gpu"] * 3 + ["cpu"]


def test_fusing_is_held_against_the_balance(lab: Evidence) -> None:
    points = {(point.kind, point.name): point for point in decisions.fused(lab, "gpu")}
    near = points["mlp3", f"65536×64 bfloat16, {variants.label('mlp3', 'fused')}"]
    assert near.across[0] == pytest.approx(5.0)
    assert near.along == pytest.approx(0.505, rel=0.01)
    label = variants.label("linear_relu", "epilogue")
    assert points["linear_relu", f"256×256×512 float32, {label}"].origin == "peer"
    assert not any("fp16x3" in point.name or "products" in point.name for point in decisions.fused(lab, "gpu"))
    found = said(decisions.fusing(lab, "gpu"))
    assert found.figure == "3.3× → 1.12× → 1.00×"
    assert all(side in found.text for side in decisions.SIDES)  # what each of the three stands for
    assert decisions.fusing(lab, "cpu") is None
    lines = decisions.side_lines(lab, "gpu")
    assert " → ".join(line["median"] for line in lines) == found.figure
    assert sum(int(line["cases"]) for line in lines) == len(points)
    assert decisions.below_eager(lab, "gpu") == ""


def test_a_fused_form_that_loses_is_named_beside_a_form_left_out_that_wins(tmp_path: Path) -> None:
    slow = cells({"eager": 30.0, "*triton": 60.0})
    for more, ahead in (([], False), (cells({"*fp16x3": 10.0}), True)):
        place = tmp_path / str(ahead)
        write_records(place, "gpu", "cuda", {"ceilings": ceilings(RATES), "tensor_cores": [*slow, *more]})
        text = decisions.below_eager(evidence_of(place), "gpu")
        assert "1 of 1 points: *linear_relu* 256×256×512 float32" in text
        assert ("split operands" in text) == ahead


def test_the_plain_fusion_counts_where_no_other_experiment_has_the_workload(tmp_path: Path) -> None:
    plain = [*cells({"eager": 5500.0, "epilogue": 5000.0}, shape=LARGE), *cells({"eager": 30.0, "epilogue": 15.0})]
    product = cells({"eager": 30.0, "epilogue": 30.0})
    parts = {"ceilings": ceilings(RATES), "tensor_cores": product, "aten_fusion": plain}
    write_records(tmp_path, "gpu", "cuda", parts)
    lab = evidence_of(tmp_path)
    assert sorted(round(point.across[0], 2) for point in decisions.fused(lab, "gpu")) == [1.0, 1.1]


def test_gains_that_grow_with_arithmetic_are_not_said_to_fall(lab: Evidence, tmp_path: Path) -> None:
    slow = cells({"eager": 30.0, "*fused": 29.0}, operation="mlp3", shape=[65536, 64], dtype="bfloat16")
    fast = cells({"eager": 5500.0, "epilogue": 1000.0}, shape=LARGE)
    parts = {"ceilings": ceilings(RATES), "tensor_cores": fast, "fused_mlp": slow}
    write_records(tmp_path / "other", "gpu", "cuda", parts)
    other = said(decisions.fusing(evidence_of(tmp_path / "other"), "gpu"))
    assert other.title != said(decisions.fusing(lab, "gpu")).title
    assert "2 of 2" in other.title


def test_own_kernels_meet_their_best_peer(lab: Evidence) -> None:
    rows = {row.workload: row for row in decisions.contests(lab, "gpu")}
    small = rows["linear_relu/256x256x512/bfloat16/ieee/forward"]
    assert (small.variant, small.baseline) == ("triton", "epilogue")
    assert small.ratio == pytest.approx(0.75)
    found = said(decisions.library(lab, "gpu"))
    assert found.figure == "3 of 4 workloads"
    assert "3.7×" in found.text  # fp16x3 at the large size, the furthest ahead
    assert "A peer is faster in 1: *linear_relu* 256×256×512 bfloat16." in found.text
    assert decisions.standing(list(rows.values())).startswith("**In 3 of 4 workloads")
    assert said(decisions.library(lab, "cpu")).figure == "0 of 1 workloads"
    figure, table = decisions.opponents(list(rows.values()))
    assert figure.layout.meta["alt"]
    assert sorted(table["best peer"]) == ["epilogue"] * 4
    assert [shown.split("×")[0] for shown in table["ratio"]] == ["0.750", "2.00", "3.6600", "3.3333"]
    assert "65536×64, bfloat16: 3.3× the library's epilogue" in figure.layout.yaxis2.ticktext


def test_a_kernel_is_counted_as_the_figure_reads_it(tmp_path: Path) -> None:
    own = []
    for batch, speed in ((1, 1.0), (2, 1.02), (3, 0.98)):  # equal; faster and slower by intervals that hold the edge
        lines = cells({"eager": 10.0, "*triton": 10.0 / speed}, shape=[batch, 8, 8])
        first, second = lines[1]["medians_us"]
        lines[1]["medians_us"] = [first, second * (1 if speed == 1 else 1.0015)]
        own += lines
    write_records(tmp_path, "gpu", "cuda", {"tensor_cores": own})
    lab = evidence_of(tmp_path)
    rows = decisions.contests(lab, "gpu")
    assert [row.reading for row in rows] == ["equal", "faster", "slower"]
    assert not any(row.speed.outside(0.98, 1.02) for row in rows)
    found = said(decisions.library(lab, "gpu"))
    assert found.figure == "1 of 3 workloads"
    assert "A peer is faster in 1: *linear_relu* 3×8×8 float32." in found.text
    assert all(
        f"{word}: *linear_relu* {batch}×8×8" in decisions.standing(rows)
        for word, batch in (("Equal", 1), ("Slower", 3))
    )


def test_where_no_library_has_a_call_a_kernel_is_met_by_the_compiler_alone(tmp_path: Path) -> None:
    met = cells({"eager": 75.0, "compile": 6.0, "*triton": 2.0}, operation="diffraction", shape=[256, 256])
    alone = cells({"eager": 300.0, "*triton": 2.0}, operation="diffraction", shape=[512, 512])
    write_records(tmp_path, "gpu", "cuda", {"diffraction": [*met, *alone]})
    (row,) = decisions.contests(evidence_of(tmp_path), "gpu")
    assert (row.shape, row.baseline) == ("256x256", "compile")
    assert row.ratio == pytest.approx(3.0)


def counted(kernel: str, us: float, *shares: float, **changes: Any) -> Lines:
    own = {
        "operation": "linear_relu",
        "shape": SMALL,
        "variant": "fp16x3_cuda",
        "case": units.CASE,
        "name": kernel,
    } | changes
    told = zip([*units.TOPICS.values(), "kernel_time"], [*shares, us], ["1"] * len(shares) + ["us"], strict=True)
    return [detail_line(topic=topic, unit=unit, values=[value], **own) for topic, value, unit in told]


def test_what_binds_a_kernel_is_told_by_the_units_that_it_keeps_busy() -> None:
    product = counted("void linear_relu_split<3, 1>(TensorMap, int)", 21.3, 0.89, 0.1, 0.0, 0.14, 0.47, 0.27)
    split = counted("_split_rows", 8.5, 0.0, 0.06, 0.0, 0.34, 0.6, 0.48)
    step = counted("_split_rows", 9.5, 0.0, 0.06, 0.0, 0.34, 0.59, 0.48, direction="forward_backward")
    lab = evidence({goals.COUNTED: [*product, *split, *step]})
    found = goals.shares(lab, "box")
    assert "**1 of 3 kernels have such a unit: tensor cores (1).** The others" in goals.bound(found)
    assert "**0 of 1 kernels have such a unit.**" in goals.bound(found[1:2])
    assert "others" not in goals.bound(found[:1])
    lines = goals.unit_lines(found)
    assert [line["kernel"] for line in lines] == ["linear_relu_split", "_split_rows", "_split_rows"]
    assert [line["takes"] for line in lines] == ["21.3 µs", "8.50 µs", "9.50 µs"]
    assert lines[0]["tensor cores"] == "89%"
    assert lines[2]["work"].endswith("forward and backward")
    assert goals.shares(evidence({"aten_fusion": ATEN}), "box") == []


def test_what_is_counted_is_what_the_goals_are_about() -> None:
    works = {"/".join([w.operation, w.shape_text, w.dtype, w.math, w.direction]) for w, _ in units.COUNTED}
    assert {goal.workload for goal in goals.GOALS} == works
    for work, name in units.COUNTED:
        known = variants.find(work.operation, name)
        assert work.direction in known.directions
        assert work.math in known.maths


def test_a_goal_is_reached_missed_or_open() -> None:
    parts = {
        "tensor_cores": [
            *cells({"eager": 3.0, "*triton": 1.5}, dtype="bfloat16"),
            *cells({"eager": 9.0, "*triton": 8.0}, dtype="bfloat16", shape=[1024, 784, 2048]),
            *cells({"eager": 400.0, "*triton": 365.0, "nvmath": 362.0}, dtype="bfloat16", shape=LARGE),
            *cells({"eager": 9.0, "*fp16x3": 25.0, "*fp16x3_once": 14.0}, shape=[1024, 784, 2048]),
        ],
        "fused_mlp": [
            *cells({"eager": 90.0, "*fused": 54.9}, operation="mlp3", shape=[65536, 256], dtype="bfloat16"),
        ],
    }
    lab = evidence(parts, facts={"name": "NVIDIA H200"})
    found = goals.outcomes(lab, "box")
    assert {(one.goal.us, one.own.variant): one.missed for one in found} == {
        (21, "fp16x3"): True,
        (18, "fp16x3_once"): False,
        (1.9, "triton"): False,
        (6.3, "triton"): True,
        (None, "triton"): False,
        (55, "fused"): None,
    }
    reached, ahead = goals.summary(lab, "box", found).split(". ")
    assert reached == "**3 of 6 goals are reached**, 1 cannot be told"
    assert ahead.startswith("In 1 of the 2 that are missed")
    lines = {line["goal"]: line for line in goals.lines(found)}
    assert (lines["not behind"]["reached"], lines["6.30 µs"]["reached"], lines["55.0 µs"]["reached"]) == (
        "yes",
        "no",
        "–",
    )
    assert lines["not behind"]["best peer"] == variants.label("linear_relu", "nvmath")
    behind = {"tensor_cores": cells({"eager": 300.0, "*triton": 365.0}, dtype="bfloat16", shape=LARGE)}
    assert [one.missed for one in goals.outcomes(evidence(behind, facts={"name": "NVIDIA H200"}), "box")] == [True]
    assert goals.outcomes(evidence(parts), "box") == []
    for multiprocessors, held in ((132, True), (114, False)):
        lab = evidence(parts, facts={"name": "NVIDIA H100 80GB HBM3", "multiprocessors": multiprocessors})
        assert bool(goals.outcomes(lab, "box")) == held
        assert "set for an H200" in goals.summary(lab, "box", found)


def test_how_near_a_kernel_comes_to_the_limit_is_told_where_there_is_one() -> None:
    parts = {
        "ceilings": ceilings(RATES),
        "tensor_cores": [
            *cells({"eager": 3.0, "*triton": 1.5}, dtype="bfloat16"),
            *cells({"eager": 400.0, "*triton": 724.0, "nvmath": 362.0}, dtype="bfloat16", shape=LARGE),
        ],
    }
    lab = evidence(parts, facts={"name": "NVIDIA H200"})
    found = goals.outcomes(lab, "box")
    small, large = (one.own.median_us / one.own.limit_us for one in found)
    text = goals.summary(lab, "box", found)
    assert f"The nearest takes {formats.spoken(large)} times the limit (linear_relu 8192×4096×4096" in text
    assert f"At the median a kernel takes {formats.spoken((small + large) / 2)} times" in text


def test_every_question_is_answered_or_said_to_be_open(lab: Evidence) -> None:
    cpu, gpu = (decisions.answers(lab, name).splitlines() for name in ("cpu", "gpu"))
    for lines in (cpu, gpu):
        assert [line.split("**")[1] for line in lines] == [question for question, _ in decisions.QUESTIONS]
    assert "launches no kernels" in cpu[0]
    assert "18_decisions.html#is-it-the-kernel-at-all" in gpu[0]
    assert cpu[2].endswith("Not measured on this machine.")
    assert gpu[-1].endswith("Not measured on this machine.")
    answered = [line for line in cpu if ".html" in line]
    assert len(answered) == len(decisions.findings(lab, "cpu")) == 2


def test_digits_are_split_at_each_size_by_the_quickest_form_that_is_exact(tmp_path: Path) -> None:
    small = cells({"eager": 9.0, "*fp16x3": 6.0, "*fp16x3_cuda": 3.0})
    for line in small:
        line["error"] = 5e-7 if line["variant"] == "fp16x3_cuda" else 3e-7
    large = cells({"eager": 5500.0, "*fp16x3": 5500.0 / 4}, shape=LARGE)
    fewer = cells({"eager": 3.0}, math="tf32")
    write_records(tmp_path, "gpu", "cuda", {"tensor_cores": [*small, *large, *fewer]})
    found = said(decisions.digits(evidence_of(tmp_path), "gpu"))
    assert found.figure == "1.50–4.0×"
    assert "TF32 has 3.0× the speed of float32." in found.text
    assert "bfloat16 has" not in found.text


def test_experiments_without_a_record_are_named(lab: Evidence) -> None:
    wanted = ("tensor_cores", "conv_block", "diffraction")
    assert decisions.lacking(lab, "gpu", wanted).endswith("not in the figure: conv_block and diffraction.")
    assert decisions.lacking(lab, "gpu", wanted[:1]) == ""


def test_crossovers_are_drawn(lab: Evidence) -> None:
    points = decisions.fused(lab, "gpu")
    figure, table = ceiling_figures.crossover(points, "t", ["gpu"], along="FLOP/B", across="speed, ×", at=1.0)
    assert len(table) == len(points)
    names = [trace.name for trace in figure.data if trace.mode == "markers"]
    assert names == ["linear_relu (peer)", "mlp3 (own)"]
    drawn = sum(len(trace.x) for trace in figure.data if trace.mode == "markers")
    assert drawn == len(points)
    assert "A dashed line stands at 1" in figure.layout.meta["alt"]
    with pytest.raises(FigureError, match="no points"):
        ceiling_figures.crossover([], "t", [], along="", across="")


# ---------------------------------------------------------------- machines


def test_ceilings_stand_side_by_side(lab: Evidence) -> None:
    lines = {line["ceiling"]: line for line in machines.rates(lab)}
    assert lines["copy"]["gpu / cpu"] == "1.00×"
    assert machines.COLD not in lines  # measured on neither
    assert lines["product, float32/ieee"] == {
        "ceiling": "product, float32/ieee",
        "gpu": "50.0 TFLOP/s",
        "cpu": "200 GFLOP/s",
        "gpu / cpu": "250×",
    }
    assert lines["product, bfloat16/ieee"]["cpu"] == "not measured"
    assert machines.lead(lab).startswith("**`gpu` copies 1.00 times as fast as `cpu`** with warm caches.")
    assert "float32/ieee arithmetic takes over at" in machines.turns(lab)
    figure, table = ceiling_figures.balances(decisions.balances(lab), "t")
    assert list(table["cpu"]) == ["0.0500 FLOP/B", "–", "–"]
    assert "cpu, float32/ieee: 0.0500" in figure.layout.meta["alt"]
    with pytest.raises(FigureError, match="no machine"):
        ceiling_figures.balances([], "t")


def verdict(machine: str, word: str, cases: dict[str, tuple[float, float, str]], name: str = "S001-01") -> Judgement:
    """A judgement with ``cases``: workload → low, high, verdict."""
    shown = tuple(
        Case(work, own, estimate=Interval((low + high) / 2, low, high, 8)) for work, (low, high, own) in cases.items()
    )
    return judgement(id=name, seed=name[:4], machine=machine, verdict=word, cases=shown, workload=", ".join(cases))


ONE, TWO = "linear_relu/256x256x512/float32/ieee/forward", "linear_relu/8192x4096x4096/float32/ieee/forward"


@pytest.mark.parametrize(
    ("gpu", "cpu", "kind"),
    [
        ({ONE: (1.0, 1.1, "confirmed")}, {ONE: (2.0, 2.1, "refuted")}, "hardware"),
        ({ONE: (1.0, 1.1, "confirmed")}, {ONE: (1.05, 2.1, "undecided")}, "certainty"),
        # Apart as printed, but too wide to tell.
        ({ONE: (1.0, 1.1, "confirmed")}, {ONE: (2.0, 5.0, "refuted")}, "certainty"),
        ({ONE: (1.0, 1.1, "confirmed")}, {TWO: (2.0, 2.1, "refuted")}, "workloads"),
        # Apart, but not what makes the verdicts differ: both intervals of ONE say the same.
        (
            {ONE: (1.0, 1.1, "confirmed"), TWO: (3.0, 3.1, "refuted")},
            {ONE: (1.2, 1.3, "confirmed")},
            "workloads",
        ),
    ],
)
def test_why_verdicts_differ(lab: Evidence, gpu: Any, cpu: Any, kind: str) -> None:
    rows = [verdict("gpu", "conditional" if len(gpu) > 1 else "confirmed", gpu), verdict("cpu", "refuted", cpu)]
    (line,) = machines.reasons(lab, rows)
    assert line["the difference is"] == kind
    assert line["band"] == "6.903–8.437×"
    assert ("lie apart" in line["why"]) == (kind == "hardware")
    assert ("too wide" in line["why"]) == (cpu.get(ONE, (1, 1))[1] > 2 * cpu.get(ONE, (1, 1))[0])
    said = machines.summary([line], 3)
    assert said.startswith("**1 of 3 parts")
    assert [name for name in machines.KINDS if f"*{name}*" in said] == [kind]


def test_a_verdict_that_is_the_same_everywhere_is_not_listed(lab: Evidence) -> None:
    same = [verdict(name, "confirmed", {ONE: (1.0, 1.1, "confirmed")}) for name in ("gpu", "cpu")]
    untested = verdict("gpu", "not_testable", {ONE: (1.0, 1.1, "confirmed")}, "S001-02")
    other = verdict("cpu", "refuted", {ONE: (1.0, 1.1, "refuted")}, "S001-02")
    assert machines.reasons(lab, [*same, untested, other]) == []
    assert machines.tested(lab, [*same, untested, other]) == [same]
    assert machines.summary([], 1).startswith("**0 of 1 parts")


def test_what_was_measured_stands_beside_a_verdict(lab: Evidence) -> None:
    rows = [
        verdict("gpu", "confirmed", {ONE: (1.0, 1.1, "confirmed")}),
        verdict("cpu", "refuted", {ONE: (2.0, 2.1, "refuted")}),
    ]
    assert machines.reasons(lab, rows)[0]["measured"] == "–"
    rows[0] = replace(rows[0], details=("Measured was the time of naive, on gpu: 1.05 at 1×1.", "Because."))
    assert machines.reasons(lab, rows)[0]["measured"] == "the time of naive"


def test_ceilings_say_what_binds(lab: Evidence) -> None:
    binds, relative, share = said_binding(machines.binding(lab, "gpu", TWO))
    assert (binds, round(relative, 1)) == ("arithmetic", 65.5)
    assert share == pytest.approx(1.0, rel=0.01)
    assert said_binding(machines.binding(lab, "gpu", "mlp3/65536x64/bfloat16/ieee/forward"))[0] == "memory"
    idle = said_binding(machines.binding(lab, "gpu", "linear_relu/256x256x512/bfloat16/ieee/forward"))
    assert idle[0] == "neither ceiling"
    assert machines.binding(lab, "gpu", "linear_relu/1x1x1/float32/ieee/forward") is None


def said_binding(found: tuple[str, float, float] | None) -> tuple[str, float, float]:
    assert found is not None
    return found


# ---------------------------------------------------------------- errata


def claim(number: int, claimed: float, expression: str = "", conflicts: tuple[str, ...] = ()) -> Claim:
    """A claim with a band of ±0.1 around its one figure."""
    own = f"S001-{number:02d}", "section", f"claim {number}", (claimed, claimed), "×", "arithmetic", "why"
    band = claimed - 0.1, claimed + 0.1
    return Claim(*own, band=band, expression=expression, conflicts=conflicts, lead=own[0])


LEDGER = [
    claim(1, 4.0, "2 + 2"),
    claim(2, 5.0, "2 + 2", conflicts=("S001-01",)),
    claim(3, 40.0, "2 * 2"),
    claim(4, 0.0, "1 + 1"),
    claim(5, 1.0, conflicts=("S001-02", "S009-99")),
]


def test_arithmetic_is_worked_out_and_sorted_by_how_far_off_it_is() -> None:
    assert [one.id for one in errata.sound(LEDGER)] == ["S001-01"]
    lines = errata.corrections(LEDGER)
    assert [line["id"] for line in lines] == ["S001-04", "S001-03", "S001-02"]
    assert [line["off by"] for line in lines] == ["–", "10.0×", "1.25×"]
    assert [line["its own figures give"] for line in lines] == ["2×", "4×", "4×"]
    parts = [replace(one, lead="S001-02") if one.id == "S001-03" else one for one in LEDGER]
    assert errata.counts(parts) == [
        {
            "document": "S001",
            "claims": "4",
            "parts": "5",
            "with a sum": "3",
            "that fail": "2",
            "parts that fail": "3",
            "pairs within": "2",
            "pairs across": "0",
        }
    ]


def test_a_pair_of_claims_is_listed_once() -> None:
    assert [(a.id, b.id) for a, b in errata.pairs(LEDGER)] == [("S001-01", "S001-02"), ("S001-02", "S001-05")]
    both = [*LEDGER, claim(6, 2.0, conflicts=("S001-05",)), claim(7, 2.0, conflicts=("S001-06",))]
    assert len(errata.contradictions(both)) == 4
    least = replace(claim(8, 2.0), claimed=(2.0, 1e6))
    assert (
        errata.contradictions([least, claim(9, 1.0, conflicts=("S001-08",))])[0]["one says"] == "claim 8 (2× or more)"
    )


def test_figures_by_several_clocks_count_once_and_failed_sums_are_no_pairs() -> None:
    one, other = claim(1, 4.0), claim(2, 5.0, conflicts=("S001-01",))
    again = replace(other, id="S001-02e", lead=other.lead)
    assert [(a.id, b.id) for a, b in errata.pairs([one, other, again])] == [("S001-01", "S001-02")]
    figure = replace(other, id="S001-02f", lead=other.lead, claimed=(6.0, 6.0))
    assert len(errata.pairs([one, other, figure])) == 2
    sums = claim(3, 4.0), replace(claim(4, 9.0, "2 + 2", conflicts=("S001-03",)), lead="S001-03")
    assert errata.pairs(sums) == []
    assert len(errata.pairs([sums[0], replace(sums[1], expression="")])) == 1
    found = errata.headline([one, other, *sums])
    assert "1 of 3 claims" in found
    assert "1 pairs of claims" in found


def test_the_errata_are_those_that_the_judge_calls_inconsistent() -> None:
    judged = claims.judge([])
    assert {row.id for row in judged if row.verdict == "inconsistent"} == {one.id for one in errata.wrong()}


# ---------------------------------------------------------------- verdicts, the front page


def test_verdicts_are_counted_by_document(lab: Evidence) -> None:
    rows = [
        verdict("gpu", "confirmed", {ONE: (1.0, 1.1, "confirmed")}),
        verdict("gpu", "refuted", {ONE: (1.0, 1.1, "refuted")}, "S002-01"),
        verdict("any", "inconsistent", {ONE: (1.0, 1.1, "inconsistent")}, "S002-02"),
        verdict("cpu", "undecided", {ONE: (1.0, 1.1, "undecided")}),
    ]
    table = claim_tables.verdicts_by_seed(rows, "gpu").set_index("document")
    assert list(table.index) == ["S001", "S002", "all"]
    assert list(table["all"]) == [1, 2, 3]
    assert list(table[claim_tables.verdict_text("refuted")]) == [0, 1, 1]
    figure, _ = verdict_figure.verdicts(rows, "gpu")
    assert "3 claims" in figure.layout.title.text
    drawn = {(trace.name, trace.xaxis or "x"): list(trace.x) for trace in figure.data}
    assert [panel for (verdict, panel), count in drawn.items() if verdict == "refuted" and count == [1]] == ["x2"]
    assert sum(count for (count,) in drawn.values()) == 3
    assert list(verdict_figure.LOOKS) == list(claim_tables.VERDICTS)
    told = front.ledger(rows, "gpu", "an H200")
    assert "**1 hold and 2 fall** on an H200" in told
    assert "hold are all confirmed." in told
    assert "fall are 1 refuted and 1 inconsistent." in told
    assert "of 0 " in told.lower()
    assert "Of 1 the records do not say" in (left := front.ledger(rows, "cpu", "a CPU"))
    assert left.endswith(": all undecided.")
    with pytest.raises(FigureError, match="no claims judged on 'gpu'"):
        verdict_figure.verdicts(rows[3:], "gpu")
    with pytest.raises(tables.TableError, match="no claims judged on 'gpu'"):
        claim_tables.verdicts_by_seed(rows[3:], "gpu")


def test_what_was_measured_is_drawn_over_what_is_claimed_where_both_are_one_figure() -> None:
    about = verdict("gpu", "refuted", {ONE: (1.0, 1.1, "refuted")})
    rows = [
        replace(about, claimed=2.0, measured=3.0, low=2.5, high=4.0, unit="%"),
        replace(about, id="S002-01", claimed=[1.0, 2.0], measured=3.0),
        replace(about, id="S002-02", claimed=2.0, measured=3.0, sense="at_least"),
        replace(about, id="S002-03", claimed=2.0, measured=3.0, parts=(about, about)),
        replace(about, id="S002-04", claimed=2.0, measured=float("nan")),
        replace(about, id="S002-05", claimed=0.0, measured=3.0),
    ]
    figure, table = verdict_figure.over_claimed(rows, "gpu")
    (points,) = (trace for trace in figure.data if trace.customdata is not None or trace.error_x.array is not None)
    assert list(points.x) == [1.5]
    assert list(points.error_x.array) == [0.5]
    assert list(points.error_x.arrayminus) == [0.25]
    assert "measured 3%, claimed 2%" in figure.layout.meta["alt"]
    assert list(table["id"]) == [about.id]
    with pytest.raises(FigureError, match="no claim has a figure of 'gpu'"):
        verdict_figure.over_claimed(rows[1:], "gpu")


def test_a_list_links_each_headline_to_its_place_and_escapes_it() -> None:
    found = Finding("2×", "a < b", "Because.", "02_x#how-much")
    line = '<li><a href="02_x.html#how-much">a &lt; b</a>: <strong>2×</strong>. Because.</li>'
    assert findings.sentences([found]) == f'<ul class="lab-list">\n{line}\n</ul>'
    card = findings.cards([found])
    assert 'href="02_x.html#how-much"' in card
    assert '<div class="lab-card finding"><p class="lab-word">finding</p>' in card


def test_a_card_has_the_ledgers_verdict_on_the_claims_it_names(lab: Evidence) -> None:
    both = Finding("2×", "a", "b", "02_x", claims=("S001-66", "S003-01"))
    card = findings.cards([both], lab, "gpu")  # both fail their own arithmetic, on any machine
    assert '<div class="lab-card inconsistent">' in card
    assert "claims.html\">S001's and S003's claims</a> (S001-66, S003-01): ≠" in card.replace("&#x27;", "'")
    one = Finding("2×", "a", "b", "02_x", claims=("S000-36",))
    beside = Finding("2×", "a", "b", "02_x", claims=(*both.claims, "S000-36"))  # what says nothing is not named
    assert "(S001-66, S003-01): ≠" in findings.cards([beside], lab, "gpu")
    lab.verdicts["S000-36"]["gpu"] = "not_reproduced"
    assert "(S001-66, S003-01): ≠" in findings.cards([beside], lab, "gpu")
    assert "(S000-36): ◇" in findings.cards([one], lab, "gpu")
    lab.verdicts["S000-36"]["gpu"] = "not_testable"
    assert "S000's claim</a> (S000-36): ○" in findings.cards([one], lab, "gpu").replace("&#x27;", "'")
    with pytest.raises(ValueError, match="give the evidence"):
        findings.cards([both])
    with pytest.raises(ValueError, match="no claim S001-999 in the ledger"):
        findings.cards([Finding("2×", "a", "b", "02_x", claims=("S001-999",))], lab, "gpu")


@pytest.fixture(scope="module")
def committed() -> Evidence:
    """All committed records."""
    return lab_evidence.evidence(lab_evidence.Parameters())


def test_what_compiling_takes_is_no_time_of_payback(committed: Evidence) -> None:
    for machine in committed.machines:
        found, chapter = decisions.compiling(committed, machine), torch_compile.pays(committed, machine)
        assert found
        assert chapter
        if not chapter.open:
            assert found.figure in ("never", "not always", "open in some cases", "always")
            assert chapter.figure in found.text
            assert ("slower than eager" in found.text) == (torch_compile.UNWON in chapter.text)


def test_every_card_agrees_with_the_ledger(committed: Evidence) -> None:
    """The card's word is what the judge's rows of its claims or parts make together, each of them a document's."""
    parts = claims.judge(committed.records)
    judged = [*parts, *claims.statements(parts)]
    for machine in committed.machines:
        for finding in front.findings(committed, machine):
            own = [row for row in judged if row.id in finding.claims and row.machine in (machine, claim_tables.ANY)]
            assert {row.id for row in own} == set(finding.claims)
            word = claims.together(row.verdict for row in own) if own else "finding"
            assert f'<div class="lab-card {word}">' in findings.cards([finding], committed, machine)


def test_three_findings_open_the_book_each_with_its_numbers(committed: Evidence) -> None:
    for machine in committed.machines:
        leads = front.leads(committed, machine)
        assert len(leads) == front.FULL
        form, text = front.shown(leads, committed, machine)
        drawn = [lead.picture for lead in leads if lead.picture]
        assert form.count("<svg") == len(drawn) > 0
        assert all(picture.description in text for picture in drawn)
        assert all(f'href="{lead.finding.page.partition("#")[0]}.html"' in form for lead in leads)


def test_the_pictures_say_whether_a_gpu_is_held_against_a_processor(committed: Evidence) -> None:
    said = {name: front.against_c(committed, name) for name in committed.machines}
    assert any(said.values())
    for name, picture in said.items():
        assert picture is None or "CPU cores" in picture.description
        assert picture is None or ("GPU" in picture.description) == (committed.primary(name) == "graph")


def test_what_is_drawn_of_torch_compile_is_what_the_finding_beside_it_says(committed: Evidence) -> None:
    for name in committed.machines:
        picture, finding = front.compiled(committed, name), torch_compile.compiled(committed, name)
        assert picture
        assert finding
        ends = [end.strip("×") for end in finding.figure.split(" to ")]
        assert all(f": {end}×" in picture.description for end in ends)


def test_a_changed_record_changes_the_picture_and_a_noisy_one_has_none(tmp_path: Path) -> None:
    def drawn(name: str, times: dict[str, float], spread: float = 1.01) -> str:
        work = {"operation": "mlp3", "shape": [65536, 64], "dtype": "bfloat16"}
        own = [
            line | {"medians_us": [line["medians_us"][0] * by for by in (1, spread)]} for line in cells(times, **work)
        ]
        write_records(tmp_path / name, "gpu", "cuda", {"fused_mlp": own})
        picture = front.one_kernel(evidence_of(tmp_path / name), "gpu")
        return picture.description if picture else ""

    times = {"eager": 30.0, "epilogue": 20.0, "*fused": 6.0}
    first = drawn("a", times)
    assert "30 µs" in first
    assert "6.0 µs" in first
    assert drawn("b", times | {"*fused": 9.0}) != first
    assert drawn("c", times, spread=9.0) == ""
    assert drawn("d", {"eager": 30.0, "epilogue": 20.0}) == ""


def test_each_document_stands_with_a_claim_and_its_verdict(committed: Evidence) -> None:
    for machine in committed.machines:
        lines = front.documents(committed, machine).splitlines()
        assert len(lines) == len({one.seed for one in claims.ledger()})
        for line, (seed, (_, name, page)) in zip(lines, front.DOCUMENTS.items(), strict=True):
            assert line.startswith(f"- **{seed}**")
            assert claim_tables.verdict_text(committed.verdicts[name][machine]) in line
            assert f'href="{page}.html"' in line


@pytest.mark.parametrize("name", ["18_decisions", "13_machines"])
def test_the_pages_do_without_ceilings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_records(tmp_path, "gpu", "cuda", {"tensor_cores": TENSOR})
    text = played(name, tmp_path, monkeypatch)
    assert "gpu/tensor_cores" in text
    assert "FLOP/B" not in text


def test_a_contradiction_says_what_the_arithmetic_gives() -> None:
    for line in errata.contradictions():
        assert line["one says"].endswith(")")
    failing = {claim.id for claim in errata.wrong()}
    lines = [line for line in errata.contradictions() if line["id"] in failing]
    assert lines
    assert all("; worked out: " in line["one says"] for line in lines)
