"""Calls without Python: what an operator does is recorded once and carried out by C++, here on a driver's stand-in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forks import checks, forks

from hypatia_lab.kernels import loader

HERE = Path(__file__).resolve().parent
PLANS = HERE / "plans"

pytestmark = pytest.mark.skipif(bool(loader.cpp_missing()), reason=loader.cpp_missing())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in for the driver lies, and plans are kept."""
    found = tmp_path_factory.mktemp("plans")
    command = [loader.compiler(), "-x", "c", "-w", "-shared", "-fPIC", "-o", str(found / "driver.so")]
    subprocess.run([*command, str(HERE / "driver_stand_in.c")], check=True)
    return found


@pytest.fixture(scope="module")
def call(folder: Path) -> Iterator[Callable[..., None]]:
    with forks(PLANS, folder, arguments=[str(folder)]) as call:
        yield call


@pytest.mark.parametrize(("file", "check"), [(file, check) for file, check, _ in checks(PLANS)])
def test_a_plan(file: str, check: str, call: Callable[..., None]) -> None:
    if file == "triton_kernels":
        pytest.importorskip("triton.backends.nvidia")
    elif file == "hand_written":
        pytest.importorskip("triton")
    call(file, check)


def test_a_later_process_records_nothing_and_imports_no_triton(folder: Path, call: Callable[..., None]) -> None:
    call("calls", "record_a_call")
    # The other processes here have imported before what recording takes.
    with forks(PLANS, folder, "driver", [str(folder)]) as afresh:
        afresh("calls", "find_the_call_recorded")
    for code in folder.glob("*.cubin"):  # a plan is worth nothing without its kernels
        code.unlink()
    call("calls", "record_a_call")
