"""What is computed: an operation, its shape, dtype, math mode and seed.

A :class:`Workload` names one problem; its :class:`Operation` knows how to draw inputs, what the right
answer is in float64, how many floating-point operations it takes and how many bytes it must move.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypatia_lab.messages import unknown

if TYPE_CHECKING:
    import torch

    Inputs = dict[str, torch.Tensor]

DTYPES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""torch dtype name → bytes an element."""

MATH = {
    "float64": ("ieee",),
    "float32": ("ieee", "tf32", "tf32x3", "bf16x3", "default"),
    "bfloat16": ("ieee",),
    "float16": ("ieee",),
}
"""dtype → math modes it can run in; ``ieee`` means the dtype's own arithmetic.

``tf32x3`` and ``bf16x3`` split each operand into two terms and add three of their products. ``default`` is PyTorch as
installed, the arithmetic of whoever asks for none: on a GPU its convolutions multiply in TF32 and its matrix products
as IEEE asks; on a CPU both are IEEE. It goes with operations that convolve: of all others it would be another name of
``ieee``.
"""

SPLIT = ("tf32x3", "bf16x3")

DIRECTIONS = ("forward", "forward_backward")
"""What is timed: the output alone, or the output and, from an upstream gradient, the gradients of the inputs."""

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""dtype → unit roundoff, the largest relative error of a number that is rounded to nearest."""

OPERAND = {"tf32": 2.0**-11, "tf32x3": 2.0**-21, "bf16x3": 2.0**-16}
"""math → the same of an operand. Of split ones the product of their small terms lacks: twice the digits of one term,
less a little."""

STEP = 8
"""Products that a matrix unit adds up at a time, before it cuts the sum off; some take more."""

MISJUDGED = 1e-6
"""Share of right tensors with an element beyond :func:`tail`."""


WINOGRAD = 6**2 * 3**2 / 8**2
"""By so much fewer multiplications tiles of 6×6 outputs of a 3×3 convolution can be had with, of 8×8 products each.
Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016), F(6×6, 3×3)."""


def tail(count: int) -> float:
    """Standard deviations that the largest of ``count`` errors keeps within, but for one tensor in a million.

    A sum of independent roundings, each within its bound, has no heavier tail than a normal number: an error is beyond
    t deviations with a probability of at most 2 exp(−t²/2), one of ``count`` errors with ``count`` times that. Sources:
    Hoeffding's inequality; Higham and Mary, A new approach to probabilistic rounding error analysis (2019).
    """
    return math.sqrt(2.0 * math.log(2.0 * count / MISJUDGED))


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """The numbers of ``x`` row by row, one element past the start of their memory."""
    return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)


class WorkloadError(ValueError):
    """A workload that cannot exist: the message names the field, its value and what would do."""


@dataclass(frozen=True)
class Backward:
    """What an operation has for direction ``forward_backward``; its answers are then tuples: y, then the gradients.

    The operation's ``make_inputs`` then also draws ``grad``, the upstream gradient, of y's shape and dtype.
    ``reference(inputs, y, near)`` computes (y, gradients …) in float64. Given the ``y`` of the variant in question, a
    kink whose side is decided by a number within ``near`` of it takes the side on which that ``y`` lies: rounding may
    have moved it across, both sides are right there, and the gradients jump between them.
    ``depth(shape)`` names the gradients in order and says how many terms are accumulated into an element of each;
    ``faults(inputs)`` gives, by gradient and name, the float64 answers of well-known mistakes.
    ``jumps(inputs, error)`` gives, by gradient and element, the root of the sum of the squares of what changes if kinks
    that a hidden number may have been rounded across fall on the other side; ``error`` is the standard one of such a
    number, as a share of its tensor's root mean square.
    ``passes`` says how often rounded numbers go into a gradient for once into y: 2 where those of the forward pass do.
    ``dtype`` is that of the gradients where it is not the workload's: under autocast parameters stay float32.
    """

    reference: Callable[[Inputs, torch.Tensor | None, float], tuple[torch.Tensor, ...]]
    depth: Callable[[tuple[int, ...]], dict[str, int]]
    faults: Callable[[Inputs], dict[str, dict[str, torch.Tensor]]] = lambda inputs: {}
    jumps: Callable[[Inputs, float], dict[str, torch.Tensor]] = lambda inputs, error: {}
    passes: int = 1
    dtype: str = ""


@dataclass(frozen=True)
class Operation:
    """One mathematical operation, independent of who implements it.

    ``make_inputs(workload, device, generator)`` draws fresh random tensors in the workload's dtype;
    ``reference(inputs)`` computes the answer in float64 on the inputs' device;
    ``flops(shape)`` counts floating-point operations (a multiply-add is two);
    ``traffic(shape, itemsize)`` counts compulsory bytes (each input read once, each output written once);
    ``faults(inputs)`` gives, by name, the float64 answers of well-known mistakes, so that a wrong
    output can be told which mistake it is; ``depth(shape)`` is the number of terms accumulated into one output, and
    ``roundings(shape)`` how often one after another results are rounded to the dtype: once a layer. ``operands(shape)``
    is the error that short operands make, in units of :data:`OPERAND`: √2 for the two of a product, 1 where all that
    they shrink by when they are cut off is normalised away again; of several products one after another times the root
    of their number if so, else times their number. ``accuracy``: by dtype, a relative error that is right even where
    rounding alone makes less. ``scale(inputs)`` gives, by part, the size that errors are judged against where its own
    is smaller: for sums that cancel, by chance or always, whose rounding errors are those of their terms.
    ``peak_error(workload)``, where given, judges in another way: the largest acceptable max |out − ref| / max |ref|,
    for outputs such as images, whose dark parts carry no digits worth holding. ``small``: shapes that take a moment, an
    odd and an even one, where those that its number of extents gives would not do.
    ``beside(inputs, out)``: numbers by which a task from elsewhere calls an answer right, or not, by a rule of its own:
    told beside the verdict, and no part of it. ``failed`` is 1 where not; of several answers the largest numbers count.
    ``backward``, where given, is what direction ``forward_backward`` needs. ``convolves``: its products are those of
    3×3 convolutions, which PyTorch as installed may compute in TF32, and libraries by fewer products. ``outputs``:
    names of the tensors of an answer, y first; of several, ``reference`` and every variant return the tuple; ``dtypes``
    are theirs by name, where that is not the workload's.
    """

    name: str
    dims: tuple[str, ...]
    summary: str
    make_inputs: Callable[[Workload, str, torch.Generator], Inputs]
    reference: Callable[[Inputs], Any]
    flops: Callable[[tuple[int, ...]], int]
    traffic: Callable[[tuple[int, ...], int], int]
    faults: Callable[[Inputs], dict[str, torch.Tensor]] = lambda inputs: {}
    depth: Callable[[tuple[int, ...]], int] = lambda shape: 1
    roundings: Callable[[tuple[int, ...]], int] = lambda shape: 1
    operands: Callable[[tuple[int, ...]], float] = lambda shape: math.sqrt(2.0)
    accuracy: Mapping[str, float] = field(default_factory=dict)
    scale: Callable[[Inputs], dict[str, float]] = lambda inputs: {}
    peak_error: Callable[[Workload], float] | None = None
    beside: Callable[[Inputs, tuple[torch.Tensor, ...]], dict[str, float]] = lambda inputs, out: {}
    backward: Backward | None = None
    convolves: bool = False
    outputs: tuple[str, ...] = ("y",)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    small: tuple[tuple[int, ...], ...] = ()

    @property
    def small_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes at which everybody is checked: :attr:`small`, else an odd and an even one of so many extents."""
        rank = len(self.dims)
        return self.small or ((3, 5, 33, 77, 129)[-rank:], (2, 2, 64, 64, 64)[-rank:])

    def maths(self, dtype: str) -> tuple[str, ...]:
        """The math modes that the operation has in ``dtype``. Raises ``KeyError`` for an unknown dtype."""
        return tuple(math for math in MATH[dtype] if math != "default" or self.convolves)


