"""Reading the ledger: good YAML becomes claims, bad YAML names its line, and nothing in it runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hypatia_lab.claims import ClaimError, arithmetic, ledger, load, load_file, verdicts
from hypatia_lab.claims.ledger import UNITS, Figure

# Arithmetic


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2 ** -1", 0.5),
        ("-3 / +2", -1.5),
        ("float32 * mega", 4e6),
        ("1e3 - 1", 999),
    ],
)
def test_arithmetic(expression, value):
    assert arithmetic(expression) == pytest.approx(value)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "open('x')",
        "'a' * 3",
        "giga.real",
        "[1][0]",
        "1 if 1 else 2",
        "1 < 2",
        "7 // 2",
        "1 / 0",
        "(-1) ** 0.5",
        "9 ** 9 ** 9",
        "1e308 * 10",
        "unknown + 1",
        "True",
        "x = 1",
        "1if",
        "(",
        "lambda: 1",
        "(" * 500 + ")" * 500,
        "1\n2",
    ],
)
def test_arithmetic_refuses_everything_else(expression):
    with pytest.raises(ValueError, match="cannot be worked out"):
        arithmetic(expression)


# Reading


GOOD = """\
- id: S001-01
  section: Problem Statement
  claim: The naive kernel is slower.
  claimed: 7.67
  unit: "×"
  quantity: slowdown
  variant: naive
  workloads: [linear_relu/1024x784x2048/float32/ieee/forward]
  band: [6.9, 8.4]
  why: It re-reads its inputs.
