"""The lab's own source on a page: the lines between two marks in a file, and an excerpt of what the page explains.

A region is opened by a comment ``// [name]`` on a line of its own and closed by ``// [/name]``, in Python with ``#``.
Regions may overlap, and one that is opened again further down goes on there. The lines that a page explains end with
``// (1)``, ``// (2)`` and so on, which the text beside them counts, too; a page shows these numbers before their lines,
where no wrapped line hides them. Of a long region they stand open, with the loops and functions around them, and with
the innermost loop, which does the work; a long conditional in it that no text explains is left out.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from hypatia_lab import tables
from hypatia_lab.messages import unknown

HOME = Path(__file__).resolve().parents[1]
"""The folder that paths are relative to: the package's."""

LONG = 25
"""A region of more lines is folded, so that only its :func:`excerpt` stands open."""

ASIDE = 6
"""A conditional of more lines in the innermost loop is left out of the excerpt unless one of them is explained."""

_MARK = re.compile(r"\s*(?://|#) \[(/?)(\w+)\]")
_EXPLAINED = re.compile(r"(.*)  (?://|#) \((\d+)\)")
_LOOP = re.compile(r"\s*(?:for|while)\b.*")
_AROUND = re.compile(r"\s*(?:for|while|def|__global__|const auto \w+ = \[).*|[^(]*\b__(?:global|device)__\b.*")
"""The first line of a loop or of a function."""
_LANGUAGES = {".cu": "cuda", ".cuh": "cuda", ".cpp": "cpp", ".hpp": "cpp", ".py": "python"}


class SourceError(ValueError):
    """A region that is not there, or marks that do not pair."""


def regions(path: str) -> dict[str, list[str]]:
    """Region → its lines, marks left out, a line of its own with an ellipsis where the file goes on between its parts.

    Raises :class:`SourceError` naming the file for one that is missing, and also the line for marks that do not pair.
    """
    try:
        text = (HOME / path).read_text(encoding="utf-8")
    except OSError as cause:
        raise SourceError(f"{path}: cannot be read ({cause.strerror})") from None
    found: dict[str, list[str]] = {}
    opened: dict[str, int] = {}
    behind: dict[str, list[str]] = {}  # lines since the end of a region
    gap = ["", _ellipsis(path), ""]
    for number, line in enumerate(text.splitlines(), 1):
        if not (mark := _MARK.fullmatch(line)):
            for name, lines in found.items():
                (lines if name in opened else behind[name]).append(line)
            continue
        closes, name = bool(mark[1]), mark[2]
        if closes != (name in opened):
            raise SourceError(f"{path}:{number}: [{mark[1]}{name}] where [{name}] is {'not ' if closes else ''}open")
        if closes:
            del opened[name]
            behind[name] = []
        else:
            opened[name] = number
            between = behind.get(name, [])
            found.setdefault(name, []).extend(gap if "".join(between).strip() else between)
    for name, number in opened.items():
        raise SourceError(f"{path}:{number}: [{name}] is never closed")
    return {name: textwrap.dedent("\n".join(lines)).strip("\n").split("\n") for name, lines in found.items()}


def _ellipsis(path: str) -> str:
    return ("# " if path.endswith(".py") else "// ") + "…"


def region(path: str, name: str) -> list[str]:
    """The lines of region ``name`` of ``path``, which is relative to the package.

    Raises :class:`SourceError` naming the file and the regions near to one that it lacks.
    """
    found = regions(path)
    if name not in found:
        raise SourceError(f"{path}: {unknown('region', name, found)}")
    return found[name]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _around(lines: list[str], at: int) -> Iterator[int]:
    """The loops and functions that line ``at`` stands in, by their first lines, from within."""
    depth = _indent(lines[at])
    for number in range(at - 1, -1, -1):
        line = lines[number]
        # What closes something belongs to a line above it.
        if line.strip() and line.lstrip()[0] not in ")}]#/" and _indent(line) < depth:
            depth = _indent(line)
            if _AROUND.fullmatch(line):
                yield number


def _end(lines: list[str], at: int) -> int:
    """The last line of the statement, or of the head of a loop or function, that begins in line ``at``."""
    code = ""
    for number in range(at, len(lines)):
        code += re.sub(r"(?:^\s*|  )(?://|#) .*", "", lines[number])
        if code.count("(") <= code.count(")") and not code.endswith(tuple("=*+-/&|?")):
            return number
    return at


def _begin(lines: list[str], at: int) -> int:
    """The first line of the statement that line ``at`` is of, if it is one of a few."""
    return next((number for number in range(max(at - 6, 0), at) if _end(lines, number) >= at), at)


