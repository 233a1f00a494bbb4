"""Many calls of our own operators without Python, on a GPU: right, of no more memory, and no dearer than eager."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import forks

pytest.importorskip("triton")
from planned_calls import (
    CALLS,
    DEVICE,
    LINEAR,
    Form,
    Tensors,
    block,
    eager,
    error,
    leaves,
    matrices,
    normal,
    on_a_gpu,
)

from hypatia_lab.experiments import graph_optimizer
from hypatia_lab.operations import conv_block
from hypatia_lab.operations.conv_block import own as blocks
from hypatia_lab.operations.linear_relu import own_backward as backward
from hypatia_lab.variants import load, variants
from hypatia_lab.workloads import Workload

pytestmark = on_a_gpu
load()


# ---------------------------------------------------------------- many calls


def host_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_ten_thousand_calls_in_four_threads_and_two_streams_each_are_right_and_keep_no_memory() -> None:
    x, weight, bias = CALLS["fused"].ready()
    split = CALLS["fp16x3"].form
    single = CALLS["fp16x3"].ready()
    right = [backward.linear_relu_fused(x * thread, weight, bias) for thread in range(4)]
    right_single = split(*single)
    owns, streams = [x * thread for thread in range(4)], [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()

    def work(thread: int) -> list[tuple[int, int]]:
        own, wrong = owns[thread], []
        for number in range(2500):
            with torch.cuda.stream(streams[thread] if number % 2 else torch.cuda.default_stream()):
                found = backward.linear_relu_fused(own, weight, bias)
                if number % 50 < 2:
                    beside = split(*single)
                    torch.cuda.current_stream().synchronize()
                    if not torch.equal(found, right[thread]) or not torch.equal(beside, right_single):
                        wrong.append((thread, number))
        return wrong

    def run(pool: ThreadPoolExecutor) -> None:
        assert [one for wrong in pool.map(work, range(4)) for one in wrong] == []
        torch.cuda.synchronize()
        gc.collect()

    with ThreadPoolExecutor(4) as pool:
        run(pool)  # allocators, threads and streams have what they need
        device, host = torch.cuda.memory_allocated(), host_kb()
        run(pool)
    assert torch.cuda.memory_allocated() == device
    assert host_kb() - host < 20_000


def test_thousands_of_addresses_take_no_more_memory_each_time() -> None:
    """A tensor map is made for an address and kept, but not for ever."""
    call = CALLS["triton"]
    _, weight, bias = call.ready()
    count = 3000
    pool = normal(count + 64, 128)

    def run() -> None:
        for number in range(count):
            call.form(pool[number : number + 64], weight, bias)
        torch.cuda.synchronize()

    run()
    host = host_kb()
    run()
    assert host_kb() - host < 5_000
    assert error(call.form(pool[7:71], weight, bias), eager(pool[7:71].double(), weight.double(), bias.double())) < 4e-3


def test_threads_that_record_at_once_all_get_the_right_answer() -> None:
    call = CALLS["triton"]
    _, weight, bias = call.ready()

    def work(thread: int) -> list[int]:
        wrong = []
        for rows in range(1, 12):
            x = torch.full((rows, 128), float(thread), device=DEVICE, dtype=torch.bfloat16)
            exact = eager(x.double(), weight.double(), bias.double())
            wrong += [rows] if error(call.form(x, weight, bias), exact) > 4e-3 else []
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(work, range(4))] == [[]] * 4


# ---------------------------------------------------------------- how long a call takes


def walls_us(run: Callable[[], Any], calls: int = 200) -> float:
    """Median µs of a synchronised call."""
    found = []
    for number in range(calls + 20):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if number >= 20:
            found.append(1e6 * (time.perf_counter() - start))
    return statistics.median(found)


def plain_block(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    weight, bias, gamma, beta = others
    return conv_block.conv_block(x, weight, bias, gamma, beta, "none")


Pair = tuple[Callable[[], Any], Callable[[], Any]]


def called(name: str, given: Tensors) -> Pair:
    own, plain = CALLS[name].form, eager if name in LINEAR else plain_block
    return lambda: own(*given), lambda: plain(*given)


def stepped(name: str, given: Tensors) -> Pair:
    """y and all gradients, as the lab's variants take them."""

    def step(form: Form) -> Callable[[], Any]:
        own = leaves(given)
        grad = torch.randn_like(form(*own))

        def run() -> Tensors:
            y = form(*own)
            return y.detach(), *torch.autograd.grad(y, own, grad)

        return run

    return step(CALLS[name].form), step(eager if name in LINEAR else plain_block)


