"""Tables of cases: what is given and what must come of it, as data beside the tests, in ``cases/``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

CASES = Path(__file__).resolve().parent / "cases"


@functools.cache
def tables(file: str) -> dict[str, Any]:
    """All tables of ``file``, by name."""
    return yaml.safe_load((CASES / f"{file}.yaml").read_text(encoding="utf-8"))


def tabled(file: str, name: str) -> pytest.MarkDecorator:
    """Runs a test once for each row of a table, whose first row names the test's arguments."""
    head, *rows = tables(file)[name]
    return pytest.mark.parametrize(head, rows)
