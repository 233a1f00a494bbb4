"""Both passes by the dispatcher: the quickest right form, by which gradients are asked for, and PyTorch's answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_tensors import DEVICE, error, normal, on_gpu
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import hypatia_lab as lab
from hypatia_lab import dispatch, races, training, variants
from hypatia_lab.dispatch import CONV_BLOCKS, LINEAR_RELU, MLPS, Dispatcher
from hypatia_lab.kernels.compiled import compile_missing
from hypatia_lab.training import Asked
from hypatia_lab.workloads import Workload

BOTH = "forward_backward"
ALL = (LINEAR_RELU, *CONV_BLOCKS.values(), *MLPS.values())
PLAIN = LINEAR_RELU.direct["eager"]
RACES = ("eager", "epilogue", "fused_backward")

Form = Callable[..., torch.Tensor]
Pin = Callable[[str], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of its own, and nothing known in memory."""
    monkeypatch.setattr(dispatch, "folder", lambda: tmp_path / "choices")
    monkeypatch.setattr(dispatch, "told", set())
    monkeypatch.setattr(training, "told", set())
    for one in ALL:
        monkeypatch.setattr(one, "forms", {})
        monkeypatch.setattr(one, "chosen", {})


@pytest.fixture
def pin(monkeypatch: pytest.MonkeyPatch) -> Pin:
    """Have a form win every race that it is in, undisturbed by the machine; of others eager wins."""

    def to(name: str) -> None:
        quick = {"eager": 3.0, "epilogue": 2.0 if name == "epilogue" else 4.0, name: 1.0}

        def samples(runs: dict[str, Any], *how: Any) -> dict[str, list[float]]:
            return {one: [quick.get(one, 9.0)] * 4 for one in runs}

        monkeypatch.setattr(races, "timed", samples)
        monkeypatch.setattr(dispatch, "LEEWAY_S", 60.0)  # a busy machine leaves none out

    return to


@pytest.fixture(params=RACES)
def winner(request: pytest.FixtureRequest, pin: Pin) -> str:
    """Each form of a layer in turn, which wins its races."""
    pin(request.param)
    return request.param


