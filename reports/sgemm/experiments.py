"""The program of siboehm/SGEMM_CUDA, built by you as its README says, run as it is: a kernel's number is its argument.

    hypatia-lab run --program reports/sgemm/experiments.py --records reports/sgemm/records

What must lie on this machine: the files that ``experiments.pins`` names, below ``$HYPATIA_OUTSIDE/sgemm`` (default:
``outside/sgemm`` beside ``reports``), and the program built from them: ``build/sgemm`` there, or what ``SGEMM_BIN``
names. The file that builds it is not pinned, for its author asks to put the GPU's own number into it. Nothing ties the
program to the files but you.

Each kernel is a command of its own, so that one that fails leaves the others. The program checks a kernel against
cuBLAS at each of six sizes, then times 50 calls in a row, and prints the mean in seconds and GFLOP/s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypatia_lab as lab
from hypatia_lab.profiler.subject import Ended

if TYPE_CHECKING:
    from hypatia_lab.profiler.program import Shell

HERE = Path(__file__).resolve().parent
OUTSIDE = Path(os.environ.get("HYPATIA_OUTSIDE") or HERE.parents[1] / "outside")
upstream = lab.Provenance.pinned(HERE / "experiments.pins", root=OUTSIDE / "sgemm", licence="MIT")
sgemm = lab.program("author_sgemm", "twelve products of matrices, from naive to cuBLAS", [upstream])

BINARY = Path(os.environ.get("SGEMM_BIN") or upstream.root / "build" / "sgemm").resolve()
KERNELS = {
    "cublas": 0,
    "naive": 1,
    "coalesced": 2,
    "shared": 3,
    "tiles_1d": 4,
    "tiles_2d": 5,
    "vectorized": 6,
    "banks_linear": 7,
    "banks_offset": 8,
    "autotuned": 9,
    "warp_tiles": 10,
    "double_buffered": 11,
}
"""Our name of a kernel → the program's number of it; those in its table."""
SIZES = (128, 256, 512, 1024, 2048, 4096)
"""What it multiplies: squares of so many rows."""
WORK = lab.Workload("matmul", (4096, 4096, 4096))


def _needs(workload: lab.Workload, device: str) -> str:
    if device != "cuda":
        return "the program's kernels are CUDA's"
    return (
        "" if os.access(BINARY, os.X_OK) else f"{BINARY.name} is not built; its README says how, SGEMM_BIN where it is"
    )


def _kernel(name: str, number: int) -> Callable[[Shell], Iterator[dict[str, Any]]]:
    """The command of one kernel."""

    def run(shell: Shell) -> Iterator[dict[str, Any]]:
        out = shell.run([BINARY, str(number)])
        found = re.findall(r"time: \( *([\d.]+)\) s, performance: \( *([\d.]+)\) GFLOPS\. size: \((\d+)\)", out.text)
        if [int(size) for _, _, size in found] != list(SIZES):
            raise Ended("wrong", f"the program printed {len(found)} of {len(SIZES)} sizes")
        for seconds, rate, size in found:
            square = (int(size),) * 3
            yield shell.figure("time", float(seconds), "s", shape=square)
            yield shell.figure("rate", float(rate), shape=square)  # GFLOP/s

    run.__doc__ = f"Kernel {number} of the program, {name}: the mean of 50 calls in a row at each size."
    return run


for _name, _number in KERNELS.items():
    sgemm.command(_name, WORK, variant=f"author_{_name}", processes=5, limit_s=180, needs=_needs)(
        _kernel(_name, _number)
    )
