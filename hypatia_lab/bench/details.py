"""A record's detail lines: what a cell cannot hold. Probes look at it in fresh processes, whose words are merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypatia_lab import records
from hypatia_lab.bench import sessions
from hypatia_lab.bench.kept import keep, kept
from hypatia_lab.bench.progress import Countdown
from hypatia_lab.experiments import Probe

SEVERITY = ("ok", "skipped", "timeout", "crashed", "wrong", "cheated")
SILENCE_S = 300.0
"""A probe that says nothing for so long is taken to hang."""
TOGETHER = ("trace", "accuracy", "process", "program", "oracle", "training", "choice")
"""Topics whose probes share a process: warm calls, outputs and programs of their own do not depend on what it did
before, and to start a process takes longer than to look. Every other probe has processes of its own."""

ALONE = "start"
"""The topic that looks at how a process starts: none of its processes waits for its plan."""

SPOKEN = {"kernels": "trace", "timeline": "trace"}
"""Topic of a detail line → the probe's that says it, where they differ."""

SAID = ("topic", "name", "unit", "count", "operation", "shape", "dtype", "variant", "switches")
"""What an event says of its line, of its name and of what it was seen at, where that is not the probe's."""

Events = list[dict[str, Any]]


def collect(
    probes: Sequence[Probe],
    device: str,
    folder: Path,
    key: str,
    *,
    source: dict[str, Any] | None = None,
    progress: bool = True,
) -> Events:
    """Run every probe in fresh processes and return the detail lines, in the order of the plan.

    ``source`` is the reader's file that declares them, if one does.

    What a finished probe said is kept in ``folder`` under ``key`` until the record is written, so an interrupted
    run goes on where it stopped. Raises :class:`sessions.SessionError` when a process fails before it began.
    """
    heard: dict[tuple[int, int], Events] = {}
    total, due = sum(probe.processes for probe in probes), _shared(probes)
    pending = [
        place
        for place, (number, indices) in enumerate(due)
        if probes[indices[0]].topic != ALONE and any(kept(_path(folder, i, number), key) is None for i in indices)
    ]
    pending = pending[: sessions.room(len(pending))]
    modules = [_module(probes[due[place][1][0]].topic) for place in pending]
    log = folder / "log.txt"
    with (
        sessions.waiting(modules, [{}] * len(modules), log) as processes,
        Countdown("probes", total, not progress or not probes) as bar,
    ):
        waiting = dict(zip(pending, processes, strict=True))
        for place, (number, indices) in enumerate(due):

            def hear(index: int, events: Events, number: int = number) -> None:
                heard[index, number] = events
                keep(_path(folder, index, number), key, events)
                bar.update(1)

            todo = []
            for index in indices:
                before = heard.get((index, number - 1), [])
                hung = [event for event in before if event["event"] == "status" and event["status"] == "timeout"]
                if (said := kept(_path(folder, index, number), key)) is None:
                    if hung and probes[index].topic == "program":  # it would be waited for as long again
                        hear(index, hung)
                    else:
                        todo.append(index)
                else:
                    heard[index, number] = said
                    bar.update(1)
            while todo:
                plans = [_plan(probes[index], index, number, device, folder) | {"source": source} for index in todo]
                module = _module(probes[todo[0]].topic)
                todo = todo[_look(module, plans, todo, log, hear, waiting.pop(place, None)) :]
    return [
        line
        for index, probe in enumerate(probes)
        for line in merge(probe, [heard[index, number] for number in range(probe.processes)])
    ]


def missing(probes: Sequence[Probe], lines: Sequence[dict[str, Any]]) -> list[Probe]:
    """Those of ``probes`` of which none of the detail ``lines`` of a record speaks."""
    there = {(SPOKEN.get(line["topic"], line["topic"]), *_told_of(line)) for line in lines}
    # A program's figures say themselves what they are of.
    programs = {line["case"] for line in lines if line["topic"] == "program"}
    return [
        probe
        for probe in probes
        if (
            probe.case not in programs
            if probe.topic == "program"
            else (probe.topic, *_told_of(asdict(probe.workload) | {"variant": probe.variant, "case": probe.case}))
            not in there
        )
    ]


def _told_of(line: dict[str, Any]) -> tuple[Any, ...]:
    direction = line.get("direction", "forward")
    return (line["operation"], *line["shape"], line["dtype"], line["math"], direction, line["variant"], line["case"])


