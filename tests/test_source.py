"""Source on a page: taken by marks from the file itself, and every kernel that was written by hand is on some page."""

from __future__ import annotations

import ast
import functools
import html
import json
import re
from pathlib import Path

import pytest

from hypatia_lab.pages import source

ROOT = Path(__file__).resolve().parent.parent
KERNELS = source.HOME / "kernels"
NUMBERED = re.compile(r"  (?://|#) \((\d+)\)$", re.MULTILINE)
CALL = re.compile(r'source\.show\("([^"]+)", "([^"]+)"\)')


@functools.cache
def shown() -> dict[tuple[str, str, str], str]:
    """(notebook, path, region) of every call in the notebooks → the text of the cell before it."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for before, cell in zip(cells, cells[1:], strict=False):
            code = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
            calls = CALL.findall(code)
            assert len(calls) == code.count("source.show("), f"{path.name}: a call whose region cannot be read"
            for call in calls:
                found[path.stem, *call] = "".join(before["source"])
    return found


@functools.cache
def on_pages(path: str) -> str:
    """All lines of ``path`` that some notebook shows."""
    named = sorted({region for _, file, region in shown() if file == path})
    return "\n".join("\n".join(source.region(path, name)) for name in named)


@pytest.mark.parametrize("call", shown(), ids="-".join)
def test_every_region_of_a_notebook_is_there_and_its_text_counts_what_it_explains(call: tuple[str, str, str]) -> None:
    numbers = [int(number) for number in NUMBERED.findall("\n".join(source.excerpt(*call[1:])))]
    items = [int(number) for number in re.findall(r"^(\d+)\. ", shown()[call], re.MULTILINE)]
    assert sorted(numbers) == items == list(range(1, len(items) + 1))
    assert 1 <= len(items) <= 5


def test_what_is_shown_are_lines_of_the_file() -> None:
    for _, path, name in shown():
        own = [line.strip() for line in (source.HOME / path).read_text(encoding="utf-8").splitlines()]
        missing = [line for line in source.region(path, name) if line.strip() not in [*own, "// …", "# …"]]
        assert not missing, f"{path} [{name}]"


# ---------------------------------------------------------------- every kernel is on some page


def of_kind(*suffixes: str) -> list[str]:
    files = sorted(path for path in KERNELS.rglob("*") if path.suffix in suffixes)
    return [path.relative_to(source.HOME).as_posix() for path in files]


def launched(path: str) -> set[str]:
    """Functions of a Triton file that it launches: ``function[grid](…)``."""
    calls = [node.func for node in ast.walk(ast.parse(read(path))) if isinstance(node, ast.Call)]
    names = [call.value.id for call in calls if isinstance(call, ast.Subscript) and isinstance(call.value, ast.Name)]
    return {name for name in names if f"def {name}(" in read(path)}


def read(path: str) -> str:
    return (source.HOME / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", of_kind(".cu"))
def test_every_cuda_kernel_is_shown(path: str) -> None:
    kernel = re.compile(r"__global__[^;{]*?\bvoid (\w+)\(")
    assert set(kernel.findall(on_pages(path))) == set(kernel.findall(read(path)))
    assert on_pages(path), "a file of a kernel's parts is shown as well"


@pytest.mark.parametrize("path", [path for path in of_kind(".py") if launched(path)])
def test_every_triton_kernel_is_shown(path: str) -> None:
    assert {name for name in launched(path) if f"def {name}(" in on_pages(path)} == launched(path)


@pytest.mark.parametrize("path", of_kind(".cpp"))
def test_every_loop_of_a_c_kernel_and_every_operation_of_a_library_is_shown(path: str) -> None:
    loops, operation = "#pragma omp parallel", re.compile(r"\.impl\(\"(\w+)\"")
    assert on_pages(path).count(loops) == read(path).count(loops)
    assert all(f"{name}(" in on_pages(path) for name in operation.findall(read(path)))


def test_the_kernels_are_found_where_they_lie() -> None:
    """The tests above derive what must be shown: they would pass where they derived nothing."""
    assert len(of_kind(".cu")) > 5
    assert sum(bool(launched(path)) for path in of_kind(".py")) > 5


def test_every_marked_region_is_on_some_page() -> None:
    files = sorted(path for path in source.HOME.rglob("*") if path.suffix in (".cu", ".cpp", ".py"))
    marked = {
        (name, region)
        for name in (path.relative_to(source.HOME).as_posix() for path in files)
        for region in source.regions(name)
    }
    assert marked == {(path, region) for _, path, region in shown()}


# ---------------------------------------------------------------- marks


def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "a.cu") -> str:
    (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(source, "HOME", tmp_path)
    return name


def test_a_region_may_overlap_another_and_go_on_further_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "// [one]\na;\n// [two]\nb;\n// [/one]\nc;\n// [/two]\nd;\n    // [one]\n    e;  // (1)\n    // [/one]\n"
    found = source.regions(written(tmp_path, monkeypatch, text))
    assert found == {"one": ["a;", "b;", "", "// …", "", "    e;  // (1)"], "two": ["b;", "c;"]}


def test_python_has_marks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# [tile]\ndef f():\n    return 1  # (1)\n    # [/tile]\n\n\n# [tile]\ndef g():\n    pass\n    # [/tile]\n"
    found = source.region(written(tmp_path, monkeypatch, text, "a.py"), "tile")
    assert found == ["def f():", "    return 1  # (1)", "", "", "def g():", "    pass"]


def test_a_region_that_is_gone_is_named_with_those_near_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(tmp_path, monkeypatch, "// [step_shared]\na;\n// [/step_shared]\n")
    with pytest.raises(source.SourceError, match=r"a\.cu: unknown region 'step_share'; did you mean 'step_shared'"):
        source.region(name, "step_share")
    with pytest.raises(source.SourceError, match=r"b\.cu: cannot be read"):
        source.region("b.cu", "step_shared")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a;\n// [/one]\n", r"a\.cu:2: \[/one\] where \[one\] is not open"),
        ("// [one]\n// [one]\n// [/one]\n", r"a\.cu:2: \[one\] where \[one\] is open"),
        ("a;\n// [one]\na;\n", r"a\.cu:2: \[one\] is never closed"),
    ],
)
def test_marks_that_do_not_pair_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    with pytest.raises(source.SourceError, match=said):
        source.regions(written(tmp_path, monkeypatch, text))


# ---------------------------------------------------------------- the page

KERNEL = """\
// [kernel]
__global__ void add(const float* x,
                    float* y, int n) {
    const int first = blockIdx.x;
    if (first >= n) {
        return;
    }
#pragma unroll
    for (int i = first; i < n; ++i) {
        const float two =  // (1)
            2 * x[i];
        if (two > 0) {
            y[i] = two;  // (2)
        } else {
            y[i] = 0;
        }
    }
}
// [/kernel]
"""


def test_an_excerpt_shows_what_is_explained_in_its_loops_and_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source.excerpt(written(tmp_path, monkeypatch, KERNEL), "kernel") == [
        "__global__ void add(…) {",
        "    // …",
        "    for (int i = first; i < n; ++i) {",
        "        const float two =  // (1)",
        "            2 * x[i];",
        "            // …",
        "            y[i] = two;  // (2)",
    ]
    text = "# [rows]\ndef rows(\n    x,\n):\n    for row in x:\n        yield f(  # (1)\n            row\n        )\n"
    text += "    # [/rows]\n"
    assert source.excerpt(written(tmp_path, monkeypatch, text, "a.py"), "rows") == [
        "def rows(…):",
        "    for row in x:",
        "        yield f(  # (1)",
        "            row",
        "        )",
    ]


def test_a_long_region_is_folded_below_what_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = [f"    a{n} < b;" for n in range(source.LONG)] + ["    the_line();  // (1)"]
    name = written(tmp_path, monkeypatch, "\n".join(["// [long]", *body, "// [/long]", ""]))
    page, text = displayed(name, "long", monkeypatch)
    above, folded = page.split("<details>")
    assert above.count("the_line") == folded.count("the_line") == 1
    assert "b;" not in above
    assert "a0 < b;" in html.unescape(re.sub(r"<[^>]+>", "", folded))
    assert text.splitlines()[2:] == source.region(name, "long")


def test_a_short_region_stands_open_in_the_themes_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(tmp_path, monkeypatch, "// [short]\nfloat a;  // (1)\n// [/short]\n")
    page, _ = displayed(name, "short", monkeypatch)
    assert "<details>" not in page
    assert 'class="highlight"' in page
    assert "style=" not in page


def displayed(name: str, region: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """HTML and text that a call displays."""
    bundles: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: bundles.append(bundle))
    source.show(name, region)
    (bundle,) = bundles
    return bundle["text/html"], bundle["text/plain"]
