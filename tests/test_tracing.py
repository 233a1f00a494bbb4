"""What torch.compile makes of the dispatcher's operations: the chosen form, in one graph, and nothing carried out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from kernel_tensors import DEVICE, matrices, needs_compiler
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import hypatia_lab as lab
from hypatia_lab import tracing, training
from hypatia_lab.dispatch import LINEAR_RELU
from hypatia_lab.operations.operators import operator
from hypatia_lab.operations.torch_forms import Form

PLAIN = LINEAR_RELU.direct["eager"]
MANY = 8
RAN: list[str] = []

pytestmark = pytest.mark.usefixtures("choices")


@operator("planted_forward")
def planted_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    RAN.append("forward")
    return PLAIN(x, weight, bias)


@planted_forward.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return PLAIN(x, weight, bias)


@operator("planted_backward")
def planted_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    RAN.append("backward")
    masked = grad * (y > 0)
    return masked @ weight, masked.T @ x, masked.sum(0)


@planted_backward.register_fake
def _(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.empty_like(x), torch.empty_like(weight), grad.new_empty(grad.shape[1])


def keep(needs: Any, x: Any, weight: Any, bias: Any) -> Any:
    y = planted_forward(x, weight, bias).data
    return y, (x, weight, y)


def gradients(ctx: Any, grad: torch.Tensor) -> list[torch.Tensor | None]:
    found = planted_backward(grad, *ctx.saved_tensors)
    return [one if needed else None for one, needed in zip(found, ctx.needs_input_grad, strict=True)]


BOTH = training.differentiable(keep, gradients, lambda *given: [])


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form of the lab's is the choice for fewer than so many rows."""

    def candidates(work: Any, device: str, compilers: bool, asked: Any, clock: str) -> dict[str, Form]:
        return {"eager": PLAIN} | (asked.cast({"own": BOTH}) if asked else {"own": planted_forward})

    def measured(forms: Any, tensors: Any, *given: Any) -> str:
        return "own" if len(tensors[0]) < MANY else "eager"

    monkeypatch.setattr(LINEAR_RELU, "candidates", candidates, raising=False)
    monkeypatch.setattr(LINEAR_RELU, "measured", measured, raising=False)
    torch.compiler.reset()
    RAN.clear()


def operands(rows: int, gradients: bool = False) -> list[torch.Tensor]:
    x, *parameters = matrices(rows, inner=24, outer=40, device=DEVICE, seed=1)
    return [x, *(one.requires_grad_(gradients) for one in parameters)]


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("gradients", "rows", "ran"),
    [(False, (3, MANY, 4), ["forward"]), (False, (3, 4), ["forward"] * 2), (True, (3,), ["forward", "backward"])],
)
def test_a_graph_has_the_labs_form_where_that_is_the_choice(
    gradients: bool, rows: tuple[int, ...], ran: list[str]
) -> None:
    # From the second number of rows on one graph is for any number.
    form = torch.compile(lambda *given: lab.linear_relu(*given) * 2, fullgraph=True, backend="aot_eager")
    for count in rows:
        tensors = operands(count, gradients)
        y, right = form(*tensors), PLAIN(*tensors) * 2
        torch.testing.assert_close(y, right)
        if gradients:
            both = (torch.autograd.grad(one.square().sum(), tensors[1:]) for one in (y, right))
            torch.testing.assert_close(*both)
    assert ran == RAN


