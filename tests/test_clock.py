"""The timer on a CPU: what is inside the timed region, in which order, and what cannot be timed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from kernel_tensors import DEVICE, on_gpu
from stopwatch import Stopwatch

from hypatia_lab import clock
from hypatia_lab.bench.turns import Companion
from hypatia_lab.clock import ClockError, Timing


def timings(
    runs: Mapping[str, Callable[[], Any]], word: str, *, device: str = "cpu", budget_s: float = 0.0, **more: Any
) -> dict[str, Timing]:
    """Measure in as few rounds as there may be; every callable must have been timed."""
    out: dict[str, Timing] = {}
    for name, timing in clock.measure(runs, word, device, budget_s=budget_s, **more).items():
        assert isinstance(timing, Timing), timing
        out[name] = timing
    return out


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr(clock, "time", watch)
    return watch


def order_of_samples(watch: Stopwatch, names: str, seed: str, word: str = "wall") -> list[str]:
    """The order in which the variants were sampled, seen from within the calls; each sample has its probe."""
    calls: list[str] = []
    samples: list[str] = []

    def probe() -> None:
        if samples:  # before the first probe there are warm-up calls too
            assert len(set(calls)) == 1, "a sample mixes two variants"
        samples.append(calls[-1])
        calls.clear()

    runs = {name: lambda name=name: (calls.append(name), watch.sleep(1e-4)) for name in names}
    found = timings(runs, word, luck=random.Random(seed), budget_s=0.0, probe=probe)
    assert all(len(timing.samples_us) == samples.count(name) for name, timing in found.items())
    return samples


def test_every_round_runs_forwards_and_then_backwards(watch):
    for word in ("wall", "hot"):
        samples = order_of_samples(watch, "abcd", "3", word)
        assert len(samples) == 16  # two rounds of two samples each
        for number in (0, 8):
            there, back = samples[number : number + 4], samples[number + 4 : number + 8]
            assert sorted(there) == list("abcd")
            assert back == there[::-1]


def test_the_order_is_drawn_anew_by_round_and_by_luck(watch):
    rounds = [order_of_samples(watch, "abcde", seed) for seed in "012"]
    assert rounds[0] != rounds[1] or rounds[1] != rounds[2]
    assert any(samples[:5] != samples[10:15] for samples in rounds)
    assert order_of_samples(watch, "abcde", "1") == rounds[1]


def test_what_the_probe_returns_is_kept_by_sample():
    counter = iter(range(1000))
    found = timings({"a": lambda: None, "b": lambda: None}, "hot", budget_s=0.0, probe=lambda: next(counter))
    assert sorted(found["a"].readings + found["b"].readings) == list(range(8))


def test_the_probe_is_outside_the_timed_region(watch):
    found = timings({"a": lambda: watch.sleep(1e-3)}, "wall", budget_s=0.0, probe=lambda: watch.sleep(0.05))
    assert found["a"].samples_us == pytest.approx([1000] * 4)


@pytest.mark.parametrize(
    ("call_s", "budget_s", "samples"),
    [(1e-3, 0.0, 4), (1e-3, 60.0, 20), (0.06, 0.0, 2)],
)
def test_at_least_two_rounds_are_taken_and_at_most_ten_and_one_of_a_long_call(
    watch, monkeypatch, call_s, budget_s, samples
):
    monkeypatch.setattr(clock, "_Flusher", lambda device: pytest.fail("flushed"))  # hot is never cold
    timing = timings({"a": lambda: watch.sleep(call_s)}, "hot", budget_s=budget_s)["a"]
    assert timing.samples_us == pytest.approx([1e6 * call_s] * samples)
    assert (timing.calls == 1) is (samples == 2)


@pytest.mark.parametrize("word", ["wall", "hot", "cold"])
def test_a_time_is_microseconds_a_call_however_many_calls_a_sample_has(monkeypatch, watch, word):
    monkeypatch.setattr(clock, "_Flusher", lambda device: lambda: None)
    timing = timings({"a": lambda: watch.sleep(5e-4)}, word)["a"]
    assert timing.calls > 1
    assert timing.samples_us == pytest.approx([500] * 4)
    assert replace(timing, samples_us=[4.0, 1.0, 2.0, 9.0]).median_us == 3


def test_cold_flushes_the_caches_before_each_call_and_does_not_time_it(monkeypatch, watch):
    log: list[str] = []

    def step(word: str, seconds: float) -> Callable[[], Any]:
        return lambda: (log.append(word), watch.sleep(seconds))

    monkeypatch.setattr(clock, "_Flusher", lambda device: step("flush", 0.02))
    timing = timings({"a": step("run", 1e-4)}, "cold")["a"]
    timed = log[log.index("flush") :]
    assert timed == ["flush", "run"] * (len(timed) // 2)
    assert len(timed) >= 2 * len(timing.samples_us)
    assert timing.median_us == pytest.approx(100)


def test_a_flush_writes_more_than_the_caches_hold(monkeypatch):
    for cache, least in ((2**20, 64 * 2**20), (100 * 2**20, 200 * 2**20)):
        monkeypatch.setattr(clock, "last_level_cache", lambda cache=cache: cache)
        assert clock.flush_bytes("cpu") == least


def test_a_flush_overwrites_its_whole_buffer(monkeypatch):
    monkeypatch.setattr(clock, "flush_bytes", lambda device: 4096)
    monkeypatch.setattr(clock._Flusher, "_buffers", {})
    flush = clock._Flusher("cpu")
    buffer: torch.Tensor = clock._Flusher._buffers["cpu"]
    buffer.fill_(7)
    flush()
    assert buffer.numel() * buffer.element_size() == 4096
    assert not buffer.any()


@pytest.mark.parametrize(("seconds", "most"), [(0.03, 2), (0.0, clock.MAX_CALLS)])
def test_warm_up_calls_at_least_twice_and_not_for_ever(watch, seconds, most):
    run = Mock(side_effect=lambda: watch.sleep(seconds))
    assert clock.warm_up(run, "cpu") == pytest.approx(seconds)
    assert 2 <= run.call_count <= most


def test_a_first_slow_call_does_not_count_as_the_pace(watch):
    delays = iter([0.1])
    assert clock.warm_up(lambda: watch.sleep(next(delays, 0.001)), "cpu") == pytest.approx(0.001)


def test_the_profiler_names_what_ran_and_sums_it_up():
    x = torch.randn(64, 64)
    seen = clock.kernels(lambda: torch.mm(x, x), "cpu")
    assert "aten::mm" in {name for name, _ in seen}
    timing = timings({"mm": lambda: torch.mm(x, x)}, "profiler")["mm"]
    assert 0 < timing.median_us < 100_000


def test_the_profiler_says_when_it_saw_nothing():
    with pytest.raises(ClockError, match="no kernel"):
        clock.kernels(lambda: None, "cpu")


def test_a_graph_has_as_many_calls_as_their_replay_fills_whatever_launching_takes(monkeypatch):
    captured: list[int] = []

    def graph(run: Callable[[], Any], device: str, calls: int) -> clock.Sampler:
        captured.append(calls)
        return lambda: (20e-6, None)

    # What a call takes by the host clock is told, not slept: a busy machine would stretch a millisecond.
    monkeypatch.setattr(clock, "warm_up", lambda run, device: run())
    monkeypatch.setattr(clock, "_graph", graph)
    monkeypatch.setitem(clock._SAMPLERS, "graph", graph)
    slow_to_launch, long = lambda: 1e-3, lambda: 5e-3
    calls = round(clock.SAMPLE_S["cuda"] / 20e-6)
    for run, expected in ((slow_to_launch, calls), (long, 1)):
        assert timings({"a": run}, "graph", device="cuda")["a"].calls == expected
    assert captured[:2] == [10, calls]


def test_a_graph_on_a_cpu_is_a_clock_error_not_a_time():
    found = clock.measure({"a": lambda: None, "b": lambda: None}, "graph", "cpu", budget_s=0.0)
    assert set(found) == {"a", "b"}
    assert all(isinstance(error, ClockError) and "CUDA device" in str(error) for error in found.values())


def test_a_clock_that_fails_is_no_failure_of_the_variant_and_does_not_stop_the_others(monkeypatch):
    sample, unseen = (2e-6, None), ClockError("the profiler recorded no kernel")
    samplers = {"good": Mock(return_value=sample), "late": Mock(side_effect=[sample, sample, unseen])}

    def prepare(run: Callable[[], Any], device: str, calls: int) -> clock.Sampler:
        if run() == "bad":
            raise ClockError("not here")
        return samplers[run()]

    monkeypatch.setitem(clock._SAMPLERS, "hot", prepare)
    runs = {name: lambda name=name: name for name in ("bad", "late", "good")}
    found = clock.measure(runs, "hot", "cpu", budget_s=0.0)
    bad, late, good = (found[name] for name in runs)
    assert type(bad) is ClockError
    assert late is unseen
    assert isinstance(good, Timing)
    assert good.samples_us == pytest.approx([2.0] * 4)


def test_an_unknown_clock_is_a_key_error():
    with pytest.raises(KeyError, match="sundial"):
        clock.measure({"a": int}, "sundial", "cpu")


def test_a_variant_that_fails_has_its_error_and_the_others_their_times(watch):
    well = iter(range(4))  # warm-up and the first sample

    def fail() -> None:
        raise ZeroDivisionError("by nought")

    def fail_late() -> None:
        watch.sleep(0.02)
        if next(well, None) is None:
            raise OSError("gone")

    found = clock.measure({"a": fail, "b": lambda: watch.sleep(1e-4), "c": fail_late}, "wall", "cpu", budget_s=0.0)
    assert isinstance(found["a"], clock.RunError)
    assert str(found["a"]) == "ZeroDivisionError: by nought"
    assert isinstance(found["b"], Timing)
    assert len(found["b"].samples_us) == 4
    assert isinstance(found["c"], clock.RunError)


def test_whoever_runs_next_is_announced():
    heard: list[str] = []
    wrong: list[str] = []
    runs = {name: lambda name=name: wrong.append(name) if heard[-1] != name else None for name in "ab"}
    clock.measure(runs, "wall", "cpu", budget_s=0.0, announce=heard.append)
    assert wrong == []
    assert len(heard) == 2 + 2 * 4  # prepared once, then two rounds of two samples each


@pytest.mark.parametrize("late", [False, True], ids=["while it is prepared", "while it is timed"])
def test_a_device_left_in_error_ends_the_process_with_the_culprit_announced(monkeypatch, late):
    broken, announced = [], []

    def synchronize(device: str) -> None:
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def culprit() -> None:
        if not late or len(announced) > 2:  # two are announced while they are prepared
            broken.append(True)
            raise RuntimeError("launch failed")

    monkeypatch.setattr(clock, "synchronize", synchronize)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        clock.measure(
            {"good": lambda: None, "culprit": culprit}, "hot", "cpu", budget_s=0.01, announce=announced.append
        )
    assert announced[-1] == "culprit"


# ---------------------------------------------------------------- background work

reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
BUSY = """
import sys, time

