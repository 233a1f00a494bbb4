"""Multilayer perceptrons: the seeds' own models, layer by layer, and two or three equal layers in one kernel.

An MLP is Linear, ReLU, …, Linear: max(0, x·Wᵀ + b) in every layer but the last, which has no ReLU. That is what the
seeds' rewriting rule turns into a fused MLP (a fused Linear+ReLU followed by a Linear), and how their models end.
Sources: S004 (FusedMLP2, FusedMLP3; the safety test's and the benchmark's models), tiny-cuda-nn's FullyFusedMLP.

x is ``(..., in)``, weight n ``(out, in)``, bias n ``(out)``, the result ``(..., out of the last)``; all of one floating
dtype on one device.

The gradient jumps where a ReLU's argument is 0, and rounding may take an argument across. The inputs
of direction forward_backward have none so near: rows are drawn anew until none is, or in 16 bits drawn in two groups
that lie on either side (:func:`_on_either_side`). In TF32 some always are, and gradients may be off by their jumps
(:func:`jumps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.kernels.mlp import mlp_cuda
from hypatia_lab.kernels.operands import ensure_alike
from hypatia_lab.operations.linear_relu import cpp_missing, fused_epilogue, load_aten, terms
from hypatia_lab.operations.operators import operator
from hypatia_lab.operations.torch_forms import bind
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS, DTYPES, Backward, Operation, register, tail

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Gradients of x, of the weights and of the biases."""

FUSED = {"mlp2": 2, "mlp3": 3}
"""Operation → its equal-width layers, which one kernel computes."""

WIDEST, WIDEST_BACKWARD = 256, 128
"""Largest width of the fused kernels; up to 128, the weights stay in a multiprocessor's shared memory."""

MOST_ROWS = 2**30
"""The kernels count rows in 32 bits."""

MODELS = (
    (64, 784, 256, 2, 10),
    (256, 784, 256, 2, 10),
    (128, 512, 512, 3, 128),
    (256, 784, 512, 3, 128),
    (256, 1024, 512, 4, 256),
    (512, 784, 2048, 4, 1000),
    (1024, 784, 2048, 4, 1000),
    (1024, 2048, 2048, 4, 1000),
    (512, 1024, 4096, 6, 1000),
)
"""Shapes of ``mlp`` in the seeds' benchmark of nine configurations."""

# ---------------------------------------------------------------- what is computed


