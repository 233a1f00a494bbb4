"""What else may stand behind a linear layer: GELU, by the error function or by tanh, and a ReLU with a GELU behind it.

y = GELU(x·Wᵀ + b), or GELU(max(0, x·Wᵀ + b)): x is ``(batch, in)``, W ``(out, in)``, b ``(out)``, y ``(batch, out)``,
all of one floating dtype on one device. GELU is u·Φ(u), Φ the normal distribution function: by the error function, or
as its tanh formula has it, (1 + tanh(√(2/π)·(u + 0.044715·u³)))/2. The two are within 16 bits' rounding of each other;
only longer numbers show which of them was computed. There is no backward here.

The library's epilogue, by torch._addmm_activation, is the tanh formula's alone. cuBLASLt has none for GELU by the error
function, and none for a ReLU with a GELU behind it; so those have no variant of that name.

Sources: S004 (custom epilogues: bias, ReLU and GELU in a single pass), torch.nn.functional.gelu, cuBLASLt's epilogues.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional

from hypatia_lab.kernels.linear_relu import linear_relu_cuda as tiles
from hypatia_lab.kernels.linear_relu.epilogue import Epilogue, activated
from hypatia_lab.operations.linear_relu import LINEAR_RELU, OPERANDS, linear_reference, needs, output
from hypatia_lab.operations.operators import operator
from hypatia_lab.operations.torch_forms import bind, peers, register_peers
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS, DTYPES, register

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypatia_lab.operations.torch_forms import Form
    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs, Operation, Workload

OPERATIONS = {"linear_gelu": (False, "none"), "linear_gelu_tanh": (False, "tanh"), "linear_relu_gelu": (True, "none")}
"""Operation → whether a ReLU stands before its GELU, and that one's form, as ``torch.nn.functional.gelu`` calls it."""

FORMULAS = {"none": "erf", "tanh": "tanh"}


def reference(inputs: Inputs, relu: bool, approximate: str) -> torch.Tensor:
    """float64 answer, shape ``(batch, out)``, on the device of ``x``."""
    return activated(linear_reference(**inputs), relu, approximate)


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    """Linear+ReLU's, with W scaled so that sums are about as large as x: GELU is as good as ReLU where they are large,
    and no number would show which of the two was computed."""
    inputs = LINEAR_RELU.make_inputs(workload, device, generator)
    return inputs | {"weight": inputs["weight"] * workload.shape[1] ** -0.5}


def _faults(inputs: Inputs, relu: bool, approximate: str) -> dict[str, torch.Tensor]:
    x, weight, bias = (inputs[name] for name in OPERANDS)
    behind = partial(activated, relu=relu, approximate=approximate)
    u, product = linear_reference(x, weight, bias), linear_reference(x, weight)
    other = "none" if approximate == "tanh" else "tanh"
    wrong = {
        "GELU missing": u.relu() if relu else u,
        f"GELU by {FORMULAS[other]} instead of {FORMULAS[approximate]}": activated(u, relu, other),
        "bias missing": behind(product),
        "bias added after the GELU": behind(product) + bias.double(),
    }
    wrong |= {"ReLU missing": activated(u, False, approximate)} if relu else {"ReLU instead of GELU": u.relu()}
    if weight.shape[0] == weight.shape[1]:
        wrong["weight transposed"] = behind(linear_reference(x, weight.T, bias))
    return wrong


def _define(name: str, relu: bool, approximate: str) -> Operation:
    """Operation ``name``: of shape, operations and bytes it is Linear+ReLU, of which the products alone count."""
    before, after = ("max(0, ", ")") if relu else ("", "")
    return register(
        replace(
            LINEAR_RELU,
            name=name,
            summary=f"y = GELU({before}x·Wᵀ + b{after}), GELU by {FORMULAS[approximate]}",
            make_inputs=_inputs,
            reference=lambda inputs: reference(inputs, relu, approximate),
            faults=lambda inputs: _faults(inputs, relu, approximate),
            roundings=lambda shape: 2,  # the layer's sum and y; a ReLU rounds nothing
            backward=None,
        )
    )


# ---------------------------------------------------------------- who computes it


