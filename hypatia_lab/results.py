"""Records as tidy rows: one row a cell, with ratio, interval and physical limit worked out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab import intervals
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record, cell_key
from hypatia_lab.variants import AGAIN

COLUMNS = [
    "machine",
    "experiment",
    "operation",
    "workload",
    "shape",
    "dtype",
    "math",
    "clock",
    "direction",
    "variant",
    "origin",
    "baseline",
    "median_us",
    "ratio",
    "ratio_low",
    "ratio_high",
    "n",
    "limit_us",
    "error",
    "max_error",
    "status",
    "reason",
]

SURELY = 0.001
"""Identical code that seems different with a smaller p-value was not measured alike."""
APART = 0.05
"""Nor was identical code that seems different by more, and whose interval excludes 1."""

TOLERANCE = 1.10
"""A result may beat the best measured ceiling by a tenth before it is too fast to be true."""

UNSAID: dict[str, tuple[str, int]] = {
    "tf32x3": ("float32/tf32", 3),
    "fp16x3": ("float16/ieee", 3),
    "egraph_split": ("float16/ieee", 3),
    "triton_bf16x3": ("bfloat16/ieee", 3),
    "whole_bf16x3": ("bfloat16/ieee", 3),
}
UNSAID_OPERATORS = ("linear_relu", "mlp")
"""What cells of older records do not say of their variants, as their registration does since: ``splits`` by variant,
and the operations whose seeds are called through an ``operator``. Nothing is added here."""


def _said(cell: dict[str, Any]) -> dict[str, Any]:
    """``cell`` with what an older record left unsaid of its variant."""
    if "splits" in cell:
        return cell
    splits = UNSAID.get(cell["variant"].partition("@")[0].removesuffix("_graph"))
    return cell | {"splits": splits, "operator": cell["origin"] == "seed" and cell["operation"] in UNSAID_OPERATORS}


def primary_clock(device: str) -> str:
    """The clock verdicts rest on: ``graph`` on a GPU (no launch overhead), ``hot`` on a CPU."""
    return "graph" if device == "cuda" else "hot"


def launch_path(row: dict[str, Any]) -> bool:
    """Whether the time of ``row`` includes the lab's launch path, and so says nothing of a document's program.

    True of a form rebuilt from a document (origin ``seed``) that is called through an operator of the lab's, or a
    gradient in Python, where the clock times the call and not its kernels alone: ``wall`` and ``hot``, and on a CPU
    every clock. The authors' own way in is a C++ extension; a replayed graph has no way in at all.
    """
    if row["origin"] != "seed" or not row["operator"] or row["clock"] == "none":
        return False
    return row["clock"] in ("wall", "hot") or row["device"] == "cpu"


def ceilings(records: Iterable[Record]) -> dict[tuple[str, str, str], float]:
    """Best measured rates of one machine: (quantity, dtype/math, clock) → rate.

    quantity ``matmul`` in FLOP/s, keyed by ``dtype/math``; quantity ``copy`` in bytes/s, keyed by ``""``.
    The best process over the sweep of sizes that the ``ceilings`` experiment measured; what was not measured
    is absent.
    """
    best: dict[tuple[str, str, str], float] = {}
    for record in records:
        for cell in record.cells:
            if record.experiment != "ceilings" or cell["status"] != "ok" or cell["clock"] == "none":
                continue
            medians = [m for m in cell["medians_us"] if m is not None]
            if not medians:
                continue
            seconds = min(medians) * 1e-6
            if cell["operation"] == "matmul":
                key, rate = ("matmul", f"{cell['dtype']}/{cell['math']}", cell["clock"]), cell["flops"] / seconds
            elif cell["operation"] == "copy":
                key, rate = ("copy", "", cell["clock"]), cell["traffic"] / seconds
            else:
                continue
            best[key] = max(rate, best.get(key, 0.0))
    return best


def arithmetic(cell: dict[str, Any], best: dict[tuple[str, str, str], float]) -> str:
    """dtype/math of the ceiling that the products of a cell (or row) are held against.

    That of ``default``, which only operations that convolve have, is TF32's on a GPU (it has the graph clock) and
    IEEE's on a CPU; every other math has its own.
    """
    mode = cell["math"]
    if mode == "default":
        mode = "tf32" if ("copy", "", "graph") in best else "ieee"
    return f"{cell['dtype']}/{mode}"


def limit_us(cell: dict[str, Any], best: dict[tuple[str, str, str], float]) -> float:
    """Shortest time (µs) the machine's own ceilings allow for a cell; NaN where no ceiling was measured.

    The larger of arithmetic over the best matrix rate and compulsory bytes over the best copy rate, each at
    the cell's clock: ``cold`` against cold ceilings, every other clock against warm ones (launch overhead is
    the host's doing, no physical limit). A variant that splits operands is held against the arithmetic that it uses.
    """
    clock = "cold" if cell["clock"] == "cold" else "graph" if ("copy", "", "graph") in best else "hot"
    precision, products = arithmetic(cell, best), 1
    if precision == "float32/ieee" and (splits := _said(cell)["splits"]):
        precision, products = splits
    rate = best.get(("matmul", precision, clock))
    bandwidth = best.get(("copy", "", clock))
    if bandwidth is None or (rate is None and cell["flops"] > 0 and cell["operation"] != "copy"):
        return math.nan
    work = 0.0 if rate is None else products * cell["flops"] / rate
    return max(work, cell["traffic"] / bandwidth) * 1e6 or math.nan  # no work, no limit


def speed(row: dict[str, Any]) -> Interval:
    """Baseline time over variant time of ``row``; NaN where there is none, vetoed where its A/A control failed."""
    return Interval(row["ratio"], row["ratio_low"], row["ratio_high"], row["n"], bool(row["veto"]))


def time(row: dict[str, Any]) -> Interval:
    """The time (µs) of ``row``: the geometric mean of its processes' medians, as ``median_us`` is; NaN where none."""
    return _time(row["medians_us"])


