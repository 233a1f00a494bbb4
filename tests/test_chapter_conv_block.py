"""What is said of the convolution block, from synthetic records: findings, tables, what is tried live, the chapter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import Lines, ceilings, detail_line, evidence_of, said, write_records
from synthetic import cells as timed

from hypatia_lab import check, claims
from hypatia_lab.chapters import conv_block, conv_block_checks
from hypatia_lab.chapters.claims_shown import claims_of
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.operations import conv_block_whole
from hypatia_lab.operations.conv_block import SEED_SHAPE
from hypatia_lab.pages import phrases
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.variants import variants

pytestmark = pytest.mark.usefixtures("two_processes")

SEEDS, SMALL = list(SEED_SHAPE), [1, 64, 64, 64]
RATES = {"ieee": 50.0, "tf32": 350.0, "bfloat16": 700.0}
CONVOLVE, STATISTICS, FINISH = (
    f"void conv_block_{name}<float, float>(float*)" for name in ("convolve", "statistics", "finish")
)


def cells(times: Mapping[str, float], operation: str = "conv_block", **changes: Any) -> Lines:
    """Timed cells of two processes 1% apart, of which a ratio is exact."""
    own = {"shape": SEEDS, "max_error": 3e-6, "peak": 6.0} | changes
    return timed(times, operation, **own)


def checked(names: Mapping[str, float], operation: str = "conv_block", **changes: Any) -> Lines:
    """Cells without a time, by their largest error."""
    rows = cells(dict.fromkeys(names, 1.0), operation, clock="none", **changes)
    for row, error in zip(rows, names.values(), strict=True):
        row |= {"medians_us": [None, None], "samples_us": [], "max_error": error, "calls": 0}
    return rows


def kernels(variant: str, us: Mapping[str, float], **changes: Any) -> Lines:
    """What the tracer listed of one call at the seeds' size."""
    own = {"operation": "conv_block", "shape": SEEDS, "topic": "kernels", "unit": "us", "variant": variant} | changes
    return [detail_line(name=name, values=[time], **own) for name, time in us.items()]


NAIVE = kernels("naive", {CONVOLVE: 9000.0, STATISTICS: 60.0, FINISH: 40.0})
EAGER = kernels(
    "eager", {"cudnn_conv": 200.0, "cudnn::bn_fw_tr_1C11": 28.0, "direct_copy_kernel": 2.0, "GeluCUDAKernel": 20.0}
)
FLOAT32 = {"eager": 250.0, "eager@again": 250.0, "naive": 9100.0, "compile": 260.0, "whole_bf16x3": 55.0}
GPU = [
    *cells(FLOAT32),
    *cells({"eager": 120.0, "triton": 45.0, "whole": 35.0}, math="tf32", max_error=1.7e-3),
    *cells(
        {"eager": 90.0, "naive": 8000.0, "compile": 45.0, "compile_channels_last": 40.0, "whole": 16.0},
        dtype="bfloat16",
    ),
    *cells({"eager": 450.0, "naive": 9300.0, "naive_malloc": 10000.0, "whole_bf16x3_graph": 70.0}, clock="wall"),
    *cells(
        {"eager": 500.0, "eager_channels_last": 320.0, "compile_channels_last": 230.0, "whole": 110.0},
        dtype="bfloat16",
        direction="forward_backward",
    ),
    *cells({"eager": 60.0, "naive": 2000.0, "whole_bf16x3": 20.0}, shape=[1, 64, 128, 128]),
    *checked({"eager": 3e-6, "naive": 4e-6}, "conv_block_tanh"),
    *NAIVE,
    *EAGER,
]
CPU = [
    *cells({"eager": 30e3, "naive": 300e3, "threaded": 150e3}, shape=SMALL, clock="hot"),
    *checked({"eager": 0.02, "naive": 0.02}, dtype="bfloat16", shape=SMALL),
    *kernels("eager", {"aten::conv2d": 20e3, "aten::instance_norm": 9e3, "aten::gelu": 6e3}, shape=SMALL),
    *kernels("naive", {"hypatia::conv_block_pipeline": 300e3}, shape=SMALL),
]


