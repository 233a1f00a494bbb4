"""Claims, results and comparisons as lines for a terminal: a summary, a line an entry, and how to see more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hypatia_lab import tables
from hypatia_lab.claims import ANY, VERDICTS, Judgement
from hypatia_lab.cli.terminal import cut, table, wrap
from hypatia_lab.formats import MISSING, absent
from hypatia_lab.results import Row
from hypatia_lab.tables import claims as claim_tables


def claim_lines(rows: Sequence[Judgement], machines: Sequence[str], *, everything: bool = False) -> list[str]:
    """The claims, or parts of claims, of ``rows``: how many have which verdict on ``machines``, and a line each.

    That a claim is not testable on one machine and has a verdict on another is counted, and listed if ``everything`` is
    asked for.
    """
    lines = [*_verdict_counts(rows, machines), ""]
    kept, silent = (rows, {}) if everything else claim_tables.heard(rows)
    lines += table(
        [
            {
                "id": told["id"],
                "verdict": told["verdict"],
                "machine": told["machine"].removesuffix(" machine"),
                "claimed": _short(told["claimed"]),
                "measured": _short(told["measured"]),
                "claim": told["claim"],
            }
            for told in claim_tables.claims_table(kept).to_dict("records")
        ],
        "claim",
        ("machine", "measured", "claimed"),
        least=20,
    )
    more = [f"hypatia-lab claims {rows[0].id} tells one claim in full, with its parts."]
    if silent:
        counts = ", ".join(f"{len(names)} on {machine}" for machine, names in silent.items())
        more.append(f"Not testable and not listed: {counts} (--verdict not_testable lists them).")
    return [*lines, "", *(line for text in more for line in wrap(text))]


def _short(text: str) -> str:
    """A figure without its interval, its band and its number of processes, cut where its unit is a long one."""
    return cut(re.split(r" [\[(]", text)[0], 16)


def _verdict_counts(rows: Sequence[Judgement], machines: Sequence[str]) -> list[str]:
    """A line a document and machine: how many of its claims have which verdict there."""
    present = [verdict for verdict in VERDICTS if any(row.verdict == verdict for row in rows)]
    seeds = list(dict.fromkeys(row.seed for row in rows))
    what = "claims" if rows[0].parts else "parts of claims"
    counts = Counter((seed, row.machine, row.verdict) for row in rows for seed in (row.seed, "all"))
    lines = []
    for seed in [*seeds, "all"] if len(seeds) > 1 else seeds:
        for machine in machines:
            # What no machine decides counts on every one, so that a line adds up to the document's claims.
            own = [counts[seed, machine, verdict] + counts[seed, ANY, verdict] for verdict in present]
            signs = {VERDICTS[verdict]: str(n) for verdict, n in zip(present, own, strict=True)}
            lines.append({"document": seed, "machine": machine, what.split()[0]: str(sum(own))} | signs)
    said = f"{len({row.id for row in rows})} {what}, judged on {', '.join(machines)}."
    legend = ", ".join(claim_tables.verdict_text(verdict) for verdict in present)
    return [*wrap(said), "", *table(lines, "document"), "", *wrap(legend)]


def claim_in_full(rows: Sequence[Judgement], meant: Collection[str]) -> list[str]:
    """One claim, whose rows of :func:`hypatia_lab.claims.statements` are ``rows``: every part on every machine.

    ``meant`` are ids: of this claim, or else of the parts of it that are wanted.
    """
    lead = rows[0]
    parts: dict[str, dict[str, Judgement]] = {}
    for part in (part for row in rows for part in row.parts):
        parts.setdefault(part.id, {})[part.machine] = part
    shown = {name: own for name, own in parts.items() if lead.id in meant or name in meant}
    lines = wrap(f"{lead.id}  {lead.claim}", len(lead.id) + 2)
    if len(parts) > 1 and lead.id in meant:
        for row, told in zip(rows, claim_tables.claims_table(rows).to_dict("records"), strict=True):
            lines += ["", *wrap(f"{told['verdict']}, {told['machine']}: {row.reason}", 4, 2)]
    for name, own in shown.items():
        first = next(iter(own.values()))
        if len(parts) > 1:
            lines += ["", *wrap(f"{name}  {first.claim}", len(name) + 2)]
        for part, told in zip(
            own.values(), claim_tables.claims_table(list(own.values())).to_dict("records"), strict=True
        ):
            lines += ["", *wrap(f"{told['verdict']}, {told['machine']}: {part.reason}", 4, 2)]
            for title, text in _facts(part, told).items():
                lines += wrap(f"{title:<10}{text}", 14, 4)
            lines += [line for text in part.details if text != part.why for line in wrap(text, 4, 4)]
        lines += ["", *wrap(f"Why: {first.why}", 4, 2)]
        lines += wrap(f"Document {first.seed}, section “{first.section}”.", 4, 2)
    return lines


def _facts(part: Judgement, told: Mapping[str, str]) -> dict[str, str]:
    """Title → text of a part's figures, of those that there are."""
    band = [] if any(map(absent, part.band)) else list(part.band)
    texts = {
        "claimed": told["claimed"].partition(" (band")[0],
        "band": claim_tables.claimed_text(band, part.unit) if band else MISSING,
        "measured": told["measured"],
        "limit": told["bound"],
        "program": told["program"],
    }
    if part.band_set:
        texts["band"] += f", set {part.band_set.replace(' ', ', ')} the first record"
    return {title: text for title, text in texts.items() if text != MISSING}


