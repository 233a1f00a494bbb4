"""Problems in the format of KernelBench: right candidates pass, wrong ones are told, and what cannot be judged is said
in a line."""

from __future__ import annotations

import json
from pathlib import Path

import command
import pytest
import torch

from hypatia_lab import check, variants
from hypatia_lab.bench import composer
from hypatia_lab.strangers import kernelbench, reader_kernel
from hypatia_lab.strangers.reader_kernel import Own, OwnError
from hypatia_lab.workloads import Workload

HERE = Path(__file__).resolve().parent / "kernelbench"
PROBLEMS = sorted(path.stem for path in (HERE / "problems").glob("*.py"))  # each has a right candidate
WRONG = sorted(path.stem for path in (HERE / "wrong").glob("*.py"))


pytestmark = pytest.mark.usefixtures("registry")


def problem_of(own: Own, number: int = 0) -> check.Problem:
    return check.Problem(Workload(own.name, own.shapes[number], own.dtypes[0]), "cpu")


def checked(own: Own, name: str = "", number: int = 0) -> check.Check:
    """What the check says of a variant, the candidate unless another is named, at a shape of its problem."""
    problem = problem_of(own, number)
    run = variants.find(own.name, name or own.variants[0]).factory(problem.workload, problem.inputs)
    return check.check(run, problem)


def loaded(stem: str, kind: str = "right", process: int = 0) -> Own:
    """The candidate ``stem`` of that ``kind``, for the problem with whose name its own begins."""
    (problem,) = (name for name in PROBLEMS if stem.startswith(name))
    return kernelbench.load(HERE / kind / f"{stem}.py", HERE / "problems" / f"{problem}.py", process=process)


# ---------------------------------------------------------------- right and wrong


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_right_candidate_is_right_and_so_is_the_model_itself(name):
    own = loaded(name, process=3)
    assert "float32" not in own.summary, "its modules allow float64"
    assert [checked(own, one).reason for one in ("eager", kernelbench.CANDIDATE)] == ["", ""]
    assert problem_of(own).reference().dtype == torch.float64


