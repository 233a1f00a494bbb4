"""Tables for pages: how a number is written, tidy rows as tables, and accessible HTML that needs no script.

Every number a reader sees passes through :func:`number`, :func:`interval`, :func:`duration` or
:func:`scaled`, so the same figure reads the same in every table, title and alt text.
"""

from __future__ import annotations

import html as markup
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hypatia_lab import intervals, results
from hypatia_lab.records import Record

MISSING = "–"
VERDICTS = {
    "confirmed": "✓",
    "refuted": "✗",
    "conditional": "◐",
    "undecided": "?",
    "not_testable": "○",
    "inconsistent": "≠",
    "invalid": "!",
}
"""Every verdict there is, in the order of tables, and the sign beside its word."""


class TableError(ValueError):
    """A table that cannot be made: the message names what is missing."""


def absent(value: Any) -> bool:
    """Whether ``value`` is None or NaN: a number that does not exist."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _decimals(value: float, digits: int = 3) -> int:
    """Decimal places that show ``digits`` significant digits of ``value`` (negative left of the point)."""
    return digits - 1 - math.floor(math.log10(abs(value))) if value else 0


def significant(value: float) -> float:
    """``value`` rounded to 3 significant digits, for drawing.

    Within a tenth of 1 four decimals are kept: a ratio is read by its difference from 1, and three digits
    would move a point by a quarter of the ±2% band.
    """
    if not value or not math.isfinite(value):
        return value
    return round(value, 4 if 0.9 <= abs(value) < 1.1 else _decimals(value))


def number(value: float | int | None, decimals: int | None = None) -> str:
    """``value`` with 3 significant digits (or so many ``decimals``); whole numbers as they are; ``–`` if absent."""
    if absent(value):
        return MISSING
    assert value is not None
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.2e}"
    places = _decimals(value) if decimals is None else decimals
    rounded = round(value, places)
    if decimals is None:
        places = _decimals(rounded)  # 9.996 has become 10.0, which needs a decimal less
    return f"{rounded:.{max(places, 0)}f}"


def interval(value: float | None, low: float | None, high: float | None, unit: str = "×") -> str:
    """``54.1× [53.9, 54.3]``: as many decimals as the half-width asks for, at least 3 significant digits.

    Without bounds (fewer than two processes) it says so; ``–`` when there is no value.
    """
    if absent(value):
        return MISSING
    assert value is not None
    unit = unit if unit in ("", "×", "%") else f" {unit}"
    if absent(low) or absent(high):
        return f"{number(value)}{unit} (no interval)"
    assert low is not None
    assert high is not None
    half = (high - low) / 2
    places = max(_decimals(value), min(_decimals(half, 1), 4) if half else 0)
    return f"{number(value, places)}{unit} [{number(low, places)}, {number(high, places)}]"


def _in_steps(value: float | None, steps: Sequence[tuple[float, str]]) -> str:
    if absent(value):
        return MISSING
    assert value is not None
    factor, unit = next((s for s in steps if abs(value) >= s[0] * 0.9995), steps[-1])
    return f"{number(value / factor)} {unit}"


def duration(us: float | None) -> str:
    """Microseconds as ``950 ns``, ``4.12 µs``, ``1.10 ms`` or ``2.10 s``."""
    return _in_steps(us, [(1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns")])


def scaled(value: float | None, unit: str) -> str:
    """A large quantity with its prefix: ``scaled(51.2e12, "FLOP/s")`` is ``51.2 TFLOP/s``."""
    return _in_steps(
        value, [(10.0 ** (3 * k), f"{prefix}{unit}") for k, prefix in ((4, "T"), (3, "G"), (2, "M"), (0, ""))]
    )


def shape_text(shape: str) -> str:
    """``1024x784x2048`` as a reader sees it: ``1024×784×2048``."""
    return shape.replace("x", "×")


def workload_text(row: dict[str, Any]) -> str:
    """``linear_relu 1024×784×2048 float32/ieee``."""
    return f"{row['operation']} {shape_text(row['shape'])} {row['dtype']}/{row['math']}"


def reading(row: dict[str, Any]) -> str:
    """What a row's interval says against its baseline: ``equal`` (wholly within ±2%), ``faster``, ``slower``,
    ``undecided`` (the interval holds 1 and reaches beyond ±2%, or there is none); ``–`` without a ratio.
    """
    if absent(row["ratio"]):
        return MISSING
    if absent(row["ratio_low"]):
        return "undecided"
    if intervals.equal(intervals.Interval(row["ratio"], row["ratio_low"], row["ratio_high"], row["processes"])):
        return "equal"
    if row["ratio_low"] > 1:
        return "faster"
    return "slower" if row["ratio_high"] < 1 else "undecided"


Triple = tuple[float, float, float]
"""A value between the bounds of its interval, which are NaN where there is none."""


def ratio_of(row: dict[str, Any]) -> Triple:
    """Baseline time / variant time of a row, between its bounds."""
    return row["ratio"], row["ratio_low"], row["ratio_high"]


def time_of(row: dict[str, Any]) -> Triple:
    """Median time (µs) of a row, between the bounds of the t-interval over its processes; NaN where none."""
    measured = [m for m in row["medians_us"] if m is not None]
    if not measured:
        return math.nan, math.nan, math.nan
    found = intervals.geometric(measured)
    return row["median_us"], found.low, found.high


def rate_of(row: dict[str, Any], work: str = "flops") -> Triple:
    """Work a second of a row, between its bounds: ``flops`` in FLOP/s, ``traffic`` (compulsory bytes) in B/s."""
    time, low, high = time_of(row)
    return row[work] * 1e6 / time, row[work] * 1e6 / high, row[work] * 1e6 / low


def _frame(data: Sequence[dict[str, Any]]) -> Any:
    import pandas

    return pandas.DataFrame(list(data), columns=list(data[0]) if data else None)


def _remark(row: dict[str, Any]) -> str:
    said = row["status"] if not row["reason"] else f"{row['status']}: {row['reason']}"
    return f"{said} (throttled)" if row["throttled"] else said


def results_table(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows of :func:`hypatia_lab.results.rows` as a DataFrame of text, one line a row, for reading.

    Columns: workload, machine, clock, variant, origin, time (per call, with its 95% interval), ratio
    (baseline time / variant time, with its 95% interval), of limit (share of what the machine's own ceilings
    allow), error (‖out − ref‖/‖ref‖), status. Raises :class:`TableError` when there is no row.
    """
    if not rows:
        raise TableError("results_table: no rows; nothing was measured, or the filter let nothing through")
    out = []
    for row in rows:
        share = row["limit_us"] / row["median_us"]
        out.append(
            {
                "workload": workload_text(row),
                "machine": row["machine"],
                "clock": row["clock"],
                "variant": row["variant"],
                "origin": row["origin"],
                "time": interval(*time_of(row), "µs"),
                "ratio": interval(*ratio_of(row)),
                "of limit": MISSING if absent(share) else f"{number(100 * share)}%",
                "error": number(row["error"]),
                "status": _remark(row),
            }
        )
    return _frame(out)


