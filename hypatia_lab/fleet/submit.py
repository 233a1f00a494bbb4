"""Starting the jobs of a fleet: which ones, and on Slurm or on the GPUs of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypatia_lab.fleet import overview
from hypatia_lab.fleet.job import ENDED, OWN, Programs, Work
from hypatia_lab.fleet.layout import Asked, FleetError, Layout, Submission
from hypatia_lab.messages import unknown

RESTARTS = 20
"""So often a job that ran out of its time is put into Slurm's queue again."""
MINUTES = 120
"""A Slurm job's time where none is asked for: submitit's own five minutes are over before anything is measured."""
FOR_EVER = 60 * 24 * 365
"""Minutes of a job on this machine, which is ended by nobody but itself; submitit's own two are too few."""
_NEXT_PARAMETER = re.compile(r",(?=[^,=]*=)")
BEAT_S = 1.0
ALL_TOLD_S = 2.0
"""Seconds in which jobs that were interrupted with this process have ended."""


def ask(layout: Layout, asked: Asked, count: int | None) -> tuple[Asked, list[int]]:
    """Write down what is asked of the fleet, and say which of its jobs are to be started: what ended well is not.

    ``count`` jobs in all, None: as many as there are, one at first. Where a fleet is there it goes on, and what it was
    asked for holds; ``overwrite`` starts it over once it has ended. Raises :class:`FleetError` for a fleet that was
    asked for something else, or that cannot be started over yet.
    """
    there = layout.asked()
    if there is None:
        layout.ask(asked)
        return asked, list(range(count or 1))
    for name in ("notebooks", "preset", "device"):
        before, now = getattr(there, name), getattr(asked, name)
        if before != now:
            words = [" ".join(text) or "all" if isinstance(text, tuple) else text for text in (before, now)]
            said = f"the fleet in {layout.folder} measures {name} {words[0]}, not {words[1]}"
            raise FleetError(f"{said}; choose another --folder")
    standing = overview.lines(layout)
    if asked.overwrite and (not there.overwrite or all(line.state in ENDED for line in standing)):
        if busy := [str(line.number) for line in standing if not line.idle]:
            raise FleetError(f"job {', '.join(busy)} is at work or waits to be; let it end before --overwrite")
        there = replace(there, overwrite=True, round=there.round + 1)
        layout.ask(there)
        standing = overview.lines(layout)
    settled = {line.number for line in standing if line.state in ENDED or not line.idle}
    return there, sorted({*layout.numbers(), *range(count or 1)} - settled)


def works(
    layout: Layout,
    asked: Asked,
    numbers: Sequence[int],
    place: str,
    visible: Sequence[str] = (),
    programs: Programs = OWN,
) -> list[Work]:
    """A new attempt at each job of ``numbers``, written down as about to be submitted to ``place``.

    ``visible``: GPU number → how ``CUDA_VISIBLE_DEVICES`` names it, where the fleet itself gives them out.
    """
    found = []
    for number in numbers:
        last = layout.last_submission(number)
        attempt = last.attempt + 1 if last else 1
        layout.submit(number, Submission(asked.round, attempt, place))
        own = visible[number] if number < len(visible) else None
        found.append(Work(str(layout.folder), number, asked.round, attempt, own, programs))
    return found


def _submitted(layout: Layout, work: Work, place: str, name: str) -> None:
    layout.submit(work.number, Submission(work.round, work.attempt, place, name))


def slurm_parameters(texts: Sequence[str], device: str) -> dict[str, Any]:
    """``["partition=gpu,time=120"]`` as submitit takes it, one GPU a job; raises :class:`FleetError`.

    A comma in a value stays there: ``nodelist=a,b``. ``setup`` is a command to run first, and may be given again.
    """
    from submitit import SlurmExecutor

    found: dict[str, Any] = {"job_name": "hypatia-fleet", "time": MINUTES}
    known = SlurmExecutor._valid_parameters()
    for part in (part for text in texts for part in _NEXT_PARAMETER.split(text)):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals:
            raise FleetError(f"--slurm {part!r}: parameters look like partition=gpu,account=x,time=120")
        if name not in known:
            raise FleetError(f"--slurm: {unknown('parameter', name, sorted(known))}")
        if name == "setup":
            found.setdefault("setup", []).append(value)
        else:
            found[name] = int(value) if value.isdecimal() else value
    if not isinstance(found["time"], int):
        raise FleetError(f"--slurm: time is a whole number of minutes, such as 120, not {found['time']!r}")
    if device == "cuda" and not {"gpus_per_node", "gpus_per_task", "gres", "num_gpus"} & set(found):
        found["gpus_per_node"] = 1
    # What Slurm itself ends, to make room or because a node failed, it is to start again.
    return found | {"additional_parameters": {"requeue": True}}


def slurm(layout: Layout, started: Sequence[Work], parameters: dict[str, Any]) -> list[str]:
    """Submit ``started`` as one array; returns the names that Slurm gave. Raises :class:`FleetError`."""
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        executor = SlurmExecutor(folder=layout.logs, max_num_timeout=RESTARTS)
    except RuntimeError:
        raise FleetError("there is no Slurm here (srun); --box measures the GPUs of this machine") from None
    executor.update_parameters(**parameters)
    try:
        jobs = executor.submit_array(list(started))
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as cause:
        told = [line for line in str(cause).splitlines() if "error" in line.lower()] or [str(cause)]
        raise FleetError(f"Slurm takes no job: {told[0].strip()}") from None
    for work, job in zip(started, jobs, strict=True):
        _submitted(layout, work, "slurm", job.job_id)
    return [job.job_id for job in jobs]


def visible() -> list[str]:
    """The GPUs of this machine that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import torch

    count = torch.cuda.device_count()
    named = [text.strip() for text in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if text.strip()]
    return (named or [str(number) for number in range(count)])[:count]


@contextlib.contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """What is started within writes its errors to ``path``: submitit's keeper of a job ends with a traceback when it is
    interrupted."""
    kept = os.dup(2)
    with path.open("a") as stream:
        os.dup2(stream.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def box(layout: Layout, started: Sequence[Work], together: bool, say: Callable[[overview.Line], None]) -> None:
    """Run ``started`` on this machine, ``together`` or one after the other, and wait for these and for what runs
    there already; ``say`` is told of every change. An interrupt ends the jobs that were started here.
    """
    from submitit import LocalExecutor

    executor = LocalExecutor(folder=layout.logs, max_num_timeout=RESTARTS)
    executor.update_parameters(timeout_min=FOR_EVER)
    waiting, running = list(started), []
    before: dict[int, overview.Line] = {}
    try:
        while True:
            while waiting and (together or not running):
                work = waiting.pop(0)
                with _errors_to(layout.logs / "box.log"):
                    running.append(executor.submit(work))
                _submitted(layout, work, "box", running[-1].job_id)
            now = {line.number: line for line in overview.lines(layout)}
            for number, line in now.items():
                if line != before.get(number, line):
                    say(line)
            before = now
            running = [job for job in running if not job.done()]
            if not waiting and not running and all(line.idle for line in now.values()):
                return
            time.sleep(BEAT_S)
    except KeyboardInterrupt:
        # A terminal has interrupted them all; whoever interrupted this process alone has not.
        due = time.monotonic() + ALL_TOLD_S
        while time.monotonic() < due and not all(job.done() for job in running):
            time.sleep(0.1)
        for job in running:
            if not job.done():
                job.cancel()
        raise
