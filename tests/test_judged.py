"""A stranger's kernel under guard: what is made of what was seen, how processes talk, what a file may not do."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from kernel_tensors import on_gpu
from synthetic import ceilings, run_line
from torch._compile import _disable_dynamo

from hypatia_lab import check, clock, records, variants
from hypatia_lab.bench import composer, fence, sessions
from hypatia_lab.experiments import Experiment, plan
from hypatia_lab.judged import evidence, gpu_memory, rehearsal, tampering, worker_replies
from hypatia_lab.judged.channel import Channel, Garbled, Gone, Silent
from hypatia_lab.judged.confine import out_of_memory
from hypatia_lab.judged.evidence import Seen
from hypatia_lab.judged.processes import REFEREE
from hypatia_lab.judged.referee import Referee
from hypatia_lab.judged.shelf import Shelf, described
from hypatia_lab.judged.trial import Trial
from hypatia_lab.judged.worker import IN_PLACE, WRITTEN, Worker
from hypatia_lab.judged.worker import key as part
from hypatia_lab.strangers import reader_kernel

STRANGERS = Path(__file__).resolve().parent / "strangers"

# ---------------------------------------------------------------- what was seen


def seen(call_s: float, *, samples: int = 20, noise: float = 0.0, seed: int = 0, **changed: float) -> Seen:
    """An honest variant's samples, or one's that has ``changed`` a factor: told, new, again, together, aside."""
    drawn = random.Random(seed)
    calls = max(1, round(5e-3 / call_s))

    def times(base: float, name: str = "") -> list[float]:
        return [base * changed.get(name, 1.0) * (1 + abs(drawn.gauss(0, noise))) for _ in range(samples)]

    passed = [calls * one for one in times(call_s, "together")]
    told = [one * changed.get("told", 1.0) for one in passed]
    aside = times(1e-3 + changed.get("aside_s", 0.0))
    return Seen(calls, told, [one + 2e-5 for one in passed], times(call_s, "new"), times(call_s, "again"), aside)


def accused(own: Seen, usual: Seen) -> str:
    tests = (evidence.clock, evidence.memory, evidence.bursts, evidence.aside)
    return "; ".join(text for test in tests if (text := test(own, usual)[0]))


@given(st.floats(1e-6, 0.2), st.floats(1e-6, 0.2), st.integers(2, 20), st.floats(0.0, 0.5), st.integers(0, 2**32))
def test_nobody_is_accused_of_noise(own_s, usual_s, samples, noise, seed):
    own = seen(own_s, samples=samples, noise=noise, seed=seed)
    assert accused(own, seen(usual_s, samples=samples, noise=noise, seed=seed + 1)) == ""


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"told": 0.5}, "its clock was changed"),
        ({"again": 0.2, "together": 0.2}, "on the same once more"),
        ({"together": 0.1}, "when called again and again"),
        ({"new": 0.01, "again": 0.01, "together": 0.01, "aside_s": 2e-3}, "between calls"),
    ],
)
def test_each_trick_is_named(changed, named):
    assert named in accused(seen(1e-3, **changed), seen(1e-3))
    if "aside_s" not in changed:
        assert named in accused(seen(1e-3, samples=4, **changed), seen(1e-3, samples=4))


def test_calls_that_took_less_than_half_are_counted_beside_those_that_do_by_chance():
    own, usual = seen(1e-3), seen(1e-3)
    for number in range(0, 20, 3):
        own.again_s[number] /= 10
    assert evidence.halved(own, usual) == {"half": 7, "by_chance": 0, "pairs": 20}
    usual.new_s[1] *= 10
    assert evidence.halved(own, usual)["by_chance"] == 1
    own.again_s[1] *= 10
    own.again_s[2] *= 10
    assert evidence.halved(own, usual) == {"half": 7, "by_chance": 2, "pairs": 20}


def test_what_another_baseline_takes_between_calls_is_usual():
    own, eager = seen(1e-3, aside_s=4e-3), seen(1e-3)
    assert "between calls" in evidence.aside(own, eager, [eager])[0]
    assert not evidence.aside(own, eager, [eager, seen(1e-3, aside_s=4e-3)])[0]


@pytest.mark.parametrize("samples", [4, 20])
def test_nobody_is_accused_because_the_baselines_marks_were_read_late(samples):
    late = seen(1e-3, samples=samples)
    late.passed_s = [one / 2 for one in late.passed_s]
    assert accused(seen(1e-3, samples=samples), late) == ""
    assert accused(seen(1e-3, samples=samples, told=0.5), late).startswith("its clock")


def test_what_a_long_sample_of_the_baselines_takes_besides_a_short_one_may_take_too():
    usual, short = seen(1e-3), seen(1e-3)
    usual.passed_s = [one + 3e-4 for one in usual.told_s]
    short.told_s = [4e-4] * 20
    short.passed_s = [6.8e-4] * 20
    assert evidence.clock(short, seen(1e-3), [usual])[0].startswith("its clock"), "the quickest baseline is usual"
    assert not evidence.clock(short, usual, [usual])[0]
    short.told_s = [2e-4] * 20
    assert evidence.clock(short, usual, [usual])[0].startswith("its clock")


@pytest.mark.parametrize(
    ("left_s", "usual_s", "named"),
    [([0.02, 0.03], [1e-5], True), ([0.02, 1e-5], [1e-5], False), ([0.02, 0.03], [0.02], False), ([], [], False)],
)
def test_work_is_left_behind_where_it_is_after_every_call_and_after_no_baselines(left_s, usual_s, named):
    assert ("nobody waits for" in evidence.behind(left_s, usual_s)[0]) is named


def test_a_clock_that_goes_an_eighth_slow_is_seen_where_there_are_samples_enough():
    assert accused(seen(1e-3, told=0.875), seen(1e-3)).startswith("its clock")


@pytest.mark.parametrize("samples", [4, 20])
def test_a_single_sample_that_took_long_accuses_nobody(samples):
    own = seen(1e-3, samples=samples)
    own.passed_s[0] *= 10
    assert accused(own, seen(1e-3, samples=samples)) == ""


def test_of_one_sample_nothing_is_said():
    assert accused(seen(1e-3, samples=1, told=0.1, again=0.1), seen(1e-3, samples=1)) == ""


@pytest.mark.parametrize(("most", "cores", "named"), [(36, 2, False), (37, 2, True), (132, 64, False), (133, 64, True)])
def test_threads_beyond_what_pools_have_are_named(most, cores, named):
    assert bool(evidence.threads(4, most, cores)[0]) is named


# ---------------------------------------------------------------- whose fault it is


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), {"refused", "fault"}),
        (RuntimeError("NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED"), {"refused", "fault"}),
        (RuntimeError("no"), {"crashed"}),
    ],
)
def test_a_gpu_that_is_full_is_the_machines_fault(ends, cause, told):
    found = answered(ends, lambda channel: Referee(channel, lambda: None, "cpu"), "group", cause)
    assert set(found) == told
    assert found.get("fault", "machine") == "machine"


def test_what_the_fence_forbids_is_told_with_what_is_allowed(ends):
    denied = PermissionError(13, "Permission denied", "/home/me/.cache/tuner")
    found = answered(ends, lambda channel: Worker(channel, lambda: None, "cpu", "mine"), "build", denied)
    assert found["crashed"].startswith("PermissionError")
    assert "$TMPDIR" in found["crashed"]


def answered(ends: Any, made: Callable[[Channel], Any], command: str, cause: Exception) -> dict[str, Any]:
    """What the process that is ``made`` answers to a ``command`` which fails for that ``cause``."""

    def fails() -> None:
        raise cause

    ours, theirs = ends
    process = made(theirs)
    setattr(process, command, fails)
    thread = threading.Thread(target=lambda: pytest.raises(Gone, process.serve))
    thread.start()
    ours.send({"command": command})
    found = ours.receive(silence_s=10.0)
    ours.close()
    thread.join()
    return found


# ---------------------------------------------------------------- how they talk


@pytest.fixture
def ends():
    one, other = (Channel(end) for end in socket.socketpair())
    yield one, other
    for end in (one, other):
        end.close()


def test_messages_marks_and_files_arrive_in_order(ends):
    here, there = ends
    shelf = Shelf(described({"x": torch.zeros(3, 5), "n": torch.zeros((), dtype=torch.int64)}))
    here.send({"command": "é"}, [shelf.file])
    here.mark()
    here.send({"n": 1})
    assert there.receive() == {"command": "é"}
    there.marked()
    assert there.receive() == {"n": 1}
    (file,) = there.files(1)
    other = Shelf(described({"x": torch.zeros(3, 5), "n": torch.zeros((), dtype=torch.int64)}), file=file)
    other["x"].fill_(7)
    other["n"].fill_(-2)
    assert bool((shelf["x"] == 7).all())
    assert int(shelf["n"]) == -2
    for one in (shelf, other):
        one.close()


@given(st.binary(max_size=200))
@example(b'[]\n7\n"x"\nnull\n')
def test_whatever_is_said_is_a_message_or_garbled(said):
    ours, theirs = socket.socketpair()
    theirs.sendall(said)
    theirs.close()
    here = Channel(ours)
    for line in said.split(b"\n")[:-1]:
        try:
            fine = isinstance(json.loads(line), dict)
        except ValueError:
            fine = False
        if fine:
            assert isinstance(here.receive(), dict)
        else:
            with pytest.raises(Garbled):
                here.receive()
    with pytest.raises(Gone):
        here.receive()
    here.close()


def test_who_says_too_much_or_nothing_is_found_out(ends):
    here, there = ends
    beats: list[int] = []
    with pytest.raises(Silent):
        here.receive(0.3, lambda: beats.append(1))
    assert beats

    def say() -> None:
        with contextlib.suppress(OSError):  # nobody listens for so long
            there.end.sendall(b"x" * 2**21)

    writer = threading.Thread(target=say)
    writer.start()
    with pytest.raises(Garbled):
        here.receive(5.0)
    here.end.close()
    writer.join()


def test_the_size_of_a_shelf_is_nobodys_to_change():
    with contextlib.closing(Shelf([("x", "float32", [10])])) as shelf:
        for size in (0, 2 * os.fstat(shelf.file).st_size):
            with pytest.raises(OSError, match="not permitted"):
                os.ftruncate(shelf.file, size)


@on_gpu
def test_memory_of_a_gpu_is_seen_by_whoever_has_its_file():
    torch.zeros(1, device="cuda")
    layout = [("x", "float32", [5, 3]), ("n", "bfloat16", [7]), ("none", "float32", [0])]
    shelf = Shelf(layout, "cuda")
    other = Shelf(layout, "cuda", os.dup(shelf.file))
    other["x"].fill_(2)
    other["n"].fill_(-3)
    torch.cuda.synchronize()
    assert bool((shelf["x"] == 2).all())
    assert bool((shelf["n"] == -3).all())
    assert shelf["none"].shape == (0,)
    for one in (other, shelf):
        one.close()


@on_gpu
def test_what_changes_amid_long_calls_is_followed_at_once(ends):
    """A GPU takes a thousand calls ahead, which are no longer to be taken back."""
    here, there = ends
    worker = Worker(there, lambda: None, "cuda", "mine")
    worker.start()
    worker.written, worker.outbox = Shelf(WRITTEN), Shelf([(part(0), "float32", [1])], "cuda")
    worker.copied = []

    def run() -> torch.Tensor:
        torch.cuda._sleep(10_000_000)  # cycles, 5 ms
        return torch.ones(1, device="cuda")

    worker.run = run
    thread = threading.Thread(target=worker.amid)
    thread.start()
    here.marked(silence_s=10.0)
    time.sleep(0.2)
    worker.written["written"].fill_(IN_PLACE)
    thread.join(timeout=1.0)
    assert not thread.is_alive()
    assert float(worker.outbox[part(0)]) == 1


@pytest.mark.parametrize(("status", "full"), [(2, True), (801, False)])
def test_a_gpu_that_is_full_is_told_from_a_system_that_shares_none_of_it(monkeypatch, status, full):
    class Refusing:
        def __getattr__(self, name):
            return lambda *given: status

    monkeypatch.setattr(gpu_memory, "driver", Refusing)
    assert not gpu_memory.shareable()
    with pytest.raises(RuntimeError, match=str(status)) as caught:
        Shelf([("x", "float32", [3])], "cuda")
    assert out_of_memory(caught.value) == full


def test_what_a_variant_shares_is_let_go_before_the_next_one_is_there():
    """A GPU's memory is there as long as somebody has its file; large tensors fit for one of them."""
    there: list[int] = []

    def files(count: int) -> list[int]:
        for file in there:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(file)
        there[:] = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
        return list(there)

    def ask_all(names: list[str], *given: Any, **more: Any) -> dict[str, Any]:
        assert not names
        return {}

    referee = SimpleNamespace(channel=SimpleNamespace(files=files))
    members = MagicMock(ask=lambda *given, **more: {}, ask_all=ask_all, members={REFEREE: referee})
    nothing = dict.fromkeys(("started", "tampered", "go_ahead", "ensure_taken", "pace", "begin"), lambda *given: None)
    probe = SimpleNamespace(free_bytes=lambda: 0.0)
    coordinator = SimpleNamespace(processes=members, probe=probe, number=2, **nothing)
    data = {"variants": ["eager", "compile", "mine"], "clocks": [], "workload": {}, "budget_s": 1.0}
    layout = dict.fromkeys(("inputs", "outputs", "place", "lying", "poison"), ()) | {"holds": 1, "judging": 1}
    trial = Trial(coordinator, 0, data, layout)  # type: ignore[arg-type]
    for case in trial.cases:
        case.fail("crashed", "it has died")
    trial.run()
    assert len(there) == 2
    assert files(0) == []
    trial.close()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_what_is_spoilt_is_no_answer(dtype):
    with contextlib.closing(Shelf([("first", dtype, [4]), ("x", dtype, [2, 3])])) as shelf:
        shelf["x"].fill_(1)
        shelf.spoil("x")
        assert not float(shelf["x"][0, 0]) < 1e38 or dtype == "float16"
        assert float(shelf["x"][0, 0]) != 1
        assert float(shelf["x"][1, 2]) == 1
        assert not shelf["first"].any()


