"""Where launching, fusing and own kernels pay: what the page of decisions reads from records."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import Lines, ceilings, cells, detail_line, evidence, played, write_records

import hypatia_lab.experiments  # noqa: F401  (registers the operations of the cells below)
from hypatia_lab import records
from hypatia_lab.experiments import units
from hypatia_lab.pages import decisions
from hypatia_lab.pages import evidence as lab_evidence
from hypatia_lab.pages.beside import error
from hypatia_lab.pages.evidence import Parameters

pytestmark = pytest.mark.usefixtures("two_processes")

SMALL, LARGE = [256, 256, 512], [8192, 4096, 4096]
RATES = {"ieee": 50.0, "tf32": 400.0, "bfloat16": 760.0}

TENSOR = [
    *cells({"eager": 5.0, "epilogue": 3.0, "*triton": 4.0}, shape=SMALL, dtype="bfloat16"),
    *cells({"eager": 9.0, "epilogue": 8.0, "*fp16x3": 4.0}, shape=SMALL),
    *cells({"eager": 5500.0, "epilogue": 5490.0, "*fp16x3": 1500.0}, shape=LARGE),
]
MLP = cells({"eager": 30.0, "epilogue": 20.0, "*fused": 6.0}, "mlp3", [65536, 64], dtype="bfloat16")
ATEN = [
    *cells({"eager": 9.0}, shape=SMALL),
    *cells({"eager": 27.0}, shape=SMALL, clock="wall"),
    *cells({"eager": 5500.0}, shape=LARGE),
    *cells({"eager": 5520.0}, shape=LARGE, clock="wall"),
]
GPU = {"ceilings": ceilings(RATES), "aten_fusion": ATEN, "tensor_cores": TENSOR, "fused_mlp": MLP}
CPU = {
    "ceilings": ceilings({"ieee": 0.2}, "hot"),
    "gemm_ladder": cells({"eager": 360.0, "*threaded": 500.0}, shape=SMALL, clock="hot"),
}


GPU_BOX, CPU_BOX = evidence(GPU), evidence(CPU, "cpu")


def test_a_machine_whose_units_were_not_counted_keeps_its_place(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, more in (("counted", {decisions.COUNTED: TENSOR[:2]}), ("another", {})):
        write_records(tmp_path, machine, "cuda", {"tensor_cores": TENSOR, **more})
    monkeypatch.setattr(records, "COMMITTED", tmp_path)
    read = lab_evidence.evidence(Parameters(), [decisions.COUNTED], decisions.READ)
    assert read.machines == lab_evidence.evidence(Parameters()).machines
    assert (
        {one.machine for one in read.records if one.experiment == decisions.COUNTED} == {"counted"} < {*read.machines}
    )


def test_launching_is_told_from_computing() -> None:
    found = decisions.launched(GPU_BOX, "box")
    assert [(point.along, factor.value) for point, factor in found] == [
        (pytest.approx(9.0, rel=0.01), pytest.approx(3.0)),
        (pytest.approx(5500.0, rel=0.01), pytest.approx(5520 / 5500)),
    ]
    assert [factor.above(2) for _, factor in found] == [True, False]
    assert decisions.launched(CPU_BOX, "box") == []
    assert decisions.launched(evidence({"aten_fusion": ATEN[:1]}), "box") == []  # by the graph's clock alone


def test_the_balance_is_the_quotient_of_two_ceilings() -> None:
    assert decisions.balance(GPU_BOX, "box") == pytest.approx(
        {"float32/ieee": 12.5, "float32/tf32": 100.0, "bfloat16/ieee": 190.0}
    )
    assert decisions.balance(CPU_BOX, "box") == pytest.approx({"float32/ieee": 0.05})
    assert decisions.balance(evidence({"tensor_cores": TENSOR}), "box") == {}


def test_fusing_is_held_against_the_balance() -> None:
    found = {(row.operation, row.dtype, row.shape): (point, row) for point, row in decisions.fused(GPU_BOX, "box")}
    assert {name: row.variant for name, (_, row) in found.items()} == {
        ("linear_relu", "bfloat16", "256x256x512"): "epilogue",
        ("linear_relu", "float32", "256x256x512"): "epilogue",  # a product of split numbers is no fusion
        ("linear_relu", "float32", "8192x4096x4096"): "epilogue",
        ("mlp3", "bfloat16", "65536x64"): "fused",
    }
    point, row = found["mlp3", "bfloat16", "65536x64"]
    assert point.across[0] == pytest.approx(5.0) == row.ratio
    assert point.along == pytest.approx(row.flops / row.traffic / 190.0) == pytest.approx(0.505, rel=0.01)
    lines = decisions.side_lines(GPU_BOX, "box")
    assert [line["where"] for line in lines] == list(decisions.SIDES)
    assert [line["median"] for line in lines] == ["3.3×", "1.12×", "1.00×"]
    assert [(line["least"], line["most"]) for line in lines][:1] == [("1.67×", "5.0×")]
    assert sum(int(line["cases"]) for line in lines) == len(found)
    assert (decisions.fused(CPU_BOX, "box"), decisions.side_lines(CPU_BOX, "box")) == ([], [])


def test_a_gain_in_doubt_is_drawn_and_stands_in_no_table() -> None:
    wide = [*MLP[:-1], MLP[-1] | {"medians_us": [6.0, 18.0]}]
    lab = evidence({"ceilings": ceilings(RATES), "fused_mlp": wide})
    ((_, row),) = decisions.fused(lab, "box")
    assert row.speed.doubt
    assert decisions.side_lines(lab, "box") == []


def test_the_plain_fusion_counts_where_no_other_experiment_has_the_workload() -> None:
    plain = [
        *cells({"eager": 5500.0, "epilogue": 5000.0}, shape=LARGE),
        *cells({"eager": 30.0, "epilogue": 15.0}, shape=SMALL),
    ]
    product = cells({"eager": 30.0, "epilogue": 30.0}, shape=SMALL)
    lab = evidence({"ceilings": ceilings(RATES), "tensor_cores": product, "aten_fusion": plain})
    assert sorted(round(row.ratio, 2) for _, row in decisions.fused(lab, "box")) == [1.0, 1.1]


def test_own_kernels_meet_their_best_peer() -> None:
    rows = {row.workload: row for row in decisions.contests(GPU_BOX, "box")}
    small = rows["linear_relu/256x256x512/bfloat16/ieee/forward"]
    assert (small.variant, small.baseline) == ("triton", "epilogue")
    assert [round(row.ratio, 2) for row in rows.values()] == [0.75, 2.0, 3.66, 3.33]
    assert {row.variant for row in rows.values() if decisions.splits(row)} == {"fp16x3"}
    figure, table = decisions.opponents(GPU_BOX, list(rows.values()))
    assert list(table["best peer"]) == ["epilogue"] * 4
    assert all(name in figure.alt for name in ("8192×4096×4096", "65536×64"))
    assert len(table) == sum(text.endswith("×") for text in table["error over eager's"]) == 4
    assert [row.reading for row in decisions.contests(CPU_BOX, "box")] == ["slower"]


def test_a_kernel_is_counted_as_the_figure_reads_it() -> None:
    own: Lines = []
    for batch, speed in ((1, 1.0), (2, 1.02), (3, 0.98), (4, 1.0)):  # two by intervals that hold the edge of equal
        lines = cells({"eager": 10.0, "*triton": 10.0 / speed}, shape=[batch, 8, 8])
        lines[1]["medians_us"][1] *= {1: 1, 4: 1.05}.get(batch, 1.0015)
        lines[0]["error"], lines[1]["error"] = 1e-7, batch * 1e-7
        own += lines
    lab = evidence({"tensor_cores": own})
    rows = decisions.contests(lab, "box")
    assert [row.reading for row in rows] == ["equal", "faster", "slower", "undecided"]
    assert not any(row.speed.outside(0.98, 1.02) for row in rows)
    assert [error(lab, row, variant="eager") for row in rows] == pytest.approx([1, 2, 3, 4])
    (line,) = decisions.standing(lab, "box")
    assert [line[name] for name in ("workloads", "faster", "equal", "slower", "undecided")] == ["4", *"1111"]
    assert (line["error over eager's"], line["at most"]) == ("2.50×", "4.00×")


def test_kinds_of_contests_and_random_shapes_stand_apart() -> None:
    same, split = cells({"eager": 9.0, "*triton": 4.0}), cells({"eager": 9.0, "*fp16x3": 4.0}, shape=SMALL)
    alone = cells({"*triton": 4.0}, shape=[9, 9, 9])  # beside no peer
    drawn = [*cells({"eager": 9.0, "*triton": 4.0}, shape=[7, 7, 7]), *alone]

    def found(**parts: Lines) -> list[str]:
        lines = decisions.standing(evidence({"tensor_cores": [*same, *split], **parts}), "box")
        assert len({line["where"] for line in lines}) == len(lines)
        return [line["workloads"] for line in lines]

    assert found() == ["1", "1"]
    assert found(unseen=drawn) == ["1", "1", "1"]
    assert decisions.standing(evidence({"aten_fusion": ATEN}), "box") == []


def test_where_no_library_has_a_call_a_kernel_is_met_by_the_compiler_alone() -> None:
    met = cells({"eager": 75.0, "compile": 6.0, "*triton": 2.0}, operation="diffraction", shape=[256, 256])
    alone = cells({"eager": 300.0, "*triton": 2.0}, operation="diffraction", shape=[512, 512])
    (row,) = decisions.contests(evidence({"diffraction": [*met, *alone]}), "box")
    assert (row.shape, row.baseline, row.ratio) == ("256x256", "compile", pytest.approx(3.0))


def test_of_a_sweep_not_every_size_is_a_workload_and_no_graph_is_a_kernel() -> None:
    swept = [*MLP, *cells({"eager": 30.0, "*fused": 6.0}, "mlp3", [4096, 64], dtype="bfloat16")]
    graphs = cells({"eager": 9.0, "eager_graph": 2.0, "*triton": 4.0, "*compile_own": 1.0, "*triton_graph": 1.0})
    rows = decisions.contests(evidence({"fused_mlp": swept, "tensor_cores": graphs}), "box")
    assert [(row.variant, row.baseline) for row in rows] == [("triton", "eager"), ("fused", "epilogue")]


def counted(kernel: str, us: float, *shares: float, **changes: Any) -> Lines:
    own = {"operation": "linear_relu", "shape": SMALL, "variant": "fp16x3_cuda", "case": units.CASE, "name": kernel}
    told = zip([*units.TOPICS.values(), "kernel_time"], [*shares, us], ["1"] * len(shares) + ["us"], strict=True)
    return [detail_line(**own | changes, topic=topic, unit=unit, values=[value]) for topic, value, unit in told]


def test_what_a_kernel_keeps_busy_is_a_line() -> None:
    product = counted("void linear_relu_split<3, 1>(TensorMap, int)", 21.3, 0.89, 0.1, 0.0, 0.14, 0.47, 0.27)
    split = counted("_split_rows", 8.5, 0.0, 0.06, 0.0, 0.34, 0.6, 0.48)
    step = counted("_split_rows", 9.5, 0.0, 0.06, 0.0, 0.34, 0.59, 0.48, direction="forward_backward")
    lines = decisions.busy(evidence({decisions.COUNTED: [*product, *split, *step]}), "box")
    assert [(line["kernel"], line["takes under the profiler"]) for line in lines] == [
        ("linear_relu_split", "21.3 µs"),
        ("_split_rows", "8.50 µs"),
        ("_split_rows", "9.50 µs"),
    ]
    assert [lines[0][unit] for unit in units.TOPICS][:2] == ["89%", "10%"]
    assert lines[1]["work"] != lines[2]["work"]
    assert decisions.busy(evidence({"aten_fusion": ATEN}), "box") == []


def test_the_page_does_without_ceilings(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_records(tmp_path, "gpu", "cuda", {"tensor_cores": TENSOR})
    assert "gpu/tensor_cores" in played("18_decisions", tmp_path, monkeypatch)
