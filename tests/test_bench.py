"""Measuring: fresh processes that may die, interruptions that lose nothing, and results that are not believed."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import recorded

from hypatia_lab import clock, failures, intervals, machine, records, results, variants
from hypatia_lab.bench import cells, composer, details, joining, sessions
from hypatia_lab.bench.sessions import Casualty, SessionError
from hypatia_lab.experiments import EXPERIMENTS, Experiment, Group, Probe
from hypatia_lab.experiments.plan import Source
from hypatia_lab.workloads import Workload

SMALL, LARGE = (4, 8, 6), (8, 16, 12)
NAMES = ("eager", "eager@again", "epilogue")


def group(shape: tuple[int, ...] = SMALL, names: tuple[str, ...] = NAMES, clocks: tuple[str, ...] = ("hot",)) -> Group:
    """Variants of Linear+ReLU on one tiny workload, timed for a moment."""
    return Group(Workload("linear_relu", shape), names, clocks, 0.0)


def experiment(name: str, *groups: Group) -> Experiment:
    """An experiment that always plans ``groups``."""
    return Experiment(name, "none", "a test", "linear_relu", lambda preset, device, shapes: list(groups))


CEILINGS = experiment(
    "ceilings",
    Group(Workload("matmul", (16, 16, 16)), ("eager",), ("hot",), 0.0),
    Group(Workload("copy", (1024,)), ("eager",), ("hot",), 0.0),
)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the experiments by tiny ones: ``lab(groups of "tiny", ..., processes=1)``."""
    # Whoever works on the tree may commit while the tests run; parts of another commit are not reused.
    monkeypatch.setattr(composer, "commit", lambda: ("0" * 40, False))

    def use(*groups: Group, processes: int = 1, most: int = 0) -> None:
        monkeypatch.setattr(composer, "EXPERIMENTS", {"ceilings": CEILINGS, "tiny": experiment("tiny", *groups)})
        monkeypatch.setattr(composer, "PROCESSES", {"quick": processes, "seed": processes, "full": processes})
        monkeypatch.setattr(composer, "MOST", dict.fromkeys(composer.PROCESSES, most or processes))

    use(group())
    return use


def measure(root: Path, name: str | Experiment = "tiny", **more: Any) -> records.Record:
    """Measure under ``root`` as machine "box", on the CPU, without a progress bar."""
    return composer.measure(name, **{"machine_name": "box", "root": root, "progress": False} | more)


def give_ceilings(root: Path, *, us: float = 1e-3, **run: Any) -> Path:
    """A ceilings record of a machine that takes ``us`` for SMALL's arithmetic and half of it for its bytes."""
    workload = Workload("linear_relu", SMALL)

    def cell(operation: str, shape: tuple[int, ...], flops: int, traffic: int, median: float) -> dict[str, Any]:
        row = answer(0, "eager", "hot", median_us=median, samples_us=[])
        merged = joining.cell(
            Group(Workload(operation, shape), ("eager",), ("hot",), 0.0), "eager", "hot", [[row]], 0, {}
        )
        return merged | {"flops": flops, "traffic": traffic}

    line = {
        "kind": "run",
        "schema": records.SCHEMA,
        "machine": "box",
        "experiment": "ceilings",
        "preset": "quick",
        "device": "cpu",
        "started": "2025-01-01T00:00:00Z",
        "commit": "synthetic",
        "dirty": False,
        "processes": 1,
        "facts": {},
    }
    cells = [
        cell("matmul", (16, 16, 16), workload.flops, 0, us),
        cell("copy", (1024,), 0, workload.traffic, us / 2),
    ]
    return records.write(root, line | run, cells, overwrite=True)


def answer(index: int, name: str, word: str, **changes: Any) -> dict[str, Any]:
    """A row as a measuring process reports it."""
    return {
        "group": index,
        "variant": name,
        "clock": word,
        "status": "ok",
        "reason": "",
        "error": 1e-7,
        "max_error": 1e-6,
        "median_us": 100.0,
        "samples_us": [99.0, 100.0, 101.0, 100.0],
        "calls": 5,
        "sm_mhz": [],
        "power_w": [],
        "throttled": False,
    } | changes


class Process:
    """Stands in for ``run_session``: answers every row of the plan at once, and remembers what it was given.

    ``alter(number, index, name)`` changes a row; ``casualties`` are handed out first, one a session, each after
    the groups before it are done.
    """

    def __init__(self) -> None:
        self.plans: list[dict[str, Any]] = []
        self.casualties: list[Casualty] = []
        self.fresh: list[Any] = []
        self.alter: Callable[[int, int, str], dict[str, Any]] = lambda number, index, name: {}

    def __call__(
        self,
        module: str,
        plan: dict[str, Any],
        log: Path,
        *,
        on_event: Any,
        silence_s: float,
        env: dict[str, str],
        fresh: sessions.Fresh | None,
    ) -> Any:
        assert module == "hypatia_lab.bench.cells"
        assert log.parent.is_dir()
        plan = json.loads(json.dumps(plan))  # as the child would see it
        self.plans.append(plan)
        self.fresh.append(fresh)
        casualty = self.casualties.pop(0) if self.casualties else None
        for index, described in plan["groups"]:
            for name in ("", *described["variants"]):
                on_event({"event": "begin", "what": [index, name]})
                if casualty and casualty.what in (None, [index, name]):
                    return casualty
                if not name:
                    continue
                left_out = plan["excluded"].get(f"{index}/{name}") or plan["excluded"].get(f"{index}/")
                status, reason = left_out or ("ok", "")
                changes = self.alter(plan["number"], index, name)
                if status != "ok":
                    changes |= {"status": status, "reason": reason, "median_us": None, "samples_us": []}
                for word in described["clocks"] or ["none"]:
                    on_event({"event": "row", **answer(index, name, word), **changes})
            on_event({"event": "done", "group": index})
        return None

    def measured(self) -> list[list[int]]:
        """Group numbers by session."""
        return [[index for index, _ in plan["groups"]] for plan in self.plans]


ROOM = sessions.room


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process waits for its plan, whatever the machine."""
    monkeypatch.setattr(sessions, "room", lambda wanted: 0)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    """Measuring processes that answer at once."""
    stub = Process()
    monkeypatch.setattr(composer.sessions, "run_session", stub)
    return stub


def statuses(record: records.Record) -> dict[tuple[str, str], str]:
    """(variant, clock) → status."""
    return {(cell["variant"], cell["clock"]): cell["status"] for cell in record.cells}


def files_below(folder: Path) -> list[str]:
    """Every file below ``folder``, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------- real processes, to the end


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, records.Record]]:
    """A folder that held nothing, and the record of two real processes over two workloads."""
    root = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        tiny = experiment("tiny", group(LARGE), group(SMALL, clocks=("hot", "graph")), group(SMALL, clocks=()))
        patch.setattr(composer, "EXPERIMENTS", {"ceilings": CEILINGS, "tiny": tiny})
        patch.setattr(composer, "PROCESSES", {"quick": 2})
        patch.setattr(composer, "MOST", {"quick": 2})
        with pytest.MonkeyPatch.context() as many:
            many.setattr(sessions, "room", lambda wanted: wanted)
            record = measure(root)
        yield root, record


def test_measuring_leaves_the_record_and_its_ceilings_and_nothing_else(fresh):
    root, record = fresh
    assert recorded(root) == ["box/ceilings", "box/tiny"]
    assert len(files_below(root)) == 2
    assert not (root / "box" / ".parts").exists()
    assert [r.digest for r in records.load(root, experiments=["tiny"])] == [record.digest]
    assert record.run["seconds"] > 0.1


def test_the_record_holds_every_cell_of_the_plan_small_workloads_first(fresh):
    _, record = fresh
    assert [(c["shape"], c["variant"], c["clock"]) for c in record.cells] == [
        *[(list(SMALL), name, word) for word in ("hot", "graph") for name in NAMES],
        *[(list(SMALL), name, "none") for name in NAMES],
        *[(list(LARGE), name, "hot") for name in NAMES],
    ]