def operands(*batch: int, inner: int = 24, outer: int = 40, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return normal((*batch, inner), (outer, inner), (outer,), dtype=dtype, device=DEVICE, seed=1)


def gradients(form: Form, *tensors: Any, needs: Any = None) -> list[torch.Tensor]:
    """y and the gradients of Σ y·c, c fixed, of those tensors that need one."""
    flags = needs or [True] * len(tensors)
    leaves = [
        None if one is None else one.detach().requires_grad_(need) for one, need in zip(tensors, flags, strict=True)
    ]
    y = form(*leaves)
    # As it often is: not contiguous, and of one row repeated.
    grad = torch.linspace(-1, 2, y.shape[-1], device=y.device).to(y.dtype).expand(y.shape)
    y.backward(grad)
    return [y.detach(), *(one.grad for one in leaves if one is not None and one.grad is not None)]


def held(form: Form, plain: Form, *tensors: Any, needs: Any = None) -> None:
    """``form`` is as near to float64 as PyTorch's own is, but for the rounding of sums taken in another order."""
    found, usual = (gradients(one, *tensors, needs=needs) for one in (form, plain))
    exact = gradients(plain, *(one if one is None else one.double() for one in tensors), needs=needs)
    for own, theirs, sure in zip(found, usual, exact, strict=True):
        assert (own.shape, own.dtype) == (theirs.shape, theirs.dtype)
        assert error(own, sure) <= 2 * error(theirs, sure) + 3e-7


def beside(*tensors: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Answer and gradients of a layer, each beside PyTorch's."""
    return list(zip(*(gradients(one, *tensors) for one in (lab.linear_relu, PLAIN)), strict=True))


def chosen(one: Dispatcher) -> list[str]:
    return list(one.chosen.values())


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("batch", [(), (1,), (7,), (2, 3), (65,)])
def test_gradients_of_a_layer_are_pytorchs(winner: str, batch: tuple[int, ...]) -> None:
    held(lab.linear_relu, PLAIN, *operands(*batch, inner=23, outer=41))
    assert chosen(LINEAR_RELU) == [winner]


@pytest.mark.parametrize(
    "needs", [(True, False, True), (False, True, False), (False, False, True), (True, True, False)]
)
def test_only_gradients_that_are_asked_for_are_there(winner: str, needs: tuple[bool, ...]) -> None:
    held(lab.linear_relu, PLAIN, *operands(6), needs=needs)
    # Kernels of the lab's keep x, which a frozen layer need not.
    assert chosen(LINEAR_RELU) == [winner if needs[1] or winner != "fused_backward" else "eager"]


def test_a_bias_may_be_missing_and_tensors_may_lie_anyhow(winner: str) -> None:
    x, weight, bias = operands(6)
    apart, across = torch.stack([x, x], -1)[..., 0], weight.T.contiguous().T
    for given in ((x, weight, None), (apart, weight, bias), (x[::2], weight, bias), (x, across, None)):
        held(lab.linear_relu, PLAIN, *given)
    assert chosen(LINEAR_RELU) == [winner] * 4


def test_no_rows_and_what_is_not_a_number_are_pytorchs(winner: str) -> None:
    for batch in ((0,), (2, 0)):
        for own, theirs in beside(*operands(*batch)):
            assert torch.equal(own, theirs)
    x, weight, bias = operands(5)
    x[1, 3], x[2, 0], bias[7] = float("nan"), float("inf"), float("-inf")
    for own, theirs in beside(x, weight, bias):
        assert torch.equal(own.isnan(), theirs.isnan())
        assert torch.equal(own.isinf(), theirs.isinf())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bits_are_as_near_as_pytorchs(winner: str, dtype: torch.dtype) -> None:
    for own, theirs in beside(*operands(33, dtype=dtype)):
        assert own.dtype == dtype
        assert error(own, theirs.double()) < 2 * torch.finfo(dtype).eps
    assert chosen(LINEAR_RELU) == [winner]


def layers(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """By weights and biases in turn."""
    return lab.mlp(x, parameters[::2], parameters[1::2])


@pytest.mark.parametrize("last", [16, 5])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["eager", "layers"])
def test_gradients_of_layers_are_pytorchs(name: str, count: int, last: int, pin: Pin) -> None:
    pin(name)
    shapes = [(16, 16), (16,)] * (count - 1) + [(last, 16), (last,)]
    held(layers, MLPS[count].direct["eager"], *normal((9, 16), *shapes, device=DEVICE))
    assert chosen(MLPS[count]) == [name]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("name", ["eager", "group_norm"])
def test_gradients_of_a_block_are_pytorchs(name: str, approximate: str, bias: bool, pin: Pin) -> None:
    pin(name)
    inputs = Workload("conv_block", (2, 5, 9, 7)).inputs(DEVICE)
    x, weight, shift, gamma, beta = (inputs[one] for one in ("x", "weight", "bias", "gamma", "beta"))
    given = (x, weight, shift if bias else None, gamma, beta)
    plain = CONV_BLOCKS[approximate].direct["eager"]
    found, usual = (gradients(one, *given) for one in (lambda *own: lab.conv_block(*own, approximate), plain))
    exact = gradients(plain, *(one if one is None else one.double() for one in given))
    for number, (own, theirs, sure) in enumerate(zip(found, usual, exact, strict=True)):
        if bias and number == 3:  # a bias changes nothing, and its gradient is nothing but rounding
            assert float(own.abs().max()) < 1e-3
        else:
            assert error(own, sure) <= 2 * error(theirs, sure) + 3e-7
    assert chosen(CONV_BLOCKS[approximate]) == [name]


@pytest.mark.parametrize("count", [2, 3])
def test_the_network_in_one_kernel_a_pass_has_pytorchs_gradients(count: int) -> None:
    """On a CPU its operators go layer by layer."""
    tensors = normal((9, 16), *[(16, 16), (16,)] * count, seed=2)
    held(training._own_mlp(count, "ieee"), MLPS[count].direct["eager"], *tensors)


# ---------------------------------------------------------------- what is chosen


def test_a_form_with_a_wrong_gradient_is_never_chosen_and_told_once(monkeypatch: pytest.MonkeyPatch, pin: Pin) -> None:
    def formula(change: Callable[..., Any]) -> Form:
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return change(*training.layer._formula(training.layer.masked)(ctx, grad))

        return training.differentiable(training._epilogue, backward, backward)

    def unwritten(x: Any, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        weight[-1] = 0
        return x, weight, bias

    forms = {
        "halved": formula(lambda x, weight, bias: (x, weight, bias / 2)),
        "unmasked": training.differentiable(training._epilogue, training.layer._formula(lambda g, y: g), lambda *c: ()),
        "short": formula(lambda x, weight, bias: (x, weight, None)),
        "unwritten": formula(unwritten),
        "no_relu": torch.nn.functional.linear,
    }
    monkeypatch.setattr(LINEAR_RELU, "both", lambda *given: forms)
    with pytest.warns(RuntimeWarning, match="left out") as told:
        held(lab.linear_relu, PLAIN, *operands(64))
    assert len(told) == 5
    assert chosen(LINEAR_RELU) == ["eager"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held(lab.linear_relu, PLAIN, *operands(65))


def test_gradients_and_answers_are_chosen_apart_and_kept(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    pin("epilogue")
    x, weight, bias = operands(6)
    for needs in ((True, True, True), (False, True, True)):
        gradients(lab.linear_relu, x, weight, bias, needs=needs)
    lab.linear_relu(x, weight, bias)
    assert chosen(LINEAR_RELU) == ["epilogue"] * 3
    LINEAR_RELU.forms.clear()
    monkeypatch.setattr(Dispatcher, "measured", lambda *given: pytest.fail("measured again"))
    gradients(lab.linear_relu, x, weight, bias)


@pytest.mark.parametrize(("needed", "clock"), [(False, "wall"), (True, "hot")])
def test_a_training_steps_calls_are_timed_back_to_back(
    needed: bool, clock: str, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin("fused_backward")
    asked, samples = set(), races.timed
    monkeypatch.setattr(races, "timed", lambda runs, clock, *how: (asked.add(clock), samples(runs, clock, *how))[1])
    lab.linear_relu(*(one.requires_grad_(needed) for one in operands(3)))
    assert asked == {clock}


def test_pytorchs_own_wins_where_nothing_is_surely_quicker(pin: Pin) -> None:
    pin("nothing")
    x, weight, bias = operands(6)
    y = lab.linear_relu(x.requires_grad_(), weight, bias)
    assert chosen(LINEAR_RELU) == ["eager"]
    assert y.grad_fn is not None
    assert y.grad_fn.name() == "ReluBackward0"


def test_lengths_that_change_from_step_to_step_are_not_measured_for_ever(pin: Pin, monkeypatch: Any) -> None:
    pin("epilogue")
    monkeypatch.setattr(dispatch, "MOST_KINDS", 3)
    for rows in range(1, 6):
        gradients(lab.linear_relu, *operands(rows))
    assert chosen(LINEAR_RELU) == ["epilogue"] * 3 + ["eager"] * 2


def test_every_form_of_both_passes_that_the_lab_has_competes() -> None:
    variants.load()
    for operation in ("linear_relu", "conv_block", "conv_block_tanh"):
        work = Workload(operation, (64, 64, 64) if operation == "linear_relu" else (2, 16, 32, 32), direction=BOTH)
        known = [one for one in variants.variants(operation).values() if one.origin == "own" and BOTH in one.directions]
        able = {one.name for one in known if not one.needs(work, DEVICE)}
        (one,) = (own for own in ALL if own.operation == operation)
        needs = (True,) * len(one.names)
        found = {*one.candidates(work, DEVICE, asked=Asked(needs))}
        assert able <= found
        library = {"eager", "epilogue"} if operation == "linear_relu" else {"eager", "group_norm"}
        assert found - able == library


# ---------------------------------------------------------------- what else may be going on


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_under_autocast_dtypes_are_linears(winner: str, given: torch.dtype) -> None:
    x, weight, bias = operands(33)
    cast = (torch.autocast(DEVICE, torch.bfloat16)(form) for form in (lab.linear_relu, PLAIN))
    for own, theirs in zip(*(gradients(form, x.to(given), weight, bias) for form in cast), strict=True):
        assert own.dtype == theirs.dtype
        assert error(own, theirs.double()) < 2 * torch.finfo(torch.bfloat16).eps
    assert chosen(LINEAR_RELU) == [winner]
    with torch.autocast(DEVICE, torch.bfloat16):
        assert lab.linear_relu(x.double(), weight.double().requires_grad_(), bias.double()).dtype == torch.float64


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["epilogue", "layers"])
def test_a_checkpoint_that_computes_again_may_meet_the_first_call(name: str, reentrant: bool, pin: Pin) -> None:
    """A race that a checkpoint heard of would upset its count of saved tensors."""
    pin(name)

    def network(x: torch.Tensor, *own: torch.Tensor) -> torch.Tensor:
        return layers(lab.linear_relu(x, *own[:2]), *own)

    def plain(x: torch.Tensor, *own: torch.Tensor) -> torch.Tensor:
        return MLPS[2].direct["eager"](PLAIN(x, *own[:2]), *own)

    tensors = normal((9, 16), *[(16, 16), (16,)] * 2, device=DEVICE)
    held(lambda *given: checkpoint(network, *given, use_reentrant=reentrant), plain, *tensors)
    assert {"epilogue"} == {*chosen(LINEAR_RELU)} or name == "layers"


def test_saved_tensors_pass_through_whoever_packs_them(pin: Pin) -> None:
    pin("epilogue")
    x, weight, bias = operands(6)
    packed: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (packed.append(one.shape), one)[1], lambda one: one):
        lab.linear_relu(x, weight.requires_grad_(), bias)
    assert packed == [x.shape, (6, 40)]  # no weight, for nobody asks for x's gradient


@pytest.fixture
def once() -> Iterator[None]:
    """One warning that PyTorch's own operations take over, however often they do."""
    with pytest.warns(RuntimeWarning, match="first derivative only") as told:
        yield
    assert sum("first derivative only" in str(one.message) for one in told) == 1


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("name", ["epilogue", "fused_backward"])
def test_second_derivatives_of_a_layer_are_right(name: str, pin: Pin) -> None:
    pin(name)
    x, weight, bias = (one.requires_grad_() for one in operands(3, inner=4, outer=5, dtype=torch.float64))
    both: list[Any] = [(x, weight, bias), (x, weight, None), (x, weight.detach(), bias)]
    for given in both:
        assert torch.autograd.gradcheck(lab.linear_relu, given, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(lab.linear_relu, given)
    assert chosen(LINEAR_RELU) == [name, name, "eager" if name == "fused_backward" else name]


@pytest.mark.usefixtures("once")
def test_second_derivatives_of_layers_and_of_a_block_are_right(pin: Pin) -> None:
    pin("layers")
    tensors = [one.double().requires_grad_() for one in normal((5, 4), *[(4, 4), (4,)] * 2)]
    assert torch.autograd.gradgradcheck(layers, tensors)
    assert chosen(MLPS[2]) == ["layers"]
    assert torch.autograd.gradgradcheck(training._own_mlp(2, "ieee"), tensors)


@pytest.mark.usefixtures("once")
def test_transforms_and_forward_mode_are_pytorchs(pin: Pin) -> None:
    pin("epilogue")
    x, weight, bias = operands(3)

    def whole(form: Form) -> list[torch.Tensor]:
        given = torch.func.grad(lambda *own: form(*own).square().sum(), argnums=(0, 1, 2))(x, weight, bias)
        mapped = torch.func.vmap(form, in_dims=(0, None, None))(x, weight, bias)
        y, tangent, *_ = torch.func.jvp(lambda x: form(x, weight, bias), (x,), (torch.ones_like(x),))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.clone().requires_grad_(), torch.ones_like(x))
            by_hand = forward_ad.unpack_dual(form(dual, weight, bias)).tangent
        samples = torch.func.vmap(torch.func.grad(lambda w, x: form(x, w, bias).sum()), in_dims=(None, 0))(weight, x)
        assert by_hand is not None
        return [*given, mapped, y, tangent, by_hand.detach(), samples]

    for own, theirs in zip(whole(lab.linear_relu), whole(PLAIN), strict=True):
        torch.testing.assert_close(own, theirs)
    assert chosen(LINEAR_RELU) == []


def test_a_compiler_competes_when_asked() -> None:
    work = Workload("linear_relu", (6, 24, 40), direction=BOTH)
    found = {*LINEAR_RELU.candidates(work, DEVICE, True, Asked((True,) * 3))}
    assert ("compile" in found) == (not compile_missing(work, DEVICE))


def test_a_tensor_that_was_changed_since_is_an_error_as_pytorchs(winner: str) -> None:
    x, weight, bias = operands(3)
    y = lab.linear_relu(x, weight.requires_grad_(), bias)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---------------------------------------------------------------- on a GPU


@on_gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        ("linear_relu", (200, 96, 160)),
        ("linear_relu", (1000, 784, 2048)),
        ("conv_block", (2, 16, 32, 32)),
        ("conv_block", (5, 64, 64, 64)),
        ("mlp", (300, 64, 64, 1, 64)),
        ("mlp", (300, 128, 128, 2, 128)),
    ],
)
def test_no_form_of_both_passes_is_left_out_on_a_gpu(operation: str, shape: tuple[int, ...], dtype: str) -> None:
    """What is left out is told, and a warning is an error here."""
    work = Workload(operation, shape, dtype, direction=BOTH)
    one = {"linear_relu": LINEAR_RELU, "conv_block": CONV_BLOCKS["none"], "mlp": MLPS.get(shape[-2] + 1)}[operation]
    assert one is not None
    drawn = work.inputs("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = one("wall", False, *(drawn[name].requires_grad_() for name in one.names))
        torch.autograd.grad(y, [drawn[name] for name in one.names], drawn["grad"])
    assert len(one.chosen) == 1
