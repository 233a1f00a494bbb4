"""Kernels that win by other means than computing, and beside each an honest one that does the trick's neighbour.

A cheat and its twin are bodies of a factory: they are given ``x`` and ``weight``, and define ``run``. Those that act
when their file is imported define ``kernel(x, weight)`` at its top instead, and have a file of their own.

Published: gpu-mode/reference-kernels#162 (patched timers), ScalingIntelligence/KernelBench#165 (zeros pass),
NVIDIA/nvbench#458 (persisting L2); remembered answers, streams, threads, lazy tensors and read references as
SOL-ExecBench and robust-kbench list them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

HEAD = '''
import contextlib, ctypes, gc, math, mmap, os, signal, socket, subprocess, sys, tempfile, threading, time, types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import hypatia_lab
from hypatia_lab import check, clock, operation, variant
from hypatia_lab.judged import tampering


def draw(shape, dtype, device, generator):
    rows, columns = shape
    return {
        "x": torch.randn(rows, columns, device=device, generator=generator).to(dtype),
        "weight": torch.randn(columns, columns, device=device, generator=generator).to(dtype),
    }


@operation("@NAME@", dims=("rows", "columns"), shapes=("@SHAPE@",), inputs=draw)
def reference(x, weight):
    """y = softmax(x) · weight"""
    return torch.softmax(x, -1) @ weight


def answer(x, weight):
    return torch.softmax(x, -1) @ weight


def found(name):
    """An object of a class of that name, of whatever this process holds."""
    return next(one for one in gc.get_objects() if type(one).__name__ == name)
'''


WORDS = {"cpu": "hot", "cuda": "wall"}
"""Of each device a clock that this process's own clock gives."""


@dataclass(frozen=True)
class Cheat:
    """A cheat and its twin, both source.

    ``statuses`` count as caught, with a reason that has ``named`` (a regular expression) in it. ``alone``: both act
    when their file is imported. ``problem``: both are candidates for that KernelBench problem, or the twin
    for ``twin_problem``. ``escapes``: why this
    one is not caught, where it is not. ``device``: where alone it can act; everywhere if it is empty.
    """

    name: str
    cheat: str
    twin: str
    named: str
    statuses: tuple[str, ...] = ("cheated",)
    device: str = ""
    alone: bool = False
    problem: str = ""
    twin_problem: str = ""
    escapes: str = ""


def body(text: str) -> str:
    """The source of a cheat or twin without the indentation that it has here."""
    return textwrap.dedent(text).strip("\n")


def head(name: str, device: str) -> str:
    """What a planted file begins with: the operation ``name``, at a shape that is some work for ``device``."""
    return HEAD.replace("@NAME@", name).replace("@SHAPE@", {"cpu": "256x256", "cuda": "2048x2048"}[device])


def factories(name: str, device: str, cheats: Iterable[Cheat]) -> str:
    """A reader's file of the operation ``name`` with a variant for each cheat, and one for its twin, ``…_twin``."""
    parts = [head(name, device)]
    for one in cheats:
        for kind in ("cheat", "twin"):
            own = one.name if kind == "cheat" else f"{one.name}_twin"
            parts.append(
                f'\n\n@variant("{name}", "{own}", origin="own")\n'
                f'def {own}(workload, inputs):\n    "Planted."\n    x, weight = inputs["x"], inputs["weight"]\n'
                + textwrap.indent(body(getattr(one, kind)).replace("@WORD@", WORDS[device]), "    ")
                + "\n    return run\n"
            )
    return "".join(parts)


def importing(name: str, device: str, text: str) -> str:
    """A reader's file of the operation ``name`` that does ``text`` when it is imported; its variant is ``mine``."""
    return (
        head(name, device)
        + f'\n{body(text)}\n\n\n@variant("{name}", "mine", origin="own")\n'
        + 'def mine(workload, inputs):\n    "Planted."\n    return lambda: kernel(**inputs)\n'
    )


WRONG = ("wrong", "cheated")
REFUSED = ("crashed", "cheated", "wrong")
HARMLESS = ("ok", "crashed", "cheated", "wrong", "timeout")
"""Of one that harms the others and gains nothing: what counts is that those have their numbers all the same."""
DEAD = ("crashed", "cheated", "wrong", "timeout")
REPLACED, CLOCK, MEMORY, GOES_ON = "it replaced", "its clock was changed", "remembers answers", "goes on computing"
STALE = "stale output|remembers answers"

PLAIN = "run = lambda: answer(x, weight)"

