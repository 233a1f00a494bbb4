"""Who may import whom, as a table: downwards only, and the leaves import nothing of the lab's."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hypatia_lab

HOME = Path(hypatia_lab.__file__).resolve().parent

ALLOWED: dict[str, set[str]] = {
    # Leaves.
    "failures": set(),
    "names": set(),
    "intervals": set(),
    "formats": {"intervals"},
    "kernels": set(),
    "places": set(),
    "operators": {"kernels"},
    "records": {"names", "places"},
    "source_file": set(),
    "workloads": {"names"},
    "variants": {"names", "workloads"},
    # What is computed, and whether it is right.
    "clock": {"failures", "kernels"},
    "check": {"variants", "workloads"},
    "compiled": {"kernels"},
    "machine": {"clock", "names"},
    "operations": {"clock", "compiled", "kernels", "names", "operators", "variants", "workloads"},
    "egraph": {
        "clock",
        "intervals",
        "kernels",
        "machine",
        "names",
        "operations",
        "operators",
        "variants",
        "workloads",
    },
    "diffraction": {"compiled", "kernels", "machine", "names", "variants", "workloads"},
    "dispatch": {
        "clock",
        "compiled",
        "failures",
        "intervals",
        "kernels",
        "machine",
        "names",
        "operations",
        "variants",
        "workloads",
    },
    "planted": {"check", "diffraction", "egraph", "operations", "variants", "workloads"},
    # Fresh processes, which the rest of ``bench`` plans and a probe runs in.
    "bench.bytecode": {"kernels"},
    "bench.turns": set(),
    "bench.sessions": {"bench.bytecode", "machine"},
    "bench.fence": set(),
    "probes": {
        "bench.sessions",
        "bench.turns",
        "check",
        "clock",
        "diffraction",
        "egraph",
        "failures",
        "kernels",
        "names",
        "operations",
        "source_file",
        "variants",
        "workloads",
    },
    "profiler": {"probes"},
    "experiments": {"clock", "kernels", "names", "operations", "probes", "variants", "workloads"},
    "reader_kernel": {"compiled", "experiments", "names", "source_file", "variants", "workloads"},
    "tasks": {"compiled", "experiments", "reader_kernel", "source_file", "variants", "workloads"},
    "programs": {"experiments", "names", "probes", "source_file", "variants", "workloads"},
    # From records to pages; these measure nothing.
    "scatter": {"intervals"},
    "results": {"formats", "intervals", "records", "scatter", "variants"},
    "spread": {"formats", "intervals", "records", "results", "scatter"},
    "claims": {"formats", "intervals", "names", "records", "results", "scatter"},
    "tables": {"claims", "formats", "intervals", "records", "results"},
    "figures": {"claims", "formats", "intervals", "records", "results", "tables", "variants"},
    "drawings": {"figures", "kernels", "names"},
    # What strangers measured; it measures nothing itself.
    "contributed": {
        "claims",
        "diffraction",
        "formats",
        "intervals",
        "machine",
        "operations",
        "places",
        "records",
        "results",
        "tables",
        "workloads",
    },
    # The composer of measurements.
    "bench": {
        "bench.sessions",
        "bench.turns",
        "check",
        "clock",
        "dispatch",
        "experiments",
        "failures",
        "intervals",
        "kernels",
        "machine",
        "names",
        "programs",
        "reader_kernel",
        "records",
        "results",
        "tasks",
        "variants",
        "workloads",
    },
    # A stranger's kernel, kept apart from what measures it.
    "judged": {
        "bench",
        "bench.fence",
        "bench.sessions",
        "bench.turns",
        "check",
        "clock",
        "experiments",
        "failures",
        "formats",
        "intervals",
        "kernels",
        "machine",
        "names",
        "probes",
        "reader_kernel",
        "results",
        "tasks",
        "variants",
        "workloads",
    },
    # What people use.
    "pages": {
        "bench",
        "check",
        "claims",
        "drawings",
        "egraph",
        "experiments",
        "figures",
        "formats",
        "intervals",
        "machine",
        "names",
        "records",
        "results",
        "spread",
        "tables",
        "variants",
        "workloads",
    },
    "book": {"experiments", "places", "records", "workloads"},
    "fleet": {"machine", "names", "records"},
    "cli": {
        "bench",
        "bench.bytecode",
        "book",
        "claims",
        "contributed",
        "diffraction",
        "experiments",
        "failures",
        "fleet",
        "formats",
        "intervals",
        "kernels",
        "machine",
        "names",
        "pages",
        "places",
        "programs",
        "reader_kernel",
        "records",
        "judged",
        "results",
        "spread",
        "tables",
        "tasks",
        "variants",
        "workloads",
    },
    "__main__": {"cli"},
    "testing": {"bench.sessions"},
}
"""Module or package → what of the lab it imports, at the top or inside a function; imports that only a type checker
sees do not count. Each may import only what stands above it here."""


def part(dotted: str) -> str:
    """``hypatia_lab.claims.ledger`` → ``claims``; a module that has a line of its own in the table → that."""
    words = dotted.split(".")[1:3]
    return ".".join(words) if ".".join(words) in ALLOWED else words[0]


def imported(source: str, module: str) -> set[str]:
    """Parts of the lab that ``source`` (of ``hypatia_lab.<module>``) imports, other than its own part."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(part(a.name) for a in node.names if a.name.startswith("hypatia_lab."))
            assert "hypatia_lab" not in [a.name for a in node.names], f"{module}: import what is needed, not the whole"
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            if node.module == "hypatia_lab":
                found.update(a.name for a in node.names)
            elif node.module and node.module.startswith("hypatia_lab."):
                found.update(part(f"{node.module}.{a.name}") for a in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found - {module}


def parts() -> dict[str, list[Path]]:
    """Every module or package of the lab with its source files."""
    found: dict[str, list[Path]] = {}
    for path in sorted(HOME.rglob("*.py")):
        relative = path.relative_to(HOME)
        if relative != Path("__init__.py"):
            found.setdefault(part(".".join((HOME.name, *relative.with_suffix("").parts))), []).append(path)
    return found


def test_the_table_lists_every_module():
    assert set(parts()) == set(ALLOWED)


@pytest.mark.parametrize("module", ALLOWED)
def test_a_module_imports_what_the_table_says(module):
    actual = set().union(*(imported(path.read_text(encoding="utf-8"), module) for path in parts()[module]))
    assert actual == ALLOWED[module]


def test_imports_go_upwards_in_the_table_only():
    above: set[str] = set()
    for module, allowed in ALLOWED.items():
        assert allowed <= above, f"{module} imports what stands below it: {sorted(allowed - above)}"
        above.add(module)


def test_every_kind_of_import_is_seen():
    source = """
import hypatia_lab.operations
from hypatia_lab.bench import composer, sessions
from hypatia_lab import clock as timer
from hypatia_lab.claims.ledger import Claim
if TYPE_CHECKING:
    from hypatia_lab.figures.comparisons import Figure
else:
    from hypatia_lab.tables import Table
def late():
    if True:
        from hypatia_lab.records import Record
import json, os.path
from hypatia_lab.own.sub import own
"""
    assert imported(source, "own") == {"operations", "bench", "bench.sessions", "clock", "claims", "tables", "records"}


def test_the_public_names_are_there_and_are_found_late():
    assert {home.partition(".")[0] for home in hypatia_lab._HOME.values()} <= set(ALLOWED)
    for name in hypatia_lab.__all__:
        assert getattr(hypatia_lab, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        hypatia_lab.nope  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


HEAVY_PARTS = (
    "__main__",
    "bench",
    "diffraction",
    "dispatch",
    "egraph",
    "experiments",
    "operations",
    "operators",
    "planted",
    "programs",
    "reader_kernel",
)
LIGHT = [module for module in ALLOWED if module not in HEAVY_PARTS]
HEAVY = ("torch", "pandas", "plotly", "scipy", "papermill", "numpy", "egglog")


def test_the_first_call_of_an_own_operator_does_not_import_the_compiler():
    program = (
        "import sys, torch\n"
        "from hypatia_lab.operations.linear_relu import linear_relu_epilogue\n"
        "x, weight, bias = torch.randn(2, 3), torch.randn(4, 3, requires_grad=True), torch.randn(4)\n"
        "linear_relu_epilogue(x, weight, bias).sum().backward()\n"
        "print(weight.grad is None, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_nothing_heavy_is_imported_before_it_is_needed():
    program = (
        "import importlib, sys\n"
        "importlib.import_module('hypatia_lab')\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module(f'hypatia_lab.{name}')\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow  # a time, which wants a quiet machine; what is imported is held by the test above
def test_importing_the_lab_takes_less_than_a_twentieth_of_a_second():
    """It imports no torch, as the test above holds, so this is all that it adds to torch's own time."""
    program = "import time; start = time.perf_counter(); import hypatia_lab; print(time.perf_counter() - start)"
    seconds = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(seconds) < 0.05, seconds
