"""``hypatia-lab new`` and ``judge``: a kernel of one's own, from a template to a page of one's own book."""

from __future__ import annotations

import errno
import html
import inspect
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import yaml
from tabled import tabled

pytest.importorskip("nbformat")
import nbformat
from command import call, files_below, refused
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from synthetic import ceilings, cell_line, evidence, run_line, write_records

from hypatia_lab import claims, paths, records, results, tables, workloads
from hypatia_lab.bench import composer
from hypatia_lab.book import own as own_book
from hypatia_lab.book import readers, report
from hypatia_lab.cli import commands
from hypatia_lab.figures import ceilings as ceiling_figures
from hypatia_lab.figures import comparisons
from hypatia_lab.pages import by_machine, own_kernel, readings
from hypatia_lab.strangers import reader_kernel
from hypatia_lab.tables import claims as claim_tables

pytestmark = pytest.mark.usefixtures("two_processes", "registry")

EXAMPLE = paths.HOME / "book" / "examples" / "scaled_softmax.py"
CLAIMS = claims.load(EXAMPLE.with_suffix(".yaml"))
EXAMPLES = int(os.environ.get("HYPATIA_EXAMPLES", "40"))
"""How many cases each property is tried on; the environment may ask for more."""
REPEATED = "HYPATIA_EXAMPLES" not in os.environ
"""The same inputs every time, unless a number is asked for: new ones are looked for on purpose, not in passing."""

TRIED = settings(max_examples=EXAMPLES, derandomize=REPEATED, deadline=None)
IN_ONE_FOLDER = settings(TRIED, suppress_health_check=[HealthCheck.function_scoped_fixture])


def give_ceilings(output: Path, **run: Any) -> None:
    """Ceilings of a machine, "box", in the reader's book at ``output``, so that nobody waits for them."""
    line = run_line(experiment="ceilings", **run)
    records.write(output / "book" / "records", line, ceilings({"ieee": 1e3, "float64": 1e3}, "hot"))
    own_book.begin(output)


# ---------------------------------------------------------------- a template


def test_new_writes_a_template_and_overwrites_nothing(tmp_path):
    path = tmp_path / "my_kernel.py"
    done = call("new", path)
    assert (done.code, f"hypatia-lab judge {path}" in done.out, done.err) == (0, True, [])
    path.write_text("mine")
    assert str(path) in refused("new", path)
    assert (path.read_text(), files_below(tmp_path)) == ("mine", ["my_kernel.py"])


@tabled("own_book", "bad_names")
def test_new_refuses_in_one_line(tmp_path, name, told):
    assert told in refused("new", tmp_path / name)
    assert files_below(tmp_path) == []


@TRIED
@given(st.text(max_size=90).map(lambda text: text + ".py") | st.from_regex(r"[A-Za-z][A-Za-z0-9_-]*\.py"))
def test_a_template_is_a_program_with_a_name_that_will_do_or_is_refused(name):
    try:
        text = own_book.template(name)
    except own_book.TemplateError:
        return
    tree = compile(text, "template", "exec")
    declared = re.search(r'@operation\(\n    "(.*)",', text)
    assert declared is not None
    assert re.fullmatch(reader_kernel.NAME, declared[1])
    assert declared[1] in tree.co_names


# ---------------------------------------------------------------- a chapter, of whatever the file says


@TRIED
@given(st.text() | st.text("`~\n#{}[]$<"), st.text() | st.text("`~\n "))
def test_what_a_file_says_is_shown_and_never_run(summary, source):
    plain, told = (json.loads(own_book.chapter("tiny", *said, True, "box")) for said in (("", ""), (summary, source)))
    nbformat.validate(nbformat.from_dict(told))
    for before, after in zip(plain["cells"], told["cells"], strict=True):
        assert before["cell_type"] == after["cell_type"]
        if after["cell_type"] == "code":
            assert before["source"] == after["source"], "what a file says must not become code of the notebook"
    (shown,) = [cell["source"] for cell in told["cells"] if cell["source"].startswith("## The file")]
    fence, *lines = shown.removeprefix("## The file\n\n").split("\n")
    marks = fence.removesuffix("python")
    assert set(marks) == {"`"}
    assert lines[-1] == marks
    assert not any(marks in line for line in lines[:-1]), "the fence can be closed from within"


