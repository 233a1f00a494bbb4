"""The command that begins a report on documents of others: investigate. What builds its book is here too."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import click

from hypatia_lab import places
from hypatia_lab.cli.execution import RUN, execute, interrupted


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--document",
    "documents",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Markdown or text whose figures become drafts of claims; may be given again.",
)
def investigate(folder: Path, documents: tuple[Path, ...]) -> None:
    """Begin a report in DIR on documents that are not the lab's.

    Figures with their units and lines are taken from the documents, and nothing of their wording. What they claim, and
    how it is tested, is for you to say: in claims/ and experiments.py of DIR.
    """
    from hypatia_lab.book import report
    from hypatia_lab.claims import documents as reading
    from hypatia_lab.claims import drafts

    report.ensure_free(folder)
    if documents and (told := places.lacking("reading a document", "book", "markdown_it")):
        raise click.UsageError(told)
    ledgers: dict[str, str] = {}
    count = 0
    for path in dict.fromkeys(map(Path.resolve, documents)):
        found = reading.read(path)
        count += len(found.figures)
        prefix = _prefix(path.stem, [name.upper() for name in ledgers])
        ledgers[prefix.lower()] = drafts.text(found, prefix)
    if not ledgers:
        ledgers["document"] = drafts.text(None, "DOCUMENT")
    report.begin(folder, ledgers)
    said = f"{count} figures are drafts in {folder / 'claims'}" if count else f"a first draft is in {folder / 'claims'}"
    click.echo(f"{said}; {folder / 'README.md'} says how to go on")


def _prefix(stem: str, taken: Collection[str]) -> str:
    """What ids of claims begin with, from a document's name: letters and digits, a letter first, no seed's name."""
    name = re.sub(r"[^A-Z0-9]+", "", stem.upper()) or "DOCUMENT"
    if not name[0].isalpha() or re.fullmatch(r"S[0-9]{3}", name):
        name = f"D{name}"
    return next(
        free for number in range(1, 10**6) if (free := f"{name[:26]}{number if number > 1 else ''}") not in taken
    )


def build_book(folder: Path, output: Path, *, pdf: bool) -> Path:
    """Execute the pages of the report in ``folder``, build its book in ``output`` and return its first page."""
    from hypatia_lab.book import build as pages
    from hypatia_lab.book import report

    report.ensure_report(folder)
    for what, extra, modules in (("the page", "run", RUN), ("the book", "book", ("jupyter_book",))):
        if told := places.lacking(what, extra, *modules):
            raise click.UsageError(told)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "report"
        report.lay_out(folder, source)
        for path in sorted((folder / "notebooks").glob("*.ipynb")):
            try:
                executed = execute(path.resolve(), source / "notebooks", {}, f"page {path.stem}")
            except KeyboardInterrupt:
                interrupted()
            if not executed:
                sys.exit(1)
        return pages.build(repository=source, output=output, pdf=pdf)