def _quantity(value: Any, unit: str) -> str:
    if isinstance(value, str):
        return value or MISSING
    if absent(value):
        return MISSING
    spaced = unit if unit in ("", "×", "%") else f" {unit}"
    ends = value if isinstance(value, list | tuple) else [value]
    return "–".join(f"{v:.6g}" if isinstance(v, int) or v == round(v, 3) else number(v) for v in ends) + spaced


def verdict_text(verdict: str) -> str:
    """A verdict as its sign and word, so that neither colour nor sign alone carries it: ``✗ refuted``."""
    return f"{VERDICTS[verdict]} {verdict.replace('_', ' ')}"


def claims_table(claim_rows: Sequence[dict[str, Any]]) -> Any:
    """The ledger as a DataFrame of text: id, seed, section, claim, claimed, measured, bound, machine, verdict, reason.

    ``claimed`` is written as the seed wrote it, ``measured`` with its interval. Show it with
    ``show(table, filterable=True)``. Raises :class:`TableError` when there is no claim, ``KeyError`` for an
    unknown verdict.
    """
    if not claim_rows:
        raise TableError("claims_table: no claims; the ledger is empty, or the filter let nothing through")
    return _frame(
        [
            {
                "id": row["id"],
                "seed": row["seed"],
                "section": row["section"],
                "claim": row["claim"],
                "claimed": _quantity(row["claimed"], row["unit"]),
                "measured": MISSING
                if absent(row["measured"])
                else interval(row["measured"], row["low"], row["high"], row["unit"]),
                "bound": _quantity(row["bound"], row["unit"]),
                "machine": row["machine"] or MISSING,
                "verdict": verdict_text(row["verdict"]),
                "reason": row["reason"] or MISSING,
            }
            for row in claim_rows
        ]
    )


