"""torchvision's MLP in training, as it is written and with its layers served by the dispatcher: the book's own script.

What must be there: torchvision, with the MLP that ``torchvision_mlp.pins`` names, as 0.26 and 0.28 have it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypatia_lab as lab

if TYPE_CHECKING:
    from hypatia_lab.profiler.program import Shell

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.with_name("examples") / "training.py"
found = find_spec("torchvision")
root = Path(found.origin).parents[1] if found and found.origin else HERE
upstream = lab.Provenance.pinned(HERE / "torchvision_mlp.pins", root=root, licence="BSD-3-Clause")
torchvision = lab.program("author_torchvision", "torchvision's MLP, trained as written and converted", [upstream])

MODEL = lab.Workload("mlp", (1024, 784, 2048, 2, 10))


def _needs_cuda(workload: lab.Workload, device: str) -> str:
    return "" if device == "cuda" else "the script takes fewer rows on a CPU"


@torchvision.command("training", MODEL, variant="author_torchvision", processes=8, needs=_needs_cuda)
def training(shell: Shell) -> Iterator[dict[str, Any]]:
    """training.py: 100 steps each, the median of the last 50, and the loss of the last."""
    # Built kernels, and what was found quickest: one process leaves them for the next.
    caches = {"XDG_CACHE_HOME": str(shell.folder / "cache"), "TRITON_CACHE_DIR": str(shell.folder / "triton")}
    out = shell.run([sys.executable, SCRIPT], env=caches, writes=[shell.folder])
    yield shell.figure("replaced", out.number(r"^replaced: (\d+)$", "number of layers"))
    for name in ("as written", "converted"):
        yield shell.figure(name, out.number(rf"^{name}: ([\d.]+) ms a step", f"time {name}"), "ms")
        yield shell.figure(f"{name}, last loss", out.number(rf"^{name}: .* then ([\d.]+)$", f"loss {name}"))