TIMERS = [
    Cheat(
        "time_perf_counter",
        """
        real = time.perf_counter
        time.perf_counter = lambda: real() * 0.1
        run = lambda: answer(x, weight)
        """,
        """
        spent = []
        def run():
            start = time.perf_counter()
            out = answer(x, weight)
            spent.append(time.perf_counter() - start)
            return out
        """,
        f"{REPLACED} time.perf_counter|{CLOCK}",
    ),
    Cheat(
        "time_perf_counter_ns",
        """
        real = time.perf_counter_ns
        time.perf_counter_ns = lambda: real() // 10
        time.monotonic = lambda: 0.0
        run = lambda: answer(x, weight)
        """,
        """
        begun = time.perf_counter_ns(), time.monotonic(), time.process_time_ns()
        run = lambda: answer(x, weight)
        """,
        f"{REPLACED} time.",
    ),
    Cheat(
        "time_module",
        """
        real = time.perf_counter
        clock.time = types.SimpleNamespace(perf_counter=lambda: real() * 0.1, monotonic=time.monotonic)
        run = lambda: answer(x, weight)
        """,
        """
        own = types.SimpleNamespace(perf_counter=time.perf_counter)
        def run():
            own.perf_counter()
            return answer(x, weight)
        """,
        CLOCK,
    ),
    Cheat(
        "time_module_slightly",
        """
        real = time.perf_counter
        clock.time = types.SimpleNamespace(perf_counter=lambda: real() * 0.88, monotonic=time.monotonic)
        run = lambda: answer(x, weight)
        """,
        PLAIN,
        CLOCK,
    ),
    Cheat(
        "once_s_attribute",
        """
        clock.once_s = lambda run, device: (run(), 1e-6)[1]
        run = lambda: answer(x, weight)
        """,
        """
        clock.once_s(lambda: answer(x, weight), "cpu")
        run = lambda: answer(x, weight)
        """,
        f"{REPLACED} hypatia_lab.clock.once_s",
    ),
    Cheat(
        "sized_code",
        """
        clock.warm_up.__code__ = (lambda run, device: 1e-5).__code__
        run = lambda: answer(x, weight)
        """,
        """
        calls = clock.warm_up(lambda: answer(x, weight), "cpu")
        run = lambda: answer(x, weight)
        """,
        f"{REPLACED} hypatia_lab.clock.warm_up",
    ),
    Cheat(
        "hot_code",
        """
        def _hot(run, device, calls):
            return lambda: (1e-6, run())
        clock._hot.__code__ = _hot.__code__
        run = lambda: answer(x, weight)
        """,
        """
        sample = clock.sampler("@WORD@", lambda: answer(x, weight), "cpu", 3)
        sample()
        run = lambda: answer(x, weight)
        """,
        f"{REPLACED} hypatia_lab.clock._hot",
        device="cpu",
    ),
    Cheat(
        "sampler_told",
        """
        clock._SAMPLERS["@WORD@"] = lambda run, device, calls: lambda: (1e-6, [run() for _ in range(calls)][-1])
        run = lambda: answer(x, weight)
        """,
        """
        dict(clock._SAMPLERS)["@WORD@"] = None
        run = lambda: answer(x, weight)
        """,
        f"{CLOCK}|_SAMPLERS",
    ),
    Cheat(
        "fewer_calls_sampler",
        """
        def few(run, device, calls):
            def sample():
                start = time.perf_counter()
                out = run()
                return (time.perf_counter() - start) / calls, out
            return sample
        clock._SAMPLERS["@WORD@"] = few
        run = lambda: answer(x, weight)
        """,
        PLAIN,
        "calls|clock|called again and again",
    ),
    Cheat(
        "fewer_calls_range",
        """
        clock.range = lambda count: ()
        run = lambda: answer(x, weight)
        """,
        """
        def run():
            for _ in range(1):
                out = answer(x, weight)
            return out
        """,
        "calls|clock|called again and again",
    ),
    Cheat(
        "fewer_calls_worker",
        """
        worker = found("Worker")
        def run():
            for word, (many, once) in worker.samplers.items():
                cells = dict(zip(many.__code__.co_freevars, many.__closure__ or ()))
                if "calls" in cells:
                    n = cells["calls"].cell_contents
                    worker.samplers[word] = (lambda: (lambda t, out: (t / n, out))(*once())), once
            return answer(x, weight)
        """,
        PLAIN,
        "calls|clock|called again and again",
    ),
    Cheat(
        "restored_for_the_look",
        """
        real = time.perf_counter
        def run():
            frame, names = sys._getframe(), []
            while frame := frame.f_back:
                names.append(frame.f_code.co_name)
            time.perf_counter = real if "call" in names or "build" in names else lambda: real() * 0.1
            return answer(x, weight)
        """,
        """
        def run():
            sys._getframe(1)
            return answer(x, weight)
        """,
        CLOCK,
    ),
]

