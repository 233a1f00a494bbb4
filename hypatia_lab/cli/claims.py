"""The command that prints the ledger's claims and what became of them: claims."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from hypatia_lab import claims as ledger
from hypatia_lab import older, results
from hypatia_lab.book.report import ensure_report
from hypatia_lab.claims import ANY, VERDICTS, Judgement
from hypatia_lab.cli import options
from hypatia_lab.cli.reading import kept, load, told_claims
from hypatia_lab.cli.terminal import grouped, show, table, wrap
from hypatia_lab.formats import MISSING, absent
from hypatia_lab.messages import unknown
from hypatia_lab.tables import claims as claim_tables

NEAREST = 5
"""So many ids are told to who asks for a claim that there is not."""


@click.command()
@click.argument("ids", nargs=-1)
@options.several("--seed", "seeds", str, "Only this document, such as S003")
@options.several("--verdict", "verdicts", str, "Only this verdict, such as refuted")
@options.machines
@click.option("--parts", "as_parts", is_flag=True, help="Every part by itself: each way in which a claim is tested.")
@click.option("--report", type=options.FILE, help="Folder of a report: its claims and records instead of the lab's.")
@options.records
@options.paged
@options.as_json
def claims(
    ids: tuple[str, ...],
    seeds: tuple[str, ...],
    verdicts: tuple[str, ...],
    machines: tuple[str, ...],
    as_parts: bool,
    report: Path | None,
    folders: tuple[Path, ...],
    paged: bool,
    as_json: bool,
) -> None:
    """Print every claim of the ledger with what was measured and the verdict, or those that IDS begin.

    A claim is what a document says once; it may be tested in several ways, its parts. A whole id, such as S001-01,
    tells that claim in full: its parts, bands, intervals and reasons. With --json each claim has its parts.
    """
    words = [word.strip().lower().replace(" ", "_").replace("-", "_") for word in verdicts]
    for word in words:
        if word not in ledger.VERDICTS:
            raise click.UsageError(unknown("verdict", word, ledger.VERDICTS))
    home, known = (report / "records", _of_report(report)) if report else (None, ledger.ledger())
    # What shows a rewrite equal to its original may be another machine's record.
    beside = results.measured(load(folders, home=home) if machines else ())
    evidence = load(folders, machines, home)
    parts = ledger.judge(results.measured(evidence), known, beside=beside)
    on = [name for name in dict.fromkeys(row.machine for row in parts) if name != ledger.ANY]
    if report and not as_json and not on:
        show(_unmeasured(report), paged=paged)
        return
    stated = [] if as_parts else ledger.statements(parts, known)
    rows = kept(stated or parts, attrgetter("document"), "document", [seed.upper() for seed in seeds])
    rows, meant, whole = _named(rows, ids)
    rows = [row for row in rows if not words or row.verdict in words]
    made = {(record.machine, record.experiment): record for record in evidence}
    aged = {_named_on(row): older.under(row, made) for whole in rows for row in (whole, *whole.parts)}

    def lines() -> list[str]:
        if not rows:
            return ["no claim that was asked for has this verdict"]
        if stated and whole:
            return claims_in_full(rows, meant, aged)
        return claim_lines(rows, on, aged, everything=bool(words))

    def as_row(row: Judgement) -> dict[str, Any]:
        own = row.row() | {"older": aged[_named_on(row)]}
        return own | {"parts": [as_row(part) for part in row.parts]} if row.parts else own

    show(lines, lambda: list(map(as_row, rows)), as_json=as_json, paged=paged)


def _named_on(row: Judgement) -> tuple[str, str]:
    """What tells ``row`` from all others, claims and parts alike."""
    return row.id, row.machine


def _of_report(folder: Path) -> list[ledger.Claim]:
    """The claims of the report in ``folder``; how many drafts there are besides is said."""
    ensure_report(folder)
    return told_claims(sorted((folder / "claims").glob("*.yaml")))


def _unmeasured(folder: Path) -> list[str]:
    """The claims of a report of which nothing is measured, or that there are none yet."""
    from hypatia_lab.pages.report import NOTHING, read

    lines = [line for own in read(folder).unmeasured() for line in table(own.to_dict("records"), "claim", least=20)]
    return [*wrap(NOTHING if lines else "There is no claim yet: put a draft into your own words."), "", *lines]


def _ids(row: Any) -> list[str]:
    """What a claim, or a part of one, may be asked for by: the claim's id and its parts'."""
    return [row.id, *(part.id for part in row.parts)] if row.parts else [row.lead, row.id]


def _named(rows: list[Any], asked: Sequence[str]) -> tuple[list[Any], set[str], bool]:
    """The ``rows`` of claims or parts that ``asked`` name or begin (empty: all), the ids meant, and whether all are
    whole ones. Raises ``UsageError`` for what begins none."""
    known = list(dict.fromkeys(name for row in rows for name in _ids(row)))
    meant: set[str] = set()
    whole = bool(asked)
    for name in asked:
        found = {one for one in known if one.upper() == name.upper()}
        whole = whole and bool(found)
        found = found or {one for one in known if one.upper().startswith(name.upper())}
        if not found:
            near = get_close_matches(name.upper(), known, NEAREST, 0)
            raise click.UsageError(unknown("claim", name, [*dict.fromkeys(row.document for row in rows), *near]))
        meant |= found
    return [row for row in rows if not asked or meant.intersection(_ids(row))], meant, whole


Aged = Mapping[tuple[str, str], str]
"""Id and machine of a verdict → what of its records is older than the lab; empty where nothing is."""


def claim_lines(
    rows: Sequence[Judgement], machines: Sequence[str], aged: Aged, *, everything: bool = False
) -> list[str]:
    """The claims, or parts of claims, of ``rows``: how many have which verdict on ``machines``, and then each of them,
    a block a machine, with a mark where it is ``aged``.

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
            mark = f" {older.MARK}" * bool(aged[_named_on(row)])
            lines += wrap(f"{row.id}  {claim_tables.word(row)}{mark}: {figures(row)}", 11)
            lines += wrap(row.claim, 11, 11)
        if len(told) < len(own):
            lines += wrap(f"Not testable and not listed: {len(own) - len(told)} (--verdict not_testable lists them).")
    legend = f"{older.MARK} rests on a record of another clock, check or plan than today's, or of none that it names."
    lines += ["", *wrap(legend)] if any(older.MARK in line for line in lines) else []
    return [*lines, "", *wrap(f"hypatia-lab claims {rows[0].id} tells one claim in full, with its parts.")]


