"""A fresh process of a measurement: every group of its plan is checked and timed, a row for each variant and clock.

The lab's variants share the process (:class:`OwnSession`); a stranger's never run in it (:mod:`hypatia_lab.judged`).
"""

from __future__ import annotations

import math
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from hypatia_lab import check, clock, machine, messages, variants
from hypatia_lab.bench import sessions
from hypatia_lab.bench.turns import Companion
from hypatia_lab.experiments import Group
from hypatia_lab.probes.probe import Ended
from hypatia_lab.strangers import tasks
from hypatia_lab.workloads import Workload

LONGEST_CALL_S = 5.0
"""Nothing that needs longer a call is timed."""
OVERHEAD_S = 0.02
"""A shorter call may be all overhead, which no larger size multiplies: a compiled step of training has 1.4 ms of it."""
HICCUP_S = 0.5
"""A call that seems to take less is made once more before its pace is believed."""


class Pace:
    """How fast everybody is in this process: whoever would take too long on a larger size is not tried on it."""

    def __init__(self) -> None:
        self.rates: dict[tuple[str, ...], float] = {}

    def too_long(self, who: tuple[str, ...], amount: int) -> str:
        """Why ``who`` is not tried on that ``amount`` of work; empty where it is."""
        expected = amount / self.rates.get(who, math.inf)
        if expected <= LONGEST_CALL_S:
            return ""
        return f"about {expected:.0f} s a call at its pace on a smaller size; the limit is {LONGEST_CALL_S:.0f} s"

    def seen(self, who: tuple[str, ...], amount: int, call: Callable[[], float]) -> str:
        """Let ``who`` do that ``amount`` by ``call``, which gives its seconds; why it is not timed, if it is not."""
        seconds = call()
        if OVERHEAD_S < seconds < HICCUP_S:  # one call that was held up would rule out larger sizes
            seconds = min(seconds, call())
        if seconds > OVERHEAD_S:
            self.rates[who] = amount / seconds
        return f"{seconds:.1f} s a call; the limit is {LONGEST_CALL_S:.0f} s" if seconds > LONGEST_CALL_S else ""


@dataclass
class Case:
    """A variant on one workload in one process: what became of it, and its times by clock, or why it has none."""

    name: str
    status: str = "ok"
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    found: check.Check | None = None
    beside: dict[str, float] = field(default_factory=dict)
    timings: dict[str, clock.Timing | clock.ClockError] = field(default_factory=dict)

    def fail(self, status: str, reason: str, numbers: dict[str, Any] | None = None) -> None:
        """It has no time, for that ``reason`` and by those ``numbers``; what was found first counts."""
        if self.status == "ok":
            self.status, self.reason, self.evidence = status, reason, numbers or {}

    def row(self, index: int, word: str) -> dict[str, Any]:
        """What its process tells of it as one of group ``index``, under the clock ``word``."""
        status, reason, timing = self.status, self.reason, None
        if status == "ok" and word == "none":
            reason = "checked only"
        elif status == "ok":
            timed = self.timings.get(word, clock.ClockError("it was not timed"))
            if isinstance(timed, clock.Timing):
                timing = timed
            else:
                status, reason = "crashed" if isinstance(timed, clock.RunError) else "skipped", str(timed)
        readings = [r for r in timing.readings if r] if timing else []
        found = self.found
        return {
            "group": index,
            "variant": self.name,
            "clock": word,
            "status": status,
            "reason": reason,
            "evidence": self.evidence,
            "error": found.error if found else None,
            "max_error": found.max_error if found else None,
            "peak": found.peak if found else None,
            "beside": self.beside,
            "median_us": timing.median_us if timing else None,
            "samples_us": timing.samples_us if timing else [],
            "calls": timing.calls if timing else 0,
            "sm_mhz": [r["sm_mhz"] for r in readings],
            "power_w": [r["power_w"] for r in readings],
            "throttled": any(r["throttled"] for r in readings),
        }


