"""Executing a notebook from the command line, and ending one that was interrupted."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from hypatia_lab import paths
from hypatia_lab.messages import unknown

NOTEBOOKS = paths.HOME / "notebooks"
RUN = ("papermill", "nbclient", "ipykernel", "plotly", "pandas", "scipy")
"""What executes a notebook: modules of the extra run."""


def ours(cause: Exception) -> bool:
    """Whether ``cause`` is one of the lab's own errors, whose message is one line for people; no bug."""
    return type(cause).__module__.startswith("hypatia_lab")


def require(what: str, extra: str, *modules: str) -> None:
    """Raise :class:`click.UsageError` where ``modules`` of an ``extra`` of the package, which ``what`` needs, are not
    there."""
    if told := paths.lacking(what, extra, *modules):
        raise click.UsageError(told)


def choose(names: tuple[str, ...]) -> list[Path]:
    """The notebooks that are meant by number or name, all where none is. Raises :class:`click.UsageError`."""
    known = sorted(NOTEBOOKS.glob("*.ipynb"))
    if not names:
        return known
    chosen = []
    for name in names:
        found = [path for path in known if path.stem == name.removesuffix(".ipynb") or path.stem.split("_")[0] == name]
        if not found:
            raise click.UsageError(unknown("notebook", name, [path.stem for path in known]))
        chosen += [path for path in found if path not in chosen]
    return chosen


def execute(path: Path, folder: Path, given: dict[str, Any], label: str) -> bool:
    """Print ``label`` and execute one notebook through papermill; False, with the reason printed, when it fails."""
    import papermill
    from nbclient.exceptions import DeadKernelError

    from hypatia_lab.bench import bytecode

    os.environ.setdefault("TQDM_MININTERVAL", "1")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.update(bytecode.environment())
    click.echo(label, err=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        papermill.execute_notebook(
            str(path),
            str(folder / path.name),
            parameters=given,
            cwd=str(path.parent),
            progress_bar=False,
            stderr_file=sys.stderr,
            # What a cell raises is no part of the kernel's own log. That says that notebook and kernel talk in plain
            # text, on one machine, and at an interrupt in twenty lines that nobody is listening any more.
            extra_arguments=["--log-level=CRITICAL"],
        )
    except papermill.PapermillExecutionError as cause:
        click.echo(f"{path.stem}: {cause.ename}: {cause.evalue}", err=True)
        return False
    except DeadKernelError:
        click.echo(f"{path.stem}: its kernel died; what was measured before is kept", err=True)
        return False
    except OSError as cause:
        click.echo(f"{path.stem}: cannot write {folder}: {cause.strerror}", err=True)
        return False
    return True


def build_own(folder: Path, page: Path, quiet: bool) -> None:
    """Build the reader's book in ``folder``, where it can be built; else say so of its ``page``.

    ``quiet``: standard output is a program's.
    """
    from hypatia_lab.book import build as pages

    if told := paths.lacking("the page", "book", "jupyter_book"):
        click.echo(f"{page}: {told}", err=True)
        return
    say = partial(click.echo, err=quiet)
    say(f"\n{pages.build(repository=folder, output=folder / '_build' / 'html', say=say)}")


AGAIN_S = 0.2
"""An interrupt that has come amid an import comes again so much later."""


class Stopped(KeyboardInterrupt):
    """A command that the signal ``number`` ends, as Ctrl-C would."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Within, a signal that asks this process to end, or says that its terminal is gone, interrupts as Ctrl-C does.

    PyTorch goes on without what it could not import: an interrupt amid an import comes again until it is heeded.
    """
    again, timers = threading.Event(), list[threading.Timer]()

    def come_again(number: int) -> None:
        again.set()
        os.kill(os.getpid(), number)

    def stop(number: int, frame: FrameType | None) -> None:
        by_itself = again.is_set()
        again.clear()
        if by_itself and _ending():
            return
        while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame:
            timers.append(threading.Timer(AGAIN_S, come_again, (number,)))
            timers[-1].start()
        raise Stopped(number)

    main = threading.current_thread() is threading.main_thread()
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
    heard = [number for number in asked if signal.getsignal(number) != signal.SIG_IGN]  # nohup has some ignored
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending() -> bool:
    """Whether an interrupt is what is being handled."""
    cause = sys.exception()
    while cause and not isinstance(cause, Stopped):
        cause = cause.__context__
    return cause is not None


def interrupted(cause: KeyboardInterrupt, kept: str) -> NoReturn:
    """Say what is ``kept``, and end with 128 and the signal's number."""
    # A notebook's kernel dies of the same interrupt; asyncio would tell so at exit to whoever still waits for it.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with suppress(OSError):  # a terminal that is gone
        click.echo(f"interrupted; {kept}", err=True)
    sys.exit(128 + (cause.number if isinstance(cause, Stopped) else signal.SIGINT))


@contextmanager
def resumable() -> Iterator[None]:
    """Ends an interrupted measurement: what was measured is kept, and the same command goes on. Decorates too."""
    try:
        yield
    except KeyboardInterrupt as cause:
        interrupted(cause, "every finished measurement is kept: run the same command again to go on")
