"""The book: notebooks and records put together, plotly figures that need no network, one HTML folder out.

Three parts: :class:`PlotlyRenderer` turns a notebook's plotly output into HTML (MyST-NB finds it by its entry
point), :func:`setup` is the Sphinx extension that ``_config.yml`` names, and :func:`build` makes the book. A plain
``jupyter-book build .`` uses the first two and gives the committed book.

A figure says what it shows in ``layout.meta["alt"]``; records lie in ``records/`` beside ``notebooks/`` in the built
book, so that a page links to one as ``../records/<machine>/<experiment>/<date>-<chip>.jsonl``.
"""

from __future__ import annotations

import html
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypatia_lab import paths
from hypatia_lab.book import pdf as printing
from hypatia_lab.records import RecordError, copy, write_text

PLOTLY_MIME = "application/vnd.plotly.v1+json"
STRICT = ("-n", "-W", "--keep-going")
"""Every warning is an error, missing references are warnings, and all of them are listed."""
MARK = ".hypatia-lab-book"
"""File that says of a folder of pages that it is a book of the lab, and so may be replaced."""
PDF = "book.pdf"
"""The whole book, printed: where it was asked for, in ``book/`` of the sources and at the top of what is built."""
UNFOLD = {
    "type": "javascript",
    "javascript": "document.querySelectorAll('details.above-input').forEach((code) => code.toggleAttribute('open'))",
    "text": "code",
    "tooltip": "Unfold or fold all code of this page",
    "icon": "fas fa-code",
    "label": "unfold-button",
}
"""A button of the theme's."""


class BookError(RuntimeError):
    """A book that cannot be built: the message names the cause and where the whole log is."""


class PlotlyRenderer:
    """MyST-NB renderer of a plotly output: a labelled box, its data, and a sentence for readers without scripts."""

    mime_priority_overrides = (("*", PLOTLY_MIME, 1),)

    @staticmethod
    def handle_mime(renderer: Any, data: Any, inline: bool) -> list[Any] | None:
        """Docutils nodes of one figure; ``None`` for other outputs, which MyST-NB then renders itself.

        A figure without ``layout.meta["alt"]`` gives a warning, and so fails a strict build.
        """
        if inline or data.mime_type != PLOTLY_MIME:
            return None
        from docutils import nodes

        spec = data.content if isinstance(data.content, dict) else json.loads(data.string)
        alt = ((spec.get("layout") or {}).get("meta") or {}).get("alt", "")
        if not alt:
            renderer.logger.warning("plotly figure without alt text in layout.meta", subtype="alt", line=data.line)
        return [nodes.raw("", figure_html(spec, alt), format="html")]


def figure_html(spec: dict[str, Any], alt: str) -> str:
    """The HTML of a plotly figure ``spec`` (data, layout, perhaps config), drawn by ``figures.js``.

    Tiles (``layout.meta["tiles"]``) are plots of their own, each under its name, which the page lays out.
    """
    label = html.escape(alt)
    layout = spec.get("layout") or {}
    names = (layout.get("meta") or {}).get("tiles")
    if names:
        body = "".join(
            f"<div><p>{html.escape(name)}</p>{_plot(_tile(spec, number), html.escape(name))}</div>"
            for number, name in enumerate(names)
        )
        opened = f'<figure class="lab-figure lab-tiles" role="group" aria-label="{label}">'
    else:
        body, opened = _plot(spec, label), '<figure class="lab-figure">'
    said = f"<noscript><p>This figure is drawn by a script, which is switched off here. {label}</p></noscript>"
    return f"{opened}{body}{said}</figure>"


def _plot(spec: dict[str, Any], label: str) -> str:
    height = int((spec.get("layout") or {}).get("height") or 450)
    content = json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="lab-plot" role="img" aria-label="{label}" style="min-height:{height}px"></div>'
        f'<script type="application/json">{content}</script>'
    )


def _tile(spec: dict[str, Any], number: int) -> dict[str, Any]:
    """Tile ``number`` of a figure as a figure of its own."""
    suffix, layout = str(number + 1) if number else "", spec["layout"]
    data = [
        {key: value for key, value in trace.items() if key not in ("xaxis", "yaxis")}
        for trace in spec["data"]
        if trace.get("xaxis", "x") == f"x{suffix}"
    ]
    axes = {
        name: {k: v for k, v in layout[f"{name}{suffix}"].items() if k not in ("anchor", "domain")}
        for name in ("xaxis", "yaxis")
    }
    height = layout["height"] / math.ceil(len(layout["meta"]["tiles"]) / 2)
    kept = {key: layout[key] for key in ("template", "autosize", "showlegend") if key in layout}
    return spec | {"data": data, "layout": kept | axes | {"height": height}}


