"""README's promise, on a copy of the package: what is added in one place is checked, planned, measured and shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ADDED = Path(__file__).parent / "added"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package that a test may add to."""
    shutil.copytree(ROOT / "hypatia_lab", tmp_path / "hypatia_lab", ignore=shutil.ignore_patterns("__pycache__"))
    add(tmp_path, "ceilings.py", "experiments/method.py")
    return tmp_path


def run(folder: Path, *command: str) -> str:
    """What Python prints with the copy in ``folder`` in place of the lab."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def add(package: Path, name: str, to: str) -> None:
    """Put the code of ``ADDED / name`` at the end of a module of the package, or make one of it."""
    with (package / "hypatia_lab" / to).open("a", encoding="utf-8") as file:
        file.write((ADDED / name).read_text(encoding="utf-8"))


def add_row_sum(package: Path) -> None:
    add(package, "row_sum_operation.py", "operations/row_sum.py")
    add(package, "row_sum_experiment.py", "experiments/row_sum.py")


def test_one_decorated_function_is_planned_and_has_its_place_on_the_pages(copy: Path) -> None:
    add(copy, "variant.py", "operations/linear_relu/__init__.py")
    run(copy, str(ADDED / "plan.py"))


@pytest.mark.slow  # measures in four fresh processes
def test_one_decorated_function_is_measured_drawn_and_tabled(copy: Path) -> None:
    add(copy, "variant.py", "operations/linear_relu/__init__.py")
    found = json.loads(run(copy, str(ADDED / "measure.py"), "aten_fusion", "gemm_ladder").splitlines()[-1])
    assert ["by_halves", "ok"] in found["status"]
    assert ["step_by_halves", "ok"] in found["status"]
    assert "by_halves" in found["figure"]
    assert "by_halves" in found["table"]
    assert "step_by_halves" in found["climb"]


@pytest.mark.slow
def test_a_wrong_function_is_found_by_the_page_of_checks(copy: Path) -> None:
    add(copy, "variant.py", "operations/linear_relu/__init__.py")
    path = copy / "hypatia_lab" / "operations" / "linear_relu" / "__init__.py"
    path.write_text(path.read_text(encoding="utf-8").replace("linear(half", "linear(2 * half"), encoding="utf-8")
    program = "from hypatia_lab import verify\ntry: verify('linear_relu', 'cpu')\nexcept AssertionError as e: print(e)"
    said = run(copy, "-c", program)
    assert {line.split(" at ")[0] for line in said.splitlines()} == {"by_halves", "step_by_halves"}


def test_an_operation_is_one_file_and_an_experiment_another(copy: Path) -> None:
    add_row_sum(copy)
    program = "from hypatia_lab import verify\nfrom hypatia_lab.experiments import EXPERIMENTS\n"
    program += "print(verify('row_sum', 'cpu'))\nprint(EXPERIMENTS['row_sum'].groups('quick', 'cpu')[0].variants)"
    first, second = run(copy, "-c", program).splitlines()
    assert first.startswith("row_sum: every variant")
    assert "product" in second


@pytest.mark.slow  # executes a notebook
def test_an_operation_with_a_chapter_runs_by_its_notebooks_number(copy: Path) -> None:
    add_row_sum(copy)
    add(copy, "row_sum_page.py", "pages/row_sum.py")
    (copy / "notebooks").mkdir()
    shutil.copy(ADDED / "21_row_sum.ipynb", copy / "notebooks")
    where = ("--device", "cpu", "--machine", "box", "--records", str(copy / "out"), "--output", str(copy / "made"))
    run(copy, "-m", "hypatia_lab", "run", "21", "--preset", "quick", *where)
    made = json.loads((copy / "made" / "21_row_sum.ipynb").read_text(encoding="utf-8"))
    told = json.dumps(made["cells"][-1]["outputs"])
    assert "product" in told
    assert "1 row_sum: every variant" in told
