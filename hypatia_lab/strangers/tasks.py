"""The public formats of problems that a candidate can be judged for, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hypatia_lab.experiments import Experiment
from hypatia_lab.strangers import kernelbench, sol_execbench
from hypatia_lab.strangers.reader_kernel import Own


class Format(Protocol):
    """What a module of a format offers; all but ``located`` raise :class:`OwnError`."""

    @property
    def KIND(self) -> str:
        """Its name."""
        ...

    def located(self, candidate: Path, /) -> Path:
        """The candidate's file: ``candidate``, or one in that folder."""
        ...

    def text(self, candidate: Path, /) -> str:
        """The candidate's source, for a reader."""
        ...

    def left_out(self, problem: Path, /) -> list[str]:
        """A line for each workload that is not judged, with the reason; nothing is run."""
        ...

    def digest(self, candidate: Path, problem: Path, /) -> str:
        """Digest of all that is read, 12 hexadecimal digits."""
        ...

    def problem_digest(self, problem: Path, /) -> str:
        """Digest of what is read of the problem."""
        ...

    def experiment(self, candidate: Path, problem: Path, own: Own, /) -> Experiment:
        """The experiment that measures ``own``."""
        ...

    def load(self, path: Path, problem: Path, expected: str = "", process: int = 0, *, candidate: bool = True) -> Own:
        """Run problem and candidate, or the problem alone, and register the operation that they are."""
        ...

    def tried(self, path: Path, problem: Path, /) -> None:
        """Run the candidate, which is built for nothing."""
        ...


FORMATS: dict[str, Format] = {kernelbench.KIND: kernelbench, sol_execbench.KIND: sol_execbench}
"""Name → module."""
