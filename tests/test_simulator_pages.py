"""What the pages on the diffraction simulator read of records."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import cells, detail_line, evidence, row

import hypatia_lab.experiments  # noqa: F401  (registers the operations of the cells below)
from hypatia_lab import claims, records
from hypatia_lab.figures import probes
from hypatia_lab.pages import simulator
from hypatia_lab.pages.evidence import Evidence


@pytest.mark.usefixtures("two_processes")
def test_an_image_in_float64_stands_beside_its_largest_in_float32() -> None:
    lines = cells({"*triton": 5}, "diffraction", [9, 9])
    for dtype, us in (("float32", 10), ("float64", 30)):
        lines += cells({"*cuda": us}, "diffraction", [8, 8], dtype=dtype)
        lines += cells({"*cuda": us}, "diffraction", [9, 9], dtype=dtype)
        lines += cells({"*c_openmp": 50}, "diffraction", [9, 9], dtype=dtype, clock="wall")
    found = {one.variant: one for one in simulator.in_float64(evidence({"precision": lines}), "box")}
    assert set(found) == {"cuda", "c_openmp"}
    assert (found["cuda"].shape, found["cuda"].baseline) == ("9x9", "float32")
    assert found["cuda"].speed.value == pytest.approx(1 / 3)


def test_the_largest_workload_is_that_of_most_elements() -> None:
    rows = [row(shape=shape) for shape in ("10x10x2", "9x9x9", "100x2x1", "9x9x9")]
    assert [one.shape for one in simulator.largest(rows)] == ["9x9x9", "9x9x9"]
    assert simulator.largest([]) == []


def test_the_size_that_most_was_looked_at_leads() -> None:
    looked = [(8, "eager"), (9, "eager"), (9, "cuda"), (10, "eager")]
    own = {"topic": "trace", "machine": "box"}
    lines = [detail_line(shape=[size, size], variant=name) | own for size, name in looked]
    found, _, _ = probes.read(lines, "a test", "trace")
    assert [(way.size, way.variant) for way in simulator.main_size(found)] == [(81, "eager"), (81, "cuda")]
    assert simulator.main_size([]) == []


def test_a_figure_of_the_document_stands_beside_the_ledgers() -> None:
    data = Evidence(records.load(records.COMMITTED), [])
    lines = simulator.said(data, "h200", {"kernel calls": "S003-40a", "never measured": "S003-71a"})
    assert [line["figure"] for line in lines] == ["kernel calls"]
    assert lines[0]["S003"] == f"{claims.claimed('S003-40a'):g} calls"
    assert lines[0]["here"] == "905 calls (n = 3)"


def test_traces_are_linked_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display

    shown: list[dict[str, str]] = []
    monkeypatch.setattr(IPython.display, "display", lambda what, raw: shown.append(what))
    simulator.show_traces("box", tmp_path)
    assert shown == []
    (tmp_path / "box" / "traces").mkdir(parents=True)
    (tmp_path / "box" / "traces" / "diffraction-8x8-eager-trace.json.gz").touch()
    simulator.show_traces("box", tmp_path)
    assert '"../records/box/traces/diffraction-8x8-eager-trace.json.gz" download' in shown[0]["text/html"]
