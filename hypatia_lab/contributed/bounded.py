"""Files of a contribution, read within bounds: nothing is followed, unpacked or parsed before its size is known."""

from __future__ import annotations

import json
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
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_STRUCTURE = re.compile(r'[\[\]{}"\\]')


class BoundError(ValueError):
    """Something that is too large, too deep or not what it says; ``name`` is that of the fault."""

    def __init__(self, name: str, told: str) -> None:
        super().__init__(told)
        self.name = name


def entries(folder: Path) -> Iterator[tuple[str, int, bool]]:
    """Name relative to ``folder``, size in bytes and whether it is a plain file, of all that lies in ``folder``.

    No link is followed. Of the folders in it only ``traces`` is looked into; any other is an entry itself.
    """
    traces = folder / "traces"
    for inside in (folder, traces):
        if inside.is_symlink() or not inside.is_dir():
            continue
        for path in inside.iterdir():
            status = path.lstat()
            if path != traces or not stat.S_ISDIR(status.st_mode):
                yield path.relative_to(folder).as_posix(), status.st_size, stat.S_ISREG(status.st_mode)


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
    """What the JSON ``data`` holds. Raises :class:`BoundError`: depth, or schema where it is no JSON."""
    if depth(data.decode("utf-8", "replace")) > MAX_DEPTH:
        raise BoundError("depth", TOO_DEEP)
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_reject)
    except (ValueError, RecursionError) as cause:
        raise BoundError("schema", f"no JSON ({cause})") from None


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
