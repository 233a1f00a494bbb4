"""How much code a folder may hold: growth is a decision, which raises a number in ``budget.yaml``."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hypatia_lab"
BUDGET = yaml.safe_load(Path(__file__).with_name("budget.yaml").read_text(encoding="utf-8"))
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(path: Path) -> int:
    """Lines of a file with code on them: not blank, not a comment, not in a docstring."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        comment = "#" if path.suffix == ".yaml" else "//"
        return sum(bool(line.strip()) and not line.lstrip().startswith(comment) for line in text.splitlines())
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def held() -> Counter[str]:
    """Folder of the package → lines of code; beside them those of tests, of C++ with CUDA, and of YAML."""
    found: Counter[str] = Counter()
    for path in (*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")):
        own = path.relative_to(ROOT).parts
        found["tests" if own[0] == "tests" else own[1] if len(own) > 2 else "top"] += code_lines(path)
    for kind, suffixes in (("C++ and CUDA", (".cpp", ".hpp", ".cu", ".cuh")), ("YAML", (".yaml",))):
        found[kind] = sum(code_lines(path) for path in PACKAGE.rglob("*") if path.suffix in suffixes)
    return found


FOUND = held()


def test_every_folder_has_a_budget() -> None:
    assert set(FOUND) == set(BUDGET["lines"])


@pytest.mark.parametrize("folder", BUDGET["lines"])
def test_a_folder_stays_in_its_budget(folder: str) -> None:
    assert FOUND[folder] <= BUDGET["lines"][folder]


def test_no_file_is_longer_than_one_reads() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {path.name: length for path, length in lengths.items() if length > BUDGET["file"]} == {}


def test_few_modules_stand_at_the_top() -> None:
    assert len([*PACKAGE.glob("*.py")]) <= BUDGET["top modules"]


def test_code_is_counted_without_words(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(
        '"""Words."""\n\n# a comment\nx = """two\nlines"""\ndef f():\n    """Words."""\n    return x  # more\n'
    )
    assert code_lines(path) == 4
