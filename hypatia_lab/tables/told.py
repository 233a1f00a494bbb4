"""An answer to whoever asks in a cell or at a prompt: lines that Python prints, and a table in a notebook."""

from __future__ import annotations

import html as markup
import itertools
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from hypatia_lab import tables

BLOCK = ("machine", "clock", "experiment")
"""What lines have in common that stand beneath each other in a terminal."""
WIDTH = 76
"""Columns of a sentence. Not the terminal's: a stored notebook has the same text everywhere."""


@dataclass(frozen=True)
class Told:
    """A ``title``, a table of ``lines``, which map a column to its text, and a ``note``.

    In a terminal the lines of a block (:data:`BLOCK`) stand beneath its name, and what column ``remark`` says of a
    ``variant`` beneath them. A column in which nothing stands is left out.
    """

    title: str
    lines: tuple[Mapping[str, str], ...]
    note: str = ""

    @property
    def _columns(self) -> list[str]:
        return [*dict.fromkeys(name for line in self.lines for name in line if line[name])]

    def __repr__(self) -> str:
        told = [self.title]
        for block, own in itertools.groupby(self.lines, lambda line: [line.get(name, "") for name in BLOCK]):
            rows = list(own)
            shown = [name for name in self._columns if name not in (*BLOCK, "remark")]
            frame = tables.frame([{name: row.get(name, "") for name in shown} for row in rows])
            told += ["", *filter(None, [", ".join(filter(None, block))]), frame.to_string(index=False)]
            told += [_wrapped(f"{row['variant']}: {row['remark']}", 4) for row in rows if row.get("remark")]
        return "\n".join([*told, *(["", _wrapped(self.note)] if self.note else [])])

    def _repr_html_(self) -> str:
        experiments = dict.fromkeys(line["experiment"] for line in self.lines if line.get("experiment"))
        found = f"Recorded by {', '.join(experiments)}." if experiments else ""
        said = " ".join(filter(None, (found, self.note)))
        note = f"<p>{markup.escape(said)}</p>" if said else ""
        if not self.lines:
            return f"<p>{markup.escape(self.title)}</p>{note}"
        # A page is narrow: the machine and its clock are one column, and the experiment stands below.
        shown = [name for name in self._columns if name not in BLOCK]
        where = [", ".join(filter(None, (line.get("machine"), line.get("clock")))) for line in self.lines]
        frame = tables.frame(
            [
                ({"machine": place} if any(where) else {}) | {name: line.get(name, "") for name in shown}
                for place, line in zip(where, self.lines, strict=True)
            ]
        )
        return tables.html(frame, caption=self.title, stacked=True) + note


def _wrapped(text: str, hang: int = 0) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, initial_indent=" " * (hang // 2), subsequent_indent=" " * hang))
