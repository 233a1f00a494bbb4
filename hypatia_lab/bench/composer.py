"""Workload × variant: check → measure → record. The composer: it plans, starts fresh processes and joins their rows."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hypatia_lab import intervals, machine, records, results, variants
from hypatia_lab.bench import ahead, joining, probes
from hypatia_lab.bench.campaign import Campaign
from hypatia_lab.bench.progress import Countdown
from hypatia_lab.experiments import EXPERIMENTS, PRESETS, PROCESSES, Experiment, Group, Probe
from hypatia_lab.experiments.plan import LATEST_S, MORE_S, MOST
from hypatia_lab.names import unknown
from hypatia_lab.profiler import sessions

CLOSE = 0.05
"""A ratio is known well enough when its 95% interval lies within ±5% of it: no further process is spent on it."""
CHECKED_IN = 2
"""Fresh processes that check what is not timed: the inputs are the same in each, and so is the answer."""
COMPILED_IN = 5
"""Fresh processes that build what a compiler or a planner chooses anew in each, which takes seconds to minutes."""
SILENCE_S = 300.0
"""A measuring process that says nothing for so long is taken to hang."""


class BenchError(ValueError):
    """A measurement that cannot be started as asked; the message names the parameter and what would do."""


def commit() -> tuple[str, bool]:
    """Commit of the source tree, and whether the package differs from it; ("unknown", True) where it is in none.

    A copy that was sent to a machine without its history says where it came from in ``HYPATIA_COMMIT``.
    """
    told = os.environ.get("HYPATIA_COMMIT", "")
    if re.fullmatch(r"[0-9a-f]{7,40}", told):
        return told, False
    root = Path(__file__).resolve().parents[2]
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
    home, found = Path(__file__).resolve().parents[1], hashlib.sha256()
    for path in sorted(home.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(home)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


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


class _Parts:
    """Rows of finished processes, one file each beside the record, so that an interruption loses nothing.

    ``chips``: the GPU that measures now, and those of the parts that were taken up again.
    """

    def __init__(self, folder: Path, key: str, chip: str) -> None:
        self.folder, self.key, self.chips = folder, key, {chip}

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
        self.chips |= {*parsed[0]["chips"]}
        return parsed[1:], {k: tuple(v) for k, v in parsed[0]["excluded"].items()}

    def save(self, number: int, rows: list[dict[str, Any]], excluded: dict[str, tuple[str, str]]) -> None:
        head = {"key": self.key, "excluded": excluded, "chips": sorted(self.chips)}
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

    A finished record is kept unless ``overwrite``; what the plan has gained since (a variant, a shape, a probe) is
    measured and added to it. An interrupted measurement goes on where it stopped. The machine's ceilings are measured
    first where there are none, and once more where the baseline beats them. Processes are added to the preset's until
    every ratio is known to within :data:`CLOSE` or their time is spent. A variant that says nothing for ``silence_s``
    seconds is taken to hang. Raises :class:`BenchError`, :class:`records.RecordError`, :class:`machine.MachineError` or
    :class:`sessions.SessionError`.
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
        _ensure_same(kept, spec, groups, asked, shapes)
        groups, asked = _missing_groups(kept, groups), probes.missing(asked, kept.details)
        if not groups and not asked:
            return kept
    with records.held(folder):
        how: dict[str, Any] = {"preset": preset, "device": device, "silence_s": silence_s, "progress": progress}
        if spec.name != "ceilings" and records.leading(folder, "ceilings") is None:
            ceilings = EXPERIMENTS["ceilings"]
            _measure(ceilings, plan(ceilings, preset, device), [], folder, None, how)
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
    if spec.name != "ceilings":
        _own_ceilings(folder, device)
    begun = time.monotonic()
    started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head, dirty = commit()
    described = [asdict(group) for group in groups]
    source = asdict(spec.source) if spec.source else None
    first = kept.run["processes"] if kept else 0
    planned = [spec.name, preset, device, head, described, [asdict(probe) for probe in asked], machine.versions()]
    planned += [_sources()] if dirty else []
    planned += [source] if source else []
    planned += [kept.digest] if kept else []
    key = hashlib.sha256(json.dumps(planned).encode()).hexdigest()
    facts = machine.facts(device)
    parts = _Parts(folder / ".parts" / spec.name, key, facts.get("chip", ""))
    resumed = parts.folder.exists()
    records.write_text(parts.folder / "log.txt", "")  # fails now, not after minutes of measuring
    work = {"device": device, "source": source, "silence_s": how["silence_s"], "folder": str(parts.folder)}
    work["gpu"] = machine.gpu_uuid() if device == "cuda" else ""
    per_process = _sessions(spec, groups, work, parts, first, how) if groups else []
    details = probes.collect(asked, device, parts.folder, key, source=source, progress=progress)
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
    }
    if not resumed:
        run["seconds"] = round(time.monotonic() - begun, 1)
    if spec.source:
        run["source"] = spec.source.digest
        if spec.source.provenance:
            run["provenance"] = list(spec.source.provenance)
    cells = joining.cells(groups, per_process, {} if spec.name == "ceilings" else _best(folder, device))
    if any(cell["status"] == "too_fast" and cell["variant"] == cell["baseline"] for cell in cells):
        # What the baseline reaches the machine can do: the ceilings were taken while something else kept it busy.
        if progress:
            print("the baseline is faster than the ceilings allow: measuring them again", file=sys.stderr)
        ceilings, before = EXPERIMENTS["ceilings"], _own_ceilings(folder, device).run["preset"]
        _measure(ceilings, plan(ceilings, before, device), [], folder, None, how | {"preset": before})
        cells = joining.cells(groups, per_process, _best(folder, device))
    if kept is not None:
        since = {name: run[name] for name in ("started", "commit", "dirty")} | {"processes": len(per_process)}
        before = dict(kept.run["facts"])
        if before.get("chip") != facts.get("chip"):
            before.pop("chip", None)
        run = kept.run | {
            "facts": before,
            "processes": first + len(per_process),
            "grown": [*kept.run.get("grown", []), since],
        }
        cells, details = _joined(kept.cells, cells, first, len(per_process)), [*kept.details, *details]
    # First what the record's readers look for beside it: once there is a record, nobody comes back for more.
    probes.keep_files(asked, parts.folder, folder / "traces", lambda name: name.endswith(".json.gz"))
    path = records.write(folder.parent, run, cells, details, overwrite=True, at=kept.path if kept else None)
    parts.clear()
    return path


def _missing_groups(kept: records.Record, groups: Sequence[Group]) -> list[Group]:
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


def _joined(
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
        out.append(cell)
    for cell in added.values():
        times = cell["medians_us"]
        out.append(cell | {"medians_us": [None] * first + times if times else []})
    return out


def campaign(folder: Path) -> Campaign:
    """The run under ``--overwrite`` that this code does, or did not end, in ``folder``, a machine's."""
    head, dirty = commit()
    return Campaign(folder, _sources() if dirty else head)