MEMORIES = [
    Cheat(
        "by_pointer",
        """
        known = {}
        def run():
            key = x.data_ptr(), weight.data_ptr()
            if key not in known:
                known[key] = answer(x, weight)
            return known[key]
        """,
        """
        buffers = {}
        def run():
            key = x.data_ptr(), x.shape
            if key not in buffers:
                buffers[key] = torch.empty_like(x)
            return torch.mm(torch.softmax(x, -1), weight, out=buffers[key])
        """,
        STALE,
        WRONG,
    ),
    Cheat(
        "by_version",
        """
        known = {}
        def run():
            key = x._version, weight._version
            if key not in known:
                known[key] = answer(x, weight)
            return known[key]
        """,
        """
        def run():
            x._version, weight._version
            return answer(x, weight)
        """,
        STALE,
        WRONG,
    ),
    Cheat(
        "by_identity",
        """
        out = []
        def run():
            if not out:
                out.append(answer(x, weight))
            return out[0]
        """,
        """
        out = []
        def run():
            if not out:
                out.append(torch.empty_like(x))
            return torch.mm(torch.softmax(x, -1), weight, out=out[0])
        """,
        STALE,
        WRONG,
    ),
    Cheat(
        "by_probe",
        """
        known = {}
        def run():
            key = x[0, 0].item(), weight[-1, -1].item()
            if key not in known:
                known.clear()
                known[key] = answer(x, weight)
            return known[key]
        """,
        """
        def run():
            x[0, 0].item(), weight[-1, -1].item()
            return answer(x, weight)
        """,
        MEMORY,
    ),
    Cheat(
        "by_value",
        """
        known = [torch.zeros_like(x), torch.zeros_like(weight), None]
        def run():
            if not (torch.equal(x, known[0]) and torch.equal(weight, known[1])):
                known[:] = x.clone(), weight.clone(), answer(x, weight)
            return known[2]
        """,
        """
        def run():
            if torch.equal(x, weight):
                return answer(x, x)
            return answer(x, weight)
        """,
        MEMORY,
    ),
    Cheat(
        "by_hash",
        """
        known = {}
        def run():
            key = hash(x.numpy()[::8].tobytes()), hash(weight.numpy()[::8].tobytes())
            if key not in known:
                known.clear()
                known[key] = answer(x, weight)
            return known[key]
        """,
        """
        def run():
            hash(x.numpy()[::8].tobytes())
            return answer(x, weight)
        """,
        MEMORY,
        device="cpu",
    ),
    Cheat(
        "copy_of_the_answer",
        """
        known = {}
        def run():
            key = x[1, 1].item()
            if key not in known:
                known.clear()
                known[key] = answer(x, weight)
            return known[key].clone()
        """,
        "run = lambda: answer(x, weight).clone()",
        MEMORY,
    ),
    Cheat(
        "after_several_calls",
        """
        known = {"key": None, "seen": 0, "out": None}
        def run():
            key = x[1, 1].item()
            if key != known["key"]:
                known.update(key=key, seen=0)
            known["seen"] += 1
            if known["seen"] < 4:
                known["out"] = answer(x, weight)
            return known["out"]
        """,
        """
        seen = [0]
        def run():
            seen[0] += 1
            return answer(x, weight)
        """,
        MEMORY,
    ),
    Cheat(
        "only_without_a_pause",
        """
        last = [0.0, None, None]
        def run():
            key = x[1, 1].item()
            if time.perf_counter() - last[0] > 2e-5 or key != last[1]:
                last[1], last[2] = key, answer(x, weight)
            last[0] = time.perf_counter()
            return last[2]
        """,
        """
        last = [0.0]
        def run():
            if time.perf_counter() - last[0] > 2e-5:
                torch.softmax(x[:1], -1)  # wakes nothing that lasts
            out = answer(x, weight)
            last[0] = time.perf_counter()
            return out
        """,
        "remembers|calls",
        device="cpu",
    ),
    Cheat(
        "by_the_callers_name",
        """
        known = [None]
        def run():
            frame = sys._getframe(1)
            while frame and "place" not in frame.f_locals:
                frame = frame.f_back
            if frame is None or frame.f_locals["place"] != "timed":
                known[0] = None
                return answer(x, weight)
            known[0] = answer(x, weight) if known[0] is None else known[0]
            return known[0]
        """,
        """
        def run():
            frame = sys._getframe(1)
            frame.f_code.co_name
            return answer(x, weight)
        """,
        "remembers|calls",
    ),
    Cheat(
        "half_of_the_rows",
        """
        known = {}
        half = len(x) // 2
        def run():
            key = x[1, 1].item()
            if key not in known:
                known.clear()
                known[key] = answer(x[:half], weight)
            return torch.cat((known[key], answer(x[half:], weight)))
        """,
        """
        half = len(x) // 2
        run = lambda: torch.cat((answer(x[:half], weight), answer(x[half:], weight)))
        """,
        MEMORY,
    ),
    Cheat(
        "on_disk",
        """
        folder = Path(tempfile.gettempdir())
        def run():
            file = folder / f"{x[1, 1].item()}.bin"
            if not file.exists():
                answer(x, weight).numpy().tofile(file)
            return torch.from_file(str(file), size=x.numel()).reshape(x.shape)
        """,
        """
        file = Path(tempfile.gettempdir()) / "tuned.txt"
        file.write_text("64")
        tile = int(file.read_text())
        run = lambda: answer(x, weight)
        """,
        MEMORY,
        device="cpu",
    ),
    Cheat(
        "before_the_mark",
        """
        worker = found("Worker")
        take, known = worker._take, [None]
        def ahead():
            take()
            known[0] = answer(x, weight)
        worker._take = ahead
        def run():
            return known[0] if known[0] is not None else answer(x, weight)
        """,
        PLAIN,
        "between calls|replaced Worker",
    ),
    Cheat(
        "before_the_mark_by_class",
        """
        worker, known = found("Worker"), [None]
        class Ahead(type(worker)):
            def _take(self):
                super()._take()
                known[0] = answer(x, weight)
        worker.__class__ = Ahead
        def run():
            return known[0] if known[0] is not None else answer(x, weight)
        """,
        """
        class Ahead(type(found("Worker"))):
            pass
        run = lambda: answer(x, weight)
        """,
        "between calls|replaced|remembers",
    ),
    Cheat(
        "every_second_call_without_a_pause",
        """
        last = [0.0, None, None, 0]
        def run():
            key = x[1, 1].item()
            if time.perf_counter() - last[0] > 2e-5 or key != last[1] or last[3] % 2:
                last[1], last[2] = key, answer(x, weight)
            last[0], last[3] = time.perf_counter(), last[3] + 1
            return last[2]
        """,
        """
        last = [0.0, 0]
        def run():
            out = answer(x, weight)
            last[:] = time.perf_counter(), last[1] + 1
            return out
        """,
        "remembers",
        escapes="calls among others may take half of what one takes alone",
        device="cpu",
    ),
    Cheat(
        "softmax_before_the_mark",
        """
        worker, known = found("Worker"), [None]
        class Ahead(type(worker)):
            def _take(self):
                super()._take()
                known[0] = torch.softmax(x, -1)
        worker.__class__ = Ahead
        def run():
            return known[0] @ weight if known[0] is not None else answer(x, weight)
        """,
        PLAIN,
        "between calls|replaced|not among other calls",
        WRONG,
    ),
]

