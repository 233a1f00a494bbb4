"""Tables for pages: tidy rows as tables, and accessible HTML that needs no script."""

from __future__ import annotations

import html as markup
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.formats import MISSING, absent, number, scaled, span, with_unit
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record

VERDICTS = {
    "confirmed": "✓",
    "exceeded": "»",
    "refuted": "✗",
    "conditional": "◐",
    "undecided": "?",
    "not_reproduced": "◇",
    "not_testable": "○",
    "inconsistent": "≠",
    "invalid": "!",
}
"""Every verdict there is, in the order of tables, and the sign beside its word."""
ANY = "any"
"""Machine of a claim that no machine decides, as the judge names it."""


class TableError(ValueError):
    """A table that cannot be made: the message names what is missing."""


class _Html(str):
    """Text that is HTML already."""


class _Told(str):
    """Text to be folded away beneath ``summary``, a sentence of its own, in place of its column's name."""

    summary = ""


def _told(summary: str, text: str) -> _Told:
    found = _Told(text)
    found.summary = summary
    return found


def shape_text(shape: str) -> str:
    """``1024x784x2048`` as a reader sees it: ``1024×784×2048``."""
    return shape.replace("x", "×")


def direction_text(direction: str) -> str:
    """``forward_backward`` as a reader sees it: ``forward and backward``."""
    return direction.replace("_", " and ")


def workload_text(row: dict[str, Any]) -> str:
    """``linear_relu 1024×784×2048 float32/ieee``, and the direction behind it unless it is forward."""
    text = f"{row['operation']} {shape_text(row['shape'])} {row['dtype']}/{row['math']}"
    return text if row["direction"] == "forward" else f"{text} {direction_text(row['direction'])}"


LAUNCH = "launch path"
"""What a row reads whose time includes the lab's way in (:func:`hypatia_lab.results.launch_path`)."""


def reading(row: dict[str, Any]) -> str:
    """What a row's interval says against its baseline, as :func:`intervals.reading` has it; ``–`` without a ratio.

    A row whose time includes the lab's launch path reads :data:`LAUNCH` whatever its interval.
    """
    if absent(row["ratio"]):
        return MISSING
    return LAUNCH if results.launch_path(row) else intervals.reading(results.speed(row))


DOUBTS = (intervals.TOO_NOISY, intervals.TOO_FEW, intervals.VETOED)
READINGS = {word: word for word in ("faster", "equal", "slower", "undecided", *DOUBTS)}
READINGS |= {LAUNCH: "by the lab's launch path"}
"""What a row may read, in the order in which it is counted → the same in a list of counts."""


def counted(words: Sequence[str]) -> str:
    """``3 faster, 1 slower and 2 too noisy to say``: how often each of :data:`READINGS` occurs among ``words``."""
    said = [f"{words.count(word)} {text}" for word, text in READINGS.items() if word in words]
    return " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))


Triple = tuple[float, float, float]
"""A value between the bounds of its interval, which are NaN where there is none."""


def ratio_of(row: dict[str, Any]) -> Triple:
    """Baseline time / variant time of a row, between its bounds."""
    return row["ratio"], row["ratio_low"], row["ratio_high"]


def time_of(row: dict[str, Any]) -> Triple:
    """Time (µs) of a row, between the bounds of the t-interval over its processes; NaN where none."""
    found = results.time(row)
    return found.value, found.low, found.high


def rate_of(row: dict[str, Any], work: str = "flops") -> Triple:
    """Work a second of a row, between its bounds: ``flops`` in FLOP/s, ``traffic`` (compulsory bytes) in B/s."""
    time, low, high = time_of(row)
    return row[work] * 1e6 / time, row[work] * 1e6 / high, row[work] * 1e6 / low


def rate_text(row: dict[str, Any], work: str = "flops", unit: str = "FLOP/s") -> str:
    """The rate of a row as text; none where its time is no figure."""
    untold = not absent(row["median_us"]) and _untold(results.time(row))
    return formats.UNTOLD if untold else scaled(rate_of(row, work)[0], unit)


