"""Modules that compute by the dispatcher, put into models that know nothing of them."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_tensors import DEVICE, normal
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import hypatia_lab as lab
from hypatia_lab import races
from hypatia_lab.dispatch import CONV_BLOCKS, LINEAR_RELU
from hypatia_lab.nn import LinearReLU, Sequential


@pytest.fixture(autouse=True)
def pinned(choices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher knows nothing, and eager is the slowest by clocks that nothing disturbs."""

    def samples(runs: dict[str, Any], *how: Any) -> dict[str, list[float]]:
        return {name: [2.0 if name == "eager" else 1.0] * 4 for name in runs}

    monkeypatch.setattr(races, "timed", samples)


def block(channels: int = 4) -> list[nn.Module]:
    norm = nn.InstanceNorm2d(channels, affine=True)
    return [nn.Conv2d(channels, channels, 3, padding=1), norm, nn.GELU("tanh")]


class Layers(nn.Module):
    """As people write it, one ReLU for all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.relu, self.dropout = nn.ReLU(inplace=True), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        x = self.dropout(self.relu(self.second(self.relu(self.first(x)))))
        return self.last(x if skip is None else x + skip)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.acts = nn.ModuleDict({"hidden": nn.ReLU()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = self.acts["hidden"](layer(x))
        return self.layers[-1](x)


def sequence() -> nn.Module:
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    return nn.Sequential(OrderedDict[str, nn.Module](stem=nn.Linear(6, 8), act=nn.ReLU(), head=head))


def image() -> nn.Module:
    tail = (nn.Flatten(), nn.Linear(4 * 36, 8, bias=False), nn.ReLU(), nn.Linear(8, 3))
    return nn.Sequential(nn.Conv2d(6, 4, 1), *block(), *block(), *tail)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "attributes": (Layers, (5, 6), 2),
    "lists": (Listed, (5, 6), 2),
    "sequence": (sequence, (5, 6), 2),
    "image": (image, (2, 6, 6, 6), 3),
}
"""Model, shape of its x, patterns in it."""


def made(name: str) -> tuple[nn.Module, torch.Tensor, int]:
    build, shape, count = MODELS[name]
    torch.manual_seed(1)
    return build().to(DEVICE), normal(shape, device=DEVICE)[0], count


def gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """y and the gradients of x and of all parameters, by name."""
    leaf = x.detach().clone().requires_grad_()
    y = model(leaf)
    model.zero_grad()
    y.square().sum().backward()
    named = {"x": leaf} | {name.removeprefix("_orig_mod."): one for name, one in model.named_parameters()}
    return {"y": y.detach()} | {name: one.grad for name, one in named.items() if one.grad is not None}


def alike(own: nn.Module, usual: nn.Module, x: torch.Tensor) -> None:
    found, theirs = gradients(own, x), gradients(usual, x)
    assert found.keys() == theirs.keys()
    exact = gradients(copy.deepcopy(usual).double(), x.double())
    for name, one in exact.items():
        # A bias's gradient sums what its weight's does, and before a normalisation it is 0 but for rounding.
        layer = [other for other in theirs if other.rpartition(".")[0] == name.rpartition(".")[0]]
        most = max(float(theirs[other].abs().max()) for other in (["y"] if name == "x" else layer)) + 1e-3
        assert float((found[name] - one).abs().max()) <= 2 * float((theirs[name] - one).abs().max()) + 3e-6 * most, name


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_is_the_same_function_with_the_same_state(name: str) -> None:
    model, x, count = made(name)
    usual, parameters = copy.deepcopy(model), [*model.parameters()]
    assert lab.nn.convert(model) == count
    assert lab.nn.convert(model) == 0
    assert all(own is before for own, before in zip(model.parameters(), parameters, strict=True))
    shapes, same = ({key: one.shape for key, one in own.state_dict().items()} for own in (model, usual))
    assert shapes == same
    alike(model, usual, x)
    assert any(form != "eager" for one in (LINEAR_RELU, *CONV_BLOCKS.values()) for form in one.chosen.values())
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), usual.eval()(x))


@pytest.mark.parametrize("name", MODELS)
def test_a_state_is_loaded_on_either_side_of_a_conversion(name: str, tmp_path: Path) -> None:
    model, x, _ = made(name)
    other, fresh = (MODELS[name][0]().to(DEVICE) for _ in range(2))
    lab.nn.convert(other)
    for before, after in ((model, other), (other, fresh)):
        torch.save(before.state_dict(), tmp_path / "state.pt")
        after.load_state_dict(torch.load(tmp_path / "state.pt"))
        alike(after, model, x)


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_is_copied_and_pickled(name: str) -> None:
    model, x, count = made(name)
    usual = copy.deepcopy(model)
    lab.nn.convert(model, clock="graph")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert {id(one) for one in twin.parameters()}.isdisjoint(map(id, model.parameters()))
        alike(twin, usual, x)
        clocks = {one.clock for one in twin.modules() if isinstance(one, LinearReLU | Sequential)}
        assert clocks == {"graph"}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # PyTorch's own instance norm looks at sizes
@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_is_compiled_as_one_graph_and_traced(name: str) -> None:
    model, x, _ = made(name)
    usual = copy.deepcopy(model)
    lab.nn.convert(model)
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    alike(compiled, usual, x)
    asked = {*LINEAR_RELU.chosen}
    traced: Any = torch.fx.symbolic_trace(model, {"skip": None} if isinstance(model, Layers) else None)
    torch.testing.assert_close(traced(x), usual(x))
    exported: Any = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), usual(x))
    assert {*LINEAR_RELU.chosen} == asked
    scripted: Any = torch.jit.trace(model, (x,), check_trace=False)
    torch.testing.assert_close(scripted(x), usual(x))
    assert {*LINEAR_RELU.chosen} == asked


def test_a_layer_alone_is_a_linear_and_a_relu() -> None:
    layer, usual = LinearReLU(6, 4, bias=False, device=DEVICE), nn.Linear(6, 4, bias=False, device=DEVICE)
    usual.load_state_dict(layer.state_dict())
    (x,) = normal((2, 3, 6), device=DEVICE)
    theirs = gradients(nn.Sequential(usual, nn.ReLU()), x)
    torch.testing.assert_close([*gradients(layer, x).values()], [*theirs.values()])


# ---------------------------------------------------------------- what stays as it is


class Bent(Layers):
    """Goes on behind its first layer in a ``way`` of its own."""

    def __init__(self, way: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        return self.way(self, self.first(x), skip)


STAY: dict[str, Callable[..., torch.Tensor]] = {
    "what a ReLU reads is given back, too": lambda own, h, skip: own.last(own.relu(h)) + h.sum(),
    "a ReLU that is given something else": lambda own, h, skip: own.last(own.relu(own.second(own.relu(h)) + 1)),
    "a ReLU in training alone": lambda own, h, skip: own.last(own.relu(h) if own.training else h),
    "no ReLU without an argument": lambda own, h, skip: own.last(h if skip is None else own.relu(h)),
    "a layer that comes twice": lambda own, h, skip: own.last(own.second(own.relu(own.second(h)))),
    "what cannot be traced": lambda own, h, skip: own.last(own.relu(h) if h.sum() > 0 else h),
    "a function": lambda own, h, skip: own.last(functional.relu(h)),
}


@pytest.mark.parametrize("way", STAY)
def test_what_is_not_surely_a_layer_with_its_relu_stays(way: str) -> None:
    model = Bent(STAY[way]).to(DEVICE)
    usual, kinds = copy.deepcopy(model), [type(one) for one in model.modules()]
    assert lab.nn.convert(model) == 0
    assert [type(one) for one in model.modules()] == kinds
    (x,) = normal((5, 6), device=DEVICE)
    for training in (True, False):
        torch.testing.assert_close(model.train(training)(x), usual.train(training)(x))


def hooked(model: nn.Sequential) -> None:
    model[0].register_forward_hook(lambda module, given, y: 2 * y)  # pyright: ignore[reportOperatorIssue]


def replaced(model: nn.Sequential) -> None:
    layer: Any = model[0]
    layer.forward = lambda x: x  # as libraries do that move layers between devices


def parametrized(model: nn.Sequential) -> None:
    parametrizations.weight_norm(model[0])


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("change", [hooked, replaced, parametrized])
def test_a_layer_with_something_of_its_own_is_called_by_itself(change: Callable[..., None], late: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).to(DEVICE)
    usual = copy.deepcopy(model)
    change(usual)
    if late:
        assert lab.nn.convert(model) == 1
    change(model)
    assert lab.nn.convert(model) == 0
    model.load_state_dict(usual.state_dict())
    (x,) = normal((5, 6), device=DEVICE)
    torch.testing.assert_close(model(x), usual(x))


def test_tensors_in_the_place_of_parameters_are_taken() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU())
    own, x = copy.deepcopy(model), torch.randn(5, 4)
    lab.nn.convert(own)
    others = {"0.weight": torch.randn(3, 4), "2.bias": torch.randn(3)}
    right = torch.func.functional_call(model, others, x)
    torch.testing.assert_close(torch.func.functional_call(own, others, x), right)
    for name, tensor in others.items():
        place, kind = name.split(".")
        delattr(own[int(place)], kind)
        setattr(own[int(place)], kind, tensor)
    torch.testing.assert_close(own(x), right)


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel_size": 5},
        {"padding": 0},
        {"stride": 2},
        {"groups": 2},
        {"padding_mode": "reflect"},
        {"out_channels": 6, "num_features": 6},
        {"affine": False},
        {"eps": 1e-3},
        {"track_running_stats": True},
    ],
)
def test_other_blocks_stay(changes: dict[str, Any]) -> None:
    norm: dict[str, Any] = {"num_features": 4, "affine": True, "eps": 1e-5, "track_running_stats": False}
    conv: dict[str, Any] = {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "padding": 1}
    for name, value in changes.items():
        (norm if name in norm else conv)[name] = value
    model = nn.Sequential(nn.Conv2d(**conv), nn.InstanceNorm2d(**norm), nn.GELU()).to(DEVICE)
    assert lab.nn.convert(model) == 0
    assert type(model) is nn.Sequential


def test_one_image_without_a_batch_is_pytorchs() -> None:
    model = nn.Sequential(*block()).to(DEVICE)
    usual = copy.deepcopy(model)
    assert lab.nn.convert(model) == 1
    (x,) = normal((4, 6, 6), device=DEVICE)
    torch.testing.assert_close(model(x), usual(x))


# ---------------------------------------------------------------- training


def curve(model: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """The losses of 200 steps on fixed numbers."""
    model = model.to(dtype)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(64, 6, generator=generator).to(DEVICE, dtype)
    wanted = torch.sin(x @ torch.randn(6, 3, generator=generator).to(DEVICE, dtype))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(200):
        loss = (model(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().double())
    return torch.stack(losses)


@pytest.mark.parametrize("name", ["attributes", "sequence"])
def test_a_loss_falls_as_float64s_does(name: str) -> None:
    model, *_ = made(name)
    exact, usual = curve(copy.deepcopy(model), torch.float64), curve(copy.deepcopy(model), torch.float32)
    lab.nn.convert(model)
    own = curve(model, torch.float32)
    assert {*LINEAR_RELU.chosen.values()} == {"epilogue"}
    assert float(own[-1]) < float(own[0]) / 2
    distance = float((usual - exact).abs().max())
    assert float((own - exact).abs().max()) <= 2 * distance + 1e-7
