"""In a fresh process: every group of a plan is checked and timed, a row for each variant and clock."""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypatia_lab import check, clock, machine, messages, variants
from hypatia_lab.bench import sessions
from hypatia_lab.bench.turns import Companion
from hypatia_lab.experiments import Group
from hypatia_lab.strangers import kernelbench, programs, reader_kernel
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


class Session:
    """One fresh process: runs every group of the plan and emits one row a variant and clock."""

    def __init__(self, plan: dict[str, Any], emit: Callable[..., None]) -> None:
        self.device: str = plan["device"]
        self.luck = random.SystemRandom()
        self.excluded: dict[str, tuple[str, str]] = {key: tuple(v) for key, v in plan["excluded"].items()}
        self.emit = emit
        self.probe = machine.Probe(self.device)
        self.pace = Pace()
        self.rests = True
        graphs = self.device == "cuda" and any("graph" in data["clocks"] for _, data in plan["groups"])
        self.turn = Companion() if graphs else None

    def run(self, index: int, group: Group) -> None:
        workload = group.workload
        self.emit("begin", what=[index, ""])  # whoever dies from here on dies of the inputs, not of a variant
        with workload.precision():
            try:
                status, reason = self.excluded.get(f"{index}/", ("", ""))
                problem = None if status else check.Problem(workload, self.device)
            except Exception as cause:  # no memory for them, say
                traceback.print_exc()
                problem, status, reason = None, "crashed", messages.one_line(cause)
            if problem is None:
                reason = f"nothing was run, for the inputs could not be drawn: {reason}"
                for name in group.variants:
                    for word in group.clocks or ("none",):
                        self._row(index, name, word, status, reason, None)
                return
            ready: dict[str, variants.Run] = {}
            found: dict[str, check.Check] = {}
            # Built in another order in each process: what the first one gains must not always be the same one's. By
            # luck, and not by the process's number: one series of orders for all records would favour the same one in
            # all of them, and their twins would not be independent.
            order = list(group.variants)
            self.luck.shuffle(order)
            for name in order:
                self.emit("begin", what=[index, name])
                status, reason = self._prepare(index, workload, name, problem, ready, found)
                if status != "ok":
                    for word in group.clocks or ("none",):
                        self._row(index, name, word, status, reason, found.get(name))
            self._time(index, group, problem, ready, found)

    def _prepare(
        self, index: int, workload: Workload, name: str, problem: check.Problem, ready: Any, found: Any
    ) -> tuple[str, str]:
        """Build and check one variant; returns its status and reason, and fills ``ready`` and ``found``."""
        if f"{index}/{name}" in self.excluded:
            return self.excluded[f"{index}/{name}"]
        candidate = variants.find(workload.operation, name)
        missing = candidate.needs(workload, self.device)
        if missing:
            return "skipped", missing
        # A backward pass, with its gradients as further parts, has a pace of its own.
        pace = (workload.operation, candidate.name, workload.dtype, workload.math, *workload.parts[1:])
        if self.pace.too_long(pace, amount := workload.flops or workload.traffic):
            return "skipped", self.pace.too_long(pace, amount)
        try:
            run = candidate.factory(workload, problem.inputs)
            found[name] = check.check(run, problem, place="cpu" if candidate.host else "")
            if not found[name].ok:
                return "wrong", found[name].reason
            took_too_long = self.pace.seen(pace, amount, lambda: clock.once_s(run, self.device))
        except Exception as cause:
            traceback.print_exc()
            clock.synchronize(self.device)  # a device left in error ends this process here, with this variant named
            return "crashed", messages.one_line(cause)
        if took_too_long:
            return "skipped", took_too_long
        ready[name] = run
        return "ok", ""

    def _time(self, index: int, group: Group, problem: check.Problem, ready: Any, found: Any) -> None:
        timings: dict[tuple[str, str], clock.Timing | clock.ClockError] = {}
        registered = {name: variants.find(group.workload.operation, name) for name in ready}
        host = {name for name, one in registered.items() if one.host and self.device == "cuda"}
        if ready and group.clocks and self.rests:  # who never rests is waited for once
            known = {self.turn.pid} if self.turn else set()
            self.rests = clock.settle(but=known) < clock.SETTLE_S
        for word in group.clocks if ready else ():
            reasons = {name: one.untimed(word, self.device) for name, one in registered.items()}
            timings.update({(name, word): clock.ClockError(why) for name, why in reasons.items() if why})
            # Among a GPU's variants the host's threads would fall asleep, and waking them would be C's time.
            for names, device in ((ready.keys() - host, self.device), (host, "cpu")):
                runs = {name: run for name, run in ready.items() if name in names and not reasons[name]}
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
                    announce=lambda name: self.emit("begin", what=[index, name]),
                )
                timings.update({(name, word): timing for name, timing in measured.items()})
        for name, run in ready.items():
            self.emit("begin", what=[index, name])
            try:
                again = check.judge(run(), problem, place="cpu" if name in host else "")
            except Exception as cause:  # no memory any more, say, although it was checked
                traceback.print_exc()
                clock.synchronize(self.device)  # as above
                for word in group.clocks or ("none",):
                    self._row(index, name, word, "crashed", f"after timing: {messages.one_line(cause)}", found[name])
                continue
            if not again.ok:
                for word in group.clocks or ("none",):
                    self._row(index, name, word, "wrong", f"after timing: {again.reason}", again)
                continue
            if not group.clocks:
                self._row(index, name, "none", "ok", "checked only", found[name])
            for word in group.clocks:
                timing = timings[name, word]
                if isinstance(timing, clock.ClockError):
                    status = "crashed" if isinstance(timing, clock.RunError) else "skipped"
                    self._row(index, name, word, status, str(timing), found[name])
                else:
                    self._row(index, name, word, "ok", "", found[name], timing)

    def _row(self, *told: Any) -> None:
        self.emit("row", **row(*told))