def _untold(found: Interval) -> bool:
    return found.width > intervals.UNTOLD


def _frame(data: Sequence[dict[str, Any]]) -> Any:
    import pandas

    return pandas.DataFrame(list(data), columns=list(data[0]) if data else None)


def _remark(row: dict[str, Any]) -> str:
    said = f"{row['status']}: {row['reason']}".removesuffix(": ")
    if row["reason"].startswith(row["status"]):  # "wrong values: ...", which need not be called wrong twice
        said = row["reason"]
    if row["medians_us"] and results.launch_path(row):
        said += "; the lab's launch path"
    if row["veto"] and not absent(row["ratio"]):
        said += f"; {intervals.VETOED}: {row['veto']}"
    return f"{said} (throttled)" if row["throttled"] else said


def results_table(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows of :func:`hypatia_lab.results.rows` as a DataFrame of text, one line a row, for reading.

    Columns: workload, machine, clock, variant, origin, time (per call, with its 95% interval), ratio
    (baseline time / variant time, with its 95% interval), n (the processes behind the ratio, or else the time), of
    limit (share of what the machine's own ceilings allow), error (‖out − ref‖/‖ref‖), status. Raises
    :class:`TableError` when there is no row.
    """
    if not rows:
        raise TableError("results_table: no rows; nothing was measured, or the filter let nothing through")
    out = []
    for row in rows:
        share, time = row["limit_us"] / row["median_us"], results.time(row)
        out.append(
            {
                "workload": workload_text(row),
                "machine": row["machine"],
                "clock": row["clock"],
                "variant": row["variant"],
                "origin": row["origin"],
                "time": formats.told(time, "µs"),
                "ratio": formats.told(results.speed(row)),
                "n": str(row["n"] or time.n or MISSING),
                "of limit": MISSING if absent(share) or _untold(time) else f"{number(100 * share)}%",
                "error": number(row["error"]),
                "status": _remark(row),
            }
        )
    return _frame(out)


def quantity_text(value: Any, unit: str) -> str:
    """A figure with its unit, or the ends of a range of measured ones; ``–`` where there is none."""
    if isinstance(value, str):
        return value or MISSING
    if absent(value):
        return MISSING
    ends = value if isinstance(value, list | tuple) else [value]
    return with_unit("–".join(map(_figure, ends)), unit)


def claimed_text(value: Any, unit: str) -> str:
    """What a claim says, its figure or its range, with the unit; a range that has no end is "or more" or "or less"."""
    if isinstance(value, list | tuple):
        return span(min(value), max(value), _figure, unit)
    return quantity_text(value, unit)


def _claimed(row: Mapping[str, Any]) -> str:
    """What a row of the judge claims, and the band that decides it where that is not about the figure itself.

    A verdict may look false beside a figure alone: 9.58% are confirmed by 0.642% where the band is 18.62% or less.
    What is claimed at least or at most is said so, and of its band the end that decides.
    """
    if isinstance(row["claimed"], str):
        return claimed_text(row["claimed"], row["unit"])
    ends = row["claimed"] if isinstance(row["claimed"], list | tuple) else [row["claimed"]]
    band = list(row.get("band") or ())
    band = [] if any(map(absent, band)) else band
    if (sense := row["sense"]) != "about":
        side, word = (min, "or more") if sense == "at_least" else (max, "or less")
        end, edge = side(ends), side(band or ends)
        text = f"{quantity_text(end, row['unit'])} {word}"
        near = abs(edge - end) <= _USUAL * abs(end)
        return text if near else f"{text} (band: {quantity_text(edge, row['unit'])} {word})"
    text = claimed_text(row["claimed"], row["unit"])
    margin = _USUAL * abs(ends[0]) if len(ends) == 1 else 0
    if not band or (abs(band[0] - min(ends)) <= margin and abs(band[1] - max(ends)) <= margin):
        return text
    return f"{text} (band: {claimed_text(band, row['unit'])})"


_USUAL = 0.105
"""A band within so much of a single figure is the usual one, ±10% but for rounding, and goes without saying."""


def _figure(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, int) or value == round(value, 3) else number(value)


def verdict_text(verdict: str) -> str:
    """A verdict as its sign and word, so that neither colour nor sign alone carries it: ``✗ refuted``."""
    return f"{VERDICTS[verdict]} {verdict.replace('_', ' ')}".replace(" ", "\N{NO-BREAK SPACE}")


def claims_table(claim_rows: Sequence[dict[str, Any]]) -> Any:
    """The ledger as a DataFrame of text, a line a row.

    Columns: id, verdict, claimed, measured, claim, bound, machine, program, section, reason. ``claimed`` is written as
    the seed wrote it, with the band where that is not ±10% or the range itself; ``measured`` with its interval and n,
    or as the span of all intervals where several workloads were judged; ``program`` is whose was measured. Raises
    :class:`TableError` when there is no claim, ``KeyError`` for an unknown verdict.
    """
    if not claim_rows:
        raise TableError("claims_table: no claims; the ledger is empty, or the filter let nothing through")
    return _frame(
        [
            {
                "id": row["id"],
                "verdict": verdict_text(row["verdict"]),
                "claimed": _claimed(row),
                "measured": judged(row),
                "claim": row["claim"],
                "bound": quantity_text(row["bound"], row["unit"]),
                "machine": _machine(row["machine"]),
                "program": row["program"] or MISSING,
                "section": row["section"],
                "reason": row["reason"] or MISSING,
            }
            for row in claim_rows
        ]
    )


def judged(row: Mapping[str, Any]) -> str:
    """What was measured for a claim: with its interval and n, as a span of several, or ``–``.

    n is the number of processes, the fewest of several workloads; what was worked out has none.
    """
    count = f" (n = {row['n']})" if row["n"] else ""
    if absent(row["measured"]):
        if absent(row["low"]):
            return formats.UNTOLD + count if row["n"] else MISSING
        return quantity_text([row["low"], row["high"]], row["unit"]) + count
    if row["low"] == row["high"]:  # worked out, or one exact figure: no interval
        return quantity_text(row["measured"], row["unit"]) + count
    return formats.interval(row["measured"], row["low"], row["high"], row["unit"]) + count


def _on(claim_rows: Sequence[dict[str, Any]], machines: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of ``machines`` (empty: all), and those that no machine decides."""
    return [row for row in claim_rows if not machines or row["machine"] in (*machines, ANY)]


def verdict_counts(claim_rows: Sequence[dict[str, Any]], machines: Sequence[str] = ()) -> Any:
    """How many claims of each verdict: one line a verdict, one column a machine.

    Rows of :func:`hypatia_lab.claims.statements`, of ``machines`` alone where some are named. Only verdicts that occur
    have a line, in the order of :data:`VERDICTS`; machines stand in the order of the rows. A claim judged on two
    machines counts once on each; claims that no machine decides are counted under ``any machine``. Raises
    :class:`TableError` when there is no claim.
    """
    rows = _on(claim_rows, machines)
    if not rows:
        raise TableError("verdict_counts: no claims; the ledger is empty, or the filter let nothing through")
    names = sorted(dict.fromkeys(row["machine"] for row in rows), key=lambda name: name == ANY)
    counts = Counter((row["verdict"], row["machine"]) for row in rows)
    present = [verdict for verdict in VERDICTS if any(counts[verdict, name] for name in names)]
    lines = [
        {"verdict": verdict_text(verdict)} | {_machine(name): counts[verdict, name] for name in names}
        for verdict in present
    ]
    total = {_machine(name): sum(row["machine"] == name for row in rows) for name in names}
    return _frame([*lines, {"verdict": "all"} | total])


def _machine(name: str) -> str:
    return "any machine" if name == ANY else name


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

    ``differ`` is ``yes`` when the intervals are disjoint, ``no`` when they overlap, or why one of them says nothing.
    Baselines (1 by definition) and A/A controls are left out. Raises :class:`TableError` when a machine has no rows,
    when both are the same, or when they share no measured ratio.
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
        one, other = results.speed(a), results.speed(b)
        out.append(
            {
                "workload": workload_text(a),
                "clock": a["clock"],
                "variant": a["variant"],
                "against": a["baseline"],
                machine_a: formats.told(one),
                machine_b: formats.told(other),
                "differ": one.doubt or other.doubt or ("yes" if one.outside(other.low, other.high) else "no"),
            }
        )
    if not out:
        raise TableError(
            f"compare_table: {machine_a} and {machine_b} share no measured ratio (workload, clock and variant)"
        )
    return _frame(out)


_UNKNOWN = ("not measured", "unknown")
"""What stands in a column of numbers where there is none."""


def _numeric(cells: Iterable[Any]) -> bool:
    texts = [c for c in map(str, cells) if c not in (MISSING, *_UNKNOWN)]
    return bool(texts) and all(re.match(r"[-−+]?[0-9]", t) and not re.match(r"[0-9]+-[0-9]", t) for t in texts)


def html(frame: Any, *, caption: str = "", filterable: bool = False, folded: Mapping[str, str] | None = None) -> str:
    """``frame`` as an HTML table: headers with a scope, first column as row headers, numbers to the right.

    A plain table that needs neither script nor network; ``filterable`` marks it for the book's filter script,
    which adds a search box above it. ``folded`` maps a column to the one whose cells hold it, folded away (for
    long text; nothing where there is none), beneath its column's name or a sentence of its own. The same frame gives
    the same text. Floats get 3 significant digits.
    """
    folded = folded or {}
    columns = [column for column in frame.columns if column not in folded]
    right = [' style="text-align:right"' if _numeric(frame[c]) else "" for c in columns]
    escape = markup.escape
    lines = [f'<table class="lab-table{" filterable" if filterable else ""}">']
    if caption:
        lines.append(f"<caption>{escape(caption)}</caption>")
    heads = "".join(f'<th scope="col"{s}>{escape(str(c))}</th>' for c, s in zip(columns, right, strict=True))
    lines += [f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
    for line in frame.to_dict("records"):
        values = [line[column] for column in columns]
        cells = [escape(number(v) if isinstance(v, float) else str(v)) for v in values]
        for column, under in folded.items():
            text = line[column]
            inside = text if isinstance(text, _Html) else escape(str(text))
            title = escape(text.summary if isinstance(text, _Told) else column)
            if inside:
                cells[columns.index(under)] += f"<details><summary>{title}</summary>{inside}</details>"
        # The ids of claims have a hyphen, at which no line should break.
        single = ' style="white-space:nowrap"' if re.fullmatch(r"S\d+-\d+[a-z]?", cells[0]) else right[0]
        first = f'<th scope="row"{single}>{cells[0]}</th>'
        rest = "".join(f"<td{s}>{c}</td>" for c, s in zip(cells[1:], right[1:], strict=True))
        lines.append(f"<tr>{first}{rest}</tr>")
    lines += ["</tbody>", "</table>"]
    # Wide tables scroll inside their own box, which a keyboard can reach, and not the whole page.
    return '<div class="lab-scroll" tabindex="0" style="overflow-x:auto">\n' + "\n".join(lines) + "\n</div>"


def show(frame: Any, *, caption: str = "", filterable: bool = False, folded: Mapping[str, str] | None = None) -> None:
    """Display ``frame`` in a notebook as :func:`html`, with plain text beside it for readers without HTML."""
    from IPython.display import display

    text = frame.to_string(index=False)
    display(
        {"text/html": html(frame, caption=caption, filterable=filterable, folded=folded), "text/plain": text}, raw=True
    )


def verdicts_by_seed(claim_rows: Sequence[dict[str, Any]], machine: str) -> Any:
    """How many claims of each document have each verdict on ``machine``: a line a document, a column a verdict.

    Rows of :func:`hypatia_lab.claims.statements`. Claims that no machine decides count with every machine, so that a
    line adds up to the document's claims. Raises :class:`TableError` when there is no claim.
    """
    rows = [row for row in claim_rows if row["machine"] in (machine, ANY)]
    if not rows:
        raise TableError(f"verdicts_by_seed: no claims judged on {machine!r}")
    counts = Counter((row["seed"], row["verdict"]) for row in rows)
    present = [verdict for verdict in VERDICTS if any(row["verdict"] == verdict for row in rows)]
    lines = []
    for seed in [*dict.fromkeys(row["seed"] for row in rows), "all"]:
        own = {
            verdict: sum(n for (one, v), n in counts.items() if v == verdict and seed in (one, "all"))
            for verdict in present
        }
        line = {"document": seed} | {verdict_text(verdict): n for verdict, n in own.items()}
        lines.append(line | {"all": sum(own.values())})
    return _frame(lines)


def show_claims(claim_rows: Sequence[dict[str, Any]], machines: Sequence[str] = ()) -> None:
    """Display :func:`claims_table` in a notebook, under each claim its reason, and folded beneath that the details.

    ``machines`` names those whose rows are shown (empty: all), beside what no machine decides. Where a machine has no
    figure for a claim that another has one for, or that stands there already, a sentence beneath the table says so in
    place of a row of dashes.
    """
    from IPython.display import display

    kept, silent = _heard(_on(claim_rows, machines))
    table = claims_table(kept)
    table["why"] = [_told(row["reason"], " ".join([*row["details"], *_registered(row)])) for row in kept]
    table = table.drop(columns=["section"])
    said = [f"Not testable on {machine}: {', '.join(names)}." for machine, names in silent.items()]
    below = "".join(f"\n<p>{markup.escape(sentence)}</p>" for sentence in said)
    text = "\n".join([table.drop(columns="why").to_string(index=False), *said])
    table = table.drop(columns="reason")
    # Figures with an interval and a band beside each other may be broken, so that the claim stays within the window.
    broken = html(table, folded={"why": "claim"}).replace('class="lab-table"', 'class="lab-table lab-broken"', 1)
    display({"text/html": broken + below, "text/plain": text}, raw=True)


def _heard(claim_rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """The rows that say more than "not testable" of their claim, or else its first one; and machine → other ids."""
    loud = {row["id"] for row in claim_rows if not _dumb(row)}
    kept: list[dict[str, Any]] = []
    silent: dict[str, list[str]] = {}
    for row in claim_rows:
        if _dumb(row) and row["id"] in loud:
            silent.setdefault(_machine(row["machine"]), []).append(row["id"])
        else:
            kept.append(row)
            loud.add(row["id"])
    return kept, silent


def _dumb(row: Mapping[str, Any]) -> bool:
    return row["verdict"] == "not_testable" and judged(row) == MISSING


def _registered(row: Mapping[str, Any]) -> list[str]:
    """When the band was set, and where in the document the claim stands, in a sentence each."""
    said = [f"Band set {_set_on(row)} the first record."] if row["band_set"] else []
    return [*said, f"Section of the document: {row['section']}."]


def _set_on(row: Mapping[str, Any]) -> str:
    """The day on which the band of ``row`` was set and whether before or after the first record that bears on it."""
    return row["band_set"].replace(" ", ", ") or MISSING


def claims_counted(claim_rows: Sequence[dict[str, Any]]) -> str:
    """``144 claims in 355 parts``, of the rows of :func:`hypatia_lab.claims.statements`."""
    parts = {part["id"] for row in claim_rows for part in row["parts"]}
    return f"{len({row['id'] for row in claim_rows})} claims in {len(parts)} parts"


def statements_table(claim_rows: Sequence[dict[str, Any]], machines: Sequence[str] = ()) -> Any:
    """The ledger as a DataFrame of text, a line a claim: id, its verdict on each machine, claim, document.

    Rows of :func:`hypatia_lab.claims.statements`, of ``machines`` alone where some are named. A claim that no machine
    decides has its verdict under every machine. Raises :class:`TableError` when there is no claim.
    """
    rows = _on(claim_rows, machines)
    if not rows:
        raise TableError("statements_table: no claims; the ledger is empty, or the filter let nothing through")
    names = [name for name in dict.fromkeys(row["machine"] for row in rows) if name != ANY] or [ANY]
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        line = {"id": row["id"], **dict.fromkeys(map(_machine, names), MISSING)}
        line = lines.setdefault(row["id"], line | {"claim": row["claim"], "document": row["seed"]})
        own = names if row["machine"] == ANY else [row["machine"]]
        line.update({_machine(name): verdict_text(row["verdict"]) for name in own})
    return _frame(list(lines.values()))


def show_statements(claim_rows: Sequence[dict[str, Any]], machines: Sequence[str] = ()) -> None:
    """Display :func:`statements_table` in a notebook, to be filtered, with the parts folded under each claim.

    Of a machine that is not among ``machines``, where some are named, the parts show what was measured there and
    nothing else.
    """
    from IPython.display import display

    table = statements_table(claim_rows, machines)
    text = table.to_string(index=False)
    stated: dict[str, list[dict[str, Any]]] = {}
    shown = (*machines, ANY)
    for row in claim_rows:
        parts = row["parts"]
        if machines and row["machine"] not in shown:  # what no machine decides stands there once already
            parts = [part for part in parts if part["machine"] != ANY and not _dumb(part)]
            if not parts:
                continue
        stated.setdefault(row["id"], []).append({**row, "parts": parts})
    table["parts"] = [_Html(_parts(stated[name])) for name in table["id"]]
    display({"text/html": html(table, filterable=True, folded={"parts": "claim"}), "text/plain": text}, raw=True)


def _parts(rows: Sequence[dict[str, Any]]) -> str:
    """The parts of one claim as HTML: a body of lines a part, of each machine its figures and, beneath, the reason.

    ``rows`` are those of the claim, one a machine. Of several parts, what became of the whole is said first. Beneath a
    reason the details are folded.
    """
    parts: dict[str, dict[str, dict[str, Any]]] = {}
    for part in (part for row in rows for part in row["parts"]):
        parts.setdefault(part["id"], {})[part["machine"]] = part
    titles = ("machine", "verdict", "claimed", "measured", "bound", "program", "band set")
    escape, bodies = markup.escape, []
    wide = f' colspan="{len(titles)}"'
    for name, own in parts.items():
        first = next(iter(own.values()))
        heading = f'<tr><th scope="rowgroup"{wide}>{escape(name)} {escape(first["claim"])}</th></tr>'
        lines = [heading] if len(parts) > 1 else []
        claimed = escape(_claimed(first))
        for part in own.values():
            # What the claim itself explains stands once, beneath its machines.
            more = escape(" ".join(text for text in part["details"] if text != part["why"]))
            reason = escape(part["reason"]) + (f"<details><summary>details</summary>{more}</details>" if more else "")
            figures = [escape(judged(part)), escape(quantity_text(part["bound"], part["unit"]))]
            seen = figures != [MISSING, MISSING]
            shown = "".join(f"<td>{text}</td>" for text in figures) if seen else f'<td colspan="2">{reason}</td>'
            shown += f"<td>{escape(part['program'] or MISSING)}</td><td>{escape(_set_on(part))}</td>"
            verdict = escape(verdict_text(part["verdict"]))
            machine = escape(_machine(part["machine"]))
            lines.append(f'<tr><th scope="row">{machine}</th><td>{verdict}</td><td>{claimed}</td>{shown}</tr>')
            lines.append(f"<tr><td{wide}>{reason}</td></tr>" if seen and reason else "")
        why = escape(f"{first['why']} Section of the document: {first['section']}.")
        bodies.append(f"<tbody>{''.join(lines)}<tr><td{wide}>{why}</td></tr></tbody>")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    said = [f"<p>{escape(_machine(row['machine']))}: {escape(row['reason'])}</p>" for row in rows if len(parts) > 1]
    return f'{"".join(said)}<table class="lab-parts"><thead><tr>{head}</tr></thead>{"".join(bodies)}</table>'
