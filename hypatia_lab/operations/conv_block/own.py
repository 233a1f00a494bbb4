"""The convolution block in kernels of our own: some in Triton, or one CUDA kernel for Hopper; forward and backward.

x is ``(N, C_in, H, W)``, W ``(C_out, C_in, 3, 3)``, b (or None), γ and β ``(C_out)``, y ``(N, C_out, H, W)``; all of
one floating dtype on one GPU, best channels last in memory, as y is: what lies otherwise is copied first.
float32 is multiplied as it is ("ieee"), as TF32 ("tf32"), as three products of two bfloat16 terms each ("bf16x3"),
which keeps 16 bits of an operand, or of two scaled float16 terms each ("fp16x3"), which has float32's digits. The one
kernel has no TF32: where that is allowed it multiplies most numbers in float16, which is as fine, and all as in bf16x3
where float16 cannot hold them.
The kernels: ``kernels/conv_block/``.

``eager_graph`` is eager recorded as a CUDA graph once; a call replays it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional

from hypatia_lab.clock import capture
from hypatia_lab.kernels import hopper, loader
from hypatia_lab.messages import unknown
from hypatia_lab.operations.conv_block import OPERATIONS, PARAMETERS, PEERS, checked
from hypatia_lab.operations.operators import operator
from hypatia_lab.operations.torch_forms import LAST, bind
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs, Workload

FORMS = {"triton": "Triton kernels", "whole": "one CUDA kernel"}
"""Form → what it is: the convolution with the moments of its patches, then all that follows; or the convolution's sums
in registers until their plane is normalised. In the first a CUDA kernel convolves few channels of float32."""

SPLIT = "fp16x3"
"""What computes IEEE float32 by products of split operands: they have its digits."""

FEW_PIXELS = 2 * 128 * 128
"""Of so many or fewer, of all images, two kernels are as fast as the one, or faster: each of its blocks loads all
weights. Source: the record ``conv_block`` of an H200, 1, 2 and 5 images of 128 × 128."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's kernels run in its interpreter, on a CPU."""


def missing(form: str, device: str) -> str:
    """Why ``form`` cannot run on tensors of ``device``; "" where it can."""
    if reason := loader.triton_missing("cuda" if INTERPRETED and form == "triton" else device):
        return reason
    return hopper.missing("bfloat16", device) if form == "whole" else ""


def fits(
    size: torch.Size | tuple[int, ...], outer: int, dtype: torch.dtype, precision: str, *, backward: bool = False
) -> bool:
    """Whether the one kernel can compute ``outer`` channels of x (N, C_in, H, W), of this ``size``, on this GPU;
    ``backward``: whether its backward pass can.
    """
    from hypatia_lab.kernels.conv_block import conv_block_whole as whole

    processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    if backward:
        return whole.backward_fits(size, outer, dtype, precision, processors)
    return whole.fits(size, outer, dtype, precision, processors)


def quicker(x: torch.Tensor, outer: int, precision: str, *, step: bool = False) -> str:
    """The form for ``outer`` channels of x (N, C_in, H, W) where none is asked for: "whole" where that is quicker.

    ``step``: as part of a training step, of which only many pixels have been timed.
    """
    if missing("whole", x.device.type) or (x.element_size() == 4 and precision == "ieee"):
        return "triton"
    pixels = x.shape[0] * x.shape[2] * x.shape[3]
    few = not step and pixels <= FEW_PIXELS
    return "triton" if few or not fits(x.shape, outer, x.dtype, precision) else "whole"


# ---------------------------------------------------------------- custom operations


