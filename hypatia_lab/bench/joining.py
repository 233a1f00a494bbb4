"""From what fresh processes told to the cells of a record: one of each variant and clock, with a median a process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hypatia_lab import intervals, records, results, variants
from hypatia_lab.bench import details
from hypatia_lab.experiments import Group

PAIRS, OFTEN, BEYOND = 20, 0.2, 4
"""A call and the same once more, so often at least; such a share of them, and so many times what chance makes, are of
one that remembers answers now and then."""

Rows = list[dict[str, Any]]
"""What one process told: a row a group, variant and clock (:func:`hypatia_lab.bench.cells.row`)."""


def cells(groups: Sequence[Group], per_process: Sequence[Rows], best: Any) -> list[dict[str, Any]]:
    """The cells that some process told of, in the order of the plan.

    ``best``: the ceilings of the machine (:func:`hypatia_lab.results.ceilings`), beyond which no time is believed.
    """
    return [
        cell(groups[index], name, word, per_process, index, best) for index, name, word in _keys(groups, per_process)
    ]


def _keys(groups: Sequence[Group], per_process: Sequence[Rows]) -> list[tuple[int, str, str]]:
    """(group, variant, clock) of every cell that some process reported, in the order of the plan."""
    seen = {(row["group"], row["variant"], row["clock"]) for rows in per_process for row in rows}
    planned = [
        (index, name, word)
        for index, group in enumerate(groups)
        for word in group.clocks or ("none",)
        for name in group.variants
    ]
    return [key for key in planned if key in seen]


def cell(group: Group, name: str, word: str, per_process: Sequence[Rows], index: int, best: Any) -> dict[str, Any]:
    """Merge one cell's rows over the processes: the worst status counts, medians stay one a process."""
    mine: list[dict[str, Any] | None] = [
        next((r for r in rows if (r["group"], r["variant"], r["clock"]) == (index, name, word)), None)
        for rows in per_process
    ]
    mine, doubted = _borne_out(mine)
    there = [row for row in mine if row is not None]
    worst = max(there, key=lambda row: details.SEVERITY.index(row["status"]))
    workload = group.workload
    one = variants.find(workload.operation, name)
    samples = [sample for row in there for sample in row["samples_us"]]
    each = max(1, records.MAX_SAMPLES // len(per_process))
    lot, counts = by_lot(there) if worst["status"] == "ok" else ("", worst.get("evidence", {}))
    status = "cheated" if lot else worst["status"]
    timed = word != "none" and status == "ok"
    found = {
        "kind": "cell",
        **asdict(workload),
        "shape": list(workload.shape),
        "clock": word,
        "variant": name,
        "origin": one.origin,
        "baseline": one.name if name.endswith(variants.AGAIN) else variants.baseline(workload.operation),
        "status": status,
        "reason": lot or worst["reason"] or doubted,
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
        "splits": list(one.splits) if one.splits else None,
        "operator": one.operator,
    }
    if counts:
        found["evidence"] = {name: _round(value) for name, value in counts.items()}
    if beside := largest([row.get("beside", {}) for row in there]):
        found["beside"] = {name: _round(value) for name, value in beside.items()}
    if peaks := [row["peak"] for row in there if row.get("peak") is not None]:
        found["peak"] = _round(min(peaks))
    if workload.fewest_flops < workload.flops:
        found["fewest_flops"] = workload.fewest_flops
    least = results.least_us(found, best) if timed and best else math.nan
    fastest = min((m for m in found["medians_us"] if m is not None), default=math.nan)
    if fastest < least / results.TOLERANCE:
        found |= {
            "status": "too_fast",
            "reason": f"not believed: {fastest:.3g} µs, where this machine's best ceilings allow {least:.3g} µs",
        }
    return found


def largest(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each number that some of ``told`` name the largest."""
    found: dict[str, float] = {}
    for one in told:
        found |= {name: max(value, found.get(name, value)) for name, value in one.items()}
    return found


def _borne_out(mine: list[dict[str, Any] | None]) -> tuple[list[dict[str, Any] | None], str]:
    """``mine`` without a process that alone, where two others saw nothing, took times for a cheat's; and that it did.

    What was held up in one process accuses nobody. Who cheats does so in all of them.
    """
    by_times = [
        row and row["status"] == "cheated" and any(name.endswith("_us") for name in row.get("evidence") or ())
        for row in mine
    ]
    others = [row for row, accuses in zip(mine, by_times, strict=True) if row and not accuses]
    if sum(map(bool, by_times)) != 1 or len(others) < 2 or any(row["status"] == "cheated" for row in others):
        return mine, ""
    (alone,) = (row for row, accuses in zip(mine, by_times, strict=True) if row and accuses)
    told = f"left out is one process, in which alone {alone['reason']}"
    return [None if row is alone else row for row in mine], told


def by_lot(rows: Rows) -> tuple[str, dict[str, int]]:
    """What is said of one of whom ``rows``, all of them right, tell that calls on known inputs often take less than
    half of what they take on new ones, and of nobody else; empty where they do not, with the numbers behind it."""
    counted = [row["evidence"] for row in rows if "half" in row.get("evidence", {})]
    half, by_chance, pairs = (sum(one[name] for one in counted) for name in ("half", "by_chance", "pairs"))
    if pairs < PAIRS or half < OFTEN * pairs or half <= BEYOND * by_chance:
        return "", {}
    told = f"it remembers answers now and then: of {pairs} calls once more {half} took less than half"
    return told, {"half": half, "by_chance": by_chance, "pairs": pairs}


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
