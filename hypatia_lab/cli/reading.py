"""The commands that read records and measure nothing: results, claims, compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from hypatia_lab import claims as ledger
from hypatia_lab import records
from hypatia_lab import results as tidy
from hypatia_lab.cli import options
from hypatia_lab.cli.terminal import grouped, show, table, wrap
from hypatia_lab.messages import unknown
from hypatia_lab.records import Record

NEAREST = 5
"""So many ids are told to who asks for a claim that there is not."""
_more = "Folder of more records, such as the --output of judge, beside the committed ones"
_records = options.several("--records", "folders", options.THERE, _more)
_machines = options.several("--machine", "machines", str, "Only this machine, or all chips of this model")


def _load(folders: tuple[Path, ...], machines: tuple[str, ...] = (), home: Path | None = None) -> list[Record]:
    """The records in ``home`` (left out: the committed ones) and ``folders``."""
    names = [records.machine_name(name) for name in machines]
    return records.load(home or records.COMMITTED, *map(root_of, folders), machines=names)


def root_of(folder: Path) -> Path:
    """Where the records of ``folder`` lie: in the reader's book that it is, or at once below it."""
    for root in (folder / "book" / "records", folder):
        if records.files(root):
            return root
    raise click.UsageError(f"{folder} holds no records")


def _kept(rows: list[Any], read: Callable[[Any], str], what: str, wanted: Sequence[str]) -> list[Any]:
    """The ``rows`` of which ``read`` gives one of ``wanted`` (empty: all).

    Raises ``UsageError`` when it can be none of theirs: ``rows`` are then all that are left of what was asked for.
    """
    there = list(dict.fromkeys(map(read, rows)))
    for value in wanted:
        if value not in there:
            raise click.UsageError(unknown(what, value, there, "what is asked for"))
    return [row for row in rows if read(row) in wanted] if wanted else rows


_FILTERS = ("experiment", "shape", "dtype", "math", "direction", "clock", "variant", "status")
"""Columns of the results by which they may be chosen."""


def _filtered(command: Any) -> Any:
    for name in reversed(_FILTERS):
        command = options.several(f"--{name}", name, str, f"Only this {name}")(command)
    return command


@click.command()
@click.argument("operations", nargs=-1)
@_filtered
@_machines
@_records
@options.paged
@options.as_json
def results(
    operations: tuple[str, ...],
    folders: tuple[Path, ...],
    machines: tuple[str, ...],
    paged: bool,
    as_json: bool,
    **wanted: tuple[str, ...],
) -> None:
    """Print every measured cell, of OPERATIONS alone where some are named.

    A cell has its time, the ratio to its baseline with a 95% interval (above 1 is faster), the share of what the
    machine's own ceilings allow, its error and its status. Filters narrow the cells down:
    hypatia-lab results linear_relu --clock graph --dtype bfloat16.
    """
    from hypatia_lab.cli.printing import result_lines

    rows = _kept(tidy.rows(_load(folders, machines)), attrgetter("operation"), "operation", operations)
    for name in _FILTERS:
        given = [value.replace("×", "x") if name == "shape" else value for value in wanted[name]]
        rows = _kept(rows, attrgetter(name), name, given)
    cells = ({key: getattr(row, key) for key in tidy.COLUMNS} for row in rows)
    show(lambda: result_lines(rows), lambda: list(cells), as_json=as_json, paged=paged)


@click.command()
@click.argument("ids", nargs=-1)
@options.several("--seed", "seeds", str, "Only this document, such as S003")
@options.several("--verdict", "verdicts", str, "Only this verdict, such as refuted")
@_machines
@click.option("--parts", "as_parts", is_flag=True, help="Every part by itself: each way in which a claim is tested.")
@click.option("--report", type=options.FILE, help="Folder of a report: its claims and records instead of the lab's.")
@_records
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
    from hypatia_lab.cli import printing

    words = [word.strip().lower().replace(" ", "_").replace("-", "_") for word in verdicts]
    for word in words:
        if word not in ledger.VERDICTS:
            raise click.UsageError(unknown("verdict", word, ledger.VERDICTS))
    home, known = (report / "records", _of_report(report)) if report else (None, ledger.ledger())
    # What shows a rewrite equal to its original may be another machine's record.
    beside = tidy.measured(_load(folders, home=home) if machines else ())
    parts = ledger.judge(tidy.measured(_load(folders, machines, home)), known, beside=beside)
    on = [name for name in dict.fromkeys(row.machine for row in parts) if name != ledger.ANY]
    if report and not as_json and not on:
        show(_unmeasured(report), paged=paged)
        return
    stated = [] if as_parts else ledger.statements(parts, known)
    rows = _kept(stated or parts, attrgetter("document"), "document", [seed.upper() for seed in seeds])
    rows, meant, whole = _named(rows, ids)
    rows = [row for row in rows if not words or row.verdict in words]

    def lines() -> list[str]:
        if not rows:
            return ["no claim that was asked for has this verdict"]
        if stated and whole:
            return printing.claims_in_full(rows, meant)
        return printing.claim_lines(rows, on, everything=bool(words))

    told = (row.row() | ({"parts": [part.row() for part in row.parts]} if stated else {}) for row in rows)
    show(lines, lambda: list(told), as_json=as_json, paged=paged)


