"""A reader's own kernel: one Python file with a reference and decorated variants, measured like the lab's own.

The file declares one operation by decorating its reference, and registers variants as everyone does::

    @operation("scaled_softmax", dims=("rows", "columns"), inputs=draw, shapes=("256x512",))
    def scaled_softmax(x):
        "Softmax of half of x along each row."
        return torch.softmax(0.5 * x, -1)

    @variant("scaled_softmax", "mine", origin="own")
    def mine(workload, inputs): ...

The reference is written once, as plain PyTorch: on float64 inputs it gives the answer, on the row's own dtype it is
the baseline ``eager``, and through torch.compile the variant ``compile``.
"""

from __future__ import annotations

import inspect
import math
import re
import tokenize
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypatia_lab.experiments import EXPERIMENTS, Experiment, Source, axes
from hypatia_lab.experiments.axes import CALLED, CPU_CLOCKS, Sweep
from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.messages import unknown
from hypatia_lab.strangers import source_file
from hypatia_lab.variants import AGAIN, registered, variant, variants
from hypatia_lab.workloads import DTYPES, Operation, Workload, operations, parse_shape, register

if TYPE_CHECKING:
    import torch

    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs

    Shape = tuple[int, ...]
    Draw = Callable[[Shape, torch.dtype, str, torch.Generator], Inputs]

NAME = r"[a-z][a-z0-9_]{0,63}"
"""What an operation or a variant may be called."""
ROUNDINGS = 4
"""How often a number is rounded on its way to the output, unless the reader says otherwise."""
BUDGET_S = 0.3
"""Time that each variant may take under each clock in one process."""
WITHIN_S = 40.0
"""So long (s) processes are added to a measurement that is not decided: of a small kernel on an H100 five take 35 s."""
BASELINES = ("eager", "compile")


class OwnError(ValueError):
    """A reader's file that cannot be judged: the message names file and line, where there is one, and the cause."""


class TooLarge(OwnError):
    """What cannot be judged on this machine, for no fault of a file."""


@dataclass(frozen=True)
class Own:
    """What a reader's file declares beside the :class:`Operation`: the shapes and dtypes to measure."""

    name: str
    summary: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants of the reader's file, in order of registration; those of origin ``own`` are judged."""
        return tuple(name for name in variants(self.name) if name not in BASELINES)


_DECLARED: dict[str, Own] = {}