def torch_form(workload: Workload) -> Form:
    """PyTorch's own operations, one after the other, as a function of x, weight and bias."""
    relu, approximate = OPERATIONS[workload.operation]

    def form(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return activated(functional.linear(x, weight, bias), relu, approximate)

    return form


def fused_epilogue(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU by tanh of x·Wᵀ + b by torch._addmm_activation, on a GPU; on a CPU its GELU is by the error function."""
    fused = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]
    return fused(bias, x, weight.t(), use_gelu=True)


@operator("linear_activation_triton", planned=True, autocast=True)
def linear_activation_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    relu: bool,
    approximate: str | None,
    precision: str,
) -> torch.Tensor:
    """x·Wᵀ + b with a ReLU, a GELU, one after the other or neither behind it in one Triton kernel; not differentiable.

    What it takes and raises: :func:`hypatia_lab.kernels.linear_relu.linear_relu_triton.linear_activation`.
    """
    from hypatia_lab.kernels.linear_relu.linear_relu_triton import linear_activation

    return linear_activation(x, weight, bias, relu=relu, approximate=approximate, precision=precision)


@operator("linear_activation_cuda", planned=True, autocast=True)
def linear_activation_cuda(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    relu: bool,
    approximate: str | None,
    precision: str,
) -> torch.Tensor:
    """The same in CUDA for Hopper, by the kernel of Linear+ReLU; not differentiable.

    What it takes and raises: :func:`hypatia_lab.operations.linear_relu.tensor_cores.linear_relu_cuda`.
    """
    return tiles.checked(x, weight, bias, precision, Epilogue(relu, approximate))


@operator("linear_activation_split", planned=True)
def linear_activation_split(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, relu: bool, approximate: str | None
) -> torch.Tensor:
    """The same with float32's accuracy, by three float16 products in CUDA for Hopper; not differentiable.

    What it takes and raises: :func:`hypatia_lab.kernels.linear_relu.linear_relu_split.linear_relu_split`.
    """
    from hypatia_lab.kernels.linear_relu.linear_relu_split import linear_relu_split

    return linear_relu_split(x, weight, bias, cuda=True, epilogue=Epilogue(relu, approximate))


for _one in (linear_activation_triton, linear_activation_cuda, linear_activation_split):
    _one.register_fake(lambda x, weight, bias, *how: output(x, weight, bias))
    _one.not_differentiable("a fused GELU is for inference here; PyTorch's own operations differentiate")


def _short_on_gpu(workload: Workload, device: str) -> str:
    if device != "cuda":
        return "on a CPU torch._addmm_activation's GELU is by the error function"
    return "" if DTYPES[workload.dtype] == 2 else "torch._addmm_activation's GELU is not float32's"


def in_one_kernel(form: Callable[..., torch.Tensor]) -> Factory:
    """The bias and the activation in the product's own kernel, which ``form`` launches, before anything is stored."""

    def factory(workload: Workload, inputs: Inputs) -> Run:
        how = (*OPERATIONS[workload.operation], workload.math)
        return bind(lambda x, weight, bias: form(x, weight, bias, *how), inputs, OPERANDS)

    return factory


def fp16x3_cuda(workload: Workload, inputs: Inputs) -> Run:
    """float32 as two float16 terms each, three products in CUDA, the activation behind them; splitting is timed."""
    relu, approximate = OPERATIONS[workload.operation]
    return bind(lambda x, weight, bias: linear_activation_split(x, weight, bias, relu, approximate), inputs, OPERANDS)


def epilogue(workload: Workload, inputs: Inputs) -> Run:
    """torch._addmm_activation: bias and GELU by tanh in cuBLASLt's epilogue."""
    return bind(fused_epilogue, inputs, OPERANDS)


MATHS = ("ieee", "tf32", "tf32x3", "bf16x3")

for _name, _how in OPERATIONS.items():
    _define(_name, *_how)
    _peers = peers(torch_form, OPERANDS, ("eager", "compile"))
    register_peers(_name, {way: (make, needs, DIRECTIONS[:1]) for way, (make, needs, _) in _peers.items()})
    if _name == "linear_gelu_tanh":
        variant(_name, "epilogue", origin="peer", needs=_short_on_gpu)(epilogue)
    _own = partial(variant, _name, origin="own")
    _own("triton", needs=needs.triton, maths=MATHS, label="one Triton kernel")(in_one_kernel(linear_activation_triton))
    _cuda = {"maths": MATHS[:2], "label": "one CUDA kernel", "tags": ("tensor_cores",)}
    _own("cuda", needs=needs.cuda, **_cuda)(in_one_kernel(linear_activation_cuda))
    _split = {"maths": MATHS[:1], "splits": ("float16/ieee", 3), "tags": ("split",)}
    _own("fp16x3_cuda", needs=needs.split_cuda, label="three float16 products in CUDA", **_split)(fp16x3_cuda)
