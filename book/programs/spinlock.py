"""S000's own program: the operator whose blocks it set out to fuse, with its three benchmark scripts, unedited.

What must lie on this machine: the files that ``spinlock.pins`` names, below ``$HYPATIA_OUTSIDE/spinlock`` (default:
``outside/spinlock`` beside ``book``). Needs torch, numpy and tqdm. The scripts that roll out in time also import h5py,
only to write files, which they do not: an empty stand-in serves.

The document's block (Conv 3×3 without bias, InstanceNorm with γ and β, GELU by erf) is called in process too, as
variant ``author_block``. Its operator, 12 convolutions in a row of such blocks, is no operation of the lab's: what the
scripts print is of ``author_operator``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypatia_lab as lab
from hypatia_lab.profiler.subject import Ended
from hypatia_lab.variants import AGAIN
from hypatia_lab.workloads import SPLIT

if TYPE_CHECKING:
    import torch

    from hypatia_lab.profiler.program import Output, Shell

HERE = Path(__file__).resolve().parent
OUTSIDE = Path(os.environ.get("HYPATIA_OUTSIDE") or HERE.parents[1] / "outside")
upstream = lab.Provenance.pinned(
    HERE / "spinlock.pins",
    root=OUTSIDE / "spinlock",
    licence="MIT by its README, which points to a file that is missing",
)
spinlock = lab.program("author_spinlock", "S000's block, its operator and its benchmark scripts", [upstream])

SCRIPTS = upstream.root / "scripts" / "dev"
SOURCES = upstream.root / "src"
BLOCK = lab.Workload("conv_block", (5, 64, 128, 128), "float32", "default")


# ---------------------------------------------------------------- the block, in process


def _unsplit(workload: lab.Workload, device: str) -> str:
    return f"the library's convolutions know no {workload.math}" if workload.math in SPLIT else ""


@contextmanager
def _importable() -> Iterator[None]:
    """The upstream's package comes first, before this file, which has its name; nothing is written beside it."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(SOURCES))
    try:
        yield
    finally:
        sys.path.remove(str(SOURCES))
        sys.dont_write_bytecode = before


