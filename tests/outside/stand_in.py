"""A program file whose upstream is the tool beside it."""

import sys
from pathlib import Path

import torch

import hypatia_lab as lab

HERE = Path(__file__).resolve().parent
upstream = lab.Provenance.pinned(HERE / "stand_in.pins", root=HERE / "upstream", licence="MIT")
TOOL = [sys.executable, upstream.root / "tool.py"]
WORK = lab.Workload("linear_relu", (4, 6, 8))
example = lab.program("author_example", "a stand-in", [upstream])


@lab.variant("linear_relu", "author_v1", origin="author")
def author_v1(workload, inputs):
    "Theirs."
    return lambda: torch.relu(torch.nn.functional.linear(inputs["x"], inputs["weight"], inputs["bias"]))


@example.cells
def cells(preset, device):
    return [lab.Group(WORK, ("eager", "author_v1"), ("hot",), 0.01)]


@example.command("kernel_only", WORK, variant="author_v1", processes=1, limit_s=60)
def kernel_only(shell):
    "Their benchmark."
    out = shell.run([*TOOL, "writes", HERE / "runs"], writes=[HERE / "runs"])
    yield shell.figure("fused", out.number(r"Fused: +([0-9.,]+) ms", "fused time"), unit="ms")
    yield shell.figure("fused", 2.0, unit="s", variant="author_c", shape=(1, 2, 3), dtype="float64")


@example.command("hung", WORK, variant="author_v1", processes=2, limit_s=0.5)
def hung(shell):
    "One that hangs."
    yield shell.figure("begun", 1)
    shell.run([*TOOL, "hangs"])


@example.command("raises", WORK, variant="author_v1", processes=1)
def raises(shell):
    "One that is no good."
    yield shell.nothing


@example.command("unable", WORK, variant="author_tool", processes=1, needs=lambda workload, device: f"not on {device}")
def unable(shell):
    "One that cannot run here."
    yield shell.figure("never", 1)