def test_tensors_are_written_into_anothers_memory():
    x, y = torch.zeros(100), torch.zeros(3, dtype=torch.int32)
    with contextlib.closing(Shelf([("x", "float32", [100]), ("y", "int32", [3])])) as shelf:
        shelf["x"].copy_(torch.arange(100.0))
        shelf["y"].fill_(5)
        assert shelf.write_into(os.getpid(), {"x": x.data_ptr(), "y": y.data_ptr()})
        assert not shelf.write_into(os.getpid(), {"x": 8})
    assert torch.equal(x, torch.arange(100.0))
    assert y.tolist() == [5, 5, 5]


LOOK = {"type": "Tensor", "tensor": True, "shape": [2, 0], "dtype": "float32", "device": "cpu"}


@pytest.mark.parametrize(
    ("changed", "fine"),
    [
        ({}, True),
        ({"tensor": False, "shape": None, "dtype": None}, True),
        ({"type": 7}, False),
        ({"shape": "22"}, False),
        ({"shape": [2, -1]}, False),
        ({"shape": [True, 2]}, False),
        ({"shape": [[2]]}, False),
        ({"dtype": "float32.x"}, False),
        ({"dtype": None}, False),
        ({"device": None}, False),
    ],
)
def test_what_a_worker_says_of_its_output_has_the_form(changed, fine):
    assert worker_replies.output({"looks": [LOOK, LOOK | changed], "tuple": True}) is fine


