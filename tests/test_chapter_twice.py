"""What is said of workloads that two experiments measured, from synthetic records."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import cell_line, evidence

from hypatia_lab.chapters import two_clocks

pytestmark = pytest.mark.usefixtures("two_processes")

LARGE = [8192, 4096, 4096]


def cell(variant: str, *medians_us: float, **changes: Any) -> dict[str, Any]:
    own = {"shape": LARGE, "dtype": "bfloat16", "clock": "graph"} | changes
    return cell_line(variant=variant, medians_us=list(medians_us), **own)


def compiled(us: float, tuned: float) -> list[dict[str, Any]]:
    times = {"eager": 100.0, "eager@again": 100.0, "compile": us, "compile_max_autotune": tuned}
    return [cell(name, median, median) for name, median in times.items()]


def test_ratios_that_two_experiments_find_apart_are_named_by_both() -> None:
    lab = evidence({"aten_fusion": compiled(98.0, 115.0), "tensor_cores": compiled(108.0, 114.0)})
    text = two_clocks.ratios(lab, "box")
    assert "1 differ by more than 2%" in text
    assert "torch.compile at 8192×4096×4096 in bfloat16: " in text
    for page, ratio in zip(two_clocks.TUNED, ("1.02×", "0.926×"), strict=True):
        assert f"{ratio} in {two_clocks.PAGES[page]}" in text


def test_nothing_is_said_where_nothing_lies_apart_or_one_experiment_is_missing() -> None:
    assert not two_clocks.ratios(evidence({"aten_fusion": compiled(98.0, 115.0)}), "box")
    assert not two_clocks.ratios(evidence({name: compiled(98.0, 115.0) for name in two_clocks.TUNED}), "box")
    assert not two_clocks.clocks(evidence({name: compiled(98.0, 115.0) for name in two_clocks.TUNED}), "box")


def test_a_clock_that_was_lowered_is_told_with_its_readings() -> None:
    parts = {}
    for name, us, mhz in (("gemm_ladder", 350.0, 1800.0), ("tensor_cores", 390.0, 1635.0)):
        held = {"sm_mhz": [1500.0, mhz, 1965.0], "throttled": True}
        parts[name] = [cell("eager", us, us, **held), cell("eager", 3.0, 3.0, shape=[256, 256, 512], **held)]
    text = two_clocks.clocks(evidence(parts), "box")
    assert "350 µs at 1800 MHz" in text
    assert "390 µs at 1635 MHz" in text
    assert "within 1.21%" in text  # 390 · 1635 / (350 · 1800)