SAID = {
    "softmax_skipped_tail": "unwritten: ",
    "softmax_half": "low precision",
    "cross_entropy_remembered": "stale output",
    "mean_and_deviation_second": "output 2: ",
    "mean_and_deviation_one": "wrong type: Tensor instead of the tuple",
    "rms_norm_written_input": "input changed: the call wrote into 'x'",
}
"""Wrong candidate → how what is said of it begins, where more is known than that values are off."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_candidate_is_wrong(name):
    found = checked(loaded(name, "wrong"))
    assert not found.ok
    assert found.reason.startswith(SAID.get(name, "wrong values: error "))


def test_what_is_less_off_than_lower_precision_would_be_is_not_called_that(tmp_path):
    """Nor is a single number that is a little off."""
    number = (FORWARD, "return torch.mean(x**2)"), ("torch.randn(5, 64)", "torch.rand(500, 64)")
    for changes, right, wrong in (
        (((FORWARD, "return torch.exp(x)"),), "exp(x)", "exp(x) * 1.00002"),
        (number, "x**2", "x**2 + 1e-3"),
    ):
        candidate, problem = pair(tmp_path, *changes)
        candidate.write_text(candidate.read_text().replace(right, wrong))
        with variants.restored():
            assert checked(kernelbench.load(candidate, problem)).reason.startswith("wrong values: ")


def test_inputs_and_weights_are_drawn_anew_in_each_process_and_alike_in_one():
    seen = []
    for process in (0, 0, 1):
        with variants.restored():
            problem = problem_of(loaded("linear_gelu", process=process))
            first, answer = problem.inputs["x"].clone(), problem.reference()
            problem.draw(1)
            assert not torch.equal(first, problem.inputs["x"])
            # By the weights alone: the answer to zeros is their bias, through GELU.
            seen.append((first, answer, problem.workload.spec.reference({"x": torch.zeros_like(first)})))
    for first, second, third in zip(*seen, strict=True):
        assert torch.equal(first, second)
        assert not torch.equal(first, third)


def test_a_tensor_that_is_no_float_stays_what_it_is_and_a_number_is_no_input():
    inputs = problem_of(loaded("masked_attention")).inputs
    assert {name: one.dtype for name, one in inputs.items()} == {"x": torch.float32, "mask": torch.bool}
    assert set(problem_of(loaded("matmul_scaled_bias")).inputs) == {"a", "b"}


# ---------------------------------------------------------------- what a problem may be

PROBLEM = (HERE.parent / "strangers" / "exp_linear.py").read_text()
FORWARD = "return torch.exp(self.linear(x))"


def pair(folder: Path, *changes: tuple[str, str], candidate: str = "") -> tuple[Path, Path]:
    """A candidate that is the problem's own Model, and the problem, with texts replaced in both."""
    text = PROBLEM
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "problem.py").write_text(text)
    (folder / "candidate.py").write_text(candidate or text.replace("class Model(", "class ModelNew("))
    return folder / "candidate.py", folder / "problem.py"


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        ("return torch.exp(self.linear(x).float())", "_to_copy"),
        ("return torch.matmul(x, torch.ones(64, 3)) + self.linear(x)", "multiplies float64"),
    ],
)
def test_without_float64_the_reference_has_the_models_dtype_and_twice_the_error(tmp_path, forward, why):
    with variants.restored():
        exact = problem_of(kernelbench.load(*pair(tmp_path))).workload.tolerance()
    own = kernelbench.load(*pair(tmp_path, (FORWARD, forward)))
    assert why in own.summary
    assert checked(own).ok
    work = problem_of(own).workload
    depth, roundings = work.spec.depth(work.shape), work.spec.roundings(work.shape)
    assert 4 <= roundings / reader_kernel.ROUNDINGS <= 4 * 4, "at most four operators round"
    assert work.tolerance() == pytest.approx(2 * 2**-24 * (depth**0.5 + roundings**0.5))
    assert exact < work.tolerance()


def test_the_answer_is_that_to_the_numbers_that_inputs_hold_now():
    problem = problem_of(loaded("softmax"))
    spec, given = problem.workload.spec, problem.inputs["x"]
    for written in (given.neg_, lambda: problem.draw(7), lambda: None):
        spec.scale(problem.inputs)  # for which the answer is made, too
        written()
        assert torch.equal(spec.reference(problem.inputs), given.double().softmax(1))


def test_what_the_model_itself_errs_is_right_and_not_much_more(tmp_path):
    """A difference of large numbers: float32 has few digits of it, and rounding to nearest is off by as many."""
    forward = "return ((1e4 + self.linear(x)) - 1e4)"
    own = kernelbench.load(*pair(tmp_path, (FORWARD, forward)))
    assert checked(own).ok
    problem = problem_of(own)
    tight = problem.workload.tolerance()
    assert tight < 1e-5 < checked(own, "eager").max_error  # pyright: ignore[reportOperatorIssue]
    right = problem.reference().float()
    noise = 0.05 * torch.randn(right.shape, generator=torch.Generator().manual_seed(0))
    assert not check.judge(right + noise, problem).ok


def test_depth_roundings_and_bytes_are_counted(tmp_path):
    work = problem_of(kernelbench.load(*pair(tmp_path))).workload
    assert work.spec.depth(work.shape) == 64
    assert work.spec.roundings(work.shape) == 2 * reader_kernel.ROUNDINGS
    assert (work.traffic, work.flops) == (4 * (5 * 64 + 64 * 3 + 3 + 5 * 3), 0)


