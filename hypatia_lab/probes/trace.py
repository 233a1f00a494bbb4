"""Probe ``trace``: what one warm call launches, how long each kernel takes, and how long the device waits.

Run as a process by :mod:`hypatia_lab.bench.sessions`. On a GPU the numbers come from a trace of the device alone:
recording torch's operators as well slows the launching down and widens the gaps. A second trace, with operators,
gives the annotations and the file ``trace.json.gz``. On a CPU every word about kernels means torch's outermost
operators (those that no other operator called); a compiled function's loops are among them.

"kernel launches, counted again" does without the profiler's device rows. In order of preference:

1. The call replayed CUDA graphs: the kernel nodes of those, and the launches through the API beside them.
2. The call can be captured in a CUDA graph: the kernel nodes of that.
3. The launches through the API, as the trace has them.

On a CPU: the operators that torch's dispatcher handed out, which is more, since a composite operator counts as its
parts; left out for compiled functions, whose loops never meet the dispatcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import json
import re
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypatia_lab import clock
from hypatia_lab.kernels.loader import driver
from hypatia_lab.probes.probe import Emit, Ended, Subject, probe

if TYPE_CHECKING:
    from hypatia_lab.variants import Run

KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy", "gpu_user_annotation": "annotation"}
"""Category of a device event in a Chrome trace → what it is here."""
ORDER = (
    "kernel launches",
    "kernel launches, counted again",
    "unique kernels",
    "copies",
    "annotations",
    "compiled regions",
    "GPU time",
    "span",
    "busy",
    "in graph replay",
    "largest idle gap",
    "top kernel",
    "top three kernels",
)
"""The words of topic ``trace``, in the order of the record."""
LONGEST_NAME = 200
MOST_KERNELS, MOST_EVENTS = 30, 150
"""Kernels, and events of the timeline, that are kept."""
EVENT_KEYS = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "s", "args"}
ARGUMENTS = {"name", "labels", "sort_index", "External id", "correlation", "device", "stream", "grid", "block", "bytes"}
ARGUMENTS |= {"registers per thread", "shared memory", "graph id", "graph node id", "memory bandwidth (GB/s)"}
"""What of an event may be published: nothing that holds a path or names the machine."""

Trace = dict[str, Any]
"""A Chrome trace as torch.profiler exports it, parsed."""


@dataclass(frozen=True)
class Row:
    """One event of the device (or one operator on a CPU): start and duration in µs; ``kind`` as in :data:`KINDS`.

    ``replayed``: a CUDA graph launched it.
    """

    name: str
    kind: str
    start: float
    duration: float
    replayed: bool = False

    @property
    def end(self) -> float:
        """When it ended, µs."""
        return self.start + self.duration


# ---------------------------------------------------------------- reading a trace


def _calls(trace: Trace, pattern: str) -> set[int]:
    """Correlation numbers of the CUDA API calls whose name matches ``pattern``: one a call, though it be seen twice."""
    return {
        event["args"]["correlation"]
        for event in trace["traceEvents"]
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and re.match(pattern, event["name"])
    }


def api_launches(trace: Trace) -> int:
    """How often the call asked the CUDA API to launch one kernel; graph launches do not count."""
    return len(_calls(trace, r"cu(da)?Launch\w*Kernel"))


def _row(event: dict[str, Any], kind: str, replays: Container[int] = ()) -> Row:
    replayed = event.get("args", {}).get("correlation") in replays
    return Row(event["name"], kind, float(event["ts"]), float(event["dur"]), replayed)


def device_rows(trace: Trace) -> list[Row]:
    """Everything on the device's side of ``trace``, in order of start."""
    replays = _calls(trace, r"cu(da)?GraphLaunch")
    events = [event for event in trace["traceEvents"] if event.get("cat") in KINDS]
    return sorted((_row(event, KINDS[event["cat"]], replays) for event in events), key=lambda row: row.start)


