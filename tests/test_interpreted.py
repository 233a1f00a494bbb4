"""Triton's kernels in Triton's interpreter, every ``check_…`` in ``interpreted``; and their machine code."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent / "interpreted"
LONG = ("conv_block",)
"""Files that take half a minute."""

RUN = """
import importlib, json, sys, traceback, warnings
warnings.filterwarnings("ignore", category=RuntimeWarning)
folder, file, full = json.load(sys.stdin)
sys.path.insert(0, folder)
complaints = {}
for name, check in [*vars(importlib.import_module(file)).items()]:
    if name.startswith("check_"):
        try:
            check(*[full] * check.__code__.co_argcount)
        except Exception:
            complaints[name] = traceback.format_exc()
json.dump(complaints, sys.stdout)
"""


def checks() -> Iterator[Any]:
    """File, function and, of one that takes it, whether it goes through all its sizes and dtypes or some."""
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
                marks = [pytest.mark.sweep, pytest.mark.slow] if path.stem in LONG else []
                yield pytest.param(path.stem, node.name, False, marks=marks)
                if node.args.args:
                    yield pytest.param(path.stem, node.name, True, marks=pytest.mark.sweep)


@pytest.fixture(scope="module")
def complaints(interpreted: Callable[..., str]) -> Callable[[str, bool], dict[str, str]]:
    """Function → what went wrong, of all in a file, run in one process."""
    return cache(lambda file, full: json.loads(interpreted(RUN, json.dumps([str(FOLDER), file, full]))))


@pytest.mark.parametrize(("file", "check", "full"), [*checks()])
def test_an_interpreted_kernel(
    file: str, check: str, full: bool, complaints: Callable[[str, bool], dict[str, str]]
) -> None:
    found = complaints(file, full)
    assert check not in found, found[check]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["conv_block", "linear_relu"])
def test_the_kernels_compile_to_hoppers_matrix_instructions(file: str) -> None:
    pytest.importorskip("triton")
    if importlib.util.find_spec("triton.backends.nvidia") is None:
        pytest.skip("this triton has no NVIDIA backend: the kernels are not compiled")
    done = subprocess.run([sys.executable, FOLDER.parent / "hopper" / f"{file}.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
