"""The command: quick to answer, one clear line for bad input, and nothing lost when it is stopped."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import nbformat
import pytest
from command import Outcome, call, files_below, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook
from papermill import PapermillExecutionError
from synthetic import cell_line, judgement, run_line

from hypatia_lab import claims, records, results
from hypatia_lab.bench import bytecode, composer
from hypatia_lab.book import own as own_book
from hypatia_lab.cli import commands, execution
from hypatia_lab.fleet import steps
from hypatia_lab.pages.evidence import ParameterError, Parameters
from hypatia_lab.tables import claims as tables

COMMANDS = ("run", "results", "claims", "compare", "doctor", "new", "judge", "book", "fleet", "investigate")


def cell(variant: str, medians: list[float | None], **changes: Any) -> dict[str, Any]:
    """A valid cell of S001's medium size."""
    work = {"shape": [1024, 784, 2048], "flops": 2 * 1024 * 784 * 2048, "traffic": 10**7}
    origin = "seed" if variant == "naive" else "peer"
    return cell_line(variant=variant, origin=origin, max_error=1e-6, medians_us=medians, **work) | changes


def write_record(root: Path, machine: str, slowdown: float) -> Path:
    """A record in which the naive kernel takes ``slowdown`` times the library's time."""
    run = run_line(machine=machine, experiment="naive_vs_cublas", preset="seed", processes=3)
    base = [100.0, 101.0, 99.0]
    cells = [
        cell("eager", list(base)),
        cell("naive", [us * slowdown for us in base]),
        cell("epilogue", [], status="crashed", reason="the process died (signal SIGSEGV)", error=None, max_error=None),
    ]
    return records.write(root, run, cells)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records of machines "one" and "two", which stand in for the committed ones."""
    root = tmp_path / "committed"
    write_record(root, "one", 8.0)
    write_record(root, "two", 20.0)
    monkeypatch.setattr(records, "COMMITTED", root)
    return root


# ---------------------------------------------------------------- quick


@pytest.mark.slow  # a time, which wants a quiet machine; what it imports is held by the test below
def test_help_answers_in_under_three_tenths_of_a_second():
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "hypatia_lab", "--help"], capture_output=True, text=True, check=True
        )
        seconds.append(time.perf_counter() - start)
        assert all(f"  {command} " in done.stdout for command in COMMANDS)
    assert statistics.median(seconds) < 0.3


@pytest.mark.parametrize("arguments", [["--help"], ["results", "--json"], ["claims", "--json"]])
def test_what_measures_nothing_does_not_import_torch(arguments):
    program = (
        "import sys\n"
        "from hypatia_lab.cli import commands\n"
        "assert 'torch' not in sys.modules\n"
        "try:\n"
        f"    commands.main({arguments!r})\n"
        "except SystemExit:\n"
        "    print('torch' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"


# ---------------------------------------------------------------- what it prints


def test_results_as_json_has_the_columns_of_the_contract_and_null_for_what_is_not_there(folder):
    found = call("results", "--json", "--machine", "one")
    assert (found.code, found.err) == (0, [])
    rows = {row["variant"]: row for row in json.loads(found.out)}
    assert all(list(row) == results.COLUMNS for row in rows.values())
    assert {row["machine"] for row in rows.values()} == {"one"}
    assert rows["naive"]["ratio"] == pytest.approx(1 / 8)
    assert rows["epilogue"]["median_us"] is None
    assert rows["epilogue"]["reason"] == "the process died (signal SIGSEGV)"


def test_results_print_every_cell_of_every_machine_and_why_one_has_no_time(folder, tmp_path):
    found = call("results")
    assert (found.code, found.err) == (0, [])
    assert sum(line.startswith("  naive ") for line in found.out.splitlines()) == 2
    assert all(word in found.out for word in ("one", "two"))
    assert "epilogue: crashed: the process died (signal SIGSEGV)" in found.out
    write_record(tmp_path / "more", "three", 2.0)
    rows = json.loads(call("results", "--json", "--records", tmp_path / "more").out)
    assert {row["machine"] for row in rows} == {"one", "two", "three"}


def test_claims_as_json_has_the_columns_of_the_contract(folder):
    found = call("claims", "--json", "--machine", "one")
    assert (found.code, found.err) == (0, [])
    rows = json.loads(found.out, parse_constant=pytest.fail)  # NaN is no JSON
    columns = "id seed section claim claimed unit workload machine measured low high"
    columns += " n sense program band_set bound verdict reason"
    assert rows
    assert all(" ".join(row) == f"{columns} parts" for row in rows)
    assert all(" ".join(part) == columns for row in rows for part in row["parts"])
    assert {row["machine"] for row in rows} == {"one", "any"}
    parts = json.loads(call("claims", "--json", "--parts", "--machine", "one").out, parse_constant=pytest.fail)
    assert all(" ".join(part) == columns for part in parts)
    assert {part["id"] for part in parts} == {part["id"] for row in rows for part in row["parts"]}
    assert len(parts) > len(rows) == len({row["id"] for row in rows})


@pytest.mark.parametrize("how", ["claims", "parts"])
def test_claims_print_each_claim_whole_in_the_block_of_its_machine(folder, monkeypatch, how):
    monkeypatch.setenv("COLUMNS", "80")
    found = call("claims", *["--parts"] * (how == "parts"))
    assert (found.code, found.err) == (0, [])
    assert max(map(len, found.out.splitlines())) <= 80
    titles = re.split(r"(?m)^(.+)\n-+$", found.out)[1:]
    blocks = dict(zip(titles[::2], (" ".join(text.split()) for text in titles[1::2]), strict=True))
    assert list(blocks)[:2] == ["one", "two"]
    (last,) = list(blocks)[2:]
    rows = claims.judge(records.load())
    rows = rows if how == "parts" else claims.statements(rows)
    for row in rows:
        word, asked, judged = (" ".join(of(row).split()) for of in (tables.word, tables.asked, tables.judged))
        entry = f"{row.id} {word}: asked {asked}, measured {judged} {' '.join(row.claim.split())}"
        assert (entry in blocks[last if row.machine == claims.ANY else row.machine]) is (row.verdict != "not_testable")
    silent = sum(row.verdict == "not_testable" for row in rows)
    assert silent == sum(int(count) for count in re.findall(r"not listed: (\d+) ", found.out)) > 0


def listed(found: Outcome) -> list[str]:
    """The ids that begin a line of ``found``, once each and sorted."""
    return sorted(
        {match[0] for line in found.out.splitlines() if (match := re.match(r"[A-Z]+\d*-\d+[a-z]?(?= )", line))}
    )


def test_claims_are_chosen_by_document_verdict_and_beginning(folder):
    rows = json.loads(call("claims", "--json").out)
    assert (third := {row["id"] for row in rows if row["seed"] == "S003" and row["verdict"] != "not_testable"})
    assert set(listed(call("claims", "--seed", "S003"))) == third
    assert set(listed(call("claims", "s003-"))) == third
    for verdict, said in (("inconsistent", ("inconsistent",)), ("not_testable", ("not testable", "Not-testable"))):
        wanted = [row for row in rows if row["verdict"] == verdict]
        assert wanted
        assert json.loads(call("claims", "--verdict", verdict, "--json").out) == wanted
        for word in said:
            assert listed(call("claims", "--verdict", word)) == sorted({row["id"] for row in wanted})
    both = json.loads(call("claims", "--seed", "S001", "--seed", "S003", "--verdict", "inconsistent", "--json").out)
    assert both == [row for row in rows if row["verdict"] == "inconsistent" and row["seed"] in ("S001", "S003")]
    assert call("claims", "--seed", "S000", "--verdict", "understated", "--machine", "one").code == 0


def test_one_claim_is_told_in_full_with_every_part(folder):
    rows = [row for row in json.loads(call("claims", "--json").out) if len({part["id"] for part in row["parts"]}) > 1]
    row = next(row for row in rows if row["verdict"] not in ("not_testable", "inconsistent"))
    found = call("claims", row["id"].lower())
    assert (found.code, found.err) == (0, [])
    told = " ".join(found.out.split())
    for part in row["parts"]:
        assert part["claim"] in told
        assert " ".join(part["reason"].split()) in told
    assert row["reason"] in told
    last = row["parts"][-1]["id"]
    alone = call("claims", last)
    assert row["parts"][-1]["claim"] in " ".join(alone.out.split())
    assert len(alone.out) < len(found.out)


def test_results_are_chosen_by_operation_and_every_filter(folder):
    def rows(*arguments: str) -> list[dict[str, Any]]:
        return json.loads(call("results", *arguments, "--json").out)

    everything = rows()
    assert rows("linear_relu", "--shape", "1024×784×2048", "--dtype", "float32", "--clock", "hot") == everything
    for column, value in (("variant", "naive"), ("status", "crashed"), ("experiment", "naive_vs_cublas")):
        assert rows(f"--{column}", value) == [row for row in everything if row[column] == value]
    naive = call("results", "--variant", "naive", "--machine", "two").out
    assert "naive" in naive
    assert "epilogue" not in naive.split("hypatia-lab")[0]


def test_one_machine_is_judged_by_what_another_one_shows():
    """A rewrite is shown equal to its original by one machine's record, and stands in for it on every other."""
    everywhere = json.loads(call("claims", "--json").out)
    machines = {row["machine"] for row in everywhere}
    for name in sorted(machines & {record.machine for record in records.load()}):
        alone = json.loads(call("claims", "--json", "--machine", name).out)
        assert [row for row in alone if row["machine"] == name] == [row for row in everywhere if row["machine"] == name]


