"""Where the time of a call that compiles goes: Dynamo, AOTAutograd, Inductor, Triton, autotuning, and all the rest.

torch announces every phase of compiling where it begins and ends (``dynamo_timed``, which tells the logger of Chromium
events). Each moment is counted for the innermost phase that is open then, so that the stages are disjoint. A phase
that is not named here counts for the one around it; what lies outside every phase is no compiling. Source: torch
2.11 to 2.13, ``torch._dynamo.utils``; the names are torch's own and no promise of it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = {
    "Dynamo": ("dynamo", "_compile.compile_inner", "entire_frame_compile"),
    "AOTAutograd": ("create_aot_dispatcher_function",),
    "Inductor": (
        "backend_compile",  # its own part is Inductor's import and its passes before AOTAutograd
        *("compile_fx.<locals>.fw_compiler_base", "AOTAutogradCache.inductor_load", "inductor_compile"),
    ),
    "Triton": (
        *("async_compile.wait", "async_compile.precompile", "CachingAutotuner.slow_precompile_config"),
        *("StaticAutotunerFuture.warm_precompile", "reload_kernel_in_parent", "_template_precompiling"),
    ),
    "autotune": (
        *("CachingAutotuner.benchmark_all_configs", "CachingAutotuner.coordinate_descent_tuning"),
        *("CachingAutotuner.combo_sequential_autotune", "benchmark_fused_nodes", "_template_autotuning"),
    ),
}
"""Stage → torch's phases in it, or how their names end."""
STAGES = tuple(PHASES)


def _stage(phase: str, around: str, device: str) -> str:
    """Stage of ``phase`` inside stage ``around`` ("" outside of all)."""
    found = next((stage for stage, names in PHASES.items() if phase.endswith(names)), around)
    # On a CPU the kernels that are waited for are C++, and Inductor's.
    return "Inductor" if found == "Triton" and device == "cpu" else found


@contextmanager
def watched(device: str) -> Iterator[dict[str, float]]:
    """Yields stage → milliseconds, filled while the body runs on this thread; empty when nothing compiled.

    Sees nothing of a torch.compile that is imported only within the body.
    """
    spent: dict[str, float] = {}
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        yield spent
        return
    logger, thread = utils.get_chromium_event_logger(), threading.get_ident()
    begins, ends = logger.log_event_start, logger.log_event_end
    inside: list[tuple[str, str]] = []
    since = time.perf_counter()

    def turn() -> None:
        nonlocal since
        now = time.perf_counter()
        if inside and inside[-1][1]:
            spent.setdefault(inside[-1][1], 0.0)
            spent[inside[-1][1]] += (now - since) * 1e3
        since = now

    def begin(phase: str, *more: object, **named: object) -> None:
        if threading.get_ident() == thread:
            turn()
            inside.append((phase, _stage(phase, inside[-1][1] if inside else "", device)))
        begins(phase, *more, **named)

    def end(phase: str, *more: object, **named: object) -> None:
        ends(phase, *more, **named)
        if threading.get_ident() == thread and phase in (name for name, _ in inside):
            turn()
            while inside.pop()[0] != phase:
                pass

    logger.log_event_start, logger.log_event_end = begin, end
    try:
        yield spent
    finally:
        del logger.log_event_start, logger.log_event_end


def misses() -> int:
    """Graphs that Inductor compiled in this process because no cache held them (or none could)."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = utils.counters["inductor"] if utils else {}
    return counters.get("fxgraph_cache_miss", 0) + counters.get("fxgraph_cache_bypass", 0)
