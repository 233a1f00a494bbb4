"""The page on drawn shapes: the draw, the words, the shares, the dispatcher's promise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import Lines, cell_line, evidence, played, write_records

from hypatia_lab import intervals, variants
from hypatia_lab.bench import composer
from hypatia_lab.chapters import untuned
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.experiments import untuned as plan
from hypatia_lab.figures import shares
from hypatia_lab.figures.language import FigureError
from hypatia_lab.intervals import Interval
from hypatia_lab.kernels import linear_relu_cuda
from hypatia_lab.workloads import Workload

OWN = {"triton", "fused", "dispatched", "whole"}


def cells(times: dict[str, float], shape: tuple[int, ...], operation: str = "linear_relu", **changes: Any) -> Lines:
    """Timed cells of six processes within 1%: variant → µs."""
    own = {"dtype": "bfloat16", "math": "ieee", "clock": "graph"} | changes
    work = Workload(operation, shape, own["dtype"], own["math"])
    own |= {"operation": operation, "shape": list(shape), "flops": work.flops, "traffic": work.traffic}
    steps = (1.0, 1.004, 0.998, 1.002, 1.001, 0.999)
    return [
        cell_line(
            variant=name, origin="own" if name in OWN else "peer", medians_us=[us * step for step in steps], **own
        )
        for name, us in times.items()
    ]


MEASURED = [
    *cells({"eager": 10.0, "epilogue": 8.0, "triton": 6.0, "dispatched": 6.0}, (33, 77, 129)),
    *cells({"eager": 10.0, "epilogue": 8.0, "triton": 8.01, "dispatched": 8.0}, (35, 77, 129)),
    *cells({"eager": 10.0, "epilogue": 8.0, "triton": 9.0, "dispatched": 8.8}, (37, 77, 129)),
    *cells({"eager": 20.0, "epilogue": 12.0, "dispatched": 12.0}, (65, 301), "mlp3"),
]


# ---------------------------------------------------------------- the draw


@pytest.mark.parametrize(("experiment", "digest"), [("untuned", "22812b578799"), ("unseen", "1f0694e84702")])
def test_the_shapes_are_the_same_in_every_run(experiment: str, digest: str) -> None:
    """Whoever changes the seed or the ranges throws away what was recorded, and says so here."""
    drawn = {operation: plan.drawn(operation, plan.COUNT["full"], experiment) for operation in plan.FAMILIES}
    assert hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:12] == digest
    for operation, shapes in drawn.items():
        assert len(set(shapes)) == plan.COUNT["full"] >= 60
        assert plan.drawn(operation, plan.COUNT["seed"], experiment) == shapes[: plan.COUNT["seed"]]
        extents = [n for shape in shapes for n in shape]
        share, error = sum(n % 2 for n in extents) / len(extents), (plan.ODD * (1 - plan.ODD) / len(extents)) ** 0.5
        assert abs(share - plan.ODD) < 3 * error
        for shape in shapes:
            assert all(low <= n <= high for n, (low, high) in zip(shape, plan.FAMILIES[operation], strict=True))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("preset", plan.COUNT)
def test_the_plan_is_small_where_it_must_be(preset: str, device: str) -> None:
    groups, looked_at, tuned = (
        composer.plan(name, preset, device) for name in (untuned.UNSEEN, untuned.LOOKED_AT, untuned.TUNED)
    )
    assert not {group.workload for group in groups} & {group.workload for group in looked_at}
    assert bool(looked_at) is (preset == "full")
    kinds = {(group.workload.operation, group.workload.dtype, group.workload.math) for group in groups}
    assert len(kinds) == (6 if device == "cuda" else 3)
    assert len(groups) == len({group.workload for group in groups}) <= plan.COUNT[preset] * len(kinds)
    assert len(tuned) <= (0 if preset == "quick" else 12)
    assert all({"eager", "dispatched"} <= set(group.variants) for group in groups)
    assert all({"eager", "eager@again", "compile_max_autotune"} <= set(group.variants) for group in tuned)
    twins = {group.workload for group in looked_at if "eager@again" in group.variants}
    assert preset != "full" or {group.workload for group in tuned} == twins
    assert all(len(set(group.variants)) == len(group.variants) for group in groups + looked_at + tuned)
    if device == "cuda":
        families = kinds if preset == "quick" else plan.FAMILIES
        assert len(groups) == plan.COUNT[preset] * len(families)
        assert len(tuned) == {"quick": 0, "seed": 2, "full": 12}[preset]
        assert sum(group.budget_s * len(group.variants) for group in groups) < 60 * plan.COUNT[preset] / 60
    if preset == "quick":
        assert len(groups) <= 12


def test_the_page_is_the_experiments() -> None:
    names = (untuned.UNSEEN, untuned.LOOKED_AT, untuned.TUNED)
    assert {EXPERIMENTS[name].notebook for name in names} == {untuned.PAGE}
    known = {*untuned.FORMS, untuned.COMPILED}
    for (operation, _, _), (library, own) in plan.KINDS.items():
        assert set(library) <= known
        assert all(variants.find(operation, name).origin == "own" for name in (*own, "dispatched"))


# ---------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("low", "high", "n", "said"),
    [
        (1.1, 1.2, 8, shares.AHEAD),
        (0.8, 0.9, 8, shares.BEHIND),
        (0.99, 1.01, 8, shares.LEVEL),
        (1.005, 1.015, 8, shares.LEVEL),
        (0.97, 1.05, 8, intervals.TOO_NOISY),
        (0.5, 3.0, 8, intervals.TOO_NOISY),
        (1.1, 1.2, 3, intervals.TOO_FEW),
    ],
)
def test_a_word_follows_from_the_interval(low: float, high: float, n: int, said: str) -> None:
    assert untuned.word(Interval((low * high) ** 0.5, low, high, n)) == said


def test_identical_code_told_apart_says_nothing() -> None:
    assert untuned.word(Interval(1.15, 1.1, 1.2, 8, vetoed=True)) == intervals.TOO_NOISY


def test_each_family_meets_each_peer() -> None:
    lab = evidence({"untuned": MEASURED})
    words = {pair: [said for *_, said in found] for pair, found in untuned.compared(lab, "box").items()}
    linear = "Linear+ReLU, bfloat16"
    assert words == {
        (linear, "eager"): [shares.AHEAD] * 3,
        (linear, "epilogue"): [shares.AHEAD, shares.LEVEL, shares.BEHIND],
        ("three layers, bfloat16", "eager"): [shares.NONE],
        ("three layers, bfloat16", "epilogue"): [shares.NONE],
    }
    (line,) = untuned.where_behind(lab, "box")
    assert (line["family"], line["shape"]) == (linear, "37×77×129")
    assert line["against"] == variants.label("linear_relu", "epilogue")
    assert line["lab's time / the other's"].startswith("1.12×")


def test_counts_are_of_every_peer_and_have_no_empty_column() -> None:
    lines = untuned.counts(evidence({"untuned": MEASURED}), "box")
    assert [list(line) for line in lines] == [
        ["family", "against", "shapes", "ahead", "level", "behind", "no own form"]
    ] * 4
    assert [line["ahead"] for line in lines] == ["3", "1", "0", "0"]
    assert [line["shapes"] for line in lines] == ["3", "3", "1", "1"]


def test_the_quickest_of_the_librarys_forms_may_be_either() -> None:
    first, second = (
        cells({"eager": eager, "epilogue": 8.0, "triton": 6.0}, (n, 77, 129)) for n, eager in ((33, 7.0), (35, 9.0))
    )
    (shapes,) = untuned.families(evidence({"untuned": [*first, *second]}), "box").values()
    assert [other.variant for _, other, _ in untuned.against(shapes, untuned.BEST)] == ["eager", "epilogue"]


def test_channels_last_is_pytorchs_too_but_not_where_the_layout_is_given() -> None:
    times = {"eager": 10.0, "eager_channels_last": 4.0, "triton": 6.0, "dispatched": 8.0}
    lab = evidence({"untuned": cells(times, (2, 33, 20, 30), "conv_block")})
    ((_, rival, said),) = untuned.by_family(lab, "box")["convolution block, bfloat16"]
    assert (rival.variant, said) == ("eager_channels_last", shares.BEHIND)
    (line,) = untuned.dispatched(lab, "box")
    assert line["ahead"] == "1"


@pytest.mark.parametrize(
    ("operation", "shape", "variant", "changes", "said"),
    [
        ("linear_relu", (80, 77, 128), "triton", {}, "uneven rows"),
        ("linear_relu", (80, 80, 129), "triton", {}, "uneven rows"),
        ("linear_relu", (33, 80, 128), "triton", {}, "9 to 63 rows"),
        ("linear_relu", (80, 80, 128), "triton", {}, "not known"),
        ("conv_block", (2, 32, 21, 33), "triton", {}, "not known"),
        ("conv_block", (2, 12, 21, 33), "triton_bf16x3", {"dtype": "float32"}, "three products"),
        ("conv_block", (2, 13, 21, 33), "triton_bf16x3", {"dtype": "float32"}, "uneven rows; three products"),
        ("mlp3", (65, 301), "fused", {}, "uneven rows"),
        ("mlp3", (65, 301), "layers_cuda", {}, "not known"),
    ],
)
def test_reasons_follow_from_the_shape(
    operation: str, shape: tuple[int, ...], variant: str, changes: dict[str, str], said: str
) -> None:
    lines = [line | {"origin": "own"} for line in cells({variant: 9.0}, shape, operation, **changes)]
    lines += cells({"eager": 8.0}, shape, operation, **changes)
    (line,) = untuned.where_behind(evidence({"untuned": lines}), "box")
    assert line["likely reason"] == said


def test_few_rows_are_those_of_the_kernel() -> None:
    assert (linear_relu_cuda.FEW, linear_relu_cuda.SMALL.height) == (untuned.FEW, untuned.TILE_ROWS)


def test_uneven_rows_are_told_beside_even_ones() -> None:
    times = {"eager": 8.0, "triton": 9.0}
    odd, even = (cells(times, (2, n, 20, 30), "conv_block") for n in (33, 32))
    said = untuned.channels(evidence({"untuned": [*odd, *even]}), "box")
    assert "at 1 of 1 shapes with uneven rows (see below), and at 1 of 1 with even ones" in said
    assert untuned.channels(evidence({"untuned": odd}), "box") == ""
    few = cells({"eager": 8.0, "triton": 6.0}, (7, 77, 129))
    said = untuned.any_length(evidence({"untuned": [*MEASURED, *few]}), "box")
    assert "at most 8 rows it is ahead at 1 of 1" in said
    assert "Linear+ReLU is ahead at 2 of 4 shapes with uneven rows. Of all" in said
    assert untuned.any_length(evidence({"untuned": odd}), "box") == ""


def test_who_is_behind_most_often_is_named() -> None:
    lab = evidence({"untuned": MEASURED})
    assert untuned.most_often_behind(lab, "box") == "Most often behind: Linear+ReLU, bfloat16, at 1 of 3 shapes."
    ahead = cells({"eager": 8.0, "triton": 6.0}, (7, 77, 129))
    assert untuned.most_often_behind(evidence({"untuned": ahead}), "box") == ""


def test_what_was_drawn_after_the_last_change_is_shown_where_it_was_measured() -> None:
    block = cells({"eager": 8.0, "triton": 6.0}, (2, 33, 20, 30), "conv_block")
    lab = evidence({"untuned": [*MEASURED, *block]})
    ours, *_ = untuned.findings(lab, "box")
    assert "it is ahead at 1 of 1." in ours.text
    both = evidence({"untuned": MEASURED, "unseen": block})
    assert [found.figure for found in untuned.findings(both, "box")] == ["1 of 1 shapes"]
    assert "after the last change" in untuned.draw(both, "box")
    assert "improved it is ahead at" in untuned.draw(both, "box")
    assert untuned.draw(evidence({"untuned": [line | {"clock": "hot"} for line in block]}, "cpu"), "box") == ""


def test_what_tunes_is_met_at_its_own_shapes() -> None:
    few = cells({"eager": 10.0, "triton": 6.0, "compile_max_autotune": 5.0}, (33, 77, 129))
    lab = evidence({"untuned": MEASURED, "untuned_autotune": few})
    found = untuned.compared(lab, "box")
    assert [said for *_, said in found["Linear+ReLU, bfloat16", "compile_max_autotune"]] == [shares.BEHIND]
    assert [said for *_, said in found["Linear+ReLU, bfloat16", "eager"]] == [shares.AHEAD] * 3
    assert "one shape" in untuned.tuner(lab, "box")
    assert "1 behind" in untuned.tuner(lab, "box")
    assert untuned.tuner(evidence({"untuned": MEASURED}), "box") == ""


def test_the_figure_counts_what_it_draws() -> None:
    figure, table = untuned.figure(evidence({"untuned": MEASURED}), "box")
    assert list(table["of"]) == ["3", "1"]
    assert [name.rpartition(" (")[2] for name in figure.layout.yaxis.ticktext] == ["3)", "1)"]
    drawn = {trace.name: dict(zip(trace.y, trace.text, strict=True)) for trace in figure.data}
    assert drawn == {"ahead": {0: "1"}, "level": {0: "1"}, "behind": {0: "1"}, "no own form": {1: "1"}}
    assert all(base + x <= 100.001 for trace in figure.data for base, x in zip(trace.base, trace.x, strict=True))
    assert "1 ahead, 1 level, 1 behind of 3" in figure.layout.meta["alt"]


def test_nothing_to_count_and_an_unknown_word_are_refused() -> None:
    with pytest.raises(FigureError, match="nothing to count"):
        shares.shares({"a": []}, "t", [])
    with pytest.raises(FigureError, match="no look for sideways"):
        shares.shares({"a": ["sideways"]}, "t", [])


def test_the_dispatcher_is_held_to_its_promise() -> None:
    lab = evidence({"untuned": MEASURED})
    linear, layers = untuned.dispatched(lab, "box")
    assert (linear["ahead"], linear["level"], linear["behind"]) == ("1", "1", "1")
    assert linear[untuned.LATE] == "1 of 3"
    assert linear["slowest"].startswith("37×77×129: 1.10×")
    assert layers[untuned.LATE] == "0 of 1"
    ours, promise = untuned.findings(lab, "box")
    assert ours.figure == "1 of 4 shapes"
    assert ours.text.startswith("On Prozessor für Tests, first draw, in replayed CUDA graphs: ")
    assert "1 ahead, 1 level, 1 behind and 1 no own form." in ours.text
    assert "at 37×77×129, 1.12× the time of" in ours.text
    assert promise.figure == "1 of 4 shapes"
    assert "1 ahead, 2 level and 1 behind." in promise.text
    assert "Slowest: Linear+ReLU at 37×77×129, 1.10× the time." in promise.text


@pytest.mark.parametrize(("device", "clock"), [("cuda", "graph"), ("cpu", "hot")])
def test_the_promise_says_what_the_choice_went_by(device: str, clock: str) -> None:
    lines = [line | {"clock": clock} for line in MEASURED]
    *_, promise = untuned.findings(evidence({"untuned": lines}, device), "box")
    assert ("CUDA graphs" in promise.title) is ("is not tested" in promise.text) is (device == "cuda")


def test_what_is_wrong_is_named() -> None:
    lab = evidence({"untuned": MEASURED})
    assert untuned.right(lab, "box").startswith("**Right:** 15 of 15 answers, ")
    fault = {"status": "wrong", "reason": "wrong values", "medians_us": []}
    lines = [*MEASURED[:-1], MEASURED[-1] | fault]
    said = untuned.right(evidence({"untuned": lines}), "box")
    assert said.startswith("**Right:** 14 of 15 answers, ")
    assert "float64. dispatched at mlp3 65×301" in said
    assert said.endswith("wrong, wrong values.")


def test_without_a_record_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_records(tmp_path, "box", "cpu", {"method": cells({"eager": 1.0}, (3, 5, 7), clock="hot")})
    assert "Not recorded" in played(untuned.PAGE, tmp_path, monkeypatch)
    write_records(tmp_path, "box", "cuda", {"untuned": MEASURED})
    assert "Not recorded" not in played(untuned.PAGE, tmp_path, monkeypatch)
