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


REFUSED = """
__import__('os').system('true') | open('x') | 'a' * 3 | giga.real | [1][0] | 1 if 1 else 2 | 1 < 2 | 7 // 2 | 1 / 0
(-1) ** 0.5 | 9 ** 9 ** 9 | 1e308 * 10 | unknown + 1 | True | x = 1 | 1if | ( | lambda: 1
"""


@pytest.mark.parametrize("expression", [*re.split(r" \| |\n", REFUSED.strip()), "(" * 500 + ")" * 500, "1\n2"])
def test_arithmetic_refuses_everything_else(expression):
    with pytest.raises(ValueError, match="cannot be worked out"):
        arithmetic(expression)


# What is read


GOOD, WHOLE, QUOTIENT = (
    (Path(__file__).parent / "ledgers" / f"{name}.yaml").read_text(encoding="utf-8")
    for name in ("good", "whole", "quotient")
)
AUTHOR = GOOD.replace("rewrite\n", "author\n  rewrites: {author_v1: naive}\n").replace(
    " naive\n  work", " author_v1\n  work"
)


def write(tmp_path: Path, text: str, name: str = "s001.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def ledger_of(folder: Path, text: str) -> list[Claim]:
    return load(write(folder, text))


def test_good_yaml_is_read(tmp_path):
    text = GOOD.replace("S001-01", "S001-101").replace("  why:", "  experiment: gemm_ladder\n  why:")
    [(line, claim)] = load_file(write(tmp_path, "# a comment\n" + text))
    assert (line, claim.id, claim.lead, claim.document) == (2, "S001-101a", "S001-101", "S001")
    assert (claim.claimed, claim.baseline, claim.program) == ((7.67, 7.67), "eager", "rewrite")
    assert (claim.sense, claim.experiment) == ("about", "gemm_ladder")
    assert claim.statement == claim.claim == "The naive kernel is slower."


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
BEFORE_WHY, REWRITES = "  why:", "author\n  rewrites:"
FAULTS: dict[str, list[tuple[str, int, str, list[str]]]] = {
    GOOD: [
        (GOOD, 1, "", ["", "7\n", "- 1\n"]),
        (GOOD, 1, "'a'", ["a: 1\n"]),
        (GOOD, 1, "'claims'", ["defaults: {}\n"]),
        (GOOD, 13, "S001-01 is used twice (first on line 1)", [GOOD + GOOD]),
        ("  unit:", 5, "'units'", ["  units:"]),
        ("  quantity: slowdown\n", 1, "'quantity'", [""]),
        ("  variant: naive\n", 1, "'variant'", [""]),
        ("7.67", 4, "claimed", ["about seven", "true", ".nan", "!!int x", "[8, 7]"]),
        ("7.67", 9, "band", ["9", "[7, 9]"]),
        ("Problem Statement", 2, "section", ["7", "", "!!python/name:os.system"]),
        ("slowdown", 6, "'speed'; known: ratio", ["speed"]),
        ("[6.9, 8.4]", 9, "band", ["[6.9]"]),
        (WORKLOADS, 8, "workloads", ["[medium]", "[]"]),
        ("  variant: naive", 8, "'variant'", ["  variant: naive\n  variant: aten"]),
        ("  variant: naive", 8, "'expression'", ["  variant: naive\n  expression: 1 + 1"]),
        ("  variant: naive", 8, "'bound'", ["  variant: naive\n  bound: roofline"]),
        ("slowdown", 8, "at least two workloads", ["constant"]),
        ("slowdown", 5, "unit '×'", ["time"]),
        ('"×"', 5, "worked out in ×", ['"%"']),
        ("S001-01", 1, "s002.yaml", ["S002-01"]),
        ("S001-01", 1, "id", ["first", "S001-1000", "S001-01a"]),
        (BEFORE_WHY, 11, "'chapter 4'", ["  experiment: chapter 4\n  why:"]),
        ("  program: rewrite\n", 1, "'program'", [""]),
        ("rewrite", 10, "'arithmetic'; known: author", ["arithmetic"]),
        (BEFORE_WHY, 11, "'roughly'", ["  sense: roughly\n  why:"]),
        (BEFORE_WHY, 11, "gain", [f"  gain: {told}\n  why:" for told in ("up", "!!bool up", "true\n  sense: at_most")]),
        (BEFORE_WHY, 11, "forecast", [f"  forecast: {told}\n  why:" for told in ("yes please",)]),
        (BEFORE_WHY, 11, "elsewhere", ["  elsewhere: On another GPU.\n  why:"]),
        ('"×"\n  quantity: slowdown', 7, "free_relu", ["ms\n  quantity: time\n  bound: free_relu"]),
        (f"slowdown\n  variant: naive\n  workloads: {WORKLOADS}", 9, "free_relu", [RATIO]),
        ("2026-11-21 before", 12, "'yesterday'", ["yesterday"]),
        (BEFORE_WHY, 11, "program: author", ["  rewrites: {author_v1: naive}\n  why:"]),
        ("rewrite", 11, "rewrites", [f"{REWRITES} {told}" for told in ("naive", "{}", "{naive: a, naive: b}")]),
        ("rewrite", 11, "author_v1", [f"{REWRITES} {{author_v1: naive}}"]),
        (BEFORE_WHY, 11, "part", [f"  parts:{told}\n  why:" for told in ("", " []", " 7", " [7, 8]")]),
        (BEFORE_WHY, 11, "parts", ["  parts: [{section: Table}]\n  why:"]),
        # No YAML.
        ("  unit:", 5, "YAML", ["\tunit:"]),
        ('"×"', 5, "YAML", ['"×', '"\\UFFFFFFFF"']),
        ("[6.9, 8.4]", 10, "YAML", ["[6.9, 8.4"]),
        ("naive kernel", 3, "YAML", ["naive\x07kernel"]),
        ("Problem Statement", 2, "YAML", ["*nowhere"]),
    ],
    WHOLE: [
        ("    parts:", 9, "'part'", ["    part: relu\n    parts:"]),
        ("quantity: ratio", 8, "'speed'", ["quantity: speed"]),
        ("    parts:", 9, "'test'", ["    test: 7\n    parts:"]),
        ("claimed: 2,", 8, "'unit'", ["claimed: 2, units: ms,"]),
        ("claimed: 2,", 8, "'claim'", ["claimed: 2, claim: Again.,"]),
        ("- why: It", 10, "'id'", ["- id: S001-02\n        why: It"]),
        ("why: It is shared.", 10, "'why'", ["section: Table"]),
        ("[1.9, 2.1]", 11, "band", ["[2.1, 2.3]"]),
        ("    claim: It is faster.\n", 5, "'claim'", [""]),
        ("[S001-01a]", 15, "'S001-01'", ["[S001-01]"]),
        ("[S001-01a]", 14, "S001-01d conflicts with S001-01e", ["[S001-01e]"]),
        ("[S001-01a]", 14, "S001-01d conflicts with S001-01d", ["[S001-01d]"]),
        ("expression:", 11, "'experiment'", ["experiment: gemm_ladder, expression:"]),
        ("4 / 2", 11, "__import__", ["__import__('os')"]),
        ("claims:\n", 4, "'claims'", ["claim:\n"]),
        (SHORT, 1, "workloads", ["workloads: [medium]"]),
        (SHORT, 1, "sha256", ["document: {file: README.md}"]),
        ("workloads: {medium", 1, "name", ["workloads: {7"]),
        ("[medium]", 2, "'meduim'; did you mean 'medium'", ["[meduim]"]),
        ('unit: "%"', 2, "'unit'", ["units: x"]),
        ("device: cuda", 2, "'band_set'", ["band_set: 2026-11-21 before"]),
        ("device: cuda", 2, "'id'", ["id: S001-01"]),
        ("device: cuda", 2, "'tpu'", ["device: tpu"]),
        (", band_set: 2026-11-21 before", 10, "'band_set'", [""]),
        ("variant: author_v1, band", 10, "program author", ["variant: naive, band"]),
        ("variant: author_v1", 9, "'claimed'", ["variant: author_v1}\n    test: {claimed: 1"]),
        ("quantity: ratio", 10, "elsewhere", ["quantity: rate"]),
        ("claimed: 2,", 8, "1×", ["claimed: 1, band: [0.9, 1.1],"]),
    ],
    QUOTIENT: [
        ("name: call 2, ", 7, "over has topic and name", [""]),
        ("topic: start, name: call 2, ", 7, "over has topic and name", [""]),
        ("topic: start, name: call 12, ", 9, "under has topic and name", ["name: call 12, "]),
        (", variant: compile}\n  under", 7, "over lacks its variant", ["}\n  under"]),
        ("case: empty", 7, "'kind' of over; known: variant, topic", ["kind: empty"]),
        ("case: empty", 7, "'?' of over", ["[a]: empty"]),
        ("case: empty", 7, "'topic'", ["topic: start"]),
        ("case: empty", 7, "a topic or a clock", ["clock: wall"]),
        ("case: empty", 7, "case", ["case: 7"]),
        ("topic: start, name: call 2", 7, "did you mean 'start'", ["topic: strat, name: call 2"]),
        ("clock: wall", 10, "'sun'; known: hot", ["clock: sun"]),
        ("diffraction/8x8/float64/ieee/forward", 10, "'8x8'", ["8x8"]),
        ("variant: cuda", 10, "'CUDA'", ["variant: CUDA"]),
        (OVER, 7, "over", ["call 2", "[]"]),
        ("    - {clock", 10, "under", ["    - [7]\n    - {clock"]),
        ("    - {clock", 9, "twice", ["    - {topic: start, name: call 12, variant: compile}\n    - {clock"]),
        (f"  over: {OVER}\n", 1, "'over'", [""]),
        *(
            ("  band:", 12, f"'{key}'", [f"  {key}: {told}\n  band:"])
            for key, told in (("variant", "cuda"), ("of", "{variant: cuda}"), ("clock", "wall"))
        ),
    ],
}
"""A file that is well → faults of it: what stands there, the line, what the error names, and what is put there."""


def complaint(read: Callable[[Any], Any], given: Any, expected: type[ValueError] = ClaimError) -> str:
    """The message of the one error that ``read`` may raise; empty when it raises none."""
    try:
        read(given)
    except expected as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "old", "line", "named", "new"),
    [
        pytest.param(text, old, line, named, new, id=f"{named} {new}"[:60])
        for text, rows in FAULTS.items()
        for old, line, named, news in rows
        for new in news
    ],
)
def test_a_fault_names_file_line_and_key(tmp_path, text, old, line, named, new):
    assert old in text
    path = write(tmp_path, text.replace(old, new, 1), f"{text[text.index('S00') :][:4].lower()}.yaml")
    found = complaint(load, path)
    assert found.startswith(f"{path}:{line}: ")
    assert named in found.removeprefix(f"{path}:")
    assert "\n" not in found


