"""What is printed for people fits the terminal, whole and searchable; the pager is for those who watch."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import pytest
from command import call
from hypothesis import given
from hypothesis import strategies as st

from hypatia_lab import claims, older, results
from hypatia_lab.cli import claims as claims_command
from hypatia_lab.cli import compare, doctor, terminal
from hypatia_lab.cli import results as results_command
from hypatia_lab.cli.commands import main


@pytest.fixture(scope="module")
def lines(committed_records) -> dict[str, Callable[[], list[str]]]:
    """What each command prints of the committed records."""
    found, parts = committed_records, claims.judge(results.measured(committed_records))
    rows = results.rows(found)
    stated = claims.statements(parts)
    machines = list(dict.fromkeys(record.machine for record in found))
    sides = machines[0], machines[1]
    beside = compare.of(sides, [record for record in found if record.machine in sides], parts)
    made = {(record.machine, record.experiment): record for record in found}
    aged = partial(older.under, known=made)
    long = sorted({row.id for row in stated}, key=lambda name: -sum(len(r.parts) for r in stated if r.id == name))
    return {
        "claims": lambda: claims_command.claim_lines(stated, machines, aged),
        "parts": lambda: claims_command.claim_lines(parts, machines, aged, everything=True),
        "one claim": lambda: claims_command.claims_in_full(
            [row for row in stated if row.id in long[:5]], long[:5], aged
        ),
        "results": lambda: results_command.result_lines(rows, everything=True),
        "compare": lambda: compare.lines(beside, everything=True),
    }


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("what", ["claims", "parts", "one claim", "results", "compare"])
def test_no_line_is_wider_than_the_terminal(lines, monkeypatch, what, width):
    monkeypatch.setenv("COLUMNS", str(width))
    told = lines[what]()
    assert [line for line in told if len(line) > width] == []
    if what == "results":  # narrow or wide, each variant has its name and its ratio
        assert any(line.split()[:1] == ["compile_reduce_overhead"] and "×" in line for line in told)


LENGTHS = st.integers(0, 90)


@given(st.lists(st.tuples(LENGTHS, LENGTHS, st.integers(0, 9)), min_size=1, max_size=9))
def test_a_table_keeps_its_columns_aligned_and_within_the_width(lengths):
    rows = [{"elastic": "a" * a, "optional": "b" * b, "kept": "d" * c} for a, b, c in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "60")
        lines = terminal.table(rows, "elastic", ("optional",))
    assert len(lines) == len(rows) + 1
    assert all(len(line) <= 60 for line in lines)
    if "kept" in lines[0] and not lines[0].endswith("elastic"):
        start = lines[0].index("kept")
        assert all(line[start:] == row["kept"] for line, row in zip(lines[1:], rows, strict=True))


@pytest.mark.parametrize(
    ("watched", "asked", "lines", "pages"),
    [(True, True, 40, 1), (True, True, 4, 0), (True, False, 40, 0), (False, True, 40, 0)],
)
def test_what_is_long_is_paged_where_somebody_watches(monkeypatch, watched, asked, lines, pages):
    paged: list[str] = []
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: watched)
    monkeypatch.setattr(click, "echo_via_pager", paged.append)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("LINES", "24")
    terminal.show(["not\N{NO-BREAK SPACE}testable"] * lines, paged=asked)
    assert len(paged) == pages
    assert [*paged, screen.getvalue()][0].count("not testable") == lines


@pytest.mark.parametrize("arguments", [["claims"], ["results", "unet"], ["doctor", "--device", "cpu"]])
def test_no_pager_is_a_flag_of_every_long_command(monkeypatch, arguments):
    seen: list[Any] = []
    for module in (claims_command, results_command, doctor):
        monkeypatch.setattr(module, "show", lambda *_, paged, **__: seen.append(paged))
    monkeypatch.setattr(doctor, "examine", lambda device: doctor.Report("box", "cpu", (), {}, {}))
    monkeypatch.setattr(doctor, "text", lambda report, everything: [])
    for more in ([], ["--no-pager"]):
        assert call(*arguments, *more).code == 0
    assert seen == [True, False]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_has_the_first_sentence_of_each_command_whole_and_an_example_of_it(width):
    out = main.get_help(click.Context(main, info_name="hypatia-lab", terminal_width=width))
    assert max(map(len, out.splitlines())) <= width
    told = " ".join(out.split())
    for name, command in main.commands.items():
        assert command.help
        first = " ".join(command.help.split("\n\n")[0].split())
        assert first.removesuffix(".") in told
        assert f"hypatia-lab {name}" in told
    order = [told.index(f"hypatia-lab {name}") for name in ("claims", "run", "judge", "simulate")]
    assert order == sorted(order)


@pytest.mark.parametrize("arguments", [["claims", "S003"], ["claims", "S004-16"], ["results", "unet"]])
def test_what_is_printed_into_a_file_has_no_colour_and_no_line_that_is_too_wide(monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "60")
    out = call(*arguments).out
    assert "\x1b" not in out
    assert [line for line in out.splitlines() if len(line) > 60] == []


def test_claims_are_listed_by_number(lines):
    told = lines["claims"]()
    ids = [match[0] for line in told if (match := re.match(r"(S\d+|LAB)-\d+(?=  )", line))]
    first = ids[: ids.index(ids[0], 1)]
    assert first == sorted(first, key=lambda name: (name.partition("-")[0], int(name.partition("-")[2])))


def test_results_begin_with_the_documents_sizes_and_leave_controls_out_until_asked(committed_records):
    rows = results.rows(committed_records)
    own = [row for row in rows if row.operation == "linear_relu" and row.clock == "graph"]
    short, whole = ("\n".join(results_command.result_lines(own, everything=more)) for more in (False, True))
    asides = [row for row in own if row.is_twin or row.experiment in results_command.ASIDE]
    assert len(re.findall(r"(?m)^  \S+@again ", whole)) > 0 == len(re.findall(r"(?m)^  \S+@again ", short))
    assert sum(map(int, re.findall(r"(\d+)\s+cells?\s+of", short))) == len(asides)
    shapes = re.findall(r"(?m)^linear_relu (\S+) ", short)
    assert list(dict.fromkeys(shapes))[:3] == ["256×256×512", "1024×784×2048", "8192×4096×4096"]
    assert call("results", "linear_relu", "--machine", "h200", "--experiment", "agreement").out.count("@again") > 100


def test_what_results_leave_out_are_the_pages_of_controls_and_of_shapes_that_were_drawn():
    from hypatia_lab.experiments import EXPERIMENTS

    drawn = {name for name, experiment in EXPERIMENTS.items() if experiment.notebook == "21_untuned"}
    assert set(results_command.ASIDE) == {"agreement", *drawn}