"""


def write(tmp_path: Path, text: str, name: str = "s001.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_good_yaml_is_read(tmp_path):
    [(line, claim)] = load_file(write(tmp_path, "# a comment\n" + GOOD))
    assert (line, claim.id, claim.seed, claim.claimed, claim.baseline) == (2, "S001-01", "S001", (7.67, 7.67), "eager")


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("  unit:", "  units:", 5, "unknown key 'units'"),
        ('  unit: "×"\n', "", 1, "key 'unit' is missing"),
        ("  quantity: slowdown\n", "", 1, "key 'quantity' is missing"),
        ("  variant: naive\n", "", 1, "key 'variant' is missing"),
        ("claimed: 7.67", "claimed: about seven", 4, "claimed must be a number"),
        ("claimed: 7.67", "claimed: true", 4, "claimed must be a number"),
        ("claimed: 7.67", "claimed: .nan", 4, "claimed must be finite"),
        ("claimed: 7.67", "claimed: !!int x", 4, "claimed must be a number"),
        ("claimed: 7.67", "claimed: [8, 7]", 4, "low below high"),
        ("claimed: 7.67", "claimed: 9", 9, "the band must contain what is claimed"),
        ("section: Problem Statement", "section: 7", 2, "section must be text"),
        ("section: Problem Statement", "section:", 2, "section must be text"),
        ("section: Problem Statement", "section: !!python/name:os.system", 2, "section must be text"),
        ("quantity: slowdown", "quantity: speed", 6, "is none of ratio"),
        ("band: [6.9, 8.4]", "band: [6.9]", 9, r"band must be \[low, high\]"),
        ("workloads: [linear_relu/1024x784x2048/float32/ieee/forward]", "workloads: [medium]", 8, "not of the form"),
        ("workloads: [linear_relu/1024x784x2048/float32/ieee/forward]", "workloads: []", 8, "must be a list"),
        ("  variant: naive", "  variant: naive\n  variant: aten", 8, "stands twice"),
        ("  variant: naive", "  variant: naive\n  expression: 1 + 1", 8, "does not go with"),
        ("  variant: naive", "  variant: naive\n  bound: roofline", 8, "does not go with"),
        ("quantity: slowdown", "quantity: constant", 8, "at least two workloads"),
        (
            "quantity: slowdown",
            "quantity: time",
            5,
            "unit '×' does not go with quantity time, which is worked out in ms",
        ),
        ('"×"', '"%"', 5, "unit '%' does not go with quantity slowdown, which is worked out in ×; write unit, claimed"),
        ("S001-01", "S002-01", 1, "belongs in s002.yaml"),
        ("S001-01", "first", 1, "not of the form S001-01"),
        ("S001-01", "S001-1000", 1, "not of the form S001-01"),
        ("  why:", "  experiment: chapter 4\n  why:", 10, "experiment 'chapter 4' is not of the form"),
        ("  unit:", "\tunit:", 5, "not YAML"),
        ('"×"', '"×', 5, "not YAML"),
        ("[6.9, 8.4]", "[6.9, 8.4", 10, "not YAML"),
        ("naive kernel", "naive\x07kernel", 3, "not YAML"),
        ("Problem Statement", "*nowhere", 2, "not YAML"),
        ('"×"', '"\\UFFFFFFFF"', 5, "not YAML"),
    ],
)
def test_a_fault_names_file_and_line(tmp_path, old, new, line, message):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ClaimError, match=message) as caught:
        load_file(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


def test_every_quantity_that_rows_give_has_a_unit_which_its_page_names():
    assert set(UNITS) == set(verdicts.QUANTITIES)
    page = Path(__file__).resolve().parent.parent / "book" / "your_own_kernel.md"
    (told,) = re.findall(r"(?m)^\| `quantity` \| (.*) \|$", page.read_text(encoding="utf-8"))
    for quantity, unit in UNITS.items():
        if f"`{quantity}`" in told:
            assert unit in told.partition(f"`{quantity}`")[2].partition(";")[0], quantity


def test_an_entry_may_name_its_experiment(tmp_path):
    text = GOOD.replace("  why:", "  experiment: gemm_ladder\n  why:").replace("S001-01", "S001-101")
    [(_, claim)] = load_file(write(tmp_path, text))
    assert (claim.id, claim.experiment) == ("S001-101", "gemm_ladder")
    arithmetic_only = text.replace("quantity: slowdown", "quantity: arithmetic\n  expression: 8.47 / 1.1")
    arithmetic_only = re.sub(r"  variant.*\n  workloads.*\n", "", arithmetic_only)
    with pytest.raises(ClaimError, match="key 'experiment' does not go with quantity arithmetic"):
        load_file(write(tmp_path, arithmetic_only))


def test_faults_of_whole_files(tmp_path):
    for text, message in [("", ":1: empty"), ("a: 1\n", ":1: a ledger file is a list"), ("- 1\n", ":1: an entry must")]:
        with pytest.raises(ClaimError, match=message):
            load_file(write(tmp_path, text))
    with pytest.raises(ClaimError, match=r":11: id S001-01 is used twice \(first on line 1\)"):
        load_file(write(tmp_path, GOOD + GOOD))
    (tmp_path / "s001.yaml").write_bytes(b"- id: S001-01\n  section: \xff\n")
    with pytest.raises(ClaimError, match=":2: not UTF-8"):
        load_file(tmp_path / "s001.yaml")
    with pytest.raises(ClaimError, match="cannot be read"):
        load_file(tmp_path / "s002.yaml")
    with pytest.raises(ClaimError, match="not YAML|a ledger file"):
        load_file(write(tmp_path, "[" * 5000))


def test_faults_of_a_whole_ledger(tmp_path):
    with pytest.raises(ClaimError, match="no ledger files"):
        ledger(tmp_path)
    write(tmp_path, GOOD + "  conflicts: [S004-01]\n")
    with pytest.raises(ClaimError, match=r"s001.yaml:1: S001-01 conflicts with S004-01, which is no other entry"):
        ledger(tmp_path)
    write(tmp_path, GOOD.replace("S001", "S004"), "s004.yaml")
    assert [claim.id for claim in ledger(tmp_path)] == ["S001-01", "S004-01"]
    assert [claim.id for claim in ledger(tmp_path, ["S004"])] == ["S004-01"]
    with pytest.raises(ClaimError, match="no claims of seed 'S003'; known: S001, S004"):
        ledger(tmp_path, ["S003"])


def part(number: int, seed: str = "S001", **more: str) -> str:
    """The good entry under another number, with more keys."""
    return GOOD.replace("S001-01", f"{seed}-{number:02d}") + "".join(f"  {key}: {text}\n" for key, text in more.items())


def test_parts_name_the_entry_that_leads(tmp_path):
    whole = part(1, statement="All of it.") + part(2) + part(3, part_of="S001-01")
    write(tmp_path, whole)
    found = ledger(tmp_path)
    assert [(claim.id, claim.lead, claim.statement) for claim in found] == [
        ("S001-01", "S001-01", "All of it."),
        ("S001-02", "S001-02", ""),
        ("S001-03", "S001-01", ""),
    ]
    assert load(tmp_path / "s001.yaml") == found


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([part(1), part(2, part_of="S001-09")], "s001.yaml:11: S001-02 is part of S001-09, which is no entry"),
        ([part(1, part_of="S001-01")], "s001.yaml:1: S001-01 is part of S001-01, which is itself a part"),
        (
            [part(1), part(2, part_of="S001-01"), part(3, part_of="S001-02")],
            "s001.yaml:22: S001-03 is part of S001-02, which is itself a part; name the entry that leads",
        ),
        ([part(1, statement="All.")], "s001.yaml:1: S001-01 has a statement, and no entry is part of it"),
        (
            [part(1), part(2, part_of="S001-01", statement="All.")],
            "s001.yaml:11: S001-02 has a statement, and no entry is part of it",
        ),
        ([part(1, part_of="1")], "s001.yaml:11: part_of '1' is not of the form S001-01|part_of must be text"),
    ],
)
def test_a_part_without_a_lead_is_named_with_its_line(tmp_path, entries, message):
    write(tmp_path, "".join(entries))
    for read in (lambda: ledger(tmp_path), lambda: load(tmp_path / "s001.yaml")):
        with pytest.raises(ClaimError, match=message):
            read()


def test_a_part_belongs_to_its_own_document(tmp_path):
    write(tmp_path, part(1))
    write(tmp_path, part(1, seed="S002", part_of="S001-01"), "s002.yaml")
    with pytest.raises(ClaimError, match=r"s002.yaml:1: S002-01 is part of S001-01, a claim of another document"):
        ledger(tmp_path)


def test_an_expression_is_checked_when_read(tmp_path):
    text = re.sub(r"  variant.*\n  workloads.*\n", "  expression: __import__('os')\n", GOOD)
    text = text.replace("slowdown", "arithmetic")
    with pytest.raises(ClaimError, match=r"s001.yaml:7: expression .* cannot be worked out"):
        load_file(write(tmp_path, text))


LINES = GOOD.splitlines()
MARKS = ["- ", ": ", "[", "]", "{", "}", "&a ", "*a", "|", '"', "!!python/object/apply:os.mkdir [made]"]
PIECES = st.sampled_from([*LINES, *MARKS])


def complaint(read: Callable[[Any], Any], given: Any, expected: type[ValueError]) -> str:
    """The message of the one error that ``read`` may raise; empty when it raises none."""
    try:
        read(given)
    except expected as error:
        return str(error)
    return ""


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=15).map("\n".join)))
@example("- &a [*a]\n")
@example("!!python/object/apply:os.mkdir [made]\n")
@example("- !!python/object/apply:os.mkdir [made]\n")
@example("- id: !!timestamp 2001-99-99\n")
@example("- {? [a] : b}\n")
@example("---\na\n---\nb\n")
def test_any_text_gives_a_ledger_or_one_clear_error(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s001.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert re.fullmatch(re.escape(str(path)) + r":[1-9][0-9]*: .+|", complaint(load_file, path, ClaimError))
    assert [found.name for found in tmp_path.iterdir()] == ["s001.yaml"]


@settings(max_examples=350, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="0123456789+-*/(). eagikfmlot'[]_,=<", max_size=30)))
def test_any_expression_gives_a_number_or_one_clear_error(expression):
    assert re.fullmatch(r"expression .+ cannot be worked out .+|", complaint(arithmetic, expression, ValueError))


# Figures that are named one by one


QUOTIENT = """\
- id: S003-01
  section: Warm-up
  claim: Warm is faster.
  claimed: 4.1
  unit: "×"
  quantity: quotient
  over: {topic: start, name: call 2, case: empty, variant: compile}
  under:
    - {topic: start, name: call 12, variant: compile}
    - {clock: wall, variant: cuda, workload: diffraction/8x8/float64/ieee/forward}
  workloads: [diffraction/8x8/float32/ieee/forward]
  band: [3.69, 4.51]
  why: It replays.
