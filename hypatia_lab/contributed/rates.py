"""What a machine can do at most: from the committed records of its model, from data sheets, or a generous bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
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
CACHED = {"cold": 2.0, "graph": 8.0}
"""Caches beat a data sheet's memory by so much at most: what is cold is still written into a cache, and what is warm
lies in one. An H200 copies 1.2 times as fast as its memory, an H100 1.4 times."""

GPU_BOUND = 1e16, 1e14
"""FLOP/s and B/s of no single GPU yet."""
CORE_BOUND = 1e13, 2e12
"""The same of no processor core. Processors are not held against records of their name: what stands in a virtual
machine goes under names that tell neither generation nor clock."""


@cache
def data_sheets() -> dict[str, dict[str, Any]]:
    """Compute capability → published peaks of its fastest cards (see ``data_sheets.yaml``)."""
    import yaml

    return yaml.safe_load(Path(__file__).with_name("data_sheets.yaml").read_text(encoding="utf-8"))


def possible(contributed: Sequence[Record], known: Iterable[Record]) -> tuple[Rates, str]:
    """The highest rates that are believed of the machine of the ``contributed`` records, one at least, and their source
    in words; ``known`` are records of others."""
    run = contributed[0].run
    if run["device"] == "cpu":
        cores = run["facts"].get("cores", 1)
        most, source = _bound(CORE_BOUND, cores, ("hot", "cold")), "a generous bound a core"
    else:
        most, source = _of_gpu(run["facts"], known)
    # An arithmetic that nothing is known of is no faster than the fastest that is.
    fastest = max(rate for (quantity, _, _), rate in most.items() if quantity == "matmul")
    cells = [cell for record in contributed for cell in record.cells]
    kinds = {results.arithmetic(cell["dtype"], cell["math"], most) for cell in cells}
    kinds |= {f"{cell['dtype']}/{cell['math']}" for cell in cells}
    kinds |= {cell["splits"][0] for cell in cells if cell.get("splits")}
    kinds |= {precision for precision, _ in results.UNSAID.values()}
    clocks = {clock for quantity, _, clock in most if quantity == "copy"}
    return {("matmul", kind, clock): fastest for kind in kinds for clock in clocks} | most, source


def _of_gpu(facts: dict[str, Any], known: Iterable[Record]) -> tuple[Rates, str]:
    name = facts.get("name", "")
    same = [one for one in known if one.run["device"] == "cuda" and one.run["facts"].get("name") == name]
    same = [one for one in same if one.run["preset"] != "quick"]  # whose sizes are too small to reach what it can
    found = {key: MARGIN * rate for key, rate in results.ceilings(same).items()}  # of the best of these machines
    base, source = _published(facts)
    if found:
        machines = ", ".join(sorted({one.machine for one in same}))
        source = f"{MARGIN} times what the committed records of {name} reach ({machines})"
    return base | found, source


def _published(facts: dict[str, Any]) -> tuple[Rates, str]:
    """What a GPU of which no record tells can do, by its compute capability."""
    told = f"no committed record is of {facts.get('name') or 'this GPU'}"
    sheet = data_sheets().get(facts.get("capability", ""))
    if sheet is None:
        return _bound(GPU_BOUND, 1, CACHED), f"{told}, and its peaks are not listed: a bound of any GPU"
    found: Rates = {}
    for clock, factor in CACHED.items():
        found |= {("matmul", kind, clock): MARGIN * _T * rate for kind, rate in sheet["products"].items()}
        found["copy", "", clock] = MARGIN * factor * _T * sheet["memory"]
    cards = f"compute capability {facts['capability']} ({sheet['cards']})"
    return found, f"{told}: {MARGIN} times published peaks of {cards}"


def _bound(bound: tuple[float, float], units: int, clocks: Iterable[str]) -> Rates:
    """The same ``bound`` (FLOP/s, B/s) by every clock, of so many ``units`` of it."""
    flops, memory = bound
    found: Rates = {("copy", "", clock): units * memory for clock in clocks}
    return found | {("matmul", "float32/ieee", clock): units * flops for clock in clocks}