def over(slow: dict[str, Any], quick: dict[str, Any]) -> Interval:
    """Time of one row over that of another, paired by process; vetoed where the A/A control of one of them failed.

    NaN when no process timed both.
    """
    found = _quotient(slow["medians_us"], quick["medians_us"])
    return replace(found, vetoed=bool(slow["veto"] or quick["veto"]))


def against(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """``row`` with ``other`` for its baseline: the ratio is that of the two."""
    found = over(other, row)
    ratio = {"ratio": found.value, "ratio_low": found.low, "ratio_high": found.high, "n": found.n}
    return row | ratio | {"baseline": other["variant"], "veto": row["veto"] or other["veto"]}


def _time(medians: Sequence[float | None]) -> Interval:
    values = [us for us in medians if us is not None]
    return intervals.geometric(values) if values else intervals.NOTHING


def _quotient(slow: Sequence[float | None], quick: Sequence[float | None]) -> Interval:
    values = [a / b for a, b in zip(slow, quick, strict=False) if a and b]
    return intervals.geometric(values) if values else intervals.NOTHING


def _believed(cell: dict[str, Any], best: dict[tuple[str, str, str], float]) -> dict[str, Any]:
    """``cell``, ok where it was too fast for the ceilings of its day and the machine has reached more since."""
    times = [m for m in cell["medians_us"] if m is not None]
    if cell["status"] == "too_fast" and times and min(times) >= limit_us(cell, best) / TOLERANCE:
        return cell | {"status": "ok", "reason": ""}
    return cell


def rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Tidy rows: :data:`COLUMNS`, and ``device``, ``medians_us``, ``flops``, ``traffic``, ``throttled``,
    ``peak``, ``operator``, ``veto``.

    ``median_us`` is the geometric mean of the processes' medians, so that a ratio whose processes all pair is the
    quotient of two of them. ``ratio`` is baseline time over variant time within the same ``n`` processes, so above 1 is
    faster; numbers that do not exist are NaN. A cell whose status is not ``ok`` never carries a time or a ratio. A cell
    that was too fast is ok once the machine's ceilings, measured again, allow its time.

    ``veto`` says that, and how, the A/A control of the workload failed, in that experiment and by that clock: the
    lab told identical code apart (p < :data:`SURELY`, or by more than :data:`APART` with an interval that excludes 1),
    so it can say nothing of other code there. Empty where it did not, or where there is no control.
    """
    by_machine: dict[str, list[Record]] = {}
    for record in records:
        by_machine.setdefault(record.machine, []).append(record)
    out = []
    for machine, own in by_machine.items():
        best = ceilings(own)
        for record in own:
            cells = [_believed(_said(cell), best) for cell in record.cells]
            index = {cell_key(cell): cell for cell in cells}
            made = [_row(machine, record, cell, index, best) for cell in cells]
            failed = {(row["workload"], row["clock"]): said for row in made if (said := _told_apart(row))}
            for row in made:
                row["veto"] = failed.get((row["workload"], row["clock"]), "")
            out += made
    return out


def _told_apart(row: dict[str, Any]) -> str:
    """How ``row``, of the A/A control, was told apart from its twin; empty where it was not, or is of no control."""
    if not row["variant"].endswith(AGAIN) or math.isnan(row["ratio_low"]):
        return ""
    found, p = speed(row), intervals.same_p(speed(row))
    beyond = abs(found.value - 1) > APART and not found.low <= 1 <= found.high
    if p >= SURELY and not beyond:
        return ""
    return f"{row['variant']} takes {1 / found.value:.4g} times as long as {row['baseline']} (p = {p:.1g})"


def _row(machine: str, record: Record, cell: dict[str, Any], index: dict[Any, Any], best: Any) -> dict[str, Any]:
    shape = "x".join(map(str, cell["shape"]))
    base = index.get(cell_key(cell | {"variant": cell["baseline"]}))
    medians, against = (one["medians_us"] if one and one["status"] == "ok" else [] for one in (cell, base))
    found = _quotient(against, medians)
    return {
        "machine": machine,
        "experiment": record.experiment,
        "operation": cell["operation"],
        "workload": "/".join((cell["operation"], shape, cell["dtype"], cell["math"], cell["direction"])),
        "shape": shape,
        "dtype": cell["dtype"],
        "math": cell["math"],
        "clock": cell["clock"],
        "direction": cell["direction"],
        "variant": cell["variant"],
        "origin": cell["origin"],
        "baseline": cell["baseline"],
        "median_us": _time(medians).value,
        "ratio": found.value,
        "ratio_low": found.low,
        "ratio_high": found.high,
        "n": found.n,
        "limit_us": math.nan if cell["clock"] == "none" else limit_us(cell, best),
        "error": math.nan if cell["error"] is None else cell["error"],
        "max_error": math.nan if cell["max_error"] is None else cell["max_error"],
        "status": cell["status"],
        "reason": cell["reason"],
        "device": record.run["device"],
        "medians_us": medians,
        "flops": cell["flops"],
        "traffic": cell["traffic"],
        "throttled": cell["throttled"],
        "peak": math.nan if cell.get("peak") is None else cell["peak"],
        "operator": cell["operator"],
        "veto": "",  # before the controls are read
    }


def table(records: Sequence[Record]) -> Any:
    """:func:`rows` as a pandas DataFrame with the contract's :data:`COLUMNS`."""
    import pandas

    return pandas.DataFrame(rows(records), columns=COLUMNS)


def agreement(records: Sequence[Record], everything: Sequence[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """The A/A control, one row a machine. ``everything`` are the :func:`rows` of ``records``, where they are at hand.

    One pair a workload and experiment, at the primary clock: more clocks of one pair would not be independent pairs.
    Keys: machine, pairs (A/A pairs measured), differences (pairs whose 95% interval excludes 1), rate with its exact
    95% interval rate_low and rate_high, p (binomial test of that rate against 5%), together (mean correlation of two
    pairs' log ratios over the processes that they share: 0 if they are independent, as the test takes them to be),
    detectable (median half-width of the ratio's interval: the smallest difference that half of all such comparisons
    would detect), detectable_90 (its 90th percentile).
    """
    import numpy

    out = []
    everything = rows(records) if everything is None else everything
    primary = {record.machine: primary_clock(record.run["device"]) for record in records}
    for machine in dict.fromkeys(row["machine"] for row in everything):
        own = [row for row in everything if row["machine"] == machine and row["clock"] == primary[machine]]
        pairs = [row for row in own if row["variant"].endswith(AGAIN) and not math.isnan(row["ratio_low"])]
        if not pairs:
            continue
        differences = sum(not row["ratio_low"] <= 1 <= row["ratio_high"] for row in pairs)
        halves = [math.sqrt(row["ratio_high"] / row["ratio_low"]) - 1 for row in pairs]
        rate = intervals.share(differences, len(pairs))
        out.append(
            {
                "machine": machine,
                "pairs": len(pairs),
                "differences": differences,
                "rate": rate.value,
                "rate_low": rate.low,
                "rate_high": rate.high,
                "p": intervals.false_rate_p(differences, len(pairs)),
                "together": _together(pairs, own),
                "detectable": float(numpy.quantile(halves, 0.5)),
                "detectable_90": float(numpy.quantile(halves, 0.9)),
            }
        )
    return out


def _together(pairs: Sequence[dict[str, Any]], own: Sequence[dict[str, Any]]) -> float:
    """Mean correlation of two A/A ``pairs`` of one experiment, over its processes; NaN where no two share all."""
    medians = {(row["experiment"], row["workload"], row["variant"]): row["medians_us"] for row in own}
    series: dict[tuple[str, int], list[list[float]]] = {}
    for row in pairs:
        base = medians[row["experiment"], row["workload"], row["baseline"]]
        logs = [math.log(a / b) for a, b in zip(row["medians_us"], base, strict=True) if a and b]
        series.setdefault((row["experiment"], len(logs)), []).append(logs)
    found = [(intervals.together(logs), len(logs) * (len(logs) - 1)) for logs in series.values()]
    known = [(value, weight) for value, weight in found if not math.isnan(value)]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else math.nan