"""


def test_figures_are_read(tmp_path):
    [(_, claim)] = load_file(write(tmp_path, QUOTIENT, "s003.yaml"))
    assert claim.over == (Figure("compile", "start", "call 2", "empty"),)
    assert claim.under == (
        Figure("compile", "start", "call 12"),
        Figure("cuda", clock="wall", workload="diffraction/8x8/float64/ieee/forward"),
    )
    one = re.sub(r"(?s)  over.*?\n  under.*?\n  workloads", "  of: {variant: compile}\n  workloads", QUOTIENT)
    [(_, claim)] = load_file(write(tmp_path, one.replace("quotient", "figure"), "s003.yaml"))
    assert claim.of == (Figure("compile"),)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("name: call 2, ", "", 7, "has topic and name"),
        ("topic: start, name: call 2, ", "", 7, "has topic and name"),
        ("topic: start, name: call 12, ", "name: call 12, ", 9, "has topic and name"),
        (", variant: compile}\n  under", "}\n  under", 7, "a figure of over lacks its variant"),
        ("case: empty", "kind: empty", 7, "unknown key 'kind' in over; known: variant, topic"),
        ("case: empty", "[a]: empty", 7, r"unknown key '\?' in over"),
        ("case: empty", "topic: start", 7, "key 'topic' stands twice"),
        ("case: empty", "clock: wall", 7, "a topic or a clock, not both"),
        ("case: empty", "case: 7", 7, "case must be text"),
        ("topic: start, name: call 2", "topic: timeline, name: call 2", 7, "topic 'timeline' is none of start"),
        ("clock: wall", "clock: sun", 10, "clock 'sun' is none of"),
        ("diffraction/8x8/float64/ieee/forward", "8x8", 10, "workload '8x8' is not of the form"),
        ("variant: cuda", "variant: CUDA", 10, "not of the form"),
        ("{topic: start, name: call 2, case: empty, variant: compile}", "call 2", 7, "over must be a figure"),
        ("{topic: start, name: call 2, case: empty, variant: compile}", "[]", 7, "at least one figure"),
        ("    - {clock", "    - [7]\n    - {clock", 10, "under must be a figure"),
        ("    - {clock", "    - {topic: start, name: call 12, variant: compile}\n    - {clock", 9, "none twice"),
        ("  band: [3.69, 4.51]\n", "", 1, "key 'band' is missing"),
        ("  over: {topic: start, name: call 2, case: empty, variant: compile}\n", "", 1, "key 'over' is missing"),
        ("  band", "  variant: cuda\n  band", 12, "does not go with quantity quotient"),
        ("  band", "  of: {variant: cuda}\n  band", 12, "does not go with quantity quotient"),
        ("  band", "  clock: wall\n  band", 12, "does not go with quantity quotient"),
    ],
)
def test_a_fault_in_a_figure_names_file_and_line(tmp_path, old, new, line, message):
    assert old in QUOTIENT
    path = write(tmp_path, QUOTIENT.replace(old, new, 1), "s003.yaml")
    with pytest.raises(ClaimError, match=message) as caught:
        load_file(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
