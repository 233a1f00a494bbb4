"""Wrong kernels, planted on purpose: each is put before the check, which must reject it and name its fault.

They are written as kernels are, in torch, for any shape and dtype, not taken from the float64 mistakes that the check
compares with. Rules of the e-graph that change the result stand before its gate in the same way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

from hypatia_lab import check
from hypatia_lab.diffraction.operations import BATCH
from hypatia_lab.egraph import Grade, Rule, examine
from hypatia_lab.operations import conv_block, norm_chain, unet
from hypatia_lab.variants import find
from hypatia_lab.workloads import Workload

Inputs = dict[str, torch.Tensor]
Call = Callable[[Inputs], object]
Factory = Callable[[Inputs], Callable[[], object]]

BOTH = "forward_backward"
LINEAR_RELU = Workload("linear_relu", (48, 64, 64))
"""Square weight, so that a transposed one fits."""
BLOCK = Workload("conv_block", (3, 6, 33, 24))


@dataclass(frozen=True)
class Kernel:
    """A wrong kernel of ``workload``: its ``mistake`` in words, and how the check must name it (``fault``).

    ``build(inputs)`` gives the callable, as a variant's factory does.
    """

    workload: Workload
    mistake: str
    fault: str
    build: Factory


KERNELS: list[Kernel] = []
"""Every planted kernel, by operation."""


def _plant(workload: Workload, mistakes: Mapping[str, Call | tuple[str, Call]]) -> None:
    """Plant kernels of ``workload`` by their mistakes; with a call stands its fault where that is not the mistake."""
    for mistake, given in mistakes.items():
        fault, call = given if isinstance(given, tuple) else (mistake, given)
        KERNELS.append(Kernel(workload, mistake, fault, lambda i, call=call: lambda: call(i)))


# ---------------------------------------------------------------- Linear+ReLU


def linear(i: Inputs) -> torch.Tensor:
    """The layer alone."""
    return functional.linear(i["x"], i["weight"], i["bias"])


def linear_relu(i: Inputs) -> torch.Tensor:
    """Linear and ReLU, right: (batch, out) of x (batch, in), weight (out, in) and bias (out)."""
    return linear(i).relu()


def _only(i: Inputs, *written: slice) -> torch.Tensor:
    """What is right where it is ``written``, and nothing elsewhere."""
    out = i["x"].new_empty(len(i["x"]), len(i["weight"]))
    out[written] = linear_relu(i)[written]
    return out


def _spoiled(right: torch.Tensor, change: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """``right`` after ``change`` has written into it."""
    change(right)
    return right


def _tf32(t: torch.Tensor) -> torch.Tensor:
    """TF32 keeps 10 mantissa bits: round to nearest, then clear the other 13."""
    return ((t.float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).to(t.dtype)


def _overrun(i: Inputs) -> torch.Tensor:
    """Each row's overrun lands on the first element of the next."""
    answer = linear_relu(i)
    rows, columns = answer.shape
    flat = answer.new_empty(rows * columns + 1)
    for row in range(rows):
        flat[row * columns : (row + 1) * columns] = answer[row]
    for row in range(rows):
        flat[(row + 1) * columns] = 1e3  # what a column of weights past the last one would give
    return flat[:-1].view(rows, columns)


