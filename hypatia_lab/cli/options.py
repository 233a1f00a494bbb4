"""Options that several commands have, and the kinds of files and folders that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hypatia_lab.machine import DEVICES

FILE = click.Path(path_type=Path)
"""A file or a folder, which the command itself looks at."""
FOLDER = click.Path(path_type=Path, file_okay=False)
THERE = click.Path(path_type=Path, exists=True, file_okay=False)
"""A folder that must be there."""

device = click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Where to run.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one array, for other programs.")
paged = click.option("--no-pager", "paged", is_flag=True, flag_value=False, default=True, help="Print all at once.")


def several(name: str, field: str, kind: Any, text: str) -> Any:
    """An option of which each may be given again, such as ``--machine`` under the name ``machines``."""
    return click.option(name, field, type=kind, multiple=True, help=f"{text}; may be given again.")


_more = "Folder of more records, such as the --output of judge, beside the committed ones"
records = several("--records", "folders", THERE, _more)
machines = several("--machine", "machines", str, "Only this machine, or all chips of this model")
