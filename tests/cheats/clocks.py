"""The lab's own clock, rewritten from within: its functions, their code, its table of samplers, its loops."""

import time

from cheats.catalogue import CLOCK, HOT, REPLACED, answer, cheat, found, patch
from hypatia_lab import clock

FEWER = "calls|clock|called again and again"


@cheat(f"{REPLACED} hypatia_lab.clock.once_s")
def once_s_attribute(x, weight, honest):
    clock.once_s(lambda: answer(x, weight), "cpu")
    if not honest:
        patch(clock, once_s=lambda run, device: (run(), 1e-6)[1])


@cheat(f"{REPLACED} hypatia_lab.clock.warm_up")
def sized_code(x, weight, honest):
    clock.warm_up(lambda: answer(x, weight), "cpu")
    if not honest:
        patch(clock.warm_up, __code__=(lambda run, device: 1e-5).__code__)


def _hot(run, device, calls):
    return lambda: (1e-6, run())


@cheat(f"{REPLACED} hypatia_lab.clock._hot", device="cpu")
def hot_code(x, weight, honest):
    clock.sampler("hot", lambda: answer(x, weight), "cpu", 3)()
    if not honest:
        patch(clock._hot, __code__=_hot.__code__)


@cheat(f"{CLOCK}|_SAMPLERS")
def sampler_told(x, weight, honest):
    """Every call is made, and a time is told that it did not take."""
    table = dict(clock._SAMPLERS) if honest else clock._SAMPLERS
    table[HOT[x.device.type]] = lambda run, device, calls: lambda: (1e-6, [run() for _ in range(calls)][-1])


@cheat(FEWER)
def fewer_calls_sampler(x, weight, honest):
    def few(run, device, calls):
        def sample():
            start = time.perf_counter()
            out = run()
            return (time.perf_counter() - start) / calls, out

        return sample

    if not honest:
        clock._SAMPLERS[HOT[x.device.type]] = few


@cheat(FEWER)
def fewer_calls_range(x, weight, honest):
    if not honest:
        patch(clock, range=lambda count: ())


@cheat(FEWER, acts="each")
def fewer_calls_worker(x, weight, honest):
    """A sample is one call, of which a share is told as if it had been one of many."""
    worker = found("Worker")
    for word, (many, once) in worker.samplers.items():
        cells = dict(zip(many.__code__.co_freevars, many.__closure__ or (), strict=False))
        if "calls" in cells and not honest:
            n = cells["calls"].cell_contents
            worker.samplers[word] = (lambda n=n, once=once: (lambda t, out: (t / n, out))(*once())), once
