"""Reading the ledger: good YAML becomes claims, bad YAML names its line, and nothing in it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hypatia_lab.claims import Claim, ClaimError, arithmetic, ledger, load, load_file, quantities
from hypatia_lab.claims.claim import UNITS, Figure, usual_band

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
  program: rewrite
  why: It re-reads its inputs.
  band_set: 2026-11-21 before
"""


def write(tmp_path: Path, text: str, name: str = "s001.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_good_yaml_is_read(tmp_path):
    [(line, claim)] = load_file(write(tmp_path, "# a comment\n" + GOOD))
    assert (line, claim.id, claim.lead, claim.seed, claim.claimed) == (2, "S001-01a", "S001-01", "S001", (7.67, 7.67))
    assert (claim.baseline, claim.program, claim.sense) == ("eager", "rewrite", "about")
    assert claim.statement == claim.claim == "The naive kernel is slower."


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("  unit:", "  units:", 5, "unknown key 'units'"),
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
        ("quantity: slowdown", "quantity: speed", 6, "unknown quantity 'speed'; known: ratio"),
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
        ("S001-01", "S001-01a", 1, "not of the form S001-01"),
        ("  why:", "  experiment: chapter 4\n  why:", 11, "experiment 'chapter 4' is not of the form"),
        ("  program: rewrite\n", "", 1, "key 'program' is missing"),
        ("program: rewrite", "program: arithmetic", 10, "unknown program 'arithmetic'; known: author"),
        ("  why:", "  sense: roughly\n  why:", 11, "unknown sense 'roughly'"),
        ("  why:", "  gain: up\n  why:", 11, "gain must be true or false"),
        ("  why:", "  gain: true\n  sense: at_most\n  why:", 11, "no gain"),
        ("  why:", "  forecast: yes please\n  why:", 11, "forecast must be true or false"),
        ("  why:", "  forecast: true\n  why:", 11, "a forecast is judged by a program of the lab's own or a library's"),
        ("2026-11-21 before", "yesterday", 12, "band_set 'yesterday' is not of the form"),
        ("  why:", "  rewrites: {author_v1: naive}\n  why:", 11, r"rewrites stand in .* \(program: author\)"),
        ("program: rewrite", "program: author\n  rewrites: naive", 11, "rewrites must say which variant stands in"),
        ("program: rewrite", "program: author\n  rewrites: {}", 11, "rewrites must say which variant stands in"),
        ("program: rewrite", "program: author\n  rewrites: {author_v1: naive}", 11, "names author_v1, which the part"),
        ("program: rewrite", "program: author\n  rewrites: {naive: a, naive: b}", 11, "names a variant twice"),
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
    assert set(UNITS) == set(quantities.QUANTITIES)
    page = Path(__file__).resolve().parent.parent / "book" / "your_own_kernel.md"
    (told,) = re.findall(r"(?m)^\| `quantity` \| (.*) \|$", page.read_text(encoding="utf-8"))
    for quantity, unit in UNITS.items():
        if f"`{quantity}`" in told:
            assert unit in told.partition(f"`{quantity}`")[2].partition(";")[0], quantity


def test_an_entry_may_name_its_experiment(tmp_path):
    text = GOOD.replace("  why:", "  experiment: gemm_ladder\n  why:").replace("S001-01", "S001-101")
    [(_, claim)] = load_file(write(tmp_path, text))
    assert (claim.id, claim.experiment) == ("S001-101a", "gemm_ladder")
    arithmetic_only = text.replace("quantity: slowdown", "quantity: arithmetic\n  expression: 8.47 / 1.1")
    arithmetic_only = re.sub(r"  (variant|workloads|program|band_set).*\n", "", arithmetic_only)
    with pytest.raises(ClaimError, match="key 'experiment' does not go with quantity arithmetic"):
        load_file(write(tmp_path, arithmetic_only))


def test_faults_of_whole_files(tmp_path):
    for text, message in [
        ("", ":1: empty"),
        ("a: 1\n", ":1: unknown key"),
        ("7\n", ":1: a ledger file is a list"),
        ("- 1\n", ":1: an entry must"),
    ]:
        with pytest.raises(ClaimError, match=message):
            load_file(write(tmp_path, text))
    with pytest.raises(ClaimError, match=r":13: id S001-01 is used twice \(first on line 1\)"):
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
    write(tmp_path, GOOD + "  conflicts: [S004-01a]\n")
    with pytest.raises(ClaimError, match=r"s001.yaml:1: S001-01a conflicts with S004-01a, which is no other part"):
        ledger(tmp_path)
    write(tmp_path, GOOD.replace("S001", "S004"), "s004.yaml")
    assert [claim.id for claim in ledger(tmp_path)] == ["S001-01a", "S004-01a"]
    assert [claim.id for claim in ledger(tmp_path, ["S004"])] == ["S004-01a"]
    with pytest.raises(ClaimError, match="unknown seed 'S003'; .*known: S001, S004"):
        ledger(tmp_path, ["S003"])


# Parts


PARTS = """\
- id: S001-01
  section: Problem Statement
  claim: The naive kernel is slower.
  parts:
    - claimed: 7.67
      unit: "×"
      quantity: slowdown
      program: author
      rewrites: {author_v1: naive}
      variant: author_v1
      workloads: [linear_relu/1024x784x2048/float32/ieee/forward]
      band: [6.9, 8.4]
      band_set: 2026-11-21 before
      conflicts: [S001-01b]
      why: It re-reads its inputs.
    - claim: 8.47 ms against 1.10 is 7.67.
      section: Table
      claimed: 7.67
      unit: "×"
      quantity: arithmetic
      expression: 8.47 / 1.10
      band: [7.66, 7.68]
      conflicts: [S001-01a]
      why: It is 7.70.
"""


def test_parts_stand_under_their_claim_and_take_its_wording_where_they_have_none(tmp_path):
    write(tmp_path, PARTS + GOOD.replace("S001-01", "S001-02"))
    first, second, other = found = ledger(tmp_path)
    assert [(claim.id, claim.lead) for claim in found] == [
        ("S001-01a", "S001-01"),
        ("S001-01b", "S001-01"),
        ("S001-02a", "S001-02"),
    ]
    assert first.claim == first.statement == second.statement == "The naive kernel is slower."
    assert (second.claim, second.section, first.section) == ("8.47 ms against 1.10 is 7.67.", "Table", other.section)
    assert (first.program, second.program, first.band_set) == ("author", "arithmetic", "2026-11-21 before")
    assert [line for line, _ in load_file(tmp_path / "s001.yaml")] == [5, 16, 25]
    assert load(tmp_path / "s001.yaml") == found


def test_a_part_may_be_rewritten_throughout(tmp_path):
    text = PARTS.replace("variant: author_v1", "variant: author_v1\n      baseline: author_v1")
    first, second = ledger_of(tmp_path, text)
    assert (first.rewritten().variant, first.rewritten().baseline) == ("naive", "naive")
    assert second.rewritten() == second
    figures = "of: [{variant: author_v1}, {topic: trace, name: kernel launches, variant: eager}]"
    text = re.sub(r"      variant: author_v1\n", f"      {figures}\n", PARTS, count=1).replace("slowdown", "figure")
    first, _ = ledger_of(tmp_path, text)
    assert [figure.variant for figure in first.rewritten().of] == ["naive", "eager"]


def ledger_of(folder: Path, text: str) -> list[Claim]:
    return load(write(folder, text))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("  parts:", "  part: relu\n  parts:", 4, "key 'part' goes with none of the parts"),
        ("  parts:", "  quantity: speed\n  parts:", 4, "unknown quantity 'speed'"),
        ("  parts:", "  test: 7\n  parts:", 4, "unknown key 'test'"),
        ("  parts:", "  test: {units: ms}\n  parts:", 4, "unknown key 'units'; did you mean 'unit'"),
        ("  parts:", "  test: {claim: Again.}\n  parts:", 4, "key 'claim' stands twice"),
        ("    - claimed: 7.67\n", "    - id: S001-02\n      claimed: 7.67\n", 5, "unknown key 'id'"),
        ("      why: It re-reads its inputs.\n", "", 5, "key 'why' is missing"),
        ("      band: [7.66, 7.68]", "      band: [7.68, 7.70]", 22, "the band must contain what is claimed"),
        ("  claim: The naive kernel is slower.\n", "", 1, "key 'claim' is missing"),
        ("conflicts: [S001-01b]", "conflicts: [S001-01]", 14, "not of the form S001-01a"),
        ("conflicts: [S001-01b]", "conflicts: [S001-01c]", 5, "S001-01a conflicts with S001-01c"),
        ("conflicts: [S001-01b]", "conflicts: [S001-01a]", 5, "S001-01a conflicts with S001-01a"),
    ],
)
def test_a_fault_in_a_part_names_file_and_line(tmp_path, old, new, line, message):
    assert old in PARTS
    path = write(tmp_path, PARTS.replace(old, new, 1))
    with pytest.raises(ClaimError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("listed", ["parts: []", "parts: 7", "parts:", "parts: [7, 8]"])
def test_parts_are_a_list_of_two_or_more(tmp_path, listed):
    whole = PARTS.partition("  parts:")[0]
    with pytest.raises(ClaimError, match=r"s001\.yaml:4: (parts must be a list of two|a part must be a mapping)"):
        load(write(tmp_path, f"{whole}  {listed}\n"))
    one = PARTS.partition("    - claim: 8.47")[0].replace("      conflicts: [S001-01b]\n", "")
    with pytest.raises(ClaimError, match=r":5: parts must be a list of two"):
        load(write(tmp_path, one))


def test_a_reader_s_own_claim_is_judged_by_his_own_program(tmp_path):
    text = GOOD.replace("S001-01", "MINE-1").replace("  program: rewrite\n", "")
    (claim,) = load(write(tmp_path, text, "mine.yaml"))
    assert (claim.id, claim.program) == ("MINE-1a", "own")


@pytest.mark.parametrize(
    ("sense", "limits"),
    [("about", (6.9, 8.4)), ("at_least", (6.9, math.inf)), ("at_most", (-math.inf, 8.4))],
)
def test_a_band_is_open_where_the_sense_says_so(tmp_path, sense, limits):
    (claim,) = load(write(tmp_path, GOOD.replace("  why:", f"  sense: {sense}\n  why:")))
    assert claim.limits == limits


def test_an_expression_is_checked_when_read(tmp_path):
    text = GOOD.replace("slowdown", "arithmetic")
    text = re.sub(r"  (program|band_set).*\n", "", text)
    text = re.sub(r"  variant.*\n  workloads.*\n", "  expression: __import__('os')\n", text)
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


# What stands once


WHOLE = """\
workloads: {medium: linear_relu/1024x784x2048/float32/ieee/forward, small: linear_relu/64x64x64/float32/ieee/forward}
defaults: {unit: "%", program: author, device: cuda, workloads: [medium],
           rewrites: {author_v1: naive, author_v2: cublas_relu}}
claims:
  - id: S001-01
    section: First
    claim: It is faster.
    test: {claimed: 2, quantity: ratio, variant: author_v1, band_set: 2026-11-21 before}
    parts:
      - why: It is shared.
      - {quantity: arithmetic, unit: ms, expression: 4 / 2, band: [1.9, 2.1], why: It divides.}
      - {claim: Not so., variant: eager, program: library, workloads: [small], device: ~, why: Own.}
      - {claimed: [1, 3], quantity: quotient, over: {topic: program, name: n, variant: author_v2}, why: Own.,
         under: {variant: eager, workload: small}, conflicts: [S001-01a]}
"""


def test_a_part_takes_what_it_does_not_say_from_its_claim_and_its_file(tmp_path):
    first, sum_, third, last = ledger_of(tmp_path, WHOLE)
    medium, small = (f"linear_relu/{shape}/float32/ieee/forward" for shape in ("1024x784x2048", "64x64x64"))
    assert (first.claimed, first.unit, first.quantity, first.variant) == ((2, 2), "×", "ratio", "author_v1")
    assert (first.program, first.device, first.workloads) == ("author", "cuda", (medium,))
    assert (first.section, first.statement, first.band_set) == ("First", "It is faster.", "2026-11-21 before")
    assert (sum_.variant, sum_.program, sum_.unit, sum_.claimed) == ("", "arithmetic", "ms", (2, 2))
    assert (third.variant, third.program, third.device, third.workloads) == ("eager", "library", "", (small,))
    assert (last.unit, last.band, last.under[0].workload) == ("%", (1, 3), small)
    assert [claim.rewrites for claim in (first, sum_, third, last)] == [(("author_v1", "naive"),), (), (), ()]


def test_a_contradiction_is_said_by_one_part_and_known_to_both(tmp_path):
    found = {claim.id: claim.conflicts for claim in ledger_of(tmp_path, WHOLE)}
    assert (found["S001-01a"], found["S001-01d"]) == (("S001-01d",), ("S001-01a",))


@pytest.mark.parametrize(
    ("claimed", "unit", "band"),
    [
        ((2.0, 2.0), "×", (1.8, 2.2)),
        ((1.0, 1.0), "×", (0.98, 1.02)),
        ((1.0, 1.0), "%", (0.9, 1.1)),
        ((1.1, 1.2), "×", (1.1, 1.2)),
        ((-10.0, -10.0), "ms", (-11, -9)),
    ],
)
def test_a_band_follows_from_what_is_claimed(claimed, unit, band):
    assert usual_band(claimed, unit) == band


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("claims:\n", "claim:\n", 4, "unknown key 'claim'; did you mean 'claims'"),
        ("workloads: {medium", "workloads: {7", 1, "name must be text"),
        ("workloads: [medium]", "workloads: [meduim]", 2, "unknown workload 'meduim'; did you mean 'medium'"),
        ('unit: "%"', "units: x", 2, "unknown key 'units'; did you mean 'unit'"),
        ("device: cuda", "band_set: 2026-11-21 before", 2, "unknown key 'band_set'"),
        ("device: cuda", "id: S001-01", 2, "unknown key 'id'"),
        ("device: cuda", "device: tpu", 2, "unknown device 'tpu'"),
        (", band_set: 2026-11-21 before", "", 10, "key 'band_set' is missing"),
        ("variant: author_v1, band", "variant: naive, band", 10, "program author, but no variant of the author's"),
        ("variant: author_v1", "variant: author_v1}\n    test: {claimed: 1", 9, "stands twice"),
        ("claimed: 2, quantity: ratio", "claimed: 2, quantity: rate", 10, "elsewhere"),
        ("claimed: 2,", "claimed: 1, band: [0.9, 1.1],", 8, "1× is equal"),
    ],
)
def test_a_rule_that_is_broken_names_file_line_and_remedy(tmp_path, old, new, line, message):
    assert old in WHOLE
    path = write(tmp_path, WHOLE.replace(old, new, 1))
    with pytest.raises(ClaimError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}: "), caught.value


