"""Source on a page: taken by marks from the file itself, and every kernel that was written by hand is on some page."""

from __future__ import annotations

import ast
import functools
import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tabled import CASES

from hypatia_lab.pages import source

ROOT = Path(__file__).resolve().parent.parent
KERNELS = source.HOME / "kernels"
NUMBERED = re.compile(r"  (?://|#) \((\d+)\)$", re.MULTILINE)
CALL = re.compile(r'source\.show\("([^"]+)", "([^"]+)"\)')


@functools.cache
def shown() -> dict[tuple[str, str, str], tuple[str, str]]:
    """(notebook, path, region) of every call in the notebooks → the texts of the cells before and after it."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for before, cell, after in zip(cells, cells[1:], cells[2:], strict=False):
            code = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
            calls = CALL.findall(code)
            assert len(calls) == code.count("source.show("), f"{path.name}: a call whose region cannot be read"
            for call in calls:
                found[path.stem, *call] = "".join(before["source"]), "".join(after["source"])
    return found


@functools.cache
def on_pages(path: str) -> str:
    """All lines of ``path`` that some notebook shows."""
    named = sorted({region for _, file, region in shown() if file == path})
    return "\n".join("\n".join(source.region(path, name)) for name in named)


@pytest.mark.parametrize("call", shown(), ids="-".join)
def test_every_region_of_a_notebook_is_there_and_its_text_counts_what_it_explains(call: tuple[str, str, str]) -> None:
    numbers = [int(number) for number in NUMBERED.findall("\n".join(source.excerpt(*call[1:])))]
    told = [[int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)] for text in shown()[call]]
    assert sorted(numbers) in told
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert 1 <= len(numbers) <= 5


def test_what_is_shown_are_lines_of_the_file() -> None:
    for _, path, name in shown():
        own = [line.strip() for line in (source.HOME / path).read_text(encoding="utf-8").splitlines()]
        missing = [line for line in source.region(path, name) if line.strip() not in [*own, "// …", "# …"]]
        assert not missing, f"{path} [{name}]"


def test_a_page_shows_a_small_kernel_as_it_is_tested() -> None:
    cells = json.loads((ROOT / "notebooks" / "16_fused_mlp.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    blocks = re.findall(r"(?s)```python\n(.*?)```", text)[:2]
    example = (ROOT / "book" / "examples" / "fused_rows.py").read_text(encoding="utf-8")
    assert [block in example for block in blocks] == [True, True]


# ---------------------------------------------------------------- every kernel is on some page


def of_kind(suffix: str) -> dict[str, str]:
    """Path → text of the files of kernels."""
    files = sorted(KERNELS.rglob(f"*{suffix}"))
    return {path.relative_to(source.HOME).as_posix(): path.read_text(encoding="utf-8") for path in files}


def launched(text: str) -> set[str]:
    """Functions of a Triton file that it launches: ``function[grid](…)``."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = [call.value.id for call in calls if isinstance(call, ast.Subscript) and isinstance(call.value, ast.Name)]
    return {name for name in names if f"def {name}(" in text}


def test_every_kernel_that_was_written_by_hand_is_shown() -> None:
    kernel, loops, operation = (
        re.compile(text) for text in (r"__global__[^;{]*?\bvoid (\w+)\(", "#pragma omp parallel", r"\.impl\(\"(\w+)\"")
    )
    for path, text in of_kind(".cu").items():
        assert set(kernel.findall(on_pages(path))) == set(kernel.findall(text)), path
        assert on_pages(path), f"{path}: a file of a kernel's parts is shown as well"
    for path, text in of_kind(".cpp").items():
        assert len(loops.findall(on_pages(path))) == len(loops.findall(text)), path
        assert all(f"{name}(" in on_pages(path) for name in operation.findall(text)), path
    triton = {path: found for path, text in of_kind(".py").items() if (found := launched(text))}
    for path, names in triton.items():
        assert {name for name in names if f"def {name}(" in on_pages(path)} == names, path
    assert min(len(of_kind(".cu")), len(triton)) > 5, "nothing was derived"


def test_every_marked_region_is_on_some_page() -> None:
    files = sorted(path for path in source.HOME.rglob("*") if path.suffix in (".cu", ".cpp", ".py"))
    marked = {
        (name, region)
        for name in (path.relative_to(source.HOME).as_posix() for path in files)
        for region in source.regions(name)
    }
    assert marked == {(path, region) for _, path, region in shown()}