def result_lines(rows: Sequence[Row]) -> list[str]:
    """Every cell of ``rows``: how many there are of what, then :func:`cell_lines`, and how to see fewer."""
    more = (
        "hypatia-lab results linear_relu --clock graph --variant epilogue shows some of them; --help names all filters."
    )
    return [*_cell_counts(rows), "", *cell_lines(rows), "", *wrap(more)]


def cell_lines(rows: Sequence[Row]) -> list[str]:
    """A line a cell that was timed or checked, under its workload, clock and machine.

    Why there is no time, or what is to be said of it, stands beneath: once for all that share it.
    """
    told = tables.results_table(rows).to_dict("records")
    entries = [
        {"variant": text["variant"]}
        | _with_interval("time", text["time"])
        | _with_interval("ratio", text["ratio"])
        | {name: text[name] for name in ("of limit", "error", "n")}
        for text in told
    ]
    head, *cells = table(entries, "variant", ("ratio 95%", "of limit", "time 95%", "error", "n"), indent=2)
    groups: dict[str, list[tuple[Row, str, str]]] = {}
    for row, text, cell in zip(rows, told, cells, strict=True):
        clock = "not timed" if row.clock == "none" else f"{row.clock} clock"
        title = f"{text['workload']}, {clock}, {row.machine} ({row.experiment})"
        groups.setdefault(title, []).append((row, text["status"], cell))
    lines = [head]
    for title, own in groups.items():
        lines += ["", *wrap(title, 4), *(cell for row, _, cell in own if row.status == "ok")]
        remarks: dict[str, list[str]] = {}
        for row, status, _ in own:
            if status != "ok":
                remarks.setdefault(status.removeprefix("ok").lstrip("; "), []).append(row.variant)
        for remark, names in remarks.items():
            lines += wrap(f"{', '.join(names)}: {remark}", 6, 4)
    return lines


def _with_interval(title: str, text: str) -> dict[str, str]:
    """``1.02× [1.01, 1.03]`` as two columns."""
    value, _, ends = text.partition(" [")
    return {title: value, f"{title} 95%": f"[{ends}" if ends else ""}


def _cell_counts(rows: Sequence[Row]) -> list[str]:
    """How many cells each machine has of which status, and what operations they are of."""
    counts = Counter((row.machine, row.status) for row in rows)
    statuses = dict(Counter(row.status for row in rows).most_common())
    lines = []
    for machine in dict.fromkeys(row.machine for row in rows):
        own = {status.replace("_", " "): str(counts[machine, status]) for status in statuses}
        total = sum(counts[machine, status] for status in statuses)
        lines.append({"machine": machine, "cells": str(total)} | own)
    operations = Counter(row.operation for row in rows).most_common()
    said = ", ".join(f"{name} {count}" for name, count in operations)
    return [*table(lines, "machine"), "", *wrap(f"By operation: {said}.")]


def comparison_lines(
    rows: Sequence[Mapping[str, str]],
    names: Sequence[str],
    found: Sequence[Mapping[str, Any]],
    leads: Mapping[str, str],
    *,
    everything: bool = False,
) -> list[str]:
    """Two sides ``names``: how many ratios and verdicts differ, a line a ratio, and the verdicts with their reasons.

    ``rows`` are those of :func:`hypatia_lab.tables.compare_table`, ``found`` of :func:`hypatia_lab.claims.differences`;
    what one side could not test is told if ``everything`` is asked for. ``leads`` maps a part to its claim.
    """
    counts = Counter(row["differ"] for row in rows)
    words = {"yes": "apart by more than their intervals", "no": "not apart"}
    said = ", ".join(f"{count} {words.get(word, word)}" for word, count in counts.most_common())
    told = [row for row in found if everything or "not_testable" not in (row["verdict_a"], row["verdict_b"])]
    of = f"{len(told)} parts of {len({leads[row['id']] for row in told})} claims" if told else "none"
    lines = wrap(f"Ratios that both sides measured: {len(rows)}{f' ({said})' if said else ''}.")
    lines += wrap(f"Verdicts that differ: {of}.")
    if silent := len(found) - len(told):
        lines += wrap(f"Not testable on one side: {silent} parts (--all tells them).")
    return [*lines, *(_ratio_lines(rows, names) if rows else []), *_difference_lines(told)]


def _ratio_lines(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[str]:
    a, b = (_ending(name) for name in names)
    entries = [
        {"variant": row["variant"]}
        | _with_interval(a, row[names[0]])
        | _with_interval(b, row[names[1]])
        | {"differ": row["differ"]}
        for row in rows
    ]
    head, *cells = table(entries, "variant", (f"{a} 95%", f"{b} 95%"), indent=2)
    groups: dict[str, list[str]] = {}
    for row, cell in zip(rows, cells, strict=True):
        groups.setdefault(f"{row['workload']}, {row['clock']} clock, against {row['against']}", []).append(cell)
    return ["", head, *(line for title, own in groups.items() for line in ["", *wrap(title, 4), *own])]


def _ending(name: str, most: int = 16) -> str:
    return name if len(name) <= most else "…" + name[1 - most :]


def _difference_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in found:
        lines += ["", *wrap(f"{row['id']}  {row['claim']}", 2)]
        for side in "ab":
            verdict = claim_tables.verdict_text(row[f"verdict_{side}"])
            lines += wrap(f"{row[f'machine_{side}']}: {verdict}. {row[f'reason_{side}']}", 4, 2)
    return lines
