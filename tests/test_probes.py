"""Probes: what they read out of traces, images and programs, and how their processes end."""

from __future__ import annotations

import ctypes
import gzip
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import hypatia_lab.diffraction
import hypatia_lab.operations  # noqa: F401  (registers)
from hypatia_lab import check, clock, variants
from hypatia_lab.bench import sessions
from hypatia_lab.bench.details import collect
from hypatia_lab.diffraction.operations import layout_of
from hypatia_lab.experiments import Probe
from hypatia_lab.kernels import loader
from hypatia_lab.probes import accuracy, oracle, process, trace
from hypatia_lab.probes.probe import Ended, Subject, subject
from hypatia_lab.workloads import Workload

LINEAR = Workload("linear_relu", (16, 32, 24))
IMAGE = Workload("diffraction", (32, 48))

needs_compiler = pytest.mark.skipif(bool(loader.cpp_missing()), reason=loader.cpp_missing())


def probe(
    topic: str, workload: Workload, variant: str, folder: Path, *, case: str = "", device: str = "cpu"
) -> list[sessions.Event]:
    """Events of one probe, run in a process of its own as bench runs it; it must end by itself."""
    plan = {"device": device, "number": 0, "workload": asdict(workload), "variant": variant, "case": case}
    events: list[sessions.Event] = []
    casualty = sessions.run_session(
        f"hypatia_lab.probes.{topic}",
        plan | {"folder": str(folder)},
        folder / "log.txt",
        on_event=events.append,
        silence_s=120,
    )
    assert casualty is None, (folder / "log.txt").read_text()
    assert events[0] == {"event": "begin", "what": variant, "subject": 0}
    return events[1:]


def details(events: list[sessions.Event], topic: str) -> dict[str, Any]:
    """Name → value (or values) of the details of ``topic``, in order; every event must be a detail."""
    assert {event["event"] for event in events} == {"detail"}
    return {e["name"]: e.get("value", e.get("values")) for e in events if e["topic"] == topic}


def spoilt(whole: Subject, output: torch.Tensor) -> Subject:
    """``whole`` with a variant that always returns ``output``."""
    return replace(whole, variant=replace(whole.variant, factory=lambda workload, inputs: lambda: output))


def found(workload: Workload, variant: str, folder: Path, *, case: str = "") -> Subject:
    """The subject of a probe in this process."""
    plan = {"device": "cpu", "number": 0, "workload": asdict(workload), "variant": variant, "case": case}
    return subject(plan | {"folder": str(folder)})


# ---------------------------------------------------------------- processes


def shared(monkeypatch: pytest.MonkeyPatch, deadly: str = "") -> list[list[str]]:
    """Variants of every process that is started from here on; the process of ``deadly`` dies of it."""
    started: list[list[str]] = []

    def run_session(module: str, plan: dict[str, Any], log: Path, *, on_event: Any, **more: Any) -> Any:
        names = [one["variant"] for one in [plan, *plan["more"]]]
        started.append(names)
        for number, name in enumerate(names):
            on_event({"event": "begin", "what": name, "subject": number})
            on_event({"event": "detail", "topic": "trace", "name": f"{name}'s", "unit": "1", "value": 1, "count": 1})
            if name == deadly:
                return sessions.Casualty(name, "crashed", "the process died")
        return None

    monkeypatch.setattr(sessions, "run_session", run_session)
    return started


def test_probes_that_may_share_a_process_do_and_who_kills_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = [Probe("trace", LINEAR, name, "", 2) for name in ("a", "deadly", "b", "c")]
    plan.insert(1, Probe("counters", LINEAR, "alone", "", 1))
    started = shared(monkeypatch, deadly="deadly")
    lines = collect(plan, "cpu", tmp_path, "key", progress=False)
    behind = ["b", "c"]
    assert started == [["a", "deadly", *behind], behind, ["a", "deadly", *behind], behind, ["alone"]]
    assert [(line["variant"], line["name"], line["status"], len(line["values"])) for line in lines] == [
        ("a", "a's", "ok", 2),
        ("alone", "alone's", "ok", 1),
        ("deadly", "deadly's", "crashed", 2),
        ("b", "b's", "ok", 2),
        ("c", "c's", "ok", 2),
    ]
    del started[:]
    assert collect(plan, "cpu", tmp_path, "key", progress=False) == lines
    assert started == []
    (tmp_path / "probe-3-1.json").unlink()
    assert collect(plan, "cpu", tmp_path, "key", progress=False) == lines
    assert started == [["b"]]
    collect(plan, "cpu", tmp_path, "another key", progress=False)
    assert len(started) == 6