def test_compare_sets_one_machine_beside_another(folder):
    found = call("compare", "one", "two")
    assert (found.code, found.err) == (0, [])
    lines = found.out.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("naive over eager")]
    assert "2.50× apart" in lines[place]
    assert re.match(r" +one 0.125× .*\(n = 3, naive_vs_cublas\)", lines[place + 1])
    assert re.match(r" +two 0.0500× ", lines[place + 2])
    assert "differ: 0 of " in found.out


def test_compare_begins_with_what_is_farthest_apart_and_tells_each_ratio_once(folder, tmp_path, monkeypatch):
    root = tmp_path / "several"
    for name, times in (
        ("one", {"near": 10.0, "far": 10.0, "level": 10.0}),
        ("two", {"near": 10.2, "far": 30.0, "level": 10}),
    ):
        for experiment in ("method", "layout"):
            cells = [cell_line(clock="hot", medians_us=[20.0] * 3)]
            cells += [cell_line(variant=what, clock="hot", medians_us=[us] * 3) for what, us in times.items()]
            records.write(root, run_line(machine=name, experiment=experiment, processes=3), cells)
    monkeypatch.setattr(records, "COMMITTED", root)
    for more, told in ((), ["far", "near"]), (("--all",), ["far", "near", "level"]):
        out = call("compare", "one", "two", *more).out
        assert re.findall(r"^(\w+) over eager", out, re.MULTILINE) == told
    assert out.index("more than 5%: 1") < out.index("less: 1") < out.index("overlap: 1")


