"""Lines of records that nothing measured, for tests: valid as they are, changed by keyword."""

from __future__ import annotations

from typing import Any

from hypatia_lab import records


def run_line(**changes: Any) -> dict[str, Any]:
    """A valid run line of two processes on a CPU machine called ``box``."""
    return {
        "kind": "run",
        "schema": records.SCHEMA,
        "machine": "box",
        "experiment": "method",
        "preset": "quick",
        "device": "cpu",
        "started": "2025-01-01T00:00:00Z",
        "commit": "unknown",
        "dirty": True,
        "processes": 2,
        "facts": {"name": "Prozessor für Tests"},
    } | changes


def cell_line(**changes: Any) -> dict[str, Any]:
    """A valid cell line of ``eager`` with a median for the first of two processes."""
    return {
        "kind": "cell",
        "operation": "linear_relu",
        "shape": [2, 3, 4],
        "dtype": "float32",
        "math": "ieee",
        "direction": "forward",
        "seed": 0,
        "clock": "hot",
        "variant": "eager",
        "origin": "peer",
        "baseline": "eager",
        "status": "ok",
        "reason": "",
        "error": 1e-7,
        "max_error": None,
        "flops": 48,
        "traffic": 112,
        "medians_us": [1.5, None],
        "samples_us": [1.25, 1.5],
        "calls": 3,
        "outliers": {"mild": 0, "severe": 0, "of": 2},
        "sm_mhz": [],
        "power_w": [],
        "throttled": False,
    } | changes


def detail_line(**changes: Any) -> dict[str, Any]:
    """A valid detail line: the second call of ``eager`` in each of two processes."""
    return {
        "kind": "detail",
        "operation": "linear_relu",
        "shape": [2, 3, 4],
        "dtype": "float32",
        "math": "ieee",
        "variant": "eager",
        "topic": "start",
        "case": "",
        "name": "call 2",
        "unit": "ms",
        "count": 1,
        "values": [1.5, 1.25],
        "status": "ok",
        "reason": "",
    } | changes
