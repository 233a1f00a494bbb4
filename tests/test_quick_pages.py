"""Every page made of what the quick preset plans for a CPU: what it leaves out must stop no page."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from synthetic import ceilings, cell_line, detail_line, played, write_records

from hypatia_lab import bench, variants
from hypatia_lab.experiments import EXPERIMENTS

NOTEBOOKS = sorted(path.stem for path in (Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


def planned(name: str) -> list[dict[str, Any]]:
    """A cell for each that the experiment plans, of two processes 1% apart; of probes a line that says they failed."""
    lines = []
    for group in bench.plan(name, "quick", "cpu"):
        work = group.workload
        own = {"operation": work.operation, "shape": list(work.shape), "dtype": work.dtype, "math": work.math}
        own |= {"direction": work.direction, "flops": work.flops, "traffic": work.traffic}
        for variant in group.variants:
            us = 90.0 + int(hashlib.sha256(variant.encode()).hexdigest(), 16) % 20
            spec = variants.find(work.operation, variant)
            base = spec.name if variant.endswith(variants.AGAIN) else variants.baseline(work.operation)
            for clock in group.clocks or ("none",):
                medians = [us, 1.01 * us] if group.clocks else []
                who = {"variant": variant, "origin": spec.origin, "baseline": base}
                lines.append(cell_line(**own, **who, clock=clock, medians_us=medians, samples_us=medians))
    for probe in EXPERIMENTS[name].probes("quick", "cpu", ()):
        work = probe.workload
        own = {"operation": work.operation, "shape": list(work.shape), "dtype": work.dtype, "math": work.math}
        said = {"values": [], "status": "crashed", "reason": "a test", "name": probe.topic, "unit": "1"}
        lines.append(detail_line(**own, variant=probe.variant, topic=probe.topic, case=probe.case, **said))
    return lines


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quick")
    parts = {name: planned(name) for name in EXPERIMENTS if name != "ceilings"}
    write_records(root, "box", "cpu", parts | {"ceilings": ceilings({"ieee": 1.0, "bfloat16": 1.0}, "hot")})
    return root


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_no_page_misses_what_the_quick_preset_leaves_out(
    quick: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert played(page, quick, monkeypatch)
