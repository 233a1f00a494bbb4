"""The command that begins a report on documents that are not the lab's: investigate."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import click

from hypatia_lab.cli import execution, options
from hypatia_lab.cli.terminal import several, show


@click.command()
@click.argument("folder", metavar="DIR", type=options.FILE)
@options.several("--document", "documents", options.FILE, "Markdown or text whose figures become drafts of claims")
def investigate(folder: Path, documents: tuple[Path, ...]) -> None:
    """Begin a report in DIR on documents that are not the lab's.

    Figures with their units and lines are taken from the documents, in tables with the headings of row and column, and
    no sentence. What they claim, and how it is tested, is for you to say: in claims/ and experiments.py of DIR. A
    document without figures is left out.
    """
    from hypatia_lab.book import report
    from hypatia_lab.claims import documents as reading

    report.ensure_free(folder)
    if documents:
        execution.require("reading a document", "book", "markdown_it")
    ledgers: dict[str, str] = {}
    count = 0
    empty: list[str] = []
    for path in dict.fromkeys(map(Path.resolve, documents)):
        try:
            found = reading.read(path)
        except reading.NoFigureError as none:
            empty.append(str(none))
            continue
        count += len(found.figures)
        prefix = _prefix(path.stem, ledgers)
        ledgers[prefix.lower()] = reading.draft(found, prefix)
    if empty and not ledgers:
        raise reading.NoFigureError("; ".join(empty))
    ledgers = ledgers or {"document": reading.draft(None, "DOCUMENT")}
    report.begin(folder, ledgers)
    for none in empty:
        click.echo(f"left out: {none}", err=True)
    said = f"{several(count, 'figure')} drafted" if count else "A first draft is"
    show([f"{said} in {folder / 'claims'}. Next: read {folder / 'README.md'}"])


def _prefix(stem: str, taken: Collection[str]) -> str:
    """What ids of claims begin with, from a document's name: letters and digits, a letter first, no seed's name.

    No lower-case one is ``taken``.
    """
    name = re.sub(r"[^A-Z0-9]+", "", stem.upper()) or "DOCUMENT"
    if not name[0].isalpha() or re.fullmatch(r"S[0-9]{3}", name):
        name = f"D{name}"
    numbered = (f"{name[:26]}{number if number > 1 else ''}" for number in range(1, 10**6))
    return next(free for free in numbered if free.lower() not in taken)
