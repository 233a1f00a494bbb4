"""The figures of a document that is not the lab's: number, unit, kind, line and place in a table, and no sentence.

A document is Markdown or plain text; HTML in it is read as well. Headings and code are not read, nor are a tag's
attributes. A block of code is read where its fence has no name, or one of a printout (:data:`PRINTED`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypatia_lab import files, formats
from hypatia_lab.claims import forms
from hypatia_lab.claims.forms import Found

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

PRINTED = ("", "text", "txt", "plain", "plaintext", "none", "output", "log", "console", "shell-session", "ansi")
"""Fenced blocks of these languages show what a program printed, and not what it is."""
MOST = 9999
"""Figures of one document, as many as ids have digits for."""
LONGEST = 60
"""Characters of a row's or column's heading in a locator."""
WIDEST = 1000
"""Columns or rows that one cell may fill."""


class DocumentError(ValueError):
    """A document that cannot be read, or has nothing to judge: the message names the file and the remedy."""


class NoFigureError(DocumentError):
    """A document that can be read and holds no figure."""


@dataclass(frozen=True)
class Document:
    """A document by its file's name and digest, with its figures in order of line."""

    file: str
    sha256: str
    figures: tuple[Found, ...]


def read(path: Path) -> Document:
    """The document at ``path``.

    Raises :class:`NoFigureError` where it has no figure, else :class:`DocumentError`: it cannot be read, or is no text.
    """
    raw = files.content(path, DocumentError)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DocumentError(f"{path}: is not text in UTF-8; save the document as Markdown or plain text")
    found = tuple(figures(text, markdown=path.suffix.lower() in (".md", ".markdown")))
    if not found:
        raise NoFigureError(f"{path}: holds no figure with a unit; a report needs something to measure")
    if len(found) > MOST:
        raise DocumentError(f"{path}: holds {len(found)} figures; split the document, {MOST} are the most")
    return Document(path.name, hashlib.sha256(raw).hexdigest(), found)


def figures(text: str, *, markdown: bool = True) -> list[Found]:
    """The figures of a document's ``text``, in order of line, each once a line or cell.

    Where it is not ``markdown``, a line that is set in is no code.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    if not markdown:
        parser.disable("code")
    shown = _Shown()
    _read(shown, parser, text, 1)
    return list(dict.fromkeys(shown.found))


def _read(shown: _Shown, parser: MarkdownIt, text: str, first: int) -> None:
    """Show the blocks of a ``text`` whose first line is the document's line ``first``."""
    line = first
    for token in parser.parse(text):
        line = first + token.map[0] if token.map else line
        if token.type == "fence":
            if re.split(r"[\s,:{]", token.info.strip().lower())[0] not in PRINTED:
                continue
            if re.search(r"(?m)^ *\|.*\|[ ]*$", token.content):
                _read(shown, parser, token.content, line + 1)
                continue
            # One space between numbers of a printout is a gap between columns, and groups no digits.
            shown.say(re.sub(r"(?<=\d) (?=\d)", "  ", token.content), line + 1)
            shown.flush()
        elif token.type == "html_block":
            html = _Html(shown, line)
            html.feed(token.content)
            html.close()
        elif token.type == "inline":
            shown.say(_text(token.children or []), line)
        elif token.nesting == 1:
            shown.open(token.tag, {})
        elif token.nesting == -1:
            shown.shut(token.tag)
    shown.flush()


def _text(tokens: Sequence[Token]) -> str:
    """What a reader sees of a paragraph or cell; code stands between backquotes unless it is a figure."""
    text = ""
    for token in tokens:
        if token.type in ("softbreak", "hardbreak"):
            text += "\n"
        elif token.type == "code_inline":
            content = token.content.strip()
            text += content if forms.whole(content) else f"`{content}`"
        elif token.type == "text":
            text += token.content
        elif token.type in ("html_inline", "image"):
            text += " "
    return text


_SILENT = ("h1", "h2", "h3", "h4", "h5", "h6", "script", "style", "title")
_INLINE = ("a", "abbr", "b", "code", "del", "em", "font", "i", "kbd", "mark", "s", "small", "span", "strong", "u")