def test_compare_tells_what_one_side_could_not_test_only_when_asked(tmp_path, monkeypatch, one_claim):
    root = tmp_path / "committed"
    write_record(root, "one", 8.0)
    records.write(root, run_line(machine="two", experiment="method"), [cell_line()])
    monkeypatch.setattr(records, "COMMITTED", root)
    assert "S009-01" not in call("compare", "one", "two").out
    assert "S009-01" in call("compare", "one", "two", "--all").out
    assert [row["id"] for row in json.loads(call("compare", "one", "two", "--json").out)] == ["S009-01"]


@pytest.fixture
def one_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is one claim, that the naive kernel takes 8 times the library's time, and one by arithmetic."""
    common = ("1", "naive is 8× slower", (8.0, 8.0), "×", "slowdown", "Because.")
    work = ("linear_relu/1024x784x2048/float32/ieee/forward",)
    measured = claims.Claim("S009-01", *common, workloads=work, variant="naive", band=(7.5, 8.5))
    worked_out = claims.Claim("S009-02", *common[:4], "arithmetic", "Because.", expression="2 * 4", band=(7.5, 8.5))
    monkeypatch.setattr(claims, "ledger", lambda: [measured, worked_out])


def test_compare_says_which_verdicts_differ_with_both_intervals_and_reasons(folder, one_claim, two_processes):
    (path,) = (folder / "two").rglob("*.jsonl")
    path.write_text(path.read_text().replace("[2000.0, 2020.0, 1980.0]", "[2000.0, 2120.0, 1880.0]"))
    found = call("compare", "one", "two")
    assert (found.code, found.err) == (0, [])
    told = found.out.splitlines()
    assert any("differ: 1 of 1 " in line for line in told)
    one, two = " ".join(told[told.index("S009-01  naive is 8× slower") + 1 :]).split(" two: ")
    assert re.search(r"one: ✓ confirmed\. 8.00× \(3 processes\).* 7.5–8.5", one)
    assert re.match(r"✗ refuted\. 20.0× \[17.6, 22.6\] \(3 processes\).* 7.5–8.5", two)


