"""Modules of models as variants: the documents' MLPs and the U-Net through :func:`optimize`, and the MLPs converted by
:mod:`hypatia_lab.nn`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab import nn
from hypatia_lab.egraph import calls, saturation
from hypatia_lab.egraph.measure import stored
from hypatia_lab.egraph.module import Optimized
from hypatia_lab.egraph.optimize import optimize
from hypatia_lab.egraph.rules import DEFAULT
from hypatia_lab.kernels import loader
from hypatia_lab.operations.torch_forms import step
from hypatia_lab.operations.unet import PARAMETERS, unet
from hypatia_lab.variants import anywhere, variant
from hypatia_lab.workloads import DIRECTIONS

Needs = Callable[["Workload", str], str]

if TYPE_CHECKING:
    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs, Workload


def module_of(inputs: Inputs) -> torch.nn.Sequential:
    """The MLP of ``inputs`` (x, then weight and bias of every layer) as people write it, on those very tensors."""
    _, *parameters = (tensor for name, tensor in inputs.items() if name != "grad")
    layers: list[torch.nn.Module] = []
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        layer.weight = torch.nn.Parameter(weight, requires_grad="grad" in inputs)
        layer.bias = torch.nn.Parameter(bias, requires_grad="grad" in inputs)
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).eval()


def optimized(module: torch.nn.Module, inputs: Inputs, **options: Any) -> Optimized:
    """``module``, optimized; not compared, for the lab does that. Raises ``RuntimeError`` where it fails."""
    found = optimize(module, (inputs["x"],), mode="off", **options)
    if not isinstance(found, Optimized):
        raise RuntimeError(found.report.reason)
    return found


class UNet(torch.nn.Module):
    """The U-Net of ``inputs`` as a module, on those very tensors."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        held = (torch.nn.Parameter(inputs[name], requires_grad=False) for name in PARAMETERS)
        self.held = torch.nn.ParameterList(held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The U-Net of x (N, C, H, W)."""
        return unet(x, list(self.held))


def _saturates(workload: Workload, device: str) -> str:
    return saturation.missing()


def _on_gpu(workload: Workload, device: str) -> str:
    return saturation.missing() if device == "cuda" else loader.NO_GPU


def _replays(workload: Workload, device: str) -> str:
    return "" if device == "cuda" else loader.NO_GPU


def _split(workload: Workload, device: str) -> str:
    return _on_gpu(workload, device) or calls.split_missing(device, workload.dtype)


def _factory(build: Callable[[Inputs], torch.nn.Module], clock: str, options: Mapping[str, Any]) -> Factory:
    """The module through the e-graph, by costs measured here: as of calls that a caller waits for (``clock`` hot), or
    as of a replayed CUDA graph (graph), where a launch costs little."""

    def bind(workload: Workload, inputs: Inputs) -> Run:
        built = build(inputs).eval()
        costs = stored(inputs["x"].device.type, clock, training="grad" in inputs)
        return _called(optimized(built, inputs, costs=costs, measure=True, **options), built, inputs)

    return bind


def _called(module: torch.nn.Module, built: torch.nn.Module, inputs: Inputs) -> Run:
    """A call of ``module``, made of ``built``; where there is ``grad``, y and the gradients of x and all parameters."""
    x = inputs["x"]
    if "grad" not in inputs:
        return lambda: module(x)
    leaves = [x.detach().requires_grad_(), *(module.get_parameter(name) for name, _ in built.named_parameters())]
    return lambda: step(module(leaves[0]), leaves, inputs["grad"])


def _converted(clock: str) -> Factory:
    """The MLP's own modules, as they are or, with a ``clock``, served by the dispatcher (:mod:`hypatia_lab.nn`)."""

    def bind(workload: Workload, inputs: Inputs) -> Run:
        module = module_of(inputs)
        if clock:
            nn.convert(module, clock=clock)
        return _called(module, module, inputs)

    return bind


SPLIT = {"maths": ("ieee",), "splits": ("float16/ieee", 3)}
BLOCKS = {"rules": (*DEFAULT, "conv_block")}

FORMS: tuple[tuple[str, str, str, Needs, dict[str, Any], dict[str, Any]], ...] = (
    ("mlp", "egraph", "hot", _saturates, {}, {"directions": DIRECTIONS}),
    ("mlp", "egraph_replayed", "graph", _on_gpu, {}, {}),
    # Split products have float32's accuracy, but are not IEEE float32.
    ("mlp", "egraph_split", "graph", _split, {"split": True}, SPLIT),
    ("mlp", "egraph_split_called", "hot", _split, {"split": True}, SPLIT),
    ("unet", "egraph", "hot", _saturates, BLOCKS, {}),
    ("unet", "egraph_replayed", "graph", _on_gpu, BLOCKS, {}),
)
"""Operation, variant, clock of its costs, why it cannot be somewhere, options of :func:`optimize`, of the variant."""

for _operation, _name, _clock, _needs, _options, _more in FORMS:
    _replayed = _clock == "graph"
    variant(
        _operation,
        _name,
        origin="own",
        needs=_needs,
        label="the graph optimizer" + ", split products" * ("split" in _options) + ", for replaying" * _replayed,
        tags=("graph", "replayed") if _replayed else ("graph",),
        **_more,
    )(_factory(module_of if _operation == "mlp" else UNet, _clock, _options))

variant("mlp", "sequential", origin="peer", directions=DIRECTIONS[1:], label="nn.Sequential")(_converted(""))
for _name, _clock, _needs in (("modules", "wall", anywhere), ("modules_replayed", "graph", _replays)):
    _how = {"origin": "own", "needs": _needs, "directions": DIRECTIONS[1:], "tags": ("modules",)}
    _label = "modules of lab.nn" + ", for replaying" * (_clock == "graph")
    variant("mlp", _name, label=_label, **_how)(_converted(_clock))
