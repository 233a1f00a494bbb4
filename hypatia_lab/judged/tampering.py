"""What a stranger's file has changed of the process that it runs in: functions replaced, modes set.

This looks from within, where the file could have hidden it; what cannot be hidden is seen from outside
(:mod:`hypatia_lab.judged.evidence`). It is here to name what was done.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from hypatia_lab import clock

WATCHED = (
    "builtins",
    "time",
    "gc",
    "threading",
    "torch",
    "torch.nn.functional",
    "torch.linalg",
    "torch.special",
    "torch.cuda",
    "torch.cuda.graphs",
    "torch.cuda.streams",
    "torch.profiler",
    "torch.utils.benchmark",
)
"""Modules whose functions and classes must stay what they are, beside all of the lab's."""
OPEN = ("torch.Tensor", "torch.nn.Module", "torch.cuda.Event", "torch.cuda.Stream", "torch.cuda.CUDAGraph")
"""Classes whose methods must, beside all of the lab's."""

CLOSED = ("hypatia_lab.clock", "hypatia_lab.check", "hypatia_lab.judged")
"""Modules that nothing may be added to either: a name of theirs would hide one of Python's own."""

Seen = dict[str, tuple[Any, Any]]


def functions() -> Seen:
    """Every function, method and class that is watched, by name, as it is now."""
    found: Seen = {}
    for name in [*WATCHED, *(name for name in list(sys.modules) if name.partition(".")[0] == "hypatia_lab")]:
        if isinstance(module := sys.modules.get(name), types.ModuleType):
            found.update(_members(name, module))
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and (f"{name}.{key}" in OPEN or value.__module__ == name != "torch"):
                    found.update(_members(f"{name}.{key}", value))
    return found


def _members(name: str, owner: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key, value in list(vars(owner).items()):
        plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if callable(plain):
            yield f"{name}.{key}", (plain, getattr(plain, "__code__", None))
        elif isinstance(plain, dict) and name.startswith(CLOSED):
            yield from ((f"{name}.{key}[{word}]", (one, None)) for word, one in plain.items() if callable(one))


def replaced(before: Seen) -> list[str]:
    """Names of those of ``before`` that are something else now, or gone."""
    now = functions()
    other = [
        name
        for name, (value, code) in before.items()
        if name not in now
        or ((now[name][0] is not value or now[name][1] is not code) and not _by_torch(name, now[name][0]))
    ]
    return other + [name for name in now.keys() - before.keys() if name.startswith(CLOSED)]


def _by_torch(name: str, value: Any) -> bool:
    """Whether it is torch that has put ``value`` in place of its own function, as its compiler does once imported."""
    import torch

    code = getattr(value, "__code__", None)
    own = code is not None and code.co_filename.startswith(os.path.dirname(torch.__file__) + os.sep)
    return own and getattr(value, "__name__", "") == name.rpartition(".")[2]


def modes() -> dict[str, str]:
    """What holds for the whole process and changes how fast or how exactly it computes, in words."""
    import torch

    found: dict[str, Any] = {
        "the number of threads": torch.get_num_threads(),
        "gradients": "on" if torch.is_grad_enabled() else "off",
        "the default dtype": torch.get_default_dtype(),
        "float32 matrix products": torch.get_float32_matmul_precision(),
        "TF32 in convolutions": torch.backends.cudnn.allow_tf32,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        "numbers below the normal range": "kept" if (torch.full((16,), 1e-40) * 1.0).any() else "flushed to zero",
        "its priority": os.getpriority(os.PRIO_PROCESS, 0),
        "its cores": len(os.sched_getaffinity(0)),
    }
    if torch.cuda.is_initialized():
        found["choosing algorithms by trial"] = torch.backends.cudnn.benchmark
        found["the L2 set aside for what persists"] = f"{clock.set_aside()} bytes"
    return {name: str(value) for name, value in found.items()}


def changed(before: dict[str, str]) -> list[str]:
    """A sentence's end for each of ``before`` that is something else now."""
    now = modes()
    return [f"{name} from {before[name]} to {now[name]}" for name in before if now[name] != before[name]]
