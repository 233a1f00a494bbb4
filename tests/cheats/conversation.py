"""The processes of the judge: their conversation, their memory, their life."""

import contextlib
import gc
import mmap
import os
import signal
import socket
import sys
from pathlib import Path

import torch

from cheats.catalogue import DEAD, HARMLESS, answer, cheat, found

OUT_OF_TURN = "spoke out of turn|wrong type"
FORBIDDEN = "Permission|Operation not permitted"


def siblings():
    """Processes that this one's parent has started, beside itself."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError, IndexError):
                if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == os.getppid():
                    yield int(name)


@cheat(OUT_OF_TURN, DEAD)
def answers_for_the_process(x, weight, honest):
    channel, (ours, theirs) = found("Worker").channel, socket.socketpair()

    def run():
        if honest:
            ours.send(b"1")
            theirs.recv(1)
        else:
            channel.send({"new_s": 1e-6, "sample_s": 1e-6, "again_s": 1e-6})
        return answer(x, weight)

    return run


@cheat(OUT_OF_TURN, DEAD, acts="each")
def marks_of_its_own(x, weight, honest):
    """Its twin looks at its files."""
    for file in os.listdir("/proc/self/fd"):
        if "socket:" in os.path.realpath(f"/proc/self/fd/{file}") and not honest:
            with contextlib.suppress(OSError):  # CUDA has sockets, too
                os.write(int(file), b"|\n")


@cheat(FORBIDDEN, ("crashed",))
def reads_the_coordinators_files(x, weight, honest):
    files = Path("/proc", "self" if honest else str(os.getppid()), "fd")
    tensors = [file for file in files.iterdir() if "memfd:tensors" in os.path.realpath(file)]
    if honest:
        return None
    maps = [mmap.mmap(os.open(file, os.O_RDWR), 0) for file in tensors]
    return lambda: torch.frombuffer(maps[-1], dtype=x.dtype, count=x.numel()).reshape(x.shape)


@cheat(FORBIDDEN, ("crashed",))
def reads_the_referees_memory(x, weight, honest):
    Path("/proc/self/maps").read_text()
    for one in () if honest else siblings():
        with contextlib.suppress(OSError):
            open(f"/proc/{one}/mem", "rb", buffering=0).close()
            raise RuntimeError("its memory can be read")
    open(f"/proc/{'self' if honest else os.getppid()}/mem", "rb").close()


@cheat("the process died", ("crashed",))
def leaves(x, weight, honest):
    calls = iter(range(2**62))

    def run():
        if next(calls) > 3 and not honest:
            os._exit(0)
        with contextlib.suppress(SystemExit):
            sys.exit(0)
        return answer(x, weight)

    return run


@cheat("", HARMLESS, acts="imported")
def import_kills_the_others(honest):
    def kernel(x, weight):
        for one in [os.getpid()] if honest else siblings():
            with contextlib.suppress(OSError):
                os.kill(one, 0 if honest else signal.SIGKILL)
        return answer(x, weight)

    return kernel


@cheat("", HARMLESS, acts="imported")
def import_spoils_the_draw(honest):
    trials = [one for one in gc.get_objects() if type(one).__name__ == "Trial" and hasattr(one, "drawn")]

    def kernel(x, weight):
        for one in [] if honest else trials:
            one.drawn["x"].zero_()
        x.clone().zero_()
        return answer(x, weight)

    return kernel


@cheat("", HARMLESS, acts="imported")
def import_spoils_the_others_outputs(honest):
    others = [one for one in gc.get_objects() if type(one).__name__ == "Shelf" and "fresh 0" in one._places]

    def kernel(x, weight):
        out = answer(x, weight)
        for one in [] if honest else others:
            for place in ("fresh 0", "timed 0", "again 0"):
                one[place].zero_()
        out.clone().zero_()
        return out

    return kernel
