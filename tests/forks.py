"""A process that has done once what takes seconds, and forks another one for every source that it is given."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

SERVER = """
import json, linecache, os, sys, traceback

known = {"__name__": "__main__"}
exec(sys.argv.pop(1), known)
print("ready", flush=True)
for line in sys.stdin:
    source, *files = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, name in enumerate(files):
            os.dup2(os.open(name, os.O_RDWR), number)
        sys.stdin = open(0)
        # Tracebacks show the lines, whose numbers say little.
        linecache.cache["source"] = len(source), None, source.splitlines(keepends=True), "source"
        status = 0
        try:
            exec(compile(source, "source", "exec"), known)
        except BaseException:
            status = 1
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitpid(child, 0)[1], flush=True)
os._exit(0)  # tidying up torch takes a second
"""


@contextlib.contextmanager
def forks(
    beginning: str, folder: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Callable[..., str]]:
    """Runs Python source after ``beginning``, which is run once; returns what it printed, and fails as it does.

    Nothing that one source leaves behind is seen by the next. What it is given as ``given`` is its standard input; the
    three streams are files in ``folder``.
    """
    streams = [folder / name for name in ("given", "printed", "complaint")]
    for path in streams:
        path.write_text("", encoding="utf-8")
    with (
        streams[2].open("a") as told,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER, beginning, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env=os.environ | (environment or {}),
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        ask, answer = server.stdin, server.stdout

        def answers(expected: str) -> None:
            status = answer.readline().strip()
            assert status == expected, f"status {status}: {streams[2].read_text(encoding='utf-8')[-4000:]}"

        def run(source: str, given: str = "") -> str:
            for path, text in zip(streams, (given, "", ""), strict=True):
                path.write_text(text, encoding="utf-8")
            print(json.dumps([source, *map(str, streams)]), file=ask, flush=True)
            answers("0")
            return streams[1].read_text(encoding="utf-8")

        answers("ready")
        yield run