def test_a_description_keeps_its_signs_and_gives_no_markup():
    assert readers.escaped("y = a_b*c  <script>\n# [x](y)") == r"y \= a\_b\*c \<script\> \# \[x\]\(y\)"


def test_a_page_without_records_says_so(tmp_path):
    with pytest.raises(records.RecordError, match="tiny"):
        own_kernel.read(tmp_path, "tiny")


def test_a_kernel_has_a_line_for_each_clock_and_a_wrong_one_a_line():
    told = {"variant": "mine", "origin": "own"}
    took = [cell_line(clock=clock, medians_us=[us] * 5) for clock, us in (("graph", 4.0), ("wall", 20.0))]
    took += [cell_line(**told, clock=clock, medians_us=[us] * 5) for clock, us in (("graph", 2.0), ("wall", 40.0))]
    wrong = {**told, "variant": "other", "status": "wrong", "reason": "off", "medians_us": [None] * 5}
    took += [cell_line(**wrong, clock=clock) for clock in ("graph", "wall")]
    lines = own_kernel.summary(evidence({"scaled_softmax": took}), "box", "scaled_softmax")
    assert [(line["variant"], line["clock"], line["against its baseline"]) for line in lines] == [
        ("other", "–", "–"),
        ("mine", "graph", "faster"),
        ("mine", "wall", "slower"),
    ]


# ---------------------------------------------------------------- records from elsewhere

TIMES = st.none() | st.floats(1e-6, 1e12) | st.sampled_from([1e-6, 1.0, 1e12])
CELLS = st.fixed_dictionaries(
    {
        "variant": st.sampled_from(["eager", "eager@again", "compile", "in_place", "triton"]),
        "shape": st.sampled_from([[512, 256], [2048, 1024], [1]]),
        "dtype": st.sampled_from(["float32", "bfloat16"]),
        "clock": st.sampled_from(["hot", "cold", "wall", "none"]),
        "origin": st.sampled_from(["rebuilt", "seed", "peer", "own"]),
        "baseline": st.sampled_from(["eager", "nobody"]),
        "status": st.sampled_from(["ok", "ok", "ok", *records.STATUSES]),
        "reason": st.text(max_size=20) | st.just("<img src=x onerror=run()>"),
        "error": st.none() | st.floats(0, 1e300),
        "max_error": st.none() | st.floats(0, 1e300),
        "flops": st.integers(0, 10**24),
        "traffic": st.integers(0, 10**24),
        "medians_us": st.just([]) | st.tuples(TIMES, TIMES).map(list),
        "throttled": st.booleans(),
    }
)

LINES = st.lists(CELLS, max_size=8, unique_by=lambda cell: records.cell_key(cell_line() | cell))


# Shrinking a failure would take minutes, and a cell tells enough as it is.
@settings(IN_ONE_FOLDER, phases=[Phase.explicit, Phase.generate])
@given(LINES, LINES, st.booleans())
def test_whatever_a_valid_record_holds_is_read_judged_compared_and_shown(tmp_path, ours, theirs, known):
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    for machine, cells in (("box", ours), ("other", theirs)):
        parts = {"scaled_softmax": [cell_line(operation="scaled_softmax") | cell for cell in cells]}
        parts |= {"ceilings": ceilings({"ieee": 1.0, "bfloat16": 2.0}, "hot")} if known else {}
        write_records(root, machine, "cpu", parts)
    before = files_below(tmp_path)
    lab = own_kernel.read(root, "scaled_softmax", "other")
    assert set(by_machine.ordered(lab)) == {"box", "other"} & set(lab.machines)
    judged = claims.judge([*lab.measured.values()], CLAIMS)
    assert {row.verdict for row in judged} <= set(claims.VERDICTS)
    assert all(row["verdict_a"] != row["verdict_b"] for row in claims.differences(judged, "box", "other"))
    shown = [tables.html(claim_tables.claims_table(judged))]
    for machine in lab.machines:
        rows = lab.leading(machine, experiment="scaled_softmax")
        shown.append(tables.html(pd.DataFrame(own_kernel.summary(lab, machine, "scaled_softmax"))))
        if readings.compared(rows):
            comparisons.speedups(rows)
        if own_kernel.can_limit(rows):
            comparisons.times_against_limit(rows)
        if own_kernel.can_place(lab, machine, rows):
            ceiling_figures.roofline(rows, results.ceilings(lab.of(machine)), clock="hot")
    assert not any("<img" in text or "<script" in text for text in shown), "what a record says must not become markup"
    assert files_below(tmp_path) == before