@operator("conv_block_fused", planned=True, autocast=True)
def conv_block_fused(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    approximate: str,
    precision: str,
    form: str,
    keep: bool,
    counters: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, channels last in memory, and what its gradient needs where that is to be kept, else empty tensors.

    These are the convolution (N, H, W, C_out) of x's dtype, and each plane's mean and 1/√(variance + ε), (N, 2, C_out)
    in float32. ``counters``, int32 (N, 2) of zeros, which the one kernel leaves zeros, save clearing new ones; two
    calls at a time must not share them. Differentiable once, and only what was computed with ``keep``. Raises
    ``ValueError`` on a misfit.
    """
    if form not in FORMS:
        raise ValueError(unknown("form", form, FORMS))
    checked(x, weight, bias, gamma, beta, approximate)
    if why := missing(form, x.device.type):
        raise ValueError(f"{form} on x: {why}")
    given = (x, weight, bias, gamma, beta)
    how: dict[str, Any] = {"approximate": approximate, "precision": precision}
    if form == "whole":
        from hypatia_lab.kernels.conv_block.conv_block_whole import conv_block_whole

        y, saved = conv_block_whole(*given, **how, keep=keep, counters=counters)
    else:
        from hypatia_lab.kernels.conv_block.conv_block_triton import conv_block_forward

        y, saved = conv_block_forward(*given, **how)
    if saved is None or not keep:
        return y, x.new_empty(0), x.new_empty(0, dtype=torch.float32)
    return y, saved.convolved, saved.statistics


@conv_block_fused.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *_, keep, _ = others
    images, _, height, width = x.shape
    z = x.new_empty(images, height, width, weight.shape[0])
    y = torch.empty_like(z).permute(0, 3, 1, 2)
    if not keep:
        return y, x.new_empty(0), x.new_empty(0, dtype=torch.float32)
    return y, z, x.new_empty(images, 2, weight.shape[0], dtype=torch.float32)


@operator("conv_block_gradients", planned=True)
def conv_block_gradients(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    convolved: torch.Tensor,
    statistics: torch.Tensor,
    approximate: str,
    precision: str,
    counters: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, weight, bias, γ and β from ``grad``, that of y; the rest as :func:`conv_block_fused` had or left.

    float32's are by torch's own convolutions but with ``precision`` "fp16x3". Those of x and weight are channels last
    in memory. ``counters`` as of :func:`conv_block_fused`. Not differentiable.
    Raises ``ValueError`` on a misfit, ``RuntimeError`` where nothing was kept.
    """
    if not statistics.numel() and x.shape[0]:
        raise RuntimeError("hypatia::conv_block_fused has no gradient of what was computed with keep=False")
    from hypatia_lab.kernels.conv_block.conv_block_triton import Saved

    if not missing("whole", x.device.type) and fits(x.shape, weight.shape[0], x.dtype, precision, backward=True):
        from hypatia_lab.kernels.conv_block.conv_block_whole import conv_block_backward

        backward = partial(conv_block_backward, counters=counters)
    else:
        from hypatia_lab.kernels.conv_block.conv_block_backward import conv_block_backward

        backward = partial(conv_block_backward, precision=precision)
    found = backward(grad, x, weight, gamma, beta, Saved(convolved, statistics), approximate=approximate)
    last = torch.channels_last
    return found.x.contiguous(memory_format=last), found.weight.contiguous(memory_format=last), *found[2:]


@conv_block_gradients.register_fake
def _(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, gamma: torch.Tensor, *others: Any) -> Any:
    last = torch.channels_last
    bias, of_gamma, of_beta = (torch.empty_like(gamma) for _ in range(3))
    of_x, of_weight = (torch.empty_like(tensor, memory_format=last) for tensor in (x, weight))
    return of_x, of_weight, bias, of_gamma, of_beta


conv_block_fused.differentiated_by(conv_block_gradients, ("y", "convolved", "statistics"))
conv_block_gradients.not_differentiable("hypatia::conv_block_fused has a first derivative only")


def fused_conv_block(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    *,
    approximate: str = "none",
    p: float = 0.0,
    precision: str = "ieee",
    form: str = "",
    counters: torch.Tensor | None = None,
) -> torch.Tensor:
    """y = dropout(GELU(InstanceNorm2d(Conv2d(x)))), (N, C_out, H, W), channels last in memory; differentiable once.

    ``approximate`` is GELU's ("none" or "tanh"), ``precision`` says how float32 is multiplied, ``form`` is one of
    :data:`FORMS`, or "" for what :func:`quicker` says, ``counters`` are as of :func:`conv_block_fused`. Each element is
    dropped with probability ``p``, the others divided by 1 − p, by torch's own dropout after the kernels and with
    torch's own random numbers.

    Raises ``ValueError``, worded as PyTorch would where PyTorch refuses the same, for a misfit of shapes, dtypes or
    devices, float64, planes of one pixel, an argument out of range, or a form that the sizes or the device rule out;
    ``NotImplementedError`` when its gradient is differentiated.
    """
    if p or not form:  # the operation refuses all else
        checked(x, weight, bias, gamma, beta, approximate, p)
    tensors = (x, weight, bias, gamma, beta)
    step = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    form = form or quicker(x, weight.shape[0], precision, step=step)
    y = conv_block_fused(x, weight, bias, gamma, beta, approximate, precision, form, step, counters)[0]
    return y if p == 0.0 else functional.dropout(y, p)


# ---------------------------------------------------------------- the variants


def _needs(form: str, precision: str) -> Callable[[Workload, str], str]:
    def needs(workload: Workload, device: str) -> str:
        if why := missing(form, device):
            return why
        if workload.dtype == "float64":
            return "the kernels have no float64"
        if precision and workload.dtype != "float32":
            return "splitting operands is a way to float32's own accuracy"
        how = precision or workload.math
        if form == "whole" and workload.dtype == "float32" and how == "ieee":
            return "the matrix units that the one kernel is made of have no float32"
        if form == "whole" and not fits(workload.shape, workload.shape[1], getattr(torch, workload.dtype), how):
            return "needs 64 channels, rows of 8 to 215 pixels, and images that the GPU holds at once"
        return ""

    return needs


def _factory(form: str, precision: str) -> Factory:
    def factory(workload: Workload, inputs: Inputs) -> Run:
        how: dict[str, Any] = {
            "approximate": OPERATIONS[workload.operation],
            "precision": precision or workload.math,
        }
        if form != "whole":
            return bind(lambda *tensors: fused_conv_block(*tensors, form=form, **how), inputs, PARAMETERS, LAST)
        # Left zeros by every launch; a call need not clear new ones. A keyword says that the run keeps them.
        counters = torch.zeros(workload.shape[0], 2, dtype=torch.int32, device=inputs["x"].device)
        return bind(partial(fused_conv_block, form=form, counters=counters, **how), inputs, PARAMETERS, LAST)

    return factory


def captured(factory: Factory) -> Factory:
    """The variant of ``factory`` as a CUDA graph: recorded where it is built, replayed by a call.

    A call returns the same tensors every time, refilled.
    """

    def recorded(workload: Workload, inputs: Inputs) -> Run:
        # The graph goes on using what the run allocated for itself, so that has to live as long.
        held: list[Any] = [factory(workload, inputs), None]

        def work() -> None:
            held[1] = held[0]()

        graph = capture(work)

        def replay() -> Any:
            graph.replay()
            return held[1]

        return replay

    return recorded


def _on_gpu(needs: Callable[[Workload, str], str]) -> Callable[[Workload, str], str]:
    return lambda workload, device: needs(workload, device) if device == "cuda" else loader.NO_GPU


for _operation in OPERATIONS:
    for _form, _words in FORMS.items():
        for _precision in ("", SPLIT):
            _name = f"{_form}_{_precision}" if _precision else _form
            _made = _factory(_form, _precision)  # of what is split, splitting is timed, too
            _need, _maths = _needs(_form, _precision), ("ieee",) if _precision else ("ieee", "tf32", "bf16x3")
            _own = partial(variant, _operation, origin="own", directions=DIRECTIONS, maths=_maths, tags=("own kernel",))
            _own = partial(_own, splits=("float16/ieee", 3) if _precision else None)
            _label = _words + ", float32 as three float16 products" * bool(_precision)
            _own(_name, needs=_need, label=_label)(_made)
    _peer = partial(variant, _operation, origin="peer", directions=DIRECTIONS, tags=("library",))
    _peer("eager_graph", needs=_on_gpu(PEERS["eager"][1]))(captured(PEERS["eager"][0]))
