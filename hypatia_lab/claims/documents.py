"""The figures of a document that is not the lab's: number, unit, kind and line, and nothing of its wording.

A document is Markdown or plain text. A figure is a number with a unit, or a bare one in a table whose column or row
names the unit. Headings, code, dates, versions, sizes of matrices and whatever else has no unit are no figures. A block
of code is read where its fence says that it is a printout (:data:`PRINTED`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.token import Token

PRINTED = ("text", "txt", "output", "log")
"""Fenced blocks of these languages show what a program printed, and not what it is."""
MOST = 9999
"""Figures of one document, as many as ids have digits for."""


class DocumentError(ValueError):
    """A document that cannot be read, or has nothing to judge: the message names the file and the remedy."""


@dataclass(frozen=True)
class Found:
    """A figure on a line (from 1) of a document: its range (low equal to high where it is one number), unit and kind.

    ``kind`` is one of :data:`hypatia_lab.claims.claim.KINDS`, as far as unit and heading tell.
    """

    line: int
    claimed: tuple[float, float]
    unit: str
    kind: str


@dataclass(frozen=True)
class Document:
    """A document by its file's name and digest, with its figures in order of line."""

    file: str
    sha256: str
    figures: tuple[Found, ...]


_PREFIX = "[kKMGTP]"
_UNITS: dict[str, tuple[tuple[str, str], ...]] = {
    "time": (
        ("ns", r"ns|nanoseconds?"),
        ("µs", r"[µμu]s|[µμu]sec|microseconds?"),
        ("ms", r"ms|msecs?|milliseconds?"),
        ("min", r"mins?|minutes?"),
        ("s", r"s|secs?|seconds?"),
        ("h", r"h|hrs?|hours?"),
    ),
    "share": (("%", r"%|percent|per cent"),),
    "ratio": (("×", r"[x×]|-?fold|times"),),
    "rate": (
        ("FLOP/s", rf"{_PREFIX}?(?i:flops?)/s(?:ec)?|{_PREFIX}?(?i:flops)"),
        ("B/s", rf"{_PREFIX}?i?B/s(?:ec)?|{_PREFIX}i?Bps"),
        ("bit/s", rf"{_PREFIX}?bits?/s(?:ec)?|{_PREFIX}bps"),
        ("Hz", rf"{_PREFIX}?Hz"),
        ("frames/s", r"fps|FPS"),
        ("/s", r"[A-Za-z]+/s(?:ec(?:ond)?)?|[A-Za-z]+ per second"),
    ),
    "size": (("B", rf"{_PREFIX}i?B|bytes?"),),
}
"""Kind → units, each as it is written here and how documents write it; an SI prefix stays before it."""
# The longest that fits must win, and an alternation takes the first: rates come before times and sizes.
_ORDER = ("rate", "size", "time", "share", "ratio")
_SPELLINGS = [(kind, unit, re.compile(text)) for kind in _ORDER for unit, text in _UNITS[kind]]
# Neither 4096 x 4096 nor 8x H100 is a ratio, nor is what was done so many times.
_NO_RATIO = r"(?<=[x×])(?:\s*\d|\s+[A-Z]+\d)|(?<=times)(?!\s+(?:as|faster|slower|more|less|higher|lower|longer|the)\b)"
_UNIT = "(?:" + "|".join(text for kind in _ORDER for _, text in _UNITS[kind]) + rf")(?![\w²³^]|{_NO_RATIO})"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_NUMBER = rf"[-−+]?{_DIGITS}"
_GAP = r"[ \t\u00a0\u202f-]?"
_FIGURE = re.compile(
    rf"(?<![\w.,:/#$€£^\-−])(?P<low>{_NUMBER})"
    rf"(?:{_GAP}(?P<own>{_UNIT}))?(?:\s*(?:–|—|-|−|…|\.\.\.?|\bto\b)\s*(?P<high>{_DIGITS}))?"
    rf"(?:\s*(?:±|\+/-|\+-)\s*{_DIGITS})?"
    rf"(?:{_GAP}(?P<unit>{_UNIT}))?"
)
_BARE = re.compile(rf"[~≈<>≤≥]?\s*({_NUMBER})(?:\s*(?:±|\+/-|\+-)\s*{_DIGITS})?")
_DECADE = re.compile(r"(?:19|20)\d0s")
_SPREAD = ("±", "+/-", "+-")
_IN_BRACKETS = re.compile(rf"[(\[]\s*({_UNIT})\s*[)\]]")
_AS_WORD = re.compile(rf"(?<![\w/])(?!(?:x|s|h|mins?|fold)\b)({_UNIT})")
_RATIO = re.compile(r"(?i)\b(?:speed[- ]?ups?|slow[- ]?downs?|ratio|relative)\b")


