"""A kernel of the reader's in the reader's own tests: it is judged as ``hypatia-lab judge`` does, in fresh processes.

::

    from hypatia_lab.testing import judge

    def test_kernel():
        judge("my_kernel.py", at_least=1.05)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypatia_lab.bench import sessions


class JudgeError(RuntimeError):
    """A kernel that could not be judged at all; the message is the command's own line."""


def judge(
    path: str | os.PathLike[str],
    *,
    at_least: float,
    against: str = "eager",
    undecided: str = "fail",
    task: tuple[str, str | os.PathLike[str]] | None = None,
    shapes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    preset: str = "quick",
    device: str = "auto",
    output: str | os.PathLike[str] | None = None,
) -> list[dict[str, Any]]:
    """Check and measure the kernel in the file ``path``; it must be right, and ``at_least`` so fast.

    ``at_least`` is a multiple of the speed of ``against``, a variant of the same operation; the 95% interval decides.
    ``undecided="pass"`` lets through what holds the limit within. ``task``, such as ``("kernelbench", "problem.py")``
    or ``("sol-execbench", "folder")``: the file is a candidate for that. ``shapes`` (such as ``"1024x512"``) and
    ``dtypes`` replace the file's own. ``output`` is the folder of a book of the reader's, whose measured ceilings are
    used again; without one they are measured each time and nothing is left behind.

    Returns what ``hypatia-lab judge --json`` prints: a dict for each variant, shape and dtype. Raises
    ``AssertionError`` with a line for each that does not pass, and :class:`JudgeError` where the question was wrong.
    """
    __tracebackhide__ = True  # pytest then shows the line that called
    asked = ["judge", str(path), "--fail-below", str(at_least), "--against", against, "--undecided", undecided]
    asked += ["--shapes", ",".join(shapes), "--dtypes", ",".join(dtypes), "--preset", preset, "--device", device]
    asked += ["--task", *map(str, task)] if task else []
    with tempfile.TemporaryDirectory() as scratch:
        asked += ["--output", str(output or Path(scratch) / "book"), "--overwrite", "--no-page", "--json"]
        code, told, said = run_command(asked)
    print(said, file=sys.stderr, end="")
    if code not in (0, 1) or not told:
        last = said.splitlines()[-1] if said else f"hypatia-lab ended with exit status {code}"
        raise JudgeError(last.removeprefix("hypatia-lab: "))
    rows = json.loads(told)
    if code:
        stopped = ("failed", "refused", *(["undecided"] if undecided == "fail" else []))
        raise AssertionError("\n".join(row["message"] for row in rows if row["outcome"] in stopped))
    return rows


def run_command(asked: Sequence[str]) -> tuple[int, str, str]:
    """Exit status, output and complaints of the command, in a process of its own: the caller's stays as it is."""
    environment = os.environ | sessions.path() | {"TQDM_DISABLE": "1"}
    done = subprocess.run(sessions.python("hypatia_lab", *asked), capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, done.stderr
