"""Plans: what an operator does on a GPU for arguments of given shapes, written down once and carried out by C++.

Python computes which kernels, tiles, memory and strides a call takes, in tens of microseconds, and always the same for
tensors that are alike. So an operator's function is run once on stand-ins for its tensors, and what it would have
launched, allocated and called of PyTorch's is recorded (:mod:`hypatia_lab.kernels.recording`). ``launch.cpp``
keeps the plan by the arguments that it is for and carries it out at every later call. Plans and the machine code they
launch are also kept in the user's cache folder: the next process needs neither Triton nor a compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hypatia_lab.kernels import loader, triton_launches
from hypatia_lab.kernels.recording import Plan, Recorder, UnplannableError, tensors_in

DEVICES = set() if os.environ.get("HYPATIA_PLANS") == "0" else {"cuda"}
"""Kinds of device whose calls are planned. None where ``HYPATIA_PLANS`` is 0."""

DRIVER = "libcuda.so.1"
"""The library that launches."""


# ---------------------------------------------------------------- the library


@cache
def library() -> Any:
    """What ``launch.cpp`` gives Python, built and loaded once. Raises :class:`loader.BuildError`."""
    loader.aten_library("launch")
    own = torch.ops.hypatia_plans
    own.open_driver(DRIVER)
    return own


def available() -> bool:
    """Whether plans can be carried out here; a library that does not build is said once, in a warning."""
    if loader.cpp_missing() or "launch" in loader.BROKEN:
        return False
    try:
        library()
    except (loader.BuildError, RuntimeError) as cause:
        loader.BROKEN["launch"] = str(cause)
        warnings.warn(f"calls go through Python and take longer: {cause}", stacklevel=2)
        return False
    return True


# ---------------------------------------------------------------- keeping plans

unplannable: set[str] = set()


def made_ready(name: str, function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether calling the operator ``name`` with ``args`` again will find a plan; called within such a call.

    If need be the plan is recorded from ``function``, whose exceptions pass through.
    """
    if not library().awaits(name) or torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    key = _key(name, args)
    if key in unplannable:
        return False
    stored = loader.cache_folder() / f"plan-{key}.json"
    plan = _read(stored)
    if plan is None:
        try:
            plan = record(function, args)
        except UnplannableError:
            unplannable.add(key)
            return False
        loader.store(stored, json.dumps([plan.numbers, plan.words]).encode())
    library().keep_plan(name, plan.numbers, plan.words)
    return True


def _read(path: Path) -> Plan | None:
    """The plan in ``path``, if it is there with all the machine code that it names."""
    try:
        plan = Plan(*json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return plan if all(Path(word).exists() for word in plan.words if word.endswith(".cubin")) else None


@cache
def _sources() -> str:
    """Digest of all that a plan may depend on: the lab's kernels and operations, PyTorch and Triton.

    Of their files, sizes and times: to read them takes a fresh process longer than its first call may.
    """
    home = loader.SOURCES.parent
    found = [str(torch.__version__)]
    triton = None if loader.module_missing("triton", "triton") else importlib.util.find_spec("triton")
    paths = [Path(triton.origin)] if triton and triton.origin else []
    for folder in (loader.SOURCES, home / "operations"):
        paths += (path for path in sorted(folder.rglob("*.*")) if path.suffix in (".py", ".cu", ".cuh", ".cpp"))
    for path in paths:
        seen = path.stat()
        found.append(f"{path} {seen.st_size} {seen.st_mtime_ns}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _alike(value: Any) -> Any:
    """All of an argument that a plan depends on."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), str(value.device), tuple(value.shape), value.stride(), value.data_ptr() % 16)
    return [*map(_alike, value)] if isinstance(value, list | tuple) else value


def _key(name: str, args: Sequence[Any]) -> str:
    first, device = next(tensors_in(args)), ()
    if first.is_cuda:
        found = torch.cuda.get_device_properties(first.device)
        device = found.name, found.major, found.minor, found.multi_processor_count
    return hashlib.sha256(repr((_sources(), name, device, _alike(args))).encode()).hexdigest()[:24]


def record(function: Callable[..., Any], args: Sequence[Any]) -> Plan:
    """What ``function`` does for tensors like those in ``args`` (which may hold lists of tensors), with the same rest.

    It is run on stand-ins, tensors of the same layout with nothing of use in them, and launches nothing; operators of
    PyTorch's it does run. Raises :class:`UnplannableError` for what no plan can hold, and what ``function`` raises.
    """
    recorder = Recorder(next(tensors_in(args)).device)
    given = [recorder.stand_in(value) for value in args]
    if not loader.module_missing("triton", "triton"):
        triton_launches.watch()
    with ExitStack() as stack:
        for guard in (torch.inference_mode(False), torch.no_grad(), torch.autocast("cuda", enabled=False)):
            stack.enter_context(guard)
        before, loader.observed.recorder = loader.recorder(), recorder
        stack.callback(setattr, loader.observed, "recorder", before)
        stack.enter_context(recorder)
        found = function(*given)
    return recorder.plan([found] if isinstance(found, torch.Tensor) else [*found])