def of_variants(operation: str, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Pair:
    workload = Workload(operation, shape, dtype)
    if missing := variants(operation)[name].needs(workload, DEVICE):
        pytest.skip(missing)
    inputs = workload.inputs(DEVICE)
    own, plain = (variants(operation)[each].factory(workload, inputs) for each in (name, "eager"))
    return own, plain


def counted() -> Pair:
    """With counters that are cleared once, as the variant has it."""
    given, counters = block(5, 128), torch.zeros(5, 2, dtype=torch.int32, device=DEVICE)
    return lambda: blocks.fused_conv_block(*given, form="whole", counters=counters), lambda: plain_block(*given)


SMALL, MEDIUM = (256, 256, 512), (1024, 784, 2048)
PRICED: dict[str, Callable[[], Pair]] = {
    **{
        f"{name} {dtype} {'x'.join(map(str, shape))}{', a step' if pair is stepped else ''}": (
            lambda name=name, shape=shape, dtype=dtype, pair=pair: pair(name, matrices(*shape, getattr(torch, dtype)))
        )
        for pair, names, shape, dtype in (
            (called, ("triton", "cuda"), SMALL, "bfloat16"),
            (called, ("triton", "cuda"), MEDIUM, "bfloat16"),
            (called, ("triton tf32", "cuda tf32", "fp16x3", "tf32x3", "fp16x3 in CUDA"), MEDIUM, "float32"),
            (called, ("cuda, odd",), (913, 713, 715), "bfloat16"),
            (called, ("cuda, few rows",), (3, 376, 3181), "bfloat16"),
            (stepped, ("fused",), SMALL, "bfloat16"),
            (stepped, ("fused",), MEDIUM, "bfloat16"),
            (stepped, ("fused", "fp16x3, trained", "fp16x3 in CUDA"), MEDIUM, "float32"),
        )
        for name in names
    },
    "one kernel": counted,
    "one kernel, a step": lambda: stepped("one kernel", block(5, 128)),
    "two kernels": lambda: called("two kernels", block(5, 128)),
    "two kernels, a step": lambda: stepped("two kernels", block(5, 128)),
    "fp16x3_cuda_once": lambda: of_variants("linear_relu", "fp16x3_cuda_once", MEDIUM),
    "mlp_cuda": lambda: of_variants("mlp3", "fused_cuda", (65536, 64), "bfloat16"),
    "mlp": lambda: of_variants("mlp3", "fused", (65536, 64), "bfloat16"),
    "mlp_layers": lambda: of_variants("mlp3", "layers_cuda", (4227, 293), "bfloat16"),
    "egraph_split_called": lambda: of_variants("mlp", "egraph_split_called", graph_optimizer.MODELS[0]),
}
"""Row → a call of ours, and eager's."""


@pytest.mark.slow
@pytest.mark.parametrize("row", PRICED)
def test_whoever_waits_for_a_call_waits_no_longer_than_for_eagers(row: str) -> None:
    if DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("tuned for compute capability 9.0")
    own, usual = PRICED[row]()
    ratios = [walls_us(own) / walls_us(usual) for _ in range(3)]
    assert statistics.median(ratios) <= 1.02, ratios


@pytest.mark.slow
def test_a_fresh_process_calls_what_is_planned_without_triton_and_at_once(tmp_path: Path) -> None:
    with forks(Path(__file__).resolve().parent / "plans", tmp_path, "torch") as call:
        call("fresh", "record_a_call")
        call("fresh", "call_at_once")
