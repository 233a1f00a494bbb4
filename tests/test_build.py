"""Building a book: what is put together, what falls back, what is refused, and that the last book stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import files_below
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from toy_book import lay_out, shown, write_notebook

from hypatia_lab.book import build
from hypatia_lab.book import pdf as printing


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository with the real configuration and one small notebook."""
    return lay_out(tmp_path / "repository")


ERROR = new_output("error", ename="ZeroDivisionError", evalue="by 0")
CRASHED = new_code_cell("f()", execution_count=1, outputs=[ERROR])


def add_chapters(toy: Path, chapters: dict[str, Any]) -> None:
    """Chapters of one cell each, in ``toy``'s table of contents too."""
    lines = [f"- file: notebooks/{name}" for name in chapters]
    (toy / "_toc.yml").write_text("\n".join(["format: jb-book", "root: notebooks/00_toy", "chapters:", *lines, ""]))
    for name, cell in chapters.items():
        write_notebook(toy / "notebooks" / f"{name}.ipynb", new_markdown_cell(f"# Page {name}"), cell)


BROKEN: dict[str, tuple[Any, str]] = {
    "01_missing": (None, "was not executed"),
    "02_torn": ("{", "cannot be read"),
    "03_failed": (CRASHED, "stopped at ZeroDivisionError: by 0"),
    "04_interrupted": (shown(count=None), "was interrupted"),
}
"""Chapter → what was left of its execution, and what is said of it."""


def test_notebooks_and_records_are_put_together_and_a_failed_one_falls_back_to_the_committed_one(
    toy: Path, tmp_path: Path
) -> None:
    add_chapters(toy, {name: new_markdown_cell("As committed.") for name in BROKEN})
    executed, mine = tmp_path / "executed", tmp_path / "records"
    write_notebook(executed / "00_toy.ipynb", new_markdown_cell("# Measured here"))
    for name, (broken, _) in BROKEN.items():
        if isinstance(broken, str):
            (executed / f"{name}.ipynb").write_text(broken)
        elif broken is not None:
            write_notebook(executed / f"{name}.ipynb", new_markdown_cell("# Wrong"), broken)
    (mine / "laptop" / "method").mkdir(parents=True)
    (mine / "laptop" / "method" / "2025-01-01-cpu.jsonl").write_text("{}\n")
    (mine / "laptop" / ".parts").mkdir()
    heard: list[str] = []
    index = build.build(executed, mine, tmp_path / "out" / "html", repository=toy, say=heard.append)
    assert index == tmp_path / "out" / "html" / "index.html"

    def page(name: str) -> str:
        return (index.parent / "notebooks" / f"{name}.html").read_text(encoding="utf-8")

    for line, (name, (_, said)) in zip(sorted(heard), BROKEN.items(), strict=True):
        assert f"{name}.ipynb" in line
        assert said in line
        assert "As committed." in page(name)
        assert "Wrong" not in page(name)
    assert "Measured here" in page("00_toy")
    assert "Toy" in (toy / "notebooks" / "00_toy.ipynb").read_text(encoding="utf-8")
    below = ("", "/method", "/method/2025-01-01-cpu.jsonl")
    kept = [f"{machine}{name}" for machine in ("laptop", "toy") for name in below]
    assert files_below(index.parent / "records") == kept


BAD: dict[str, tuple[Any, str]] = {
    "01_link": (new_markdown_cell("[gone](nowhere.md)"), "nowhere.md"),
    "02_figure": (shown({build.PLOTLY_MIME: {"data": [], "layout": {}}}), "alt text"),
    "03_directive": (new_markdown_cell("```{nosuchdirective}\n```"), "nosuchdirective"),
}
"""Chapter → what is wrong with it, and the word of the warning that says so."""