DEFAULTS = [
    *cells({"eager": 100.0, "naive": 9000.0, "naive_malloc": 9900.0}, math="default", max_error=2e-3),
    *cells({"eager": 150.0, "naive": 9300.0, "naive_malloc": 9900.0}, math="default", clock="wall", max_error=2e-3),
    *cells({"eager": 100.0, "naive": 9900.0}, "conv_block_tanh", math="default"),
    *cells({"eager": 160.0, "naive": 9900.0}, "conv_block_tanh", math="default", clock="wall"),
    *cells({"eager": 1.0, "compile": 1.0}),
    *kernels("naive", {CONVOLVE: 9000.0, STATISTICS: 60.0, FINISH: 40.0}, math="default"),
    *kernels("eager", {"tf32_conv": 60.0, "cudnn::bn_fw_tr_1C11": 28.0, "GeluCUDAKernel": 20.0}, math="default"),
]


def read(root: Path, own: Lines, device: str = "cuda", machine: str = "box", defaults: Lines | None = None) -> Evidence:
    """Evidence of one machine, with ceilings; with ``defaults`` where they are given."""
    top = ceilings(RATES, "graph" if device == "cuda" else "hot")
    parts = {"ceilings": top, "conv_block": own} | ({} if defaults is None else {conv_block.DEFAULTS: defaults})
    write_records(root, machine, device, parts)
    return evidence_of(root)


# ---------------------------------------------------------------- findings


def test_time_and_error_are_drawn_at_the_size_that_most_arithmetics_share(tmp_path: Path) -> None:
    small = cells({"eager": 30e3}, shape=SMALL, clock="hot") + cells(
        {"eager": 9e3}, shape=SMALL, clock="hot", dtype="bfloat16"
    )
    large = cells({"eager": 90e3, "compile": 80e3}, clock="hot")  # the seeds' size, in float32 only
    rows = conv_block.under_roof(read(tmp_path / "cpu", small + large, "cpu"), "box")
    assert {(row.shape, row.dtype) for row in rows} == {("1x64x64x64", "float32"), ("1x64x64x64", "bfloat16")}
    rows = conv_block.under_roof(read(tmp_path / "gpu", GPU), "box")
    assert {row.shape for row in rows} == {conv_block.SHAPE}
    assert {row.dtype for row in rows} == {"float32", "bfloat16"}


def test_the_slowdown_is_judged_by_its_range(tmp_path: Path) -> None:
    found = [
        said(conv_block.slower(read(tmp_path / str(times), cells({"eager": 250.0, "naive": 250.0 * times})), "box"))
        for times in (79, 36, 1.5, 0.5)
    ]
    assert [one.figure for one in found] == ["79×", "36×", "1.50×", "0.500×"]
    assert found[0].title == found[1].title
    assert len({one.title for one in found}) == 3


def test_a_slowdown_is_open_or_too_noisy_or_was_not_measured(tmp_path: Path) -> None:
    rows = cells({"eager": 250.0, "naive": 250.0}, clock="hot")
    rows[1]["medians_us"] = [246.0, 258.0]
    found = said(conv_block.slower(read(tmp_path, rows, "cpu"), "box"))
    assert "open" in found.title
    rows[1]["medians_us"] = [100.0, 900.0]
    assert said(conv_block.slower(read(tmp_path / "noisy", rows, "cpu"), "box")).open
    assert conv_block.slower(read(tmp_path / "without", cells({"eager": 1.0}, clock="hot"), "cpu"), "box") is None