# ---------------------------------------------------------------- judge: what it refuses


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """The template, in a folder of its own."""
    path = tmp_path / "work" / "tiny.py"
    path.parent.mkdir()
    own_book.write_template(path)
    return path


@pytest.fixture
def nothing_measured(monkeypatch: pytest.MonkeyPatch, rehearsed_here: None) -> None:
    """Measuring is a failure."""
    monkeypatch.setattr(composer, "measure", lambda *_, **__: pytest.fail("something was measured"))


@tabled("own_book", "bad_arguments")
def test_judge_refuses_bad_arguments_in_one_line(kernel, monkeypatch, nothing_measured, arguments, named):
    monkeypatch.chdir(kernel.parent)
    assert named in refused("judge", kernel, *arguments)
    assert files_below(kernel.parent) == ["tiny.py"]


def test_judge_says_what_a_claim_names_and_there_is_not(kernel, monkeypatch, nothing_measured):
    monkeypatch.chdir(kernel.parent)
    Path("tiny.yaml").write_text(
        "- {id: MINE-1, section: none, claim: it is as fast, claimed: 1, unit: ×, quantity: ratio, why: I hope so,\n"
        "   variant: mien, band: [0.9, 2], workloads: [tiny/64x64/float32/ieee/forward]}\n"
    )
    line = refused("judge", kernel, "--claims", "tiny.yaml", "--device", "cpu")
    assert all(word in line for word in ("tiny.yaml: MINE-1a: ", "'mien'", "'mine'"))


@pytest.mark.usefixtures("rehearsed_here")
def test_judge_says_what_is_wrong_with_the_file_without_a_traceback(kernel, tmp_path):
    """As whatever is told of a file in test_own."""
    kernel.write_text("import nothing_of_the_sort")
    line = refused("judge", kernel, "--device", "cpu", "--output", tmp_path / "mine")
    assert "tiny.py:1: ModuleNotFoundError" in line
    assert files_below(tmp_path) == ["work", "work/tiny.py"]


def test_judge_leaves_a_folder_alone_that_is_no_book(kernel, tmp_path):
    output = tmp_path / "precious"
    output.mkdir()
    (output / "thesis.tex").write_text("mine")
    assert str(output) in refused("judge", kernel, "--device", "cpu", "--output", output)
    assert files_below(output) == ["thesis.tex"]


@pytest.mark.usefixtures("rehearsed_here")
@pytest.mark.parametrize(
    ("home", "name", "error", "code", "told"),
    [
        (tempfile, "mkstemp", OSError(errno.ENOSPC, "No space left on device"), 2, "the disk is full"),
        (composer, "measure", KeyboardInterrupt, 130, "interrupted;"),
    ],
)
def test_a_full_disk_or_an_interrupt_is_one_line(kernel, tmp_path, monkeypatch, home, name, error, code, told):
    give_ceilings(tmp_path / "mine")
    before = files_below(tmp_path)
    monkeypatch.setattr(home, name, Mock(side_effect=error))
    found = call("judge", kernel, "--device", "cpu", "--machine", "box", "--output", tmp_path / "mine")
    assert (found.code, found.out) == (code, "")
    assert told in found.err[-1]
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    ("begin", "ensure"),
    [
        (own_book.begin, own_book.ensure_ours),
        (lambda folder: report.begin(folder, {"a": "", "b": ""}), report.ensure_free),
    ],
)
def test_a_book_that_a_full_disk_cut_short_is_begun_anew_and_the_file_is_named(tmp_path, monkeypatch, begin, ensure):
    whole = Mock(side_effect=tempfile.mkstemp)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", whole)
        begin(tmp_path / "whole")
    assert whole.call_count > 3
    make = tempfile.mkstemp
    for room in range(whole.call_count):
        left, folder = [make] * room, tmp_path / str(room)

        def full(left: list[Any] = left, **how: Any) -> Any:
            if not left:
                raise OSError(errno.ENOSPC, "No space left on device")
            return left.pop()(**how)

        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "mkstemp", full)
            with pytest.raises(records.RecordError, match=rf"cannot write {folder}/\S+: No space left on device"):
                begin(folder)
        ensure(folder)
        begin(folder)
        assert files_below(folder) == files_below(tmp_path / "whole")


