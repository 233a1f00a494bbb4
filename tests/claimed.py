"""What tests of verdicts are made of: claims, cells and details of records that nothing measured, and their verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from synthetic import cell_line, detail_line, run_line

from hypatia_lab import records, results
from hypatia_lab.claims import VERDICTS, Claim, Judgement, judge

SMALL, MEDIUM, LARGE = (
    f"linear_relu/{shape}/float32/ieee/forward" for shape in ("256x256x512", "1024x784x2048", "8192x4096x4096")
)
WOBBLE = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.003, 0.997)


def place(workload: str) -> dict[str, Any]:
    """The fields of a line that say which workload it is of."""
    operation, shape, dtype, math_mode, direction = workload.split("/")
    extents = [int(n) for n in shape.split("x")]
    return {"operation": operation, "shape": extents, "dtype": dtype, "math": math_mode, "direction": direction}


def cell(workload: str, variant: str, us: float | Sequence[float | None], clock: str = "graph", **changes) -> dict:
    """A cell of ``workload`` × ``variant``: ``us`` once a process, wobbling a little unless it is a list."""
    where = place(workload)
    product = where["operation"] in ("linear", "linear_relu", "matmul")
    work = {"flops": 2 * math.prod(where["shape"]) if product else 0, "traffic": 4 * sum(where["shape"])}
    medians = [us * wobble for wobble in WOBBLE] if isinstance(us, int | float) else list(us)
    times = {"medians_us": medians, "samples_us": [], "max_error": 5e-7}
    return cell_line(**where | work | times | {"clock": clock, "variant": variant} | changes)


def pair(naive: float | Sequence[float | None], workload: str = MEDIUM, clock: str = "graph", **changes) -> list[dict]:
    """Eager, of 100 µs, and naive, changed by keyword, as cells of ``workload``."""
    return [cell(workload, "eager", 100, clock), cell(workload, "naive", naive, clock, **changes)]


def detail(name: str, values: Sequence[float | None], workload: str, **changes) -> dict:
    """What a probe says under ``name`` of ``compile`` at ``workload``, once a process."""
    where = {key: what for key, what in place(workload).items() if what != "forward"}
    return detail_line(**where | {"name": name, "variant": "compile", "values": list(values)} | changes)


Write = Callable[..., list[results.Measured]]


@pytest.fixture(name="measured")
def written(tmp_path) -> Write:
    """Writes cells and details as a record and reads what all records written so far say."""

    def write(*lines: dict, **run: str) -> list[results.Measured]:
        cells, details = ([line for line in lines if line["kind"] == kind] for kind in ("cell", "detail"))
        processes = max((len(line["medians_us"]) for line in cells), default=1) or 1
        line = run_line(**{"experiment": "fusion", "device": "cuda", "processes": processes} | run)
        records.write(tmp_path, line, cells, details, overwrite=True)
        return results.measured(records.load(tmp_path))

    return write


def entry(quantity: str = "slowdown", claimed: float = 10, band: tuple[float, float] = (9, 11), **more) -> Claim:
    """A claim about naive at the medium size, a kernel of the lab's own, unless told otherwise."""
    fields: dict[str, Any] = {"id": "S001-01a", "lead": "S001-01", "claim": "A claim.", "statement": "A claim."}
    fields |= {"section": "A", "claimed": (claimed, claimed), "unit": "×", "quantity": quantity, "band": band}
    fields |= {"why": "Because.", "program": "own", "band_set": "2026-11-21 before"}
    return Claim(**fields | {"workloads": (MEDIUM,), "variant": "naive"} | more)


def verdict(found: Sequence[results.Measured], claim: Claim) -> Judgement:
    """The one judgement on ``claim``."""
    (row,) = judge(found, [claim])
    assert row.verdict in VERDICTS
    return row


def told(row: Judgement) -> str:
    """All that a row says: its reason, and the details beneath it."""
    return " ".join([row.reason, *row.details])
