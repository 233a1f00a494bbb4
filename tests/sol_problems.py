"""A small problem in the format of SOL-ExecBench, and solutions for it, written as they are needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REFERENCE = """import torch

@torch.no_grad()
def run(x, weight, eps):
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(torch.float32)).to(x.dtype)
"""
ANSWER = "torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)"


def source(*body: str, taken: str = "x, weight, eps") -> str:
    """A solution's source: the lines of its function."""
    return "\n    ".join((f"import torch\n\ndef run({taken}):", *body)) + "\n"


RETURNS = source(f"return {ANSWER}")
WRITES = source(f"y[:] = {ANSWER}", taken="x, weight, eps, y")
DEFINITION: dict[str, Any] = {
    "name": "rms_norm_h96",
    "description": "Each row over its root mean square.\nTimes a weight.",
    "axes": {
        "rows": {"type": "var"},
        "features": {"type": "const", "value": 96},
        "half": {"type": "expr", "expression": "(features + 2 * rows - 2 * rows) // 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "features"], "dtype": "float32"},
        "weight": {"shape": ["features"], "dtype": "float32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "features"], "dtype": "float32"}},
    "reference": REFERENCE,
}
INPUTS = {"x": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-5}}


def workload(rows: int, **changes: Any) -> dict[str, Any]:
    """A line of ``workload.jsonl``."""
    return {"uuid": f"w{rows}", "axes": {"rows": rows}, "inputs": INPUTS} | changes


def problem(folder: Path, workloads: Sequence[Any] = (workload(5), workload(16)), **changes: Any) -> Path:
    """Write the problem into ``folder``, with parts of its definition changed; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "definition.json").write_text(json.dumps(DEFINITION | changes))
    (folder / "workload.jsonl").write_text("\n".join(map(json.dumps, workloads)))
    return folder


def solution(folder: Path, text: str = RETURNS, *, name: str = "solution.json", **spec: Any) -> Path:
    """Write a solution of ``text`` into ``folder``; returns its file. It returns its output unless ``spec`` says."""
    told: dict[str, Any] = {"languages": ["pytorch"], "target_hardware": ["LOCAL"], "entry_point": "kernel.py::run"}
    told |= {"destination_passing_style": ", y):" in text} | spec
    file = told["entry_point"].partition("::")[0] if isinstance(told["entry_point"], str) else "kernel.py"
    sources = [{"path": file, "content": text}]
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"name": "mine", "definition": "rms_norm_h96", "author": "a", "spec": told, "sources": sources}
    (folder / name).write_text(json.dumps(whole))
    return folder / name
