"""What two experiments measured alike: where their figures lie apart, and what the records say of it.

Each experiment has processes of its own, at times on another day.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.results import Row
from hypatia_lab.variants import label

PAGES = {
    "aten_fusion": "[fusing Linear and ReLU](03_aten_fusion.html)",
    "gemm_ladder": "[the ladder](04_gemm_ladder.html)",
    "tensor_cores": "[tensor cores](14_tensor_cores.html)",
}
"""Experiments that time eager, the library and the compiler at the same sizes → the link to their page in the book."""
TUNED = ("aten_fusion", "tensor_cores")
"""Those of them that time what the compiler makes."""


def both(lab: Evidence, machine: str, one: str, other: str, **wanted: Any) -> list[tuple[Row, Row]]:
    """Rows with a time of the same workload, variant and clock in two experiments, without the A/A control."""
    first, second = (lab.select(machine=machine, experiment=name, status="ok", **wanted) for name in (one, other))
    there = {(row.workload, row.variant, row.clock): row for row in second}
    pairs = [(row, there.get((row.workload, row.variant, row.clock))) for row in first]
    return [(row, peer) for row, peer in pairs if peer is not None and not row.is_twin]


def _apart(one: Interval, other: Interval) -> bool:
    """Whether two intervals, which both say something, lie more than 2% apart."""
    near = 1 + intervals.EQUIVALENCE
    return not one.doubt and other.outside(one.low / near, one.high * near)


def _named(row: Row) -> str:
    return f"{label(row.operation, row.variant)} at {row.at} in {'TF32' if row.math == 'tf32' else row.dtype}"


def ratios(lab: Evidence, machine: str) -> str:
    """Two sentences on the ratios against eager that two experiments found more than 2% apart."""
    pairs = both(lab, machine, *TUNED, operation="linear_relu", clock=lab.primary(machine))
    pairs = [(one, other) for one, other in pairs if one.variant != one.baseline]
    apart = [pair for pair in pairs if _apart(*(row.speed for row in pair))]
    if not apart:
        return ""
    compiled = all("compile" in one.variant for one, _ in apart)
    one, other = max(apart, key=lambda pair: abs(math.log(pair[0].ratio / pair[1].ratio)))
    here, there = (formats.spoken(row.ratio) for row in (one, other))
    return (
        f"Of {len(pairs)} speeds against eager that both {PAGES[TUNED[0]]} and {PAGES[TUNED[1]]} show, {len(apart)} "
        f"differ by more than 2%{': the compiler chose other kernels, once an experiment' if compiled else ''}. "
        f"The widest is {_named(one)}: {here}× in {PAGES[TUNED[0]]}, and {there}× in {PAGES[TUNED[1]]}."
    )


def clocks(lab: Evidence, machine: str, dtype: str = "bfloat16") -> str:
    """Sentences on the largest size, where the device lowered its clock, and not equally in every experiment."""
    cells = {
        (cell["variant"], tuple(cell["shape"]), record.experiment): cell
        for record in lab.of(machine)
        if record.experiment in PAGES
        for cell in record.cells
        if (cell["operation"], cell["dtype"], cell["clock"]) == ("linear_relu", dtype, lab.primary(machine))
        and (cell["status"], cell["variant"]) == ("ok", "eager")
        and cell["sm_mhz"]
    }
    largest = max((shape for _, shape, _ in cells), default=())
    found = {experiment: cell for (_, shape, experiment), cell in cells.items() if shape == largest}
    if len(found) < 2 or not any(cell["throttled"] for cell in found.values()):
        return ""
    took_us = {experiment: results.across(cell["medians_us"]).value for experiment, cell in found.items()}
    mhz = {experiment: cell["sm_mhz"][1] for experiment, cell in found.items()}
    cycles = [took_us[experiment] * mhz[experiment] for experiment in found]
    said = [
        f"{formats.duration(took_us[experiment])} at {mhz[experiment]:g} MHz ({PAGES[experiment]})"
        for experiment in PAGES
        if experiment in found
    ]
    return (
        f"At {'×'.join(map(str, largest))} in {dtype} the GPU lowered its clock, and not alike in every experiment. "
        f"Eager takes {listing(said)}: the same number of cycles within "
        f"{formats.spoken(100 * (max(cycles) / min(cycles) - 1))}%. Compare times within a page, not between pages."
    )


def show(sentences: Sequence[str]) -> None:
    """Display those of ``sentences`` that say something, each a paragraph."""
    from IPython.display import Markdown, display

    if said := [sentence for sentence in sentences if sentence]:
        display(Markdown("\n\n".join(said)))
