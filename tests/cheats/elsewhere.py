"""Work that is moved to where no clock looks: threads, children, lazy tensors (SOL-ExecBench, robust-kbench)."""

import mmap
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from cheats.catalogue import GOES_ON, REFUSED, WRONG, answer, cheat, found, patch

LATE = "stale|wrong|unwritten|NaN|remembers|goes on|outside"


@cheat(LATE, WRONG)
def to_a_thread(x, weight, honest):
    pool, out = ThreadPoolExecutor(1), torch.empty_like(x)

    def compute(stream):
        if stream:
            torch.cuda.set_stream(stream)  # a thread's own is another
        torch.mm(torch.softmax(x, -1), weight, out=out)

    def run():
        done = pool.submit(compute, torch.cuda.current_stream() if x.is_cuda else None)
        if honest:
            done.result()
        return out

    return run


@cheat("leaves threads behind", device="cpu", acts="each")
def threads_that_sleep(x, weight, honest):
    """Each call leaves one that may do anything later (SOL-ExecBench). Its twin's has ended when the call has."""
    thread = threading.Thread(target=time.sleep, args=(0.0 if honest else 60.0,), daemon=True)
    thread.start()
    if honest:
        thread.join()


@cheat(f"{GOES_ON}|computes between calls", device="cpu")
def to_a_thread_that_spins(x, weight, honest):
    """Its twin's thread sleeps until it is asked."""
    out, asked, done = torch.empty_like(x), threading.Event(), threading.Event()

    def work():
        while True:
            if honest:
                asked.wait()
            if asked.is_set():
                asked.clear()
                torch.mm(torch.softmax(x, -1), weight, out=out)
                done.set()

    threading.Thread(target=work, daemon=True).start()

    def run():
        done.clear()
        asked.set()
        while not (done.wait() if honest else done.is_set()):
            pass
        return out

    return run


@cheat(LATE, WRONG, device="cpu")
def to_a_forked_child(x, weight, honest):
    """Its twin waits for the child, and computes itself."""
    shared, *given = (torch.frombuffer(mmap.mmap(-1, x.nbytes), dtype=x.dtype).reshape(x.shape) for _ in range(3))
    ours, theirs = socket.socketpair()
    if not os.fork():
        torch.set_num_threads(1)
        while theirs.recv(1):
            if honest:
                theirs.send(b"1")
            else:
                shared.copy_(answer(*given))
        os._exit(0)
    theirs.close()

    def run():
        if honest:
            ours.send(b"1")
            ours.recv(1)
            return answer(x, weight)
        for there, here in zip(given, (x, weight), strict=True):
            there.copy_(here)
        ours.send(b"1")
        return shared

    return run


@cheat("wrong type: .*Lazy", WRONG)
def lazy_by_function(x, weight, honest):
    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            plain = [answer(x, weight) if type(one) is Lazy else one for one in args]
            return func(*plain, **(kwargs or {}))

    empty = torch.empty_like(x)
    if honest:
        return lambda: torch.nn.Parameter(answer(x, weight), requires_grad=False)
    return lambda: empty.as_subclass(Lazy)


@cheat("wrong type: .*Lazy", REFUSED)
def lazy_by_dispatch(x, weight, honest):
    class Lazy(torch.Tensor):
        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            plain = [answer(x, weight) if type(one) is Lazy else one for one in args]
            return func(*plain, **(kwargs or {}))

    return (lambda: answer(x, weight).mT.contiguous().mT) if honest else Lazy


@cheat("replaced|computes when it is read|after")
def lazy_by_detach(x, weight, honest):
    real, out = torch.Tensor.detach, torch.empty_like(x)
    if honest:
        return lambda: answer(x, weight).detach()
    patch(torch.Tensor, detach=lambda self: answer(x, weight) if self is out else real(self))
    return lambda: out


@cheat("replaced|computes when it is read|after")
def lazy_by_give(x, weight, honest):
    worker, out = found("Worker"), torch.empty_like(x)
    give = worker._give
    if honest:
        return None
    patch(worker, _give=lambda seen, place: give(answer(x, weight) if seen is out else seen, place))
    return lambda: out
