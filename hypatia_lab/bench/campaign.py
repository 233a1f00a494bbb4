"""What a run under ``--overwrite`` has measured already, so that an interrupted one goes on where it stopped."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypatia_lab.bench.kept import keep, kept


class Campaign:
    """What a run under ``--overwrite`` has measured so far: interrupted, it goes on there when it is started again.

    Kept in a file beside the parts of a machine's records, in ``folder``, from :meth:`begin` to :meth:`end`; where
    there is none every measurement stands for itself. ``code`` tells the code that measures from any other.
    """

    def __init__(self, folder: Path, code: str) -> None:
        self.path, self.code = folder / ".parts" / "overwritten.json", code

    def begin(self) -> list[str]:
        """Start one, or go on with one that this very code began; returns the experiments that it has measured."""
        done = self._done()
        keep(self.path, self.code, done)
        return done

    def has(self, experiment: str) -> bool:
        """Whether ``experiment`` has been measured since :meth:`begin`."""
        return experiment in self._done()

    def add(self, experiment: str) -> None:
        """Note that ``experiment`` has been measured, where a campaign was begun."""
        if self.path.exists():
            keep(self.path, self.code, [*self._done(), experiment])

    def end(self) -> None:
        """Forget it: all that was asked for has been measured."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # parts of what failed lie there
            self.path.parent.rmdir()

    def _done(self) -> list[str]:
        return kept(self.path, self.code) or []
