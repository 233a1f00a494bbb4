"""A report on documents that are not the lab's: the folder that it begins with, and what its book is built from.

A report is a folder of its author's: ``claims/`` (ledger files), ``experiments.py`` (a program file), ``notebooks/``
with its one page, ``_config.yml`` (what differs from the lab's own) and ``_toc.yml``; ``records/`` once something was
measured. Nothing of the documents lies in it but figures, units and where they stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hypatia_lab.book import readers
from hypatia_lab.book.build import BookError, copy_folder
from hypatia_lab.records import copy, write_text

MARK = "# What differs from the lab's own book.\n"
"""First line of a report's settings."""
PAGE = "notebooks/report"
"""The one page, without its suffix."""


class ReportError(ValueError):
    """A folder that is no report, or cannot become one: the message names it and the remedy."""


def begin(folder: Path, ledgers: Mapping[str, str]) -> None:
    """Lay out a new report in ``folder``, with ``ledgers``, texts of ledger files by name.

    Raises :class:`ReportError` where something is there, and :class:`hypatia_lab.records.RecordError` where nothing can
    be written.
    """
    ensure_free(folder)
    title = folder.resolve().name
    name = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")[:50] or "report"
    shown = readers.escaped(title)
    # The first file says whose the folder is, the last one that it has all of them.
    for file, text in {
        "_config.yml": MARK + readers.written(readers.titled(title, "")),
        **{f"claims/{ledger}.yaml": text for ledger, text in ledgers.items()},
        "experiments.py": readers.template("experiments.py.txt", name=name),
        f"{PAGE}.ipynb": readers.notebook("report", title=shown),
        "README.md": readers.template("README.md", title=shown),
        "_toc.yml": f"format: jb-book\nroot: {PAGE}\n",
    }.items():
        write_text(folder / file, text)


def ensure_free(folder: Path) -> None:
    """Raise :class:`ReportError` where ``folder`` is a file, or holds something that :func:`begin` has not left there
    when it was cut short."""
    if readers.is_ours(folder, MARK) and not (folder / "_toc.yml").exists():
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReportError(f"{folder} exists and is not empty; name a folder that is new")


def ensure_report(folder: Path) -> None:
    """Raise :class:`ReportError` where ``folder`` is no report."""
    if not (folder / "_toc.yml").is_file() or not (folder / "claims").is_dir():
        raise ReportError(
            f"{folder} holds no report (_toc.yml and claims/); hypatia-lab investigate {folder} begins one"
        )


def lay_out(folder: Path, source: Path) -> None:
    """Put everything that the book of the report in ``folder`` is built from into ``source``, but its pages.

    Those are executed there. Looks are the lab's own. Raises :class:`BookError` where its configuration cannot be read
    or is no mapping, and :class:`hypatia_lab.records.RecordError` where another file cannot be read or written.
    """
    import yaml

    config = folder / "_config.yml"
    try:
        said = yaml.safe_load(config.read_text(encoding="utf-8"))
    except OSError as cause:
        raise BookError(f"{config}: cannot be read ({cause.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise BookError(f"{config}: is not YAML ({str(cause).splitlines()[0]})") from None
    if not isinstance(said, dict):
        raise BookError(f"{config}: is no mapping of settings")
    readers.lay_out(source, said)
    copy(folder / "_toc.yml", source / "_toc.yml")
    if (folder / "records").is_dir():
        copy_folder(folder / "records", source / "book" / "records")
