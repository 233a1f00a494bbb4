"""Linear+ReLU, y = max(0, x·Wᵀ + b): the seeds' first subject, from one thread per output to the fused epilogue.

x is ``(..., in)``, W ``(out, in)``, b ``(out)`` or None, y ``(..., out)``; all of one floating dtype on one device.
Sources: S001 (naive "v1", "v2"), S004 ("Plan C"), cuBLASLt's epilogues (the library's own answer).

Backward, with the upstream gradient g of y's shape and its masked form z = g where y > 0, else 0 (so 0 at a kink):
grad_x = z·W, grad_weight = zᵀ·x, grad_bias = Σ z over the batch. Every operation here has these as its autograd
formula, which can be differentiated again: the mask is constant wherever it has a derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.kernels.operands import ensure_layer
from hypatia_lab.operations.operators import operator
from hypatia_lab.operations.torch_forms import bind
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS, Backward, Operation, register

LOOPS = "linear_relu/linear_relu"
"""The CPU's kernels, for :func:`hypatia_lab.kernels.loader.call_cpp`."""

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload


# [reference]
def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """float64 answer, shape ``(..., out)``, on the device of ``x``."""
    return linear_reference(x, weight, bias).relu()
    # [/reference]


# [reference]
def linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """float64 x·Wᵀ + b, shape ``(..., out)``."""
    return functional.linear(x.double(), weight.double(), None if bias is None else bias.double())  # (1)
    # [/reference]


def gradient_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, grad: torch.Tensor, own: torch.Tensor | None, near: float
) -> tuple[torch.Tensor, ...]:
    """float64 y (..., out) and gradients of x (..., in), weight (out, in) and bias (out); ``grad`` is of y's shape.

    Before the ReLU, numbers within ``near`` of 0 are on the side where ``own``, a computed y, has them: a gradient is
    let through where that y is positive.
    """
    before = linear_reference(x, weight, bias)
    mask = before > 0
    if own is not None:
        mask = torch.where(before.abs() <= near, own > 0, mask)
    return before.relu(), *_gradient_reference(x, weight, torch.where(mask, grad.double(), 0.0))


# [gradient_reference]
def _gradient_reference(x: torch.Tensor, weight: torch.Tensor, masked: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = masked.reshape(-1, masked.shape[-1])
    return masked @ weight.double(), z.T @ x.double().reshape(-1, x.shape[-1]), z.sum(0)  # (1)
    # [/gradient_reference]


def terms(rows: torch.Tensor, columns: torch.Tensor) -> float:
    """Mean over the elements of ``rows`` (m, k) · ``columns`` (k, n) of the sum of the squares of their terms."""
    return float(rows.double().square().mean(0) @ columns.double().square().mean(1))


def _scale(inputs: Inputs) -> dict[str, float]:
    """By part, half the root mean square of sums of so large terms: ReLU and mask leave more, unless sums cancel."""
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    squares = {"y": terms(x, weight.T) + float(bias.double().square().mean())}
    if "grad" in inputs:
        grad = inputs["grad"]
        ones = torch.ones_like(grad[:, :1])
        squares |= {"grad_x": terms(grad, weight), "grad_weight": terms(grad.T, x), "grad_bias": terms(grad.T, ones)}
    return {part: math.sqrt(square) / 2 for part, square in squares.items()}


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    batch, in_features, out_features = workload.shape

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator).to(getattr(torch, workload.dtype))

    inputs = {
        "x": normal(batch, in_features),
        "weight": normal(out_features, in_features),
        "bias": normal(out_features),
    }
    return inputs | ({"grad": normal(batch, out_features)} if workload.backward else {})


def _faults(inputs: Inputs) -> dict[str, torch.Tensor]:
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    wrong = {
        "ReLU missing": linear_reference(x, weight, bias),
        "bias missing": reference(x, weight),
        "bias added after the ReLU": reference(x, weight) + bias.double(),
    }
    if weight.shape[0] == weight.shape[1]:
        wrong["weight transposed"] = reference(x, weight.T, bias)
    return wrong


