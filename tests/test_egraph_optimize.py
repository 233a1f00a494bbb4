"""Whole modules through the e-graph: equal to eager, on the same parameters, effects in their order."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from egraph_modules import mlp, optimized, targets
from torch import nn

from hypatia_lab.egraph import GOALS, Costs, Grade, Optimized, Rule, Unchanged, optimize, rewrite_graph
from hypatia_lab.egraph.terms import OPERATORS
from hypatia_lab.egraph.validate import checksum

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("seeded", "unmeasured"),
]


def test_an_mlp_is_fused_equal_and_reported():
    module, x = mlp(3), torch.randn(8, 16)
    result = optimized(module, x)
    assert targets(result) == ["linear_relu", "linear_relu", "linear"]
    torch.testing.assert_close(result(x), module(x))
    report = result.report
    assert (report.reason, report.nodes_before, report.nodes_after) == ("", 5, 3)
    assert [(rewrite.rules, rewrite.at, rewrite.into) for rewrite in report.rewrites] == [
        (("linear_relu",), ("relu",), "LinearRelu"),
        (("linear_relu",), ("relu_1",), "LinearRelu"),
    ]
    assert all(rewrite.error < 1e-6 for rewrite in report.rewrites)
    assert report.cost_after < report.cost_before
    assert set(report.errors) == {"outputs", "outputs, float64", "gradients", "gradients, float64"}
    assert report.errors["outputs"] < 1e-6
    assert report.errors["gradients, float64"] < 1e-14
    assert report.left_out == {}
    assert report.gap < 1e-6
    assert report.measured == 0
    assert set(report.seconds) == {"capture", "read", "saturate", "measure", "extract", "rebuild", "compare"}
    assert copy.deepcopy(result).report == report


def test_a_call_takes_the_arguments_by_name_and_refuses_others():
    module, x = mlp(2), torch.randn(8, 16)
    result = optimized(module, x)
    torch.testing.assert_close(result(input=x), module(x))
    for wrong in (torch.randn(9, 16), x.double()):
        with pytest.raises(ValueError, match=r"input is .* but the module was optimized for \[8, 16\] torch.float32"):
            result(wrong)
    seen = []
    result.register_forward_hook(lambda *args: seen.append(args[2].shape))
    result(x)
    assert seen == [(8, 16)]


def test_equal_half_precision_layers_become_one_operation():
    module, x = mlp(3).bfloat16(), torch.randn(8, 16, dtype=torch.bfloat16)
    result = optimized(module, x, costs=Costs("cuda"))
    assert result.report.nodes_after == 1
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
    torch.testing.assert_close([parameter.grad for parameter in module.parameters()], list(expected))
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


def test_a_parameter_or_buffer_put_in_anothers_place_is_seen():
    module, x, scale = Tied(), torch.randn(3, 8), torch.randn(8)
    result = optimized(module, x, kwargs={"scale": scale})
    before = result(x, scale=scale)["z"][0]
    result.shift = module.shift + 1
    torch.testing.assert_close(result(x, scale=scale)["z"][0], before + 1)
    result.get_submodule("second").bias = nn.Parameter(torch.full((8,), 1e3))
    assert result(x, scale=scale)["z"][0].min() > 900


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
    assert result.report.errors["outputs"] == 0


def test_evaluation_removes_dropout_and_training_keeps_it_its_seed_and_its_statistics():
    norm, drop, x = nn.BatchNorm1d(8), nn.Dropout(0.5), torch.randn(16, 8)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), drop, norm, nn.ReLU(), drop, nn.Linear(8, 4))
    training = optimized(module, x)
    assert norm.num_batches_tracked == 0
    assert targets(training).count("dropout") == 2
    results = []
    for run in (training, module):
        torch.manual_seed(3)
        norm.reset_running_stats()
        results.append((run(x), {name: buffer.clone() for name, buffer in norm.named_buffers()}))
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


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        before = self.norm.get_buffer("running_mean").relu()
        return self.norm(x), before, self.norm.get_buffer("running_mean").relu()


def test_what_reads_the_statistics_of_training_stays_on_its_side_of_the_writing():
    module, x = Watched(), torch.randn(16, 8) + 3
    module(x)
    result = optimized(module, x)
    kept = copy.deepcopy(module.state_dict())
    found = [value.clone() for value in result(x)]
    module.load_state_dict(kept)
    torch.testing.assert_close(found, [value.clone() for value in module(x)])
    assert not torch.equal(found[1], found[2])


def test_a_relu_in_place_is_fused_where_nobody_else_reads_what_it_writes_into():
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)), torch.randn(3, 8)
    result = optimized(module, x)
    assert targets(result) == ["linear_relu", "linear"]
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
    for mode in ("warn", "strict"):
        with pytest.warns(UserWarning, match="not optimized: cannot be captured"):
            result = optimize(module, (x,), mode=mode)
        assert isinstance(result, Unchanged)
        assert result.report.reason.startswith("cannot be captured")
        torch.testing.assert_close((result(x), result(-x)), (module(x), module(-x)))
    assert isinstance(optimize(module, (x,), mode="off"), Unchanged)


def test_a_result_that_differs_is_refused_by_strict_told_by_warn_and_not_looked_for_by_off(monkeypatch):
    monkeypatch.setitem(GOALS, "wrong", (Rule("no_relu", "(Relu x)", "x", Grade.EXACT),))
    module, x = mlp(2), torch.randn(4, 16)
    for mode, form in (("strict", Unchanged), ("warn", Optimized)):
        with pytest.warns(UserWarning, match="result 0 differs by"):
            result = optimize(module, (x,), rules=("wrong",), mode=mode)
        assert isinstance(result, form)
        assert "result 0 differs by" in result.report.reason
        assert torch.equal(result(x), module(x)) is (mode == "strict")
    quiet = optimize(module, (x,), rules=("wrong",), mode="off")
    assert isinstance(quiet, Optimized)
    assert (quiet.report.reason, quiet.report.errors, quiet.report.checksum) == ("", {}, "")


def test_what_is_infinite_in_one_result_alone_is_a_difference(monkeypatch):
    class Sum(nn.Module):
        def forward(self, x, y):
            return x + y

    monkeypatch.setitem(GOALS, "wrong", (Rule("no_sum", "(Add x y)", "x", Grade.EXACT),))
    given = torch.randn(3), torch.tensor([0.0, 0.0, float("inf")])
    with pytest.warns(UserWarning, match="not finite at other places"):
        assert isinstance(optimize(Sum(), given, rules=("wrong",), mode="strict"), Unchanged)


def test_gradients_are_compared_too(monkeypatch):
    def doubled(x):
        return 2 * x.relu() - x.relu().detach()  # ReLU, and twice its gradient

    monkeypatch.setitem(OPERATORS, "Relu", replace(OPERATORS["Relu"], target=doubled))
    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="not optimized: gradients: result 0 differs"):
        result = optimize(module, (x,), mode="strict", rules=("relu",))
    assert set(result.report.errors) == {"outputs", "outputs, float64", "gradients"}


def test_the_checksum_covers_every_byte():
    module, memory = mlp(2), torch.zeros(100, dtype=torch.int16)
    module.register_buffer("memory", memory)
    before = checksum(module)
    assert optimized(module, torch.randn(2, 16)).report.checksum == before
    memory[77] = 1
    assert checksum(module) != before
    memory[77] = 0
    assert checksum(module) == before
    with torch.no_grad():
        bias = module.get_parameter("2.bias")
        bias[-1] = torch.nextafter(bias[-1], torch.tensor(9.0))
    assert checksum(module) != before


def test_the_log_says_what_became_of_which_nodes():
    captured = torch.export.export(Tied(), (torch.randn(3, 8),), {"scale": torch.randn(8)}).module()
    first, second = rewrite_graph(captured, costs=Costs("cpu")).report.rewrites
    assert (first.rules, first.at, first.into) == (("linear_relu",), ("relu", "relu_2"), "LinearRelu")
    assert first.term == "(LinearRelu :x :first_weight :first_bias)"
    assert second.term == "(LinearRelu :relu :first_weight :second_bias)"


def test_the_log_names_what_has_no_node_within_its_term():
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    x = torch.randn(2, 5, 8)
    captured = torch.export.export(module, (x,)).run_decompositions().module()
    result = rewrite_graph(captured, costs=Costs("cpu"))
    torch.testing.assert_close(result(x), module(x))
    (step,) = result.report.rewrites
    assert step.term == "(View (LinearRelu :view :_0_weight :_0_bias) [2,5,8])"
    assert step.rules == ("linear_relu", "relu_view")


def test_a_dynamic_batch_is_fused_and_runs_at_any_size():
    module = nn.Sequential(nn.Unflatten(1, (5, 8)), mlp(3, 8), nn.Flatten(0, 1), nn.ReLU(), nn.ReLU())
    batch = torch.export.Dim("batch", min=2, max=1000)
    result = optimized(module, torch.randn(6, 40), dynamic_shapes=({0: batch},))
    assert targets(result).count("linear_relu") == 3
    for size in (2, 6, 11):
        x = torch.randn(size, 40)
        torch.testing.assert_close(result(x), module(x))


@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_is_folded_into_the_convolution_in_evaluation_and_never_stale(bias):
    norm, x = nn.BatchNorm2d(4), torch.randn(4, 3, 129, 127)
    module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, bias=bias), norm, nn.ReLU())
    module(x)  # statistics that are not 0 and 1
    assert "conv2d" in targets(optimized(module, x))
    assert "folded_weight" not in targets(optimized(module, x))
    module.eval()
    result = optimized(module, x)
    assert sorted(targets(result)) == ["conv2d", "folded_bias", "folded_weight", "relu"]
    with torch.no_grad():
        norm.weight.mul_(3)
        norm.get_buffer("running_var").add_(1)
    torch.testing.assert_close(result(x), module(x))


def test_unknown_modes_and_goals_are_refused():
    with pytest.raises(ValueError, match="no mode 'loud'"):
        optimize(mlp(1), (torch.ones(1, 16),), mode="loud")
    with pytest.raises(ValueError, match="unknown goal 'magic'"):
        optimize(mlp(1), (torch.ones(1, 16),), rules=("magic",))
