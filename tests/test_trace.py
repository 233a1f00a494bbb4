"""The probe ``trace``: which kernels a call runs, told from PyTorch's profiler."""

from __future__ import annotations

import copy
import ctypes
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_tensors import needs_compiler, on_gpu
from probing import LINEAR, details, probe
from tabled import tables

import hypatia_lab.diffraction
import hypatia_lab.operations  # noqa: F401  (registers)
from hypatia_lab import clock
from hypatia_lab.probes import trace
from hypatia_lab.workloads import Workload


def gpu_trace() -> trace.Trace:
    return copy.deepcopy(tables("trace")["gpu"])


def test_a_trace_of_a_gpu_is_taken_apart():
    rows = trace.device_rows(gpu_trace())
    found = trace.summary(rows)
    assert {name: [unit, pytest.approx(value)] for name, (unit, value) in found.items()} == tables("trace")["summary"]
    assert [list(one) for one in trace.by_name(rows)] == tables("trace")["by_name"]
    assert trace.api_launches(gpu_trace()) == 1
    assert set(trace.ORDER) == {*found, "kernel launches, counted again", "compiled regions"}


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ([(0, 20), (15, 20), (40, 20)], (60.0, 60.0, pytest.approx(100 * 55 / 60), 5.0)),
        ([(0, 100), (10, 5), (90, 20)], (125.0, 110.0, 100.0, 0.0)),
    ],
)
def test_kernels_that_overlap_keep_the_gpu_busy_once(kernels: list[tuple[float, float]], expected: tuple[Any, ...]):
    found = trace.summary([trace.Row(f"at {start}", "kernel", start, length) for start, length in kernels])
    assert tuple(found[name][1] for name in ("GPU time", "span", "busy", "largest idle gap")) == expected


def test_rows_without_work_have_no_summary():
    with pytest.raises(ValueError, match="no kernel"):
        trace.summary([trace.Row("mark", "annotation", 0, 1)])


def test_long_names_are_cut_and_what_they_share_is_added():
    rows = [trace.Row("k" * 200 + end, "kernel", 0, 1) for end in "ab"]
    assert trace.by_name(rows) == [("k" * 200, 2.0, 2)]
    assert trace.summary(rows)["unique kernels"] == ("1", 2)


def test_on_a_cpu_the_outermost_operators_count():
    rows = trace.operator_rows(tables("trace")["cpu"])
    assert [row.name for row in trace.work(rows)] == ["aten::linear", "aten::linear", "aten::relu"]
    assert trace.summary(rows)["annotations"] == ("1", 2)


def test_a_published_trace_names_neither_machine_nor_files():
    packed = trace.published(gpu_trace())
    assert packed == trace.published(gpu_trace())
    text = gzip.decompress(packed).decode()
    for secret in ("/tmp", "/root", "kernel_file", "vm", "60BD", "totalGlobalMem", "baseTime"):
        assert secret not in text
    whole = json.loads(text)
    assert whole["deviceProperties"] == [{"id": 0, "name": "NVIDIA H200"}]
    assert len(whole["traceEvents"]) == len(gpu_trace()["traceEvents"])
    assert min(e["ts"] for e in whole["traceEvents"]) == 0
    assert trace.device_rows(whole)[1].name == "pointwise"


class Driver:
    """Stands in for libcuda: graph 1 holds a kernel, a copy, and graph 2 with two kernels; graph 3 is empty."""

    graphs = {1: [10, 11, 12], 2: [20, 21], 3: []}
    kinds = {10: 0, 11: 1, 12: 4, 20: 0, 21: 0}

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        if graph.value not in self.graphs:
            return 1
        if nodes is None:
            count._obj.value = len(self.graphs[graph.value])
        else:
            nodes[:] = self.graphs[graph.value]
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = self.kinds[node.value]
        return 0

    def cuGraphChildGraphNodeGetGraph(self, node: Any, graph: Any) -> int:
        graph._obj.value = 2
        return 0


