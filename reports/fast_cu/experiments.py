"""The two programs of pranjalssh/fast.cu, built by you: products of square bf16 matrices, and sums of 2³⁰ numbers.

    hypatia-lab run --program reports/fast_cu/experiments.py --records reports/fast_cu/records

What must lie on this machine: the files that ``experiments.pins`` names, below ``$HYPATIA_OUTSIDE/fast_cu`` (default:
``outside/fast_cu`` beside ``reports``), and the programs ``matmul`` and ``sum`` in its folder ``out``, or in the folder
that ``FAST_CU_BIN`` names. As published ``matmul`` runs cuBLAS and twelve kernels at 8192 in one process, so that one
that never ends hides all after it. So ``matmul`` takes two things from its command line: the size first, then the
numbers of kernels; nothing else is changed. Nothing ties the programs to the files but you.

Each kernel is a command of its own, so that one that fails or never ends leaves the others. The program checks a kernel
against cuBLAS, waits five seconds, then times eight calls in a row, and prints the mean in seconds and TFLOP/s.
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
upstream = lab.Provenance.pinned(HERE / "experiments.pins", root=OUTSIDE / "fast_cu", licence="MIT")
fast = lab.program("author_fast_cu", "products and sums on an H100, beside cuBLAS and CUB", [upstream])

BIN = Path(os.environ.get("FAST_CU_BIN") or upstream.root / "out").resolve()
CUBLAS, README = 0, 11
"""The program's numbers of the library, and of the kernel that its README's figures are of: the last at that date."""
KERNELS = range(1, 13)
ROUNDING = 2.0**-7
"""Two neighbours in bfloat16 differ by so much of either at most."""
SUMMED = 2**30
SUMS = ("kernel1", "kernel2", "kernel3", "kernel4", "cub")
"""What ``sum`` prints, in its own words."""


def _needs(name: str) -> Callable[[lab.Workload, str], str]:
    def why_not(workload: lab.Workload, device: str) -> str:
        if device != "cuda":
            return "the program's kernels are CUDA's"
        return "" if os.access(BIN / name, os.X_OK) else f"{name} is not built: README.md says how, FAST_CU_BIN where"

    return why_not


def _product(size: int, *kernels: int) -> Callable[[Shell], Iterator[dict[str, Any]]]:
    """The command of ``kernels``, one after the other in one process."""

    def run(shell: Shell) -> Iterator[dict[str, Any]]:
        out = shell.run([BIN / "matmul", str(size), *map(str, kernels)])
        for right, off in re.findall(r"Should +(-?[\d.]+), Is +-?[\d.]+ \(Diff +([\d.]+)\)", out.text):
            # It allows for 0.1, and from 16 on two neighbours in bfloat16 are further apart.
            if float(off) > ROUNDING * abs(float(right)):
                raise Ended(
                    "wrong", f"by the program's own check its answer is off by {off} where it should be {right}"
                )
            yield shell.figure("first difference", float(off) / abs(float(right)))
        found = re.findall(r"time: \( *([\d.]+)\) s, performance: \( *([\d.]+)\) TFLOPS\. size: \((\d+)\)", out.text)
        if [int(told) for *_, told in found] != [size] * len(kernels):
            raise Ended("wrong", f"the program printed {len(found)} of {len(kernels)} kernels")
        for kernel, (_, rate, _) in zip(kernels, found, strict=True):
            name = "cublas" if kernel == CUBLAS else f"kernel{kernel}"
            yield shell.figure("rate", 1e3 * float(rate), variant=f"author_{name}")  # GFLOP/s

    asked = " and ".join(f"kernel {one}" if one else "cuBLAS" for one in kernels)
    run.__doc__ = f"At {size}, {asked}: the mean of eight calls in a row."
    return run


def _declare(size: int, *kernels: int, processes: int) -> None:
    fast.command(
        f"product_{kernels[-1]}" if size == 8192 else f"product_{kernels[-1]}_{size}",
        lab.Workload("matmul", (size,) * 3, "bfloat16"),
        variant=f"author_kernel{kernels[-1]}",
        processes=processes,
        limit_s=90,
        needs=_needs("matmul"),
    )(_product(size, *kernels))


for _size in (8192, 4096):
    _declare(_size, CUBLAS, README, processes=5)
for _kernel in KERNELS:
    if _kernel != README:
        _declare(8192, _kernel, processes=1)


@fast.command(
    "sum", lab.Workload("copy", (SUMMED,)), variant="author_sum", processes=5, limit_s=90, needs=_needs("sum")
)
def sums(shell: Shell) -> Iterator[dict[str, Any]]:
    """Four kernels and CUB add up 2³⁰ integers, which are read once: the mean of 100 calls in a row."""
    out = shell.run([BIN / "sum"])
    totals = re.findall(r"^Sum: (-?\d+)$", out.text, re.MULTILINE)
    if len(totals) != len(SUMS) or len(set(totals)) > 1:
        raise Ended("wrong", f"its {len(SUMS)} sums are {', '.join(totals) or 'not printed'}")
    for name in SUMS:
        rate = out.number(rf"\| {name} \|-+>\nBandwidth: ([\d.]+) GB/s$", f"bandwidth of {name}")
        yield shell.figure("bandwidth", rate, "GB/s", variant=f"author_{name.replace('kernel', 'sum')}")