def operation(
    name: str,
    *,
    dims: Sequence[str],
    inputs: Draw,
    shapes: Sequence[str],
    dtypes: Sequence[str] = ("float32",),
    depth: Callable[[Shape], int] | int = max,
    roundings: int = ROUNDINGS,
    flops: Callable[[Shape], int] | int = 0,
    traffic: Callable[[Shape, int], int] | None = None,
    faults: Callable[[Inputs], dict[str, torch.Tensor]] = lambda inputs: {},
) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    """Declare the decorated reference as operation ``name``, with the baselines ``eager`` and ``compile``.

    The reference takes the inputs by name and returns one tensor; the first line of its docstring describes it.
    ``dims`` names the extents of a shape, ``shapes`` (such as ``"1024x512"``) and ``dtypes`` are what is measured.
    ``inputs(shape, dtype, device, generator)`` draws the inputs, a dict of tensors.

    The tolerance on ‖out − ref‖/‖ref‖ is that of every operation (:meth:`Workload.tolerance`): ``depth(shape)`` terms
    are accumulated into one output (default: the largest extent), and numbers are rounded ``roundings`` times.
    ``flops(shape)`` counts floating-point operations: without it the limit is that of the bytes alone.
    Either may be a number, for every shape. ``traffic(shape, itemsize)`` counts compulsory bytes; the default is the
    size of inputs and output.
    ``faults(inputs)`` gives float64 answers of well-known mistakes by name, so that a wrong output can be told which.

    Raises :class:`OwnError` for a name that is taken or is no name, an unknown dtype or a shape that does not fit, a
    reference without docstring, and :class:`WorkloadError` for what is no shape.
    """
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise OwnError(f"operation name {name!r} must be lower-case letters, digits and _, beginning with a letter")
    if name in EXPERIMENTS or name in operations():
        raise OwnError(f"operation name {name!r} is taken; choose another")
    if isinstance(dims, str) or not dims or not all(isinstance(dim, str) and dim for dim in dims):
        raise OwnError(f"dims of {name} must name the extents of a shape, such as ('rows', 'columns')")
    chosen = tuple(parse_shape(text) for text in ([shapes] if isinstance(shapes, str) else shapes))
    kinds = (dtypes,) if isinstance(dtypes, str) else tuple(dtypes)
    ensure_fitting(name, tuple(dims), chosen, kinds)
    if type(roundings) is not int or roundings < 1:
        raise OwnError(f"roundings of {name} must be a whole number of at least 1")

    def declare(reference: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        if not isinstance(reference, types.FunctionType) or not reference.__doc__ or not reference.__doc__.strip():
            raise OwnError(f"the reference of {name} must be a function with a docstring: its first line describes it")
        summary = reference.__doc__.strip().splitlines()[0]

        def in_float64(given: Inputs) -> torch.Tensor:
            return reference(**widened(given)).double()

        @cache
        def moved(shape: Shape, itemsize: int) -> int:
            return sum(tensor.nbytes for tensor in _imagined(name, reference, inputs, shape, itemsize))

        register(
            Operation(
                name=name,
                dims=tuple(dims),
                summary=summary,
                make_inputs=lambda work, device, generator: inputs(
                    work.shape, _torch_dtype(work.dtype), device, generator
                ),
                reference=in_float64,
                flops=_of_shape(flops),
                traffic=traffic or moved,
                faults=faults,
                depth=_of_shape(depth),
                roundings=lambda shape: roundings,
                operands=lambda shape: math.sqrt(2 * roundings),
            )
        )

        @variant(name, "eager", origin="peer", baseline=True)
        def eager(workload: Workload, inputs: Inputs) -> Run:
            """The reference as plain PyTorch, in the row's own dtype."""
            return lambda: reference(**inputs)

        @variant(name, "compile", origin="peer", needs=compile_missing)
        def compile_default(workload: Workload, inputs: Inputs) -> Run:
            """torch.compile of the reference, default mode."""
            run = compiled(reference)
            return lambda: run(**inputs)

        _DECLARED[name] = Own(name, summary, chosen, kinds)
        return reference

    return declare


def _of_shape(count: Callable[[Shape], int] | int) -> Callable[[Shape], int]:
    return count if callable(count) else lambda shape: count


def ensure_fitting(name: str, dims: tuple[str, ...], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
    """Raise :class:`OwnError` when a shape does not have ``dims``, a dtype is unknown, or there are none."""
    for shape in shapes:
        if len(shape) != len(dims):
            text = "x".join(map(str, shape))
            raise OwnError(f"shape {text} of {name} must be {'x'.join(dims)}: it has {len(shape)} of {len(dims)}")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise OwnError(unknown("dtype", dtype, DTYPES, name))
    if not shapes or not dtypes:
        raise OwnError(f"{name} needs at least one shape and one dtype to be measured at")


def widened(tensors: Inputs) -> Inputs:
    """``tensors`` by name, those of floating-point numbers in float64."""
    return {key: value.double() if value.is_floating_point() else value for key, value in tensors.items()}


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    return getattr(torch, name)


def _imagined(
    name: str, reference: Callable[..., Any], inputs: Callable[..., Any], shape: tuple[int, ...], itemsize: int
) -> list[torch.Tensor]:
    """Inputs and output at ``shape`` as tensors that have sizes but no memory. Raises :class:`OwnError`.

    Source: ``torch._subclasses.fake_tensor``, which torch.compile traces with.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    dtype = {size: kind for kind, size in reversed(DTYPES.items())}[itemsize]
    text = "x".join(map(str, shape))
    with FakeTensorMode():
        with source_file.telling(OwnError, f"inputs of {name} fail at {text}"):
            given = inputs(shape, _torch_dtype(dtype), "cpu", torch.Generator())
        if not isinstance(given, dict) or not all(isinstance(value, torch.Tensor) for value in given.values()):
            raise OwnError(f"inputs of {name} must return a dict of tensors by name")
        try:
            inspect.signature(reference).bind(**given)
        except TypeError as cause:
            raise OwnError(f"the reference of {name} does not take its inputs {', '.join(given)}: {cause}") from None
        with source_file.telling(OwnError, f"the reference of {name} fails at {text} in {dtype}"):
            out = reference(**given)
    if not isinstance(out, torch.Tensor) or not out.is_floating_point():
        what = f"a tensor of {out.dtype}" if isinstance(out, torch.Tensor) else type(out).__name__
        raise OwnError(f"the reference of {name} must return one tensor of floating-point numbers, not {what}")
    return [*given.values(), out]


# ---------------------------------------------------------------- from a file


def digest(path: Path) -> str:
    """Digest of the file's text, 12 hexadecimal digits. Raises :class:`OwnError` when it cannot be read."""
    return source_file.digest(path, OwnError)


def text(path: Path) -> str:
    """The file as Python reads it, in the encoding that it declares. Raises :class:`OwnError` for what is no text."""
    try:
        with tokenize.open(path) as stream:
            return stream.read()
    except OSError as cause:
        raise OwnError(f"{path}: cannot be read ({cause.strerror})") from None
    except (SyntaxError, UnicodeDecodeError) as cause:
        raise OwnError(f"{path}:1: {type(cause).__name__}: {cause}") from None


def load(path: Path, expected: str = "") -> Own:
    """Import the reader's file ``path`` and return what it declares; its operation and variants are then registered.

    The file is the reader's own program and runs as such. ``expected`` is the digest that it must have.

    Raises :class:`OwnError` naming file and line: a file that cannot be read or fails, that declares no operation or
    several, or no variant beside the baselines; inputs, a reference, FLOPs or bytes that do not work out.
    """
    path = path.resolve()
    if expected and digest(path) != expected:
        raise OwnError(f"{path}: was changed while it was being measured; judge it again")
    known, before = set(_DECLARED), {name: set(variants(name)) for name in registered()}
    source_file.run(path, OwnError)
    names = [name for name in _DECLARED if name not in known]
    if len(names) != 1:
        said = f"declares {' and '.join(names)}; one file, one operation" if names else "declares no operation"
        raise OwnError(f"{path}: {said}; decorate one reference with @hypatia_lab.operation(...)")
    own = _DECLARED[names[0]]
    for name in registered():
        added = [added for added in variants(name) if name != own.name and added not in before.get(name, set())]
        if added and name not in operations():
            raise OwnError(f"{path}: variant {added[0]!r} is of {unknown('operation', name, operations())}")
        if added:
            raise OwnError(f"{path}: variant {added[0]!r} is of {name}, which is not this file's operation {own.name}")
    if not any(variants(own.name)[name].origin == "own" for name in own.variants):
        example = f"@hypatia_lab.variant({own.name!r}, 'mine', origin='own')"
        raise OwnError(f"{path}: {own.name} has no variant of yours; decorate one with {example}")
    for name in own.variants:
        if not re.fullmatch(NAME, name):
            raise OwnError(f"{path}: variant name {name!r} must be lower-case letters, digits and _")
    for shape in own.shapes:
        amounts(path, own, shape)
    return own


def amounts(path: Path, own: Own, shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """FLOPs at ``shape``, and bytes in each of the dtypes of ``own``.

    Raises :class:`OwnError` naming the one that does not work out; the depth may be another.
    """
    spec = operations()[own.name]
    text = "x".join(map(str, shape))

    def amount(what: str, least: int, work: Callable[[], int]) -> int:
        try:
            found = work()
        except OwnError as cause:
            raise OwnError(f"{path}: {cause}") from None
        except Exception as cause:
            raise OwnError(f"{path}: {what} of {own.name} fails at {text}{source_file.said(cause)}") from None
        if type(found) is not int or found < least:
            raise OwnError(f"{path}: {what} of {own.name} at {text} is {found!r}, not a whole number from {least} on")
        return found

    flops = amount("flops", 0, lambda: spec.flops(shape))
    sizes = [DTYPES[dtype] for dtype in own.dtypes]
    traffic = tuple(amount("traffic", 1, partial(spec.traffic, shape, size)) for size in sizes)
    amount("depth", 1, lambda: spec.depth(shape))
    return flops, traffic


def experiment(path: Path, own: Own) -> Experiment:
    """The experiment that measures ``own``, of the file ``path``, at its shapes and in its dtypes."""
    names = ("eager", "eager" + AGAIN, "compile", *own.variants)
    clocks = {"cuda": CALLED["cuda"], "cpu": CPU_CLOCKS}
    sweep = Sweep(own.name, own.shapes, names, " ".join(own.dtypes), clocks=clocks, budget_s=BUDGET_S)
    source = Source(str(path.resolve()), digest(path))
    return axes.experiment(own.name, own.name, own.summary, sweep, source=source, within_s=WITHIN_S)
