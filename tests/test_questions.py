"""The table of the page of decisions: every question has its rule, and what each machine measured of it."""

from __future__ import annotations

import html

from test_decisions import CPU_BOX, GPU_BOX

from hypatia_lab import formats
from hypatia_lab.pages import questions


def test_every_question_has_a_line_with_a_column_a_machine() -> None:
    table = questions.table(GPU_BOX)
    assert len(table) == len(questions.QUESTIONS) == 7
    asked = table.iloc[:, 0]
    parts = [(one.link, html.escape(one.ask), html.escape(one.rule)) for one in questions.QUESTIONS]
    assert all(part in line for own, line in zip(parts, asked, strict=True) for part in own)
    found = table.iloc[:, -1]
    assert any(text != formats.MISSING for text in found)


def test_what_a_machine_has_not_measured_is_a_dash() -> None:
    found = list(questions.table(CPU_BOX).iloc[:, -1])
    assert found[0] == found[5] == found[6] == formats.MISSING
