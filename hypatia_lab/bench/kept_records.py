"""A record that is there: whether it answers what is asked now, what it lacks, and what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hypatia_lab import records, variants
from hypatia_lab.experiments import Experiment, Group, Probe


def otherwise(
    kept: records.Record,
    spec: Experiment,
    groups: Sequence[Group],
    asked: Sequence[Probe],
    shapes: Sequence[tuple[int, ...]] = (),
) -> str:
    """What ``kept`` was recorded with in place of what is asked for now, such as other shapes or another text of a
    file; empty where it answers the same plan."""
    timed, looked_at = ({tuple(line["shape"]) for line in lines} for lines in (kept.cells, kept.details))
    # A preset's plan may have grown, or shrunk, even to nothing; of shapes that were asked for nothing is no answer. A
    # program's figures say themselves what they are of.
    planned = {group.workload.shape for group in groups}
    wanted = {probe.workload.shape for probe in asked if probe.topic != "program"}
    pairs = ((timed, planned), (looked_at, wanted))
    if any(there and due and not there & due for there, due in pairs) or (timed and shapes and not planned):
        return "other shapes"
    if spec.source is None:
        return ""
    if kept.run.get("source") != spec.source.digest:
        return "another version of " + Path(spec.source.path).name
    if kept.run.get("provenance", []) != list(spec.source.provenance):
        return "other files of the program"
    if not {cell["dtype"] for cell in kept.cells} <= {group.workload.dtype for group in groups}:
        return "other dtypes"
    return ""


def missing(kept: records.Record, groups: Sequence[Group]) -> list[Group]:
    """What of ``groups`` has no cell in ``kept``: variants and clocks alone, and the baseline to compare them with."""
    there = {records.cell_key(cell) for cell in kept.cells}
    found = []
    for group in groups:
        work = asdict(group.workload)
        lacking = [
            (name, word)
            for name in group.variants
            for word in group.clocks or ("none",)
            if records.cell_key(work | {"variant": name, "clock": word}) not in there
        ]
        names = {name for name, _ in lacking} | {variants.baseline(group.workload.operation)}
        clocks = {word for _, word in lacking}
        if lacking:
            chosen = tuple(name for name in group.variants if name in names)
            found.append(replace(group, variants=chosen, clocks=tuple(word for word in group.clocks if word in clocks)))
    return found


def joined(
    before: Sequence[dict[str, Any]], since: Sequence[dict[str, Any]], first: int, more: int
) -> list[dict[str, Any]]:
    """The cells of a record of ``first`` processes and of ``more`` that came since, each with a median a process."""
    added = {records.cell_key(cell): cell for cell in since}
    out = []
    for cell in before:
        new = added.pop(records.cell_key(cell), None)
        if cell["medians_us"]:
            times = new["medians_us"] if new and new["status"] == "ok" else []
            cell = cell | {"medians_us": cell["medians_us"] + (times or [None] * more)}
            if new and times and cell.get("sources") != new.get("sources"):  # of two texts, so of none
                cell.pop("sources", None)
        out.append(cell)
    for cell in added.values():
        times = cell["medians_us"]
        out.append(cell | {"medians_us": [None] * first + times if times else []})
    return out
