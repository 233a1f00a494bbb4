"""Modes of the whole process that are changed, and not changed back: each is a context that is left by the twin."""

import contextlib
import os

import torch

from cheats.catalogue import WRONG, cheat


def mode(named, statuses=("cheated",)):
    """A cheat that enters the context and does not leave it; its twin does before it computes."""

    def declare(changed):
        def act(x, weight, honest):
            context = contextlib.contextmanager(changed)()
            context.__enter__()
            if honest:
                context.__exit__(None, None, None)

        act.__name__ = f"mode_{changed.__name__}"
        return cheat(named, statuses, acts="each")(act)

    return declare


@mode("it changed the number of threads")
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 2)
    yield
    torch.set_num_threads(before)


@mode("it changed the default dtype|torch.Storage")
def default_dtype():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@mode("it changed numbers below the normal range")
def flushed():
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@mode("it changed float32 matrix products|wrong values|low precision", WRONG)
def matmul_precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@mode("it changed autocast|wrong dtype|low precision", WRONG)
def autocast():
    torch.set_autocast_enabled("cpu", True)
    yield
    torch.set_autocast_enabled("cpu", False)


@mode("it changed gradients")
def gradients():
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(not before)
    yield
    torch.set_grad_enabled(before)


@mode("it changed its cores")
def cores():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@cheat("it changed its priority", acts="each")
def mode_priority(x, weight, honest):
    """Nobody can change it back; the twin changes it by nothing."""
    os.nice(0 if honest else 1)
