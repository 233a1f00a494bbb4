"""What a reader asks in a cell: times as recorded and here, and a kernel's text that is edited."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import cuda_sources
import pytest
from synthetic import cells, write_records

import hypatia_lab as lab
from hypatia_lab import records
from hypatia_lab.check import Problem, check
from hypatia_lab.kernels import loader
from hypatia_lab.pages.live import LiveError, Told
from hypatia_lab.strangers import kernel_text
from hypatia_lab.variants import load, restored, variant, variants
from hypatia_lab.workloads import parse_shape

SIZE = "1024x784x2048"
cpu_only = pytest.mark.skipif(bool(loader.compiler_missing()), reason="needs a C++ compiler")


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with the same variants in two experiments, one of which has all of them, and a CPU with one."""
    some, all_of_them = {"eager": 11.0, "naive": 110.0}, {"eager": 10.0, "naive": 100.0, "*step_shared": 20.0}
    parts = {"naive_vs_cublas": cells(some), "gemm_ladder": cells(all_of_them)}
    write_records(tmp_path, "card", "cuda", parts)
    write_records(tmp_path, "box", "cpu", {"naive_vs_cublas": cells({"eager": 50.0}, clock="hot")})
    monkeypatch.setattr(records, "COMMITTED", tmp_path)


def column(told: Told, name: str) -> list[str]:
    return [line.get(name, "") for line in told.lines]


def test_a_line_a_variant_and_machine_of_the_experiment_that_has_them_all(recorded: None) -> None:
    told = lab.time("linear_relu", ["step_shared", "eager"], SIZE)
    assert column(told, "machine") == ["card", "card", "box"]
    assert column(told, "variant") == ["step_shared", "eager", "eager"]
    assert set(column(told, "experiment")[:2]) == {"gemm_ladder"}
    assert column(told, "clock") == ["graph clock", "graph clock", "hot clock"]
    assert told.lines[0]["ratio"].startswith("0.50")
    assert told.lines[0]["time"].startswith("20.1 µs [")
    assert set(column(told, "n")) == {"2"}


def test_what_one_experiment_has_alone_is_told_of_that_one_and_a_tie_by_the_chapters_order(recorded: None) -> None:
    told = lab.time("linear_relu", ["eager", "naive"], SIZE, machine="card")
    assert set(column(told, "experiment")) == {"naive_vs_cublas"}
    told = lab.time("linear_relu", ("naive", "naive", "step_shared"), SIZE.replace("x", "×"))
    assert column(told, "variant") == ["naive", "step_shared"]


def test_it_reads_in_a_terminal_and_in_a_notebook(recorded: None) -> None:
    told = lab.time("linear_relu", "naive", SIZE)
    text, form = repr(told), told._repr_html_()
    assert max(map(len, text.splitlines())) <= 80
    for word in ("card", "graph clock", "naive_vs_cublas", told.lines[0]["time"], "above 1 is faster"):
        assert word in text
        assert word in form.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("linear_rel", "eager", SIZE), "did you mean 'linear_relu'"),
        (("linear_relu", "naiv", SIZE), "did you mean 'naive'"),
        (("linear_relu", [], SIZE), "Name one"),
        (("linear_relu", "eager", "1024x784"), "batch"),
        (("linear_relu", "eager", (1024, 784, 2048)), "whole numbers joined by x"),
        (("linear_relu", "eager", ""), "whole numbers joined by x"),
    ],
)
def test_a_slip_is_an_error_that_says_what_there_is(recorded: None, asked: tuple[str, str, str], said: str) -> None:
    for here in (False, True):
        with pytest.raises(LiveError, match=said):
            lab.time(*asked, here=here)


def test_an_unknown_machine_or_dtype_is_an_error(recorded: None) -> None:
    with pytest.raises(LiveError, match="did you mean 'card'"):
        lab.time("linear_relu", "eager", SIZE, machine="cards")
    with pytest.raises(LiveError, match="float33"):
        lab.time("linear_relu", "eager", SIZE, dtype="float33")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("linear_relu", "eager", "2x3x4"), "'2x3x4' of linear_relu; known: 1024x784x2048"),
        (("linear_relu", "threaded", SIZE), "'threaded' of linear_relu; known: eager, naive, step_shared"),
        (("conv_block", "eager", "1x2x3x4"), "known: linear_relu"),
    ],
)
def test_what_is_not_recorded_is_answered_by_what_is(recorded: None, asked: tuple[str, str, str], said: str) -> None:
    told = lab.time(*asked)
    assert told.lines == ()
    assert said in told.note
    assert "here=True" in told.note
    assert said in " ".join(repr(told).split())
    assert "here=True" in told._repr_html_()


def test_without_any_record_the_answer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "COMMITTED", tmp_path)
    assert lab.time("linear_relu", "eager", SIZE).lines == ()


