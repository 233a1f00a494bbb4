"""Models that the optimizer was not written for: through unharmed and equal; its variants and its probe."""

from __future__ import annotations

import importlib.util
import random
import sys
from dataclasses import replace

import pytest
import test_probes
import torch
import torch.nn.functional as functional
from egraph_modules import mlp
from torch import nn

from hypatia_lab import check
from hypatia_lab.egraph import Costs, Optimized, calls, optimize, variants
from hypatia_lab.egraph.terms import OPERATORS
from hypatia_lab.experiments.graph_optimizer import depth
from hypatia_lab.operations.mlp import jumps
from hypatia_lab.probes import graph
from hypatia_lab.probes.probe import Ended
from hypatia_lab.variants import find
from hypatia_lab.workloads import Workload

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("seeded", "unmeasured"),
]


class Block(nn.Module):
    """A residual block as torchvision's ResNets have it."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.pool = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.bn(self.conv(x))))
        return self.head(functional.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


class Scaled(nn.Module):
    """A scaled sum is no plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        w = self.weight
        return torch.add(x, x @ w, alpha=2), torch.addmm(x, x, w, beta=3), torch.addmm(x, x, w, alpha=0.5)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x):
        by_hand = torch.relu(torch.addmm(self.bias, x, self.weight.t()))
        return by_hand, torch.mm(x, self.weight.t()) + self.bias, by_hand.view(-1), by_hand.transpose(0, 1)


def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 48)


def conv_block() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.InstanceNorm2d(4, affine=True), nn.GELU())


MODELS = {
    "resnet": (ResNet, images),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), lambda: torch.randn(2, 5, 16)),
    "gru": (lambda: nn.GRU(8, 6, num_layers=2, batch_first=True), lambda: torch.randn(3, 5, 8)),
    "scaled": (Scaled, lambda: torch.randn(4, 4)),
    "bfloat16": (lambda: mlp(3).bfloat16(), lambda: torch.randn(8, 16).bfloat16()),
    "float16": (lambda: mlp(3).half(), lambda: torch.randn(8, 16).half()),
    "transposed weights": (Transposed, lambda: torch.randn(5, 4)),
    "instance norm": (conv_block, images),
    "embedding and softmax": (
        lambda: nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.ReLU(), nn.Softmax(-1)),
        lambda: torch.randint(11, (3, 7)),
    ),
    "one vector": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), lambda: torch.randn(4)),
    "no features": (
        lambda: nn.Sequential(nn.Linear(3, 0), nn.ReLU(), nn.Linear(0, 2), nn.ReLU()),
        lambda: torch.randn(5, 3),
    ),
    "no rows": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU()), lambda: torch.randn(0, 3)),
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_goes_through_unharmed(name, training):
    make, inputs = MODELS[name]
    module, x = make().train(training), inputs()
    state = {key: value.clone() for key, value in module.state_dict().items()}
    result = optimize(module, (x,), mode="strict", rules=(*OPTIONS, "matmul"))
    assert isinstance(result, Optimized), result.report.reason
    assert result.report.errors
    if next(module.parameters()).dtype.itemsize == 2:
        assert result.report.errors["outputs, float64"] < 1e-12
    for key, value in module.state_dict().items():
        assert torch.equal(value, state[key]), key
    torch.testing.assert_close(run(result, module, x), run(module, module, x))


OPTIONS = ("linear_relu", "mlp", "relu", "transpose", "dropout", "addmm", "view", "batch_norm", "split")


def run(function, module, x):
    """Outputs and gradients; the module's statistics are put back."""
    kept = {key: value.clone() for key, value in module.state_dict().items()}
    torch.manual_seed(1)
    outputs = function(x)
    leaves = [out for out in (outputs if isinstance(outputs, tuple) else (outputs,)) if out.requires_grad]
    loss = torch.stack([(out**2).sum() for out in leaves]).sum()
    gradients = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    module.load_state_dict(kept)
    return [out.detach() for out in leaves], [g for g in gradients if g is not None]


def test_in_double_precision_the_only_roundings_are_doubles():
    module, x = ResNet().double().eval(), images().double()
    result = optimize(module, (x,), mode="strict")
    assert isinstance(result, Optimized)
    assert result.report.errors["outputs"] < 1e-13


def waits_for_its_kernel(monkeypatch, module, x, rule, into):
    """``rule`` rewrites ``module`` into an operator where that one has a kernel, and not before."""
    asked = {"rules": (rule,), "mode": "strict", "costs": Costs("cpu")}
    assert optimize(module, (x,), **asked).report.rewrites == ()
    monkeypatch.setitem(OPERATORS, into, replace(OPERATORS[into], missing=lambda *types: ""))
    assert [step.into for step in optimize(module, (x,), **asked).report.rewrites] == [into]


def test_a_convolution_block_waits_for_its_kernel(monkeypatch):
    waits_for_its_kernel(monkeypatch, conv_block(), images(), "conv_block", "ConvBlock")


