"""Where a GPU under load lowered its clock, and not alike in every experiment: eager's time of the large size."""

from __future__ import annotations

from hypatia_lab import formats, results
from hypatia_lab.pages.evidence import Evidence

_EAGER = {"operation": "linear_relu", "shape": [8192, 4096, 4096], "variant": "eager", "status": "ok", "clock": "graph"}


def eager(data: Evidence, machine: str, dtype: str = "bfloat16") -> list[dict[str, str]]:
    """A line an experiment that times eager Linear+ReLU; empty where no clock was lowered, or of one alone."""
    wanted = _EAGER | {"dtype": dtype}
    cells = {
        record.experiment: cell
        for record in data.of(machine)
        for cell in record.cells
        if record.experiment in ("aten_fusion", "gemm_ladder", "tensor_cores")
        and cell.items() >= wanted.items()
        and cell["sm_mhz"]
    }
    if len(cells) < 2 or not any(cell["throttled"] for cell in cells.values()):
        return []
    took = {name: (results.across(cell["medians_us"]), cell["sm_mhz"][1]) for name, cell in cells.items()}
    return [
        {"experiment": name, "eager takes": formats.time(time), "at a clock of": f"{mhz:g} MHz"}
        | {"cycles": formats.told(time.times(mhz / 1e6), "million")}
        for name, (time, mhz) in took.items()
    ]