def test_kernel_nodes_are_counted_through_child_graphs():
    assert trace.kernel_nodes(1, Driver()) == 3
    assert trace.kernel_nodes(3, Driver()) == 0
    with pytest.raises(OSError, match="cuGraphGetNodes failed with CUresult 1"):
        trace.kernel_nodes(99, Driver())


class Graph:
    """Stands in for torch.cuda.CUDAGraph; like pybind's, its state is made in ``__init__``."""

    def __new__(cls, keep_graph: bool = False) -> Any:
        return super().__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self.kept, self.replays = keep_graph, 0

    def replay(self) -> None:
        self.replays += 1

    def raw_cuda_graph(self) -> int:
        assert self.kept
        return 1


def test_graphs_keep_their_nodes_and_replays_are_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with trace.kept_graphs() as replays:
        graph: Any = torch.cuda.CUDAGraph()
        assert graph.kept
        graph.replay()
        assert replays == [graph]
        assert graph.replays == 1
    assert torch.cuda.CUDAGraph is Graph


def test_launches_are_counted_again_by_the_best_way_there_is(monkeypatch: pytest.MonkeyPatch):
    def refuse(run: Any) -> Any:
        raise clock.ClockError("cannot be captured")

    def count(replays: list[Any]) -> int:
        return trace.launches_again(lambda: torch.empty(0), gpu_trace(), replays)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    monkeypatch.setattr(clock, "capture", lambda run: Graph(True))
    assert count([Graph(True), Graph(True)]) == 1 + 3 + 3  # one launch beside two replays of three kernels
    assert count([]) == 3
    monkeypatch.setattr(clock, "capture", refuse)
    assert count([]) == 1


@pytest.mark.slow
def test_the_trace_of_a_call(tmp_path: Path):
    events = probe("trace", LINEAR, "eager", tmp_path)
    scalars = details(events, "trace")
    assert list(scalars) == [word for word in trace.ORDER if word in scalars]
    assert scalars["kernel launches"] == scalars["unique kernels"] == 2
    assert scalars["kernel launches, counted again"] == 3  # linear is a transposition and a product
    assert scalars["compiled regions"] == scalars["in graph replay"] == 0
    assert 0 < scalars["GPU time"] <= scalars["span"] * 1.001
    assert scalars["top three kernels"] == pytest.approx(100)
    kernels = details(events, "kernels")
    assert set(kernels) == {"aten::linear", "aten::relu"}
    assert sum(kernels.values()) == pytest.approx(scalars["GPU time"])
    timeline = details(events, "timeline")
    assert timeline["aten::linear"][0] == 0
    assert timeline["aten::relu"][0] + timeline["aten::relu"][1] == pytest.approx(scalars["span"], abs=0.01)
    kept = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert len(trace.work(trace.operator_rows(kept))) == 2


@pytest.mark.slow
@needs_compiler
def test_the_loops_of_a_compiled_call_are_seen(tmp_path: Path):
    events = probe("trace", LINEAR, "compile", tmp_path)
    scalars = details(events, "trace")
    assert scalars["compiled regions"] == 1
    assert scalars["annotations"] > 0
    assert "kernel launches, counted again" not in scalars
    assert any("cpp_fused" in name for name in details(events, "kernels"))


@on_gpu
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["eager", "compile", "compile_reduce_overhead"])
def test_both_counts_of_launches_agree_on_a_gpu(variant: str, tmp_path: Path):
    scalars = details(probe("trace", Workload("diffraction", (256, 256)), variant, tmp_path, device="cuda"), "trace")
    assert scalars["kernel launches"] == scalars["kernel launches, counted again"] > 0
    assert (scalars["compiled regions"] > 0) == (variant != "eager")
    assert (scalars["in graph replay"] > 0) == (variant == "compile_reduce_overhead")
