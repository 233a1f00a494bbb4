"""Probe ``start``: how a fresh process gets to its first image, stage by stage, and what every call after it takes.

Run as a process by :mod:`hypatia_lab.bench.sessions`. Stages are wall clock, do not overlap, and whatever lies
between them (reading the plan, preparing caches, asking whether the variant can run) belongs to none.
"""

from __future__ import annotations

import time

BEGUN = time.monotonic()
"""When the interpreter reached this line (s), on the clock that the parent's ``spawned`` is on."""

import importlib  # noqa: E402
import math  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import closing, contextmanager, suppress  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from hypatia_lab import check, variants  # noqa: E402
from hypatia_lab.bench import sessions  # noqa: E402
from hypatia_lab.probes import caches, compile_stages  # noqa: E402
from hypatia_lab.probes.probe import Ended, ending, workload_of  # noqa: E402

LIGHT_MS = (time.monotonic() - BEGUN) * 1e3
"""What importing the lab's light modules took, all before torch."""

if TYPE_CHECKING:
    from hypatia_lab.probes.caches import Caches
    from hypatia_lab.probes.probe import Emit
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Workload

CALLS = 12

LIBRARIES = {"cuda": "cuda.core", "triton": "triton"}
"""Variant → the library that its factory would import: an import like any other, so it is counted with them."""


class _Stages:
    """Emits each stage as it ends, and remembers it."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.ms: dict[str, float] = {}

    def add(self, name: str, value: float, unit: str = "ms") -> None:
        self.ms[name] = value
        self.emit("detail", topic="start", name=name, unit=unit, value=value, count=1)

    @contextmanager
    def timed(self, name: str, already: float = 0.0) -> Iterator[None]:
        """The body as stage ``name``, which took ``already`` ms before; a body that raises is no stage."""
        begun = time.perf_counter()
        yield
        self.add(name, (time.perf_counter() - begun) * 1e3 + already)


def look(plan: dict[str, Any], own: Caches, emit: Emit) -> None:
    """Emit every stage of this process. Raises :class:`Ended` when the variant is wrong or cannot be had here."""
    stages = _Stages(emit)
    stages.add("interpreter", (BEGUN - plan["spawned"]) * 1e3)
    with stages.timed("import torch"):
        import torch
    with stages.timed("import hypatia_lab", already=LIGHT_MS):
        workload = workload_of(plan)
        variant = variants.find(workload.operation, plan["variant"])
        if library := LIBRARIES.get(variant.name):
            with suppress(ImportError):  # the variant itself says below what it misses
                importlib.import_module(library)
    device = "cpu" if variant.host else plan["device"]
    if device == "cuda":
        _context(stages)
    if missing := variant.needs(workload, plan["device"]):
        raise Ended("skipped", missing)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    with workload.precision():
        with stages.timed("set-up"):
            inputs = workload.inputs(device)
            wait()
        if own.preparing and own.case in caches.PACKAGED:
            caches.package(own, workload, variant, inputs)
            return
        with stages.timed("build"):
            run = caches.build(own, workload, variant, inputs)
            wait()
        first, last = _calls(stages, run, wait, device)
        if own.preparing:
            caches.keep(own)
            return
        _judge(stages, first, last, workload, device)


def _context(stages: _Stages) -> None:
    import torch

    with stages.timed("CUDA context"):
        # Nothing before this may ask for a GPU: the first question starts the driver.
        if not torch.cuda.is_available():
            raise Ended("skipped", "needs a CUDA device")
        torch.cuda.init()
        torch.empty(1, device="cuda")
        torch.cuda.synchronize()


def _calls(stages: _Stages, run: Run, wait: Callable[[], None], device: str) -> tuple[object, object]:
    """Time every call on its own and the first one's stages; returns the first output and the last."""

    def call() -> tuple[float, Any]:
        begun = time.perf_counter()
        out = run()
        wait()
        return (time.perf_counter() - begun) * 1e3, out

    with compile_stages.watched(device) as compiling:
        took, out = call()
    # A copy, and no hold on the output itself: CUDA graphs write to the same memory at every call.
    first = tuple(part.clone() for part in out) if isinstance(out, tuple) else out.clone()
    times = [took]
    for _ in range(CALLS - 1):
        del out
        took, out = call()
        times.append(took)
    for number, ms in enumerate(times, 1):
        stages.add(f"call {number}", ms)
    if compiling:
        for name in compile_stages.STAGES:
            stages.add(name, compiling.get(name, 0.0))
        stages.add("rest of call 1", times[0] - sum(compiling.values()))
    stages.add("first image", stages.ms["set-up"] + stages.ms["build"] + times[0])
    if compiling:
        stages.add("cache misses", compile_stages.misses(), "1")
    return first, out


def _judge(stages: _Stages, first: object, last: object, workload: Workload, device: str) -> None:
    problem = check.Problem(workload, device)
    found = check.judge(first, problem)
    peak = float(problem.reference().abs().max())
    if found.max_error is not None and math.isfinite(found.max_error) and peak:
        stages.add("error over peak", found.max_error / peak, "1")
    if not found.ok:
        raise Ended("wrong", f"call 1: {found.reason}")
    if again := check.judge(last, problem).reason:
        raise Ended("wrong", f"call {CALLS}: {again}")


def main() -> None:
    """Entry of the process."""
    plan, emit = sessions.child_plan()

    def alive() -> None:
        emit("begin", what=plan["variant"])

    alive()
    with ending(emit), closing(caches.provide(plan, alive)) as own:
        look(plan, own, emit)
    emit("end")


if __name__ == "__main__":
    main()
