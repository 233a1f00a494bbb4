"""Files of a contribution, read within bounds: nothing is followed, unpacked or parsed before its size is known."""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_BYTES = 3_000_000
"""A contribution is no larger, all files together: room for all records of a GPU, most of them with raw samples."""
MAX_FILES = 400
MAX_UNPACKED = 8_000_000
"""Nor is what a packed trace holds; the largest of an H200's is a fortieth of it."""
MAX_DEPTH = 12
"""JSON is nested no deeper; records have four levels, traces five."""
_STRUCTURE = re.compile(r'[\[\]{}"\\]')


class BoundError(ValueError):
    """Something that is too large, too deep or not what it says; ``name`` is that of the fault."""

    def __init__(self, name: str, told: str) -> None:
        super().__init__(told)
        self.name = name


def entries(folder: Path) -> Iterator[tuple[str, int, bool]]:
    """Name relative to ``folder``, size in bytes and whether it is a plain file, of all that lies in ``folder``.

    No link is followed, and no more than :data:`MAX_FILES` + 1 entries are given. Of the folders in it only
    ``traces`` is looked into; any other is an entry itself.
    """
    given = 0
    for inside in (folder, folder / "traces"):
        if not stat.S_ISDIR(inside.lstat().st_mode if os.path.lexists(inside) else 0):
            continue
        for path in inside.iterdir():
            status = path.lstat()
            if path == folder / "traces" and stat.S_ISDIR(status.st_mode):
                continue
            yield path.relative_to(folder).as_posix(), status.st_size, stat.S_ISREG(status.st_mode)
            given += 1
            if given > MAX_FILES:
                return


def depth(text: str) -> int:
    """How deep the brackets of JSON ``text`` are nested, found without parsing it."""
    deepest = now = 0
    inside, escaped = False, -1
    for match in _STRUCTURE.finditer(text):
        sign, at = match[0], match.start()
        if at == escaped:
            continue
        if sign == "\\":
            escaped = at + 1
        elif sign == '"':
            inside = not inside
        elif not inside:
            now += 1 if sign in "[{" else -1
            deepest = max(deepest, now)
    return deepest


def _reject(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def parsed(data: bytes) -> Any:
    """What the JSON ``data`` holds. Raises :class:`BoundError`: depth, or manifest where it is no JSON."""
    try:
        text = data.decode("utf-8")
        if depth(text) > MAX_DEPTH:
            raise BoundError("depth", f"nested deeper than {MAX_DEPTH} levels")
        return json.loads(text, parse_constant=_reject)
    except BoundError:
        raise
    except (ValueError, RecursionError) as cause:
        raise BoundError("manifest", f"no JSON ({cause})") from None


def unpacked(data: bytes) -> bytes:
    """What the gzip file ``data`` holds. Raises :class:`BoundError`: size, or schema where it is no whole gzip file."""
    stream = zlib.decompressobj(wbits=31)
    try:
        found = stream.decompress(data, MAX_UNPACKED + 1)
    except zlib.error as cause:
        raise BoundError("schema", f"no gzip file ({cause})") from None
    if len(found) > MAX_UNPACKED:
        raise BoundError("size", f"unpacks to more than {MAX_UNPACKED:,} bytes")
    if not stream.eof or stream.unused_data:
        raise BoundError("schema", "no whole gzip file, or more than one")
    return found
