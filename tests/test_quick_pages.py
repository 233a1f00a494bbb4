"""Every page made of what the quick preset plans for a CPU: what it leaves out must stop no page, nor noise be told."""

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

from hypatia_lab import intervals, planted, variants
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
    tensor_cores,
    torch_compile,
)
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.operations import safety

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


def planned(name: str, medians_of: Callable[[str], list[float]]) -> list[dict[str, Any]]:
    """A cell for each that the experiment plans; of probes a line that says they failed."""
    lines = []
    for group in composer.plan(name, "quick", "cpu"):
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
    for probe in EXPERIMENTS[name].probes("quick", "cpu", ()):
        work = probe.workload
        own = {"operation": work.operation, "shape": list(work.shape), "dtype": work.dtype, "math": work.math}
        said = {"values": [], "status": "crashed", "reason": "a test", "name": probe.topic, "unit": "1"}
        lines.append(detail_line(**own, variant=probe.variant, topic=probe.topic, case=probe.case, **said))
    return lines


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of a calm machine and of a noisy one."""
    root = tmp_path_factory.mktemp("quick")
    for machine, medians_of in (("box", calm), ("noise", noisy)):
        parts = {name: planned(name, medians_of) for name in EXPERIMENTS if name != "ceilings"}
        write_records(root, machine, "cpu", parts | {"ceilings": ceilings({"ieee": 1.0, "bfloat16": 1.0}, "hot")})
    return root


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pages work out of no record has tests of its own, and takes half of the time here."""
    rule = {"goal": "mlp", "rule": "a → b", "where": "anywhere", "claims": "FINITE", "gate": "holds"}
    monkeypatch.setattr(graph_optimizer, "rules", lambda: [rule])
    monkeypatch.setattr(planted, "tried", lambda: iter([{"planted": "x", "operation": "y", "named": "x"}]))
    monkeypatch.setattr(safety, "passed", lambda place: "all passed")
    monkeypatch.setattr(safety, "isolated", lambda place: "all passed")


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_no_page_misses_what_the_quick_preset_leaves_out_or_prints_noise(
    quick: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = played(page, quick, monkeypatch)
    assert text
    assert {shown: width for shown, width in widths(text).items() if width > 101} == {}  # of rounded bounds


CHAPTERS = (
    *(backward, conv_block, decisions, diffraction_findings, front, fused_mlp, gemm_ladder, graph_optimizer),
    *(layout_traffic, tensor_cores, torch_compile),
)


def test_noise_is_told_in_no_sentence(quick: Path) -> None:
    lab = evidence_of(quick)
    for chapter in CHAPTERS:
        for finding in chapter.findings(lab, "noise"):
            assert widths(finding.text) == {}, finding
            told_by_times = finding.figure in (intervals.TOO_NOISY, intervals.VETOED)
            assert told_by_times or not COMPARES.search(finding.title), finding
    assert front.leads(lab, "box")
    assert not any(lead.finding.open or lead.picture for lead in front.leads(lab, "noise"))
    calm_ones = [finding.title for chapter in CHAPTERS for finding in chapter.findings(lab, "box")]
    assert any(map(COMPARES.search, calm_ones))
