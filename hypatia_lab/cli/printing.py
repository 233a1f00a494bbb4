"""Claims, results and comparisons as lines for a terminal: a summary, a line an entry, and how to see more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter, itemgetter

from hypatia_lab import tables
from hypatia_lab.claims import ANY, VERDICTS, Judgement
from hypatia_lab.cli.terminal import grouped, table, wrap
from hypatia_lab.formats import MISSING, absent
from hypatia_lab.results import Row
from hypatia_lab.tables import claims as claim_tables


def claim_lines(rows: Sequence[Judgement], machines: Sequence[str], *, everything: bool = False) -> list[str]:
    """The claims, or parts of claims, of ``rows``: how many have which verdict on ``machines``, and then each of them,
    a block a machine.

    What no machine decides has a block of its own. What cannot be tested on a machine is counted, and listed if
    ``everything`` is asked for.
    """
    lines = _verdict_counts(rows, machines)
    for machine in [*machines, ANY]:
        own = sorted((row for row in rows if row.machine == machine), key=_place)
        told = [row for row in own if everything or row.verdict != "not_testable"]
        if not own:
            continue
        title = "By arithmetic, or decided by no machine" if machine == ANY else machine
        lines += ["", title, "-" * len(title)]
        for row in told:
            asked = f"asked {claim_tables.asked(row)}, measured {claim_tables.judged(row)}"
            lines += wrap(f"{row.id}  {claim_tables.word(row)}: {asked}", 11)
            lines += wrap(row.claim, 11, 11)
        if len(told) < len(own):
            lines += wrap(f"Not testable and not listed: {len(own) - len(told)} (--verdict not_testable lists them).")
    return [*lines, "", *wrap(f"hypatia-lab claims {rows[0].id} tells one claim in full, with its parts.")]


def _place(row: Judgement) -> tuple[str, int, str]:
    """Where ``row`` stands in a list: by document and number, for a file may have another order."""
    number = re.findall(r"-(\d+)", row.id)[0]
    return row.document, int(number), row.id


def _verdict_counts(rows: Sequence[Judgement], machines: Sequence[str]) -> list[str]:
    """A line a document and machine: how many of its claims have which verdict there."""
    present = [verdict for verdict in VERDICTS if any(row.verdict == verdict for row in rows)]
    seeds = list(dict.fromkeys(row.document for row in rows))
    what = "claims" if rows[0].parts else "parts of claims"
    counts = Counter((seed, row.machine, row.verdict) for row in rows for seed in (row.document, "all"))
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


def claims_in_full(rows: Sequence[Judgement], meant: Collection[str]) -> list[str]:
    """Whole claims, of whose rows of :func:`hypatia_lab.claims.statements` are ``rows``: every part on every machine.

    ``meant`` are ids: of the claims, or else of the parts of them that are wanted.
    """
    texts = [_in_full(own, meant) for own in grouped(rows, attrgetter("id")).values()]
    return [line for text in texts for line in ["", *text]][1:]


def _in_full(rows: Sequence[Judgement], meant: Collection[str]) -> list[str]:
    lead = rows[0]
    # What no machine decides is a part on each of them.
    once = {(part.id, part.machine): part for row in rows for part in row.parts}
    parts = grouped(once.values(), attrgetter("id"))
    shown = {name: own for name, own in parts.items() if lead.id in meant or name in meant}
    lines = wrap(f"{lead.id}  {lead.claim}", len(lead.id) + 2)
    for row in rows if lead.id in meant else ():
        asked = f"asked {claim_tables.asked(row)}, measured {claim_tables.judged(row)}"
        lines += wrap(f"{_on(row)}{claim_tables.word(row)}: {asked}. {row.reason}", 4, 2)
    for name, own in shown.items():
        lines += ["", *wrap(f"{name}  {own[0].claim}", len(name) + 2)]
        for part, told in zip(own, claim_tables.claims_table(own).to_dict("records"), strict=True):
            lines += ["", *wrap(f"{_on(part)}{told['verdict']}: {part.reason}", 4, 2)]
            for title, text in _facts(part, told).items():
                lines += wrap(f"{title:<10}{text}", 14, 4)
            lines += [line for text in part.details if text != part.why for line in wrap(text, 4, 4)]
        lines += ["", *wrap(f"Why: {own[0].why}", 4, 2)]
        lines += wrap(f"Document {own[0].document}, section “{own[0].section}”.", 4, 2)
    return lines


def _on(row: Judgement) -> str:
    """Where ``row`` was judged, before its verdict; empty where no machine decides it."""
    return f"{row.machine}: ".removeprefix(f"{ANY}: ")


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
    entries = []
    for text in told:
        measured = _with_interval("time", text["time"]) | _with_interval("ratio", text["ratio"])
        entries.append(
            {"variant": text["variant"]} | measured | {name: text[name] for name in ("of limit", "error", "n")}
        )
    head, *cells = table(entries, "variant", ("ratio 95%", "of limit", "time 95%", "error", "n"), indent=2)
    lines = [head]
    for title, own in grouped(zip(rows, told, cells, strict=True), lambda one: _title(one[0], one[1])).items():
        lines += ["", *wrap(title, 4), *(cell for row, _, cell in own if row.status == "ok")]
        remarked = [(row.variant, text["status"]) for row, text, _ in own if text["status"] != "ok"]
        for remark, named in grouped(remarked, itemgetter(1)).items():
            names = ", ".join(name for name, _ in named)
            lines += wrap(f"{names}: {remark.removeprefix('ok').lstrip('; ')}", 6, 4)
    return lines


def _title(row: Row, text: Mapping[str, str]) -> str:
    """What cells that stand together have in common; ``text`` is the row of the table of results."""
    clock = "not timed" if row.clock == "none" else f"{row.clock} clock"
    return f"{text['workload']}, {clock}, {row.machine} ({row.experiment})"


def _with_interval(title: str, text: str) -> dict[str, str]:
    """``1.02× [1.01, 1.03]`` as two columns."""
    value, _, ends = text.partition(" [")
    return {title: value, f"{title} 95%": f"[{ends}" if ends else ""}


def _cell_counts(rows: Sequence[Row]) -> list[str]:
    """How many cells each machine has of which status, and what operations they are of."""
    statuses = dict(Counter(row.status for row in rows).most_common())
    lines = []
    for machine, own in grouped(rows, attrgetter("machine")).items():
        counts = Counter(row.status for row in own)
        found = {status.replace("_", " "): str(counts[status]) for status in statuses}
        lines.append({"machine": machine, "cells": str(len(own))} | found)
    operations = Counter(row.operation for row in rows).most_common()
    said = ", ".join(f"{name} {count}" for name, count in operations)
    return [*table(lines, "machine"), "", *wrap(f"By operation: {said}.")]
