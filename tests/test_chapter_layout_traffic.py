"""What is said of layouts and traffic: findings, tables, the figure and the chapter, from synthetic records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from synthetic import cell_line, detail_line, said
from synthetic import evidence as together

from hypatia_lab import intervals
from hypatia_lab.chapters import layout_traffic
from hypatia_lab.figures import traffic as traffic_figures
from hypatia_lab.figures.language import FigureError
from hypatia_lab.operations import layout
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.variants import label, variants

pytestmark = pytest.mark.usefixtures("two_processes")

SHAPE = [1024, 784, 2048]
GEMM, RELU = "gemm_kernel", "void at::native::vectorized_elementwise_kernel<4, at::native::relu_kernel_cuda>(int)"
MB = 1e6


def cell(variant: str, us: float, **changes: Any) -> dict[str, Any]:
    """A timed cell of the layout experiment: two processes 1% apart."""
    own = {"operation": "linear_relu_layout", "shape": SHAPE, "flops": 2 * 1024 * 784 * 2048, "traffic": 18_030_592}
    timed = {"medians_us": [us, 1.01 * us], "clock": "graph", "baseline": "row_major", "max_error": 1e-6}
    return cell_line(variant=variant, **(own | timed | changes))


TIMES = {
    "row_major": 75.0,
    "row_major@again": 75.0,
    "x_column_major": 75.3,
    "weight_packed": 74.6,
    "pack_each_call": 90.0,
    "x_padded": 75.0,
    "x_unaligned": 80.0,
    "weight_unaligned": 85.0,
    "x_batch_view": 75.0,
    "x_strided_batch": 82.5,
    "copy_first": 84.0,
}


def cells(**changes: Any) -> list[dict[str, Any]]:
    return [cell(name, us, **changes) for name, us in TIMES.items()]


def lines(
    variant: str, topic: str, values: Mapping[str, float], unit: str = "B", **changes: Any
) -> list[dict[str, Any]]:
    own = {"shape": SHAPE, "variant": variant, "topic": topic} | changes
    return [detail_line(name=name, unit=unit, values=[value], **own) for name, value in values.items()]


def counted(variant: str, reads: Sequence[float], writes: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
    """Counters of one call whose kernels read and write so many MB; nothing has reached memory yet."""
    names = [GEMM, RELU][: len(reads)]
    totals = {"bytes read": sum(reads) * MB, "bytes written": 0.0, "L2 bytes": 100 * MB, "L2 written": sum(writes) * MB}
    out = lines(variant, "counters", {"kernels": len(reads)}, "1", **changes)
    out += lines(variant, "counters", {"compulsory bytes": 18.03 * MB} | totals, **changes)
    out += lines(variant, "counters", {"duration": 76.5}, "us", **changes)
    out += lines(variant, "counters", {"effective bandwidth": 235.7e9}, "B/s", **changes)
    out += lines(variant, "dram_read", {n: v * MB for n, v in zip(names, reads, strict=True)}, **changes)
    out += lines(variant, "dram_written", dict.fromkeys(names, 0.0), **changes)
    return out + lines(variant, "l2_written", {n: v * MB for n, v in zip(names, writes, strict=True)}, **changes)


def launched(variant: str, count: int, again: int | None = None, **changes: Any) -> list[dict[str, Any]]:
    values = {"kernel launches": count, "kernel launches, counted again": count if again is None else again}
    return lines(variant, "trace", values, "1", **changes) + lines(variant, "kernels", {GEMM: 70.0}, "us", **changes)


def gpu_details() -> list[dict[str, Any]]:
    """Counters and traces of a GPU on which v2 moves more than v1."""
    out = counted("naive", [9.8], [8.4]) + counted("cublas_relu", [9.7, 0.1], [8.4, 8.4])
    out += counted("naive", [9.8], [8.4], case="each kernel")
    out += counted("cublas_relu", [9.7, 8.4], [8.4, 8.4], case="each kernel")
    out += counted("eager", [9.7, 0.1], [8.4, 8.4]) + counted("epilogue", [9.7], [8.4])
    out += counted("epilogue", [4.8], [4.2], dtype="bfloat16")
    out += launched("epilogue", 1) + launched("eager", 2) + launched("cublas_relu", 2)
    return out + launched("x_strided_batch", 3, operation="linear_relu_layout")


REFUSED = lines(
    "eager", "counters", {"counters": 0}, status="skipped", reason="on a CUDA GPU only", shape=[256, 256, 512]
)
REFUSED[0]["values"] = []


def evidence(*own: dict[str, Any], device: str = "cuda") -> Evidence:
    """Evidence of one machine, ``box``: a record of layouts and one of traffic."""
    copies = [cell_line(operation="copy", shape=[2**28], clock=c, traffic=10**9, flops=0) for c in ("graph", "hot")]
    parts = {
        "ceilings": [line | {"medians_us": [1000.0, 1000.0]} for line in copies],
        "layout": [line for line in own if line["operation"] == "linear_relu_layout"],
        "traffic": [line for line in own if line["operation"] == "linear_relu"],
    }
    return together(parts, device)


# ---------------------------------------------------------------- findings


def test_storage_orders_are_judged_by_what_s004_expects() -> None:
    def found(column_major: Sequence[float], packed: float) -> Finding:
        rows = [cell("row_major", 75.0), cell("weight_packed", packed)]
        rows.append(cell("x_column_major", 75.0) | {"medians_us": list(column_major)})
        return said(layout_traffic.storage(evidence(*rows), "box"))

    same, faster, slower = (found((us, 1.01 * us), packed) for us, packed in ((75.0, 75.0), (68.2, 75.0), (99.0, 74.5)))
    undecided = found((73.5, 77.0), 75.0)
    assert len({one.title for one in (same, faster, slower, undecided)}) == 4
    assert found((60.0, 80.0), 40.0).figure != intervals.TOO_NOISY
    noisy = [cell("row_major", 75.0), cell("x_column_major", 75.0) | {"medians_us": [60.0, 80.0]}]
    assert said(layout_traffic.storage(evidence(*noisy), "box")).figure == intervals.TOO_NOISY


def test_a_copy_is_set_against_the_call_without_it() -> None:
    lab = evidence(*cells())
    found = said(layout_traffic.copying(lab, "box"))
    assert found.figure == "1.10×"
    assert "at 1024×784×2048 in float32" in found.text
    assert {row.variant: row.baseline for row in layout_traffic.copies(lab, "box")} == layout_traffic.COPYING
    drawn_too = {row.variant for row in layout_traffic.at_one_size(lab, "box")}
    assert drawn_too == {*TIMES} - {*layout_traffic.COPYING}
    for us in (75.0, 60.0):  # it costs nothing
        rows = cell("row_major", 75.0), cell("x_batch_view", 75.0), cell("x_strided_batch", us)
        assert said(layout_traffic.copying(evidence(*rows), "box")).title != found.title


@pytest.mark.parametrize(
    ("own", "figure"),
    [
        (launched("epilogue", 1) + launched("eager", 2), "1 kernel"),
        (launched("epilogue", 1) + launched("epilogue", 2, dtype="bfloat16"), "1 or 2 kernels"),
        (launched("epilogue", 1, again=2), "1 or 2 kernels"),
    ],
)
def test_a_single_kernel_is_proven_by_every_count(own: list[dict[str, Any]], figure: str) -> None:
    found = said(layout_traffic.one_kernel(evidence(*own), "box"))
    assert found.figure == figure


def test_three_counts_stand_side_by_side() -> None:
    rows = layout_traffic.kernel_counts(evidence(*gpu_details()), "box")
    by = {row["by"]: row for row in rows if row["workload"] == "1024×784×2048 float32/ieee"}
    counts = [by[label("linear_relu", "epilogue")][way] for way in ("profiler", "graph nodes", "ncu")]
    assert counts == ["1", "1", "1"]
    assert by[label("linear_relu", "naive")]["profiler"] == "–"


def test_on_a_cpu_operators_are_no_kernels() -> None:
    lab = evidence(*launched("epilogue", 1), device="cpu")
    assert layout_traffic.one_kernel(lab, "box") is None
    assert layout_traffic.kernel_counts(lab, "box") == []


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        (([9.8], [8.4]), ([9.7, 8.4], [8.4, 8.4]), True),
        (([17.6, 8.4], [8.4, 0]), ([9.7], [8.4]), False),
        (([9.8, 8.4], [8.4, 8.4]), ([9.7, 8.4], [8.4, 0]), False),
    ],
)
def test_traffic_is_compared_as_s001_does(first: Any, second: Any, more: bool) -> None:
    lab = evidence(*counted("naive", *first), *counted("cublas_relu", *second))
    assert ("moves more" in said(layout_traffic.traffic(lab, "box")).title) is more


def test_traffic_speaks_of_kernels_with_empty_caches() -> None:
    lab = evidence(*gpu_details())
    found = said(layout_traffic.traffic(lab, "box"))
    assert found.figure == "18 MB and 35 MB"  # and not 26, as of one warm call
    assert "each kernel starts with empty caches" in found.text
    once = [line for line in gpu_details() if line.get("case") != "each kernel"]
    assert "the call starts with empty caches" in said(layout_traffic.traffic(evidence(*once), "box")).text
    own = [line for line in gpu_details() if line["name"] != "L2 written" and line["topic"] != "l2_written"]
    assert said(layout_traffic.traffic(evidence(*own), "box")).figure == "9.8 MB and 18 MB"  # what reaches memory


def test_a_wrong_cell_is_no_time() -> None:
    wrong = cell("x_strided_batch", 1.0, status="wrong", reason="off")
    assert layout_traffic.copying(evidence(cell("row_major", 75.0), cell("x_batch_view", 75.0), wrong), "box") is None


def test_a_refusal_is_passed_on() -> None:
    lab = evidence(*REFUSED, device="cpu")
    assert layout_traffic.uncounted(lab, "box") == "on a CUDA GPU only"
    assert layout_traffic.figure_lines(lab, "box") == []
    assert layout_traffic.totals(lab, "box")[0]["kernels"] == "skipped: on a CUDA GPU only"
    assert layout_traffic.uncounted(evidence(*REFUSED, *counted("eager", [1.0], [1.0])), "box") == ""


# ---------------------------------------------------------------- tables


def test_calls_are_a_table_of_layouts() -> None:
    rows = layout_traffic.handled(layout.handlings((1024, 784, 1)))
    assert [row["x is"] for row in rows] == list(layout.LAYOUTS)
    assert rows[0] == {"x is": "contiguous", "strides": "25088×784×1"} | dict.fromkeys(layout.CALLS, "free")
    assert (rows[1]["view"], rows[1]["reshape"]) == ("raises", "copies 3.21 MB")


def test_every_variant_is_spoken_of() -> None:
    named = {
        *layout_traffic.STORED,
        *layout_traffic.COPYING,
        *layout_traffic.COPYING.values(),
    }
    assert named <= set(variants(layout.NAME))
    assert set(TIMES) == {*variants(layout.NAME), "row_major@again"}
    copying = {name for name, size in layout.variant_copies((12, 8, 4)).items() if size}
    assert set(layout_traffic.COPYING) == copying


def test_totals_say_how_often_caches_were_emptied() -> None:
    rows = layout_traffic.totals(evidence(*gpu_details()), "box")
    assert {row["caches emptied"] for row in rows} == {"once before the call", "before every kernel"}
    eager = next(row for row in rows if row["by"] == label("linear_relu", "eager"))
    assert (eager["read"], eager["written"], eager["written to memory"]) == ("9.80 MB", "16.8 MB", "0 MB")
    assert eager["effective bandwidth"] == "236 GB/s"


def test_s001_line_by_line() -> None:
    rows = {row[""]: list(row.values())[1:] for row in layout_traffic.seed_table(evidence(*gpu_details()), "box")}
    assert rows["kernels"] == ["2", "1", "1", "2"]
    assert rows["ReLU moves"] == ["16.8 MB", "no kernel of its own", "0 MB", "16.8 MB"]
    assert rows["all that it moves"] == ["34 MB", "18.2 MB", "18 MB", "34.9 MB"]
    assert rows["product reads"][2:] == ["9.4 MB", "9.70 MB"]
    assert rows["effective bandwidth"][2:] == ["600 GB/s", "236 GB/s"]


# ---------------------------------------------------------------- the figure


def drawn(*own: dict[str, Any]) -> tuple[Any, Any]:
    lab = evidence(*own)
    return traffic_figures.traffic(layout_traffic.figure_lines(lab, "box"), "Traffic")


def test_the_figure_stacks_reads_and_writes_by_kernel() -> None:
    figure, table = drawn(*gpu_details())
    bars = [trace for trace in figure.data if trace.type == "bar"]
    eager = [bar for bar in bars if bar.name.startswith("eager")]
    assert [(bar.base[0], bar.x[0]) for bar in eager] == [(0, 9.7), (9.7, 0.1), (9.8, 8.4), (18.2, 8.4)]
    assert [bar.marker.pattern.shape for bar in eager] == [None, None, "/", "/"]
    edges, rule = (trace for trace in figure.data if trace.type == "scatter")
    assert set(rule.x) == set(edges.x) == {18.03}
    assert figure.data[-2:] == (edges, rule)  # over the bars, not under them
    assert "epilogue: 1 kernel, 9.70 MB read, 8.40 MB written" in figure.layout.meta["alt"]
    assert "eager PyTorch: 2 kernels" in figure.layout.meta["alt"]
    assert len(table) == 6
    assert figure.to_json() == drawn(*gpu_details())[0].to_json()


def test_what_another_experiment_counted_too_stands_once() -> None:
    lab = together({"traffic": gpu_details(), "author_hypatia": gpu_details()})
    alone = together({"traffic": gpu_details()})
    assert layout_traffic.figure_lines(lab, "box") == layout_traffic.figure_lines(alone, "box") != []
    assert layout_traffic.totals(lab, "box") == layout_traffic.totals(alone, "box") != []


def test_a_way_that_failed_is_named() -> None:
    failed = REFUSED[0] | {"variant": "aten", "shape": SHAPE, "status": "crashed", "reason": "ncu ended"}
    figure, table = drawn(*gpu_details(), failed)
    assert any("crashed" in note.text for note in figure.layout.annotations)
    assert "crashed: ncu ended" in list(table["status"])


def test_the_figure_refuses_what_it_cannot_draw() -> None:
    lab = evidence(*gpu_details())
    with pytest.raises(FigureError, match="differ in math"):
        traffic_figures.traffic(lab.details(operation="linear_relu"), "Traffic")
    with pytest.raises(FigureError, match="on a CUDA GPU only"):
        traffic_figures.traffic(evidence(*REFUSED).details(), "Traffic")
