"""Workload × variant: check → measure → record. The composer: it plans, starts fresh processes and joins their rows."""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hypatia_lab import machine, records, results
from hypatia_lab.bench import details, joining, kept_records, scheduling, sessions, source_tree, sources
from hypatia_lab.bench.campaign import Campaign
from hypatia_lab.bench.parts import Parts
from hypatia_lab.experiments import EXPERIMENTS, PRESETS, PROCESSES, Experiment, Group, Probe
from hypatia_lab.experiments.instrument import PRESENT
from hypatia_lab.kernels import loader
from hypatia_lab.messages import unknown

SILENCE_S = 300.0
"""A measuring process that says nothing for so long is taken to hang."""


class BenchError(ValueError):
    """A measurement that cannot be started as asked; the message names the parameter and what would do."""


def _known(experiment: str | Experiment) -> Experiment:
    if isinstance(experiment, Experiment):
        return experiment
    if experiment not in EXPERIMENTS:
        raise BenchError(unknown("experiment", experiment, EXPERIMENTS))
    return EXPERIMENTS[experiment]


def plan(experiment: str | Experiment, preset: str, device: str, shapes: Sequence[tuple[int, ...]] = ()) -> list[Group]:
    """The groups of ``experiment``. Raises :class:`BenchError` for an unknown experiment or preset, and ``PlanError``
    for what its plan names and is not there."""
    spec = _known(experiment)
    if preset not in PRESETS:
        raise BenchError(unknown("preset", preset, PRESETS))
    groups = spec.groups(preset, device, shapes if spec.name not in ("ceilings", "agreement") else ())
    if (preset, device) == ("quick", "cpu"):  # processes differ more than the samples of one: time goes to more of them
        groups = [replace(group, budget_s=group.budget_s / 2) for group in groups]
    # Small first: the pace on a small size tells which large ones would take too long.
    return sorted(groups, key=lambda group: (group.workload.flops, group.workload.traffic))


def measure(
    experiment: str | Experiment,
    *,
    preset: str = "quick",
    device: str = "cpu",
    machine_name: str,
    root: Path = records.COMMITTED,
    shapes: Sequence[tuple[int, ...]] = (),
    overwrite: bool = False,
    progress: bool = True,
    silence_s: float = SILENCE_S,
    early: Sequence[sessions.Fresh] = (),
    alone: Callable[[], None] = lambda: None,
) -> records.Record:
    """Measure ``experiment``, by name or of a reader's own, and leave its record under ``root``; returns the record.

    A finished record is kept unless ``overwrite``; what the plan has gained since (a variant, a shape, a probe) is
    measured and added to it. An interrupted measurement goes on where it stopped. The machine's ceilings are measured
    first where there are none, and once more where the baseline beats them. Processes are added to the preset's until
    every ratio is known well enough or their time is spent (:mod:`hypatia_lab.bench.scheduling`). A variant that says
    nothing for ``silence_s`` seconds is taken to hang. ``early`` are measuring processes of a guarded experiment that
    import what they need already, or have; ``alone`` is called before anything is timed. Raises :class:`BenchError`,
    :class:`records.RecordError`, :class:`machine.MachineError` or :class:`hypatia_lab.bench.sessions.SessionError`.
    """
    spec = _known(experiment)
    groups, asked = plan(spec, preset, device, shapes), spec.probes(preset, device, shapes)
    folder = root / records.machine_name(machine_name)
    begun = campaign(folder)
    kept = _recorded(folder, spec.name)
    if kept is not None and overwrite and not begun.has(spec.name):
        kept = None
    if kept is not None:
        if (kept.run["preset"], kept.run["device"]) != (preset, device):
            raise BenchError(
                f"{spec.name} of {machine_name} is recorded with preset {kept.run['preset']} on {kept.run['device']}; "
                "measure again with --overwrite, or name another machine"
            )
        if other := kept_records.otherwise(kept, spec, groups, asked, shapes):
            raise BenchError(f"{spec.name} of {kept.machine} is recorded with {other}; measure again with --overwrite")
        groups, asked = kept_records.missing(kept, groups), details.missing(asked, kept.details)
        if not groups and not asked:
            return kept
    with records.held(folder):
        how: dict[str, Any] = {"preset": preset, "device": device, "silence_s": silence_s, "progress": progress}
        how |= {"early": list(early), "alone": alone}
        if not _kept_apart(spec):
            _ensure_ceilings(spec, groups, folder, how)
        path = _measure(spec, groups, asked, folder, kept, how)
        begun.add(spec.name)
        return records.load_file(path)


