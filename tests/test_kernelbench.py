"""Problems in the format of KernelBench: right candidates pass, wrong ones are told, and what cannot be judged is said
in a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from hypatia_lab import check, reader_kernel, variants
from hypatia_lab.bench import composer
from hypatia_lab.cli import commands
from hypatia_lab.reader_kernel import Own, OwnError
from hypatia_lab.tasks import kernelbench
from hypatia_lab.workloads import Workload

HERE = Path(__file__).resolve().parent / "kernelbench"
PROBLEMS = sorted(path.stem for path in (HERE / "problems").glob("*.py"))
WRONG = sorted(path.stem for path in (HERE / "wrong").glob("*.py"))


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten when it ends."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    with variants.restored():
        yield


def problem_of(own: Own) -> check.Problem:
    return check.Problem(Workload(own.name, own.shapes[0], own.dtypes[0]), "cpu")


def checked(own: Own, name: str = kernelbench.CANDIDATE) -> check.Check:
    problem = problem_of(own)
    return check.check(variants.find(own.name, name).factory(problem.workload, problem.inputs), problem)


def of(stem: str) -> Path:
    """The problem of which ``stem`` is a wrong candidate."""
    (found,) = (name for name in PROBLEMS if stem.startswith(name))
    return HERE / "problems" / f"{found}.py"


# ---------------------------------------------------------------- right and wrong


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("process", [0, 3])
def test_a_right_candidate_is_right_and_so_is_the_model_itself(name, process):
    own = kernelbench.load(HERE / "right" / f"{name}.py", HERE / "problems" / f"{name}.py", process=process)
    assert "float32" not in own.summary, "its modules allow float64"
    assert [checked(own, one).reason for one in ("eager", kernelbench.CANDIDATE)] == ["", ""]
    assert problem_of(own).reference().dtype == torch.float64


SAID = {
    "softmax_skipped_tail": "unwritten: ",
    "softmax_half": "low precision: ",
    "cross_entropy_remembered": "stale output",
    "mean_and_deviation_second": "output 2: ",
    "mean_and_deviation_one": "wrong type: Tensor instead of the tuple",
    "rms_norm_written_input": "input changed: the call wrote into 'x'",
}
"""Wrong candidate → how what is said of it begins, where more is known than that values are off."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_candidate_is_wrong(name):
    found = checked(kernelbench.load(HERE / "wrong" / f"{name}.py", of(name)))
    assert not found.ok
    assert found.reason.startswith(SAID.get(name, "wrong values: error "))


def test_there_are_ten_problems_and_each_has_a_right_candidate():
    assert len(PROBLEMS) >= 10
    assert sorted(path.stem for path in (HERE / "right").glob("*.py")) == PROBLEMS


def test_inputs_and_weights_are_drawn_anew_in_each_process_and_alike_in_one():
    seen = []
    for process in (0, 0, 1):
        task = kernelbench._Task(HERE / "problems" / "linear_gelu.py", process)
        seen.append((task.inputs(0, "cpu")["x"], task.model("cpu").state_dict()["linear.weight"]))
        assert not torch.equal(seen[-1][0], task.inputs(1, "cpu")["x"])
    for first, second, third in zip(*seen, strict=True):
        assert torch.equal(first, second)
        assert not torch.equal(first, third)


def test_a_tensor_that_is_no_float_stays_what_it_is_and_a_number_is_no_input():
    own = kernelbench.load(HERE / "right" / "masked_attention.py", HERE / "problems" / "masked_attention.py")
    assert {name: one.dtype for name, one in problem_of(own).inputs.items()} == {"x": torch.float32, "mask": torch.bool}
    own = kernelbench.load(HERE / "right" / "matmul_scaled_bias.py", HERE / "problems" / "matmul_scaled_bias.py")
    assert set(problem_of(own).inputs) == {"a", "b"}


# ---------------------------------------------------------------- what a problem may be

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, 3)

    def forward(self, x):
        return torch.exp(self.linear(x))


def get_inputs():
    return [torch.randn(5, 64)]


def get_init_inputs():
    return [64]
