"""What a file holds, or one line on why it cannot be read."""

from __future__ import annotations

from pathlib import Path


def content(path: Path, error: type[Exception]) -> bytes:
    """The bytes of the file ``path``. Raises ``error`` with the path and the cause when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as cause:
        raise error(f"{path}: cannot be read ({cause.strerror})") from None


def text(path: Path, error: type[Exception]) -> str:
    """The text of the file ``path``. Raises as :func:`content`, and with the line at fault for what is not UTF-8."""
    raw = content(path, error)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise error(f"{path}:{raw[: cause.start].count(10) + 1}: not UTF-8; restore the file") from None