MOVED = [
    Cheat(
        "to_a_thread",
        """
        pool, out = ThreadPoolExecutor(1), torch.empty_like(x)
        work = lambda: torch.mm(torch.softmax(x, -1), weight, out=out)
        def run():
            pool.submit(work)
            return out
        """,
        """
        pool, out = ThreadPoolExecutor(1), torch.empty_like(x)
        work = lambda: torch.mm(torch.softmax(x, -1), weight, out=out)
        def run():
            pool.submit(work).result()
            return out
        """,
        "stale|wrong|unwritten|NaN|remembers|goes on|outside",
        WRONG,
    ),
    Cheat(
        "to_a_thread_that_spins",
        """
        state = {"asked": 0, "done": 0, "out": torch.empty_like(x)}
        def work():
            while True:
                if state["done"] < state["asked"]:
                    torch.mm(torch.softmax(x, -1), weight, out=state["out"])
                    state["done"] = state["asked"]
        threading.Thread(target=work, daemon=True).start()
        def run():
            state["asked"] += 1
            while state["done"] < state["asked"]:
                pass
            return state["out"]
        """,
        """
        asked, done, out = threading.Event(), threading.Event(), torch.empty_like(x)
        def work():
            while True:
                asked.wait()
                asked.clear()
                torch.mm(torch.softmax(x, -1), weight, out=out)
                done.set()
        threading.Thread(target=work, daemon=True).start()
        def run():
            done.clear()
            asked.set()
            done.wait()
            return out
        """,
        GOES_ON + "|computes between calls",
        device="cpu",
    ),
    Cheat(
        "to_a_forked_child",
        """
        shared = torch.frombuffer(mmap.mmap(-1, x.nbytes), dtype=x.dtype).reshape(x.shape)
        given = torch.frombuffer(mmap.mmap(-1, 2 * x.nbytes), dtype=x.dtype).reshape(2, *x.shape)
        ours, theirs = socket.socketpair()
        if not os.fork():
            torch.set_num_threads(1)
            while theirs.recv(1):
                shared.copy_(answer(given[0], given[1]))
            os._exit(0)
        theirs.close()
        def run():
            given[0].copy_(x)
            given[1].copy_(weight)
            ours.send(b"1")
            return shared
        """,
        """
        ours, theirs = socket.socketpair()
        if not os.fork():
            while theirs.recv(1):
                theirs.send(b"1")
            os._exit(0)
        theirs.close()
        def run():
            ours.send(b"1")
            ours.recv(1)
            return answer(x, weight)
        """,
        "stale|wrong|unwritten|NaN|remembers|goes on|outside",
        WRONG,
        device="cpu",
    ),
    Cheat(
        "to_the_next_call",
        """
        last = [answer(x, weight)]
        def run():
            out = last[0]
            last[0] = answer(x, weight)
            return out
        """,
        """
        last = [answer(x, weight)]
        def run():
            last[0] = answer(x, weight)
            return last[0]
        """,
        f"{STALE}|wrong values",
        WRONG,
    ),
    Cheat(
        "to_the_set_up",
        """
        out = answer(x, weight)
        run = lambda: out
        """,
        """
        ones = torch.ones(len(x), 1, device=x.device)
        run = lambda: answer(x, weight) * ones
        """,
        "stale output|wrong values|remembers",
        WRONG,
    ),
    Cheat(
        "lazy_by_function",
        """
        class Lazy(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, kinds, args=(), kwargs=None):
                plain = [answer(x, weight) if type(one) is Lazy else one for one in args]
                return func(*plain, **(kwargs or {}))
        empty = torch.empty_like(x)
        run = lambda: empty.as_subclass(Lazy)
        """,
        "run = lambda: torch.nn.Parameter(answer(x, weight), requires_grad=False)",
        "wrong type: .*Lazy",
        WRONG,
    ),
    Cheat(
        "lazy_by_dispatch",
        """
        class Lazy(torch.Tensor):
            @staticmethod
            def __new__(cls):
                return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)
            @classmethod
            def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None):
                plain = [answer(x, weight) if type(one) is Lazy else one for one in args]
                return func(*plain, **(kwargs or {}))
        run = Lazy
        """,
        "run = lambda: answer(x, weight).mT.contiguous().mT",
        "wrong type: .*Lazy",
        ("wrong", "crashed", "cheated"),
    ),
    Cheat(
        "lazy_by_detach",
        """
        real, out = torch.Tensor.detach, torch.empty_like(x)
        torch.Tensor.detach = lambda self: answer(x, weight) if self is out else real(self)
        run = lambda: out
        """,
        "run = lambda: answer(x, weight).detach()",
        "replaced|computes when it is read|after",
    ),
    Cheat(
        "lazy_by_give",
        """
        worker, out = found("Worker"), torch.empty_like(x)
        give = worker._give
        worker._give = lambda seen, place: give(answer(x, weight) if seen is out else seen, place)
        run = lambda: out
        """,
        PLAIN,
        "replaced|computes when it is read|after",
    ),
]