def _pairs(parameters: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(weight, bias) of every layer from weight1, bias1, weight2, …"""
    return zip(parameters[::2], parameters[1::2], strict=True)


def plain(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """The network of x (..., in) and weight1, bias1, weight2, … by PyTorch's own operations; (..., out of the last)."""
    *hidden, (weight, bias) = _pairs(parameters)
    for own_weight, own_bias in hidden:
        x = torch.relu(functional.linear(x, own_weight, own_bias))
    return functional.linear(x, weight, bias)


def reference(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """float64 answer for x and weight1, bias1, weight2, …, shape ``(..., out)``, on the device of ``x``."""
    return plain(x.double(), *(tensor.double() for tensor in parameters))


def _scale(inputs: Inputs) -> dict[str, float]:
    """Half the root mean square of sums of as large terms as those of y, where these cancel."""
    x, *parameters = (tensor.double() for name, tensor in inputs.items() if name != "grad")
    *hidden, (weight, bias) = _pairs(parameters)
    for own_weight, own_bias in hidden:
        x = functional.linear(x, own_weight, own_bias).relu()
    return {"y": math.sqrt(terms(x, weight.T) + float(bias.square().mean())) / 2}


def _faults(inputs: Inputs) -> dict[str, torch.Tensor]:
    x, *parameters = (tensor.double() for name, tensor in inputs.items() if name != "grad")
    layers = list(_pairs(parameters))

    def run(*, linear: int = 0, skipped: int = 0, unbiased: int = 0) -> torch.Tensor:
        h = x
        for number, (weight, bias) in enumerate(layers, 1):
            if number == skipped:
                continue
            h = functional.linear(h, weight, None if number == unbiased else bias)
            if number not in (linear, len(layers)):
                h = h.relu()
        return h

    wrong = {"ReLU after the last layer": run().relu()}
    for number, (weight, _) in enumerate(layers, 1):
        if number < len(layers):
            wrong[f"ReLU missing after layer {number}"] = run(linear=number)
        if weight.shape[0] == weight.shape[1]:
            wrong[f"layer {number} skipped"] = run(skipped=number)
        wrong[f"bias missing in layer {number}"] = run(unbiased=number)
    return wrong


def widths(workload: Workload) -> tuple[int, ...]:
    """Numbers of features from the input through every layer to the output."""
    return _widths(workload.operation, workload.shape)


def _widths(operation: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if operation in FUSED:
        return (shape[1],) * (FUSED[operation] + 1)
    _, first, hidden, layers, last = shape
    return (first, *[hidden] * layers, last)


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    sizes = widths(workload)

    normal = partial(torch.randn, device=device, generator=generator)
    drawn = {"x": normal(workload.shape[0], sizes[0])}
    for number, (inner, outer) in enumerate(zip(sizes, sizes[1:], strict=False), 1):
        # He's scale keeps the activations' size from layer to layer: float16 would overflow without it.
        drawn[f"weight{number}"] = normal(outer, inner) * (2 / inner) ** 0.5
        drawn[f"bias{number}"] = normal(outer)
    inputs = {name: tensor.to(getattr(torch, workload.dtype)) for name, tensor in drawn.items()}
    if workload.backward:
        if DTYPES[workload.dtype] == 2:
            _on_either_side(inputs, normal)
        elif workload.arithmetic != "tf32":
            # The standard error is half of what is tolerated; rows drawn anew change the root mean square a little.
            _clear_of_kinks(inputs, normal, 0.55 * workload.tolerance())
        inputs["grad"] = normal(workload.shape[0], sizes[-1]).to(getattr(torch, workload.dtype))
    return inputs


def _near(z: torch.Tensor, error: float) -> float:
    """How far off an argument may be: ``error`` is the standard one, as a share of the root mean square of ``z``."""
    return error * tail(z.numel()) * float(z.square().mean().sqrt())


def _clear_of_kinks(inputs: Inputs, normal: Callable[..., torch.Tensor], error: float) -> None:
    """Draw those rows of x anew that bring a ReLU's argument nearer to 0 than an ``error`` may move it.

    The widest networks keep a few, after a hundred times.
    """
    x, *parameters = inputs.values()
    *hidden, _ = _pairs([tensor.double() for tensor in parameters])
    rows, least = torch.arange(len(x), device=x.device), []
    for _ in range(100):
        h, near = x[rows].double(), torch.zeros(len(rows), dtype=torch.bool, device=x.device)
        for number, (weight, bias) in enumerate(hidden):
            h = functional.linear(h, weight, bias)
            if number == len(least):
                least.append(_near(h, error))
            near |= (h.abs() < least[number]).any(1)
            h = h.relu()
        rows = rows[near]
        if not len(rows):
            return
        x[rows] = normal(len(rows), x.shape[1]).to(x.dtype)


APART = 16.0
"""How many standard deviations the two groups of rows lie off their middle, in 16 bits."""


def _on_either_side(inputs: Inputs, normal: Callable[..., torch.Tensor]) -> None:
    """Have every ReLU's argument far off 0, by rows of two groups and by biases, for 16-bit numbers.

    So coarse they are that among millions of arguments some always lie nearer to 0 than rounding moves them, wherever
    rows are drawn. Here x is in one group or the other, and a unit's bias puts 0 into the widest gap that its arguments
    leave: between the groups, so that it passes one of them, or below or above both.
    """
    x, *parameters = inputs.values()
    x += APART * normal(len(x), 1).sign() * normal(1, x.shape[1])
    h = x.double()
    for weight, bias in list(_pairs(parameters))[:-1]:
        z = functional.linear(h, weight.double()).sort(0).values
        room = z.square().mean().sqrt() / 2
        below = normal(len(bias)) < 0  # where no gap is wide enough: a unit that passes all rows, or none
        ends = z[:1] - room * below, z[-1:] + room * ~below
        gaps = torch.cat([ends[0], z, ends[1]])
        widest = gaps.diff(dim=0).argmax(0, keepdim=True)
        middle = (gaps.gather(0, widest) + gaps.gather(0, widest + 1)) / 2
        bias.copy_(-middle[0])
        h = functional.linear(h, weight.double(), bias.double()).relu()


def gradient_reference(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """float64 y (batch, out) and, from the upstream gradient ``grad`` of its shape, the gradients of x and of every
    weight and bias, in the order of ``inputs``."""
    leaves = [tensor.detach().double().requires_grad_() for name, tensor in inputs.items() if name != "grad"]
    with torch.enable_grad():
        y = plain(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, inputs["grad"].double())


def jumps(inputs: Inputs, error: float) -> dict[str, torch.Tensor]:
    """By gradient, the root of the sum of the squares of what each element changes by if a ReLU near 0 changes sides.

    Near is whose argument a standard ``error``, as a share of the layer's root mean square, may have taken across. To
    first order the change of its gradient goes backward through the layers before as any gradient does. Empty where
    none is near.
    """
    x, *parameters = (tensor.double() for name, tensor in inputs.items() if name != "grad")
    layers, masks, near = list(_pairs(parameters)), [], []
    activations = [x]
    for weight, bias in layers[:-1]:
        z = functional.linear(activations[-1], weight, bias)
        masks.append(z > 0)
        near.append(z.abs() <= _near(z, error))
        activations.append(z.relu())
    if not any(bool(close.any()) for close in near):
        return {}
    grad = inputs["grad"].double()
    squares, found = torch.zeros_like(grad), {}
    for number in reversed(range(len(layers))):
        found[f"grad_weight{number + 1}"] = (squares.T @ activations[number].square()).sqrt()
        found[f"grad_bias{number + 1}"] = squares.sum(0).sqrt()
        weight = layers[number][0]
        grad, squares = grad @ weight, squares @ weight.square()
        if number:
            mask, close = masks[number - 1], near[number - 1]
            squares = squares * (mask | close) + grad.square() * close
            grad = grad * mask
    return found | {"grad_x": squares.sqrt()}


def _backward_faults(inputs: Inputs) -> dict[str, dict[str, torch.Tensor]]:
    names = [f"grad_{name}" for name in inputs if name != "grad"]
    x, *parameters = (tensor.detach().double().requires_grad_() for name, tensor in inputs.items() if name != "grad")
    grad = inputs["grad"].double()
    with torch.enable_grad():
        h = x
        *hidden, (weight, bias) = _pairs(parameters)
        for own_weight, own_bias in hidden:
            z = functional.linear(h, own_weight, own_bias)
            h = z + (z.relu() - z).detach()
        unmasked = torch.autograd.grad(functional.linear(h, weight, bias), [x, *parameters], grad)
    wrong = {name: {"masks missing": fault} for name, fault in zip(names, unmasked, strict=True)}
    for name, right in zip(names, gradient_reference(inputs)[1:], strict=True):
        if "bias" in name:
            wrong[name]["mean over the batch for its sum"] = right / len(x)
    return wrong


def _define(name: str, dims: tuple[str, ...], summary: str) -> None:
    def layers(shape: tuple[int, ...]) -> list[tuple[int, int]]:
        sizes = _widths(name, shape)
        return list(zip(sizes, sizes[1:], strict=False))

    def flops(shape: tuple[int, ...]) -> int:
        return sum(2 * shape[0] * inner * outer for inner, outer in layers(shape))

    def gradients(shape: tuple[int, ...]) -> dict[str, int]:
        # What an element goes through: forward to its layer, back to it, and over the batch.
        terms = shape[0] + sum(inner + outer for inner, outer in layers(shape))
        numbers = range(1, len(layers(shape)) + 1)
        return dict.fromkeys(["grad_x", *(f"grad_{kind}{n}" for n in numbers for kind in ("weight", "bias"))], terms)

    def traffic(shape: tuple[int, ...], size: int) -> int:
        sizes = _widths(name, shape)
        parameters = sum((inner + 1) * outer for inner, outer in layers(shape))
        return size * (shape[0] * (sizes[0] + sizes[-1]) + parameters)

    register(
        Operation(
            name=name,
            dims=dims,
            small=((33, 77, 129, 2, 65), (64, 64, 64, 2, 64)) if len(dims) == 5 else (),
            summary=summary,
            make_inputs=_inputs,
            reference=lambda inputs: reference(*(tensor for own, tensor in inputs.items() if own != "grad")),
            flops=flops,
            traffic=traffic,
            faults=_faults,
            depth=lambda shape: sum(inner for inner, _ in layers(shape)),
            roundings=lambda shape: len(layers(shape)),
            operands=lambda shape: math.sqrt(2.0) * len(layers(shape)),
            scale=_scale,
            backward=Backward(
                reference=lambda inputs, y, near: gradient_reference(inputs),
                depth=gradients,
                faults=_backward_faults,
                jumps=jumps,
            )
            if name == "mlp"
            else None,
        )
    )


_define("mlp2", ("rows", "width"), "Linear, ReLU, Linear of one width: the seeds' FusedMLP2")
_define("mlp3", ("rows", "width"), "Linear, ReLU, Linear, ReLU, Linear of one width: the seeds' FusedMLP3")
_define("mlp", ("batch", "in", "hidden", "layers", "out"), "an MLP with so many equal hidden layers: the seeds' models")

# ---------------------------------------------------------------- two or three layers in one kernel


def ensure_fused(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    unfit: Callable[[int, str], str],
) -> None:
    """Refuse what a fused operation cannot compute: ``unfit`` says of width and dtype why a GPU's kernel cannot.

    Raises ``ValueError`` naming the tensor.
    """
    if len(weights) not in FUSED.values() or len(biases) != len(weights):
        raise ValueError(f"{len(weights)} weights and {len(biases)} biases: two or three of each are needed")
    if x.dim() < 1 or x.shape[-1] < 1:
        raise ValueError(f"x {list(x.shape)} has no features: x is (..., width)")
    width = x.shape[-1]
    named = {"x": x}
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True), 1):
        if weight.shape != (width, width):
            raise ValueError(
                f"weight{number} {list(weight.shape)} does not fit x {list(x.shape)}: it is (width, width)"
            )
        if bias.shape != (width,):
            raise ValueError(f"bias{number} {list(bias.shape)} does not fit x {list(x.shape)}: (width)")
        named |= {f"weight{number}": weight, f"bias{number}": bias}
    ensure_alike(named)
    if x.is_cuda and x.numel() // width > MOST_ROWS:
        raise ValueError(f"x {list(x.shape)} has more than {MOST_ROWS} rows")
    if x.is_cuda and (reason := unfit(width, str(x.dtype).removeprefix("torch."))):
        raise ValueError(f"x is {list(x.shape)} {x.dtype}: {reason}")


def unfusable(width: int, dtype: str, math: str) -> str:
    """Why the kernel cannot compute layers of this kind; empty when it can."""
    if width > WIDEST:
        return f"the activations of width {width} do not fit the registers, at most {WIDEST} do"
    if dtype in ("bfloat16", "float16"):
        return "" if math == "ieee" else f"{dtype} has no {math} products"
    if dtype != "float32" or math not in ("tf32", "tf32x3"):
        return f"no {dtype} products with math {math}: bfloat16, float16, or float32 with math tf32 or tf32x3"
    return "" if width <= 128 else f"float32 activations of width {width} do not fit the registers, at most 128 do"


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1]).contiguous()


