"""Which page shows the verdicts on which claims: a condition a page, on each part of a claim in the ledger."""

from __future__ import annotations

from collections.abc import Callable

from hypatia_lab import claims
from hypatia_lab.claims import Claim

APART = {
    "08_profile": ("S003-62", "S003-86"),
    "09_precision": ("S003-97",),
    "10_warm_up": ("S003-02", "S003-71", "S003-89"),
    "07_diffraction": ("S003-26", "S003-67", "S003-98"),
    "11_graph_optimizer": ("S004-17", "S004-55", "S004-67"),
    "14_tensor_cores": ("S001-07", "S002-58", "S004-21", "S004-24"),
    "15_backward": ("S001-66", "S002-37"),
    "17_layout_traffic": ("S001-12", "S002-15", "S002-19"),
}
"""Page → claims of other sections or experiments that it has the figures for, with all of their parts."""
DIFFRACTION = {
    "2. Setup Overhead Breakdown": "10_warm_up",
    "3. CUDA Profiling Results": "08_profile",
    "4. FP32 vs FP64 Comparison": "09_precision",
    "5. Warm-up Performance Discovery": "10_warm_up",
    "Primary Bottleneck: Cold-Start torch.compile Overhead": "10_warm_up",
    "Secondary Bottleneck: Kernel Launch Overhead": "08_profile",
    "What's Working Well": "08_profile",
    "Short-Term (Document & Accept)": "10_warm_up",
}
"""Section of S003 → the page that shows the verdicts on its claims, where that is not 07_diffraction."""
BLOCK = ("Performance Results", "What We Tried", "Root Cause", "Lessons Learned")
"""Sections of S000 on its kernels; those on the compiler have their own page."""
AUTHORS = ("", "kernel_only_v1", "kernel_only_v2", "kernel_only_planc", "memory")
"""Scripts of the author's on one call of Linear+ReLU, as cases; the others belong to other pages."""
MODELS = ("mlp_fusion", "multiconfig", "safety")
"""Scripts of the author's on models of several layers."""


def _one_call(claim: Claim, experiment: str, naive: bool) -> bool:
    """Whether ``claim`` is on one call of Linear+ReLU, and on the naive kernel or not.

    What is counted in memory, is about a training step or follows from arithmetic alone is left to other pages.
    """
    own = claim.rewritten()
    elsewhere = any(figure.topic == "counters" or figure.case not in AUTHORS for figure in own.figures)
    return (
        claim.seed in ("S001", "S002", "S004")
        and claim.experiment in (experiment, "author_hypatia")
        and own.programs.isdisjoint(("naive", "author_v1")) != naive
        and bool(claim.workloads)
        and all(workload.endswith("/forward") for workload in claim.workloads)
        and not elsewhere
    )


def _works_on(claim: Claim, *operations: str) -> bool:
    return any(workload.partition("/")[0] in operations for workload in claim.workloads)


PAGES: dict[str, Callable[[Claim], bool]] = {
    "02_naive_vs_cublas": lambda c: _one_call(c, "naive_vs_cublas", naive=True),
    "03_aten_fusion": lambda c: _one_call(c, "aten_fusion", naive=False),
    "04_gemm_ladder": lambda c: c.experiment == "gemm_ladder" or c.section == "Complexity of Optimized GEMM",
    "05_conv_block": lambda c: c.seed == "S000" and c.section in BLOCK,
    "06_torch_compile": lambda c: (
        c.seed == "S000" and (c.experiment == "torch_compile" or c.section.startswith(("Strategy", "Expected Results")))
    ),
    "11_graph_optimizer": lambda c: c.experiment == "graph_optimizer" or c.section == "Graph-Level Fusion",
    "14_tensor_cores": lambda c: (
        c.experiment == "tensor_cores" or (c.seed == "S004" and c.variant == "epilogue" and "fusion" in c.claim)
    ),
    "15_backward": lambda c: (
        c.experiment == "backward"
        or "Backward" in c.section
        or any(name.startswith("linear_relu/") and name.endswith("/forward_backward") for name in c.workloads)
    ),
    "16_fused_mlp": lambda c: (
        c.experiment in ("fused_mlp", "mlp_models")
        or any(figure.case in MODELS for figure in c.figures)
        or (not c.experiment and _works_on(c, "mlp", "mlp2", "mlp3"))
    ),
    "17_layout_traffic": lambda c: (
        c.experiment in ("layout", "traffic")
        or (c.seed == "S001" and c.section == "Memory Traffic Analysis")
        or _works_on(c, "linear_relu_layout")
        or any(figure.topic == "counters" for figure in c.figures)
    ),
}
"""Page → whether it shows the verdict on a part of a claim, but for S003's and those that are set in :data:`APART`."""


def claims_of(page: str) -> list[Claim]:
    """The claims whose verdicts ``page`` shows, in the order of the ledger; of S003 all parts of one on one page."""
    found = claims.ledger()
    if shows := PAGES.get(page):
        return [claim for claim in found if claim.lead in APART.get(page, ()) or shows(claim)]
    # A part may stand in another section of the document than the claim.
    own = {claim.lead: DIFFRACTION.get(claim.section, "07_diffraction") for claim in reversed(found)}
    own |= {lead: other for other, leads in APART.items() for lead in leads}
    return [claim for claim in found if claim.seed == "S003" and own[claim.lead] == page]
