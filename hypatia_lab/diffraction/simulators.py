"""Who computes the image: plain C, torch as it comes, torch compiled, and kernels of our own.

Each variant takes the float64 vectors that :func:`hypatia_lab.diffraction.physics.vectors` makes (crystals, sources,
detector, polarization, structure) and the scene's ``layout`` beside them, and returns the image, (slow, fast), or
(crystals, slow, fast) of a batch. Of the workload only shape and dtype count: any scene of that shape will do.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab.diffraction import anchored, physics
from hypatia_lab.diffraction.operations import BATCH, CASES, DTYPES, layout_of
from hypatia_lab.diffraction.physics import NAMES
from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs, Workload

Form = Callable[..., torch.Tensor]
Needs = Callable[["Workload", str], str]


def _named(*tensors: torch.Tensor) -> Inputs:
    return dict(zip(NAMES, tensors, strict=True))


def _dtype(workload: Workload) -> torch.dtype:
    return getattr(torch, workload.dtype)


def _layout(inputs: Inputs) -> physics.Layout:
    return physics.Layout.from_tensor(inputs["layout"])


def _whole_image(layout: physics.Layout, dtype: torch.dtype, *, reduce: bool = True) -> Form:
    return lambda *tensors: physics.plain(_named(*tensors), layout, 0, layout.slow, dtype, reduce=reduce)


def torch_form(workload: Workload) -> tuple[Form, tuple[str, ...]]:
    """The function behind ``eager`` and the compiled variants, and the names of the inputs it takes, in order."""
    return _whole_image(layout_of(workload), _dtype(workload)), NAMES


def _bind(form: Form, inputs: Inputs) -> Run:
    tensors = [inputs[name] for name in NAMES]
    return lambda: form(*tensors)


# ---------------------------------------------------------------- where a variant can run


def _needs(missing: Needs = lambda workload, device: "") -> Needs:
    """What a variant needs that lacks something where ``missing`` says so: that, and a dtype of the simulator's."""

    def needs(workload: Workload, device: str) -> str:
        unfit = "" if workload.dtype in DTYPES else f"the simulator runs in {' and '.join(DTYPES)}"
        return missing(workload, device) or unfit

    return needs


def _graphs_missing(workload: Workload, device: str) -> str:
    return compile_missing(workload, device) if device == "cuda" else loader.NO_GPU


_supported, _compiles, _compiles_to_graphs = _needs(), _needs(compile_missing), _needs(_graphs_missing)
_triton = _needs(lambda workload, device: loader.triton_missing(device))
_cuda = _needs(lambda workload, device: loader.cuda_missing(device))
_c = _needs(lambda workload, device: loader.cpp_missing())


# ---------------------------------------------------------------- the variants


def _plain(mode: str = "", *, reduce: bool = True) -> Factory:
    """The formulae as they stand, many small operations; through torch.compile where that has a ``mode``.

    ``reduce``: integers are removed before π. Else they are still in h, sin(πNh)/sin(πh): S003's repository, a week
    after the document.
    """

    def factory(workload: Workload, inputs: Inputs) -> Run:
        form = _whole_image(_layout(inputs), _dtype(workload), reduce=reduce)
        return _bind(compiled(form, mode=mode) if mode else form, inputs)

    return factory


def compile_anchored(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile of the anchored form: integers removed in float64 once a tile, then small differences."""
    layout, dtype = _layout(inputs), _dtype(workload)
    # Two compiled functions: in one, the anchors' float64 arithmetic would be fused into every pixel.
    prepare = compiled(lambda *tensors: anchored.anchors(_named(*tensors), layout, dtype))
    finish = compiled(
        lambda places, steps, whole, *tensors: anchored.pixels(places, steps, whole, _named(*tensors), layout)
    )
    return _bind(lambda *tensors: finish(*prepare(*tensors), *tensors), inputs)


def c_openmp(workload: Workload, inputs: Inputs) -> Run:
    """Plain C on all cores, double arithmetic, a row's pixels innermost so that the compiler can vectorise."""
    return _c_run("diffraction", workload, inputs)


def c_pixelwise(workload: Workload, inputs: Inputs) -> Run:
    """Plain C on all cores, pixel by pixel as the seed's C program, every sum innermost."""
    return _c_run("diffraction_pixelwise", workload, inputs)


def _c_run(name: str, workload: Workload, inputs: Inputs) -> Run:
    layout = _layout(inputs)
    function = getattr(loader.cpp_library("diffraction/diffraction", fast_math=True), f"{name}_{workload.dtype}")
    versions: list[int] = []
    host: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        # Numbers that lie on a GPU are fetched when they change, not at every call.
        now = [inputs[name]._version for name in NAMES]
        if now != versions:
            versions[:] = now
            host[:] = [inputs[name].cpu().contiguous() for name in NAMES]
        out = torch.empty(layout.slow, layout.fast, dtype=_dtype(workload))
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*host, out)]
        function(*pointers, *map(ctypes.c_int64, layout.sizes(inputs)))
        return out

    return run


def triton(workload: Workload, inputs: Inputs) -> Run:
    """One Triton kernel of our own: anchored differences, one launch, nothing in between."""
    from hypatia_lab.kernels.diffraction.diffraction_triton import diffraction

    layout, dtype = _layout(inputs), _dtype(workload)
    arguments: dict[str, Any] = {name: inputs[name] for name in NAMES}
    arguments |= {"oversample": layout.oversample, "cells": layout.cells, "miller_low": layout.miller_low}

    def run() -> torch.Tensor:
        out = torch.empty(workload.shape, dtype=dtype, device="cuda")
        diffraction(out=out, **arguments)
        return out

    return run


