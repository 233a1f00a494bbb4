"""What only a GPU has: events, streams, graphs, TF32, an L2 that persists (NVIDIA/nvbench#458), clocks kept up."""

import ctypes
import threading
import time

import torch

from cheats.catalogue import CLOCK, GOES_ON, REPLACED, STALE, WRONG, answer, cheat, patch

PERSISTING_L2 = 6
"""Source: cuda.h (CU_LIMIT_PERSISTING_L2_CACHE_SIZE)."""


@cheat(f"{REPLACED} torch.cuda.*elapsed_time|{CLOCK}", device="cuda")
def cuda_event(x, weight, honest):
    real = torch.cuda.Event.elapsed_time
    for one in [torch.cuda.Event(enable_timing=True) for _ in range(2)]:
        one.record()
    if not honest:
        patch(torch.cuda.Event, elapsed_time=lambda self, other: real(self, other) / 10)


@cheat(f"{REPLACED} torch.cuda.synchronize", device="cuda")
def cuda_synchronize(x, weight, honest):
    torch.cuda.synchronize()
    if not honest:
        patch(torch.cuda, synchronize=lambda device=None: None)


@cheat(f"{REPLACED} torch.cuda.*replay|stale", WRONG, device="cuda")
def cuda_graph_capture(x, weight, honest):
    torch.cuda.CUDAGraph()
    if not honest:
        patch(torch.cuda.CUDAGraph, replay=lambda self: None)


@cheat("not among other calls|stale|remembers answers", WRONG, device="cuda")
def cuda_captured_is_empty(x, weight, honest):
    out = torch.empty_like(x)

    def run():
        if not torch.cuda.is_current_stream_capturing() or honest:
            out.copy_(answer(x, weight))
        return out

    return run


@cheat("leaves work behind", device="cuda")
def cuda_work_left(x, weight, honest):
    side, large = torch.cuda.Stream(), torch.rand(8192, 8192, device="cuda")

    def run():
        out = answer(x, weight)
        if not honest:
            with torch.cuda.stream(side):
                torch.mm(large, large)
        return out

    return run


@cheat("clock was changed|not among other calls|stale|goes on|wrong values|unwritten|NaN", WRONG, device="cuda")
def cuda_side_stream(x, weight, honest):
    side, out = torch.cuda.Stream(), torch.empty_like(x)

    def run():
        if honest:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out.copy_(answer(x, weight))
        if honest:
            torch.cuda.current_stream().wait_stream(side)
        return out

    return run


@cheat("it changed|low precision|wrong values", WRONG, device="cuda", acts="each")
def cuda_tf32(x, weight, honest):
    if not honest:
        torch.backends.cuda.matmul.allow_tf32 = True


@cheat("persists", device="cuda")
def cuda_persisting_l2(x, weight, honest):
    driver, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(2**24)
    driver.cuCtxGetLimit(ctypes.byref(ctypes.c_size_t()), PERSISTING_L2)
    if not honest:
        driver.cuCtxSetLimit(PERSISTING_L2, size)


@cheat(f"{STALE}|wrong values", WRONG, device="cuda")
def cuda_cached_allocation(x, weight, honest):
    kept = answer(x, weight)
    return lambda: torch.mm(torch.softmax(x, -1), weight, out=kept) if honest else kept


@cheat(f"{GOES_ON}|leaves work behind", device="cuda")
def cuda_keeps_its_clocks_up(x, weight, honest):
    side, heat = torch.cuda.Stream(), torch.randn(4096, 4096, device=x.device)

    def warm():
        with torch.cuda.stream(side):
            torch.mm(heat, heat)

    def forever():
        while True:
            warm()
            time.sleep(1e-3)

    if honest:
        warm()
        side.synchronize()
    else:
        threading.Thread(target=forever, daemon=True).start()