@pytest.mark.parametrize("found", [None, [], {}, {"looks": []}, {"looks": [LOOK]}, {"looks": [7], "tuple": False}])
def test_what_is_no_output_has_not_the_form(found):
    assert not worker_replies.output(found)


# ---------------------------------------------------------------- what was done to a process


def test_functions_that_are_replaced_are_named(monkeypatch):
    before = tampering.functions()
    assert tampering.replaced(before) == []
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    monkeypatch.setattr(clock, "range", lambda calls: (), raising=False)
    monkeypatch.setitem(clock._SAMPLERS, "hot", lambda *given: None)
    monkeypatch.setattr(clock.once_s, "__code__", (lambda run, device: 0.0).__code__)
    expected = {"time.perf_counter", "hypatia_lab.clock._SAMPLERS[hot]", "hypatia_lab.clock.range"}
    assert set(tampering.replaced(before)) == expected | {"hypatia_lab.clock.once_s"}


def test_a_worker_tells_what_its_file_replaced(ends, monkeypatch):
    here, there = ends
    here.send({"command": "start"})
    here.end.shutdown(socket.SHUT_WR)
    with pytest.raises(Gone):
        Worker(there, lambda: monkeypatch.setattr(check, "judge", lambda *_: None), "cpu", "mine").serve()
    assert here.receive() == {"replaced": ["hypatia_lab.check.judge"], "changed": []}


