"""A process that has done once what takes seconds, and forks another one for every function that it is to call."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def serve(beginning: str) -> None:
    """Imports ``beginning``, and calls in a fork what every line of standard input names; prints how it ended."""
    importlib.import_module(beginning)
    print("ready", flush=True)
    for line in sys.stdin:
        module, function, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(2, 1)
            status = 0
            try:
                getattr(importlib.import_module(module), function)(*arguments)
            except BaseException:
                status = 1
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitpid(child, 0)[1], flush=True)
    os._exit(0)  # tidying up torch takes a second


@contextlib.contextmanager
def forks(
    sources: Path,
    scratch: Path,
    beginning: str = "beginning",
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Callable[..., None]]:
    """Calls functions of files in the folder ``sources``: of a file's stem, a function's name and its arguments.

    The module ``beginning`` is imported once, before, with ``arguments`` in ``sys.argv``. Nothing that one call leaves
    behind is seen by the next. A call fails as the function does, with what it printed, which ``scratch`` keeps.
    """
    complaints = scratch / "complaints"
    path = os.pathsep.join([str(sources), *sys.path])
    with (
        complaints.open("a+", encoding="utf-8") as told,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, beginning, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env=os.environ | {"PYTHONPATH": path} | dict(environment or {}),
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        ask, answer = server.stdin, server.stdout

        def answers(expected: str) -> None:
            status = answer.readline().strip()
            assert status == expected, f"status {status}: {complaints.read_text(encoding='utf-8')[-4000:]}"

        def call(module: str, function: str, *arguments: Any) -> None:
            told.truncate(0)
            print(json.dumps([module, function, arguments]), file=ask, flush=True)
            answers("0")

        answers("ready")
        yield call


def checks(sources: Path) -> Iterator[tuple[str, str, bool]]:
    """File, name and whether it takes an argument, of every function ``check_…`` of the files in ``sources``."""
    for path in sorted(sources.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
                yield path.stem, node.name, bool(node.args.args)


if __name__ == "__main__":
    serve(sys.argv.pop(1))
