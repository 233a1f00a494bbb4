"""The command that prints measured cells: results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import click

from hypatia_lab import claims as ledger
from hypatia_lab import formats, tables
from hypatia_lab import results as tidy
from hypatia_lab.claims import LAB
from hypatia_lab.cli import options
from hypatia_lab.cli.reading import kept, load
from hypatia_lab.cli.terminal import several, show, table, wrap
from hypatia_lab.results import Row, grouped

_FILTERS = ("experiment", "shape", "dtype", "math", "direction", "clock", "variant", "status")
"""Columns of the results by which they may be chosen."""


def _filtered(command: Any) -> Any:
    for name in reversed(_FILTERS):
        command = options.several(f"--{name}", name, str, f"Only this {name}")(command)
    return command


@click.command()
@click.argument("operations", nargs=-1)
@_filtered
@options.machines
@click.option("--all", "everything", is_flag=True, help="Controls and shapes drawn at random, too.")
@options.records
@options.paged
@options.as_json
def results(
    operations: tuple[str, ...],
    folders: tuple[Path, ...],
    machines: tuple[str, ...],
    everything: bool,
    paged: bool,
    as_json: bool,
    **wanted: tuple[str, ...],
) -> None:
    """Print what was measured, of all OPERATIONS or only of those named, the documents' sizes first.

    A cell has its time, the ratio to its baseline with a 95% interval (above 1 is faster), the share of what the
    machine's own ceilings allow, its error and its status. Options narrow the cells down. The lab's controls and shapes
    that were drawn at random are left out, unless --all, --experiment or --variant asks for them; --json has them all.
    """
    rows = kept(tidy.rows(load(folders, machines)), attrgetter("operation"), "operation", operations)
    for name in _FILTERS:
        given = [value.replace("×", "x") if name == "shape" else value for value in wanted[name]]
        rows = kept(rows, attrgetter(name), name, given)
    cells = ({key: getattr(row, key) for key in tidy.COLUMNS} for row in rows)
    asked = everything or bool(wanted["experiment"] or wanted["variant"])
    show(lambda: result_lines(rows, everything=asked), lambda: list(cells), as_json=as_json, paged=paged)


ASIDE = {"agreement": "of the A/A control", "unseen": "of random shapes"}
"""What a reader is spared who does not ask for it: experiment → what its cells are."""


def _aside(row: Row) -> str:
    what = ASIDE.get(row.experiment)
    return f"{what} (--experiment {row.experiment})" if what else "of identical code under a second name" * row.is_twin


def result_lines(rows: Sequence[Row], *, everything: bool = False) -> list[str]:
    """How many cells there are of what, :func:`cell_lines` with the documents' sizes first, and what was left out:
    nothing if ``everything`` is asked for, or would be left out."""
    asides = Counter(map(_aside, rows))
    told = [f"{several(asides[text], 'cell')} {text}" for text in asides if text and asides[""] and not everything]
    sizes = {tuple(name.split("/")[:2]) for one in ledger.ledger() if one.document != LAB for name in one.workloads}
    shown = [row for row in rows if not (told and _aside(row))]
    # Of one size the documents' own dtype first.
    shown.sort(
        key=lambda r: (r.operation, (r.operation, r.shape) not in sizes, r.flops, r.dtype != "float32", r.workload)
    )
    more = [f"Left out: {formats.listing(told)}. --all shows them."] if told else []
    more.append("Fewer: hypatia-lab results linear_relu --clock graph --variant epilogue; --help lists all options.")
    return [*_cell_counts(shown), "", *cell_lines(shown), "", *(line for text in more for line in wrap(text))]


def cell_lines(rows: Sequence[Row]) -> list[str]:
    """A line a cell that was timed or checked, under its workload, clock and machine.

    Why there is no time, or what is to be said of it, stands beneath: once for all that share it.
    """
    told = tables.results_table(rows).to_dict("records")
    entries = []
    for text in told:
        measured = _with_interval("time", text["time"]) | _with_interval("ratio", text["ratio"])
        entries.append(
            {"variant": text["variant"]} | measured | {name: text[name] for name in ("of limit", "error", "n")}
        )
    head, *cells = table(entries, "variant", ("ratio 95%", "of limit", "time 95%", "error", "n"), indent=2)
    lines = [head]
    for title, own in grouped(zip(rows, told, cells, strict=True), lambda one: _title(one[0], one[1])).items():
        lines += ["", *wrap(title, 4), *(cell for row, _, cell in own if row.status == "ok")]
        remarked = [(row.variant, text["status"]) for row, text, _ in own if text["status"] != "ok"]
        for remark, named in grouped(remarked, itemgetter(1)).items():
            names = ", ".join(name for name, _ in named)
            lines += wrap(f"{names}: {remark.removeprefix('ok').lstrip('; ')}", 6, 4)
    return lines


def _title(row: Row, text: Mapping[str, str]) -> str:
    """What cells that stand together have in common; ``text`` is the row of the table of results."""
    clock = "not timed" if row.clock == "none" else f"{row.clock} clock"
    return f"{text['workload']}, {clock}, {row.machine} ({row.experiment})"


def _with_interval(title: str, text: str) -> dict[str, str]:
    """``1.02× [1.01, 1.03]`` as two columns."""
    value, _, ends = text.partition(" [")
    return {title: value, f"{title} 95%": f"[{ends}" if ends else ""}


def _cell_counts(rows: Sequence[Row]) -> list[str]:
    """How many cells each machine has of which status, and what operations they are of."""
    statuses = dict(Counter(row.status for row in rows).most_common())
    lines = []
    for machine, own in grouped(rows, attrgetter("machine")).items():
        counts = Counter(row.status for row in own)
        found = {status.replace("_", " "): str(counts[status]) for status in statuses}
        lines.append({"machine": machine, "cells": str(len(own))} | found)
    operations = Counter(row.operation for row in rows).most_common()
    said = ", ".join(f"{name} {count}" for name, count in operations)
    return [*table(lines, "machine"), "", *wrap(f"By operation: {said}.")]
