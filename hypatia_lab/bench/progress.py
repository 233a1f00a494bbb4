"""How far a measurement has come: one line that counts down."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


class Countdown(tqdm):
    """``conv_block: 12 of 45 to go, about 01:30``: what is left of ``total``, and the time that takes at this pace.

    The line goes when all is done. Without a word if ``quiet``, or if ``TQDM_DISABLE`` says so.
    """

    def __init__(self, what: str, total: int, quiet: bool) -> None:
        silent: dict[str, Any] = {"disable": True} if quiet else {}  # else what the environment says of it holds
        form = "{desc}: {to_go} of {total} to go, about {remaining}"
        super().__init__(total=total, desc=what, bar_format=form, leave=False, **silent)

    @property
    def format_dict(self) -> dict[str, Any]:
        found = dict(super().format_dict)
        return found | {"to_go": found["total"] - found["n"]}
