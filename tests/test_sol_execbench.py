"""Problems in the format of SOL-ExecBench: what is read, what is refused and in which words, and what is judged."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import command
import pytest
import torch
from sol_problems import ANSWER, DEFINITION, INPUTS, REFERENCE, RETURNS, WRITES, problem, solution, source, workload
from test_kernelbench import checked, problem_of

from hypatia_lab import variants
from hypatia_lab.bench import composer
from hypatia_lab.strangers import definitions, reader_kernel, sol_execbench, solutions
from hypatia_lab.strangers.reader_kernel import Own, OwnError

pytestmark = pytest.mark.usefixtures("registry")


@pytest.fixture(autouse=True)
def unpacked_here(tmp_path, monkeypatch):
    """What is unpacked goes when the test ends."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)


def theirs(own: Own, name: str = sol_execbench.CANDIDATE) -> dict[str, float]:
    given = problem_of(own)
    out = variants.find(own.name, name).factory(given.workload, given.inputs)()
    return given.workload.spec.beside(given.inputs, out if isinstance(out, tuple) else (out,))


def loaded(folder: Path, text: str = RETURNS, process: int = 0, spec: Any = None, **changes: Any) -> Own:
    file = solution(folder, text, **(spec or {}))
    return sol_execbench.load(file, problem(folder, **changes), process=process, candidate=True)


# ---------------------------------------------------------------- right and wrong


@pytest.mark.parametrize("text", [RETURNS, WRITES])
@pytest.mark.parametrize("name", ["eager", "solution"])
def test_what_returns_or_writes_its_output_is_right_at_every_workload(tmp_path, text, name):
    own = loaded(tmp_path, text)
    assert (own.name, own.shapes, own.dtypes) == ("sol_execbench_rms_norm_h96", ((5,), (16,)), ("float32",))
    assert [checked(own, name, number).reason for number in (0, 1)] == ["", ""]


def test_the_reference_is_in_float64_whatever_it_casts_to(tmp_path):
    own = loaded(tmp_path)
    given = problem_of(own)
    x, weight = (given.inputs[name].double() for name in ("x", "weight"))
    exact = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
    torch.testing.assert_close(given.reference(), exact, rtol=1e-13, atol=1e-13)
    assert own.summary == "Each row over its root mean square"


def test_only_what_rounds_to_the_outputs_dtype_is_counted(tmp_path):
    kinds = {name: one | {"dtype": "bfloat16"} for name, one in DEFINITION["inputs"].items()}
    own = loaded(tmp_path, inputs=kinds, outputs={"y": DEFINITION["outputs"]["y"] | {"dtype": "bfloat16"}})
    assert problem_of(own).workload.spec.roundings((5,)) == reader_kernel.ROUNDINGS, "the last cast"
    assert checked(own, "eager").ok


def test_a_reference_that_cannot_be_in_float64_says_so(tmp_path):
    text = REFERENCE.replace("scale *", "scale.to(torch.float8_e5m2).to(torch.float32) *")
    own = loaded(tmp_path, text, reference=text)
    assert "twice the error is allowed, for run goes below float64 (_to_copy)" in own.summary
    assert checked(own).ok


