"""The command ``hypatia-lab``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from hypatia_lab.cli import options
from hypatia_lab.cli.books import book, investigate, new
from hypatia_lab.cli.contributing import check_records, contribute
from hypatia_lab.cli.execution import ours
from hypatia_lab.cli.fleet import fleet
from hypatia_lab.cli.judge import judge
from hypatia_lab.cli.reading import claims, compare, results
from hypatia_lab.cli.run import run
from hypatia_lab.cli.simulate import simulate
from hypatia_lab.cli.terminal import show


class _Clear(click.Group):
    """Turns the lab's own errors, and misuse of the command, into one clear line and exit status 2.

    The status is 1 where a command says that something failed (:class:`click.ClickException`).
    Its help tells each command's first sentence whole.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(1000)) for name in sorted(self.commands)])

    def invoke(self, ctx: click.Context) -> Any:
        status = 2
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except click.ClickException as cause:
            told, status = cause.format_message(), cause.exit_code
        except (ValueError, RuntimeError, OSError) as cause:
            if isinstance(cause, PermissionError) and cause.filename is not None:
                told = _closed(Path(os.fsdecode(cause.filename)))
            elif ours(cause):
                told = str(cause)
            else:
                raise
        click.echo(f"hypatia-lab: {told}", err=True)
        return ctx.exit(status)


def _closed(path: Path) -> str:
    """Why ``path`` may not be reached, and what would do: the first folder on the way that may not be searched."""
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.X_OK):
            return f"folder {folder} may not be searched by you (it needs chmod u+x); choose another folder"
    return f"{path}: permission denied; choose another file or folder"


@click.group(cls=_Clear, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hypatia-lab")
def main() -> None:
    """Re-run GPU performance experiments, judge the claims made of them, and build the book."""


@main.command()
@options.device
@options.paged
@options.as_json
def doctor(device: str, paged: bool, as_json: bool) -> None:
    """Say what this machine can do, what it lacks and what would help, and which variants run here."""
    from hypatia_lab.cli.doctor import examine, rows, text

    report = examine(device)
    show(lambda: text(report), lambda: rows(report), as_json=as_json, paged=paged)


for command in (
    run,
    results,
    claims,
    compare,
    new,
    judge,
    book,
    simulate,
    contribute,
    check_records,
    fleet,
    investigate,
):
    main.add_command(command)
