"""The command that says every fault of contributed records: check-records."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypatia_lab.cli import options
from hypatia_lab.cli.terminal import several, show, wrap
from hypatia_lab.contributed.faults import NAMES, Report, shown


@click.command(
    "check-records",
    epilog="\b\nFaults:\n" + "\n".join(f"  {name:<10}{meaning}" for name, meaning in NAMES.items()),
)
@click.argument("folder", type=options.FILE)
@options.as_json
def check_records(folder: Path, as_json: bool) -> None:
    """List every fault of the records in FOLDER, which contribute made: one line each, with file and name.

    Nothing in it is run. It is compared with the committed records: what that model of GPU reaches, and which names are
    taken. The exit status is 1 with any fault and 0 with none.
    """
    from hypatia_lab.contributed.checking import check

    if not folder.exists() and not folder.is_symlink():
        raise click.UsageError(f"{folder} is not there; name the folder that contribute made")
    report = check(folder)
    show(lambda: report_lines(report), report.rows, as_json=as_json)
    if report.faults:
        sys.exit(1)


def report_lines(report: Report) -> list[str]:
    """The faults, a line each, then the notes, and how many faults there are."""
    notes = [line for text in report.notes for line in wrap(f"note: {shown(text)}", 2)]
    return [*map(str, report.faults), *notes, several(len(report.faults), "fault") if report.faults else "no fault"]
