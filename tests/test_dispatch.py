"""The dispatcher: the quickest of planted forms, never a wrong one, remembered, whatever lies in the cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_tensors import DEVICE, matrices, normal
from stopwatch import Stopwatch

import hypatia_lab as lab
from hypatia_lab import dispatch, races, training, variants
from hypatia_lab.dispatch import CONV_BLOCKS, LINEAR_RELU, MLPS, Dispatcher
from hypatia_lab.kernels.compiled import compile_missing
from hypatia_lab.operations.linear_relu import reference
from hypatia_lab.workloads import Workload, operations

PLAIN = LINEAR_RELU.direct["eager"]
EAGER_S = 2e-3

pytestmark = pytest.mark.usefixtures("choices")


def operands(*batch: int, **how: Any) -> list[torch.Tensor]:
    return matrices(*batch, inner=24, outer=40, device=DEVICE, seed=1, **how)


def slowed(form: Callable[..., torch.Tensor], seconds: float) -> Callable[..., torch.Tensor]:
    """``form``, and so much more by the clock that times it."""

    def slow(*tensors: torch.Tensor) -> torch.Tensor:
        dispatch.timer.time.sleep(seconds)
        return form(*tensors)

    return slow


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Dispatcher]:
    """Linear+ReLU whose eager form takes a while, with forms of the lab's for candidates."""
    monkeypatch.setattr(dispatch.timer, "time", Stopwatch(2e-5))

    def plant(**forms: Callable[..., torch.Tensor]) -> Dispatcher:
        eager = slowed(PLAIN, EAGER_S)
        found = Dispatcher("linear_relu", LINEAR_RELU.names, LINEAR_RELU.shape, {"eager": eager}, lambda: False)
        monkeypatch.setattr(found, "candidates", lambda *given: {"eager": eager} | forms, raising=False)
        return found

    return plant


def decided(one: Dispatcher, rows: int = 3) -> str:
    """What it chooses for so many rows."""
    one("wall", False, *operands(rows))
    return chosen(one)[-1]


def chosen(one: Dispatcher) -> list[str]:
    return list(one.chosen.values())


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Times that nothing disturbs, race by race: name → time."""

    def race(*times: dict[str, float]) -> None:
        drawn = iter(times)
        monkeypatch.setattr(races, "timed", lambda *given: {name: [us] * 4 for name, us in next(drawn).items()})

    return race


def test_the_quickest_of_planted_forms_is_chosen_and_kept(planted: Any, choices: Path) -> None:
    one = planted(quick=PLAIN, slower=slowed(PLAIN, EAGER_S / 2), slowest=slowed(PLAIN, 2 * EAGER_S))
    tensors = operands(3)
    assert torch.equal(one("wall", False, *tensors), PLAIN(*tensors))
    assert chosen(one) == ["quick"]
    assert len(list(choices.iterdir())) == 1


def test_a_wrong_form_is_never_chosen_and_told_once(planted: Any) -> None:
    wrong = {
        "no_relu": torch.nn.functional.linear,
        "nan": lambda *tensors: PLAIN(*tensors) * float("nan"),
        "short": lambda *tensors: PLAIN(*tensors)[:1],
        "double": lambda *tensors: PLAIN(*tensors).double(),
        "raises": lambda *tensors: 1 / 0,
    }
    one = planted(**wrong)
    with pytest.warns(RuntimeWarning, match="left out") as told:
        assert decided(one) == "eager"
    assert len(told) == len(wrong)
    assert decided(one, 4) == "eager"  # another warning would be an error


def test_a_form_is_right_where_eager_is_further_off(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits eager's own sums may be off by more than a form may be."""
    one = planted()
    eager = slowed(lambda *tensors: 1.1 * PLAIN(*tensors), EAGER_S)
    forms = {"eager": eager, "exact": PLAIN, "wrong": lambda *tensors: 0.8 * PLAIN(*tensors)}
    monkeypatch.setattr(one, "candidates", lambda *given: forms, raising=False)
    with pytest.warns(RuntimeWarning, match="wrong is left out"):
        assert decided(one) == "exact"


