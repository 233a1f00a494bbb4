"""Fresh processes: each is one independent observation, and none can take the others down with it.

A session runs ``python -m <module> <plan> <events fd>``. The child writes one JSON line an event; when it
crashes or falls silent, the last ``begin`` event names the culprit, which is left out of the restart.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hypatia_lab.profiler import bytecode

Event = dict[str, Any]


class SessionError(RuntimeError):
    """A session that failed outside any variant; the message ends with what the child said last."""


@dataclass(frozen=True)
class Casualty:
    """What a child died of: ``what`` it had begun, and status ``crashed`` or ``timeout`` with a reason."""

    what: Any
    status: str
    reason: str


def run_session(
    module: str,
    plan: dict[str, Any],
    log: Path,
    *,
    on_event: Callable[[Event], None],
    silence_s: float,
    env: dict[str, str] | None = None,
) -> Casualty | None:
    """Run one fresh process over ``plan`` and hand each of its events to ``on_event``.

    Returns None when the child finished, else the :class:`Casualty` that ended it. ``silence_s`` is the longest
    a child may go without an event; ``env`` adds to its environment. The child's own output goes to ``log``. The plan
    gets ``spawned``: the monotonic clock (s) just before the process was made. Raises :class:`SessionError` when
    the child fails before it began anything; on an interrupt the child is killed and the interrupt passes on.
    """
    reader, writer = os.pipe()
    with log.open("ab") as output, os.fdopen(reader, "r", encoding="utf-8") as events:
        spawned = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-m", module, str(writer)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(writer,),
            env=os.environ | {"KINETO_LOG_LEVEL": "5", "PYTHONUNBUFFERED": "1"} | bytecode.environment() | (env or {}),
            start_new_session=True,
        )
        os.close(writer)
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(plan | {"spawned": spawned}).encode() + b"\n")
            child.stdin.flush()
            begun, silent = _follow(child, events, on_event, silence_s)
            code = None if silent else child.wait(timeout=30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            begun, silent, code = None, False, -signal.SIGKILL
        finally:
            _kill(child)
            with contextlib.suppress(BrokenPipeError):  # a child that ended at once left unread what is still held here
                child.stdin.close()
    if code == 0:
        return None
    why = f"no sign of life for {silence_s:.0f} s" if silent else _death(code or 0)
    if begun is None:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise SessionError(f"a measuring process ended before it began: {why}; it said last:\n{last}")
    return Casualty(begun, "timeout" if silent else "crashed", why)


def _death(code: int) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return f"the process died ({how})"


def _follow(
    child: subprocess.Popen[bytes], events: IO[str], on_event: Callable[[Event], None], silence_s: float
) -> tuple[Any, bool]:
    """Hand on the child's events until it ends or falls silent: what it began last, and whether it fell silent."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in events:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    begun: Any = None
    heard = time.monotonic()
    while time.monotonic() - heard < silence_s:
        try:
            line = lines.get(timeout=min(0.5, silence_s))
        except queue.Empty:
            if child.poll() is not None:  # dead, while a process it forked still holds the pipe
                return begun, False
            continue
        heard = time.monotonic()
        if line is None:
            return begun, False
        if not line.endswith("\n"):
            continue  # cut off by a crash in mid-write
        event = json.loads(line)
        if event["event"] == "begin":
            begun = event["what"]
        on_event(event)
    return begun, True


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it forked: they share a process group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def child_plan() -> tuple[dict[str, Any], Callable[..., None]]:
    """In the child: the plan, and ``emit(event, **fields)``. The child ends when its parent does."""
    plan = json.loads(sys.stdin.readline())
    stream = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

    def emit(event: str, **fields: Any) -> None:
        stream.write(json.dumps({"event": event, **fields}) + "\n")
        stream.flush()

    return plan, emit
