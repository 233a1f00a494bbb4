"""The front page's findings: what leads each chapter."""

from __future__ import annotations

from hypatia_lab import findings as house
from hypatia_lab.chapters import (
    backward,
    conv_block,
    diffraction_findings,
    fused_mlp,
    gemm_ladder,
    graph_optimizer,
    layout_traffic,
    tensor_cores,
    torch_compile,
)
from hypatia_lab.findings import Finding
from hypatia_lab.notebook import Evidence

LEADING = (
    (gemm_ladder, 1),
    (conv_block, 2),
    (torch_compile, 2),
    (tensor_cores, 3),
    (backward, 1),
    (fused_mlp, 2),
    (layout_traffic, 1),
    (graph_optimizer, 2),
)
"""Chapters and how many of their findings the front page takes; each lists its own by weight."""


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say: the house's findings, the product's chapters', the simulator's."""
    product = [found for chapter, most in LEADING for found in chapter.findings(lab, machine)[:most]]
    return [*house.findings(lab, machine), *product, *diffraction_findings.findings(lab, machine)]