def operator_rows(trace: Trace) -> list[Row]:
    """The outermost operators of ``trace`` as kernels, and its annotations, in order of start."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("cpu_op", "user_annotation")]
    rows: list[Row] = []
    until: dict[int, float] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        row = _row(event, "kernel")
        # torch.compile marks its stages as operators; their names have spaces, an operator's (aten::mul) has none.
        if event["cat"] == "user_annotation" or " " in row.name:
            rows.append(replace(row, kind="annotation"))
        elif row.start >= until.get(event["tid"], row.start):
            until[event["tid"]] = row.end
            rows.append(row)
    return rows


def work(rows: Iterable[Row]) -> list[Row]:
    """The rows in which the device works: kernels, copies and fills, not annotations."""
    return [row for row in rows if row.kind != "annotation"]


def by_name(rows: Iterable[Row]) -> list[tuple[str, float, int]]:
    """Name (cut), total µs and number of the working rows of each name, longest first."""
    total: dict[str, tuple[float, int]] = {}
    for row in work(rows):
        us, count = total.get(row.name[:LONGEST_NAME], (0.0, 0))
        total[row.name[:LONGEST_NAME]] = us + row.duration, count + 1
    return sorted(((name, us, count) for name, (us, count) in total.items()), key=lambda found: -found[1])


def summary(rows: list[Row]) -> dict[str, tuple[str, float]]:
    """What ``rows`` amount to, name → (unit, value). "GPU time", "span" and all shares take kernels, copies and fills.

    "busy" is the share of the span in which any of them runs: one may begin before the one ahead of it has ended.
    Raises ``ValueError`` when none of the rows is work.
    """
    busy = work(rows)
    if not busy:
        raise ValueError("no kernel and no copy in these rows")
    launched = [row.name for row in busy if row.kind == "kernel"]
    used = sum(row.duration for row in busy)
    ends = list(accumulate((row.end for row in busy), max))
    span = ends[-1] - busy[0].start
    gaps = [max(0.0, after.start - end) for end, after in zip(ends, busy[1:], strict=False)]
    tops = [us for _, us, _ in by_name(busy)]

    def share(us: float) -> tuple[str, float]:
        return "%", 100 * us / used if used else 0.0

    return {
        "kernel launches": ("1", len(launched)),
        "unique kernels": ("1", len(set(launched))),
        "copies": ("1", len(busy) - len(launched)),
        "annotations": ("1", len(rows) - len(busy)),
        "GPU time": ("us", used),
        "span": ("us", span),
        "busy": ("%", 100 * (span - sum(gaps)) / span if span else 0.0),
        "in graph replay": share(sum(row.duration for row in busy if row.replayed)),
        "largest idle gap": ("us", max([0.0, *gaps])),
        "top kernel": share(tops[0]),
        "top three kernels": share(sum(tops[:3])),
    }


def published(trace: Trace) -> bytes:
    """``trace`` as gzipped JSON, the same bytes for the same trace, without what names the machine or its files."""
    events = trace["traceEvents"]
    origin = min((event["ts"] for event in events if "ts" in event), default=0.0)
    kept = []
    for event in events:
        small = {key: value for key, value in event.items() if key in EVENT_KEYS}
        if "ts" in small:
            small["ts"] = round(small["ts"] - origin, 3)
        if "args" in small:
            small["args"] = {key: value for key, value in small["args"].items() if key in ARGUMENTS}
        kept.append(small)
    devices = [{key: one[key] for key in ("id", "name") if key in one} for one in trace.get("deviceProperties", [])]
    whole = {"schemaVersion": 1, "deviceProperties": devices, "displayTimeUnit": "ms", "traceEvents": kept}
    return gzip.compress(json.dumps(whole, separators=(",", ":")).encode(), mtime=0)


# ---------------------------------------------------------------- taking a trace


def record(run: Run, device: str, *, operators: bool) -> Trace:
    """The trace of one call of ``run``; with torch's ``operators`` or, on a GPU only, of the device alone."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] if operators else []
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    clock.synchronize(device)
    with profile(activities=activities) as seen:
        run()
        clock.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def visible_loops() -> Iterator[list[Any]]:
    """Functions that torch.compile compiles for a CPU in the body mark their loops as operators; yields no replay."""
    import torch._inductor.config as inductor

    with inductor.patch({"cpp.enable_kernel_profile": True}):  # pyright: ignore[reportAttributeAccessIssue]
        yield []