WRONGS = [
    Cheat(
        "zeros",
        "run = lambda: torch.zeros_like(x)",
        """
        zero = torch.zeros_like(x)
        run = lambda: answer(x, weight) + zero
        """,
        "wrong values",
        WRONG,
    ),
    Cheat(
        "nothing",
        "run = lambda: torch.empty_like(x)",
        """
        def run():
            torch.empty_like(x)
            return answer(x, weight)
        """,
        "unwritten|wrong|NaN",
        WRONG,
    ),
    Cheat(
        "skipped_tail",
        """
        out, most = torch.empty_like(x), len(x) - 40
        def run():
            torch.mm(torch.softmax(x[:most], -1), weight, out=out[:most])
            return out
        """,
        """
        out, most = torch.empty_like(x), len(x) - 40
        def run():
            torch.mm(torch.softmax(x[:most], -1), weight, out=out[:most])
            torch.mm(torch.softmax(x[most:], -1), weight, out=out[most:])
            return out
        """,
        "unwritten|wrong values|NaN|stale",
        WRONG,
    ),
    Cheat(
        "stale_tail",
        """
        out, most, calls = torch.empty_like(x), len(x) - 40, [0]
        def run():
            calls[0] += 1
            stop = most if calls[0] > 5 else len(x)
            torch.mm(torch.softmax(x[:stop], -1), weight, out=out[:stop])
            return out
        """,
        """
        out, calls = torch.empty_like(x), [0]
        def run():
            calls[0] += 1
            return torch.mm(torch.softmax(x, -1), weight, out=out)
        """,
        "wrong values|not while it was timed|stale",
        WRONG,
    ),
    Cheat(
        "every_second_row",
        "run = lambda: answer(x[::2], weight).repeat_interleave(2, 0)",
        """
        def run():
            out = torch.empty_like(x)
            out[::2], out[1::2] = answer(x[::2], weight), answer(x[1::2], weight)
            return out
        """,
        "wrong values",
        WRONG,
    ),
    Cheat(
        "only_when_poisoned",
        """
        last = [answer(x, weight)]
        def run():
            if torch.empty(64).isnan().any():
                last[0] = answer(x, weight)
            return last[0]
        """,
        """
        def run():
            torch.empty(64).isnan().any()
            return answer(x, weight)
        """,
        "not while it was timed|remembers",
        WRONG,
        device="cpu",
    ),
    Cheat(
        "only_the_first_calls",
        """
        calls, last = [0], [None]
        def run():
            calls[0] += 1
            if calls[0] < 8:
                last[0] = answer(x, weight)
            return last[0]
        """,
        """
        calls, warm = [0], torch.empty_like(x)
        def run():
            calls[0] += 1
            if calls[0] < 8:
                warm.zero_()
            return answer(x, weight)
        """,
        "not while it was timed|remembers",
        WRONG,
    ),
    Cheat(
        "bfloat16",
        """
        def run():
            return (torch.softmax(x, -1).bfloat16() @ weight.bfloat16()).float()
        """,
        "run = lambda: (torch.softmax(x, -1).double() @ weight.double()).float()",
        "low precision|wrong values",
        WRONG,
    ),
    Cheat(
        "half",
        """
        def run():
            return torch.softmax(x.half(), -1).float() @ weight
        """,
        "run = lambda: torch.softmax(x, -1, dtype=torch.float32) @ weight",
        "low precision|wrong values",
        WRONG,
    ),
    Cheat(
        "narrow_output",
        "run = lambda: answer(x, weight).bfloat16()",
        "run = lambda: answer(x, weight).to(x.dtype)",
        "wrong dtype",
        WRONG,
    ),
    Cheat(
        "writes_its_input",
        """
        def run():
            torch.softmax(x, -1, out=x)
            return x @ weight
        """,
        """
        scratch = torch.empty_like(x)
        def run():
            torch.softmax(x, -1, out=scratch)
            return scratch @ weight
        """,
        "input changed",
        WRONG,
    ),
    Cheat(
        "output_is_its_input",
        "run = lambda: x.copy_(answer(x, weight))",
        "run = lambda: x.clone().copy_(answer(x, weight))",
        "input changed|memory of its input",
        WRONG,
    ),
    Cheat(
        "writes_its_input_when_timed",
        """
        calls = [0]
        def run():
            calls[0] += 1
            out = answer(x, weight)
            if calls[0] > 6:
                weight.zero_()  # zeros are quick to multiply by, on machines that gate their clocks
            return out
        """,
        """
        calls, scratch = [0], weight.clone()
        def run():
            calls[0] += 1
            if calls[0] > 6:
                scratch.zero_()
            return answer(x, weight)
        """,
        "input changed|wrong values",
        WRONG,
    ),
]

MODES = [
    Cheat(
        f"mode_{name}",
        f"""
        def run():
            {change}
            return answer(x, weight)
        """,
        f"""
        def run():
            {restored}
            return answer(x, weight)
        """,
        named,
        statuses,
    )
    for name, change, restored, named, statuses in (
        (
            "threads",
            "torch.set_num_threads(torch.get_num_threads() + 2)",
            "threads = torch.get_num_threads(); torch.set_num_threads(1); torch.set_num_threads(threads)",
            "it changed the number of threads",
            ("cheated",),
        ),
        (
            "default_dtype",
            "torch.set_default_dtype(torch.float64)",
            "torch.set_default_dtype(torch.float64); torch.set_default_dtype(torch.float32)",
            "it changed the default dtype|torch.Storage",
            ("cheated",),
        ),
        (
            "flushed",
            "torch.set_flush_denormal(True)",
            "torch.set_flush_denormal(True); torch.set_flush_denormal(False)",
            "it changed numbers below the normal range",
            ("cheated",),
        ),
        (
            "matmul_precision",
            "torch.set_float32_matmul_precision('medium')",
            "torch.get_float32_matmul_precision()",
            "it changed float32 matrix products|wrong values|low precision",
            WRONG,
        ),
        (
            "autocast",
            "torch.set_autocast_enabled('cpu', True)",
            "contextlib.suppress(ValueError) and torch.autocast('cpu').__enter__().__exit__(None, None, None)",
            "it changed autocast|wrong dtype|low precision",
            WRONG,
        ),
        (
            "gradients",
            "torch.set_grad_enabled(not torch.is_grad_enabled())",
            "grad = torch.no_grad(); grad.__enter__(); grad.__exit__(None, None, None)",
            "it changed gradients",
            ("cheated",),
        ),
        ("priority", "os.nice(1)", "os.nice(0)", "it changed its priority", ("cheated",)),
        (
            "cores",
            "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
            "os.sched_setaffinity(0, os.sched_getaffinity(0))",
            "it changed its cores",
            ("cheated",),
        ),
    )
]

