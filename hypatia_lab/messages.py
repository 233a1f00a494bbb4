"""One line for a reason: of a name that there is not, the nearest one there is; of an exception, what it says."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW = 8
"""So many known names are listed beside the nearest one."""
NEAR = 0.7
"""How alike a name must be to be taken for a slip: "cpu" is no guess at "tpu"."""
LONGEST = 200
"""Characters of an exception's message."""


def unknown(what: str, name: object, known: Iterable[str], of: str = "") -> str:
    """One line, such as ``unknown variant 'naiv' of linear_relu; did you mean 'naive'?``

    Of few known names it lists all; so it does where none is near.
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1, NEAR)
    said = f"unknown {what} {name!r}{f' of {of}' if of else ''};"
    if near:
        said += f" did you mean {near[0]!r}?"
    return said if near and len(names) > FEW else f"{said} known: {', '.join(map(_shown, names)) or 'none'}"


def _shown(name: str) -> str:
    return name or repr(name)


def one_line(cause: BaseException) -> str:
    """The type of ``cause`` and the first line of its message, cut.

    A line that ends with a colon announces the next one, which is then said too.
    """
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or ["no message"]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(cause).__name__}: {said[:LONGEST]}"
