"""The figures: one visual language, and a module for each kind of question.

A figure is what stands above it as HTML, and beneath that rows of marks, HTML as well, or a plot of plotly's. A
notebook shows one with its data and its source folded away.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from hypatia_lab import tables
from hypatia_lab.formats import MISSING
from hypatia_lab.records import Record

PLOTLY = "application/vnd.plotly.v1+json"
INTERVALS = "bars: 95% intervals"
MOST = 12
"""Most rows of a table that the words for it repeat."""
Key = Sequence[tuple[str, str]]
"""Swatches (SVG) and what they stand for."""


@dataclass(frozen=True)
class Figure:
    """``title``, the facts ``under`` it, a ``key``, and in words (``alt``) what is drawn.

    That is ``blocks`` of :mod:`hypatia_lab.figures.mark_rows` with their HTML (``body``), or ``plot``, plotly's figure.
    """

    title: str
    under: Sequence[str]
    key: Key
    alt: str
    blocks: Sequence[Any] = field(default=(), repr=False)
    body: str = field(default="", repr=False)
    plot: Any = field(default=None, repr=False)

    @property
    def head(self) -> str:
        """The HTML that stands above it."""
        facts = " ".join(f"<span>{escape(part)}</span>" for part in self.under)
        under = f'<small style="display:flex;flex-wrap:wrap;gap:0 1.2em">{facts}</small>'
        entries = "".join(f"<li>{swatch} {escape(name)}</li>" for swatch, name in self.key)
        key = f'<ul class="lab-key">{entries}</ul>' if entries else ""
        title = f"<strong>{escape(self.title)}</strong>"
        return f'<div class="lab-head"><p>{title}{under}</p>{key}</div>'

    def outputs(self) -> list[dict[str, Any]]:
        """What a notebook displays, by MIME type: one output of HTML, and a second one for a plot.

        A plot goes out as plotly's own type and as nothing else: plotly's HTML renderers need the network or embed 5 MB
        and random ids.
        """
        if self.plot is None:
            return [{"text/html": f'<div class="lab-rows">{self.head}{self.body}</div>', "text/plain": self.alt}]
        spec = json.loads(self.plot.to_json()) | {"config": {"displayModeBar": False, "responsive": True}}
        return [{"text/html": self.head, "text/plain": self.title}, {PLOTLY: spec, "text/plain": self.alt}]

    def to_json(self) -> str:
        """All that it displays, as text: the same for the same numbers."""
        return json.dumps(self.outputs())


def described(title: str, under: Sequence[str], table: Any, columns: Sequence[str]) -> str:
    """A figure in words: its title, what it shows, and of each row of its ``table`` those ``columns`` that differ."""
    several = [name for name in columns if len(table) == 1 or table[name].nunique() > 1]
    lines = [", ".join(str(v) for v in line if v != MISSING) for line in table[several].itertuples(index=False)]
    shown = lines if len(lines) <= MOST else [*lines[: MOST - 1], f"{len(lines) - MOST} more", lines[-1]]
    rows = f"{len(lines)} row{'' if len(lines) == 1 else 's'}"
    return f"{title} ({'; '.join(part for part in under if part)}). {rows}: {'; '.join(shown)}."


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
    tables.display(data_and_source(table, records), table.to_string(index=False))
