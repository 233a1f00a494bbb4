"""A figure in a notebook, with its data and its source folded away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypatia_lab import tables
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


def show(figure: Any, table: Any, records: Sequence[Record]) -> None:
    """Display a figure in a notebook, then its data and source, folded.

    The figure goes out as plotly's own MIME type with its alt text beside it, and as nothing else: plotly's HTML
    renderers need the network or embed 5 MB and random ids. ``records`` are those the figure was made from.
    """
    import json

    from IPython.display import display

    content = json.loads(figure.to_json())
    bundle = content | {"config": {"displayModeBar": False, "responsive": True}}
    display({"application/vnd.plotly.v1+json": bundle, "text/plain": content["layout"]["meta"]["alt"]}, raw=True)
    text = table.to_string(index=False)
    display({"text/html": data_and_source(table, records), "text/plain": text}, raw=True)