class Session(ABC):
    """One fresh process: runs every group of the plan, and tells a row of each variant and clock."""

    def __init__(self, plan: dict[str, Any], emit: Callable[..., None]) -> None:
        self.device: str = plan["device"]
        self.excluded: dict[str, tuple[str, str]] = {key: tuple(v) for key, v in plan["excluded"].items()}
        self.emit = emit
        self.probe = machine.Probe(self.device, plan["gpu"])
        self.pace = Pace()
        self.ahead: bool = plan.get("ahead", False)

    def run(self, index: int, data: dict[str, Any]) -> None:
        """Check and time the variants of the group ``data``, and tell a row of each under every clock."""
        self.begin(index)  # whoever dies from here on dies of the inputs, not of a variant
        cases = [Case(name) for name in data["variants"]]
        try:
            if known := self.excluded.get(f"{index}/"):
                raise Ended(*known)
            with self.opened(index, data) as (cases, measure):
                for case in cases:
                    if known := self.excluded.get(f"{index}/{case.name}"):
                        case.fail(*known)
                measure()
        except Ended as cause:
            for case in cases:
                case.fail(cause.status, f"nothing was run, for the inputs could not be drawn: {cause.reason}")
        for case in cases:
            for word in data["clocks"] or ["none"]:
                self.emit("row", **case.row(index, word))

    def go_ahead(self) -> None:
        """All that could be got ready is: say so, and wait until nobody else is timed.

        Where this process was not told its plan ahead, and after the first time, nobody is waited for.
        """
        if self.ahead:
            self.ahead = False
            self.emit("ready")
            sessions.GO.wait()

    def begin(self, index: int, name: str = "") -> None:
        """Say that the variant ``name`` of group ``index`` has its turn: whoever dies from here on dies of it."""
        self.emit("begin", what=[index, name])

    @abstractmethod
    def opened(
        self, index: int, data: dict[str, Any]
    ) -> AbstractContextManager[tuple[Sequence[Case], Callable[[], None]]]:
        """The cases of the group ``data``, whose inputs are there while the body runs, and what fills them. Raises
        :class:`Ended` where no inputs can be drawn."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all that was started."""