HALF = source("x, weight = x.bfloat16(), weight.bfloat16()", f"return {ANSWER}.float()")
WRONG = {
    "low precision": HALF,
    "unwritten": source(f"y[:-1] = {ANSWER}[:-1]", taken="x, weight, eps, y"),
    "wrong values": source("return torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps)"),
    "input changed": source("x.mul_(2)", f"return {ANSWER}"),
    "wrong shape": source(f"return {ANSWER}[None]"),
    "wrong type": source(f"return {{'y': {ANSWER}.tolist()}}"),
    "stale output": source("known[:] = known or [" + ANSWER + "]", "return known[0]") + "\nknown = []\n",
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_solution_is_named(tmp_path, fault):
    assert checked(loaded(tmp_path, WRONG[fault])).reason.startswith(fault)


def test_a_norms_weight_that_is_left_out_is_seen(tmp_path):
    """The format fills it with ones."""
    kinds = {name.replace("weight", "norm_weight"): one for name, one in DEFINITION["inputs"].items()}
    given = {name.replace("weight", "norm_weight"): one for name, one in INPUTS.items()}
    changes = {"inputs": kinds, "reference": REFERENCE.replace("weight", "norm_weight")}
    own = loaded(tmp_path, WRONG["wrong values"], workloads=[workload(5, inputs=given)], **changes)
    assert checked(own).reason.startswith("wrong values")


@pytest.mark.parametrize(("rows", "values"), [(96, {0.0, torch.finfo(torch.float32).min}), (5, {0.0, 1.0})])
def test_random_inputs_are_drawn_as_their_names_tell(tmp_path, rows, values):
    both = dict.fromkeys(("x", "attention_mask"), DEFINITION["inputs"]["x"])
    text = source("return x + attention_mask", taken=", ".join(both))
    own = loaded(tmp_path, text, reference=text, inputs=both, workloads=[workload(rows, inputs={})])
    mask = problem_of(own).inputs["attention_mask"]
    assert set(mask.unique().tolist()) == values


def test_several_outputs_of_several_dtypes_are_judged_each(tmp_path):
    reference = REFERENCE.replace("to(x.dtype)", "to(torch.bfloat16), scale[:, 0]")
    y = DEFINITION["outputs"]["y"] | {"dtype": "bfloat16"}
    changes = {"reference": reference, "outputs": {"y": y, "scale": {"shape": ["rows"], "dtype": "float32"}}}
    named = reference.replace("return (", "return dict(y=(").replace(", scale[:, 0]", ", scale=scale[:, 0])")
    with variants.restored():
        own = loaded(tmp_path, named, **changes)
        assert own.dtypes == ("bfloat16",)
        assert checked(own).ok
    off = named.replace("scale=scale[:, 0]", "scale=scale[:, 0].bfloat16().float()")
    assert checked(loaded(tmp_path, off, **changes)).reason.startswith("scale: wrong values")


def test_inputs_are_drawn_anew_in_each_process_and_alike_in_one(tmp_path):
    seen = []
    for process in (0, 0, 1):
        with variants.restored():
            seen.append(problem_of(loaded(tmp_path, process=process)).inputs["x"].clone())
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_workloads_that_their_axes_do_not_tell_apart_have_a_number(tmp_path):
    other = INPUTS | {"eps": {"type": "scalar", "value": 0.5}}
    own = loaded(tmp_path, workloads=[workload(5), workload(5, inputs=other)])
    assert own.shapes == ((5, 1), (5, 2))
    first, second = (problem_of(own, number) for number in (0, 1))
    assert not torch.allclose(first.reference(), second.reference(), rtol=1e-2)
    assert [checked(own, number=number).reason for number in (0, 1)] == ["", ""]


def test_inputs_of_ones_own_and_from_a_file(tmp_path):
    draws = "\ndef draw(axes, device):\n    return {'x': torch.rand(axes['rows'], axes['half'] * 2, device=device)}\n"
    values = torch.arange(96, dtype=torch.float32)
    head = json.dumps({"w": {"dtype": "F32", "shape": [96], "data_offsets": [0, 384]}}).encode()
    tmp_path.joinpath("blob").mkdir()
    (tmp_path / "blob" / "w.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + values.numpy().tobytes())
    weight = {"type": "safetensors", "path": "blob/w.safetensors", "tensor_key": "w"}
    lines = [workload(5, inputs=INPUTS | {"x": {"type": "custom"}, "weight": weight})]
    own = loaded(tmp_path, workloads=lines, reference=REFERENCE + draws, custom_inputs_entrypoint="draw")
    inputs = problem_of(own).inputs
    assert torch.equal(inputs["weight"], values)
    assert 0 <= float(inputs["x"].min()) <= float(inputs["x"].max()) <= 1
    assert checked(own).ok


# ---------------------------------------------------------------- what the two formats call things


def test_flashinfer_traces_words_are_read_too(tmp_path):
    lines = [{"definition": "rms_norm_h96", "solution": None, "workload": workload(5), "evaluation": None}]
    folder = problem(tmp_path, workloads=lines, tags=["a"], constraints=["rows > 0"], op_type="rmsnorm")
    file = solution(tmp_path, language="python")
    told = json.loads(file.read_text())
    del told["spec"]["languages"]
    file.write_text(json.dumps(told))
    assert checked(sol_execbench.load(file, folder)).ok


@pytest.mark.parametrize(
    ("spec", "device", "told"),
    [
        ({"languages": ["pytorch"]}, "cpu", ""),
        ({"languages": ["triton"]}, "cpu", "is in triton, and needs a CUDA GPU"),
        ({"languages": ["cute_dsl"]}, "cuda", "cutlass is not installed"),
        ({"languages": ["cutile"]}, "cuda", "cuda.tile is not installed"),
        ({"language": "cuda", "entry_point": "kernel.cu::run"}, "cuda", "is bound by tvm-ffi"),
        ({"languages": ["cutlass"], "entry_point": "kernel.cu::run"}, "cuda", "needs CUTLASS"),
        ({"languages": ["cuda_cpp"], "entry_point": "kernel.cu::run"}, "cpu", "needs a CUDA GPU"),
    ],
)
def test_what_cannot_run_here_is_skipped_with_the_reason(tmp_path, monkeypatch, spec, device, told):
    monkeypatch.setenv("CUTLASS_DIR", str(tmp_path / "none"))
    found = solutions.read(solution(tmp_path, **spec)).missing(device)
    assert told in found
    assert bool(told) == bool(found)


def test_what_needs_nvcc_is_refused_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    file = solution(tmp_path, languages=["cuda_cpp"], entry_point="kernel.cu::run")
    with pytest.raises(OwnError, match=rf"^{file}: needs nvcc"):
        sol_execbench.tried(file, problem(tmp_path))


CPP = """#include <torch/extension.h>
void run(torch::Tensor x, torch::Tensor weight, double eps, torch::Tensor y) {
  y.copy_(torch::rms_norm(x, {x.size(-1)}, weight, eps));
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


@pytest.mark.slow
def test_cpp_is_compiled_as_the_format_says(tmp_path):
    spec = {"languages": ["cuda_cpp"], "entry_point": "kernel.cpp::run", "destination_passing_style": True}
    own = loaded(tmp_path, CPP, spec=spec | {"compile_options": {"cflags": ["-O1"], "ld_flags": []}})
    assert checked(own).ok


# ---------------------------------------------------------------- what is refused


def one_line(start: str, named: str) -> str:
    """A pattern of one line that begins so and names the cause."""
    return rf"\A{re.escape(start)}.*{re.escape(named)}.*\Z"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"axes": 5}, "axes must be of type dict, not int"),
        ({"axes": DEFINITION["axes"] | {"half": {"type": "expr", "expression": "rows.bit_length()"}}}, "axes.half"),
        ({"axes": DEFINITION["axes"] | {"half": {"type": "expr", "expression": "features / 7"}}}, "no whole number"),
        ({"axes": {"rows": {"type": "var"}}}, "inputs.x has an axis 'features'"),
        ({"inputs": {"x": {"shape": ["rows"], "dtype": "float4_e2m1fn_x2"}}}, "float4_e2m1fn_x2"),
        ({"outputs": {"y": {"shape": ["rows"], "dtype": "int32"}}}, "outputs are y (int32)"),
        ({"outputs": {}}, "outputs are nothing"),
        ({"outputs": {"y": {"shape": ["rows", "features"], "dtype": "float16"}}}, "run returns float32"),
        ({"reference": "x = 1 +"}, "reference.py:1: SyntaxError"),
        ({"reference": "1 / 0"}, "reference.py:1: ZeroDivisionError"),
        ({"reference": "x = 1"}, "no function run(x, weight, eps)"),
        ({"reference": "def run(x, w, eps): return x"}, "run takes x, w, eps; inputs are x, weight, eps"),
        ({"reference": "def run(x, weight, eps): return x @ x"}, "run fails on its inputs: RuntimeError"),
        ({"reference": REFERENCE.replace("wide *", "torch.dropout(wide, 0.5, True) *")}, "draws random numbers"),
    ],
)
def test_a_definition_that_cannot_be_judged_is_named_in_one_line(tmp_path, changes, named):
    folder = problem(tmp_path, **changes)
    with pytest.raises(OwnError, match=one_line(f"{folder}/definition.json: ", named)):
        sol_execbench.load(solution(tmp_path), folder)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (workload(5, axes={}), "lacks axes.rows"),
        (workload(5, axes={"rows": "5"}), "axes.rows must be of type int, not str"),
        (workload(5, tolerance={"max_atol": "1"}), "tolerance.max_atol must be of type int or float"),
        ([], "must be an object, not a list"),
    ],
)
def test_a_workload_that_cannot_be_read_is_named_by_its_line(tmp_path, line, named):
    folder = problem(tmp_path, workloads=[workload(3), line])
    with pytest.raises(OwnError, match=one_line(f"{folder}/workload.jsonl:2: ", named)):
        definitions.read(folder)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"x": {"type": "safetensors", "path": "b.safetensors", "tensor_key": "x"}}, "b.safetensors is not there"),
        ({"x": {"type": "custom"}}, "no custom_inputs_entrypoint"),
        ({"x": {"type": "zeros"}}, "of type 'zeros'"),
        ({"eps": {"type": "random"}}, "numbers stay the same"),
        ({"eps": {"type": "scalar"}}, "without a number"),
    ],
)
def test_a_workload_that_cannot_be_judged_is_left_out_with_the_reason(tmp_path, inputs, why):
    lines = [workload(7, inputs=INPUTS | inputs), workload(0)]
    folder = problem(tmp_path, workloads=[*lines, workload(3)])
    told, of_no_rows = sol_execbench.left_out(folder)
    assert told.startswith(f"{folder}/workload.jsonl:1: w7: ")
    assert why in told
    assert "axis rows is 0" in of_no_rows
    assert sol_execbench.load(solution(tmp_path), folder).shapes == ((3,),)
    with pytest.raises(OwnError, match="none can be judged"):
        definitions.read(problem(tmp_path, workloads=lines))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"languages": ["fortran"]}, "spec.languages is ['fortran']"),
        ({"languages": ["pytorch", "cuda_cpp"]}, "spec.languages"),
        ({"entry_point": "kernel.py"}, "spec.entry_point is 'kernel.py'"),
        ({"entry_point": 5}, "spec.entry_point must be of type str"),
        ({"entry_point": "../kernel.py::run"}, "outside of its folder"),
        ({"entry_point": "kernel.py::walk"}, "kernel.py has no function walk"),
        ({"text": "1 / 0"}, "kernel.py:1: ZeroDivisionError"),
    ],
)
def test_a_solution_that_cannot_be_judged_is_named_in_one_line(tmp_path, spec, named):
    file = solution(tmp_path, **spec)
    with pytest.raises(OwnError, match=one_line(f"{file}: ", named)):
        sol_execbench.tried(file, problem(tmp_path))


def test_files_that_were_changed_meanwhile_are_not_measured(tmp_path):
    file, folder = solution(tmp_path), problem(tmp_path)
    before = sol_execbench.digest(file, folder)
    problem(tmp_path, workloads=[workload(9)])
    with pytest.raises(OwnError, match="was changed while it was being measured"):
        sol_execbench.load(file, folder, before)


# ---------------------------------------------------------------- their tolerance


def test_their_tolerance_is_told_and_decides_nothing(tmp_path):
    own = loaded(tmp_path, HALF)
    assert not checked(own).ok
    found = theirs(own)
    assert (found["failed"], found["atol"], found["allowed_unmatched"]) == (0, 1e-2, pytest.approx(0.01))
    assert 0 < found["max_error"] < 0.1


def test_a_workloads_own_tolerance_counts(tmp_path):
    tight = {"max_atol": 1e-6, "max_rtol": 1e-6, "required_matched_ratio": 1.0}
    found = theirs(loaded(tmp_path, HALF, workloads=[workload(5, tolerance=tight)]))
    assert found["failed"] == 1
    assert found["unmatched"] > 0.5


LOOSE = {"max_atol": 0.0, "max_rtol": 0.1, "required_matched_ratio": 0.75}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("out", "more", "failed"),
    [
        ([1.0, 2.0, 3.0, 4.0], {}, 0),
        ([1.05, 2.0, 3.0, 9.0], {}, 0),
        ([1.2, 2.0, 3.0, 9.0], {}, 1),
        ([1.0, 2.0, 3.0, 9.0], {"max_error_cap": 4.9}, 1),
        ([1.0, 2.0, 3.0, 9.0], {"max_error_cap": 5.1}, 0),
        ([1.0, 2.0, 3.0, NAN], {}, 1),
        ([1.0, 2.0, 3.0, -INF], {"allow_negative_inf": True}, 1),
        ([0.0, 0.0, 0.0, 0.0], {"required_matched_ratio": 0.0}, 1),
    ],
)
def test_their_rule(out, more, failed):
    right = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert sol_execbench.compared(torch.tensor(out), right, LOOSE | more)["failed"] == failed


@pytest.mark.parametrize("allowed", [False, True])
def test_infinities_in_both_pass_where_that_is_allowed(allowed):
    both = torch.tensor([1.0, -INF])
    found = sol_execbench.compared(both, both.clone(), LOOSE | {"allow_negative_inf": allowed})
    assert found["failed"] == (not allowed)


# ---------------------------------------------------------------- the command


@pytest.mark.usefixtures("rehearsed_here")
def test_the_command_plans_every_workload_and_names_those_left_out(tmp_path, monkeypatch, capsys):
    planned = []
    monkeypatch.setattr(composer, "measure", lambda spec, **how: planned.append(spec) or 1 / 0)
    solution(tmp_path / "mine")
    folder = problem(tmp_path, workloads=[workload(5), workload(0), workload(16)])
    asked = f"judge {tmp_path}/mine --task sol-execbench {folder} --device cpu --output {tmp_path}/book"
    with pytest.raises(ZeroDivisionError):
        command.call(*asked.split())
    (spec,) = planned
    assert (spec.source.kind, spec.source.problem) == ("sol-execbench", str(folder))
    assert [group.workload.shape_text for group in spec.groups("quick", "cpu")] == ["5", "16"]


def judged(folder: Path, text: str, task: Path) -> tuple[int, list[dict[str, Any]]]:
    """The command's exit status and the rows that it prints of a solution."""
    asked = ("judge", solution(folder, text), "--task", "sol-execbench", task, "--device", "cpu", "--no-page")
    found = command.call(*asked, "--json", "--output", folder / "book")
    return found.code, json.loads(found.out)


@pytest.mark.parametrize("fault", ["problem", "file"])
def test_a_program_is_told_whose_fault_it_is(tmp_path, rehearsed_here, fault):
    folder = problem(tmp_path, reference="1 / 0" if fault == "problem" else REFERENCE)
    code, (told,) = judged(tmp_path, "1 / 0" if fault == "file" else RETURNS, folder)
    assert (code, told["outcome"], told["fault"]) == (2, "refused", fault)


@pytest.fixture
def once(monkeypatch):
    """One process measures, and there is no compiler: nobody waits for torch.compile."""
    monkeypatch.setattr(composer, "PROCESSES", {"quick": 1})
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.slow
def test_a_solution_is_judged_at_every_workload_beside_their_tolerance(tmp_path, once):
    """One that is right where rows are few, and computes in 16 bits where they are many."""
    kind = "kind = torch.bfloat16 if len(x) > 10 else torch.float32"
    text = source(kind, "x, weight = x.to(kind), weight.to(kind)", f"return {ANSWER}.float()")
    folder = problem(tmp_path, workloads=[workload(5), workload(16), workload(0)])
    code, (few, many, refused) = judged(tmp_path, text, folder)
    assert (code, few["status"], many["status"]) == (1, "ok", "wrong")
    assert many["reason"].startswith("low precision")
    assert (few["their_tolerance"], many["their_tolerance"]) == ("pass", "pass")
    assert few["their_numbers"]["max_error"] < many["their_numbers"]["max_error"] < 0.1
    assert (refused["outcome"], refused["fault"]) == ("refused", "problem")


@pytest.mark.slow
def test_who_changed_a_process_is_believed_on_no_other_workload(tmp_path, once):
    text = source("torch.cuda.Event.elapsed_time = lambda *_: 1e-3", f"return {ANSWER}")
    code, rows = judged(tmp_path, text, problem(tmp_path))
    assert (code, [row["status"] for row in rows]) == (1, ["cheated", "cheated"])
    assert all("replaced torch.cuda.Event.elapsed_time" in row["reason"] for row in rows)
