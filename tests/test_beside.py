"""A row beside another of its place, and where a GPU lowered its clock: from synthetic records."""

from __future__ import annotations

import math
from typing import Any

import pytest
from synthetic import cells, evidence

from hypatia_lab.pages import throttled
from hypatia_lab.pages.beside import beside, error, over, rival

pytestmark = pytest.mark.usefixtures("two_processes")

LARGE = [8192, 4096, 4096]


def cell(variant: str, us: float, **changes: Any) -> dict[str, Any]:
    (found,) = cells({variant: us}, **{"shape": LARGE, "dtype": "bfloat16"} | changes)
    return found


def test_a_row_is_set_beside_what_differs_in_one_thing_alone() -> None:
    times = [cell("eager", 100.0, error=2e-3), cell("epilogue", 90.0), cell("cuda", 80.0, origin="own", error=1e-3)]
    lab = evidence({"tensor_cores": [*times, cell("eager", 75.0, operation="linear"), cell("cuda", 1.0, clock="wall")]})
    (own,) = lab.select(variant="cuda", clock="graph")
    assert error(lab, own, variant="eager") == pytest.approx(0.5)
    assert over(lab, own, variant="eager", operation="linear").value == pytest.approx(80 / 75)
    best = rival(lab, own)
    assert best is not None
    assert best.variant == "epilogue"
    (called,) = lab.select(variant="cuda", clock="wall")
    assert beside(lab, called, variant="eager") is rival(lab, called) is None
    assert over(lab, called, variant="eager").n == over(lab, None).n == 0
    assert math.isnan(error(lab, called, variant="eager"))


def test_a_clock_that_was_lowered_is_told_where_two_experiments_can_be_compared() -> None:
    held = {"sm_mhz": [1500.0, 1800.0, 1965.0], "throttled": True}
    parts = {name: [cell("eager", 350.0, **held)] for name in ("gemm_ladder", "tensor_cores")}
    lines = throttled.eager(evidence(parts), "box")
    assert [line["experiment"] for line in lines] == list(parts)
    assert "1800 MHz" in lines[0].values()
    assert throttled.eager(evidence({"gemm_ladder": parts["gemm_ladder"]}), "box") == []
    kept = {name: [cell("eager", 350.0, **held | {"throttled": False})] for name in parts}
    assert throttled.eager(evidence(kept), "box") == []
