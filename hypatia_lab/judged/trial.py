"""The variants of one workload, each in a process of its own: built, checked, timed, and held against what is seen."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hypatia_lab import check, clock
from hypatia_lab.bench import joining
from hypatia_lab.bench.cells import Case
from hypatia_lab.judged import evidence, worker_replies
from hypatia_lab.judged.confine import FULL
from hypatia_lab.judged.processes import REFEREE, judged
from hypatia_lab.judged.shelf import Shelf
from hypatia_lab.judged.worker import AGAIN, CALLS, FRESH, IN_PLACE, LEFT, TIMED, WRITTEN
from hypatia_lab.probes.probe import Ended
from hypatia_lab.strangers.reader_kernel import BASELINES

if TYPE_CHECKING:
    from hypatia_lab.judged.coordinator import Coordinator

LOADED = "while the file was loaded"
BEFORE, AFTER = 0, 1
"""In which processes of a measurement it is looked, before timing or after it, whether somebody goes on computing."""
QUIET_S = 5.0
"""So long what others have left to the GPU may take."""
OUTSIDE = ("wall", "hot", "graph")
"""Clocks of which a whole sample is timed."""
ROUNDS = ((0.25, 5), (2.0, 2))
"""Visits (s) below which there are so many rounds at least: something has to be said of everybody."""
AMID_S = 2e-3
"""Inputs change amid calls after so many of these."""
JUDGED_S = 0.5
"""Of the time of a clock's samples so much may go to judging outputs of timed calls, beside the first ones."""


@dataclass
class Contender(Case):
    """A case with what its process shares with the coordinator, and what was seen of it.

    ``files`` are those of its shelves, of inputs and of outputs, which the referee has laid out.
    """

    written: Shelf = field(default_factory=lambda: Shelf(WRITTEN))
    files: list[int] = field(default_factory=list)
    looks: Any = None
    left_s: list[float] = field(default_factory=list)
    addresses: dict[str, int] = field(default_factory=dict)
    aliased: set[str] = field(default_factory=set)
    threads: list[int] = field(default_factory=list)
    seen: dict[str, evidence.Seen] = field(default_factory=dict)

    def let_go(self) -> None:
        """Let go of what it shares: memory of a GPU is there as long as somebody has its file."""
        while self.files:
            os.close(self.files.pop())

    @property
    def judged(self) -> bool:
        """Whether it is the file's, and no baseline."""
        return judged(self.name)