"""
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
    exact = problem_of(kernelbench.load(*pair(tmp_path))).workload
    other = tmp_path / "other"
    other.mkdir()
    found, problem = pair(other, (FORWARD, forward))
    own = kernelbench.load(found, problem.rename(other / "narrow.py"))
    assert "computed in float32 and twice the error is allowed" in own.summary
    assert why in own.summary
    spec = problem_of(own).workload
    assert checked(own).ok
    as_exact = 2 * (2**-24 * ((spec.spec.depth(()) / 4) ** 0.5 + (spec.spec.roundings(()) / 4) ** 0.5))
    assert spec.tolerance() == pytest.approx(2 * as_exact)
    assert exact.tolerance() < spec.tolerance()


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
    own = kernelbench.load(*pair(tmp_path))
    work = problem_of(own).workload
    assert work.spec.depth(()) == 64
    assert work.spec.roundings(()) == 2 * reader_kernel.ROUNDINGS
    assert work.traffic == 4 * (5 * 64 + 64 * 3 + 3 + 5 * 3)
    assert work.flops == 0


def test_a_model_that_needs_numbers_is_run_on_the_cpu(tmp_path):
    own = kernelbench.load(*pair(tmp_path, (FORWARD, "return self.linear(x) * (1 if x.sum().item() > 1e9 else 2)")))
    assert checked(own).ok


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("class Model(", "class Modell(", "has no Model, which must be a class of torch.nn.Module"),
        ("class Model(nn.Module)", "class Model(dict)", "has something else as Model"),
        ("def get_inputs()", "def inputs()", "has no function get_inputs()"),
        ("def get_init_inputs()", "def init_inputs()", "has no function get_init_inputs()"),
        ("return [64]", "return [64, 65]", "Model(*get_init_inputs()) fails: TypeError: "),
        ("return [64]", "return 64", "get_init_inputs() must return a list, not a int"),
        (
            "torch.randn(5, 64)]",
            "torch.randn(5, 64), 'mean']",
            "get_inputs() gives a str as input 2; inputs must be ten",
        ),
        ("[torch.randn(5, 64)]", "[5]", "get_inputs() gives no tensor"),
        ("[torch.randn(5, 64)]", "1 / 0", "ZeroDivisionError"),
        ("torch.randn(5, 64)", "torch.randn(5, 63)", "Model fails on its inputs:12: RuntimeError: "),
        (FORWARD, "return torch.dropout(self.linear(x), 0.5, True)", "Model draws random numbers (bernoulli_)"),
        (FORWARD, "return self.linear(x).argmax(1)", "Model returns int64; it must return tensors of one dtype"),
        (FORWARD, "return self.linear(x), x.double()", "Model returns float32 and float64; it must"),
        (FORWARD, "return None", "Model returns NoneType"),
        ("import torch\n", "import torch\n1 +\n", ":3: SyntaxError"),
    ],
)
def test_a_problem_that_cannot_be_judged_is_told_why_in_one_line(tmp_path, old, new, told):
    candidate, problem = pair(tmp_path)
    problem.write_text(PROBLEM.replace(old, new))
    with pytest.raises(OwnError) as caught:
        kernelbench.load(candidate, problem)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{problem}:")
    assert told in line


def test_a_candidate_without_the_class_is_refused_and_one_that_cannot_be_built_has_crashed(tmp_path):
    with pytest.raises(OwnError, match="candidate.py: has no ModelNew, which must be a class"):
        kernelbench.load(*pair(tmp_path, candidate="x = 1"))
    text = "from torch import nn\n\n\nclass ModelNew(nn.Module):\n    pass\n"
    own = kernelbench.load(*pair(tmp_path, candidate=text))
    with pytest.raises(OwnError, match=r"candidate.py: ModelNew\(\*get_init_inputs\(\)\) fails: TypeError: "):
        checked(own)


def test_files_that_were_changed_meanwhile_are_not_measured(tmp_path):
    candidate, problem = pair(tmp_path)
    before = kernelbench.digest(candidate, problem)
    problem.write_text(problem.read_text() + "\n")
    with pytest.raises(OwnError, match="was changed while it was being measured"):
        kernelbench.load(candidate, problem, before)


# ---------------------------------------------------------------- the command

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            commands.main([str(argument) for argument in arguments], prog_name="hypatia-lab")
        assert isinstance(ended.value.code, int)
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return run


@pytest.mark.usefixtures("rehearsed_here")
def test_the_command_plans_the_problem_with_its_baselines(tmp_path, call, monkeypatch):
    planned = []
    monkeypatch.setattr(composer, "measure", lambda spec, **how: planned.append(spec) or 1 / 0)
    candidate, problem = HERE / "right" / "softmax.py", HERE / "problems" / "softmax.py"
    with pytest.raises(ZeroDivisionError):
        commands.main(
            [
                "judge",
                str(candidate),
                "--task",
                "kernelbench",
                str(problem),
                "--device",
                "cpu",
                "--output",
                str(tmp_path),
            ],
            standalone_mode=False,
        )
    (spec,) = planned
    assert (spec.source.kind, spec.source.problem) == ("kernelbench", str(problem))
    (group,) = spec.groups("quick", "cpu")
    assert group.workload.shape_text == "16x301"
    assert group.variants == ("eager", "eager@again", "compile", kernelbench.CANDIDATE)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--task", "kernelbensh", "p.py"), "'kernelbensh' is not 'kernelbench'"),
        (("--task", "kernelbench", "nowhere.py"), "nowhere.py: cannot be read"),
        (("--task", "kernelbench", "p.py", "--shapes", "4x4"), "--shapes is for a file of your own; p.py says its own"),
    ],
)
def test_a_task_that_cannot_be_is_refused_in_one_line(tmp_path, call, given, told, monkeypatch):
    monkeypatch.chdir(tmp_path)
    candidate, _ = pair(tmp_path)
    code, out, err = call("judge", candidate, "--device", "cpu", *given)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert told in err


@pytest.mark.slow
def test_a_candidate_is_measured_in_processes_of_its_own(tmp_path, call, monkeypatch):
    monkeypatch.setitem(composer.PROCESSES, "quick", 1)
    monkeypatch.setenv("PATH", "")  # no compiler: nobody waits for torch.compile
    monkeypatch.delenv("CXX", raising=False)
    task = ("--task", "kernelbench", of("mean_and_deviation_second"), "--device", "cpu", "--no-page", "--json")
    code, out, err = call("judge", HERE / "right" / "mean_and_deviation.py", *task, "--output", tmp_path / "book")
    (row,) = json.loads(out)
    assert (code, row["variant"], row["status"]) == (0, kernelbench.CANDIDATE, "ok"), err
