"""The published notebooks: executed, deterministic, and tied to the records they were made from."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from hypatia_lab import records
from hypatia_lab.experiments import EXPERIMENTS

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = tomllib.loads((ROOT / "notebooks" / "ruff.toml").read_text())["line-length"]
"""Of code, as many as a page has room for beside its two side bars, 1280 pixels wide."""
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RECORDS = records.visits(records.COMMITTED)


def code_cells(path: Path) -> list[dict]:
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]


@cache
def printed(path: Path) -> str:
    return "".join(
        "".join(output.get("text", "")) for cell in code_cells(path) for output in cell["outputs"] if "text" in output
    )


def altered(source: Path, target: Path) -> None:
    """Copy a record with the first number it measured (else the first operation count) raised by a fifth."""
    lines = source.read_text().splitlines()
    for number, line in enumerate(lines[1:], 1):
        row = json.loads(line)
        values = row["medians_us"] if row["kind"] == "cell" else row["values"]
        if values and values[0]:
            values[0] *= 1.2
            lines[number] = json.dumps(row, sort_keys=True)
            target.write_text("\n".join(lines) + "\n")
            return
    raise AssertionError(f"{source} holds no measured number")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    """Each notebook."""
    return request.param


def test_every_cell_was_executed_in_order_and_without_error(path: Path) -> None:
    counts = [cell["execution_count"] for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in code_cells(path) for output in cell["outputs"]]
    assert not [one for one in outputs if one["output_type"] == "error" or one.get("name") == "stderr"]
    # A page would show an empty text as the name of its type.
    shown = [output.get("data", {}) for output in outputs]
    texts = [data for data in shown if "<IPython.core.display.Markdown object>" in data.get("text/plain", ())]
    assert all("".join(data.get("text/markdown", "")).strip() for data in texts)
    text = path.read_text()
    assert not [word for word in (str(ROOT), "papermill") if word in text], "of the machine that rendered it"


def test_nothing_is_hidden_from_the_comparison_and_the_parameters_are_the_contract(path: Path) -> None:
    tags = [tag for cell in code_cells(path) for tag in cell["metadata"].get("tags", [])]
    assert not [tag for tag in tags if tag.startswith("nbval")]
    assert sum(bool(cell["outputs"]) for cell in code_cells(path)) >= 2
    (cell,) = [cell for cell in code_cells(path) if "parameters" in cell["metadata"].get("tags", [])]
    names = [line.split(":")[0] for line in "".join(cell["source"]).splitlines()]
    assert names == ["mode", "preset", "device", "machine", "shapes", "records", "overwrite"]
    assert 'mode: str = "recorded"' in "".join(cell["source"])


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
def test_what_a_page_shows_can_be_read_there_as_code(path: Path) -> None:
    # The front page is for reading alone.
    # What a drawing or a kernel's source is shown by teaches nothing, nor does a line that repeats the one above.
    aside = re.compile(r"(drawings|source)\.show\(.*\)")
    shown = [cell for cell in code_cells(path) if cell["outputs"] and not aside.fullmatch("".join(cell["source"]))]
    removed = [cell for cell in shown if {"remove-input", "remove-cell"} & set(cell["metadata"]["tags"])]
    assert not [cell["id"] for cell in removed if "follows" not in cell["metadata"]["tags"]]


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
def test_a_chapter_has_a_short_cell_to_try(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    (cell,) = [after for text, after in itertools.pairwise(cells) if "# Try it" in "".join(text["source"])]
    lines = [line for line in "".join(cell["source"]).splitlines() if line.strip()]
    assert cell["cell_type"] == "code"
    assert cell["outputs"]
    assert 1 <= len(lines) <= 6
    assert not cell["metadata"]["tags"]


def test_code_that_a_page_shows_is_not_cut_off(path: Path) -> None:
    hidden = {"remove-input", "hide-input", "remove-cell"}
    shown = [cell for cell in code_cells(path) if not hidden & set(cell["metadata"].get("tags", []))]
    lines = [line for cell in shown for line in "".join(cell["source"]).splitlines()]
    assert [line for line in lines if len(line) > COLUMNS] == []


def test_a_page_shows_the_call_that_measures_it_and_names_its_command(path: Path) -> None:
    shown = [cell for cell in code_cells(path) if "remove-input" not in cell["metadata"]["tags"]]
    planned = ["".join(cell["source"]) for cell in shown if "lab.evidence(parameters, " in "".join(cell["source"])]
    measured = any(one.notebook == path.stem for one in EXPERIMENTS.values())
    assert 1 >= len(planned) >= measured
    asked = path.stem[:2] if measured else r"\d\d"  # a page may show what another one measures
    assert all(re.search(f"hypatia-lab run {asked}", source) for source in planned)


def test_a_notebook_taken_elsewhere_says_what_it_needs() -> None:
    """The lab hidden, each one's first lines run in IPython, as in a Jupyter that somebody else has set up."""
    program = (
        "import sys; sys.modules['hypatia_lab'] = None\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "print(InteractiveShell(colors='NoColor').run_cell(sys.stdin.read()).success)"
    )
    line = "import hypatia_lab as lab"
    for first in {"".join(code_cells(path)[0]["source"]).partition(line)[0] + line for path in NOTEBOOKS}:
        done = subprocess.run([sys.executable, "-c", program], input=first, capture_output=True, text=True, check=True)
        assert done.stdout.endswith("False\n")
        for word in ("ModuleNotFoundError", "Needs hypatia_lab", "make .venv"):
            assert word in done.stdout


def test_every_record_is_named_by_a_notebook_as_it_is() -> None:
    """Whatever is altered in a record shows there: its digest is of all that it holds."""
    told = "".join(map(printed, NOTEBOOKS))
    unnamed = []
    for path in RECORDS:
        record = records.load_file(path)
        named = f"{record.machine}/{record.experiment}"
        if not any(f"{name}  {record.digest}" in told for name in (named, f"{named}/{path.stem}")):
            unnamed.append(path)
    assert RECORDS
    assert unnamed == []


def test_nbval_fails_on_an_altered_record(tmp_path: Path) -> None:
    for name in ("hypatia_lab", "notebooks", "book/records"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", ".parts"))

    # Of a notebook, the cells that read the records and that print their digests: the others take seconds.
    notebook = tmp_path / "notebooks" / "10_warm_up.ipynb"
    shown, whole = printed(notebook), json.loads(notebook.read_text(encoding="utf-8"))
    code = [cell for cell in whole["cells"] if cell["cell_type"] == "code"]
    notebook.write_text(json.dumps(whole | {"cells": [*code[:3], code[-1]]}), encoding="utf-8")
    source = next(path for path in RECORDS if records.load_file(path).digest in shown)
    target = tmp_path / "book" / "records" / source.relative_to(records.COMMITTED)
    altered(source, target)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", str(notebook)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    # It is this record that the notebook finds other than it was; as it was, `make nbval` passes.
    before, after = (records.load_file(path).digest for path in (source, target))
    assert before in done.stdout
    assert after in done.stdout
