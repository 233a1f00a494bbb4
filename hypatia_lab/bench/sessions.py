"""Fresh processes: each is one independent observation, and none can take the others down with it.

A session runs ``python -P -m <module> <events fd>``, which reads its plan and writes one JSON line an event. When the
child crashes or falls silent, the last ``begin`` event names the culprit, which is left out of the restart. Its last
event is ``end``: everything was said, and whatever happens to the process after that is nobody's fault.

To import what a module needs takes seconds. Where a machine has cores for it, several processes do so at once, before
anything is measured, and each then waits for its plan (:func:`waiting`).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypatia_lab import machine
from hypatia_lab.bench import bytecode

Event = dict[str, Any]

LEAVE_S = 30.0
"""A process whose pipe is closed may take so long to end."""
MEASURING = {False: "hypatia_lab.bench.cells", True: "hypatia_lab.judged.coordinator"}
"""The module of a measuring process, by whether it is guarded against what it measures."""
START_S = 60.0
"""And so long to import what it needs, whatever silence is allowed once it has begun."""
WAITING_GIB = 1.0
"""Main memory that must be free for each process that waits: Python with PyTorch takes half of it."""
GO = threading.Event()
"""In a process that was told its plan ahead: it may go on, for nobody else is timed now."""
HOME = Path(__file__).resolve().parents[2]
"""The folder that this hypatia_lab is imported from."""


class SessionError(RuntimeError):
    """A session that failed outside any variant; the message ends with what the child said last."""


@dataclass(frozen=True)
class Casualty:
    """What a child died of: ``what`` it had begun, and status ``crashed`` or ``timeout`` with a reason."""

    what: Any
    status: str
    reason: str


def python(module: str, *given: str) -> list[str]:
    """The command line of a fresh Python that runs ``module``, without the current folder in its path.

    That is the reader's, where a ``random.py`` would stand in for Python's own.
    """
    return [sys.executable, "-P", "-m", module, *given]


def path() -> dict[str, str]:
    """What a fresh Python needs in its environment to import the same hypatia_lab as this one."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    # Where packages are installed is looked in anyway, and only after Python's own modules.
    installed = [Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())]
    return {"PYTHONPATH": os.pathsep.join(folders if HOME in installed else [str(HOME), *folders])}


def scratch(folder: Path) -> dict[str, str]:
    """What a process needs in its environment to make its temporary files below ``folder``."""
    found = folder / "scratch"
    found.mkdir(exist_ok=True)
    return {"TMPDIR": str(found)}


@dataclass
class Fresh:
    """A process that has no plan yet, made at ``spawned`` (s of the monotonic clock); what it says comes by ``lines``.

    ``up`` is set once it waits for its plan, or has ended; ``ready`` once it has said so of what it was told ahead, or
    has ended.
    """

    process: subprocess.Popen[bytes]
    spawned: float
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)
    up: threading.Event = field(default_factory=threading.Event)
    ready: threading.Event = field(default_factory=threading.Event)
    told: bool = False
    ended: bool = False

    def tell(self, plan: dict[str, Any]) -> None:
        """Give it its plan, and with it ``spawned``; whoever has it already (``ahead``) may go on."""
        self._write(b"" if self.told else json.dumps(plan | {"spawned": self.spawned}).encode())
        self.told = True

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit status says how
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """End it and whatever it forked: they share a process group of their own."""
        if self.ended:  # its number may be somebody else's by now
            return
        self.ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a child that ended at once left unread what is still held here
            self.process.stdin.close()


def start(module: str, log: Path, env: Mapping[str, str] | None = None) -> Fresh:
    """A fresh process of ``module``, whose own output goes to ``log``; ``env`` adds to its environment."""
    environment = {"KINETO_LOG_LEVEL": "5", "PYTHONUNBUFFERED": "1"} | path() | bytecode.environment() | dict(env or {})
    reader, writer = os.pipe()
    spawned = time.monotonic()
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                python(module, str(writer)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writer,),
                env=os.environ | environment,
                start_new_session=True,
            )
    finally:
        os.close(writer)
    fresh = Fresh(process, spawned)
    threading.Thread(target=_read, args=(reader, fresh), daemon=True).start()
    return fresh


def room(wanted: int) -> int:
    """How many of ``wanted`` processes can get ready side by side: as memory lets them, where a GPU's share of the
    cores is two at least; or none. Fewer than two would save no time.
    """
    import psutil

    memory = psutil.virtual_memory().available / 2**30
    found = min(wanted, int(memory / WAITING_GIB))
    return found if found > 1 and machine.cores() // machine.gpus() > 1 else 0


@contextlib.contextmanager
def started(modules: Sequence[str], environments: Sequence[Mapping[str, str]], log: Path) -> Iterator[list[Fresh]]:
    """Processes that import what they need, one of each of ``modules`` with its environment: see :func:`start`.

    Those that are left are ended.
    """
    found: list[Fresh] = []
    try:
        for module, env in zip(modules, environments, strict=True):
            found.append(start(module, log, env))
        yield found
    finally:
        for one in found:
            one.end()


