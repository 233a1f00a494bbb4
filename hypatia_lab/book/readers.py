"""What the books of readers have in common: files that they begin with, and the lab's own looks.

The files lie in ``templates/``. What stands there as ``@NAME@`` is filled in.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypatia_lab import paths
from hypatia_lab.book.build import BookError, copy_folder
from hypatia_lab.records import write_text

TEMPLATES = Path(__file__).with_name("templates")


def _filled(text: str, said: dict[str, str]) -> str:
    """``text`` with what is ``said``, by lower-case name, in one go: nothing of that is filled in again."""
    return re.sub("@([A-Z]+)@", lambda name: said[name[1].lower()], text)


def template(file: str, /, **said: str) -> str:
    """The text of a file of the templates, filled in."""
    return _filled((TEMPLATES / file).read_text(encoding="utf-8"), said)


def notebook(kind: str, /, without: str = "", **said: str) -> str:
    """The notebook ``kind`` of the templates, filled in and not executed.

    It is ``without`` the cells whose ids begin so; empty leaves none out.
    """
    found = json.loads((TEMPLATES / "notebooks" / f"{kind}.ipynb").read_text(encoding="utf-8"))
    found["cells"] = [
        cell | {"source": _filled("".join(cell["source"]), said)}
        for cell in found["cells"]
        if not without or not cell["id"].startswith(without)
    ]
    return json.dumps(found, indent=1) + "\n"


def escaped(text: str) -> str:
    """``text`` so that Markdown shows it as it is: a description is data."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))


def titled(title: str, author: str) -> dict[str, Any]:
    """What the settings of a book with this title say otherwise than the lab's own."""
    logo = {"sphinx": {"config": {"html_theme_options": {"logo": {"text": title}}}}}
    return {"title": title, "author": author, "copyright": author} | logo


def written(settings: dict[str, Any]) -> str:
    """``settings`` as the text of a ``_config.yml``."""
    import yaml

    return yaml.safe_dump(settings, allow_unicode=True, sort_keys=False)


def lay_out(folder: Path, said: dict[str, Any], mark: str = "", *, looks: bool = True) -> None:
    """Give the book in ``folder`` the lab's looks: its settings, with what is ``said`` otherwise, and static files.

    Without ``looks`` the static files, which building it needs, are left out. The settings come first, behind ``mark``:
    from then on it is known whose the folder is. Raises :class:`BookError` where the lab's own book is not there, and
    :class:`hypatia_lab.records.RecordError` where nothing can be written.
    """
    import yaml

    try:
        own = yaml.safe_load((paths.HOME / "_config.yml").read_text(encoding="utf-8"))
    except OSError as cause:
        raise BookError(f"the book cannot be laid out: {cause.filename}: {cause.strerror}") from None
    write_text(folder / "_config.yml", mark + written(_over(own, said)))
    if looks:
        copy_folder(paths.HOME / "book" / "static", folder / "book" / "static")


def is_ours(folder: Path, mark: str) -> bool:
    """Whether the settings of a book in ``folder`` are there and begin with ``mark``."""
    try:
        return (folder / "_config.yml").read_text(encoding="utf-8").startswith(mark)
    except (OSError, UnicodeDecodeError):
        return False


def _over(own: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """The settings ``own``, and what is ``said`` otherwise, mapping by mapping."""
    both = {
        name: _over(own[name], said[name])
        for name in own.keys() & said.keys()
        if isinstance(own[name], dict) and isinstance(said[name], dict)
    }
    return own | said | both
