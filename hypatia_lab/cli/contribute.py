"""The command that packs a machine's records for a pull request: contribute."""

from __future__ import annotations

from pathlib import Path

import click

from hypatia_lab import paths, records
from hypatia_lab.cli import options
from hypatia_lab.cli.check_records import report_lines
from hypatia_lab.cli.reading import root_of
from hypatia_lab.cli.terminal import several, show, wrap


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
    """Pack the records of MACHINE for a pull request, without anything that says whose machine it is.

    The folder holds the records, a manifest and, in PULL_REQUEST.md, a text for the pull request: at most 3 MB in all.
    What had to be left out for that, or was taken out as private, is said. It is then checked as check-records does;
    the exit status is 1 when it would be refused.
    """
    from hypatia_lab.contributed.packing import pack

    root = root_of(folder or (records.COMMITTED if paths.CHECKOUT else paths.BUILD / "records"))
    click.echo(f"packing the records of {machine} in {root}, and checking them", err=True)
    found = pack(machine, root, output, name=name)
    lines = [f"{found.folder}: {several(sum(path.is_file() for path in found.folder.rglob('*')), 'file')}"]
    for text in found.left_out:
        lines += wrap(f"left out: {text}", 2)
    if found.taken_out:
        counts = ", ".join(f"{what} ({count})" for what, count in sorted(found.taken_out.items()))
        lines += wrap(f"taken out, as private: {counts}", 2)
    show([*lines, *report_lines(found.report)])
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