def test_each_process_leaves_one_median_of_its_own_samples(fresh):
    _, record = fresh
    assert record.run["processes"] == 2
    timed = [cell for cell in record.cells if cell["clock"] == "hot"]
    assert len(timed) == 6
    assert any(cell["medians_us"][0] != cell["medians_us"][1] for cell in timed)
    for cell in timed:
        assert cell["status"] == "ok"
        assert len(cell["medians_us"]) == 2
        assert 0 < len(cell["samples_us"]) <= records.MAX_SAMPLES
        assert min(cell["samples_us"]) <= max(cell["medians_us"])
        assert cell["outliers"]["of"] >= 8
        assert cell["error"] is not None
        assert 0 < cell["error"] < 1e-5


def test_a_clock_that_is_not_there_is_skipped_with_its_reason(fresh):
    _, record = fresh
    cells = [cell for cell in record.cells if cell["clock"] == "graph"]
    assert {(cell["status"], cell["reason"]) for cell in cells} == {("skipped", "CUDA graphs need a CUDA device")}
    assert all(cell["medians_us"] == [] for cell in cells)


def test_without_a_clock_a_variant_is_checked_and_has_no_time(fresh):
    _, record = fresh
    cells = [cell for cell in record.cells if cell["clock"] == "none"]
    assert {(cell["status"], cell["reason"]) for cell in cells} == {("ok", "checked only")}
    assert all(cell["medians_us"] == [] and cell["error"] is not None for cell in cells)


def test_two_processes_check_what_is_not_timed_and_all_measure_what_is(tmp_path, lab, process):
    lab(group(clocks=()), group(LARGE), processes=4)
    give_ceilings(tmp_path)
    record = measure(tmp_path)
    assert process.measured() == [[0, 1], [0, 1], [1], [1]]
    assert {len(cell["medians_us"]) for cell in record.cells} == {0, 4}


def test_with_nothing_to_time_two_processes_are_enough(tmp_path, lab, process):
    lab(group(clocks=()), processes=4)
    give_ceilings(tmp_path)
    assert {cell["reason"] for cell in measure(tmp_path).cells} == {""}
    assert process.measured() == [[0], [0]]


def test_a_control_is_compared_with_what_it_repeats(fresh):
    _, record = fresh
    assert {c["variant"]: c["baseline"] for c in record.cells} == {
        "eager": "eager",
        "eager@again": "eager",
        "epilogue": "eager",
    }
    rows = results.rows([record])
    ratios = [row.ratio for row in rows if row.clock == "hot" and row.variant == "eager@again"]
    assert len(ratios) == 2
    assert all(0.05 < ratio < 20 for ratio in ratios)


def test_the_run_says_what_was_measured_where_and_with_what(fresh):
    _, record = fresh
    run = record.run
    assert (run["machine"], run["experiment"], run["preset"], run["device"]) == ("box", "tiny", "quick", "cpu")
    assert run["facts"]["cores"] >= 1
    assert "torch" in run["facts"]["versions"]
    assert len(run["started"]) == len("2025-01-01T00:00:00Z")


# ---------------------------------------------------------------- real processes, cut short


def test_who_waits_is_given_the_plan_of_its_number_and_only_one(tmp_path, monkeypatch, lab, process):
    lab(group(SMALL), group(LARGE))
    give_ceilings(tmp_path)
    asked = []

    @contextlib.contextmanager
    def waiting(modules: Any, environments: Any, log: Path) -> Iterator[list[str]]:
        asked.append(list(modules))
        yield [f"fresh {number}" for number in range(len(modules))]

    monkeypatch.setattr(sessions, "room", lambda wanted: min(wanted, 1))
    monkeypatch.setattr(sessions, "waiting", waiting)
    process.casualties = [Casualty([0, "epilogue"], "crashed", "it died")]
    measure(tmp_path)
    assert asked[0] == ["hypatia_lab.bench.cells"]
    assert process.fresh[0] == "fresh 0"
    assert set(process.fresh[1:]) == {None}


def test_room_to_wait_is_a_share_of_cores_and_memory(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 16)
    monkeypatch.setattr(machine, "gpus", lambda: 2)
    assert ROOM(3) == min(3, ROOM(100))
    assert 0 <= ROOM(100) <= 4
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert ROOM(100) == 0


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, monkeypatch, lab):
    lab(group(SMALL), group(LARGE))
    give_ceilings(tmp_path)
    real, given, pids = sessions.run_session, [], []

    def watched(module: str, plan: Any, log: Path, *, on_event: Any, **more: Any) -> Any:
        given.append([index for index, _ in plan["groups"]])

        def pass_on(event: dict[str, Any]) -> None:
            on_event(event)
            if event["event"] == "done" and len(given) == 1:
                raise KeyboardInterrupt

        return real(module, plan, log, on_event=pass_on, **more)

    popen = subprocess.Popen

    def started(*arguments: Any, **more: Any) -> Any:
        child = popen(*arguments, **more)
        pids.append(child)
        return child

    monkeypatch.setattr(composer.sessions, "run_session", watched)
    monkeypatch.setattr(sessions.subprocess, "Popen", started)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path)
    assert [child.returncode for child in pids] == [-signal.SIGKILL]
    assert "box/tiny" not in recorded(tmp_path)
    head, *kept = (tmp_path / "box" / ".parts" / "tiny" / "0.jsonl").read_text().splitlines()
    finished = {row["variant"]: row["median_us"] for row in map(json.loads, kept)}
    assert json.loads(head)["excluded"] == {}
    assert set(finished) == set(NAMES)

    record = measure(tmp_path)
    assert given == [[0, 1], [1]], "the finished group is not measured again"
    first = {cell["variant"]: cell["medians_us"] for cell in record.cells if cell["shape"] == list(SMALL)}
    assert first == {name: [pytest.approx(us, rel=1e-5)] for name, us in finished.items()}
    assert [cell["status"] for cell in record.cells] == ["ok"] * 6
    assert "seconds" not in record.run, "what it took before the interruption is not known"
    assert not (tmp_path / "box" / ".parts").exists()


DEADLY = '''
import ctypes

import torch

from hypatia_lab.variants import variant


@variant("linear_relu", "segfaults", origin="own")
def segfaults(workload, inputs):
    """Reads address zero."""
    return lambda: ctypes.string_at(0)


@variant("linear_relu", "zeros", origin="own")
def zeros(workload, inputs):
    """Forgets to compute anything."""
    return lambda: torch.zeros(workload.shape[0], workload.shape[2])


class Late:
    """Eager for three calls (two to check, one to see the pace), then whatever ``then`` does."""

    def __init__(self, inputs, then):
        self.inputs, self.then, self.calls = inputs, then, 0

    def __call__(self):
        self.calls += 1
        right = torch.relu(torch.nn.functional.linear(*self.inputs.values()))
        return right if self.calls <= 3 else self.then(right)


@variant("linear_relu", "zeros_late", origin="own")
def zeros_late(workload, inputs):
    """Right when checked, wrong when timed."""
    return Late(inputs, torch.zeros_like)


def stop(right):
    raise SystemExit(3)


@variant("linear_relu", "dies_late", origin="own")
def dies_late(workload, inputs):
    """Right when checked; ends the process when timed."""
    return Late(inputs, stop)


@variant("linear_relu", "raises", origin="own")
def raises(workload, inputs):
    """Cannot be built."""
    raise RuntimeError("no such tile\\nand a long story")


@variant("linear_relu", "too_large", origin="own")
def too_large(workload, inputs):
    """Asks for more than there is: 4 EiB on a CPU, 1 PiB on a GPU."""
    x = inputs["x"]
    return lambda: torch.empty(2**60 if x.device.type == "cpu" else 2**48, device=x.device)


def no_room(right):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\\nSee the documentation")


@variant("linear_relu", "too_large_late", origin="own")
def too_large_late(workload, inputs):
    """Right when checked; finds no memory when timed."""
    return Late(inputs, no_room)


@variant("linear_relu", "elsewhere", origin="own", needs=lambda workload, device: f"not on a {device}")
def elsewhere(workload, inputs):
    """Runs on no machine."""
    raise AssertionError("was built")
'''


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registers variants that go wrong, here and in every fresh Python process started from here."""
    folder = tmp_path / "deadly"
    folder.mkdir()
    (folder / "deadly.py").write_text(DEADLY)
    # Python imports sitecustomize at its start; torch must wait until the lab's own modules ask for it.
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'hypatia_lab.check':\n"
        "            sys.meta_path.remove(self)\n"
        "            import deadly\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    spec = importlib.util.spec_from_file_location("deadly", folder / "deadly.py")
    assert spec is not None
    assert spec.loader is not None
    with variants.restored():
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        yield


def test_a_variant_that_kills_its_process_is_named_and_the_rest_is_measured(tmp_path, lab, deadly):
    lab(group(SMALL, ("eager", "segfaults", "zeros", "epilogue"), ("hot", "cold")))
    root = tmp_path / "records"
    give_ceilings(root)
    record = measure(root)
    assert statuses(record) == {
        (name, word): {"segfaults": "crashed", "zeros": "wrong"}.get(name, "ok")
        for name in ("eager", "segfaults", "zeros", "epilogue")
        for word in ("hot", "cold")
    }
    told = {cell["variant"]: cell["reason"] for cell in record.cells}
    assert told["segfaults"] == "the process died (signal SIGSEGV)"
    assert told["zeros"]
    assert all(bool(cell["medians_us"]) is (cell["status"] == "ok") for cell in record.cells)


# ---------------------------------------------------------------- one process, seen from inside


def session_here(excluded: Any = None, device: str = "cpu") -> tuple[cells.Session, list[dict[str, Any]]]:
    """A measuring process's work without the process, and the events it will have emitted."""
    events: list[dict[str, Any]] = []
    plan = {"device": device, "number": 0, "excluded": excluded or {}}
    return cells.Session(plan, lambda event, **fields: events.append({"event": event} | fields)), events


