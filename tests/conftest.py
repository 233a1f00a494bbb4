"""What several tests share: the committed book, built once a session, and Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from hypatia_lab import book


@pytest.fixture(scope="session")
def committed_book() -> Path:
    """Folder of the book built from the committed notebooks and records, as a reader gets it."""
    return book.build(output=book.REPOSITORY / "_build" / "committed" / "html", say=print).parent


@pytest.fixture(scope="session")
def interpreted() -> Callable[..., str]:
    """Runs Python source in a process of its own whose Triton kernels are interpreted; returns what it printed.

    ``given`` is its standard input. The test fails with the process's complaint, and is skipped where Triton cannot
    interpret.
    """
    triton = pytest.importorskip("triton")
    newest = tuple(map(int, numpy.__version__.split(".")[:2]))
    if newest >= (2, 4) and tuple(map(int, triton.__version__.split(".")[:2])) <= (3, 6):
        pytest.skip("Triton 3.6's interpreter fails with numpy 2.4")

    def run(source: str, given: str = "") -> str:
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", source], input=given, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
