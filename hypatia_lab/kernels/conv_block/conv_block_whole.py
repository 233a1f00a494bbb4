"""Conv2d 3×3 → InstanceNorm2d → GELU in one CUDA kernel for Hopper, and its backward pass: how they are launched.

x is (N, 64, H, W), W (64, 64, 3, 3). A block of ``kernels/conv_block/conv_block_whole.cu`` computes a strip, some rows
of one image, one of ``conv_block_gradient.cu`` a share of its pixels; the blocks of an image wait for each other, so
all of a launch must run at once: one a multiprocessor. More images take more launches. The weight's gradient is a
Triton kernel's.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hypatia_lab.kernels import hopper, loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from hypatia_lab.kernels.conv_block.conv_block_backward import Gradients
    from hypatia_lab.kernels.conv_block.conv_block_triton import Saved

    Vectors = tuple[Tensor | None, Tensor | None, Tensor | None]  # bias, γ and β
    Own = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]  # z, y, statistics and counters, by image

CHANNELS = 64
"""Channels in and out."""

SPANS, GROUPS = (48, 96, 216), 3
"""Pixels that a warpgroup's sums may be of, and warpgroups a block: with fewer, less is multiplied and nothing lost."""

TOLD_BYTES = 9984 + 64
"""Bytes of shared memory for what threads tell each other, and for barriers."""

TURNS_WIDTH, TURNS_STRIPS = 128, 66
"""Pixels a row, and the most strips an image, of the kernel whose images take turns."""

SHARE = 672
"""Pixels whose gradients a block of the backward pass can hold."""


def _pitch(width: int) -> int:
    """Pixels from row to row of what a block holds: with zeros between them, and an even number."""
    return (width + 2) // 2 * 2


def _most_rows(width: int) -> int:
    """Rows of so many pixels whose sums a block can hold; 0 for less than 8 or more than 215 pixels."""
    most = SPANS[-1]
    return (GROUPS * most - width) // _pitch(width) + 1 if 8 <= width < most else 0


