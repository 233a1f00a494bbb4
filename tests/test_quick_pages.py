"""Every page made of what is planned: for a CPU, for a GPU, and for a machine that was never asked; calm and noisy."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import ceilings, cell_line, detail_line, evidence_of, played, widths, write_records

from hypatia_lab import intervals, planted, results, variants
from hypatia_lab.bench import composer
from hypatia_lab.chapters import (
    backward,
    conv_block,
    decisions,
    diffraction_findings,
    front,
    fused_mlp,
    gemm_ladder,
    graph_optimizer,
    layout_traffic,
    linear_relu,
    tensor_cores,
    torch_compile,
    untuned,
)
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.operations import safety
from hypatia_lab.pages.evidence import Evidence

NOTEBOOKS = sorted(path.stem for path in (Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
COMPARES = re.compile(r"\b(faster|slower|gains?|pays?|beats?|keeps? up|as fast as)\b")
"""Words of a title that sets one time against another."""


def calm(name: str) -> list[float]:
    """Five processes within 1%."""
    us = 90.0 + int(hashlib.sha256(name.rpartition("/")[2].encode()).hexdigest(), 16) % 20
    return [us, 1.01 * us, 1.005 * us, us, 1.01 * us]


def noisy(name: str) -> list[float]:
    """Five processes that scatter by a factor of some four."""
    draw = random.Random(name)
    return [100.0 * math.exp(draw.gauss(0, 1.4)) for _ in range(5)]


def planned(
    name: str, medians_of: Callable[[str], list[float]], preset: str = "quick", device: str = "cpu"
) -> list[dict[str, Any]]:
    """A cell for each that the experiment plans; of probes a line that says they failed."""
    lines = []
    for group in composer.plan(name, preset, device):
        work = group.workload
        own = {"operation": work.operation, "shape": list(work.shape), "dtype": work.dtype, "math": work.math}
        own |= {"direction": work.direction, "flops": work.flops, "traffic": work.traffic}
        for variant in group.variants:
            spec = variants.find(work.operation, variant)
            base = spec.name if variant.endswith(variants.AGAIN) else variants.baseline(work.operation)
            for clock in group.clocks or ("none",):
                medians = medians_of(f"{name}/{own}/{clock}/{variant}") if group.clocks else []
                who = {"variant": variant, "origin": spec.origin, "baseline": base}
                lines.append(cell_line(**own, **who, clock=clock, medians_us=medians, samples_us=medians))
    for probe in EXPERIMENTS[name].probes(preset, device, ()):
        work = probe.workload
        own = {"operation": work.operation, "shape": list(work.shape), "dtype": work.dtype, "math": work.math}
        said = {"values": [], "status": "crashed", "reason": "a test", "name": probe.topic, "unit": "1"}
        lines.append(detail_line(**own, variant=probe.variant, topic=probe.topic, case=probe.case, **said))
    return lines


RATES = {"ieee": 1.0, "tf32": 4.0, "float16": 8.0, "bfloat16": 8.0}
CALM, NOISY = ("card", "box"), ("fever", "noise")
"""Machines that were asked for all there is: a GPU and a CPU of either kind."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of them, and of a CPU, ``idle``, that was asked for one experiment alone."""
    found = tmp_path_factory.mktemp("planned")
    for machines, medians_of in ((CALM, calm), (NOISY, noisy)):
        for machine, preset, device, clock in zip(
            machines, ("seed", "quick"), ("cuda", "cpu"), ("graph", "hot"), strict=True
        ):
            parts = {name: planned(name, medians_of, preset, device) for name in EXPERIMENTS if name != "ceilings"}
            write_records(found, machine, device, parts | {"ceilings": ceilings(RATES, clock)})
    write_records(found, "idle", "cpu", {"naive_vs_cublas": planned("naive_vs_cublas", calm)})
    return found


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pages work out of no record has tests of its own, and takes half of the time here."""
    rule = {"goal": "mlp", "rule": "a → b", "where": "anywhere", "claims": "FINITE", "gate": "holds"}
    monkeypatch.setattr(graph_optimizer, "rules", lambda: [rule])
    monkeypatch.setattr(planted, "tried", lambda: iter([{"planted": "x", "operation": "y", "named": "x"}]))
    monkeypatch.setattr(safety, "passed", lambda place: "all passed")
    monkeypatch.setattr(safety, "isolated", lambda place: "all passed")


CHAPTERS = (
    *(backward, conv_block, decisions, diffraction_findings, front, fused_mlp, gemm_ladder, graph_optimizer),
    *(layout_traffic, linear_relu, tensor_cores, torch_compile, untuned),
)
HOMES = {getattr(chapter, "PAGE", ""): chapter for chapter in CHAPTERS if chapter is not decisions}
"""Page → the chapter whose findings are its cards."""


# A page takes three seconds: every second one is left to the slow tests.
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (place % 2)) for place, page in enumerate(NOTEBOOKS)]
)
def test_a_page_misses_nothing_that_was_not_planned_and_prints_no_noise(
    root: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = played(page, root, monkeypatch)
    assert text
    assert {shown: width for shown, width in widths(text).items() if width > 101} == {}  # of rounded bounds
    assert "(card)" not in text or "(box)" not in text or text.index("(card)") < text.index("(box)"), "GPUs first"
    if page in HOMES:
        lab = evidence_of(root)
        for machine in (*CALM, *NOISY):
            found = HOMES[page].findings(lab, machine)
            assert found or lab.primary(machine) == "hot"
            assert all(f"{one.figure}: {one.title}" in text for one in found)


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_a_page_stands_before_anything_was_measured_for_it(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path, "box", "cpu", {"ceilings": ceilings({"ieee": 1.0}, "hot")})
    assert played(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("machine", ["box", "card"])
def test_nothing_is_told_of_what_was_not_measured(machine: str, root: Path) -> None:
    bare = [record for record in evidence_of(root).of(machine) if record.experiment == "ceilings"]
    lab = Evidence(bare, results.rows(bare))
    assert [chapter for chapter in CHAPTERS if chapter is not decisions and chapter.findings(lab, machine)] == []


@pytest.mark.parametrize(("machine", "steady"), [*zip(NOISY, CALM, strict=True)])
def test_noise_is_told_in_no_sentence(machine: str, steady: str, root: Path) -> None:
    lab = evidence_of(root)
    for chapter in CHAPTERS:
        for finding in chapter.findings(lab, machine):
            assert widths(finding.text) == {}, finding
            told_by_times = finding.figure in (intervals.TOO_NOISY, intervals.VETOED)
            assert told_by_times or not COMPARES.search(finding.title), finding
    assert front.leads(lab, steady)
    assert not any(lead.finding.open or lead.picture for lead in front.leads(lab, machine))
    calm_ones = [finding.title for chapter in CHAPTERS for finding in chapter.findings(lab, steady)]
    assert any(map(COMPARES.search, calm_ones))