# ---------------------------------------------------------------- marks


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a source file, and gives its name."""
    monkeypatch.setattr(source, "HOME", tmp_path)

    def write(text: str, name: str = "a.cu") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write


def test_a_region_may_overlap_another_and_go_on_further_down(written: Callable[..., str]) -> None:
    text = "// [one]\na;\n// [two]\nb;\n// [/one]\nc;\n// [/two]\nd;\n    // [one]\n    e;  // (1)\n    // [/one]\n"
    assert source.regions(written(text)) == {"one": ["a;", "b;", "", "// …", "", "    e;  // (1)"], "two": ["b;", "c;"]}
    text = "# [tile]\ndef f():\n    return 1  # (1)\n    # [/tile]\n\n\n# [tile]\ndef g():\n    pass\n    # [/tile]\n"
    found = source.region(written(text, "a.py"), "tile")  # Python has marks of its own
    assert found == ["def f():", "    return 1  # (1)", "", "", "def g():", "    pass"]


def test_a_region_that_is_gone_is_named_with_those_near_to_it(written: Callable[..., str]) -> None:
    name = written("// [step_shared]\na;\n// [/step_shared]\n")
    for asked, said in (((name, "step_share"), r"a\.cu: .*'step_shared'"), (("b.cu", "step_shared"), r"b\.cu: ")):
        with pytest.raises(source.SourceError, match=said):
            source.region(*asked)


@pytest.mark.parametrize(
    ("text", "line"),
    [("a;\n// [/one]\n", 2), ("// [one]\n// [one]\n// [/one]\n", 2), ("a;\n// [one]\na;\n", 2)],
)
def test_marks_that_do_not_pair_are_refused(written: Callable[..., str], text: str, line: int) -> None:
    with pytest.raises(source.SourceError, match=rf"a\.cu:{line}: .*\[one\]"):
        source.regions(written(text))


# ---------------------------------------------------------------- the page


def test_an_excerpt_shows_what_is_explained_in_its_loops_and_functions(written: Callable[..., str]) -> None:
    whole, _, told = (CASES / "add.cu").read_text(encoding="utf-8").partition("// as it is told:\n")
    assert source.excerpt(written(whole), "kernel") == told.splitlines()
    loop = ["    for row in x:", "        yield f(  # (1)", "            row", "        )"]
    text = "\n".join(["# [rows]", "def rows(", "    x,", "):", *loop, "    # [/rows]", ""])
    assert source.excerpt(written(text, "a.py"), "rows") == ["def rows(…):", *loop]
    call = ["y = f(", "    x,", ")  # (1)"]
    text = "\n".join(["# [call]", "x = 1", *call, "# [/call]", ""])
    assert source.excerpt(written(text, "a.py"), "call") == call, "a note at the end of a statement"


def test_a_long_region_is_folded_below_what_is_explained_and_a_short_one_stands_open(
    written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: bundles.append(bundle))
    body = [f"    a{n} < b;" for n in range(source.LONG)] + ["    the_line();  // (1)"]
    name = written("\n".join(["// [short]", "float a;  // (1)", "// [/short]", "// [long]", *body, "// [/long]", ""]))
    for region in ("short", "long"):
        source.show(name, region)
    short, (above, folded) = bundles[0]["text/html"], bundles[1]["text/html"].split("<details>")
    assert above.count("the_line") == folded.count("the_line") == 1
    assert "b;" not in above
    assert "a0 < b;" in html.unescape(re.sub(r"<[^>]+>", "", folded))
    assert bundles[1]["text/plain"].splitlines()[2:] == source.region(name, "long")
    assert ("<details>" in short, 'class="highlight"' in short, "style=" in short) == (False, True, False)
    for page in (short, above, folded):
        text = html.unescape(re.sub(r"<[^>]+>", "", page))
        assert re.search(r"^1 +(float a|the_line\(\));$", text, re.MULTILINE), "a note's number begins its line"
        assert "(1)" not in text
    assert re.search(r"^  +a0 < b;$", html.unescape(re.sub(r"<[^>]+>", "", folded)), re.MULTILINE)