_plant(
    LINEAR_RELU,
    {
        "ReLU missing": linear,
        "bias missing": lambda i: torch.relu(i["x"] @ i["weight"].T),
        "bias after ReLU": ("bias added after the ReLU", lambda i: torch.relu(i["x"] @ i["weight"].T) + i["bias"]),
        "weight transposed": lambda i: torch.relu(torch.addmm(i["bias"], i["x"], i["weight"])),
        "last tile unwritten": ("unwritten", lambda i: _only(i, slice(-8))),
        "last column unwritten": ("unwritten", lambda i: _only(i, slice(None), slice(-1))),
        "last tile zeroed": ("unwritten", lambda i: _spoiled(linear_relu(i), lambda y: y[-8:].zero_())),
    },
)
# It remembers from call to call, and so is no call of its own each time.
KERNELS.append(
    Kernel(LINEAR_RELU, "output of the call before", "stale output", lambda i: functools.cache(lambda: linear_relu(i)))
)
_plant(
    LINEAR_RELU,
    {
        "bfloat16 passed off as float32": (
            "low precision",
            lambda i: linear_relu({name: tensor.bfloat16() for name, tensor in i.items()}).float(),
        ),
        "TF32 passed off as float32": (
            "low precision",
            lambda i: torch.relu(functional.linear(_tf32(i["x"]), _tf32(i["weight"]), i["bias"])),
        ),
        "one NaN": ("NaN: 1 of", lambda i: _spoiled(linear_relu(i), lambda y: y[-1, -1].fill_(math.nan))),
        "NaN everywhere": ("NaN: all", lambda i: linear_relu(i) * math.nan),
        "wrong dtype": ("wrong dtype: float64", lambda i: linear_relu(i).double()),
        "output transposed": ("wrong shape: [64, 48]", lambda i: linear_relu(i).T),
        "one row short": ("wrong shape: [47, 64]", lambda i: linear_relu(i)[:-1]),
        "a tuple for a tensor": ("wrong type: tuple", lambda i: (linear_relu(i),)),
        "one column too many a row": ("writes past a row", _overrun),
        "writes into its input": (
            "input changed: the call wrote into 'x'",
            lambda i: (linear_relu(i), i["x"].relu_())[0],
        ),
        "one element off": ("wrong values", lambda i: _spoiled(linear_relu(i), lambda y: y[-1, -1].add_(0.5))),
        "last term of each sum dropped": (
            "wrong values",
            lambda i: torch.relu(functional.linear(i["x"][:, :-1], i["weight"][:, :-1], i["bias"])),
        ),
        "rows in reverse": ("wrong values", lambda i: linear_relu(i).flip(0)),
    },
)

# ---------------------------------------------------------------- a linear layer with GELU behind it

_plant(
    Workload("linear_gelu", LINEAR_RELU.shape),
    {
        "GELU by tanh instead of erf": lambda i: functional.gelu(linear(i), approximate="tanh"),
        "GELU missing": linear,
        "ReLU instead of GELU": linear_relu,
        "bias missing": lambda i: functional.gelu(i["x"] @ i["weight"].T),
        "bias added after the GELU": lambda i: functional.gelu(i["x"] @ i["weight"].T) + i["bias"],
    },
)
_plant(
    Workload("linear_gelu_tanh", LINEAR_RELU.shape),
    {"GELU by erf instead of tanh": lambda i: functional.gelu(linear(i))},
)
_plant(
    Workload("linear_relu_gelu", LINEAR_RELU.shape),
    {"ReLU missing": lambda i: functional.gelu(linear(i)), "GELU missing": linear_relu},
)

# ---------------------------------------------------------------- Linear+ReLU, forward and backward