def _ensure_same(
    kept: records.Record,
    spec: Experiment,
    groups: Sequence[Group],
    asked: Sequence[Probe],
    shapes: Sequence[tuple[int, ...]] = (),
) -> None:
    """Raise :class:`BenchError` when ``kept`` answers another plan, of other shapes or of another text of a file."""
    again = f"of {kept.machine} is recorded with {{}}; measure again with --overwrite"
    timed, looked_at = ({tuple(line["shape"]) for line in lines} for lines in (kept.cells, kept.details))
    # A preset's plan may have grown, or shrunk, even to nothing; of shapes that were asked for nothing is no answer. A
    # program's figures say themselves what they are of.
    planned = {group.workload.shape for group in groups}
    wanted = {probe.workload.shape for probe in asked if probe.topic != "program"}
    pairs = ((timed, planned), (looked_at, wanted))
    if any(there and due and not there & due for there, due in pairs) or (timed and shapes and not planned):
        raise BenchError(f"{spec.name} {again.format('other shapes')}")
    if spec.source is None:
        return
    if kept.run.get("source") != spec.source.digest:
        raise BenchError(f"{spec.name} {again.format('another version of ' + Path(spec.source.path).name)}")
    if kept.run.get("provenance", []) != list(spec.source.provenance):
        raise BenchError(f"{spec.name} {again.format('other files of the program')}")
    if not {cell["dtype"] for cell in kept.cells} <= {group.workload.dtype for group in groups}:
        raise BenchError(f"{spec.name} {again.format('other dtypes')}")


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