@operator("mlp", planned=True, autocast=True)
def mlp(x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], math: str) -> torch.Tensor:
    """Two or three equal-width layers: in one kernel on a GPU, layer by layer on a CPU.

    ``x`` (..., width), ``weights`` (width, width) and ``biases`` (width) of every layer; on a GPU bfloat16 or float16
    with ``math`` "ieee", width at most 256, or float32 with "tf32" or "tf32x3", width at most 128 (any width: padded in
    the kernel). Differentiable once. Raises ``ValueError`` naming the tensor that does not fit.
    """
    ensure_fused(x, weights, biases, partial(unfusable, math=math))
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    if not x.is_cuda:
        return plain(x, *(tensor for pair in zip(weights, biases, strict=True) for tensor in pair)).contiguous()
    from hypatia_lab.kernels.mlp.mlp_triton import forward

    out = forward(flat(x), [w.contiguous() for w in weights], [b.contiguous() for b in biases], precision=math)
    return out.view(x.shape)


mlp.register_fake(lambda x, *others: torch.empty_like(x, memory_format=torch.contiguous_format))


@operator("mlp_backward", planned=True)
def mlp_backward(
    grad: torch.Tensor, x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], math: str
) -> Three:
    """Gradients of :func:`mlp` of x, of the weights (layers, width, width) and of the biases (layers, width).

    One kernel computes the activations again and adds up float32 shares, another adds the shares; layer by layer where
    the accumulators do not fit: widths above 128, float32, and on a CPU.
    """
    rows, grad_rows = flat(x), flat(grad)
    if x.numel() == 0:
        width = x.shape[-1]
        return x.new_empty(x.shape), x.new_zeros(len(weights), width, width), x.new_zeros(len(weights), width)
    if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and x.shape[-1] <= WIDEST_BACKWARD:
        from hypatia_lab.kernels.mlp.mlp_triton import backward

        own = [w.contiguous() for w in weights], [b.contiguous() for b in biases]
        grad_x, grad_weights, grad_biases = backward(grad_rows, rows, *own, precision=math)
    else:
        grad_x, grad_weights, grad_biases = layerwise_backward(grad_rows, rows, weights, biases)
    return grad_x.view(x.shape), grad_weights, grad_biases