CUDA_TILE_FAST, CUDA_WARPS = 64, 4
"""Pixels along fast of one warp of the CUDA kernel, and warps of one block, one beside the other."""


def _cuda_rows(layout: physics.Layout, images: int) -> int:
    """Rows of one warp: few blocks, so that a centre serves many pixels, and a multiprocessor's all at once.

    How many each gets is what was quickest on H200s at 512² to 4096² (a multiprocessor holds seven at once).
    """
    pixels = layout.slow * layout.fast * images
    each = next(count for count, most in ((2, 2**20), (4, 2**23), (7, math.inf)) if pixels <= most)
    blocks = 132 * each  # of an H100 or H200; other GPUs lose a little, at small images
    parts = blocks // (-(-layout.fast // (CUDA_TILE_FAST * CUDA_WARPS)) * images)
    rows = -(-layout.slow // max(parts, 1))
    return min(max(rows + rows % 2, 2), 128)


def _early(tensor: torch.Tensor) -> bool:
    """Whether a launch may begin there before the one ahead of it has ended, in its share of Hopper's shared memory."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) == (9, 0)


def cuda(workload: Workload, inputs: Inputs) -> Run:
    """One CUDA C++ kernel of our own: anchored differences, one launch, nothing in between."""
    layout, dtype = _layout(inputs), _dtype(workload)
    tensors = [inputs[name] for name in NAMES]
    crystals, sources, structure = (inputs[name] for name in ("crystals", "sources", "structure"))
    images = crystals.shape[0] if workload.operation == BATCH else 1
    steps, table = crystals.shape[-3] * len(sources), int(structure.numel() > 1)
    single = int(steps == 1 and layout.oversample == 1 and not table)
    single *= 2 if dtype == torch.float32 and layout.fast % 4 == 0 else 1
    template = (loader.scalar(dtype), *layout.cells, single, table)
    rows = _cuda_rows(layout, images)
    grid = (-(-layout.fast // (CUDA_TILE_FAST * CUDA_WARPS)), -(-layout.slow // rows), images)
    early = bool(single) and _early(crystals)
    # Less what the kernel itself declares. Without a share the next launch's blocks would crowd where it is free first.
    share = max(hopper.share_of_memory(math.prod(grid), crystals.device.index) - 2048, 0) if early else 0
    sizes = (*layout.sizes(inputs)[:-3], rows)
    launch = loader.cuda_launcher("diffraction/diffraction", "diffraction", *template, shared=share, dependent=early)

    def run() -> torch.Tensor:
        out = torch.empty(workload.shape, dtype=dtype, device=crystals.device)
        launch(grid, (32, CUDA_WARPS), *tensors, out, *sizes)
        return out

    return run


def _loop(form: Form, inputs: Inputs) -> Run:
    crystals, *rest = (inputs[name] for name in NAMES)
    return lambda: torch.stack([form(own, *rest) for own in crystals])


def one_by_one(workload: Workload, inputs: Inputs) -> Run:
    """A loop over the batch, one warm compiled image a crystal (the form that the seed would loop)."""
    return _loop(compiled(_whole_image(_layout(inputs), _dtype(workload))), inputs)


def compile_batch(workload: Workload, inputs: Inputs) -> Run:
    """torch.compile of the eager form vectorised over the batch by torch.vmap."""
    single = _whole_image(_layout(inputs), _dtype(workload))

    def form(crystals: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda own: single(own, *rest))(crystals)

    return _bind(compiled(form), inputs)


def eager_batch(workload: Workload, inputs: Inputs) -> Run:
    """A loop over the batch, one eager image a crystal."""
    return _loop(_whole_image(_layout(inputs), _dtype(workload)), inputs)


for _case in CASES:
    _seed = partial(variant, _case, origin="rebuilt", tags=("document",))
    _peer = partial(variant, _case, origin="peer", tags=("library",))
    _own = partial(variant, _case, origin="own", tags=("own kernel",))
    if _case == BATCH:
        _seed("one_by_one", needs=_compiles, baseline=True, label="one image after the other")(one_by_one)
        _peer("eager", needs=_supported)(eager_batch)
        _peer("compile", needs=_compiles)(compile_batch)
    else:
        _peer("eager", needs=_supported, baseline=True)(_plain())
        _seed("eager_direct", needs=_supported, label="eager PyTorch, integers left in")(_plain(reduce=False))
        _peer("compile", needs=_compiles)(_plain("default"))
        _seed("compile_reduce_overhead", needs=_compiles_to_graphs)(_plain("reduce-overhead"))
        _peer("compile_max_autotune", needs=_compiles)(_plain("max-autotune-no-cudagraphs"))  # graphs are a clock here
        _own("compile_anchored", needs=_compiles, label="torch.compile, anchored")(compile_anchored)
        _seed("c_pixelwise", needs=_c, host=True, label="C, pixel by pixel")(c_pixelwise)
        _peer("c_openmp", needs=_c, host=True, label="C, vectorised")(c_openmp)
    _own("triton", needs=_triton, label="one Triton kernel")(triton)
    _own("cuda", needs=_cuda, label="one CUDA kernel")(cuda)