_OPERATIONS: dict[str, Operation] = {}


def register(operation: Operation) -> Operation:
    """Make ``operation`` known by its name. Raises ``ValueError`` when the name is taken."""
    if operation.name in _OPERATIONS:
        raise ValueError(f"operation {operation.name!r} is registered twice")
    _OPERATIONS[operation.name] = operation
    return operation


def operations() -> dict[str, Operation]:
    """All registered operations by name."""
    return dict(_OPERATIONS)


def parse_shape(text: str) -> tuple[int, ...]:
    """``"1024x784x2048"`` → ``(1024, 784, 2048)``. Raises :class:`WorkloadError` on anything else."""
    if not isinstance(text, str) or not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*", text):
        raise WorkloadError(f"shape {text!r} is not of the form 1024x784x2048 (whole numbers joined by x)")
    shape = tuple(int(part) for part in text.split("x"))
    if 0 in shape:
        raise WorkloadError(f"shape {text!r} has a zero; every extent must be at least 1")
    return shape


@dataclass(frozen=True)
class Workload:
    """One problem to solve: ``operation`` at ``shape`` in ``dtype`` and ``math`` mode.

    Raises :class:`WorkloadError` for an unknown operation, a shape of the wrong rank or with an extent below 1, an
    unknown dtype, a math mode that the dtype or the operation does not have, or a direction that the operation does not
    have.
    """

    operation: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    math: str = "ieee"
    direction: str = "forward"
    seed: int = 0

    def __post_init__(self) -> None:
        spec = _OPERATIONS.get(self.operation)
        if spec is None:
            raise WorkloadError(unknown("operation", self.operation, sorted(_OPERATIONS)))
        if len(self.shape) != len(spec.dims) or any(type(n) is not int or n < 1 for n in self.shape):
            wanted = "x".join(spec.dims)
            raise WorkloadError(
                f"shape {self.shape!r} of {self.operation} must be {wanted}, whole numbers of at least 1"
            )
        if self.dtype not in DTYPES:
            raise WorkloadError(unknown("dtype", self.dtype, DTYPES))
        if self.math not in MATH[self.dtype]:
            raise WorkloadError(unknown("math", self.math, spec.maths(self.dtype), self.dtype))
        if self.math not in spec.maths(self.dtype):
            raise WorkloadError(
                f"math {self.math!r} does not go with {self.operation}, which does not convolve: "
                "PyTorch's matrix products are IEEE by default, so its default is ieee"
            )
        if self.direction not in DIRECTIONS:
            raise WorkloadError(unknown("direction", self.direction, DIRECTIONS))
        if self.direction == "forward_backward" and spec.backward is None:
            raise WorkloadError(f"direction {self.direction!r} does not go with {self.operation}: it has no backward")

    @property
    def spec(self) -> Operation:
        """The operation behind the name."""
        return _OPERATIONS[self.operation]

    @property
    def shape_text(self) -> str:
        """The shape as written everywhere, such as ``1024x784x2048``."""
        return "x".join(str(n) for n in self.shape)

    @property
    def arithmetic(self) -> str:
        """How exact its products may be: the math, and of ``default`` that of TF32, which convolutions then use.

        A CPU computes ``default`` as ``ieee`` and is held to the same: a workload does not know where it is computed.
        """
        return "tf32" if self.math == "default" else self.math

    @property
    def backward(self) -> Backward | None:
        """What the backward pass needs, in direction ``forward_backward``; else None."""
        return self.spec.backward if self.direction == "forward_backward" else None

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the tensors of an answer: y, and in direction ``forward_backward`` the gradients."""
        return ("y", *self.backward.depth(self.shape)) if self.backward else self.spec.outputs

    def part_dtype(self, part: str) -> str:
        """dtype of a ``part`` of an answer: the workload's, unless its gradients have another."""
        own = self.backward.dtype if self.backward and part != "y" else self.spec.dtypes.get(part)
        return own or self.dtype

    @property
    def flops(self) -> int:
        """Floating-point operations of one call (a multiply-add is two); both passes make three times the forward's."""
        return (3 if self.backward else 1) * self.spec.flops(self.shape)

    @property
    def fewest_flops(self) -> int:
        """Those of the cheapest method that libraries are known to use."""
        return math.ceil(self.flops / (WINOGRAD if self.spec.convolves else 1))

    @property
    def traffic(self) -> int:
        """Compulsory bytes of one call: every input read once, every output written once.

        Whatever is read has a gradient of its size that is written, and the other way round.
        """
        return (2 if self.backward else 1) * self.spec.traffic(self.shape, DTYPES[self.dtype])

    def inputs(self, device: str, *, draw: int = 0) -> Inputs:
        """Fresh random inputs on ``device``; another ``draw`` gives other numbers of the same shapes."""
        import torch

        generator = torch.Generator(device=device).manual_seed(1_000_003 * self.seed + draw)
        return self.spec.make_inputs(self, device, generator)

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Run the body with torch's float32 matrix products and convolutions in this workload's math mode.

        ``default`` is what torch has when it is imported, whatever was set since. What torch.compile finds stored is
        told apart by the convolutions' switch too: its own key knows that of the products only, and max-autotune
        writes the other one into its kernels.

        Sources: ``torch.set_float32_matmul_precision``: "highest" is IEEE float32, "high" allows TF32;
        ``torch.backends.cudnn.allow_tf32``: convolutions have a switch of their own, and it is on by default;
        ``torch._inductor.codecache.FxGraphHashDetails`` (cuda_matmul_settings, cache_key_tag).
        """
        import torch
        from torch.compiler import config

        before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        tag = config.cache_key_tag
        tf32 = self.math in ("tf32", "tf32x3")
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32 or self.math == "default"
        config.cache_key_tag = f"{tag}tf32" if self.math == "default" else tag
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
            torch.backends.cudnn.allow_tf32 = convolutions
            config.cache_key_tag = tag

    def tolerance(self, part: str = "y", *, short_sums: bool = False) -> float:
        """Largest acceptable ‖out − ref‖/‖ref‖ of ``part`` against float64: twice what rounding to nearest makes.

        How it is held against a tensor of many or few elements, and against each, says :mod:`hypatia_lab.check`. By
        ``peak_error`` it is the largest acceptable max |out − ref| / max |ref|. Three parts add up, with u the unit
        roundoff, of a sum its accumulator's (float32's, or float64's of float64), of a result its dtype's:

        - A sum of d terms, ``depth``. To nearest its errors are a random walk, u√d. A matrix unit cuts its running sum
          off instead, after every :data:`STEP` products: always towards 0, by u of it at most on average, and over a
          random walk the running sum is on average half the last. So u·d / 16 is added where they may be used.
        - Operands that are rounded before they are multiplied, ``operands`` (TF32 keeps 11 bits; see
          :attr:`arithmetic`).
        - Results that are rounded to the dtype, ``roundings`` times: a random walk, u√roundings.

        Twice, since whoever cuts an operand off errs by up to 2u, and since libraries round more than they need
        (partial sums of 16-bit products, what Winograd's convolutions transform). A gradient behind a mask is rounded
        no more often, as a product with 0 or 1 is exact. ``accuracy`` is acceptable in any case.

        ``short_sums``: the largest that is possible where a library keeps running sums in the dtype, as PyTorch lets
        cuBLAS do with 16 bits (``allow_bf16_reduced_precision_reduction``). A sum is then rounded after every
        :data:`STEP` products at most, and is on average half the last, so d / 16 roundings more are a random walk.

        Sources: Higham, Accuracy and Stability of Numerical Algorithms, ch. 3 and 4; Higham and Mary (2019); Fasi,
        Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores (2021). Raises ``KeyError`` for a part
        that the answer does not have.
        """
        spec, backward = self.spec, self.backward
        depth = (
            dict.fromkeys(spec.outputs, spec.depth(self.shape)) | (backward.depth(self.shape) if backward else {})
        )[part]
        if spec.peak_error is not None:
            return spec.peak_error(self)
        accumulator = UNIT["float64" if self.dtype == "float64" else "float32"]
        cut = accumulator * depth / (2 * STEP) if self.arithmetic != "ieee" or DTYPES[self.dtype] == 2 else 0.0
        passes = backward.passes if backward and part != "y" else 1
        operands = math.sqrt(passes) * spec.operands(self.shape) * OPERAND.get(self.arithmetic, 0.0)
        sums = depth / (2 * STEP) if short_sums else 0.0
        unit = UNIT[spec.dtypes.get(part, self.dtype)]
        results = math.sqrt(passes * (spec.roundings(self.shape) + sums)) * unit
        found = 2.0 * (accumulator * math.sqrt(depth) + operands + results) + cut
        return max(found, spec.accuracy.get(self.dtype, 0.0))
