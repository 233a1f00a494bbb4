"""One fresh process of a measurement of a stranger's kernel: it asks, times and compares, and runs nothing of the file.

It reads the same plan as :mod:`hypatia_lab.bench.cells` and tells the same rows.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import psutil

from hypatia_lab import check, clock, machine, reader_kernel
from hypatia_lab.bench.cells import Pace, row
from hypatia_lab.judged import evidence
from hypatia_lab.judged.channel import Channel, Garbled, Gone, Shelf, Silent
from hypatia_lab.judged.confine import confine
from hypatia_lab.judged.referee import Referee
from hypatia_lab.judged.worker import AGAIN, FRESH, TIMED, WRITTEN, Worker, key
from hypatia_lab.kernels.loader import cache_folder
from hypatia_lab.profiler import sessions
from hypatia_lab.reader_kernel import BASELINES
from hypatia_lab.tasks import kernelbench
from hypatia_lab.variants import AGAIN as TWIN

LARGEST = 0.8
"""Share of the machine's memory that one process may hold."""
LOOKED_AT = 2
"""Processes that look whether a variant goes on computing, which takes a second each."""
REST_S, LOOK_S = 0.4, 0.3
"""So long threads may wait for more work; for so long a process is then looked at."""
OUTSIDE = ("wall", "hot", "graph")
"""Clocks of which a whole sample is timed."""
ROUNDS = ((0.05, 5), (0.5, 2))
"""Calls (s) below which there are so many rounds at least: something has to be said of everybody."""
AMID_S = 2e-3
"""Inputs change amid calls after so many of these."""
JUDGED_S = 0.5
"""Of the time of a clock's samples so much may go to judging outputs of timed calls, beside the first ones."""


