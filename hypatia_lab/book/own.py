"""The reader's own book: a template to begin with, and a chapter for every kernel that was judged.

A book is a folder of the reader's choice, laid out like the lab's own: ``_config.yml``, ``_toc.yml``, ``notebooks/``
with a chapter each, ``book/records/`` and ``book/claims/``. Nothing is written outside of it.
"""

from __future__ import annotations

import keyword
import re
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

from hypatia_lab.book import readers
from hypatia_lab.book.build import BookError
from hypatia_lab.records import RecordError, ensure_writable, write_text

MARK = "# Written by hypatia-lab judge; written anew by the next one.\n"
"""First line of the files that make a folder a reader's book."""
SET = "the-set"
"""The page of a whole set, which stands first. No operation has such a name."""


class TemplateError(ValueError):
    """A template that cannot be written: the message names the file and the remedy."""


def template(file: str) -> str:
    """The text of a template for a file of that name. Raises :class:`TemplateError` for a name that will not do."""
    path = Path(file)
    # The name stands in the text of a program, as a name and in a string.
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}\.py", path.name):
        raise TemplateError(
            f"{str(path)!r} must be named like a Python file, letters, digits, _ and -, such as my_kernel.py"
        )
    name = re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_")
    from hypatia_lab.experiments import EXPERIMENTS
    from hypatia_lab.workloads import operations

    if name in operations() or name in EXPERIMENTS:
        raise TemplateError(f"{path}: {name} is the name of an operation or experiment of the lab; name it otherwise")
    if path.stem in (*sys.stdlib_module_names, "hypatia_lab") or _installed(path.stem):
        # A process started in the file's folder would import it in place of the other.
        raise TemplateError(f"{path}: {path.stem} is a module that Python programs import; name it otherwise")
    if keyword.iskeyword(name) or name in ("torch", "operation", "variant", "draw"):
        raise TemplateError(f"{path}: {name} has a meaning of its own in the file; name it otherwise")
    return readers.template("kernel.py.txt", name=name, file=path.name)


def _installed(module: str) -> bool:
    """Whether a package was installed that is imported by this name."""
    return PathFinder.find_spec(module, [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]) is not None


def write_template(path: Path) -> None:
    """Write the template to ``path``. Raises :class:`TemplateError` when something is there or it cannot be written."""
    if path.exists():  # said before the imports, which take seconds
        raise TemplateError(f"{path} exists; it is not overwritten")
    if not path.parent.is_dir():
        raise TemplateError(f"cannot write {path}: there is no folder {path.parent}")
    text = template(path.name)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as cause:
        raise TemplateError(f"cannot write {path}: {cause.strerror}") from None


# ---------------------------------------------------------------- a chapter


def ensure_ours(folder: Path) -> None:
    """Raise :class:`BookError` when ``folder`` holds something else than a reader's book, or cannot be written; what is
    not there will do."""
    if folder.is_dir() and any(folder.iterdir()) and not readers.is_ours(folder, MARK):
        raise BookError(f"{folder} holds something else than a book of yours; choose another --output")
    try:
        ensure_writable(next(one for one in (folder, *folder.parents) if one.is_dir()))
    except RecordError as cause:
        raise BookError(f"{folder}: {cause}") from None


def _fenced(source: str) -> str:
    """``source`` as a block of Python in Markdown, within a fence that it cannot close."""
    longest = max(map(len, re.findall("`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{source.rstrip()}\n{fence}"


def chapter(name: str, summary: str, source: str, claims: bool, here: str) -> str:
    """The notebook of operation ``name``, not executed; it reads the records and claims that lie in its book.

    ``source`` is the text of the reader's file, ``claims`` whether there are claims to judge, ``here`` the machine
    whose tab stands first.
    """
    said = {"name": name, "summary": readers.escaped(summary), "source": _fenced(source), "here": here}
    return readers.notebook("kernel", without="" if claims else "claims", **said)


def lay_out(folder: Path, name: str, summary: str, source: str, claims: Path | None, here: str) -> Path:
    """Write the :func:`chapter` of operation ``name`` and the book around it into ``folder``; returns the notebook.

    Chapters of other kernels stay. Raises :class:`records.RecordError` when it cannot be written, and
    :class:`BookError` where the lab's own book, whose looks are copied, is not there.
    """
    notebook = folder / "notebooks" / f"{name}.ipynb"
    kept = folder / "book" / "claims" / f"{name}.yaml"
    if claims is not None and claims.resolve() != kept.resolve():
        write_text(kept, claims.read_text(encoding="utf-8"))
    write_text(notebook, chapter(name, summary, source, claims is not None, here))
    begin(folder)
    return notebook


def begin(folder: Path, *, looks: bool = True) -> None:
    """Make ``folder`` a reader's book of the pages that it holds; without ``looks`` it cannot be built yet.

    Raises :class:`BookError` or :class:`records.RecordError`.
    """
    readers.lay_out(folder, readers.titled("Your kernels", "Your kernels"), MARK, looks=looks)
    pages = [path for path in (folder / "notebooks").glob("*") if path.suffix in (".md", ".ipynb")]
    names = [path.stem for path in sorted(pages, key=lambda path: (path.stem != SET, path.name))]
    if names:
        rest = "".join(f"  - file: notebooks/{name}\n" for name in names[1:])
        toc = f"{MARK}format: jb-book\nroot: notebooks/{names[0]}\n" + (f"chapters:\n{rest}" if rest else "")
        write_text(folder / "_toc.yml", toc)
