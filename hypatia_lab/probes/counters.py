"""Probe ``counters``: what the GPU's hardware counters say of one warm call: bytes, busy units, waits.

Run as a process by :mod:`hypatia_lab.bench.sessions`; the call happens in a program below it (:func:`program`),
which Nsight Compute (``ncu``) watches. The program checks the variant, warms it up, empties the L2 cache and makes one
call between cudaProfilerStart and cudaProfilerStop: nothing else is counted. ``case`` says what the caches hold:

- ``""``: the L2 cache is emptied once, before the call. A later kernel finds in it what an earlier one wrote, as in
  life. The program runs again for every pass that the metrics need (application replay), for a kernel that is replayed
  by itself would find its own data in the cache.
- ``each kernel``: ncu empties the caches before every kernel (its default). All that a kernel reads is then fetched
  from memory, as in a table that adds up what each kernel must read.
- ``units``: no bytes, but how busy each kernel keeps the GPU's units (:data:`SHARES`). A kernel runs once for every
  pass and finds in the caches what its last run left there, as in a graph that is replayed again and again.
- ``limits``: counted in the same way, what may hold each kernel back (:data:`LIMITS`, :data:`STALLS`).

What is written stays in the L2 cache until something displaces it, so a call whose output fits there may write nothing
to memory; "L2 written" counts what the kernels wrote at all. Nothing is counted on a CPU.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hypatia_lab import clock
from hypatia_lab.bench import sessions
from hypatia_lab.probes.probe import Emit, Ended, Subject, probe, subject

METRICS = {
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
    "l2": "lts__t_sectors_srcunit_tex.sum",
    "l2_written": "lts__t_sectors_srcunit_tex_op_write.sum",
    "us": "gpu__time_duration.sum",
}
"""What is counted of a kernel → ncu's metric.

