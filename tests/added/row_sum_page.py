"""Row sums: how many cases a product wins."""

from __future__ import annotations

from hypatia_lab.pages.evidence import Evidence


def cases(lab: Evidence, machine: str) -> int:
    """Timed cases of the product."""
    return len(lab.leading(machine, experiment="row_sum", variant="product", status="ok"))