class Trial:
    """The group ``data`` of a plan in one fresh process. ``layout`` is what the referee tells of it."""

    def __init__(self, coordinator: Coordinator, index: int, data: dict[str, Any], layout: Any) -> None:
        self.index, self.data, self.layout = index, data, layout
        self.processes, self.probe = coordinator.processes, coordinator.probe
        self.started, self.tampered, self.go_ahead = coordinator.started, coordinator.tampered, coordinator.go_ahead
        self.ensure_taken = coordinator.ensure_taken
        self.pace, self.number, self.begin = coordinator.pace, coordinator.number, coordinator.begin
        self.luck = random.SystemRandom()  # what a judged file could not foretell
        self.cases = [Contender(name) for name in data["variants"]]
        self.there: Sequence[Contender] = self.cases

    def run(self) -> None:
        """Fill the cases, which may have failed before."""
        try:
            # Built in another order in each process: what the first one gains must not always be the same one's.
            self.luck.shuffle(self.cases)
            wanted = len(self.cases) * self.layout["holds"] + self.layout["judging"]
            if self.probe.free_bytes() > wanted:  # the GPU holds all of them at the same time
                self._together()
                return
            for case in self.cases:  # of each other they are told apart by their times alone
                self.there = [case]
                self._together()
                self._leave(case)
            self.there = self.cases
            self._weigh()
        except Ended as cause:  # the referee: nothing can be said of anybody any more
            for case in self.cases:
                case.fail(cause.status, f"nobody was left to judge it: {cause.reason}")

    def _together(self) -> None:
        """All that is done with those who are there at the same time."""
        for case in self.there:
            self._ask("lay_out", worker=case.name, inputs=self.layout["inputs"], outputs=self.layout["outputs"])
            case.files = self.processes.members[REFEREE].channel.files(2)
        self._build()
        self._check()
        self._all("settle", "in its first calls", {})
        for case in self._going():
            case.threads.append(self.processes.members[case.name].threads())
        self.go_ahead()
        for case in self._going():
            self._one(case, self._paced)
        usual = [left for case in self._going() if not case.judged for left in case.left_s]
        for case in self._going():
            told, numbers = evidence.behind(case.left_s, usual)
            if case.judged and told:
                case.fail("cheated", told, numbers)
        if self.number == BEFORE:
            self._rest()
        for word in self.data["clocks"]:
            self._time(word)
        self._finish()

    def close(self) -> None:
        """Let go of all that is shared."""
        for case in self.cases:
            case.written.close()
            case.let_go()

    def _going(self, cases: Sequence[Contender] | None = None) -> list[Contender]:
        return [case for case in (self.there if cases is None else cases) if case.status == "ok"]

    def _one(self, case: Contender, work: Callable[..., Any], *given: Any) -> None:
        """Do ``work`` with ``case``, which fails if its process does."""
        self.begin(self.index, case.name)
        try:
            work(case, *given)
        except Ended as cause:
            if REFEREE not in self.processes:
                raise
            case.fail(cause.status, cause.reason)

    def _said(self, case: Contender, found: dict[str, Any], when: str) -> dict[str, Any]:
        """Take up what a process says of itself."""
        told = evidence.tampering(
            worker_replies.names(found.get("replaced")), worker_replies.names(found.get("changed")), when
        )
        if told and (case.judged or (when == LOADED and self.processes.plan["source"]["kind"] == "own")):
            case.fail("cheated", self.tampered.setdefault(case.name, told))
        elif "crashed" in found:
            # Beside others that got ready with it, a file's own may have had too little; by itself it takes too much.
            if found.get("full") and (not case.judged or self.processes.plan.get("ahead")):
                self.ensure_taken({"refused": FULL, "fault": "machine"})
            case.fail("crashed", str(found["crashed"]))
        return found

    # ------------------------------------------------------------ the referee

    def _ask(self, command: str, **more: Any) -> dict[str, Any]:
        """What the referee says. Raises :class:`Ended` where nothing can be judged without it."""
        found = self.processes.ask(REFEREE, command, **more)
        self.ensure_taken(found)
        if "crashed" in found:
            raise Ended("crashed", f"inputs could not be drawn: {found['crashed']}")
        return found

    def _leave(self, case: Contender) -> None:
        """End the process of ``case``, and with it all that it holds of the GPU."""
        if case.name in self.processes:
            self.processes.end(case.name)
        case.let_go()
        self._ask("let_go", worker=case.name)

    def _fill(self, *cases: Contender) -> None:
        """Put what was drawn last where ``cases`` take it from."""
        self._ask("fill", workers=[case.name for case in cases])

    def _judge(self, case: Contender, looks: Any, *, beside: bool = False) -> check.Check:
        """What the referee says of the output that ``case`` has left.

        With ``beside``, what a rule of the task's own says of it is taken up, too.
        """
        if not worker_replies.output(looks):
            return check.Check("wrong type: something else than a tensor")
        case.aliased |= set(worker_replies.names(looks.get("aliased")))
        for look in looks["looks"]:
            if look["tensor"] and not look["plain"]:
                return check.Check(f"wrong type: {look['type']}, which may compute when read, instead of a tensor")
        found = self.processes.ask(REFEREE, "judge", worker=case.name, looks=looks, beside=beside)
        self.ensure_taken(found)
        if "crashed" in found:
            return check.Check(f"not to be judged: {found['crashed']}")
        case.beside = joining.largest([case.beside, found.pop("beside", {})])
        return check.Check(**found)

    # ------------------------------------------------------------ built and checked

    def _who(self, case: Contender) -> tuple[str, ...]:
        """Whose pace it is."""
        workload = self.data["workload"]
        return (case.name, *self.layout["parts"], workload["dtype"], workload["math"])

    def _all(self, command: str, when: str, files: Mapping[str, Sequence[int]], **more: Any) -> dict[str, Any]:
        """What those still going say to ``command``, all at once, taken up; a case fails if its process does."""
        names = [case.name for case in self._going()]
        self.begin(self.index)
        found = self.processes.ask_all(names, command, files, **more)
        for case in self._going():
            answer = found[case.name]
            if isinstance(answer, Ended):
                case.fail(answer.status, answer.reason)
            else:
                self._said(case, answer, when)
        return found

    def _build(self) -> None:
        for case in self._going():
            if isinstance(told := self.started[case.name], Ended):
                case.fail(told.status, told.reason)
            else:
                self._said(case, told, LOADED)
            if told := self.tampered.get(case.name):
                case.fail("cheated", told)
            if told := self.pace.too_long(self._who(case), self.layout["amount"]):
                case.fail("skipped", told)
        files = {case.name: (*case.files, case.written.file) for case in self._going()}
        more = {name: self.layout[name] for name in ("inputs", "outputs", "place", "lying")}
        found = self._all("build", "while it was built", files, workload=self.data["workload"], **more)
        for case in self._going():
            if "skipped" in found[case.name]:
                case.fail("skipped", str(found[case.name]["skipped"]))
            addresses = found[case.name].get("addresses")
            if isinstance(addresses, dict) and set(addresses) == {name for name, *_ in self.layout["inputs"]}:
                case.addresses = {name: where for name, where in addresses.items() if type(where) is int and where > 0}

    def _check(self) -> None:
        """Two draws, of which each answer is judged."""

        for _ in range(2):
            self._ask("draw")
            self._fill(*self._going())
            found = self._all("call", "in its first calls", {}, poison=self.layout["poison"])
            for case in self._going():
                case.looks = found[case.name]
                verdict = self._judge(case, case.looks, beside=case.judged)
                case.found = check.worse(case.found, verdict) if case.found and verdict.ok else verdict
                if not verdict.ok:
                    case.fail("wrong", verdict.reason)
        for case in self._going()[:1]:
            self._one(case, self._ensure_judged)

    def _ensure_judged(self, case: Contender) -> None:
        """An output that was right is no more once it is spoilt, unless the file has changed the check."""
        self._said(case, self.processes.ask(case.name, "spoil"), "in its first calls")
        if case.status == "ok" and self._judge(case, case.looks).ok:
            for one in self.cases:
                one.fail("cheated", "its file has changed the check, which takes an output that was spoilt on purpose")

    def _paced(self, case: Contender) -> None:
        def call() -> float:
            start = time.perf_counter()
            found = self._said(case, self.processes.ask(case.name, "pace"), "in its first calls")
            left = found.get("left_s")
            case.left_s.append(left if worker_replies.positive(left) else 0.0)
            return time.perf_counter() - start

        if told := self.pace.seen(self._who(case), self.layout["amount"], call):
            case.fail("skipped", told)
        if case.left_s[-1] > evidence.BEHIND_S:  # once may be a hiccup
            call()

    # ------------------------------------------------------------ timed

    def _time(self, word: str) -> None:
        """Rounds as :func:`clock.measure` has them, each half on inputs of its own."""
        shuffle = self.luck.shuffle
        order = self._going()
        shuffle(order)

        def prepare(case: Contender) -> None:
            found = self._said(case, self.processes.ask(case.name, "prepare", word=word), "while it was timed")
            if "untimed" in found:
                case.timings[word] = clock.ClockError(str(found["untimed"]))
            elif case.status == "ok":
                calls = found.get("calls")
                if type(calls) is not int or not 0 < calls <= clock.MAX_CALLS:
                    raise Ended("cheated", "its process spoke out of turn: a sample has no such number of calls")
                case.timings[word], case.seen[word] = clock.Timing(calls), evidence.Seen(calls)

        for case in order:
            self._one(case, prepare)
        order = [case for case in self._going(order) if isinstance(case.timings.get(word), clock.Timing)]
        budget_s = self.data["budget_s"] * len(order)
        timing, judging, slowest = 0.0, 0.0, 0.0
        for number in range(clock.MAX_ROUNDS):
            least = next((rounds for seconds, rounds in ROUNDS if slowest < seconds), 1)
            if number >= least and timing > budget_s:
                break
            shuffle(order)
            for half in (order, order[::-1]):
                self._ask("draw")
                # Nobody can know which calls are looked at before they are made.
                looks = not judging or (judging < JUDGED_S * budget_s and secrets.randbelow(2) == 0)
                for case in self._going(half):
                    begun = time.perf_counter()
                    place = secrets.choice((FRESH, FRESH, TIMED, AGAIN)) if looks else ""
                    self._one(case, self._visit, word, place)
                    seen = time.perf_counter()
                    timing += seen - begun
                    slowest = max(slowest, seen - begun)
                    if looks and case.status == "ok":
                        self._judge_among(case, case.looks)
                        judging += time.perf_counter() - seen

    def _visit(self, case: Contender, word: str, show: str) -> None:
        """One visit, see :meth:`Worker.visit`: what it says goes with what was seen from here.

        It is made to ``show`` the output of one of its calls, once that is made.
        """
        timing, seen = case.timings[word], case.seen[word]
        assert isinstance(timing, clock.Timing)
        passed_s, between_s = 0.0, 0.0
        with self.processes.turn(case.name) as (member, waits):
            channel = member.channel
            channel.send({"command": "visit", "word": word})
            asked = 0.0
            for place in CALLS:
                ready = channel.marked(**waits)
                between_s += ready - asked if asked else 0.0  # what comes before the first is a warm call
                # Another process has the GPU before both calls, and before a graph: see hypatia_lab.bench.turns.
                if place != TIMED or word == "graph":
                    self._fill(case)
                asked = time.perf_counter()
                channel.send({"go": True})
                begun = channel.marked(**waits)
                ended = channel.marked(**waits)
                between_s += begun - asked
                if place == TIMED:
                    # Who is held up reads two marks at once; nothing began before it was asked to.
                    passed_s = ended - begun if ended > begun else ended - asked
                asked = time.perf_counter()
                channel.send({"show": place == show})
            found = channel.receive(**waits)
            between_s += time.perf_counter() - asked
            case.threads.append(member.threads())
        self._said(case, found, "while it was timed")
        if case.status != "ok":
            return
        new, sample, again = (found.get(name) for name in ("new_s", "sample_s", "again_s"))
        if not (worker_replies.positive(new) and worker_replies.positive(sample) and worker_replies.positive(again)):
            raise Ended("cheated", "its process spoke out of turn: it told no times")
        seen.new_s.append(new)
        seen.again_s.append(again)
        seen.told_s.append(sample * timing.calls)
        seen.passed_s.append(passed_s)
        (seen.shown_s if show else seen.aside_s).append(between_s)
        timing.samples_us.append(sample * 1e6)
        timing.readings.append(self.probe())
        case.looks = found.get("shown")

    def _judge_among(self, case: Contender, looks: Any) -> None:
        """Judge the output of a call among others, of a variant that was right when it was checked."""
        reason = self._judge(case, looks).reason
        if reason.startswith("stale"):
            case.fail("cheated", "it remembers answers: of a call among others it gave that to the inputs before")
        elif reason:
            case.fail("wrong", f"right when it was checked, not among other calls: {reason}")

    def _weigh(self) -> None:
        """What the samples under each clock say of those that are judged."""
        for word in self.data["clocks"]:
            timed = [case for case in self._going() if word in case.seen]
            usual = next((case.seen[word] for case in timed if case.name == BASELINES[0]), evidence.Seen(1))
            others = [case.seen[word] for case in timed if not case.judged]
            tests = (
                partial(evidence.clock, others=others),
                evidence.memory,
                evidence.bursts,
                partial(evidence.aside, others=others),
            )
            for case in timed:
                if case.judged and word in OUTSIDE:
                    left = evidence.threads(case.threads[0], max(case.threads), os.cpu_count() or 1)
                    for told, numbers in (left, *(test(case.seen[word], usual) for test in tests)):
                        if told:
                            case.fail("cheated", told, numbers)
                    if case.status == "ok":
                        for name, count in evidence.halved(case.seen[word], usual).items():
                            case.evidence[name] = case.evidence.get(name, 0) + count

    # ------------------------------------------------------------ afterwards

    def _finish(self) -> None:
        """What is looked at when all is timed: one more answer, what goes on by itself, whose memory an output is."""

        def again(case: Contender) -> None:
            self._fill(case)
            looks = self._said(case, self.processes.ask(case.name, "call", poison=[]), "after it was timed")
            if case.status == "ok" and not (verdict := self._judge(case, looks)).ok:
                case.fail("wrong", f"after timing: {verdict.reason}")

        self._ask("draw")
        for case in self._going():
            self._one(case, again)
        if self.number == AFTER:
            self._rest()
        self._hold_memory()  # first of all: who gives an input back as it is has nothing to remember
        if self.there is self.cases:  # else when all were there
            self._weigh()  # now, for who goes on computing holds up the marks, and is told why
        self._ask("draw")
        for case in self._going():
            if case.judged:
                self._one(case, self._amid)
        self._hold_memory()

    def _hold_memory(self) -> None:
        """Whose memory outputs are."""
        allowed = next((case.aliased for case in self.cases if case.name == BASELINES[0]), set())
        for case in self._going():
            if case.judged and (told := evidence.aliased(case.aliased, allowed)):
                case.fail("cheated", told)

    def _rest(self) -> None:
        """Whether somebody goes on computing while nobody is asked for anything."""
        cases = [case for case in self._going() if case.judged]
        groups, busy = [cases] if cases else [], False
        while groups:
            looked = groups.pop(0)
            until = time.monotonic() + QUIET_S
            while busy and self.probe.busy() > evidence.IDLE and time.monotonic() < until:
                time.sleep(clock.QUIET_S)
            cores, gpu = self.processes.idles([case.name for case in looked]), self.probe.busy()
            if gpu > evidence.IDLE and len(looked) > 1:
                busy, groups = True, [[case] for case in looked]  # whose work it is shows one at a time
                continue
            for case in looked:
                told, numbers = evidence.idling(cores[case.name], gpu)
                if told:
                    case.fail("cheated", told, numbers)
                    self.processes.end(case.name)  # with all that it has still given to the GPU

    def _amid(self, case: Contender) -> None:
        """Inputs that change amid its calls, without a pause; the output must follow."""
        lying, known = (len(found) == len(self.layout["inputs"]) for found in (self.layout["lying"], case.addresses))
        with self.processes.turn(case.name) as (member, waits):
            member.channel.send({"command": "amid"})
            member.channel.marked(**waits)
            time.sleep(AMID_S * secrets.randbelow(10))
            self._fill(case)  # where they lie on the shelf, these are the inputs
            written = lying or (known and self._written(case, member.pid))
            case.written["written"].fill_(IN_PLACE if written else LEFT)
            found = member.channel.receive(**waits)
        self._said(case, found, "after it was timed")
        if case.status == "ok":
            self._judge_among(case, found)

    def _written(self, case: Contender, process: int) -> bool:
        """Whether what is on its shelf could be written into the memory of its process, on a CPU."""
        shelf = Shelf(self.layout["inputs"], file=os.dup(case.files[0]))
        try:
            return shelf.write_into(process, case.addresses)
        finally:
            shelf.close()