@pytest.fixture
def on_a_cpu(recorded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are taken here without a GPU, and quickly, beside those recorded."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("hypatia_lab.bench.here.BUDGET_S", 0.01)


def test_here_it_is_checked_and_timed_beside_the_baseline(on_a_cpu: None) -> None:
    told = lab.time("linear_relu", ["cublas_relu"], "2x3x4", here=True)
    (line,) = told.lines
    assert (line["machine"], line["clock"], line["n"]) == ("here", "hot clock", "1")
    assert line["remark"].startswith("right, off by")
    assert "× [" in line["ratio"]
    assert "one process" in told.note
    assert "Not recorded" in told.note


def test_a_variant_of_ones_own_stands_beside_what_is_recorded(on_a_cpu: None) -> None:
    load()
    with restored():
        variant("linear_relu", "mine", origin="own")(
            lambda work, i: lambda: (i["x"] @ i["weight"].T + i["bias"]).relu()
        )
        told = lab.time("linear_relu", ["eager", "mine"], SIZE, here=True)
    assert column(told, "machine") == ["card", "box", "here", "here"]
    assert told.lines[-2]["ratio"] == "1.00× [1.00, 1.00]"
    assert told.lines[-1]["remark"].startswith("right")


def test_what_needs_a_gpu_is_left_out_without_one_and_refused_where_nothing_is_left(on_a_cpu: None) -> None:
    told = lab.time("linear_relu", ["step_shared", "eager"], SIZE, here=True)
    assert column(told, "variant")[-2:] == ["eager", "step_shared"]
    assert told.lines[-2]["time"] != told.lines[-1]["time"] == "–"
    assert told.lines[-1]["remark"] == "left out: needs a CUDA GPU"
    assert "left out: needs a CUDA GPU" in repr(told)
    with pytest.raises(LiveError, match="step_shared cannot run on this machine: needs a CUDA GPU; name another"):
        lab.time("linear_relu", ["step_shared"], SIZE, here=True)


# A kernel's text


TEXT = """
#include <cstdint>
extern "C" void linear_relu(const float* x, const float* w, const float* bias, float* y,
                            int64_t rows, int64_t depth, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) {
            float sum = bias[j];
            for (int64_t k = 0; k < depth; ++k) sum += x[i * depth + k] * w[j * depth + k];
            y[i * columns + j] = sum < 0 ? 0 : sum;
        }
}
"""


def tried(text: str, **how: bool) -> Told:
    return lab.kernel("linear_relu", "3x5x7", cpp=text, **how)


@cpu_only
def test_a_text_is_compiled_and_held_against_float64() -> None:
    known = set(variants("linear_relu"))
    assert column(tried(TEXT), "against float64") == ["right"]
    (said,) = column(tried(TEXT.replace("sum < 0 ? 0 : sum", "sum")), "against float64")
    assert said.startswith("wrong: ReLU missing")
    assert column(tried(TEXT), "against float64") == ["right"], "the text counts, not the text before"
    assert set(variants("linear_relu")) == known


@cpu_only
def test_a_text_is_timed_when_asked() -> None:
    told = tried(TEXT, here=True)
    assert column(told, "variant") == ["yours", "eager"]
    assert all("µs" in text or "ms" in text for text in column(told, "time"))


@cpu_only
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("rows, int64_t", "row, int64_t"), "does not build"),
        (TEXT.replace('extern "C"', ""), "no function of C's called linear_relu"),
        ("", "no function of C's called linear_relu"),
    ],
)
def test_a_text_that_is_no_kernel_is_an_error(text: str, said: str) -> None:
    with pytest.raises(LiveError, match=said):
        tried(text)


def test_a_machine_without_a_compiler_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "compiler", lambda: "")
    (said,) = column(tried(TEXT), "against float64")
    assert said.startswith("not run: no C++ compiler found (install g++")


@pytest.mark.parametrize(("operation", "size"), [("linear", "3x5"), ("nosuch", "3x5x7"), ("linear_relu", "0x1x1")])
def test_what_is_no_workload_is_an_error(operation: str, size: str) -> None:
    with pytest.raises(LiveError):
        lab.kernel(operation, size, cpp=TEXT)


# The texts that pages hold


PAGES = ["02_naive_vs_cublas", "04_gemm_ladder"]


def texts(page: str) -> dict[str, str]:
    """Texts of the kernels of a page, by the name that its cell gives them."""
    whole = json.loads((Path(__file__).resolve().parent.parent / "notebooks" / f"{page}.ipynb").read_text("utf-8"))
    (cell,) = ("".join(one["source"]) for one in whole["cells"] if "lab.kernel(" in "".join(one["source"]))
    given = [one for one in ast.parse(cell).body if isinstance(one, ast.Assign)]
    return {ast.unparse(one.targets[0]): ast.literal_eval(one.value) for one in given}


@cpu_only
@pytest.mark.parametrize("page", PAGES)
def test_the_text_for_a_gpu_is_right_in_the_emulator(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = texts(page)["CUDA"].replace("linear_relu(", "edited(")
    library = cuda_sources.built(own, ["edited"])

    def launcher(name: str, kernel: str) -> Callable[..., None]:
        return lambda grid, block, *given: cuda_sources.launch(library, "edited", grid, block, given)

    monkeypatch.setattr(loader, "cuda_launcher", launcher)
    made = kernel_text.factory("linear_relu", "cuda", "", own, 16)
    for size in ("33x77x129", "16x32x48", "1x1x1"):
        problem = Problem(lab.Workload("linear_relu", parse_shape(size)), "cpu")
        assert check(made(problem.workload, problem.inputs), problem).reason == "", size


@pytest.mark.parametrize("page", PAGES)
def test_the_text_for_a_gpu_compiles(page: str, tmp_path: Path) -> None:
    if (nvcc := shutil.which("nvcc")) is None:
        pytest.skip("no nvcc on this machine")
    (tmp_path / "text.cu").write_text(texts(page)["CUDA"])
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-cubin", "-o", str(tmp_path / "out"), str(tmp_path / "text.cu")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