# ---------------------------------------------------------------- judge, to the end


@pytest.mark.slow
def test_the_worked_example_of_the_book_becomes_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(composer, "PROCESSES", {"quick": 1})
    output = tmp_path / "mine"
    give_ceilings(output, processes=2)
    before = files_below(EXAMPLE.parent)
    given = ("--device", "cpu", "--machine", "box", "--output", output, "--shapes", "64x32")
    found = call("judge", EXAMPLE, "--claims", EXAMPLE.with_suffix(".yaml"), *given)
    assert found.code == 0, found.err
    (record,) = records.load(output / "book" / "records", experiments=["scaled_softmax"])
    ended = {cell["variant"]: cell["status"] for cell in record.cells}
    assert ended == dict.fromkeys(("eager", "eager@again", "compile", "in_place"), "ok") | {"triton": "skipped"}
    word = " ".join(claim_tables.verdict_text("adds_up").split())
    assert f"{word} SOFTMAX-03" in " ".join(found.out.split())
    page = (output / "_build" / "html" / "notebooks" / "scaled_softmax.html").read_text(encoding="utf-8")
    (skipped,) = {cell["reason"] for cell in record.cells if cell["variant"] == "triton"}
    for said in ("SOFTMAX-02", html.escape(skipped), "One program a row", "lab-marks", f"{record.digest}"):
        assert said in page, said
    assert (output / "_build" / "html" / "records" / "box" / "scaled_softmax" / record.path.name).is_file()
    toc = yaml.safe_load((output / "_toc.yml").read_text())
    assert toc == {"format": "jb-book", "root": "notebooks/scaled_softmax"}
    assert files_below(EXAMPLE.parent) == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_examples_fault_is_told():
    import torch

    from hypatia_lab import check

    reader_kernel.load(EXAMPLE)
    problem = check.Problem(workloads.Workload("scaled_softmax", (33, 77)), "cpu")
    run = lambda: torch.softmax(problem.inputs["x"] * 0.125 * 0.125, -1)  # noqa: E731
    assert check.check(run, problem).reason.startswith("scaled twice: the output matches that mistake to ")


def test_the_page_of_the_book_names_every_argument_and_its_default():
    page = (paths.HOME / "book" / "your_own_kernel.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"(?m)^\| `(\w+)(?:` or `\w+)?(?:\(.*?\))?` \| .* \| (.*) \|$", page))
    parameters = inspect.signature(reader_kernel.operation).parameters
    arguments = {name: one.default for name, one in parameters.items() if name != "name"}
    assert set(table) - {"wrong", "too_fast", "crashed", "timeout", "skipped"} == set(arguments)
    needed = [name for name, default in arguments.items() if default is inspect.Parameter.empty]
    assert [name for name in table if table[name] == "must be given"] == needed
    assert (table["roundings"], table["dtypes"]) == (str(reader_kernel.ROUNDINGS), *arguments["dtypes"])
    assert (table["depth"], arguments["depth"]) == ("the largest extent", max)
    known = commands.main.commands
    options = {option for name in ("judge", "compare") for one in known[name].params for option in one.opts}
    assert set(re.findall(r"(?m)^hypatia-lab (\w+)", page)) <= set(known)
    assert set(re.findall(r"--[a-z][a-z-]+", page)) <= options
