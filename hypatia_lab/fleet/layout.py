"""Where a fleet's files lie, what was asked of it, and what is known of each job. Every file has one writer.

::

    fleet.json               what is asked: written by ``fleet run``
    jobs/0/submission.json   which attempt, submitted where and under what name: written by ``fleet run``
    jobs/0/state.json        how it stands: written by the job
    chips/h200-1a2b3c/       held by the job that measures this chip
    records/h200-1a2b3c/     its records
    notebooks/h200-1a2b3c/   its executed notebooks
    logs/                    submitit's files, and what jobs print
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from hypatia_lab import records

_Kind = TypeVar("_Kind")


class FleetError(ValueError):
    """A fleet that cannot do what is asked; the message names cause and remedy."""


@dataclass(frozen=True)
class Asked:
    """What each job measures. ``round`` counts how often all of it was asked for anew, by ``--overwrite``.

    ``notebooks`` empty: all of them.
    """

    notebooks: tuple[str, ...]
    preset: str
    device: str
    overwrite: bool = False
    round: int = 1


@dataclass(frozen=True)
class Submission:
    """Attempt ``attempt`` at a job, on a ``place`` (slurm or box), under ``name`` there; "" until that is known."""

    round: int
    attempt: int
    place: str
    name: str = ""


@dataclass(frozen=True)
class Told:
    """What attempt ``attempt`` of a job last said: its ``state``, where it is and what failed.

    ``state``: running, done, twice, failed or preempted. ``machine``: its folder of records. ``notebook``, the
    ``number``-th ``of`` so many: where it is. ``name`` and ``log``: the scheduler's name of it, and the file that holds
    what it printed.
    """

    round: int
    attempt: int
    state: str
    machine: str = ""
    notebook: str = ""
    number: int = 0
    of: int = 0
    reason: str = ""
    name: str = ""
    log: str = ""


@dataclass(frozen=True)
class Layout:
    """The files of the fleet in ``folder``."""

    folder: Path

    @property
    def logs(self) -> Path:
        """Folder of submitit's files."""
        return self.folder / "logs"

    @property
    def records(self) -> Path:
        """Folder of machine folders."""
        return self.folder / "records"

    def chip(self, machine: str) -> Path:
        """Folder that the job which measures ``machine`` holds."""
        return self.folder / "chips" / machine

    def notebooks(self, machine: str) -> Path:
        """Folder of the notebooks that were executed on ``machine``."""
        return self.folder / "notebooks" / machine

    def job(self, number: int) -> Path:
        """Folder of job ``number``, which the process that works on it holds."""
        return self.folder / "jobs" / str(number)

    def numbers(self) -> list[int]:
        """Numbers of the jobs that there are."""
        return sorted(int(path.name) for path in (self.folder / "jobs").glob("*") if path.name.isdecimal())

    def asked(self) -> Asked | None:
        """What is asked of the fleet; None where there is none. Raises :class:`FleetError` when it cannot be read."""
        path = self.folder / "fleet.json"
        found = _read(path, Asked)
        if found is None and path.exists():
            raise FleetError(f"{path} is damaged; choose another --folder, or remove that file and run the fleet again")
        return found

    def ask(self, asked: Asked) -> None:
        """Write down what is asked. Raises :class:`hypatia_lab.records.RecordError` when that cannot be written."""
        _write(self.folder / "fleet.json", asked)

    def submission(self, number: int, asked: Asked) -> Submission | None:
        """The last submission of job ``number`` in this round."""
        found = self.last_submission(number)
        return found if found and found.round == asked.round else None

    def last_submission(self, number: int) -> Submission | None:
        """The last submission of job ``number`` in any round."""
        return _read(self.job(number) / "submission.json", Submission)

    def submit(self, number: int, submission: Submission) -> None:
        """Write down that job ``number`` is submitted, or about to be."""
        _write(self.job(number) / "submission.json", submission)

    def told(self, number: int, asked: Asked) -> Told | None:
        """What the last submitted attempt of job ``number`` said; None where it has said nothing yet."""
        last, found = self.submission(number, asked), _read(self.job(number) / "state.json", Told)
        return found if last and found and (found.round, found.attempt) == (last.round, last.attempt) else None

    def tell(self, number: int, told: Told) -> None:
        """Write down how job ``number`` stands."""
        _write(self.job(number) / "state.json", told)


def _write(path: Path, what: Any) -> None:
    records.write_text(path, json.dumps(asdict(what)) + "\n")


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    """What ``path`` holds; None where it is not there, or not of this kind."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