def test_the_cause_is_the_convolution_where_it_takes_the_time(tmp_path: Path) -> None:
    found = said(conv_block.cause(read(tmp_path, GPU), "box"))
    assert found.figure == "99%"
    # With the library's convolution: (60 + 40 + 200) / 250.
    assert "1.20×" in found.text
    other = kernels("naive", {CONVOLVE: 100.0, STATISTICS: 600.0, FINISH: 400.0})
    mixed = said(conv_block.cause(read(tmp_path / "other", [*cells(FLOAT32), *other, *EAGER]), "box"))
    assert mixed.title != found.title
    assert conv_block.cause(read(tmp_path / "cpu", CPU, "cpu"), "box") is None


def test_what_allocation_costs_is_read_from_the_wall_clock(tmp_path: Path) -> None:
    found = said(conv_block.allocation(read(tmp_path, GPU), "box"))
    assert (found.figure, "21×" in found.text) == ("1.08×", True)
    same = cells({"eager": 450.0, "naive": 9300.0, "naive_malloc": 9301.0}, clock="wall")
    assert said(conv_block.allocation(read(tmp_path / "same", same), "box")).title != found.title
    assert conv_block.allocation(read(tmp_path / "cpu", CPU, "cpu"), "box") is None


def test_a_card_that_agrees_with_s000_says_why_its_claim_is_not_reproduced(tmp_path: Path) -> None:
    malloc = cells({"naive_malloc": 12000.0}, "conv_block_tanh", math="default", clock="wall")
    top = detail_line(topic="trace", name="top kernel", unit="%", values=[96.0, 96.0], variant="naive", math="default")
    top |= {"operation": "conv_block_tanh", "shape": SEEDS}
    seen = set()
    for name, more in (("judged", [*malloc, top]), ("unjudged", [])):
        lab = read(tmp_path / name, GPU, defaults=[*DEFAULTS, *more])
        for ask in (conv_block.cause, conv_block.allocation):
            found = said(ask(lab, "box"))
            words = {lab.verdicts[one].get("box") for one in found.claims}
            assert ("rewrite" in found.text) is ("not_reproduced" in words), ask
            seen |= words
    assert {"not_reproduced", "not_testable"} <= seen


def test_the_error_is_held_against_the_claimed_one(tmp_path: Path) -> None:
    found = [
        said(conv_block.accuracy(read(tmp_path / str(off), cells({"eager": 1.0, "naive": 2.0}, max_error=off)), "box"))
        for off in (3e-6, 1.4e-3, 5e-3)
    ]
    assert ["float32/ieee" in one.text for one in found] == [False, True, False]  # near in which arithmetic
    assert found[0].title != found[1].title == found[2].title


# ---------------------------------------------------------------- goals


def test_goals_are_reached_missed_or_open(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU)
    lines = conv_block.goals(lab, "box")
    assert [line["reads"] for line in lines] == 5 * ["reached"]
    assert [line["got"].split("×")[0] for line in lines] == ["4.55", "3.43", "5.62", "2.50", "2.0909"]
    assert lines[2]["share of the limit"] == "54.3%"  # bfloat16: 6.1 GFLOP at 700 TFLOP/s
    best = said(conv_block.target(lab, "box"))
    assert (best.figure, "5 of 5" in best.text) == ("up to 5.6×", True)
    slow = [*cells({"eager": 250.0, "whole_bf16x3": 80.0}), *cells({"eager": 90.0, "whole": 18.0}, dtype="bfloat16")]
    slow[-1]["medians_us"] = [17.7, 18.5]
    lab = read(tmp_path / "slow", slow)
    assert [line["reads"] for line in conv_block.goals(lab, "box")] == ["missed", "open"]
    assert "0 of 2" in said(conv_block.target(lab, "box")).text
    behind = read(tmp_path / "behind", cells({"eager": 250.0, "whole_bf16x3": 500.0}))
    assert said(conv_block.target(behind, "box")).title != best.title


def test_a_fast_answer_that_is_too_inexact_misses_its_goal(tmp_path: Path) -> None:
    lab = read(tmp_path, cells({"eager": 250.0, "whole_bf16x3": 10.0}, max_error=2e-4))
    assert conv_block.goals(lab, "box")[0]["reads"] == "missed: the error is too large"