@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize(("behind", "into"), [([], "LinearGelu"), ([nn.ReLU()], "LinearReluGelu")])
def test_a_gelu_behind_a_product_waits_for_its_kernel(monkeypatch, behind, into, form):
    module = nn.Sequential(nn.Linear(5, 7), *behind, nn.GELU(form), nn.Linear(7, 3))
    waits_for_its_kernel(monkeypatch, module, torch.randn(4, 5), "linear_gelu", into)


def test_a_fused_kernel_says_where_it_is_missing():
    assert "16-bit numbers on a GPU" in calls.gelu_missing("cuda", "float32")
    ones, shape = (1,) * 7, (64, 64, 3, 3)
    if importlib.util.find_spec("triton"):
        assert not calls.block_missing("cuda", "bfloat16", shape, True, ones, 1e-5)
    for device, dtype in (("cpu", "bfloat16"), ("cuda", "float32")):
        assert "16-bit numbers on a GPU" in calls.block_missing(device, dtype, shape, True, ones, 1e-5)
    odd = (((64, 64, 1, 1), True, ones, 1e-5), (shape, False, ones, 1e-5), (shape, True, ones, 1e-3))
    for one in (*odd, (shape, True, (2, 2, 1, 1, 1, 1, 1), 1e-5)):
        assert "3×3 convolution" in calls.block_missing("cuda", "float16", *one)


# ---------------------------------------------------------------- variants and probe


def test_a_variant_says_in_which_arithmetic_or_where_it_is_not():
    shape = (33, 77, 129, 2, 65)
    assert "tf32x3" in find("mlp", "egraph").needs(Workload("mlp", shape, "float32", "tf32x3"), "cuda")
    assert "GPU" in find("mlp", "egraph_split").needs(Workload("mlp", shape), "cpu")
    assert "float32" in find("mlp", "egraph_split").needs(Workload("mlp", shape, "bfloat16"), "cuda")


def test_what_is_made_for_a_replayed_graph_is_timed_as_one():
    for name, others in (("egraph_split", True), ("egraph_replayed", True), ("egraph_split_called", False)):
        one = find("mlp", name)
        assert not one.untimed("graph", "cuda")
        assert ("CUDA graph" in one.untimed("wall", "cuda")) is others


@pytest.mark.parametrize("name", ["eager", "egraph"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_step_has_the_gradients_of_float64(name, dtype):
    work = Workload("mlp", (33, 17, 29, 2, 5), dtype, direction="forward_backward")
    problem = check.Problem(work, "cpu")
    assert work.parts == ("y", "grad_x", *(f"grad_{kind}{n}" for n in (1, 2, 3) for kind in ("weight", "bias")))
    found = check.check(find("mlp", name).factory(work, problem.inputs), problem)
    assert found.ok, found.reason


def test_no_relu_of_a_steps_inputs_is_decided_by_rounding():
    shape = (64, 40, 600, 3, 5)
    work = Workload("mlp", shape, direction="forward_backward")
    inputs, plain = work.inputs("cpu"), Workload("mlp", shape).inputs("cpu")
    error = work.tolerance() / 2
    assert jumps(plain | {"grad": inputs["grad"]}, error)
    assert not jumps(inputs, error)
    assert 0 < int((plain["x"] != inputs["x"]).any(1).sum()) < 20
    assert torch.equal(plain["weight3"], inputs["weight3"])


def test_the_variant_says_why_it_cannot_be(monkeypatch):
    # By its name in the package it is the function.
    monkeypatch.setattr(sys.modules["hypatia_lab.egraph.optimize"], "read", lambda graph: 1 / 0)
    inputs = Workload("mlp", (2, 3, 4, 1, 5)).inputs("cpu")
    with pytest.raises(RuntimeError, match="cannot be rewritten: ZeroDivisionError"):
        variants.optimized(variants.module_of(inputs), inputs, costs=Costs("cpu"))


def test_the_probe_times_every_stage_of_a_right_result(tmp_path):
    subject = test_probes.found(depth(4), "egraph", tmp_path)
    seen = {}
    graph.look(subject, lambda event, **line: seen.update({line["name"]: (line["value"], line["unit"])}))
    assert seen["nodes before"] == (7, "1")
    assert seen["nodes after"] == (4, "1")
    whole = seen["graph to module"][0]
    assert sum(seen[stage][0] for stage in graph.STAGES) == pytest.approx(whole, rel=0.2)
    assert seen["graph to module, first"][0] > 0  # longer in a fresh process only, which loads the libraries
    assert seen["capture"][1] == "ms"


def test_the_probe_of_a_wrong_result_ends(tmp_path, monkeypatch):
    wrong = lambda x: torch.full((8, 64), random.random())  # noqa: E731
    monkeypatch.setattr("hypatia_lab.egraph.rewrite_graph", lambda graph, costs: wrong)
    with pytest.raises(Ended, match="ReLU|wrong|off|error"):
        graph.look(test_probes.found(depth(3), "egraph", tmp_path), lambda event, **line: None)
