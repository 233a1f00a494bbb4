"""The graph optimizer as a variant: the documents' MLPs and the U-Net, as modules, through :func:`optimize`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab.egraph import calls, saturation
from hypatia_lab.egraph.measure import stored
from hypatia_lab.egraph.module import Optimized
from hypatia_lab.egraph.optimize import optimize
from hypatia_lab.egraph.rules import DEFAULT
from hypatia_lab.kernels import loader
from hypatia_lab.operations.mlp import clear, step
from hypatia_lab.operations.unet import PARAMETERS, unet
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS

if TYPE_CHECKING:
    from hypatia_lab.egraph.cost import Costs
    from hypatia_lab.variants import Run
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


def _bind(module: Callable[..., torch.Tensor], inputs: Inputs, parameters: Iterable[torch.Tensor]) -> Run:
    x = inputs["x"]
    if "grad" not in inputs:
        return lambda: module(x)
    leaves = [x.detach().requires_grad_(), *parameters]
    return lambda: step(module(leaves[0]), leaves, inputs["grad"])


def _saturates(workload: Workload, device: str) -> str:
    return saturation.missing()


def _differentiates(workload: Workload, device: str) -> str:
    return saturation.missing() or clear(workload, device)


def _on_gpu(workload: Workload, device: str) -> str:
    return saturation.missing() if device == "cuda" else loader.NO_GPU


def _split(workload: Workload, device: str) -> str:
    return _on_gpu(workload, device) or calls.split_missing(device, workload.dtype)


_replayed = partial(
    variant,
    name="egraph_replayed",
    origin="own",
    needs=_on_gpu,
    label="the graph optimizer, for replaying",
    tags=("graph", "replayed"),
)


@variant(
    "mlp",
    "egraph",
    origin="own",
    needs=_differentiates,
    directions=DIRECTIONS,
    label="the graph optimizer",
    tags=("graph",),
)
def egraph(workload: Workload, inputs: Inputs) -> Run:
    """The module through the e-graph: costs measured here, called back to back as a caller waits for it."""
    module = optimized(module_of(inputs), inputs, costs=stored(inputs["x"].device.type, "hot"), measure=True)
    names = [name for name, _ in module_of(inputs).named_parameters()]
    return _bind(module, inputs, [module.get_parameter(name) for name in names])


@_replayed("mlp")
def egraph_replayed(workload: Workload, inputs: Inputs) -> Run:
    """The module through the e-graph by costs as of a replayed CUDA graph, where a launch costs little."""
    return _bind(optimized(module_of(inputs), inputs, costs=stored("cuda", "graph"), measure=True), inputs, ())


@variant(
    "mlp",
    "egraph_split",
    origin="own",
    needs=_split,
    maths=("ieee",),
    label="the graph optimizer, split products, for replaying",
    tags=("graph", "replayed"),
    splits=("float16/ieee", 3),
)
def egraph_split(workload: Workload, inputs: Inputs) -> Run:
    """The same with split products allowed (float32's accuracy, not IEEE float32), costs those of a replayed graph."""
    return _splitting(inputs, "graph")


@variant(
    "mlp",
    "egraph_split_called",
    origin="own",
    needs=_split,
    maths=("ieee",),
    label="the graph optimizer, split products",
    tags=("graph",),
    splits=("float16/ieee", 3),
)
def egraph_split_called(workload: Workload, inputs: Inputs) -> Run:
    """The same by costs as a caller waits for them."""
    return _splitting(inputs, "hot")


def _splitting(inputs: Inputs, clock: str) -> Run:
    costs = stored("cuda", clock)
    return _bind(optimized(module_of(inputs), inputs, costs=costs, measure=True, split=True), inputs, ())


class UNet(torch.nn.Module):
    """The U-Net of ``inputs`` as a module, on those very tensors."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        held = (torch.nn.Parameter(inputs[name], requires_grad=False) for name in PARAMETERS)
        self.held = torch.nn.ParameterList(held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The U-Net of x (N, C, H, W)."""
        return unet(x, list(self.held))


def _unet(inputs: Inputs, costs: Costs) -> Run:
    rules = (*DEFAULT, "conv_block")
    return _bind(optimized(UNet(inputs).eval(), inputs, rules=rules, costs=costs, measure=True), inputs, ())


@variant("unet", "egraph", origin="own", needs=_saturates, label="the graph optimizer", tags=("graph",))
def egraph_unet(workload: Workload, inputs: Inputs) -> Run:
    """The module through the e-graph, convolution blocks included; costs as of calls that a caller waits for."""
    return _unet(inputs, stored(inputs["x"].device.type, "hot"))


@_replayed("unet")
def egraph_unet_replayed(workload: Workload, inputs: Inputs) -> Run:
    """The same by costs as of a replayed CUDA graph, where a launch costs little."""
    return _unet(inputs, stored("cuda", "graph"))