def test_a_time_that_is_said_of_any_machine_may_be_judged(tmp_path):
    text = GOOD.replace("slowdown", "time").replace('"×"', "ms")
    (claim,) = load(write(tmp_path, text + "  elsewhere: ~\n"))
    assert claim.testable


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
  program: library
  band_set: 2026-11-21 before
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
        ("case: empty", "kind: empty", 7, "unknown key 'kind' of over; known: variant, topic"),
        ("case: empty", "[a]: empty", 7, r"unknown key '\?' of over"),
        ("case: empty", "topic: start", 7, "key 'topic' stands twice"),
        ("case: empty", "clock: wall", 7, "a topic or a clock, not both"),
        ("case: empty", "case: 7", 7, "case must be text"),
        ("topic: start, name: call 2", "topic: strat, name: call 2", 7, "topic 'strat'; did you mean 'start'"),
        ("clock: wall", "clock: sun", 10, "unknown clock 'sun'; known: hot"),
        ("diffraction/8x8/float64/ieee/forward", "8x8", 10, "workload '8x8' is not of the form"),
        ("variant: cuda", "variant: CUDA", 10, "not of the form"),
        ("{topic: start, name: call 2, case: empty, variant: compile}", "call 2", 7, "over must be a figure"),
        ("{topic: start, name: call 2, case: empty, variant: compile}", "[]", 7, "at least one figure"),
        ("    - {clock", "    - [7]\n    - {clock", 10, "under must be a figure"),
        ("    - {clock", "    - {topic: start, name: call 12, variant: compile}\n    - {clock", 9, "none twice"),
        ("  over: {topic: start, name: call 2, case: empty, variant: compile}\n", "", 1, "key 'over' is missing"),
        ("  band:", "  variant: cuda\n  band:", 12, "does not go with quantity quotient"),
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
