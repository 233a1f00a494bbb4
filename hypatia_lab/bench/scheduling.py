"""Which processes an experiment gets: the preset's, those that are added, and the restarts of those that died."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hypatia_lab import intervals, machine, results, variants
from hypatia_lab.bench import ahead, sessions
from hypatia_lab.bench.parts import Parts
from hypatia_lab.bench.progress import Countdown
from hypatia_lab.experiments import PROCESSES, Experiment, Group
from hypatia_lab.experiments.plan import LATEST_S, MORE_S, MOST
from hypatia_lab.strangers.reader_kernel import OwnError, TooLarge

CLOSE = 0.05
"""A ratio is known well enough when its 95% interval lies within ±5% of it: no further process is spent on it."""
CHECKED_IN = 2
"""Fresh processes that check what is not timed: the inputs are the same in each, and so is the answer."""
ADDED = 2
"""Of a stranger's kernel so many processes are added at once: they get ready together."""
FAILED = ("timeout", "crashed", "wrong", "cheated")
HELD, CONTEXTS = 32, 4 * 2**30
"""What the processes of a judged measurement hold of a GPU: so many times the bytes that a call moves, and (bytes) what
the driver takes for each of them."""
COMPILED_IN = 5
"""Fresh processes that build what a compiler or a planner chooses anew in each, which takes seconds to minutes."""


def run_processes(
    spec: Experiment, groups: Sequence[Group], work: dict[str, Any], parts: Parts, first: int, how: dict[str, Any]
) -> list[list[dict[str, Any]]]:
    """Rows of every fresh process, each run to its end, with a countdown of groups × processes.

    The preset's processes, numbered from ``first``, and then more of those groups that still need them.
    """
    preset, quiet = how["preset"], not how["progress"]
    guarded = spec.source is not None and spec.source.guarded
    module = sessions.MEASURING[guarded]
    early: list[sessions.Fresh] = how["early"] if guarded else []
    least = spec.processes or max(PROCESSES[preset], spec.least if preset != "quick" else 0)
    most = spec.processes or max(least, MOST[preset])
    if spec.within_s:
        most = max(most, *MOST.values())
    begun = time.monotonic()
    due = {first + number: _due(number, groups) for number in range(least)}
    if spec.source is None and how["device"] == "cuda" and not parts.load(first)[0]:
        ahead.build(spec.name, groups, work, parts.key, quiet=quiet)
    found: list[list[dict[str, Any]]] = []
    excluded: dict[str, tuple[str, str]] = {}
    together = True
    with Countdown(spec.name, sum(map(len, due.values())), quiet) as bar:
        while due:
            with _waiting(due if together else {}, parts, module, how["device"], early) as fresh:
                if guarded and fresh:
                    with bar.doing("getting ready"):
                        _get_ready(fresh, due, parts, work, max(group.workload.traffic for group in groups))
                how["alone"]()
                for number, plans in list(due.items()):
                    try:
                        one = _one_process(number, plans, work, excluded, parts, module, bar.update, fresh.get(number))
                    except TooLarge:
                        if not fresh:
                            raise
                        together = False  # what the others hold is too much: one at a time may do
                        break
                    found.append(one)
                    del due[number]
                    if guarded and _surely_failed(groups, found[-2:]):
                        return found
            if due:
                continue
            if len(found) == least:
                until = min(time.monotonic() + MORE_S[preset], begun + LATEST_S[preset])
                until = max(until, begun + spec.within_s)
            wide = _wide(groups, found, how["device"]) if len(found) < most and time.monotonic() <= until else []
            more = range(len(found), min(most, len(found) + (ADDED if guarded else 1))) if wide else ()
            due = {first + n: {i: data for i, data in _due(n, groups).items() if i in wide} for n in more}
            bar.total += sum(map(len, due.values()))
            bar.refresh()
    return found


def _get_ready(
    fresh: dict[int, sessions.Fresh],
    due: dict[int, dict[int, dict[str, Any]]],
    parts: Parts,
    work: dict[str, Any],
    largest: int,
) -> None:
    """Let ``fresh`` do at the same time what comes before anything is timed: as many as the GPU holds, of which calls
    move ``largest`` bytes at most."""
    free = machine.Probe(work["device"], work["gpu"]).free_bytes()
    held = list(fresh.items())[: int(min(len(fresh), free / (HELD * largest + CONTEXTS)))]
    for number, process in held:
        rows, excluded = parts.load(number)
        finished = {row["group"] for row in rows}
        todo = [(index, data) for index, data in due[number].items() if index not in finished]
        process.tell(work | {"number": number, "groups": todo, "excluded": excluded, "ahead": True})
        if number == held[0][0] and work["device"] == "cpu":
            process.ready.wait()  # what the C++ compiler has made serves the others, who would wait for its locks
    for _, process in held:
        process.ready.wait()


def _surely_failed(groups: Sequence[Group], last: Sequence[Sequence[dict[str, Any]]]) -> bool:
    """Whether the ``last`` two processes found that nothing of the reader's is right, so that no third is needed."""
    own = {
        (index, name)
        for index, group in enumerate(groups)
        for name in group.variants
        if variants.find(group.workload.operation, name).origin == "own"
    }
    failed = [{(row["group"], row["variant"]) for row in rows if row["status"] in FAILED} for rows in last]
    return bool(own) and len(last) > 1 and all(own <= one for one in failed)


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
    due: dict[int, dict[int, dict[str, Any]]],
    parts: Parts,
    module: str,
    device: str,
    early: list[sessions.Fresh],
) -> Iterator[dict[int, sessions.Fresh]]:
    """Processes of ``module`` that wait for their plans, by number: for those of ``due`` that are not done.

    Those that were started ``early`` are taken first.
    """
    numbers = [n for n, plans in due.items() if not {row["group"] for row in parts.load(n)[0]}.issuperset(plans)]
    numbers = numbers[: sessions.room(len(numbers))]
    there, early[:] = early[: len(numbers)], early[len(numbers) :]
    others = numbers[len(there) :]
    with contextlib.ExitStack() as stack:
        environments = [stack.enter_context(_caches(parts.folder, _tuned(due[number], device))) for number in others]
        waiting = sessions.waiting([module] * len(others), environments, parts.folder / "log.txt", there)
        yield dict(zip(numbers, stack.enter_context(waiting), strict=True))


def _one_process(
    number: int,
    due: dict[int, dict[str, Any]],
    work: dict[str, Any],
    excluded: dict[str, tuple[str, str]],
    parts: Parts,
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
        elif event["event"] == "refused":
            source = work["source"]
            what = source["problem"] or source["path"]
            kind = TooLarge if event["fault"] == "machine" else OwnError
            raise kind(f"{what}: {event['reason']}; nothing was judged")
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
