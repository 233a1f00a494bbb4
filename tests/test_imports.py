"""Who may import whom, as a table: downwards only, and the leaves import nothing of the lab's."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hypatia_lab

HOME = Path(hypatia_lab.__file__).resolve().parent

TABLE = yaml.safe_load(Path(__file__).with_name("imports.yaml").read_text(encoding="utf-8"))
ALLOWED: dict[str, set[str]] = {module: set(text.split()) for module, text in TABLE.items()}


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


def test_a_module_imports_what_the_table_says():
    found = {
        module: set().union(*(imported(path.read_text(encoding="utf-8"), module) for path in paths))
        for module, paths in parts().items()
    }
    assert found == ALLOWED


def test_imports_go_upwards_in_the_table_only():
    above: set[str] = set()
    for module, allowed in ALLOWED.items():
        assert allowed <= above, f"{module} imports what stands below it: {sorted(allowed - above)}"
        above.add(module)


def test_the_public_names_are_there_and_are_found_late():
    for name in hypatia_lab.__all__:
        assert getattr(hypatia_lab, name) is not None
    with pytest.raises(AttributeError, match="nope"):
        hypatia_lab.nope  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def printed(program: str) -> str:
    """What ``program`` prints in a Python of its own."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


HEAVY_PARTS = (
    "__main__ bench diffraction dispatch egraph experiments nn operations operators planted programs reader_kernel "
    "runs tracing training"
)
LIGHT = sorted(set(ALLOWED) - set(HEAVY_PARTS.split()))
HEAVY = ("torch", "pandas", "plotly", "scipy", "papermill", "numpy", "egglog", "sphinx")


def test_the_first_call_of_an_own_operator_does_not_import_the_compiler():
    program = (
        "import sys, torch\n"
        "from hypatia_lab.operations.linear_relu import linear_relu_epilogue\n"
        "x, weight, bias = torch.randn(2, 3), torch.randn(4, 3, requires_grad=True), torch.randn(4)\n"
        "linear_relu_epilogue(x, weight, bias).sum().backward()\n"
        "print(weight.grad is None, 'torch._dynamo' in sys.modules)"
    )
    assert printed(program) == "False False"


def test_nothing_heavy_is_imported_before_it_is_needed():
    program = (
        "import importlib, sys\n"
        "importlib.import_module('hypatia_lab')\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module(f'hypatia_lab.{name}')\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    assert printed(program) == "[]"


@pytest.mark.slow  # a time, which wants a quiet machine; what is imported is held by the test above
def test_importing_the_lab_takes_less_than_a_twentieth_of_a_second():
    """It imports no torch, as the test above holds, so this is all that it adds to torch's own time."""
    program = "import time; start = time.perf_counter(); import hypatia_lab; print(time.perf_counter() - start)"
    seconds = [float(printed(program)) for _ in range(5)]
    assert min(seconds) < 0.05, seconds
