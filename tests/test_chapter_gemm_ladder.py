"""The ladder's chapter: findings, tables, the figure and the page, from synthetic records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import cell_line, played, run_line

from hypatia_lab import claims, intervals, records, results
from hypatia_lab.chapters import gemm_ladder
from hypatia_lab.experiments import linear_relu
from hypatia_lab.figures import over_size
from hypatia_lab.figures.language import FigureError
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.records import Record
from hypatia_lab.variants import variants

pytestmark = pytest.mark.usefixtures("two_processes")

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "04_gemm_ladder.ipynb"
SMALL, LARGE = [256, 256, 512], [8192, 4096, 4096]

FLOAT32: dict[str, float] = dict(
    zip((*linear_relu.STEPS, "epilogue", "eager"), (800, 400, 200, 100, 50, 40, 20, 20, 10, 12), strict=True)
)
"""Variant → µs in float32: `step_async` gains nothing, and the epilogue is the quicker library."""
BFLOAT16 = {"step_async": 15, "step_mma": 2, "step_wgmma": 1.25, "triton": 1.3, "epilogue": 1.1, "eager": 1.0}
HOST = {"naive": 800, "blocked": 80, "threaded": 40, "eager": 20}


def cell(variant: str, us: float, dtype: str, shape: Sequence[int], **changes: Any) -> dict[str, Any]:
    """A timed cell of the ladder: two processes 1% apart."""
    batch, inner, outer = shape
    work = {"shape": list(shape), "flops": 2 * batch * inner * outer, "traffic": 4 * batch * outer}
    own = {"dtype": dtype, "medians_us": [us, 1.01 * us], "clock": "graph", "max_error": 1e-6}
    return cell_line(variant=variant, **(work | own | changes))


def cells(times: Mapping[str, float], dtype: str, shape: Sequence[int] = LARGE, **changes: Any) -> list[dict[str, Any]]:
    return [cell(name, us, dtype, shape, **changes) for name, us in times.items()]


def gpu(shape: Sequence[int] = LARGE) -> list[dict[str, Any]]:
    return cells(FLOAT32, "float32", shape) + cells(BFLOAT16, "bfloat16", shape)


def cpu() -> list[dict[str, Any]]:
    return cells(HOST, "float32", SMALL, clock="hot")


def ceilings(clock: str) -> list[dict[str, Any]]:
    own = {"medians_us": [1.0, 1.0], "clock": clock}
    rates = [("float32", 2 * 10**10), ("bfloat16", 4 * 10**11)]
    products = [cell_line(operation="matmul", shape=[9, 9, 9], dtype=dtype, flops=n, **own) for dtype, n in rates]
    return [*products, cell_line(operation="copy", shape=[9], traffic=10**9, flops=0, **own)]


def evidence(*own: dict[str, Any], device: str = "cuda") -> Evidence:
    """Evidence of one machine, ``box``."""

    def record(name: str, lines: Sequence[dict[str, Any]]) -> Record:
        return Record(Path("nowhere"), run_line(experiment=name, device=device), tuple(lines), "")

    found = [record("ceilings", ceilings("graph" if device == "cuda" else "hot")), record("gemm_ladder", own)]
    return Evidence(found, results.rows(found))


def said(found: Finding | None) -> Finding:
    assert found is not None
    return found


# ---------------------------------------------------------------- the ladder itself


def test_every_step_that_is_measured_has_its_place_and_its_reason() -> None:
    measured = [*linear_relu.STEPS, *linear_relu.TENSOR_STEPS, "blocked", "threaded"]
    assert [name for name in gemm_ladder.LADDER if name in measured] == measured
    assert set(gemm_ladder.ORDER) <= set(variants("linear_relu"))
    shown = {number for numbers in gemm_ladder.STEPS.values() for number in numbers}
    assert shown == set(gemm_ladder.REASONS)


def test_the_ledger_shows_the_same_reasons_by_the_same_steps() -> None:
    judged = [claim for claim in gemm_ladder.chapter_claims() if claim.lead in gemm_ladder.REASONED]
    numbers = {claim.id: set(map(int, re.findall(r"\d", claim.claim.partition(" of 8")[0]))) for claim in judged}
    assert set().union(*numbers.values()) == set(gemm_ladder.REASONS)
    for claim in (claim for claim in judged if claim.variant):
        assert numbers[claim.id] <= set(gemm_ladder.STEPS[claim.variant]), claim.id


# ---------------------------------------------------------------- the way up


def test_shares_of_a_climb_add_up_to_one() -> None:
    found = gemm_ladder.climbs(evidence(*gpu(), *gpu(SMALL)), "box")
    assert list(found) == ["256x256x512", "8192x4096x4096"]
    climb = found["8192x4096x4096"]
    assert math.fsum(rung.share for rung in climb.rungs) == pytest.approx(1)
    assert (climb.first.variant, climb.last.dtype, climb.last.variant) == ("naive", "bfloat16", "eager")
    assert climb.whole.value == pytest.approx(800)
    names = [rung.name for rung in climb.rungs]
    assert names == [*linear_relu.STEPS[1:], gemm_ladder.SHORTER, "step_mma", "step_wgmma", gemm_ladder.LEFT]
    coalesced = climb.rungs[0]
    assert coalesced.factor.value == pytest.approx(2)
    assert coalesced.share == pytest.approx(math.log(2) / math.log(800))
    assert next(rung for rung in climb.rungs if rung.name == "step_async").share == pytest.approx(0)


def test_a_climb_on_a_cpu_ends_at_the_library_in_float32() -> None:
    (climb,) = gemm_ladder.climbs(evidence(*cpu(), device="cpu"), "box").values()
    assert [rung.name for rung in climb.rungs] == ["blocked", "threaded", gemm_ladder.LEFT]
    assert climb.last.dtype == "float32"


def test_there_is_no_climb_without_its_foot_or_its_top() -> None:
    without = {name: us for name, us in FLOAT32.items() if name != "naive"}
    assert gemm_ladder.climbs(evidence(*cells(without, "float32")), "box") == {}
    without = {name: us for name, us in FLOAT32.items() if name not in gemm_ladder.LIBRARY}
    assert gemm_ladder.climbs(evidence(*cells(without, "float32")), "box") == {}
    assert gemm_ladder.findings(evidence(), "box") == []


# ---------------------------------------------------------------- findings


def test_most_of_the_way_is_named_and_so_is_what_buys_nothing() -> None:
    found = said(gemm_ladder.reasons(evidence(*gpu()), "box"))
    assert (found.figure, found.title) == (
        "30.1%",
        "No single step makes the library fast; the largest is tensor cores",
    )
    assert "tensor cores 30.1% (step_mma, 7.50×" in found.text
    assert (
        "8 of 9 steps that S001 gives a reason for gain more than 2% at every size; step_async at none." in found.text
    )


def test_one_idea_may_be_half_of_the_way() -> None:
    found = said(gemm_ladder.reasons(evidence(*cpu(), device="cpu"), "box"))
    assert found.title == "Most of the way is one step: memory tiling and register blocking"


@pytest.mark.parametrize(
    ("us", "apart", "title"),
    [
        (1.2, 1.01, "The ladder reaches the goal of 80% of cuBLAS"),
        (1.6, 1.01, "The ladder misses the goal of 80% of cuBLAS by 17.5%"),
        (1.25, 1.02, "Whether the ladder reaches the goal of 80% of cuBLAS is undecided"),
    ],
)
def test_the_goal_is_met_or_missed_by_so_much(us: float, apart: float, title: str) -> None:
    medians = {"medians_us": [us, apart * us]}
    own = [line | (medians if line["variant"] == "step_wgmma" else {}) for line in cells(BFLOAT16, "bfloat16")]
    found = said(gemm_ladder.goal(evidence(*own), "box"))
    assert found.title == title
    assert "cuBLAS (eager)" in found.text
    assert "of the measured ceiling" in found.text


def test_a_goal_at_a_size_that_was_not_measured_is_no_goal() -> None:
    found = said(gemm_ladder.goal(evidence(*cells(BFLOAT16, "bfloat16", SMALL)), "box"))
    assert found.text.endswith("The goal of 80% is set at 8192×4096×4096, which was not measured here.")


def test_float32_stays_behind_or_keeps_up() -> None:
    found = said(gemm_ladder.full_precision(evidence(*gpu()), "box"))
    assert found.figure == "50.0%"
    quick = FLOAT32 | {"step_async": 9}
    lab = evidence(*gpu(), *cells(quick, "float32", SMALL))
    assert (
        said(gemm_ladder.full_precision(lab, "box")).title == "In float32 a product of one's own keeps up at some sizes"
    )
    assert gemm_ladder.goal(evidence(*cpu(), device="cpu"), "box") is None


def test_noise_decides_nothing() -> None:
    noisy: dict[str, Any] = {"medians_us": [1.0, 400.0]}
    own = [line | (noisy if line["variant"] in gemm_ladder.LIBRARY else {}) for line in gpu()]
    found = gemm_ladder.findings(evidence(*own), "box")
    assert len(found) == 3
    assert all(finding.figure == intervals.TOO_NOISY and " [" not in finding.text for finding in found)


# ---------------------------------------------------------------- tables


def test_the_table_of_steps_has_a_column_a_size() -> None:
    lines = gemm_ladder.bought(evidence(*gpu(), *gpu(SMALL)), "box")
    assert list(lines[0]) == ["step", "8192×4096×4096", "256×256×512", "reason of S001"]
    by_step = {line["step"]: line for line in lines}
    assert list(by_step)[-2:] == [gemm_ladder.LEFT, "the whole way"]
    assert by_step["step_coalesced"]["reason of S001"] == "memory coalescing (3) and warp-level cooperation (5)"
    assert by_step["step_mma"]["8192×4096×4096"].endswith(", 30.1%")
    assert by_step["the whole way"]["256×256×512"].endswith(", 100%")
    assert gemm_ladder.bought(evidence(), "box") == []


def test_the_table_of_the_end_leaves_out_what_nobody_measured() -> None:
    lines = gemm_ladder.finish(evidence(*gpu()), "box")
    assert [line["workload"] for line in lines] == ["8192×4096×4096 float32", "8192×4096×4096 bfloat16"]
    assert lines[1]["share of the library"].startswith("80.0% [")
    assert lines[1]["Triton, share"].startswith("76.9% [")
    (line,) = gemm_ladder.finish(evidence(*cpu(), device="cpu"), "box")
    assert not {"library, epilogue", "Triton, share"} & set(line)


def test_a_step_says_what_it_buys_at_the_largest_size() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    assert (
        gemm_ladder.bought_by(lab, "box", "step_shared")
        == "At 8192×4096×4096 it is 2.0 times as fast as the step before."
    )
    assert "as fast as the step before" in gemm_ladder.bought_by(lab, "box", "step_async")
    assert "times" not in gemm_ladder.bought_by(lab, "box", "step_async")
    slower = evidence(*cells(FLOAT32 | {"step_shared": 800}, "float32"))
    assert "it loses: it takes 2.0 times as long" in gemm_ladder.bought_by(slower, "box", "step_shared")
    assert gemm_ladder.bought_by(lab, "box", "naive") == gemm_ladder.bought_by(lab, "box", "blocked") == ""


# ---------------------------------------------------------------- the figure


def test_rungs_draw_a_lane_a_step_and_a_line_a_size() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    with pytest.raises(FigureError, match="one machine, operation and clock"):
        over_size.rungs([*lab.rows, replace(lab.rows[-1], clock="wall")], gemm_ladder.ORDER, "Ladder")
    rows = lab.leading("box", experiment="gemm_ladder")
    figure, table = over_size.rungs(rows, gemm_ladder.ORDER, "Ladder")
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [trace.name for trace in lines if trace.showlegend] == ["256×256×512", "8192×4096×4096"]
    assert [list(trace.y) for trace in lines[:2]] == [list(range(1, 11))] * 2
    assert list(figure.layout.yaxis.ticktext)[:2] == ["naive", "step_<br>coalesced"]
    ceilings_drawn = {trace.x[0] for trace in figure.data if trace.mode == "lines"}
    assert {2e16, 4e17} <= ceilings_drawn
    assert len(table) == len(FLOAT32) * 2 + len(BFLOAT16) * 2
    assert figure.layout.meta["alt"].startswith("Rate of each step on a log axis (linear_relu, graph clock, box).")
    assert figure.to_json() == over_size.rungs(rows, gemm_ladder.ORDER, "Ladder")[0].to_json()


def test_a_step_without_a_time_shows_its_status() -> None:
    left_out = cell("step_multicast", 1.0, "bfloat16", LARGE, status="skipped", reason="no GPU", medians_us=[])
    rows = evidence(*gpu(), left_out).leading("box", experiment="gemm_ladder")
    figure, table = over_size.rungs(rows, gemm_ladder.ORDER, "Ladder")
    assert any(note.text == "<i>skipped</i>" for note in figure.layout.annotations)
    assert any("no GPU" in text for text in table["status"])


# ---------------------------------------------------------------- the page


def write(root: Path, machine: str, device: str, own: Sequence[dict[str, Any]]) -> None:
    """Records of ``machine`` under ``root``, as a measurement leaves them."""
    parts = {"ceilings": ceilings("graph" if device == "cuda" else "hot"), "gemm_ladder": own}
    for name, lines in parts.items():
        records.write(root, run_line(machine=machine, experiment=name, device=device), lines)


@pytest.fixture
def chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Plays the chapter on the records in ``tmp_path``; returns what it displays as text."""
    return lambda: played("04_gemm_ladder", tmp_path, monkeypatch)


