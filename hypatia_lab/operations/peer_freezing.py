"""torch.compile with frozen weights: they are constants of the program, so what depends on them alone is done once.

For inference: who changes a weight compiles again. Sources: torch._inductor.config.freezing, torch._inductor.freezing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.operations import mlp
from hypatia_lab.operations.conv_block import OPERATIONS, PARAMETERS, torch_form
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.operations.torch_forms import Form
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


class _Module(torch.nn.Module):
    """``form(x, *weights)`` of x: only a module's parameters are frozen."""

    def __init__(self, form: Form, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.form = form
        # One by one: with a ParameterList, torch 2.11 did not compile a block (NotImplementedError).
        self.names = [f"weight_{number}" for number in range(len(weights))]
        for name, one in zip(self.names, weights, strict=True):
            self.register_parameter(name, torch.nn.Parameter(one, requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.form(x, *[getattr(self, name) for name in self.names])


def frozen_program(form: Form, weights: Sequence[torch.Tensor], x: torch.Tensor) -> Form:
    """``form`` of x and the ``weights`` as they are now, compiled with them frozen."""
    from torch._inductor import config

    module = _Module(form, weights)
    program = compiled(lambda x: module(x))
    with torch.no_grad(), config.patch(freezing=True):
        program(x)
    return program


def frozen(form: Form, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> Run:
    """``form(x, *weights)`` as a call: compiled by the first one, and again by the first after a weight has changed."""
    program: list[Form] = []
    versions: list[int] = []

    def run() -> torch.Tensor:
        now = [one._version for one in weights]
        if now != versions:
            program[:] = [frozen_program(form, weights, x)]
            versions[:] = now
        with torch.no_grad():  # gradients are what freezing gives up
            return program[0](x)

    return run


def frozen_mlp(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile of the eager form, default mode, with weights and biases frozen."""
    x, *parameters = inputs.values()
    return frozen(mlp.plain, x, parameters)


def frozen_conv_block(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile of the eager form, default mode, with weight, bias, γ and β frozen."""
    x, *parameters = (inputs[name] for name in PARAMETERS)
    return frozen(torch_form(workload), x, parameters)


def _block(workload: Workload, device: str) -> str:
    if (workload.dtype, device) == ("float64", "cpu"):
        return "torch.compile freezes no float64 convolution on a CPU"
    return compile_missing(workload, device)


for _operation in mlp.FUSED:
    variant(_operation, "compile_freezing", origin="peer", needs=compile_missing, tags=("peer",))(frozen_mlp)
for _operation in OPERATIONS:
    variant(_operation, "compile_freezing", origin="peer", needs=_block, tags=("peer",))(frozen_conv_block)
