"""How the lab measures: what its own experiments ask for, the ways to copy, the machines and what the check made."""

from __future__ import annotations

import math

import pytest
import torch
from synthetic import ceilings, cell_line, evidence_of, write_records

from hypatia_lab import experiments, results, variants
from hypatia_lab.figures import ceilings as ceiling_figures
from hypatia_lab.figures.language import FigureError
from hypatia_lab.pages import checks, machines
from hypatia_lab.workloads import Workload


@pytest.mark.parametrize(("device", "clock"), [("cpu", "hot"), ("cuda", "graph")])
def test_two_hundred_pairs_are_asked_for_on_each_machine(device, clock):
    """With those of the other pages, whose plans are made the same way."""
    pairs = [
        (name, group.workload, variant)
        for name, spec in experiments.EXPERIMENTS.items()
        for group in spec.plan("seed", device, ())
        for variant in group.variants
        if variant.endswith("@again") and clock in group.clocks
    ]
    assert len(set(pairs)) == len(pairs) >= 200
    assert sum(name == "agreement" for name, *_ in pairs) > 140


def test_every_way_of_copying_changes_no_bit():
    source = torch.tensor([-0.0, math.inf, math.nan, 1e-45, 1.5])
    for way in variants.variants("copy").values():
        out = way.factory(Workload("copy", (5,)), {"source": source})()
        assert out is not source
        assert torch.equal(out.view(torch.int32), source.view(torch.int32))


def test_of_two_ways_of_copying_the_quicker_is_the_ceiling_and_drawn(tmp_path):
    own = {"operation": "copy", "clock": "graph", "flops": 0, "traffic": 10**9}
    cells = [
        cell_line(**own, shape=[2**n], variant=name, medians_us=[us, us])
        for n, name, us in ((26, "eager", 250.0), (28, "eager", 400.0), (28, "copy_kernel", 200.0))
    ]
    write_records(tmp_path, "gpu", "cuda", {"ceilings": cells})
    lab = evidence_of(tmp_path)
    assert results.ceilings(lab.records) == {("copy", "", "graph"): pytest.approx(5e12)}
    figure, table = ceiling_figures.sweep(lab.leading("gpu", experiment="ceilings"))
    assert [cell.triple[0] for block in figure.blocks for cell in block.cells] == pytest.approx([4e12, 5e12])
    assert list(table["variant"]) == ["eager", "copy_kernel"]


@pytest.mark.parametrize(("preset", "processes"), [("quick", 5), ("seed", 5), ("full", 6)])
def test_the_other_timer_is_asked_in_several_processes(preset, processes):
    for device in ("cpu", "cuda"):
        probes = experiments.EXPERIMENTS["oracle"].probes(preset, device, ())
        assert [probe.processes for probe in probes] == [processes] * (1 if preset == "quick" else 2)
    (probe,) = experiments.EXPERIMENTS["oracle"].probes(preset, "cpu", ((8, 8, 8),))
    assert probe.workload.shape == (8, 8, 8)


def test_an_answer_is_held_to_the_strictest_bound_of_its_parts(tmp_path):
    own = {"operation": "relu", "shape": [8, 8], "medians_us": [1.0, 1.0]}
    cells = [
        cell_line(**own, variant="eager", error=1e-8),
        cell_line(**own, variant="naive", origin="rebuilt", error=3e-7),
        cell_line(**own | {"medians_us": []}, variant="guess", origin="own", status="wrong", reason="off", error=0.5),
        cell_line(**own, variant="eager", dtype="bfloat16", error=2e-3),
    ]
    step = Workload("linear_relu", (64, 16, 8), "float32", "ieee", "forward_backward")
    bounds = {step.tolerance(part) for part in step.parts}
    of_step = {"operation": "linear_relu", "shape": [64, 16, 8], "direction": step.direction, "medians_us": [1.0, 1.0]}
    cells.append(cell_line(**of_step, variant="eager", error=min(bounds) / 10))
    write_records(tmp_path, "box", "cpu", {"method": cells})
    lab = evidence_of(tmp_path)
    found = {checks.computed(row): (share, row.variant) for share, row in checks.right(lab, "box")}
    assert max(bounds) > 1.1 * min(bounds)
    several = found["linear_relu, forward and backward", "float32"]
    assert several == (pytest.approx(0.1), "eager")  # which part it is of no record says
    alone = {dtype: Workload("relu", (8, 8), dtype).tolerance() for dtype in ("float32", "bfloat16")}
    assert found["relu", "float32"] == (pytest.approx(3e-7 / alone["float32"]), "naive")
    assert found["relu", "bfloat16"] == (pytest.approx(2e-3 / alone["bfloat16"]), "eager")
    assert [[row.variant for row in rows] for rows in checks.wrong(lab, "box")] == [["guess"]]


def test_ceilings_stand_side_by_side(tmp_path):
    write_records(tmp_path, "gpu", "cuda", {"ceilings": ceilings({"ieee": 50.0, "bfloat16": 400.0})})
    write_records(tmp_path, "cpu", "cpu", {"ceilings": ceilings({"ieee": 0.2}, "hot")})
    lab = evidence_of(tmp_path)
    gpu, cpu = (line["machine"] for line in machines.named(lab))
    lines = {line["best rate of"]: line for line in machines.rates(lab)}
    assert (lines["product, float32/ieee"][gpu], lines["product, float32/ieee"][cpu]) == ("50.0 TFLOP/s", "200 GFLOP/s")
    assert lines["product, bfloat16/ieee"][cpu] == lines["copy, cold caches"][gpu] == "–"
    figure, table = ceiling_figures.balances(machines.balances(lab), "t")
    assert list(table["cpu"]) == ["0.0500 FLOP/B", "–"]
    assert "0.0500 FLOP/B" in figure.alt
    with pytest.raises(FigureError, match="no machine"):
        ceiling_figures.balances([], "t")
