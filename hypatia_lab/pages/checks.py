"""What the check makes of answers: how near they come to their bounds, which are wrong, and what the bounds are."""

from __future__ import annotations

import math
from typing import Any

import hypatia_lab.experiments  # noqa: F401  (registers the operations)
from hypatia_lab import formats, tables
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.results import Row, grouped
from hypatia_lab.workloads import Workload

CHECKED = (
    *("linear_relu", "linear_relu_layout", "linear_gelu", "linear_gelu_tanh", "linear_relu_gelu", "matmul"),
    *("mlp2", "mlp3", "mlp", "conv_block", "conv_block_tanh", "conv_block_autocast"),
    *("norm_chain", "unet", "unet_group", "unet_autocast", "diffraction"),
)
"""Operations whose variants the page of checks tries."""
WRONG = {"diffraction": ("eager_direct",)}
"""Variants known to be wrong, by operation: a document's own, kept as it was."""


def computed(row: Row) -> tuple[str, str]:
    """What ``row`` computes and in which arithmetic: ``("linear_relu, forward and backward", "float32 (tf32)")``."""
    work = f"{row.operation}, {formats.direction(row.direction)}".removesuffix(", forward")
    return work, f"{row.dtype} ({row.math})".removesuffix(" (ieee)")


def share_of_bound(row: Row) -> float:
    """How far off ``row``'s answer is, by what it may be: of the norm, or of the largest element where that counts.

    Of several parts at most so far: a record does not say which one's error it holds, so the strictest bound counts.
    """
    shape = tuple(map(int, row.shape.split("x")))  # of more digits than one may ask for
    work = Workload(row.operation, shape, row.dtype, row.math, row.direction)
    if work.spec.peak_error is not None:
        return row.max_error / (work.tolerance() * row.peak)
    return row.error / min(work.tolerance(part) for part in work.parts)


def right(data: Evidence, machine: str) -> list[tuple[float, Row]]:
    """The answers timed on ``machine`` by their share of the bound, the nearest of each operation and arithmetic.

    Nearest of all first.
    """
    found: dict[tuple[str, str], tuple[float, Row]] = {}
    for row in data.select(machine=machine, status="ok"):
        one, own = (share_of_bound(row), row), computed(row)
        if not math.isnan(one[0]):
            found[own] = max(found.get(own, one), one, key=lambda pair: pair[0])
    return sorted(found.values(), key=lambda pair: -pair[0])


def wrong(data: Evidence, machine: str) -> list[list[Row]]:
    """What was called wrong on ``machine`` and so has no time: the rows of a variant, operation and arithmetic, the
    worst first."""
    rows = sorted(data.select(machine=machine, status="wrong"), key=lambda row: -row.error)
    found = grouped(rows, lambda row: (row.variant, *computed(row)))
    return [found[key] for key in sorted(found)]


def bounds() -> Any:
    """The largest error of the norm that is right at typical sizes (pandas), a row an operation and part of an answer.

    A column a dtype and way to multiply; what ReLUs near 0 add is left out.
    """
    typical = {
        "linear_relu": ((1024, 784, 2048), ("y", "grad_weight")),
        "mlp": ((256, 784, 512, 3, 128), ("y",)),
        "conv_block": ((5, 64, 128, 128), ("y", "grad_weight")),
        "unet": ((5, 64, 128, 128), ("y", "grad_x")),
    }
    kinds = {"float32": ("float32", "ieee"), "TF32": ("float32", "tf32")}
    kinds |= {dtype: (dtype, "ieee") for dtype in ("float16", "bfloat16")}
    out = []
    for operation, (shape, parts) in typical.items():
        for part in parts:
            row = {"operation": f"{operation} {formats.shape('x'.join(map(str, shape)))}", "part": part}
            for kind, (dtype, math_mode) in kinds.items():
                work = Workload(operation, shape, dtype, math_mode, "forward_backward")
                row[kind] = formats.number(work.tolerance(part))
            out.append(row)
    return tables.frame(out)
