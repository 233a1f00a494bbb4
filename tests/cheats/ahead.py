"""Computed before the call: as inputs are handed over, in the call before, or in the set-up."""

import torch

from cheats.catalogue import STALE, WRONG, answer, cheat, found, patch


@cheat("between calls|replaced Worker")
def before_the_mark(x, weight, honest):
    worker, known = found("Worker"), []
    take = worker._take

    def ahead():
        take()
        known[:] = [answer(x, weight)]

    if not honest:
        patch(worker, _take=ahead)
    return lambda: known[0] if known else answer(x, weight)


def taking(work, honest):
    """The worker becomes one of a class that does ``work`` once it took its inputs; its twin has only the class."""
    worker, known = found("Worker"), []

    class Ahead(type(worker)):
        def _take(self):
            super()._take()
            known[:] = [work()]

    if not honest:
        patch(worker, __class__=Ahead)
    return known


@cheat("between calls|replaced|remembers")
def before_the_mark_by_class(x, weight, honest):
    known = taking(lambda: answer(x, weight), honest)
    return lambda: known[0] if known else answer(x, weight)


@cheat("between calls|replaced|not among other calls", WRONG)
def softmax_before_the_mark(x, weight, honest):
    known = taking(lambda: torch.softmax(x, -1), honest)
    return lambda: known[0] @ weight if known else answer(x, weight)


@cheat(f"{STALE}|wrong values", WRONG)
def to_the_next_call(x, weight, honest):
    last = [answer(x, weight)]

    def run():
        last.append(answer(x, weight))
        before = last.pop(0)
        return last[0] if honest else before

    return run


@cheat("stale output|wrong values|remembers", WRONG)
def to_the_set_up(x, weight, honest):
    ones, out = torch.ones(len(x), 1, device=x.device), answer(x, weight)
    return lambda: answer(x, weight) * ones if honest else out
