"""Whole modules through the e-graph: equal to eager, on the same parameters, effects in their order."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from hypatia_lab.egraph import Costs, EGraphError, Optimized, Unchanged, optimize, rewrite_graph

pytestmark = [pytest.mark.begun, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def mlp(layers: int, width: int = 16) -> nn.Sequential:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def targets(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target).split(".")[1] for node in module.graph.nodes if node.op == "call_function"]


def optimized(module: nn.Module, *args, **options) -> Optimized:
    result = optimize(module, args, mode="strict", **options)
    assert isinstance(result, Optimized)
    return result


def test_an_mlp_is_fused_equal_and_reported():
    module, x = mlp(3), torch.randn(8, 16)
    result = optimized(module, x)
    assert targets(result) == ["linear_relu_epilogue", "linear_relu_epilogue", "linear"]
    torch.testing.assert_close(result(x), module(x))
    report = result.report
    assert (report.reason, report.nodes_before, report.nodes_after) == ("", 6, 4)
    assert [(rewrite.rules, rewrite.at, rewrite.into) for rewrite in report.rewrites] == [
        (("linear_relu",), ("relu",), "LinearRelu"),
        (("linear_relu",), ("relu_1",), "LinearRelu"),
    ]
    assert report.cost_after < report.cost_before
    assert report.error < 1e-6
    assert report.gap < 1e-6
    assert set(report.seconds) == {"capture", "read", "saturate", "extract", "rebuild"}


def test_equal_half_precision_layers_become_one_operation():
    module, x = mlp(3).bfloat16(), torch.randn(8, 16, dtype=torch.bfloat16)
    result = optimized(module, x, costs=Costs("cuda"))
    assert result.report.nodes_after == 2
    assert [rewrite.into for rewrite in result.report.rewrites] == ["Mlp3"]
    torch.testing.assert_close(result(x), module(x))


def test_parameters_are_shared_steps_and_loads_are_seen_and_gradients_equal():
    module, x = mlp(3), torch.randn(8, 16)
    result = optimized(module, x)
    assert {id(p) for p in result.parameters()} == {id(p) for p in module.parameters()}
    before = result(x)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    expected = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    result(x).square().sum().backward()
    for parameter, grad in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    optimizer.step()
    assert not torch.equal(result(x), before)
    torch.testing.assert_close(result(x), module(x))
    module.load_state_dict(mlp(3).state_dict())
    torch.testing.assert_close(result(x), module(x))


class Tied(nn.Module):
    shift: torch.Tensor

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x, *, scale):
        y = torch.relu(self.first(x))
        z = torch.relu(self.second(y)) + self.shift
        return {"z": [z, (y, x)], "scaled": z * scale, "same": torch.relu(self.first(x))}


def test_tied_weights_buffers_keywords_and_nested_outputs():
    module, x, scale = Tied(), torch.randn(3, 8), torch.randn(8)
    result = optimized(module, x, kwargs={"scale": scale})
    out, expected = result(x, scale=scale), module(x, scale=scale)
    torch.testing.assert_close(out, expected)
    assert isinstance(out["z"], list)
    assert isinstance(out["z"][1], tuple)
    # The third Linear+ReLU is the first one again, and was a tensor of its own.
    assert out["same"].data_ptr() != out["z"][1][0].data_ptr()
    assert sum(name.startswith("linear_relu") for name in map(str, (n.name for n in result.graph.nodes))) == 2
    module.shift.add_(1)
    torch.testing.assert_close(result(x, scale=scale), module(x, scale=scale))


class Twice(nn.Module):
    def forward(self, x):
        first, second = torch.relu(x), torch.relu(x)
        return first, second.view(-1), torch.relu(first), first.view(-1), x.view(-1), x.t().t()


def test_equal_results_stay_apart_and_views_stay_views():
    module, x = Twice(), torch.randn(2, 3)
    result = optimized(module, x)
    assert targets(result).count("relu") == 1
    torch.testing.assert_close(result(x), module(x))

    def shared(tensors):
        return [[a.data_ptr() == b.data_ptr() for a in tensors] for b in tensors]

    assert shared((x, *result(x))) == shared((x, *module(x)))


class InPlace(nn.Module):
    calls: torch.Tensor
    memory: torch.Tensor

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("memory", torch.zeros(4, 8))

    def forward(self, x):
        before = self.memory.sum(0)
        self.calls.add_(1)
        self.memory.view(-1)[:8].copy_(x[0])
        y = self.linear(x)
        shown = y.view(-1)
        first = torch.relu(y)
        y.mul_(2)
        x.add_(1)
        z = self.linear(x)
        return torch.relu(y), first, shown, before, self.memory.sum(0), torch.relu(torch.relu(z))


def test_what_is_written_into_stays_in_its_order():
    module, x = InPlace(), torch.randn(4, 8)
    result = optimized(module, x.clone())
    assert float(module.calls) == 0
    assert torch.equal(module.memory, torch.zeros(4, 8))
    own, other = x.clone(), x.clone()
    with torch.no_grad():
        out = [t.clone() for t in result(own)]
        state = module.memory.clone()
        module.memory.zero_()
        expected = [t.clone() for t in module(other)]
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(own, other)
    torch.testing.assert_close(state, module.memory)
    assert float(module.calls) == 2
    # What nobody writes into is still rewritten.
    assert [(rewrite.rules, rewrite.into) for rewrite in result.report.rewrites] == [(("relu_relu",), "Relu")]


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.drop(torch.relu(self.linear(x)))))))


def test_evaluation_removes_dropout_and_training_keeps_it_its_seed_and_its_statistics():
    module, x = Normed(), torch.randn(16, 8)
    training = optimized(module, x)
    assert module.norm.num_batches_tracked == 0
    assert targets(training).count("dropout") == 2
    results = []
    for run in (training, module):
        torch.manual_seed(3)
        module.norm.reset_running_stats()
        results.append((run(x), {name: buffer.clone() for name, buffer in module.norm.named_buffers()}))
    torch.testing.assert_close(*results)
    with pytest.raises(NotImplementedError, match="captured in train mode"):
        training.eval()
    module.eval()
    evaluation = optimized(module, x)
    assert "dropout" not in targets(evaluation)
    assert any("dropout_eval" in rewrite.rules for rewrite in evaluation.report.rewrites)
    torch.testing.assert_close(evaluation(x), module(x))
    assert nn.Sequential(evaluation).eval() is not None
    with pytest.raises(NotImplementedError, match="captured in eval mode"):
        evaluation.train()


@pytest.mark.parametrize("training", [False, True])
def test_a_transformer_encoder_layer_equals_eager(training):
    module, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).train(training), torch.randn(2, 5, 16)
    result = optimized(module, x)
    torch.manual_seed(1)
    expected = module(x)
    torch.manual_seed(1)
    torch.testing.assert_close(result(x), expected)
    assert targets(result).count("relu") == 0


def test_an_lstm_equals_eager():
    module, x = nn.LSTM(8, 6, num_layers=2, batch_first=True), torch.randn(3, 5, 8)
    result = optimized(module, x)
    torch.testing.assert_close(result(x), module(x))


def test_decomposed_three_dimensional_layers_are_fused():
    module, x = mlp(3, 8), torch.randn(2, 5, 8)
    graph = torch.export.export(module, (x,)).run_decompositions().module()
    result = rewrite_graph(graph, costs=Costs("cpu"))
    torch.testing.assert_close(result(x), module(x))
    assert [rewrite.into for rewrite in result.report.rewrites].count("LinearRelu") == 2
    assert targets(result).count("relu") == 0


def test_a_relu_in_place_is_fused_where_nobody_else_reads_what_it_writes_into():
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)), torch.randn(3, 8)
    result = optimized(module, x)
    assert targets(result) == ["linear_relu_epilogue", "linear"]
    torch.testing.assert_close(result(x), module(x))
    inplace = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 4))
    result, own, other = optimized(inplace, x.clone()), x.clone(), x.clone()
    torch.testing.assert_close(result(own), inplace(other))
    torch.testing.assert_close(own, other)


class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def test_control_flow_gives_the_original_back_with_the_reason():
    module, x = Branching(), torch.ones(3)
    with pytest.warns(UserWarning, match="not optimized: cannot be captured"):
        result = optimize(module, (x,))
    assert isinstance(result, Unchanged)
    assert result.report.reason.startswith("cannot be captured")
    torch.testing.assert_close((result(x), result(-x)), (module(x), module(-x)))
    assert isinstance(optimize(module, (x,), mode="off"), Unchanged)
    with pytest.raises(EGraphError, match="cannot be captured"):
        optimized(module, x)


def test_a_result_that_differs_is_not_given_back(monkeypatch):
    from hypatia_lab.egraph import GOALS, Grade, Rule

    monkeypatch.setitem(GOALS, "wrong", (Rule("no_relu", "(Relu x)", "x", Grade.EXACT),))
    module, x = mlp(2), torch.randn(4, 16)
    with pytest.raises(EGraphError, match="result 0 differs by"):
        optimized(module, x, rules=("wrong",))
    with pytest.warns(UserWarning, match="differs by"):
        assert isinstance(optimize(module, (x,), rules=("wrong",)), Unchanged)
    assert not isinstance(optimize(module, (x,), rules=("wrong",), mode="off"), Unchanged)


def test_unknown_modes_and_goals_are_refused():
    with pytest.raises(ValueError, match="no mode 'loud'"):
        optimize(mlp(1), (torch.ones(1, 16),), mode="loud")
    with pytest.raises(ValueError, match="no goal magic"):
        optimize(mlp(1), (torch.ones(1, 16),), rules=("magic",))


def test_a_compiled_module_trains_as_eager_does_whatever_the_batch():
    from hypatia_lab.egraph.backend import hypatia

    module = mlp(3, 8)
    compiled = torch.compile(module, backend=hypatia, dynamic=True)
    for batch in (4, 7):
        x = torch.randn(batch, 8)
        gradients = [torch.autograd.grad(f(x).square().sum(), list(module.parameters())) for f in (compiled, module)]
        torch.testing.assert_close(*gradients)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))


def test_the_compiled_forward_graph_is_fused_after_differentiation(monkeypatch):
    from hypatia_lab.egraph import backend

    reports = []
    rewrite = backend.rewrite_graph

    def spied(*args, **options):
        result = rewrite(*args, **options)
        reports.append(result.report)
        return result

    monkeypatch.setattr(backend, "rewrite_graph", spied)
    module, x = mlp(3, 8), torch.randn(4, 8)
    torch.compile(module, backend=backend.hypatia, dynamic=False)(x).sum().backward()
    forward, backward = reports
    assert [rewrite.into for rewrite in forward.rewrites].count("LinearRelu") == 2
    assert backward.nodes_after > 0


def chain(layers: int) -> torch.fx.GraphModule:
    """An MLP's graph as torch.export leaves it, without the seconds that torch.export takes for it."""
    module, graph = mlp(layers, 8), torch.fx.Graph()
    value = torch.zeros(4, 8)
    last = graph.placeholder("x")
    last.meta["val"] = value
    for n in range(layers):
        weight, bias = graph.get_attr(f"{2 * n}.weight"), graph.get_attr(f"{2 * n}.bias")
        weight.meta["val"], bias.meta["val"] = module[2 * n].weight, module[2 * n].bias
        last = graph.call_function(torch.ops.aten.linear.default, (last, weight, bias))
        last.meta["val"] = value
        if n < layers - 1:
            last = graph.call_function(torch.ops.aten.relu.default, (last,))
            last.meta["val"] = value
    graph.output((last,))
    return torch.fx.GraphModule(module, graph)


@pytest.mark.parametrize(("layers", "goal_ms"), [(3, 50), (30, 100), (100, 250), (300, 1000)])
def test_the_way_from_graph_to_graph_is_short_and_needs_no_recursion(layers, goal_ms):
    graph, x = chain(layers), torch.randn(4, 8)
    took = []
    for _ in range(3):
        start = time.process_time()
        result = rewrite_graph(graph, costs=Costs("cpu"))
        took.append(1e3 * (time.process_time() - start))
    print(f"{layers} layers: {min(took):.0f} ms of processor time, {result.report.seconds}")
    assert result.report.nodes_after == layers
    assert targets(result).count("relu") == 0
    torch.testing.assert_close(result(x), graph(x))
    assert min(took) < 3 * goal_ms
