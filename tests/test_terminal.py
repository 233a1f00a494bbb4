"""What is printed for people fits the terminal, whole and searchable; the pager is for those who watch."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest
from command import call
from hypothesis import given
from hypothesis import strategies as st

from hypatia_lab import claims, older, results
from hypatia_lab.cli import claims as claims_command
from hypatia_lab.cli import doctor, side_by_side, terminal
from hypatia_lab.cli import results as results_command
from hypatia_lab.cli.commands import main


@pytest.fixture(scope="module")
def lines(committed_records, committed_judgements) -> dict[str, Callable[[], list[str]]]:
    """What each command prints of the committed records."""
    found, parts = committed_records, committed_judgements
    rows = results.rows(found)
    stated = claims.statements(parts)
    machines = list(dict.fromkeys(record.machine for record in found))
    sides = machines[0], machines[1]
    beside = side_by_side.of(sides, [record for record in found if record.machine in sides], parts)
    made = {(record.machine, record.experiment): record for record in found}
    aged = {(row.id, row.machine): older.under(row, made) for row in (*parts, *stated)}
    long = sorted({row.id for row in stated}, key=lambda name: -sum(len(r.parts) for r in stated if r.id == name))
    return {
        "claims": lambda: claims_command.claim_lines(stated, machines, aged),
        "parts": lambda: claims_command.claim_lines(parts, machines, aged, everything=True),
        "one claim": lambda: claims_command.claims_in_full(
            [row for row in stated if row.id in long[:5]], long[:5], aged
        ),
        "results": lambda: results_command.result_lines(rows),
        "compare": lambda: side_by_side.lines(beside, everything=True),
    }


@pytest.mark.parametrize("width", [60, 80, 100, 140])
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
    monkeypatch.setattr(doctor, "examine", lambda device: doctor.Report("box", "cpu", (), ()))
    monkeypatch.setattr(doctor, "text", lambda report: [])
    for more in ([], ["--no-pager"]):
        assert call(*arguments, *more).code == 0
    assert seen == [True, False]


def test_help_tells_the_first_sentence_of_each_command_whole():
    told = " ".join(call("--help").out.split())
    for command in main.commands.values():
        assert command.help
        first = " ".join(command.help.split("\n\n")[0].split())
        assert first.removesuffix(".") in told