def verdict_counts(claim_rows: Sequence[dict[str, Any]]) -> Any:
    """How many judgements of each verdict, one line a machine and seed, and their total.

    Only verdicts that occur have a column, in the order of :data:`VERDICTS`. A claim judged on two machines
    counts once on each. Raises :class:`TableError` when there is no claim.
    """
    if not claim_rows:
        raise TableError("verdict_counts: no claims; the ledger is empty, or the filter let nothing through")
    present = [v for v in VERDICTS if any(row["verdict"] == v for row in claim_rows)]
    out = []
    for machine, seed in sorted({(row["machine"] or MISSING, row["seed"]) for row in claim_rows}):
        own = [row["verdict"] for row in claim_rows if (row["machine"] or MISSING, row["seed"]) == (machine, seed)]
        out.append(
            {"machine": machine, "seed": seed} | {verdict_text(v): own.count(v) for v in present} | {"all": len(own)}
        )
    return _frame(out)


_FACTS = {
    "name": ("device", str),
    "cpu": ("processor", str),
    "cores": ("cores", str),
    "threads": ("threads used", str),
    "memory_gib": ("memory", lambda v: f"{number(v)} GiB"),
    "cache_bytes": ("last-level cache", lambda v: f"{number(v / 2**20)} MiB"),
    "multiprocessors": ("multiprocessors", str),
    "capability": ("compute capability", str),
    "driver": ("driver", str),
    "sm_mhz_max": ("highest SM clock", lambda v: f"{v} MHz"),
    "power_limit_w": ("power limit", lambda v: f"{number(v)} W"),
    "system": ("system", str),
}


def _facts(record: Record) -> dict[str, str]:
    """Line title → text, of one record's run line."""
    facts = record.run["facts"]
    named = {label: text(facts[key]) for key, (label, text) in _FACTS.items() if facts.get(key) is not None}
    named |= {name: str(v) for name, v in facts.get("versions", {}).items()}
    commit = record.run["commit"][:10] + (" (with local changes)" if record.run["dirty"] else "")
    return named | {"commit": commit, "measured": record.run["started"][:10]}


def machines_table(records: Sequence[Record]) -> Any:
    """Hardware, versions and measured ceilings: a line a fact, a column a machine.

    Where a machine's records disagree on a fact every value is shown. A ceiling that was not measured is
    ``unknown``. Raises :class:`TableError` when there is no record.
    """
    if not records:
        raise TableError("machines_table: no records; measure this machine first")
    columns: dict[str, dict[str, str]] = {}
    for machine in dict.fromkeys(r.machine for r in records):
        own = [r for r in records if r.machine == machine]
        column: dict[str, list[str]] = {}
        for record in own:
            for label, text in _facts(record).items():
                if text not in column.setdefault(label, []):
                    column[label].append(text)
        columns[machine] = {label: "; ".join(sorted(texts)) for label, texts in column.items()}
        runs = (f"{r.experiment} ({r.run['preset']}, {r.run['processes']} processes)" for r in own)
        columns[machine]["experiments"] = "; ".join(runs)
        for (quantity, precision, clock), rate in sorted(results.ceilings(own).items()):
            label = " ".join(("best", quantity, precision)).strip() + f", {clock} clock"
            columns[machine][label] = scaled(rate, "B/s" if quantity == "copy" else "FLOP/s")
    known = [label for label, _ in _FACTS.values()]
    labels = sorted(
        dict.fromkeys(label for column in columns.values() for label in column),
        # hardware first, ceilings last, what lies between (versions, commit, …) in the order found
        key=lambda label: (label.startswith("best "), known.index(label) if label in known else len(known)),
    )
    return _frame(
        [
            {"fact": label}
            | {
                m: column.get(label, "unknown" if label.startswith("best ") else MISSING)
                for m, column in columns.items()
            }
            for label in labels
        ]
    )