class Ended(Exception):
    """A process of the file's that cannot go on: status and reason."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Member:
    """A process that was forked, and the conversation with it. It is stopped but for its turn."""

    def __init__(self, work: Callable[[Channel], None], folder: Path, caches: Path, *, secret: bool = False) -> None:
        ours, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # The other thread of this process waits for its parent's end, and holds nothing that a child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _become(theirs, partial(confine, folder, caches, secret=secret), work)
        theirs.close()
        with contextlib.suppress(OSError):  # it may have done so itself, or be dead
            os.setpgid(self.pid, self.pid)
        self.channel = Channel(ours)
        self.largest = LARGEST * psutil.virtual_memory().total

    def ask(
        self, command: str, silence_s: float, beat: Callable[[], None], files: Sequence[int] = (), **more: Any
    ) -> Any:
        """Its answer to ``command``. Raises :class:`Ended`."""
        with self.turn(silence_s, beat) as waits:
            self.channel.send({"command": command, **more}, files)
            return self.channel.receive(**waits)

    @contextlib.contextmanager
    def turn(self, silence_s: float, beat: Callable[[], None]) -> Any:
        """While the body runs it goes on. Whatever goes wrong in the conversation is an :class:`Ended`."""

        def look() -> None:
            beat()
            self.look()

        try:
            self._signal(signal.SIGCONT)
            yield {"silence_s": silence_s, "beat": look}
            self._signal(signal.SIGSTOP)
        except Silent as cause:
            self.end()
            raise Ended("timeout", str(cause)) from None
        except Garbled as cause:
            self.end()
            raise Ended("cheated", f"its process spoke out of turn: {cause}") from None
        except Gone:
            raise Ended("crashed", f"the process died ({self.end()})") from None
        except Ended:
            self.end()
            raise

    def look(self) -> None:
        """Raise :class:`Ended` when it holds too much memory, or :class:`Gone` when it is no more."""
        try:
            used = psutil.Process(self.pid).memory_info().rss
        except psutil.Error:
            raise Gone("it has ended") from None
        if used > self.largest:
            limit = self.largest / 2**30
            raise Ended("crashed", f"the process held more than the {limit:.1f} GiB that one may hold here")

    def idles(self) -> float:
        """Share of a core that it uses while nobody asks it for anything."""

        def spent() -> float:
            total = 0.0
            for one in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    total += times.user + times.system
            return total

        try:
            top = psutil.Process(self.pid)
            self._signal(signal.SIGCONT)
            time.sleep(REST_S)
            before, start = spent(), time.perf_counter()
            time.sleep(LOOK_S)
            share = (spent() - before) / (time.perf_counter() - start)
            self._signal(signal.SIGSTOP)
        except (psutil.Error, Gone):
            return 0.0
        return share

    def _signal(self, which: signal.Signals) -> None:
        try:
            os.killpg(self.pid, which)
        except ProcessLookupError:
            raise Gone("it has ended") from None
        for pid in _descendants(self.pid):  # whoever has left the group, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)

    def end(self) -> str:
        """Kill it and what it has started; how it had ended, if it had."""
        descendants = _descendants(self.pid)
        with contextlib.suppress(ChildProcessError):
            done, status = os.waitpid(self.pid, os.WNOHANG)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            for pid in descendants:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not done:
                os.waitpid(self.pid, 0)
            self.channel.close()
            code = os.waitstatus_to_exitcode(status)
            return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return "already ended"


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


@dataclass
class Case:
    """A variant on one workload: its process, what is shared with it, and what is known of it."""

    name: str
    judged: bool
    inbox: Shelf
    outbox: Shelf
    status: str = "ok"
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    found: check.Check | None = None
    looks: Any = None
    addresses: dict[str, int] = field(default_factory=dict)
    aliased: set[str] = field(default_factory=set)
    shown: bool = False
    timings: dict[str, clock.Timing | str] = field(default_factory=dict)
    seen: dict[str, evidence.Seen] = field(default_factory=dict)

    def fail(self, status: str, reason: str, numbers: dict[str, Any] | None = None) -> None:
        """It has no time; what was found first counts."""
        if self.status == "ok":
            self.status, self.reason, self.evidence = status, reason, numbers or {}


class Coordinator:
    """One fresh process: runs every group of the plan and emits one row a variant and clock."""

    def __init__(self, plan: dict[str, Any], emit: Callable[..., None]) -> None:
        self.plan, self.emit = plan, emit
        self.device: str = plan["device"]
        self.number: int = plan["number"]
        self.excluded: dict[str, tuple[str, str]] = {key: tuple(v) for key, v in plan["excluded"].items()}
        self.probe = machine.Probe(self.device)
        self.pace = Pace()
        self.folder = Path(plan["folder"]).resolve()
        self.caches = cache_folder() / "judged" / plan["source"]["digest"]
        self.members: dict[str, Member] = {}
        self.layout: dict[str, Any] = {}

    def _beat(self) -> None:
        self.emit("alive")

    def _ask(self, who: str, command: str, files: Sequence[int] = (), **more: Any) -> Any:
        return self.members[who].ask(command, self.plan["silence_s"], self._beat, files, **more)

    def _load(self, judged: bool) -> Callable[[], object]:
        source = self.plan["source"]
        path = Path(source["path"])
        if source["kind"] == kernelbench.KIND:
            problem = Path(source["problem"])
            return partial(kernelbench.load, path, problem, source["digest"], self.number, candidate=judged)
        return partial(reader_kernel.load, path, source["digest"])

    def _fork(self, who: str) -> None:
        """Start the process of the variant ``who``, or the referee's, whose name is empty."""
        load = self._load(judged=bool(who) and who.removesuffix(TWIN) not in BASELINES)
        caches = self.caches / (who or "referee")

        def work(channel: Channel) -> None:
            if who:
                Worker(channel, who, self.device, load).serve()
            else:
                Referee(channel, self.device, load).serve()

        folder = self.folder / "scratch" / f"{self.number}-{who or 'referee'}"
        self.members[who] = Member(work, folder, caches, secret=not who)

    def close(self) -> None:
        """End every process, and leave no folder of caches in which there is nothing."""
        for member in self.members.values():
            member.end()
        with contextlib.suppress(OSError):
            for folder in self.caches.iterdir():
                with contextlib.suppress(OSError):
                    folder.rmdir()
            self.caches.rmdir()

    def run(self, index: int, data: dict[str, Any]) -> None:
        """Check and time the variants of the group ``data``, and tell a row of each and every clock."""
        self.emit("begin", what=[index, ""])
        names, clocks = data["variants"], data["clocks"] or ["none"]
        try:
            status, reason = self.excluded.get(f"{index}/", ("", ""))
            if not status:
                status, reason = self._begin(data["workload"])
        except Ended as cause:
            self.members.pop("", None)
            status, reason = cause.status, cause.reason
        if status:
            reason = f"nothing was run, for the inputs could not be drawn: {reason}"
            for name in names:
                for word in clocks:
                    self.emit("row", **row(index, name, word, status, reason, None))
            return
        cases = [self._case(name) for name in names]
        try:
            self._run(index, data, cases)
        except Ended as cause:  # the referee: nothing can be said of anybody any more
            self.members.pop("", None)
            for case in cases:
                case.fail(cause.status, f"nobody was left to judge it: {cause.reason}")
        for case in cases:
            self._tell(index, case, clocks)
            case.inbox.close()
            case.outbox.close()

    def _run(self, index: int, data: dict[str, Any], cases: list[Case]) -> None:
        # Built in another order in each process: what the first one gains must not always be the same one's.
        random.Random(f"{self.number}/{index}").shuffle(cases)
        for case in cases:
            if key := self.excluded.get(f"{index}/{case.name}"):
                case.fail(*key)
        for case in self._going(cases):
            self._one(index, case, self._build, data["workload"])
        self._check(index, cases)
        for case in self._going(cases):
            self._one(index, case, self._paced, data["workload"])
        for word in data["clocks"]:
            self._time(index, word, data["budget_s"], self._going(cases))
        self._finish(index, cases)

    def _begin(self, workload: dict[str, Any]) -> tuple[str, str]:
        """Let the referee draw; status and reason where that fails."""
        if "" not in self.members:
            self._fork("")
            started = self._ask("", "start")
            if "crashed" in started:
                return "crashed", started["crashed"]
            if told := evidence.tampering(started["replaced"], started["changed"], "while the file was loaded"):
                return "cheated", told
        found = self._ask("", "group", workload=workload)
        if "crashed" in found:
            return "crashed", found["crashed"]
        self.layout, self.drawn, self.passed = found, Shelf(found["inputs"]), False
        return "", ""

    def _case(self, name: str) -> Case:
        judged = name.removesuffix(TWIN) not in BASELINES
        return Case(name, judged, Shelf(self.layout["inputs"]), Shelf(self.layout["outputs"]))

    @staticmethod
    def _going(cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if case.status == "ok"]

    def _one(self, index: int, case: Case, work: Callable[..., Any], *given: Any) -> None:
        """Do ``work`` with ``case``, which fails if its process does."""
        self.emit("begin", what=[index, case.name])
        try:
            work(case, *given)
        except Ended as cause:
            case.fail(cause.status, cause.reason)
            self.members.pop(case.name, None)

    def _said(self, case: Case, found: dict[str, Any], when: str) -> dict[str, Any]:
        """Take up what a process says of itself."""
        told = evidence.tampering(_names(found.get("replaced")), _names(found.get("changed")), when)
        own = self.plan["source"]["kind"] == "own" and when == "while the file was loaded"
        if told and (case.judged or own):
            case.fail("cheated", told)
        elif "crashed" in found:
            case.fail("crashed", str(found["crashed"]))
        return found

    def _draw(self) -> None:
        files = () if self.passed else (self.drawn.file,)
        self.passed = True
        found = self._ask("", "draw", files, layout=self.layout["inputs"])
        if "crashed" in found:
            raise Ended("crashed", f"inputs could not be drawn: {found['crashed']}")

    def _judge(self, case: Case, place: str, looks: Any) -> check.Check:
        """What the referee says of the output that ``case`` has left at ``place``."""
        if not isinstance(looks, dict) or not _plain(looks):
            return check.Check("wrong type: something else than a tensor")
        case.aliased |= set(_names(looks.get("aliased")))
        for look in looks["looks"]:
            if look["tensor"] and not look["plain"]:
                return check.Check(
                    f"wrong type: {look['type']}, which may compute when it is read, instead of a tensor"
                )
        files = () if case.shown else (case.outbox.file,)
        case.shown = True
        host = case.name in self.layout.get("host", ())
        found = self._ask(
            "", "judge", files, worker=case.name, layout=self.layout["outputs"], place=place, looks=looks, host=host
        )
        if "crashed" in found:
            return check.Check(f"not to be judged: {found['crashed']}")
        return check.Check(**found)

    def _build(self, case: Case, workload: dict[str, Any]) -> None:
        if case.name not in self.members:
            self._fork(case.name)
            self._said(case, self._ask(case.name, "start"), "while the file was loaded")
            if case.status != "ok":
                return
        pace = (case.name, *self.layout["parts"], workload["dtype"], workload["math"])
        if told := self.pace.too_long(pace, self.layout["amount"]):
            case.fail("skipped", told)
            return
        files = (case.inbox.file, case.outbox.file)
        layout = {"described": self.layout["inputs"], "outputs": self.layout["outputs"]}
        found = self._said(
            case, self._ask(case.name, "build", files, workload=workload, **layout), "while it was built"
        )
        if "skipped" in found:
            case.fail("skipped", str(found["skipped"]))
        addresses = found.get("addresses")
        if isinstance(addresses, dict) and set(addresses) == {name for name, *_ in self.layout["inputs"]}:
            case.addresses = {name: where for name, where in addresses.items() if type(where) is int and where > 0}

    def _check(self, index: int, cases: Sequence[Case]) -> None:
        """Two draws, of which each answer is judged."""

        def call(case: Case) -> None:
            case.inbox.copy_from(self.drawn)
            found = self._said(case, self._ask(case.name, "call", poison=self.layout["poison"]), "in its first calls")
            if case.status == "ok":
                verdict, case.looks = self._judge(case, FRESH, found), found
                case.found = check.worse(case.found, verdict) if case.found and verdict.ok else verdict
                if not verdict.ok:
                    case.fail("wrong", verdict.reason)

        for _ in range(2):
            self._draw()
            for case in self._going(cases):
                self._one(index, case, call)
        for case in self._going(cases)[:1]:
            self._one(index, case, self._ensure_judged, cases)

    def _ensure_judged(self, case: Case, cases: Sequence[Case]) -> None:
        """An output that was right is no more once it is spoilt, unless the file has changed the check."""
        case.outbox.spoil(key(0, FRESH))
        if self._judge(case, FRESH, case.looks).ok:
            for one in cases:
                one.fail(
                    "cheated", "its file has changed the check: an output that was spoilt on purpose is right to it"
                )

    def _paced(self, case: Case, workload: dict[str, Any]) -> None:
        pace = (case.name, *self.layout["parts"], workload["dtype"], workload["math"])

        def call() -> float:
            start = time.perf_counter()
            self._said(case, self._ask(case.name, "pace"), "in its first calls")
            return time.perf_counter() - start

        if told := self.pace.seen(pace, self.layout["amount"], call):
            case.fail("skipped", told)

    def _time(self, index: int, word: str, budget_s: float, cases: Sequence[Case]) -> None:
        """Rounds as :func:`clock.measure` has them, each half on inputs of its own."""
        shuffle = random.Random(f"{self.number}/{index}/{word}").shuffle
        order = list(cases)
        shuffle(order)
        slowest = 0.0

        def prepare(case: Case) -> None:
            nonlocal slowest
            found = self._said(case, self._ask(case.name, "prepare", word=word), "while it was timed")
            if "untimed" in found:
                case.timings[word] = str(found["untimed"])
            elif case.status == "ok":
                calls, seconds = found.get("calls"), found.get("seconds")
                if type(calls) is not int or not 0 < calls <= clock.MAX_CALLS or not _positive(seconds):
                    raise Ended("cheated", "its process spoke out of turn: a sample has no such number of calls")
                slowest = max(slowest, seconds)
                case.timings[word], case.seen[word] = clock.Timing(calls), evidence.Seen(calls)

        for case in order:
            self._one(index, case, prepare)
        order = [case for case in self._going(order) if isinstance(case.timings.get(word), clock.Timing)]
        least = next((rounds for seconds, rounds in ROUNDS if slowest < seconds), 1)
        timing, judging = 0.0, 0.0
        for number in range(clock.MAX_ROUNDS):
            if number >= least and timing > budget_s * len(order):
                break
            shuffle(order)
            for half in (order, order[::-1]):
                self._draw()
                # Nobody can know which calls are looked at before they are made.
                looks = not judging or (judging < JUDGED_S * budget_s * len(order) and secrets.randbelow(2) == 0)
                for case in self._going(half):
                    begun = time.perf_counter()
                    place = secrets.choice((FRESH, FRESH, TIMED, AGAIN)) if looks else ""
                    self._one(index, case, self._visit, word, place)
                    seen = time.perf_counter()
                    timing += seen - begun
                    if looks and case.status == "ok":
                        self._one(index, case, self._looked, place)
                        judging += time.perf_counter() - seen
        self._weigh(word, self._going(order))

    def _weigh(self, word: str, cases: Sequence[Case]) -> None:
        """What the samples of all ``cases`` under the clock ``word`` say of those that are judged."""
        base = next((case for case in cases if case.name == BASELINES[0]), None)
        usual = base.seen[word] if base else evidence.Seen(1)
        for case in cases:
            if case.judged and word in OUTSIDE:
                seen = case.seen[word]
                tests = (evidence.clock(seen, usual), evidence.memory(seen, usual), evidence.bursts(seen, usual))
                for told, numbers in (*tests, evidence.aside(seen, usual)):
                    if told:
                        case.fail("cheated", told, numbers)

    def _visit(self, case: Case, word: str, show: str) -> None:
        """One visit, see :meth:`Worker.visit`: what it says goes with what was seen from here.

        It is made to ``show`` the output of one of its calls, once that is made.
        """
        member, timing = self.members[case.name], case.timings[word]
        assert isinstance(timing, clock.Timing)
        spans: dict[str, float] = {}
        asked: list[float] = []
        answered: list[float] = []
        with member.turn(self.plan["silence_s"], self._beat) as waits:
            channel = member.channel

            def mark() -> float:
                answered.append(channel.marked(**waits))
                return answered[-1]

            def say(**message: bool) -> None:
                asked.append(time.perf_counter())
                channel.send(message)

            channel.send({"command": "visit", "word": word})
            for place in (FRESH, TIMED, AGAIN):
                if place != TIMED:
                    mark()
                    case.inbox.copy_from(self.drawn)
                    say(go=True)
                begun = mark()
                ended = channel.marked(**waits)
                # Who is held up reads two marks at once; nothing began before it was asked to.
                spans[place] = ended - begun if ended > begun else ended - asked[-1]
                say(show=place == show)
            found = channel.receive(**waits)
            answered.append(time.perf_counter())
        self._said(case, found, "while it was timed")
        if case.status != "ok":
            return
        new, sample, again = (found.get(name) for name in ("new_s", "sample_s", "again_s"))
        if not (_positive(new) and _positive(sample) and _positive(again)):
            raise Ended("cheated", "its process spoke out of turn: it told no times")
        seen = case.seen[word]
        seen.new_s.append(new)
        seen.again_s.append(again)
        seen.told_s.append(sample * timing.calls)
        seen.passed_s.append(spans[TIMED])
        between = sum(mark - begun for begun, mark in zip(asked, answered[1:], strict=True))
        (seen.shown_s if show else seen.aside_s).append(between)
        timing.samples_us.append(sample * 1e6)
        timing.readings.append(self.probe())
        self.left = found.get(show)

    def _looked(self, case: Case, place: str) -> None:
        """Judge the output that the visit before has left at ``place``."""
        verdict = self._judge(case, place, self.left)
        if not verdict.ok:
            case.fail(*_amid_calls(verdict.reason))

    def _finish(self, index: int, cases: Sequence[Case]) -> None:
        """What is looked at when all is timed: one more answer, what goes on by itself, whose memory an output is."""
        self._draw()

        def again(case: Case) -> None:
            case.inbox.copy_from(self.drawn)
            found = self._said(case, self._ask(case.name, "call", poison=[]), "after it was timed")
            if case.status == "ok" and not (verdict := self._judge(case, FRESH, found)).ok:
                case.fail("wrong", f"after timing: {verdict.reason}")
            if case.status == "ok" and case.judged and self.number < LOOKED_AT:
                told, numbers = evidence.idling(self.members[case.name].idles())
                if told:
                    case.fail("cheated", told, numbers)

        def amid(case: Case) -> None:
            member = self.members[case.name]
            with member.turn(self.plan["silence_s"], self._beat) as waits:
                member.channel.send({"command": "amid"})
                member.channel.marked(**waits)
                time.sleep(AMID_S * secrets.randbelow(10))
                there = self.drawn.write_into(member.pid, case.addresses)
                case.outbox[WRITTEN].fill_(1)
                found = member.channel.receive(**waits)
            if not there:
                return
            self._said(case, found, "after it was timed")
            if case.status == "ok" and not (verdict := self._judge(case, FRESH, found)).ok:
                case.fail(*_amid_calls(verdict.reason))

        for case in self._going(cases):
            self._one(index, case, again)
        self._draw()
        for case in self._going(cases):
            if case.judged and len(case.addresses) == len(self.layout["inputs"]):
                self._one(index, case, amid)
        allowed = next((case.aliased for case in cases if case.name == BASELINES[0]), set())
        for case in self._going(cases):
            if case.judged and (told := evidence.aliased(case.aliased, allowed)):
                case.fail("cheated", told)

    def _tell(self, index: int, case: Case, clocks: Sequence[str]) -> None:
        for word in clocks:
            timing = case.timings.get(word)
            status, reason = case.status, case.reason
            if status == "ok" and word == "none":
                reason = "checked only"
            elif status == "ok" and not isinstance(timing, clock.Timing):
                status, reason = "skipped", timing or "it was not timed"
            own = timing if isinstance(timing, clock.Timing) and status == "ok" else None
            told = row(index, case.name, word, status, reason, case.found, own)
            self.emit("row", **told, evidence=case.evidence if status == "cheated" else {})


