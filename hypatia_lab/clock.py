"""The one timer. CPU and GPU alike; interleaved, so that drift hits every variant the same.

Clocks (one word each, used in every record and figure):

``wall``      host clock around one synchronised call: what a caller waits for.
``hot``       back-to-back calls, caches warm: CUDA events on a GPU, the host clock on a CPU.
``graph``     the same calls replayed from a CUDA graph: no launch overhead (GPU only).
``cold``      one call after the caches were flushed (on a GPU inside a CUDA graph, so again no launch overhead).
``profiler``  sum of the kernels' own durations, as the profiler reports them.

On a GPU the outputs of a ``hot`` or ``graph`` sample live until it ends, so a variant that allocates writes to memory
that no call has touched of late. On an H200 that costs most calls under 1%, short fused kernels up to an eighth.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hypatia_lab import messages
from hypatia_lab.kernels import loader

CLOCKS = ("wall", "hot", "graph", "cold", "profiler")

VERSIONS = {
    1: "2026-11-28: as it is since 25 November, when a sample by CUDA graph began to follow another process's kernel, "
    "and 5 ms to warm a GPU's variant",
}
"""What changed the times that are told, and since when; records carry the number since there is one."""
VERSION = max(VERSIONS)

SAMPLE_S = {"cpu": 5e-3, "cuda": 2e-3}
"""Aimed length of one sample: long against the timer's resolution, short against drift."""
WARM_S = {"cpu": 2e-2, "cuda": 5e-3}
"""How long a callable is called before it is timed. What a GPU runs was checked before, and captured."""
MAX_CALLS = 200
MAX_ROUNDS = 10
SETTLE_S = 30.0
"""Longest wait for background work to end before anything is timed."""
TICK_S = 0.01
"""Linux counts processor time in steps of this."""
QUIET_S = 0.05
"""So long nobody in the background may have computed."""

Run = Callable[[], Any]
Sampler = Callable[[], tuple[float, Any]]
"""Takes one sample: seconds a call, and what the last call returned."""


class ClockError(RuntimeError):
    """A clock that cannot time this callable here; the message is the reason for the skipped cell."""


class RunError(ClockError):
    """A callable that failed while it was timed; the message says how."""


@dataclass
class Timing:
    """Samples of one variant under one clock: µs per call, in the order taken, ``calls`` calls a sample.

    ``readings`` holds what ``probe`` returned right after each sample.
    """

    calls: int
    samples_us: list[float] = field(default_factory=list)
    readings: list[Any] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        """Median of the samples, µs per call."""
        return statistics.median(self.samples_us)


def synchronize(device: str) -> None:
    """Wait until the device has finished everything given to it; nothing to do on a CPU."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def once_s(run: Run, device: str) -> float:
    """Seconds one synchronised call takes by the host clock."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def settle(limit_s: float = SETTLE_S, but: Collection[int] = ()) -> float:
    """Wait until no process that this one has started computes any more, at most ``limit_s``; seconds waited.

    Those whose numbers are in ``but`` are known to be at rest: to look at them twice takes a twentieth of a second.
    torch.compile starts a pool of compilers at its first kernel for a GPU, which imports torch in the background. While
    it does, a variant that takes every core waits for one of them, some milliseconds a call.
    """
    begun = time.monotonic()
    before = _children(but)
    while before and time.monotonic() - begun < limit_s:
        time.sleep(QUIET_S)
        now = _children(but)
        spent = sum(seconds - before.get(pid, (0.0, ""))[0] for pid, (seconds, _) in now.items())
        # Processor time is counted in ticks; on a busy machine, who has not computed may be waiting to ("running").
        if spent < 1.5 * TICK_S and all(state != "running" for _, state in now.values()):
            break
        before = now
    return time.monotonic() - begun


def _children(but: Collection[int] = ()) -> dict[int, tuple[float, str]]:
    """Pid → processor time (s) and status, in psutil's word, of each descendant of this process, ``but`` some."""
    import psutil

    found: dict[int, tuple[float, str]] = {}
    for child in psutil.Process().children(recursive=True):
        if child.pid in but:
            continue
        with contextlib.suppress(psutil.Error):  # a process may end while it is looked at
            spent = child.cpu_times()
            found[child.pid] = spent.user + spent.system, child.status()
    return found


def warm_up(run: Run, device: str) -> float:
    """Call ``run`` until it is warm; seconds of a call.

    At least twice, and at most for :data:`WARM_S` unless one call is longer.
    """
    seconds = [once_s(run, device), once_s(run, device)]
    while sum(seconds) < WARM_S[device] and len(seconds) < MAX_CALLS:
        seconds.append(once_s(run, device))
    return statistics.median(seconds[1:])


def flush_bytes(device: str) -> int:
    """Bytes to write so that no earlier data is left in cache: max(2 × last-level cache, 256 MB; 64 MB on CPU).

    Source: the habit of NVBench and triton's do_bench; the cache size is read off the device.
    """
    if device == "cuda":
        import torch

        return max(2 * torch.cuda.get_device_properties(0).L2_cache_size, 256 * 2**20)
    return max(2 * last_level_cache(), 64 * 2**20)