def compare_table(rows: Sequence[dict[str, Any]], machine_a: str, machine_b: str) -> Any:
    """The same workload, clock and variant on two machines: both ratios with intervals, and whether they differ.

    ``differ`` is ``yes`` when the intervals are disjoint, ``no`` when they overlap, ``–`` when one has no
    interval. Baselines (1 by definition) and A/A controls are left out. Raises :class:`TableError` when a
    machine has no rows, when both are the same, or when they share no measured ratio.
    """
    known = list(dict.fromkeys(row["machine"] for row in rows))
    for name in (machine_a, machine_b):
        if name not in known:
            raise TableError(
                f"compare_table: no rows of machine {name!r}; there are rows of: {', '.join(known) or 'none'}"
            )
    if machine_a == machine_b:
        raise TableError(f"compare_table: {machine_a!r} against itself says nothing; name two machines")
    keys = ("experiment", "workload", "clock", "variant", "baseline")
    found: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {machine_a: {}, machine_b: {}}
    for row in rows:
        measured = not absent(row["ratio"]) and row["variant"] != row["baseline"] and "@" not in row["variant"]
        if row["machine"] in found and measured:
            found[row["machine"]][tuple(row[k] for k in keys)] = row
    out = []
    for key, a in found[machine_a].items():
        b = found[machine_b].get(key)
        if b is None:
            continue
        bounds = [a["ratio_low"], a["ratio_high"], b["ratio_low"], b["ratio_high"]]
        disjoint = a["ratio_high"] < b["ratio_low"] or b["ratio_high"] < a["ratio_low"]
        out.append(
            {
                "workload": workload_text(a),
                "clock": a["clock"],
                "variant": a["variant"],
                "against": a["baseline"],
                machine_a: interval(*ratio_of(a)),
                machine_b: interval(*ratio_of(b)),
                "differ": MISSING if any(map(absent, bounds)) else "yes" if disjoint else "no",
            }
        )
    if not out:
        raise TableError(
            f"compare_table: {machine_a} and {machine_b} share no measured ratio (workload, clock and variant)"
        )
    return _frame(out)


def _numeric(cells: Iterable[Any]) -> bool:
    texts = [c for c in map(str, cells) if c != MISSING]
    return bool(texts) and all(re.match(r"[-−+]?[0-9]", t) and not re.match(r"[0-9]+-[0-9]", t) for t in texts)


def html(frame: Any, *, caption: str = "", filterable: bool = False) -> str:
    """``frame`` as an HTML table: headers with a scope, first column as row headers, numbers to the right.

    A plain table that needs neither script nor network; ``filterable`` marks it for the book's filter script,
    which adds a search box above it. The same frame gives the same text. Floats get 3 significant digits.
    """
    columns = list(frame.columns)
    right = [' style="text-align:right"' if _numeric(frame[c]) else "" for c in columns]
    escape = markup.escape
    lines = [f'<table class="lab-table{" filterable" if filterable else ""}">']
    if caption:
        lines.append(f"<caption>{escape(caption)}</caption>")
    heads = "".join(f'<th scope="col"{s}>{escape(str(c))}</th>' for c, s in zip(columns, right, strict=True))
    lines += [f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
    for values in frame.itertuples(index=False, name=None):
        cells = [escape(number(v) if isinstance(v, float) else str(v)) for v in values]
        first = f'<th scope="row"{right[0]}>{cells[0]}</th>'
        rest = "".join(f"<td{s}>{c}</td>" for c, s in zip(cells[1:], right[1:], strict=True))
        lines.append(f"<tr>{first}{rest}</tr>")
    lines += ["</tbody>", "</table>"]
    # Wide tables scroll inside their own box, which a keyboard can reach, and not the whole page.
    return '<div class="lab-scroll" tabindex="0" style="overflow-x:auto">\n' + "\n".join(lines) + "\n</div>"


def show(frame: Any, *, caption: str = "", filterable: bool = False) -> None:
    """Display ``frame`` in a notebook as :func:`html`, with plain text beside it for readers without HTML."""
    from IPython.display import display

    text = frame.to_string(index=False)
    display({"text/html": html(frame, caption=caption, filterable=filterable), "text/plain": text}, raw=True)