def test_what_torchs_compiler_puts_in_place_of_its_own_is_no_tampering(monkeypatch):
    before = tampering.functions()
    monkeypatch.setattr(torch, "manual_seed", _disable_dynamo(torch.manual_seed))
    assert "torch.manual_seed" not in tampering.replaced(before)


def test_modes_that_are_changed_are_told_with_both_values():
    before = tampering.modes()
    assert tampering.changed(before) == []
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with torch.no_grad():
            told = tampering.changed(before)
    finally:
        torch.set_num_threads(threads)
    assert told == [f"the number of threads from {threads} to {threads + 1}", "gradients from on to off"]


def test_a_confined_process_writes_where_it_may_and_reaches_nobody(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = [tmp_path, os.getpid(), server.getsockname()[1]]
        command = [sys.executable, STRANGERS / "confined.py", *map(str, asked)]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | sessions.path(), capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout)
    assert found["own"] == "allowed"
    if fence.abi():
        assert found["other"] == "PermissionError"
    if fence.abi() >= 6:
        assert found["signal"] == "PermissionError"
    if subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True).returncode == 0:
        assert found["network"] != "allowed"


# ---------------------------------------------------------------- what judging costs


def medians_us(root: Path, spec: Experiment) -> dict[tuple[str, str], list[float]]:
    """Shape and variant → what a call takes on the GPU by the graph clock, process by process."""
    rates = [line | {"medians_us": [1e-3, 1e-3]} for line in ceilings({"ieee": 1e3})]  # that nobody beats
    records.write(root, run_line(experiment="ceilings", device="cuda"), rates)
    record = composer.measure(spec, preset="quick", device="cuda", machine_name="box", root=root, progress=False)
    cells = [cell for cell in record.cells if cell["clock"] == "graph"]
    assert [cell["reason"] for cell in cells if cell["status"] != "ok"] == []
    return {(str(cell["shape"]), cell["variant"]): cell["medians_us"] for cell in cells}