end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
time.sleep(60)
"""
GRANDCHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}, sys.argv[1]])"


@contextlib.contextmanager
def started(program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Python runs a program in a session of its own, which ends with the body."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@reads_proc
@pytest.mark.parametrize("program", [BUSY, GRANDCHILD], ids=["child", "grandchild"])
def test_timing_waits_until_what_was_started_computes_no_more(program):
    with started(program, "1.5") as busy:
        time.sleep(0.3)  # it has begun
        assert 0.8 < clock.settle() < 5
        assert busy.poll() is None  # it sleeps, which is no reason to wait
        assert clock.settle() < 0.5


@reads_proc
def test_who_is_known_to_be_at_rest_is_not_waited_for_and_one_who_never_rests_no_longer_than_the_limit(monkeypatch):
    with started(BUSY, "60") as known:
        assert 0.4 < clock.settle(limit_s=0.5) < 2
        assert clock._children().keys() >= {known.pid}
        assert known.pid not in clock._children({known.pid})
        monkeypatch.setattr(clock.time, "sleep", lambda seconds: pytest.fail("waited for it"))
        clock.settle(but=clock._children())


@reads_proc
def test_a_process_whose_name_is_cut_in_mid_character_is_seen():
    with started("open('/proc/self/comm', 'wb').write(b') caf\\xc3'); print(); input()") as named:
        assert named.stdout is not None
        named.stdout.readline()
        assert clock._children()[named.pid][1] in ("running", "sleeping")


def test_who_waits_for_a_core_is_not_at_rest(monkeypatch):
    states = iter(["running", "running", "sleeping", "sleeping"])
    monkeypatch.setattr(clock, "_children", lambda but: {7: (1.0, next(states))})
    monkeypatch.setattr(clock, "QUIET_S", 0.0)
    clock.settle()
    assert list(states) == ["sleeping"]


# ---------------------------------------------------------------- one state of the GPU

IN_TURN = """
import subprocess, sys
import torch
from hypatia_lab import clock
from hypatia_lab.bench.turns import Companion