@needs_compiler
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("gradients", "quickest", "ran"), [(False, "own", ["forward"]), (False, "eager", []), (True, "eager", ["forward"])]
)
def test_without_gradients_what_inductor_makes_of_pytorchs_form_competes(
    gradients: bool, quickest: str, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measured(forms: Any, tensors: Any, *given: Any) -> str:
        if forms["eager"] is PLAIN:
            return "own"
        torch.testing.assert_close(forms["eager"](*tensors), PLAIN(*tensors))
        asked.append(quickest)
        return quickest

    monkeypatch.setattr(LINEAR_RELU, "measured", measured, raising=False)
    torch.compile(lab.linear_relu, fullgraph=True, backend="aot_eager")(*operands(3, gradients))
    assert ran == RAN
    assert bool(asked) is not gradients


@pytest.mark.usefixtures("planted")
def test_who_traces_does_not_wait_for_who_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latter may race torch.compile, and wait for the former."""
    begun, traced, tensors = threading.Event(), threading.Event(), operands(3)

    def measured(forms: Any, *given: Any) -> str:
        begun.set()
        assert traced.wait(20)
        return "own"

    monkeypatch.setattr(LINEAR_RELU, "measured", measured, raising=False)
    with ThreadPoolExecutor(1) as other:
        chosen = other.submit(lab.linear_relu, *operands(4))
        assert begun.wait(20)
        y = torch.compile(lab.linear_relu, fullgraph=True, backend="aot_eager")(*tensors)
        assert RAN == []
        traced.set()
        chosen.result()
    torch.testing.assert_close(y, PLAIN(*tensors))
    assert RAN == ["forward"]


@pytest.mark.usefixtures("planted")
def test_where_inductor_fails_the_form_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(forms: Any, tensors: Any, *given: Any) -> str:
        assert forms["eager"] is PLAIN, "what Inductor says where it cannot"
        return "own"

    monkeypatch.setattr(LINEAR_RELU, "measured", measured, raising=False)
    tensors = operands(3)
    y = torch.compile(lab.linear_relu, fullgraph=True, backend="aot_eager")(*tensors)
    torch.testing.assert_close(y, PLAIN(*tensors))
    assert RAN == []


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(("replays", "clock"), [(False, "wall"), (True, "graph")])
def test_the_clock_is_that_of_what_is_replayed(replays: bool, clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINEAR_RELU, "chosen", {})
    with inductor.patch({"triton.cudagraphs": replays}):
        torch.compile(lab.linear_relu, fullgraph=True, backend="aot_eager")(*operands(3))
    assert {key[0] for key in LINEAR_RELU.chosen} == {clock}


@pytest.mark.usefixtures("planted")
def test_of_sizes_that_are_open_both_passes_are_pytorchs() -> None:
    form = torch.compile(lab.linear_relu, fullgraph=True, backend="aot_eager", dynamic=True)
    assert form(*operands(3, gradients=True)).requires_grad
    assert RAN == []


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("gradients", [False, True])
def test_what_comes_before_is_carried_out_once(gradients: bool) -> None:
    x, *parameters = operands(3, gradients)
    before = x.clone()
    torch.compile(lambda x: lab.linear_relu(x.add_(1), *parameters), fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(x, before + 1)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "whole",
    [
        lambda form, x, weight, bias: torch.func.vmap(form, in_dims=(0, None, None))(x, weight, bias),
        lambda form, x, weight, bias: torch.func.grad(lambda weight: form(x, weight, bias).sum())(weight),
        lambda form, x, *others: torch.func.jvp(lambda x: form(x, *others), (x,), (torch.ones_like(x),))[1],
        lambda form, *given: checkpoint(form, *given, use_reentrant=False),
        lambda form, x, *others: torch.cond(x.sum() > 0, lambda x: form(x, *others), lambda x: form(-x, *others), (x,)),
        lambda form, x, weight, bias: form(x, weight),
        lambda form, x, weight, bias: form(x.T.contiguous().T, weight, bias),
        lambda form, *given: torch.autocast(DEVICE, torch.bfloat16)(form)(*given).float(),
        lambda form, *given: form(*(one.to("meta") for one in given)),
        lambda form, x, *others: form(TwoTensor(x, x.clone()), *others).a,
    ],
    ids=["vmap", "grad", "jvp", "checkpoint", "cond", "no bias", "strided", "autocast", "meta", "subclass"],
)
def test_whatever_else_is_traced_agrees_with_pytorchs(whole: Callable[..., torch.Tensor], backend: Any) -> None:
    tensors = operands(3, gradients=True)
    own = torch.compile(lambda *given: whole(lab.linear_relu, *given), fullgraph=True, backend=backend)(*tensors)
    right = whole(lambda x, weight, bias=None: PLAIN(x, weight, bias), *tensors)
    torch.testing.assert_close(own, right)
    if own.requires_grad and not own.is_meta:
        found, theirs = (torch.autograd.grad(y.sum(), tensors[1:], allow_unused=True) for y in (own, right))
        for one, other in zip(found, theirs, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_has_no_operator_of_the_labs(strict: bool) -> None:
    program = torch.export.export(lab.nn.LinearReLU(24, 40).to(DEVICE), (operands(3)[0],), strict=strict)
    assert not any("hypatia" in str(node.target) for node in program.graph.nodes)
    assert RAN == []


@pytest.mark.usefixtures("planted")
def test_a_graph_that_is_stored_names_the_text_of_the_forms() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(lab.linear_relu, backend=backend)(*operands(3))
    assert any(tracing.text() in node.args for node in graphs[0].graph.nodes)
