"""Whether the commits that records name are known."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from hypatia_lab import paths

_FORM = re.compile(r"[0-9a-f]{7,40}")


def wrong(commits: Iterable[str]) -> dict[str, str]:
    """Those of ``commits`` that can be none or that :func:`history`, where there is one, lacks: commit → the fault."""
    found = {one: f"{one!r} is no commit: nobody can tell what code measured" for one in commits}
    formed = tuple(sorted(filter(_FORM.fullmatch, found)))
    repository = history()
    lacking = missing(formed, repository) if repository and formed else []
    known = set(formed) - set(lacking)
    found |= {one: f"{one} is not in this repository" for one in lacking}
    return {one: told for one, told in found.items() if one not in known}


@cache
def history() -> Path | None:
    """The checkout that this package lies in, where it is one with its whole history; else None."""
    if not paths.CHECKOUT:
        return None
    try:
        asked = ("rev-parse", "--show-toplevel", "--is-shallow-repository")
        top, shallow = _git(paths.HOME, asked).splitlines()
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None
    return paths.HOME if Path(top).resolve() == paths.HOME and shallow == "false" else None


@cache
def missing(commits: tuple[str, ...], repository: Path) -> list[str]:
    """Those of ``commits``, each 7 to 40 hexadecimal digits, that ``repository`` does not have."""
    asked = "".join(f"{commit}^{{commit}}\n" for commit in commits)
    found = _git(repository, ("cat-file", "--batch-check"), asked).splitlines()
    return [commit for commit, line in zip(commits, found, strict=True) if line.split()[1:2] != ["commit"]]


def _git(repository: Path, asked: Sequence[str], given: str = "") -> str:
    command = ["git", "-C", str(repository), *asked]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
