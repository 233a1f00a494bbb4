"""The commands about records that others measured: contribute, check-records."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypatia_lab import paths, records
from hypatia_lab.cli import options
from hypatia_lab.cli.reading import root_of
from hypatia_lab.cli.terminal import show, wrap
from hypatia_lab.contributed.faults import NAMES, Report, shown


@click.command()
@click.argument("machine")
@click.option(
    "--records",
    "folder",
    type=options.THERE,
    help="Folder of the records, such as run's --records.  [default: where run puts them]",
)
@click.option(
    "--output",
    type=options.FOLDER,
    default=paths.BUILD / "contribution",
    help="Folder to make the contribution's folder in.  [default: _build/contribution]",
)
@click.option("--name", default="", help="Another name for the machine, where MACHINE is taken or tells too much.")
def contribute(machine: str, folder: Path | None, output: Path, name: str) -> None:
    """Pack the records of MACHINE for a pull request, without what tells whose machine it is.

    The folder holds the records, a manifest and, in PULL_REQUEST.md, a text for the pull request: at most 3 MB in all.
    What had to be left out for that, or was taken out as private, is said. It is then checked as check-records does;
    the exit status is 1 when it would be refused.
    """
    from hypatia_lab.contributed.packing import pack

    root = root_of(folder or (records.COMMITTED if paths.CHECKOUT else paths.BUILD / "records"))
    click.echo(f"packing the records of {machine} in {root}, and checking them", err=True)
    found = pack(machine, root, output, name=name)
    lines = [f"{found.folder}: {sum(path.is_file() for path in found.folder.rglob('*'))} files"]
    for text in found.left_out:
        lines += wrap(f"left out: {text}", 2)
    if found.taken_out:
        counts = ", ".join(f"{what} ({count})" for what, count in sorted(found.taken_out.items()))
        lines += wrap(f"taken out, as private: {counts}", 2)
    show([*lines, *_lines(found.report)])
    if found.report.faults:
        raise click.ClickException(f"{found.folder} would be refused as it is")
    steps = [
        "",
        "what to do with it, in a fresh clone of your fork:",
        f"  read {found.folder / 'PULL_REQUEST.md'}, and add to it what a reader should know",
        f"  cp -r {found.folder} book/records/ && rm book/records/{found.folder.name}/PULL_REQUEST.md",
        f"  git add book/records/{found.folder.name} && git commit -m 'Records of {found.folder.name}' && git push",
        "  open a pull request with the text of PULL_REQUEST.md",
    ]
    show(steps)


@click.command(
    "check-records",
    epilog="\b\nFaults:\n" + "\n".join(f"  {name:<10}{meaning}" for name, meaning in NAMES.items()),
)
@click.argument("folder", type=options.FILE)
@options.as_json
def check_records(folder: Path, as_json: bool) -> None:
    """Say every fault of the contributed records in FOLDER, made by contribute: one line each, by file and by name.

    Nothing in it is run. It is held against this lab's committed records: what their model of GPU reaches, and whose
    names are taken. The exit status is 1 with any fault and 0 with none.
    """
    from hypatia_lab.contributed.checking import check

    if not folder.exists() and not folder.is_symlink():
        raise click.UsageError(f"{folder} is not there; name the folder that contribute made")
    report = check(folder)
    show(lambda: _lines(report), report.rows, as_json=as_json)
    if report.faults:
        sys.exit(1)


def _lines(report: Report) -> list[str]:
    notes = [line for text in report.notes for line in wrap(f"note: {shown(text)}", 2)]
    count = len(report.faults)
    found = f"{count} {'fault' if count == 1 else 'faults'}" if count else "no fault"
    return [*map(str, report.faults), *notes, found]
