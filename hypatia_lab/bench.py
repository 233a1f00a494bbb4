"""Workload × variant: check → measure → record. The only composer, in the parent and in its fresh processes."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypatia_lab import check, clock, failures, intervals, machine, own, probes, programs, records, results, variants
from hypatia_lab.experiments import EXPERIMENTS, PRESETS, PROCESSES, Experiment, Group, Probe
from hypatia_lab.profiler import sessions
from hypatia_lab.workloads import Workload

LONGEST_CALL_S = 5.0
"""Nothing that needs longer a call is timed."""
OVERHEAD_S = 0.02
"""A shorter call may be all overhead, which no larger size multiplies: a compiled step of training has 1.4 ms of it."""
HICCUP_S = 0.5
"""A call that seems to take less is made once more before its pace is believed."""
CHECKED_IN = 2
"""Fresh processes that check what is not timed: the inputs are the same in each, and so is the answer."""
SILENCE_S = 300.0
"""A measuring process that says nothing for so long is taken to hang."""


class BenchError(ValueError):
    """A measurement that cannot be started as asked; the message names the parameter and what would do."""


# ---------------------------------------------------------------- in a fresh process


class _Session:
    """One fresh process: runs every group of the plan and emits one row a variant and clock."""

    def __init__(self, plan: dict[str, Any], emit: Callable[..., None]) -> None:
        self.device: str = plan["device"]
        self.number: int = plan["number"]
        self.excluded: dict[str, tuple[str, str]] = {key: tuple(v) for key, v in plan["excluded"].items()}
        self.emit = emit
        self.probe = machine.Probe(self.device)
        self.rates: dict[tuple[str, ...], float] = {}
        self.rests = True

    def run(self, index: int, group: Group) -> None:
        workload = group.workload
        self.emit("begin", what=[index, ""])  # whoever dies from here on dies of the inputs, not of a variant
        with workload.precision():
            try:
                status, reason = self.excluded.get(f"{index}/", ("", ""))
                problem = None if status else check.Problem(workload, self.device)
            except Exception as cause:  # no memory for them, say
                traceback.print_exc()
                problem, status, reason = None, "crashed", failures.one_line(cause)
            if problem is None:
                reason = f"nothing was run, for the inputs could not be drawn: {reason}"
                for name in group.variants:
                    for word in group.clocks or ("none",):
                        self._row(index, name, word, status, reason, None)
                return
            ready: dict[str, variants.Run] = {}
            found: dict[str, check.Check] = {}
            # Built in another order in each process: what the first one gains must not always be the same one's.
            order = list(group.variants)
            random.Random(f"{self.number}/{index}").shuffle(order)
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
        amount = workload.flops or workload.traffic
        if amount / self.rates.get(pace, math.inf) > LONGEST_CALL_S:
            expected = amount / self.rates[pace]
            return (
                "skipped",
                f"about {expected:.0f} s a call at its pace on a smaller size; the limit is {LONGEST_CALL_S:.0f} s",
            )
        try:
            run = candidate.factory(workload, problem.inputs)
            found[name] = check.check(run, problem, place="cpu" if candidate.host else "")
            if not found[name].ok:
                return "wrong", found[name].reason
            seconds = clock.once_s(run, self.device)
            if OVERHEAD_S < seconds < HICCUP_S:  # one call that was held up would rule out larger sizes
                seconds = min(seconds, clock.once_s(run, self.device))
        except Exception as cause:
            traceback.print_exc()
            clock.synchronize(self.device)  # a device left in error ends this process here, with this variant named
            return "crashed", failures.one_line(cause)
        if seconds > OVERHEAD_S:
            self.rates[pace] = amount / seconds
        if seconds > LONGEST_CALL_S:
            return "skipped", f"{seconds:.1f} s a call; the limit is {LONGEST_CALL_S:.0f} s"
        ready[name] = run
        return "ok", ""

    def _time(self, index: int, group: Group, problem: check.Problem, ready: Any, found: Any) -> None:
        timings: dict[tuple[str, str], clock.Timing | clock.ClockError] = {}
        host = {name for name in ready if variants.find(group.workload.operation, name).host and self.device == "cuda"}
        if ready and group.clocks and self.rests:  # who never rests is waited for once
            self.rests = clock.settle() < clock.SETTLE_S
        for word in group.clocks if ready else ():
            # Among a GPU's variants the host's threads would fall asleep, and waking them would be C's time.
            for names, device in ((ready.keys() - host, self.device), (host, "cpu")):
                if not names:
                    continue
                if device != self.device and word != "wall":
                    reason = clock.ClockError("runs on the host: the wall clock times it")
                    timings.update({(name, word): reason for name in names})
                    continue
                measured = clock.measure(
                    {name: run for name, run in ready.items() if name in names},
                    word,
                    device,
                    budget_s=group.budget_s,
                    seed=f"{self.number}/{index}/{word}",
                    probe=self.probe,
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
                    self._row(index, name, word, "crashed", f"after timing: {failures.one_line(cause)}", found[name])
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

    def _row(
        self,
        index: int,
        name: str,
        word: str,
        status: str,
        reason: str,
        found: check.Check | None,
        timing: clock.Timing | None = None,
    ) -> None:
        readings = [r for r in timing.readings if r] if timing else []
        self.emit(
            "row",
            group=index,
            variant=name,
            clock=word,
            status=status,
            reason=reason,
            error=found.error if found else None,
            max_error=found.max_error if found else None,
            peak=found.peak if found else None,
            median_us=timing.median_us if timing else None,
            samples_us=timing.samples_us if timing else [],
            calls=timing.calls if timing else 0,
            sm_mhz=[r["sm_mhz"] for r in readings],
            power_w=[r["power_w"] for r in readings],
            throttled=any(r["throttled"] for r in readings),
        )


def _group(data: dict[str, Any]) -> Group:
    workload = Workload(**data["workload"] | {"shape": tuple(data["workload"]["shape"])})
    return Group(workload, tuple(data["variants"]), tuple(data["clocks"]), data["budget_s"])


def session_main() -> None:
    """Entry of a fresh process; see :mod:`hypatia_lab.profiler.sessions`."""
    plan, emit = sessions.child_plan()
    if plan["source"]:
        load = programs.load if plan["source"]["kind"] == "program" else own.load
        load(Path(plan["source"]["path"]), plan["source"]["digest"])
    session = _Session(plan, emit)
    for index, data in plan["groups"]:
        try:
            session.run(index, _group(data))
        except Exception as cause:  # a device left in error; the next process goes on without whoever did it
            emit("dying", reason=failures.one_line(cause))
            raise
        emit("done", group=index)
        if plan["device"] == "cuda":
            import torch

            torch.cuda.empty_cache()
    emit("end")


# ---------------------------------------------------------------- in the parent


def commit() -> tuple[str, bool]:
    """Commit of the source tree, and whether the package differs from it; ("unknown", True) where it is in none.

    A copy that was sent to a machine without its history says where it came from in ``HYPATIA_COMMIT``.
    """
    told = os.environ.get("HYPATIA_COMMIT", "")
    if re.fullmatch(r"[0-9a-f]{7,40}", told):
        return told, False
    root = Path(__file__).resolve().parent.parent
    try:
        tree, head = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        # Records and executed notebooks are what a run leaves behind; they do not change what it measures.
        changed = _git(root, "status", "--porcelain", "--", "hypatia_lab")
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True
    # A copy within a repository of something else: that one's commit says nothing of it.
    return (head, bool(changed.strip())) if Path(tree).resolve() == root else ("unknown", True)


def _git(root: Path, *asked: str) -> str:
    return subprocess.run(["git", *asked], cwd=root, capture_output=True, text=True, check=True).stdout


def _sources() -> str:
    """Digest of the package's files, of which no commit tells."""
    home, found = Path(__file__).resolve().parent, hashlib.sha256()
    for path in sorted(home.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(home)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _known(experiment: str | Experiment) -> Experiment:
    if isinstance(experiment, Experiment):
        return experiment
    if experiment not in EXPERIMENTS:
        raise BenchError(f"unknown experiment {experiment!r}; known: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[experiment]


def plan(experiment: str | Experiment, preset: str, device: str, shapes: Sequence[tuple[int, ...]] = ()) -> list[Group]:
    """The groups of ``experiment``. Raises :class:`BenchError` for an unknown experiment or preset."""
    spec = _known(experiment)
    if preset not in PRESETS:
        raise BenchError(f"unknown preset {preset!r}; known: {', '.join(PRESETS)}")
    groups = spec.plan(preset, device, shapes if spec.name not in ("ceilings", "agreement") else ())
    # Small first: the pace on a small size tells which large ones would take too long.
    return sorted(groups, key=lambda group: (group.workload.flops, group.workload.traffic))


class _Parts:
    """Rows of finished processes, one file each beside the record, so that an interruption loses nothing."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.jsonl"

    def load(self, number: int) -> tuple[list[dict[str, Any]], dict[str, tuple[str, str]]]:
        """Rows of whole groups and exclusions so far; empty when there are none or they answer another plan."""
        try:
            lines = self.path(number).read_text(encoding="utf-8").splitlines()
            parsed = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return [], {}
        if not parsed or not isinstance(parsed[0], dict) or parsed[0].get("key") != self.key:
            return [], {}
        return parsed[1:], {k: tuple(v) for k, v in parsed[0]["excluded"].items()}

    def save(self, number: int, rows: list[dict[str, Any]], excluded: dict[str, tuple[str, str]]) -> None:
        head = {"key": self.key, "excluded": excluded}
        records.write_text(self.path(number), "".join(json.dumps(row) + "\n" for row in (head, *rows)))

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        if not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()


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
) -> records.Record:
    """Measure ``experiment``, by name or of a reader's own, and leave its record under ``root``; returns the record.

    A finished record is kept unless ``overwrite``; an interrupted measurement goes on where it stopped. The
    machine's ceilings are measured first where there are none, and once more where the baseline beats them. A variant
    that says nothing for ``silence_s`` seconds is taken to hang. Raises :class:`BenchError`,
    :class:`records.RecordError`, :class:`machine.MachineError` or :class:`sessions.SessionError`.
    """
    spec = _known(experiment)
    experiment = spec.name
    groups = plan(spec, preset, device, shapes)
    target = root / records.machine_name(machine_name) / f"{experiment}.jsonl"
    if target.exists() and not overwrite:
        kept = records.load_file(target)
        if (kept.run["preset"], kept.run["device"]) != (preset, device):
            raise BenchError(
                f"{experiment} of {machine_name} is recorded with preset {kept.run['preset']} on {kept.run['device']}; "
                "measure again with --overwrite, or name another machine"
            )
        _ensure_same(kept, spec, groups, spec.probes(preset, device, shapes))
        return kept
    with records.held(target.parent):
        if experiment != "ceilings" and not (target.parent / "ceilings.jsonl").exists():
            measure("ceilings", preset=preset, device=device, machine_name=machine_name, root=root, progress=progress)
        if experiment != "ceilings":
            _own_ceilings(target.parent, device)
        started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        head, dirty = commit()
        described = [asdict(group) for group in groups]
        asked = spec.probes(preset, device, shapes)
        source = asdict(spec.source) if spec.source else None
        planned = [experiment, preset, device, head, described, [asdict(probe) for probe in asked], machine.versions()]
        planned += [_sources()] if dirty else []
        planned += [source] if source else []
        key = hashlib.sha256(json.dumps(planned).encode()).hexdigest()
        parts = _Parts(target.parent / ".parts" / experiment, key)
        records.write_text(parts.folder / "log.txt", "")  # fails now, not after minutes of measuring
        work = {"device": device, "groups": described, "source": source}
        per_process = _sessions(experiment, preset, work, parts, silence_s, progress) if groups else []
        details = probes.collect(asked, device, parts.folder, key, source=source, progress=progress)
        run = {
            "kind": "run",
            "schema": records.SCHEMA,
            "machine": machine_name,
            "experiment": experiment,
            "preset": preset,
            "device": device,
            "started": started,
            "commit": head,
            "dirty": dirty,
            "processes": PROCESSES[preset],
            "facts": machine.facts(device),
        }
        if spec.source:
            run["source"] = spec.source.digest
            if spec.source.provenance:
                run["provenance"] = list(spec.source.provenance)
        cells = _cells(groups, per_process, {} if experiment == "ceilings" else _best(target.parent, device))
        if any(cell["status"] == "too_fast" and cell["variant"] == cell["baseline"] for cell in cells):
            # What the baseline reaches the machine can do: the ceilings were taken while something else kept it busy.
            if progress:
                print("the baseline is faster than the ceilings allow: measuring them again", file=sys.stderr)
            again: dict[str, Any] = {
                "machine_name": machine_name,
                "root": root,
                "progress": progress,
                "overwrite": True,
            }
            measure("ceilings", preset=_own_ceilings(target.parent, device).run["preset"], device=device, **again)
            cells = _cells(groups, per_process, _best(target.parent, device))
        # First what the record's readers look for beside it: once there is a record, nobody comes back for more.
        probes.keep_files(asked, parts.folder, target.parent / "traces", lambda name: name.endswith(".json.gz"))
        records.write(root, run, cells, details, overwrite=overwrite)
        parts.clear()
        return records.load_file(target)


def _ensure_same(kept: records.Record, spec: Experiment, groups: Sequence[Group], asked: Sequence[Probe]) -> None:
    """Raise :class:`BenchError` when ``kept`` answers another plan, of other shapes or of another text of a file."""
    again = f"of {kept.machine} is recorded with {{}}; measure again with --overwrite"
    shapes, seen = ({tuple(line["shape"]) for line in lines} for lines in (kept.cells, kept.details))
    # A record may hold more probes than are asked for today; a program's figures say themselves what they are of.
    wanted = {probe.workload.shape for probe in asked if probe.topic != "program"}
    if shapes != {group.workload.shape for group in groups} or not seen >= wanted:
        raise BenchError(f"{spec.name} {again.format('other shapes')}")
    if spec.source is None:
        return
    if kept.run.get("source") != spec.source.digest:
        raise BenchError(f"{spec.name} {again.format('another version of ' + Path(spec.source.path).name)}")
    if kept.run.get("provenance", []) != list(spec.source.provenance):
        raise BenchError(f"{spec.name} {again.format('other files of the program')}")
    if {cell["dtype"] for cell in kept.cells} != {group.workload.dtype for group in groups}:
        raise BenchError(f"{spec.name} {again.format('other dtypes')}")


def _best(folder: Path, device: str) -> dict[tuple[str, str, str], float]:
    return results.ceilings([_own_ceilings(folder, device)])


def _cells(groups: list[Group], per_process: list[list[dict[str, Any]]], best: Any) -> list[dict[str, Any]]:
    return [
        _cell(groups[index], name, word, per_process, index, best) for index, name, word in _keys(groups, per_process)
    ]


def _own_ceilings(folder: Path, device: str) -> records.Record:
    """The ceilings of this machine. Raises :class:`BenchError` when they are another device's."""
    found = records.load_file(folder / "ceilings.jsonl")
    if found.run["device"] != device:
        raise BenchError(
            f"the ceilings of {found.machine} were measured on {found.run['device']}, not on {device}; "
            "name another machine"
        )
    return found


def _sessions(
    experiment: str, preset: str, work: dict[str, Any], parts: _Parts, silence_s: float, progress: bool
) -> list[list[dict[str, Any]]]:
    """Rows of every fresh process, each run to its end, with a progress bar over groups × processes."""
    from tqdm import tqdm

    due = [_due(number, work["groups"]) for number in range(PROCESSES[preset])]
    found: list[list[dict[str, Any]]] = []
    excluded: dict[str, tuple[str, str]] = {}
    total = sum(map(len, due))
    with tqdm(total=total, desc=experiment, unit="group", disable=not progress, file=sys.stderr) as bar:
        for number, indices in enumerate(due):
            found.append(_one_process(number, indices, work, excluded, parts, silence_s, bar.update))
    return found


def _due(number: int, described: Sequence[dict[str, Any]]) -> list[int]:
    """Indices of the groups that process ``number`` runs: whatever is timed, and in the first few all."""
    return [index for index, group in enumerate(described) if group["clocks"] or number < CHECKED_IN]


def _one_process(
    number: int,
    due: Sequence[int],
    work: dict[str, Any],
    excluded: dict[str, tuple[str, str]],
    parts: _Parts,
    silence_s: float,
    advance: Callable[[int], Any],
) -> list[dict[str, Any]]:
    """All rows of process ``number``, of the groups ``due``; a variant that kills it is left out and the rest runs on.

    ``excluded`` gets whoever did so, and later processes leave it out too: its cell has failed already, and waiting
    for it to hang once more in every process would take an hour.
    """
    described, log = work["groups"], parts.folder / "log.txt"
    rows, before = parts.load(number)
    excluded |= before
    finished = {row["group"] for row in rows}
    advance(len(finished))
    pending: list[dict[str, Any]] = []
    words: list[str] = []
    begun: list[Any] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "begin":
            begun[:] = event["what"]
        elif event["event"] == "row":
            pending.append({key: value for key, value in event.items() if key != "event"})
        elif event["event"] == "dying":
            words.append(event["reason"])
        elif event["event"] == "done":
            rows.extend(pending)
            pending.clear()
            finished.add(event["group"])
            parts.save(number, rows, excluded)
            advance(1)

    while todo := [(index, described[index]) for index in due if index not in finished]:
        pending.clear()
        words.clear()
        begun[:] = [todo[0][0], ""]
        plan = work | {"number": number, "groups": todo, "excluded": excluded}
        casualty = sessions.run_session("hypatia_lab.bench", plan, log, on_event=on_event, silence_s=silence_s)
        if casualty is None and not finished.issuperset(index for index, _ in todo):  # somebody called exit(0)
            casualty = sessions.Casualty(begun, "crashed", "the process ended before it was done")
        if casualty is None or casualty.what[0] in finished:  # whose group was done had nothing to do with it
            continue
        index, name = casualty.what
        if f"{index}/{name}" in excluded:
            left_out = name or f"the workload of {', '.join(described[index]['variants'])}"
            raise sessions.SessionError(f"a measuring process dies although {left_out} is left out; see {log}")
        excluded[f"{index}/{name}"] = (casualty.status, ": ".join([casualty.reason, *words]))
    return rows


def _keys(groups: list[Group], per_process: list[list[dict[str, Any]]]) -> list[tuple[int, str, str]]:
    """(group, variant, clock) of every cell that some process reported, in the order of the plan."""
    seen = {(row["group"], row["variant"], row["clock"]) for rows in per_process for row in rows}
    planned = [
        (index, name, word)
        for index, group in enumerate(groups)
        for word in group.clocks or ("none",)
        for name in group.variants
    ]
    return [key for key in planned if key in seen]


def _cell(
    group: Group, name: str, word: str, per_process: list[list[dict[str, Any]]], index: int, best: Any
) -> dict[str, Any]:
    """Merge one cell's rows over the processes: the worst status counts, medians stay one a process."""
    mine: list[dict[str, Any] | None] = [
        next((r for r in rows if (r["group"], r["variant"], r["clock"]) == (index, name, word)), None)
        for rows in per_process
    ]
    there = [row for row in mine if row is not None]
    worst = max(there, key=lambda row: probes.SEVERITY.index(row["status"]))
    workload = group.workload
    spec = variants.find(workload.operation, name)
    samples = [sample for row in there for sample in row["samples_us"]]
    each = max(1, records.MAX_SAMPLES // len(per_process))
    timed = word != "none" and worst["status"] == "ok"
    cell = {
        "kind": "cell",
        "operation": workload.operation,
        "shape": list(workload.shape),
        "dtype": workload.dtype,
        "math": workload.math,
        "direction": workload.direction,
        "seed": workload.seed,
        "clock": word,
        "variant": name,
        "origin": spec.origin,
        "baseline": spec.name if name.endswith(variants.AGAIN) else variants.baseline(workload.operation),
        "status": worst["status"],
        "reason": worst["reason"],
        "error": _largest(row["error"] for row in there),
        "max_error": _largest(row["max_error"] for row in there),
        "flops": workload.flops,
        "traffic": workload.traffic,
        "medians_us": [_round(row["median_us"]) if row else None for row in mine] if timed else [],
        "samples_us": [_round(s) for row in there for s in row["samples_us"][:each]][: records.MAX_SAMPLES]
        if timed
        else [],
        "calls": worst["calls"],
        "outliers": _outliers(there) if samples else {"mild": 0, "severe": 0, "of": 0},
        "sm_mhz": _span([v for row in there for v in row["sm_mhz"]]),
        "power_w": _span([v for row in there for v in row["power_w"]]),
        "throttled": any(row["throttled"] for row in there),
    }
    if peaks := [row["peak"] for row in there if row.get("peak") is not None]:
        cell["peak"] = _round(min(peaks))
    limit = results.limit_us(cell, best) if timed and best else math.nan
    fastest = min((m for m in cell["medians_us"] if m is not None), default=math.nan)
    if fastest < limit / results.TOLERANCE:
        cell |= {
            "status": "too_fast",
            "reason": f"not believed: {fastest:.3g} µs, where this machine's best ceilings allow {limit:.3g} µs",
        }
    return cell


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _largest(values: Any) -> float | None:
    there = [v for v in values if v is not None and math.isfinite(v)]
    return float(f"{max(there):.4g}") if there else None


def _span(values: list[float]) -> list[float]:
    """[lowest, median, highest] of the readings; empty when there are none."""
    ordered = sorted(values)
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if ordered else []


def _outliers(rows: list[dict[str, Any]]) -> dict[str, int]:
    total = {"mild": 0, "severe": 0, "of": 0}
    for row in rows:
        for key, value in intervals.outliers(row["samples_us"]).items():
            total[key] += value
    return total


if __name__ == "__main__":
    session_main()