def sides(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Machine and verdict of both sides of a line of ``compare --json``."""
    return [(row["machine_a"], row["verdict_a"]), (row["machine_b"], row["verdict_b"])]


def test_compare_as_json_has_a_row_for_every_claim_that_differs(folder, one_claim):
    found = call("compare", "one", "two", "--json")
    assert (found.code, found.err) == (0, [])
    (row,) = json.loads(found.out)
    assert (row["id"], row["claimed"], row["unit"]) == ("S009-01", 8.0, "×")
    assert sides(row) == [("one", "confirmed"), ("two", "refuted")]
    assert row["low_a"] <= row["measured_a"] <= row["high_a"] == pytest.approx(8)
    assert row["low_b"] == pytest.approx(20)
    assert row["reason_b"].startswith("20.0×")


def test_verdicts_that_both_sides_reached_come_first_and_a_part_counts_where_two_could_judge_it():
    words = {"A": "refuted not_testable", "B": "refuted confirmed", "C": "undecided undecided", "D": "agrees refuted"}
    rows = [
        judgement(id=name, machine=machine, verdict=verdict)
        for name, both in words.items()
        for machine, verdict in zip("ab", both.split(), strict=True)
    ]
    found = claims.differences([*rows, judgement(id="E", machine="any")], "a", "b")
    assert [line["id"] for line in found if line["id"] != "D"] == ["B", "A"]
    tested = claims.tested([*rows, judgement(id="B", machine="c", verdict="refuted")], "ab")
    assert [own[0].id for own in tested] == ["B", "C"]
    assert [[row.machine for row in own] for own in claims.differing(tested)] == [["a", "b"]]


def test_two_folders_of_one_machine_are_compared_by_their_names(folder, one_claim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()  # although a folder has its name, the recorded machine is meant
    write_record(tmp_path / "before", "box", 8.0)
    write_record(tmp_path / "after" / "book" / "records", "box", 20.0)
    for before, after in (("before", "after"), ("before/box", "after/book/records/box")):
        found = call("compare", before, after, "--json")
        assert (found.code, found.err) == (0, [])
        (row,) = json.loads(found.out)
        assert sides(row) == [(before, "confirmed"), (after, "refuted")]
    assert re.search(r"^ +before 0.125× .*\n +after 0.0500× ", call("compare", "before", "after").out, re.MULTILINE)
    (row,) = json.loads(call("compare", "one", "after", "--json").out)
    assert [name for name, _ in sides(row)] == ["one", "box"]


def test_no_ratio_in_common_is_no_error_and_equal_verdicts_are_told(folder, one_claim, tmp_path):
    root = tmp_path / "more"
    records.write(root, run_line(machine="other", experiment="naive_vs_cublas"), [])
    found = call("compare", "one", "other", "--records", str(root))
    assert (found.code, found.err) == (0, [])
    assert "measured: 0" in found.out


def test_compare_refuses_one_side_twice(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder / "one")
    for one, other in (("one", "one"), (".", "one"), (folder / "two", "two")):
        told = f"hypatia-lab: {one} and {other} are the same records; name two machines or folders"
        assert refused("compare", one, other) == told


def test_folders_are_compared_by_any_name(folder, one_claim, tmp_path, monkeypatch):
    (tmp_path / "mine" / "below").mkdir(parents=True)
    write_record(tmp_path / "mine", "box", 20.0)
    for place, name in (("mine", "."), ("mine/below", ".."), ("mine/box", ".")):
        monkeypatch.chdir(tmp_path / place)
        (row,) = json.loads(call("compare", "one", name, "--json").out)
        assert [machine for machine, _ in sides(row)] == ["one", "box"]


@pytest.mark.parametrize("below", ["book/records", ""])
@pytest.mark.parametrize("own", ["", "box"])
def test_records_are_found_in_a_readers_book_and_in_one_machines_folder(folder, tmp_path, below, own):
    write_record(tmp_path / "mine" / below, "box", 2.0)
    place = tmp_path / "mine" / (below if own else "") / own
    rows = json.loads(call("results", "--json", "--records", str(place)).out)
    assert {row["machine"] for row in rows} == {"one", "two", "box"}
    rows = json.loads(call("results", "--json", "--records", str(place), "--machine", "box").out)
    assert {row["machine"] for row in rows} == {"box"}


@pytest.mark.parametrize("command", ["results", "claims"])
def test_a_folder_that_adds_no_record_is_refused(folder, tmp_path, command):
    (tmp_path / "empty").mkdir()
    told = refused(command, "--records", tmp_path / "empty")
    assert told == f"hypatia-lab: {tmp_path / 'empty'} holds no records"


def test_the_claims_in_a_readers_book_are_compared_too(folder, one_claim, tmp_path):
    for name, slowdown in (("v1", 8.0), ("v2", 3.0)):
        write_record(tmp_path / name / "book" / "records", "box", slowdown)
        own = tmp_path / name / "book" / "claims" / "naive.yaml"
        own.parent.mkdir()
        own.write_text(
            "- {id: MINE-1, section: none, claim: not four times slower, claimed: 2, unit: ×, quantity: slowdown,\n"
            "   why: I hope so, variant: naive, band: [0.5, 4.0],\n"
            "   workloads: [linear_relu/1024x784x2048/float32/ieee/forward]}\n"
        )
    rows = json.loads(call("compare", tmp_path / "v1", tmp_path / "v2", "--json").out)
    told = {row["id"]: [verdict for _, verdict in sides(row)] for row in rows}
    assert told == {"S009-01": ["confirmed", "refuted"], "MINE-1a": ["refuted", "confirmed"]}


# ---------------------------------------------------------------- bad input


@pytest.fixture
def stopped(folder, tmp_path, monkeypatch) -> Callable[..., str]:
    """Calls ``run``, which must refuse: the one line that it says, with nothing started and nothing written."""

    def run(*arguments: str, records: object = tmp_path / "new") -> str:
        monkeypatch.setattr(execution, "execute", lambda *_: pytest.fail("a notebook was started"))
        before = files_below(tmp_path)
        told = refused("run", *arguments, "--records", records, "--output", tmp_path / "notebooks")
        assert files_below(tmp_path) == before
        return told

    return run


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope"], "unknown notebook 'nope'; known: 00_findings, 01_method"),
        (["02", "../02"], "unknown notebook '../02'"),
        (["naive_vs_cublas"], "unknown notebook 'naive_vs_cublas'; did you mean '02_naive_vs_cublas'?"),
        (["--preset", "sed"], "unknown preset 'sed'; did you mean 'seed'? known: quick, seed, full"),
        (["--preset", ""], "unknown preset ''; known: quick, seed, full"),
        (["--device", "tpu"], "unknown device 'tpu'; known: auto, cpu, cuda"),
        (["--machine", "../x"], "machine name '../x' must be lower-case"),
        (["--machine", "a/b"], "machine name 'a/b' must be lower-case"),
        (["--machine", "one,two"], "one machine is measured at a time"),
        (["--machine", "Upper"], "machine name 'Upper' must be lower-case"),
        (["--shapes", "0x3x4"], "shape '0x3x4' has a zero"),
        (["--shapes", "bigxsmall"], "shape 'bigxsmall' is not of the form 1024x784x2048"),
        (["--shapes", "1024"], "shape 1024 must be batch x in x out"),
        (["--shapes", "64x64x64,-1x2x3"], "shape '-1x2x3' is not of the form"),
        (["02", "--shapes", "64x64"], "shape 64x64 fits no experiment of 02_naive_vs_cublas; their shapes"),
        (["--shapes", "1.5x2x3"], "shape '1.5x2x3' is not of the form"),
        (["--nope"], "No such option"),
    ],
)
def test_bad_input_gets_one_clear_line_and_nothing_is_written(stopped, arguments, told):
    assert told in stopped(*arguments)


def test_a_claim_that_names_what_there_is_not_is_told_before_anything_is_measured(stopped, monkeypatch):
    common = ("1", "naive is slower", (8.0, 8.0), "×", "slowdown", "Because.")
    work = ("linear_relu/1024x784x2048/float32/ieee/forward",)
    monkeypatch.setattr(claims, "ledger", lambda: [claims.Claim("S009-01a", *common, workloads=work, variant="nave")])
    line = stopped("02", "--device", "cpu")
    assert "s009.yaml: S009-01a: unknown variant 'nave' of linear_relu; did you mean 'naive'?" in line


WORDS = (
    st.text(max_size=20) | st.text("x0123456789,.- /~\\\n", max_size=20) | st.none() | st.integers() | st.just("../x")
)
GIVEN = {"mode": ("recorded", "measure"), "preset": ("quick", "seed"), "device": ("auto", "cpu", "cuda")}


@settings(max_examples=350, deadline=None)
@given(
    st.fixed_dictionaries(
        {name: st.sampled_from(known) | WORDS for name, known in GIVEN.items()}
        | {"machine": WORDS, "shapes": WORDS, "records": st.text(max_size=20)}
    )
)
def test_any_parameters_of_a_notebook_make_sense_or_are_refused_by_name(asked):
    complaint = ""
    try:
        found = Parameters(**asked)
    except ParameterError as cause:
        complaint = str(cause)
    else:
        assert all(asked[name] in ("full", *known) for name, known in GIVEN.items())
        assert all(re.fullmatch("[a-z0-9_-]{1,64}", name) for name in found.machines)
        assert all(2 <= len(shape) <= 5 and min(shape) > 0 for shape in found.parsed_shapes())
    assert re.fullmatch(r"((unknown (mode|preset|device)|machine|shape) .+|machine, shapes and .+ texts)?", complaint)


def test_cuda_without_a_gpu_says_what_to_do_instead(stopped, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = stopped("--device", "cuda")
    assert "torch sees no GPU" in line
    assert line.endswith("use --device cpu")


@pytest.mark.parametrize("where", ["file", "/proc/nope"])
def test_a_records_folder_that_cannot_be_written_is_found_before_anything_runs(stopped, tmp_path, where):
    (tmp_path / "file").write_text("mine")
    assert "cannot write" in stopped("02", "--device", "cpu", records=tmp_path / where)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("arguments", [["results"], ["results", "--json"], ["claims"], ["compare", "one", "two"]])
@pytest.mark.parametrize(
    ("damage", "line", "told"),
    [
        (lambda text: text[:-5], 4, "truncated"),
        (lambda text: text.replace('"clock": "hot"', '"clock": "sundial"', 1), 2, "clock"),
        (lambda text: text.replace('"schema": 1', '"schema": 2', 1), 1, "schema"),
        (lambda text: "", 1, "empty"),
    ],
)
def test_a_malformed_record_is_named_with_its_line(folder, arguments, damage, line, told):
    (path,) = (folder / "two").rglob("*.jsonl")
    path.write_text(damage(path.read_text()))
    message = refused(*arguments)
    assert message.startswith(f"hypatia-lab: {path}:{line}: ")
    assert told in message


def test_a_malformed_claim_is_named_with_its_line(folder, tmp_path, monkeypatch):
    from hypatia_lab.claims import ledger

    claims = tmp_path / "claims"
    claims.mkdir()
    (claims / "s009.yaml").write_text("- id: S009-1\n  claim: [unfinished\n")
    monkeypatch.setattr(ledger, "__defaults__", (claims, ()))
    assert re.match(rf"hypatia-lab: {claims}/s009\.yaml:[12]: ", refused("claims"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["results", "--machine", ""], "machine name '' must be"),
        (["results", "--machine", "../x"], "machine name '../x' must be"),
        (["claims", "--machine", "a/b"], "machine name 'a/b' must be"),
        (["results", "--machine", "nope"], "no records: unknown machine 'nope'; known: one, two"),
        (["compare", "one", "nope"], "unknown machine 'nope'"),
        (["compare", "one"], "Missing argument"),
        (["compare", "one", str(Path(__file__).parent)], "tests holds no records"),
        (["compare", str(records.COMMITTED), "one"], "h200; name one of its folders"),
        (["results", "--records", "/no/such/folder"], "'/no/such/folder' does not exist"),
        (["doctor", "--device", "tpu"], "unknown device 'tpu'"),
        (["claims", "S0001-01"], "unknown claim 'S0001-01'; did you mean 'S001-01'"),
        (["claims", "--seed", "S009"], "unknown document 'S009'"),
        (["claims", "--verdict", "refute"], "unknown verdict 'refute'; did you mean 'refuted'?"),
        (["results", "linear_rel"], "unknown operation 'linear_rel' of what is asked for; did you mean 'linear_relu'"),
        (["results", "--variant", "naiv"], "unknown variant 'naiv' of what is asked for; did you mean 'naive'"),
        (["results", "--clock", "hot", "--status", "wrong"], "unknown status 'wrong'"),
        (["nope"], "No such command 'nope'"),
    ],
)
def test_every_command_refuses_bad_input_in_one_line(folder, arguments, told):
    assert told in refused(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--output", "locked/x.npy"],
        ["compare", "locked/x", "one"],
        ["book", "--output", "locked/in"],
        ["judge", "tiny.py", "--device", "cpu", "--output", "locked/in"],
    ],
)
def test_a_folder_that_may_not_be_searched_is_named_with_what_would_do(folder, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    own_book.write_template(Path("tiny.py"))
    stat, access = os.stat, os.access

    def closed(path: Any, *rest: Any, **how: Any) -> Any:  # whoever may do everything is told of no lock
        if "locked/" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *rest, **how)

    monkeypatch.setattr(os, "stat", closed)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "locked" and access(path, mode))
    message = refused(*arguments)
    assert "locked" in message
    assert re.search("choose (another|a) folder", message)


def test_a_fault_of_the_lab_itself_is_not_dressed_up_as_bad_input(folder, monkeypatch):
    monkeypatch.setattr(results, "rows", Mock(side_effect=ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        call("results")


# ---------------------------------------------------------------- running notebooks


def notebook(*sources: str) -> str:
    """A notebook with a parameters cell and one code cell for each source."""
    names = ("mode", "preset", "device", "machine", "shapes", "records")
    parameters = "".join(f"{name} = ''\n" for name in names) + "overwrite = False"
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), *map(new_code_cell, sources)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(new_notebook(cells=cells, metadata={"kernelspec": kernel}))


@pytest.fixture
def notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the lab's notebooks."""
    home = tmp_path / "pages"
    home.mkdir()
    monkeypatch.setattr(execution, "NOTEBOOKS", home)
    return home


def test_a_notebook_that_fails_or_dies_does_not_stop_the_others_and_the_exit_status_says_so(notebooks, tmp_path):
    (notebooks / "01_bad.ipynb").write_text(notebook("raise RuntimeError('no luck')"))
    (notebooks / "02_dies.ipynb").write_text(notebook("import os; os._exit(1)"))
    (notebooks / "03_good.ipynb").write_text(
        notebook("import json; print(json.dumps([mode, preset, device, machine, shapes, records, overwrite]))")
    )
    output = tmp_path / "out"
    arguments = ["--device", "cpu", "--machine", "box", "--shapes", "2x3x4", "--records", tmp_path / "r"]
    found = call("run", *arguments, "--output", str(output))
    assert found.code == 1
    assert "01_bad: RuntimeError: no luck" in found.err
    told = [step for line in found.err if (step := steps.read(line))]  # by which a fleet knows where its jobs are
    assert told == [steps.Step(number, 3, name) for number, name in enumerate(("01_bad", "02_dies", "03_good"), 1)]
    assert found.err[-1] == f"failed: 01_bad, 02_dies; their outputs are in {output}"
    cells = json.loads((output / "03_good.ipynb").read_text())["cells"]
    (printed,) = [out["text"] for c in cells if c["cell_type"] == "code" for out in c["outputs"] if "text" in out]
    assert json.loads("".join(printed)) == ["measure", "quick", "cpu", "box", "2x3x4", str(tmp_path / "r"), False]


@pytest.fixture
def papermill(notebooks, monkeypatch) -> Callable[[BaseException | None], list[str]]:
    """Replaces papermill: ``papermill(error)`` raises it for the first of two notebooks; returns what was started."""
    for name in ("01_one", "02_two"):
        (notebooks / f"{name}.ipynb").write_text(notebook())

    def use(error: BaseException | None) -> list[str]:
        started: list[str] = []

        def execute(source: str, *_: Any, **__: Any) -> None:
            started.append(Path(source).stem)
            if error is not None and len(started) == 1:
                raise error

        monkeypatch.setattr("papermill.execute_notebook", execute)
        return started

    return use


def test_all_notebooks_are_run_in_order_by_default_and_the_named_ones_when_named(papermill, tmp_path):
    output = ["--device", "cpu", "--output", tmp_path / "out"]
    started = papermill(None)
    assert call("run", *output).code == 0
    assert call("run", "02", *output).code == 0
    assert call("run", "02_two.ipynb", "02", "01_one", *output).code == 0
    assert started == ["01_one", "02_two", "02_two", "01_one", "02_two"]


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (PapermillExecutionError(0, 0, "", "RecordError", "cannot write x: disk full", []), "RecordError: {told}"),
        (OSError(errno.ENOSPC, "disk full"), "cannot write {out}: disk full"),
    ],
)
def test_what_fails_is_one_line_and_the_rest_goes_on(papermill, tmp_path, cause, told):
    started, out = papermill(cause), tmp_path / "out"
    found = call("run", "--device", "cpu", "--output", out)
    assert (found.code, started) == (1, ["01_one", "02_two"])
    assert f"01_one: {told.format(out=out, told='cannot write x: disk full')}" in found.err


