"""The reader's own book: a template to begin with, and a chapter for every kernel that was judged.

A book is a folder of the reader's choice, laid out like the lab's own: ``_config.yml``, ``_toc.yml``, ``notebooks/``
with a chapter each, ``book/records/`` and ``book/claims/``. Nothing is written outside of it.
"""

from __future__ import annotations

import json
import keyword
import re
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from hypatia_lab import places
from hypatia_lab.book.build import BookError
from hypatia_lab.records import write_text

MARK = "# Written by hypatia-lab judge; written anew by the next one.\n"
"""First line of the files that make a folder a reader's book."""

TEMPLATE = '''"""@NAME@: say here what the kernel computes.

    hypatia-lab judge @FILE@
"""

import torch

from hypatia_lab import operation, variant


def draw(shape, dtype, device, generator):
    """Fresh random inputs, by name. Another draw must have the same shapes."""
    rows, columns = shape

    def normal():
        return torch.randn(rows, columns, device=device, generator=generator).to(dtype)

    return {"gate": normal(), "x": normal()}


# The reference is plain PyTorch, written once. On float64 inputs it gives the answer that every variant is held
# against; on the row's own dtype it is the variant "eager", and through torch.compile "compile".
@operation(
    "@NAME@",
    dims=("rows", "columns"),
    shapes=("256x1024", "2048x1024"),
    dtypes=("float32",),  # also float64, bfloat16, float16
    inputs=draw,
    depth=lambda shape: 1,  # terms summed up into one output; left out: the largest extent
    flops=lambda shape: 5 * shape[0] * shape[1],  # may be left out; the limit is then that of the bytes alone
)
def @NAME@(gate, x):
    """y = silu(gate) * x"""
    return torch.nn.functional.silu(gate) * x


# Your kernel. What comes before the inner function (memory, compiling) is not timed; the inner function is.
@variant("@NAME@", "mine", origin="own")
def mine(workload, inputs):
    """Into memory that is already there."""
    gate, x = inputs["gate"], inputs["x"]
    out = torch.empty_like(x)

    def run():
        torch.sigmoid(gate, out=out)
        out.mul_(gate)
        return out.mul_(x)

    return run
'''


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
    return TEMPLATE.replace("@NAME@", name).replace("@FILE@", path.name)


def _installed(module: str) -> bool:
    """Whether a package was installed that is imported by this name."""
    return PathFinder.find_spec(module, [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]) is not None


def write_template(path: Path) -> None:
    """Write the template to ``path``. Raises :class:`TemplateError` when something is there or it cannot be written."""
    text = template(path.name)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise TemplateError(f"{path} exists; it is not overwritten") from None
    except OSError as cause:
        raise TemplateError(f"cannot write {path}: {cause.strerror}") from None


# ---------------------------------------------------------------- a chapter


def ensure_ours(folder: Path) -> None:
    """Raise :class:`BookError` when ``folder`` holds something else than a reader's book; what is not there will do."""
    if folder.is_dir() and any(folder.iterdir()):
        try:
            ours = (folder / "_config.yml").read_text(encoding="utf-8").startswith(MARK)
        except (OSError, UnicodeDecodeError):
            ours = False
        if not ours:
            raise BookError(f"{folder} holds something else than a book of yours; choose another --output")


