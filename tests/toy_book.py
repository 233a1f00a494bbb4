"""A small repository with the real configuration and one notebook, to see what a build of its book does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from hypatia_lab import paths
from hypatia_lab.book import build

FIGURE = {
    "data": [{"type": "scatter", "mode": "lines+markers", "x": [1, 2, 3], "y": [3, 1, 2]}],
    "layout": {"height": 300, "meta": {"alt": "A line that falls from 3 to 1 and rises to 2."}},
}
SOURCE = (
    '<details><summary>Data</summary><table class="lab-table filterable">'
    "<thead><tr><th>x</th><th>kind</th></tr></thead>"
    "<tbody><tr><td>1</td><td>odd</td></tr><tr><td>2</td><td>even</td></tr><tr><td>3</td><td>odd</td></tr>"
    "<tr><td>4</td><td>even</td></tr></tbody></table>"
    '<a href="../records/toy/method/2025-01-01-cpu.jsonl">record</a></details>'
)


def shown(*datas: dict[str, Any], count: int | None = 1) -> Any:
    outputs = [new_output("display_data", data=data) for data in datas]
    return new_code_cell("show()", execution_count=count, outputs=outputs)


def write_notebook(path: Path, *cells: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    nbformat.write(new_notebook(cells=list(cells), metadata=metadata), path)


def lay_out(repository: Path) -> Path:
    shutil.copytree(paths.HOME / "book" / "static", repository / "book" / "static")
    record = repository / "book" / "records" / "toy" / "method" / "2025-01-01-cpu.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text("{}\n")
    shutil.copy(paths.HOME / "_config.yml", repository)
    (repository / "_toc.yml").write_text("format: jb-book\nroot: notebooks/00_toy\n")
    good = shown({build.PLOTLY_MIME: FIGURE}, {"text/html": SOURCE})
    write_notebook(repository / "notebooks" / "00_toy.ipynb", new_markdown_cell("# Toy\n\n$x^2$"), good)
    return repository
