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


# What is read


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


AUTHOR = GOOD.replace("rewrite\n", "author\n  rewrites: {author_v1: naive}\n").replace(
    " naive\n  work", " author_v1\n  work"
)
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
      - {claim: Not so., section: Table, variant: eager, program: library, workloads: [small], device: ~,
         why: Own.}
      - {claimed: [1, 3], quantity: quotient, over: {topic: program, name: n, variant: author_v2}, why: Own.,
         under: {variant: eager, workload: small}, conflicts: [S001-01a]}
"""


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


def write(tmp_path: Path, text: str, name: str = "s001.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def ledger_of(folder: Path, text: str) -> list[Claim]:
    return load(write(folder, text))


def test_good_yaml_is_read(tmp_path):
    text = GOOD.replace("S001-01", "S001-101").replace("  why:", "  experiment: gemm_ladder\n  why:")
    [(line, claim)] = load_file(write(tmp_path, "# a comment\n" + text))
    assert (line, claim.id, claim.lead, claim.seed, claim.claimed) == (2, "S001-101a", "S001-101", "S001", (7.67, 7.67))
    assert (claim.baseline, claim.program, claim.sense) == ("eager", "rewrite", "about")
    assert (claim.experiment, claim.statement) == ("gemm_ladder", claim.claim)
    assert claim.claim == "The naive kernel is slower."


def test_a_part_may_be_rewritten_throughout(tmp_path):
    first, sum_, *_ = ledger_of(tmp_path, WHOLE.replace("author_v1, band", "author_v1, baseline: author_v1, band"))
    assert (first.rewritten().variant, first.rewritten().baseline) == ("naive", "naive")
    assert sum_.rewritten() == sum_
    figures = "of: [{variant: author_v1}, {topic: trace, name: kernel launches, variant: eager}]"
    (claim,) = ledger_of(tmp_path, AUTHOR.replace("slowdown", "figure").replace("variant: author_v1", figures))
    assert [figure.variant for figure in claim.rewritten().of] == ["naive", "eager"]


def test_a_part_takes_what_it_does_not_say_from_its_claim_and_its_file(tmp_path):
    first, sum_, third, last = found = ledger_of(tmp_path, WHOLE)
    assert [claim.id for claim in found] == ["S001-01a", "S001-01b", "S001-01c", "S001-01d"]
    assert {(claim.lead, claim.statement) for claim in found} == {("S001-01", "It is faster.")}
    assert [line for line, _ in load_file(tmp_path / "s001.yaml")] == [10, 11, 12, 14]
    assert ledger(tmp_path) == found
    medium, small = (f"linear_relu/{shape}/float32/ieee/forward" for shape in ("1024x784x2048", "64x64x64"))
    assert (first.claimed, first.unit, first.quantity, first.variant) == ((2, 2), "×", "ratio", "author_v1")
    assert (first.program, first.device, first.workloads) == ("author", "cuda", (medium,))
    assert (first.section, first.claim, first.band_set) == ("First", "It is faster.", "2026-11-21 before")
    assert (sum_.variant, sum_.program, sum_.unit, sum_.claimed) == ("", "arithmetic", "ms", (2, 2))
    assert (third.section, third.claim) == ("Table", "Not so.")
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


def test_a_time_that_is_said_of_any_machine_may_be_judged(tmp_path):
    text = GOOD.replace("slowdown", "time").replace('"×"', "ms")
    (claim,) = load(write(tmp_path, text + "  elsewhere: ~\n"))
    assert claim.testable


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


def test_every_quantity_that_rows_give_has_a_unit_which_its_page_names():
    assert set(UNITS) == set(quantities.QUANTITIES)
    page = Path(__file__).resolve().parent.parent / "book" / "your_own_kernel.md"
    (told,) = re.findall(r"(?m)^\| `quantity` \| (.*) \|$", page.read_text(encoding="utf-8"))
    for quantity, unit in UNITS.items():
        if f"`{quantity}`" in told:
            assert unit in told.partition(f"`{quantity}`")[2].partition(";")[0], quantity


# What is wrong


WORKLOADS = "[linear_relu/1024x784x2048/float32/ieee/forward]"
SHORT = WHOLE.splitlines()[0]
RATIO = f"ratio\n  bound: free_relu\n  variant: naive\n  workloads: {WORKLOADS.replace('linear_relu', 'relu')}"
OVER = "{topic: start, name: call 2, case: empty, variant: compile}"
FAULTS = {
    GOOD: [
        (GOOD, "", 1, "empty"),
        (GOOD, "a: 1\n", 1, "unknown key 'a'"),
        (GOOD, "defaults: {}\n", 1, "key 'claims' is missing"),
        (GOOD, "7\n", 1, "a ledger file is a list"),
        (GOOD, "- 1\n", 1, "an entry must"),
        (GOOD, GOOD + GOOD, 13, "id S001-01 is used twice (first on line 1)"),
        ("  unit:", "  units:", 5, "unknown key 'units'"),
        ("  quantity: slowdown\n", "", 1, "key 'quantity' is missing"),
        ("  variant: naive\n", "", 1, "key 'variant' is missing"),
        ("7.67", "about seven", 4, "claimed"),
        ("7.67", "true", 4, "claimed"),
        ("7.67", ".nan", 4, "claimed"),
        ("7.67", "!!int x", 4, "claimed"),
        ("7.67", "[8, 7]", 4, "low below high"),
        ("7.67", "9", 9, "the band must contain what is claimed"),
        ("7.67", "[7, 9]", 9, "the band must contain what is claimed"),
        ("Problem Statement", "7", 2, "section must be text"),
        ("section: Problem Statement", "section:", 2, "section"),
        ("Problem Statement", "!!python/name:os.system", 2, "section"),
        ("slowdown", "speed", 6, "unknown quantity 'speed'; known: ratio"),
        ("[6.9, 8.4]", "[6.9]", 9, "band must be [low, high]"),
        (WORKLOADS, "[medium]", 8, "workloads 'medium'"),
        (WORKLOADS, "[]", 8, "workloads"),
        ("  variant: naive", "  variant: naive\n  variant: aten", 8, "key 'variant' stands twice"),
        ("  variant: naive", "  variant: naive\n  expression: 1 + 1", 8, "key 'expression' does not go with"),
        ("  variant: naive", "  variant: naive\n  bound: roofline", 8, "key 'bound' does not go with"),
        ("slowdown", "constant", 8, "at least two workloads"),
        ("slowdown", "time", 5, "unit '×' does not go with quantity time, which is worked out in ms"),
        ('"×"', '"%"', 5, "worked out in ×; write unit, claimed and band so"),
        ("S001-01", "S002-01", 1, "belongs in s002.yaml"),
        ("S001-01", "first", 1, "id 'first'"),
        ("S001-01", "S001-1000", 1, "id 'S001-1000'"),
        ("S001-01", "S001-01a", 1, "id 'S001-01a'"),
        ("  why:", "  experiment: chapter 4\n  why:", 11, "experiment 'chapter 4'"),
        ("  program: rewrite\n", "", 1, "key 'program' is missing"),
        ("rewrite", "arithmetic", 10, "unknown program 'arithmetic'; known: author"),
        ("  why:", "  sense: roughly\n  why:", 11, "sense 'roughly'"),
        ("  why:", "  gain: up\n  why:", 11, "gain"),
        ("  why:", "  gain: !!bool up\n  why:", 11, "gain"),
        ("  why:", "  gain: true\n  sense: at_most\n  why:", 11, "no gain"),
        ("  why:", "  forecast: yes please\n  why:", 11, "forecast"),
        ("  why:", "  forecast: true\n  why:", 11, "forecast"),
        ("  why:", "  elsewhere: On another GPU.\n  why:", 11, "elsewhere is for what depends on the hardware"),
        (
            '"×"\n  quantity: slowdown',
            "ms\n  quantity: time\n  bound: free_relu",
            7,
            "bound free_relu goes with quantity",
        ),
        (f"slowdown\n  variant: naive\n  workloads: {WORKLOADS}", RATIO, 9, "share, launch and free_relu are about"),
        ("2026-11-21 before", "yesterday", 12, "band_set 'yesterday'"),
        ("  why:", "  rewrites: {author_v1: naive}\n  why:", 11, "(program: author)"),
        ("rewrite", "author\n  rewrites: naive", 11, "rewrites"),
        ("rewrite", "author\n  rewrites: {}", 11, "rewrites"),
        ("rewrite", "author\n  rewrites: {author_v1: naive}", 11, "rewrites names author_v1"),
        ("rewrite", "author\n  rewrites: {naive: a, naive: b}", 11, "rewrites"),
        ("  why:", "  parts: []\n  why:", 11, "parts"),
        ("  why:", "  parts: 7\n  why:", 11, "parts"),
        ("  why:", "  parts:\n  why:", 11, "parts"),
        ("  why:", "  parts: [7, 8]\n  why:", 11, "a part"),
        ("  why:", "  parts: [{section: Table}]\n  why:", 11, "parts"),
        ("  unit:", "\tunit:", 5, "not YAML"),
        ('"×"', '"×', 5, "not YAML"),
        ("[6.9, 8.4]", "[6.9, 8.4", 10, "not YAML"),
        ("naive kernel", "naive\x07kernel", 3, "not YAML"),
        ("Problem Statement", "*nowhere", 2, "not YAML"),
        ('"×"', '"\\UFFFFFFFF"', 5, "not YAML"),
    ],
    WHOLE: [
        ("    parts:", "    part: relu\n    parts:", 9, "key 'part' goes with none of the parts"),
        ("quantity: ratio", "quantity: speed", 8, "unknown quantity 'speed'"),
        ("    parts:", "    test: 7\n    parts:", 9, "unknown key 'test'"),
        ("claimed: 2,", "claimed: 2, units: ms,", 8, "did you mean 'unit'"),
        ("claimed: 2,", "claimed: 2, claim: Again.,", 8, "key 'claim' stands twice"),
        ("- why: It", "- id: S001-02\n        why: It", 10, "unknown key 'id'"),
        ("why: It is shared.", "section: Table", 10, "key 'why' is missing"),
        ("[1.9, 2.1]", "[2.1, 2.3]", 11, "the band must contain what is claimed"),
        ("    claim: It is faster.\n", "", 5, "key 'claim' is missing"),
        ("[S001-01a]", "[S001-01]", 15, "conflicts 'S001-01'"),
        ("[S001-01a]", "[S001-01e]", 14, "S001-01d conflicts with S001-01e"),
        ("[S001-01a]", "[S001-01d]", 14, "S001-01d conflicts with S001-01d"),
        ("expression:", "experiment: gemm_ladder, expression:", 11, "key 'experiment' does not go with"),
        ("4 / 2", "__import__('os')", 11, "cannot be worked out"),
        ("claims:\n", "claim:\n", 4, "did you mean 'claims'"),
        (SHORT, "workloads: [medium]", 1, "workloads must give each a short name"),
        (SHORT, "document: {file: README.md}", 1, "document must say file and sha256"),
        ("workloads: {medium", "workloads: {7", 1, "name must be text"),
        ("[medium]", "[meduim]", 2, "unknown workload 'meduim'; did you mean 'medium'"),
        ('unit: "%"', "units: x", 2, "did you mean 'unit'"),
        ("device: cuda", "band_set: 2026-11-21 before", 2, "unknown key 'band_set'"),
        ("device: cuda", "id: S001-01", 2, "unknown key 'id'"),
        ("device: cuda", "device: tpu", 2, "unknown device 'tpu'"),
        (", band_set: 2026-11-21 before", "", 10, "key 'band_set' is missing"),
        ("variant: author_v1, band", "variant: naive, band", 10, "program author, but no variant of the author's"),
        ("variant: author_v1", "variant: author_v1}\n    test: {claimed: 1", 9, "key 'claimed' stands twice"),
        ("quantity: ratio", "quantity: rate", 10, "elsewhere"),
        ("claimed: 2,", "claimed: 1, band: [0.9, 1.1],", 8, "1× is equal"),
    ],
    QUOTIENT: [
        ("name: call 2, ", "", 7, "over has topic and name"),
        ("topic: start, name: call 2, ", "", 7, "over has topic and name"),
        ("topic: start, name: call 12, ", "name: call 12, ", 9, "under has topic and name"),
        (", variant: compile}\n  under", "}\n  under", 7, "over lacks its variant"),
        ("case: empty", "kind: empty", 7, "unknown key 'kind' of over; known: variant, topic"),
        ("case: empty", "[a]: empty", 7, "unknown key '?' of over"),
        ("case: empty", "topic: start", 7, "key 'topic' stands twice in over"),
        ("case: empty", "clock: wall", 7, "over has a topic or a clock, not both"),
        ("case: empty", "case: 7", 7, "case must be text"),
        ("topic: start, name: call 2", "topic: strat, name: call 2", 7, "did you mean 'start'"),
        ("clock: wall", "clock: sun", 10, "unknown clock 'sun'; known: hot"),
        ("diffraction/8x8/float64/ieee/forward", "8x8", 10, "workload '8x8'"),
        ("variant: cuda", "variant: CUDA", 10, "variant 'CUDA'"),
        (OVER, "call 2", 7, "over"),
        (OVER, "[]", 7, "over"),
        ("    - {clock", "    - [7]\n    - {clock", 10, "under"),
        ("    - {clock", "    - {topic: start, name: call 12, variant: compile}\n    - {clock", 9, "twice"),
        (f"  over: {OVER}\n", "", 1, "key 'over' is missing"),
        ("  band:", "  variant: cuda\n  band:", 12, "key 'variant' does not go with quantity quotient"),
        ("  band:", "  of: {variant: cuda}\n  band:", 12, "key 'of' does not go with quantity quotient"),
        ("  band:", "  clock: wall\n  band:", 12, "key 'clock' does not go with quantity quotient"),
    ],
}
"""A file that is well → faults of it: what stands there, what in its place, the line, and what the error says."""


def complaint(read: Callable[[Any], Any], given: Any, expected: type[ValueError]) -> str:
    """The message of the one error that ``read`` may raise; empty when it raises none."""
    try:
        read(given)
    except expected as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "said"),
    [pytest.param(text, *row, id=f"{row[1]} {row[3]}") for text, rows in FAULTS.items() for row in rows],
)
def test_a_fault_names_file_line_and_key(tmp_path, text, old, new, line, said):
    assert old in text
    path = write(tmp_path, text.replace(old, new, 1), f"{text[text.index('S00') :][:4].lower()}.yaml")
    found = complaint(load, path, ClaimError)
    assert found.startswith(f"{path}:{line}: ")
    assert said in found
    assert "\n" not in found


def test_faults_of_whole_files(tmp_path):
    path = tmp_path / "s001.yaml"
    path.write_bytes(b"- id: S001-01\n  section: \xff\n")
    with pytest.raises(ClaimError, match=":2: not UTF-8"):
        load_file(path)
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


LINES = GOOD.splitlines()
MARKS = ["- ", ": ", "[", "]", "{", "}", "&a ", "*a", "|", '"', "!!python/object/apply:os.mkdir [made]"]
PIECES = st.sampled_from([*LINES, *MARKS])


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