def row(
    index: int,
    name: str,
    word: str,
    status: str,
    reason: str,
    found: check.Check | None,
    timing: clock.Timing | None = None,
) -> dict[str, Any]:
    """What one process tells of the variant ``name`` of group ``index`` under the clock ``word``."""
    readings = [r for r in timing.readings if r] if timing else []
    return {
        "group": index,
        "variant": name,
        "clock": word,
        "status": status,
        "reason": reason,
        "error": found.error if found else None,
        "max_error": found.max_error if found else None,
        "peak": found.peak if found else None,
        "median_us": timing.median_us if timing else None,
        "samples_us": timing.samples_us if timing else [],
        "calls": timing.calls if timing else 0,
        "sm_mhz": [r["sm_mhz"] for r in readings],
        "power_w": [r["power_w"] for r in readings],
        "throttled": any(r["throttled"] for r in readings),
    }


def _group(data: dict[str, Any]) -> Group:
    workload = Workload(**data["workload"] | {"shape": tuple(data["workload"]["shape"])})
    return Group(workload, tuple(data["variants"]), tuple(data["clocks"]), data["budget_s"])


def main() -> None:
    """Entry of a fresh process; see :mod:`hypatia_lab.bench.sessions`."""
    plan, emit = sessions.child_plan()
    if source := plan["source"]:
        path = Path(source["path"])
        if source["kind"] == kernelbench.KIND:
            kernelbench.load(path, Path(source["problem"]), source["digest"], plan["number"])
        else:
            load = programs.load if source["kind"] == "program" else reader_kernel.load
            load(path, source["digest"])
    session = Session(plan, emit)
    for index, data in plan["groups"]:
        try:
            session.run(index, _group(data))
        except Exception as cause:  # a device left in error; the next process goes on without whoever did it
            emit("dying", reason=messages.one_line(cause))
            raise
        emit("done", group=index)
        if plan["device"] == "cuda":
            import torch

            torch.cuda.empty_cache()
    emit("end")
    if session.turn:
        session.turn.close()


if __name__ == "__main__":
    main()
