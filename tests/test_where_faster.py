"""The map of where several layers in one kernel are faster, and the documents' models in one panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from synthetic import cells, evidence

from hypatia_lab import experiments
from hypatia_lab.figures import comparisons, over_size
from hypatia_lab.figures.language import FigureError
from hypatia_lab.operations import safety
from hypatia_lab.operations.mlp import MODELS, WIDEST
from hypatia_lab.results import Row
from hypatia_lab.variants import label, variants

pytestmark = pytest.mark.usefixtures("two_processes")

TOO_WIDE = "the activations do not fit"
SIDES = (("fused", "fused_cuda"), ("eager", "epilogue"), "Map", ("one kernel", "layer by layer"))


def timed(shape: Sequence[int], **times: float) -> list[dict[str, Any]]:
    return cells(times, "mlp3", shape, dtype="bfloat16", max_error=1e-6)


def swept() -> list[Row]:
    """One kernel is faster at width 16, equal or slower at 256, and impossible at 512."""
    lines = []
    for rows in (64, 65536):
        lines += timed((rows, 16), eager=12.0, epilogue=10.0, fused=2.0)
        lines += timed((rows, 256), eager=12.0, epilogue=10.0, fused=10.0 if rows == 64 else 12.0)
        lines += timed((rows, 512), eager=12.0, epilogue=10.0)
        (refused,) = timed((rows, 512), fused=1.0)
        lines.append(refused | {"status": "skipped", "reason": TOO_WIDE, "medians_us": []})
    return evidence({"fused_mlp": lines}).leading("box", experiment="fused_mlp")


def test_the_sizes_of_the_goal_are_measured() -> None:
    planned = {group.workload.shape_text for group in experiments.EXPERIMENTS["fused_mlp"].plan("seed", "cuda", [])}
    assert f"65536x{WIDEST}" in planned


def test_the_map_shows_factors_and_dashes() -> None:
    rows = swept()
    figure, table = over_size.where_faster(rows, *SIDES)
    (drawn,) = figure.plot.data
    assert list(figure.plot.layout.xaxis.ticktext) == ["16", "256", "512"]
    assert [list(line) for line in drawn.text] == [["5.00", "1.00?", "–"], ["5.00", "0.83", "–"]]
    assert list(table["rows"]) == ["64"] * 3 + ["65536"] * 3
    assert table["status"][2] == TOO_WIDE
    plain, _ = over_size.where_faster([row for row in rows if row.shape != "64x256"], *SIDES)
    marks = [any(part.startswith("?") for part in one.under) for one in (figure, plain)]
    assert marks == [True, False]  # a question mark is explained where there is one
    assert figure.to_json() == over_size.where_faster(rows, *SIDES)[0].to_json()


def test_the_map_takes_the_quicker_kernel() -> None:
    lines = [line for width in (64, 128) for line in timed((64, width), eager=9.0, epilogue=8.0, fused=4.0)]
    lines += [*timed((64, 64), fused_cuda=2.0), *timed((64, 128), fused_cuda=8.0)]
    _, table = over_size.where_faster(evidence({"fused_mlp": lines}).leading("box", operation="mlp3"), *SIDES)
    assert list(table["variant"]) == ["fused_cuda", "fused"]


def test_the_map_refuses_what_it_cannot_draw() -> None:
    rows = swept()
    with pytest.raises(FigureError, match="the rows differ in clock"):
        over_size.where_faster([*rows, replace(rows[0], clock="wall")], *SIDES)
    with pytest.raises(FigureError, match="fused or fused_cuda was timed nowhere beside eager or epilogue"):
        over_size.where_faster([row for row in rows if row.variant == "fused"], *SIDES)


def test_the_models_stand_in_one_panel() -> None:
    lines = [
        line for shape in MODELS for line in cells({"eager": 100.0, "aten": 100.0, "epilogue": 90.0}, "mlp", shape)
    ]
    rows = evidence({"mlp_models": lines}).leading("box", experiment="mlp_models", variant=("aten", "epilogue"))
    figure, _ = comparisons.speedups(rows, title="Models", together=True)
    (block,) = figure.blocks
    assert len(block.rows) == len(MODELS)
    assert set(block.panels) == {label("mlp", name) for name in ("aten", "epilogue")}


def test_the_documents_tests_name_who_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = variants("linear_relu")["eager"]
    off = replace(honest, name="off", factory=lambda *given: (lambda run: lambda: run() + 1.0)(honest.factory(*given)))
    monkeypatch.setattr(safety, "comparable", lambda device: ["off"])
    monkeypatch.setattr(safety, "find", lambda operation, name: honest if name == "eager" else off)
    with pytest.raises(AssertionError, match="off: strict: layer 1 is off by"):
        safety.passed()
    with pytest.raises(AssertionError, match=r"off is off by 1\.0e\+00"):
        safety.isolated()
    monkeypatch.setattr(safety, "find", lambda operation, name: honest)
    assert safety.passed()
    assert safety.isolated()


def test_compiled_forms_are_left_out_of_the_documents_tests() -> None:
    found = safety.comparable("cpu")
    assert {"aten", "epilogue"} <= set(found) or found == ["epilogue"]
    assert not [name for name in found if name.startswith("compile") or name == "eager"]
