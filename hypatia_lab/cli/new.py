"""The command that begins a kernel of the reader's own: new."""

from __future__ import annotations

from pathlib import Path

import click

from hypatia_lab.cli import options
from hypatia_lab.cli.terminal import show


@click.command()
@click.argument("file", type=options.FILE)
def new(file: Path) -> None:
    """Write a template for a kernel of your own to FILE, such as my_kernel.py."""
    from hypatia_lab.book.own import write_template

    write_template(file)
    show([f"Wrote {file}. Next: hypatia-lab judge {file}"])
