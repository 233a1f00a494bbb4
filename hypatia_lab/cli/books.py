"""The commands about books: book builds the lab's or a report's, new and investigate begin a reader's own."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import click

from hypatia_lab import paths
from hypatia_lab.cli import execution, options
from hypatia_lab.cli.terminal import show


@click.command()
@click.argument("report", metavar="[DIR]", required=False, type=options.FILE)
@click.option("--notebooks", type=options.FOLDER, help="Folder of executed notebooks that replace the committed ones.")
@click.option("--records", type=options.FOLDER, help="Folder of more records.")
@click.option(
    "--output", type=options.FOLDER, help="Folder for the pages.  [default: _build/html, of DIR where it is given]"
)
@click.option("--pdf", is_flag=True, help="Print the whole book as PDF too, by Chromium: book.pdf among the pages.")
def book(report: Path | None, notebooks: Path | None, records: Path | None, output: Path | None, pdf: bool) -> None:
    """Build the book as HTML that needs no network: _build/html/index.html.

    With DIR, a report that hypatia-lab investigate began, the book of that: its claims and its records.
    """
    from hypatia_lab.book.build import build

    if report is None:
        index = build(notebooks=notebooks, records=records, output=output or paths.BUILD / "html", pdf=pdf)
    elif notebooks or records:
        raise click.UsageError("a report's book is made of its own folder; leave --notebooks and --records out")
    else:
        index = _of_report(report, output or report / "_build" / "html", pdf=pdf)
    show([str(index)])


@execution.resumable()
def _of_report(folder: Path, output: Path, *, pdf: bool) -> Path:
    """Execute the pages of the report in ``folder``, build its book in ``output`` and return its first page."""
    from hypatia_lab.book import report
    from hypatia_lab.book.build import build

    report.ensure_report(folder)
    execution.require("the page", "run", *execution.RUN)
    execution.require("the book", "book", "jupyter_book")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "report"
        report.lay_out(folder, source)
        for path in sorted((folder / "notebooks").glob("*.ipynb")):
            if not execution.execute(path.resolve(), source / "notebooks", {}, f"page {path.stem}"):
                sys.exit(1)
        return build(repository=source, output=output, pdf=pdf)


@click.command()
@click.argument("file", type=options.FILE)
def new(file: Path) -> None:
    """Write a template for a kernel of your own to FILE, such as my_kernel.py."""
    from hypatia_lab.book.own import write_template

    write_template(file)
    show([f"{file}: now hypatia-lab judge {file}"])


@click.command()
@click.argument("folder", metavar="DIR", type=options.FILE)
@options.several("--document", "documents", options.FILE, "Markdown or text whose figures become drafts of claims")
def investigate(folder: Path, documents: tuple[Path, ...]) -> None:
    """Begin a report in DIR on documents that are not the lab's.

    Figures with their units and lines are taken from the documents, and nothing of their wording. What they claim, and
    how it is tested, is for you to say: in claims/ and experiments.py of DIR.
    """
    from hypatia_lab.book import report
    from hypatia_lab.claims import documents as reading
    from hypatia_lab.claims import drafts

    report.ensure_free(folder)
    if documents:
        execution.require("reading a document", "book", "markdown_it")
    ledgers: dict[str, str] = {}
    count = 0
    for path in dict.fromkeys(map(Path.resolve, documents)):
        found = reading.read(path)
        count += len(found.figures)
        prefix = _prefix(path.stem, ledgers)
        ledgers[prefix.lower()] = drafts.text(found, prefix)
    if not ledgers:
        ledgers["document"] = drafts.text(None, "DOCUMENT")
    report.begin(folder, ledgers)
    said = f"{count} figures are drafts in {folder / 'claims'}" if count else f"a first draft is in {folder / 'claims'}"
    show([f"{said}; {folder / 'README.md'} says how to go on"])


def _prefix(stem: str, taken: Collection[str]) -> str:
    """What ids of claims begin with, from a document's name: letters and digits, a letter first, no seed's name.

    No lower-case one is ``taken``.
    """
    name = re.sub(r"[^A-Z0-9]+", "", stem.upper()) or "DOCUMENT"
    if not name[0].isalpha() or re.fullmatch(r"S[0-9]{3}", name):
        name = f"D{name}"
    numbered = (f"{name[:26]}{number if number > 1 else ''}" for number in range(1, 10**6))
    return next(free for free in numbered if free.lower() not in taken)