def test_a_file_in_place_of_the_output_folder_is_one_line(papermill, tmp_path):
    started = papermill(None)
    (tmp_path / "out").write_text("mine")
    found = call("run", "01", "--device", "cpu", "--output", tmp_path / "out")
    assert (found.code, started) == (1, [])
    assert f"01_one: cannot write {tmp_path / 'out'}: File exists" in found.err
    assert (tmp_path / "out").read_text() == "mine"


def test_a_run_ends_with_what_it_found_and_what_comes_next(papermill, notebooks, tmp_path):
    (notebooks / "02_two.ipynb").rename(notebooks / "02_naive_vs_cublas.ipynb")
    write_record(tmp_path / "records", "box", 8.0)
    papermill(None)
    asked = ["--device", "cpu", "--machine", "box", "--output", tmp_path / "out"]
    found = call("run", "02", *asked, "--records", tmp_path / "records")
    assert found.code == 0
    lines = found.out.splitlines()
    follow = lines[lines.index("next:") + 1 :]
    assert any("8.00×" in line for line in lines[: lines.index("next:")])
    assert follow
    assert all(line.startswith("  hypatia-lab ") and f"--records {tmp_path / 'records'}" in line for line in follow)
    assert "next:" not in call("run", "01", *asked, "--records", tmp_path / "none").out