def test_an_interrupted_process_loses_only_the_probe_it_was_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = [Probe("trace", LINEAR, name, "", 1) for name in ("a", "b", "c")]

    def interrupted(module: str, plan: dict[str, Any], log: Path, *, on_event: Any, **more: Any) -> None:
        for number, name in enumerate(("a", "b")):
            on_event({"event": "begin", "what": name, "subject": number})
        raise KeyboardInterrupt

    monkeypatch.setattr(sessions, "run_session", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect(plan, "cpu", tmp_path, "key", progress=False)
    started = shared(monkeypatch)
    collect(plan, "cpu", tmp_path, "key", progress=False)
    assert started == [["b", "c"]]


@pytest.mark.slow
def test_what_one_process_sees_of_two_variants_is_what_two_see(tmp_path: Path):
    plan = [Probe("trace", LINEAR, name, "", 1) for name in ("eager", "no such variant", "cublas_relu")]
    together = collect(plan, "cpu", tmp_path / "1", "key", progress=False)
    alone = [line for one in plan for line in collect([one], "cpu", tmp_path / "2", one.variant, progress=False)]

    def counted(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        kept = [line for line in lines if line["unit"] == "1" or line["topic"] == "kernels"]
        return [(line["variant"], line["name"], line["status"], line["count"]) for line in kept]

    assert counted(together) == counted(alone)
    assert {line["variant"]: line["status"] for line in together} == {
        "eager": "ok",
        "no such variant": "crashed",
        "cublas_relu": "ok",
    }
    assert sorted(path.parent.name for path in (tmp_path / "1" / "scratch").rglob("trace.json.gz")) == ["0", "2"]


# ---------------------------------------------------------------- trace


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """A complete event of a Chrome trace."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur, "args": args}


def gpu_trace() -> trace.Trace:
    """One copy, one kernel launched by itself, and a graph of three kernels; an idle gap of 30 µs before the graph."""
    start = 5e12
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 1}],
        "host_name": "vm",
        "traceName": "/tmp/secret.json",
        "baseTimeNanoseconds": 17,
        "trace_id": "60BD",
        "traceEvents": [
            {"ph": "M", "name": "process_name", "ts": start, "pid": 7, "tid": 0, "args": {"name": "python"}},
            event("cpu_op", "aten::mul", start, 20, **{"External id": 1, "kernel_file": "/root/.cache/a.py"}),
            event("cuda_runtime", "cudaMemcpyAsync", start, 2, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", start + 3, 2, correlation=2),
            event("cuda_driver", "cuLaunchKernel", start + 3, 1, correlation=2),  # the same launch, seen twice
            event("cuda_runtime", "cudaGraphLaunch", start + 6, 5, correlation=3),
            event("kernel", "pointwise", start + 20, 10, correlation=2, grid=[4, 1, 1]),
            event("gpu_memcpy", "Memcpy DtoD", start + 10, 5, correlation=1),
            event("kernel", "gemm", start + 60, 50, correlation=3),
            event("kernel", "pointwise", start + 110, 15, correlation=3),
            event("kernel", "reduce", start + 125, 20, correlation=3),
            event("gpu_user_annotation", "CUDAGraphNode.replay", start + 60, 85),
            {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": start + 300},
        ],
    }


def test_a_trace_of_a_gpu_is_taken_apart():
    rows = trace.device_rows(gpu_trace())
    assert trace.summary(rows) == {
        "kernel launches": ("1", 4),
        "unique kernels": ("1", 3),
        "copies": ("1", 1),
        "annotations": ("1", 1),
        "GPU time": ("us", 100.0),
        "span": ("us", 135.0),
        "busy": ("%", pytest.approx(100 * 100 / 135)),
        "in graph replay": ("%", 85.0),
        "largest idle gap": ("us", 30.0),
        "top kernel": ("%", 50.0),
        "top three kernels": ("%", 95.0),
    }
    assert trace.by_name(rows) == [
        ("gemm", 50.0, 1),
        ("pointwise", 25.0, 2),
        ("reduce", 20.0, 1),
        ("Memcpy DtoD", 5.0, 1),
    ]
    assert trace.api_launches(gpu_trace()) == 1


def test_kernels_that_overlap_keep_the_gpu_busy_once():
    rows = [
        trace.Row(name, "kernel", start, 20.0) for name, start in (("first", 0.0), ("second", 15.0), ("last", 40.0))
    ]
    found = trace.summary(rows)
    assert [found[name][1] for name in ("GPU time", "span", "busy", "largest idle gap")] == [
        60.0,
        60.0,
        pytest.approx(100 * 55 / 60),
        5.0,
    ]


def test_every_word_of_the_summary_has_its_place():
    words = set(trace.summary(trace.device_rows(gpu_trace())))
    assert set(trace.ORDER) == words | {"kernel launches, counted again", "compiled regions"}


def test_a_gap_is_where_no_kernel_runs_at_all():
    rows = [
        trace.Row("long", "kernel", 0, 100),
        trace.Row("short", "kernel", 10, 5),
        trace.Row("last", "kernel", 90, 20),
    ]
    assert trace.summary(rows)["largest idle gap"] == ("us", 0.0)
    assert trace.summary(rows)["span"] == ("us", 110.0)


def test_rows_without_work_have_no_summary():
    with pytest.raises(ValueError, match="no kernel"):
        trace.summary([trace.Row("mark", "annotation", 0, 1)])


def test_long_names_are_cut_and_what_they_share_is_added():
    rows = [trace.Row("k" * 200 + end, "kernel", 0, 1) for end in "ab"]
    assert trace.by_name(rows) == [("k" * 200, 2.0, 2)]
    assert trace.summary(rows)["unique kernels"] == ("1", 2)


def test_on_a_cpu_the_outermost_operators_count():
    rows = trace.operator_rows(
        {
            "traceEvents": [
                event("cpu_op", "aten::mm", 4, 2),
                event("cpu_op", "aten::linear", 0, 10),
                event("cpu_op", "aten::relu", 10, 3),
                event("cpu_op", "Torch-Compiled Region: 0/0", 0, 20),
                event("user_annotation", "mine", 0, 20),
                event("cpu_op", "aten::linear", 1, 4) | {"tid": 8},
                event("cuda_runtime", "cudaLaunchKernel", 0, 1),
            ]
        }
    )
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


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("variant", ["eager", "compile", "compile_reduce_overhead"])
def test_both_counts_of_launches_agree_on_a_gpu(variant: str, tmp_path: Path):
    scalars = details(probe("trace", Workload("diffraction", (256, 256)), variant, tmp_path, device="cuda"), "trace")
    assert scalars["kernel launches"] == scalars["kernel launches, counted again"] > 0
    assert (scalars["compiled regions"] > 0) == (variant != "eager")
    assert (scalars["in graph replay"] > 0) == (variant == "compile_reduce_overhead")


# ---------------------------------------------------------------- accuracy


def test_measures_of_error_see_what_they_can():
    reference = torch.linspace(1, 2, 40, dtype=torch.float64).view(8, 5)
    right = accuracy.measures(reference, reference)
    assert right["correlation"] == pytest.approx(1)
    assert not any(value for name, value in right.items() if name != "correlation")
    scaled = accuracy.measures(accuracy.spoiled(reference, "scaled"), reference)
    assert scaled["correlation"] == pytest.approx(1)
    assert scaled["error"] == pytest.approx(0.1)
    assert scaled["largest error over peak"] == pytest.approx(0.1)
    faulty = accuracy.measures(accuracy.spoiled(reference, "faulty row"), reference)
    assert faulty["largest relative error"] == 1
    assert faulty["mean relative error"] == pytest.approx(1 / 8)
    with pytest.raises(KeyError, match="nonsense"):
        accuracy.spoiled(reference, "nonsense")


def test_a_faulty_row_leaves_the_output_itself_alone():
    out = torch.ones(2, 4, 3)
    assert float(accuracy.spoiled(out, "faulty row").sum()) == 21
    assert float(out.sum()) == 24


def test_dark_pixels_have_no_relative_error():
    reference = torch.tensor([[1.0, 1e-9, 0.0, 0.5]], dtype=torch.float64)
    assert accuracy.measures(reference + 1e-8, reference)["largest relative error"] == pytest.approx(2e-8)


def test_measures_that_do_not_exist_are_left_out():
    nothing = torch.zeros(2, 2, dtype=torch.float64)
    assert accuracy.measures(nothing, nothing) == {}
    assert "correlation" not in accuracy.measures(torch.ones(2, 2), torch.eye(2, dtype=torch.float64))


@pytest.mark.slow
def test_the_accuracy_of_a_variant(tmp_path: Path):
    measured = details(probe("accuracy", LINEAR, "eager", tmp_path, case="scaled"), "accuracy")
    assert list(measured) == [
        "correlation",
        "error",
        "mean relative error",
        "largest relative error",
        "largest error over peak",
    ]
    assert measured["correlation"] == pytest.approx(1)
    assert measured["error"] == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(
    ("output", "reason"),
    [(torch.zeros(3), "wrong shape"), (torch.full((16, 24), math.nan), "384 of 384 elements are not finite")],
)
def test_an_output_that_cannot_be_compared_is_wrong(output: torch.Tensor, reason: str, tmp_path: Path):
    with pytest.raises(Ended, match=reason) as end:
        accuracy.look(spoilt(found(LINEAR, "eager", tmp_path), output), pytest.fail)
    assert end.value.status == "wrong"


# ---------------------------------------------------------------- oracle


def looked(whole: Subject) -> dict[str, float]:
    """Name → µs that the oracle probe emits of ``whole``."""
    seen: dict[str, float] = {}

    def emit(event: str, *, name: str, value: float, **_: Any) -> None:
        seen[name] = value

    oracle.look(whole, emit)
    return seen


def test_both_timers_time_the_same_call_turn_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []

    def lab(runs: Any, word: str, *_: Any, **__: Any) -> dict[str, clock.Timing]:
        order.append(word)
        return {"it": clock.Timing(1, [float(len(order))])}

    def other(run: Any) -> float:
        order.append("other")
        return float(len(order))

    monkeypatch.setattr(oracle.clock, "measure", lab)
    monkeypatch.setitem(oracle.ORACLES, "cpu", ("hot", "the other", other))
    whole = found(LINEAR, "eager", tmp_path)
    assert looked(whole) == {"hot clock": 2.5, "the other": 2.5}
    assert looked(replace(whole, number=1)) == {"hot clock": 6.5, "the other": 6.5}
    assert order == ["hot", "other", "other", "hot", "other", "hot", "hot", "other"]


def test_torchs_timer_agrees_that_a_call_takes_what_it_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oracle, "BUDGET_S", 0.03)
    whole = found(LINEAR, "eager", tmp_path)
    factory = whole.variant.factory

    def slow(workload: Workload, inputs: Any) -> Any:
        run = factory(workload, inputs)
        return lambda: (time.sleep(5e-3), run())[1]

    seen = looked(replace(whole, variant=replace(whole.variant, factory=slow)))
    assert list(seen) == ["hot clock", "torch.utils.benchmark"]
    assert all(5e3 < us < 5e4 for us in seen.values()), seen


def test_a_wrong_variant_is_given_to_no_timer(tmp_path: Path):
    with pytest.raises(Ended) as end:
        looked(spoilt(found(LINEAR, "eager", tmp_path), torch.zeros(16, 24)))
    assert end.value.status == "wrong"


def test_a_call_that_the_lab_cannot_time_ends_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for error, status in ((clock.RunError("no memory"), "crashed"), (clock.ClockError("no graph"), "skipped")):
        monkeypatch.setattr(oracle.clock, "measure", lambda *_, error=error, **__: {"it": error})
        with pytest.raises(Ended) as end:
            looked(found(LINEAR, "eager", tmp_path))
        assert end.value.status == status


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_tritons_timer_gives_microseconds():
    x = torch.randn(4096, 4096, device="cuda")
    assert 10 < oracle.tritons(lambda: x + 1) < 1000


# ---------------------------------------------------------------- how probes end


@pytest.mark.slow
def test_a_variant_that_cannot_run_here_is_skipped(tmp_path: Path):
    (status,) = probe("trace", IMAGE, "compile_reduce_overhead", tmp_path)
    assert (status["event"], status["status"]) == ("status", "skipped")
    assert "CUDA" in status["reason"]


def test_a_probe_that_fails_says_so(tmp_path: Path):
    (status,) = probe("accuracy", LINEAR, "nobody", tmp_path)
    assert status["status"] == "crashed"
    assert "nobody" in status["reason"]
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_a_wrong_variant_is_not_traced(tmp_path: Path):
    with pytest.raises(Ended) as end:
        trace.look(spoilt(found(LINEAR, "eager", tmp_path), torch.zeros(16, 24)), pytest.fail)
    assert end.value.status == "wrong"


def test_what_torch_does_not_compute_is_not_traced(tmp_path: Path):
    with pytest.raises(Ended, match="outside torch"):
        trace.look(found(IMAGE, "c_openmp", tmp_path), pytest.fail)


# ---------------------------------------------------------------- process


def test_the_vectors_file_holds_sizes_and_arrays(tmp_path: Path):
    workload = Workload("diffraction_table", (6, 9))
    inputs = workload.inputs("cpu")
    process.write_vectors(tmp_path / "vectors", inputs, layout_of(workload))
    raw = (tmp_path / "vectors").read_bytes()
    sizes = numpy.frombuffer(raw, dtype=numpy.int64, count=14).tolist()
    assert sizes == [1, 1, 27, 27, 27, -13, -13, -13, 6, 9, 1, 5, 5, 5]
    arrays = numpy.frombuffer(raw, dtype=numpy.float64, offset=14 * 8)
    assert len(arrays) == 9 + 4 + 10 + 4 + 27**3
    assert arrays[13:23].tolist() == inputs["detector"].tolist()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("variant", ["c_openmp", "eager"])
def test_a_whole_program_takes_longer_than_its_parts(variant: str, tmp_path: Path):
    times = details(probe("process", IMAGE, variant, tmp_path), "process")
    assert list(times) == ["whole", "simulation", "file output"]
    assert 0 < times["simulation"] + times["file output"] < times["whole"]
    pixels = numpy.fromfile(tmp_path / f"{variant}.f32", dtype=numpy.float32)
    problem = check.Problem(IMAGE, "cpu")
    assert process.judged(tmp_path / f"{variant}.f32", problem).ok
    (2 * pixels).tofile(tmp_path / "doubled.f32")
    assert "wrong values" in process.judged(tmp_path / "doubled.f32", problem).reason
    pixels[1:].tofile(tmp_path / "short.f32")
    assert "1535 pixels instead of 1536" in process.judged(tmp_path / "short.f32", problem).reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; print('no room', file=sys.stderr); sys.exit(3)", "exit status 3: no room"),
        ("print('done')", "exit status 0: it said nothing"),
    ],
)
def test_a_program_that_fails_is_told_apart(code: str, reason: str):
    with pytest.raises(Ended, match=reason) as end:
        process.timed([sys.executable, "-c", code])
    assert end.value.status == "crashed"


def test_only_float32_images_are_written(tmp_path: Path):
    with pytest.raises(Ended, match="float64") as end:
        process.look(found(Workload("diffraction", (32, 48), "float64"), "eager", tmp_path), pytest.fail)
    assert end.value.status == "skipped"


def emitted() -> tuple[list[dict[str, Any]], Callable[..., None]]:
    """A list, and an ``emit`` that fills it."""
    seen: list[dict[str, Any]] = []
    return seen, lambda event, **fields: seen.append(fields)


def test_the_program_is_run_once_untimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs: list[list[str]] = []
    answer = variants.find("linear_relu", "eager").factory(LINEAR, LINEAR.inputs("cpu"))()

    def timed(line: list[str]) -> dict[str, float]:
        runs.append(line)
        answer.numpy().tofile(line[-1])
        return {"whole": 3.0, "simulation": 2.0, "file output": 1.0}

    monkeypatch.setattr(process, "timed", timed)
    seen, emit = emitted()
    process.look(found(LINEAR, "eager", tmp_path), emit)
    assert len(runs) == 2
    assert runs[0] == runs[1]
    assert [(line["name"], line["value"]) for line in seen] == [
        ("whole", 3.0),
        ("simulation", 2.0),
        ("file output", 1.0),
    ]
