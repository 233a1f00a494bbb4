"""The command ``hypatia-lab``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import atexit
import gc
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from hypatia_lab.cli.execution import interrupted, ours, stoppable

GROUPS = {
    "Look at what was measured": {"claims": "S001-01", "results": "linear_relu", "compare": "h200 h100"},
    "Measure your machine": {"doctor": "", "run": "02 --records my_records", "book": "--records my_records"},
    "Judge a kernel of your own": {"new": "my_kernel.py", "judge": "my_kernel.py"},
    "Share what you measured": {"contribute": "my-gpu", "check-records": "_build/contribution/my-gpu"},
    "More": {"investigate": "my_report --document README.md", "fleet": "run --box", "simulate": "--pixels 256 256"},
}
"""What the help has together, in the order in which a newcomer needs it: command → what an example gives it."""
COMMANDS = [name.replace("-", "_") for own in GROUPS.values() for name in own]
"""Each is a function of a file that has its name."""


class _Clear(click.Group):
    """Turns the lab's own errors, and misuse of the command, into one clear line and exit status 2.

    The status is 1 where a command says that something failed (:class:`click.ClickException`).
    Its help tells each command's first sentence whole, with an example.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, examples in GROUPS.items():
            told = {name.ljust(13): self.commands[name].get_short_help_str(1000) for name in examples}
            with formatter.section(title):
                for line, example in zip(told.items(), examples.values(), strict=True):
                    formatter.write_dl([line, ("", f"hypatia-lab {line[0].strip()} {example}")])

    def invoke(self, ctx: click.Context) -> Any:
        status = 2
        try:
            with stoppable():
                return super().invoke(ctx)
        except KeyboardInterrupt as cause:
            interrupted(cause, "nothing that was there before has changed: run the same command again")
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


atexit.register(gc.freeze)  # else Python would look for garbage among a million objects before it ends

for _name in COMMANDS:
    main.add_command(getattr(import_module(f"hypatia_lab.cli.{_name}"), _name))
