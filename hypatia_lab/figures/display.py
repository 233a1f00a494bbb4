"""A figure in a notebook, with its data and its source folded away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypatia_lab import tables
from hypatia_lab.figures.figure import Figure
from hypatia_lab.records import Record


def data_and_source(table: Any, records: Sequence[Record]) -> str:
    """HTML that folds away the numbers behind a figure and links to its records, relative to a page in notebooks/."""
    places = {f"{r.machine}/{r.path.relative_to(r.folder).as_posix()}": f"{r.machine}/{r.experiment}" for r in records}
    links = ", ".join(f'<a href="../records/{place}">{name}</a>' for place, name in places.items())
    source = f"<p>Records: {links}</p>\n" if links else ""
    return (
        '<details class="figure-data"><summary>Data and source</summary>\n'
        + tables.html(table)
        + f"\n{source}</details>"
    )


def show(figure: Figure, table: Any, records: Sequence[Record]) -> None:
    """Display a figure in a notebook, then its data and source, folded. ``records`` are those it was made from."""
    from IPython.display import display

    for output in figure.outputs():
        display(output, raw=True)
    display({"text/html": data_and_source(table, records), "text/plain": table.to_string(index=False)}, raw=True)