def test_an_interrupt_ends_the_run_and_says_how_to_go_on(papermill, tmp_path):
    started = papermill(KeyboardInterrupt())
    found = call("run", "--device", "cpu", "--output", tmp_path / "out")
    assert found.code == 130
    assert started == ["01_one"]
    assert found.err[-1].startswith("interrupted; every finished measurement is kept: run the same command again")


def test_an_overwrite_that_was_interrupted_goes_on_where_it_stopped(papermill, tmp_path, monkeypatch):
    campaign = composer.campaign(tmp_path / "records" / "box")
    stops = [True]

    def interrupted(source: str, *_: Any, **__: Any) -> None:
        campaign.add(Path(source).stem)
        if stops and source.endswith("02_two.ipynb"):
            raise KeyboardInterrupt

    papermill(None)
    monkeypatch.setattr("papermill.execute_notebook", interrupted)
    asked = ["run", "--device", "cpu", "--overwrite", "--machine", "box", "--records", tmp_path / "records"]
    asked += ["--output", tmp_path / "out"]
    found = call(*asked)
    assert (found.code, found.err[-1].endswith("run the same command again to go on")) == (130, True)
    stops.clear()
    assert any("measured already: 01_one" in line for line in call(*asked).err)
    assert not any("measured already" in line for line in call(*asked).err)