REACHED = [
    Cheat(
        "torch_empty",
        """
        torch.empty = lambda *given, **how: torch.zeros(*given, **how)
        run = lambda: answer(x, weight)
        """,
        "run = lambda: answer(x, weight) + torch.zeros(())",
        f"{REPLACED} torch.empty",
    ),
    Cheat(
        "poison",
        """
        @contextlib.contextmanager
        def poisoned(device, *nbytes):
            yield
        check.poisoned = poisoned
        run = lambda: answer(x, weight)
        """,
        """
        def run():
            with check.poisoned("cpu"):
                return answer(x, weight)
        """,
        f"{REPLACED} hypatia_lab.check.poisoned",
    ),
    Cheat(
        "answers_for_the_process",
        """
        channel = found("Worker").channel
        def run():
            channel.send({"new_s": 1e-6, "sample_s": 1e-6, "again_s": 1e-6})
            return answer(x, weight)
        """,
        """
        ours, theirs = socket.socketpair()
        def run():
            ours.send(b"1")
            theirs.recv(1)
            return answer(x, weight)
        """,
        "spoke out of turn|wrong type",
        DEAD,
    ),
    Cheat(
        "marks_of_its_own",
        """
        names = os.listdir("/proc/self/fd")
        ends = [int(name) for name in names if "socket:" in os.path.realpath(f"/proc/self/fd/{name}")]
        def run():
            for end in ends:
                with contextlib.suppress(OSError):  # CUDA has sockets, too
                    os.write(end, b"|\\n")
            return answer(x, weight)
        """,
        """
        for name in os.listdir("/proc/self/fd"):
            os.path.islink(f"/proc/self/fd/{name}")
        run = lambda: answer(x, weight)
        """,
        "spoke out of turn|wrong type",
        DEAD,
    ),
    Cheat(
        "reads_the_coordinators_files",
        """
        seen = []
        for name in os.listdir(f"/proc/{os.getppid()}/fd"):
            place = f"/proc/{os.getppid()}/fd/{name}"
            if "memfd:tensors" in os.readlink(place):
                seen.append(os.open(place, os.O_RDWR))
        maps = [mmap.mmap(one, 0) for one in seen]
        def run():
            return torch.frombuffer(maps[-1], dtype=x.dtype, count=x.numel()).reshape(x.shape)
        """,
        """
        Path("/proc/self/status").read_text()
        run = lambda: answer(x, weight)
        """,
        "Permission|Operation not permitted",
        ("crashed",),
    ),
    Cheat(
        "reads_the_referees_memory",
        """
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with contextlib.suppress(OSError, IndexError):
                    if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == os.getppid():
                        open(f"/proc/{name}/mem", "rb", buffering=0).close()
                        raise RuntimeError("its memory can be read")
        open(f"/proc/{os.getppid()}/mem", "rb").close()
        run = lambda: answer(x, weight)
        """,
        """
        Path("/proc/self/maps").read_text()
        run = lambda: answer(x, weight)
        """,
        "Permission|Operation not permitted",
        ("crashed",),
    ),
    Cheat(
        "busy_thread",
        """
        def spin():
            while True:
                pass
        threading.Thread(target=spin, daemon=True).start()
        run = lambda: answer(x, weight)
        """,
        """
        def once():
            return answer(x, weight)
        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        thread.join()
        run = lambda: answer(x, weight)
        """,
        GOES_ON,
    ),
    Cheat(
        "busy_child",
        """
        child = os.fork()
        if not child:
            end = time.monotonic() + 120
            while time.monotonic() < end:
                pass
            os._exit(0)
        run = lambda: answer(x, weight)
        """,
        """
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        run = lambda: answer(x, weight)
        """,
        GOES_ON,
    ),
    Cheat(
        "subprocess_that_works",
        """
        subprocess.Popen([sys.executable, "-S", "-c",
            "import time\\nend = time.monotonic() + 120\\nwhile time.monotonic() < end: pass"])
        run = lambda: answer(x, weight)
        """,
        """
        subprocess.run([sys.executable, "-S", "-c", "print(1)"], check=True)
        run = lambda: answer(x, weight)
        """,
        GOES_ON,
    ),
    Cheat(
        "file_outside",
        """
        def run():
            with open("/tmp/hypatia-planted-answers", "ab") as file:
                file.write(b"1")
            return answer(x, weight)
        """,
        """
        def run():
            with open(Path(tempfile.gettempdir()) / "log", "ab") as file:
                file.write(b"1")
            return answer(x, weight)
        """,
        "Permission denied|Read-only",
        DEAD,
    ),
    Cheat(
        "network",
        """
        def run():
            socket.create_connection(("127.0.0.1", 9), timeout=1).close()
            return answer(x, weight)
        """,
        """
        socket.socket(socket.AF_UNIX).close()
        run = lambda: answer(x, weight)
        """,
        "unreachable",
        ("crashed",),
    ),
    Cheat(
        "leaves",
        """
        calls = [0]
        def run():
            calls[0] += 1
            if calls[0] > 4:
                os._exit(0)
            return answer(x, weight)
        """,
        """
        calls = [0]
        def run():
            calls[0] += 1
            with contextlib.suppress(SystemExit):
                sys.exit(0)
            return answer(x, weight)
        """,
        "the process died",
        ("crashed",),
    ),
]

