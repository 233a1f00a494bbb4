"""A GPU's kernels are built before anything is measured, by several processes at once, and found in the caches later.

A fresh process compiles one kernel after the other on one core, and the first of a machine compiles them all. Here each
of a few processes takes some of the workloads, checks what is planned for them and times nothing. Left out is what is
to be built anew in each process, and what times forms to choose among them: others that compute beside it would mislead
it, and it would keep what it chose.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hypatia_lab import machine, variants
from hypatia_lab.bench import sessions
from hypatia_lab.bench.progress import Countdown
from hypatia_lab.experiments import Group
from hypatia_lab.kernels import loader

MOST = 8
"""Processes at once: each holds a context of the GPU, some 0.5 GB, and its own inputs."""
CORES = 2
"""Cores for each: ptxas runs beside the process that waits for it, and PyTorch computes beside both. Of a machine's
cores a GPU has its share, for another of them may be measured meanwhile."""


def build(what: str, groups: Sequence[Group], work: dict[str, Any], key: str, *, quiet: bool) -> None:
    """Build what ``groups`` need, unless that was done here before; ``what`` names them in the countdown.

    ``work`` is the plan of a measuring process but for its groups, ``key`` stands for all that decides what is built.
    A process that dies or falls silent is not started again: who measures will find out the same.
    """
    due = [one for one in map(_buildable, groups) if _kernels(one)]
    workers = min(MOST, machine.cores() // machine.gpus() // CORES, len(due))
    told = f"{key} {machine.default_name(work['device'])}"
    stamp = loader.cache_folder() / "built" / hashlib.sha256(told.encode()).hexdigest()[:32]
    if workers < 2 or stamp.exists():
        return
    shares = [
        work | {"number": 0, "excluded": {}, "groups": [(number, asdict(group)) for number, group in share]}
        for share in _shares(due, workers)
    ]
    folder = Path(work["folder"])
    plan = {"shares": shares, "log": str(folder / "log.txt"), "silence_s": work["silence_s"]}
    with Countdown(f"{what}: building kernels", len(due), quiet) as bar:

        def advance(event: sessions.Event) -> None:
            bar.update(event["event"] == "done")

        sessions.run_session(
            "hypatia_lab.bench.ahead",
            plan,
            folder / "log.txt",
            on_event=advance,
            silence_s=work["silence_s"] + sessions.LEAVE_S,
        )
    loader.store(stamp, what.encode())


def _buildable(group: Group) -> Group:
    """``group`` as it is checked ahead: no clock, and the forms that are compiled once for all processes."""
    operation = group.workload.operation
    found = {one.name: one for one in (variants.find(operation, name) for name in group.variants)}
    if any("dispatched" in one.tags for one in found.values()):
        from hypatia_lab import dispatch

        found |= {name: one for name, one in variants.variants(operation).items() if dispatch.contends(one)}
    kept = (name for name, one in found.items() if not (one.chosen_anew or one.measures or one.host))
    return replace(group, variants=tuple(kept), clocks=())


def _kernels(group: Group) -> bool:
    """Whether any of its variants has kernels that are built here: PyTorch and other libraries bring theirs."""
    return any(variants.find(group.workload.operation, name).origin != "peer" for name in group.variants)


def _shares(groups: Sequence[Group], workers: int) -> list[list[tuple[int, Group]]]:
    """The numbered ``groups``, shared out so that who has a kind of workload has all of it, as far as that is even.

    Shapes of one kind need the same kernels: two processes that begin with them at once would both compile them.
    """
    kinds = [(one.workload.operation, one.workload.dtype, one.workload.math, one.workload.direction) for one in groups]
    order = sorted(range(len(groups)), key=lambda number: kinds[number])
    total, done = sum(len(one.variants) for one in groups), 0
    shares: list[list[tuple[int, Group]]] = [[] for _ in range(workers)]
    for number in order:
        shares[done * workers // total].append((number, groups[number]))
        done += len(groups[number].variants)
    return [share for share in shares if share]


def main() -> None:
    """Entry of the process that starts the others, and whose end is theirs: see :func:`sessions.child_plan`."""
    plan, emit = sessions.child_plan()
    lock = threading.Lock()

    def tell(event: dict[str, Any]) -> None:
        if event["event"] in ("begin", "done"):
            with lock:
                emit(**event)

    def run(share: dict[str, Any]) -> None:
        with contextlib.suppress(sessions.SessionError):
            sessions.run_session(
                "hypatia_lab.bench.cells", share, Path(plan["log"]), on_event=tell, silence_s=plan["silence_s"]
            )

    threads = [threading.Thread(target=run, args=(share,)) for share in plan["shares"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emit("end")


if __name__ == "__main__":
    main()
