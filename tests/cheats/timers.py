"""Timers of Python that go slow (gpu-mode/reference-kernels#162)."""

import sys
import time
import types

from cheats.catalogue import CLOCK, REPLACED, answer, cheat, patch
from hypatia_lab import clock


@cheat(f"{REPLACED} time.perf_counter|{CLOCK}")
def time_perf_counter(x, weight, honest):
    real = time.perf_counter
    if not honest:
        patch(time, perf_counter=lambda: real() * 0.1)
    spent = []

    def run():
        start = time.perf_counter()
        out = answer(x, weight)
        spent.append(time.perf_counter() - start)
        return out

    return run


@cheat(f"{REPLACED} time.")
def time_perf_counter_ns(x, weight, honest):
    real = time.perf_counter_ns
    begun = real(), time.monotonic(), time.process_time_ns()
    if not honest:
        patch(time, perf_counter_ns=lambda: real() // 10, monotonic=lambda: begun[1])


def slowed(factor):
    """A module ``time`` whose clock goes by that factor."""
    real = time.perf_counter
    return types.SimpleNamespace(perf_counter=lambda: real() * factor, monotonic=time.monotonic)


@cheat(CLOCK)
def time_module(x, weight, honest):
    own = slowed(0.1)
    if not honest:
        patch(clock, time=own)

    def run():
        own.perf_counter()
        return answer(x, weight)

    return run


@cheat(CLOCK)
def time_module_slightly(x, weight, honest):
    if not honest:
        patch(clock, time=slowed(0.88))


REAL = time.perf_counter


@cheat(CLOCK, acts="each")
def restored_for_the_look(x, weight, honest):
    """As long as somebody looks the timer is the real one."""
    frame, names = sys._getframe(), []
    while frame := frame.f_back:
        names.append(frame.f_code.co_name)
    if not honest:
        patch(time, perf_counter=REAL if "call" in names or "build" in names else lambda: REAL() * 0.1)


@cheat(f"{REPLACED} time.perf_counter", acts="imported")
def import_perf_counter(honest):
    real = time.perf_counter
    if not honest:
        patch(time, perf_counter=lambda: real() * 0.1)