def test_the_numbers_of_the_caller_prove_nothing(planted: Any) -> None:
    """A form that is right of zeros alone is found out."""
    one = planted(zeros=lambda x, weight, bias: x.new_zeros(len(x), len(weight)))
    with pytest.warns(RuntimeWarning, match="zeros is left out"):
        one("wall", False, *(torch.zeros_like(tensor) for tensor in operands(3)))
    assert chosen(one) == ["eager"]


def test_the_winner_has_to_win_again(planted: Any, raced: Any) -> None:
    raced({"eager": 10.0, "lucky": 5.0}, {"eager": 10.0, "lucky": 10.0})
    assert decided(planted(lucky=PLAIN)) == "eager"


def test_another_process_finds_the_choice(planted: Any, monkeypatch: pytest.MonkeyPatch, choices: Path) -> None:
    decided(planted(quick=PLAIN))
    other = planted(quick=PLAIN)
    monkeypatch.setattr(other, "measured", lambda *given: pytest.fail("measured again"), raising=False)
    assert decided(other) == "quick"
    decided(planted(quick=PLAIN, more=slowed(PLAIN, EAGER_S)))  # of other candidates it says nothing
    assert len(list(choices.iterdir())) == 2


def test_a_choice_outlives_its_process(choices: Path) -> None:
    lab.linear_relu(*operands(5))
    program = (
        "import pathlib, torch, hypatia_lab as lab\n"
        "from hypatia_lab import dispatch\n"
        f"dispatch.folder = lambda: pathlib.Path({str(choices)!r})\n"
        "dispatch.Dispatcher.measured = lambda *given: 1 / 0\n"
        f"torch.set_default_device('{DEVICE}')\n"
        "lab.linear_relu(torch.ones(5, 24), torch.ones(40, 24), torch.ones(40))\n"
        "print(*dispatch.LINEAR_RELU.chosen.values())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (chosen(LINEAR_RELU), "")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"asked": [], "form": "quick"}', '{"form": 1}', "\udcff"])
def test_a_corrupt_file_counts_as_none(text: str, planted: Any, choices: Path) -> None:
    decided(planted(quick=PLAIN))
    (kept,) = choices.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(text.encode(errors="surrogateescape"))
    assert decided(planted(quick=PLAIN)) == "quick"
    assert kept.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_hindrance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(dispatch, "folder", lambda: tmp_path / "file" / "choices")
    lab.linear_relu(*operands(3))
    assert len(chosen(LINEAR_RELU)) == 1


def test_threads_measure_once_and_agree(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = planted(quick=PLAIN)
    real, times = one.measured, []
    monkeypatch.setattr(one, "measured", lambda *given: (times.append(1), real(*given))[1], raising=False)
    tensors = operands(3)
    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(lambda _: one("wall", False, *tensors), range(8))
    assert len(times) == 1
    assert all(torch.equal(answer, first) for answer in others)


def test_a_later_call_only_looks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = operands(3)
    lab.linear_relu(*tensors)
    monkeypatch.setattr(Dispatcher, "choose", lambda *given: pytest.fail("chosen again"))
    lab.linear_relu(*tensors)
    with pytest.raises(pytest.fail.Exception):
        lab.linear_relu(*operands(4))


def test_strides_and_a_missing_bias_are_kinds_of_their_own() -> None:
    x, weight, bias = operands(6)
    across, apart = x.T.contiguous().T, torch.stack([x, x], -1)[..., 0]
    for given in ((x, weight, bias), (x, weight, None), *((one, weight, bias) for one in (across, apart, x[::2]))):
        y = lab.linear_relu(*given)
        torch.testing.assert_close(y.double(), reference(*given), rtol=1e-4, atol=1e-4)
    assert len(chosen(LINEAR_RELU)) == 5
    for batch in ((), (2, 3), (0,), (2, 0)):
        x, weight, bias = operands(*batch)
        assert lab.linear_relu(x, weight, bias).shape == (*batch, len(weight))


def test_a_view_that_overlaps_gets_eager() -> None:
    x, weight, bias = operands(1)
    y = lab.linear_relu(x.expand(5, -1), weight, bias)
    assert y.shape == (5, len(weight))
    assert chosen(LINEAR_RELU) == ["eager"]


def test_without_gradients_a_choice_is_of_the_answer_alone() -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in operands(3))
    with torch.no_grad():
        lab.linear_relu(x, weight, bias)
    assert not lab.linear_relu(x.detach(), weight.detach(), bias.detach()).requires_grad
    assert {key[2] for key in LINEAR_RELU.forms} == {()}


def test_autocast_and_subclasses_get_pytorchs_own() -> None:
    x, weight, bias = operands(3)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert lab.linear_relu(x, weight, bias).dtype == torch.bfloat16
    assert isinstance(lab.linear_relu(torch.nn.Parameter(x, requires_grad=False), weight, bias), torch.Tensor)
    assert chosen(LINEAR_RELU) == ["eager", "eager"]


def test_what_does_not_fit_is_pytorchs_error() -> None:
    x, weight, bias = operands(3)
    with pytest.raises(RuntimeError):
        lab.linear_relu(x[:, 1:], weight, bias)
    with pytest.raises(ValueError, match="clock"):
        lab.linear_relu(x, weight, bias, clock="hot")
    with pytest.raises(ValueError, match="approximate"):
        lab.conv_block(x, weight, bias, bias, bias, "erf")
    with pytest.raises(ValueError, match="two or three"):
        lab.mlp(x, [weight], [bias])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_convolution_block_lies_in_memory_as_the_librarys(
    channels_last: bool, approximate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    inputs = Workload("conv_block", (2, 5, 9, 7)).inputs(DEVICE)
    x, *others = (inputs[name] for name in ("x", "weight", "bias", "gamma", "beta"))
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    y = lab.conv_block(x, *others, approximate)
    wanted = CONV_BLOCKS[approximate].direct["eager"](x, *others)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    assert channels_last or y.is_contiguous()


def test_more_channels_out_than_in_are_pytorchs() -> None:
    x, weight, gamma = normal((1, 3, 8, 8), (4, 3, 3, 3), (4,), device=DEVICE)
    assert lab.conv_block(x, weight, None, gamma, gamma).shape == (1, 4, 8, 8)
    assert chosen(CONV_BLOCKS["none"]) == ["eager"]


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("last", [16, 8])
def test_layers_are_taken_whatever_their_widths(layers: int, last: int) -> None:
    widths = [(16, 16)] * (layers - 1) + [(last, 16)]
    x, *parameters = normal((7, 16), *(shape for b, a in widths for shape in ((b, a), (b,))), device=DEVICE)
    y = lab.mlp(x, parameters[::2], parameters[1::2])
    torch.testing.assert_close(y, MLPS[layers].direct["eager"](x, *parameters), rtol=1e-3, atol=1e-3)


def test_candidates_are_the_library_and_what_is_a_function_of_its_tensors() -> None:
    work = Workload("linear_relu", (3, 5, 7))
    names, asked = (LINEAR_RELU.candidates(work, DEVICE, compilers) for compilers in (False, True))
    assert list(names)[:2] == ["eager", "epilogue"]
    assert not {"naive", "aten", "fp16x3_cuda_once", "step_shared", "dispatched", "compile"} & set(names)
    compilers = {"compile", "compile_max_autotune"}  # compete only when asked
    assert set(asked) - set(names) == (set() if compile_missing(work, DEVICE) else compilers)
    names = CONV_BLOCKS["none"].candidates(Workload("conv_block", (1, 3, 8, 8)), DEVICE)
    assert {"eager", "group_norm"} <= set(names)
    assert not {"script", "eager_channels_last", "threaded", "preallocated", "eager_graph"} & set(names)
    own = variants.find("linear_relu", "triton")
    assert dispatch.contends(own)
    assert not dispatch.contends(replace(own, host=True)), "a form that runs on the host"


def test_a_form_is_found_once_unless_its_run_keeps_something() -> None:
    built: list[Any] = []

    def made(name: str, **kept: float) -> Any:
        def factory(workload: Workload, inputs: Any) -> Any:
            built.append(name)
            return partial(lambda *tensors, more=0.0: PLAIN(*tensors) + more, *inputs.values(), **kept)

        return replace(variants.find("linear_relu", "eager"), factory=factory)

    for name, kept in (("plain", {}), ("keeps", {"more": 1.0})):
        form = dispatch._unbound(made(name, **kept), Workload("linear_relu", (3, 24, 40)), LINEAR_RELU.names)
        for tensors in map(operands, (3, 4, 5)):
            assert torch.equal(form(*tensors), PLAIN(*tensors) + kept.get("more", 0.0))
    assert built == ["plain", *["keeps"] * 3]


@pytest.mark.parametrize("one", [LINEAR_RELU, *CONV_BLOCKS.values(), *MLPS.values()], ids=lambda one: one.operation)
def test_what_is_found_once_holds_no_memory_that_two_calls_would_share(one: Dispatcher) -> None:
    work = Workload(one.operation, (16,) * len(operations()[one.operation].dims))
    for name, form in variants.variants(one.operation).items():
        if dispatch.contends(form):
            run = form.factory(work, work.inputs("cpu"))
            if isinstance(run, partial) and not run.keywords:
                held = [cell.cell_contents for cell in getattr(run.func, "__closure__", None) or ()]
                assert not any(isinstance(value, torch.Tensor) for value in held), name


def test_a_known_choice_is_not_for_tensors_without_memory_nor_for_a_tracer() -> None:
    tensors = operands(3)
    lab.linear_relu(*tensors)
    for key in LINEAR_RELU.forms:
        LINEAR_RELU.forms[key] = lambda *given: pytest.fail("a form of this device's")
    assert lab.linear_relu(*(tensor.to("meta") for tensor in tensors)).is_meta
    traced: Any = torch.jit.trace(lambda *given: lab.linear_relu(*given), tuple(tensors), check_trace=False)
    assert torch.equal(traced(*tensors), PLAIN(*tensors))


def test_a_captured_call_takes_what_was_chosen_before(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = planted(quick=PLAIN)
    known, strange, by_wall = operands(3), operands(4), operands(5)
    one("graph", False, *known)
    one("wall", False, *by_wall)
    monkeypatch.setattr(training, "is_capturing", lambda x: True)
    monkeypatch.setattr(one, "measured", lambda *given: pytest.fail("measured during a capture"), raising=False)
    called: list[str] = []
    for key, form in list(one.forms.items()):
        one.forms[key] = lambda *tensors, word=key[0], form=form: (called.append(word), form(*tensors))[1]
    for tensors in (known, by_wall, strange):
        assert torch.equal(one("wall", False, *tensors), PLAIN(*tensors))
    assert called == ["graph", "wall"]
    assert len(chosen(one)) == 2


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA GPU")
def test_nothing_is_measured_during_a_capture() -> None:
    tensors, more = operands(64, dtype=torch.bfloat16), operands(65, dtype=torch.bfloat16)
    graph, known = torch.cuda.CUDAGraph(), lab.linear_relu(*tensors, clock="graph")
    with torch.cuda.graph(graph):
        y = lab.linear_relu(*tensors)
        other = lab.linear_relu(*more)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, known)
    assert other.shape == (65, 40)
    assert len(chosen(LINEAR_RELU)) == 1