def _recorded(folder: Path, experiment: str) -> records.Record | None:
    path = records.leading(folder, experiment)
    return None if path is None else records.load_file(path)


def _measure(
    spec: Experiment,
    groups: list[Group],
    asked: Sequence[Probe],
    folder: Path,
    kept: records.Record | None,
    how: dict[str, Any],
) -> Path:
    """Measure ``groups`` and ``asked`` and write the record of ``spec`` in ``folder``, onto ``kept`` where there is
    one; returns its path."""
    preset, device, progress = how["preset"], how["device"], how["progress"]
    if spec.name != "ceilings" and records.leading(folder, "ceilings") is not None:
        _own_ceilings(folder, device)
    begun = time.monotonic()
    started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head, dirty = source_tree.commit()
    described = [asdict(group) for group in groups]
    source = asdict(spec.source) if spec.source else None
    first = kept.run["processes"] if kept else 0
    planned = [spec.name, preset, device, head, described, [asdict(probe) for probe in asked], machine.versions()]
    planned += [source_tree.digest()] if dirty else []
    planned += [source] if source else []
    planned += [kept.digest] if kept else []
    key = hashlib.sha256(json.dumps(planned).encode()).hexdigest()
    ran = sources.of(groups, spec.source.digest if spec.source else "")
    facts = machine.facts(device)
    parts = Parts(folder / ".parts" / spec.name, key, facts.get("chip", ""))
    resumed = parts.folder.exists()
    records.write_text(parts.folder / "log.txt", "")  # fails now, not after minutes of measuring
    work = {"device": device, "source": source, "silence_s": how["silence_s"], "folder": str(parts.folder)}
    work["gpu"] = machine.gpu_uuid() if device == "cuda" else ""
    per_process = scheduling.run_processes(spec, groups, work, parts, first, how) if groups else []
    lines = details.collect(asked, device, parts.folder, key, source=source, progress=progress)
    if len(parts.chips) > 1:  # of two chips, so of none
        facts.pop("chip", None)
    run = {
        "kind": "run",
        "schema": records.SCHEMA,
        "machine": folder.name,
        "experiment": spec.name,
        "preset": preset,
        "device": device,
        "started": started,
        "commit": head,
        "dirty": dirty,
        "processes": len(per_process) or spec.processes or PROCESSES[preset],
        "facts": facts,
        "instrument": PRESENT,
    }
    if not resumed:
        run["seconds"] = round(time.monotonic() - begun, 1)
    if spec.source:
        run["source"] = spec.source.digest
        if spec.source.provenance:
            run["provenance"] = list(spec.source.provenance)
    _ensure_ceilings(spec, groups, folder, how)
    guarded = _kept_apart(spec)
    cells = joining.cells(groups, per_process, {} if spec.name == "ceilings" else _best(folder, device))
    if any(cell["status"] == "too_fast" and (guarded or cell["variant"] == cell["baseline"]) for cell in cells):
        # They may have been taken while something else kept the machine busy, and nobody is accused by those.
        if progress:
            print("a variant is faster than the ceilings allow: measuring them again", file=sys.stderr)
        before = _own_ceilings(folder, device)
        _ensure_ceilings(spec, groups, folder, how | {"preset": before.run["preset"]}, anew=True)
        best = results.ceilings([before, _own_ceilings(folder, device)])
        cells = joining.cells(groups, per_process, best)
    cells = [cell | ran[cell["operation"], cell["variant"]] for cell in cells]
    if kept is not None:
        since = {name: run[name] for name in ("started", "commit", "dirty", "instrument")}
        since |= {"processes": len(per_process)}
        before = dict(kept.run["facts"])
        if before.get("chip") != facts.get("chip"):
            before.pop("chip", None)
        run = kept.run | {
            "facts": before,
            "processes": first + len(per_process),
            "grown": [*kept.run.get("grown", []), since],
        }
        cells, lines = kept_records.joined(kept.cells, cells, first, len(per_process)), [*kept.details, *lines]
    # First what the record's readers look for beside it: once there is a record, nobody comes back for more.
    details.keep_files(asked, parts.folder, folder / "traces", lambda name: name.endswith(".json.gz"))
    path = records.write(folder.parent, run, cells, lines, overwrite=True, at=kept.path if kept else None)
    parts.clear()
    return path