def test_what_a_caller_gains_is_said_where_it_was_timed(tmp_path: Path) -> None:
    called = cells({"eager": 150.0, "whole": 100.0, "triton": 300.0}, dtype="bfloat16", clock="wall")
    text = said(conv_block.target(read(tmp_path, [*GPU, *called]), "box")).text
    assert "1.50×" in text
    # Of either figure it is said whose time it is, for they are of two clocks.
    assert all(words in text for words in ("GPU's work alone", "a caller waits"))
    assert {row.clock for row in conv_block.waiting(evidence_of(tmp_path), "box")} == {"wall"}
    assert conv_block.waiting(read(tmp_path / "cpu", CPU, "cpu"), "box") == []


def test_a_wrong_kernel_and_another_size_reach_nothing(tmp_path: Path) -> None:
    rows = cells({"eager": 250.0, "whole_bf16x3": 10.0})
    rows[-1] |= {"status": "wrong", "reason": "off", "medians_us": [None, None]}
    lab = read(tmp_path, [*rows, *cells({"eager": 60.0, "whole_bf16x3": 1.0}, shape=SMALL)])
    assert conv_block.goals(lab, "box") == []
    assert conv_block.target(lab, "box") is None


# ---------------------------------------------------------------- tables


def test_every_part_has_its_own_limit_and_the_loops_that_of_their_arithmetic(tmp_path: Path) -> None:
    lines = conv_block.breakdown(read(tmp_path / "ieee", GPU), "box")
    parts = ["convolution", "statistics", "normalise and GELU", "convolution", "normalisation", "GELU"]
    assert [line["part"] for line in lines] == parts
    # 6.04 GFLOP at 50 TFLOP/s; 21 MB and 42 MB at 4 TB/s.
    assert [line["least time"] for line in lines[:3]] == ["121 µs", "5.24 µs", "10.5 µs"]
    assert (lines[0]["share of the call"], lines[0]["share of the limit"]) == ("98.9%", "1.34%")
    lines = conv_block.breakdown(read(tmp_path, GPU, defaults=DEFAULTS), "box")
    assert [lines[0]["least time"], lines[3]["least time"]] == ["121 µs", "17.3 µs"]  # at 50 and at 350 TFLOP/s


def test_pytorchs_default_leads_and_ieee_stands_beside_it(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU, defaults=DEFAULTS)
    found = said(conv_block.slower(lab, "box"))
    assert (found.figure, phrases.FLOAT32["default"] in found.text) == ("90×", True)
    # With the library's convolution: (60 + 40 + 60) / 108.
    assert "1.48×" in said(conv_block.cause(lab, "box")).text
    found = said(conv_block.allocation(lab, "box"))
    assert (found.figure, "62×" in found.text) == ("1.06×", True)
    assert {row.math for row in conv_block.loops(lab, "box")} == {"default", "ieee"}
    assert {row.math for row in conv_block.called(lab, "box")} == {"default"}
    assert {line["math"] for line in conv_block.traced(lab, "box")} == {"default"}
    lines = conv_block.errors(lab, "box")
    assert lines[0]["float32/default"] == lines[1]["float32/default"] == "0.00200"


def test_a_cpu_has_one_arithmetic(tmp_path: Path) -> None:
    own = cells({"eager": 30e3, "naive": 60e3}, math="default", shape=SMALL, clock="hot")
    found = said(conv_block.slower(read(tmp_path, CPU, "cpu", defaults=own), "box"))
    assert (found.figure, phrases.FLOAT32["default"] in found.text) == ("10×", False)


def test_errors_stand_by_gelu_and_dtype_and_a_rejection_shows(tmp_path: Path) -> None:
    rows = [*GPU, *checked({"eager": 0.03}, dtype="float16")]
    rows[-1] |= {"status": "wrong", "reason": "off"}
    lines = conv_block.errors(read(tmp_path, rows), "box")
    assert [line["GELU"] for line in lines][-2:] == ["tanh", "tanh"]
    assert (lines[0]["float32/tf32"], lines[0]["float16/ieee"]) == ("0.00170", "0.0300, wrong")
    assert (lines[-1]["float32/ieee"], lines[-1]["float32/tf32"]) == ("4.00e-06", "–")