def gradients(i: Inputs, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, weight and bias from the masked upstream gradient ``z`` (batch, out)."""
    return z @ i["weight"], z.T @ i["x"], z.sum(0)


def both_passes(i: Inputs) -> tuple[torch.Tensor, ...]:
    """y and the gradients of x, weight and bias, right."""
    y = linear_relu(i)
    return y, *gradients(i, torch.where(y > 0, i["grad"], 0))


def _with_part(number: int, change: Callable[[torch.Tensor, Inputs], object]) -> Call:
    def run(i: Inputs) -> object:
        answer: list[Any] = list(both_passes(i))
        answer[number] = change(answer[number], i)
        return tuple(answer)

    return run


def _with_mask(mask: Callable[[Inputs, torch.Tensor], torch.Tensor]) -> Call:
    """Both passes with another masked gradient."""
    return lambda i: (linear_relu(i), *gradients(i, mask(i, linear_relu(i))))


_plant(
    Workload("linear_relu", LINEAR_RELU.shape, direction=BOTH),
    {
        "grad_x: mask missing": _with_mask(lambda i, y: i["grad"]),
        "grad_x: mask of the wrong operand": _with_mask(lambda i, y: i["grad"].relu()),
        "grad_x: mask inverted": _with_mask(lambda i, y: torch.where(y > 0, 0, i["grad"])),
        "grad_x: upstream gradient taken as ones": _with_mask(lambda i, y: (y > 0).to(y.dtype)),
        "grad_bias: mask missing": _with_part(3, lambda part, i: i["grad"].sum(0)),
        "grad_bias: gradient missing": _with_part(3, lambda part, i: torch.zeros_like(part)),
        "grad_bias: wrong type: NoneType": _with_part(3, lambda part, i: None),
        "grad_bias: mean over the batch": _with_part(3, lambda part, i: part / len(i["x"])),
        "grad_bias: unwritten": _with_part(3, lambda part, i: torch.empty_like(part)),
        "grad_weight: transposed": _with_part(2, lambda part, i: part.T),
        "grad_weight: NaN: 1 of": _with_part(2, lambda part, i: _spoiled(part, lambda p: p[-1, -1].fill_(math.nan))),
        "grad_weight: one element off": (
            "grad_weight: wrong values",
            _with_part(2, lambda part, i: _spoiled(part, lambda p: p[-1, -1].fill_(1e3))),
        ),
        "grad_weight: wrong shape": _with_part(2, lambda part, i: part[:-1]),
        "grad_x: weight transposed": _with_part(
            1, lambda part, i: torch.where(linear_relu(i) > 0, i["grad"], 0) @ i["weight"].T
        ),
        "grad_x rounded to bfloat16": ("grad_x: low precision", _with_part(1, lambda part, i: _rounded(part))),
        "grad_x: wrong dtype: float64": _with_part(1, lambda part, i: part.double()),
        "grad_x: rows shifted by one": ("grad_x: wrong values", _with_part(1, lambda part, i: part.roll(1, 0))),
        "y: ReLU missing": _with_part(0, lambda part, i: linear(i)),
        "y: bias missing": _with_part(0, lambda part, i: torch.relu(i["x"] @ i["weight"].T)),
        "gradients not returned": ("wrong type: Tensor instead of the tuple (y, grad_x", linear_relu),
        "grad_bias not returned": ("wrong type: tuple of 3 instead", lambda i: both_passes(i)[:3]),
        "input changed: the call wrote into 'grad'": lambda i: (both_passes(i), i["grad"].neg_())[0],
    },
)

# ---------------------------------------------------------------- layouts, products, copies


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype)


def _read_as(name: str, read: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """Linear+ReLU of an ``x`` that lies in memory as the input ``name`` does, and is ``read`` in the wrong order."""
    return lambda i: linear_relu(i | {"x": read(i[name]).reshape(i["x"].shape)})


_plant(
    Workload("linear_relu_layout", (48, 40, 56)),
    {"columns of x read as rows": ("wrong values", _read_as("x_column_major", lambda x: x.T))},
)
_plant(
    Workload("linear_relu_layout", (48, 40, 64)),
    {"strides of a batch ignored": ("wrong values", _read_as("x_strided_batch", lambda x: x.transpose(0, 1)))},
)
_plant(
    Workload("matmul", (48, 64, 40)),
    {
        "last step of products left out": ("wrong values", lambda i: i["a"][:, :-8] @ i["b"][:-8]),
        "one operand rounded to bfloat16": ("low precision", lambda i: _rounded(i["a"]) @ i["b"]),
    },
)
_plant(
    Workload("copy", (1000,)),
    {
        "last element not copied": (
            "unwritten",
            lambda i: torch.cat((i["source"][:-1], torch.empty_like(i["source"][:1]))),
        )
    },
)

# ---------------------------------------------------------------- several layers


def layers(
    i: Inputs, *, linear: int = 0, skipped: int = 0, unbiased: int = 0, last: bool = False, unmasked: bool = False
) -> torch.Tensor:
    """The MLP by torch's own operations; the number of a layer says where a step is left out, ``last`` adds a ReLU.

    ``unmasked`` lets gradients through every ReLU.
    """
    h, depth = i["x"], sum(name.startswith("weight") for name in i)
    for number in range(1, depth + 1):
        if number != skipped:
            h = functional.linear(h, i[f"weight{number}"], None if number == unbiased else i[f"bias{number}"])
            if number not in (linear, depth):
                h = h + (h.relu() - h).detach() if unmasked else h.relu()
    return h.relu() if last else h


def training_step(i: Inputs, *, unmasked: bool = False) -> tuple[torch.Tensor, ...]:
    """y of the MLP and autograd's gradients of x, weights and biases, in the order of the inputs."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in i.items() if name != "grad"}
    y = layers(leaves, unmasked=unmasked)
    return y.detach(), *torch.autograd.grad(y, list(leaves.values()), i["grad"])


_plant(
    Workload("mlp", (24, 40, 32, 2, 20)),
    {
        "ReLU missing after layer 1": lambda i: layers(i, linear=1),
        "layer 2 skipped": lambda i: layers(i, skipped=2),
        "bias missing in layer 2": lambda i: layers(i, unbiased=2),
        "ReLU after the last layer": lambda i: layers(i, last=True),
    },
)
_plant(
    Workload("mlp", (24, 40, 32, 2, 20), direction=BOTH),
    {
        "grad_x: masks missing": lambda i: (training_step(i)[0], *training_step(i, unmasked=True)[1:]),
        "grad_bias1: mean over the batch": lambda i: tuple(
            part / len(i["x"]) if number == 3 else part for number, part in enumerate(training_step(i))
        ),
    },
)

# ---------------------------------------------------------------- the convolution block


def block(approximate: str, **changed: Any) -> Callable[[Inputs], torch.Tensor]:
    """A block with GELU by ``approximate`` (none or tanh), and with something else in place of the steps ``changed``.

    Steps: ``pad``, ``kernel``, ``normal``, ``affine`` and ``gelu``, each a function of what it gets.
    """

    def run(i: Inputs) -> torch.Tensor:
        pad, kernel = changed.get("pad", lambda x: functional.pad(x, (1, 1, 1, 1))), i["weight"]
        z = functional.conv2d(pad(i["x"]), changed.get("kernel", lambda w: w)(kernel), i["bias"])
        n = changed.get("normal", lambda z: conv_block.normalised(z)[0])(z)
        u = changed.get("affine", lambda n, g, b, bias: n * g + b)(
            n, *(i[name].view(1, -1, 1, 1) for name in ("gamma", "beta", "bias"))
        )
        return changed.get("gelu", lambda u: functional.gelu(u, approximate=approximate))(u)

    return run


BLOCK_FAULTS: dict[str, dict[str, Any]] = {
    "statistics per tile instead of per plane": {"normal": conv_block.normalised_by_tile},
    "statistics over the batch (batch normalisation)": {
        "normal": lambda z: functional.batch_norm(z, None, None, training=True)
    },
    "statistics over all channels (layer normalisation)": {"normal": lambda z: functional.group_norm(z, 1)},
    "variance unbiased (n − 1)": {"normal": lambda z: conv_block.normalised(z, correction=1)[0]},
    "eps missing": {"normal": lambda z: conv_block.normalised(z, eps=0.0)[0]},
    "bias added after the normalisation": {"affine": lambda n, g, b, bias: n * g + b + bias},
    "gamma and beta ignored": {"affine": lambda n, g, b, bias: n},
    "gamma ignored": {"affine": lambda n, g, b, bias: n + b},
    "beta ignored": {"affine": lambda n, g, b, bias: n * g},
    "borders replicated instead of zero": {"pad": lambda x: functional.pad(x, (1, 1, 1, 1), mode="replicate")},
    "kernel flipped": {"kernel": lambda w: w.flip(2, 3)},
    "GELU missing": {"gelu": lambda u: u},
    "ReLU instead of GELU": {"gelu": torch.relu},
    "wrong shape": {"pad": lambda x: x},
    "low precision": {"kernel": _rounded},
}
"""Fault → the steps of :func:`block` that are changed."""
_SAID = {
    "wrong shape": "no padding",
    "low precision": "kernel rounded to bfloat16",
}
"""Fault → the mistake behind it, where that is another word."""

_plant(
    BLOCK,
    {_SAID.get(fault, fault): (fault, block("none", **changed)) for fault, changed in BLOCK_FAULTS.items()}
    | {
        "GELU by tanh instead of erf": block("tanh"),
        # As many digits as TF32 keeps.
        "kernel rounded to float16": ("low precision", block("none", kernel=lambda w: w.half().to(w.dtype))),
    },
)

# ---------------------------------------------------------------- a U-Net, a chain of normalisations


def _parameters(i: Inputs) -> list[torch.Tensor]:
    return [i[name] for name in unet.PARAMETERS]


_plant(
    Workload("unet", (2, 16, 16, 12)),
    {
        "group instead of instance normalisation": lambda i: unet.unet(i["x"], _parameters(i), unet.GROUPS),
        "skip connections missing": lambda i: unet.exact(i, unet.Form(skips=False))[0],
        "enlarged smoothly": lambda i: unet.exact(i, unet.Form(smooth=True))[0],
    },
)
_plant(
    Workload("norm_chain", (2, 3, 9, 7)),
    {
        "last normalisation missing": lambda i: norm_chain.exact(i["x"], i["gamma"], i["beta"], length=2),
        "gamma and beta ignored": lambda i: norm_chain.chain(i["x"], i["gamma"] * 0 + 1, i["beta"] * 0),
    },
)

# ---------------------------------------------------------------- diffraction


def _corners(i: Inputs) -> Inputs:
    detector = i["detector"].clone()
    detector[:3] -= 0.5 * (detector[3:6] + detector[6:9])
    return {"detector": detector}


def _plant_image(
    mistake: str, change: Callable[[Inputs], Inputs], operation: str = "diffraction", fault: str = "", images: int = 0
) -> None:
    """Plant the eager form of ``operation`` on changed inputs; of a batch there are so many ``images``."""
    work = Workload(operation, (*[images] * bool(images), 24, 30), "float64")
    _plant(work, {mistake: (fault or mistake, lambda i: find(operation, "eager").factory(work, i | change(i))())})


OFF = "wrong values: off by "
_plant_image("pixel corners taken for centres", _corners)
_plant_image("crystal vectors transposed", lambda i: {"crystals": i["crystals"].mT.contiguous()})
_plant_image(
    "polarization factor ignored",
    lambda i: {"polarization": torch.zeros_like(i["polarization"])},
    "diffraction_table",
)
_plant_image(
    "last wavelength left out", lambda i: {"sources": i["sources"][:-1].contiguous()}, "diffraction_sources", OFF
)
_plant_image("images of a batch swapped", lambda i: {"crystals": i["crystals"].flip(0)}, BATCH, OFF, images=2)

# ---------------------------------------------------------------- rules of the e-graph

RULES = {
    "ReLU dropped": ("(Relu (Linear x w b))", "(Linear x w b)"),
    "ReLU taken for GELU": ("(Relu x)", "(Gelu x none)"),
    "product with the weight untransposed": ("(Mm x w)", "(Linear x w (Absent))"),
    "ReLU of a sum split": ("(Relu (Add x y))", "(Add (Relu x) (Relu y))"),
    "dropout removed in training": ("(Dropout x p training)", "x"),
    "any two transpositions cancelled": ("(Transpose (Transpose x i j) k l)", "x"),
    "layers of any width fused": ("(Linear (LinearRelu x w0 b0) w1 b1)", "(Mlp2 x w0 b0 w1 b1)"),
}
"""Mistake → left and right side of a rule that changes the result."""


# ---------------------------------------------------------------- put before the check


def tried() -> Iterator[dict[str, str]]:
    """What becomes of each: operation, what was planted, and the fault that it was given ("" where none was).

    On the CPU, for the check is the same everywhere. A rule's fault is a counterexample; only that one was found is
    told.
    """
    for kernel in KERNELS:
        problem = check.Problem(kernel.workload, "cpu")
        with kernel.workload.precision():
            found = check.check(kernel.build(problem.inputs), problem)
        direction = ", both passes" if kernel.workload.backward else ""
        yield {
            "operation": kernel.workload.operation + direction,
            "planted": kernel.mistake,
            "named": kernel.fault.strip() if kernel.fault in found.reason else "",
        }
    for mistake, sides in RULES.items():
        refused = examine(Rule("planted", *sides, Grade.FINITE)).grade is None
        yield {"operation": "rule of the optimizer", "planted": mistake, "named": "counterexample" if refused else ""}
