"""What is said of gradients, from synthetic records: findings, tables, the live count and the chapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import ceilings, cell_line, evidence_of, played, write_records

from hypatia_lab import claims, intervals, tables
from hypatia_lab.chapters import backward
from hypatia_lab.experiments import EXPERIMENTS, PRESETS
from hypatia_lab.figures import comparisons, language, over_size
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.variants import label, variants
from hypatia_lab.workloads import Workload

pytestmark = pytest.mark.usefixtures("two_processes")

Lines = list[dict[str, Any]]
SMALL, MEDIUM = [256, 256, 512], [1024, 784, 2048]
RATES = {"ieee": 50.0, "bfloat16": 760.0}


def cells(times: Mapping[str, float], direction: str = "forward_backward", **changes: Any) -> Lines:
    """Timed cells of two processes 1% apart, of which a ratio is exact."""
    own = {"shape": MEDIUM, "dtype": "float32", "clock": "graph"} | changes
    work = Workload("linear_relu", tuple(own["shape"]), own["dtype"], direction=direction)
    own |= {"direction": direction, "flops": work.flops, "traffic": work.traffic}
    return [cell_line(variant=name, medians_us=[us, 1.01 * us], **own) for name, us in times.items()]


STEP = {"eager": 290.0, "eager@again": 290.0, "compile": 281.0, "cublas_relu": 300.0, "aten": 288.0, "epilogue": 285.0}
HALF = {"eager": 43.8, "compile": 39.7, "cublas_relu": 50.0, "aten": 43.0, "epilogue": 41.0, "fused_backward": 29.0}
GPU = [
    *cells(STEP | {"naive": 2300.0, "fused_backward": 270.0}),
    *cells(STEP, clock="wall"),
    *cells(HALF, dtype="bfloat16"),
    *cells({"eager": 30.0, "compile": 28.0, "fused_backward": 20.0}, dtype="bfloat16", shape=SMALL),
]
FORWARD = cells({"eager": 75.0, "cublas_relu": 77.0, "epilogue": 71.0}, "forward")
CPU = cells(
    {"eager": 3000.0, "eager@again": 3000.0, "cublas_relu": 3300.0, "epilogue": 2900.0}, clock="hot", shape=SMALL
)
CPU_FORWARD = cells({"eager": 900.0, "cublas_relu": 950.0}, "forward", clock="hot", shape=SMALL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def read(root: Path, own: Lines, forward: Lines, device: str = "cuda", machine: str = "box") -> Evidence:
    """Evidence of one machine, with ceilings and forward passes."""
    top = ceilings(RATES, "graph" if device == "cuda" else "hot")
    write_records(root, machine, device, {"ceilings": top, "aten_fusion": forward, "backward": own})
    return evidence_of(root)


def said(found: Finding | None) -> Finding:
    assert found is not None
    return found


# ---------------------------------------------------------------- findings


@pytest.mark.parametrize(
    ("own", "figure", "title"),
    [(29.0, "1.37×", "pays inside"), (33.0, "1.20×", "less than"), (45.0, "0.882×", "not pay")],
)
def test_the_goal_is_judged_against_the_better_rival(root: Path, own: float, figure: str, title: str) -> None:
    lab = read(root, cells(HALF | {"fused_backward": own}, dtype="bfloat16"), [])
    found = said(backward.goal(lab, "box"))
    assert found.figure == figure
    assert title in found.title
    assert label("linear_relu", "compile") in found.text


def test_a_goal_says_what_a_caller_waits_for(root: Path) -> None:
    slow = cells({"eager": 100.0, "fused_backward": 400.0}, dtype="bfloat16", clock="wall")
    lab = read(root, [*cells(HALF, dtype="bfloat16"), *slow], [])
    assert "0.250×" in backward.called(lab, "box")
    found = said(backward.goal(lab, "box"))
    assert backward.called(lab, "box") in found.text
    assert "inside a CUDA graph" in found.title
    assert backward.called(read(root / "none", cells(HALF, dtype="bfloat16"), []), "box") == ""


def test_a_goal_within_the_interval_is_open(root: Path) -> None:
    rows = cells(HALF, dtype="bfloat16")
    rows[-1]["medians_us"] = [30.0, 31.0]
    assert "open" in said(backward.goal(read(root, rows, []), "box")).title
    rows[-1]["medians_us"] = [20.0, 45.0]
    found = said(backward.goal(read(root / "noisy", rows, []), "box"))
    assert found.figure == intervals.TOO_NOISY
    assert "×" not in found.title + found.text


@pytest.mark.parametrize(
    ("second", "title"),
    [
        (300.0, "not the slow one"),
        (55.1, "as much as S002 says"),
        (200.0, "by far not"),
        (285.0, "not the slow one"),
    ],
)
def test_fifteen_milliseconds_are_judged_by_the_whole_step(root: Path, second: float, title: str) -> None:
    found = said(backward.default(read(root, cells({"eager": 290.0, "cublas_relu": second}), []), "box"))
    assert title in found.title


def test_a_step_near_eagers_is_no_gain(root: Path) -> None:
    rows = cells({"eager": 290.0, "cublas_relu": 280.0})
    rows[-1]["medians_us"] = [280.0, 290.0]
    assert "little, if anything" in said(backward.default(read(root, rows, []), "box")).title


def test_the_backward_pass_alone_is_a_step_less_a_forward_pass(root: Path) -> None:
    rows = {row["variant"]: row for row in backward.passes(read(root, GPU, FORWARD), "box")}
    eager = rows[label("linear_relu", "eager")]
    assert eager["backward"].startswith("216")
    assert eager["backward / forward"].startswith("2.87×")
    assert set(rows) == {label("linear_relu", name) for name in ("eager", "cublas_relu", "epilogue")}


def test_a_forward_pass_that_takes_longer_than_the_step_says_nothing(root: Path) -> None:
    lab = read(root, cells({"cublas_relu": 60.0, "eager": 70.0}), FORWARD)
    assert backward.passes(lab, "box") == []


def test_the_epilogue_in_a_whole_step(root: Path) -> None:
    found = said(backward.library(read(root, GPU, FORWARD), "box"))
    assert "1 of 2" in found.text


def test_v2_allocates_more() -> None:
    found = backward.allocation()
    assert found.figure == "1.25×"
    rows = {row["form"]: row for row in backward.allocations()}
    assert [row["new tensors"] for row in rows.values()] == ["2", "1", "1"]
    assert next(iter(rows.values()))["bfloat16"] == "6.29 MB"
    assert sum(backward.made("v2: grad.mul(output.gt(0))", "float32", (2, 3, 4))) == 2 * 4 * (1 + 4)


def test_nothing_is_said_of_what_was_not_measured(root: Path) -> None:
    lab = read(root, [], FORWARD)
    assert backward.findings(lab, "box") == []
    assert backward.parts(lab, "box") == backward.passes(lab, "box") == []
    assert backward.where(lab, "box", "float32") == ""


# ---------------------------------------------------------------- tables


def test_the_parts_add_up_to_the_step(root: Path) -> None:
    lab = read(root, GPU, FORWARD)
    rows = {row["part"]: row for row in backward.parts(lab, "box")}
    assert rows["grad_x = z·W"]["operations"] == "3.29 GFLOP"
    assert rows["mask: z = grad where y > 0"]["bytes"] == "25.2 MB"
    whole = rows["the whole, nothing read twice"]
    assert (whole["operations"], whole["bytes"], whole["least time"]) == ("9.87 GFLOP", "36.1 MB", "197 µs")
    assert backward.where(lab, "box", "bfloat16") == "1024×784×2048 in bfloat16"


def test_without_the_seeds_size_the_largest_one_counts(root: Path) -> None:
    lab = read(root, CPU, CPU_FORWARD, "cpu")
    assert backward.where(lab, "box", "float32") == "256×256×512 in float32"
    assert said(backward.default(lab, "box")).title == "PyTorch's default backward is not the slow one"
    assert backward.goal(lab, "box") is None
    assert backward.library(lab, "box") is None


# ---------------------------------------------------------------- directions are never mixed


def test_a_forward_row_is_no_step(root: Path) -> None:
    lab = read(root, [*cells(STEP), *cells({"eager": 1.0, "cublas_relu": 9.0}, "forward")], [])
    assert said(backward.default(lab, "box")).figure == "0.967×"
    assert {row.direction for row in backward.drawn(lab, "box", "float32")} == {"forward_backward"}


def test_figures_and_tables_tell_directions_apart(root: Path) -> None:
    lab = read(root, cells(STEP), cells({"eager": 75.0, "epilogue": 71.0}, "forward"))
    both = [row for row in lab.rows if row.operation == "linear_relu" and row.variant in ("eager", "epilogue")]
    draw = {
        "slowdowns": lambda rows: comparisons.slowdowns(rows),
        "speedups": lambda rows: comparisons.speedups(rows),
        "times": lambda rows: comparisons.times_against_limit(rows),
        "precision": lambda rows: over_size.precision(rows, "Title"),
        "over_sizes": lambda rows: over_size.over_sizes(rows, "Title"),
    }
    for name, figure in draw.items():
        mixed, table = figure(both)
        text = mixed.to_json()
        assert "forward and backward" in text, name
        assert len(set(table["workload"])) == 2, name
        alone, _ = figure([row for row in both if row.direction == "forward_backward"])
        assert "forward and backward" in alone.layout.title.text, name
    fields, _ = language.split_fields(both)
    assert fields == ["direction"]
    with pytest.raises(comparisons.FigureError, match="one machine and workload at a time"):
        comparisons.ladder(both)
    two = [replace(row, machine=machine) for machine in ("a", "b") for row in both]
    assert len(tables.compare_table(two, "a", "b")) == 2


def test_ratios_and_limits_belong_to_one_direction(root: Path) -> None:
    lab = read(root, [*cells(STEP), *cells({"eager": 75.0, "epilogue": 71.0}, "forward")], [])
    found = {row.direction: row for row in lab.select(variant="epilogue")}
    assert found["forward"].ratio == pytest.approx(75 / 71)
    assert found["forward_backward"].ratio == pytest.approx(290 / 285)
    assert found["forward_backward"].limit_us == pytest.approx(3 * found["forward"].limit_us)


def test_only_starts_are_probed_in_both_directions() -> None:
    for experiment in EXPERIMENTS.values():
        for device in ("cpu", "cuda"):
            for preset in PRESETS:
                probes = experiment.probes(preset, device, ())
                assert {probe.workload.direction for probe in probes if probe.topic != "start"} <= {"forward"}


def test_every_name_is_one_of_the_lab() -> None:
    known = variants("linear_relu")
    for name in (backward.OWN, *backward.RIVALS):
        assert "forward_backward" in known[name].directions
    assert EXPERIMENTS[backward.EXPERIMENT].notebook == backward.PAGE
    assert set(backward.FORWARD) <= set(EXPERIMENTS)


def test_the_chapter_judges_its_own_claims() -> None:
    about = backward.chapter_claims()
    assert {"S001-10", *backward.APART} <= {claim.lead for claim in about}
    assert {claim.id for claim in claims.ledger() if claim.experiment == "backward"} <= {claim.id for claim in about}


# ---------------------------------------------------------------- the chapter


def test_the_chapter_of_a_cpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = read(root, CPU, CPU_FORWARD, "cpu")
    text = played(backward.PAGE, root, monkeypatch)
    for found in (*backward.findings(lab, "box"), backward.allocation()):
        assert f"{found.figure}: {found.title}" in text


def test_the_chapter_of_a_gpu_and_a_cpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(root, CPU, CPU_FORWARD, "cpu")
    lab = read(root, GPU, FORWARD, "cuda", "card")
    text = played(backward.PAGE, root, monkeypatch)
    assert text.index("(card)") < text.index("(box)") < text.index("### On any machine")
    for found in backward.findings(lab, "card"):
        assert f"{found.figure}: {found.title}" in text
    drawn = text.split("S001-10")[0]
    assert "naive" not in drawn


def test_the_chapter_of_a_machine_that_was_never_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_records(root, "box", "cpu", {"ceilings": ceilings(RATES, "hot")})
    assert "On any machine" in played(backward.PAGE, root, monkeypatch)