def test_skipped_variants_are_not_counted_and_wrong_ones_are_named(tmp_path: Path) -> None:
    rows = checked({"eager": 1e-6, "naive": 1e-6, "whole": 1e-6}, shape=[1, 3, 97, 131])
    rows[1] |= {"status": "wrong", "reason": "off"}
    rows[2] |= {"status": "skipped", "reason": "3 channels"}
    (line,) = conv_block_checks.checked(read(tmp_path, rows), "box")
    assert line["right"] == "1 of 2"
    assert line["not right"] == "naive float32: wrong"


# ---------------------------------------------------------------- tried live


def test_statistics_by_tile_are_caught_where_a_plane_has_more_than_one() -> None:
    lines = conv_block_checks.planted()
    assert (lines[0]["by tile"], lines[0]["by plane"]) == ("right", "right")
    for line in lines[1:]:
        assert line["by tile"] == "rejected: statistics per tile instead of per plane"
        assert line["by plane"] == "right"
    found = conv_block_checks.fault(lines)
    assert found.figure == "2 of 3"


def test_a_check_that_sees_nothing_would_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "check", lambda run, problem: check.Check(""))
    assert conv_block_checks.fault(conv_block_checks.planted()).title == "The planted mistake is not told apart"


def test_the_two_gelus_lie_closer_than_the_claimed_error() -> None:
    found = conv_block_checks.gelus()
    assert found.figure == "0.000473"


# ---------------------------------------------------------------- names


def test_the_page_names_the_sizes_that_the_one_kernel_takes() -> None:
    taken = [width for width in range(1, 400) if conv_block_whole.fits((1, 64, 16, width), 64, torch.bfloat16, "ieee")]
    assert taken == list(range(taken[0], taken[-1] + 1))
    page = (Path(__file__).resolve().parent.parent / "notebooks" / f"{conv_block.PAGE}.ipynb").read_text()
    assert f"64 channels and rows of {taken[0]} to {taken[-1]} pixels" in page


def test_every_name_is_one_of_the_lab() -> None:
    known = variants("conv_block")
    peers = {name for goal in conv_block.GOALS for name in goal.peers}
    assert {*conv_block.OWN, *conv_block.LOOPS, *peers} <= set(known)
    assert EXPERIMENTS[conv_block.EXPERIMENT].notebook == conv_block.PAGE
    assert set(conv_block.EXPERIMENTS) == set(phrases.FLOAT32)
    assert set(conv_block.EXPERIMENTS.values()) <= set(EXPERIMENTS)
    planned = EXPERIMENTS[conv_block.EXPERIMENT].plan("seed", "cuda", ())
    for goal in conv_block.GOALS:
        (group,) = (
            group
            for group in planned
            if group.clocks == ("graph",)
            and (group.workload.shape, group.workload.dtype, group.workload.math, group.workload.direction)
            == (SEED_SHAPE, goal.dtype, goal.math, goal.direction)
        )
        assert {*goal.peers} & {*group.variants}
        assert {*conv_block.OWN} & {*group.variants}


def test_what_is_claimed_of_the_kernels_is_found_in_the_records(tmp_path: Path) -> None:
    top = kernels("naive", {"top kernel": 98.9}, topic="trace", unit="%", math="default")
    lab = read(tmp_path, GPU, defaults=[*DEFAULTS, *top])
    own = [claim for claim in claims_of(conv_block.PAGE) if claim.experiment in conv_block.EXPERIMENTS.values()]
    judged = [row for row in claims.judge(lab.records, own) if row.machine == "box"]
    measured = {row.id for row in judged if not math.isnan(row.measured)}
    expected = {claim.id for claim in own if not claim.untestable}
    assert measured >= expected
    assert len(expected) > 8