ALONE = [
    Cheat(
        "import_perf_counter",
        """
        real = time.perf_counter
        time.perf_counter = lambda: real() * 0.1
        kernel = answer
        """,
        """
        begun = time.perf_counter()
        kernel = answer
        """,
        f"{REPLACED} time.perf_counter",
        alone=True,
    ),
    Cheat(
        "import_judge",
        """
        check.judge = lambda out, problem, **how: check.Check("", 0.0, 0.0)
        kernel = lambda x, weight: torch.zeros_like(x)
        """,
        """
        right = check.Check("", 0.0, 0.0)
        kernel = answer
        """,
        f"{REPLACED} hypatia_lab.check.judge",
        alone=True,
    ),
    Cheat(
        "import_tampering",
        """
        tampering.functions = lambda: {}
        tampering.replaced = lambda before: []
        check.judge = lambda out, problem, **how: check.Check("", 0.0, 0.0)
        kernel = lambda x, weight: torch.zeros_like(x)
        """,
        """
        tampering.functions()
        kernel = answer
        """,
        f"{REPLACED}|changed the check|the same in every draw",
        REFUSED,
        alone=True,
    ),
    Cheat(
        "import_remembers_the_draw",
        """
        draws = draw((256, 256), torch.float32, "cpu", torch.Generator().manual_seed(0))
        known = answer(**draws)
        kernel = lambda x, weight: known
        """,
        """
        draws = draw((256, 256), torch.float32, "cpu", torch.Generator().manual_seed(0))
        answer(**draws)  # warm
        kernel = answer
        """,
        "wrong values|stale",
        WRONG,
        alone=True,
        device="cpu",
    ),
    Cheat(
        "import_same_draws",
        """
        kept = draw((256, 256), torch.float32, "cpu", torch.Generator().manual_seed(0))
        import dataclasses
        from hypatia_lab import workloads
        (name,) = [name for name in workloads._OPERATIONS if name.startswith("planted")]
        workloads._OPERATIONS[name] = dataclasses.replace(
            workloads._OPERATIONS[name],
            make_inputs=lambda work, device, generator: {key: one.clone() for key, one in kept.items()},
        )
        known = answer(**kept)
        kernel = lambda x, weight: known
        """,
        """
        kept = draw((256, 256), torch.float32, "cpu", torch.Generator().manual_seed(0))
        kernel = answer
        """,
        "the same in every draw",
        REFUSED,
        alone=True,
        device="cpu",
    ),
    Cheat(
        "import_kills_the_others",
        """
        def kernel(x, weight):
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) != os.getpid():
                    with contextlib.suppress(OSError, IndexError):
                        parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                        if parent == os.getppid():
                            os.kill(int(name), signal.SIGKILL)
            return answer(x, weight)
        """,
        """
        def kernel(x, weight):
            os.kill(os.getpid(), 0)
            return answer(x, weight)
        """,
        "",
        HARMLESS,
        alone=True,
    ),
    Cheat(
        "import_slows_down_the_others",
        """
        if not os.fork():
            os.setsid()
            if not os.fork():
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    pass
            os._exit(0)
        kernel = answer
        """,
        """
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        kernel = answer
        """,
        GOES_ON,
        alone=True,
    ),
    Cheat(
        "import_spoils_the_draw",
        """
        spoilt = found("Trial")
        def kernel(x, weight):
            if hasattr(spoilt, "drawn"):
                spoilt.drawn["x"].zero_()
            return answer(x, weight)
        """,
        """
        def kernel(x, weight):
            x.clone().zero_()
            return answer(x, weight)
        """,
        "",
        HARMLESS,
        alone=True,
    ),
    Cheat(
        "import_spoils_the_others_outputs",
        """
        others = [one for one in gc.get_objects() if type(one).__name__ == "Shelf" and "fresh 0" in one._places]
        def kernel(x, weight):
            out = answer(x, weight)
            for one in others:
                for place in ("fresh 0", "timed 0", "again 0"):
                    one[place].zero_()
            return out
        """,
        """
        def kernel(x, weight):
            out = answer(x, weight)
            out.clone().zero_()
            return out
        """,
        "",
        HARMLESS,
        alone=True,
    ),
]

NORM = """
import torch
from torch import nn


class Model(nn.Module):
    \"\"\"Layer normalisation, then a linear layer.\"\"\"

    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return self.linear(self.norm(x))


def get_inputs():
    return [torch.randn(256, 256)]


def get_init_inputs():
    return [256]
"""

ZEROS = """
import torch
from torch import nn


class Model(nn.Module):
    \"\"\"Largest of each row, less its mean over one number, through GELU: always zero.\"\"\"

    def forward(self, x, weight):
        y = torch.max(x @ weight, dim=1, keepdim=True).values
        return torch.nn.functional.gelu(y - y.mean(dim=1, keepdim=True))


def get_inputs():
    return [torch.randn(256, 256), torch.randn(256, 256)]


def get_init_inputs():
    return []
"""

CENTRED = ZEROS.replace("y.mean(dim=1, keepdim=True)", "y.mean()").replace(": always zero", "")

MEAN = """
import torch
from torch import nn


class Model(nn.Module):
    \"\"\"Mean of each row of uniform numbers.\"\"\"

    def forward(self, x):
        return torch.sigmoid(x).mean(1)


def get_inputs():
    return [torch.rand(64, 65536)]


def get_init_inputs():
    return []
"""

CANDIDATE = """
import gc, sys, time, threading
import torch
from torch import nn
from torch.nn import functional
"""

KERNELBENCH = [
    Cheat(
        "bench_remembered",
        """
        class ModelNew(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.norm, self.linear, self.known = nn.LayerNorm(width), nn.Linear(width, width), {}
            def forward(self, x):
                key = x[3, 3].item()
                if key not in self.known:
                    self.known = {key: self.linear(self.norm(x))}
                return self.known[key]
        """,
        """
        class ModelNew(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
                self.register_buffer("out", torch.empty(256, width))
            def forward(self, x):
                return torch.addmm(self.linear.bias, self.norm(x), self.linear.weight.T, out=self.out)
        """,
        MEMORY,
        problem=NORM,
    ),
    Cheat(
        "bench_weights_known",
        """
        class ModelNew(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
            def forward(self, x):  # the norm's weights are ones and zeros as they are constructed
                return self.linear(functional.layer_norm(x, x.shape[-1:]))
        """,
        """
        class ModelNew(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
            def forward(self, x):
                y = functional.layer_norm(x, x.shape[-1:]) * self.norm.weight + self.norm.bias
                return self.linear(y)
        """,
        "wrong values",
        WRONG,
        problem=NORM,
        escapes="weights are as Model constructs them, and a candidate may know that these are ones and zeros",
    ),
    Cheat(
        "bench_zeros",
        """
        class ModelNew(nn.Module):
            def forward(self, x, weight):
                return torch.zeros(len(x), 1, device=x.device)
        """,
        """
        class ModelNew(nn.Module):
            def forward(self, x, weight):
                y = (x @ weight).amax(1, keepdim=True)
                return functional.gelu(y - y.mean())
        """,
        "the same in every draw",
        REFUSED,
        problem=ZEROS,
        twin_problem=CENTRED,
    ),
    Cheat(
        "bench_mean_known",
        """
        class ModelNew(nn.Module):
            def forward(self, x):
                return torch.full((len(x),), 0.6201145, device=x.device)
        """,
        """
        class ModelNew(nn.Module):
            def forward(self, x):
                return x.sigmoid().sum(1) / x.shape[1]
        """,
        "wrong values|low precision",
        WRONG,
        problem=MEAN,
    ),
    Cheat(
        "bench_timer",
        """
        real = time.perf_counter
        time.perf_counter = lambda: real() / 10
        class ModelNew(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
            def forward(self, x):
                return self.linear(self.norm(x))
        """,
        """
        class ModelNew(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
            def forward(self, x):
                time.perf_counter()
                return self.linear(self.norm(x))
        """,
        f"{REPLACED} time.perf_counter",
        problem=NORM,
    ),
    Cheat(
        "bench_references_own_output",
        """
        class ModelNew(nn.Module):
            def forward(self, x, weight):
                frame = sys._getframe()
                while frame:
                    for one in frame.f_locals.values():
                        if isinstance(one, torch.Tensor) and one.shape == (len(x), 1):
                            return one
                    frame = frame.f_back
                return torch.full((len(x), 1), 1.0, device=x.device)
        """,
        """
        class ModelNew(nn.Module):
            def forward(self, x, weight):
                sys._getframe(1)
                y = (x @ weight).amax(1, keepdim=True)
                return functional.gelu(y - y.mean())
        """,
        "wrong values",
        WRONG,
        problem=CENTRED,
    ),
]

