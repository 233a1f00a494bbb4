"""The public formats of problems that a candidate can be judged for, by name: a module each.

Each offers, and all but ``located`` raise :class:`~hypatia_lab.strangers.reader_kernel.OwnError`:

- ``located(candidate)``: the candidate's file, ``candidate`` or one in that folder.
- ``text(candidate)``: its source, for a reader.
- ``left_out(problem)``: a line for each workload that is not judged, with the reason; nothing is run.
- ``digest(candidate, problem)``: digest of all that is read, 12 hexadecimal digits.
- ``problem_digest(problem)``: that of what is read of the problem.
- ``load(path, problem, expected="", process=0, *, candidate=True)``: run problem and candidate, or the problem alone,
  and register the operation that they are.
- ``tried(path, problem)``: run the candidate, which is built for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from hypatia_lab.experiments import Experiment, Source
from hypatia_lab.strangers import kernelbench, programs, reader_kernel, sol_execbench
from hypatia_lab.strangers.reader_kernel import Own

FORMATS: dict[str, ModuleType] = {one.KIND: one for one in (kernelbench, sol_execbench)}
"""Name → module."""


def experiment(kind: str, candidate: Path, problem: Path, own: Own) -> Experiment:
    """The experiment that measures ``own``, which ``load`` of the format ``kind`` has returned for the same files."""
    digest = FORMATS[kind].digest(candidate, problem)
    source = Source(str(candidate.resolve()), digest, kind, problem=str(problem.resolve()))
    return replace(reader_kernel.experiment(candidate, own), source=source)


def load(source: dict[str, Any], number: int, *, candidate: bool = True) -> None:
    """In process ``number``: run the reader's file that ``source`` describes (:class:`Source`), and what it is for.

    What it declares is then registered. Of a public format the problem alone is run unless ``candidate``.
    """
    path, digest = Path(source["path"]), source["digest"]
    if form := FORMATS.get(source["kind"]):
        form.load(path, Path(source["problem"]), digest, number, candidate=candidate)
    elif source["kind"] == "program":
        programs.load(path, digest)
    else:
        reader_kernel.load(path, digest)
