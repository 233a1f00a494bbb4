"""Probes: what a cell cannot hold. One fresh process a probe and number, merged into a record's detail lines."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypatia_lab import records
from hypatia_lab.experiments import Probe
from hypatia_lab.profiler import sessions

SEVERITY = ("ok", "skipped", "timeout", "crashed", "wrong")
SILENCE_S = 300.0
"""A probe that says nothing for so long is taken to hang."""

Events = list[dict[str, Any]]


def collect(probes: Sequence[Probe], device: str, folder: Path, key: str, *, progress: bool = True) -> Events:
    """Run every probe in fresh processes and return the detail lines, in the order of the plan.

    What a finished process said is kept in ``folder`` under ``key`` until the record is written, so an interrupted
    run goes on where it stopped. Raises :class:`sessions.SessionError` when a process fails before it began.
    """
    from tqdm import tqdm

    lines: Events = []
    total = sum(probe.processes for probe in probes)
    with tqdm(total=total, desc="probes", unit="process", disable=not progress or not probes, file=sys.stderr) as bar:
        for index, probe in enumerate(probes):
            heard = []
            for number in range(probe.processes):
                heard.append(_one(probe, index, number, device, folder, key))
                bar.update(1)
            lines += merge(probe, heard)
    return lines


def _one(probe: Probe, index: int, number: int, device: str, folder: Path, key: str) -> Events:
    """The events of process ``number`` of one probe, from its file when it has run before."""
    path = folder / f"probe-{index}-{number}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return kept["events"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    # The start probes share what they prepare; every other probe leaves files of its own.
    scratch = folder / "scratch" / ("start" if probe.topic == "start" else str(index))
    scratch.mkdir(parents=True, exist_ok=True)
    events: Events = []
    plan = {
        "device": device,
        "number": number,
        "workload": asdict(probe.workload),
        "variant": probe.variant,
        "case": probe.case,
        "folder": str(scratch),
    }
    casualty = sessions.run_session(
        f"hypatia_lab.profiler.{probe.topic}", plan, folder / "log.txt", on_event=events.append, silence_s=SILENCE_S
    )
    events = [event for event in events if event["event"] in ("detail", "status")]
    if casualty is not None:
        events.append({"event": "status", "status": casualty.status, "reason": casualty.reason})
    records.write_text(path, json.dumps({"key": key, "events": events}))
    return events


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
    found: dict[tuple[str, str], dict[str, Any]] = {}
    lines: Events = []
    for number, events in enumerate(heard):
        for event in events:
            if event["event"] != "detail":
                continue
            own = {key: event[key] for key in ("topic", "name", "unit", "count") if key in event}
            if "values" in event:  # a list of its own, such as start and duration: the first process speaks for all
                if number == 0:
                    lines.append(line | own | {"values": [_round(value) for value in event["values"]]})
                continue
            place = (own["topic"], own["name"])
            if place not in found:
                found[place] = line | own | {"values": [None] * len(heard)}
                lines.append(found[place])
            found[place]["values"][number] = _round(event["value"])
    return lines or [line]


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def keep_files(probes: Sequence[Probe], folder: Path, target: Path, keep: Callable[[str], bool]) -> None:
    """Copy the files whose name ``keep`` accepts from the probes' scratch folders to ``target``, named by the probe."""
    for index, probe in enumerate(probes):
        for path in sorted((folder / "scratch" / str(index)).glob("*")):
            if path.is_file() and keep(path.name):
                target.mkdir(parents=True, exist_ok=True)
                work = probe.workload
                kind = [word for word in (work.dtype, work.math) if word not in ("float32", "ieee")]
                name = "-".join([work.operation, work.shape_text, *kind, probe.variant, path.name])
                shutil.copyfile(path, target / name)
