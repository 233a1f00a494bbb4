"""The fresh process that runs a reader's file first, and the plan it is told: here, for nothing else needs PyTorch yet.

What it then tells is taken up by :mod:`hypatia_lab.judged.rehearsal`, whose import takes as long as its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODULE = "hypatia_lab.judged.rehearsal"


def plan(
    path: Path, problem: Path | None, kind: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> dict[str, Any]:
    """What that process is told of the file ``path``; see :func:`hypatia_lab.judged.rehearsal.rehearse`."""
    told: dict[str, Any] = {"path": str(path.resolve()), "problem": str(problem.resolve()) if problem else ""}
    return told | {"kind": kind, "shapes": list(shapes), "dtypes": list(dtypes)}
