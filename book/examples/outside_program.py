"""A worked example: a program from outside, run as it is, and its forward pass beside the lab's.

hypatia-lab run --program book/examples/outside_program.py --records my_records
"""

import runpy
import sys
from pathlib import Path

import hypatia_lab as lab

HERE = Path(__file__).resolve().parent
upstream = lab.Provenance.pinned(HERE / "outside_program.pins", root=HERE / "stand_in", licence="MIT")
example = lab.program("author_example", "a stand-in for what somebody has published", [upstream])

WORK = lab.Workload("linear_relu", (64, 256, 512))


@lab.variant("linear_relu", "author_example", origin="author")
def author_example(workload, inputs):
    """Their forward pass, imported from their file."""
    theirs = runpy.run_path(str(upstream.root / "benchmark.py"))
    return lambda: theirs["linear_relu"](inputs["x"], inputs["weight"], inputs["bias"])


@example.cells
def cells(preset, device):
    """Their forward pass by the lab's clocks, beside eager PyTorch and its A/A control."""
    clocks = ("graph", "wall") if device == "cuda" else ("hot",)
    return [lab.Group(WORK, ("eager", "eager@again", "author_example"), clocks, budget_s=0.3)]


@example.command("benchmark", WORK, variant="author_example", processes=3, limit_s=120)
def benchmark(shell):
    """Their benchmark: 20 calls to warm up, the mean of 100."""
    out = shell.run([sys.executable, upstream.root / "benchmark.py"])
    yield shell.figure("eager", out.number(r"^Eager: +([\d.]+) ms/iter", "eager time"), unit="ms", variant="eager")
    yield shell.figure("fused", out.number(r"^Fused: +([\d.]+) ms/iter", "fused time"), unit="ms")
    yield shell.figure("speedup", out.number(r"^Speedup: +([\d.]+)x", "speedup"))
