"""The book without Jupyter Book: ``sphinx/conf.py`` says what Jupyter Book makes of two files, and builds alike."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

from hypatia_lab import paths

pytest.importorskip("jupyter_book")

ROOT = paths.HOME
ITS_OWN = ("jupyter_book", "sphinx_comments", "sphinx_jupyterbook_latex")
"""Extensions that only Jupyter Book has use for."""
NO_USE = {"comments_config", "use_jupyterbook_latex", "use_multitoc_numbering", "latex_engine", "pygments_style"}
"""Settings of those, and one that the theme has its own way with."""
PATHS = ("html_static_path", "bibtex_bibfiles")
COVERED = {"**.ipynb_checkpoints", ".DS_Store", "Thumbs.db"}
"""Excluded by Jupyter Book, and by Sphinx's own rules or as no page of the table of contents."""


def test_both_configurations_say_the_same():
    from jupyter_book.config import get_final_config
    from myst_nb.core.config import NbParserConfig
    from sphinx.config import Config

    theirs: dict[str, Any] = get_final_config(
        user_yaml=ROOT / "_config.yml", sourcedir=ROOT, cli_config={"latex_individualpages": False}
    )[0]
    own = runpy.run_path(str(ROOT / "sphinx" / "conf.py"))
    assert own["extensions"] == [name for name in theirs["extensions"] if name not in ITS_OWN]
    assert set(own["exclude_patterns"]) == set(theirs["exclude_patterns"]) - COVERED
    assert own["external_toc_path"] == str(ROOT / "_toc.yml")
    for name in PATHS:
        assert own[name] == [str(ROOT / path) for path in theirs[name]]
    unsaid = {f"nb_{name}": list(value) if value == () else value for name, value, _ in NbParserConfig().as_triple()}
    for name in theirs.keys() - NO_USE - {"extensions", "exclude_patterns", *PATHS}:
        if name in own:
            assert own[name] == theirs[name], name
        else:  # Jupyter Book says what goes without saying
            assert theirs[name] in ("", unsaid.get(name, getattr(Config({}), name, ""))), name
    said = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    assert said.keys() <= own.keys()


def made(page: str) -> dict[str, Any]:
    """What a reader sees of a page: headings, and how many tables, figures, cells and outputs there are."""
    found = re.search(r"<article.*?</article>", page, re.DOTALL)
    assert found
    body = re.sub(r"<script.*?</script>", "", found[0], flags=re.DOTALL)
    headings = [
        unescape(re.sub(r"<a class=\"headerlink.*?</a>|<[^>]+>", "", text, flags=re.DOTALL)).strip()
        # A heading that a cell displays is a rubric, which newer versions write as a paragraph.
        for text in re.findall(r"<(?:h[1-6][^>]*|p class=\"rubric\"[^>]*)>(.*?)</(?:h[1-6]|p)>", body, re.DOTALL)
    ]
    words = Counter(word for text in re.findall(r'class="([^"]+)"', body) for word in text.split())
    kinds = ("lab-figure", "cell", "cell_input", "cell_output", "math", "admonition", "lab-tabs", "lab-panel")
    tables = len(re.findall(r"<table", body))
    return {"headings": headings, "tables": tables, "terms": len(re.findall(r"<dt", body))} | {
        kind: words[kind] for kind in kinds
    }


def compare(jupyter: Path, plain: Path) -> list[str]:
    """In what the pages of two builds differ; a line a difference."""
    pages = [
        {
            str(path.relative_to(folder)): path
            for name in ("notebooks", "book")
            for path in folder.glob(f"{name}/*.html")
        }
        for folder in (jupyter, plain)
    ]
    told = [f"{name}: only in one" for name in sorted(pages[0].keys() ^ pages[1].keys())]
    for name in sorted(pages[0].keys() & pages[1].keys()):
        a, b = (made(own[name].read_text(encoding="utf-8")) for own in pages)
        told += [f"{name}: {key}: {a[key]} and {b[key]}" for key in a if a[key] != b[key]]
    return told


def test_a_lost_figure_and_a_lost_page_are_seen(tmp_path):
    page = '<article><h1>A<a class="headerlink">#</a></h1><table></table><figure class="lab-figure"></figure></article>'
    for name, text in (("a", page), ("b", page.replace("lab-figure", "figure"))):
        (tmp_path / name / "book").mkdir(parents=True)
        (tmp_path / name / "book" / "one.html").write_text(text)
    (tmp_path / "b" / "book" / "two.html").write_text(page)
    assert made(page)["headings"] == ["A"]
    assert compare(tmp_path / "a", tmp_path / "a") == []
    assert compare(tmp_path / "a", tmp_path / "b") == [
        "book/two.html: only in one",
        "book/one.html: lab-figure: 1 and 0",
    ]


@pytest.mark.slow
def test_plain_sphinx_builds_the_same_pages(committed_book, tmp_path):
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-b", "html", "-c", "sphinx"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), ".", str(tmp_path / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list((tmp_path / "html" / "notebooks").glob("*.html"))) > 10
    assert compare(committed_book, tmp_path / "html") == []
    assert (tmp_path / "html" / "index.html").is_file()