def test_warnings_fail_the_build_each_is_told_and_the_last_book_stays(toy: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "html"
    output.mkdir(parents=True)
    for name in (build.MARK, "last.html"):
        (output / name).touch()
    add_chapters(toy, {name: cell for name, (cell, _) in BAD.items()})
    heard: list[str] = []
    with pytest.raises(build.BookError, match=r"jupyter-book failed(.|\n)*book\.log"):
        build.build(output=output, repository=toy, say=heard.append)
    for name, (_, reason) in BAD.items():
        assert any(reason in line and name in line for line in heard), (name, heard)
    assert files_below(output) == [build.MARK, "last.html"]


def test_build_refuses_what_it_cannot_do(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(build.BookError, match="holds no book"):
        build.build(repository=tmp_path, output=tmp_path / "html")
    other = tmp_path / "other"
    other.mkdir()
    for mine in ("thesis.tex", "index.html"):
        (other / mine).write_text("years of work")
        with pytest.raises(build.BookError, match="something else than a book of the lab"):
            build.build(repository=toy, output=other)
        assert (other / mine).exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(build.BookError, match="cannot be written"):
        build.build(repository=toy, output=tmp_path / "file" / "html")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds take no time: the page is a word, or a failure where the sources hold a file ``fail``."""

    def built(builder: str, source: Path, stage: Path, log: Path, say: Any) -> int:
        log.write_text("what jupyter-book said", encoding="utf-8")
        (stage / "_build" / builder).mkdir(parents=True)
        (stage / "_build" / builder / "index.html").write_text("built", encoding="utf-8")
        return int((source / "book" / "fail").exists())

    monkeypatch.setattr(build, "_jupyter_book", built)


@pytest.mark.usefixtures("pretended")
def test_what_lies_beside_the_book_stays_and_nothing_is_left_there(toy: Path, tmp_path: Path) -> None:
    project, output = tmp_path / "project", tmp_path / "project" / "html"
    mine = ["book.log", "source/mine.c", "stage/mine.c"]
    for name in mine:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("mine")
    whole = [*mine, "html", "html/.hypatia-lab-book", "html/index.html", "source", "stage"]
    for _ in range(2):  # a book is replaced by the next one
        build.build(output=output, repository=toy)
        assert files_below(project) == sorted(whole)
        (output / "old.html").write_text("of the last book")
    (toy / "book" / "fail").touch()
    with pytest.raises(build.BookError, match=r"the end of .*/\.html-book\.log:\nwhat jupyter-book said"):
        build.build(output=output, repository=toy)
    assert files_below(project) == sorted([".html-book.log", *whole, "html/old.html"])
    (toy / "book" / "fail").unlink()
    build.build(output=output, repository=toy)
    assert files_below(project) == sorted(whole)
    assert all((project / name).read_text() == "mine" for name in mine)


@pytest.mark.usefixtures("pretended")
def test_a_book_from_before_there_was_a_mark_is_replaced(toy: Path, tmp_path: Path) -> None:
    output = tmp_path / "html"
    (output / "_static").mkdir(parents=True)
    for name in (".buildinfo", "index.html", "searchindex.js", "_static/figures.js", "_static/tables.js"):
        (output / name).write_text("old")
    build.build(output=output, repository=toy)
    assert (output / "index.html").read_text() == "built"
    assert not (output / "searchindex.js").exists()


@pytest.mark.usefixtures("pretended")
def test_what_cannot_be_copied_into_the_book_is_named(toy: Path, tmp_path: Path) -> None:
    (toy / "book" / "gone.md").symlink_to(tmp_path / "nowhere.md")
    with pytest.raises(build.BookError, match=r"cannot be written: .*/gone\.md: .*No such file") as caught:
        build.build(output=tmp_path / "html", repository=toy)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob(".html*"))


def test_plain_jupyter_book_builds_the_committed_book(toy: Path) -> None:
    command = [str(Path(sys.executable).parent / "jupyter-book"), "build", "-n", "-W", "--keep-going", str(toy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    html = toy / "_build" / "html"
    assert 'class="lab-figure"' in (html / "notebooks" / "00_toy.html").read_text(encoding="utf-8")
    assert (html / "records" / "toy" / "method" / "2025-01-01-cpu.jsonl").is_file()


def test_figure_html_survives_hostile_content() -> None:
    spec = {"data": [{"name": "</script><script>alert(1)</script>"}], "layout": {}}
    text = build.figure_html(spec, 'says "<b>&')
    assert text.count("<script") == text.count("</script>") == 1
    inside = text.split('<script type="application/json">')[1].split("</script>")[0]
    assert json.loads(inside) == spec
    assert 'aria-label="says &quot;&lt;b&gt;&amp;"' in text


def test_a_pdf_is_refused_at_once_where_nothing_can_print_it(toy: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(printing, "chromium", lambda: "")
    with pytest.raises(build.BookError, match="needs Chromium"):
        build.build(output=tmp_path / "html", repository=toy, pdf=True)
    assert not (tmp_path / "html").exists()


@pytest.mark.usefixtures("pretended")
def test_a_browser_that_does_not_print_is_told_and_the_last_book_stays(
    toy: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "page.html").write_text("<head></head>")
    monkeypatch.setattr(printing, "single_page", lambda built: tmp_path / "page.html")
    monkeypatch.setattr(printing, "chromium", lambda: "/bin/false")
    with pytest.raises(build.BookError, match=r"/bin/false did not print the book \(exit status 1\)"):
        build.build(output=tmp_path / "html", repository=toy, pdf=True)
    assert not (tmp_path / "html").exists()


@pytest.mark.browser
@pytest.mark.slow
def test_the_whole_book_is_printed_with_its_figures_and_linked_from_the_first_page(toy: Path, tmp_path: Path) -> None:
    if not printing.chromium():
        pytest.skip("no Chromium on this machine")
    add_chapters(toy, {"01_next": new_markdown_cell("Beside the figure.")})
    index = build.build(output=tmp_path / "with" / "html", repository=toy, pdf=True, say=lambda line: None)
    first, second = ((index.parent / "notebooks" / f"{name}.html").read_text() for name in ("00_toy", "01_next"))
    assert f'href="../{build.PDF}"' in first
    assert build.PDF not in second
    whole = (index.parent / build.PDF).read_bytes()
    assert whole.startswith(b"%PDF")
    assert whole.count(b"/Type /Page\n") == 2  # a page a chapter

    notebook = toy / "notebooks" / "00_toy.ipynb"
    write_notebook(notebook, new_markdown_cell("# Toy"))
    bare = build.build(output=tmp_path / "bare" / "html", repository=toy, pdf=True, say=lambda line: None)
    assert len(whole) > len((bare.parent / build.PDF).read_bytes()) + 2000  # what a figure takes, drawn

    plain = build.build(output=tmp_path / "plain" / "html", repository=toy, say=lambda line: None)
    assert build.PDF not in (plain.parent / "notebooks" / "00_toy.html").read_text()
