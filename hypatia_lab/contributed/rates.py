"""What a machine can do at most: from the committed records of its model, from data sheets, or a generous bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import results
from hypatia_lab.records import Record

Rates = dict[tuple[str, str, str], float]
"""(quantity, dtype/math, clock) → rate, as :func:`hypatia_lab.results.ceilings` has it."""

MARGIN = 1.25
"""A chip may beat what is known of its model by a quarter.

The lab allows a tenth over measured ceilings (:data:`hypatia_lab.results.TOLERANCE`), and chips of one model differ by
about 8% (arXiv 2208.11035); the rest is for clocks and caps that a card's maker sets.
"""

_T = 1e12
PEAKS: dict[str, tuple[str, float, float, float, float, float]] = {
    "7.0": ("V100", 8.2 * _T, 16.4 * _T, 16.4 * _T, 130 * _T, 1.134 * _T),
    "8.0": ("A100", 19.5 * _T, 19.5 * _T, 156 * _T, 312 * _T, 2.04 * _T),
    "8.6": ("A40, RTX 3090 Ti", 0.63 * _T, 40 * _T, 74.8 * _T, 160 * _T, 1.01 * _T),
    "8.9": ("L40S, RTX 4090", 1.43 * _T, 91.6 * _T, 183 * _T, 362 * _T, 1.01 * _T),
    "9.0": ("H100, H200, GH200", 67 * _T, 67 * _T, 495 * _T, 990 * _T, 4.9 * _T),
    "10.0": ("B200", 40 * _T, 80 * _T, 1250 * _T, 2500 * _T, 8 * _T),
}
"""Compute capability → its fastest cards, and their published peaks without sparsity: float64, float32, TF32 and
16-bit products (FLOP/s), memory (B/s). Source: NVIDIA's data sheets of these cards."""
CACHED = {"cold": 2.0, "hot": 8.0, "graph": 8.0}
"""Caches beat a data sheet's memory by so much at most: what is cold is still written into a cache, and what is warm
lies in one. An H200 copies 1.2 times as fast as its memory, an H100 1.4 times."""

GPU_BOUND = 1e16, 1e14
"""FLOP/s and B/s of no single GPU yet."""
CORE_BOUND = 1e13, 2e12
"""The same of no processor core. Processors are not held against records of their name: what stands in a virtual
machine goes under names that tell neither generation nor clock."""


@dataclass(frozen=True)
class Possible:
    """The highest ``rates`` that are believed, by precision and clock, and their ``source`` in words."""

    rates: Rates
    source: str


def possible(contributed: Sequence[Record], known: Iterable[Record]) -> Possible:
    """What the machine of the ``contributed`` records, one at least, can do; ``known`` are records of others."""
    run = contributed[0].run
    facts = run["facts"]
    if run["device"] == "cpu":
        cores = facts.get("cores", 1)
        most, source = _all(CORE_BOUND[0] * cores, CORE_BOUND[1] * cores, ("hot", "cold")), "a generous bound a core"
    else:
        most, source = _of_gpu(facts, known)
    # An arithmetic that nothing is known of is no faster than the fastest that is.
    fastest = max(rate for (quantity, _, _), rate in most.items() if quantity == "matmul")
    clocks = {clock for quantity, _, clock in most if quantity == "copy"}
    for cell in (cell for record in contributed for cell in record.cells):
        kinds = {results.arithmetic(cell["dtype"], cell["math"], most), f"{cell['dtype']}/{cell['math']}"}
        kinds |= {cell["splits"][0]} if cell.get("splits") else set()
        for kind in kinds | {precision for precision, _ in results.UNSAID.values()}:
            for clock in clocks:
                most.setdefault(("matmul", kind, clock), fastest)
    return Possible(most, source)


def _of_gpu(facts: dict[str, Any], known: Iterable[Record]) -> tuple[Rates, str]:
    name = facts.get("name", "")
    same = [one for one in known if one.run["device"] == "cuda" and one.run["facts"].get("name") == name]
    same = [one for one in same if one.run["preset"] != "quick"]  # whose sizes are too small to reach what it can
    machines = sorted({one.machine for one in same})
    found: Rates = {}
    for machine in machines:
        for key, rate in results.ceilings([one for one in same if one.machine == machine]).items():
            found[key] = max(MARGIN * rate, found.get(key, 0.0))
    base, source = _published(facts)
    if found:
        source = f"{MARGIN} times what the committed records of {name} reach ({', '.join(machines)})"
    return base | found, source


def _published(facts: dict[str, Any]) -> tuple[Rates, str]:
    """What a GPU of which no record tells can do, by its compute capability."""
    told = f"no committed record is of {facts.get('name') or 'this GPU'}"
    peak = PEAKS.get(facts.get("capability", ""))
    if not peak:
        return _all(*GPU_BOUND, ("graph", "cold")), f"{told}, and its peaks are not listed: a bound of any GPU"
    cards, double, single, tf32, half, memory = peak
    peaks = {"float64/ieee": double, "float32/ieee": single, "float32/tf32": tf32}
    peaks |= {"bfloat16/ieee": half, "float16/ieee": half}
    found: Rates = {}
    for clock in ("graph", "cold"):
        found |= {("matmul", kind, clock): MARGIN * rate for kind, rate in peaks.items()}
        found["copy", "", clock] = MARGIN * CACHED[clock] * memory
    return found, f"{told}: {MARGIN} times published peaks of compute capability {facts['capability']} ({cards})"


def _all(flops: float, memory: float, clocks: Sequence[str]) -> Rates:
    found: Rates = {("copy", "", clock): memory for clock in clocks}
    return found | {("matmul", "float32/ieee", clock): flops for clock in clocks}
