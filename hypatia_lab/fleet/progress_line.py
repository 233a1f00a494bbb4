"""The line by which a run says which of its notebooks it is at: written by the run, read by the job that started it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"\[(\d+)/(\d+)\] (\S+)")


@dataclass(frozen=True)
class Step:
    """Notebook ``number``, counted from 1, ``of`` so many."""

    number: int
    of: int
    notebook: str

    def __str__(self) -> str:
        return f"[{self.number}/{self.of}] {self.notebook}"


def read(line: str) -> Step | None:
    """The step that ``line`` tells; None where it tells something else."""
    found = _LINE.fullmatch(line.strip())
    return Step(int(found[1]), int(found[2]), found[3]) if found else None
