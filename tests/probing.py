"""What tests of the probes share: a probe in a process of its own, and its subject in this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import hypatia_lab.diffraction
import hypatia_lab.operations  # noqa: F401  (registers)
from hypatia_lab.bench import sessions
from hypatia_lab.probes.probe import Subject, subject
from hypatia_lab.workloads import Workload

LINEAR = Workload("linear_relu", (16, 32, 24))
IMAGE = Workload("diffraction", (32, 48))


def probe(
    topic: str, workload: Workload, variant: str, folder: Path, *, case: str = "", device: str = "cpu"
) -> list[sessions.Event]:
    """Events of one probe, run in a process of its own as bench runs it; it must end by itself."""
    plan = {"device": device, "number": 0, "workload": asdict(workload), "variant": variant, "case": case}
    events: list[sessions.Event] = []
    casualty = sessions.run_session(
        f"hypatia_lab.probes.{topic}",
        plan | {"folder": str(folder)},
        folder / "log.txt",
        on_event=events.append,
        silence_s=120,
    )
    assert casualty is None, (folder / "log.txt").read_text()
    assert events[0] == {"event": "begin", "what": variant, "subject": 0}
    return events[1:]


def details(events: list[sessions.Event], topic: str) -> dict[str, Any]:
    """Name → value (or values) of the details of ``topic``, in order; every event must be a detail."""
    assert {event["event"] for event in events} == {"detail"}
    return {e["name"]: e.get("value", e.get("values")) for e in events if e["topic"] == topic}


def emitted() -> tuple[list[dict[str, Any]], Callable[..., None]]:
    """A list, and an ``emit`` that fills it."""
    seen: list[dict[str, Any]] = []
    return seen, lambda event, **fields: seen.append(fields)


def spoilt(whole: Subject, output: torch.Tensor) -> Subject:
    """``whole`` with a variant that always returns ``output``."""
    return replace(whole, variant=replace(whole.variant, factory=lambda workload, inputs: lambda: output))


def found(workload: Workload, variant: str, folder: Path, *, case: str = "") -> Subject:
    """The subject of a probe in this process."""
    plan = {"device": "cpu", "number": 0, "workload": asdict(workload), "variant": variant, "case": case}
    return subject(plan | {"folder": str(folder)})