def _sessions(
    spec: Experiment, groups: Sequence[Group], work: dict[str, Any], parts: _Parts, first: int, how: dict[str, Any]
) -> list[list[dict[str, Any]]]:
    """Rows of every fresh process, each run to its end, with a countdown of groups × processes.

    The preset's processes, numbered from ``first``, and then more of those groups that still need them.
    """
    preset, quiet = how["preset"], not how["progress"]
    guarded = spec.source is not None and spec.source.guarded
    module = f"hypatia_lab.{'judged.coordinator' if guarded else 'bench.cells'}"
    least = spec.processes or max(PROCESSES[preset], spec.least if preset != "quick" else 0)
    most = spec.processes or max(least, MOST[preset])
    if spec.within_s:
        most = max(most, *MOST.values())
    begun = time.monotonic()
    due = [_due(number, groups) for number in range(least)]
    if spec.source is None and how["device"] == "cuda" and not parts.load(first)[0]:
        ahead.build(spec.name, groups, work, parts.key, quiet=quiet)
    found: list[list[dict[str, Any]]] = []
    excluded: dict[str, tuple[str, str]] = {}
    with (
        _waiting(due, first, parts, module, how["device"]) as fresh,
        Countdown(spec.name, sum(map(len, due)), quiet) as bar,
    ):
        for number, plans in enumerate(due, first):
            found.append(_one_process(number, plans, work, excluded, parts, module, bar.update, fresh.get(number)))
        until = min(time.monotonic() + MORE_S[preset], begun + LATEST_S[preset])
        until = max(until, begun + spec.within_s)
        while len(found) < most and (wide := _wide(groups, found, how["device"])):
            if time.monotonic() > until:
                break
            bar.total += len(wide)
            bar.refresh()
            plans = {index: data for index, data in _due(len(found), groups).items() if index in wide}
            found.append(_one_process(first + len(found), plans, work, excluded, parts, module, bar.update))
    return found


def _wide(groups: Sequence[Group], per_process: Sequence[Sequence[dict[str, Any]]], device: str) -> list[int]:
    """Indices of the groups of which some ratio, by the clock that verdicts rest on, is not known well enough."""
    primary = results.primary_clock(device)
    found = []
    for index, group in enumerate(groups):
        word = primary if primary in group.clocks else next(iter(group.clocks), "none")
        # What is not built any more would not be known better after another process, and a twin's ratio is no result.
        names = [name for name in _still(group, len(per_process)) if not name.endswith(variants.AGAIN)]
        times: dict[str, list[float | None]] = {name: [None] * len(per_process) for name in names}
        for number, rows in enumerate(per_process):
            for row in rows:
                if (row["group"], row["clock"], row["status"]) == (index, word, "ok") and row["variant"] in times:
                    times[row["variant"]][number] = row["median_us"]
        base = times.pop(variants.baseline(group.workload.operation), [])
        for own in times.values():
            paired = [(b, v) for b, v in zip(base, own, strict=False) if b and v]
            if len(paired) > 1 and not intervals.known(intervals.ratio(*zip(*paired, strict=True)), CLOSE):
                found.append(index)
                break
    return found


def _due(number: int, groups: Sequence[Group]) -> dict[int, dict[str, Any]]:
    """Index → plan of the groups that the process after ``number`` others runs: whatever is timed, and in the first
    few all."""
    return {
        index: asdict(replace(group, variants=_still(group, number)))
        for index, group in enumerate(groups)
        if group.clocks or number < CHECKED_IN
    }


