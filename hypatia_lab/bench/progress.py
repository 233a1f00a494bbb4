"""How far a measurement has come: one line that counts down, or now and then a line in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

EVERY_S = 30.0
"""In a log there is a line so often at most."""


class Countdown(tqdm):
    """``conv_block: 12 of 45 to go, about 01:30``: what is left of ``total``, and the time that takes at this pace.

    The line goes when all is done. What is no terminal, nor a notebook's output, gets whole lines, few of them. Without
    a word if ``quiet``, or if ``TQDM_DISABLE`` says so.
    """

    def __init__(self, what: str, total: int, quiet: bool) -> None:
        quiet = quiet or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        self.logs = not quiet and not sys.stderr.isatty() and "ipykernel" not in type(sys.stderr).__module__
        form = "{desc}: {to_go} of {total} to go, about {remaining}"
        super().__init__(total=total, desc=what, bar_format=form, leave=False, disable=quiet or self.logs)
        self.what, self.last = what, time.monotonic()
        if self.logs and total:
            self._log(f"{total} to go")

    def _log(self, text: str) -> None:
        print(f"{self.what}: {text}", file=sys.stderr, flush=True)
        self.last = time.monotonic()

    def update(self, n: float | None = 1) -> bool | None:
        """As tqdm's; in a log a line, where the last one is :data:`EVERY_S` old."""
        if not self.logs:
            return super().update(n)
        self.n += n or 0
        if self.n < self.total and time.monotonic() - self.last >= EVERY_S:
            self._log(f"{self.total - self.n} of {self.total} to go")
        return None

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """While the body runs it says ``what`` is done."""
        if self.logs:
            self._log(what)
        self.set_description_str(f"{self.what}: {what}")
        yield
        self.set_description_str(self.what)

    @property
    def format_dict(self) -> dict[str, Any]:
        found = dict(super().format_dict)
        return found | {"to_go": found["total"] - found["n"]}