class _Shown:
    """What a document shows, as its tags open and close, whether Markdown or HTML made them; gathers its figures."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self._text = ""
        self._line = 1
        self._silent = ""
        self._cell = ""  # the tag of the one that is open
        self._span = (1, 1)  # columns and rows that it fills
        self._row: list[str] = []
        self._key: int | None = None  # the column of the row's first figure: what stands before it names the row
        self._heads: list[str] = []
        self._data = False  # whether the table has had a cell that is no head
        self._below: dict[int, tuple[int, str]] = {}  # column → rows that a cell above fills, and its text

    def say(self, text: str, line: int) -> None:
        """Add ``text``, which begins on ``line``."""
        if self._silent:
            return
        if not self._text.strip():
            self._line = line + text[: len(text) - len(text.lstrip())].count("\n")
            self._text, text = "", text.lstrip()
        self._text += text

    def flush(self) -> None:
        """End a paragraph, or a paragraph within a cell."""
        if self._cell:
            self._text += " "
            return
        for number, line in enumerate(self._text.split("\n"), self._line):
            self.found += forms.of_text(line, number)
        self._text = ""

    def open(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        if tag in _INLINE:
            return
        if tag in ("table", "tr", "th", "td"):
            self._end_cell()
        self.flush()
        if tag in _SILENT:
            self._silent = tag
        elif tag == "table":
            self._end_row()
            self._heads, self._below, self._data = [], {}, False
        elif tag == "tr":
            self._end_row()
        elif tag in ("th", "td"):
            self._fill()
            columns, rows = (attributes.get(name) or "" for name in ("colspan", "rowspan"))
            self._span = (_count(columns), _count(rows))
            self._cell = tag

    def shut(self, tag: str) -> None:
        if tag in _INLINE:
            return
        if tag in ("table", "tr", "th", "td"):
            self._end_cell()
        self.flush()
        if tag == self._silent:
            self._silent = ""
        elif tag in ("table", "tr"):
            self._end_row()

    def _fill(self) -> None:
        """Put in what cells above fill of this row."""
        while (column := len(self._row)) in self._below:
            rows, text = self._below.pop(column)
            if rows > 1:
                self._below[column] = (rows - 1, text)
            self._row.append(text)

    def _end_cell(self) -> None:
        if not self._cell:
            return
        text, (columns, rows) = " ".join(self._text.split()), self._span
        column = len(self._row)
        if self._cell == "td":
            self._data = True
            head = self._heads[column] if column < len(self._heads) else ""
            row = ", ".join(dict.fromkeys(filter(None, self._row[: self._key])))
            heads = {name: text.replace("`", "") for name, text in (("row", row), ("column", head)) if text}
            where = [f"{name} “{formats.cut(text, LONGEST)}”" for name, text in heads.items()]
            found = [*forms.of_cell(text, (head, *self._row[:1]), self._line, ", ".join(where))]
            self.found += found
            self._key = column if found and self._key is None else self._key
        for _ in range(columns):
            if rows > 1:
                self._below[len(self._row)] = (rows - 1, text)
            self._row.append(text)
        self._cell = self._text = ""

    def _end_row(self) -> None:
        """What stands above the first row of data is its columns' heads, and so is a first row without figures."""
        if not self._data or not (self._heads or self._key is not None):
            pairs = zip_longest(self._heads, self._row, fillvalue="")
            self._heads = [" ".join(dict.fromkeys(filter(None, pair))) for pair in pairs]
        self._row, self._key = [], None


class _Html(HTMLParser):
    """Shows a block of HTML that begins on line ``first``."""

    def __init__(self, shown: _Shown, first: int) -> None:
        super().__init__()
        self._shown = shown
        self._first = first

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._shown.open(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        self._shown.shut(tag)

    def handle_data(self, data: str) -> None:
        self._shown.say(data, self._first + self.getpos()[0] - 1)


def _count(attribute: str) -> int:
    return min(max(int(attribute), 1), WIDEST) if attribute.isascii() and attribute.isdigit() else 1


# ---------------------------------------------------------------- drafts: what nobody has put into words yet


_HOW = """\
# Say under `claim`, in your own words, what the document claims; until then an entry is a draft, which is counted and
# not judged. With the words goes how it is tested: quantity, workloads, what is measured (of, or over and under), and
# why. `kind` is what the figure seemed to be by its unit; it says nothing once there are words. Delete what claims
# nothing, and put the figures of one statement together, as parts of one entry.
"""


def draft(document: Document | None, prefix: str) -> str:
    """A ledger file in which every figure of ``document`` is a draft, ids ``<prefix>-1`` and so on.

    Without a document there is one draft, to be copied. Of the document it has its name and digest, figures with their
    units, lines, and headings of row and column where they stand in a table.
    """
    import yaml

    def said(what: Any) -> str:
        return yaml.safe_dump(what, allow_unicode=True, sort_keys=False, width=1000)

    head, entries = said({"defaults": {"program": "author"}}), [{"section": "where it stands", "claim": None}]
    if document is not None:
        head = said({"document": {"file": document.file, "sha256": document.sha256}}) + head
        entries = [
            {
                "section": f"line {found.line}" + f", {found.where}" * bool(found.where),
                "claim": None,
                "claimed": _claimed(found.claimed),
            }
            | {"unit": found.unit, "kind": found.kind}
            for found in document.figures
        ]
    listed = [said([{"id": f"{prefix}-{number}"} | entry]) for number, entry in enumerate(entries, 1)]
    body = "\n".join(listed).replace("  claim: null\n", "  claim:\n")
    return f"{_HOW}{head}claims:\n\n{body}"


def _claimed(ends: tuple[float, float]) -> Any:
    low, high = (int(end) if end.is_integer() and abs(end) < 1e15 else end for end in ends)
    return low if low == high else [low, high]