def read(path: Path) -> Document:
    """The document at ``path``. Raises :class:`DocumentError` where it cannot be read, is no text or has no figure."""
    try:
        raw = path.read_bytes()
    except OSError as cause:
        raise DocumentError(f"{path}: cannot be read ({cause.strerror})") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DocumentError(f"{path}: is not text in UTF-8; save the document as Markdown or plain text")
    found = tuple(figures(text, markdown=path.suffix.lower() in (".md", ".markdown")))
    if not found:
        raise DocumentError(f"{path}: holds no figure with a unit; a report needs something to measure")
    if len(found) > MOST:
        raise DocumentError(f"{path}: holds {len(found)} figures; split the document, {MOST} are the most")
    return Document(path.name, hashlib.sha256(raw).hexdigest(), found)


def figures(text: str, *, markdown: bool = True) -> list[Found]:
    """The figures of a document's ``text``, in order of line, each once a line.

    Where it is not ``markdown``, a line that is set in is no code.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    if not markdown:
        parser.disable("code")
    return list(dict.fromkeys(_of_blocks(parser.parse(text))))


def _of_blocks(tokens: Sequence[Token]) -> Iterator[Found]:
    heads: list[str] = []  # of the table's columns
    row: list[str] = []
    inside = ""
    for token in tokens:
        if token.type in ("heading_open", "th_open", "td_open"):
            inside = token.type.removesuffix("_open")
        elif token.type in ("heading_close", "th_close", "td_close"):
            inside = ""
        elif token.type == "table_open":
            heads = []
        elif token.type == "tr_open":
            row = []
        elif token.type == "fence" and token.map and token.info.strip().lower() in PRINTED:
            for number, line in enumerate(token.content.splitlines(), token.map[0] + 2):
                yield from _of_text(line, number)
        elif token.type == "inline" and token.map and inside != "heading":
            lines = _lines(token)
            if inside == "th":
                heads.append(lines[0])
            elif inside == "td":
                row.append(lines[0])
                yield from _of_cell(row, heads, token.map[0] + 1)
            else:
                for number, line in enumerate(lines, token.map[0] + 1):
                    yield from _of_text(line, number)


def _lines(token: Token) -> Sequence[str]:
    """What a reader sees of a paragraph or cell, line by line; of code only what is a figure and nothing else."""
    text = ""
    for child in token.children or []:
        if child.type in ("softbreak", "hardbreak"):
            text += "\n"
        elif child.type == "code_inline":
            content = child.content.strip()
            text += content if _BARE.fullmatch(content) or _FIGURE.fullmatch(content) else " \N{BULLET} "
        elif child.type == "text":
            text += child.content
        elif child.type in ("html_inline", "image"):
            text += " "
    return text.split("\n")


def _of_text(text: str, line: int) -> Iterator[Found]:
    for match in _FIGURE.finditer(text):
        own, unit = match["own"], match["unit"]
        if match["high"] and not unit:  # what follows has no unit: "3 ms to 5" says nothing of the 5
            match = re.compile(rf"(?P<low>{_NUMBER})").match(text, match.start("low")) or match
            unit, high = own, None
        else:
            unit, high = unit or own, match["high"]
        if not unit or _DECADE.match(text, match.start("low")):
            continue
        if text[: match.start("low")].rstrip().endswith(_SPREAD):
            continue
        low = _value(match["low"])
        if high is None:
            yield _found(line, (low, low), unit)
        elif (own is None or _named(own) == _named(unit)) and low < _value(high):
            yield _found(line, (low, _value(high)), unit)
        else:  # from more to less, or in two units
            yield _found(line, (low, low), own or unit)
            yield _found(line, (_value(high), _value(high)), unit)


def _of_cell(row: Sequence[str], heads: Sequence[str], line: int) -> Iterator[Found]:
    """The figures of the last cell of ``row``: with units of their own, or with that of its column or its row."""
    cell = row[-1].strip()
    bare = _BARE.fullmatch(cell)
    if not bare:
        yield from _of_text(cell, line)
        return
    head = heads[len(row) - 1] if len(row) <= len(heads) else ""
    for label in (head, row[0] if len(row) > 1 else ""):
        unit = _IN_BRACKETS.search(label) or _AS_WORD.search(label)
        if unit or _RATIO.search(label):
            value = _value(bare[1])
            yield _found(line, (value, value), unit[1] if unit else "×")
            return


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _named(text: str) -> tuple[str, str]:
    """Kind and unit of what a document writes as ``text``: ``GFLOPs/s`` is a rate in ``GFLOP/s``."""
    kind, unit = next((kind, unit) for kind, unit, pattern in _SPELLINGS if pattern.fullmatch(text))
    if unit == "/s":
        return kind, re.split(r"/| per ", text)[0] + unit
    prefix = re.match(rf"{_PREFIX}i?(?=flop|b|Hz)", text, re.IGNORECASE) if kind in ("rate", "size") else None
    return kind, (prefix[0] if prefix else "") + unit


def _found(line: int, claimed: tuple[float, float], unit: str) -> Found:
    kind, name = _named(unit)
    return Found(line, claimed, name, kind)
