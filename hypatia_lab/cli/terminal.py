"""What a command prints: lines for people, as wide as their terminal and paged where they are long, or JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from hypatia_lab import formats

_Rows = list[dict[str, Any]]

FALLBACK = (100, 24)
"""Columns and lines where there is no terminal; ``COLUMNS`` and ``LINES`` count before either."""
NARROWEST = 40
GAP = "  "


def width() -> int:
    """Columns of a line."""
    return max(NARROWEST, shutil.get_terminal_size(FALLBACK).columns)


def wrap(text: str, hang: int = 0, indent: int = 0) -> list[str]:
    """``text`` in lines that fit: ``indent`` spaces before the first, ``hang`` before the others."""
    first, rest = " " * indent, " " * hang
    return textwrap.wrap(text, width(), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def several(count: int, noun: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def table(
    rows: Sequence[Mapping[str, str]], elastic: str, optional: Sequence[str] = (), least: int = 0, indent: int = 0
) -> list[str]:
    """A heading and a line a row, which fit: what the columns of ``rows`` hold, aligned.

    A column that holds nothing is left out. Of ``optional`` the last go first until ``elastic`` has its whole width, or
    ``least``; then its texts are cut. Numbers stand to the right.
    """
    columns = [name for name in rows[0] if name == elastic or any(row[name] for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    room = width() - indent
    least = min(widths[elastic], least or widths[elastic])
    droppable = [name for name in optional if name in columns]
    # Where nothing can be dropped, a narrow terminal gets narrow gaps.
    narrow = not droppable and sum(widths[name] + len(GAP) for name in columns) - len(GAP) > room
    gap = " " if narrow else GAP
    while (rest := room - sum(widths[name] + len(gap) for name in columns if name != elastic)) < least and droppable:
        columns.remove(droppable.pop())
    widths[elastic] = max(1, min(widths[elastic], rest))
    right = {name for name in columns if name != elastic and all(row[name][:1] in "0123456789-–[" for row in rows)}

    def line(texts: Mapping[str, str]) -> str:
        cells = {name: formats.cut(texts[name], widths[name]) for name in columns}
        put = [cell.rjust(widths[name]) if name in right else cell.ljust(widths[name]) for name, cell in cells.items()]
        return (" " * indent + gap.join(put)).rstrip()

    return [line({name: name for name in columns}), *map(line, rows)]


def show(
    lines: Iterable[str] | Callable[[], Iterable[str]],
    rows: Callable[[], _Rows] = list,
    *,
    as_json: bool = False,
    paged: bool = False,
) -> None:
    """Print ``lines`` or, ``as_json``, ``rows`` as one array, with null for what JSON has no number for.

    Only what is printed is made. ``paged``: through the reader's pager where they are more than a terminal shows at
    once. Spaces that no line may be broken at have done their work by then: a search for what is read finds it. Raises
    :class:`click.ClickException`, of exit status 1, where the output cannot be written.
    """
    if as_json:
        text = json.dumps(_clean(rows()), indent=1, ensure_ascii=False)
    else:
        text = "\n".join(lines() if callable(lines) else lines).replace("\N{NO-BREAK SPACE}", " ")
    long = text.count("\n") + 2 > shutil.get_terminal_size(FALLBACK).lines
    try:
        if long and paged and not as_json and sys.stdout.isatty():
            click.echo_via_pager(text)
        else:
            click.echo(text)
    except OSError as cause:
        with contextlib.suppress(OSError):  # else Python itself complains at its end of what it still holds
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.ClickException(f"the output cannot be written: {cause.strerror}") from None


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
