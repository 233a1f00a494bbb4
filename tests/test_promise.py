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

VARIANT = '''

@variant("linear_relu", "by_halves", origin="own", label="two products of half the rows")
def by_halves(workload: Workload, inputs: Inputs) -> Run:
    """The batch cut in two, a product and a ReLU for each half."""
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    return lambda: torch.cat([_eager(half, weight, bias) for half in x.split(-(-len(x) // 2))])


@variant("linear_relu", "step_by_halves", origin="own", tags=("ladder_cpu",))
def step_by_halves(workload: Workload, inputs: Inputs) -> Run:
    """The same as a step of the ladder."""
    return by_halves(workload, inputs)
'''

OPERATION = '''"""Row sums: an operation of its own, with two variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hypatia_lab.variants import variant
from hypatia_lab.workloads import Operation, register

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    x = torch.rand(*workload.shape, device=device, generator=generator)
    return {"x": x.to(getattr(torch, workload.dtype))}


register(
    Operation(
        name="row_sum",
        dims=("rows", "columns"),
        summary="the sum of each row",
        make_inputs=_inputs,
        reference=lambda inputs: inputs["x"].double().sum(1),
        flops=lambda shape: shape[0] * shape[1],
        traffic=lambda shape, size: size * shape[0] * (shape[1] + 1),
        depth=lambda shape: shape[1],
    )
)


@variant("row_sum", "eager", origin="peer", baseline=True)
def eager(workload: Workload, inputs: Inputs) -> Run:
    """torch.sum over the columns."""
    return lambda: inputs["x"].sum(1)


@variant("row_sum", "product", origin="own", label="a product with ones")
def product(workload: Workload, inputs: Inputs) -> Run:
    """The matrix times a vector of ones."""
    x = inputs["x"]
    ones = x.new_ones(x.shape[1])
    return lambda: x @ ones
'''

EXPERIMENT = '''"""Row sums by two ways."""

from __future__ import annotations

from hypatia_lab.experiments.plan import Experiment, Group, Shapes
from hypatia_lab.variants import AGAIN, names
from hypatia_lab.workloads import Workload


def _plan(preset: str, device: str, shapes: Shapes) -> list[Group]:
    own = ("eager", "eager" + AGAIN, *names("row_sum"))
    return [Group(Workload("row_sum", shape), own, ("hot",), 0.01) for shape in shapes or [(64, 96)]]


EXPERIMENTS = (Experiment("row_sum", "21_row_sum", "row sums by two ways", "row_sum", _plan),)
'''

PAGE = '''"""Row sums: how many cases a product wins."""

from __future__ import annotations

from hypatia_lab.pages.evidence import Evidence


def cases(lab: Evidence, machine: str) -> int:
    """Timed cases of the product."""
    return len(lab.leading(machine, experiment="row_sum", variant="product", status="ok"))
'''

NOTEBOOK = (
    'mode = "recorded"\npreset = "quick"\ndevice = "auto"\nmachine = ""\nshapes = ""\nrecords = ""\noverwrite = False',
    "import hypatia_lab as lab\n"
    "from hypatia_lab import figures, tables\n"
    "from hypatia_lab.pages import row_sum\n"
    "from hypatia_lab.figures import comparisons\n"
    "parameters = lab.Parameters(mode, preset, device, machine, shapes, records, overwrite)\n"
    'data = lab.evidence(parameters, ["row_sum"])\n'
    'rows = data.select(experiment="row_sum")\n'
    "figures.show(*comparisons.speedups(rows), data.of(data.machines[0]))\n"
    "tables.show(tables.results_table(rows))\n"
    'print(row_sum.cases(data, data.machines[0]), lab.verify("row_sum", "cpu"))',
)

CEILINGS = """

def _few(preset, device, shapes):
    works = (Workload("matmul", (512, 512, 512)), Workload("copy", (65536,)), Workload("copy", (4096,)))
    return [Group(work, ("eager",), ("hot",), 0.02) for work in works]


EXPERIMENTS = (Experiment("ceilings", "01_method", "few, for a test", "matmul", _few, processes=1), *EXPERIMENTS[1:])
"""

MEASURE = """
import json, sys
from pathlib import Path
from hypatia_lab.bench import composer
from hypatia_lab.experiments.plan import MOST, PROCESSES
PROCESSES["quick"] = MOST["quick"] = 2
records = [composer.measure(name, preset="quick", device="cpu", machine_name="box", root=Path("out"), progress=False,
                            shapes=[(8, 16, 12)]) for name in sys.argv[1:]]
from hypatia_lab import results, tables
from hypatia_lab.figures import comparisons, over_size
from hypatia_lab.pages import ladder
rows = {record.experiment: results.rows([record]) for record in records}
fusion, climbed = rows["aten_fusion"], rows["gemm_ladder"]
both = comparisons.speedups([row for row in fusion if row.operation == "linear_relu"])
climb = over_size.rungs(climbed, ladder.order(), "Ladder")
print(json.dumps({
    "status": [(r.variant, r.status) for r in fusion + climbed if r.clock != "none"],
    "figure": both[0].to_json(), "table": tables.results_table(fusion).to_csv(), "climb": climb[1].to_csv(),
}))
"""

