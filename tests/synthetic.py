"""Lines of records that nothing measured, for tests: valid as they are, changed by keyword; and pages made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

import hypatia_lab
from hypatia_lab import records, results
from hypatia_lab.claims import Judgement
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.workloads import Workload

Lines = list[dict[str, Any]]
"""Lines of a record."""
_Some = TypeVar("_Some")

_NUMBER = r"[-−]?[\d,]*\.?\d+(?:e[-+]?\d+)?"
_PRINTED = re.compile(rf"({_NUMBER})\S* ?\S* \[({_NUMBER}), ({_NUMBER})\]")


WIDEST = 105.1
"""The widest factor between printed bounds: those of an interval a hundredfold wide around 1.05, 0.105 to 10.5, of
which the low end may be printed as 0.10 for 0.105 (a twentieth too low) and the high end with three digits."""


def widths(text: str) -> dict[str, float]:
    """Each estimate with an interval that ``text`` shows, as pages write it, and the factor between its bounds.

    Without those of nothing at all: none of some pairs is a share that has no factor.
    """
    found = {}
    for match in _PRINTED.finditer(text):
        value, low, high = (float(part.replace(",", "").replace("−", "-")) for part in match.groups())
        if value:
            found[match[0]] = Interval(value, low, high, 8).width
    return found


def recorded(root: Path) -> list[str]:
    """``machine/experiment`` of every record below ``root``, a visit each."""
    return sorted("/".join(records.place(path)) for path in records.visits(root))


def run_line(**changes: Any) -> dict[str, Any]:
    """A valid run line of two processes on a CPU machine called ``box``."""
    return {
        "kind": "run",
        "schema": records.SCHEMA,
        "machine": "box",
        "experiment": "method",
        "preset": "quick",
        "device": "cpu",
        "started": "2025-01-01T00:00:00Z",
        "commit": "unknown",
        "dirty": True,
        "processes": 2,
        "facts": {"name": "Prozessor für Tests"},
    } | changes


EAGER: dict[str, Any] = {"operation": "linear_relu", "shape": [2, 3, 4], "dtype": "float32", "math": "ieee"}
EAGER |= {"variant": "eager", "status": "ok", "reason": ""}


def cell_line(**changes: Any) -> dict[str, Any]:
    """A valid cell line of ``eager`` with a median for the first of two processes."""
    return {
        **EAGER,
        "kind": "cell",
        "direction": "forward",
        "seed": 0,
        "clock": "hot",
        "origin": "peer",
        "baseline": "eager",
        "error": 1e-7,
        "max_error": None,
        "flops": 48,
        "traffic": 112,
        "medians_us": [1.5, None],
        "samples_us": [1.25, 1.5],
        "calls": 3,
        "outliers": {"mild": 0, "severe": 0, "of": 2},
        "sm_mhz": [],
        "power_w": [],
        "throttled": False,
    } | changes


def cells(
    times: Mapping[str, float], operation: str = "linear_relu", shape: Sequence[int] = (1024, 784, 2048), **changes: Any
) -> Lines:
    """Timed cells of two processes 1% apart, of which a ratio is exact: variant → µs, on a GPU's own clock.

    ``*name`` is a kernel of our own.
    """
    own = {"dtype": "float32", "math": "ieee", "clock": "graph", "direction": "forward"} | changes
    work = Workload(operation, tuple(shape), own["dtype"], own["math"], own["direction"])
    size = {"operation": operation, "shape": list(shape), "flops": work.flops, "traffic": work.traffic}
    found = []
    for name, us in times.items():
        who = {"variant": name.lstrip("*"), "origin": "own" if name[0] == "*" else "peer"}
        found.append(cell_line(**size | who | {"medians_us": [us, 1.01 * us]} | own))
    return found


def row(**changes: Any) -> results.Row:
    """The results row of :func:`cell_line`, changed by keyword: ``row(ratio=2.0)``."""
    (found,) = results.rows([records.Record(Path(), run_line(), (cell_line(),), "")])
    return replace(found, **changes)


def judgement(**changes: Any) -> Judgement:
    """A judgement on a claim of S001 that a measurement on ``h200`` refutes, changed by keyword."""
    found = Judgement(
        id="S001-01",
        lead="S001-01",
        document="S001",
        section="Problem",
        claim="naive is 7.67 times slower than eager",
        claimed=7.67,
        unit="×",
        workload="linear_relu/1024x784x2048/float32/ieee/forward",
        machine="h200",
        measured=27.1234,
        low=26.9,
        high=27.3,
        n=8,
        sense="about",
        program="author",
        band_set="2026-11-21 before",
        band=(6.903, 8.437),
        quantity="slowdown",
        verdict="refuted",
        reason="interval outside the band",
        why="Because.",
        details=("Because.", "It contradicts S001-09a."),
    )
    return replace(found, **changes)


def detail_line(**changes: Any) -> dict[str, Any]:
    """A valid detail line: the second call of ``eager`` in each of two processes."""
    return {
        **EAGER,
        "kind": "detail",
        "topic": "start",
        "case": "",
        "name": "call 2",
        "unit": "ms",
        "count": 1,
        "values": [1.5, 1.25],
    } | changes


def ceilings(rates: Mapping[str, float], clock: str = "graph") -> list[dict[str, Any]]:
    """Cells of the ``ceilings`` experiment: a copy at 4 TB/s and products at TFLOP/s ``rates``, by math or dtype."""
    found = [cell_line(operation="copy", shape=[2**28], clock=clock, flops=0, traffic=4 * 10**9)]
    kinds = {"ieee": ("float32", "ieee"), "tf32": ("float32", "tf32")}
    for name, rate in rates.items():
        dtype, mode = kinds.get(name, (name, "ieee"))
        work = {"operation": "matmul", "shape": [9, 9, 9], "dtype": dtype, "math": mode, "flops": round(rate * 1e9)}
        found.append(cell_line(clock=clock, traffic=0, **work))
    return [line | {"medians_us": [1000.0, 1000.0]} for line in found]


def write_records(root: Path, machine: str, device: str, parts: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Records of ``machine`` under ``root``, a file an experiment, of cell and detail lines in any order."""
    for name, lines in parts.items():
        cells, details = ([one for one in lines if one["kind"] == kind] for kind in ("cell", "detail"))
        processes = max((len(cell["medians_us"]) for cell in cells), default=0) or 2
        run = run_line(machine=machine, experiment=name, device=device, processes=processes)
        records.write(root, run, cells, details)