def strip_rows(images: int, height: int, width: int, processors: int) -> int:
    """Rows a block computes of planes (``height``, ``width``) on a GPU of so many multiprocessors: the fewest with
    which all images run at once; 0 where they cannot.
    """
    rows = range(1, _most_rows(width) + 1)
    return next((rows for rows in rows if images * -(-height // rows) <= processors), 0)


@lru_cache(maxsize=256)
def early_images(images: int, height: int, width: int, processors: int) -> int:
    """How many of so many images come first where they take turns, by strips of three rows, the others by strips of
    two; 0 where they do not: where rows are of other lengths, not all fit at once, or strips of four rows would do.
    """
    if width != TURNS_WIDTH or -(-height // 2) > TURNS_STRIPS or images * -(-height // 4) <= processors:
        return 0
    needed = {early: max(early * -(-height // 3), (images - early) * -(-height // 2)) for early in range(1, images)}
    best = min(needed, key=needed.__getitem__, default=0)
    return best if best and needed[best] <= processors else 0


def _evenly(images: int, at_once: int) -> list[int]:
    number = -(-images // at_once) if at_once else 0
    return [images // number + (index < images % number) for index in range(number)]


def launches(size: torch.Size | tuple[int, ...], processors: int) -> list[int]:
    """Images that each launch takes of x (N, C, H, W), as evenly as can be; none where not even one image fits."""
    images, _, height, width = size
    most = _most_rows(width)
    return _evenly(images, processors // -(-height // most) if most else 0)


def backward_launches(size: torch.Size | tuple[int, ...], processors: int) -> list[int]:
    """The same of the backward pass, whose blocks hold :data:`SHARE` pixels each."""
    images, _, height, width = size
    return _evenly(images, processors // max(-(-height * width // SHARE), 1))


def fits(
    size: torch.Size | tuple[int, ...], outer: int, dtype: torch.dtype, precision: str, processors: int = 132
) -> bool:
    """Whether the kernel can compute ``outer`` channels of x, of ``size`` (N, C_in, H, W): 64 of both, images that fit
    on ``processors`` multiprocessors, and not float32 multiplied as it is ("ieee").
    """
    known = dtype.itemsize == 2 or (dtype == torch.float32 and precision in ("tf32", "bf16x3", "fp16x3"))
    return known and size[1] == outer == CHANNELS and bool(launches(size, processors))


def _span(rows: int, width: int) -> int:
    """The fewest of :data:`SPANS` with which a block's sums are of so many rows."""
    return next(span for span in SPANS if (rows - 1) * _pitch(width) + width <= GROUPS * span)


def _shared(width: int, span: int) -> int:
    """Bytes of dynamic shared memory: what threads tell each other, alignment, nine taps' weights and the
    pixels that the last window may reach, all channels of 16 bits, or twice 16 channels of 32.
    """
    pixels = (GROUPS * span + 2 * _pitch(width) + 3 + 7) // 8 * 8
    return TOLD_BYTES + 1023 + hopper.ROW_BYTES * (9 * CHANNELS + pixels)


def _launcher(dtype: torch.dtype, how: tuple[bool, bool, bool, bool], width: int, span: int) -> loader.Launch:
    template = (loader.scalar(dtype), *how, span)
    source = "conv_block/conv_block_whole"
    return loader.cuda_launcher(source, "conv_block_whole", *template, shared=_shared(width, span), dependent=True)


def _launch(x: Tensor, weight: Tensor, vectors: Vectors, own: Own, **how: Any) -> None:
    images, height, width, _ = x.shape
    z, y, statistics, counters = own
    if counters is None and (y is not None or how.get("scaled")):
        counters = torch.zeros(images, 2, dtype=torch.int32, device=x.device)
    terms = None
    if how.get("scaled"):
        # Of four steps, the terms of as many weights, and one number a channel. A launch that follows another of this
        # call writes its own while that one runs: so they are of the call, not of a launch.
        terms = torch.empty(images, 4 * (9 * 16 + 1) * CHANNELS, dtype=torch.int32, device=x.device)
    works = _works(images, height, width, loader.multiprocessors(x.device.index))
    sizes = {work.part.stop - work.part.start for work in works}
    if x.dtype.itemsize == 2 and y is not None and len(sizes) == 1:
        early = early_images(max(sizes), height, width, loader.multiprocessors(x.device.index))
        if early:
            _launch_turns(early, len(works), x, weight, vectors, (z, y, statistics, counters), how["tanh"], how["eps"])
            return
    given = z, y, statistics, counters, terms
    if len(works) == 1:
        _launch_once(works[0], x, weight, vectors, given, **how)
        return
    parts = [x[work.part] for work in works]
    for number, (work, part, following) in enumerate(zip(works, parts, [*parts[1:], None], strict=True)):
        its = tuple(None if tensor is None else tensor[work.part] for tensor in given)
        _launch_once(work, part, weight, vectors, its, follows=number > 0, following=following, **how)


class _Work(NamedTuple):
    """One launch: which images, and the rows of its strips, strips an image and pixels of a warpgroup's sums."""

    part: slice
    rows: int
    strips: int
    span: int


@lru_cache(maxsize=256)
def _works(images: int, height: int, width: int, processors: int) -> tuple[_Work, ...]:
    found = []
    for part in _parts(launches((images, CHANNELS, height, width), processors)):
        rows = strip_rows(part.stop - part.start, height, width, processors)
        found.append(_Work(part, rows, -(-height // rows), _span(rows, width)))
    return tuple(found)


def _parts(numbers: Sequence[int]) -> Iterator[slice]:
    ends = list(accumulate(numbers))
    return map(slice, [0, *ends], ends)


def _launch_once(
    work: _Work,
    x: Tensor,
    weight: Tensor,
    vectors: Vectors,
    own: tuple[Tensor | None, ...],
    *,
    follows: bool = False,
    following: Tensor | None = None,
    tanh: bool = False,
    adjoint: bool = False,
    try_half: bool = False,
    scaled: bool = False,
    eps: float = 0.0,
) -> None:
    z, y, statistics, counters, terms = own
    images, height, width, _ = x.shape
    blocks, moments = images * work.strips, None
    if y is not None:
        # The first and the second time's, and each block's largest number.
        many = blocks * (2 * 2 * CHANNELS + 1) if try_half else blocks * 2 * CHANNELS
        moments = torch.empty(many, dtype=torch.float32, device=x.device)
    # Boxes: a row of the image, the rows of a tap, eight pixels of what is written.
    short = x.dtype.itemsize == 2
    depth = CHANNELS if short else CHANNELS // 4
    flat, taps = hopper.packed(x.view(-1, CHANNELS)), hopper.packed(weight.view(CHANNELS, -1))
    maps = loader.tensor_map(flat, width, depth), loader.tensor_map(taps, CHANNELS, depth)
    written = (
        loader.tensor_map(out.view(-1, CHANNELS), 8, CHANNELS) if short and out is not None else maps[0]
        for out in (z, y)
    )
    raw = taps if scaled else None
    tensors = (*maps, *written, raw, terms, *vectors, z, y, moments, statistics, counters)
    further = (int(follows), following, 0 if following is None else len(following))
    launch = _launcher(x.dtype, (tanh, adjoint, try_half, scaled), width, work.span)
    with torch.cuda.device_of(x):
        launch((blocks,), (128 * GROUPS,), *tensors, *further, height, width, work.rows, work.strips, eps)


def _launch_turns(
    early: int,
    rounds: int,
    x: Tensor,
    weight: Tensor,
    vectors: Vectors,
    own: Own,
    tanh: bool,
    eps: float,
) -> None:
    z, y, statistics, counters = own
    images, height, width = len(x) // rounds, *x.shape[1:3]
    strips = early * -(-height // 3), (images - early) * -(-height // 2)
    moments = torch.empty(rounds * sum(strips) * 2 * CHANNELS, dtype=torch.float32, device=x.device)
    flat, taps = hopper.packed(x.view(-1, CHANNELS)), hopper.packed(weight.view(CHANNELS, -1))
    maps = loader.tensor_map(flat, width, CHANNELS), loader.tensor_map(taps, CHANNELS, CHANNELS)
    written = (
        maps[0] if out is None else loader.tensor_map(out.view(-1, CHANNELS), width // 2, CHANNELS) for out in (z, y)
    )
    # What threads tell each other, weights, and the two strips' rows with zeros around them.
    shared = 8192 + 9 * CHANNELS * 128 + (81 + 65) * 1024 + 1023
    source, template = "conv_block/conv_block_whole", (loader.scalar(x.dtype), tanh)
    launch = loader.cuda_launcher(source, "conv_block_turns", *template, shared=shared, dependent=True)
    further = (x, rounds, height, early, images, eps)
    with torch.cuda.device_of(x):
        launch((max(strips),), (128 * GROUPS,), *maps, *written, *vectors, z, moments, statistics, counters, *further)


def conv_block_whole(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    eps: float = 1e-5,
    approximate: str = "none",
    precision: str = "ieee",
    keep: bool = False,
    counters: Tensor | None = None,
) -> tuple[Tensor, Saved | None]:
    """What the Triton kernels' ``conv_block_forward`` computes, of the same, in one kernel, on a GPU of Hopper's kind.

    float32 is multiplied only where "bf16x3", "fp16x3" or "tf32" allows it. By "bf16x3": three products of two bfloat16
    terms each. By "fp16x3": three of two float16 terms, which have float32's digits of all numbers but those below
    2⁻¹⁷ of the largest beside them: of weights in 16 channels of an output channel, and of pixels in the first 16 of a
    strip. The scale of the strip's other pixels follows from those before, at the cost of up to 8 of these powers. For
    TF32's accuracy: a quarter of the channels as by "bf16x3" and the others by one product of numbers rounded to
    float16, as fine as TF32's. An image of which float16's range may add more than 2⁻¹² of a plane's √(variance + ε) to
    TF32's error, NaN and infinities included, is computed again by the three products, in the same kernel.
    The convolution is normalised as it was summed, in float32; a bias, which the mean takes away, is not added.
    ``keep``: also return what backward needs, the convolution without bias, of x's
    dtype, and its statistics, else None. ``counters``, int32 (N, 2) of zeros, are left zeros: a caller's own save
    clearing new ones; two calls at a time must not share them. More images than run at once take several launches.

    Raises ``ValueError`` as ``conv_block_forward`` does, and for sizes that do not fit (:func:`fits`).
    """
    from hypatia_lab.kernels.conv_block.conv_block_triton import Saved, operands

    pixels, taps, vectors = operands(x, weight, bias, gamma, beta, approximate, precision)
    processors = loader.multiprocessors(x.device.index)
    if not fits(x.shape, weight.shape[0], x.dtype, precision, processors):
        raise ValueError(f"x {list(x.shape)} and weight {list(weight.shape)} of {x.dtype} do not fit one kernel")
    y, saved = torch.empty_like(pixels), None
    if keep:
        statistics = torch.empty(x.shape[0], 2, CHANNELS, dtype=torch.float32, device=x.device)
        saved = Saved(torch.empty_like(y), statistics)
    z, statistics = (saved.convolved, saved.statistics) if saved else (None, None)
    word = precision if x.dtype == torch.float32 else ""  # of 16-bit numbers there is one way to multiply
    how = {"tanh": approximate == "tanh", "try_half": word == "tf32", "scaled": word == "fp16x3"}
    _launch(pixels, taps, vectors, (z, y, statistics, counters), eps=eps, **how)
    return y.permute(0, 3, 1, 2), saved


def adjoint(grad: Tensor, weight: Tensor, counters: Tensor | None = None) -> Tensor:
    """Gradient of x (N, H, W, 64) from ``grad`` (N, H, W, 64), that of the convolution; weight (64, 9, 64).

    All contiguous and of one dtype, bfloat16, float16, or float32 in its own digits; sizes as of :func:`fits`;
    ``counters`` as :func:`conv_block_whole` takes them.
    """
    from hypatia_lab.kernels.conv_block.conv_block_backward import opposite

    out, nothing = torch.empty_like(grad), (None, None, None)
    if grad.dtype == torch.float32:
        _launch(grad, opposite(weight), nothing, (out, None, None, counters), scaled=True)
    else:
        _launch(grad, weight, nothing, (out, *nothing), adjoint=True)
    return out


def behind_convolution(
    grad: Tensor,
    saved: Saved,
    gamma: Tensor | None,
    beta: Tensor | None,
    *,
    approximate: str = "none",
    counters: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradient of the convolution (N, H, W, 64) from ``grad``, that of y, of the same shape and dtype, not float64.

    Also Σ g and Σ g·x̂ by blocks, g the gradient behind GELU, (blocks, 2, 64) in float32: their sums are the gradients
    of β and γ (64). ``grad`` is contiguous; ``saved`` as :func:`conv_block_whole` left it, and ``counters`` as it takes
    them; sizes as of :func:`backward_launches`.
    """
    images, height, width, _ = grad.shape
    area, out, processors = height * width, torch.empty_like(grad), loader.multiprocessors(grad.device.index)
    parts = list(_parts(backward_launches((images, CHANNELS, height, width), processors)))
    # Blocks an image: as many as there are, of 48 pixels at least.
    blocks = [min(processors // (part.stop - part.start), -(-area // 48)) for part in parts]
    many = [(part.stop - part.start) * each for part, each in zip(parts, blocks, strict=True)]
    sums = torch.empty(sum(many), 2, CHANNELS, dtype=torch.float32, device=grad.device)
    if counters is None:
        counters = torch.zeros(images, 2, dtype=torch.int32, device=grad.device)
    launch = loader.cuda_launcher(
        "conv_block/conv_block_gradient",
        "conv_block_gradient",
        loader.scalar(grad.dtype),
        approximate == "tanh",
        shared=128 * GROUPS // 32 * CHANNELS * 8 + SHARE * CHANNELS * 4,
        dependent=True,
    )
    for part, each, own in zip(parts, blocks, _parts(many), strict=True):
        given = (grad[part], saved.convolved[part], saved.statistics[part])
        tensors = (*given, gamma, beta, out[part], sums[own], counters[part])
        with torch.cuda.device_of(grad):
            launch((own.stop - own.start,), (128 * GROUPS,), *tensors, area, -(-area // each), each)
    return out, sums


def conv_block_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    saved: Saved,
    *,
    approximate: str = "none",
    counters: Tensor | None = None,
) -> Gradients:
    """What the Triton kernels' ``conv_block_backward`` computes, of bfloat16, float16, or float32 by "fp16x3", of sizes
    that :func:`backward_fits`.

    ``counters`` as :func:`conv_block_whole` takes them.
    """
    from hypatia_lab.kernels.conv_block.conv_block_backward import (
        candidates,
        checked_gradient,
        gradients,
        weight_gradient,
        weight_gradient_in_terms,
    )

    grad, pixels, taps, gamma, beta = checked_gradient(grad, x, weight, gamma, beta, approximate)
    (images, inner, height, width), outer, split = x.shape, weight.shape[0], x.dtype == torch.float32
    cut = candidates((images, inner, outer, height, width), split=split)[0].slice
    behind, sums = behind_convolution(grad, saved, gamma, beta, approximate=approximate, counters=counters)
    back = adjoint(behind, taps, counters).permute(0, 3, 1, 2)
    if split:
        by_weight, _ = weight_gradient_in_terms(behind, pixels, cut, dependent=True)
    else:
        by_weight = weight_gradient(behind, pixels, cut, dependent=True)
    return gradients(back, by_weight, sums, dependent=True)


def backward_fits(
    size: torch.Size | tuple[int, ...], outer: int, dtype: torch.dtype, precision: str, processors: int = 132
) -> bool:
    """Whether :func:`conv_block_backward` can take x of ``size`` (N, C_in, H, W), ``outer`` channels out."""
    known = dtype.itemsize == 2 or precision == "fp16x3"
    return known and fits(size, outer, dtype, precision, processors) and bool(backward_launches(size, processors))