@contextlib.contextmanager
def waiting(
    modules: Sequence[str], environments: Sequence[Mapping[str, str]], log: Path, early: Sequence[Fresh] = ()
) -> Iterator[list[Fresh]]:
    """Processes that wait for their plans: those :func:`started` ``early``, and then one of each of ``modules``.

    They have imported what they need, so nobody computes beside what is measured.
    """
    with started(modules, environments, log) as others:
        found = [*early, *others]
        for one in found:
            one.up.wait(LEAVE_S)
        yield found


def run_session(
    module: str,
    plan: dict[str, Any],
    log: Path,
    *,
    on_event: Callable[[Event], None],
    silence_s: float,
    env: Mapping[str, str] | None = None,
    fresh: Fresh | None = None,
) -> Casualty | None:
    """Run one fresh process over ``plan`` and hand each of its events but ``end`` to ``on_event``.

    Returns None when the child finished, else the :class:`Casualty` that ended it. A child has finished when it said
    ``end``, upon which it is ended, or left with exit status 0. ``silence_s`` is the longest it may go without an
    event; ``env`` adds to its environment. Its own output goes to ``log``. The plan gets ``spawned``: the monotonic
    clock (s) just before the process was made. ``fresh`` is one of ``module`` that waits already. Raises
    :class:`SessionError` when the child fails before it began anything; on an interrupt the child is killed and the
    interrupt passes on.
    """
    child = fresh or start(module, log, env)
    try:
        child.tell(plan)
        begun, last = _follow(child, on_event, silence_s)
        status, why = _ending(child.process, last, silence_s if begun is not None else max(silence_s, START_S))
    finally:
        child.end()
    if not why:
        return None
    if begun is None:
        told = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        last = f"; it said last:\n{told}" if told else ""
        raise SessionError(f"a measuring process ended before it began: {why}{last}")
    return Casualty(begun, status, why)


def _ending(child: subprocess.Popen[bytes], last: str, silence_s: float) -> tuple[str, str]:
    """Status and reason of how ``child`` ended, after what came ``last`` of it; no reason where all is well."""
    if last == "end":
        return "ok", ""
    if last == "garbled":
        return "crashed", "what the process said is no event"
    if last == "silent":
        return "timeout", f"no sign of life for {silence_s:.0f} s"
    try:
        code = child.wait(timeout=LEAVE_S)
    except subprocess.TimeoutExpired:  # a thread of it goes on, say
        code = None
    if code == 0:
        return "ok", ""
    if code is None:
        return "timeout", f"the process said no more, and had not ended {LEAVE_S:.0f} s later"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return "crashed", f"the process died ({how})"


def _read(reader: int, fresh: Fresh) -> None:
    """The lines that arrive at the file descriptor ``reader``, then None. The first, empty, says that it is up.

    Whoever holds its other end may outlive the session, so the thread that waits for it is the one that closes it.
    """
    with os.fdopen(reader, "r", encoding="utf-8", errors="replace") as events:
        for line in events:
            if fresh.up.is_set() or line != "\n":
                fresh.lines.put(line)
            fresh.up.set()
            if line.startswith('{"event": "ready"'):
                fresh.ready.set()
    fresh.lines.put(None)
    fresh.up.set()
    fresh.ready.set()


def _follow(child: Fresh, on_event: Callable[[Event], None], silence_s: float) -> tuple[Any, str]:
    """Hand on the child's events; returns what it began last, and what came last: "end", "closed", "silent", or
    "garbled", which a file that the child runs may have brought about."""
    begun: Any = None
    dead = False
    heard = time.monotonic()
    while time.monotonic() - heard < (silence_s if begun is not None else max(silence_s, START_S)):
        try:
            line = child.lines.get(timeout=min(0.5, silence_s))
        except queue.Empty:
            if dead:  # while a process it forked still holds the pipe
                return begun, "closed"
            dead = child.process.poll() is not None  # what it said last may be on its way still
            continue
        heard = time.monotonic()
        if line is None:
            return begun, "closed"
        if not line.endswith("\n"):
            continue  # cut off by a crash in mid-write
        try:
            event = json.loads(line)
            kind, what = event["event"], event.get("what")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return begun, "garbled"
        if kind == "end":
            return begun, "end"
        if kind == "begin":
            begun = what
        on_event(event)
    return begun, "silent"


def child_plan() -> tuple[dict[str, Any], Callable[..., None]]:
    """In the child: the plan, and ``emit(event, **fields)``. The child ends when its parent does."""
    stream = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    stream.write("\n")  # whoever waits for it to be up need wait no longer
    stream.flush()
    given = sys.stdin.readline()
    if not given:  # it was not needed, or nobody is there any more
        os._exit(0)
    plan = json.loads(given)

    def watch() -> None:
        while sys.stdin.readline():
            GO.set()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

    def emit(event: str, **fields: Any) -> None:
        stream.write(json.dumps({"event": event, **fields}) + "\n")
        stream.flush()

    return plan, emit