@mlp_backward.register_fake
def _(grad: torch.Tensor, x: torch.Tensor, weights: Sequence[torch.Tensor], *others: Any) -> Three:
    layers, width = len(weights), x.shape[-1]
    return x.new_empty(x.shape), x.new_empty(layers, width, width), x.new_empty(layers, width)


def layerwise_backward(
    grad: torch.Tensor, x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]
) -> Three:
    activations = [x]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        activations.append(torch.relu(functional.linear(activations[-1], weight, bias)))
    grad_weights, grad_biases = [], []
    for number in reversed(range(len(weights))):
        grad_weights.insert(0, grad.t() @ activations[number])
        grad_biases.insert(0, grad.sum(0))
        grad = grad @ weights[number]
        if number:
            grad = torch.ops.aten.threshold_backward(grad, activations[number], 0)
    return grad, torch.stack(grad_weights), torch.stack(grad_biases)


mlp.differentiated_by(mlp_backward)
mlp_backward.not_differentiable(
    "hypatia::mlp is differentiable once: its backward keeps no graph; take second derivatives of the layers as "
    "torch.nn.functional.linear and torch.relu"
)


@operator("mlp_cuda", planned=True, autocast=True)
def forward_cuda(x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> torch.Tensor:
    """Two or three equal-width layers in one hand-written kernel for Hopper, not differentiable.

    ``x`` (..., width), ``weights`` (width, width) and ``biases`` (width) of every layer; bfloat16 or float16 on a GPU
    of compute capability 9.0, width 16, 32, 64, 128 or 256. Returns the shape of ``x``, contiguous. Raises
    ``ValueError`` naming the tensor that does not fit, ``NotImplementedError`` when it is differentiated.
    """
    ensure_fused(x, weights, biases, partial(unfusable, math="ieee"))
    dtype = str(x.dtype).removeprefix("torch.")
    if reason := mlp_cuda.missing(x.shape[-1], dtype, x.device.type):
        raise ValueError(f"x is {list(x.shape)} {x.dtype} on {x.device}: {reason}")
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return mlp_cuda.forward(x.reshape(-1, x.shape[-1]), weights, biases).view(x.shape)


forward_cuda.register_fake(lambda x, weights, biases: torch.empty_like(x, memory_format=torch.contiguous_format))
forward_cuda.not_differentiable("hypatia::mlp_cuda has no derivative; hypatia::mlp has")


# ---------------------------------------------------------------- who computes it


def _one_kernel(workload: Workload, device: str) -> str:
    return loader.triton_missing(device) or unfusable(workload.shape[1], workload.dtype, workload.math)


def _one_cuda_kernel(workload: Workload, device: str) -> str:
    return mlp_cuda.missing(workload.shape[1], workload.dtype, device)


def _layer_by_layer(linear_relu: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The MLP whose hidden layers are ``linear_relu(x, weight, bias)`` and whose last is the library's Linear."""

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        *hidden, (weight, bias) = _pairs(parameters)
        for own_weight, own_bias in hidden:
            x = linear_relu(x, own_weight, own_bias)
        return functional.linear(x, weight, bias)

    return run


def eager(workload: Workload, inputs: Inputs) -> Run:
    """Plain PyTorch, layer by layer: torch.relu(torch.nn.functional.linear(x, W, b)), the last without ReLU."""
    return bind(plain, inputs)


def compile_default(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile of the eager form, default mode."""
    return bind(compiled(plain), inputs)


def compile_max_autotune(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile of the eager form, max-autotune (without its own CUDA graphs: graphs are a clock here)."""
    return bind(compiled(plain, mode="max-autotune-no-cudagraphs"), inputs)


def aten(workload: Workload, inputs: Inputs) -> Run:
    """Layer by layer, each hidden layer one C++ operation: at::linear, then at::relu_ in place (S004 Plan C)."""
    return bind(_layer_by_layer(load_aten()), inputs)


def epilogue(workload: Workload, inputs: Inputs) -> Run:
    """Layer by layer through torch._addmm_activation: bias and ReLU in cuBLASLt's epilogue."""
    return bind(_layer_by_layer(fused_epilogue), inputs)


def fused(workload: Workload, inputs: Inputs) -> Run:
    """All layers in one Triton kernel of our own: the activations never leave the registers."""
    x, *parameters = inputs.values()
    weights, biases = parameters[::2], parameters[1::2]
    return lambda: torch.ops.hypatia.mlp(x, weights, biases, workload.math)


def fused_cuda(workload: Workload, inputs: Inputs) -> Run:
    """All layers in one CUDA C++ kernel of our own, for Hopper: TMA, wgmma, activations in registers; forward only."""
    x, *parameters = inputs.values()
    weights, biases = parameters[::2], parameters[1::2]
    return lambda: forward_cuda(x, weights, biases)


for _operation in ("mlp", *FUSED):
    _both = DIRECTIONS if _operation == "mlp" else DIRECTIONS[:1]
    variant(_operation, "eager", origin="peer", directions=_both, baseline=True)(eager)
    _library = partial(variant, _operation, origin="peer", tags=("library",))
    _library("compile", needs=compile_missing, directions=_both)(compile_default)
    _library("epilogue")(epilogue)
    _library("compile_max_autotune", needs=compile_missing)(compile_max_autotune)
    if _operation in FUSED:
        _own = partial(variant, _operation, origin="own", tags=("fused",))
        _split = ("ieee", "tf32", "tf32x3")
        _own("fused", needs=_one_kernel, maths=_split, label="all layers in one Triton kernel")(fused)
        _own("fused_cuda", needs=_one_cuda_kernel, maths=("ieee",), label="all layers in one CUDA kernel")(fused_cuda)
    else:
        _rebuilt = partial(variant, _operation, origin="rebuilt", tags=("document",), operator=True)
        _rebuilt("aten", needs=cpp_missing, label="one C++ operation a layer (Plan C)")(aten)