PLAN = """
from hypatia_lab import verify
from hypatia_lab.pages import ladder
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.figures import language
from hypatia_lab.variants import label, variants
for device in ("cpu", "cuda"):
    timed = [g for g in EXPERIMENTS["aten_fusion"].groups("seed", device) if g.workload.operation == "linear_relu"]
    assert all("by_halves" in group.variants for group in timed), device
assert all("step_by_halves" in group.variants for group in EXPERIMENTS["gemm_ladder"].groups("quick", "cpu"))
assert "step_by_halves" in ladder.order() and "by_halves" not in ladder.order()
assert label("linear_relu", "by_halves") == "two products of half the rows"
others = [one for name, one in variants("linear_relu").items() if name != "by_halves"]
look = language.style("by_halves", "own")
taken = [language.style(one.name, one.origin) for one in others]
assert (look.colour, look.symbol) not in [(one.colour, one.symbol) for one in taken]
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package that a test may add to."""
    shutil.copytree(ROOT / "hypatia_lab", tmp_path / "hypatia_lab", ignore=shutil.ignore_patterns("__pycache__"))
    add(tmp_path / "hypatia_lab" / "experiments" / "method.py", CEILINGS)
    return tmp_path


def run(folder: Path, *command: str) -> str:
    """What Python prints with the copy in ``folder`` in place of the lab."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def add(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_one_decorated_function_is_planned_and_has_its_place_on_the_pages(copy: Path) -> None:
    add(copy / "hypatia_lab" / "operations" / "linear_relu.py", VARIANT)
    run(copy, "-c", PLAN)


@pytest.mark.slow  # measures in four fresh processes
def test_one_decorated_function_is_measured_drawn_and_tabled(copy: Path) -> None:
    add(copy / "hypatia_lab" / "operations" / "linear_relu.py", VARIANT)
    found = json.loads(run(copy, "-c", MEASURE, "aten_fusion", "gemm_ladder").splitlines()[-1])
    assert ["by_halves", "ok"] in found["status"]
    assert ["step_by_halves", "ok"] in found["status"]
    assert "by_halves" in found["figure"]
    assert "by_halves" in found["table"]
    assert "step_by_halves" in found["climb"]


@pytest.mark.slow
def test_a_wrong_function_is_found_by_the_page_of_checks(copy: Path) -> None:
    add(copy / "hypatia_lab" / "operations" / "linear_relu.py", VARIANT.replace("_eager(half", "_eager(2 * half"))
    program = "from hypatia_lab import verify\ntry: verify('linear_relu', 'cpu')\nexcept AssertionError as e: print(e)"
    said = run(copy, "-c", program)
    assert {line.split(" at ")[0] for line in said.splitlines()} == {"by_halves", "step_by_halves"}


def test_an_operation_is_one_file_and_an_experiment_another(copy: Path) -> None:
    add(copy / "hypatia_lab" / "operations" / "row_sum.py", OPERATION)
    add(copy / "hypatia_lab" / "experiments" / "row_sum.py", EXPERIMENT)
    program = "from hypatia_lab import verify\nfrom hypatia_lab.experiments import EXPERIMENTS\n"
    program += "print(verify('row_sum', 'cpu'))\nprint(EXPERIMENTS['row_sum'].groups('quick', 'cpu')[0].variants)"
    first, second = run(copy, "-c", program).splitlines()
    assert first.startswith("row_sum: every variant")
    assert "product" in second


@pytest.mark.slow  # executes a notebook
def test_an_operation_with_a_chapter_runs_by_its_notebooks_number(copy: Path) -> None:
    add(copy / "hypatia_lab" / "operations" / "row_sum.py", OPERATION)
    add(copy / "hypatia_lab" / "experiments" / "row_sum.py", EXPERIMENT)
    add(copy / "hypatia_lab" / "pages" / "row_sum.py", PAGE)
    cells = [
        {"cell_type": "code", "id": f"21-{n}", "execution_count": None, "outputs": [], "source": source, "metadata": {}}
        for n, source in enumerate(NOTEBOOK)
    ]
    cells[0]["metadata"] = {"tags": ["parameters"]}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    whole = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (copy / "notebooks").mkdir()
    (copy / "notebooks" / "21_row_sum.ipynb").write_text(json.dumps(whole), encoding="utf-8")
    where = ("--device", "cpu", "--machine", "box", "--records", str(copy / "out"), "--output", str(copy / "made"))
    run(copy, "-m", "hypatia_lab", "run", "21", "--preset", "quick", *where)
    made = json.loads((copy / "made" / "21_row_sum.ipynb").read_text(encoding="utf-8"))
    told = json.dumps(made["cells"][-1]["outputs"])
    assert "product" in told
    assert "1 row_sum: every variant" in told
