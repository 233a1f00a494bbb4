"""Whose time includes the lab's launch path, and where it is marked: from synthetic records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import synthetic
from synthetic import Lines, evidence, row

from hypatia_lab import results, tables
from hypatia_lab.figures import comparisons
from hypatia_lab.variants import load

load()
pytestmark = pytest.mark.usefixtures("two_processes")

ORIGINS = {"eager": "peer", "epilogue": "peer", "cublas_relu": "seed", "aten": "seed"}
LAUNCHED = {"origin": "rebuilt", "operator": True, "clock": "wall", "device": "cuda"}
TIMES = {"eager": 100.0, "cublas_relu": 130.0, "aten": 101.0, "epilogue": 90.0}


def cells(times: Mapping[str, float], clock: str) -> Lines:
    who = {name: {"origin": origin, "operator": origin == "seed"} for name, origin in ORIGINS.items()}
    return [line | who[line["variant"]] for line in synthetic.cells(times, clock=clock)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"clock": "hot"}, True),
        ({"clock": "graph"}, False),
        ({"clock": "cold"}, False),
        ({"clock": "cold", "device": "cpu"}, True),
        ({"clock": "none", "device": "cpu"}, False),
        ({"origin": "author"}, False),
        ({"origin": "peer"}, False),
        ({"origin": "own"}, False),
        ({"operator": False}, False),
    ],
)
def test_whose_time_includes_the_labs_launch_path(changes: dict[str, Any], expected: bool) -> None:
    assert row(**LAUNCHED | changes).launch_path is expected


def test_tables_and_figures_mark_the_launch_path() -> None:
    times = [*cells(TIMES, "wall"), *cells(TIMES | {"cublas_relu": 100.0}, "graph")]
    rows = evidence({"method": times}).select(experiment="method")
    frame = tables.results_table(rows)
    marked = frame[frame["status"].str.contains("launch path")]
    assert set(zip(marked["variant"], marked["clock"], strict=True)) == {("cublas_relu", "wall"), ("aten", "wall")}
    figure, table = comparisons.ladder(rows)
    reads = table.set_index(["variant", "clock"])["reads"]
    assert reads["cublas_relu", "wall"] == results.LAUNCH
    assert reads["cublas_relu", "graph"] == "equal"
    alone, _ = comparisons.ladder([row for row in rows if not row.launch_path])
    assert figure.title == alone.title, "read apart by the way in, not by the clock"
    for draw in (comparisons.slowdowns, comparisons.times_against_limit):
        assert "launch path" in draw([row for row in rows if row.clock == "wall"])[0].head
        assert "launch path" not in draw([row for row in rows if row.clock == "graph"])[0].head


def test_a_ladder_of_rewrites_alone_can_be_drawn() -> None:
    rows = evidence({"method": cells({"eager": 9.0, "aten": 12.0}, "hot")}, "cpu").select(experiment="method")
    figure, _ = comparisons.ladder(rows)
    assert "aten" not in figure.title
