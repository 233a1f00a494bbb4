"""The ladder's chapter: findings, tables, the figure and the page, from synthetic records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from synthetic import cell_line, said
from synthetic import evidence as together

from hypatia_lab import claims
from hypatia_lab.chapters import gemm_ladder
from hypatia_lab.chapters.claims_shown import claims_of
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.figures import over_size
from hypatia_lab.figures.language import FigureError
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.variants import label, names, variants

pytestmark = pytest.mark.usefixtures("two_processes")

SMALL, LARGE = [256, 256, 512], [8192, 4096, 4096]

VECTOR = names("linear_relu", "ladder_vector")
FLOAT32: dict[str, float] = dict(
    zip((*VECTOR, "epilogue", "eager"), (800, 400, 200, 100, 50, 40, 20, 20, 10, 12), strict=True)
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
    return together({"ceilings": ceilings("graph" if device == "cuda" else "hot"), "gemm_ladder": own}, device)


# ---------------------------------------------------------------- the ladder itself


def test_every_step_that_is_measured_has_its_place_and_its_reason() -> None:
    planned = {
        name
        for device in ("cpu", "cuda")
        for group in EXPERIMENTS[gemm_ladder.EXPERIMENT].groups("seed", device)
        for name in group.variants
    }
    assert set(gemm_ladder.ladder()) <= planned
    assert set(gemm_ladder.SHOWS) < set(gemm_ladder.ladder())
    assert set(gemm_ladder.order()) <= set(variants("linear_relu"))
    shown = {number for numbers in gemm_ladder.SHOWS.values() for number in numbers}
    assert shown == set(gemm_ladder.REASONS)


def test_the_ledger_shows_the_same_reasons_by_the_same_steps() -> None:
    judged = [claim for claim in claims_of(gemm_ladder.PAGE) if claim.lead in gemm_ladder.REASONED]
    numbers = {claim.id: set(map(int, re.findall(r"\d", claim.claim.partition(" of 8")[0]))) for claim in judged}
    assert set().union(*numbers.values()) == set(gemm_ladder.REASONS)
    for claim in (claim for claim in judged if claim.variant):
        assert numbers[claim.id] <= set(gemm_ladder.SHOWS[claim.variant]), claim.id


# ---------------------------------------------------------------- the way up


def test_a_climb_goes_on_in_half_the_digits_and_ends_at_the_library() -> None:
    found = gemm_ladder.climbs(evidence(*gpu(), *gpu(SMALL)), "box")
    assert list(found) == ["256x256x512", "8192x4096x4096"]
    ways = found["8192x4096x4096"]
    assert {dtype: [rung.row.variant for rung in way] for dtype, way in ways.items()} == {
        "float32": [*VECTOR, "epilogue"],
        "bfloat16": ["step_async", "step_mma", "step_wgmma", "eager"],
    }
    for way in ways.values():
        assert [rung.factor is None for rung in way] == [True] + [False] * (len(way) - 1)
    assert ways["float32"][1].factor == ways["float32"][0].row.over(ways["float32"][1].row)
    shares = {rung.row.variant: rung.share.value for way in ways.values() for rung in way}
    assert shares["step_conflict_free"] == pytest.approx(10 / 20)  # of the library in float32
    assert shares["step_wgmma"] == pytest.approx(1 / 1.25)  # and of that in bfloat16
    assert shares["epilogue"] == shares["eager"] == 1
    assert ways["bfloat16"][0].reasons == ()  # other numbers are no idea


def test_a_climb_on_a_cpu_ends_at_the_library_in_float32() -> None:
    (ways,) = gemm_ladder.climbs(evidence(*cpu(), device="cpu"), "box").values()
    ((dtype, way),) = ways.items()
    assert dtype == "float32"
    assert [rung.row.variant for rung in way] == ["naive", "blocked", "threaded", "eager"]


@pytest.mark.parametrize("lost", [("naive",), gemm_ladder.LIBRARY])
def test_there_is_no_climb_without_its_foot_or_its_top(lost: Sequence[str]) -> None:
    lab = evidence(*cells({name: us for name, us in FLOAT32.items() if name not in lost}, "float32"))
    assert gemm_ladder.climbs(lab, "box") == {}
    assert not gemm_ladder.bought(lab, "box")
    assert not gemm_ladder.by_size(lab, "box")
    assert gemm_ladder.largest(lab, "box") == ""


# ---------------------------------------------------------------- findings


def test_the_largest_step_is_named_and_so_is_what_buys_nothing() -> None:
    found = said(gemm_ladder.reasons(evidence(*gpu()), "box"))
    assert found.figure == "7.5×"
    assert found.title.endswith(label("linear_relu", "step_mma"))
    assert label("linear_relu", "step_async") in found.text
    assert label("linear_relu", "step_shared") not in found.text
    assert "bfloat16" in found.text
    assert "the step before, " + label("linear_relu", "step_async") in found.text
    assert " 80 times " in found.text  # float32 against float32, not against the library in bfloat16


@pytest.mark.parametrize("quick", [1.2, 1.6, 1.25])
def test_the_goal_is_met_missed_or_open(quick: float) -> None:
    medians = {"medians_us": [quick, 1.01 * quick if quick != 1.25 else 1.02 * quick]}
    own = [line | (medians if line["variant"] == "step_wgmma" else {}) for line in cells(BFLOAT16, "bfloat16")]
    found = said(gemm_ladder.goal(evidence(*own), "box"))
    assert {1.2: "reaches the goal", 1.6: "misses the goal", 1.25: "undecided"}[quick] in found.title


def test_a_goal_at_a_size_that_was_not_measured_is_no_goal() -> None:
    found = said(gemm_ladder.goal(evidence(*cells(BFLOAT16, "bfloat16", SMALL)), "box"))
    assert "goal" not in found.title
    assert "not measured" in found.text


def test_float32_stays_behind_or_keeps_up() -> None:
    found = said(gemm_ladder.full_precision(evidence(*gpu()), "box"))
    assert (found.figure, "stays behind" in found.title) == ("50%", True)
    lab = evidence(*gpu(), *cells(FLOAT32 | {"step_async": 9}, "float32", SMALL))
    assert "1 of 2 sizes" in said(gemm_ladder.full_precision(lab, "box")).title
    assert gemm_ladder.goal(evidence(*cpu(), device="cpu"), "box") is None


@pytest.mark.parametrize(
    ("us", "word"), [((0.5, 0.5), "ahead"), ((0.5, 1.0), "1 of 2 sizes"), ((1.0, 1.0), "keeps up"), ((2, 2), "behind")]
)
def test_the_triton_kernel_is_ahead_level_or_behind(us: tuple[float, float], word: str) -> None:
    own = [cells(BFLOAT16 | {"triton": t}, "bfloat16", size) for t, size in zip(us, (SMALL, LARGE), strict=True)]
    assert word in said(gemm_ladder.in_triton(evidence(*own[0], *own[1]), "box")).title
    assert gemm_ladder.in_triton(evidence(*cpu(), device="cpu"), "box") is None


def test_a_size_is_ahead_only_where_it_is_not_equal() -> None:
    own = [cells(BFLOAT16 | {"triton": t}, "bfloat16", size) for t, size in ((0.97, SMALL), (1.0, LARGE))]
    found = said(gemm_ladder.in_triton(evidence(*own[0], *own[1]), "box"))
    assert found.figure == "1.00–1.03×"
    assert "ahead at 256×256×512." in found.text
    assert "equal within 2% at 8192×4096×4096." in found.text


# ---------------------------------------------------------------- tables


def test_the_short_table_speaks_of_the_largest_size() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    bought = gemm_ladder.bought(lab, "box")
    assert list(bought) == ["float32", "bfloat16"]
    lines = {line["step"]: line for line in bought["bfloat16"]}
    mma, triton = (lines[label("linear_relu", name)] for name in ("step_mma", "triton"))
    assert (mma["gain"], mma["of the library"]) == ("7.5×", "50%")
    assert (triton["gain"], triton["of the library"]) == ("–", "77%")
    work = 2 * 8192 * 4096 * 4096
    assert float(mma["TFLOP/s"]) == pytest.approx(work / (2 * 1.005) / 1e6, rel=0.01)
    assert gemm_ladder.largest(lab, "box") == "8192×4096×4096"
    every = gemm_ladder.by_size(lab, "box")
    # Nothing stands before the first of a table, nor before the Triton kernel.
    assert len(every) == sum(map(len, bought.values())) - 3
    assert list(every[0])[2:] == ["8192×4096×4096", "256×256×512"]


def test_the_table_of_the_end_leaves_out_what_nobody_measured() -> None:
    lines = gemm_ladder.finish(evidence(*gpu()), "box")
    assert [line["size"] for line in lines] == ["8192×4096×4096 float32", "8192×4096×4096 bfloat16"]
    assert lines[1]["share of the library"].startswith("80.0% [")
    assert lines[1]["Triton, share"].startswith("76.9% [")
    (line,) = gemm_ladder.finish(evidence(*cpu(), device="cpu"), "box")
    assert "Triton, share" not in line


def test_a_step_says_what_it_buys_at_the_largest_size() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    text = gemm_ladder.bought_by(lab, "box", "step_shared")
    assert "8192×4096×4096" in text
    assert " 2.0 times " in text
    assert "times" not in gemm_ladder.bought_by(lab, "box", "step_async")
    slower = evidence(*cells(FLOAT32 | {"step_shared": 800}, "float32"))
    assert "loses" in gemm_ladder.bought_by(slower, "box", "step_shared")
    mixed = evidence(*gpu(), *cells(FLOAT32 | {"step_shared": 900}, "float32", SMALL))
    gains, loses = gemm_ladder.bought_by(mixed, "box", "step_shared").split(". ")
    assert ("8192×4096×4096" in gains, "loses" in gains) == (True, False)
    assert ("256×256×512" in loses, "loses" in loses) == (True, True)
    assert gemm_ladder.bought_by(lab, "box", "naive") == gemm_ladder.bought_by(lab, "box", "blocked") == ""


# ---------------------------------------------------------------- the figure


def test_rungs_draw_a_row_a_step_and_a_panel_a_size() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    with pytest.raises(FigureError, match="one machine, operation and clock"):
        over_size.rungs([*lab.rows, replace(lab.rows[-1], clock="wall")], gemm_ladder.order(), "Ladder")
    rows = lab.leading("box", experiment="gemm_ladder")
    figure, table = over_size.rungs(rows, gemm_ladder.order(), "Ladder")
    sizes = [note.text for note in figure.layout.annotations if note.text in ("256×256×512", "8192×4096×4096")]
    assert sizes == ["256×256×512", "8192×4096×4096"] * 2
    ways = [trace for trace in figure.data if trace.mode == "lines" and len(trace.y) > 2]
    assert [list(trace.y) for trace in ways[:2]] == [list(range(len(FLOAT32)))] * 2
    steps = [label("linear_relu", name) for name in gemm_ladder.order()]
    assert list(figure.layout.yaxis.ticktext) == [step for step in steps if step in figure.layout.yaxis.ticktext]
    ceilings_drawn = {trace.x[0] for trace in figure.data if trace.mode == "lines"}
    assert {2e16, 4e17} <= ceilings_drawn
    assert len(table) == len(FLOAT32) * 2 + len(BFLOAT16) * 2
    assert figure.layout.meta["alt"].startswith("Rate of each step on a log axis (linear_relu, graph clock, box)")
    assert figure.to_json() == over_size.rungs(rows, gemm_ladder.order(), "Ladder")[0].to_json()


def test_a_step_without_a_time_shows_its_status() -> None:
    left_out = cell("step_multicast", 1.0, "bfloat16", LARGE, status="skipped", reason="no GPU", medians_us=[])
    rows = evidence(*gpu(), left_out).leading("box", experiment="gemm_ladder")
    figure, table = over_size.rungs(rows, gemm_ladder.order(), "Ladder")
    assert any(note.text == "<i>skipped</i>" for note in figure.layout.annotations)
    assert any("no GPU" in text for text in table["status"])


# ---------------------------------------------------------------- the page


def test_claims_of_the_chapter_can_be_judged() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    verdicts = {row.id: row.verdict for row in claims.judge(lab.records, claims_of(gemm_ladder.PAGE))}
    assert verdicts["S001-94e"] == "confirmed"
    assert verdicts["S001-94h"] == "not_reproduced"
