"""Calling the command in a test's own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hypatia_lab.cli import commands


@dataclass(frozen=True)
class Outcome:
    """What a call of the command left: exit code, standard output, lines of standard error."""

    code: int
    out: str
    err: list[str]


def call(*arguments: object) -> Outcome:
    """Call the command; what it does not tell in words of its own is raised."""
    asked = [str(one) for one in arguments]
    done = CliRunner().invoke(commands.main, asked, prog_name="hypatia-lab", catch_exceptions=False)
    return Outcome(done.exit_code, done.stdout, done.stderr.splitlines())


def printed(*arguments: object) -> str:
    """What a command that succeeds prints."""
    found = call(*arguments)
    assert (found.code, found.err) == (0, [])
    return found.out


def rows_of(*arguments: object) -> list[dict[str, Any]]:
    """What a command that succeeds prints as JSON, in which there is no NaN."""
    return json.loads(printed(*arguments, "--json"), parse_constant=pytest.fail)


def refused(*arguments: object) -> str:
    """Call the command, which must refuse: the one line that it says, and nothing on standard output.

    What takes seconds says before what it is about.
    """
    found = call(*arguments)
    *begun, line = found.err
    assert (found.code, found.out, len(begun) < 2) == (2, "", True)
    return line


def files_below(folder: Path) -> list[str]:
    """Every file and folder below ``folder``, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
