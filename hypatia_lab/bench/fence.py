"""A program from outside, run within a fence: an empty folder, a time limit, and nothing of it left behind.

Run as a process by :mod:`hypatia_lab.probes.program`. This keeper reads a plan (one JSON line), starts the program,
prints an empty line now and then while it runs, and at the end a report (JSON):

``code`` its exit status (negative: a signal), ``seconds`` from its start to its end, ``folder`` the one that it ran in,
``output`` the file of what it printed, ``stopped`` status and reason if it had to be ended (else empty), ``fenced``
whether the kernel refused whatever it wrote outside, and ``written`` the files outside that it changed nevertheless. Or
``failed``: why it could not be started. When standard input closes, whoever asked is done or dead: every process of the
program is killed, its folder is removed, and the keeper ends.

Writing is refused by Landlock (Linux 5.13 and later; man 7 landlock), to the program and to all that it starts. Where
there is none, a look at the ``watched`` folders before and after tells what was written. Signals to other processes are
refused by its version 6 (Linux 6.12). Reading and the network are not fenced, nor are mode, owner and times of files.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MAX_OUTPUT = 64 * 2**20
"""Bytes that a program may print."""
BEAT_S = 1.0
_LINUX = sys.platform.startswith("linux")
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""System calls of Landlock, the same on every architecture. Source: linux/uapi/asm-generic/unistd.h."""
_NO_NEW_PRIVILEGES, _CHILD_SUBREAPER, _PARENT_DEATH_SIGNAL = 38, 36, 1
"""Source: linux/prctl.h."""
_ANYTHING, _REFER, _TRUNCATE = 0b1111111110010, 1 << 13, 1 << 14
"""Rights: to write, make and remove files of every kind; to move them between folders; to cut them short.
Source: linux/landlock.h."""
_SIGNALS = 1 << 1
"""What may stay within: signals to other processes. Source: linux/landlock.h (LANDLOCK_SCOPE_SIGNAL)."""
_FILE = 1 << 1 | _TRUNCATE
"""What of these a file may be given, where a folder may be given all."""


def abi() -> int:
    """Version of the kernel's Landlock; 0 where there is none."""
    return max(0, _LIBC.syscall(_CREATE, None, ctypes.c_size_t(0), 1)) if _LINUX else 0


def restriction(writes: Sequence[str]) -> Callable[[], None]:
    """What a child calls before it becomes the program: from then on it may write below ``writes`` only."""
    version = abi()
    rights = _ANYTHING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    # What is handled: writing, nothing of the network, and from the sixth version on signals.
    handled = (ctypes.c_uint64 * 3)(rights, 0, _SIGNALS)
    ruleset = _LIBC.syscall(_CREATE, ctypes.byref(handled), ctypes.c_size_t(24 if version >= 6 else 8), 0)
    # Devices are files that lie there: they may be written to, and nothing may be made beside them.
    places = [(place, rights) for place in (*writes, "/dev/shm") if place != "/dev/shm" or os.path.isdir(place)]
    for place, allowed in [*places, ("/dev", _FILE)]:
        there = os.open(place, os.O_PATH | os.O_CLOEXEC)
        allowed &= rights if os.path.isdir(place) else _FILE & rights
        rule = allowed.to_bytes(8, sys.byteorder) + there.to_bytes(4, sys.byteorder)
        if _LIBC.syscall(_ADD, ruleset, 1, rule, 0):
            raise OSError(ctypes.get_errno(), "Landlock takes no rule for it", place)
        os.close(there)

    def restrict() -> None:
        if _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or _LIBC.syscall(_RESTRICT, ruleset, 0):
            os._exit(126)  # better not at all than unfenced

    return restrict


