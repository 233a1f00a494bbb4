"""Every CUDA kernel of the lab under NVIDIA's compute-sanitizer: no access out of bounds, no race in shared
memory, nothing read that was not written.

Each row runs at odd shapes in a process of its own, on memory that PyTorch does not pool, and must be right as well.
The sanitizer itself is held by a kernel that is told to go one element too far.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tabled import tables

from hypatia_lab.kernels.loader import SOURCES
from hypatia_lab.machine import choose_device
from hypatia_lab.variants import find, load
from hypatia_lab.workloads import Workload

SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def needs_sanitizer(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that runs kernels under it."""
    test = pytest.mark.skipif(choose_device("auto") == "cpu", reason="there is no GPU")(test)
    test = pytest.mark.skipif(not os.path.exists(SANITIZER), reason="there is no compute-sanitizer")(test)
    return pytest.mark.cuda(pytest.mark.slow(test))


KERNELS = sorted(
    name
    for path in SOURCES.rglob("*.cu")
    for name in re.findall(r"__global__[^;{]*?\b(?!__)(\w+)\((?=[^)]*\*|\s)", path.read_text())
)

MISTAKEN = {"conv_block_turns"}
"""Racecheck reports that the loads behind its last barrier race with the stores before, by whichever number and whoever
stores. In the machine code that barrier of all who store and load lies between. Missing waits show in the emulator."""

ROWS = tables("sanitizer")["kernels"]
"""Operation, variants, dtype, math, direction and shapes."""
by_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join((row[0], *row[1][:1], *row[2:5])))

CHILD = """
import sys

import torch

from hypatia_lab import check
from hypatia_lab.kernels import loader
from hypatia_lab.kernels.conv_block import conv_block_whole
from hypatia_lab.variants import find, load
from hypatia_lab.workloads import Workload

if sys.argv[1:]:  # a fault
    launch = loader.cuda_launcher("linear_relu/relu_inplace", "relu_inplace", "float", "float")
    beyond = "beyond" in sys.argv
    launch((1,), (256,), (torch.ones if beyond else torch.empty)(64, device="cuda"), 64 + beyond)
    torch.cuda.synchronize()
    sys.exit()
load()
plain, launched, whole = loader.cuda_launcher, set(), conv_block_whole._launch


def clearing(x, taps, vectors, found, **how):
    # Initcheck does not see the copy engine write; that it writes all of these, other tests hold, number by number.
    for one in filter(torch.is_tensor, found[:2]):
        one.zero_()
    return whole(x, taps, vectors, found, **how)


conv_block_whole._launch = clearing


def noting(name, kernel, *template, **how):
    launched.add(kernel)
    return plain(name, kernel, *template, **how)


loader.cuda_launcher = noting
for operation, names, dtype, math, direction, shapes in %r:
    for shape in shapes:
        work = Workload(operation, tuple(shape), dtype, math, direction)
        with work.precision():
            problem = check.Problem(work, "cuda")
            for name in names:
                missing = find(operation, name).needs(work, "cuda")
                assert not missing, (work, name, missing)
                found = check.judge(find(operation, name).factory(work, problem.inputs)(), problem)
                assert found.ok, (work, name, found.reason)
                print("checked", operation, name, *shape, flush=True)
torch.cuda.synchronize()
print("launched", *sorted(launched), flush=True)
"""


def child(rows: list[list[Any]], *words: str, under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """A process that calls what ``rows`` name, ``under`` a command."""
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "HYPATIA_PLANS": "0"}
    command = [*under, sys.executable, "-c", CHILD % (rows,), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def sanitized(tool: str, rows: list[list[Any]], *words: str) -> subprocess.CompletedProcess[str]:
    """The child under ``tool``, which looks at the lab's own kernels alone, where it need not see who else writes."""
    command = [SANITIZER, "--tool", tool, "--error-exitcode", "9"]
    looked_at = [name for name in KERNELS if tool != "racecheck" or name not in MISTAKEN]
    if tool != "initcheck":
        command += [word for name in looked_at for word in ("--kernel-name", f"kns={name}")]
    else:
        command += ["--print-limit", "10000"]
    if tool == "memcheck":
        command += ["--report-api-errors", "no"]  # PyTorch asks what it expects to be refused
    return child(rows, *words, under=command)


def unwritten(told: str) -> list[str]:
    """The lab's kernels that read what nobody had written, by what initcheck ``told``."""
    found = re.findall(r"Uninitialized __global__ memory read[^\n]*\n=+ +at ([^\n]*)", told)
    return sorted({name for name in KERNELS for line in found if re.search(rf"\b{name}\b", line)})


def test_no_kernel_is_forgotten() -> None:
    assert len(KERNELS) == sum(path.read_text().count("__global__") for path in SOURCES.rglob("*.cu"))


def test_every_row_asks_for_what_its_variants_compute() -> None:
    load()
    for operation, names, dtype, math, direction, shapes in ROWS:
        work = Workload(operation, tuple(shapes[0]), dtype, math, direction)
        for name in names:
            known = find(operation, name)
            assert direction in known.directions, (work, name)
            assert math in known.maths, (work, name)


@needs_sanitizer
def test_the_sanitizer_sees_one_element_too_far() -> None:
    found = sanitized("memcheck", [], "beyond")
    assert found.returncode == 9, found.stdout[-3000:] + found.stderr[-1000:]
    assert "Invalid __global__" in found.stdout


@needs_sanitizer
def test_the_sanitizer_sees_what_nobody_has_written() -> None:
    assert unwritten(sanitized("initcheck", [], "unwritten").stdout) == ["relu_inplace"]


@needs_sanitizer
def test_the_rows_launch_every_kernel() -> None:
    found = child(ROWS)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-2000:]
    (line,) = (line for line in found.stdout.splitlines() if line.startswith("launched"))
    assert line.split()[1:] == KERNELS


@needs_sanitizer
@by_row
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_its_kernels_are_clean_at_odd_shapes(tool: str, row: list[Any]) -> None:
    found = sanitized(tool, [row])
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]


@needs_sanitizer
@by_row
def test_its_kernels_read_what_was_written(row: list[Any]) -> None:
    found = sanitized("initcheck", [[*row[:-1], row[-1][:2]]])
    assert "launched" in found.stdout, found.stdout[-6000:] + found.stderr[-2000:]
    assert not unwritten(found.stdout), found.stdout[:6000]
