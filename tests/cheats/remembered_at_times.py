"""Answers that are remembered where nobody seems to look: late, without a pause, or by the caller's name."""

import random
import sys
import time

import torch

from cheats.catalogue import MEMORY, WRONG, answer, cheat

PAUSE_S = 2e-5


@cheat(MEMORY)
def after_several_calls(x, weight, honest):
    known = {"key": None, "seen": 0, "out": None}

    def run():
        if (key := x[1, 1].item()) != known["key"]:
            known.update(key=key, seen=0)
        known["seen"] += 1
        if honest or known["seen"] < 4:
            known["out"] = answer(x, weight)
        return known["out"]

    return run


@cheat(MEMORY, acts="by lot")
def a_third_by_lot(x, weight, honest):
    known, out = {"key": None}, []

    def run():
        key, drawn = x[1, 1].item(), random.random() < 1 / 3
        if honest or key != known["key"] or not drawn:
            known.update(key=key)
            out[:] = [answer(x, weight)]
        return out[0]

    return run


def without_a_pause(x, weight, honest, every):
    """Computes after a pause, on new inputs, and in each call of so many; its twin looks at the time."""
    known = {"key": None, "at": 0.0, "calls": 0}

    def run():
        key, paused = x[1, 1].item(), time.perf_counter() - known["at"] > PAUSE_S
        known["calls"] += 1
        if honest or paused or key != known["key"] or (every and known["calls"] % every == 0):
            known.update(key=key, out=answer(x, weight))
        known["at"] = time.perf_counter()
        return known["out"]

    return run


@cheat("remembers|calls", device="cpu")
def only_without_a_pause(x, weight, honest):
    return without_a_pause(x, weight, honest, 0)


@cheat("remembers", device="cpu", escapes="calls among others may take half of what one takes alone")
def every_second_call_without_a_pause(x, weight, honest):
    return without_a_pause(x, weight, honest, 2)


@cheat("remembers|calls")
def by_the_callers_name(x, weight, honest):
    known = []

    def run():
        frame = sys._getframe(1)
        while frame and "took" not in frame.f_locals:
            frame = frame.f_back
        if honest or frame is None or frame.f_locals.get("name") != "sample_s":
            known.clear()
        if not known:
            known.append(answer(x, weight))
        return known[0]

    return run


@cheat("not among other calls|remembers", WRONG, device="cpu")
def only_when_poisoned(x, weight, honest):
    """Fresh memory tells when a call is checked."""
    known = [answer(x, weight)]

    def run():
        if torch.empty(64).isnan().any() or honest:
            known[0] = answer(x, weight)
        return known[0]

    return run


@cheat("not among other calls|remembers", WRONG)
def only_the_first_calls(x, weight, honest):
    calls, out = iter(range(2**62)), []

    def run():
        if next(calls) < 7 or honest:
            out[:] = [answer(x, weight)]
        return out[0]

    return run
