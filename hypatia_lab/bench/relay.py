"""Commands that measure one after the other, each in a process of its own, of which the next gets ready ahead.

What a command imports takes seconds, and so does what it tells once it has measured. Here the next one imports while
this one gets ready, or where the machine has no cores for both, once this one has measured. It waits until this one has
measured, and this one measures nothing before the next one has come to rest: what is timed is alone on the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hypatia_lab import machine
from hypatia_lab.bench import sessions

EARLY = 5
"""So many processes of a command measure at least: they import what they need beside the one that reads a file."""
WORD = "HYPATIA_RELAY"
"""The variable that names the file descriptor by which a command says how far it is."""


class Turn:
    """In the command: its turn. Without a relay, where it is not ``awaited``, nobody waits.

    Raises :class:`SystemExit` where whoever has started it is no more.
    """

    def __init__(self) -> None:
        told = os.environ.pop(WORD, "")
        self._words = int(told) if told else None
        self._alone = False

    @property
    def awaited(self) -> bool:
        """Whether others wait for it, or it for them."""
        return self._words is not None

    def begin(self, processes: Sequence[sessions.Fresh]) -> None:
        """Wait until the command before has measured, once ``processes`` have imported what they need."""
        if self.awaited:
            for one in processes:
                one.up.wait(sessions.START_S)
            self._say("up")
            self._wait()

    def alone(self) -> None:
        """Wait until nobody else computes, the first time."""
        if self.awaited and not self._alone:
            self._alone = True
            self._wait()

    def measured(self) -> None:
        """Nothing is timed any more: the next one may begin."""
        if self.awaited:
            self._say("measured")

    def _say(self, word: str) -> None:
        assert self._words is not None
        with suppress(BrokenPipeError):
            os.write(self._words, f"{word}\n".encode())

    def _wait(self) -> None:
        if not sys.stdin.readline():
            sys.exit("hypatia-lab: whoever asked for this is no more")


class Runner:
    """A command ``asked`` of hypatia_lab, in a process of its own whose complaints go to the file ``log``."""

    def __init__(self, asked: Sequence[str], log: Path) -> None:
        self.log = log
        self._said: set[str] = set()
        log.parent.mkdir(parents=True, exist_ok=True)
        reader, writer = os.pipe()
        self._words = os.fdopen(reader)
        try:
            with log.open("wb") as complaints:
                self.process = subprocess.Popen(
                    sessions.python("hypatia_lab", *asked),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    pass_fds=(writer,),
                    env=os.environ | sessions.path() | {"TQDM_DISABLE": "1", WORD: str(writer)},
                    start_new_session=True,  # an interrupt from the terminal comes here alone
                )
        finally:
            os.close(writer)

    def wait(self, word: str) -> None:
        """Until it has said ``word``, or has ended."""
        while word not in self._said and (line := self._words.readline()):
            self._said.add(line.strip())

    def go(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it had nothing to wait for
            os.write(self.process.stdin.fileno(), b"go\n")

    def told(self) -> tuple[str, str]:
        """Its output and its last complaint, once it has ended."""
        output, _ = self.process.communicate()
        self._words.close()
        *_, last = [f"exit status {self.process.returncode}", *self.log.read_text(errors="replace").splitlines()]
        return output.decode(errors="replace"), last.removeprefix("hypatia-lab: ")

    def end(self) -> None:
        """End it as it would be ended alone: it keeps what it has measured."""
        with self.process, self._words:  # which wait for its end, and let go of what it says
            self.process.terminate()


def beside() -> bool:
    """Whether one command's processes can import while those of another get ready: each has a core and memory."""
    wanted = 2 * (EARLY + 1)
    return sessions.room(wanted) == wanted <= machine.cores() // machine.gpus()


def run(commands: Iterable[tuple[Sequence[str], Path]]) -> Generator[tuple[str, str]]:
    """Output and last complaint of each of ``commands``, what is asked and the file of its complaints, in order.

    Whatever ends this ends those that run.
    """
    due, ahead = iter(commands), beside()
    running: list[Runner] = []

    def start() -> Runner | None:
        for asked, log in due:
            running.append(Runner(asked, log))
            return running[-1]
        return None

    before, this = None, start()
    try:
        while this or before:
            after = None
            if this:
                this.wait("up")
                this.go()
                after = start() if ahead else None
            if before:
                output = before.told()
                running.remove(before)
                yield output
            if this:
                if after:
                    after.wait("up")
                this.go()
                this.wait("measured")
            before, this = this, after or start()
    finally:
        for one in running[::-1]:
            one.end()
