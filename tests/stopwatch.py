"""A clock for tests of what is timed."""

from __future__ import annotations


class Stopwatch:
    """The time of ``hypatia_lab.clock`` in a test: however busy the machine is, it passes in ``sleep`` alone, and by
    ``tick`` seconds whenever it is looked at."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds
