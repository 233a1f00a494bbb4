"""The command that builds the lab's book, or a report's: book."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from hypatia_lab import paths
from hypatia_lab.book import report as reports
from hypatia_lab.book.build import build
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
    reports.ensure_report(folder)
    execution.require("the page", "run", *execution.RUN)
    execution.require("the book", "book", "jupyter_book")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "report"
        reports.lay_out(folder, source)
        for path in sorted((folder / "notebooks").glob("*.ipynb")):
            if not execution.execute(path.resolve(), source / "notebooks", {}, f"page {path.stem}"):
                sys.exit(1)
        return build(repository=source, output=output, pdf=pdf)
