"""Tabs by machine: the marks between outputs, in order, and the outputs as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("IPython")
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Markdown, display
from IPython.utils.capture import capture_output
from synthetic import cell_line, evidence_of, run_line, write_records

from hypatia_lab import records
from hypatia_lab.pages import by_machine
from hypatia_lab.pages.evidence import Evidence

MARK = re.compile(r'^<p class="lab-panel" data-machine="([^"]*)">')


@pytest.fixture(scope="module", autouse=True)
def shell() -> Iterator[None]:
    """A notebook's shell, which displays."""
    InteractiveShell.instance()
    yield
    InteractiveShell.clear_instance()


def lab_of(root: Path, *machines: str) -> Evidence:
    for name in machines:
        run = run_line(machine=name, facts={"name": f"Chip <{name}>"})
        records.write(root, run, [cell_line(), cell_line(variant="naive", origin="own", medians_us=[3.0, 3.1])])
    return evidence_of(root)


def parts(lab: Evidence, shown: dict[str, list[Any]], machines: list[str] | None = None) -> list[dict[str, Any]]:
    """What a cell displays whose loop displays ``shown`` of each machine."""
    with capture_output() as caught:
        for name in by_machine.tabs(lab, machines):
            for one in shown.get(name, []):
                display(one)
    return [output.data for output in caught.outputs]


def marked(outputs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Machine → what stands behind its mark, the mark first."""
    found: dict[str, list[dict[str, Any]]] = {}
    name = ""
    for data in outputs:
        if mark := MARK.match(data.get("text/html", "")):
            name = mark[1]
        if "lab-panels-end" in data.get("text/html", "") and "lab-tabs" not in data["text/html"]:
            name = ""
        if name:
            found.setdefault(name, []).append(data)
    return found


def test_each_output_stands_behind_the_mark_of_its_machine_and_stays_what_it_is(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, "one", "two")
    outputs = parts(lab, {"one": [Markdown("*first*")], "two": [Markdown("*second*"), Markdown("*third*")]})
    assert 'value="one" checked' in outputs[0]["text/html"]
    found = marked(outputs)
    assert {name: [data.get("text/markdown") for data in own[1:]] for name, own in found.items()} == {
        "one": ["*first*"],
        "two": ["*second*", "*third*"],
    }
    assert outputs[-1]["text/html"] == '<div class="lab-panels-end"></div>'
    assert "Chip <" not in "".join(data.get("text/html", "") for data in outputs)  # a name is data


def test_a_machine_of_which_there_is_nothing_says_so_and_of_none_there_is_no_bar(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, "one", "two", "three")
    found = marked(parts(lab, {"two": [Markdown("*it*")], "three": [Markdown("*not asked for*")]}, ["one", "two"]))
    assert {name: len(own) for name, own in found.items()} == {"one": 1, "two": 2, "three": 1}
    assert "nothing to show" in found["one"][0]["text/plain"]
    assert "nothing to show" not in found["two"][0]["text/plain"]
    assert parts(lab, {}) == []


def test_one_machine_alone_has_no_bar(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, "one")
    assert [data["text/markdown"] for data in parts(lab, {"one": [Markdown("*it*")]})] == ["*it*"]


def test_the_readers_machine_comes_second_and_is_marked(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, "a", "b", "c")
    for here, order in (("", "abc"), ("a", "bac"), ("b", "abc"), ("c", "acb")):
        own = Evidence(lab.records, lab.rows, here=here)
        assert by_machine.ordered(own) == list(order)
        yours = [name for name, text in by_machine.called(own).items() if text.endswith("(yours)")]
        assert yours == [here] * bool(here)


def test_a_machine_has_a_short_name_and_its_own_where_several_share_that(tmp_path: Path) -> None:
    cards = {"one": "NVIDIA H200", "two": "NVIDIA H100 80GB HBM3", "three": "NVIDIA H100 80GB HBM3"}
    for name, model in cards.items():
        records.write(tmp_path, run_line(machine=name, device="cuda", facts={"name": model}), [cell_line()])
    for name, facts in (("box", {"cores": 2}), ("old", {})):
        records.write(tmp_path, run_line(machine=name, facts={"name": "AMD EPYC"} | facts), [cell_line()])
    called = by_machine.called(evidence_of(tmp_path))
    assert set(called.values()) == {"H200", "H100 two", "H100 three", "2 CPU cores", "? CPU cores"}
    assert (called["one"], called["three"], called["box"]) == ("H200", "H100 three", "2 CPU cores")
    assert list(called)[3:] == ["box", "old"]  # GPUs first


def test_what_stops_in_the_middle_leaves_the_shell_as_it_was(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, "one", "two")
    publisher = InteractiveShell.instance().display_pub

    def body() -> None:
        for _ in by_machine.tabs(lab):
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        body()
    assert InteractiveShell.instance().display_pub is publisher


def test_the_machine_that_decides_most_claims_comes_first_and_gpus_before_cpus(tmp_path: Path) -> None:
    one = [cell_line(medians_us=[1.0, 1.0])]
    write_records(tmp_path, "many", "cuda", {"layout": one, "traffic": one})
    write_records(tmp_path, "judged", "cuda", {"layout": one})
    write_records(tmp_path, "host", "cpu", {"layout": one})
    lab = evidence_of(tmp_path)
    lab.__dict__["verdicts"] = {
        "S009-01": {"judged": "refuted", "many": "not_testable", "host": "confirmed"},
        "S009-02": {"host": "confirmed", "many": "differs"},
    }
    assert lab.machines == ["judged", "many", "host"]
