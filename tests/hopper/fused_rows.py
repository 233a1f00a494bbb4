"""The small kernel that a page shows whole: it loads 16 bytes at a time where rows are of whole 16 numbers."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import runpy

import torch
from target import made

from hypatia_lab import paths

example = runpy.run_path(str(paths.HOME / "book" / "examples" / "fused_rows.py"))

for columns, wide in ((1000, False), (1008, True)):
    example["bias_softmax"](torch.empty(2, columns), torch.empty(columns))
    assert ("ld.global.v4.b32" in made[-1].asm["ptx"]) == wide, columns
