"""Python's bytecode for fresh processes: without it each of them compiles all of torch's sources anew.

Containers are often built without bytecode and run with ``PYTHONDONTWRITEBYTECODE``, or from folders that cannot be
written. Then a process spends two to three times as long on importing torch and its compiler, and no cache helps the
next. Source: PEP 3147 and Python's ``-X pycache_prefix``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from hypatia_lab.kernels import loader

LONGEST_S = 300.0
"""The process that imports everything once is given up after so long."""

_EVERYTHING = """
import torch
import hypatia_lab.experiments
numbers = torch.ones(64, 64, device="cuda" if torch.cuda.is_available() else "cpu")
torch.compile(lambda x: (x @ x).relu() + 1)(numbers)
"""


@cache
def environment() -> dict[str, str]:
    """What a fresh process needs in its environment to find bytecode; empty where it finds or keeps it anyway.

    Otherwise the bytecode lies in the lab's cache folder, put there the first time by a process that compiles a
    function and measures nothing. Never raises; empty too where that folder cannot be written, for under another
    prefix Python would not even find what bytecode there is.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return {}
    late = Path(found.origin).parent / "_inductor" / "compile_fx.py"  # among the last that compiling imports
    keeps = sys.pycache_prefix is not None or os.access(late.parent, os.W_OK)
    if Path(importlib.util.cache_from_source(str(late))).exists() or (keeps and not sys.dont_write_bytecode):
        return {}
    folder = loader.cache_folder().absolute() / "bytecode"
    kept = {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    # Under a prefix, bytecode lies as its source does from the root on.
    if (folder.joinpath(*late.parent.parts[1:]) / f"{late.stem}.{sys.implementation.cache_tag}.pyc").exists():
        return kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return {}
    if not os.access(folder, os.W_OK):
        return {}
    print(f"keeping the bytecode of torch in {folder}, once", file=sys.stderr)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        _import_everything(kept)
    return kept


def _import_everything(kept: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as empty:
        caches = {"TORCHINDUCTOR_CACHE_DIR": empty, "TRITON_CACHE_DIR": empty, "TMPDIR": empty}
        subprocess.run(
            [sys.executable, "-P", "-c", _EVERYTHING],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | kept | caches,
            timeout=LONGEST_S,
        )