def campaign(folder: Path) -> Campaign:
    """The run under ``--overwrite`` that this code does, or did not end, in ``folder``, a machine's."""
    head, dirty = source_tree.commit()
    return Campaign(folder, source_tree.digest() if dirty else head)


def _kept_apart(spec: Experiment) -> bool:
    return spec.source is not None and spec.source.guarded


def _ensure_ceilings(
    spec: Experiment, groups: Sequence[Group], folder: Path, how: dict[str, Any], anew: bool = False
) -> None:
    """See to it that ``folder`` has the ceilings that ``groups`` of ``spec`` are held against; ``anew``: measured now.

    The lab's own experiments get all of them. A stranger's kernel, which has a folder of its own each time, gets those
    of its workloads, and what was measured of this machine before is kept beside the built kernels.
    """
    if spec.name == "ceilings":
        return
    ceilings, there = EXPERIMENTS["ceilings"], _recorded(folder, "ceilings")
    needed = plan(ceilings, how["preset"], how["device"])
    if not _kept_apart(spec):
        if there is None or anew:
            _measure(ceilings, needed, [], folder, None, how)
        return
    kinds = {(work.dtype, work.math) for work in (group.workload for group in groups) if work.flops}
    kinds |= {(dtype, math) for dtype, default in kinds if default == "default" for math in ("ieee", "tf32")}
    needed = [one for one in needed if not one.workload.flops or (one.workload.dtype, one.workload.math) in kinds]
    home = _known_ceilings(how["device"], how["preset"]) / folder.name if anew or there is None else folder
    record = None if anew else _recorded(home, "ceilings")
    lacking = needed if record is None else kept_records.missing(record, needed)
    if lacking:
        with records.held(home):
            _measure(ceilings, lacking, [], home, record, how)
    path = records.leading(home, "ceilings")
    if home != folder and path is not None:
        records.write_text(folder / path.relative_to(home), path.read_text(encoding="utf-8"))


def _known_ceilings(device: str, preset: str) -> Path:
    """Where the ceilings of this very machine are kept, for as long as it has the same GPU, driver and packages,
    and the lab the same clock."""
    facts = machine.facts(device)
    told = [machine.gpu_uuid() if device == "cuda" else "", facts.get("driver"), facts["cpu"], facts["cores"], preset]
    told += [machine.versions(), records.SCHEMA, PRESENT]
    return loader.cache_folder() / "ceilings" / hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _best(folder: Path, device: str) -> dict[tuple[str, str, str], float]:
    return results.ceilings([_own_ceilings(folder, device)])


def _own_ceilings(folder: Path, device: str) -> records.Record:
    """The ceilings of this machine. Raises :class:`BenchError` when they are another device's."""
    found = _recorded(folder, "ceilings")
    assert found is not None
    if found.run["device"] != device:
        raise BenchError(
            f"the ceilings of {found.machine} were measured on {found.run['device']}, not on {device}; "
            "name another machine"
        )
    return found