def test_a_model_that_needs_numbers_is_run_on_the_cpu(tmp_path):
    own = kernelbench.load(*pair(tmp_path, (FORWARD, "return self.linear(x) * (1 if x.sum().item() > 1e9 else 2)")))
    assert checked(own).ok


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("class Model(", "class Modell(", " Model, "),
        ("class Model(nn.Module)", "class Model(dict)", " Model, "),
        ("def get_inputs()", "def inputs()", "get_inputs()"),
        ("def get_init_inputs()", "def init_inputs()", "get_init_inputs()"),
        ("return [64]", "return [64, 65]", "Model(*get_init_inputs()) fails: TypeError"),
        ("return [64]", "return 64", "get_init_inputs()"),
        ("torch.randn(5, 64)]", "torch.randn(5, 64), 'mean']", "get_inputs() gives a str as input 2"),
        ("[torch.randn(5, 64)]", "[5]", "get_inputs()"),
        ("[torch.randn(5, 64)]", "1 / 0", "ZeroDivisionError"),
        ("torch.randn(5, 64)", "torch.randn(5, 63)", "Model fails on its inputs:11: RuntimeError: "),
        (FORWARD, "return torch.dropout(self.linear(x), 0.5, True)", "leave dropout out"),
        (
            FORWARD,
            "return self.linear(x) + torch.randn(3)",
            "(randn), which no candidate can draw alike; let the inputs",
        ),
        (FORWARD, "return self.linear(x).argmax(1)", "int64"),
        (FORWARD, "return self.linear(x), x.double()", "float32 and float64"),
        (FORWARD, "return None", "NoneType"),
        ("import torch\n", "import torch\n1 +\n", ":2: SyntaxError"),
    ],
)
def test_a_problem_that_cannot_be_judged_is_named_in_one_line(tmp_path, old, new, named):
    candidate, problem = pair(tmp_path)
    problem.write_text(PROBLEM.replace(old, new))
    with pytest.raises(OwnError) as caught:
        kernelbench.load(candidate, problem)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{problem}:")
    assert named in line


def test_a_candidate_without_the_class_is_refused_and_one_that_cannot_be_built_has_crashed(tmp_path):
    with pytest.raises(OwnError, match=r"candidate\.py: .* ModelNew,"):
        kernelbench.load(*pair(tmp_path, candidate="x = 1"))
    own = kernelbench.load(*pair(tmp_path, candidate="from torch.nn import Module as ModelNew\n"))
    with pytest.raises(OwnError, match=r"candidate\.py: Module\(\*get_init_inputs\(\)\) fails: TypeError: "):
        checked(own)


def test_files_that_were_changed_meanwhile_are_not_measured(tmp_path):
    candidate, problem = pair(tmp_path)
    before = kernelbench.digest(candidate, problem)
    problem.write_text(problem.read_text() + "\n")
    with pytest.raises(OwnError, match="was changed while it was being measured"):
        kernelbench.load(candidate, problem, before)


# ---------------------------------------------------------------- the command


@pytest.mark.usefixtures("rehearsed_here")
def test_the_command_plans_the_problem_with_its_baselines(tmp_path, monkeypatch):
    planned = []
    monkeypatch.setattr(composer, "measure", lambda spec, **how: planned.append(spec) or 1 / 0)
    given = f"{HERE}/right/softmax.py --task kernelbench {HERE}/problems/softmax.py --device cpu --output {tmp_path}"
    with pytest.raises(ZeroDivisionError):
        command.call("judge", *given.split())
    (spec,) = planned
    assert (spec.source.kind, spec.source.problem) == ("kernelbench", f"{HERE}/problems/softmax.py")
    (group,) = spec.groups("quick", "cpu")
    assert group.workload.shape_text == "16x301"
    assert group.variants == ("eager", "eager@again", "compile", kernelbench.CANDIDATE)


@pytest.mark.parametrize(("broken", "fault"), [("problem.py", "problem"), ("candidate.py", "file")])
def test_a_program_is_told_whose_fault_it_is(tmp_path, monkeypatch, rehearsed_here, broken, fault):
    candidate, problem = pair(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / broken).write_text("raise SystemExit\n")
    found = command.call("judge", candidate, "--task", "kernelbench", problem, "--device", "cpu", "--json")
    (told,) = json.loads(found.out)
    assert (found.code, told["outcome"], told["fault"]) == (2, "refused", fault)
    assert broken in told["message"]
