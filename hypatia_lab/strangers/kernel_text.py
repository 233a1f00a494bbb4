"""A kernel as a text that is edited and run: C++ for CPUs, CUDA C++ for a GPU, made a variant like any other.

Both texts have a function named like the operation, that for CPUs as ``extern "C"``, that for a GPU as ``__global__``:
it takes pointers to the inputs, in their order, and to the output, then the extents of the shape, as ``int64_t`` or
``long long``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from hypatia_lab.kernels import loader

if TYPE_CHECKING:
    import torch

    from hypatia_lab.variants import Factory, Run
    from hypatia_lab.workloads import Inputs, Workload


class TextError(ValueError):
    """A text that is no kernel: the message holds the compiler's first complaints, or the cause."""


def device(cuda: str) -> tuple[str, str]:
    """Where this machine runs such a kernel: on a GPU where there is one for the text ``cuda``, else on a CPU; and why
    it cannot be built there, which is empty where it can.
    """
    if cuda and not loader.cuda_missing():
        return "cuda", ""
    return "cpu", loader.cpp_missing()


def factory(operation: str, place: str, cpp: str, cuda: str, tile: int) -> Factory:
    """What makes the kernel for the device ``place``, of the text that is for it. Raises :class:`TextError`."""
    return _on_gpu(operation, cuda, tile) if place == "cuda" else _on_cpu(operation, cpp)


def _on_cpu(operation: str, text: str) -> Factory:
    """Of the C++ ``text``, built with OpenMP on."""
    try:
        name = _stored(operation, text, ".cpp")
        getattr(loader.cpp_library(name), operation)
    except loader.BuildError as cause:
        raise TextError(str(cause)) from None
    except AttributeError:
        told = f'the C++ text has no function of C\'s called {operation}: extern "C" void {operation}(...)'
        raise TextError(told) from None
    return _factory(lambda y, *arguments: loader.call_cpp(name, operation, *arguments))


def _on_gpu(operation: str, text: str, tile: int) -> Factory:
    """Of the CUDA C++ ``text``, launched with a block of ``tile`` × ``tile`` threads for each square of as many
    elements of the output: ``x`` counts its columns, ``y`` its rows.
    """
    try:
        launch = loader.cuda_launcher(_stored(operation, text, ".cu"), operation)
    except loader.BuildError as cause:
        raise TextError(str(cause)) from None

    def call(y: torch.Tensor, *arguments: torch.Tensor | int) -> None:
        columns = y.shape[-1]
        launch((-(-columns // tile), -(-(y.numel() // columns) // tile)), (tile, tile), *arguments)

    return _factory(call)


def _stored(operation: str, text: str, suffix: str) -> str:
    """The loader's name of a file that holds ``text``; another text has another name."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = loader.cache_folder() / "texts" / digest / f"{operation}{suffix}"
    loader.store(path, text.encode())
    return str(path.with_suffix(""))


def _factory(call: Callable[..., None]) -> Factory:
    """The factory of whoever takes the output, then all arguments: the inputs, the output again, and the extents."""

    def made(workload: Workload, inputs: Inputs) -> Run:
        import torch

        shape, like = workload.spec.reference(inputs).shape, next(iter(inputs.values()))

        def run() -> torch.Tensor:
            y = torch.empty(shape, dtype=like.dtype, device=like.device)
            call(y, *inputs.values(), y, *workload.shape)
            return y

        return run

    return made
