"""What two experiments measured alike: where their figures lie apart, and what the records say of it.

Each experiment has processes of its own, at times on another day. Every figure is taken from the records when a page is
made; a function is empty where nothing was measured twice, or nothing lies apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.phrases import times, waited
from hypatia_lab.results import Row

PAGES = {
    "aten_fusion": "[fusing Linear and ReLU](03_aten_fusion.html)",
    "gemm_ladder": "[the ladder](04_gemm_ladder.html)",
    "tensor_cores": "[tensor cores](14_tensor_cores.html)",
}
"""Experiments that time eager, the library and the compiler at the same sizes → the link to their page in the book."""
TUNED = ("aten_fusion", "tensor_cores")
"""Those of them that time what the compiler makes."""


def _named(row: Row) -> str:
    return f"`{row.variant}` at {row.at} in {row.dtype}" + ("" if row.math == "ieee" else f"/{row.math}")


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


def ratios(lab: Evidence, machine: str) -> str:
    """A sentence on the ratios against eager that two experiments found more than 2% apart."""
    pairs = both(lab, machine, *TUNED, operation="linear_relu", clock=lab.primary(machine))
    pairs = [(one, other) for one, other in pairs if one.variant != one.baseline]
    apart = [pair for pair in pairs if _apart(*(row.speed for row in pair))]
    if not apart:
        return ""
    said = [f"{_named(pair[0])} {listing([times(row.speed) for row in pair])}" for pair in apart]
    text = f"Of {len(pairs)} speeds against eager that both {PAGES[TUNED[0]]} and {PAGES[TUNED[1]]} measured on "
    text += f"`{machine}`, {len(apart)} lie more than 2% apart, intervals and all: {'; '.join(said)}. "
    names = list(dict.fromkeys(one.variant for one, _ in apart))
    if all(name.startswith("compile") for name in names):
        text += "All of them are the compiler's. Its interval covers the timing, not what it chose once for all "
        text += "processes of an experiment. "
    return text + ("What differs in plain `compile` was not looked into." if "compile" in names else "")


def clocks(lab: Evidence, machine: str, dtype: str = "bfloat16") -> str:
    """A sentence on the largest size, where the device lowered its clock, and not equally in every experiment."""
    cells = {
        record.experiment: [
            cell
            for cell in record.cells
            if (cell["operation"], cell["dtype"], cell["clock"]) == ("linear_relu", dtype, lab.primary(machine))
            and cell["status"] == "ok"
            and cell["sm_mhz"]
        ]
        for record in lab.of(machine)
        if record.experiment in PAGES
    }
    largest = max((cell["shape"] for own in cells.values() for cell in own), default=[])
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for experiment, own in cells.items():
        for cell in own:
            if cell["shape"] == largest and cell["variant"] in ("eager", "triton"):
                found.setdefault(cell["variant"], {})[experiment] = cell
    found = {name: by for name, by in found.items() if len(by) > 1 and any(cell["throttled"] for cell in by.values())}
    if not found:
        return ""
    off, said = 1.0, []
    for name, by in found.items():
        took_us = {experiment: results.across(cell["medians_us"]).value for experiment, cell in by.items()}
        cycles = [took_us[experiment] * cell["sm_mhz"][1] for experiment, cell in by.items()]
        off = max(off, max(cycles) / min(cycles))
        parts = [
            f"{formats.duration(took_us[experiment])} at {by[experiment]['sm_mhz'][1]:g} MHz in {PAGES[experiment]}"
            for experiment in PAGES
            if experiment in by
        ]
        said.append(f"`{name}` takes {listing(parts)}")
    text = f"At {formats.shape('x'.join(map(str, largest)))} in {dtype} `{machine}` lowered its clock while it "
    text += f"computed, and not equally in every experiment: {'; '.join(said)} (median readings). "
    text += f"Time multiplied by clock agrees within {formats.number(100 * (off - 1))}%. "
    return text + "So times and shares of the limit compare within a page, not between pages."


def waits(lab: Evidence, machine: str, one: str = "precision", other: str = "diffraction") -> str:
    """Sentences on the times that a caller waits and that two experiments on the simulator found more than 2% apart."""
    pairs = both(lab, machine, one, other, operation="diffraction", clock=waited(lab, machine))
    apart = [pair for pair in pairs if _apart(*(row.time for row in pair))]
    if not apart:
        return ""
    runs = {record.experiment: record.run["started"] for record in lab.of(machine)}
    apart.sort(key=lambda pair: pair[0].median_us / pair[1].median_us, reverse=True)
    said = [f"{_named(row)} takes {row.took} here and {peer.took} there" for row, peer in apart[:1]]
    alike = len({row.workload for row, _ in apart}) == 1
    names = [f"`{row.variant}`" if alike else _named(row) for row, _ in apart]
    said += [f"{name} {row.took} and {peer.took}" for name, (row, peer) in list(zip(names, apart, strict=True))[1:]]
    text = f"By the {waited(lab, machine)} clock {len(apart)} of {len(pairs)} forms that [the simulator's own page]"
    text += f"(07_diffraction.html) times too lie more than 2% apart on `{machine}`: {'; '.join(said)}. "
    return text + f"This page's record began on {runs[one][:10]}, that page's on {runs[other][:10]}."


def show(sentences: Sequence[str]) -> None:
    """Display those of ``sentences`` that say something, each a paragraph."""
    from IPython.display import Markdown, display

    if said := [sentence for sentence in sentences if sentence]:
        display(Markdown("\n\n".join(said)))
