"""Probe ``oracle``: one variant by the lab's clock and by a timer that is not the lab's, turn about in one process.

Run as a process by :mod:`hypatia_lab.bench.sessions`. On a CPU ``torch.utils.benchmark`` stands beside the hot
clock, on a GPU triton's ``do_bench_cudagraph`` beside the graph clock. Both time the same callable on the same threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hypatia_lab import clock
from hypatia_lab.bench.turns import Companion
from hypatia_lab.probes.probe import Emit, Ended, Subject, probe

if TYPE_CHECKING:
    from hypatia_lab.variants import Run

BUDGET_S = 0.3
"""Time that either may take in one turn."""
Timer = Callable[["Run"], float]


def torchs(run: Run) -> float:
    """µs of a call by torch.utils.benchmark: the median of its blocks."""
    import torch
    from torch.utils.benchmark import Timer as Torchs

    timer = Torchs("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=BUDGET_S).median * 1e6


def tritons(run: Run) -> float:
    """µs of a call by triton's do_bench_cudagraph: the median of its replays. Raises :class:`Ended` without triton."""
    try:
        from triton.testing import do_bench_cudagraph
    except ImportError:
        raise Ended("skipped", "triton is not installed") from None
    # ``rep`` is the length of one replay, and it replays its graph ten times.
    took: Any = do_bench_cudagraph(run, rep=round(1e3 * BUDGET_S / 10), return_mode="median")
    return took * 1e3


ORACLES: dict[str, tuple[str, str, Timer]] = {
    "cpu": ("hot", "torch.utils.benchmark", torchs),
    "cuda": ("graph", "do_bench_cudagraph", tritons),
}
"""Device → the lab's clock, the oracle's name, and the oracle."""


def look(subject: Subject, emit: Emit) -> None:
    """Emit the µs of a call by both. Raises :class:`Ended` when the variant is wrong or cannot be timed."""
    run = subject.checked(subject.problem())
    word, name, oracle = ORACLES[subject.device]
    found: dict[str, list[float]] = {"lab": [], "oracle": []}
    first, second = sorted(found, reverse=bool(subject.number % 2))
    with contextlib.ExitStack() as stack:
        # The lab's clock as it is everywhere else: without another process's turns it takes a short kernel for longer.
        turn = stack.enter_context(contextlib.closing(Companion())) if subject.device == "cuda" else None
        for who in (first, second, second, first):  # slow drift hits both the same
            if who == "oracle":
                found[who].append(oracle(run))
                continue
            timing = clock.measure({"it": run}, word, subject.device, budget_s=BUDGET_S, turn=turn)["it"]
            if isinstance(timing, clock.ClockError):
                raise Ended("crashed" if isinstance(timing, clock.RunError) else "skipped", str(timing))
            found[who].append(timing.median_us)
    for who, said in (("lab", f"{word} clock"), ("oracle", name)):
        emit("detail", topic="oracle", name=said, unit="us", value=sum(found[who]) / len(found[who]), count=1)


if __name__ == "__main__":
    probe(look)