@on_gpu
@pytest.mark.slow
@variants.restored()
def test_a_judged_kernel_takes_what_it_takes_when_it_is_run(tmp_path, monkeypatch):
    """A CPU's times differ by more from process to process."""
    path = STRANGERS / "tiny.py"
    spec = reader_kernel.experiment(path, rehearsal.rehearse(path, tmp_path / "log", 60.0))

    def planned(*asked):
        groups = spec.plan(*asked)
        return [replace(one, variants=("eager", "mine"), clocks=one.clocks[:1], budget_s=0.1) for one in groups]

    alone = replace(spec, plan=planned, within_s=0.0, processes=4)
    seen: dict[str, dict[tuple[str, str], list[float]]] = {"judged": {}, "run": {}}
    for number, way in enumerate(("judged", "run", "run", "judged")):
        with monkeypatch.context() as patch:
            patch.setattr(plan.Source, "guarded", way == "judged")
            found = medians_us(tmp_path / f"{number}", alone)
        for key, own in found.items():
            seen[way].setdefault(key, []).extend(own)
    for key, judged in seen["judged"].items():
        ratio = statistics.geometric_mean(judged) / statistics.geometric_mean(seen["run"][key])
        assert ratio == pytest.approx(1, abs=0.01), (key, judged, seen["run"][key])
