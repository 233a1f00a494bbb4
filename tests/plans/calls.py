"""Calls of the toy: recorded, carried out again, refused, differentiated, compiled, from several threads."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import itertools
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import toy as module
from driver import folder, launches
from toy import ran, square, toy

from hypatia_lab.kernels import loader, plans, recording
from hypatia_lab.operations.operators import operator


def check_what_was_recorded_is_carried_out_for_tensors_that_are_alike() -> None:
    for turn, bias, factor in itertools.product(range(3), (None, torch.randn(4)), (2.0, -0.5)):
        for x in (square + turn, (square.double() + turn).float()):
            more = [torch.randn(4, 4), torch.randn(4)]
            y, total = toy(x, more, bias, factor, "any")
            expected = (factor * x + more[-1]).sum(0).double() * 2
            torch.testing.assert_close(y, factor * x)
            torch.testing.assert_close(total, expected if bias is None else expected + bias)
    # With and without bias, of two numbers: four kinds of call.
    assert len(ran) == 4, ran


def check_tensors_that_are_not_alike_are_recorded_apart() -> None:
    # Rows that lie apart, another alignment, no numbers at all, the same tensor twice.
    wide = torch.randn(4, 9)
    for x in (wide[:, 1:5], wide[:, 2:6], wide[:, ::2][:, :4], square[:, :0]):
        x = x + x.t() if x.numel() else x
        toy(x.clone(), [x], None, 1.0, "any")
    apart = torch.zeros(4, 9)[:, 1:5]
    apart.copy_(square)
    for same in (apart, square, apart):
        y, total = toy(same, [same], None, 3.0, "any")
        torch.testing.assert_close(y, 3 * square)
        torch.testing.assert_close(total, 8 * square.sum(0).double())
        assert y.stride() == (1, 4)


def check_launches_have_their_numbers_and_attributes() -> None:
    """One after the other, the second by programmatic dependent launch."""
    toy(square, [square], None, 2.0, "any")
    first, second = launches(toy, square, [square], None, 2.0, "any", watched=4)
    assert first[:3] == ["2,1,1", "64", "0"]
    assert second[:4] == ["2,1,1", "64", "0", "6:1"]
    assert int(first[-4], 16) == square.data_ptr()
    assert first[-3] == second[-4]
    assert first[-2:] == ["10", "3f800000"]
    assert second[-2:] == ["10", "40000000"]


@operator("too_many", planned=True)
def too_many(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    loader.cuda_launcher("toy", "scale")((1,), (2048,), x, out, x.numel(), 1.0)
    return out


def check_refusals() -> None:
    # What Python refuses it refuses each time, in its own words.
    for _ in range(2):
        with pytest.raises(ValueError, match="no such word"):
            toy(square, [square], None, 1.0, "refuse")
    freed = square.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="it was freed"):
        toy(freed, [square], None, 2.0, "any")
    with pytest.raises(RuntimeError, match=r"scale .*CUDA_ERROR_INVALID_VALUE"):
        too_many(square)


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_()


def check_gradients_and_inference() -> None:
    w = leaf(square)
    for word, bias in itertools.product(("python", "recorded", "replayed"), (None, torch.ones(4))):
        y, total = toy(w, [square], bias, 2.0, word if word == "python" else "any")
        assert y.requires_grad
        assert not total.requires_grad
        (got,) = torch.autograd.grad((y * square).sum(), w, create_graph=True)
        torch.testing.assert_close(got, 2 * square)
        with pytest.raises(NotImplementedError, match="once only"):
            got.sum().backward()
    assert not toy(square, [square], None, 2.0, "any")[0].requires_grad
    with torch.no_grad():
        assert not toy(w, [square], None, 2.0, "any")[0].requires_grad
    with torch.inference_mode():
        assert toy(w, [square], None, 2.0, "any")[0].is_inference()
        toy(torch.ones(3, 3), [torch.ones(3)], None, 2.0, "never before")
    for given in ((w, [square], None, 2.0, "any"), (square, [square, w], torch.ones(4), 2.0, "any")):
        torch.library.opcheck(torch.ops.hypatia.toy.default, given)


def check_compilers_take_it() -> None:
    for backend in ("eager", "aot_eager"):
        compiled = torch.compile(lambda x: toy(x, [square], None, 2.0, "any")[0] * 2, fullgraph=True, backend=backend)
        w = leaf(square)
        torch.testing.assert_close(compiled(w), 4 * square)
        compiled(w).sum().backward()
        torch.testing.assert_close(w.grad, torch.full_like(square, 4.0))


def check_four_threads_at_once() -> None:
    """Of shapes that some have seen and some have not."""

    def work(thread: int) -> bool:
        for n in range(200):
            x = torch.full((1 + n % 7,) * 2, float(thread))
            y, total = toy(x, [x], None, 2.0, "any")
            assert bool((y == 2 * thread).all())
            assert total[0] == 6 * thread * len(x)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@operator("reads", planned=True)
def reads(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum().item() > 0 else x * 3


def check_what_looks_into_tensors_stays_in_python() -> None:
    for _ in range(3):
        assert reads(torch.ones(3))[0] == 2
        assert reads(-torch.ones(3))[0] == -3
    assert not any(folder.glob("plan-*reads*"))


def check_without_a_library_that_builds_calls_stay_in_python() -> None:
    def fails(name: str) -> None:
        raise loader.BuildError("no such compiler")

    module.scale = lambda x, out, factor, **how: out.copy_(factor * x)
    loader.aten_library = fails
    plans.library.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            toy(square, [square], None, 1.0, "any")
    assert ["no such compiler" in str(one.message) for one in said] == [True]
    assert len(ran) == 2


def check_what_runs_on_another_stream_is_waited_for_where_it_is_needed() -> None:
    stream = "here"
    recording.Recorder.current_stream = lambda self: stream
    recorder = recording.Recorder(torch.device("cpu"))
    x = recorder.stand_in(square)
    with recorder:
        a, b = torch.empty_like(x), torch.empty_like(x)
        stream = "beside"
        torch.mm(x, x, out=a)
        stream = "here"
        torch.mm(x, x, out=b)
        found = a, b, a * b
    steps = [step if isinstance(step, int) else step.function._schema.name for step in recorder.steps]
    assert steps == [recording.BESIDE, "aten::mm", recording.BACK, "aten::mm", recording.JOIN, "aten::mul"]
    assert recorder.plan(found).numbers[1] == len(steps) + 2


def record_a_call() -> None:
    toy(square, [square], None, 7.0, "later")
    assert len(ran) == 1


def find_the_call_recorded() -> None:
    """In a process that has imported nothing else."""
    toy(square, [square], None, 7.0, "later")
    assert not ran
    assert "triton" not in sys.modules
