"""Times that the optimizer measures, of operators and of whole graphs, and what is worth its while only by them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest
import torch
from egraph_modules import mlp, optimized, targets
from torch import nn
from torch.nn import functional

from hypatia_lab.clock import ClockError
from hypatia_lab.egraph import DEFAULT, Costs, Optimized, Time, calls, measure, optimize
from hypatia_lab.egraph.cost import weights
from hypatia_lab.egraph.extract import extract
from hypatia_lab.egraph.rules import rules_of
from hypatia_lab.egraph.saturation import Node, saturate
from hypatia_lab.egraph.terms import Type
from hypatia_lab.machine import choose_device

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("seeded", "unmeasured"),
]


class Fast(dict):
    """Costs by the operator alone."""

    def get(self, name, default=None):
        return super().get(name.split()[0], default)


@pytest.mark.parametrize("training", [True, False])
def test_costs_are_measured_once_stored_and_decide(tmp_path, monkeypatch, training):
    monkeypatch.setattr(measure, "SPREAD", float("inf"))  # of a busy machine as well
    module, x = mlp(2).train(training), torch.randn(8, 16)
    result = optimized(module, x, measure=True)
    assert result.report.measured == 1
    assert measure.stored("cpu", training=not training).measured == {}
    stored = measure.stored("cpu", training=training)
    assert {name.split()[0] for name in stored.measured} >= {"Linear", "Relu", "LinearRelu"}
    operators = [time for name, time in stored.measured.items() if not name.startswith("whole ")]
    assert all(0 < time.low < time.estimate < time.high for time in operators)
    with monkeypatch.context() as patch:
        patch.setattr(measure, "timer", None)  # no operator is measured twice
        patch.setattr(measure, "race", lambda *given: {})
        assert optimized(module, x, measure=True).report.measured == 1
    slow = {name: Time(1e6, 1e6, 1e6) for name in stored.measured if name.startswith("LinearRelu ")}
    kept = optimized(module, x, costs=Costs("cpu", measured={**stored.measured, **slow}))
    assert targets(kept) == ["linear", "relu", "linear"]
    (tmp_path / "costs.json").write_text("{ no JSON")
    assert measure.stored("cpu", training=training).measured == {}
    monkeypatch.setattr(measure, "SPREAD", 1.0)
    assert optimized(module, x, measure=True).report.measured == 1
    assert measure.stored("cpu", training=training).measured == {}


CALM, BUSY = (0.999, 1.0, 1.001, 1.0), (1.0, 1.3, 1.31, 0.99, 1.6, 1.0)
"""What a host adds: always as much, and much for a while."""


def raced(monkeypatch, original_us: float, rewritten_us: float, host: Sequence[float] = CALM) -> None:
    """Whatever is timed as a whole takes so long, times what the host adds; operators are timed as ever."""
    real = measure.timer.measure

    def timed(runs, *rest, **more):
        if set(runs) != {"original", "rewritten"}:
            return real(runs, *rest, **more)
        for run in runs.values():
            run()
        samples = {"original": original_us, "rewritten": rewritten_us}
        return {name: measure.timer.Timing(1, [us * slower for slower in host]) for name, us in samples.items()}

    monkeypatch.setattr(measure.timer, "measure", timed)
    fast = {"LinearRelu": Time(1.0, 1.0, 1.0)}
    monkeypatch.setattr(measure, "measure", lambda costs, egraph: replace(costs, measured=Fast(fast)))


@pytest.mark.parametrize(
    ("us", "kept", "host"), [(90.0, True, CALM), (99.5, False, CALM), (90.0, True, BUSY), (99.5, False, BUSY)]
)
def test_a_rewritten_graph_that_is_no_faster_as_a_whole_is_not_taken(monkeypatch, us, kept, host):
    raced(monkeypatch, 100.0, us, host)
    module, x = mlp(2), torch.randn(8, 16)
    result = optimized(module, x, measure=True)
    assert targets(result) == (["linear_relu", "linear"] if kept else ["linear", "relu", "linear"])
    assert set(result.report.raced) == ({"original", "rewritten"} if kept else {"original"})
    assert bool(result.report.rewrites) == kept == (result.report.nodes_after < result.report.nodes_before)
    assert (result.report.cost_after < result.report.cost_before) == kept
    torch.testing.assert_close(result(x), module(x))
    assert result.get_parameter("0.weight") is module.get_parameter("0.weight")


@pytest.mark.parametrize(("training", "grad"), [(True, True), (False, True), (True, False)])
def test_a_module_in_train_mode_is_raced_by_both_passes(monkeypatch, training, grad):
    raced(monkeypatch, 100.0, 90.0)
    module, passes = mlp(2).train(training), []
    module.get_parameter("0.weight").register_hook(passes.append)
    with torch.set_grad_enabled(grad):
        result = optimized(module, torch.randn(8, 16), measure=True, mode="off")
    assert set(result.report.raced) == {"original", "rewritten"}
    assert bool(passes) == (training and grad)


def test_running_statistics_are_asked_for_no_gradient():
    module = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2))
    module.get_submodule("1").eval()
    assert optimized(module, torch.randn(2, 2, 9, 9), measure=True).report.measured == 1


def test_what_has_no_backward_pass_is_raced_by_the_other(monkeypatch):
    raced(monkeypatch, 100.0, 200.0)
    forward = measure.timer.measure

    def timed(runs, *rest, **more):
        return dict.fromkeys(runs, ClockError("no")) if torch.is_grad_enabled() else forward(runs, *rest, **more)

    monkeypatch.setattr(measure.timer, "measure", timed)
    result = optimized(mlp(2).train(), torch.randn(8, 16), measure=True)
    assert set(result.report.raced) == {"original"}
    assert targets(result) == ["linear", "relu", "linear"]


def test_a_race_is_kept_for_what_wants_gradients_alike(monkeypatch):
    raced(monkeypatch, 100.0, 90.0)
    module, x = mlp(2).train(), torch.randn(8, 16)
    optimized(module.requires_grad_(False), x, measure=True, mode="off")
    timed = mock.Mock(wraps=measure.timer.measure)
    monkeypatch.setattr(measure.timer, "measure", timed)
    for _ in range(2):
        optimized(module.requires_grad_(), x, measure=True, mode="off")
        assert timed.call_count == 1


def test_a_race_is_run_once_on_a_machine(monkeypatch):
    raced(monkeypatch, 100.0, 90.0)
    module, x = mlp(2), torch.randn(8, 16)
    first = optimized(module, x, measure=True).report.raced
    monkeypatch.setattr(measure.timer, "measure", None)
    again = optimized(copy.deepcopy(module), x, measure=True)
    assert again.report.raced == first
    assert targets(again) == ["linear_relu", "linear"]


def test_what_writes_into_its_buffers_is_not_run_for_a_race(monkeypatch):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp(2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.layers(x)

    raced(monkeypatch, 100.0, 200.0)
    module = Counting()
    result = optimize(module, (torch.randn(8, 16),), measure=True, mode="off")
    assert isinstance(result, Optimized)
    assert result.report.raced == {}
    assert "linear_relu" in targets(result)
    assert module.calls == 0


def test_a_graph_that_cannot_be_timed_stays_rewritten(monkeypatch):
    raced(monkeypatch, 100.0, 200.0)
    monkeypatch.setattr(measure.timer, "measure", lambda runs, *rest, **more: dict.fromkeys(runs, ClockError("no")))
    result = optimized(mlp(2), torch.randn(8, 16), measure=True)
    assert result.report.raced == {}
    assert "linear_relu" in targets(result)


@pytest.mark.cuda
@pytest.mark.skipif(choose_device("auto") == "cpu", reason="there is no GPU")
@pytest.mark.parametrize("shape", [(1, 8, 8), (64, 784, 256), (33, 130, 10), (128, 512, 512), (5, 3, 4097)])
def test_a_bias_apart_from_its_product_agrees_with_float64(shape):
    batch, inner, outer = shape
    g = torch.Generator("cuda").manual_seed(0)
    x, weight, bias = (
        torch.randn(*size, generator=g, device="cuda") for size in ((batch, inner), (outer, inner), (outer,))
    )
    exact = functional.linear(x.double(), weight.double(), bias.double())
    for found, wanted in ((calls.linear_apart, exact), (calls.linear_relu_apart, exact.relu())):
        for given in (x, x[None], x.t().contiguous().t()):
            y = found(given, weight, bias)
            assert y.shape == (*given.shape[:-1], outer)
            assert float((y.double() - wanted).norm()) <= 1e-6 * float(wanted.norm())


def test_a_product_whose_bias_stands_apart_is_an_operator():
    given = torch.randn(5, 16), torch.randn(8, 16), torch.randn(8)
    torch.testing.assert_close(calls.linear_apart(*given), functional.linear(*given))
    torch.library.opcheck(torch.ops.hypatia.linear_apart.default, given)
    given[0].requires_grad_()
    assert calls.linear_apart(*given).grad_fn is not None


def test_a_bias_may_stand_apart_from_a_float32_product_on_a_gpu():
    module, x = mlp(2), torch.randn(8, 16)
    costs = Costs("cuda", measured=Fast({"LinearReluApart": Time(0.1, 0.1, 0.1), "LinearApart": Time(0.1, 0.1, 0.1)}))
    result = optimized(module, x, costs=costs)
    assert targets(result) == ["linear_relu_apart", "linear_apart"]
    torch.testing.assert_close(result(x), module(x))
    assert not result(x).requires_grad or result(x).grad_fn is not None
    with mock.patch("hypatia_lab.egraph.calls.apart_missing", return_value="none"):
        assert targets(optimized(module, x, costs=costs)) == ["linear_relu", "linear"]


def test_split_products_are_an_option_of_a_gpu():
    x, w = Type((512, 2048), "float32"), Type((2048, 2048), "float32")
    nodes = [
        Node("x", "Input", ("x",), x),
        Node("w", "Param", ("w",), w),
        Node("l", "Linear", ("x", "w", None), x),
        Node("r", "Relu", ("l",), x),
    ]
    for device, split, expected in (("cuda", False, "LinearRelu"), ("cuda", True, "LinearReluSplit")):
        with mock.patch("hypatia_lab.egraph.calls.split_missing", return_value=""):
            egraph = saturate(nodes, rules_of((*DEFAULT, "split") if split else DEFAULT))
            costs = Costs(device)
            found = extract(egraph, [egraph.class_of["r"]], weights(egraph, costs))
        assert found.chosen[egraph.class_of["r"]].operator == expected
    module, x = mlp(2), torch.randn(8, 16)
    result = optimized(module, x, split=True)
    assert targets(result) == ["linear_relu", "linear"]
    weight = module.get_parameter("0.weight")
    torch.testing.assert_close(calls.linear_relu_split(x, weight, None), torch.relu(x @ weight.t()))
