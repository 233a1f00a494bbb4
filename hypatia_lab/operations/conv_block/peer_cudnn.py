"""The convolution block by cuDNN's graph API: convolution and bias as one graph, then PyTorch's norm and GELU.

PyTorch calls cuDNN's convolution alone and adds the bias in a kernel of its own. Channels last, which the fused kernels
are written for; PyTorch's norm copies such memory first, the compiled one reads it as it lies.

Sources: nvidia-cudnn-frontend 1.18 (pygraph, its samples); cuDNN's manual on the runtime fusion engines;
aten/src/ATen/native/cudnn/Conv_v8.cpp (which kernels PyTorch leaves out).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.operations.conv_block import EPS, OPERATIONS
from hypatia_lab.operations.torch_forms import LAST
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

TYPES = {"float32": "FLOAT", "bfloat16": "BFLOAT16", "float16": "HALF"}
"""dtype → cuDNN's name of it."""
ALIGNED = 16
"""Bytes that a pixel's channels must fill, channels last."""


def missing(workload: Workload, device: str) -> str:
    """Why cuDNN's graph API cannot compute ``workload`` on ``device``; empty when it can."""
    if reason := loader.gpu_module_missing("cudnn", "'hypatia-lab[peers]'", device):
        return reason
    if workload.dtype not in TYPES or (workload.dtype, workload.math) == ("float32", "ieee"):
        return "cuDNN fuses convolutions on tensor cores only: 16 bits or TF32"
    if workload.shape[1] * DTYPES[workload.dtype] % ALIGNED:
        return f"cuDNN's fused convolutions want channels that fill {ALIGNED} bytes"
    return ""


@cache
def handle() -> int:
    return import_module("cudnn").create_handle()


def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The convolution 3×3 with padding 1, and the bias, as a call that reads these very tensors.

    ``x`` (N, C, H, W) and ``weight`` (C, C, 3, 3), channels last on a GPU, ``bias`` (C), all of one dtype; it returns a
    new tensor like ``x``. Raises cuDNN's errors where it has no kernel for them.
    """
    cudnn: Any = import_module("cudnn")
    dtype, wide = getattr(cudnn.data_type, TYPES[str(x.dtype).removeprefix("torch.")]), cudnn.data_type.FLOAT
    channels = len(bias)
    graph = cudnn.pygraph(io_data_type=dtype, intermediate_data_type=wide, compute_data_type=wide, handle=handle())
    images = graph.tensor(name="x", dim=list(x.shape), stride=list(x.stride()), data_type=dtype)
    filters = graph.tensor(name="weight", dim=list(weight.shape), stride=list(weight.stride()), data_type=dtype)
    beside = [channels, 1, channels, channels]  # of one pixel, channels last
    added = graph.tensor(name="bias", dim=[1, channels, 1, 1], stride=beside, data_type=dtype)
    z = graph.conv_fprop(image=images, weight=filters, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    y = graph.bias(input=z, bias=added)
    y.set_output(True).set_data_type(dtype)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.deselect_numeric_notes([cudnn.numerical_note.DOWN_CONVERT_INPUTS])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=x.device)

    def run() -> torch.Tensor:
        out = torch.empty_like(x)
        cudnn.set_stream(handle=handle(), stream=torch.cuda.current_stream(x.device).cuda_stream)
        graph.execute({images: x, filters: weight, added: bias, y: out}, workspace, handle=handle())
        return out

    return run


def _missing_compiled(workload: Workload, device: str) -> str:
    return missing(workload, device) or compile_missing(workload, device)


def _rest(z: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, approximate: str) -> torch.Tensor:
    return functional.gelu(functional.instance_norm(z, weight=gamma, bias=beta, eps=EPS), approximate=approximate)


def _block(workload: Workload, inputs: Inputs, rest: Callable[..., torch.Tensor]) -> Run:
    conv = convolution(inputs[f"x{LAST}"], inputs[f"weight{LAST}"], inputs["bias"])
    gamma, beta, approximate = inputs["gamma"], inputs["beta"], OPERATIONS[workload.operation]
    return lambda: rest(conv(), gamma, beta, approximate)


def cudnn_graph(workload: Workload, inputs: Inputs) -> Run:
    """Convolution and bias as one graph of cuDNN's, by the kernel that its heuristics name; then two of PyTorch's."""
    return _block(workload, inputs, _rest)


def cudnn_graph_compile(workload: Workload, inputs: Inputs) -> Run:
    """The same graph of cuDNN's, then norm and GELU by torch.compile, default mode."""
    return _block(workload, inputs, compiled(_rest))


FORMS = {
    "cudnn_graph": (cudnn_graph, missing, "cuDNN's graph for convolution and bias"),
    "cudnn_graph_compile": (cudnn_graph_compile, _missing_compiled, "cuDNN's graph, then torch.compile"),
}

for _operation in OPERATIONS:
    for _name, (_factory, _needs, _label) in FORMS.items():
        variant(_operation, _name, origin="peer", needs=_needs, label=_label, tags=("peer",))(_factory)
