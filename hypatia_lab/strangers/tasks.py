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

from hypatia_lab.experiments import Experiment, Source
from hypatia_lab.strangers import kernelbench, reader_kernel, sol_execbench
from hypatia_lab.strangers.reader_kernel import Own

FORMATS: dict[str, ModuleType] = {one.KIND: one for one in (kernelbench, sol_execbench)}
"""Name → module."""


def experiment(kind: str, candidate: Path, problem: Path, own: Own) -> Experiment:
    """The experiment that measures ``own``, which ``load`` of the format ``kind`` has returned for the same files."""
    digest = FORMATS[kind].digest(candidate, problem)
    source = Source(str(candidate.resolve()), digest, kind, problem=str(problem.resolve()))
    return replace(reader_kernel.experiment(candidate, own), source=source)