def test_the_page_of_a_cpu(chapter: Callable[[], str], tmp_path: Path) -> None:
    write(tmp_path, "box", "cpu", cpu())
    text = chapter()
    assert "In float32 a product of one's own stays behind the library" in text
    assert "void linear_relu_async(" in text  # what a CPU cannot run can be read
    assert "box/gemm_ladder" in text


def test_the_page_of_a_gpu_and_a_cpu(chapter: Callable[[], str], tmp_path: Path) -> None:
    write(tmp_path, "box", "cpu", cpu())
    write(tmp_path, "card", "cuda", [*gpu(), *gpu(SMALL)])
    text = chapter()
    assert text.index("(card)") < text.index("(box)")
    assert "No single step makes the library fast" in text
    assert "bfloat16 for float32" in text
    assert "S001-104" in text


def test_the_page_of_a_machine_that_was_never_asked(chapter: Callable[[], str], tmp_path: Path) -> None:
    write(tmp_path, "box", "cpu", [])
    assert "S001-94" in chapter()


def test_claims_of_the_chapter_can_be_judged() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    verdicts = {row["id"]: row["verdict"] for row in claims.judge(lab.records, gemm_ladder.chapter_claims())}
    assert verdicts["S001-94e"] == "confirmed"
    assert verdicts["S001-94h"] == "not_reproduced"