def snapshot(folders: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Size and time of change (ns) of every file below ``folders``."""
    found = {}
    for top in folders:
        for folder, _, names in os.walk(top):
            for name in names:
                with contextlib.suppress(OSError):
                    seen = os.lstat(path := os.path.join(folder, name))
                    found[path] = (seen.st_size, seen.st_mtime_ns)
    return found


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the program's process group, and on Linux whatever it started elsewhere, which is this process's by now."""
    _kill_group(child)
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    while listed.exists() and (pids := listed.read_text().split()):
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _remove(base: Path) -> None:
    """Remove the folder, whatever modes the program has given to what lies there."""
    os.chmod(base, 0o700)
    for folder, names, _ in os.walk(base):
        for name in names:
            if not os.path.islink(path := os.path.join(folder, name)):
                os.chmod(path, 0o700)
    shutil.rmtree(base, ignore_errors=True)


class _Keeper:
    """The keeper of one program: its folder, its process, and status and reason if it was stopped."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.base = Path(tempfile.mkdtemp(prefix="hypatia-")).resolve()
        self.work, self.home, self.output = (self.base / name for name in ("work", "home", "output"))
        self.fenced = plan["fence"] and abi() > 0
        self.before = self._seen()
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped: tuple[str, ...] = ()

    def _seen(self) -> dict[str, tuple[int, int]]:
        return {} if self.fenced else snapshot(self.plan["watched"])

    def start(self) -> None:
        """Start the program. Raises ``OSError`` when it cannot be started, or not within the fence."""
        own = {"HOME": self.home, "TMPDIR": self.home / "tmp", "XDG_CACHE_HOME": self.home / ".cache"}
        own |= {name: self.home / name.lower() for name in _CACHES}
        for folder in (self.work, *own.values()):
            folder.mkdir()
        restrict = restriction([str(self.work), str(self.home), *self.plan["writes"]]) if self.fenced else None

        def begin() -> None:
            if _LINUX:
                _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            if restrict is not None:
                restrict()

        if _LINUX:
            _LIBC.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
        given = {name: str(folder) for name, folder in own.items()} | {"PYTHONDONTWRITEBYTECODE": "1"}
        with self.output.open("wb") as stream:
            self.child = subprocess.Popen(
                self.plan["command"],
                cwd=self.work,
                env=os.environ | given | self.plan["env"],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=begin,
            )

    def watch(self, child: subprocess.Popen[bytes] | None) -> None:
        """Stop ``child`` when it is due; once nobody asks any more, remove everything and end this process."""
        due = time.monotonic() + self.plan["limit_s"]
        while not select.select([sys.stdin], [], [], max(0.0, min(BEAT_S, due - time.monotonic())))[0]:
            if child is None or child.returncode is not None or self.stopped:
                due = math.inf
                continue
            with contextlib.suppress(BrokenPipeError):  # whoever asked has just died, as the next look tells
                print(flush=True)  # a sign of life
            if time.monotonic() >= due:
                self.stopped = ("timeout", f"the program had not ended after {self.plan['limit_s']:.3g} s")
            elif self.output.stat().st_size > MAX_OUTPUT:
                self.stopped = ("crashed", f"the program printed more than {MAX_OUTPUT >> 20} MiB")
            if self.stopped:
                _kill_group(child)  # the other thread waits for it
        if child is not None:
            _kill(child)
        _remove(self.base)
        os._exit(0)

    def report(self, start: float) -> dict[str, Any]:
        """Wait for the program's end; see the module. ``start`` is when it was started (s)."""
        assert self.child is not None
        code = self.child.wait()
        seconds = time.perf_counter() - start
        _kill(self.child)
        after = self._seen()
        changed = {path for path in self.before.keys() | after.keys() if self.before.get(path) != after.get(path)}
        spared = [self.base, *(Path(place).resolve() for place in (*self.plan["writes"], *self.plan["spared"]))]
        written = [path for path in sorted(changed) if not any(Path(path).resolve().is_relative_to(s) for s in spared)]
        found = {"code": code, "seconds": seconds, "folder": str(self.work), "output": str(self.output)}
        return found | {"stopped": self.stopped, "fenced": self.fenced, "written": written}


def main() -> None:
    """Entry of the keeper's process."""
    keeper = _Keeper(json.loads(sys.stdin.readline()))
    start, failed = time.perf_counter(), ""
    try:
        keeper.start()
    except (OSError, subprocess.SubprocessError) as cause:
        failed = str(cause)
    watching = threading.Thread(target=keeper.watch, args=(keeper.child,))
    watching.start()
    print(json.dumps({"failed": failed} if failed else keeper.report(start)), flush=True)
    watching.join()


if __name__ == "__main__":
    main()
