"""The command that sets machines side by side: compare."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import click

from hypatia_lab import claims as ledger
from hypatia_lab import records, results
from hypatia_lab.cli import options, side_by_side
from hypatia_lab.cli.reading import load, root_of
from hypatia_lab.cli.terminal import grouped, show
from hypatia_lab.records import Record


@click.command()
@click.argument("machines", nargs=-1, required=True)
@click.option("--all", "everything", is_flag=True, help="Also list ratios that agree, and verdicts of one side only.")
@options.records
@options.paged
@options.as_json
def compare(machines: tuple[str, ...], everything: bool, folders: tuple[Path, ...], paged: bool, as_json: bool) -> None:
    """Set MACHINES side by side: ratios that differ, the largest difference first, and verdicts that differ.

    Two ratios differ when their intervals do not overlap; an interval allows for what another visit to the model may
    change. Where several experiments measured a ratio, one of them is shown and named. Verdicts are those on
    the parts of claims, each of which has its own figures.

    Each of MACHINES is the name of a recorded machine or a folder: one machine's records, or a folder above them, such
    as the --output of judge. Two folders may hold records of one machine. A model's name stands for its chips, where
    several are recorded. With three machines or more you also see how far a ratio ranges and, from five chips of a
    model on, where the next one's will lie.

    With --json, of two machines: all verdicts that differ, those that both sides reached first. Of more: one line for
    each ratio, class of ratios and verdict; the key kind says which.
    """
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
    evidence, beside = results.measured(loaded), results.measured(records.load())
    found = side_by_side.of(names, loaded, ledger.judge(evidence, _own_ledger(*machines), beside=beside))
    rows, lines = side_by_side.json_rows, side_by_side.lines
    show(lambda: lines(found, everything=everything), lambda: rows(found), as_json=as_json, paged=paged)


def _sides(text: str, folders: tuple[Path, ...], others: Set[str]) -> list[list[Record]]:
    """The records of each side that ``text`` names: a machine, the chips of a model, a folder with one machine's.

    A machine that is called like its model is meant alone beside one chip, or where ``others`` name a chip.
    """
    place = Path(text)
    named = not place.is_dir() or any(path.name == text for path in records.COMMITTED.glob("*/"))
    sides = grouped(load(folders, (text,)) if named else records.load(root_of(place)), attrgetter("machine"))
    if not named and len(sides) > 1:
        raise click.UsageError(f"{text} holds records of {', '.join(sorted(sides))}; name one of its folders")
    alone = len(sides) == 2 or not others.isdisjoint(sides)
    return [sides[text]] if text in sides and alone else list(sides.values())


def _own_ledger(*places: str) -> list[ledger.Claim]:
    """The lab's ledger, and the claims in the readers' books among ``places``; of an id twice the last one counts."""
    books = [path for place in places for path in sorted((Path(place) / "book" / "claims").glob("*.yaml"))]
    own = [claim for path in books for claim in ledger.load(path)]
    return list({claim.id: claim for claim in (*ledger.ledger(), *own)}.values())