def _still(group: Group, number: int) -> tuple[str, ...]:
    """The variants of ``group`` that the process after ``number`` others builds."""
    operation = group.workload.operation
    return tuple(n for n in group.variants if number < COMPILED_IN or not variants.find(operation, n).chosen_anew)


@contextlib.contextmanager
def _waiting(
    due: Sequence[dict[int, dict[str, Any]]], first: int, parts: _Parts, module: str, device: str
) -> Iterator[dict[int, sessions.Fresh]]:
    """Processes of ``module`` that wait for their plans, by number: for those of ``due`` that are not done."""
    numbers = [
        number
        for number, plans in enumerate(due, first)
        if not {row["group"] for row in parts.load(number)[0]}.issuperset(plans)
    ]
    numbers = numbers[: sessions.room(len(numbers))]
    with contextlib.ExitStack() as stack:
        tuned = [_tuned(due[number - first], device) for number in numbers]
        environments = [stack.enter_context(_caches(parts.folder, one)) for one in tuned]
        log = parts.folder / "log.txt"
        yield dict(
            zip(numbers, stack.enter_context(sessions.waiting([module] * len(numbers), environments, log)), strict=True)
        )


def _one_process(
    number: int,
    due: dict[int, dict[str, Any]],
    work: dict[str, Any],
    excluded: dict[str, tuple[str, str]],
    parts: _Parts,
    module: str,
    advance: Callable[[int], Any],
    fresh: sessions.Fresh | None = None,
) -> list[dict[str, Any]]:
    """All rows of process ``number``, which runs ``module`` over the groups ``due`` (index → plan).

    ``fresh`` is the process, where it waits already. A variant that kills it is left out and the rest runs on.

    ``excluded`` gets whoever did so, and later processes leave it out too: its cell has failed already, and waiting
    for it to hang once more in every process would take an hour.
    """
    log = parts.folder / "log.txt"
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

    while todo := [(index, data) for index, data in due.items() if index not in finished]:
        pending.clear()
        words.clear()
        begun[:] = [todo[0][0], ""]
        plan = work | {"number": number, "groups": todo, "excluded": excluded}
        with _caches(parts.folder, _tuned(due, work["device"])) as env:
            casualty = sessions.run_session(
                module, plan, log, on_event=on_event, silence_s=work["silence_s"], env=env, fresh=fresh
            )
        fresh = None
        if casualty is None and not finished.issuperset(index for index, _ in todo):  # somebody called exit(0)
            casualty = sessions.Casualty(begun, "crashed", "the process ended before it was done")
        if casualty is None or casualty.what[0] in finished:  # whose group was done had nothing to do with it
            continue
        index, name = casualty.what
        if f"{index}/{name}" in excluded:
            left_out = name or f"the workload of {', '.join(due[index]['variants'])}"
            raise sessions.SessionError(f"a measuring process dies although {left_out} is left out; see {log}")
        excluded[f"{index}/{name}"] = (casualty.status, ": ".join([casualty.reason, *words]))
    return rows


@contextlib.contextmanager
def _caches(folder: Path, tuned: bool) -> Iterator[dict[str, str]]:
    """Environment of a process in which torch.compile, where what it makes is ``tuned``, finds nothing of an earlier
    one: the tuner then chooses anew.

    What it chose is all that differs from process to process. The machine code of a chosen kernel does not, and what
    Triton has compiled stays where it is.
    """
    if not tuned:
        yield {}
        return
    empty = tempfile.mkdtemp(prefix="inductor-", dir=folder)
    # Without it Inductor keeps Triton's files in that folder, too.
    kept = os.environ.get("TRITON_CACHE_DIR") or os.path.expanduser("~/.triton/cache")
    try:
        yield {"TORCHINDUCTOR_CACHE_DIR": empty, "TRITON_CACHE_DIR": kept}
    finally:
        shutil.rmtree(empty, ignore_errors=True)


def _tuned(due: dict[int, dict[str, Any]], device: str) -> bool:
    """Whether trials decide what torch.compile makes of ``due``: on a GPU always, on a CPU where that is asked for."""
    return device == "cuda" or any("max_autotune" in name for data in due.values() for name in data["variants"])