def evidence(parts: Mapping[str, Sequence[dict[str, Any]]], device: str = "cuda", **run: Any) -> Evidence:
    """Evidence of one machine, ``box``, without a file: experiment → its cell and detail lines in any order."""
    found = []
    for name, lines in parts.items():
        own, details = (tuple(line for line in lines if line["kind"] == kind) for kind in ("cell", "detail"))
        found.append(records.Record(Path("nowhere"), run_line(experiment=name, device=device, **run), own, "", details))
    return Evidence(found, results.rows(found))


def said(found: _Some | None) -> _Some:
    """What was found, which must be something."""
    assert found is not None
    return found


def evidence_of(root: Path) -> Evidence:
    """What a notebook reads from the records under ``root``."""
    found = records.load(root)
    return Evidence(found, results.rows(found))


def displayed(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``notebook`` prints and displays as text when its code is run here."""
    import IPython.display

    from hypatia_lab.pages import notebook as common

    shown: list[str] = []

    def display(*objects: Any, raw: bool = False) -> None:
        shown.extend(one["text/plain"] if raw else getattr(one, "data", str(one)) for one in objects)

    for home in (IPython.display, common):  # the second has bound the name
        monkeypatch.setattr(home, "display", display)
    space: dict[str, Any] = {"print": lambda *said: shown.append(" ".join(map(str, said)))}
    for one in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if one["cell_type"] == "code":
            exec("".join(one["source"]), space)
    return "\n".join(shown)


def played(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What notebook ``name`` displays as text when its records are those under ``root``; it checks no variant."""

    def verify(operation: str, device: str, without: Sequence[str] = ()) -> str:
        return f"{operation} verified{' without ' if without else ''}{', '.join(without)}"

    monkeypatch.setattr(records, "COMMITTED", root)
    monkeypatch.setattr(
        hypatia_lab, "verify", verify, raising=False
    )  # it has tests of its own, and compiles for seconds
    return displayed(Path(__file__).resolve().parent.parent / "notebooks" / f"{name}.ipynb", monkeypatch)
