"""Where the lab's own files lie: records, claims' book, notebooks.

In a checkout they lie around the package, and what a run makes goes beside them. A wheel carries them in the package,
in a folder that nobody should write to: what a run makes then goes to the current folder.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
CHECKOUT = not (_PACKAGE / "share").is_dir()
"""Whether this is a checkout of the repository."""
HOME = _PACKAGE.parent if CHECKOUT else _PACKAGE / "share"
"""Folder of ``book``, ``notebooks``, ``_config.yml`` and ``_toc.yml``."""
BUILD = (_PACKAGE.parent if CHECKOUT else Path.cwd()) / "_build"
"""Folder of what is made from them."""


def lacking(what: str, extra: str, *modules: str) -> str:
    """Why ``what`` cannot be done without the ``modules`` of an ``extra`` of the package; empty where all are there."""
    absent = [name for name in modules if find_spec(name.partition(".")[0]) is None]
    if not absent:
        return ""
    place = "-c constraints.txt -e '.[{}]'" if CHECKOUT else "'hypatia-lab[{}]'"
    return f"{what} needs {', '.join(absent)}: pip install {place.format(extra)}"
