"""What the pages on the diffraction simulator read: the document's figures, images in two dtypes, starts, traces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hypatia_lab import records, tables
from hypatia_lab.figures.probes import Configuration
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.results import Row
from hypatia_lab.tables import claims as claim_tables


def said(data: Evidence, machine: str, figures: Mapping[str, str]) -> list[dict[str, str]]:
    """What S003 says beside what the ledger measured on ``machine``, a line a figure that was measured.

    ``figures``: what a figure is → the part of the ledger on it.
    """
    found = {what: data.judged[part].get(machine) for what, part in figures.items()}
    return [
        {"figure": what, "S003": claim_tables.claimed_text(row.claimed, row.unit), "here": claim_tables.judged(row)}
        for what, row in found.items()
        if row is not None and row.n
    ]


def main_size(found: Sequence[Configuration]) -> list[Configuration]:
    """Of what a probe saw, that at the size that most was looked at; other sizes are there to be compared."""
    sizes = [way.size for way in found]
    chosen = max(dict.fromkeys(sizes), key=sizes.count, default=0)
    return [way for way in found if way.size == chosen]


def largest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the largest workload."""
    sizes = [math.prod(map(int, row.shape.split("x"))) for row in rows]
    return [row for row, size in zip(rows, sizes, strict=True) if size == max(sizes)]


def in_float64(data: Evidence, machine: str) -> list[Row]:
    """Each form's image in float64, with the same in float32 for its baseline, at the form's largest detector.

    By the primary clock, or by the wall what has no other time on a GPU: graphs of its own, C on the CPU's cores.
    """
    rows = data.select(machine=machine, experiment="precision", operation="diffraction", status="ok")
    rows = [row for row in rows if row.timed and not row.is_twin]
    out = []
    for name in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == name]
        own = [row for row in own if row.clock == data.primary(machine)] or own
        pair = {row.dtype: row for row in largest(own)}
        if {"float32", "float64"} <= set(pair):
            out.append(replace(pair["float64"].against(pair["float32"]), baseline="float32"))
    return out


def show_traces(machine: str, *roots: Path) -> None:
    """Display links to the Chrome traces of ``machine``, committed or in a folder of records of this machine's own."""
    folders = [records.COMMITTED, *roots]
    names = sorted({path.name for root in folders for path in (root / machine / "traces").glob("diffraction-*.gz")})
    items = [f'<li><a href="../records/{machine}/traces/{name}" download>{name}</a></li>' for name in names]
    if items:
        tables.display(f"<ul>{''.join(items)}</ul>", "\n".join(names))
