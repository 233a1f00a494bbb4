"""Layers that follow each other as one call into C++: right, and for their like alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import driver  # noqa: F401
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import hypatia_lab as lab
from hypatia_lab import dispatch, runs, training
from hypatia_lab.dispatch import LINEAR_RELU

FORMS = [training.LAYERS["fused_backward"], LINEAR_RELU.direct["eager"], training.LAYERS["fused_backward"]]
"""Of layer after layer what the dispatcher chooses."""
frozen = ["eager"]
"""And of layers that learn nothing."""
looked_up: list[Any] = []


def layers() -> tuple[torch.Tensor, list[Any]]:
    """x, and weights and biases of three layers."""
    draw = torch.Generator().manual_seed(0)
    sizes = (5, 24), (16, 24), (16,), (8, 16), (8,), (12, 8), (12,)
    x, *parameters = [torch.randn(size, generator=draw).requires_grad_() for size in sizes]
    return x, parameters


def choose(self: dispatch.Dispatcher, key: Any, clock: str, tensors: Any) -> Any:
    """In place of a race. Without gradients, or of what is no memory, PyTorch's."""
    looked_up.append(tensors)
    plain = key and key[2] and key[-1] is None and type(tensors[0]) in training.PLAIN
    form = FORMS[[16, 8, 12].index(tensors[1].shape[0])] if plain else LINEAR_RELU.direct[frozen[0]]
    if key:
        self.forms[key] = form
    return form


dispatch.Dispatcher.choose = choose  # pyright: ignore[reportAttributeAccessIssue]


def plain(x: torch.Tensor, parameters: Any) -> torch.Tensor:
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        x = LINEAR_RELU.direct["eager"](x, weight, bias)
    return x


def agree(x: torch.Tensor, parameters: list[Any]) -> bool:
    """Whether nobody in Python was asked for a choice; right in any case."""
    return not asked(x, parameters)


def asked(x: torch.Tensor, parameters: list[Any]) -> int:
    """How often Python was asked for a choice; right in any case."""
    wanted = [one for one in (x, *parameters) if one is not None and one.requires_grad]
    lookups, old = [], LINEAR_RELU._key
    LINEAR_RELU._key = lambda *asked: lookups.append(asked) or old(*asked)  # pyright: ignore[reportAttributeAccessIssue]
    found = runs.linear_relus(x, parameters)
    del LINEAR_RELU._key
    right = plain(x, parameters)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
    if wanted and right.requires_grad:
        own, theirs = (torch.autograd.grad(y.sin().sum(), wanted) for y in (found, right))
        torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-4)
    else:
        assert not found.requires_grad
    return len(lookups)


def check_a_run_is_known_once_its_layers_are() -> None:
    x, parameters = layers()
    assert [agree(x, parameters) for _ in range(3)] == [False, True, True]
    assert len(looked_up) == 3
    assert agree(*layers())  # others like them


def check_what_is_not_alike_is_told_apart() -> None:
    def changed(change: Callable[[torch.Tensor, list[Any]], tuple[torch.Tensor, list[Any]]]) -> None:
        x, parameters = layers()
        assert agree(x, parameters)
        assert not agree(*change(x, parameters))

    agree(*layers())
    changed(lambda x, ps: (x.detach(), ps))
    changed(lambda x, ps: (nn.Parameter(x.detach()), ps))
    changed(lambda x, ps: (x, [*ps[:2], ps[2].detach(), *ps[3:]]))
    changed(lambda x, ps: (x[:3], ps))
    changed(lambda x, ps: (x[None], ps))
    changed(lambda x, ps: (x.t().contiguous().t(), ps))
    changed(lambda x, ps: (x, [*ps[:2], ps[2].t().contiguous().t(), *ps[3:]]))
    changed(lambda x, ps: (x, [*ps[:3], None, *ps[4:]]))
    changed(lambda x, ps: (x, ps[:4]))
    changed(lambda x, ps: (x.double(), [one.double() for one in ps]))
    for guard in (torch.no_grad(), torch.autocast("cpu"), torch.inference_mode()):
        x, parameters = layers()
        with guard:
            assert training.in_cpp().run.default("wall", x, parameters) is None
            dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
            assert runs.linear_relus(x, parameters).dtype is dtype
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    changed_by_precision = not agree(*layers())
    torch.set_float32_matmul_precision(before)
    assert changed_by_precision
    assert agree(*layers())


def check_what_is_no_memory_is_not_described() -> None:
    class Own(torch.Tensor):
        pass

    x, parameters = layers()
    agree(x, parameters)
    assert type(runs.linear_relus(x.as_subclass(Own), parameters)) is Own
    assert type(runs.linear_relus(x, [parameters[0].as_subclass(Own), *parameters[1:]])) is Own
    summed = torch.func.grad(lambda x: runs.linear_relus(x, parameters).sum())(x.detach())
    torch.testing.assert_close(summed, torch.autograd.grad(plain(x, parameters).sum(), x)[0], rtol=1e-4, atol=1e-4)
    nested = torch.nested.nested_tensor([x.detach()[:2], x.detach()], layout=torch.jagged)
    torch.testing.assert_close(runs.linear_relus(nested, parameters).values(), plain(nested, parameters).values())


def check_a_layer_that_learns_nothing_is_of_the_run() -> None:
    x, parameters = layers()
    parameters[:2] = [one.detach() for one in parameters[:2]]
    for frozen[0] in ("eager", "epilogue"):
        LINEAR_RELU.forms.clear()
        x = torch.cat([x, x]).detach()  # not known yet
        assert [agree(x, parameters) for _ in range(2)] == [False, True]


def check_what_c_does_not_know_is_pythons_at_no_further_cost() -> None:
    FORMS[1] = lambda *tensors: plain(tensors[0], tensors[1:])
    assert [asked(*layers()) for _ in range(3)] == [6, 3, 3]


def check_who_looks_on_sees_pytorchs_operations() -> None:
    class Seen(TorchFunctionMode):
        names: ClassVar[list[str]] = []

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    FORMS[:] = [LINEAR_RELU.direct["eager"]] * 3
    x, parameters = layers()
    assert [agree(x, parameters) for _ in range(2)] == [False, True]
    with Seen():
        runs.linear_relus(x, parameters)
    assert (Seen.names.count("linear"), Seen.names.count("relu")) == (3, 3)
    model = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
    lab.nn.convert(model)
    model(x)
    traced: Any = torch.jit.trace(model, x)
    torch.testing.assert_close(traced(x), model(x))


def check_a_model_is_one_call_where_it_can() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(part for pair in ((24, 16), (16, 8)) for part in (nn.Linear(*pair), nn.ReLU())))
    model.append(nn.Linear(8, 12))
    own, x = copy.deepcopy(model), layers()[0]
    assert lab.nn.convert(own) == 2

    def step(of: nn.Module) -> list[Any]:
        y = of(x)
        return [y.detach(), *torch.autograd.grad(y.sin().sum(), [*of.parameters()])]

    for _ in range(2):
        torch.testing.assert_close(step(own), step(model), rtol=1e-4, atol=1e-4)
    assert len(looked_up) == 2
    seen = list[tuple[int, ...]]()
    own[2].register_forward_hook(lambda module, given, y: seen.append(tuple(y.shape)))
    torch.testing.assert_close(step(own), step(model), rtol=1e-4, atol=1e-4)
    assert seen == [(5, 8)]
    assert len(looked_up) == 2  # the layer before is known by itself, from the same choice