def last_level_cache() -> int:
    """Bytes of the CPU's last-level cache as Linux reports it; 0 when it does not."""
    from pathlib import Path

    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]] if text[-1] in "KM" else int(text))
    return max(sizes)


def set_aside() -> int:
    """Bytes of the GPU's L2 that this process has set aside for what is to persist there.

    Source: cuda.h (CU_LIMIT_PERSISTING_L2_CACHE_SIZE).
    """
    found = ctypes.c_size_t()
    loader.driver().cuCtxGetLimit(ctypes.byref(found), 6)
    return found.value


def end_persisting() -> None:
    """Let nothing persist in the GPU's L2: what does is not evicted by whatever is written later.

    Source: cuCtxResetPersistingL2Cache; NVIDIA/nvbench#458.
    """
    loader.driver().cuCtxResetPersistingL2Cache()


class _Flusher:
    """Overwrites the caches; one buffer a process."""

    _buffers: dict[str, Any] = {}

    def __init__(self, device: str) -> None:
        import torch

        if device not in self._buffers:
            self._buffers[device] = torch.empty(flush_bytes(device) // 4, dtype=torch.int32, device=device)
        self._buffer = self._buffers[device]

    def __call__(self) -> None:
        self._buffer.zero_()


def _wall(run: Run, device: str, calls: int) -> Sampler:
    def sample() -> tuple[float, Any]:
        total, out = 0.0, None
        synchronize(device)
        for _ in range(calls):
            start = time.perf_counter()
            out = run()
            synchronize(device)
            total += time.perf_counter() - start
        return total / calls, out

    return sample


def _hot(run: Run, device: str, calls: int) -> Sampler:
    if device == "cpu":

        def sample() -> tuple[float, Any]:
            start = time.perf_counter()
            for _ in range(calls - 1):
                run()
            out = run()
            return (time.perf_counter() - start) / calls, out

        return sample
    return _between_events(lambda: [run() for _ in range(calls)], calls)


def _between_events(work: Callable[[], list[Any]], calls: int) -> Sampler:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def sample() -> tuple[float, Any]:
        torch.cuda.synchronize()
        start.record()
        outs = work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / calls, outs[-1]

    return sample


@cache
def _capturing(device: int) -> Any:
    """The stream on which work for that GPU is captured. PyTorch has one for all, on whichever was first."""
    import torch

    return torch.cuda.Stream(device)


def capture(work: Run) -> Any:
    """A CUDA graph of ``work``. Raises :class:`ClockError` when it cannot be captured."""
    import torch

    own = torch.cuda.current_stream()
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        # Another thread may ask its stream how it is meanwhile, and be told so: JAX's would never be used again.
        with torch.cuda.graph(graph, stream=_capturing(own.device_index), capture_error_mode="thread_local"):
            work()
    except RuntimeError as cause:
        torch.cuda.set_stream(own)  # where a capture fails torch stays on the stream that was captured
        torch.cuda.synchronize()
        numbers = torch.cuda.default_generators[own.device_index]
        numbers.graphsafe_set_state(numbers.clone_state())  # that of a capture which failed draws none any more
        raise ClockError(f"cannot be captured in a CUDA graph: {str(cause).splitlines()[0]}") from None
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _graph(run: Run, device: str, calls: int) -> Sampler:
    if device == "cpu":
        raise ClockError("CUDA graphs need a CUDA device")
    last: list[Any] = []

    def work() -> None:
        outs = [run() for _ in range(calls)]
        last[:] = outs[-1:]

    graph = capture(work)

    def replay() -> list[Any]:
        graph.replay()
        return last

    return _between_events(replay, calls)


def _cold(run: Run, device: str, calls: int) -> Sampler:
    flush = _Flusher(device)
    calls = min(calls, 10)
    out: Any = None

    def keep() -> None:
        nonlocal out
        out = run()

    if device == "cpu":

        def sample_cpu() -> tuple[float, Any]:
            total = 0.0
            for _ in range(calls):
                flush()
                total += once_s(keep, device)
            return total / calls, out

        return sample_cpu
    import torch

    # Events recorded inside the graph leave the graph's own launch out of the time.
    start = torch.cuda.Event(enable_timing=True, external=True)
    end = torch.cuda.Event(enable_timing=True, external=True)

    def work() -> None:
        flush()
        start.record()
        keep()
        end.record()

    graph = capture(work)

    def sample() -> tuple[float, Any]:
        total = 0.0
        for _ in range(calls):
            end_persisting()
            graph.replay()
            torch.cuda.synchronize()
            total += start.elapsed_time(end) * 1e-3
        return total / calls, out

    return sample


def _profiler(run: Run, device: str, calls: int) -> Sampler:
    calls = min(calls, 20)

    def sample() -> tuple[float, Any]:
        return sum(us for _, us in kernels(run, device, calls=calls)) * 1e-6 / calls, run()

    return sample


def kernels(run: Run, device: str, *, calls: int = 1) -> list[tuple[str, float]]:
    """Name and duration (µs) of every kernel that ``calls`` calls launched, as torch.profiler saw them.

    On a CPU: every operator's self time. Raises :class:`ClockError` when the profiler saw nothing.
    """
    from torch.profiler import DeviceType, ProfilerActivity, profile

    activities = [ProfilerActivity.CUDA] if device == "cuda" else [ProfilerActivity.CPU]
    run()
    synchronize(device)
    with profile(activities=activities, acc_events=True) as trace:
        for _ in range(calls):
            run()
        synchronize(device)
    events = trace.events() or []
    if device == "cuda":
        seen = [(e.name, float(e.device_time_total)) for e in events if e.device_type == DeviceType.CUDA]
    else:
        seen = [(e.name, float(e.self_cpu_time_total)) for e in events]
    if not seen:
        raise ClockError("the profiler recorded no kernel")
    return seen


_SAMPLERS = {"wall": _wall, "hot": _hot, "graph": _graph, "cold": _cold, "profiler": _profiler}


def measure(
    runs: Mapping[str, Run],
    clock: str,
    device: str,
    *,
    budget_s: float = 0.5,
    luck: random.Random | None = None,
    probe: Callable[[], Any] | None = None,
    turn: Callable[[], None] | None = None,
    announce: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing | ClockError]:
    """Time every callable in ``runs`` under ``clock`` and return its :class:`Timing` (or why it has none).

    The callables are prepared in a random order, drawn from ``luck`` (whoever comes first gets other memory, which
    alone can make a difference of half a per cent), and interleaved: each round visits them in a random order and then
    in the reverse (ABBA), so each round gives two samples of every one and slow drift cancels. Rounds go on until
    ``budget_s`` seconds for each callable are used, at least 2 and at most 10 (at least one, where a call takes
    over 50 ms). ``probe`` is called after each sample, outside the timed region, ``turn`` before each by CUDA graph
    (:class:`hypatia_lab.bench.turns.Companion`), ``announce`` with the name of whoever runs next. A callable
    that fails has a :class:`RunError` instead of a timing, and the others go on, unless it left the device in error:
    then that error is raised, for nothing more can be run in this process.
    Raises ``KeyError`` for an unknown clock.
    """
    prepare = _SAMPLERS[clock]
    out: dict[str, Timing | ClockError] = {}
    samplers: dict[str, Sampler] = {}
    slowest = 0.0
    shuffle = (luck or random.SystemRandom()).shuffle
    names = list(runs)
    shuffle(names)
    for name in names:
        announce(name)
        try:
            calls, seconds = sized(runs[name], clock, device)
            slowest = max(slowest, seconds)
            timing = Timing(calls)
            sampler = prepare(runs[name], device, calls)
            sampler()
        except ClockError as cause:
            out[name] = cause
        except Exception as cause:
            out[name] = RunError(messages.one_line(cause))
            synchronize(device)  # a device left in error ends this process here, with this name announced
        else:
            out[name], samplers[name] = timing, sampler
    order = list(samplers)
    least = 1 if slowest > 0.05 else 2
    start = time.perf_counter()
    for number in range(MAX_ROUNDS):
        if number >= least and time.perf_counter() - start > budget_s * len(order):
            break
        shuffle(order)
        for name in (*order, *reversed(order)):
            timing = out[name]
            if not isinstance(timing, Timing):
                continue  # failed in an earlier round
            announce(name)
            try:
                if turn is not None and clock == "graph":
                    turn()
                timing.samples_us.append(samplers[name]()[0] * 1e6)
            except ClockError as cause:
                out[name] = cause
                continue
            except Exception as cause:
                out[name] = RunError(messages.one_line(cause))
                synchronize(device)
                continue
            if probe is not None:
                timing.readings.append(probe())
    return out


def sized(run: Run, clock: str, device: str) -> tuple[int, float]:
    """How many calls of ``run`` make up one sample of ``clock``, and the seconds of a call by the host's clock."""
    seconds = paced = warm_up(run, device)
    if clock == "graph" and device == "cuda":
        paced = _replayed_s(run, seconds)
    return max(1, min(MAX_CALLS, round(SAMPLE_S[device] / max(paced, 1e-9)))), seconds


def sampler(clock: str, run: Run, device: str, calls: int) -> Sampler:
    """What takes a sample of ``calls`` calls of ``run`` by ``clock``. Raises :class:`ClockError` where it cannot."""
    return _SAMPLERS[clock](run, device, calls)


def _replayed_s(run: Run, seconds: float) -> float:
    """Seconds of one call replayed from a CUDA graph, of which ``seconds`` by the host clock may be mostly launch.

    A graph sized by launches would have few calls, and every sample a share of starting the graph itself.
    """
    if seconds > SAMPLE_S["cuda"]:
        return seconds
    sample = _graph(run, "cuda", 10)
    return min(sample()[0] for _ in range(3))