def _head(first: str, last: str) -> str:
    """A function's head that spans the lines from ``first`` to ``last``, without its parameters."""
    opened: list[int] = []
    for place, sign in enumerate(first):
        if sign == "(":
            opened.append(place)
        elif sign == ")":
            opened.pop()
    return f"{first[: opened[0] + 1]}…{last[last.rindex(')') :]}"


def _body(lines: list[str], at: int) -> list[int]:
    """The lines within the loop or conditional that begins in line ``at``."""
    for number in range(at + 1, len(lines)):
        if lines[number].strip() and not lines[number].startswith("#") and _indent(lines[number]) <= _indent(lines[at]):
            return [*range(at + 1, number)]
    return [*range(at + 1, len(lines))]


def _innermost(lines: list[str]) -> Iterator[int]:
    """The lines of the deepest loops, heads and bodies, without the conditionals that are :data:`ASIDE`."""
    loops = [at for at, line in enumerate(lines) if _LOOP.fullmatch(line)]
    depth = {at: sum(number in loops for number in _around(lines, at)) for at in loops}
    kept = {number for at in loops if depth[at] == max(depth.values()) for number in (at, *_body(lines, at))}
    for at in sorted(kept):
        body = _body(lines, at) if re.match(r"\s*if\b", lines[at]) else []
        if len(body) > ASIDE and not any(_EXPLAINED.fullmatch(lines[number]) for number in body):
            end = body[-1] + 1
            kept -= {at, *body, *(end for line in lines[end : end + 1] if line.strip() == "}")}
    yield from kept


def excerpt(path: str, name: str) -> list[str]:
    """Those lines of a region that end with a number, and its deepest loops, in the loops and functions around them.

    A line of its own with an ellipsis for what is left out. Raises :class:`SourceError` as :func:`region`.
    """
    lines = region(path, name)
    numbered = {_begin(lines, at) for at, line in enumerate(lines) if _EXPLAINED.fullmatch(line)}
    kept = numbered | {*_innermost(lines)}
    around = {number for at in kept for number in _around(lines, at)}
    found: list[str] = []
    behind: int | None = None
    for at in sorted(kept | around):
        if behind is not None and at <= behind:
            continue  # shown with the statement that it belongs to
        between = [] if behind is None else lines[behind + 1 : at]
        if any(line.strip(" {}") and not line.startswith("#pragma") for line in between):
            found.append(" " * _indent(lines[at]) + _ellipsis(path))
        behind = _end(lines, at)
        if at in around and behind > at:
            found.append(_head(lines[at], lines[behind]))
        else:
            found += lines[at : behind + 1]
    return textwrap.dedent("\n".join(found)).split("\n")


def show(path: str, name: str) -> None:
    """Display region ``name`` of ``path``, such as ``kernels/ladder/step_2_shared.cu``, as highlighted code.

    A long one is folded, and its :func:`excerpt` stands open above it. Raises :class:`SourceError` as :func:`region`.
    """
    lines = region(path, name)
    title = f"hypatia_lab/{path}, {len(lines)} lines"
    whole, said = _highlighted(lines, path), html.escape(title)
    if len(lines) <= LONG:
        shown = f"<figcaption>{said}</figcaption>\n{whole}"
    else:
        above = _highlighted(excerpt(path, name), path)
        shown = f"{above}\n<details><summary>The whole of it: {said}</summary>\n{whole}</details>"
    page = f'<figure class="lab-source">\n{shown}</figure>'
    tables.display(page, "\n".join([title, "", *lines]))


def _highlighted(lines: list[str], path: str) -> str:
    """``lines`` in the classes that Sphinx gives to code, so that a theme's colours apply in light and dark.

    What explains a line counts it at its beginning.
    """
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    language = _LANGUAGES[Path(path).suffix]
    marks = [_EXPLAINED.fullmatch(line) for line in lines]
    plain = "\n".join(mark[1] if mark else line for mark, line in zip(marks, lines, strict=True))
    lexer = get_lexer_by_name(language, stripnl=False)
    code = highlight(plain, lexer, HtmlFormatter(nowrap=True)).split("\n")
    if any(marks):
        notes = (mark[2] if mark else " " for mark in marks)
        code = [f'<span class="lab-note">{note}</span> {line}' for note, line in zip(notes, code, strict=False)]
    shown = "\n".join(code)
    return f'<div class="highlight-{language} notranslate"><div class="highlight"><pre>{shown}</pre></div></div>'
