"""The command that prints the ledger's claims and what became of them: claims."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from hypatia_lab import claims as ledger
from hypatia_lab import formats, older, results
from hypatia_lab.book.report import ensure_report
from hypatia_lab.claims import ANY, UNJUDGED, VERDICTS, Judgement
from hypatia_lab.cli import options
from hypatia_lab.cli.reading import kept, load, told_claims
from hypatia_lab.cli.terminal import show, table, wrap
from hypatia_lab.formats import MISSING
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
    """Show what was claimed, what was measured and the verdict: of every claim, or of those that begin with IDS.

    A claim is what a document says once. It may be tested in several ways, its parts. A whole id, such as S001-01,
    shows that claim in full: its parts, bands, intervals and reasons. With --json each claim has its parts.
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
    decided = Counter(row.machine for row in parts if row.verdict not in UNJUDGED)
    on = sorted({row.machine: row for row in parts if row.machine != ANY}, key=lambda name: -decided[name])
    if report and not as_json and not on:
        show(_unmeasured(report), paged=paged)
        return
    stated = [] if as_parts else ledger.statements(parts, known)
    rows = kept(stated or parts, attrgetter("document"), "document", [seed.upper() for seed in seeds])
    rows, meant, whole = _named(rows, ids)
    rows = [row for row in rows if not words or row.verdict in words]
    aged = partial(older.under, known={(record.machine, record.experiment): record for record in evidence})

    def lines() -> list[str]:
        if not rows:
            return ["no claim that was asked for has this verdict"]
        if stated and whole:
            return claims_in_full(sorted(rows, key=lambda row: [*on, ANY].index(row.machine)), meant, aged)
        return claim_lines(rows, on, aged, everything=bool(words))

    def as_row(row: Judgement) -> dict[str, Any]:
        own = row.row() | {"older": aged(row)}
        return own | {"parts": [as_row(part) for part in row.parts]} if row.parts else own

    show(lines, lambda: list(map(as_row, rows)), as_json=as_json, paged=paged)


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


Aged = Callable[[Judgement], str]
"""Of a verdict: which of its records are older than the lab, and in what; empty where none is."""
OLDER = f"{older.MARK} rests on a record made by an older clock, check or plan, or by one that it does not name."


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
            lines += wrap(f"{row.id}  {row.claim}", 4) + wrap(f"{figures(row)} | {_word(row, aged)}", 4, 4)
        if len(told) < len(own):
            lines += wrap(f"Not testable and not listed: {len(own) - len(told)} (--verdict not_testable lists them).")
    lines += ["", *wrap(OLDER)] if any(older.MARK in line for line in lines) else []
    return [*lines, "", *wrap(f"hypatia-lab claims {rows[0].id} shows one claim in full, with its parts.")]


def _word(row: Judgement, aged: Aged) -> str:
    return claim_tables.word(row) + f" {older.MARK}" * bool(aged(row))


def figures(row: Judgement) -> str:
    """What a claim, or a part of one, asks for, and what was measured."""
    return f"asked {claim_tables.asked(row)} | {_found(row)}"


def _found(row: Judgement) -> str:
    """What was measured for ``row``, or worked out, or that nothing was."""
    found = claim_tables.judged(row)
    return "nothing measured" if found == MISSING else found if row.quantity == "arithmetic" else f"measured {found}"


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
    """Whole claims, of whose rows of :func:`hypatia_lab.claims.statements` are ``rows``: the answer on the first of
    their machines, those on the others, and every part.

    ``meant`` are ids: of the claims, or else of the parts of them that are wanted.
    """
    texts = [_in_full(own, meant, aged) for own in results.grouped(rows, attrgetter("id")).values()]
    return [line for text in texts for line in ["", *text]][1:]


def _in_full(rows: Sequence[Judgement], meant: Collection[str], aged: Aged) -> list[str]:
    # What no machine decides is a part on each of them.
    once = {(part.id, part.machine): part for row in rows for part in row.parts}
    parts = results.grouped(once.values(), attrgetter("id"))
    shown = [own for name, own in parts.items() if rows[0].id in meant or name in meant]
    heads = [rows] if rows[0].id in meant else shown
    lines: list[str] = []
    for own in heads:
        lines += wrap(_answer(own[0], aged, first=True), 4) + wrap(own[0].claim, 2, 2)
        others = [_answer(row, aged, first=False) for row in own[1:] if len(shown) > 1]
        lines += [line for text in others for line in wrap(text, 6, 4)]
    for own in shown:
        lines += ["", *_part(own, aged)]
    told = [part for own in shown for part in own]
    notes = [f"{older.MARK} {one}." for part in told for one in aged(part).split("; ") if one]
    notes += [part.caution for part in told if part.caution]
    return [*lines, *[""] * bool(notes), *(line for note in dict.fromkeys(notes) for line in wrap(note, 2))]


def _answer(row: Judgement, aged: Aged, *, first: bool) -> str:
    """What is claimed, where it stands ``first``, and what was found on a machine, with the verdict."""
    found = _found(row).removeprefix("measured ") + f" on {row.machine}" * (row.machine != ANY)
    asked = f"{row.id}: {claim_tables.asked(row).partition(' (band')[0]} claimed; "
    return f"{asked * first}{found}: {_word(row, aged)}"


def _part(own: Sequence[Judgement], aged: Aged) -> list[str]:
    """One part of a claim: what it says and allows, what each machine has to say, and why."""
    lead = own[0]
    lines = wrap(f"{lead.id}  {lead.claim}", 4)
    set_on = f"; band set {lead.band_set.replace(' ', ', ')} the first record" * bool(lead.band_set)
    lines += wrap(f"Asked: {claim_tables.asked(lead)}{set_on}.", 4, 2)
    shared = set.intersection(*(set(row.details) for row in own))
    for row in own:
        apart = [text for text in row.details if text not in {*shared, row.subject, row.caution}]
        on = f"{row.machine}: ".removeprefix(f"{ANY}: ")
        lines += wrap(" ".join([f"{on}{_word(row, aged)}: {row.reason}", *_facts(row), *apart]), 4, 2)
    said = [text for text in lead.details if text in shared - {lead.subject, lead.caution, lead.why}]
    said += [f"Why: {lead.why} (Section “{lead.section}” of {lead.document}.)"]
    return lines + [line for text in said for line in wrap(text, 4, 2)]


def _facts(row: Judgement) -> list[str]:
    """What the reason of a verdict leaves out: figures that decide nothing or are several, and whose they are."""
    figures = [
        f"{formats.figure(case.estimate, row.unit)} at {formats.workload(case.workload)}"
        for case in row.cases
        if case.estimate.n
    ]
    shown = f": {'; '.join(figures)}" * (len(figures) > 1 or row.verdict == "not_testable")
    return [f"Measured {claim_tables.whose(row)} ({formats.listing(row.experiments)}){shown}."] if figures else []