def run_here(*names: str, excluded: Any = None, device: str = "cpu") -> list[dict[str, Any]]:
    """Every event that a measuring process emits over ``names`` on SMALL."""
    session, events = session_here(excluded, device)
    session.run(0, group(SMALL, names))
    return events


def rows_by_name(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The row of each variant; each must have exactly one."""
    rows = [event for event in events if event["event"] == "row"]
    found = {row["variant"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_who_comes_first_does_not_follow_from_the_number_of_the_process():
    """Else the same one does in every record, and twins of all records are one pair told many times."""

    def built() -> list[str]:
        events = run_here("eager", "eager@again", "epilogue")
        return [event["what"][1] for event in events if event["event"] == "begin"][1:4]

    first = built()
    assert any(built() != first for _ in range(20))  # 6 orders: once in 4e15 by chance


def test_a_wrong_variant_never_has_a_speed(deadly):
    rows = rows_by_name(run_here("eager", "zeros", "zeros_late"))
    assert rows["eager"]["status"] == "ok"
    assert rows["eager"]["median_us"] > 0
    for name in ("zeros", "zeros_late"):
        assert rows[name]["status"] == "wrong"
        assert (rows[name]["median_us"], rows[name]["samples_us"]) == (None, [])
    assert not rows["zeros"]["reason"].startswith("after timing")
    assert rows["zeros_late"]["reason"].startswith("after timing: ")


def test_a_wrong_variant_is_not_even_timed(deadly, monkeypatch):
    timed = []

    def spy(runs: Any, *_: Any, **__: Any) -> Any:
        timed.append(sorted(runs))
        return {name: clock.Timing(1, [1.0]) for name in runs}

    monkeypatch.setattr(cells.clock, "measure", spy)
    run_here("eager", "zeros", "epilogue")
    assert timed == [["eager", "epilogue"]]
    timed.clear()
    run_here("zeros")
    assert timed == []


def test_a_variant_that_raises_is_crashed_with_the_first_line_of_its_reason(deadly, capfd):
    rows = rows_by_name(run_here("eager", "raises"))
    assert (rows["raises"]["status"], rows["raises"]["reason"]) == ("crashed", "RuntimeError: no such tile")
    assert rows["eager"]["status"] == "ok"
    assert "and a long story" in capfd.readouterr().err  # the whole of it goes to the log


def test_who_finds_no_memory_is_crashed_with_the_allocators_words_and_the_others_are_measured(deadly):
    rows = rows_by_name(run_here("too_large", "too_large_late", "eager", "epilogue"))
    assert {name: row["status"] for name, row in rows.items()} == {
        "too_large": "crashed",
        "too_large_late": "crashed",
        "eager": "ok",
        "epilogue": "ok",
    }
    assert "DefaultCPUAllocator: can't allocate memory" in rows["too_large"]["reason"]
    late = rows["too_large_late"]["reason"]
    assert late == "after timing: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert rows["too_large_late"]["median_us"] is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_without_memory_for_one_variant_still_measures_the_others(deadly):
    rows = rows_by_name(run_here("too_large", "eager", device="cuda"))
    assert rows["too_large"]["status"] == "crashed"
    assert rows["too_large"]["reason"].startswith("OutOfMemoryError: CUDA out of memory")
    assert rows["eager"]["status"] == "ok"


def test_inputs_that_cannot_be_drawn_end_their_group_only(monkeypatch, capfd):
    def full(workload: Workload, device: str) -> Any:
        raise MemoryError("no room for x")

    session, events = session_here()
    with monkeypatch.context() as patch:
        patch.setattr(cells.check, "Problem", full)
        session.run(0, group(SMALL, ("eager", "epilogue"), ("hot", "cold")))
    session.run(1, group(SMALL, ("eager",)))
    rows = [event for event in events if event["event"] == "row"]
    assert [(r["group"], r["variant"], r["clock"], r["status"]) for r in rows] == [
        *((0, name, word, "crashed") for name in ("eager", "epilogue") for word in ("hot", "cold")),
        (1, "eager", "hot", "ok"),
    ]
    assert rows[0]["reason"] == "nothing was run, for the inputs could not be drawn: MemoryError: no room for x"
    assert [event["what"] for event in events if event["event"] == "begin"][:3] == [[0, ""], [1, ""], [1, "eager"]]


def test_inputs_that_killed_an_earlier_process_are_not_drawn_again(monkeypatch):
    monkeypatch.setattr(cells.check, "Problem", lambda workload, device: pytest.fail("drawn"))
    rows = rows_by_name(
        run_here("eager", "epilogue", excluded={"0/": ["crashed", "the process died (signal SIGKILL)"]})
    )
    assert {(row["status"], row["reason"]) for row in rows.values()} == {
        ("crashed", "nothing was run, for the inputs could not be drawn: the process died (signal SIGKILL)")
    }


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("", "no message"),
        ("\n  no such tile\nand a long story", "no such tile"),
        (
            "backend='inductor' raised:\n\nCppCompileError: C++ error\nCommand:",
            "backend='inductor' raised: CppCompileError: C++ error",
        ),
        ("nothing follows:\n", "nothing follows:"),
        ("x" * 300, "x" * 200),
    ],
)
def test_a_failure_is_told_in_one_line_and_an_announced_cause_with_it(message, told):
    assert failures.one_line(RuntimeError(message)) == f"RuntimeError: {told}"


def test_a_variant_that_cannot_run_here_is_skipped_unbuilt(deadly):
    rows = rows_by_name(run_here("eager", "elsewhere"))
    assert (rows["elsewhere"]["status"], rows["elsewhere"]["reason"]) == ("skipped", "not on a cpu")


def test_what_killed_an_earlier_process_is_left_out(deadly):
    rows = rows_by_name(run_here("eager", "segfaults", excluded={"0/segfaults": ["timeout", "no sign of life"]}))
    assert (rows["segfaults"]["status"], rows["segfaults"]["reason"]) == ("timeout", "no sign of life")


def test_a_call_beyond_the_limit_is_skipped_with_its_length(monkeypatch):
    monkeypatch.setattr(cells, "LONGEST_CALL_S", 1e-9)
    rows = rows_by_name(run_here("eager"))
    assert rows["eager"]["status"] == "skipped"
    assert "s a call; the limit is" in rows["eager"]["reason"]


def test_a_size_that_would_take_too_long_is_skipped_without_a_call():
    session, events = session_here()
    session.pace.rates["linear_relu", "eager", "float32", "ieee"] = 1.0  # FLOP/s on a smaller size
    session.run(0, group(SMALL, ("eager@again",)))
    row = rows_by_name(events)["eager@again"]
    assert row["status"] == "skipped"
    assert row["reason"].startswith(f"about {Workload('linear_relu', SMALL).flops} s a call")
    assert row["error"] is None


def test_one_call_that_was_held_up_does_not_rule_out_larger_sizes(monkeypatch):
    session, _ = session_here()
    took = iter([0.4, 0.03])  # the call, and once more
    monkeypatch.setattr(cells.clock, "once_s", lambda run, device: next(took))
    session.run(0, group(SMALL, ("eager",)))
    assert session.pace.rates == {
        ("linear_relu", "eager", "float32", "ieee"): Workload("linear_relu", SMALL).flops / 0.03
    }


def test_a_call_that_may_be_all_overhead_rules_out_no_larger_size(monkeypatch):
    session, _ = session_here()
    monkeypatch.setattr(cells.clock, "once_s", lambda run, device: 0.0015)
    session.run(0, group(SMALL, ("eager",)))
    assert session.pace.rates == {}


@pytest.mark.parametrize(("waited", "times"), [(0.0, 2), (clock.SETTLE_S, 1)], ids=["rests", "never rests"])
def test_background_work_is_waited_for_before_timing(monkeypatch, waited, times):
    told: list[str] = []
    measure = clock.measure
    monkeypatch.setattr(cells.clock, "settle", lambda but: told.append("settled") or waited)
    monkeypatch.setattr(cells.clock, "measure", lambda *given, **more: told.append("timed") or measure(*given, **more))
    session, _ = session_here()
    for index in range(2):
        session.run(index, group(SMALL, ("eager",)))
    assert told[:2] == ["settled", "timed"]
    assert (told.count("settled"), told.count("timed")) == (times, 2)


def test_a_death_while_timing_is_blamed_on_the_variant_that_was_running(deadly):
    blamed = []
    for names in (("eager", "dies_late"), ("dies_late", "eager")):
        session, events = session_here()
        with pytest.raises(SystemExit):
            session.run(0, group(SMALL, names))
        blamed.append([event["what"] for event in events if event["event"] == "begin"][-1])
    assert blamed == [[0, "dies_late"]] * 2


# ---------------------------------------------------------------- the parent: what becomes of the answers


def test_the_worst_status_of_all_processes_counts(tmp_path, lab, process):
    lab(group(), processes=3)
    give_ceilings(tmp_path)

    def alter(number: int, index: int, name: str) -> dict[str, Any]:
        if (number, name) == (1, "epilogue"):
            return {"status": "wrong", "reason": "bias missing", "error": 0.5, "median_us": None, "samples_us": []}
        return {"median_us": 100.0 + number}

    process.alter = alter
    cells = {cell["variant"]: cell for cell in measure(tmp_path).cells}
    assert cells["eager"]["medians_us"] == [100.0, 101.0, 102.0]
    bad = cells["epilogue"]
    assert (bad["status"], bad["reason"], bad["error"]) == ("wrong", "bias missing", 0.5)
    assert (bad["medians_us"], bad["samples_us"]) == ([], [])


def test_a_result_beyond_the_ceilings_is_too_fast_and_has_no_ratio(tmp_path, lab, process):
    give_ceilings(tmp_path, us=100.0)
    # A tenth beyond the ceiling is allowed: 100 µs / 1.1 = 90.9 µs.
    process.alter = lambda number, index, name: {"median_us": {"epilogue": 90.8, "eager@again": 91.0}.get(name, 200.0)}
    record = measure(tmp_path)
    assert statuses(record) == {("eager", "hot"): "ok", ("eager@again", "hot"): "ok", ("epilogue", "hot"): "too_fast"}
    row = {row.variant: row for row in results.rows([record])}
    assert str(row["epilogue"].reason) == "not believed: 90.8 µs, where this machine's best ceilings allow 100 µs"
    assert str(row["epilogue"].ratio) == str(row["epilogue"].median_us) == "nan"
    assert row["eager@again"].ratio == pytest.approx(200 / 91)


def test_ceilings_that_the_baseline_beats_are_measured_again(tmp_path, lab, process, capsys):
    give_ceilings(tmp_path, us=100.0)
    process.alter = lambda number, index, name: {"median_us": 50.0 if name == "eager" else 200.0}
    record = measure(tmp_path, progress=True)
    assert "measuring them again" in capsys.readouterr().err
    assert process.measured() == [[0], [0, 1]]
    (again,) = records.load(tmp_path, experiments=["ceilings"])
    assert {cell["medians_us"][0] for cell in again.cells} == {50.0}
    assert set(statuses(record).values()) == {"ok"}


def test_one_process_beyond_the_ceilings_is_enough_to_doubt_the_cell(tmp_path, lab, process):
    lab(group(), processes=2)
    give_ceilings(tmp_path, us=100.0)
    process.alter = lambda number, index, name: {"median_us": 50.0 if (number, name) == (1, "epilogue") else 200.0}
    assert statuses(measure(tmp_path))["epilogue", "hot"] == "too_fast"


def test_a_variant_that_hangs_is_a_timeout_and_the_rest_is_measured(tmp_path, lab, process):
    lab(group(SMALL), group(LARGE))
    give_ceilings(tmp_path)
    process.casualties = [Casualty([1, "epilogue"], "timeout", "no sign of life for 300 s")]
    record = measure(tmp_path)
    assert [(c["shape"], c["variant"]) for c in record.cells if c["status"] == "timeout"] == [(list(LARGE), "epilogue")]
    assert [c["reason"] for c in record.cells if c["status"] == "timeout"] == ["no sign of life for 300 s"]
    assert sum(c["status"] == "ok" for c in record.cells) == 5
    assert process.measured() == [[0, 1], [1]]
    assert process.plans[1]["excluded"] == {"1/epilogue": ["timeout", "no sign of life for 300 s"]}


def test_a_death_while_inputs_are_drawn_is_of_that_workload_alone(tmp_path, lab, process):
    lab(group(SMALL), group(LARGE))
    give_ceilings(tmp_path)
    process.casualties = [Casualty([1, ""], "crashed", "the process died (signal SIGKILL)")]
    found = {(tuple(c["shape"]), c["variant"]): c["status"] for c in measure(tmp_path).cells}
    assert found == {(shape, name): word for shape, word in ((SMALL, "ok"), (LARGE, "crashed")) for name in NAMES}
    assert process.measured() == [[0, 1], [1]]


@pytest.mark.parametrize("name", ["", "epilogue"])
def test_a_death_after_a_workload_was_done_is_nobodys(tmp_path, lab, process, monkeypatch, name):
    lab(group(SMALL), group(LARGE))
    give_ceilings(tmp_path)
    stub = composer.sessions.run_session

    def dies(module: str, plan: Any, log: Path, **more: Any) -> Any:
        """After its first workload, whatever it is told to measure."""
        stub(module, plan | {"groups": plan["groups"][:1]}, log, **more)
        return Casualty([plan["groups"][0][0], name], "crashed", "the process died (exit status 139)")

    monkeypatch.setattr(composer.sessions, "run_session", dies)
    assert {cell["status"] for cell in measure(tmp_path).cells} == {"ok"}
    assert process.measured() == [[0], [1]]


def test_a_variant_that_leaves_with_status_0_is_named_and_the_rest_is_measured(tmp_path, lab, process, monkeypatch):
    give_ceilings(tmp_path)
    stub = composer.sessions.run_session

    def leaves(module: str, plan: Any, log: Path, **more: Any) -> Any:
        if "0/epilogue" not in plan["excluded"]:
            more["on_event"]({"event": "begin", "what": [0, "epilogue"]})
            return None
        return stub(module, plan, log, **more)

    monkeypatch.setattr(composer.sessions, "run_session", leaves)
    cells = {cell["variant"]: cell for cell in measure(tmp_path).cells}
    assert [cells[name]["status"] for name in NAMES] == ["ok", "ok", "crashed"]
    assert cells["epilogue"]["reason"] == "the process ended before it was done"


def test_who_hung_once_is_not_waited_for_in_every_process(tmp_path, lab, process):
    lab(group(SMALL), group(LARGE), processes=3)
    give_ceilings(tmp_path)
    process.casualties = [Casualty([1, "epilogue"], "timeout", "no sign of life for 300 s")]
    record = measure(tmp_path)
    assert process.measured() == [[0, 1], [1], [0, 1], [0, 1]]
    left_out = {"1/epilogue": ["timeout", "no sign of life for 300 s"]}
    assert [plan["excluded"] for plan in process.plans] == [{}, left_out, left_out, left_out]
    found = {(tuple(c["shape"]), c["variant"]): (c["status"], len(c["medians_us"])) for c in record.cells}
    assert found.pop((LARGE, "epilogue")) == ("timeout", 0)
    assert set(found.values()) == {("ok", 3)}, "at the other size it is still measured, in every process"


def test_the_last_words_of_a_process_are_in_the_reason(tmp_path, lab, process, monkeypatch):
    give_ceilings(tmp_path)
    stub = composer.sessions.run_session

    def dying(module: str, plan: Any, log: Path, *, on_event: Any, **more: Any) -> Any:
        casualty = stub(module, plan, log, on_event=on_event, **more)
        if casualty is not None:
            on_event({"event": "dying", "reason": "AcceleratorError: CUDA error: an illegal memory access"})
        return casualty

    monkeypatch.setattr(composer.sessions, "run_session", dying)
    process.casualties = [Casualty([0, "epilogue"], "crashed", "the process died (exit status 1)")]
    found = {cell["variant"]: cell for cell in measure(tmp_path).cells}
    assert found["epilogue"]["reason"] == (
        "the process died (exit status 1): AcceleratorError: CUDA error: an illegal memory access"
    )
    assert [found[name]["status"] for name in NAMES] == ["ok", "ok", "crashed"]


def test_the_time_limit_reaches_the_processes(tmp_path, lab, process, monkeypatch):
    give_ceilings(tmp_path)
    stub, limits = composer.sessions.run_session, []

    def noted(*arguments: Any, silence_s: float, **more: Any) -> Any:
        limits.append(silence_s)
        return stub(*arguments, silence_s=silence_s, **more)

    monkeypatch.setattr(composer.sessions, "run_session", noted)
    measure(tmp_path, silence_s=7.0)
    measure(tmp_path, overwrite=True)
    assert limits == [7.0, composer.SILENCE_S]


def test_a_process_that_dies_although_the_culprit_is_left_out_ends_the_run(tmp_path, lab, process):
    give_ceilings(tmp_path)
    process.casualties = [Casualty([0, "eager"], "crashed", "signal SIGSEGV")] * 2
    with pytest.raises(SessionError, match=r"dies although eager is left out; see .*log\.txt"):
        measure(tmp_path)
    assert "box/tiny" not in recorded(tmp_path)


def test_a_recorded_experiment_is_not_measured_again(tmp_path, lab, process):
    give_ceilings(tmp_path)
    first = measure(tmp_path)
    sessions_before = len(process.plans)
    process.alter = lambda number, index, name: {"median_us": 1.0}
    assert measure(tmp_path).digest == first.digest
    assert len(process.plans) == sessions_before


def test_overwrite_measures_again(tmp_path, lab, process):
    give_ceilings(tmp_path)
    first = measure(tmp_path)
    process.alter = lambda number, index, name: {"median_us": 321.0}
    again = measure(tmp_path, overwrite=True)
    assert again.digest != first.digest
    assert again.cells[0]["medians_us"] == [321.0]
    assert again.digest == records.load_file(again.path).digest


def test_an_interrupted_overwrite_keeps_the_old_record(tmp_path, lab, process):
    give_ceilings(tmp_path)
    first = measure(tmp_path)

    def interrupt(number: int, index: int, name: str) -> dict[str, Any]:
        raise KeyboardInterrupt

    process.alter = interrupt
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, overwrite=True)
    assert records.load_file(first.path).digest == first.digest


@pytest.mark.parametrize(("asked", "told"), [({"preset": "seed"}, "preset quick"), ({"device": "cuda"}, "on cpu")])
def test_another_preset_or_device_without_overwrite_is_an_error(tmp_path, lab, process, asked, told):
    give_ceilings(tmp_path)
    first = measure(tmp_path)
    process.plans.clear()
    with pytest.raises(composer.BenchError, match=f"{told}.* --overwrite, or name another machine"):
        measure(tmp_path, **asked)
    assert process.plans == []
    assert records.load_file(first.path).digest == first.digest


def test_a_gpus_kernels_are_built_ahead_for_each_experiment_and_a_readers_are_not(tmp_path, lab, process, monkeypatch):
    """One stamp for all would leave every experiment but the first to a single process."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(composer.ahead, "build", lambda what, groups, work, key, quiet: asked.append((what, key)))
    monkeypatch.setattr(composer.machine, "facts", lambda device: {"name": "a card"})
    monkeypatch.setattr(composer.machine, "gpu_uuid", lambda: "GPU-0")
    give_ceilings(tmp_path, device="cuda")
    for name, shape in (("one", SMALL), ("other", LARGE)):
        measure(tmp_path, experiment(name, group(shape)), device="cuda")
    own = dataclasses.replace(experiment("own", group()), source=Source("own.py", "0" * 12, "program"))
    measure(tmp_path, own, device="cuda")
    measure(tmp_path / "cpu", experiment("one", group()))
    assert [what for what, _ in asked] == ["one", "other"]
    assert len({key for _, key in asked}) == 2


def test_what_a_plan_has_gained_is_measured_and_nothing_else(tmp_path, lab, process):
    give_ceilings(tmp_path)
    lab(group(SMALL, NAMES[:2]), processes=2)
    first = measure(tmp_path)
    process.plans.clear()
    process.alter = lambda number, index, name: {"median_us": 50.0 if name == "epilogue" else 100.0}
    lab(group(SMALL), group(LARGE), processes=2)
    grown = measure(tmp_path)
    asked = [[data["variants"] for _, data in plan["groups"]] for plan in process.plans]
    assert asked == [[["eager", "epilogue"], list(NAMES)]] * 2
    assert [plan["number"] for plan in process.plans] == [2, 3]
    medians = {(tuple(cell["shape"]), cell["variant"]): cell["medians_us"] for cell in grown.cells}
    assert medians[SMALL, "eager"] == [100.0] * 4
    assert medians[SMALL, "eager@again"] == [100.0, 100.0, None, None]
    assert medians[SMALL, "epilogue"] == [None, None, 50.0, 50.0]
    assert medians[LARGE, "eager"] == [None, None, 100.0, 100.0]
    assert (grown.run["started"], grown.run["processes"]) == (first.run["started"], 4)
    assert [since["processes"] for since in grown.run["grown"]] == [2]
    (row,) = [r for r in results.rows([grown]) if (r.shape, r.variant) == ("4x8x6", "epilogue")]
    assert row.ratio == pytest.approx(2.0)
    assert measure(tmp_path).digest == grown.digest
    assert len(process.plans) == 2


def test_a_probe_that_a_plan_has_gained_is_looked_at_alone(tmp_path, lab, process, monkeypatch):
    give_ceilings(tmp_path)
    asked: list[Any] = []

    def look(wanted: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
        asked.append([(probe.topic, probe.variant) for probe in wanted])
        return [line for probe in wanted for line in details.merge(probe, [[]])]

    monkeypatch.setattr(details, "collect", look)
    work = Workload("linear_relu", SMALL)
    planned = [Probe("trace", work, "eager", "", 1)]
    spec = Experiment("tiny", "none", "", "linear_relu", lambda *_: [group()], lambda *_: list(planned))
    monkeypatch.setitem(composer.EXPERIMENTS, "tiny", spec)
    measure(tmp_path)
    planned += [Probe("counters", work, "eager", "", 1), Probe("trace", work, "epilogue", "", 1)]
    grown = measure(tmp_path)
    assert asked == [[("trace", "eager")], [("counters", "eager"), ("trace", "epilogue")]]
    assert [line["topic"] for line in grown.details] == ["trace", "counters", "trace"]
    assert len(process.plans) == 1


def test_processes_are_added_where_a_ratio_is_not_known_well_enough(tmp_path, lab, process):
    give_ceilings(tmp_path)
    lab(group(SMALL), group(LARGE), processes=3, most=9)

    def scatter(number: int, index: int, name: str) -> dict[str, Any]:
        return {"median_us": 100.0 * (1.0 + (index == 1 and name == "epilogue") * 0.06 * (number % 2))}

    process.alter = scatter
    record = measure(tmp_path)
    assert process.measured()[:3] == [[0, 1]] * 3
    assert process.measured()[3:] == [[1]] * (record.run["processes"] - 3)
    assert 3 < record.run["processes"] < 9
    small, large = (
        next(cell for cell in record.cells if (tuple(cell["shape"]), cell["variant"]) == (shape, "epilogue"))
        for shape in (SMALL, LARGE)
    )
    assert small["medians_us"][3:] == [None] * (record.run["processes"] - 3)
    assert None not in large["medians_us"]
    base = [100.0] * len(large["medians_us"])
    assert intervals.known(intervals.ratio(base, large["medians_us"]), composer.CLOSE)


def test_processes_are_added_until_their_time_is_spent(tmp_path, lab, process, monkeypatch):
    give_ceilings(tmp_path)
    lab(group(), processes=3, most=9)
    process.alter = lambda number, index, name: {"median_us": 100.0 * (1 + (name != "eager") * number)}
    assert measure(tmp_path).run["processes"] == 9
    for limit in ("MORE_S", "LATEST_S"):
        with monkeypatch.context() as patch:
            patch.setattr(composer, limit, {"quick": -1.0})
            assert measure(tmp_path, overwrite=True).run["processes"] == 3
    monkeypatch.setattr(composer, "MORE_S", {"quick": -1.0})
    patient = dataclasses.replace(composer.EXPERIMENTS["tiny"], within_s=60.0)
    assert composer.measure(patient, machine_name="box", root=tmp_path, overwrite=True).run["processes"] == 9


@pytest.mark.parametrize("name", ["compile", "nvmath"])
def test_what_is_chosen_anew_is_built_in_five_processes(tmp_path, lab, process, name):
    give_ceilings(tmp_path)
    lab(group(SMALL, ("eager", name, "epilogue")), processes=7, most=9)
    process.alter = lambda number, index, who: {"median_us": 100.0 * (1 + (who == name) * number)}
    compiled = next(cell for cell in measure(tmp_path).cells if cell["variant"] == name)
    assert compiled["medians_us"] == [100.0 * (1 + number) for number in range(5)] + [None] * 2
    assert [data["variants"] for _, data in process.plans[5]["groups"]] == [["eager", "epilogue"]]


def test_each_process_finds_nothing_that_a_tuner_chose_before(tmp_path, lab, process, monkeypatch):
    give_ceilings(tmp_path)
    stub, seen = composer.sessions.run_session, []

    def noted(*arguments: Any, env: dict[str, str], **more: Any) -> Any:
        if not env:
            return stub(*arguments, env=env, **more)
        assert set(env) == {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
        folder = Path(env["TORCHINDUCTOR_CACHE_DIR"])
        assert list(folder.iterdir()) == []
        (folder / "kernel.py").touch()
        seen.append(folder)
        return stub(*arguments, env=env, **more)

    monkeypatch.setattr(composer.sessions, "run_session", noted)
    lab(group(SMALL, ("eager", "compile")), processes=3)
    measure(tmp_path)
    assert not seen, "a CPU's compiled code is nothing that trials decide"
    lab(group(SMALL, ("eager", "compile_max_autotune")), processes=3)
    measure(tmp_path, overwrite=True)
    assert len(set(seen)) == 3
    assert not any(folder.exists() for folder in seen)


def test_an_overwrite_that_was_interrupted_keeps_what_it_had_measured(tmp_path, lab, process):
    give_ceilings(tmp_path)
    measure(tmp_path)
    campaign = composer.campaign(tmp_path / "box")
    assert campaign.begin() == []
    process.plans.clear()
    process.alter = lambda number, index, name: {"median_us": 321.0}
    again = measure(tmp_path, overwrite=True)
    assert campaign.begin() == ["tiny"]
    assert measure(tmp_path, overwrite=True).digest == again.digest
    assert len(process.plans) == 1
    campaign.end()
    assert recorded(tmp_path) == ["box/ceilings", "box/tiny"]
    assert not (tmp_path / "box" / ".parts").exists()
    measure(tmp_path, overwrite=True)
    assert len(process.plans) == 2


def test_a_record_of_other_shapes_is_not_taken_for_the_presets(tmp_path, lab, process):
    give_ceilings(tmp_path)
    lab(group(LARGE))
    measure(tmp_path, shapes=[LARGE])
    lab(group(SMALL))
    with pytest.raises(
        composer.BenchError, match="tiny of box is recorded with other shapes; measure again with --over"
    ):
        measure(tmp_path)


def test_a_record_that_holds_more_than_its_plan_is_kept(tmp_path, lab, process):
    give_ceilings(tmp_path)
    lab(group(SMALL), group(LARGE))
    whole = measure(tmp_path)
    for shrunk in ([group(SMALL)], []):
        lab(*shrunk)
        assert measure(tmp_path).digest == whole.digest
    with pytest.raises(composer.BenchError, match="other shapes"):
        measure(tmp_path, shapes=[LARGE])


@pytest.mark.parametrize(("preset", "count"), [("quick", 1), ("seed", 3)])
def test_what_has_a_goal_is_measured_in_more_processes(tmp_path, lab, process, preset, count):
    lab(group())
    give_ceilings(tmp_path)
    asked = dataclasses.replace(composer.EXPERIMENTS["tiny"], least=3)
    assert measure(tmp_path, asked, preset=preset).run["processes"] == count


def test_probes_of_other_shapes_are_not_taken_for_those_asked_for(tmp_path):
    kept = records.Record(tmp_path, {"machine": "box"}, (), "", ({"shape": [4, 8, 6]}, {"shape": [9, 9, 9]}))
    asked = [Probe("trace", Workload("linear_relu", SMALL), "eager")]
    composer._ensure_same(kept, experiment("tiny"), [], asked)
    with pytest.raises(composer.BenchError, match="other shapes"):
        composer._ensure_same(kept, experiment("tiny"), [], [Probe("trace", Workload("linear_relu", LARGE), "eager")])


def test_every_committed_record_has_the_shapes_of_its_preset():
    for kept in records.load():
        if kept.run.get("provenance"):  # a program from outside, which has no preset
            continue
        spec, preset, device = EXPERIMENTS[kept.experiment], kept.run["preset"], kept.run["device"]
        composer._ensure_same(kept, spec, composer.plan(spec, preset, device), spec.probes(preset, device, ()))


def test_no_record_is_written_before_its_traces_are_kept(tmp_path, lab, process, monkeypatch):
    give_ceilings(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(details, "keep_files", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            measure(tmp_path)
    assert "box/tiny" not in recorded(tmp_path)
    measure(tmp_path)
    assert process.measured() == [[0]], "what was measured is still there"


def test_traces_that_cannot_be_kept_are_an_error_that_says_why(tmp_path):
    scratch = tmp_path / "scratch" / "0"
    scratch.mkdir(parents=True)
    (scratch / "trace.json.gz").touch()
    (tmp_path / "traces").touch()
    with pytest.raises(records.RecordError, match="a file stands where the folder should be"):
        details.keep_files(
            [Probe("trace", Workload("linear_relu", SMALL), "eager")], tmp_path, tmp_path / "traces", lambda name: True
        )


def test_a_full_disk_in_mid_run_loses_nothing_measured_so_far(tmp_path, monkeypatch, lab, process):
    lab(group(SMALL), group(LARGE))
    give_ceilings(tmp_path)
    real, writes = os.fsync, []

    def fill(handle: int) -> None:
        writes.append(handle)
        if len(writes) == 3:  # the log, the first group, and then the disk is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(records.os, "fsync", fill)
        with pytest.raises(records.RecordError, match="disk is full; .* nothing measured so far is lost") as caught:
            measure(tmp_path)
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path / "box" / ".parts") == ["tiny/0.jsonl", "tiny/log.txt"]
    assert recorded(tmp_path) == ["box/ceilings"]
    measure(tmp_path)
    assert process.measured() == [[0, 1], [1]]


def test_a_finished_process_is_not_run_again(tmp_path, lab, process):
    lab(group(), processes=2)
    give_ceilings(tmp_path)

    def interrupt(number: int, index: int, name: str) -> dict[str, Any]:
        if number == 1 and len(process.plans) == 2:
            raise KeyboardInterrupt
        return {"median_us": 100.0 + len(process.plans)}

    process.alter = interrupt
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path)
    assert measure(tmp_path).cells[0]["medians_us"] == [101.0, 103.0]
    assert [plan["number"] for plan in process.plans] == [0, 1, 1]


@pytest.mark.parametrize("other", ["aaaaaa", "bbbbbb"])
def test_a_record_whose_processes_ran_on_two_chips_is_of_none(tmp_path, lab, process, monkeypatch, other):
    lab(group(), processes=2)
    give_ceilings(tmp_path)

    def interrupt(number: int, index: int, name: str) -> dict[str, Any]:
        if number == 1 and len(process.plans) == 2:
            raise KeyboardInterrupt
        return {"median_us": 100.0}

    process.alter, plain = interrupt, machine.facts
    monkeypatch.setattr(machine, "facts", lambda device: plain(device) | {"chip": "aaaaaa"})
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path)
    monkeypatch.setattr(machine, "facts", lambda device: plain(device) | {"chip": other})
    record = measure(tmp_path)
    assert record.chip == ("aaaaaa" if other == "aaaaaa" else "")
    assert len(record.cells[0]["medians_us"]) == 2


def test_parts_of_another_plan_are_not_mixed_in(tmp_path, lab, process):
    lab(group(SMALL), group(LARGE))
    give_ceilings(tmp_path)

    def interrupt(number: int, index: int, name: str) -> dict[str, Any]:
        if index == 1 and len(process.plans) == 1:
            raise KeyboardInterrupt
        return {"median_us": 100.0 * len(process.plans)}

    process.alter = interrupt
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path)
    lab(group((3, 3, 3)), group(LARGE))
    assert {cell["medians_us"][0] for cell in measure(tmp_path).cells} == {200.0}
    assert process.measured() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("changed", ["versions", "sources of a tree with changes"])
def test_parts_of_other_software_are_not_mixed_in(tmp_path, lab, process, monkeypatch, changed):
    give_ceilings(tmp_path)
    monkeypatch.setattr(composer, "commit", lambda: ("0" * 40, changed != "versions"))

    def interrupted(*given: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(details, "collect", interrupted)
    for software in ("old", "old", "new"):
        if changed == "versions":
            monkeypatch.setattr(machine, "versions", lambda software=software: {"torch": software})
        else:
            monkeypatch.setattr(composer, "_sources", lambda software=software: software)
        with pytest.raises(KeyboardInterrupt):
            measure(tmp_path)
    assert process.measured() == [[0], [0]], "twice with the old software is once"


def test_the_sources_digest_changes_with_any_file_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(composer, "__file__", str(tmp_path / "bench.py"))
    (tmp_path / "kernels").mkdir()
    found = set()
    for text in ("one", "two"):
        (tmp_path / "kernels" / "a.cu").write_text(text)
        found.add(composer._sources())
    (tmp_path / "kernels" / "a.cu").rename(tmp_path / "a.cu")
    assert len(found | {composer._sources()}) == 3


def test_the_commit_of_a_repository_around_the_tree_is_not_its_own(tmp_path, monkeypatch):
    monkeypatch.delenv("HYPATIA_COMMIT", raising=False)
    by = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for asked in (["init", "-q"], [*by, "commit", "-q", "--allow-empty", "-m", "none"]):
        subprocess.run(["git", *asked], cwd=tmp_path, check=True)
    for package, known in ((tmp_path / "hypatia_lab", True), (tmp_path / "copy" / "hypatia_lab", False)):
        package.mkdir(parents=True)
        monkeypatch.setattr(composer, "__file__", str(package / "bench" / "composer.py"))
        head, dirty = composer.commit()
        assert (len(head) == 40, head == "unknown", dirty) == (known, not known, not known)


@pytest.mark.parametrize("damage", ["", "{", '{"key": "other", "excluded": {}}\n', "\x00\xff"])
def test_damaged_parts_are_measured_again(tmp_path, lab, process, damage):
    give_ceilings(tmp_path)
    part = tmp_path / "box" / ".parts" / "tiny" / "0.jsonl"
    part.parent.mkdir(parents=True)
    part.write_bytes(damage.encode("latin-1"))
    assert len(measure(tmp_path).cells) == len(NAMES)
    assert process.measured() == [[0]]


# ---------------------------------------------------------------- the parent: bad input


@pytest.mark.parametrize(
    ("asked", "kind", "told"),
    [
        ({"name": "nope"}, composer.BenchError, "unknown experiment 'nope'; known: ceilings, tiny"),
        ({"preset": "nope"}, composer.BenchError, "unknown preset 'nope'; known: quick, seed, full"),
        ({"machine_name": "../x"}, records.RecordError, "machine name '../x' must be"),
        ({"machine_name": ""}, records.RecordError, "machine name '' must be"),
    ],
)
def test_bad_input_is_refused_before_anything_runs_or_is_written(tmp_path, lab, process, asked, kind, told):
    with pytest.raises(kind, match=told.replace(".", r"\.")):
        measure(tmp_path, **asked)
    assert process.plans == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_found_before_anything_runs(tmp_path, lab, process):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(records.RecordError, match="a file stands where the folder should be"):
        measure(tmp_path / "file")
    assert process.plans == []
    assert files_below(tmp_path) == ["file"]


def test_malformed_ceilings_are_named_with_their_line(tmp_path, lab, process):
    path = give_ceilings(tmp_path)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(records.RecordError, match=r"\.jsonl:3: truncated"):
        measure(tmp_path)
    assert "box/tiny" not in recorded(tmp_path)


# ---------------------------------------------------------------- sessions: fresh processes and their ends

CHILD = """
import ctypes, os, subprocess, sys, threading, time
from hypatia_lab.bench import sessions

plan, emit = sessions.child_plan()
for word, value in plan["steps"]:
    if word == "begin":
        emit("begin", what=value)
    elif word == "tell":
        emit("told", value=value, pid=os.getpid(), torch="torch" in sys.modules)
    elif word == "print":
        print(value)
    elif word == "half":
        os.write(int(sys.argv[1]), b'{"event": "beg')
    elif word == "say":
        os.write(int(sys.argv[1]), value.encode() + bytes([10]))
    elif word == "sleep":
        time.sleep(value)
    elif word == "exit":
        os._exit(value)
    elif word == "segfault":
        ctypes.string_at(0)
    elif word == "helper":
        emit("helper", pid=subprocess.Popen(["sleep", str(value)]).pid)
    elif word == "fork":
        if os.fork() == 0:
            time.sleep(value)
            os._exit(0)
    elif word == "lab":
        emit("lab", value=sessions.__file__)
    elif word == "leave":
        emit("helper", pid=subprocess.Popen(["sleep", str(value)], start_new_session=True, close_fds=False).pid)
    elif word == "thread":
        threading.Thread(target=time.sleep, args=(value,)).start()
    elif word == "close":
        os.close(int(sys.argv[1]))
    elif word == "end":
        emit("end")
    elif word == "raise":
        raise RuntimeError(value)
"""


class Session:
    """Runs CHILD over ``steps`` and keeps its events."""

    def __init__(self, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.log = folder / "log.txt"

    def __call__(self, *steps: tuple[str, Any], silence_s: float = 30.0, on_event: Any = None) -> Casualty | None:
        def keep(event: dict[str, Any]) -> None:
            self.events.append(event)
            if on_event:
                on_event(event)

        return sessions.run_session("session_child", {"steps": steps}, self.log, on_event=keep, silence_s=silence_s)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A child that follows a script."""
    (tmp_path / "session_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return Session(tmp_path)


def alive(pid: int) -> bool:
    """Whether process ``pid`` still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether process ``pid`` ends within ``seconds``."""
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.parametrize("line", ["", "[]", "7", '{"event": "beg', '{"kind": "end"}', "[" * 100_000])
def test_a_child_that_says_what_is_no_event_has_crashed(session, line):
    assert session(("begin", 1), ("say", line)) == Casualty(1, "crashed", "what the process said is no event")
    assert [event["event"] for event in session.events] == ["begin"]


def test_a_session_is_a_fresh_process_that_tells_in_order(session):
    value = {"shape": [1, 2], "text": "µs ≤ 5\nnext"}
    assert session(("begin", [0, "a"]), ("tell", value), ("tell", 2)) is None
    first = session.events[-1]["pid"]
    assert [event["event"] for event in session.events] == ["begin", "told", "told"]
    assert session.events[1]["value"] == value
    assert session.events[1]["torch"] is False
    assert session(("tell", 3)) is None
    assert len({first, session.events[-1]["pid"], os.getpid()}) == 3


def test_what_a_child_prints_goes_to_the_log(session, capfd):
    assert session(("print", "one"), ("begin", 1)) is None
    assert session(("print", "two"), ("begin", 1)) is None
    assert session.log.read_text() == "one\ntwo\n"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (("segfault", None), "the process died (signal SIGSEGV)"),
        (("exit", 3), "the process died (exit status 3)"),
        (("raise", "out of luck"), "the process died (exit status 1)"),
    ],
)
def test_a_crash_names_what_had_begun_last(session, end, told):
    found = session(("begin", [0, "a"]), ("begin", [0, "b"]), ("half", None), end)
    assert found == Casualty([0, "b"], "crashed", told)
    assert [event["what"] for event in session.events] == [[0, "a"], [0, "b"]]


def test_silence_is_a_timeout_and_leaves_no_process_behind(session):
    found = session(("begin", [0, "a"]), ("tell", 1), ("helper", 60), ("begin", [0, "b"]), ("sleep", 60), silence_s=1.5)
    assert found == Casualty([0, "b"], "timeout", "no sign of life for 2 s")
    pids = [event["pid"] for event in session.events if "pid" in event]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_child_may_take_long_as_long_as_it_tells(session):
    steps = [step for n in range(6) for step in (("tell", n), ("sleep", 0.3))]
    assert session(*steps, silence_s=1.5) is None
    assert len(session.events) == 6


def test_a_child_that_fails_before_it_began_is_an_error_with_its_last_words(session):
    with pytest.raises(
        SessionError, match=r"ended before it began(.|\n)*exit status 1(.|\n)*RuntimeError: no such device"
    ):
        session(("print", "hello"), ("raise", "no such device"))


def test_processes_wait_for_their_plans_and_those_that_nobody_needs_are_ended(session):
    told = []
    session.log.touch()
    with sessions.waiting(["session_child"] * 3, [{}, {"WORD": "second"}, {}], session.log) as fresh:
        pids = [one.process.pid for one in fresh]
        assert all(map(alive, pids))
        for place in (1, 0):
            more = {"on_event": told.append, "silence_s": 30.0, "fresh": fresh[place]}
            assert sessions.run_session("session_child", {"steps": [("tell", place)]}, session.log, **more) is None
        assert [event["pid"] for event in told] == [pids[1], pids[0]]
        assert alive(pids[2])
    assert all(gone(pid) for pid in pids)


def test_a_waiting_process_that_has_died_is_an_error_of_its_own(session):
    with sessions.waiting(["no_such_module", "session_child"], [{}, {}], session.log) as fresh:
        with pytest.raises(SessionError, match="No module named no_such_module"):
            sessions.run_session("", {}, session.log, on_event=lambda event: None, silence_s=30.0, fresh=fresh[0])
        more = {"on_event": session.events.append, "silence_s": 30.0, "fresh": fresh[1]}
        assert sessions.run_session("", {"steps": [("begin", [0, "a"]), ("exit", 3)]}, session.log, **more) is not None


def test_an_unknown_module_is_an_error(tmp_path):
    with pytest.raises(SessionError, match="No module named no_such_module"):
        sessions.run_session("no_such_module", {}, tmp_path / "log", on_event=lambda event: None, silence_s=30)


def test_a_child_that_ends_before_it_is_told_anything_is_an_error_too(tmp_path, monkeypatch):
    real = sessions.subprocess.Popen

    def ended(*given: Any, **more: Any) -> Any:
        child = real(*given, **more)
        child.wait()
        return child

    monkeypatch.setattr(sessions.subprocess, "Popen", ended)
    with pytest.raises(SessionError, match="No module named no_such_module"):
        sessions.run_session("no_such_module", {}, tmp_path / "log", on_event=lambda event: None, silence_s=30)


def test_a_child_that_hangs_before_it_began_is_an_error_too(session):
    with pytest.raises(SessionError, match="before it began"):
        session(("sleep", 60), silence_s=1.0)


def test_what_a_child_says_last_is_heard_although_it_has_ended_meanwhile(session):
    session.log.touch()
    with sessions.waiting(["session_child"], [{}], session.log) as (fresh,):

        class Slow(queue.Queue):
            def get(self, *given: Any, **more: Any) -> Any:
                if fresh.process.poll() is None:
                    fresh.process.wait()
                    raise queue.Empty
                return super().get(*given, **more)

        fresh.lines = Slow()
        more = {"on_event": session.events.append, "silence_s": 30.0, "fresh": fresh}
        assert sessions.run_session("session_child", {"steps": [("tell", 1), ("tell", 2)]}, session.log, **more) is None
    assert len(session.events) == 2


def test_a_crash_is_seen_although_a_forked_helper_lives_on(session):
    found = session(("begin", [0, "a"]), ("fork", 3), ("segfault", None), silence_s=1.5)
    assert found == Casualty([0, "a"], "crashed", "the process died (signal SIGSEGV)")


def test_who_left_the_childs_group_and_holds_its_pipe_holds_nothing_up(session):
    begun = time.monotonic()
    assert session(("begin", [0, "a"]), ("leave", 30)) is None
    assert time.monotonic() - begun < 15
    os.kill(session.events[-1]["pid"], signal.SIGKILL)


@pytest.mark.parametrize("after", [("exit", 139), ("segfault", None), ("sleep", 60), ("thread", 60)])
def test_what_becomes_of_a_child_that_has_said_all_is_nobodys_fault(session, monkeypatch, after):
    monkeypatch.setattr(sessions, "LEAVE_S", 0.2)
    assert session(("begin", [0, "a"]), ("end", None), after) is None
    assert [event["event"] for event in session.events] == ["begin"]


def test_a_child_that_says_no_more_and_lives_on_is_a_timeout_of_what_it_had_begun(session, monkeypatch):
    monkeypatch.setattr(sessions, "LEAVE_S", 1.0)
    found = session(("begin", [0, "a"]), ("thread", 60), ("close", None))
    assert found == Casualty([0, "a"], "timeout", "the process said no more, and had not ended 1 s later")


def test_modules_in_the_current_folder_stand_in_for_nobodys(session, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("random", "statistics", "hypatia_lab"):
        (here / f"{name}.py").write_text("raise RuntimeError('the reader's own')")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{tmp_path}")  # an empty entry is the current folder, too
    assert session(("lab", None)) is None
    assert [event["value"] for event in session.events] == [sessions.__file__], "not the same hypatia_lab"


def test_an_interrupt_kills_the_child_and_passes_on(session):
    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "told":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session(("helper", 60), ("tell", 1), ("sleep", 60), on_event=interrupt)
    pids = [event["pid"] for event in session.events]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_child_does_not_outlive_a_parent_that_is_killed(tmp_path, session):
    program = (
        "import pathlib\n"
        "from hypatia_lab.bench import sessions\n"
        "sessions.run_session('session_child', {'steps': [['tell', 1], ['sleep', 60]]}, pathlib.Path('log'),\n"
        "    on_event=lambda event: print(event['pid'], flush=True), silence_s=60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    assert gone(child)