def compiled_regions() -> int:
    """Graphs that torch.compile has compiled in this process."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and importing it takes seconds
        return 0
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


# ---------------------------------------------------------------- counting again


@contextlib.contextmanager
def kept_graphs() -> Iterator[list[Any]]:
    """CUDA graphs made in the body keep their nodes, so that they can be counted; yields one graph a replay."""
    import torch

    replayed: list[Any] = []

    class Kept(torch.cuda.CUDAGraph):
        def __new__(cls, keep_graph: bool = False) -> Any:
            return super().__new__(cls, True)

        def __init__(self, keep_graph: bool = False) -> None:
            super().__init__(True)  # pyright: ignore[reportCallIssue]

        def replay(self) -> None:
            replayed.append(self)
            super().replay()

    before, torch.cuda.CUDAGraph = torch.cuda.CUDAGraph, Kept
    try:
        yield replayed
    finally:
        torch.cuda.CUDAGraph = before


def kernel_nodes(graph: int, driver: Any) -> int:
    """Kernel nodes of the CUgraph ``graph`` and of the graphs in it, asked of ``driver`` (libcuda, through ctypes).

    Raises ``OSError`` when the driver refuses. Source: cuGraphGetNodes, CUgraphNodeType (0: kernel, 4: child graph).
    """

    def ask(call: str, *arguments: Any) -> None:
        if code := getattr(driver, call)(*arguments):
            raise OSError(f"{call} failed with CUresult {code}")

    count = ctypes.c_size_t()
    ask("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        ask("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    total = 0
    for node in nodes:
        kind, child = ctypes.c_int(), ctypes.c_void_p()
        ask("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == 4:
            ask("cuGraphChildGraphNodeGetGraph", ctypes.c_void_p(node), ctypes.byref(child))
            total += kernel_nodes(child.value or 0, driver)
        total += kind.value == 0
    return total


def launches_again(run: Run, trace: Trace, replays: list[Any]) -> int:
    """Kernels that a call of ``run`` launches on a GPU, by the first way of the module's list that works.

    ``trace`` and ``replays`` are what was seen of one call inside :func:`kept_graphs`.
    """
    with contextlib.suppress(clock.ClockError, OSError):
        if replays:
            return api_launches(trace) + sum(kernel_nodes(graph.raw_cuda_graph(), driver()) for graph in replays)
        return kernel_nodes(clock.capture(run).raw_cuda_graph(), driver())
    return api_launches(trace)


def dispatched(run: Run) -> int:
    """Operators that torch's dispatcher handed out in one call of ``run``."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Count() as count:
        run()
    return count.seen


# ---------------------------------------------------------------- the probe


def look(subject: Subject, emit: Emit) -> None:
    """Emit what one warm call does, and leave ``trace.json.gz`` in the probe's folder.

    Raises :class:`Ended` for a variant that is wrong or that torch's profiler cannot see.
    """
    if subject.variant.host:
        raise Ended("skipped", "plain C outside torch: the profiler sees nothing of it")
    with kept_graphs() if subject.device == "cuda" else visible_loops() as replays:
        _look(subject, emit, replays)


def _look(subject: Subject, emit: Emit, replays: list[Any]) -> None:
    gpu, before = subject.device == "cuda", compiled_regions()
    run = subject.checked(subject.problem())
    for _ in range(3):  # reduce-overhead: warm up, record, replay
        run()
    record(run, subject.device, operators=True)  # the profiler's own start would be in the first
    detailed = record(run, subject.device, operators=True)
    replays.clear()
    plain = record(run, subject.device, operators=False) if gpu else detailed
    replayed, rows = list(replays), device_rows(plain) if gpu else operator_rows(plain)
    if not work(rows):
        raise Ended("skipped", "the profiler saw no kernel and no operator")
    regions = compiled_regions() - before
    found = summary(rows)
    found["annotations"] = ("1", sum(row.kind == "annotation" for row in (device_rows(detailed) if gpu else rows)))
    found["compiled regions"] = ("1", regions)
    if gpu:
        found["kernel launches, counted again"] = ("1", launches_again(run, plain, replayed))
    elif not regions:
        found["kernel launches, counted again"] = ("1", dispatched(run))
    for name in ORDER:
        if name in found:
            unit, value = found[name]
            emit("detail", topic="trace", name=name, unit=unit, value=value, count=1)
    for name, us, count in by_name(rows)[:MOST_KERNELS]:
        emit("detail", topic="kernels", name=name, unit="us", value=us, count=count)
    first = work(rows)[0].start
    for row in work(rows)[:MOST_EVENTS]:
        values = [round(row.start - first, 3), round(row.duration, 3)]
        emit("detail", topic="timeline", name=row.name[:LONGEST_NAME], unit="us", values=values, count=1)
    (subject.folder / "trace.json.gz").write_bytes(published(detailed))


if __name__ == "__main__":
    probe(look)
