"""The front page's findings: what leads each chapter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab.chapters import (
    backward,
    conv_block,
    diffraction_findings,
    fused_mlp,
    gemm_ladder,
    graph_optimizer,
    layout_traffic,
    linear_relu,
    tensor_cores,
    torch_compile,
)
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.tables import claims as claim_tables

HEADLINES = (
    ("02_naive_vs_cublas", "how-much-slower"),
    ("03_aten_fusion", "is-the-relu-free"),
    ("14_tensor_cores", "time-and-error"),
    ("16_fused_mlp", "against-eager"),
    ("15_backward", "a-whole-step-against-eager"),
    ("07_diffraction", "what-a-caller-waits-for"),
    ("06_torch_compile", "gain-against-eager-in-float32"),
)
"""Chapters whose weightiest finding opens the book, and the place of the figure behind it."""
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
    return [*linear_relu.findings(lab, machine), *product, *diffraction_findings.findings(lab, machine)]


def headlines(lab: Evidence, machine: str) -> list[Finding]:
    """A handful of findings that say something, with their first sentence each, linked to where the figure is drawn."""
    found = [one for one in findings(lab, machine) if not one.open]
    first = {page: next((one for one in found if one.page == page), None) for page, _ in HEADLINES}
    return [
        replace(one, page=f"{page}#{place}", text=re.split(r"(?<=\.) ", one.text)[0])
        for page, place in HEADLINES
        if (one := first[page])
    ]


def ledger(judged: Sequence[dict[str, Any]], machine: str, device: str) -> str:
    """What became of all claims on ``machine``, a ``device``, in two sentences; ``judged`` are statements."""
    rows = [row for row in judged if row["machine"] in (machine, claim_tables.ANY)]
    count = Counter(row["verdict"] for row in rows)
    hold, fallen = count["confirmed"] + count["exceeded"], count["refuted"] + count["inconsistent"]
    open_ = count["not_testable"] + count["invalid"]
    documents = len({row["seed"] for row in rows})
    return (
        f"Of {len(rows)} claims in {documents} documents, **{hold} hold and {fallen} fall** on {device}: "
        f"they are refuted, or fail their own arithmetic. {count['conditional']} hold in part or under some "
        f"conditions, and {count['undecided']} are undecided. {count['not_reproduced']} are not reproduced: only a "
        f"rewrite could be measured, or a forecast was not reached. {open_} could not be judged by what was measured "
        '(<a href="12_claims.html">the ledger</a>).'
    )
