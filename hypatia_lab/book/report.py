"""A report on documents that are not the lab's: the folder that it begins with, and what its book is built from.

A report is a folder of its author's: ``claims/`` (ledger files), ``experiments.py`` (a program file), ``notebooks/``
with its one page, ``_config.yml`` (what differs from the lab's own) and ``_toc.yml``; ``records/`` once something was
measured. Nothing of the documents lies in it but figures, units and where they stand.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypatia_lab import places
from hypatia_lab.book.build import BookError
from hypatia_lab.book.own import cell, escaped, notebook
from hypatia_lab.records import write_text

PAGE = "notebooks/report"
"""The one page, without its suffix."""

PROGRAM = '''"""What the report measures: the documents' own program, as its authors published it.

    hypatia-lab run --program experiments.py --records records

Fetch their files into upstream/ beside this one. Nothing of theirs belongs into the report itself.
"""

import sys
from pathlib import Path

import hypatia_lab as lab

HERE = Path(__file__).resolve().parent
# experiments.pins: `owner/name <commit>` on the first line, then a line `<git blob id>  <path>` for each file that is
# run; `git ls-tree -r COMMIT` prints both.
upstream = lab.Provenance.pinned(HERE / "experiments.pins", root=HERE / "upstream", licence="the name of their licence")
program = lab.program("author_@NAME@", "one line: what it is", [upstream])

WORK = lab.Workload("linear_relu", (1024, 784, 2048))  # what its figures are of


@program.command("benchmark", WORK, variant="author_@NAME@", processes=5, limit_s=120)
def benchmark(shell):
    """Their benchmark, called as they say."""
    out = shell.run([sys.executable, upstream.root / "benchmark.py"])
    yield shell.figure("time", out.number(r"([0-9.]+) ms", "time"), "ms")
'''

README = """\
# {title}

A report on what others claim. Nothing of their documents is in this folder but figures and where they stand.

1. `claims/`: put each draft into your own words, say how it is tested, and delete what claims nothing.
2. `experiments.py`: say what is run. `hypatia-lab run --program experiments.py --records records` measures it.
3. `hypatia-lab claims --report .` tells verdicts and drafts; `hypatia-lab book .` builds the book.

Keys of a claim: the YAML files of `hypatia_lab/claims`. Program files: the lab's page on programs from outside.
"""


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
    for ledger, text in ledgers.items():
        write_text(folder / "claims" / f"{ledger}.yaml", text)
    write_text(folder / "experiments.py", PROGRAM.replace("@NAME@", name))
    write_text(folder / f"{PAGE}.ipynb", page(title))
    write_text(folder / "_config.yml", config(title))
    write_text(folder / "_toc.yml", f"format: jb-book\nroot: {PAGE}\n")
    write_text(folder / "README.md", README.format(title=escaped(title)))


def ensure_free(folder: Path) -> None:
    """Raise :class:`ReportError` where ``folder`` is a file, or holds something already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReportError(f"{folder} exists and is not empty; name a folder that is new")


def config(title: str) -> str:
    """What the configuration of a report's book says otherwise than the lab's own."""
    import yaml

    said = {"title": title, "author": "", "copyright": ""}
    looks = {"sphinx": {"config": {"html_theme_options": {"logo": {"text": title}}}}}
    return "# What differs from the lab's own book.\n" + yaml.safe_dump(said | looks, allow_unicode=True)


def page(title: str) -> str:
    """The report's notebook, not executed; it reads the ledger files and records of the folder that it lies in."""

    def code(body: str, *tags: str) -> dict[str, Any]:
        return cell("code", body, "hide-input", *tags)

    cells = [
        cell("markdown", f"# {escaped(title)}\n\nWhat others claim, and what was measured of it."),
        code(
            "from pathlib import Path\n\n"
            "from hypatia_lab.figures import verdicts as verdict_figure\n"
            "from hypatia_lab.pages import report\n"
            "from hypatia_lab.pages.notebook import *\n\n"
            'found = report.read(Path(".."))\n'
            "data, stated = found.data, found.stated()\n"
            "display(Markdown(found.summary()))"
        ),
        cell("markdown", "## Measured and claimed"),
        code(
            "if not data.machines:\n"
            "    display(Markdown(report.NOTHING))\n"
            "for machine in by_machine.tabs(data):\n"
            "    if found.compared_on(machine):\n"
            "        figures.show(*verdict_figure.over_claimed(stated, machine), data.of(machine))\n"
            "    if report.comparable(data, machine):\n"
            "        figures.show(*comparisons.speedups(data.leading(machine)), data.of(machine))"
        ),
        cell("markdown", "## Claims and verdicts"),
        code(
            "if not data.machines:\n"
            "    for table in found.unmeasured():\n"
            "        tables.show(table)\n"
            "for machine in by_machine.tabs(data):\n"
            "    claim_tables.show_claims(stated, machine)"
        ),
        code('for table in found.unworded():\n    tables.show(table, filterable=True, summary="Drafts, not judged")'),
        cell("markdown", "## What was measured"),
        code(
            "if not data.machines:\n"
            "    display(Markdown(report.NOTHING))\n"
            "for machine in by_machine.tabs(data):\n"
            "    for table in report.measured(data, machine):\n"
            '        tables.show(table, filterable=True, summary="Every figure")',
            "full-width",
        ),
        cell("markdown", "## The documents\n\nThey are not copied here. A SHA-256 says which version was read."),
        code("for table in found.documents():\n    tables.show(table)"),
        cell("markdown", "## Records behind this page\n\nA digest each. An altered record changes it."),
        code("print(data.digest() or report.NOTHING)"),
    ]
    return notebook(cells)


def ensure_report(folder: Path) -> None:
    """Raise :class:`ReportError` where ``folder`` is no report."""
    if not (folder / "_toc.yml").is_file() or not (folder / "claims").is_dir():
        raise ReportError(
            f"{folder} holds no report (_toc.yml and claims/); hypatia-lab investigate {folder} begins one"
        )


def lay_out(folder: Path, source: Path) -> None:
    """Put everything that the book of the report in ``folder`` is built from into ``source``, but its pages.

    Those are executed there. Looks are the lab's own. Raises :class:`BookError` where a file cannot be read or written,
    or a configuration is no mapping.
    """
    import yaml

    try:
        said = yaml.safe_load((folder / "_config.yml").read_text(encoding="utf-8"))
        own = yaml.safe_load((places.HOME / "_config.yml").read_text(encoding="utf-8"))
        if not isinstance(said, dict):
            raise BookError(f"{folder / '_config.yml'}: is no mapping of settings")
        (source / "book").mkdir(parents=True)
        (source / "_config.yml").write_text(yaml.safe_dump(_over(own, said), allow_unicode=True), encoding="utf-8")
        shutil.copyfile(folder / "_toc.yml", source / "_toc.yml")
        shutil.copytree(places.HOME / "book" / "static", source / "book" / "static")
        if (folder / "records").is_dir():
            shutil.copytree(folder / "records", source / "book" / "records")
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise BookError(f"{folder / '_config.yml'}: is not YAML ({str(cause).splitlines()[0]})") from None
    except OSError as cause:
        raise BookError(f"the book cannot be laid out: {cause.filename}: {cause.strerror}") from None


def _over(own: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """The settings ``own``, and what is ``said`` otherwise, mapping by mapping."""
    both = {
        name: _over(own[name], said[name])
        for name in own.keys() & said.keys()
        if isinstance(own[name], dict) and isinstance(said[name], dict)
    }
    return own | said | both