def figures(row: Judgement) -> str:
    """What a claim, or a part of one, asks for, and what was measured."""
    return f"asked {claim_tables.asked(row)}, measured {claim_tables.judged(row)}"


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


def claims_in_full(rows: Sequence[Judgement], meant: Collection[str], aged: Aged) -> list[str]:
    """Whole claims, of whose rows of :func:`hypatia_lab.claims.statements` are ``rows``: every part on every machine.

    ``meant`` are ids: of the claims, or else of the parts of them that are wanted.
    """
    texts = [_in_full(own, meant, aged) for own in grouped(rows, attrgetter("id")).values()]
    return [line for text in texts for line in ["", *text]][1:]


def _in_full(rows: Sequence[Judgement], meant: Collection[str], aged: Aged) -> list[str]:
    lead = rows[0]
    # What no machine decides is a part on each of them.
    once = {(part.id, part.machine): part for row in rows for part in row.parts}
    parts = grouped(once.values(), attrgetter("id"))
    shown = {name: own for name, own in parts.items() if lead.id in meant or name in meant}
    lines = wrap(f"{lead.id}  {lead.claim}", len(lead.id) + 2)
    for row in rows if lead.id in meant else ():
        lines += wrap(f"{_on(row)}{claim_tables.word(row)}: {figures(row)}. {row.reason}", 4, 2)
    for name, own in shown.items():
        lines += ["", *wrap(f"{name}  {own[0].claim}", len(name) + 2)]
        for part, told in zip(own, claim_tables.claims_table(own).to_dict("records"), strict=True):
            lines += ["", *wrap(f"{_on(part)}{told['verdict']}: {part.reason}", 4, 2)]
            for title, text in (_facts(part, told) | _older(aged[_named_on(part)])).items():
                lines += wrap(f"{title:<10}{text}", 14, 4)
            lines += [line for text in part.details if text != part.why for line in wrap(text, 4, 4)]
        lines += ["", *wrap(f"Why: {own[0].why}", 4, 2)]
        lines += wrap(f"Document {own[0].document}, section “{own[0].section}”.", 4, 2)
    return lines


def _older(said: str) -> dict[str, str]:
    return {"older": said} if said else {}


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