class OwnSession(Session):
    """Of variants that are trusted: they share one process."""

    def __init__(self, plan: dict[str, Any], emit: Callable[..., None]) -> None:
        super().__init__(plan, emit)
        self.luck = random.SystemRandom()
        self.rests = True
        graphs = self.device == "cuda" and any("graph" in data["clocks"] for _, data in plan["groups"])
        self.turn = Companion() if graphs else None

    def run(self, index: int, data: dict[str, Any]) -> None:
        super().run(index, data)
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def close(self) -> None:
        if self.turn:
            self.turn.close()

    @contextmanager
    def opened(self, index: int, data: dict[str, Any]) -> Iterator[tuple[Sequence[Case], Callable[[], None]]]:
        workload = Workload(**data["workload"] | {"shape": tuple(data["workload"]["shape"])})
        group = Group(workload, tuple(data["variants"]), tuple(data["clocks"]), data["budget_s"])
        cases = [Case(name) for name in group.variants]
        with workload.precision():
            try:
                problem = check.Problem(workload, self.device)
            except Exception as cause:  # no memory for them, say
                traceback.print_exc()
                raise Ended("crashed", messages.one_line(cause)) from None
            yield cases, lambda: self._measure(index, group, problem, cases)

    def _measure(self, index: int, group: Group, problem: check.Problem, cases: Sequence[Case]) -> None:
        ready: dict[str, variants.Run] = {}
        # Built in another order in each process: what the first one gains must not always be the same one's. By
        # luck, and not by the process's number: one series of orders for all records would favour the same one in
        # all of them, and their twins would not be independent.
        for case in self.luck.sample(cases, len(cases)):
            self.begin(index, case.name)
            if case.status == "ok":
                self._prepare(case, group.workload, problem, ready)
        going = {case.name: case for case in cases if case.status == "ok"}
        registered = {name: variants.find(group.workload.operation, name) for name in ready}
        host = {name for name, one in registered.items() if one.host and self.device == "cuda"}
        self._time(index, group, going, ready, host)
        for name, run in ready.items():
            self.begin(index, name)
            case = going[name]
            try:
                again = check.judge(run(), problem, place="cpu" if name in host else "")
            except Exception as cause:  # no memory any more, say, although it was checked
                self._crashed(case, cause, "after timing: ")
                continue
            if not again.ok:
                case.found = again
                case.fail("wrong", f"after timing: {again.reason}")

    def _crashed(self, case: Case, cause: Exception, when: str = "") -> None:
        traceback.print_exc()
        clock.synchronize(self.device)  # a device left in error ends this process here, with this variant named
        case.fail("crashed", f"{when}{messages.one_line(cause)}")

    def _prepare(self, case: Case, workload: Workload, problem: check.Problem, ready: dict[str, variants.Run]) -> None:
        """Build and check one variant, which is in ``ready`` if it is right."""
        candidate = variants.find(workload.operation, case.name)
        # A backward pass, with its gradients as further parts, has a pace of its own.
        who = (workload.operation, candidate.name, workload.dtype, workload.math, *workload.parts[1:])
        amount = workload.flops or workload.traffic
        if told := candidate.needs(workload, self.device) or self.pace.too_long(who, amount):
            case.fail("skipped", told)
            return
        try:
            run = candidate.factory(workload, problem.inputs)
            case.found = check.check(run, problem, place="cpu" if candidate.host else "")
            if not case.found.ok:
                case.fail("wrong", case.found.reason)
                return
            told = self.pace.seen(who, amount, lambda: clock.once_s(run, self.device))
        except Exception as cause:
            self._crashed(case, cause)
            return
        if told:
            case.fail("skipped", told)
        else:
            ready[case.name] = run

    def _time(self, index: int, group: Group, cases: dict[str, Case], ready: Any, host: set[str]) -> None:
        if ready and group.clocks and self.rests:  # who never rests is waited for once
            known = {self.turn.pid} if self.turn else set()
            self.rests = clock.settle(but=known) < clock.SETTLE_S
        for word in group.clocks if ready else ():
            for name in ready:
                if why := variants.find(group.workload.operation, name).untimed(word, self.device):
                    cases[name].timings[word] = clock.ClockError(why)
            # Among a GPU's variants the host's threads would fall asleep, and waking them would be C's time.
            for names, device in ((ready.keys() - host, self.device), (host, "cpu")):
                runs = {name: run for name, run in ready.items() if name in names and word not in cases[name].timings}
                if not runs:
                    continue
                measured = clock.measure(
                    runs,
                    word,
                    device,
                    budget_s=group.budget_s,
                    luck=self.luck,
                    probe=self.probe,
                    turn=self.turn,
                    announce=lambda name: self.begin(index, name),
                )
                for name, timing in measured.items():
                    cases[name].timings[word] = timing


def serve(made: Callable[[dict[str, Any], Callable[..., None]], Session]) -> None:
    """All that a fresh process does: every group of its plan by the session that ``made`` gives for it."""
    plan, emit = sessions.child_plan()
    session = made(plan, emit)
    try:
        for index, data in plan["groups"]:
            try:
                session.run(index, data)
            except Exception as cause:  # a device left in error; the next process goes on without whoever did it
                emit("dying", reason=messages.one_line(cause))
                raise
            emit("done", group=index)
    finally:
        session.close()
    emit("end")


def _own(plan: dict[str, Any], emit: Callable[..., None]) -> Session:
    if source := plan["source"]:
        tasks.load(source, plan["number"])
    return OwnSession(plan, emit)


def main() -> None:
    """Entry of a fresh process; see :mod:`hypatia_lab.bench.sessions`."""
    serve(_own)


if __name__ == "__main__":
    main()