def _backward_faults(inputs: Inputs) -> dict[str, dict[str, torch.Tensor]]:
    x, weight, bias, grad = (inputs[name] for name in ("x", "weight", "bias", "grad"))
    upstream, mask = grad.double(), linear_reference(x, weight, bias) > 0
    masks = {
        "mask missing": upstream,
        "mask of the wrong operand (grad > 0 for y > 0)": upstream.relu(),
        "mask inverted": torch.where(mask, 0.0, upstream),
        "upstream gradient taken as ones": mask.double(),
        "gradient missing (zeros)": torch.zeros_like(upstream),
    }
    names = ("grad_x", "grad_weight", "grad_bias")
    wrong: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names}
    for fault, masked in masks.items():
        for name, gradient in zip(names, _gradient_reference(x, weight, masked), strict=True):
            wrong[name][fault] = gradient
    right = _gradient_reference(x, weight, torch.where(mask, upstream, 0.0))
    wrong["grad_bias"]["mean over the batch for its sum"] = right[2] / len(x)
    if weight.shape[0] == weight.shape[1]:
        wrong["grad_x"]["weight transposed"] = torch.where(mask, upstream, 0.0) @ weight.double().T
        wrong["grad_weight"]["transposed"] = right[1].T
    return wrong


def _flops(shape: tuple[int, ...]) -> int:
    return 2 * shape[0] * shape[1] * shape[2]


def _traffic(shape: tuple[int, ...], size: int) -> int:
    batch, in_features, out_features = shape
    return size * (batch * in_features + out_features * in_features + out_features + batch * out_features)


LINEAR_RELU = register(
    Operation(
        name="linear_relu",
        dims=("batch", "in", "out"),
        summary="y = max(0, x·Wᵀ + b)",
        make_inputs=_inputs,
        reference=lambda inputs: reference(**inputs),
        flops=_flops,
        traffic=_traffic,
        faults=_faults,
        depth=lambda shape: shape[1],
        backward=Backward(
            reference=lambda inputs, y, near: gradient_reference(**inputs, own=y, near=near),
            depth=lambda shape: {"grad_x": shape[2], "grad_weight": shape[0], "grad_bias": shape[0]},
            faults=_backward_faults,
        ),
        scale=_scale,
    )
)

register(
    Operation(
        name="linear",
        dims=("batch", "in", "out"),
        summary="y = x·Wᵀ + b, the part of Linear+ReLU before the ReLU",
        make_inputs=_inputs,
        reference=lambda inputs: linear_reference(**inputs),
        flops=_flops,
        traffic=_traffic,
        depth=lambda shape: shape[1],
    )
)

register(
    Operation(
        name="relu",
        dims=("rows", "columns"),
        summary="max(0, y) in a kernel of its own, the part of Linear+ReLU after the product",
        make_inputs=lambda workload, device, generator: {
            "y": torch.randn(*workload.shape, device=device, generator=generator).to(getattr(torch, workload.dtype))
        },
        reference=lambda inputs: inputs["y"].double().relu(),
        flops=lambda shape: 0,
        traffic=lambda shape, size: 2 * size * shape[0] * shape[1],
    )
)


