"""What is said of gradients, from synthetic records: findings, tables, the live count and the chapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import Lines, ceilings, evidence_of, said, write_records
from synthetic import cells as timed

from hypatia_lab import intervals, tables
from hypatia_lab.chapters import backward
from hypatia_lab.experiments import EXPERIMENTS, PRESETS, units
from hypatia_lab.figures import comparisons, language, over_size
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.variants import label, variants

pytestmark = pytest.mark.usefixtures("two_processes")

SMALL, MEDIUM = [256, 256, 512], [1024, 784, 2048]
RATES = {"ieee": 50.0, "bfloat16": 760.0}


def cells(times: Mapping[str, float], direction: str = "forward_backward", **changes: Any) -> Lines:
    """Timed cells of two processes 1% apart, of which a ratio is exact."""
    rows = timed(times, direction=direction, **changes)
    return [row | {"origin": "own"} if row["variant"] == backward.OWN else row for row in rows]


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


def read(tmp_path: Path, own: Lines, forward: Lines, device: str = "cuda", machine: str = "box") -> Evidence:
    """Evidence of one machine, with ceilings and forward passes."""
    top = ceilings(RATES, "graph" if device == "cuda" else "hot")
    write_records(tmp_path, machine, device, {"ceilings": top, "aten_fusion": forward, "backward": own})
    return evidence_of(tmp_path)


# ---------------------------------------------------------------- findings


@pytest.mark.parametrize(
    ("own", "figure", "title"),
    [(29.0, "1.37×", "pays inside"), (33.0, "1.20×", "less than"), (45.0, "0.882×", "not pay")],
)
def test_the_goal_is_judged_against_the_better_rival(tmp_path: Path, own: float, figure: str, title: str) -> None:
    lab = read(tmp_path, cells(HALF | {"fused_backward": own}, dtype="bfloat16"), [])
    found = said(backward.goal(lab, "box"))
    assert found.figure == figure
    assert title in found.title
    assert label("linear_relu", "compile") in found.text


def test_a_peer_that_is_quicker_than_the_rivals_is_named(tmp_path: Path) -> None:
    rows = cells(HALF | {"nvmath": 34.8}, dtype="bfloat16")
    found = said(backward.goal(read(tmp_path, rows, []), "box"))
    assert found.figure == "1.37×"
    assert f"{label('linear_relu', 'nvmath')}, which is quicker, it is 1.20×" in found.text
    rows = cells(HALF | {"nvmath": 41.0}, dtype="bfloat16")
    assert "quicker" not in said(backward.goal(read(tmp_path / "slower", rows, []), "box")).text


def test_a_goal_says_what_a_caller_waits_for(tmp_path: Path) -> None:
    slow = cells({"eager": 100.0, "fused_backward": 400.0}, dtype="bfloat16", clock="wall")
    lab = read(tmp_path, [*cells(HALF, dtype="bfloat16"), *slow], [])
    assert "0.25×" in backward.called(lab, "box")
    found = said(backward.goal(lab, "box"))
    assert backward.called(lab, "box") in found.text
    assert "inside a CUDA graph" in found.title
    assert backward.called(read(tmp_path / "none", cells(HALF, dtype="bfloat16"), []), "box") == ""


def test_a_goal_within_the_interval_is_open(tmp_path: Path) -> None:
    rows = cells(HALF, dtype="bfloat16")
    rows[-1]["medians_us"] = [30.0, 31.0]
    assert "open" in said(backward.goal(read(tmp_path, rows, []), "box")).title
    rows[-1]["medians_us"] = [20.0, 45.0]
    found = said(backward.goal(read(tmp_path / "noisy", rows, []), "box"))
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
def test_fifteen_milliseconds_are_judged_by_the_whole_step(tmp_path: Path, second: float, title: str) -> None:
    found = said(backward.default(read(tmp_path, cells({"eager": 290.0, "cublas_relu": second}), []), "box"))
    assert title in found.title


def test_a_step_near_eagers_is_no_gain(tmp_path: Path) -> None:
    rows = cells({"eager": 290.0, "cublas_relu": 280.0})
    rows[-1]["medians_us"] = [280.0, 290.0]
    assert "little, if anything" in said(backward.default(read(tmp_path, rows, []), "box")).title


def test_the_backward_pass_alone_is_a_step_less_a_forward_pass(tmp_path: Path) -> None:
    rows = {row["variant"]: row for row in backward.passes(read(tmp_path, GPU, FORWARD), "box")}
    eager = rows[label("linear_relu", "eager")]
    assert eager["backward"].startswith("216")
    assert eager["backward / forward"].startswith("2.87×")
    assert set(rows) == {label("linear_relu", name) for name in ("eager", "cublas_relu", "epilogue")}


def test_a_forward_pass_that_takes_longer_than_the_step_says_nothing(tmp_path: Path) -> None:
    lab = read(tmp_path, cells({"cublas_relu": 60.0, "eager": 70.0}), FORWARD)
    assert backward.passes(lab, "box") == []


def test_the_epilogue_in_a_whole_step(tmp_path: Path) -> None:
    found = said(backward.library(read(tmp_path, GPU, FORWARD), "box"))
    assert "1 of 2" in found.text


@pytest.mark.parametrize(("us", "figure", "title"), [(100.0, "2.9×", "gains from"), (288.0, "1.01×", "no gain")])
def test_three_float16_products_count_at_their_quickest(us: float, figure: str, title: str, tmp_path: Path) -> None:
    lab = read(tmp_path, cells(STEP | {"fp16x3_backward": 289.0, "fp16x3_cuda": us}), [])
    found = said(backward.split(lab, "box"))
    assert found.figure == figure
    assert title in found.title
    assert not found.claims
    assert "graph clock" in found.text
    assert backward.split(read(tmp_path / "none", cells(STEP), []), "box") is None


def test_a_noisy_gain_of_three_float16_products_has_no_figure(tmp_path: Path) -> None:
    rows = cells({"eager": 290.0, "fp16x3_cuda": 100.0})
    rows[-1]["medians_us"] = [50.0, 150.0]
    found = said(backward.split(read(tmp_path, rows, []), "box"))
    assert found.figure == intervals.TOO_NOISY
    assert "×" not in found.title + found.text


def test_v2_allocates_more() -> None:
    found = backward.allocation()
    assert found.figure == "1.25×"
    assert "In bfloat16 it is 1.50×." in found.text
    rows = {row["form"]: row for row in backward.allocations()}
    assert [row["new tensors"] for row in rows.values()] == ["2", "1", "1"]
    assert next(iter(rows.values()))["bfloat16"] == "6.29 MB"
    assert sum(backward.made("v2: grad.mul(output.gt(0))", "float32", (2, 3, 4))) == 2 * 4 * (1 + 4)


# ---------------------------------------------------------------- tables


def test_the_parts_add_up_to_the_step(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU, FORWARD)
    rows = {row["part"]: row for row in backward.parts(lab, "box")}
    assert rows["grad_x = z·W"]["operations"] == "3.29 GFLOP"
    assert rows["mask: z = grad where y > 0"]["bytes"] == "25.2 MB"
    whole = rows["the whole, nothing read twice"]
    assert (whole["operations"], whole["bytes"], whole["least time"]) == ("9.87 GFLOP", "36.1 MB", "197 µs")
    assert backward.where(lab, "box", "bfloat16") == "1024×784×2048 in bfloat16"


def test_without_the_seeds_size_the_largest_one_counts(tmp_path: Path) -> None:
    lab = read(tmp_path, CPU, CPU_FORWARD, "cpu")
    assert backward.where(lab, "box", "float32") == "256×256×512 in float32"
    assert said(backward.default(lab, "box")).title == "PyTorch's default backward is not the slow one"
    assert backward.goal(lab, "box") is None
    assert backward.library(lab, "box") is None


# ---------------------------------------------------------------- directions are never mixed


def test_a_forward_row_is_no_step(tmp_path: Path) -> None:
    lab = read(tmp_path, [*cells(STEP), *cells({"eager": 1.0, "cublas_relu": 9.0}, "forward")], [])
    assert said(backward.default(lab, "box")).figure == "0.967×"
    assert {row.direction for row in backward.drawn(lab, "box", "float32")} == {"forward_backward"}


def test_figures_and_tables_tell_directions_apart(tmp_path: Path) -> None:
    lab = read(tmp_path, cells(STEP), cells({"eager": 75.0, "epilogue": 71.0}, "forward"))
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


def test_ratios_and_limits_belong_to_one_direction(tmp_path: Path) -> None:
    lab = read(tmp_path, [*cells(STEP), *cells({"eager": 75.0, "epilogue": 71.0}, "forward")], [])
    found = {row.direction: row for row in lab.select(variant="epilogue")}
    assert found["forward"].ratio == pytest.approx(75 / 71)
    assert found["forward_backward"].ratio == pytest.approx(290 / 285)
    assert found["forward_backward"].limit_us == pytest.approx(3 * found["forward"].limit_us)


def test_only_starts_and_busy_units_are_probed_in_both_directions() -> None:
    for experiment in EXPERIMENTS.values():
        for device in ("cpu", "cuda"):
            for preset in PRESETS:
                probes = experiment.probes(preset, device, ())
                rest = [probe for probe in probes if probe.topic != "start" and probe.case != units.CASE]
                assert {probe.workload.direction for probe in rest} <= {"forward"}


def test_every_name_is_one_of_the_lab() -> None:
    known = variants("linear_relu")
    for name in (backward.OWN, *backward.RIVALS):
        assert "forward_backward" in known[name].directions
    assert EXPERIMENTS[backward.EXPERIMENT].notebook == backward.PAGE
    assert set(backward.FORWARD) <= set(EXPERIMENTS)
