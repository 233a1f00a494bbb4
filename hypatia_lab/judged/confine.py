"""What a process gives up before it runs a stranger's file: writing elsewhere, the network, outliving its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import tempfile
from pathlib import Path

from hypatia_lab.bench import fence

_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH")
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""Source: linux/sched.h."""
_PARENT_DEATH_SIGNAL, _DUMPABLE, _CHILD_SUBREAPER = 1, 4, 36
"""Source: linux/prctl.h."""
_DRIVER = "/dev/nvidiactl"
FULL = (
    "the GPU's memory is full: each variant's process holds its inputs and outputs there, and one more the answer in "
    "float64; try smaller sizes, or a GPU with more memory"
)
FENCED = " (a judged file may make files below $TMPDIR and $XDG_CACHE_HOME alone)"
_LIBC = ctypes.CDLL(None, use_errno=True)


def confine(scratch: Path, caches: Path) -> None:
    """Confine this process, which has one thread: it may write below ``scratch`` and ``caches`` only, and dies with its
    parent. Compilers keep what they keep below ``caches``.

    The network goes where an ordinary user may make a network of his own; writing where the kernel has Landlock.
    """
    scratch, caches = scratch.resolve(), caches.resolve()
    _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    _LIBC.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)  # whatever it starts stays its own, where it can be found
    for folder in (scratch, caches):
        folder.mkdir(parents=True, exist_ok=True)
    for name in _CACHES:
        os.environ[name] = str(caches / name.lower())
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = None
    _leave_network()
    if fence.abi():
        # CUDA's driver names its threads in files of /proc; nothing can be made there.
        fence.restriction([str(scratch), str(caches), *(["/proc"] if os.path.exists(_DRIVER) else [])])()


def hide() -> None:
    """Let nobody but the administrator look into the memory of this process."""
    _LIBC.prctl(_DUMPABLE, 0, 0, 0, 0)


def out_of_memory(cause: Exception) -> bool:
    """Whether ``cause`` says that the GPU's memory is full.

    torch asks NVML for the processes there before it says so, which it may not do in one that is hidden.
    """
    return type(cause).__name__ == "OutOfMemoryError" or "nvmlInit" in str(cause)


def _leave_network() -> None:
    """Have no network from here on, where the system lets an ordinary user do so."""
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEW_USER | _NEW_NETWORK):
        return
    with contextlib.suppress(OSError):  # without a name this user is nobody, and can still read what is his
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