def _add_plotly(app: Any, config: Any) -> None:
    import plotly

    config.html_static_path.append(str(Path(plotly.__file__).parent / "package_data" / "plotly.min.js"))


def _load_plotly(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if 'class="lab-plot"' in context.get("body", ""):
        for script in ("plotly.min.js", "figures.js"):
            app.add_js_file(script, loading_method="defer")


def _offer(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Beside a page's notebook, which the theme links, its folded code; on the first page the book as PDF."""
    body = context.get("body", "")
    for group in context.get("header_buttons", ()):
        if group["label"] == "download-buttons" and 'class="admonition hide above-input"' in body:
            group["buttons"].append(UNFOLD)
    if pagename == app.config.root_doc and (Path(app.srcdir) / "book" / PDF).is_file():
        link = f'<p class="lab-pdf"><a href="{context["pathto"](PDF, 1)}">The whole book as one PDF</a></p>'
        context["body"] = body.replace("</h1>", f"</h1>\n{link}", 1)


def _name_roles(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """A list has items; docutils calls references one that has none, which screen readers announce as empty."""
    context["body"] = context.get("body", "").replace(
        '<div role="list" class="citation-list">', '<div class="citation-list">'
    )


def _copy_files(app: Any, failure: Exception | None) -> None:
    if failure is not None or app.builder.format != "html":
        return
    book, out = Path(app.srcdir) / "book", Path(app.outdir)
    if (book / "records").is_dir():
        copy_folder(book / "records", out / "records")
    if (book / PDF).is_file():
        copy(book / PDF, out / PDF)


def setup(app: Any) -> dict[str, Any]:
    """Sphinx extension: plotly on pages with a figure and only there, code and PDF linked, records beside the pages."""
    app.connect("config-inited", _add_plotly)
    app.connect("html-page-context", _load_plotly)
    app.connect("html-page-context", _offer, priority=502)  # after the theme's own buttons
    app.connect("html-page-context", _name_roles)
    app.connect("build-finished", _copy_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def fault(notebook: Path) -> str:
    """Why an executed notebook cannot be published, in words; empty when it can."""
    if not notebook.is_file():
        return "was not executed"
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
        for cell in code:
            for output in cell["outputs"]:
                if output["output_type"] == "error":
                    return f"stopped at {output['ename']}: {output['evalue']}".split("\n")[0][:200]
        if any(cell["execution_count"] is None for cell in code):
            return "was interrupted"
    except (OSError, ValueError, KeyError, TypeError) as cause:
        return f"cannot be read ({type(cause).__name__})"
    return ""


def _assemble(repository: Path, source: Path, notebooks: Path | None, records: Path | None, say: Any) -> None:
    """Lay the sources of the book out in the new folder ``source``."""
    for name in ("_config.yml", "_toc.yml"):
        copy(repository / name, source / name)
    for name in ("book", "notebooks"):
        copy_folder(repository / name, source / name)
    if records is not None and records.is_dir():  # nothing measured here is no error: the committed book remains
        copy_folder(records, source / "book" / "records")
    if notebooks is None:
        return
    for committed in sorted((source / "notebooks").glob("*.ipynb")):
        executed = notebooks / committed.name
        why = fault(executed)
        if why:
            say(f"book: {committed.name} {why} on this machine; the committed notebook stands in for it")
        else:
            write_text(committed, _without_plumbing(executed))


def _without_plumbing(notebook: Path) -> str:
    """The text of an executed notebook whose injected parameters (paths of this machine) are not shown."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        tags = cell["metadata"].get("tags", [])
        if "injected-parameters" in tags:
            cell["metadata"]["tags"] = [*tags, "remove-cell"]
    return json.dumps(content)


def build(
    notebooks: Path | None = None,
    records: Path | None = None,
    output: Path = paths.BUILD / "html",
    *,
    pdf: bool = False,
    repository: Path = paths.HOME,
    say: Callable[[str], None] = print,
) -> Path:
    """Build the book and return the path of its ``index.html``; with ``pdf`` the whole of it printed beside that.

    The committed notebooks of ``repository`` are overlaid by those in ``notebooks`` (a folder of executed ones;
    one that failed, stopped early or is missing is left out and ``say`` is told), the committed records by those
    in ``records``. ``output`` is replaced as a whole, and only by a book that was built without a warning. Beside it
    lie a hidden folder while the book is being built, and its log, hidden too, once that has failed.

    Raises :class:`BookError` when jupyter-book is missing, or Chromium for the PDF, when the sources are not there or
    cannot be written, when ``output`` holds something else than a book of the lab, or when the build fails.
    """
    if told := paths.lacking("the book", "book", "jupyter_book"):
        raise BookError(told)
    if pdf and not printing.chromium():
        raise BookError("the book as PDF needs Chromium, which prints it: apt-get install chromium")
    if not (repository / "_toc.yml").is_file():
        raise BookError(f"{repository} holds no book (no _toc.yml); run this from a checkout of the repository")
    output = output.resolve()
    try:
        _ensure_ours(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        # Beside the output, for one rename puts the book there.
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as scratch:
            source, stage = Path(scratch) / "source", Path(scratch) / "stage"
            kept = output.with_name(f".{output.name}-book.log")
            _assemble(repository, source, notebooks, records, say)
            if pdf:
                page = printing.single_page(_pages("singlehtml", source, stage, kept, say))
                printing.write(page, source / "book" / PDF, Path(scratch) / "profile")
            built = _pages("html", source, stage, kept, say)
            (built / MARK).write_text("A book of hypatia-lab, which the next build replaces as a whole.\n", "utf-8")
            if output.exists():
                output.rename(Path(scratch) / "replaced")
            built.rename(output)
            kept.unlink(missing_ok=True)
    except printing.PrintError as cause:
        raise BookError(str(cause)) from None
    except (OSError, RecordError) as cause:
        raise BookError(f"the book cannot be written: {_said(cause)}") from None
    return output / "index.html"


def _ensure_ours(output: Path) -> None:
    """Raise :class:`BookError` when ``output`` holds something else than a book of the lab; nothing at all will do."""
    if not output.exists() or not any(output.iterdir()) or (output / MARK).is_file():
        return
    # Built by jupyter-book alone, or before books were marked: Sphinx's own mark, and what only the lab's pages load.
    certain = (".buildinfo", "index.html", "searchindex.js", "_static/figures.js", "_static/tables.js")
    if not all((output / name).is_file() for name in certain):
        raise BookError(f"{output} holds something else than a book of the lab; choose another folder or empty it")


def copy_folder(source: Path, target: Path) -> None:
    """Copy what is finished in folder ``source`` into ``target``, which may be there.

    Raises :class:`hypatia_lab.records.RecordError` that names the file which cannot be read, or written.
    """
    hidden = shutil.ignore_patterns(".*")  # what an interrupted measurement left behind is no record yet
    try:
        shutil.copytree(
            source, target, dirs_exist_ok=True, ignore=hidden, copy_function=lambda one, to: copy(Path(one), Path(to))
        )
    except shutil.Error as cause:  # of folders in it; the first is told
        raise RecordError(cause.args[0][0][2]) from None


def _said(cause: Exception) -> str:
    """What an error says of a file."""
    if not isinstance(cause, OSError):
        return str(cause)
    remedy = "; choose a folder that is open to you" if isinstance(cause, PermissionError) else ""
    return f"{cause.filename}: {cause.strerror}{remedy}"


def _pages(builder: str, source: Path, stage: Path, kept: Path, say: Callable[[str], None]) -> Path:
    """The folder of pages that jupyter-book makes of ``source``; its log is ``kept`` where it fails, a BookError."""
    log, built = stage.with_name("book.log"), stage / "_build" / builder
    status = _jupyter_book(builder, source, stage, log, say)
    if status or not (built / "index.html").is_file():
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-15:])
        log.replace(kept)
        raise BookError(f"jupyter-book failed (exit status {status}); the end of {kept}:\n{tail}")
    return built


def _jupyter_book(builder: str, source: Path, stage: Path, log: Path, say: Callable[[str], None]) -> int:
    """Run jupyter-book: everything goes to ``log``, warnings and errors to ``say`` too. Returns its exit status."""
    program = "from sphinx.util.console import nocolor; nocolor(); from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", program, "build", str(source), "--path-output", str(stage), *STRICT]
    command += ["--builder", builder]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with (
        log.open("w", encoding="utf-8") as stream,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            stream.write(line)
            if "WARNING" in line or "ERROR" in line:
                say(f"book: {line.strip()}")
    return process.returncode
