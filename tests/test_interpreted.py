"""Triton's kernels in Triton's interpreter, every ``check_…`` in ``interpreted``; and their machine code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import checks

FOLDER = Path(__file__).resolve().parent / "interpreted"
LONG = ("conv_block",)
"""Files that take half a minute."""
MANY = ("conv_block", "linear_relu")
"""Those that compile many kernels."""
FEW = ("relu", "fused_rows", "linear_activation", "mlp_split")


def cases() -> Iterator[Any]:
    """File, function and, of one that takes it, whether it goes through all its sizes and dtypes or some."""
    for file, check, takes_full in checks(FOLDER):
        marks = [pytest.mark.sweep, pytest.mark.slow] if file in LONG else []
        yield pytest.param(file, check, [False] * takes_full, marks=marks)
        if takes_full:
            yield pytest.param(file, check, [True], marks=pytest.mark.sweep)


@pytest.mark.parametrize(("file", "check", "full"), [*cases()])
def test_an_interpreted_kernel(file: str, check: str, full: list[bool], interpreted: Callable[..., None]) -> None:
    interpreted(file, check, *full)


@pytest.mark.parametrize("file", [*(pytest.param(one, marks=pytest.mark.slow) for one in MANY), *FEW])
def test_the_kernels_compile_to_hoppers_instructions(file: str) -> None:
    pytest.importorskip("triton")
    if importlib.util.find_spec("triton.backends.nvidia") is None:
        pytest.skip("this triton has no NVIDIA backend: the kernels are not compiled")
    done = subprocess.run([sys.executable, FOLDER.parent / "hopper" / f"{file}.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
