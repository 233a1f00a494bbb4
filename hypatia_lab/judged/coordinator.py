"""One fresh process of a measurement of a stranger's kernel: it asks, times and compares, and runs nothing of the file.

It reads the same plan as :mod:`hypatia_lab.bench.cells` and tells the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypatia_lab import clock, machine
from hypatia_lab.bench import sessions
from hypatia_lab.bench.cells import Pace, row
from hypatia_lab.bench.turns import Companion
from hypatia_lab.judged import evidence
from hypatia_lab.judged.processes import REFEREE, Processes
from hypatia_lab.judged.trial import LOADED, Case, Trial
from hypatia_lab.probes.probe import Ended


class Coordinator:
    """One fresh process: runs every group of the plan and emits one row a variant and clock."""

    def __init__(self, plan: dict[str, Any], emit: Callable[..., None]) -> None:
        self.number: int = plan["number"]
        self.excluded: dict[str, tuple[str, str]] = {key: tuple(v) for key, v in plan["excluded"].items()}
        self.emit = emit
        self.processes = Processes(plan, lambda: emit("alive"))
        self.probe = machine.Probe(plan["device"], plan["gpu"])
        self.pace = Pace()
        self.turn = Companion() if plan["device"] == "cuda" else None

    def run(self, index: int, data: dict[str, Any]) -> None:
        """Check and time the variants of the group ``data``, and tell a row of each and every clock."""
        self.emit("begin", what=[index, ""])
        clocks = data["clocks"] or ["none"]
        try:
            if f"{index}/" in self.excluded:
                raise Ended(*self.excluded[f"{index}/"])
            layout = self._described(data["workload"])
        except Ended as cause:
            reason = f"nothing was run, for the inputs could not be drawn: {cause.reason}"
            for name in data["variants"]:
                for word in clocks:
                    self.emit("row", **row(index, name, word, cause.status, reason, None))
            return

        def begun(name: str) -> None:
            self.emit("begin", what=[index, name])

        trial = Trial(self.processes, begun, data, layout, self.turn)
        for case in trial.cases:
            if known := self.excluded.get(f"{index}/{case.name}"):
                case.fail(*known)
        trial.run(self.pace, self.probe, self.number)
        for case in trial.cases:
            for word in clocks:
                self._tell(index, case, word)
        trial.close()

    def _described(self, workload: dict[str, Any]) -> dict[str, Any]:
        """What the referee tells of ``workload``, of which it draws inputs. Raises :class:`Ended`."""
        if REFEREE not in self.processes:
            found = self.processes.start(REFEREE)
            if "crashed" in found:
                raise Ended("crashed", found["crashed"])
            if told := evidence.tampering(found["replaced"], found["changed"], LOADED):
                raise Ended("cheated", told)
        found = self.processes.ask(REFEREE, "group", workload=workload)
        if "crashed" in found:
            raise Ended("crashed", found["crashed"])
        return found

    def _tell(self, index: int, case: Case, word: str) -> None:
        timing, status, reason = case.timings.get(word), case.status, case.reason
        if status == "ok" and word == "none":
            reason = "checked only"
        elif status == "ok" and not isinstance(timing, clock.Timing):
            status, reason = "skipped", timing or "it was not timed"
        own = timing if isinstance(timing, clock.Timing) and status == "ok" else None
        self.emit("row", **row(index, case.name, word, status, reason, case.found, own), evidence=case.evidence)


def main() -> None:
    """Entry of a fresh process; see :mod:`hypatia_lab.bench.sessions`."""
    # Headers compiled in advance take 150 MB and nine seconds, and each variant would have its own.
    os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
    # Whoever has asked CUDA for its devices cannot fork any more; NVML may be asked.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch._dynamo  # noqa: F401  # whatever reads a reader's file needs it, and a fork has it already

    del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
    plan, emit = sessions.child_plan()
    coordinator = Coordinator(plan, emit)
    try:
        for index, data in plan["groups"]:
            coordinator.run(index, data)
            emit("done", group=index)
    finally:
        coordinator.processes.close()
        if coordinator.turn:
            coordinator.turn.close()
    emit("end")


if __name__ == "__main__":
    main()