def _shared(probes: Sequence[Probe]) -> list[tuple[int, list[int]]]:
    """Number and probes (their indices) of every process that is due, in the order of the plan."""
    due: dict[tuple[object, int], list[int]] = {}
    for index, probe in enumerate(probes):
        for number in range(probe.processes):
            due.setdefault((probe.topic if probe.topic in TOGETHER else index, number), []).append(index)
    return [(number, indices) for (_, number), indices in due.items()]


def _path(folder: Path, index: int, number: int) -> Path:
    return folder / f"probe-{index}-{number}.json"


def _plan(probe: Probe, index: int, number: int, device: str, folder: Path) -> dict[str, Any]:
    # The start probes share what they prepare; every other probe leaves files of its own.
    scratch = folder / "scratch" / (ALONE if probe.topic == ALONE else str(index))
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        "device": device,
        "number": number,
        "workload": asdict(probe.workload),
        "variant": probe.variant,
        "case": probe.case,
        "folder": str(scratch),
    }


def _module(topic: str) -> str:
    return "hypatia_lab.strangers.programs" if topic == "program" else f"hypatia_lab.probes.{topic}"


def _look(
    module: str,
    plans: list[dict[str, Any]],
    indices: Sequence[int],
    log: Path,
    keep: Callable[[int, Events], None],
    fresh: sessions.Fresh | None,
) -> int:
    """One process, ``fresh`` or a new one, for all ``plans``: each probe's events are kept as soon as it ends.

    Returns how many ended.

    One that kills the process ends with that; those behind it are left to another process.
    """
    said: list[Events] = [[]]

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "begin" and event.get("subject", 0) == len(said):
            keep(indices[len(said) - 1], said[-1])
            said.append([])
        elif event["event"] in ("detail", "status"):
            said[-1].append(event)

    plan = plans[0] | {"more": plans[1:]}
    casualty = sessions.run_session(module, plan, log, on_event=hear, silence_s=SILENCE_S, fresh=fresh)
    if casualty is not None:
        said[-1].append({"event": "status", "status": casualty.status, "reason": casualty.reason})
    keep(indices[len(said) - 1], said[-1])
    return len(said)


def merge(probe: Probe, heard: Sequence[Events]) -> Events:
    """Detail lines of one probe from what its processes said: values one a process, the worst status counts."""
    ends = [event for events in heard for event in events if event["event"] == "status"]
    worst = max(ends, key=lambda end: SEVERITY.index(end["status"]), default={"status": "ok", "reason": ""})
    line = {
        "kind": "detail",
        "operation": probe.workload.operation,
        "shape": list(probe.workload.shape),
        "dtype": probe.workload.dtype,
        "math": probe.workload.math,
        "variant": probe.variant,
        "topic": probe.topic,
        "case": probe.case,
        "name": probe.topic,
        "unit": "1",
        "count": 1,
        "values": [],
        "status": worst["status"],
        "reason": worst["reason"],
    }
    if probe.workload.backward:
        line["direction"] = probe.workload.direction
    if probe.topic == "program":
        line["origin"] = "author"
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    lines: Events = []
    for number, events in enumerate(heard):
        for event in events:
            if event["event"] != "detail":
                continue
            own = {key: event[key] for key in SAID if key in event}
            if "values" in event:  # a list of its own, such as start and duration: the first process speaks for all
                if number == 0:
                    lines.append(line | own | {"values": [_round(value) for value in event["values"]]})
                continue
            place = tuple(str(own.get(key)) for key in SAID if key != "count")
            if place not in found:
                found[place] = line | own | {"values": [None] * len(heard)}
                lines.append(found[place])
            found[place]["values"][number] = _round(event["value"])
    return lines or [line]


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def keep_files(probes: Sequence[Probe], folder: Path, target: Path, keep: Callable[[str], bool]) -> None:
    """Copy the files whose name ``keep`` accepts from the probes' scratch folders to ``target``, named by the probe.

    Raises :class:`records.RecordError` when that folder cannot be written.
    """
    for index, probe in enumerate(probes):
        for path in sorted((folder / "scratch" / str(index)).glob("*")):
            if path.is_file() and keep(path.name):
                work = probe.workload
                kind = [word for word in (work.dtype, work.math) if word not in ("float32", "ieee")]
                name = "-".join([work.operation, work.shape_text, *kind, probe.variant, path.name])
                records.copy(path, target / name)
