"""What the commands that read records have in common: where they lie, and which rows of them are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hypatia_lab import claims as ledger
from hypatia_lab import records
from hypatia_lab.messages import unknown
from hypatia_lab.records import Record


def load(folders: tuple[Path, ...], machines: tuple[str, ...] = (), home: Path | None = None) -> list[Record]:
    """The records in ``home`` (left out: the committed ones) and ``folders``."""
    names = [records.machine_name(name) for name in machines]
    return records.load(home or records.COMMITTED, *map(root_of, folders), machines=names)


def root_of(folder: Path) -> Path:
    """Where the records of ``folder`` lie: in the reader's book that it is, or at once below it."""
    for root in (folder / "book" / "records", folder):
        if records.files(root):
            return root
    raise click.UsageError(f"{folder} holds no records")


def kept(rows: list[Any], read: Callable[[Any], str], what: str, wanted: Sequence[str]) -> list[Any]:
    """The ``rows`` of which ``read`` gives one of ``wanted`` (empty: all).

    Raises ``UsageError`` when it can be none of theirs: ``rows`` are then all that are left of what was asked for.
    """
    there = list(dict.fromkeys(map(read, rows)))
    for value in wanted:
        if value not in there:
            raise click.UsageError(unknown(what, value, there))
    return [row for row in rows if read(row) in wanted] if wanted else rows


def told_claims(files: Sequence[Path]) -> list[ledger.Claim]:
    """The claims of ledger ``files``; how many drafts they hold is said, if any, where it is in nobody's way."""
    found = ledger.gather(files)
    if said := found.drafted:
        click.echo(said, err=True)
    return list(found.claims)
