"""Records of another instrument, or of none that they name: on the list, on pages, and where claims are told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import call, rows_of
from contribution import measured as written
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Markdown, display
from IPython.utils.capture import capture_output
from synthetic import cell_line, cells, detail_line, run_line

from hypatia_lab import claims, formats, older, records, results, variants
from hypatia_lab.bench import sources
from hypatia_lab.claims.claim import Figure
from hypatia_lab.contributed import checking, packing
from hypatia_lab.experiments.instrument import PRESENT
from hypatia_lab.pages import by_machine, machines
from hypatia_lab.pages.evidence import CHANGED, EARLIER, NAMELESS, Evidence
from hypatia_lab.records import Record

NEXT = {part: number + 1 for part, number in PRESENT.items()}
NOW = {"instrument": dict(PRESENT)}


# ---------------------------------------------------------------- the list


def test_the_list_has_every_leading_record_that_is_behind_and_no_other(committed_records):
    behind = {older.place(record) for record in committed_records if any(map(older.behind, older.told(record)))}
    listed = older.listed()
    assert behind - listed.keys() == set(), "say in book/records/older.yaml why these are not measured anew"
    assert listed.keys() - behind == set(), "these are not behind; take them off book/records/older.yaml"
    assert all(len(why.split()) > 2 for why in listed.values())
    assert {older.place(record) for record in committed_records if older.why(record)} == behind


@pytest.mark.parametrize(
    "entries",
    ["- {record: a/b.jsonl}", "- {record: a/b.jsonl, why: ''}", "- a/b.jsonl", "- {record: a, why: b, on: c}"]
    + ["- {record: a, why: not since}\n- {record: a, why: nor later}"],
)
def test_an_entry_without_a_reason_or_a_second_one_is_refused(tmp_path, monkeypatch, entries):
    monkeypatch.setattr(records, "COMMITTED", tmp_path)
    assert older.listed() == {}
    (tmp_path / "older.yaml").write_text(entries)
    with pytest.raises(records.RecordError, match="a record, once, and why"):
        older.listed()


def test_the_page_of_machines_tells_of_each_on_the_list_which_claims_rest_on_it(committed_records):
    lab = Evidence(committed_records, results.rows(committed_records))
    found = {line["record"]: line["claims that rest on it"] for line in machines.waiting(lab)}
    assert found.keys() == older.listed().keys()
    for record in committed_records:
        own = [row.id for row in lab.stated if row.machine == record.machine and record.experiment in row.experiments]
        rests = ", ".join(own) or formats.MISSING
        assert found.get(older.place(record), rests) == rests


def test_check_records_counts_what_is_on_the_list_and_notes_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "COMMITTED", tmp_path / "out")
    written(tmp_path / "mine")
    packing.pack("box", tmp_path / "mine", tmp_path / "out", known=[])
    (tmp_path / "out" / "older.yaml").write_text("- {record: box/naive_vs_cublas.jsonl, why: not measured since}")
    notes = checking.check(tmp_path / "out" / "box", known=[]).notes
    assert [note for note in notes if older.NAMELESS in note] == [f"ceilings.jsonl {older.NAMELESS}"]
    assert len([note for note in notes if note.startswith("on the list of older records: 1")]) == 1


# ---------------------------------------------------------------- records


def record(*own: dict[str, Any], **run: Any) -> Record:
    return Record(Path("nowhere"), run_line(**run), own, "")


@pytest.mark.parametrize("parts", [*([part] for part in PRESENT), [*PRESENT]])
def test_each_part_that_is_older_is_named_with_both_numbers(monkeypatch, parts):
    assert older.why(record(**NOW)) == ""
    assert older.why(record()) == older.why(record(grown=[{}, {}])) == older.NAMELESS
    made = record(**NOW, grown=[NOW])
    for part in parts:
        monkeypatch.setitem(PRESENT, part, PRESENT[part] + 1)
    old = ", ".join(f"{part} {PRESENT[part] - 1} (now {PRESENT[part]})" for part in parts)
    assert older.why(made) == f"is made by an older {old}"
    assert older.why(record(instrument=dict(PRESENT), grown=[{}])) == f"{older.NAMELESS}"


def test_a_committed_record_with_numbers_is_older_where_the_list_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "COMMITTED", tmp_path)
    for name in ("layout", "method"):
        records.write(tmp_path, run_line(machine="box", experiment=name, **NOW), [])
    monkeypatch.setattr(older, "behind", lambda told: pytest.fail("what measures was asked, and torch with it"))
    layout, method = records.load()
    assert (older.why(layout), older.why(method)) == ("", "")
    (tmp_path / "older.yaml").write_text(f"- {{record: {older.place(method)}, why: not measured since}}\n")
    assert older.why(layout) == ""
    assert "clock 1" in older.why(method)


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ({}, {}, []),
        (NOW, NOW, []),
        ({}, NOW, ["clock", "check", "plan"]),
        (NOW, {"instrument": PRESENT | {"check": NEXT["check"]}}, ["check"]),
        (NOW, NOW | {"grown": [{"instrument": PRESENT | {"clock": NEXT["clock"]}}]}, ["clock"]),
    ],
)
def test_instruments_differ_by_part_and_none_that_is_named_differs_from_any(one, other, differ):
    assert older.apart([record(**one), record(**other)]) == differ


# ---------------------------------------------------------------- pages


@pytest.fixture
def shown() -> Any:
    """What a notebook displays of evidence: the one sentence, and the panels' marks."""
    InteractiveShell.instance()

    def of(*found: Record, experiments: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
        with capture_output() as caught:
            lab = Evidence(list(found), results.rows(found), "", experiments).shown()
            for _ in by_machine.tabs(lab):
                display(Markdown("a figure"))
        texts = [output.data for output in caught.outputs]
        said = [data["text/markdown"] for data in texts if older.MARK in data.get("text/markdown", "")]
        panels = [data["text/html"] for data in texts if "lab-panel" in data.get("text/html", "")]
        return said, [name for one in panels for name in re.findall(rf"\((\w+)\) {older.MARK}</p>", one)]

    yield of
    InteractiveShell.clear_instance()


def measured(machine: str, experiment: str = "method", told: str | None = "", **run: Any) -> Record:
    """A record of the present instrument whose one cell's sources are those of now (empty), none, or ``told``."""
    variants.load()
    now = sources.digest(variants.find("linear_relu", "eager"))
    ran = {} if told is None else {"sources": told or now}
    return record(cell_line(**ran), machine=machine, experiment=experiment, **NOW | run)


def test_a_page_of_present_records_says_nothing(shown):
    assert shown(measured("one"), measured("two")) == ([], [])


@pytest.mark.parametrize(
    ("told", "run", "words"),
    [
        ("0123456789ab", {}, CHANGED),
        (None, {}, CHANGED),
        ("", {"grown": [{}]}, NAMELESS),
        ("", {"instrument": dict.fromkeys(PRESENT, 0)}, EARLIER),
    ],
)
def test_a_page_says_once_whose_records_are_older_and_marks_their_machines(shown, told, run, words):
    found = [measured("one"), measured("two", told=told, **run), measured("two", "layout", told=told, **run)]
    said, marked = shown(*found)
    assert len(said) == 1
    assert said[0].count("`two`") == 1
    assert words in said[0]
    assert "`one`" not in said[0]
    assert marked == ["two"]
    # Of another experiment than the page's nothing is said.
    assert shown(*found, experiments=("ceilings",)) == ([], [])


def test_what_the_lab_does_not_have_has_no_sources_to_differ(shown):
    own = (cell_line(variant="gone", sources="0123456789ab"), cell_line(variant="theirs"))
    assert shown(record(*own, experiment="mine", **NOW)) == ([], [])


# ---------------------------------------------------------------- claims and compare

COMMON = ("1", "naive is 8× slower", (8.0, 8.0), "×")
WORK = "linear_relu/1024x784x2048/float32/ieee/forward"
FIGURE = Figure("eager", "start", "call 2", workload="linear_relu/2x3x4/float32/ieee/forward")
PARTS = [
    claims.Claim("S009-01", *COMMON, "slowdown", "Because.", workloads=(WORK,), variant="naive", band=(7.5, 8.5)),
    claims.Claim("S009-02", *COMMON[:3], "ms", "figure", "So.", workloads=(WORK,), of=(FIGURE,), band=(1.0, 2.0)),
]
LEDGER = [replace(part, lead=part.id, statement=part.claim) for part in PARTS]


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Writes committed records of a machine whose two claims rest on one experiment each; ``made``: its instruments."""
    monkeypatch.setattr(claims, "ledger", lambda: LEDGER)
    monkeypatch.setattr(records, "COMMITTED", tmp_path)

    def write(machine: str, made: dict[str, dict[str, Any]], naive: float = 80.0) -> Path:
        lines = {"method": (cells({"eager": 10.0, "naive": naive}, clock="hot"), []), "warm_up": ([], [detail_line()])}
        for name, rows in lines.items():
            records.write(tmp_path, run_line(machine=machine, experiment=name, **made.get(name, {})), *rows)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("present", "aged_one", "said"),
    [("warm_up", "S009-01", f"box/method {older.NAMELESS}"), ("method", "S009-02", f"box/warm_up {older.NAMELESS}")],
)
def test_a_claim_is_marked_by_the_records_that_it_rests_on_and_told_why(lab, two_processes, present, aged_one, said):
    lab("box", {present: NOW})
    told = {part.id: said * (part.id == aged_one) for part in LEDGER}
    found = rows_of("claims")
    assert {row["id"]: row["older"] for row in found} == told
    assert {part["id"]: part["older"] for row in found for part in row["parts"]} == told
    out = call("claims").out
    assert re.findall(r"^(S009-\d+) .*(?:\n .*)*? †$", out, re.M) == [aged_one]
    assert len(re.findall(r"^† ", out, re.M)) == 1
    for name in told:
        assert (f"† {said}" in " ".join(call("claims", name).out.split())) is (name == aged_one)


def test_where_no_record_is_older_no_mark_is_explained(lab, two_processes):
    lab("box", {"method": NOW, "warm_up": NOW})
    assert older.MARK not in call("claims").out
    assert older.MARK not in call("claims", "S009-01").out


def test_compare_says_which_parts_of_two_instruments_differ_beside_what_they_measured(lab, two_processes):
    lab("one", {"method": NOW})
    lab("two", {"method": {"instrument": PRESENT | {"clock": NEXT["clock"]}}}, 200.0)
    lab("three", {"method": NOW}, 200.0)
    assert [row["instruments"] for row in rows_of("compare", "one", "two")] == [["clock"]]
    out = call("compare", "one", "two").out
    assert out.count("Measured with different versions of clock.") == 2  # of the verdict, and of the ratio
    assert [row["instruments"] for row in rows_of("compare", "one", "three")] == [[]]
    assert "different versions" not in call("compare", "one", "three").out
    found = {row["kind"]: row for row in rows_of("compare", "one", "two", "three") if row.get("id") != "S009-02"}
    assert found["ratio"]["instruments"] == found["verdict"]["instruments"] == ["clock"]