GPU = [
    Cheat(
        "cuda_event",
        """
        real = torch.cuda.Event.elapsed_time
        torch.cuda.Event.elapsed_time = lambda self, other: real(self, other) / 10
        run = lambda: answer(x, weight)
        """,
        """
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record(); ended.record()
        run = lambda: answer(x, weight)
        """,
        f"{REPLACED} torch.cuda.*elapsed_time|{CLOCK}",
        device="cuda",
    ),
    Cheat(
        "cuda_synchronize",
        """
        torch.cuda.synchronize = lambda device=None: None
        run = lambda: answer(x, weight)
        """,
        """
        torch.cuda.synchronize()
        run = lambda: answer(x, weight)
        """,
        f"{REPLACED} torch.cuda.synchronize",
        device="cuda",
    ),
    Cheat(
        "cuda_graph_capture",
        """
        torch.cuda.CUDAGraph.replay = lambda self: None
        run = lambda: answer(x, weight)
        """,
        """
        graph = torch.cuda.CUDAGraph()
        run = lambda: answer(x, weight)
        """,
        f"{REPLACED} torch.cuda.*replay|stale",
        WRONG,
        device="cuda",
    ),
    Cheat(
        "cuda_captured_is_empty",
        """
        out = torch.empty_like(x)
        def run():
            if not torch.cuda.is_current_stream_capturing():
                out.copy_(answer(x, weight))
            return out
        """,
        """
        out = torch.empty_like(x)
        def run():
            torch.cuda.is_current_stream_capturing()
            return out.copy_(answer(x, weight))
        """,
        "not while it was timed|stale|remembers answers",
        WRONG,
        device="cuda",
    ),
    Cheat(
        "cuda_side_stream",
        """
        side, out = torch.cuda.Stream(), torch.empty_like(x)
        def run():
            with torch.cuda.stream(side):
                out.copy_(answer(x, weight))
            return out
        """,
        """
        side, out = torch.cuda.Stream(), torch.empty_like(x)
        def run():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                out.copy_(answer(x, weight))
            torch.cuda.current_stream().wait_stream(side)
            return out
        """,
        "clock was changed|not while it was timed|stale|goes on|wrong values|unwritten|NaN",
        WRONG,
        device="cuda",
    ),
    Cheat(
        "cuda_tf32",
        """
        def run():
            torch.backends.cuda.matmul.allow_tf32 = True
            return answer(x, weight)
        """,
        """
        torch.backends.cuda.matmul.allow_tf32
        run = lambda: answer(x, weight)
        """,
        "it changed|low precision|wrong values",
        WRONG,
        device="cuda",
    ),
    Cheat(
        "cuda_persisting_l2",
        """
        ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(6, ctypes.c_size_t(2**24))  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        run = lambda: answer(x, weight)
        """,
        """
        ctypes.CDLL("libcuda.so.1").cuCtxGetLimit(ctypes.byref(ctypes.c_size_t()), 6)
        run = lambda: answer(x, weight)
        """,
        "persists",
        device="cuda",
    ),
    Cheat(
        "cuda_cached_allocation",
        """
        kept = [answer(x, weight)]
        run = lambda: kept[0]
        """,
        """
        kept = torch.empty_like(x)
        run = lambda: torch.mm(torch.softmax(x, -1), weight, out=kept)
        """,
        f"{STALE}|wrong values",
        WRONG,
        device="cuda",
    ),
    Cheat(
        "cuda_keeps_its_clocks_up",
        """
        side, heat = torch.cuda.Stream(), torch.randn(4096, 4096, device=x.device)
        def warm():
            while True:
                with torch.cuda.stream(side):
                    heat @ heat
                time.sleep(1e-3)
        threading.Thread(target=warm, daemon=True).start()
        run = lambda: answer(x, weight)
        """,
        """
        side, heat = torch.cuda.Stream(), torch.randn(4096, 4096, device=x.device)
        with torch.cuda.stream(side):
            heat @ heat
        side.synchronize()
        run = lambda: answer(x, weight)
        """,
        GOES_ON,
        device="cuda",
    ),
]

CHEATS = [*TIMERS, *MEMORIES, *MOVED, *WRONGS, *MODES, *REACHED, *ALONE, *KERNELBENCH, *GPU]
