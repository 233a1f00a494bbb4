"""How coordinator, referee and workers talk: lines over a socket, with file descriptors."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

MARK = b"|"
"""A line of its own, sent right before and right after calls that are timed."""
LONGEST_LINE = 2**20
"""Bytes. Whoever says more at once says nothing that is expected."""
BEAT_S = 0.25


class Gone(RuntimeError):
    """The other side has ended."""


class Silent(RuntimeError):
    """The other side says nothing."""


class Garbled(RuntimeError):
    """The other side says what nobody asked for."""


class Channel:
    """One end of a conversation. What comes from the other one is data: JSON objects, marks and file descriptors."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._rest = b""
        self._lines: list[tuple[bytes, float]] = []
        self._files: list[int] = []

    def close(self) -> None:
        """Say that there is no more to say."""
        self.end.close()
        for file in self._files:
            os.close(file)

    def mark(self) -> None:
        """Send a mark."""
        self.end.sendall(MARK + b"\n")

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send ``message`` with the file descriptors ``files``. Raises :class:`Gone`."""
        line = json.dumps(message).encode() + b"\n"
        try:
            if files:
                sent = socket.send_fds(self.end, [line], files)
                line = line[sent:]
            self.end.sendall(line)
        except OSError as cause:
            raise Gone(str(cause)) from None

    def marked(self, silence_s: float = math.inf, beat: Callable[[], None] = lambda: None) -> float:
        """Wait for a mark; the time (s) at which it came, by this process's clock."""
        line, when = self._line(silence_s, beat)
        if line != MARK:
            raise Garbled("it said something else than it was asked for")
        return when

    def receive(self, silence_s: float = math.inf, beat: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Wait for a message, for ``silence_s`` at most; ``beat`` is called now and then.

        Raises :class:`Gone`, :class:`Silent` or :class:`Garbled`, and what ``beat`` raises.
        """
        line, _ = self._line(silence_s, beat)
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Garbled("it said something else than it was asked for")
        return found

    def files(self, count: int) -> list[int]:
        """The next ``count`` file descriptors that came with messages. Raises :class:`Garbled` if there are fewer."""
        found, self._files = self._files[:count], self._files[count:]
        if len(found) < count:
            raise Garbled("it did not pass what it was asked for")
        return found

    def _line(self, silence_s: float, beat: Callable[[], None]) -> tuple[bytes, float]:
        heard = time.perf_counter()
        while not self._lines:
            self.end.settimeout(BEAT_S)
            try:
                data, files, _, _ = socket.recv_fds(self.end, 65536, 8)
            except TimeoutError:
                beat()
                if time.perf_counter() - heard > silence_s:
                    raise Silent(f"no sign of life for {silence_s:.0f} s") from None
                continue
            except OSError as cause:
                raise Gone(str(cause)) from None
            finally:
                self.end.settimeout(None)
            now = time.perf_counter()
            self._files += files
            if not data:
                raise Gone("it has ended")
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [(line, now) for line in lines]
            if len(self._rest) > LONGEST_LINE:
                raise Garbled("it said more than it was asked for")
        return self._lines.pop(0)