Of the L2 cache what multiprocessors ask for (``srcunit_tex``): large GPUs have it in two halves, and a request that one
passes to the other would count twice.
"""
OPTIONAL = ("l2", "l2_written")
"""Left out where this ncu or GPU does not know their metric."""
SECTOR = 32
"""Bytes of a sector, the unit in which the L2 cache is asked."""
SHARES = {
    "tensor cores": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "arithmetic": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "special functions": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2 cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue slots": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
}
"""Unit of the GPU → ncu's metric of its share of what it could do at most, over the time of a kernel."""
SHARE_TOPICS = {name: f"share_{name.replace(' ', '_').lower()}" for name in SHARES}
"""Unit of the GPU → the topic of the detail lines that hold its shares, one a kernel."""
BUSY = "units"
"""The case that counts :data:`SHARES`."""
LIMITS = {
    "registers": ("launch__registers_per_thread", "1"),
    "static shared memory": ("launch__shared_mem_per_block_static", "B"),
    "dynamic shared memory": ("launch__shared_mem_per_block_dynamic", "B"),
    "blocks by registers": ("launch__occupancy_limit_registers", "1"),
    "blocks by shared memory": ("launch__occupancy_limit_shared_mem", "1"),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "1"),
    "read": (METRICS["read"], "B"),
    "written": (METRICS["written"], "B"),
    "l2": (METRICS["l2"], "B"),
    "shared turns": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "1"),
    "conflict turns": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "1"),
    "arithmetic": (SHARES["arithmetic"], "1"),
    "tensor cores": (SHARES["tensor cores"], "1"),
}
"""What may hold a kernel back → ncu's metric, and the unit that it is recorded in.

Registers are of a thread, shared memory of a block, "blocks by" so many as a multiprocessor has room for. Turns are
those of shared memory, in all and for bank conflicts alone. Occupancy and the last two are shares.
"""
STALLS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard"),
    *("sleeping", "tex_throttle", "wait"),
)
"""What a warp may wait for, in ncu's words: counted is how many warps do, on average, when an instruction is issued."""
LIMITS |= {
    f"stall {name}": (f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio", "1") for name in STALLS
}
OPTIONAL += tuple(name for name in LIMITS if name not in METRICS | SHARES)
LIMIT_TOPICS = {name: f"limit_{name.replace(' ', '_')}" for name in LIMITS}
"""What may hold a kernel back → the topic of the detail lines that hold it, one a kernel."""
LIMITED = "limits"
"""The case that counts :data:`LIMITS`."""
OF_KERNEL = {BUSY: SHARE_TOPICS, LIMITED: LIMIT_TOPICS}
"""Case that counts no bytes of a call → what it counts of each kernel, and the topics of those."""
UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": SECTOR}
UNITS |= {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
UNITS |= {"nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}
UNITS |= {"%": 0.01}
UNITS |= dict.fromkeys(("", "inst", "block", "byte/block", "register/thread"), 1.0)
"""Unit of ncu → bytes, µs, a share, or what has no unit."""
CASES = {
    "": ("--cache-control", "none", "--replay-mode", "application"),
    "each kernel": ("--cache-control", "all", "--replay-mode", "kernel"),
    **dict.fromkeys(OF_KERNEL, ("--cache-control", "none", "--replay-mode", "kernel")),
}
TOPICS = {"read": "dram_read", "written": "dram_written", "l2": "l2_bytes", "l2_written": "l2_written"}
"""What is counted of a kernel → the topic of the detail lines that hold it, one a kernel."""
TOTALS = {"read": "bytes read", "written": "bytes written", "l2": "L2 bytes", "l2_written": "L2 written"}
"""What is counted of a kernel → the name of its sum over the call, in topic ``counters``."""
LONGEST_NAME = 200
LONGEST_S = 140.0
"""A program that ncu watches may take so long, seconds."""


Launch = tuple[str, dict[str, float]]
"""The name of a kernel that was launched, and what was counted of it, by the names of :func:`metrics`."""


# ---------------------------------------------------------------- reading what ncu says


def metrics(case: str) -> dict[str, str]:
    """What is counted in ``case`` → ncu's metric."""
    counted = {BUSY: SHARES, LIMITED: {name: metric for name, (metric, _) in LIMITS.items()}}
    return counted[case] | {"us": METRICS["us"]} if case in counted else METRICS


def launches(text: str, case: str = "") -> list[Launch]:
    """The kernel launches in ncu's CSV output ``text``, in order.

    Lines before the table (``==PROF==`` and whatever the program printed) are skipped, columns are found by name.
    Raises ``ValueError`` when there is no table, or for a unit or a number that makes no sense.
    """
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise ValueError("no table of metrics in what ncu said")
    asked = metrics(case)
    meaning = {metric: name for name, metric in asked.items()}
    found: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    for row in csv.DictReader([lines[start], *(line for line in lines[start + 1 :] if line.startswith('"'))]):
        if row["Metric Name"] not in meaning:
            continue
        unit, value = row["Metric Unit"], row["Metric Value"]
        if value == "n/a" and meaning[row["Metric Name"]] in OPTIONAL:  # the GPU has no such thing
            continue
        if unit not in UNITS:
            raise ValueError(f"unit {unit!r} of {row['Metric Name']} is none of {', '.join(UNITS)}")
        try:
            number = UNITS[unit] * float(value.replace(",", ""))
        except ValueError:
            raise ValueError(f"{row['Metric Name']} of {row['Kernel Name'][:60]} is {value!r}, no number") from None
        names[row["ID"]] = row["Kernel Name"]
        found.setdefault(row["ID"], {})[meaning[row["Metric Name"]]] = number
    needed = [name for name in asked if name not in OPTIONAL]
    if not found:
        raise ValueError("the table of metrics is empty")
    for key, values in found.items():
        if missing := [asked[name] for name in needed if name not in values]:
            raise ValueError(f"kernel {names[key][:60]} lacks {', '.join(missing)}")
    return [(names[key], values) for key, values in found.items()]


def unknown_metrics(said: str, case: str = "") -> list[str]:
    """Names of the optional metrics of ``case`` that ncu does not know, from what it said."""
    failed = " ".join(line for line in said.splitlines() if "Failed to find metric" in line)
    return [name for name, metric in metrics(case).items() if name in OPTIONAL and metric in failed]


def refusal(said: str) -> str:
    """Why ncu could count nothing, with the remedy; empty when ``said`` names no cause that is known."""
    if "ERR_NVGPUCTRPERM" in said:
        return (
            "this user may not read the GPU's performance counters: run as root, or load the NVIDIA driver with "
            "NVreg_RestrictProfilingToAdminUsers=0 (in a container: --cap-add=SYS_ADMIN)"
        )
    if "No kernels were profiled" in said:
        return "ncu saw no kernel in this call"
    if "InterprocessLockFailed" in said:
        return "another user's Nsight Compute left its lock file: remove nsight-compute-lock from the temporary folder"
    return ""


def by_name(found: Iterable[Launch]) -> dict[str, list[dict[str, float]]]:
    """What was counted of the launches of each kernel name (cut), in order of first launch."""
    out: dict[str, list[dict[str, float]]] = {}
    for name, values in found:
        out.setdefault(name[:LONGEST_NAME], []).append(values)
    return out


def total(found: Sequence[dict[str, float]], what: str) -> float | None:
    """Sum of ``what`` (a key of :data:`METRICS`) over launches; None where it was not counted."""
    return sum(values[what] for values in found) if all(what in values for values in found) else None


# ---------------------------------------------------------------- the program that ncu watches


def program(plan: str) -> None:
    """Check the variant of ``plan`` (JSON), warm it up, and call it once between the profiler's start and stop."""
    import torch

    own = subject(json.loads(plan))
    with own.workload.precision():
        try:
            run = own.checked(own.problem())
        except Ended as end:
            print(f"ended {end.status}: {end.reason}")
            return
        for _ in range(3):
            run()
        if own.case not in OF_KERNEL:
            _empty_caches(own.device)
        torch.cuda.profiler.start()
        run()
        clock.synchronize(own.device)
        torch.cuda.profiler.stop()


def _empty_caches(device: str) -> None:
    """Fill the L2 cache with lines that nobody needs and that are the same in memory.

    Written lines would go to memory while the call runs, and be counted as its own: the buffer is read once more.
    """
    import torch

    buffer = torch.zeros(clock.flush_bytes(device) // 4, dtype=torch.int32, device=device)
    clock.synchronize(device)
    buffer.max()
    clock.synchronize(device)


# ---------------------------------------------------------------- the probe


def finder() -> str:
    """Path of ``ncu``: on the PATH, or in the CUDA toolkit's folder; empty when there is none."""
    folders = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    beside = os.pathsep.join(str(Path(folder) / "bin") for folder in folders if folder)
    return shutil.which("ncu") or shutil.which("ncu", path=beside) or ""


def command(ncu: str, found: Subject, left_out: Sequence[str] = ()) -> list[str]:
    """The command line that counts one call of ``found``; ``left_out`` names what not to count."""
    asked = ",".join(metric for name, metric in metrics(found.case).items() if name not in left_out)
    # Clocks stay as they are, for they are the machine's; base units need no prefix.
    watch = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--profile-from-start", "off"]
    watch += [*CASES[found.case], "--metrics", asked]
    return [*watch, *sessions.python("hypatia_lab.probes.counters", json.dumps(found.plan), "program")]


def watched(line: list[str]) -> tuple[int, str]:
    """Run ``line`` to its end: exit status, and all that it said. Raises :class:`Ended` when it takes too long."""
    try:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        raise Ended("timeout", f"ncu took more than {LONGEST_S:.0f} s") from None
    return done.returncode, f"{done.stdout}\n{done.stderr}"


def counted(found: Subject) -> list[Launch]:
    """The kernels of one call of ``found``, in order.

    Raises :class:`Ended` (skipped, wrong, crashed, timeout) with the reason.
    """
    if found.device != "cuda":
        raise Ended("skipped", "hardware counters are read on a CUDA GPU only")
    ncu = finder()
    if not ncu:
        raise Ended(
            "skipped", "Nsight Compute (ncu) is not installed: install nsight-compute and put its folder on the PATH"
        )
    left_out: list[str] = []
    code, said = watched(command(ncu, found))
    while more := unknown_metrics(said, found.case):  # it may name one at a time
        left_out += more
        code, said = watched(command(ncu, found, left_out))
    if end := re.search(r"^ended (\w+): (.*)$", said, re.MULTILINE):
        raise Ended(end[1], end[2])
    if reason := refusal(said):
        raise Ended("skipped", reason)
    print(said, file=sys.stderr)  # into the probes' log, as it came
    try:
        return launches(said, found.case)
    except ValueError as cause:
        last = next((line for line in reversed(said.splitlines()) if line.startswith("==ERROR==")), "")
        raise Ended("crashed", f"ncu ended with exit status {code}: {last or cause}"[:300]) from None


def look(found: Subject, emit: Emit) -> None:
    """Emit what one call moves, in all and kernel by kernel, or of each of its kernels what :data:`OF_KERNEL` says.

    Raises :class:`Ended` where nothing was counted.
    """

    def say(topic: str, name: str, unit: str, value: float | None, count: int = 1) -> None:
        if value is not None:
            emit("detail", topic=topic, name=name, unit=unit, value=value, count=count)

    own, topics = counted(found), OF_KERNEL.get(found.case, {})
    every, compulsory = [values for _, values in own], found.workload.traffic
    us = sum(values["us"] for values in every)
    say("counters", "kernels", "1", len(own))
    if not topics:
        say("counters", "compulsory bytes", "B", compulsory)
        for what, name in TOTALS.items():
            say("counters", name, "B", total(every, what))
    say("counters", "duration", "us", us)
    if not topics:
        say("counters", "effective bandwidth", "B/s", compulsory / us * 1e6)
    for name, same in by_name(own).items():
        us = sum(values["us"] for values in same)
        for what, topic in ({} if topics else TOPICS).items():
            say(topic, name, "B", total(same, what), len(same))
        say("kernel_time", name, "us", us, len(same))
        for what, topic in topics.items():  # over that time
            mean = sum(values[what] * values["us"] for values in same) / us if what in same[0] else None
            say(topic, name, LIMITS[what][1] if found.case == LIMITED else "1", mean, len(same))


if __name__ == "__main__":
    program(sys.argv[1]) if sys.argv[2:] == ["program"] else probe(look)