def test_a_run_that_goes_well_tells_its_progress_and_nothing_else(notebooks, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(bytecode, "environment", dict)  # which tells when it first keeps some
    (notebooks / "01_one.ipynb").write_text(notebook())
    with pytest.raises(SystemExit) as ended:
        commands.main(["run", "--device", "cpu", "--machine", "box", "--output", str(tmp_path / "out")])
    assert not ended.value.code
    told = [line.split(" (")[0] for line in capfd.readouterr().err.splitlines()]
    assert told == ["measuring box", "[1/1] 01_one", f"done; executed notebooks are in {tmp_path / 'out'}"]


def children(pid: int) -> set[int]:
    """Every living descendant of process ``pid``."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found |= {child} | children(child)
    return found


@pytest.mark.slow  # test_resuming and test_kills interrupt measurements with stand-ins for what is measured
def test_a_real_interrupt_in_mid_measurement_keeps_the_finished_parts_and_stops_every_process(tmp_path):
    store = tmp_path / "records"
    part = store / "box" / ".parts" / "ceilings" / "0.jsonl"
    command = [sys.executable, "-m", "hypatia_lab", "run", "02", "--device", "cpu", "--machine", "box"]
    command += ["--shapes", "8x8x8", "--records", str(store), "--output", tmp_path / "out"]

    def hear_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background has been told to ignore them

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hear_interrupts) as running:
        try:
            end = time.monotonic() + 60
            while not part.exists() and running.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            assert part.exists(), "nothing was measured"
            processes = children(running.pid)
            assert len(processes) >= 2  # the notebook's kernel and the measuring process
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == 130
    assert told.splitlines()[-1].startswith("interrupted; every finished measurement is kept")
    assert "Traceback" not in told
    lines = part.read_text().splitlines()
    assert len(lines) >= 2
    assert all(json.loads(line) for line in lines)
    assert not list(store.rglob("*.tmp"))
    assert files_below(store) == ["box/.parts/ceilings/0.jsonl", "box/.parts/ceilings/log.txt"]
    end = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in processes) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
