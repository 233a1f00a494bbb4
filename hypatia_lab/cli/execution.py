"""Executing a notebook from the command line, and ending one that was interrupted."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

RUN = ("papermill", "nbclient", "ipykernel", "plotly")
"""What executes a notebook: modules of the extra run."""


def execute(path: Path, folder: Path, given: dict[str, Any], label: str) -> bool:
    """Execute one notebook through papermill; False, with the reason printed, when it fails."""
    import papermill
    from nbclient.exceptions import DeadKernelError

    from hypatia_lab.profiler import bytecode

    os.environ.setdefault("TQDM_MININTERVAL", "1")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.update(bytecode.environment())
    click.echo(f"{label} {path.stem}", err=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        papermill.execute_notebook(
            str(path),
            str(folder / path.name),
            parameters=given,
            cwd=str(path.parent),
            progress_bar=False,
            stderr_file=sys.stderr,
            # What a cell raises is no part of the kernel's own log. That says that notebook and kernel talk in plain
            # text, on one machine, and at an interrupt in twenty lines that nobody is listening any more.
            extra_arguments=["--log-level=CRITICAL"],
        )
    except papermill.PapermillExecutionError as cause:
        click.echo(f"{path.stem}: {cause.ename}: {cause.evalue}", err=True)
        return False
    except DeadKernelError:
        click.echo(f"{path.stem}: its kernel died; what was measured before is kept", err=True)
        return False
    except KeyboardInterrupt:
        # The kernel dies of the same interrupt; whoever still waited for it would be told so by asyncio at exit.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        raise
    except OSError as cause:
        click.echo(f"{path.stem}: cannot write {folder}: {cause.strerror}", err=True)
        return False
    return True


def interrupted() -> NoReturn:
    """End an interrupted measurement: what was measured is kept, and the same command goes on."""
    click.echo("interrupted; every finished measurement is kept: run the same command again to go on", err=True)
    sys.exit(130)
