"""The chapter of MLPs in one kernel: findings, tables, the map and the page, from synthetic records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from synthetic import cell_line, said
from synthetic import cells as timed
from synthetic import evidence as together

from hypatia_lab import claims, experiments
from hypatia_lab.chapters import fused_mlp
from hypatia_lab.chapters.claims_shown import claims_of
from hypatia_lab.figures import comparisons, over_size
from hypatia_lab.figures.language import FigureError
from hypatia_lab.operations import safety
from hypatia_lab.operations.mlp import MODELS, WIDEST
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.variants import Variant, label, variants
from hypatia_lab.workloads import Workload, operations

pytestmark = pytest.mark.usefixtures("two_processes")

TOO_WIDE = "the activations do not fit"


def cell(variant: str, us: float, shape: Sequence[int], operation: str = "mlp3", **changes: Any) -> dict[str, Any]:
    """A timed cell: two processes 1% apart."""
    dtype = "float32" if operation == "mlp" else "bfloat16"
    (found,) = timed({variant: us}, operation, shape, **{"dtype": dtype, "max_error": 1e-6} | changes)
    return found


def cells(times: Mapping[str, float], shape: Sequence[int], operation: str = "mlp3", **changes: Any) -> list[dict]:
    return [cell(name, us, shape, operation, **changes) for name, us in times.items()]


def goal(fused: float = 4.0) -> list[dict[str, Any]]:
    """Both sizes of the goal, with every peer."""
    peers = {"eager": 30.0, "epilogue": 24.0, "compile": 25.0, "compile_max_autotune": 20.0}
    times = {**peers, "fused": fused}
    return [
        line for width in (64, 128) for line in cells({n: us * width / 64 for n, us in times.items()}, (65536, width))
    ]


def sweep() -> list[dict[str, Any]]:
    """One kernel is faster up to width 128, equal or slower at 256, and impossible at 512."""
    lines = []
    for rows in (64, 65536):
        for width, fused in ((16, 2.0), (256, 10.0 if rows == 64 else 12.0)):
            lines += cells({"eager": 12.0, "epilogue": 10.0, "fused": fused}, (rows, width))
        lines += cells({"eager": 12.0, "epilogue": 10.0}, (rows, 512))
        lines.append(cell("fused", 1.0, (rows, 512), status="skipped", reason=TOO_WIDE, medians_us=[]))
    return lines


def nine(plan_c: float = 100.0, **changes: Any) -> list[dict[str, Any]]:
    times = {"eager": 100.0, "eager@again": 100.0, "aten": plan_c, "epilogue": 90.0}
    shapes = [(32, 784, 256, 2, 10), *MODELS]
    return [line for shape in shapes for line in cells(times, shape, "mlp", **changes)]


CPU_LINES = [
    *cells({"eager": 100.0, "compile": 90.0, "epilogue": 100.0}, (1024, 64), clock="hot", dtype="float32"),
    *nine(clock="hot"),
]


def ceilings(clock: str) -> list[dict[str, Any]]:
    """6 TB/s by the clock of verdicts, 4 TB/s with cold caches."""
    rates = ((clock, 6 * 10**9), ("cold", 4 * 10**9))
    copies = [
        cell_line(operation="copy", shape=[9], traffic=n, flops=0, clock=c, medians_us=[1000.0] * 2) for c, n in rates
    ]
    products = [
        cell_line(operation="matmul", shape=[9, 9, 9], dtype=d, flops=8 * 10**11, clock=clock, medians_us=[1000.0] * 2)
        for d in ("bfloat16", "float32")
    ]
    return copies + products


def evidence(*own: dict[str, Any], device: str = "cuda") -> Evidence:
    """Evidence of one machine, ``box``."""
    parts = {
        "ceilings": ceilings("graph" if device == "cuda" else "hot"),
        "fused_mlp": [line for line in own if line["operation"] != "mlp"],
        "mlp_models": [line for line in own if line["operation"] == "mlp"],
    }
    return together(parts, device)


# ---------------------------------------------------------------- the goal


def test_the_sizes_of_the_goal_are_measured() -> None:
    planned = {group.workload.shape_text for group in experiments.EXPERIMENTS["fused_mlp"].plan("seed", "cuda", [])}
    assert set(fused_mlp.GOAL_SHAPES) <= planned
    assert f"{fused_mlp.ROWS}x{WIDEST}" in planned


def test_the_goal_is_met_missed_or_met_at_one_width() -> None:
    met, missed = (said(fused_mlp.goal(evidence(*goal(fused)), "box")) for fused in (4.0, 9.0))
    assert "46%" in missed.text  # of the bandwidth, and not half
    lines = [line for line in goal() if line["shape"] == [65536, 64]]
    lines += [line for line in goal(9.0) if line["shape"] == [65536, 128]]
    once = said(fused_mlp.goal(evidence(*lines), "box"))
    assert len({one.title for one in (met, missed, once)}) == 3
    near = goal()
    next(line for line in near if line["variant"] == "fused")["medians_us"] = [5.9, 6.1]
    found = said(fused_mlp.goal(evidence(*near), "box"))
    assert found.title not in {one.title for one in (met, missed, once)}
    assert "At width 64 it is undecided" in found.text


def test_the_quicker_kernel_counts() -> None:
    lines = [line for line in goal(7.0) if line["variant"] != "fused"]
    both = [
        line for width in (64, 128) for line in cells({"fused": 7.0, "fused_cuda": 4.0 * width / 64}, (65536, width))
    ]
    lab = evidence(*lines, *both)
    assert [line["by"] for line in fused_mlp.goals(lab, "box")] == [
        label("mlp3", name) for name in ("fused_cuda", "fused")
    ]
    figure, table = over_size.where_faster(
        fused_mlp.swept(lab, "box"), fused_mlp.ONE_KERNEL, fused_mlp.LAYERWISE, "Map", fused_mlp.SIDES
    )
    assert len(table) == 2


def test_limits_of_the_goal() -> None:
    lines = {line["rows × width"]: line for line in fused_mlp.goals(evidence(*goal()), "box")}
    small = lines["65536×64"]
    moved = Workload("mlp3", (65536, 64), "bfloat16").traffic
    took = 4.02e-6
    assert small["of a cached copy's"] == f"{100 * moved / 6e12 / took:.1f}%"
    assert small["of memory's bandwidth"] == f"{100 * moved / 4e12 / took:.0f}%"
    assert small["against eager"].startswith("7.50×")
    assert lines["65536×128"]["of the whole limit"] == "100%"
    assert fused_mlp.goals(evidence(), "box") == []


# ---------------------------------------------------------------- where it pays


def test_the_crossover_is_where_it_stops_being_faster() -> None:
    found = said(fused_mlp.crossover(evidence(*sweep()), "box"))
    assert found.figure == "up to width 16"
    assert "never surely faster at width 256" in found.text
    assert "At width 256 it is slower with 65536 rows." in found.text
    few = [line for line in sweep() if (line["variant"], line["shape"]) != ("fused", [64, 16])]
    found = said(fused_mlp.crossover(evidence(*few, cell("fused", 15.0, (64, 16))), "box"))
    assert found.figure == "up to width 16, with many rows"
    assert "At width 16 it is slower with 64 rows." in found.text
    slower = evidence(*(line for line in sweep() if line["shape"] != [64, 256]))
    assert "At width 256 it is slower" in said(fused_mlp.crossover(slower, "box")).text
    narrow = evidence(*(line for line in sweep() if line["shape"][1] != 256))
    assert TOO_WIDE in said(fused_mlp.crossover(narrow, "box")).text


def test_a_width_whose_cuda_kernel_was_not_measured_is_told() -> None:
    assert fused_mlp.lacking(evidence(*sweep()), "box") == ""  # of a machine that has none
    some = [*sweep(), *(cell("fused_cuda", 1.0, (rows, 16)) for rows in (64, 65536))]
    assert "At width 256 " in fused_mlp.lacking(evidence(*some), "box")
    every = [*some, *(cell("fused_cuda", 1.0, (rows, 256)) for rows in (64, 65536))]
    assert fused_mlp.lacking(evidence(*every), "box") == ""


def test_the_map_shows_factors_and_dashes() -> None:
    rows = fused_mlp.swept(evidence(*sweep()), "box")
    args = (rows, fused_mlp.ONE_KERNEL, fused_mlp.LAYERWISE, "Map", fused_mlp.SIDES)
    figure, table = over_size.where_faster(*args)
    (cells_drawn,) = figure.data
    assert list(figure.layout.xaxis.ticktext) == ["16", "256", "512"]
    assert [list(line) for line in cells_drawn.text] == [["5.00", "1.00?", ""], ["5.00", "0.83", ""]]
    assert [(note.text, note.x, note.y) for note in figure.layout.annotations] == [("–", 2, 0), ("–", 2, 1)]
    assert list(table["rows"]) == ["64"] * 3 + ["65536"] * 3
    assert table["status"][2] == TOO_WIDE
    assert "2 faster, 1 equal and 1 slower" in figure.layout.meta["alt"]
    sure = [row for row in rows if row.shape != "64x256"]
    plain, _ = over_size.where_faster(sure, *args[1:])
    marks = [any(part.startswith("?") for part in one.layout.meta["under"]) for one in (figure, plain)]
    assert marks == [True, False]  # a question mark is explained where there is one
    assert figure.to_json() == over_size.where_faster(*args)[0].to_json()


def test_the_map_refuses_what_it_cannot_draw() -> None:
    rows, told = fused_mlp.swept(evidence(*sweep()), "box"), ("Map", fused_mlp.SIDES)
    with pytest.raises(FigureError, match="the rows differ in clock"):
        over_size.where_faster(
            [*rows, replace(rows[0], clock="wall")], fused_mlp.ONE_KERNEL, fused_mlp.LAYERWISE, *told
        )
    alone = [row for row in rows if row.variant == "fused"]
    with pytest.raises(FigureError, match="fused or fused_cuda was timed nowhere beside eager or epilogue"):
        over_size.where_faster(alone, fused_mlp.ONE_KERNEL, fused_mlp.LAYERWISE, *told)


def test_a_cpu_has_no_map_and_says_why() -> None:
    lab = evidence(*CPU_LINES, device="cpu")
    assert fused_mlp.swept(lab, "box") == []
    assert fused_mlp.untimed(lab, "box") == "it needs a GPU"
    assert fused_mlp.crossover(lab, "box") is None
    refused = cell("fused", 1.0, (64, 16), status="crashed", reason="no driver", medians_us=[])
    assert fused_mlp.untimed(evidence(refused), "box") == "no driver"


# ---------------------------------------------------------------- what S004 expects


def test_what_was_hoped_of_several_layers() -> None:
    more, some, same, less = (
        said(fused_mlp.hoped(evidence(*lines), "box"))
        for lines in (goal(), [*goal(), *sweep()], goal(26.0), goal(29.0))
    )
    assert len({one.title for one in (more, some, same, less)}) == 4
    assert (same.figure, less.figure) == ("1.15×", "1.03×")


@pytest.mark.parametrize(("plan_c", "figure"), [(100.5, "9 of 9"), (110, "0 of 9")])
def test_plan_c_in_nine_models(plan_c: float, figure: str) -> None:
    found = said(fused_mlp.models(evidence(*nine(plan_c)), "box"))
    assert found.figure == figure
    assert "only a rewrite" in found.text  # why the ledger says no more than not reproduced


def test_the_models_stand_in_one_panel() -> None:
    lab = evidence(*nine())
    rows = [row for row in fused_mlp.model_rows(lab, "box") if row.variant in fused_mlp.NAMES]
    title = fused_mlp.models_title(rows)
    assert title == "Faster than eager: Plan C in 0 of 9 models, epilogue in 9 of 9 models"
    figure, _ = comparisons.speedups(rows, title=title, together=True)
    assert len(figure.layout.yaxis.ticktext) == len(MODELS)
    assert "yaxis2" not in figure.layout
    assert {trace.name for trace in figure.data if trace.showlegend} == {
        label("mlp", name) for name in ("aten", "epilogue")
    }
    assert figure.layout.showlegend


def test_plan_c_where_only_some_models_tell() -> None:
    rows = nine(100.0)
    for place, row in enumerate(row for row in rows if row["variant"] == "aten"):
        row["medians_us"] = [120.0, 120.0] if place < 4 else [90.0, 112.0]
    found = said(fused_mlp.models(evidence(*rows), "box"))
    assert found.figure == "3 of 9"
    assert "slower" in found.title


def test_the_table_of_models_has_a_column_a_clock() -> None:
    lines = fused_mlp.nine(evidence(*nine(), *nine(120.0, clock="wall")), "box")
    assert len(lines) == len(MODELS)
    assert list(lines[0]) == [
        "model",
        "eager, graph",
        "Plan C, graph",
        "epilogue, graph",
        "eager, wall",
        "Plan C, wall",
        "epilogue, wall",
    ]
    assert lines[0]["Plan C, wall"].startswith("0.8333× [")


def test_claims_of_the_chapter_can_be_judged() -> None:
    about = claims_of(fused_mlp.PAGE)
    assert {"S004-46", "S004-49"} <= {claim.lead for claim in about}
    by_cuda = [line | {"variant": "fused_cuda"} for line in goal() if line["variant"] == "fused"]
    found = evidence(*nine(), *goal(), *by_cuda).records
    verdicts = {row.id: row.verdict for row in claims.judge(found, about)}
    assert (verdicts["S004-46a"], verdicts["S004-49a"]) == ("not_reproduced", "exceeded")


# ---------------------------------------------------------------- the documents' own tests


def test_the_documents_tests_name_who_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = variants("linear_relu")["eager"]

    def off(by: float) -> Variant:
        def factory(workload: Any, inputs: Any) -> Any:
            """Off by so much."""
            run = honest.factory(workload, inputs)
            return lambda: run() + by

        return replace(honest, name="off", factory=factory)

    monkeypatch.setattr(safety, "comparable", lambda device: ["off"])
    monkeypatch.setattr(safety, "find", lambda operation, name: honest if name == "eager" else off(1.0))
    with pytest.raises(AssertionError, match="off: strict: layer 1 is off by"):
        safety.passed()
    with pytest.raises(AssertionError, match=r"off is off by 1\.0e\+00"):
        safety.isolated()
    monkeypatch.setattr(safety, "find", lambda operation, name: honest)
    assert safety.passed().startswith("safety test, strict and off: every variant")
    assert safety.isolated().startswith("isolation test: eager itself is further than 1e-05")


def test_compiled_forms_are_left_out_of_the_documents_tests() -> None:
    found = safety.comparable("cpu")
    assert {"aten", "epilogue"} <= set(found) or found == ["epilogue"]
    assert not [name for name in found if name.startswith("compile") or name == "eager"]


@pytest.mark.parametrize("operation", operations())
def test_every_operation_can_be_verified_at_small_shapes(operation: str) -> None:
    for shape in operations()[operation].small_shapes:
        assert Workload(operation, shape).flops >= 0
