"""Every CUDA kernel of the lab under NVIDIA's compute-sanitizer: no access out of bounds, no race in shared
memory, nothing read that was not written.

Each runs at two odd shapes in a process of its own, on memory that PyTorch does not pool, and must be right as well.
The sanitizer itself is held by a kernel that is told to go one element too far.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

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

CHILD = """
import sys

import torch

from hypatia_lab import check
from hypatia_lab.kernels import loader
from hypatia_lab.variants import find, load
from hypatia_lab.workloads import Workload

if "planted" in sys.argv:
    launch = loader.cuda_launcher("linear_relu/relu_inplace", "relu_inplace", "float", "float")
    launch((1,), (256,), torch.ones(64, device="cuda"), 65)
    torch.cuda.synchronize()
    sys.exit()
load()
plain, launched = loader.cuda_launcher, set()


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


def sanitized(tool: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The child under ``tool``, which looks at the lab's own kernels alone."""
    command = [SANITIZER, "--tool", tool, "--error-exitcode", "9"]
    looked_at = [name for name in KERNELS if tool != "racecheck" or name not in MISTAKEN]
    command += [word for name in looked_at for word in ("--kernel-name", f"kns={name}")]
    if tool == "memcheck":
        command += ["--report-api-errors", "no"]  # PyTorch asks what it expects to be refused
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "HYPATIA_PLANS": "0"}
    command += [sys.executable, "-c", CHILD % ROWS, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


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
    found = sanitized("memcheck", "planted")
    assert found.returncode == 9, found.stdout[-3000:] + found.stderr[-1000:]
    assert "Invalid __global__" in found.stdout


@needs_sanitizer
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
def test_every_kernel_is_clean_at_two_odd_shapes(tool: str) -> None:
    found = sanitized(tool)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    (line,) = (line for line in found.stdout.splitlines() if line.startswith("launched"))
    assert line.split()[1:] == KERNELS