def escaped(text: str) -> str:
    """``text`` so that Markdown shows it as it is: a description is data."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))


def _fenced(source: str) -> str:
    """``source`` as a block of Python in Markdown, within a fence that it cannot close."""
    longest = max(map(len, re.findall("`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{source.rstrip()}\n{fence}"


def cell(kind: str, source: str, *tags: str) -> dict[str, object]:
    """A notebook's cell of ``kind`` code or markdown; code has not been executed."""
    both: dict[str, object] = {"cell_type": kind, "metadata": {"tags": list(tags)}, "source": source}
    return both | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def chapter(name: str, summary: str, source: str, claims: bool, here: str) -> str:
    """The notebook of operation ``name``, not executed; it reads the records and claims that lie in its book.

    ``source`` is the text of the reader's file, ``claims`` whether there are claims to judge, ``here`` the machine
    whose tab stands first.
    """
    code, text = (
        (lambda body, *tags: cell("code", body, "hide-input", *tags)),
        (lambda body: cell("markdown", body)),
    )
    cells = [
        text(f"# {name}\n\n{escaped(summary)}"),
        code(
            "from pathlib import Path\n\n"
            "from hypatia_lab.pages import own_kernel\n"
            "from hypatia_lab.pages.notebook import *\n\n"
            f'name = "{name}"\n'
            f'data = own_kernel.read(Path("../book/records"), name, here="{here}")\n'
            "behind = {machine: phrases.behind(data, machine, name) for machine in data.machines}\n"
            "rows = {machine: data.leading(machine, experiment=name) for machine in data.machines}",
            "remove-stderr",
        ),
        code(
            "for machine in by_machine.tabs(data):\n"
            "    if lines := own_kernel.summary(data, machine, name):\n"
            "        tables.show(pandas.DataFrame(lines))"
        ),
        text(
            "*Faster*, *slower* and *equal* (within ±2%) follow from the 95% interval of the ratio, the baseline's "
            "time over the variant's. What failed its check has no time and no ratio, whatever its speed. Where the "
            "baseline fails there are no ratios at all. If its rounding is what it should be, tell the operation: "
            "*depth* counts the terms of a sum, *roundings* the steps that round."
        ),
        text(
            "## Against eager\n\n"
            "*eager* is the reference as plain PyTorch, *compile* the same through torch.compile. Right of 1 is "
            "faster; the shaded band is ±2%. What failed its check has no time."
        ),
        code(
            "for machine in by_machine.tabs(data):\n"
            "    if own_kernel.can_compare(rows[machine]):\n"
            "        figures.show(*comparisons.speedups(rows[machine]), behind[machine])"
        ),
        text(
            "## Against the limit\n\n"
            "The least time that this machine's own measured ceilings allow: bytes at its best copy rate, and "
            "arithmetic at its best matrix rate where FLOPs were given."
        ),
        code(
            "for machine in by_machine.tabs(data):\n"
            "    if own_kernel.can_limit(rows[machine]):\n"
            "        figures.show(*comparisons.times_against_limit(rows[machine]), behind[machine])\n"
            "    if own_kernel.can_place(data, machine, rows[machine]):\n"
            "        ceilings = results.ceilings(data.of(machine))\n"
            "        figure = ceiling_figures.roofline(rows[machine], ceilings, clock=data.primary(machine))\n"
            "        figures.show(*figure, phrases.behind(data, machine, name, 'ceilings'))"
        ),
    ]
    if claims:
        cells += [
            text("## The claims"),
            code(f'by_machine.show_claims(data, claims.load(Path("../book/claims/{name}.yaml")))'),
        ]
    cells += [
        text("## Every cell"),
        code(
            "for machine in by_machine.tabs(data):\n"
            "    table = own_kernel.every_cell(data, machine, name)\n"
            '    tables.show(table, filterable=True, summary="Every cell")',
            "full-width",
        ),
        text(f"## The file\n\n{_fenced(source)}"),
        text("## Records behind this page\n\nA digest each. An altered record changes it."),
        code("print(data.digest())"),
    ]
    return notebook(cells)


def notebook(cells: Sequence[dict[str, object]]) -> str:
    """The text of a notebook of ``cells``, each made by :func:`cell`."""
    named = [one | {"id": f"cell-{number}"} for number, one in enumerate(cells)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": named, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


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


def begin(folder: Path) -> None:
    """Make ``folder`` a reader's book of the chapters that it holds.

    Raises :class:`BookError` or :class:`records.RecordError`.
    """
    try:
        config = (places.HOME / "_config.yml").read_text(encoding="utf-8")
        for file in sorted((places.HOME / "book" / "static").rglob("*")):
            if file.is_file():
                there = folder / file.relative_to(places.HOME)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, there)
    except OSError as cause:
        raise BookError(f"the book cannot be laid out: {cause.filename}: {cause.strerror}") from None
    config = re.sub(r"(?m)^(title|author|copyright): .*$", r"\1: Your kernels", config)
    config = config.replace("logo: { text: Hypatia Lab }", "logo: { text: Your kernels }")
    write_text(folder / "_config.yml", MARK + config)
    names = sorted(path.stem for path in (folder / "notebooks").glob("*.ipynb"))
    if names:
        rest = "".join(f"  - file: notebooks/{name}\n" for name in names[1:])
        toc = f"{MARK}format: jb-book\nroot: notebooks/{names[0]}\n" + (f"chapters:\n{rest}" if rest else "")
        write_text(folder / "_toc.yml", toc)
