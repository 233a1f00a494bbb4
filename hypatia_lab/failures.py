"""What an exception says, in the one line that a reason has room for."""

from __future__ import annotations

LONGEST = 200


def one_line(cause: BaseException) -> str:
    """The type of ``cause`` and the first line of its message, cut.

    A line that ends with a colon announces the next one, which is then said too.
    """
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or ["no message"]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(cause).__name__}: {said[:LONGEST]}"