OTHER = '''
import sys, torch
x = torch.randn(2048, 2048, device="cuda")
for _ in range(200):
    y = x @ x
torch.cuda.synchronize()
print("worked", flush=True)
sys.stdin.read()
'''
x = torch.randn(1024, 256, device="cuda")
turn = Companion()

def us():
    return clock.measure({"it": lambda: torch.softmax(x, 1)}, "graph", "cuda", budget_s=0.1, turn=turn)["it"].median_us

print(us())
print(us())
side, number = torch.cuda.Stream(), torch.zeros(1, device="cuda")
for calls in (1, 10, 200, 2000):
    with torch.cuda.stream(side):
        for _ in range(calls):
            number.add_(1)
    torch.cuda.synchronize()
    print(us())
assert turn.there
other = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
other.stdout.readline()
print(us())
other.communicate()
print(us())
"""


@on_gpu
@pytest.mark.slow
def test_a_graph_takes_the_same_whatever_the_gpu_did_before():
    """Small kernels, which start later in a process that has worked on two streams, and earlier after another's."""
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", IN_TURN], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found += map(float, done.stdout.split())
    assert max(found) <= 1.03 * min(found), found


@on_gpu
def test_another_thread_may_ask_its_stream_while_a_graph_is_captured():
    other, number, idle = torch.cuda.Stream(), torch.zeros(1, device="cuda"), []

    def work():
        number.add_(1)
        asking = threading.Thread(target=lambda: idle.append(other.query()))
        asking.start()
        asking.join()

    clock.capture(work)
    assert idle == [True, True]


@on_gpu
def test_after_a_capture_that_failed_random_numbers_are_drawn():
    def work():
        with torch.cuda.stream(torch.cuda.Stream()):  # of which the capture does not know
            return torch.rand(4, device="cuda")

    torch.cuda.manual_seed(1)
    with pytest.raises(ClockError, match="cannot be captured"):
        clock.capture(work)
    assert len(set(torch.rand(4, device="cuda").tolist())) == 4


@pytest.mark.parametrize("word", ["graph", "hot"])
def test_a_turn_comes_before_each_sample_by_cuda_graph(monkeypatch, word):
    told = []
    monkeypatch.setitem(clock._SAMPLERS, word, lambda run, device, calls: lambda: (told.append("sample"), (1e-3, 0))[1])
    monkeypatch.setattr(clock, "sized", lambda *given: (1, 1e-3))
    clock.measure({"a": int, "b": int}, word, "cuda", budget_s=0.0, turn=lambda: told.append("turn"))
    assert told == ["sample"] * 2 + (["turn", "sample"] if word == "graph" else ["sample"]) * 8


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")
def test_without_a_gpu_nobody_takes_turns():
    turn = Companion()
    turn()
    turn()
    assert not turn.there
    turn.close()