def _of_report(folder: Path) -> list[ledger.Claim]:
    """The claims of the report in ``folder``; how many drafts there are besides is said."""
    from hypatia_lab.book.report import ensure_report

    ensure_report(folder)
    return told_claims(sorted((folder / "claims").glob("*.yaml")))


def told_claims(files: Sequence[Path]) -> list[ledger.Claim]:
    """The claims of ledger ``files``; how many drafts they hold is said, if any, where it is in nobody's way."""
    found = ledger.gather(files)
    if said := found.drafted:
        click.echo(said, err=True)
    return list(found.claims)


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


@click.command()
@click.argument("machines", nargs=-1, required=True)
@click.option("--all", "everything", is_flag=True, help="List ratios that agree and verdicts of one side alone, too.")
@_records
@options.paged
@options.as_json
def compare(machines: tuple[str, ...], everything: bool, folders: tuple[Path, ...], paged: bool, as_json: bool) -> None:
    """Set MACHINES side by side: the ratios that are apart, farthest first, and the verdicts that differ.

    Two ratios are apart when their intervals exclude each other; an interval holds what another visit to the model may
    differ by. Where several experiments measured a ratio it is that of one, which is named. Verdicts are those on the
    parts of claims, each of which has figures of its own.

    Each is the name of a recorded machine or a folder: one machine's records, or a folder above them, such as the
    --output of judge. Two folders may hold records of one machine. A model's name stands for its chips, where several
    are recorded. Of three and more it is told how far a ratio ranges, from five chips of a model on where the next
    one's will lie, and on how many machines a verdict holds.

    With --json, of two: all verdicts that differ, those that both sides reached first. Of more: a line a ratio, a class
    of ratios and a verdict, told apart by their kind: ratio, expectation, verdict.
    """
    from hypatia_lab.cli import side_by_side

    sides: list[tuple[str, list[Record]]] = []
    for text in machines:
        for side in _sides(text, folders, {*machines} - {text}):
            if twin := [name for name, other in sides if other == side]:
                raise click.UsageError(f"{twin[0]} and {text} are the same records; name two machines or folders")
            sides.append((text, side))
    if len(sides) < 2:
        raise click.UsageError(f"Missing argument: a second machine or folder to set beside {machines[0]}")
    names = [side[0].machine for _, side in sides]
    names = [text if names.count(name) > 1 else name for name, (text, _) in zip(names, sides, strict=True)]
    loaded = [
        replace(record, run=record.run | {"machine": name})
        for name, (_, side) in zip(names, sides, strict=True)
        for record in side
    ]
    evidence, beside = tidy.measured(loaded), tidy.measured(records.load())
    found = side_by_side.of(names, loaded, ledger.judge(evidence, _own_ledger(*machines), beside=beside))
    rows, lines = side_by_side.json_rows, side_by_side.lines
    show(lambda: lines(found, everything=everything), lambda: rows(found), as_json=as_json, paged=paged)


def _sides(text: str, folders: tuple[Path, ...], others: Set[str]) -> list[list[Record]]:
    """The records of each side that ``text`` names: a machine, the chips of a model, a folder with one machine's.

    A machine that is called like its model is meant alone beside one chip, or where ``others`` name a chip.
    """
    place = Path(text)
    named = not place.is_dir() or any(path.name == text for path in records.COMMITTED.glob("*/"))
    sides = grouped(_load(folders, (text,)) if named else records.load(root_of(place)), attrgetter("machine"))
    if not named and len(sides) > 1:
        raise click.UsageError(f"{text} holds records of {', '.join(sorted(sides))}; name one of its folders")
    alone = len(sides) == 2 or not others.isdisjoint(sides)
    return [sides[text]] if text in sides and alone else list(sides.values())


def _own_ledger(*places: str) -> list[ledger.Claim]:
    """The lab's ledger, and the claims in the readers' books among ``places``; of an id twice the last one counts."""
    books = [path for place in places for path in sorted((Path(place) / "book" / "claims").glob("*.yaml"))]
    own = [claim for path in books for claim in ledger.load(path)]
    return list({claim.id: claim for claim in (*ledger.ledger(), *own)}.values())
