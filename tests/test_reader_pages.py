"""The pages of prose that stand beside the notebooks: each figure, term and source in them is held to something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from terminal_sessions import PAGES as PAGES_WITH_SESSIONS
from terminal_sessions import answered

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted((ROOT / "book").glob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
NUMBER = re.compile(r"(?<![\w.])[−-]?\d+(?:,\d{3})*(?:\.\d+)?")


LOG = ROOT / "log"
SECTIONS = ["Expected", "Outcome", "What follows"]


def log_files() -> list[Path]:
    """Each entry of the log, oldest first."""
    return sorted(path for path in LOG.glob("*.md") if path.name != "README.md")


def entries() -> dict[str, str]:
    """Question → text of each entry of the log."""
    texts = [path.read_text(encoding="utf-8") for path in log_files()]
    return {text.partition("\n")[0].removeprefix("# "): text for text in texts}


def told(text: str) -> list[tuple[str, str]]:
    """Each passage of a page of stories, and the question of the entry that is named below it."""
    passages = []
    for part in re.split(r"(?m)^### ", text)[1:]:
        found = re.findall(r"(?s)(.+?)\*Log entry: (.*?)\*\n", part)
        assert found, f"no entry is named: {part[:60]}"
        passages += found
    return passages


def invented(story: str, entry: str) -> list[str]:
    """The numbers of ``story`` that ``entry`` does not have."""
    return [number for number in NUMBER.findall(story) if number not in NUMBER.findall(entry)]


STORIES = told((ROOT / "book" / "what_did_not_work.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("story", "title"), STORIES, ids=[title for _, title in STORIES])
def test_a_story_tells_what_the_log_says(story: str, title: str) -> None:
    assert title in entries(), "the log has no such entry"
    assert invented(story, entries()[title]) == []


def test_every_entry_of_the_log_is_in_its_index_once_newest_first() -> None:
    index = re.findall(r"(?m)^- \[(.+?)\]\(([^()]+)\): (.+)$", (LOG / "README.md").read_text(encoding="utf-8"))
    names = [name for _, name, _ in index]
    assert sorted(names) == [path.name for path in log_files()]
    days = [name[:10] for name in names]
    assert days == sorted(days, reverse=True)
    titles = [(LOG / name).read_text(encoding="utf-8").partition("\n")[0] for name in names]
    assert titles == [f"# {question}" for question, _, _ in index]
    assert [outcome for _, _, outcome in index if len(re.findall(r"\w\S*", outcome)) > 20] == []


@pytest.mark.parametrize("path", log_files(), ids=lambda path: path.stem)
def test_an_entry_of_the_log_has_its_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(r"\d{4}-\d{2}-\d{2}-[a-z0-9-]+\.md$", path.name)
    assert re.match(r"# .+\?\n\n[^#\n]", text), "a question, then what was asked and where"
    headings = re.findall(r"(?m)^## (.+)$", text)
    assert "Outcome" in headings
    assert headings == [section for section in SECTIONS if section in headings]
    for target in re.findall(r"\]\(([^()\s]+\.md)\)", text):
        assert (LOG / target).is_file(), f"no such entry: {target}"


def test_an_invented_figure_is_seen() -> None:
    assert len(STORIES) >= 10
    assert invented("It took 5.25 µs, not 5.3 [5.24, 6].", "5.25 µs [5.24, 5.27]; 53 and 16") == ["5.3", "6"]


def test_every_source_is_cited_and_every_citation_has_a_source() -> None:
    known = re.findall(r"(?m)^@\w+\{(\w+),", (ROOT / "book/static/references.bib").read_text(encoding="utf-8"))
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    cited = {key for keys in re.findall(r"\{cite:[pt]\}`([^`]+)`", text) for key in keys.split(",")}
    assert sorted(known) == sorted(cited)


def test_the_glossary_says_every_term_once_and_has_all_verdicts() -> None:
    from hypatia_lab.tables.claims import VERDICTS

    blocks = re.findall(r"(?s)```\{glossary\}\n(.*?)```", (ROOT / "book/glossary.md").read_text(encoding="utf-8"))
    terms = [term for block in blocks for line in re.findall(r"(?m)^\S.*$", block) for term in line.split(", ")]
    assert len(terms) == len(set(terms)) > 60
    assert {verdict.replace("_", " ") for verdict in VERDICTS} <= set(terms)


def test_the_picture_of_the_readme_is_drawn_by_code() -> None:
    from hypatia_lab import drawings

    kept = (ROOT / "book/static/one_kernel.svg").read_text(encoding="utf-8")
    assert kept == drawings.standalone("fused_mlp"), "write drawings.standalone('fused_mlp') there"
    assert "book/static/one_kernel.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES_WITH_SESSIONS, ids=lambda page: page.name)
def test_a_session_says_what_the_command_says_now(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert answered(text, tmp_path) == text, "python tests/terminal_sessions.py writes it anew"
    assert "\n$ hypatia-lab claims S001-01" in text


def test_the_page_of_commands_shows_each_of_them() -> None:
    from hypatia_lab.cli.commands import main

    text = (ROOT / "book" / "terminal.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"(?m)^(?:\$ )?hypatia-lab ([a-z-]+)", text))
    assert shown - {"--help"} == set(main.commands)