@lab.variant("conv_block", "author_block", origin="author", needs=_unsplit)
def author_block(workload: lab.Workload, inputs: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    """S000's ConvBlock itself, without the bias that its normalisation would take off again."""
    from torch.nn import Parameter

    with _importable():
        from spinlock.operators.blocks import ConvBlock  # pyright: ignore[reportMissingImports]
    channels = workload.shape[1]
    block = ConvBlock(channels, channels, kernel_size=3, normalization="instance", activation="gelu")
    convolution, normalisation, _ = block.block
    # On the inputs' own memory: whoever refills the inputs refills them. The scripts ask for no gradients either.
    convolution.weight = Parameter(inputs["weight"], requires_grad=False)
    normalisation.weight = Parameter(inputs["gamma"], requires_grad=False)
    normalisation.bias = Parameter(inputs["beta"], requires_grad=False)
    x = inputs["x"]
    return lambda: block(x)


@spinlock.cells
def cells(preset: str, device: str) -> list[lab.Group]:
    """The block beside the lab's eager form, in PyTorch's own arithmetic and in IEEE's."""
    clocks = ("graph", "wall") if device == "cuda" else ("hot",)
    maths = ("default", "ieee") if device == "cuda" else ("default",)  # a CPU knows no TF32: they are the same there
    names = ("eager", "eager" + AGAIN, "author_block")
    return [lab.Group(lab.Workload("conv_block", BLOCK.shape, "float32", math), names, clocks, 0.5) for math in maths]


# ---------------------------------------------------------------- the scripts, whole


def _needs_cuda(workload: lab.Workload, device: str) -> str:
    return "" if device == "cuda" else "394 GFLOP a step, hundreds of steps: a CPU would take an hour"


_START = """
import runpy, sys, types
writer = types.ModuleType("h5py")
writer.File = writer.Group = object
sys.modules["h5py"] = writer
sys.argv[:] = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    # By their exit status the scripts say whether they like what they measured.
    if end.code not in (None, 0, 1):
        raise
"""


def _run(shell: Shell, script: str, *, stored: bool = False) -> Output:
    """Run ``script`` to its end. ``stored``: what one process compiles, the next ones find."""
    caches = {f"{name}_CACHE_DIR": str(shell.folder / name.lower()) for name in ("TORCHINDUCTOR", "TRITON")}
    given = {"env": caches, "writes": [shell.folder]} if stored else {}
    out = shell.run([sys.executable, "-P", "-c", _START, SCRIPTS / script], **given)
    if "Device: cuda" not in out.text:
        raise Ended("wrong", "the script does not say that it ran on a GPU")
    return out


def _printed(out: Output, pattern: str, names: tuple[str, ...]) -> dict[str, float]:
    """By name the numbers that ``pattern`` finds, in order. Ends the command where there are more or fewer."""
    found = re.findall(pattern, out.text)
    if len(found) != len(names):
        raise Ended("wrong", f"the script printed {len(found)} numbers for {', '.join(names)}")
    return dict(zip(names, map(float, found), strict=True))


@spinlock.command(
    "benchmark_mixed_precision", BLOCK, variant="author_operator", processes=3, limit_s=200, needs=_needs_cuda
)
def benchmark_mixed_precision(shell: Shell) -> Iterator[dict[str, Any]]:
    """benchmark_mixed_precision.py: rollouts of 500 steps, 5 at once, in three precisions, one to warm up."""
    out = _run(shell, "benchmark_mixed_precision.py")
    for name, took in _printed(out, r"  Time: ([\d.]+) seconds", ("fp32", "fp16", "bf16")).items():
        yield shell.figure(name, took, "s")
    for name, ratio in _printed(out, r"  Speedup: ([\d.]+)×", ("fp16 speedup", "bf16 speedup")).items():
        yield shell.figure(name, ratio)
    errors = re.findall(r"FLOAT16 vs FLOAT32:\n.*\n.*\n.*\n\s+Mean relative error: (\S+)", out.text)
    if not errors:
        raise Ended("wrong", "the script printed no error of FLOAT16")
    yield shell.figure("fp16 mean relative error", float(errors[0]))


CONFIGURATIONS = {"1": "batch 2", "2": "batch 3", "3": "batch 2 compiled", "4": "batch 3 compiled"}
"""Number that the script gives a configuration → name of its figure."""


@spinlock.command("benchmark_additional", BLOCK, variant="author_operator", processes=2, limit_s=280, needs=_needs_cuda)
def benchmark_additional(shell: Shell) -> Iterator[dict[str, Any]]:
    """benchmark_additional_optimizations.py: rollouts in float16, 10 and 15 at once, eager and compiled, mean of 3."""
    out = _run(shell, "benchmark_additional_optimizations.py")
    sections = dict(re.findall(r"^CONFIG (\d): (.*?)(?=^CONFIG|^SUMMARY)", out.text, re.MULTILINE | re.DOTALL))
    for number, name in CONFIGURATIONS.items():
        took = re.search(r"  Time: ([\d.]+) ± ", sections.get(number, ""))
        if took is None:
            raise Ended("wrong", f"the script printed no time of its configuration {number}")
        yield shell.figure(name, float(took[1]), "s")
        if ratio := re.search(r"  Speedup vs baseline: ([\d.]+)×", sections[number]):
            yield shell.figure(f"{name} speedup", float(ratio[1]))


@spinlock.command(
    "benchmark_torch_compile", BLOCK, variant="author_operator", processes=3, limit_s=900, needs=_needs_cuda
)
def benchmark_torch_compile(shell: Shell) -> Iterator[dict[str, Any]]:
    """benchmark_torch_compile.py: the operator at 5x3x128x128, eager and max-autotune, the mean of 100 calls each.

    To tune it takes minutes. Caches stay from one process to the next, as they do for whoever runs the script again, so
    the tuner chooses once and the interval leaves its luck out.
    """
    out = _run(shell, "benchmark_torch_compile.py", stored=True)
    for name, took in _printed(out, r"Time per iteration: ([\d.]+) ms", ("eager", "compiled")).items():
        yield shell.figure(name, took, "ms")
    yield shell.figure("speedup", out.number(r"^Speedup: ([\d.]+)×", "speed-up"))
    tuned = "compile time" if shell.number == 0 else "compile time, tuned before"
    yield shell.figure(tuned, out.number(r"Compilation time: ([\d.]+) seconds", "compile time"), "s")
