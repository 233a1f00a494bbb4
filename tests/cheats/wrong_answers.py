"""Answers that are wrong, in part or as a whole, or of another precision than was asked for."""

import torch

from cheats.catalogue import WRONG, answer, cheat

LOW = "low precision|wrong values"


@cheat("wrong values", WRONG)
def zeros(x, weight, honest):
    zero = torch.zeros_like(x)
    return lambda: answer(x, weight) + zero if honest else torch.zeros_like(x)


@cheat("unwritten|wrong|NaN", WRONG, acts="each")
def nothing(x, weight, honest):
    out = torch.empty_like(x)
    return None if honest else out


def in_rows(x, weight, stop):
    """Of a buffer that is kept, the rows before ``stop()`` are written."""
    out = torch.empty_like(x)

    def run():
        most = stop()
        torch.mm(torch.softmax(x[:most], -1), weight, out=out[:most])
        return out

    return run


@cheat("unwritten|wrong values|NaN|stale", WRONG)
def skipped_tail(x, weight, honest):
    return in_rows(x, weight, lambda: len(x) if honest else len(x) - 40)


@cheat("wrong values|not among other calls|stale", WRONG)
def stale_tail(x, weight, honest):
    calls = iter(range(2**62))
    return in_rows(x, weight, lambda: len(x) if next(calls) < 5 or honest else len(x) - 40)


@cheat("wrong values", WRONG, acts="each")
def every_second_row(x, weight, honest):
    out = answer(x[::2], weight).repeat_interleave(2, 0)
    if honest:
        out[1::2] = answer(x[1::2], weight)
    return out


@cheat(LOW, WRONG)
def bfloat16(x, weight, honest):
    dtype = torch.float64 if honest else torch.bfloat16
    return lambda: (torch.softmax(x, -1).to(dtype) @ weight.to(dtype)).float()


@cheat(LOW, WRONG)
def half(x, weight, honest):
    dtype = torch.float32 if honest else torch.float16
    return lambda: torch.softmax(x.to(dtype), -1).float() @ weight


@cheat("wrong dtype", WRONG)
def narrow_output(x, weight, honest):
    return lambda: answer(x, weight).to(x.dtype if honest else torch.bfloat16)


@cheat("input changed", WRONG)
def writes_its_input(x, weight, honest):
    scratch = torch.empty_like(x) if honest else x
    return lambda: torch.softmax(x, -1, out=scratch) @ weight


@cheat("input changed|memory of its input", WRONG)
def output_is_its_input(x, weight, honest):
    return lambda: (x.clone() if honest else x).copy_(answer(x, weight))


@cheat("input changed|wrong values", WRONG)
def writes_its_input_when_timed(x, weight, honest):
    """Zeros are quick to multiply by, on machines that gate their clocks."""
    calls, spoilt = iter(range(2**62)), weight.clone() if honest else weight

    def run():
        out = answer(x, weight)
        if next(calls) > 5:
            spoilt.zero_()
        return out

    return run