def output(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """An empty y, of the shape, dtype and device that x, weight and bias make."""
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def save_operands(ctx: Any, inputs: tuple[torch.Tensor | None, ...], output: torch.Tensor) -> None:
    """Keep x, weight and y for the backward pass of a custom operation (x, weight, bias) → y."""
    ctx.save_for_backward(inputs[0], inputs[1], output)


def _formula(mask: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """The autograd formula of Linear+ReLU: ``mask(grad, y)``, then those of the three products that are needed."""

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        z = mask(grad, y)
        rows = z.reshape(-1, z.shape[-1])
        return (
            z @ weight if needs_x else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )

    return backward


def masked(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``grad`` where ``y`` > 0 (or NaN), else 0, both ``(..., out)``: one kernel, the one behind torch.relu."""
    return torch.ops.aten.threshold_backward(grad, y, 0)


def masked_as_v2(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """S002's form of :func:`masked`: a comparison and a product, two kernels; 0 · ∞ makes it NaN, y = NaN 0."""
    return grad.mul(y.gt(0))


@operator("linear_relu_naive")
def linear_relu_naive(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Linear+ReLU with one thread (on a CPU: one serial loop) per output. Raises ``ValueError`` on a misfit."""
    ensure_layer(x, weight, bias)
    rows, dtype = x.reshape(-1, x.shape[-1]).contiguous(), loader.dtype_name(x.dtype)
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    out = output(x, weight, bias)
    sizes = (rows.shape[0], rows.shape[1], weight.shape[0])
    if out.numel() == 0:
        return out
    if x.device.type == "cuda":
        # [launch]
        grid = (-(-sizes[2] // 16), -(-sizes[0] // 16))  # (1)
        launch = loader.cuda_launcher("linear_relu/naive", "linear_relu_naive", *loader.SCALARS[dtype])
        launch(grid, (16, 16), rows, weight, bias, out, *sizes)  # (2)
        # [/launch]
    else:
        loader.call_cpp(LOOPS, f"linear_relu_naive_{dtype}", rows, weight, bias, out, *sizes)
    return out


@operator("relu_inplace", mutates=("data",))
def relu_inplace(data: torch.Tensor) -> None:
    """Set the negative elements of a contiguous floating tensor to zero. Raises ``ValueError`` if strided."""
    if not data.is_contiguous():
        raise ValueError(f"data must be contiguous, its strides are {data.stride()}")
    if data.numel() == 0:
        return
    if not data.is_inference():
        torch.autograd.graph.increment_version(data)
    dtype = loader.dtype_name(data.dtype)
    if data.device.type == "cuda":
        grid = (-(-data.numel() // 256),)
        launch = loader.cuda_launcher("linear_relu/relu_inplace", "relu_inplace", *loader.SCALARS[dtype])
        launch(grid, (256,), data, data.numel())
    else:
        loader.call_cpp(LOOPS, f"relu_inplace_{dtype}", data, data.numel())


relu_inplace.register_fake(lambda data: None)


@operator("linear_relu_cublas")
def linear_relu_cublas(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Linear+ReLU as the library's GEMM and a hand-written in-place ReLU. Raises ``ValueError`` on a misfit."""
    ensure_layer(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    y = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    torch.ops.hypatia.relu_inplace(y)
    return y.view(*x.shape[:-1], weight.shape[0])


# [epilogue]
def fused_epilogue(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Linear+ReLU by torch._addmm_activation; without a bias, where torch has no epilogue, a product and a ReLU."""
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])  # -1 would be undefined without features
    fused = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]
    y = torch.mm(rows, weight.t()).relu_() if bias is None else fused(bias, rows, weight.t())  # (1)
    return y.view(*x.shape[:-1], weight.shape[0])
    # [/epilogue]


@operator("linear_relu_epilogue")
def linear_relu_epilogue(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """:func:`fused_epilogue` with the autograd formula that torch's lacks. Raises ``ValueError`` on a misfit."""
    ensure_layer(x, weight, bias)
    return fused_epilogue(x, weight, bias)


for _one, _mask in ((linear_relu_naive, masked), (linear_relu_cublas, masked_as_v2), (linear_relu_epilogue, masked)):
    _one.register_fake(output)
    _one.register_autograd(_formula(_mask), setup_context=save_operands)


def load_aten() -> Callable[..., torch.Tensor]:
    """Build and load ``hypatia::linear_relu_aten`` (once) and return it. Raises ``loader.BuildError``."""
    if not hasattr(torch.ops.hypatia, "linear_relu_aten"):
        loader.aten_library("linear_relu/aten")
        torch.library.register_fake("hypatia::linear_relu_aten")(output)
        torch.library.register_autograd("hypatia::linear_relu_aten", _formula(masked), setup_context=save_operands)
    return torch.ops.hypatia.linear_relu_aten


def _hand_written(workload: Workload, device: str) -> str:
    return loader.cuda_missing() if device == "cuda" else loader.cpp_missing()


def cpp_missing(workload: Workload, device: str) -> str:
    """Why nothing in C++ can compute ``workload``; empty when it can."""
    return loader.cpp_missing()


def _eager(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(functional.linear(x, weight, bias))


OPERANDS = ("x", "weight", "bias")


@variant("linear_relu", "eager", origin="peer", directions=DIRECTIONS, baseline=True)
def eager(workload: Workload, inputs: Inputs) -> Run:
    """Plain PyTorch: torch.relu(torch.nn.functional.linear(x, W, b))."""
    return bind(_eager, inputs, OPERANDS)


_rebuilt = partial(variant, "linear_relu", origin="rebuilt", directions=DIRECTIONS, operator=True)


@_rebuilt("naive", needs=_hand_written, label="one thread per output (v1)", tags=("ladder_vector", "ladder_cpu"))
def naive(workload: Workload, inputs: Inputs) -> Run:
    """One thread per output, one serial sum each (S001 v1).

    v1 has no gradient, and without a formula torch refuses to make one up; its backward here is the library's.
    """
    return bind(torch.ops.hypatia.linear_relu_naive, inputs, OPERANDS)


@_rebuilt("cublas_relu", needs=_hand_written, label="library's product, own ReLU (v2)", tags=("fusion",))
def cublas_relu(workload: Workload, inputs: Inputs) -> Run:
    """The library's GEMM, then a hand-written in-place ReLU kernel (S001 v2)."""
    return bind(torch.ops.hypatia.linear_relu_cublas, inputs, OPERANDS)


@_rebuilt("aten", needs=cpp_missing, label="one C++ operation (Plan C)", tags=("fusion",))
def aten(workload: Workload, inputs: Inputs) -> Run:
    """One C++ operation: at::linear, then at::relu_ in place (S004 Plan C)."""
    return bind(load_aten(), inputs, OPERANDS)


@variant("linear_relu", "epilogue", origin="peer", directions=DIRECTIONS, tags=("fusion",))
def epilogue(workload: Workload, inputs: Inputs) -> Run:
    """torch._addmm_activation: bias and ReLU in cuBLASLt's epilogue (on a CPU: a product, then an in-place ReLU)."""
    # The custom operation differentiates; without gradients it would only make the call longer.
    return bind(linear_relu_epilogue if workload.backward else fused_epilogue, inputs, OPERANDS)


@variant("linear_relu", "compile", origin="peer", needs=compile_missing, directions=DIRECTIONS, tags=("compiled",))
def compile_default(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile of the eager form, default mode."""
    return bind(compiled(_eager), inputs, OPERANDS)


@variant("linear_relu", "compile_max_autotune", origin="peer", needs=compile_missing, tags=("tuned",))
def compile_max_autotune(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile of the eager form, max-autotune (without its own CUDA graphs: graphs are a clock here)."""
    return bind(compiled(_eager, mode="max-autotune-no-cudagraphs"), inputs, OPERANDS)


@variant("linear", "eager", origin="peer", baseline=True)
def linear(workload: Workload, inputs: Inputs) -> Run:
    """torch.nn.functional.linear(x, W, b), no ReLU."""
    return bind(functional.linear, inputs, OPERANDS)


@variant("relu", "eager", origin="peer", baseline=True)
def relu(workload: Workload, inputs: Inputs) -> Run:
    """torch.relu(y), one kernel over a finished tensor."""
    y = inputs["y"]
    return lambda: torch.relu(y)