def test_faults_of_whole_files(tmp_path):
    path = tmp_path / "s001.yaml"
    path.write_bytes(b"- id: S001-01\n  section: \xff\n")
    assert complaint(load_file, path).startswith(f"{path}:2: ")
    assert str(tmp_path / "s002.yaml") in complaint(load_file, tmp_path / "s002.yaml")
    assert str(path) in complaint(load_file, write(tmp_path, "[" * 5000))


def test_faults_of_a_whole_ledger(tmp_path):
    assert str(tmp_path) in complaint(ledger, tmp_path)
    path = write(tmp_path, GOOD + "  conflicts: [S004-01a]\n")
    assert complaint(ledger, tmp_path).startswith(f"{path}:1: S001-01a conflicts with S004-01a")
    write(tmp_path, GOOD.replace("S001", "S004"), "s004.yaml")
    assert [claim.id for claim in ledger(tmp_path)] == ["S001-01a", "S004-01a"]


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
    assert re.fullmatch(re.escape(str(path)) + r":[1-9][0-9]*: .+|", complaint(load_file, path))
    assert [found.name for found in tmp_path.iterdir()] == ["s001.yaml"]


@settings(max_examples=350, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="0123456789+-*/(). eagikfmlot'[]_,=<", max_size=30)))
def test_any_expression_gives_a_number_or_one_clear_error(expression):
    assert re.fullmatch(r"expression .+ cannot be worked out .+|", complaint(arithmetic, expression, ValueError))
