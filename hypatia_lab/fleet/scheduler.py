"""What Slurm says of its jobs: which are in its queue, and how others ended where it keeps accounts."""

from __future__ import annotations

import subprocess
from collections.abc import Collection

RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
"""States of a job in the queue that has its GPU; any other one in the queue waits."""


def queue() -> dict[str, str] | None:
    """Name, such as ``1234_0`` → state of each own job in Slurm's queue; None where Slurm does not answer."""
    told = _asked("squeue", "--me", "--noheader", "--array", "--format=%i|%T")
    return None if told is None else _pairs(told)


def accounts(names: Collection[str]) -> dict[str, str]:
    """Name → state of jobs that have ended, such as OUT_OF_MEMORY; empty where Slurm keeps no accounts."""
    if not names:
        return {}
    told = _asked("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", f"-j{','.join(names)}")
    return {name: state.split()[0] for name, state in _pairs(told or "").items() if state}


def _pairs(text: str) -> dict[str, str]:
    return dict(line.strip().split("|", 1) for line in text.splitlines() if "|" in line)


def _asked(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
