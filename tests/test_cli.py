"""The command: quick to answer, one clear line for bad input, and nothing lost when it is stopped."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from command import call, files_below, printed, refused, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import cell_line, judgement, run_line

from hypatia_lab import claims, older, records, results
from hypatia_lab.book import own as own_book
from hypatia_lab.cli import execution
from hypatia_lab.pages.evidence import ParameterError, Parameters
from hypatia_lab.tables import claims as tables

CRASHED = "the process died (signal SIGSEGV)"


def cell(variant: str, medians: list[float | None], **changes: Any) -> dict[str, Any]:
    """A valid cell of S001's medium size."""
    work = {"shape": [1024, 784, 2048], "flops": 2 * 1024 * 784 * 2048, "traffic": 10**7}
    origin = "rebuilt" if variant == "naive" else "peer"
    return cell_line(variant=variant, origin=origin, max_error=1e-6, medians_us=medians, **work) | changes


def write_record(root: Path, machine: str, slowdown: float) -> Path:
    """A record in which the naive kernel takes ``slowdown`` times the library's time."""
    run = run_line(machine=machine, experiment="naive_vs_cublas", preset="seed", processes=3)
    base = [100.0, 101.0, 99.0]
    cells = [
        cell("eager", list(base)),
        cell("naive", [us * slowdown for us in base]),
        cell("epilogue", [], status="crashed", reason=CRASHED, error=None, max_error=None),
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


MEASURES_NOTHING = """
import sys
from hypatia_lab.cli import commands
for arguments in (["--help"], ["results", "--json"], ["claims", "--json", "S001-01"], ["compare", "h100", "h200"]):
    try:
        commands.main(arguments)
    except SystemExit as ended:
        print(ended.code, "torch" in sys.modules, file=sys.stderr)
"""


def test_what_measures_nothing_does_not_import_torch():
    done = subprocess.run([sys.executable, "-c", MEASURES_NOTHING], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["0 False"] * 4


# ---------------------------------------------------------------- what it prints


def test_results_as_json_has_the_columns_of_the_contract_and_null_for_what_is_not_there(folder, tmp_path):
    rows = {row["variant"]: row for row in rows_of("results", "--machine", "one")}
    assert all(list(row) == results.COLUMNS for row in rows.values())
    assert {row["machine"] for row in rows.values()} == {"one"}
    assert rows["naive"]["ratio"] == pytest.approx(1 / 8)
    assert (rows["epilogue"]["median_us"], rows["epilogue"]["reason"]) == (None, CRASHED)
    write_record(tmp_path / "more", "three", 2.0)
    assert {row["machine"] for row in rows_of("results", "--records", tmp_path / "more")} == {"one", "two", "three"}


def test_results_print_every_cell_of_every_machine_and_why_one_has_no_time(folder):
    out = printed("results")
    assert sum(line.startswith("  naive ") for line in out.splitlines()) == 2
    assert all(word in out for word in ("one", "two", f"epilogue: crashed: {CRASHED}"))


def test_claims_as_json_has_the_columns_of_the_contract(folder):
    rows, parts = (rows_of("claims", *more, "--machine", "one") for more in ([], ["--parts"]))
    columns = "id seed section claim claimed unit workload machine measured low high"
    columns += " n sense program band_set bound verdict reason older"
    assert {" ".join(row) for row in rows} == {f"{columns} parts"}
    assert {" ".join(part) for row in rows for part in row["parts"]} == {" ".join(part) for part in parts} == {columns}
    assert {row["machine"] for row in rows} == {"one", "any"}
    assert {part["id"] for part in parts} == {part["id"] for row in rows for part in row["parts"]}
    assert len(parts) > len(rows) == len({row["id"] for row in rows})


@pytest.mark.parametrize("how", [[], ["--parts"]])
def test_claims_print_each_claim_whole_in_the_block_of_its_machine(folder, how):
    titles = re.split(r"(?m)^(.+)\n-+$", printed("claims", *how))[1:]
    blocks = dict(zip(titles[::2], map(squeezed, titles[1::2]), strict=True))
    *machines, last = blocks
    assert machines == ["one", "two"]
    rows = claims.judge(results.measured(committed := records.load()))
    made = {(record.machine, record.experiment): record for record in committed}
    for row in rows if how else claims.statements(rows):
        word, asked, judged = (squeezed(of(row)) for of in (tables.word, tables.asked, tables.judged))
        mark = f" {older.MARK}" * bool(older.under(row, made))
        if row.quantity != "arithmetic":
            judged = f"measured {judged}".replace("measured –", "nothing measured")
        entry = f"{row.id} {squeezed(row.claim)} asked {asked} | {judged} | {word}{mark}"
        assert (entry in blocks[last if row.machine == claims.ANY else row.machine]) is (row.verdict != "not_testable")


def squeezed(text: str) -> str:
    """With every gap one blank wide."""
    return " ".join(text.split())


def listed(*arguments: str) -> set[str]:
    """The ids that begin a line of what a command prints."""
    return set(re.findall(r"(?m)^[A-Z]+\d*-\d+[a-z]?(?= )", printed(*arguments)))


def test_claims_are_chosen_by_document_verdict_and_beginning(folder):
    rows = rows_of("claims")
    assert (third := {row["id"] for row in rows if row["seed"] == "S003" and row["verdict"] != "not_testable"})
    assert listed("claims", "--seed", "S003") == listed("claims", "s003-") == third
    for said in ("inconsistent", "not testable", "Not-testable"):
        wanted = [row for row in rows if row["verdict"] == said.lower().replace(" ", "_").replace("-", "_")]
        assert wanted
        assert rows_of("claims", "--verdict", said) == wanted
        assert listed("claims", "--verdict", said) == {row["id"] for row in wanted}
    both = rows_of("claims", "--seed", "S001", "--seed", "S003", "--verdict", "inconsistent")
    assert both == [row for row in rows if row["verdict"] == "inconsistent" and row["seed"] in ("S001", "S003")]
    assert printed("claims", "--seed", "S000", "--verdict", "understated", "--machine", "one")
    # One claim is told in full with every part, and a part alone.
    row = next(row for row in rows if len(row["parts"]) > 1 and row["verdict"] not in ("not_testable", "inconsistent"))
    told = squeezed(printed("claims", row["id"].lower()))
    assert all(squeezed(one[key]) in told for one in row["parts"] for key in ("claim", "reason"))
    assert squeezed(row["claim"]) in told
    alone = squeezed(printed("claims", row["parts"][-1]["id"]))
    assert row["parts"][-1]["claim"] in alone
    assert len(alone) < len(told)


def test_results_are_chosen_by_operation_and_every_filter(folder):
    everything = rows_of("results")
    by_workload = rows_of("results", "linear_relu", "--shape", "1024×784×2048", "--dtype", "float32", "--clock", "hot")
    assert by_workload == everything
    for column, value in (("variant", "naive"), ("status", "crashed"), ("experiment", "naive_vs_cublas")):
        assert rows_of("results", f"--{column}", value) == [row for row in everything if row[column] == value]
    naive = printed("results", "--variant", "naive", "--machine", "two")
    assert "naive" in naive
    assert "epilogue" not in naive.split("hypatia-lab")[0]


def test_one_machine_is_judged_by_what_another_one_shows(tmp_path, monkeypatch):
    """A rewrite is shown equal to its original by one machine's record, and stands in for it on every other."""
    asked = replace(CLAIM, program="author", variant="author_v1", rewrites=(("author_v1", "naive"),))
    monkeypatch.setattr(claims, "ledger", lambda: [asked])
    monkeypatch.setattr(records, "COMMITTED", tmp_path)
    own = ("eager", 100.0, "peer"), ("naive", 800.0, "seed"), ("author_v1", 800.0, "author")
    for machine, measured in (("there", own), ("here", own[:2])):
        cells = [cell(name, [us, 1.01 * us, 0.99 * us], origin=origin) for name, us, origin in measured]
        records.write(tmp_path, run_line(machine=machine, experiment="naive_vs_cublas", processes=3), cells)
    everywhere = rows_of("claims")
    assert [(row["machine"], row["program"], row["verdict"]) for row in everywhere] == [
        ("here", "equal", "confirmed"),
        ("there", "author", "confirmed"),
    ]
    assert rows_of("claims", "--machine", "here") == everywhere[:1]


def test_compare_sets_one_machine_beside_another(folder):
    out = printed("compare", "one", "two")
    ratio = r"naive over eager.* 2.50× apart.*\n +one 0.125× .*\(n = 3, naive_vs_cublas\)\n +two 0.0500× "
    assert len(re.findall(ratio, out)) == out.count("naive over eager") == 1
    assert "Verdicts: 0 of " in out


def test_compare_begins_with_what_is_farthest_apart_and_tells_each_ratio_once(folder, tmp_path, monkeypatch):
    root = tmp_path / "several"
    for name, near, far in (("one", 10.0, 10.0), ("two", 10.2, 30.0)):
        times = {"eager": 20.0, "near": near, "far": far, "level": 10.0}
        cells = [cell_line(variant=what, clock="hot", medians_us=[us] * 3) for what, us in times.items()]
        for experiment in ("method", "layout"):
            records.write(root, run_line(machine=name, experiment=experiment, processes=3), cells)
    monkeypatch.setattr(records, "COMMITTED", root)
    for more, told in ((), ["far", "near"]), (("--all",), ["far", "near", "level"]):
        out = printed("compare", "one", "two", *more)
        assert re.findall(r"^(\w+) over eager", out, re.MULTILINE) == told
    assert out.startswith("Ratios: 1 of 3 differ by more than 5%, 1 by less;")


def test_compare_tells_what_one_side_could_not_test_only_when_asked(tmp_path, monkeypatch, one_claim):
    root = tmp_path / "committed"
    write_record(root, "one", 8.0)
    records.write(root, run_line(machine="two", experiment="method"), [cell_line()])
    monkeypatch.setattr(records, "COMMITTED", root)
    assert "S009-01" not in printed("compare", "one", "two")
    assert "S009-01" in printed("compare", "one", "two", "--all")
    assert [row["id"] for row in rows_of("compare", "one", "two")] == ["S009-01"]


COMMON = ("1", "naive is 8× slower", (8.0, 8.0), "×")
WORK = ("linear_relu/1024x784x2048/float32/ieee/forward",)
CLAIM = claims.Claim("S009-01", *COMMON, "slowdown", "Because.", workloads=WORK, variant="naive", band=(7.5, 8.5))


@pytest.fixture
def one_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is one claim, that the naive kernel takes 8 times the library's time, and one by arithmetic."""
    worked_out = claims.Claim("S009-02", *COMMON, "arithmetic", "Because.", expression="2 * 4", band=(7.5, 8.5))
    monkeypatch.setattr(claims, "ledger", lambda: [CLAIM, worked_out])


def test_compare_says_which_verdicts_differ_with_both_intervals_and_bands(folder, one_claim, two_processes):
    (path,) = (folder / "two").rglob("*.jsonl")
    path.write_text(path.read_text().replace("[2000.0, 2020.0, 1980.0]", "[2000.0, 2120.0, 1880.0]"))
    told = printed("compare", "one", "two")
    one, two = squeezed(told[told.index("S009-01") :]).split(" two: ")
    assert all(word in one for word in ("✓ confirmed", "8.00×", "7.5–8.5"))
    assert all(word in two for word in ("✗ refuted", "20.0× [17.6, 22.6]", "7.5–8.5"))


def sides(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Machine and verdict of both sides of a line of ``compare --json``."""
    return [(row["machine_a"], row["verdict_a"]), (row["machine_b"], row["verdict_b"])]


def test_compare_as_json_has_a_row_for_every_claim_that_differs(folder, one_claim):
    (row,) = rows_of("compare", "one", "two")
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


@pytest.mark.parametrize(
    ("at", "one", "other", "machines"),
    [
        ("", "before", "after", ["before", "after"]),
        ("", "before/box", "after/book/records/box", ["before/box", "after/book/records/box"]),
        ("", "one", "after", ["one", "box"]),  # although a folder is called one too
        ("mine", "one", ".", ["one", "box"]),
        ("mine/below", "one", "..", ["one", "box"]),
        ("mine/box", "one", ".", ["one", "box"]),
    ],
)
def test_folders_are_compared_by_any_name(folder, one_claim, tmp_path, monkeypatch, at, one, other, machines):
    (tmp_path / "one").mkdir()
    (tmp_path / "mine" / "below").mkdir(parents=True)
    for place, slowdown in (("before", 8.0), ("after/book/records", 20.0), ("mine", 20.0)):
        write_record(tmp_path / place, "box", slowdown)
    monkeypatch.chdir(tmp_path / at)
    (row,) = rows_of("compare", one, other)
    assert sides(row) == list(zip(machines, ("confirmed", "refuted"), strict=True))
    assert re.search(rf"^ +{machines[0]} 0.125× .*\n +{machines[1]} 0.0500× ", printed("compare", one, other), re.M)


def test_no_ratio_in_common_is_no_error_and_one_side_twice_is(folder, one_claim, tmp_path, monkeypatch):
    records.write(tmp_path / "more", run_line(machine="other", experiment="naive_vs_cublas"), [])
    assert "Ratios: 0 of 0 " in printed("compare", "one", "other", "--records", tmp_path / "more")
    monkeypatch.chdir(folder / "one")
    for one, other in (("one", "one"), (".", "one"), (folder / "two", "two")):
        assert f"{one} and {other} " in refused("compare", one, other)


@pytest.mark.parametrize("below", ["book/records", ""])
@pytest.mark.parametrize("own", ["", "box"])
def test_records_are_found_in_a_readers_book_and_in_one_machines_folder(folder, tmp_path, below, own):
    write_record(tmp_path / "mine" / below, "box", 2.0)
    place = tmp_path / "mine" / (below if own else "") / own
    for more, machines in (([], {"one", "two", "box"}), (["--machine", "box"], {"box"})):
        assert {row["machine"] for row in rows_of("results", "--records", place, *more)} == machines


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
    rows = rows_of("compare", tmp_path / "v1", tmp_path / "v2")
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
    ("arguments", "named"),
    [
        (["nope"], "'nope'; known: 00_findings"),
        (["02", "../02"], "'../02'"),
        (["naive_vs_cublas"], "'02_naive_vs_cublas'"),
        (["--preset", "sed"], "'sed'; did you mean 'seed'? known: quick, seed, full"),
        (["--preset", ""], "''"),
        (["--device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
        *((["--machine", name], f"'{name}'") for name in ("../x", "a/b", "Upper")),
        (["--machine", "one,two"], "one machine"),
        *((["--shapes", text], f"'{text}'") for text in ("0x3x4", "bigxsmall", "1.5x2x3")),
        (["--shapes", "1024"], "shape 1024 "),
        (["--shapes", "64x64x64,-1x2x3"], "'-1x2x3'"),
        (["02", "--shapes", "64x64"], "shape 64x64 fits no experiment of 02_naive_vs_cublas"),
        (["--nope"], "--nope"),
    ],
)
def test_bad_input_gets_one_clear_line_and_nothing_is_written(stopped, arguments, named):
    assert named in stopped(*arguments)


def test_a_claim_that_names_what_there_is_not_is_told_before_anything_is_measured(stopped, monkeypatch):
    monkeypatch.setattr(claims, "ledger", lambda: [replace(CLAIM, variant="nave")])
    line = stopped("02", "--device", "cpu")
    assert all(word in line for word in ("s009.yaml: S009-01", "'nave'", "'naive'"))


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
    assert stopped("--device", "cuda").endswith("--device cpu")


@pytest.mark.parametrize("where", ["file", "/proc/nope"])
def test_a_records_folder_that_cannot_be_written_is_found_before_anything_runs(stopped, tmp_path, where):
    (tmp_path / "file").write_text("mine")
    assert "cannot write" in stopped("02", "--device", "cpu", records=tmp_path / where)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("arguments", [["results"], ["results", "--json"], ["claims"], ["compare", "one", "two"]])
def test_a_malformed_record_is_named_with_its_line(folder, arguments):
    (path,) = (folder / "two").rglob("*.jsonl")
    path.write_text(path.read_text().replace('"clock": "hot"', '"clock": "sundial"', 1))
    assert refused(*arguments).startswith(f"hypatia-lab: {path}:2: ")


def test_a_malformed_claim_is_named_with_its_line(folder, tmp_path, monkeypatch):
    (tmp_path / "s009.yaml").write_text("- id: S009-1\n  claim: [unfinished\n")
    monkeypatch.setattr(claims, "ledger", lambda: claims.load(tmp_path / "s009.yaml"))
    assert re.match(rf"hypatia-lab: {tmp_path}/s009\.yaml:[12]: ", refused("claims"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["results", "--machine", ""], "''"),
        (["results", "--machine", "../x"], "'../x'"),
        (["claims", "--machine", "a/b"], "'a/b'"),
        (["results", "--machine", "nope"], "'nope'; known: one, two"),
        (["results", "--records", "empty"], "empty"),
        (["claims", "--records", "empty"], "empty"),
        (["compare", "one", "nope"], "'nope'"),
        (["compare", "one"], "argument"),
        (["compare", "one", str(Path(__file__).parent)], "tests holds no records"),
        (["compare", "committed", "one"], "two; name one of its folders"),
        (["results", "--records", "/no/such/folder"], "'/no/such/folder'"),
        (["doctor", "--device", "tpu"], "'tpu'"),
        (["claims", "S0001-01"], "'S0001-01'; did you mean 'S001-01'"),
        (["claims", "--seed", "S009"], "'S009'"),
        (["claims", "--verdict", "refute"], "'refute'; did you mean 'refuted'"),
        (["results", "linear_rel"], "'linear_rel'; did you mean 'linear_relu'"),
        (["results", "--variant", "naiv"], "'naiv'; did you mean 'naive'"),
        (["results", "--clock", "hot", "--status", "wrong"], "'wrong'"),
        (["nope"], "'nope'"),
    ],
)
def test_every_command_refuses_bad_input_in_one_line(folder, tmp_path, monkeypatch, arguments, named):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert named in refused(*arguments)


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


def test_who_asks_for_a_claim_that_there_is_not_is_told_the_nearest_ids(folder):
    line = refused("claims", "S999-01")
    assert "S000, S001" in line
    assert 0 < len(re.findall(r"S\d{3}-\d+", line.partition(";")[2])) <= 5


@pytest.mark.parametrize(
    ("sink", "arguments"),
    [
        ("full", ["check-records", "nowhere"]),
        ("closed", ["results", "--machine", "epyc-2c", "copy"]),
        *(
            pytest.param("full", arguments, marks=pytest.mark.slow)
            for arguments in (["results", "--json"], ["claims"], ["compare", "h100", "h200"], ["doctor"])
        ),
    ],
)
def test_an_output_that_cannot_be_written_is_told_in_one_line(tmp_path, sink, arguments):
    (tmp_path / "nowhere").mkdir()
    if sink == "full":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, output = os.pipe()
        os.close(reader)
    command = [sys.executable, "-m", "hypatia_lab", *arguments]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(output)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("hypatia-lab: the output cannot be written: ")


def test_a_fault_of_the_lab_itself_is_not_dressed_up_as_bad_input(folder, monkeypatch):
    monkeypatch.setattr(results, "rows", Mock(side_effect=ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        call("results")
