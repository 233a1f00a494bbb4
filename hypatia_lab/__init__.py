"""hypatia_lab: a laboratory for GPU performance claims. The public names, found when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "Parameters": "pages.evidence",
    "Evidence": "pages.evidence",
    "evidence": "pages.evidence",
    "verify": "pages.verify",
    "Workload": "workloads",
    "Operation": "workloads",
    "variant": "variants",
    "variants": "variants",
    "operation": "strangers.reader_kernel",
    "Group": "experiments",
    "Probe": "experiments",
    "program": "strangers.programs",
    "Provenance": "strangers.programs",
    "measure": "bench.composer",
    "judge": "claims",
    "ledger": "claims",
    "linear_relu": "dispatch",
    "conv_block": "dispatch",
    "mlp": "dispatch",
    "nn": "nn",
    "time": "pages.live",
    "kernel": "pages.live",
}
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # Found late, so that `hypatia-lab --help` does not wait for torch.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOME[name]}")
    globals()[name] = found = home if _HOME[name] == name else getattr(home, name)
    return found