def _amid_calls(reason: str) -> tuple[str, str]:
    """Status and reason of an output that is wrong for that ``reason``, of a variant that was right when checked."""
    if reason.startswith("stale"):
        return "cheated", "it remembers answers: of a call among others it gave that to the inputs before"
    return "wrong", f"right when it was checked, not among other calls: {reason}"


def _names(found: Any) -> list[str]:
    """What a process lists of itself, as text."""
    return [str(one)[:120] for one in found[:20]] if isinstance(found, list) else []


def _positive(found: Any) -> TypeGuard[float]:
    return type(found) in (int, float) and 0 < found < float("inf")


def _plain(looks: dict[str, Any]) -> bool:
    """Whether ``looks`` describes an output as a worker does."""
    parts = looks.get("looks")
    if not isinstance(parts, list) or not parts or not isinstance(looks.get("tuple"), bool):
        return False
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            return False
        if part.get("tensor") is True:
            shape, dtype = part.get("shape"), part.get("dtype")
            if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
                return False
            if not isinstance(dtype, str) or not isinstance(part.get("device"), str) or not dtype.isidentifier():
                return False
    return True


def main() -> None:
    """Entry of a fresh process; see :mod:`hypatia_lab.profiler.sessions`."""
    # Headers compiled in advance take 150 MB and nine seconds, and each variant would have its own.
    os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
    import torch._dynamo  # noqa: F401  # whatever reads a reader's file needs it, and a fork has it already

    plan, emit = sessions.child_plan()
    coordinator = Coordinator(plan, emit)
    try:
        for index, data in plan["groups"]:
            coordinator.run(index, data)
            emit("done", group=index)
    finally:
        coordinator.close()
    emit("end")


if __name__ == "__main__":
    main()
