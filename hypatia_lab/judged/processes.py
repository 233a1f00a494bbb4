"""The processes of a stranger's file: forked, confined, stopped but for their turn, and ended with all they started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from hypatia_lab.judged.channel import Channel, Garbled, Gone, Silent
from hypatia_lab.judged.confine import confine
from hypatia_lab.judged.referee import Referee
from hypatia_lab.judged.worker import Worker
from hypatia_lab.kernels.loader import cache_folder
from hypatia_lab.probes.probe import Ended
from hypatia_lab.strangers import tasks
from hypatia_lab.strangers.reader_kernel import BASELINES
from hypatia_lab.variants import AGAIN

LARGEST = 0.8
"""Share of the machine's memory that one process may hold."""
REST_S, LOOK_S = 0.4, 0.3
"""So long threads may wait for more work; for so long processes are then looked at."""
DEATH_S = 2.0
"""A process whose end of the conversation is closed may take so long to die."""
REFEREE = ".referee"
"""No variant can be called that."""


def judged(variant: str) -> bool:
    """Whether ``variant`` is the file's, and no baseline."""
    return variant.removesuffix(AGAIN) not in BASELINES


class Member:
    """A process that was forked, and the conversation with it. It is stopped but for its turn."""

    def __init__(self, work: Callable[[Channel], None], confined: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # The other thread of this process waits for its parent's end, and holds nothing that a child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _become(theirs, confined, work)
        theirs.close()
        with contextlib.suppress(OSError):  # it may have done so itself, or be dead
            os.setpgid(self.pid, self.pid)
        self.channel = Channel(ours)
        self.largest = LARGEST * psutil.virtual_memory().total

    def look(self) -> None:
        """Raise :class:`Ended` when it holds too much memory, or :class:`Gone` when it is no more."""
        try:
            used = psutil.Process(self.pid).memory_info().rss
        except psutil.Error:
            raise Gone("it has ended") from None
        if used > self.largest:
            limit = self.largest / 2**30
            raise Ended("crashed", f"the process held more than the {limit:.1f} GiB that one may hold here")

    def threads(self) -> int:
        """How many threads it has; 0 where it is no more."""
        try:
            return psutil.Process(self.pid).num_threads()
        except psutil.Error:
            return 0

    def go(self, on: bool) -> None:
        """Let it go on, or stop it."""
        with contextlib.suppress(Gone):
            self.deliver(signal.SIGCONT if on else signal.SIGSTOP)

    def spent_s(self) -> float:
        """Processor time (s) that it and all it has started have used."""
        total = 0.0
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(self.pid)
            for one in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    total += times.user + times.system
        return total

    def deliver(self, which: signal.Signals) -> None:
        """Send it, and all that it has started, a signal. Raises :class:`Gone` when it is no more."""
        try:
            os.killpg(self.pid, which)
        except ProcessLookupError:
            raise Gone("it has ended") from None
        for pid in _descendants(self.pid):  # whoever has left the group, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)

    def kill(self) -> None:
        """Have it end, and wait for nothing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, patience_s: float = 0.0) -> str:
        """Kill it and what it has started; how it ended, if it did so by itself within ``patience_s``."""
        descendants = _descendants(self.pid)
        until = time.monotonic() + patience_s
        with contextlib.suppress(ChildProcessError):
            while not (done := os.waitpid(self.pid, os.WNOHANG))[0] and time.monotonic() < until:
                time.sleep(0.01)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            for pid in descendants:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.channel.close()
            code = os.waitstatus_to_exitcode((done if done[0] else os.waitpid(self.pid, 0))[1])
            return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return "it had ended before"


def _descendants(pid: int) -> list[int]:
    """The processes that ``pid`` has started, and those that these have. Source: man 5 proc, task/tid/children."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children = [int(one) for one in listed.read_text().split()]
            found += [one for child in children for one in (child, *_descendants(child))]
    return found


def _become(end: socket.socket, confined: Callable[[], None], work: Callable[[Channel], None]) -> None:
    """What a forked process does: it lets go of all that is the coordinator's, and works until nobody asks any more."""
    code = 1
    try:
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != end.fileno():
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(int(name))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setpgid(0, 0)
        confined()
        work(Channel(end))
    except Gone:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


class Processes:
    """The referee and the workers of one plan, by name; who is not there is forked when he is first asked to start."""

    def __init__(self, plan: dict[str, Any], beat: Callable[[], None]) -> None:
        self.plan, self.beat = plan, beat
        self.caches = cache_folder() / "judged"
        self.members: dict[str, Member] = {}

    def __contains__(self, who: str) -> bool:
        return who in self.members

    def fork(self, who: str) -> None:
        """Fork ``who``, which is then to be asked to start."""
        source, number, device = (self.plan[name] for name in ("source", "number", "device"))
        load = partial(tasks.load, source, number, candidate=who != REFEREE and judged(who))

        def work(channel: Channel) -> None:
            if who == REFEREE:
                Referee(channel, load, device).serve()
            else:
                Worker(channel, load, device, who).serve()

        scratch = Path(self.plan["folder"]).resolve() / "scratch" / f"{number}-{who}"
        # What a problem's own Model makes serves every candidate for it, none of which is run there.
        apart = source["kind"] in tasks.FORMATS and not judged(who)
        digest = tasks.FORMATS[source["kind"]].problem_digest(Path(source["problem"])) if apart else source["digest"]
        self.members[who] = Member(work, partial(confine, scratch, self.caches / digest / who))

    def ask(self, who: str, command: str, files: Sequence[int] = (), **more: Any) -> Any:
        """The answer of ``who`` to ``command``. Raises :class:`Ended`."""
        with self.turn(who) as (member, waits):
            member.channel.send({"command": command, **more}, files)
            return member.channel.receive(**waits)

    def ask_all(
        self, names: Sequence[str], command: str, files: Mapping[str, Sequence[int]], **more: Any
    ) -> dict[str, Any]:
        """The answers of all ``names`` to ``command``, who work on it at the same time; or an :class:`Ended`, each."""
        for who in names:
            with contextlib.suppress(Gone):  # it is told below how it ended
                self.members[who].go(True)
                self.members[who].channel.send({"command": command, **more}, files.get(who, ()))
        found: dict[str, Any] = {}
        for who in names:
            try:
                with self.turn(who) as (member, waits):
                    found[who] = member.channel.receive(**waits)
            except Ended as cause:
                found[who] = cause
        return found

    @contextlib.contextmanager
    def turn(self, who: str) -> Any:
        """While the body runs ``who`` goes on; it gets the :class:`Member`, and how its channel is to be waited for.

        Raises :class:`Ended` for whatever goes wrong in the conversation; ``who`` is no more then.
        """
        member = self.members[who]

        def look() -> None:
            self.beat()
            member.look()

        try:
            member.deliver(signal.SIGCONT)
            yield member, {"silence_s": self.plan["silence_s"], "beat": look}
            member.deliver(signal.SIGSTOP)
        except Silent as cause:
            self.end(who)
            raise Ended("timeout", str(cause)) from None
        except Garbled as cause:
            self.end(who)
            raise Ended("cheated", f"its process spoke out of turn: {cause}") from None
        except Gone:
            raise Ended("crashed", f"the process died ({self.end(who, DEATH_S)})") from None
        except Ended:
            self.end(who)
            raise

    def idles(self, names: Sequence[str]) -> dict[str, float]:
        """Share of a core that each of ``names`` uses while nobody asks for anything."""
        there = {name: self.members[name] for name in names}
        for member in there.values():
            member.go(True)
        time.sleep(REST_S)
        before = {name: member.spent_s() for name, member in there.items()}
        start = time.perf_counter()
        time.sleep(LOOK_S)
        passed = time.perf_counter() - start
        found = {name: (member.spent_s() - before[name]) / passed for name, member in there.items()}
        for member in there.values():
            member.go(False)
        return found

    def end(self, who: str, patience_s: float = 0.0) -> str:
        """End the process of ``who``; see :meth:`Member.end`."""
        return self.members.pop(who).end(patience_s)

    def close(self) -> None:
        """End every process, and leave no folder of caches in which there is nothing."""
        for member in self.members.values():
            member.kill()  # all at once, for to end takes each a moment
        for member in self.members.values():
            member.end()
        for folder in sorted(self.caches.glob("*/*"), reverse=True) + sorted(self.caches.glob("*")):
            with contextlib.suppress(OSError):
                folder.rmdir()
